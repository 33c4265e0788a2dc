"""Graphs, features and partition books with the interface of graphlearn-torch (GLT).

See `gigl_loader.runtime.glt_classes.classes`. All is on the CPU: GLT's GPU functions need its
native library.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from gigl_loader.errors import ConfigError, NativeLibraryError


def refuse(what: str, way_out: str) -> NoReturn:
    """Raise the error for functions of the native library."""
    raise NativeLibraryError(
        f"{what} needs graphlearn-torch's native library, and graphlearn-torch is not installed "
        f"here: {way_out}"
    )


def as_tensors(data: Any, dtype: torch.dtype | None = None) -> Any:
    """Return numpy arrays and tensors, alone or in a dict or sequence, as tensors of ``dtype``."""
    if isinstance(data, dict):
        return {key: as_tensors(value, dtype) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(as_tensors(value, dtype) for value in data)
    # no copy if the type is right: the caller's memory is shared
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    if isinstance(data, Tensor):
        return data.to(dtype or data.dtype)
    return data


def each(data: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``data`` with every tensor in it changed."""
    if isinstance(data, dict):
        return {key: each(value, change) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(each(value, change) for value in data)
    return change(data) if isinstance(data, Tensor) else data


def shared(data: Any) -> Any:
    """Return ``data`` with every tensor in it in shared memory."""
    return each(data, Tensor.share_memory_)


# --- edges ----------------------------------------------------------------------------------------


def row_major_order(row: Tensor, col: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Return the order of entries by (row, column); equal ones keep their order.

    Args:
        row: ``[num_entries]`` int64, below ``sizes[0]``.
        col: ``[num_entries]`` int64, below ``sizes[1]``.
        sizes: Number of rows and of columns.
    """
    # sorting once by row * columns + column is half the work of two stable sorts
    if sizes[0] * sizes[1] < 2**63:  # one key fits
        return torch.argsort(row * sizes[1] + col, stable=True)
    # the less significant key first: the second sort, being stable, keeps its order within a row
    order = torch.argsort(col, stable=True)
    return order[torch.argsort(row[order], stable=True)]


def row_offsets(row: Tensor, num_rows: int) -> Tensor:
    """Return ``[num_rows + 1]`` int64: the start of each row, for entries sorted by row."""
    offsets = row.new_zeros(num_rows + 1)
    # shifted by one: the first row starts at 0, and the last entry is the number of edges
    torch.cumsum(torch.bincount(row, minlength=num_rows), dim=0, out=offsets[1:])
    return offsets


def _expand(offsets: Tensor) -> Tensor:
    return torch.repeat_interleave(
        torch.arange(offsets.numel() - 1, device=offsets.device), offsets.diff()
    )


class Topology:
    """The edges of one type, grouped by the expanded end.

    Args:
        edge_index: The two ends of each edge, sources first, ``[2, num_edges]`` int64. With
            ``input_layout="CSR"`` the first of two tensors holds offsets, with ``"CSC"`` the second
            one does.
        edge_ids: ``[num_edges]`` int64; None: the position in ``edge_index``.
        edge_weights: ``[num_edges]``, kept as float32.
        input_layout: Layout of ``edge_index``: ``"COO"``, ``"CSR"`` or ``"CSC"``.
        layout: Layout of the stored edges: ``"CSR"``, grouped by source, or ``"CSC"``, by
            destination.

    Raises:
        ConfigError: A layout is unknown, or lengths differ.
    """

    def __init__(
        self,
        edge_index: Any,
        edge_ids: Any = None,
        edge_weights: Any = None,
        input_layout: str = "COO",
        layout: str = "CSR",
    ) -> None:
        # The expanded end is `row` here and below, the other end `col`; either may be the source.
        self._layout = layout
        self._indptr: Tensor
        self._indices: Tensor
        self._edge_ids: Tensor
        self._edge_weights: Tensor | None
        source, target = (as_tensors(end, torch.int64) for end in (edge_index[0], edge_index[1]))
        given = str(input_layout).upper()
        if given not in ("COO", "CSR", "CSC") or layout not in ("CSR", "CSC"):
            raise ConfigError(f"edges cannot be read as {input_layout!r} and kept as {layout!r}")
        # the end without offsets has an entry for each edge
        count = (target if given == "CSR" else source).numel()
        ids = (
            torch.arange(count, device="cpu")
            if edge_ids is None
            else as_tensors(edge_ids, torch.int64)
        )
        weights = as_tensors(edge_weights, torch.float32)
        for name, part in (("edge_ids", ids), ("edge_weights", weights)):
            if part is not None and part.numel() != count:
                raise ConfigError(f"{name} has {part.numel()} entries for {count} edges")
        # used unchanged, in its own order: no sort, no copy
        if given == layout:
            self._indptr, self._indices = (source, target)[:: 1 if layout == "CSR" else -1]
            self._edge_ids, self._edge_weights = ids, weights
            return
        source = _expand(source) if given == "CSR" else source
        target = _expand(target) if given == "CSC" else target
        self._group(*((source, target) if layout == "CSR" else (target, source)), ids, weights)

    def _group(self, row: Tensor, col: Tensor, ids: Tensor, weights: Tensor | None) -> None:
        if row.numel() != col.numel():
            raise ConfigError(f"edge_index has {row.numel()} sources or targets to {col.numel()}")
        # nodes above the highest id with an edge have no row: readers of rows check row_count
        num_rows, num_cols = (int(end.max()) + 1 if end.numel() else 0 for end in (row, col))
        order = row_major_order(row, col, (num_rows, num_cols))
        self._indptr, self._indices = row_offsets(row, num_rows), col[order]
        self._edge_ids = ids[order]
        self._edge_weights = None if weights is None else weights[order]

    def to_coo(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return sources, targets, edge ids and weights, one entry per edge."""
        ends = (_expand(self._indptr), self._indices)
        source, target = ends if self._layout == "CSR" else ends[::-1]
        return source, target, self._edge_ids, self._edge_weights

    def to_csr(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return offsets by source, targets, edge ids and weights."""
        kept = self._in_layout("CSR")
        return kept._indptr, kept._indices, kept._edge_ids, kept._edge_weights

    def to_csc(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return sources, offsets by target, edge ids and weights."""
        kept = self._in_layout("CSC")
        return kept._indices, kept._indptr, kept._edge_ids, kept._edge_weights

    def _in_layout(self, layout: str) -> "Topology":
        """Return the same edges, converted unless they are kept so."""
        if layout == self._layout:
            return self
        source, target, ids, weights = self.to_coo()
        return Topology((source, target), ids, weights, "COO", layout)

    @property
    def indptr(self) -> Tensor:
        """``[row_count + 1]`` int64: the start of each row."""
        return self._indptr

    @property
    def indices(self) -> Tensor:
        """``[edge_count]`` int64: the other end of each edge."""
        return self._indices

    @property
    def edge_ids(self) -> Tensor:
        """``[edge_count]`` int64."""
        return self._edge_ids

    @property
    def edge_weights(self) -> Tensor | None:
        """``[edge_count]`` float32; None if there are none."""
        return self._edge_weights

    @property
    def degrees(self) -> Tensor:
        """``[row_count]`` int64: edges per row."""
        return self._indptr.diff()

    @property
    def row_count(self) -> int:
        """Number of rows, including those without edges."""
        return self._indptr.numel() - 1

    @property
    def edge_count(self) -> int:
        """Number of edges."""
        return self._indices.numel()

    def share_memory_(self) -> None:
        """Move all tensors into shared memory."""
        for name in ("_indptr", "_indices", "_edge_ids", "_edge_weights"):
            setattr(self, name, shared(getattr(self, name)))

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key, None)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)


class Graph:
    """The edges of one type in shared memory.

    Args:
        topo: The edges.
        mode: ``"CPU"``; GLT's other modes are refused when the graph is used.
        device: Unused on the CPU.
    """

    def __init__(self, topo: Topology, mode: str = "ZERO_COPY", device: int | None = None) -> None:
        self.topo = topo
        self.topo.share_memory_()
        self.mode = mode.upper()
        self.device = device

    def lazy_init(self) -> None:
        """Check that this graph can be used.

        Raises:
            NativeLibraryError: Its mode is one for GPUs.
        """
        if self.mode != "CPU":
            refuse(f"a graph in the mode {self.mode}", 'use graph_mode="CPU"')

    def export_topology(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return offsets, indices and edge ids."""
        return self.topo.indptr, self.topo.indices, self.topo.edge_ids

    def share_ipc(self) -> tuple[Topology, str]:
        """Return the argument of `from_ipc_handle`."""
        return self.topo, self.mode

    @classmethod
    def from_ipc_handle(cls, ipc_handle: tuple[Topology, str]) -> "Graph":
        """Undo `share_ipc`."""
        return cls(*ipc_handle)

    @property
    def row_count(self) -> int:
        """Number of rows, including those without edges."""
        self.lazy_init()
        return self.topo.row_count

    @property
    def col_count(self) -> int:
        """Distinct other ends."""
        self.lazy_init()
        # those in use, as the native graph counts
        return int(torch.unique(self.topo.indices).numel())

    @property
    def edge_count(self) -> int:
        """Number of edges."""
        self.lazy_init()
        return self.topo.edge_count


# --- rows by id -----------------------------------------------------------------------------------


class Feature:
    """Rows of a matrix by global id, on the CPU and in shared memory.

    Args:
        feature_tensor: ``[num_rows, ...]``.
        id2index: Row of each id: an int64 tensor, or anything that can be indexed by a tensor of
            ids.
            None: the id is the row.
        split_ratio: Share of the rows on GPUs; 0 here.
        device_group_list: For GPUs.
        device: For GPUs.
        with_gpu: False here.
        dtype: Dtype of the rows; None: unchanged.

    Raises:
        NativeLibraryError: ``with_gpu``.
    """

    def __init__(
        self,
        feature_tensor: Any,
        id2index: Any = None,
        split_ratio: float = 0.0,
        device_group_list: Any = None,
        device: int | None = None,
        with_gpu: bool | None = True,
        dtype: torch.dtype | None = torch.float32,
    ) -> None:
        # the default is GLT's, so that a caller without it gets an error, not another behaviour
        if with_gpu:
            refuse("a feature with a part on GPUs", "pass with_gpu=False")
        # in shared memory from the start: spawned workers read these pages without a copy
        self.feature_tensor: Tensor = as_tensors(feature_tensor, dtype).cpu().share_memory_()
        self.id2index = as_tensors(id2index, torch.int64)
        self.split_ratio = float(split_ratio)
        self.device_group_list = device_group_list
        self.device = device
        self.with_gpu = with_gpu
        self.dtype = dtype

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.cpu_get(ids)

    def cpu_get(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids``, on the CPU."""
        ids = ids.cpu()
        return self.feature_tensor[ids if self.id2index is None else self.id2index[ids]]

    def lazy_init_with_ipc_handle(self) -> None:
        """Do nothing: a pickle of this object is whole."""

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole matrix."""
        return self.feature_tensor.shape

    def size(self, dim: int) -> int:
        """Return the size of all rows in a dimension."""
        return self.feature_tensor.size(dim)


class OffsetId2Index:
    """Row of an id in a block of consecutive ids."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __getitem__(self, ids: Tensor) -> Tensor:
        return ids - self.offset

    def to(self, device: Any) -> "OffsetId2Index":
        """Return itself: it has no tensor."""
        return self


class RangePartitionBook:
    """The owner of each id, where partitions own consecutive ids.

    Args:
        partition_ranges: First id, and one past the last, of each partition, in order.
        partition_idx: The partition that this process holds.

    Raises:
        ConfigError: A range is empty, or does not start where the one before ends.
    """

    def __init__(self, partition_ranges: list[tuple[int, int]], partition_idx: int) -> None:
        if any(start >= end for start, end in partition_ranges):
            raise ConfigError(f"a range of ids is empty: {partition_ranges}")
        starts = [start for start, _ in partition_ranges[1:]]
        if starts != [end for _, end in partition_ranges[:-1]]:
            raise ConfigError(f"ranges of ids leave gaps or overlap: {partition_ranges}")
        self.partition_bounds = torch.tensor([end for _, end in partition_ranges], device="cpu")
        self.partition_idx = partition_idx
        self._id2index = OffsetId2Index(partition_ranges[partition_idx][0])

    def __getitem__(self, indices: Tensor) -> Tensor:
        # right: a bound is the first id of the next partition
        return torch.searchsorted(self.partition_bounds, indices, right=True)

    @property
    def device(self) -> torch.device:
        """Device that holds the tensors."""
        return self.partition_bounds.device

    @property
    def id2index(self) -> OffsetId2Index:
        """Row of an id among those of this partition."""
        return self._id2index

    def id_filter(self, node_pb: Any, partition_idx: int) -> Tensor:
        """Return the ids that a partition owns, ascending."""
        # `node_pb` is this book: GLT calls `id_filter(book, index)` of any kind of book
        start = int(self.partition_bounds[partition_idx - 1]) if partition_idx else 0
        return torch.arange(start, int(self.partition_bounds[partition_idx]), device="cpu")


def owned_by(book: Tensor, partition_idx: int) -> Tensor:
    """Return the ids that a partition owns, by a table of owners."""
    return (book == partition_idx).nonzero().view(-1)


def selected(ids: Tensor, mask: Tensor, book: Any = None) -> Tensor:
    """Return the ids that a mask selects."""
    return ids[mask]
