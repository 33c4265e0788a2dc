"""Edges grouped by the expanded node: sorted into canonical order, cut, and listed whole.

A loader can name an attribute for the times or the weights of edges. Edges are sorted by time once,
when a loader with ``time_attr`` is built. An edge has a time of its own, or that of its neighbour.
A neighbour may be on another partition: `DistDataset.from_pyg` and `partition_graph` store its time
when they get ``time_attr``. Weights are ``edge_weight`` or, with ``weight_attr``, another
attribute.
"""

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.partition.checks import check_weights
from gigl_loader.dataset.partition.frames import is_of_frame
from gigl_loader.dataset.partition.partition_view import (
    Adjacency,
    PartitionView,
    Rows,
    TimeOrder,
    keys_of,
)
from gigl_loader.dataset.schema import (
    NEIGHBOR_TIME,
    WEIGHT_NAMES,
    EdgeDir,
    EdgeType,
    NodeType,
    is_in_batches,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.tensors import empty_shared, share_tensor
from gigl_loader.runtime.system import usable_cpus

_EDGES_OF_A_THREAD = 1_000_000
"""Edges from which another thread groups them: fewer are done before it starts."""
_MOST_THREADS = 8


def compress(
    rows: Tensor,
    cols: Tensor,
    *,
    num_rows: int,
    edge_ids: Tensor | None = None,
    weights: Tensor | None = None,
) -> Adjacency:
    """Group edges by row, neighbours ascending by (neighbour id, edge id), in shared memory.

    Besides input and output it needs 8 bytes per row, and as many per edge with weights, or with
    ``edge_ids`` that do not ascend.

    Args:
        rows: ``[num_edges]`` int64, the expanded node, in ``[0, num_rows)``.
        cols: ``[num_edges]`` int64, its neighbour.
        num_rows: Rows of the result.
        edge_ids: ``[num_edges]`` int64; None: the position in the input.
        weights: ``[num_edges]``, kept as float32.
    """
    from gigl_loader.dataset.partition import edge_kernels  # with Numba: not at every import

    # written in place where workers read it: cumsum and a copy would need the memory twice
    indptr = empty_shared((num_rows + 1,), torch.int64)
    indptr[0] = 0
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
    # ties between parallel edges are broken by edge id: ids ascend first, then sorts are stable
    first = _order_by_id(edge_ids)
    if first is not None:
        rows, cols = rows[first], cols[first]
    indices, order = (empty_shared((rows.numel(),), torch.int64) for _ in range(2))
    in_order = indices.numpy(), order.numpy()
    ends = indptr[:-1].numpy().copy()
    # ids go to their places at once, where nothing else has to follow the positions
    at_once = edge_ids if first is None and weights is None else None
    numbers = rows[:0] if at_once is None else at_once
    row_of, col_of, ids_of = (edges.contiguous().numpy() for edges in (rows, cols, numbers))

    def group(begin: int, end: int) -> None:
        edge_kernels.place_edges(begin, end, row_of, col_of, ids_of, ends, *in_order)
        edge_kernels.sort_rows(begin, end, indptr.numpy(), *in_order)

    # each thread reads all edges, and writes those of its rows
    threads = min(usable_cpus(), _MOST_THREADS, 1 + rows.numel() // _EDGES_OF_A_THREAD)
    shares = torch.arange(threads + 1, device="cpu") * rows.numel() // threads
    bounds = torch.searchsorted(indptr, shares).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(group, bounds[:-1], bounds[1:]))
    if at_once is not None:
        return Adjacency(indptr, indices, order, None)
    if first is not None:
        order = first[order]
    kept = None if weights is None else share_tensor(weights.to(torch.float32)[order])
    # without ids, the id of an edge is its position in the input, as in `order`
    ids = order if edge_ids is None else share_tensor(edge_ids[order])
    return Adjacency(indptr, indices, ids, kept)


def _order_by_id(edge_ids: Tensor | None) -> Tensor | None:
    """Return the order that makes ``edge_ids`` ascend; None where they ascend already."""
    # the usual case (positions, or ids cut in order) costs one comparison per edge
    if edge_ids is None or edge_ids.numel() < 2 or bool((edge_ids[1:] >= edge_ids[:-1]).all()):
        return None
    return torch.argsort(edge_ids, stable=True)


def is_canonical(adjacency: Adjacency) -> bool:
    """Return whether neighbours ascend by (id, edge id) within every row."""
    indices, ids = adjacency.indices, adjacency.edge_ids
    if indices.numel() < 2:
        return True
    good = indices[1:] > indices[:-1]
    same = indices[1:] == indices[:-1]
    good |= same if ids is None else same & (ids[1:] >= ids[:-1])
    # Order is free where one row ends and the next begins. Rows without edges at either end have no
    # edge before, or after, their start.
    starts = adjacency.indptr[1:-1]
    starts = starts[(starts > 0) & (starts < indices.numel())]
    good[starts - 1] = True
    return bool(good.all())


def expand_rows(indptr: Tensor) -> Tensor:
    """Return ``[num_edges]`` int64, the row of each edge: the inverse of an index pointer."""
    return torch.repeat_interleave(
        torch.arange(indptr.numel() - 1, device=indptr.device), indptr[1:] - indptr[:-1]
    )


def canonical(adjacency: Adjacency) -> Adjacency:
    """Return a copy of ``adjacency`` in canonical order."""
    return compress(
        expand_rows(adjacency.indptr),
        adjacency.indices,
        num_rows=adjacency.indptr.numel() - 1,
        edge_ids=adjacency.edge_ids,
        weights=adjacency.weights,
    )


def label_adjacency(
    labels: Tensor, edge_type: EdgeType, num_nodes: Mapping[NodeType, int]
) -> Adjacency:
    """Group label edges by anchor, in both directions: the loader looks labels up by anchor."""
    compressed = compress(labels[0], labels[1], num_rows=num_nodes[edge_type[0]])
    # positions as ids would look like ids of message-passing edges, which a batch could request
    return Adjacency(compressed.indptr, compressed.indices, None, None)


# --- edges that are not sampled: for inference, look-ups and writers ------------------------------


@dataclass(frozen=True)
class EdgeBlock:
    """All edges of some nodes, one node after the other, each in canonical order."""

    edge_index: Tensor
    """``[2, num_edges]`` int64: the neighbours, by global ids (in a chunk of inference by local
    numbers), and the positions of the nodes in the request, ascending."""
    indptr: Tensor
    """``[num_nodes + 1]`` int64, where the edges of each node start."""
    weights: Tensor | None = None
    """``[num_edges]`` float32; None: not requested, or there are none."""
    attr: Tensor | None = None
    """``[num_edges, ...]``, features; None: the same."""
    edge_ids: Tensor | None = None
    """``[num_edges]`` int64; None: the same."""
    positions: Tensor | None = None
    """``[num_edges]`` int64, positions in the partition's adjacency; None: the edges are of no
    partition of this process."""

    @property
    def sources(self) -> Tensor:
        """The neighbours."""
        return self.edge_index[0]

    @property
    def targets(self) -> Tensor:
        """The requested nodes, by position."""
        return self.edge_index[1]

    @property
    def counts(self) -> Tensor:
        """``[num_nodes]`` int64, edges of each node."""
        return self.indptr.diff()


def block_of(sources: Tensor, counts: Tensor, **columns: Tensor | None) -> EdgeBlock:
    """Return the block of neighbours that are listed node after node.

    Args:
        sources: ``[num_edges]`` integer, the neighbours.
        counts: ``[num_nodes]`` integer, edges of each node.
        columns: Other fields of `EdgeBlock`.
    """
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counts, 0, out=indptr[1:])
    return EdgeBlock(torch.stack([sources.long(), expand_rows(indptr)]), indptr, **columns)


def all_edges(
    adjacency: Adjacency, ids: Tensor, *, weights: bool = False, edge_ids: bool = False
) -> EdgeBlock:
    """Return all edges of nodes that this partition owns.

    Args:
        adjacency: The edges of a type.
        ids: ``[num_nodes]`` int64, global.
        weights: Whether to return weights, where there are some.
        edge_ids: Whether to return edge ids, where they are known.
    """
    return edges_at(adjacency, *spans_of(adjacency, ids), weights=weights, edge_ids=edge_ids)


def spans_of(adjacency: Adjacency, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the edges of each node start in the adjacency, and how many they are."""
    limit, rows = adjacency.indptr.numel() - 1, adjacency.locate(ids)
    # nodes past the last row have no edge and no entry to read: another entry is read instead, and
    # `where` drops the result
    known = rows.clamp(max=max(limit - 1, 0))
    starts = adjacency.indptr[known] if limit else torch.zeros_like(ids)
    ends = adjacency.indptr[known + 1] if limit else starts
    return starts, torch.where(rows < limit, ends - starts, 0)


def edges_at(
    adjacency: Adjacency, starts: Tensor, counts: Tensor, *, weights: bool, edge_ids: bool
) -> EdgeBlock:
    """Return ``counts`` edges of each node, from position ``starts`` on; see `all_edges`."""
    # Start of each node's edges in the result. Its difference to the start in the adjacency, added
    # to 0, 1, 2..., gives all positions without a loop over nodes.
    first = counts.cumsum(0) - counts
    positions = torch.repeat_interleave(starts - first, counts)
    positions += torch.arange(positions.numel(), device="cpu")
    return block_of(
        adjacency.indices[positions],
        counts,
        weights=adjacency.weights[positions] if weights and adjacency.weights is not None else None,
        edge_ids=adjacency.edge_ids_at(positions) if edge_ids and adjacency.has_edge_ids else None,
        positions=positions,
    )


def edges_of(adjacency: Adjacency, edge_dir: EdgeDir) -> Tensor:
    """Return ``[2, num_edges]`` int64, sources first, of edges that are grouped by a node."""
    # rows count from the first that the partition owns, edges name global ids
    rows = expand_rows(adjacency.indptr) + adjacency.first_row
    ends = (
        (adjacency.indices.long(), rows) if edge_dir == "in" else (rows, adjacency.indices.long())
    )
    return torch.stack(ends)


def edge_ids_of(adjacency: Adjacency) -> Tensor:
    """Return ``[num_edges]`` int64, the ids of all edges, which are known; not to be written to."""
    ids: Tensor | None = adjacency.edge_ids
    if ids is None:
        ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel(), device="cpu"))
    return ids


def kept_edges(adjacency: Adjacency, keep: Tensor) -> Adjacency:
    """Return the edges that ``keep`` (``[num_edges]`` bool) selects, with their old ids."""
    before = torch.zeros(keep.numel() + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(keep, 0, out=before[1:])
    positions = keep.nonzero().view(-1)
    # the remaining edges keep their order, so nothing is sorted
    return replace(
        adjacency,
        indptr=before[adjacency.indptr],
        indices=adjacency.indices[positions],
        edge_ids=adjacency.edge_ids_at(positions) if adjacency.has_edge_ids else None,
        weights=None if adjacency.weights is None else adjacency.weights[positions],
        first_edge=None,
    )


def with_times(view: PartitionView, time_attr: str) -> PartitionView:
    """Return ``view`` with its edges by time, and those of other partitions that it has.

    Raises:
        ConfigError: There is no such attribute, it has no one number per node or edge, or the times
            of other partitions' nodes are not known here.
    """
    times_by_type = _times_by_type(view, time_attr)
    # for all types at once: a seed's time is one number, compared with times of every type
    is_float = any(times.dtype.kind == "f" for times in times_by_type.values())
    orders = {
        edge_type: _order(view.adjacency[edge_type], times, is_float)
        for edge_type, times in times_by_type.items()
    }
    others = {}
    for number, other in view.other_edges.items():
        # nodes' attributes say only that the time is one of nodes: those of neighbours lie by edge
        named = dataclasses.replace(other, node_attributes=view.node_attributes)
        others[number] = dataclasses.replace(other, times=with_times(named, time_attr).times)
    return dataclasses.replace(view, times=orders, other_edges=others)


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
        shown = sorted(n for n in names if is_in_batches(n) and not is_of_frame(n))
        raise ConfigError(
            f"time_attr={time_attr!r} is no attribute of nodes or edges: there are {shown}"
        )
    return bool(of_nodes)


def _times_by_type(view: PartitionView, time_attr: str) -> dict[EdgeType, Any]:
    """Return ``[num_edges]`` times by edge type, in the order of its adjacency."""
    of_nodes = check_time_attr(view, time_attr)
    times = {}
    for edge_type, adjacency in view.adjacency.items():
        if is_label_edge_type(edge_type):
            continue
        neighbor = edge_type[0] if view.edge_dir == "in" else edge_type[2]
        # of types whose neighbours have no time, any edge may be drawn
        if of_nodes and (neighbor, time_attr) in view.node_attributes:
            times[edge_type] = _of_neighbors(view, edge_type, neighbor, time_attr)
        elif (edge_type, time_attr) in view.edge_attributes:
            rows = view.edge_attributes[edge_type, time_attr]
            times[edge_type] = _of_edges(rows, adjacency, f"{time_attr!r} of edges {edge_type}")
    if not times:
        raise ConfigError(
            f"time_attr={time_attr!r} is of no node type that is ever a neighbour: nothing would "
            "be sampled by time"
        )
    return times


def _of_neighbors(view: PartitionView, edge_type: EdgeType, neighbor: str, time_attr: str) -> Any:
    rows, adjacency = view.node_attributes[neighbor, time_attr], view.adjacency[edge_type]
    what = f"{time_attr!r} of nodes {neighbor!r}"
    # each neighbour's time is here; a sampler gets it by edge, like the time of an edge
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
    ids = edge_ids_of(adjacency)
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
    numbers = values.reshape(-1).numpy()
    if numbers.dtype.kind == "f" and bool(np.isnan(numbers).any()):
        raise ConfigError(f"{what}: {int(np.isnan(numbers).sum())} are not a number")
    return numbers


def _order(adjacency: Adjacency, times: Any, is_float: bool) -> TimeOrder:
    keys = torch.from_numpy(np.ascontiguousarray(keys_of(times, is_float=is_float)))
    # Tables are often in the order of time, and then so are the neighbours of a node: no sort. The
    # first edge of a row may be earlier than the one before it.
    falls = keys[1:] < keys[:-1]
    firsts = adjacency.indptr[1:-1]
    falls[firsts[(firsts > 0) & (firsts < keys.numel())] - 1] = False
    if not bool(falls.any()):
        order = torch.arange(keys.numel(), device="cpu")
        return TimeOrder(share_tensor(order), share_tensor(keys), is_float)
    # by time, then by row, both stable: within a row by time; equal times keep the order of the
    # adjacency, which is the canonical one
    order = torch.argsort(keys, stable=True)
    order = order[torch.argsort(expand_rows(adjacency.indptr)[order], stable=True)]
    return TimeOrder(share_tensor(order), share_tensor(keys[order]), is_float)


def weighted_view(view: PartitionView, name: str) -> PartitionView:
    """Return ``view`` with the edge attribute ``name`` as weights, of the types that have it.

    Edge types without the attribute then have no weights, even if they had some before.

    Raises:
        ConfigError: No edge type has it, it is no weight, or some of it lies on other partitions.
    """
    walked = [t for t in view.adjacency if not is_label_edge_type(t)]
    named = [t for t in walked if (t, name) in view.edge_attributes]
    # batches call weights that were given without a name edge_weight, so that name also works when
    # no attribute has it
    weighted = any(view.adjacency[t].weights is not None for t in walked)
    if not named and not (name in WEIGHT_NAMES and weighted):
        known = sorted({attribute for _, attribute in view.edge_attributes})
        raise ConfigError(
            f"weight_attr={name!r} is no attribute of the edges: they have {known}; give the graph "
            "one before it becomes a dataset"
        )
    adjacency = dict(view.adjacency)
    for edge_type in walked:
        # a type without it is drawn evenly: its own weights may have another scale
        weights = _read(view, edge_type, name) if edge_type in named else None
        if weights is None and name in WEIGHT_NAMES:
            weights = view.adjacency[edge_type].weights
        adjacency[edge_type] = dataclasses.replace(view.adjacency[edge_type], weights=weights)
    others = {number: weighted_view(other, name) for number, other in view.other_edges.items()}
    return dataclasses.replace(view, adjacency=adjacency, other_edges=others)


def weights_as_given(view: PartitionView, edge_type: EdgeType) -> Tensor:
    """Return ``[num_edges]`` float32: the weights of a type in the order of the input's edges.

    Ascending by edge id where the input is not known; as sampled where there are no edge ids.
    """
    edges: Adjacency = view.adjacency[edge_type]
    assert edges.weights is not None
    if not edges.has_edge_ids:
        return edges.weights
    places = ids = edge_ids_of(edges)
    given = (view.edge_attributes.get((edge_type, name)) for name in WEIGHT_NAMES)
    rows = next((rows for rows in given if rows is not None), None)
    book = view.edge_books.get(edge_type)
    if rows is not None and (book is None or bool((book.owner(ids) == view.partition_idx).all())):
        # attributes are kept as they were given
        places = rows.locate(ids)
    return edges.weights[torch.argsort(places)]


def _read(view: PartitionView, edge_type: EdgeType, name: str) -> Tensor:
    """Return the attribute in the order of the edges of this partition, in shared memory."""
    edges: Adjacency = view.adjacency[edge_type]
    if not edges.has_edge_ids:
        raise ConfigError(f"weight_attr={name!r} needs edge ids, and {edge_type} keeps none")
    # attributes lie by edge id, weights by position in the adjacency
    ids = edge_ids_of(edges)
    book = view.edge_books.get(edge_type)
    # before rows are read: the id of another partition would find no row here, or a wrong one
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
