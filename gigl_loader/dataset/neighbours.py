"""Edges of a partition for what does not sample: inference, look-ups, and what writes them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gigl_loader.dataset.build import expand_rows
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.dataset.view import Adjacency


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
