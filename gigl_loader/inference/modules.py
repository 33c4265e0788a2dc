"""PyG's modules over a distributed graph: unsupported ones, and normalised edge weights."""

import inspect
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import Aggregation, MeanAggregation, SumAggregation
from torch_geometric.utils import add_remaining_self_loops, scatter

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.inference.local_graph import Level

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

SEQUENTIAL = {
    *NORMALIZED,
    "CGConv",
    "FiLMConv",
    "GATConv",
    "GatedGraphConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "ResGatedGraphConv",
    "SAGEConv",
    "SimpleConv",
}
"""Modules of PyG whose messages of one rank's rows need no message of another's."""

CHECKED = {
    *SEQUENTIAL,
    *SEVERAL_HOPS,
    "EdgeConv",
    "GATv2Conv",
    "GENConv",
    "NNConv",
    "PNAConv",
    "TransformerConv",
}
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
    "DiffGroupNorm",
    "GraphNorm",
    "GraphSizeNorm",
    "InstanceNorm",
    "MeanSubtractionNorm",
    "PairNorm",
)


def check_model(model: torch.nn.Module) -> list[str]:
    """Refuse modules with wrong values over a distributed graph.

    Returns:
        The classes of message-passing modules that no test compares with one process.

    Raises:
        ConfigError: Names the module and the reason.
    """
    if not isinstance(model, torch.nn.Module):
        raise WrongTypeError(
            f"the model must be a torch.nn.Module, got {type(model).__name__}: the model comes "
            "first, and then the dataset"
        )
    unknown = set()
    inside: set[torch.nn.Module] = set()
    # named_modules() gives a module before its parts, so `inside` already has them
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
    # the normalised edges of an earlier call, in the numbers of another graph
    if getattr(module, "cached", False):
        return "cached=True keeps what belongs to another graph: build it without"
    # plans fetch the rows of a node's in-neighbours: the other flow reads its out-neighbours
    if module.flow != "source_to_target":
        return "its messages go from target to source"
    taken = inspect.signature(module.forward).parameters
    if not {"x", "edge_index"} <= taken.keys():
        return f"its forward takes {list(taken)}, not x and edge_index"
    return None


def check_sequential(model: torch.nn.Module) -> None:
    """Refuse modules that cannot aggregate the rows of one rank at a time.

    Raises:
        ConfigError: Names the module and the reason.
    """
    for name, module in model.named_modules():
        if not isinstance(module, MessagePassing):
            continue
        kind, aggregation = type(module).__name__, type(module.aggr_module)
        why = None
        if not (_of_pyg(module) and kind in SEQUENTIAL):
            why = f"only {', '.join(sorted(SEQUENTIAL))} of PyG do"
        elif aggregation not in (SumAggregation, MeanAggregation):
            why = f"its {aggregation.__name__} is no sum or mean"
        if why:
            raise ConfigError(
                f"{kind} at {name or 'the top'!r} cannot aggregate the rows of one rank at a time: "
                f"{why}. Use a sum or a mean (GATConv for attention), or leave sequential out"
            )


def _of_pyg(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.")


def is_normalized(module: Any) -> bool:
    """Return whether ``module`` weighs edges by degrees."""
    known = _of_pyg(module) and type(module).__name__ in NORMALIZED
    return known and bool(getattr(module, "normalize", True))


def units(model: torch.nn.Module) -> dict[torch.nn.Module, int]:
    """Return the layer of each message-passing module.

    Modules that a dict holds by edge type (``HeteroConv``, ``to_hetero``) are one layer.
    """
    layer_of: dict[torch.nn.Module, int] = {}
    count = 0
    # modules() gives a ModuleDict before its contents, so its layers are already in `layer_of`
    for module in model.modules():
        if module in layer_of:
            continue
        if isinstance(module, torch.nn.ModuleDict):
            layers = [m for m in module.children() if isinstance(m, MessagePassing)]
        else:
            layers = [module] if isinstance(module, MessagePassing) else []
        layer_of.update(dict.fromkeys(layers, count))
        count += bool(layers)
    return layer_of


# --- the edge weights of gcn_norm, with the degrees of the whole graph ----------------------------


@dataclass(frozen=True)
class Norm:
    """One way in which ``gcn_norm`` of PyG weighs the edges of a type.

    Attributes:
        edge_type: As messages go, between nodes of one type.
        loops: Whether self-loops are added where there are none.
        fill: Weight of these, where edges have weights.
        weighted: Whether edges have weights.
    """

    edge_type: EdgeType
    loops: bool
    fill: float
    weighted: bool

    @classmethod
    def of(cls, module: Any, edge_type: EdgeType, *, weighted: bool) -> "Norm":
        """Return that of a layer that normalises."""
        loops = bool(getattr(module, "add_self_loops", NORMALIZED[type(module).__name__]))
        fill = 2.0 if getattr(module, "improved", False) else 1.0
        return cls(edge_type, loops, fill, weighted)

    def degrees(
        self, edge_index: Tensor, weight: Tensor | None, num_rows: int, num_dst: int
    ) -> Tensor:
        """Return ``[num_dst]`` float32: of the destinations, all of whose edges are here."""
        weight = self._cast(weight, torch.float32)
        edge_index, weight = self.with_loops(edge_index, weight, num_rows, torch.float32)
        # of the other rows, which are only sources, a part of the edges is here
        return _degrees(edge_index, weight, num_rows)[:num_dst]

    def weigh(
        self, edge_index: Tensor, weight: Tensor | None, degrees: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return (edge index, weights), given the degrees of all rows."""
        # `degrees` were added up in float32, whatever the dtype of the layer: float16 stops
        # counting at 2048. A layer gets the weights in its own dtype.
        degrees = degrees.to(dtype)
        weight = self._cast(weight, dtype)
        edge_index, weight = self.with_loops(edge_index, weight, degrees.numel(), dtype)
        return edge_index, _scaled(edge_index, weight, degrees)

    def _cast(self, weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return None if weight is None or not self.weighted else weight.to(dtype)

    def with_loops(
        self, edge_index: Tensor, weight: Tensor | None, num_rows: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return edges and their weights, with self-loops if ``loops``, as ``gcn_norm`` does.

        Without weights all are 1, those of added loops too, for any ``fill``.
        """
        if self.loops:
            edge_index, weight = add_remaining_self_loops(edge_index, weight, self.fill, num_rows)
        if weight is None:
            weight = torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)
        return edge_index, weight


class WholeGraphNorms:
    """``gcn_norm`` for levels; constant results are computed once.

    Source:
        torch_geometric 2.8, ``nn/conv/gcn_conv.py: gcn_norm``: the same operations in the same
        order, so that the bits are the same. The owner of a node has its in-edges, and so its
        degree; the degrees of the halo are fetched.

    Args:
        fixed: The graph's own edge weights; results for others are not kept.
    """

    def __init__(self, fixed: list[Tensor]) -> None:
        # the graph's data holds these tensors as long as this object is used, so their ids stay
        # unique
        self._fixed = [id(weight) for weight in fixed]
        self._kept: dict[Any, tuple[Tensor, Tensor]] = {}

    def of(
        self, module: Any, whole: Level, level: Level, weight: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return (edge index, weights) for ``level``. Collective, the first time.

        Args:
            module: A layer that normalises.
            whole: All own rows of the same edges.
            level: The rows that the layer computes.
            weight: ``[edges of whole]``; None: all are 1.
            dtype: Dtype of new weights, if there are none.
        """
        norm = Norm.of(module, whole.edge_type, weighted=weight is not None)
        # a weight changed in place is the same object with a higher version; one that now needs a
        # gradient has the same version
        state = None if weight is None else (weight._version, weight.requires_grad)
        key = (id(level), id(weight), state, norm, dtype)
        if key in self._kept:
            return self._kept[key]
        num_rows = whole.num_rows
        edges = norm.with_loops(whole.edge_index, weight, num_rows, dtype)
        degrees = _degrees(*edges, num_rows)
        # the halo's in-edges are with its owners, so their degrees are fetched like rows of x
        degrees = level.extend(degrees[: whole.num_sources])
        picked = weight if weight is None or level.edges is None else weight[level.edges]
        edge_index, weights = norm.with_loops(level.edge_index, picked, level.num_rows, dtype)
        normalized = edge_index, _scaled(edge_index, weights, degrees)
        # Weights that need a gradient are part of the forward's graph, which backward() frees. For
        # others than the graph's own, the id may belong to another tensor by the next forward.
        if weight is None or (id(weight) in self._fixed and not weight.requires_grad):
            self._kept[key] = normalized
        return normalized


def _degrees(edge_index: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    return cast("Tensor", scatter(weights, edge_index[1], dim=0, dim_size=num_rows, reduce="sum"))


def _scaled(edge_index: Tensor, weights: Tensor, degrees: Tensor) -> Tensor:
    scale = degrees.pow(-0.5)
    # a node without edges: 0 ** -0.5
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    return scale[edge_index[0]] * weights * scale[edge_index[1]]
