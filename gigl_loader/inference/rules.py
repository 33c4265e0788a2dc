"""Which modules compute over a distributed graph as they are, and which are refused, by name."""

import inspect
from typing import Any

import torch
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation

from gigl_loader.errors import ConfigError, WrongTypeError

NORMALIZED = {  # class -> whether it adds self-loops where it has no such attribute
    "GCNConv": False,
    "APPNP": False,
    "GCN2Conv": False,
    "LGConv": False,
    "SGConv": False,
    "TAGConv": False,
}
"""Modules whose ``propagate`` takes the edge weights of PyG's ``gcn_norm``."""

SEVERAL_HOPS = ("APPNP", "GatedGraphConv", "SGConv", "TAGConv")
"""Modules that propagate several times in one forward."""

CHECKED = {
    *NORMALIZED, *SEVERAL_HOPS, "CGConv", "EdgeConv", "FiLMConv", "GATConv", "GATv2Conv", "GENConv",
    "GINConv", "GINEConv", "GraphConv", "NNConv", "PNAConv", "ResGatedGraphConv", "SAGEConv",
    "SimpleConv", "TransformerConv",
}  # fmt: skip
"""Modules of PyG that tests compare with one process."""

_REFUSED = {
    "ChebConv": "it makes its Laplacian of the edges that this rank has",
    "ARMAConv": "it normalises the edges that this rank has",
    "FAConv": "it normalises the edges that this rank has",
    "EGConv": "it normalises the edges that this rank has",
    "PDNConv": "it normalises the edges that this rank has",
    "DNAConv": "it normalises the edges that this rank has",
    "ClusterGCNConv": "it normalises the edges that this rank has",
    "HypergraphConv": "its edges are not edges of the graph",
    "HGTConv": "it takes all types at once; HeteroConv of one layer per edge type can be had",
    "HEATConv": "it takes all types at once",
    "HANConv": "it takes all types at once",
    "DynamicEdgeConv": "it makes edges of its own",
    "XConv": "it makes edges of its own",
    "GravNetConv": "it makes edges of its own",
}
_POOLING_NORMS = (
    "DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "InstanceNorm", "MeanSubtractionNorm", "PairNorm"
)  # fmt: skip


def check_model(model: torch.nn.Module) -> list[str]:
    """Refuse what would give wrong values over a distributed graph.

    Returns:
        The classes of message-passing modules that no test has compared with one process.

    Raises:
        ConfigError: Names the module and why it does not fit.
    """
    if not isinstance(model, torch.nn.Module):
        raise WrongTypeError(
            f"the model must be a torch.nn.Module, got {type(model).__name__}: the model comes "
            "first, and then the dataset"
        )
    unknown = set()
    inside: set[torch.nn.Module] = set()
    # named_modules() gives a module before its parts: `inside` knows them when they come up
    for name, module in model.named_modules():
        why = _why_not(module, inside)
        if why:
            raise ConfigError(
                f"{type(module).__name__} at {name or 'the top'!r} does not fit a distributed "
                f"graph: {why}"
            )
        if isinstance(module, MessagePassing):
            # an aggregation inside of a layer is over the in-edges of a node, which are all on its
            # rank
            inside.update(m for m in module.modules() if m is not module)
            # a user's class may have the name of one of PyG's
            if not (_of_pyg(module) and type(module).__name__ in CHECKED):
                unknown.add(type(module).__name__)
    return sorted(unknown)


def _why_not(module: torch.nn.Module, inside: set[torch.nn.Module]) -> str | None:
    if isinstance(module, MessagePassing):
        return _why_not_layer(module, inside)
    name = type(module).__name__ if _of_pyg(module) else ""
    if name in _POOLING_NORMS:
        return "it takes statistics over all nodes: use BatchNorm, or LayerNorm by node"
    if name == "LayerNorm" and getattr(module, "mode", "graph") == "graph":
        return "mode='graph' takes statistics over all nodes: use mode='node'"
    if isinstance(module, Aggregation) and module not in inside:
        return "it pools over the nodes that this rank has"
    if type(module).__module__.startswith("torch_geometric.nn.pool"):
        return "it pools over the nodes that this rank has"
    return None


def _why_not_layer(module: MessagePassing, inside: set[torch.nn.Module]) -> str | None:
    if type(module).__name__ in _REFUSED:
        return _REFUSED[type(module).__name__]
    if module in inside:
        return "it is part of another message-passing module"
    # the normalised edges of a former call, in the numbers of another graph
    if getattr(module, "cached", False):
        return "cached=True keeps what belongs to another graph: build it without"
    # plans bring the rows of a node's in-neighbours: the other flow reads its out-neighbours
    if module.flow != "source_to_target":
        return "its messages go from target to source"
    taken = inspect.signature(module.forward).parameters
    if not {"x", "edge_index"} <= taken.keys():
        return f"its forward takes {list(taken)}, not x and edge_index"
    return None


def _of_pyg(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.")


def is_normalized(module: Any) -> bool:
    """Return whether ``module`` weighs edges by degrees."""
    known = _of_pyg(module) and type(module).__name__ in NORMALIZED
    return known and bool(getattr(module, "normalize", True))


def adds_self_loops(module: Any) -> bool:
    """Return whether a normalised ``module`` adds self-loops."""
    return bool(getattr(module, "add_self_loops", NORMALIZED[type(module).__name__]))


def units(model: torch.nn.Module) -> dict[torch.nn.Module, int]:
    """Return which layer each message-passing module is part of.

    Modules that a dict holds by edge type (``HeteroConv``, ``to_hetero``) are one layer.
    """
    found: dict[torch.nn.Module, int] = {}
    count = 0
    # modules() gives a ModuleDict before what it holds, so its layers are in `found` when they come
    # up
    for module in model.modules():
        if module in found:
            continue
        if isinstance(module, torch.nn.ModuleDict):
            layers = [m for m in module.children() if isinstance(m, MessagePassing)]
        else:
            layers = [module] if isinstance(module, MessagePassing) else []
        found.update(dict.fromkeys(layers, count))
        count += bool(layers)
    return found
