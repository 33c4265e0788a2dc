"""Edges of a partition for what does not sample: inference, look-ups, and what writes them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gigl_loader.dataset._build import expand_rows
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.dataset.view import Adjacency


@dataclass(frozen=True)
class AllEdges:
    """All edges of some nodes, one node after the other, each in canonical order."""

    sources: Tensor
    """``[num_edges]`` int64, global ids of the neighbours."""
    targets: Tensor
    """``[num_edges]`` int64, positions of the expanded nodes among those asked for, ascending."""
    positions: Tensor
    """``[num_edges]`` int64, where each stands in the partition's adjacency."""


def all_edges(adjacency: Adjacency, ids: Tensor) -> AllEdges:
    """Return all edges of ``ids`` (``[n]`` int64, nodes that this partition owns)."""
    limit, rows = adjacency.indptr.numel() - 1, adjacency.locate(ids)
    # nodes past the last row have no edge, and no entry to read: any other is read for them, and
    # `where` drops what was found
    known = rows.clamp(max=max(limit - 1, 0))
    starts = adjacency.indptr[known] if limit else torch.zeros_like(ids)
    ends = adjacency.indptr[known + 1] if limit else starts
    counts = torch.where(rows < limit, ends - starts, 0)
    targets = torch.repeat_interleave(torch.arange(ids.numel()), counts)
    # where the edges of each node begin in the answer; the difference to where they begin in the
    # adjacency, added to 0, 1, 2..., gives all positions without a loop over nodes
    first = counts.cumsum(0) - counts
    positions = torch.arange(targets.numel()) + (starts - first)[targets]
    return AllEdges(adjacency.indices[positions].long(), targets, positions)


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
