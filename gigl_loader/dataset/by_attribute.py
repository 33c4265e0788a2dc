"""A partition as a loader walks it that names an attribute: edges by time, or with other weights.

Edges are sorted by time once, when a loader with ``time_attr`` is built. The time of an edge is its
own, or that of the neighbour that it leads to. Neighbours may be another partition's:
`DistDataset.from_pyg` and `partition_graph` write down their times where they are told
``time_attr``. Weights to draw by are ``edge_weight`` or, with ``weight_attr``, another attribute.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.adjacency import expand_rows
from gigl_loader.dataset.checks import check_weights
from gigl_loader.dataset.schema import NEIGHBOR_TIME, WEIGHT_NAMES, EdgeType, is_label_edge_type
from gigl_loader.dataset.view import Adjacency, PartitionView, Rows, TimeOrder, keys_of
from gigl_loader.errors import ConfigError
from gigl_loader.memory.tensors import share_tensor


def with_times(view: PartitionView, time_attr: str) -> PartitionView:
    """Return ``view`` with its edges by time.

    Raises:
        ConfigError: There is no such attribute, it has no one number per node or edge, or the times
            of other partitions' nodes are not known here.
    """
    found = _times_by_type(view, time_attr)
    # of all types alike: a seed's time is one number, which is compared with times of every type
    is_float = any(times.dtype.kind == "f" for times in found.values())
    orders = {
        edge_type: _order(view.adjacency[edge_type], times, is_float)
        for edge_type, times in found.items()
    }
    return dataclasses.replace(view, times=orders)


def check_time_attr(view: PartitionView, time_attr: str) -> bool:
    """Return whether ``time_attr`` is of nodes; else it is of edges.

    Raises:
        ConfigError: It is of neither, or of both.
    """
    of_nodes = sorted(owner for owner, name in view.node_attributes if name == time_attr)
    of_edges = sorted(owner for owner, name in view.edge_attributes if name == time_attr)
    if of_nodes and of_edges:
        raise ConfigError(
            f"time_attr={time_attr!r} is an attribute of nodes {of_nodes} and of edges {of_edges}: "
            "it can only be one of these"
        )
    if not of_nodes and not of_edges:
        names = {name for _, name in (*view.node_attributes, *view.edge_attributes)}
        shown = sorted(name for name in names if not name.startswith(NEIGHBOR_TIME))
        raise ConfigError(
            f"time_attr={time_attr!r} is no attribute of nodes or edges: there are {shown}"
        )
    return bool(of_nodes)


def _times_by_type(view: PartitionView, time_attr: str) -> dict[EdgeType, Any]:
    """Return ``[num_edges]`` times by edge type, in the order of its adjacency."""
    of_nodes = check_time_attr(view, time_attr)
    found = {}
    for edge_type, adjacency in view.adjacency.items():
        if is_label_edge_type(edge_type):
            continue
        neighbor = edge_type[0] if view.edge_dir == "in" else edge_type[2]
        # of types whose neighbours have no time, any edge may be drawn
        if of_nodes and (neighbor, time_attr) in view.node_attributes:
            found[edge_type] = _of_neighbors(view, edge_type, neighbor, time_attr)
        elif (edge_type, time_attr) in view.edge_attributes:
            rows = view.edge_attributes[edge_type, time_attr]
            found[edge_type] = _of_edges(rows, adjacency, f"{time_attr!r} of edges {edge_type}")
    if not found:
        raise ConfigError(
            f"time_attr={time_attr!r} is of no node type that is ever a neighbour: nothing would "
            "be sampled by time"
        )
    return found


def _of_neighbors(view: PartitionView, edge_type: EdgeType, neighbor: str, time_attr: str) -> Any:
    rows, adjacency = view.node_attributes[neighbor, time_attr], view.adjacency[edge_type]
    what = f"{time_attr!r} of nodes {neighbor!r}"
    # each neighbour's time is here; a sampler is given it by edge, like that of edges
    if rows.whole:
        return _numbers(rows.values, what)[rows.locate(adjacency.indices.long()).numpy()]
    known = view.edge_attributes.get((edge_type, NEIGHBOR_TIME + time_attr))
    if known is None:
        raise ConfigError(
            f"{what} are known here for partition {view.partition_idx} of {view.num_partitions} "
            "alone, and its nodes have neighbours in the others: partition the graph with "
            f"partition_graph(..., time_attr={time_attr!r}) or from_pyg(..., "
            f"time_attr={time_attr!r}), which keep the times of neighbours"
        )
    return _of_edges(known, adjacency, what)


def _of_edges(rows: Rows, adjacency: Adjacency, what: str) -> Any:
    if not adjacency.has_edge_ids:
        raise ConfigError(f"{what} cannot be found: the dataset keeps no edge ids")
    ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel()))
    return _numbers(rows.values, what)[rows.locate(ids).numpy()]


def _numbers(values: Tensor, what: str) -> Any:
    """Return times as a numpy array of numbers.

    Raises:
        ConfigError: There is not one number for each, or a NaN.
    """
    one_each = values.dim() == 1 or (values.dim() == 2 and values.size(1) == 1)
    if not one_each or values.dtype == torch.bool or values.is_complex():
        raise ConfigError(
            f"{what} must be one number each, got {list(values.shape)} {values.dtype}"
        )
    # numpy has no bfloat16
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    found = values.reshape(-1).numpy()
    if found.dtype.kind == "f" and bool(np.isnan(found).any()):
        raise ConfigError(f"{what}: {int(np.isnan(found).sum())} are not a number")
    return found


def _order(adjacency: Adjacency, times: Any, is_float: bool) -> TimeOrder:
    keys = torch.from_numpy(np.ascontiguousarray(keys_of(times, is_float=is_float)))
    # by time, then by row, both stable: within a row by time, and where times are equal in the
    # order of the adjacency, which is the canonical one
    order = torch.argsort(keys, stable=True)
    order = order[torch.argsort(expand_rows(adjacency.indptr)[order], stable=True)]
    return TimeOrder(share_tensor(order), share_tensor(keys[order]), is_float)


def weighted_view(view: PartitionView, name: str) -> PartitionView:
    """Return ``view`` with the edge attribute ``name`` as weights, of the types that have it.

    Edge types without the attribute have no weights then, whatever they had before.

    Raises:
        ConfigError: No edge type has it, it is no weight, or some of it lies on other partitions.
    """
    walked = [t for t in view.adjacency if not is_label_edge_type(t)]
    named = [t for t in walked if (t, name) in view.edge_attributes]
    # weights that were given without a name are called edge_weight in batches, so that name is
    # understood where no attribute has it
    if not named and not (name in WEIGHT_NAMES and any(_weights(view, t) for t in walked)):
        known = sorted({attribute for _, attribute in view.edge_attributes})
        raise ConfigError(
            f"weight_attr={name!r} is no attribute of the edges: they have {known}; give the graph "
            "one before it is made a dataset"
        )
    adjacency = dict(view.adjacency)
    for edge_type in walked:
        # a type without it is drawn from evenly: its own weights may be of another measure
        weights = _read(view, edge_type, name) if edge_type in named else None
        if weights is None and name in WEIGHT_NAMES:
            weights = view.adjacency[edge_type].weights
        adjacency[edge_type] = dataclasses.replace(view.adjacency[edge_type], weights=weights)
    return dataclasses.replace(view, adjacency=adjacency)


def _weights(view: PartitionView, edge_type: EdgeType) -> bool:
    return view.adjacency[edge_type].weights is not None


def _read(view: PartitionView, edge_type: EdgeType, name: str) -> Tensor:
    """Return the attribute in the order of the edges of this partition, in shared memory."""
    edges: Adjacency = view.adjacency[edge_type]
    if not edges.has_edge_ids:
        raise ConfigError(f"weight_attr={name!r} needs edge ids, and {edge_type} keeps none")
    # attributes lie by edge id, weights by position in the adjacency
    ids = edges.edge_ids_at(torch.arange(edges.indices.numel()))
    book = view.edge_books.get(edge_type)
    # before rows are read: another partition's id would find no row here, or a wrong one
    if book is not None and bool((book.owner(ids) != view.partition_idx).any()):
        raise ConfigError(
            f"weight_attr={name!r}: some edges of {edge_type} are sampled by partition "
            f"{view.partition_idx}, and their attributes lie on another: partition with "
            "edge_weight, or cut the edges as they are sampled"
        )
    rows = view.edge_attributes[edge_type, name]
    values = rows.values[rows.locate(ids)]
    if values.numel() != ids.numel() or values.is_complex():
        raise ConfigError(
            f"weight_attr={name!r} of {edge_type} must be a number for each edge, got "
            f"{list(values.shape)} {values.dtype}"
        )
    # shared: the view goes to workers as descriptors
    return share_tensor(check_weights(values, ids.numel(), f"weight_attr {name!r} of {edge_type}"))
