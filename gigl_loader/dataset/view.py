"""The partition as sampling workers see it: plain tensors, one layout for every kind of dataset.

Imports torch alone, so that a worker starts as fast as ``import torch`` allows. A homogeneous graph
uses ``DEFAULT_HOMOGENEOUS_NODE_TYPE`` and ``DEFAULT_HOMOGENEOUS_EDGE_TYPE`` as its only types.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType


@dataclass(frozen=True)
class Adjacency:
    """The edges of one type that this partition owns, grouped by the node that is expanded.

    That node is the destination where ``edge_dir="in"`` (CSC) and the source where
    ``edge_dir="out"`` (CSR); for a label edge type it is the anchor, the source, either way.
    Within a row, neighbours ascend by (id, edge id): the canonical order, which partitioning does
    not change.
    """

    indptr: Tensor
    """``[rows + 1]`` int64; row = global id of the expanded node; ids past the end have no edge."""
    indices: Tensor
    """``[num_edges]`` int64, global ids of the neighbours."""
    edge_ids: Tensor | None
    """``[num_edges]`` int64, global edge ids; None: no edge ids are kept."""
    weights: Tensor | None
    """``[num_edges]`` float32, not negative; None: unweighted."""


@dataclass(frozen=True)
class Rows:
    """A matrix of which this partition owns some rows: features or labels, by global id."""

    values: Tensor
    """``[num_rows, ...]``, any dtype."""
    index: Tensor | None = None
    """``[num_ids]`` int64, global id to row; None: the row is the id."""
    whole: bool = False
    """All ids are here: no other partition has to be asked."""

    def locate(self, ids: Tensor) -> Tensor:
        """Return the row of each of ``ids`` (``[n]`` int64, all owned by this partition)."""
        return ids if self.index is None else self.index[ids]


@dataclass(frozen=True)
class Book:
    """Which partition owns an id."""

    table: Tensor | None = None
    """``[num_ids]`` integer, the owner of each id."""
    bounds: Tensor | None = None
    """``[num_partitions]`` int64: partition ``p`` owns ``bounds[p - 1] <= id < bounds[p]``."""

    def owner(self, ids: Tensor) -> Tensor:
        """Return the partition that owns each of ``ids`` (``[n]`` int64) as ``[n]`` int64."""
        if self.bounds is not None:
            return torch.searchsorted(self.bounds, ids, right=True)
        assert self.table is not None
        return self.table[ids].long()

    @property
    def num_ids(self) -> int:
        """How many ids there are over all partitions."""
        if self.bounds is not None:
            return int(self.bounds[-1])
        assert self.table is not None
        return self.table.numel()


@dataclass(frozen=True)
class PartitionView:
    """Everything that a sampler reads, in shared memory."""

    is_heterogeneous: bool
    """Whether batches are ``HeteroData``. False for labeled-homogeneous datasets too."""
    edge_dir: EdgeDir
    num_partitions: int
    partition_idx: int
    num_nodes: dict[NodeType, int]
    """Nodes of each type over all partitions."""
    adjacency: dict[EdgeType, Adjacency]
    """By edge type, as the user named it; label edge types included."""
    node_books: dict[NodeType, Book] = field(default_factory=dict)
    """Empty where there is one partition."""
    edge_books: dict[EdgeType, Book] = field(default_factory=dict)
    node_features: dict[NodeType, Rows] = field(default_factory=dict)
    node_labels: dict[NodeType, Rows] = field(default_factory=dict)
    edge_features: dict[EdgeType, Rows] = field(default_factory=dict)
