"""Edges grouped by the node that is expanded: put into canonical order, cut, and listed whole."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType
from gigl_loader.dataset.view import Adjacency
from gigl_loader.memory.tensors import empty_shared, share_tensor

# What int64 holds: a larger key of (row, column) would wrap around, and sort elsewhere.
_KEY_LIMIT = 2**63 - 1


def compress(
    rows: Tensor,
    cols: Tensor,
    *,
    num_rows: int,
    num_cols: int,
    edge_ids: Tensor | None = None,
    weights: Tensor | None = None,
    key_limit: int = _KEY_LIMIT,
) -> Adjacency:
    """Group edges by row, neighbours ascending by (neighbour id, edge id), in shared memory.

    Beyond input and output it needs 24 bytes per edge: one sort key, its sorted copy and the order.

    Args:
        rows: ``[num_edges]`` int64, the node that is expanded, in ``[0, num_rows)``.
        cols: ``[num_edges]`` int64, its neighbour, in ``[0, num_cols)``.
        num_rows: Rows of the result.
        num_cols: Neighbour ids there can be.
        edge_ids: ``[num_edges]`` int64; None: the position in the input.
        weights: ``[num_edges]``, kept as float32.
        key_limit: Largest sort key; above it two sorts are run instead of one. For tests.
    """
    # written in place where workers read it: cumsum and copy would hold it twice
    indptr = empty_shared((num_rows + 1,), torch.int64)
    indptr[0] = 0
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
    # ties between parallel edges are broken by edge id: ids ascend first, then sorts are stable
    first = _order_by_id(edge_ids)
    if first is not None:
        rows, cols = rows[first], cols[first]
    order, indices = _order_by_row(rows, cols, max(num_cols, 1), num_rows, key_limit)
    if first is not None:
        order = first[order]
    kept = None if weights is None else share_tensor(weights.to(torch.float32)[order])
    # without ids an edge's id is its position in the input, which is what `order` holds
    ids = order if edge_ids is None else edge_ids[order]
    return Adjacency(indptr, share_tensor(indices), share_tensor(ids), kept)


def _order_by_id(edge_ids: Tensor | None) -> Tensor | None:
    """Return the order that makes ``edge_ids`` ascend; None where they ascend already."""
    # the usual case (positions, and what partitioning cuts in order) costs one comparison an edge
    if edge_ids is None or edge_ids.numel() < 2 or bool((edge_ids[1:] >= edge_ids[:-1]).all()):
        return None
    return torch.argsort(edge_ids, stable=True)


def _order_by_row(
    rows: Tensor, cols: Tensor, num_cols: int, num_rows: int, key_limit: int
) -> tuple[Tensor, Tensor]:
    """Return the stable order by (row, column), and the columns in it."""
    # one sort of one key, from which the columns are read again: gathered by `order`, they would
    # take a pass of random reads more. (`remainder_` and `+=`: in place, 8 bytes an edge less.)
    if num_rows * num_cols <= key_limit:
        key = rows * num_cols
        key += cols
        key, order = torch.sort(key, stable=True)
        return order, key.remainder_(num_cols)
    # the less significant of the two first, as in a radix sort: the second sort keeps its order
    order = torch.argsort(cols, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    return order, cols[order]


def is_canonical(adjacency: Adjacency) -> bool:
    """Return whether neighbours ascend by (id, edge id) within every row."""
    indices, ids = adjacency.indices, adjacency.edge_ids
    if indices.numel() < 2:
        return True
    good = indices[1:] > indices[:-1]
    same = indices[1:] == indices[:-1]
    good |= same if ids is None else same & (ids[1:] >= ids[:-1])
    # where a row ends and another begins, anything may follow. Rows without edges at either end
    # have no edge before, or after, their start.
    starts = adjacency.indptr[1:-1]
    starts = starts[(starts > 0) & (starts < indices.numel())]
    good[starts - 1] = True
    return bool(good.all())


def expand_rows(indptr: Tensor) -> Tensor:
    """Return ``[num_edges]`` int64, the row of each edge: the inverse of an index pointer."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr[1:] - indptr[:-1])


def canonical(adjacency: Adjacency, num_cols: int) -> Adjacency:
    """Return a copy of ``adjacency`` in canonical order."""
    return compress(
        expand_rows(adjacency.indptr),
        adjacency.indices,
        num_rows=adjacency.indptr.numel() - 1,
        num_cols=num_cols,
        edge_ids=adjacency.edge_ids,
        weights=adjacency.weights,
    )


def label_adjacency(
    labels: Tensor, edge_type: EdgeType, num_nodes: Mapping[NodeType, int]
) -> Adjacency:
    """Group label edges by anchor, in both directions: the loader looks labels up by anchor."""
    found = compress(
        labels[0],
        labels[1],
        num_rows=num_nodes[edge_type[0]],
        num_cols=num_nodes[edge_type[2]],
    )
    # positions as ids would look like ids of message-passing edges, which a batch could ask for
    return Adjacency(found.indptr, found.indices, None, None)


# --- edges that are not sampled: for inference, look-ups, and what writes them --------------------


@dataclass(frozen=True)
class EdgeBlock:
    """All edges of some nodes, one node after the other, each in canonical order."""

    edge_index: Tensor
    """``[2, num_edges]`` int64: the neighbours, by global ids (in a chunk of inference by local
    numbers), and the positions of the nodes among those asked for, which ascend."""
    indptr: Tensor
    """``[num_nodes + 1]`` int64, where the edges of each node start."""
    weights: Tensor | None = None
    """``[num_edges]`` float32; None: not asked for, or there are none."""
    attr: Tensor | None = None
    """``[num_edges, ...]``, features; None: the same."""
    edge_ids: Tensor | None = None
    """``[num_edges]`` int64; None: the same."""
    positions: Tensor | None = None
    """``[num_edges]`` int64, where each stands in the partition's adjacency; None: the edges are
    of no partition of this process."""

    @property
    def sources(self) -> Tensor:
        """The neighbours."""
        return self.edge_index[0]

    @property
    def targets(self) -> Tensor:
        """The nodes that were asked for, by position."""
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
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
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
    limit, rows = adjacency.indptr.numel() - 1, adjacency.locate(ids)
    # nodes past the last row have no edge, and no entry to read: any other is read for them, and
    # `where` drops what was found
    known = rows.clamp(max=max(limit - 1, 0))
    starts = adjacency.indptr[known] if limit else torch.zeros_like(ids)
    ends = adjacency.indptr[known + 1] if limit else starts
    counts = torch.where(rows < limit, ends - starts, 0)
    # where the edges of each node begin in the answer; the difference to where they begin in the
    # adjacency, added to 0, 1, 2..., gives all positions without a loop over nodes
    first = counts.cumsum(0) - counts
    positions = torch.repeat_interleave(starts - first, counts)
    positions += torch.arange(positions.numel())
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


def kept_edges(adjacency: Adjacency, keep: Tensor) -> Adjacency:
    """Return the edges that ``keep`` (``[num_edges]`` bool) names, with the ids that they had."""
    before = torch.zeros(keep.numel() + 1, dtype=torch.int64)
    torch.cumsum(keep, 0, out=before[1:])
    positions = keep.nonzero().view(-1)
    # what stays is in the order that it was in, so that nothing is sorted
    return replace(
        adjacency,
        indptr=before[adjacency.indptr],
        indices=adjacency.indices[positions],
        edge_ids=adjacency.edge_ids_at(positions) if adjacency.has_edge_ids else None,
        weights=None if adjacency.weights is None else adjacency.weights[positions],
        first_edge=None,
    )
