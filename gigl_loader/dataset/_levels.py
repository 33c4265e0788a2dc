"""Which attributes of a PyG graph have a row per node or edge, so that batches can carry them."""

from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader.dataset._checks import check_tensor
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.memory.segments import storage_dtype

_NODES_READ, _EDGES_READ = ("x", "y", "num_nodes"), ("edge_index", "edge_attr")
"""Attributes of nodes and of edges that the dataset reads for itself."""
_OF_LOADERS = frozenset(
    (
        "n_id", "node", "e_id", "edge", "batch", "batch_size", "input_id", "num_sampled_nodes",
        "num_sampled_edges", "y_positive", "y_negative", "seed_time", "ptr",
    )
)  # fmt: skip
"""Attributes that loaders put into every batch."""


def levels_of(
    data: Any,
    store: Any,
    num_nodes: int | None,
    num_edges: int | None,
    not_carried: dict[str, str],
    where: str,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the attributes of nodes and of edges in ``store``, rows first; CPU tensors.

    Args:
        data: The `Data` or `HeteroData` that ``store`` belongs to.
        store: One of its stores.
        num_nodes: Nodes of the store; None: it is of edges.
        num_edges: Edges of the store; None: it is of nodes.
        not_carried: Takes name and reason of each attribute that is neither, or that no batch can
            have.
        where: What to call the store.

    Source:
        PyG, ``Data.is_node_attr`` and ``is_edge_attr``: the size along the dimension in which PyG
        would concatenate decides; where there are as many nodes as edges, "edge" in the name does.
    """
    found: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}}
    read = (_NODES_READ if num_nodes is not None else ()) + (
        _EDGES_READ if num_edges is not None else ()
    )
    for name in store:
        value = store[name]
        # PyG has attributes that were set to None; its own batches leave them out as well
        if name in read or value is None:
            continue
        rows = _read(name, value)
        if isinstance(rows, Tensor):
            # PyG's own rule, which users override: of an attribute like `edge_index` the last
            # dimension counts. The value as it was given, since the rule may look at its class.
            dim = data.__cat_dim__(name, value, store)
            level = _level(name, rows, dim, num_nodes, num_edges)
            if level is not None:
                # samplers take rows, which have to be the first dimension
                found[level][name] = rows.movedim(dim, 0)
                continue
            rows = f"shape {tuple(rows.shape)} has no row per node or edge"
        not_carried[f"{where}.{name}"] = rows
    return found["node"], found["edge"]


def _level(
    name: str, rows: Tensor, dim: Any, num_nodes: int | None, num_edges: int | None
) -> str | None:
    """Return whether there is a row per ``"node"`` or ``"edge"``; None: neither."""
    count = rows.shape[dim] if isinstance(dim, int) else None
    if count is None or count not in (num_nodes, num_edges):
        return None
    # the one case that a shape cannot tell; a store of nodes or of edges has None for the other
    if num_nodes == num_edges:
        return "edge" if "edge" in name else "node"
    return "node" if count == num_nodes else "edge"


def _read(name: str, value: Any) -> Tensor | str:
    """Return an attribute as a CPU tensor, whose shape decides, or why no batch can have it."""
    # a batch would have either ours or the user's under that name, and nothing would tell which
    if name in _OF_LOADERS:
        return "loaders give batches one of that name: rename it"
    # names become file names and attributes of batches, where "_" marks PyG's own and ours
    if not name.isidentifier() or name.startswith("_"):
        return "its name is no public Python name: rename it"
    if not isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__}: only tensors and arrays have rows that can be taken"
    try:
        rows = check_tensor(value, name)
    except WrongTypeError:
        return f"an array of {value.dtype}"
    except ConfigError:
        return "a sparse, quantised or meta tensor: make it a plain one"
    try:
        # workers do without torch: bits of every type have to fit a type of numpy's
        storage_dtype(str(rows.dtype).removeprefix("torch."))
    except TypeError:
        return f"samplers cannot read {rows.dtype}"
    return "it is of the whole graph" if rows.dim() == 0 else rows
