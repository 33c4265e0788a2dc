"""Neighbours and rows by global id, from this partition or from another.

`LocalReader` reads shared memory. `GraphReader` splits a request by owner, requests remote parts
while it reads the others, and puts the responses in the order of the ids. Rows are read through
`sampler.rows.row_exchange`.
"""

import threading
from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gigl_loader.dataset.partition.partition_view import (
    Adjacency,
    Book,
    PartitionView,
    Rows,
    TimeOrder,
)
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.memory import read_ahead
from gigl_loader.runtime.memory.segments import Array, array_in, nbytes_of, storage_dtype
from gigl_loader.sampler.kernels import sampling_kernels as kernels
from gigl_loader.sampler.kernels import tree_kernels, weighted_kernels
from gigl_loader.sampler.plan import (
    Draw,
    Drawn,
    DrawRequest,
    Peers,
    PendingAnswer,
    RowsAnswer,
    RowsName,
    RowsRequest,
    TreesAndTimes,
    check_drawn,
)
from gigl_loader.sampler.rows.row_exchange import (
    LaterRows,
    Part,
    RequestedRows,
    Split,
    gather_rows,
    part_of,
    split_by_owner,
)

DEGREES = "degrees"
"""Kind of a request for ``[n]`` int64, the number of edges of a type at each node."""
_NO_WEIGHTS, _NO_TIMES = np.empty(0, np.float32), np.empty(0, np.int64)


class Scratch:
    """Named work arrays that only grow: fresh memory is the cost to avoid."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}

    def get(self, name: str, size: int, dtype: Any = np.int64) -> Any:
        """Return ``size`` items of the array ``name``; their values are left over."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            # Zeros, as `draw_uniform` expects for its marks; a quarter more, as batches differ.
            array = self._arrays[name] = np.zeros(max(size + size // 4, 1024), dtype)
        return array[:size]

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a contiguous array of that type and shape over the array ``name``."""
        words = self.get(name, -(-nbytes_of(dtype, shape) // 8))
        return array_in(words, dtype, shape, 0)


class _Unread:
    """Marks responses that are still to be read; gone with their reader."""


class LocalReader:
    """One partition in this machine's memory. One object per thread: it owns scratch memory.

    Args:
        view: The partition.
        scratch: Memory to share with other stores of the thread.
    """

    def __init__(self, view: PartitionView[Array], scratch: Scratch | None = None) -> None:
        self._view = view
        self._scratch = scratch or Scratch()

    def draw(self, draw: Draw, nodes: Array, trees: TreesAndTimes | None = None) -> Drawn:
        """Draw neighbours of ``nodes`` (``[n]`` int64, global ids owned here)."""
        adjacency = self._view.adjacency[draw.edge_type]
        offsets, counts = self._draw_offsets(draw, adjacency, nodes, trees)
        # Fresh: the response outlives this call, while the next call reuses scratch memory.
        neighbors = np.empty(len(offsets), np.int64)
        read_ahead.want(adjacency.indices, offsets)
        kernels.gather(adjacency.indices, offsets, neighbors)
        edge_ids = None
        if draw.with_edge:
            edge_ids = self._edge_ids(draw, adjacency, offsets)
        return Drawn(counts.copy(), neighbors, edge_ids)

    def _edge_ids(self, draw: Draw, adjacency: Adjacency[Array], offsets: Array) -> Array:
        if adjacency.edge_ids is not None:
            edge_ids = np.empty(len(offsets), np.int64)
            read_ahead.want(adjacency.edge_ids, offsets)
            kernels.gather(adjacency.edge_ids, offsets, edge_ids)
            return edge_ids
        if adjacency.first_edge is None:
            raise ProtocolError(f"edge ids of {draw.edge_type} were requested, none are kept")
        return offsets + adjacency.first_edge

    def _draw_offsets(
        self, draw: Draw, adjacency: Adjacency[Array], ids: Array, trees: TreesAndTimes | None
    ) -> tuple[Array, Array]:
        get, size = self._scratch.get, len(ids)
        at = _rows_of(adjacency, ids)
        read_ahead.want(adjacency.indptr, at)
        # keys are made of ids: a draw does not depend on the partition
        rows = get("starts", size), get("degrees", size), get("counts", size)
        key = np.uint64(draw.key)
        replace = draw.replace and draw.fanout >= 0  # "all neighbours" means each of them once
        weights = adjacency.weights if draw.with_weight else None
        order = self._view.times[draw.edge_type] if draw.timed else None
        if trees is not None:  # one node has other neighbours in each tree
            ids = ids + trees.tree * self._num_rows_of(draw.edge_type)
        fanout = None if trees is None else trees.fanout
        if fanout is not None:  # rows are looked up whole, and cut below
            draw, last = replace_fields(draw, fanout=-1, last=False), draw.last
        if order is not None and trees is not None:
            total, most = self._count_timed(draw, adjacency, order, at, trees, replace, rows)
        elif weights is not None:
            total, most = weighted_kernels.count_weighted(
                adjacency.indptr, weights, at, draw.fanout, replace, *rows
            )
        else:
            total, most = kernels.count_uniform(adjacency.indptr, at, draw.fanout, replace, *rows)
        if fanout is not None:
            total = _cut(fanout, *rows, replace=replace, last=last)
        # before memory is taken for them
        check_drawn(total, draw.most, f"neighbours of {size:,} nodes over {draw.edge_type}")
        offsets = get("positions", total)
        if draw.method == "labor":
            keys, items = get("keys", most, np.float64), get("items", most)
            all_weights = weights if weights is not None else _NO_WEIGHTS
            weighted_kernels.draw_labor(
                adjacency.indices, all_weights, *rows, key, keys, items, offsets
            )
        elif weights is not None:
            keys, items = get("keys", most, np.float64), get("items", most)
            weighted_kernels.draw_weighted(weights, ids, *rows, replace, key, keys, items, offsets)
        else:
            taken = get("taken", most, np.uint8)
            kernels.draw_uniform(ids, *rows, replace, key, taken, offsets)
        if order is not None:
            # Rows were cut and drawn in the order of times: convert positions there to positions
            # of edges.
            positions, offsets = offsets, get("in order", total)
            kernels.gather(order.order, positions, offsets)
        return offsets, rows[2]

    def degrees(self, edge_type: EdgeType, nodes: Array) -> Array:
        """Return the degree of each of ``nodes`` (global ids owned here), ``[n]`` int64."""
        adjacency = self._view.adjacency[edge_type]
        at, degrees = _rows_of(adjacency, nodes), np.empty(len(nodes), np.int64)
        get, size = self._scratch.get, len(nodes)
        rows = get("starts", size), degrees, get("counts", size)
        kernels.count_uniform(adjacency.indptr, at, -1, False, *rows)
        return degrees

    def _count_timed(
        self,
        draw: Draw,
        adjacency: Adjacency[Array],
        order: TimeOrder[Array],
        at: Array,
        trees: TreesAndTimes,
        replace: bool,
        rows: tuple[Array, Array, Array],
    ) -> tuple[int, int]:
        assert trees.until is not None, "requests by time say until when"
        since = _NO_TIMES if trees.since is None else trees.since
        total_and_most: tuple[int, int] = tree_kernels.count_timed(
            adjacency.indptr,
            order.times,
            at,
            since,
            trees.until,
            draw.fanout,
            replace,
            draw.last,
            *rows,
        )
        return total_and_most

    def _num_rows_of(self, edge_type: EdgeType) -> int:
        return max(1, self._view.num_nodes[self._view.row_type(edge_type)])

    def rows(self, kind: str, name: RowsName) -> Rows[Array]:
        """Return the matrix ``kind`` (``node_features``...) of a type."""
        rows: Rows[Array] = getattr(self._view, kind)[name]
        return rows

    def part(self, kind: str, name: Any, ids: Array, at: Array | None = None) -> Part:
        """Return the rows of ``ids``, or of those at ``at``, in a matrix or `DEGREES`."""
        if kind != DEGREES:
            return part_of(self.rows(kind, name), ids, at)
        degrees = self.degrees(name, ids if at is None else ids.take(at))
        return degrees, np.arange(degrees.size), at

    def answer_draw(self, request: DrawRequest) -> Drawn:
        """Respond to another partition's request for neighbours.

        Raises:
            ProtocolError: The requested data do not exist.
        """
        _check_ids(request.nodes)
        draw = request.draw
        if draw.edge_type not in self._view.adjacency:
            raise ProtocolError(f"neighbours by {draw.edge_type} were requested, an unknown type")
        if not (-1 <= draw.fanout < 1 << 31 and 0 <= draw.key < 1 << 64):
            raise ProtocolError(f"fanout {draw.fanout} with key {draw.key} is out of range")
        trees = request.trees
        if draw.timed and (draw.edge_type not in self._view.times or trees is None):
            raise ProtocolError(f"neighbours by time were requested, {draw.edge_type} has no times")
        if trees is not None and not trees.fits(request.nodes.size, draw.timed):
            raise ProtocolError(f"trees and times must be int64, one for each node: {trees}")
        return self.draw(draw, request.nodes, trees)

    def answer_rows(self, request: RowsRequest) -> RowsAnswer:
        """Respond to another partition's request for rows.

        The response lies in this thread's scratch memory until the thread's next response.

        Raises:
            ProtocolError: The requested data do not exist.
        """
        dtype, shape, write = self.rows_asked(request)
        out = self._scratch.matrix("answer", dtype, shape)
        write(out)
        return RowsAnswer(out, dtype)

    def rows_asked(
        self, request: RowsRequest
    ) -> tuple[str, tuple[int, ...], Callable[[Array], None]]:
        """Return dtype and shape of the requested rows, and their writer to an array.

        Raises:
            ProtocolError: The requested data do not exist.
        """
        _check_ids(request.ids)
        kind, ids = request.kind, request.ids
        rows = request.matrix_in(self._view)
        if rows is None and not (kind == DEGREES and request.name in self._view.adjacency):
            raise ProtocolError(f"{kind!r} of {request.name!r} were requested, none are")
        part = self.part(DEGREES, request.name, ids) if rows is None else part_of(rows, ids)
        dtype = "int64" if rows is None else rows.dtype
        return dtype, (ids.size, *part[0].shape[1:]), lambda out: gather_rows([part], out)


class ReaderOfThread(threading.local):
    """A `LocalReader` for each responding thread; it owns the memory of the last response."""

    def __init__(self, view: PartitionView[Array]) -> None:
        self.reader = LocalReader(view)  # called by each thread that looks at this object


def _cut(
    fanout: Array, starts: Array, degrees: Array, counts: Array, *, replace: bool, last: bool
) -> int:
    """Cut the draws of whole rows to a fan-out of each node; return their sum.

    ``counts`` are the neighbours that each row has to draw from; see `count_uniform`.
    """
    taken = np.minimum(counts, fanout)
    if last:  # the end of the row, which is by time and then without weights
        starts += degrees - taken
        degrees[:] = taken
    counts[:] = np.where(counts > 0, fanout, 0) if replace else taken
    return int(counts.sum())


class GraphReader:
    """All partitions. One object per sampling thread."""

    def __init__(self, view: PartitionView[Array], peers: Peers | None) -> None:
        self._view = view
        self._peers = peers
        self._scratch = Scratch()
        views = {view.partition_idx: view, **view.same_host}
        self._here = {p: LocalReader(part, self._scratch) for p, part in views.items()}
        others = {p: LocalReader(part, self._scratch) for p, part in view.other_edges.items()}
        self._edges_here = {**others, **self._here}
        """By partition whose edges are in this machine's memory; `_here`: whose rows are, too."""
        self.is_alone = peers is None and len(self._edges_here) == 1
        """Whether this partition is the only one."""
        self._local = self._here[view.partition_idx]
        self._later = peers is not None and peers.rows_later
        self._kept: tuple[Split | None, Array] = (None, np.empty(0, np.int64))
        self._unread: WeakValueDictionary[str, _Unread] = WeakValueDictionary()
        """By matrix, whose responses are written to its named work memory."""

    def draw(
        self, draw: Draw, nodes: Array, trees: TreesAndTimes | None = None
    ) -> Callable[[], Drawn]:
        """Request neighbours of ``nodes``; the remote part is under way when this returns."""
        owners = self._view.node_books.get(self._view.row_type(draw.edge_type))
        split = self.split(owners, nodes)
        if split is None:
            return lambda: self._local.draw(draw, nodes, trees)
        pending = {
            p: self._others().draw(p, DrawRequest(draw, nodes.take(at), trees and trees.take(at)))
            for p, at in split.items()
            if p not in self._edges_here
        }
        return lambda: self._merge(draw, nodes, trees, split, pending)

    @property
    def view(self) -> PartitionView[Array]:
        """This partition."""
        return self._view

    def ends(self, edge_type: EdgeType) -> tuple[NodeType, NodeType]:
        """Return (type that is expanded, type of its neighbours) of a walked edge type."""
        return self._view.ends_of(edge_type)

    def split(self, book: Book[Array] | None, ids: Array) -> Split | None:
        """Return the positions of ``ids`` by owner; None if all of them are here.

        Raises:
            ProtocolError: An id has no owner.
        """
        if self.is_alone or book is None or ids.size == 0:
            return None
        split = split_by_owner(book, ids, self._view.num_partitions)
        return None if split.keys() == {self._view.partition_idx} else split

    def _others(self) -> Peers:
        assert self._peers is not None, "what is not on this machine has peers to ask"
        return self._peers

    def _merge(
        self,
        draw: Draw,
        nodes: Array,
        trees: TreesAndTimes | None,
        split: Split,
        pending: dict[int, PendingAnswer[Drawn]],
    ) -> Drawn:
        parts: dict[int, Drawn] = {}
        for partition in self._edges_here.keys() & split.keys():  # while the others respond
            at = split[partition]
            parts[partition] = self._edges_here[partition].draw(
                draw, nodes.take(at), trees and trees.take(at)
            )
        for partition, answer in pending.items():
            parts[partition] = answer.wait()
            _check_drawn(parts[partition], split[partition].size, draw.with_edge)
        counts = np.empty(nodes.size, np.int64)
        for partition, at in split.items():
            counts[at] = parts[partition].counts
        # Rows are put in the order of the nodes, as if one partition had all: labels follow from
        # it.
        starts = counts.cumsum() - counts
        total = int(counts.sum())
        neighbors = np.empty(total, np.int64)
        edge_ids = np.empty(total, np.int64) if draw.with_edge else None
        for partition, at in split.items():
            part = parts[partition]
            kernels.scatter_segments(starts, at, part.counts, part.neighbors, neighbors)
            if edge_ids is not None and part.edge_ids is not None:
                kernels.scatter_segments(starts, at, part.counts, part.edge_ids, edge_ids)
        return Drawn(counts, neighbors, edge_ids)

    def degrees(self, edge_type: EdgeType, nodes: Array) -> Callable[[], Array]:
        """Request the number of edges of each of ``nodes``, ``[n]`` int64; returns at once."""
        owners = self._view.node_books.get(self._view.row_type(edge_type))
        split = self.split(owners, nodes)
        if split is None:
            return lambda: self._local.degrees(edge_type, nodes)
        write = self._ask(DEGREES, edge_type, nodes, split, "int64", ())

        def answer() -> Array:
            write(degrees := np.empty(nodes.size, np.int64))
            return degrees

        return answer

    def fetch(
        self, kind: str, name: RowsName, ids: Array, split: Split | None = None
    ) -> tuple[str, tuple[int, ...], Callable[[Array], None]]:
        """Request rows; they are under way when this returns.

        Args:
            kind: ``node_features``, ``node_labels``, ``edge_features``, ``node_attributes`` or
                ``edge_attributes``.
            name: The type; of an attribute, (type, name).
            ids: ``[n]`` int64, global ids.
            split: From `split` for the same ids; None if all of them are here.

        Returns:
            (dtype, shape, a function that writes the rows to an array): see `Field`.
        """
        if not self._later:
            return self._fetch_now(kind, name, ids, split)
        rows = self._local.rows(kind, name)
        shape = (ids.size, *rows.values.shape[1:])
        # Read here, even if the ids have other owners.
        split = None if rows.whole else split
        kept = self._kept_ids(ids, split)

        def read(out: Array) -> None:
            self._fetch_now(kind, name, kept, split)[2](out)

        return rows.dtype, shape, LaterRows(kind, name, kept, split, read)

    def _fetch_now(
        self, kind: str, name: RowsName, ids: Array, split: Split | None
    ) -> tuple[str, tuple[int, ...], Callable[[Array], None]]:
        rows = self._local.rows(kind, name)
        shape = (ids.size, *rows.values.shape[1:])
        if split is None or rows.whole:
            return rows.dtype, shape, lambda out: gather_rows([part_of(rows, ids)], out)
        return rows.dtype, shape, self._ask(kind, name, ids, split, rows.dtype, shape[1:])

    def _ask(
        self,
        kind: str,
        name: RowsName,
        ids: Array,
        split: Split,
        dtype: str,
        row_shape: tuple[int, ...],
    ) -> Callable[[Array], None]:
        """Request remote rows; return a function that waits and writes all rows to an array."""
        matrix = f"{kind} {name}"
        # a batch may request rows of one matrix twice, for other ids: the first responses must
        # not be overwritten before they are read
        is_free, unread = matrix not in self._unread, _Unread()
        if is_free:
            self._unread[matrix] = unread
        readers = self._edges_here if kind == DEGREES else self._here
        elsewhere = {p: at for p, at in split.items() if p not in readers}
        shape = (sum(at.size for at in elsewhere.values()), *row_shape)
        if is_free:  # named work memory: responses land in pages that are mapped already
            room = self._scratch.matrix(matrix, dtype, shape)
        else:
            room = np.empty(shape, storage_dtype(dtype))
        pieces = [(partition, ids.take(at)) for partition, at in elsewhere.items()]
        requested = RequestedRows(self._peers, kind, name, pieces, room)

        def write(out: Array) -> None:
            local = readers.keys() & split.keys()  # read while the others respond
            parts = [readers[p].part(kind, name, ids, split[p]) for p in local]
            gather_rows(parts + requested.parts(elsewhere.values()), out)
            if self._unread.get(matrix) is unread:
                del self._unread[matrix]

        return write

    def _kept_ids(self, ids: Array, split: Split | None) -> Array:
        """Return a copy of ``ids``, the same one for all matrices requested with one split."""
        # Compared by identity, and kept alive meanwhile, so that no other split has its address.
        # Ids without a split are not remembered: two such calls need not mean the same.
        if split is None or self._kept[0] is not split:
            self._kept = (split, ids.copy())
        return self._kept[1]


def _check_ids(ids: Array) -> None:
    """Check that the kernels, which trust their arguments, read ids."""
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise ProtocolError(f"ids must be int64 in one row, came as {ids.dtype} {ids.shape}")


def _rows_of(adjacency: Adjacency[Array], ids: Array) -> Array:
    """Return the row of each of ``ids`` (``[n]`` int64).

    Raises:
        ProtocolError: One is before the first row, where kernels would read unchecked.
    """
    at: Array = adjacency.locate(ids)
    if at.size and at.min() < 0:
        raise ProtocolError(
            f"edges of node {ids[at.argmin()]} were requested, where the first is "
            f"{adjacency.first_row}"
        )
    return at


def _check_drawn(drawn: Drawn, num_nodes: int, with_edge: bool) -> None:
    """Check that merging a response writes nowhere else."""
    counts, edge_ids = drawn.counts, drawn.edge_ids
    arrays = [counts, drawn.neighbors] + ([] if edge_ids is None else [edge_ids])
    fits = (
        all(array.dtype == np.int64 and array.ndim == 1 for array in arrays)
        and counts.size == num_nodes
        and (num_nodes == 0 or counts.min() >= 0)
        and all(array.size == counts.sum() for array in arrays[1:])
        and (edge_ids is not None) == with_edge
    )
    if not fits:
        raise ProtocolError(
            f"neighbours of {num_nodes} nodes came as {[array.shape for array in arrays]}"
        )
