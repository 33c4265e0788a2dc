"""The partition for samplers: plain arrays, one layout for every kind of dataset.

A dataset makes views of tensors, ``PartitionView[Tensor]``; workers receive them as shared memory
and read them as ``PartitionView[Array]``, numpy's: workers do without torch, which takes a second
to import. A homogeneous graph uses ``DEFAULT_HOMOGENEOUS_NODE_TYPE`` and
``DEFAULT_HOMOGENEOUS_EDGE_TYPE`` as its only types.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

import numpy as np
from typing_extensions import TypeVar

from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.partition.frames import Frames
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType, is_in_batches, row_type
from gigl_loader.runtime.memory.segments import Array

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A", default="Tensor")
"""The kind of array: a tensor, or numpy's."""


Splits = dict[str, dict[NodeType, "Tensor"]]
"""By ``"train"``, ``"val"``, ``"test"`` and node type: ids that a partition owns."""


@dataclass(frozen=True)
class Adjacency(Generic[A]):
    """The edges of one type that this partition owns, grouped by the expanded node.

    That node is the destination with ``edge_dir="in"`` (CSC) and the source with ``edge_dir="out"``
    (CSR); for a label edge type it is the anchor, the source, in both cases. Within a row,
    neighbours ascend by (id, edge id): the canonical order, which does not depend on partitioning.
    """

    indptr: A
    """``[rows + 1]`` int64; row = global id of the expanded node - ``first_row``; ids past the end
    have no edge."""
    indices: A
    """``[num_edges]`` int64 or int32, global ids of the neighbours."""
    edge_ids: A | None
    """``[num_edges]`` int64, global edge ids; None: see ``first_edge``."""
    weights: A | None
    """``[num_edges]`` float32, not negative; None: unweighted."""
    first_row: int = 0
    """The node of row 0: a partition that owns a range of ids has rows for that range only."""
    first_edge: int | None = None
    """The id of the edge at position 0, if ids are positions; None: only ``edge_ids`` has edge
    ids."""

    @property
    def has_edge_ids(self) -> bool:
        """Whether edge ids are known."""
        return self.edge_ids is not None or self.first_edge is not None

    def locate(self, ids: Any) -> Any:
        """Return the row of each of ``ids`` (``[n]`` int64, nodes that this partition owns)."""
        # no new array if the range begins at 0, as in each graph of one partition
        return ids - self.first_row if self.first_row else ids

    def edge_ids_at(self, positions: Any) -> Any:
        """Return the edge ids at ``positions`` (``[n]`` int64); ids are known."""
        known: Any = self.edge_ids
        return positions + self.first_edge if known is None else known[positions]


@dataclass(frozen=True)
class Rows(Generic[A]):
    """A matrix of which this partition owns some rows: features or labels, by global id."""

    values: A
    """``[num_rows, ...]``, any dtype; C-contiguous."""
    index: A | None = None
    """``[n]`` int64 or int32, the row of each id from ``first`` on, -1 for ids of others; None: see
    ``ids`` and ``first``."""
    whole: bool = False
    """All ids are here: no request to another partition is needed."""
    dtype: str = ""
    """torch's name of the type of ``values``, which may be an array of its bits only."""
    first: int = 0
    """The id of row 0 or, with an ``index``, of its place 0. Not used with ``ids``."""
    ids: A | None = None
    """``[num_rows]`` int64, ascending: the id of each row, if there is no ``index``."""
    scales: A | None = None
    """Scales of quantized features, to restore float32: ``[2, ...]``, scale and offset of each
    column, or ``[0]``; None: features are not quantized."""

    def __post_init__(self) -> None:
        if not self.dtype:
            values: Any = self.values
            object.__setattr__(self, "dtype", str(values.dtype).removeprefix("torch."))

    def locate(self, ids: Any) -> Any:
        """Return the row of each of ``ids`` (``[n]`` int64, all owned by this partition)."""
        index: Any = self.index
        known: Any = self.ids
        if index is not None:
            # numpy's `take` is faster than `[]` for the few ids of a batch
            rows = index.take(self.looked_up(ids))
            return (
                rows.astype(np.int64, copy=False) if isinstance(rows, np.ndarray) else rows.long()
            )
        if known is None:
            return self.looked_up(ids)
        # by class of the array: workers have numpy arrays, and must not import torch
        if isinstance(known, np.ndarray):
            return np.searchsorted(known, ids)
        import torch

        return torch.searchsorted(known, ids.contiguous())

    def looked_up(self, ids: Any) -> Any:
        """Return the positions of ``ids`` in ``index``."""
        return ids - self.first if self.first else ids


@dataclass(frozen=True)
class Book(Generic[A]):
    """The owner of each id: a table of all ids, or the end of each partition's range."""

    table: A | None = None
    """``[num_ids]`` integer, the owner of each id."""
    bounds: A | None = None
    """``[num_partitions]`` int64: partition ``p`` owns ``bounds[p - 1] <= id < bounds[p]``."""

    def owner(self, ids: A) -> A:
        """Return the partition that owns each of ``ids`` (``[n]`` int64) as ``[n]`` int64."""
        bounds: Any = self.bounds
        table: Any = self.table
        wanted: Any = ids
        parts: Any
        if isinstance(wanted, np.ndarray):
            # "right": an id equal to a bound is the first of the next partition, also past empty
            # ones
            parts = table[wanted] if bounds is None else np.searchsorted(bounds, wanted, "right")
            parts = parts.astype(np.int64, copy=False)
        else:
            import torch

            if bounds is None:
                parts = table[wanted].long()
            else:  # contiguous: torch warns about rows of a transposed edge index
                parts = torch.searchsorted(bounds, wanted.contiguous(), right=True)
        return cast("A", parts)

    def owns(self, partition: int, ids: A) -> bool:
        """Return whether ``partition`` owns all of ``ids`` (``[n]`` int64)."""
        bounds: Any = self.bounds
        wanted: Any = ids
        if bounds is None:
            table: Any = self.table
            # as they are stored: int64 would be another pass over eight times the bytes
            return not bool((table[wanted] != partition).any())
        # the least and the largest id decide, at a tenth of the cost of an owner for each
        first = int(bounds[partition - 1]) if partition else 0
        return not len(wanted) or first <= int(wanted.min()) <= int(wanted.max()) < int(
            bounds[partition]
        )

    @property
    def num_ids(self) -> int:
        """Number of ids over all partitions."""
        bounds: Any = self.bounds
        table: Any = self.table
        return int(bounds[-1]) if bounds is not None else len(table)


@dataclass(frozen=True)
class TimeOrder(Generic[A]):
    """The edges of an `Adjacency` by time: that of the edge, or of the neighbour."""

    order: A
    """``[num_edges]`` int64, positions in the adjacency: row after row, within a row ascending by
    time, in canonical order where times are equal."""
    times: A
    """``[num_edges]`` int64, the time of each of these, as `keys_of` makes them."""
    is_float: bool
    """Whether times are floating-point numbers."""


ROW_KINDS = ("node_features", "node_labels", "edge_features", "node_attributes", "edge_attributes")
"""Attributes of a `PartitionView` that hold rows: the names allowed in a request."""
Matrix = tuple[str, Any]
"""One of `ROW_KINDS`, and the name there: a type, or for attributes a type and the attribute."""
Row = tuple[str, tuple[int, ...]]
"""Dtype and shape of one row of a matrix."""
Owner = tuple[str, NodeType | EdgeType]
"""``"node"`` or ``"edge"``, and a type: the matrices of one owner have rows for the same ids."""


def owner_of(kind: str, name: Any) -> Owner:
    """Return the owner of a matrix's rows."""
    return kind.split("_")[0], name[0] if kind.endswith("_attributes") else name


def kinds_of(owner: Literal["node", "edge"]) -> list[str]:
    """Return the `ROW_KINDS` of nodes, or those of edges."""
    return [kind for kind in ROW_KINDS if kind.startswith(owner)]


@dataclass(frozen=True)
class PartitionView(Generic[A]):
    """All data that a sampler reads, in shared memory."""

    is_heterogeneous: bool
    """Whether batches are ``HeteroData``. False for labeled-homogeneous datasets too."""
    edge_dir: EdgeDir
    num_partitions: int
    partition_idx: int
    num_nodes: dict[NodeType, int]
    """Nodes of each type over all partitions."""
    adjacency: dict[EdgeType, Adjacency[A]]
    """By edge type, under the user's names; label edge types included."""
    node_books: dict[NodeType, Book[A]] = field(default_factory=dict)
    """Empty with one partition."""
    edge_books: dict[EdgeType, Book[A]] = field(default_factory=dict)
    node_features: dict[NodeType, Rows[A]] = field(default_factory=dict)
    node_labels: dict[NodeType, Rows[A]] = field(default_factory=dict)
    edge_features: dict[EdgeType, Rows[A]] = field(default_factory=dict)
    node_attributes: dict[tuple[NodeType, str], Rows[A]] = field(default_factory=dict)
    """Further attributes of nodes, by type and name: masks, times..."""
    edge_attributes: dict[tuple[EdgeType, str], Rows[A]] = field(default_factory=dict)
    num_classes: dict[NodeType, int] = field(default_factory=dict)
    """Classes of each type over all partitions, if known."""
    frames: Frames = field(default_factory=dict)
    """Columns of rows of mixed types, which are among the attributes."""
    identity: GraphIdentity | None = None
    """The identity of the graph; None: not known yet, as for a new view."""
    times: dict[EdgeType, TimeOrder[A]] = field(default_factory=dict)
    """Of a loader with ``time_attr``: the edge types with times, of edges or of neighbours."""
    other_edges: "dict[int, PartitionView[A]]" = field(default_factory=dict)
    """All other partitions, by index, with their edges alone: of a dataset that was loaded with
    ``edges="all"``."""
    same_host: "dict[int, PartitionView[A]]" = field(default_factory=dict)
    """In a worker: other partitions, by index, that it reads in this machine's memory."""

    def with_edges_of(
        self,
        partition_idx: int,
        adjacency: dict[EdgeType, Adjacency[A]],
        edge_attributes: dict[tuple[EdgeType, str], Rows[A]],
    ) -> "PartitionView[A]":
        """Return another partition of this graph for `other_edges`."""
        return PartitionView(
            self.is_heterogeneous,
            self.edge_dir,
            self.num_partitions,
            partition_idx,
            self.num_nodes,
            adjacency,
            self.node_books,
            self.edge_books,
            edge_attributes=edge_attributes,
        )

    def total_edges(self) -> dict[EdgeType, int]:
        """Return the edges of each type over all partitions; types without a number are left out.

        Books count edges that `split_partitions` has taken out, too.
        """
        if self.num_partitions == 1:
            ends: dict[EdgeType, Any] = {t: edges.indices for t, edges in self.adjacency.items()}
            return {name: len(indices) for name, indices in ends.items()}
        return {name: book.num_ids for name, book in self.edge_books.items()}

    def ends_of(self, edge_type: EdgeType) -> tuple[NodeType, NodeType]:
        """Return (type that is expanded, type of its neighbours) of a walked edge type."""
        src, _, dst = edge_type
        return (dst, src) if self.edge_dir == "in" else (src, dst)

    def row_type(self, edge_type: EdgeType) -> NodeType:
        """Return the type of the nodes by which edges are grouped; for label edges, the anchors."""
        return row_type(edge_type, self.edge_dir)

    def attribute_names(self) -> dict[Any, list[str]]:
        """Return the names of further attributes by node or edge type, ascending."""
        names: dict[Any, list[str]] = {}
        for owner, name in sorted([*self.node_attributes, *self.edge_attributes], key=str):
            if is_in_batches(name):
                names.setdefault(owner, []).append(name)
        return names


WithSplits = tuple[PartitionView, Splits]
"""A partition as read from a directory, and written to one."""


_LOWEST = np.iinfo(np.int64).min
_SIGN = np.int64(2**63 - 1)


def keys_of(times: Array, *, is_float: bool) -> Array:
    """Return ``[n]`` int64 that compare in the same way as ``times``.

    Source:
        The bits of an IEEE 754 number, read as an integer, ascend with positive numbers and descend
        with negative ones.
    """
    if not is_float:
        return times.astype(np.int64, copy=False)
    bits: Array = (times.astype(np.float64) + 0.0).view(np.int64)  # -0.0 equals 0.0
    # all bits but the sign inverted: negative numbers then ascend, and stay below the others
    return np.where(bits < 0, bits ^ _SIGN, bits)


def earlier(times: Array, window: float | Array, *, is_float: bool) -> Array:
    """Return the keys of ``times - window``; integers end at the lowest possible one.

    Args:
        times: ``[n]``.
        window: One number >= 0, or ``[n]``.
        is_float: Whether the keys are those of floats.
    """
    if is_float:
        return keys_of(times.astype(np.float64) - window, is_float=True)
    int_times = times.astype(np.int64, copy=False)
    whole: int | Array  # integer times within 1.5 are those within 1
    if not isinstance(window, np.ndarray):
        whole = min(int(window), 2**63 - 1)
    elif window.dtype.kind == "f":
        whole = np.minimum(window, 2.0**63 - 1024).astype(np.int64)  # the largest one below 2 ** 63
    else:
        whole = window
    # clamped first: the difference would wrap around to a time in the far future
    return np.maximum(int_times, _LOWEST + whole) - whole
