"""A look-up from ids to numbers in memory: 16 bytes per node, if the memory limit allows it.

A join builds its hash tables again for each file of edges. Once they exceed memory, it spills them
and each edge with its ids: five times the nodes and edges took ten times as long. Here the table is
built once, and each edge is read once.

Open addressing with linear probing, three quarters full. A slot has 12 bytes: 64 bits that check
the id, and its number. Integer ids are their own check. For text, check and home slot are two
hashes of 64 bits. If two ids share a check and a run of slots, building the table detects it, and
the engine's join is used instead. An unknown id matches the check of a node once in 10^18.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.format.mapped_writer import allow_files, write_numbers
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.runtime.memory.segments import Array

NO_NODE = 2**32 - 1
"""The result of a look-up for an id of no node."""
_WORDS = 3
"""32-bit words in a slot."""
_FULL = 0.75
"""Fuller, runs of slots get long: at 0.9 an unknown id meets 50 of them, here 8.5."""
IN_ORDER = "in_order.parquet"
"""The file with the edges of a partition, if they came in the order of (row, neighbour)."""
_PIECE = 2**15
"""Ids per look-up of a thread: their hashes stay in its cache."""

# numpy types: in numba, a Python integer with a uint64 would give float64.
_EMPTY = np.uint32(NO_NODE)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_C, _D = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_30, _27, _31, _29 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(29)


def index_bytes(num_nodes: int) -> int:
    """Return the memory of an index of that many nodes."""
    return 4 * _WORDS * _slots(num_nodes)


def _slots(num_nodes: int) -> int:
    return int(num_nodes / _FULL) + 1  # at least one is empty, or a search would not end


class Index:
    """The numbers of ids. Its pickle has the path of its file, which is read again on use.

    Args:
        path: Its file.
        num_nodes: Number of its ids, fewer than 2**32 - 1.
        text: Whether ids are text, else int64.
    """

    def __init__(self, path: Path, num_nodes: int, *, text: bool) -> None:
        self._path, self._text, self.nbytes = path, text, index_bytes(num_nodes)
        self._num_nodes = num_nodes
        self._slots: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the memory."""
        return {**vars(self), "_slots": None}

    def build(self, pairs: Path) -> int:
        """Write the file from Parquet files with ids and numbers.

        Returns:
            Number of ids that occur twice, or are not distinguishable. Above 0, the index is
            unusable.
        """
        if (rows := self._numbers_of_rows(pairs)) is not None:
            write_numbers(self._path, rows)
            return 0
        # Empty slots have no special check, but a number that no node has.
        slots, alike = np.full(self.nbytes // 4, NO_NODE, np.uint32), 0
        for batch in _batches(pairs):
            checks, homes = self._keys(batch.column("id"))
            numbers = batch.column("node").to_numpy().astype(np.uint32, copy=False)
            alike += _insert(checks, homes, numbers, slots)
        write_numbers(self._path, slots)
        return alike

    def _numbers_of_rows(self, pairs: Path) -> Array | None:
        """Return the number of each row if ids are those of the rows, from 0 on; else None.

        4 bytes per node, in place of 16, and no search: tables of databases often count so.
        """
        numbers, row = np.empty(0 if self._text else self._num_nodes, np.uint32), 0
        for batch in () if self._text else _batches(pairs):
            end = row + len(batch)
            if not np.array_equal(batch.column("id").to_numpy(), np.arange(row, end)):
                return None
            numbers[row:end], row = batch.column("node").to_numpy(), end
        return None if self._text else numbers

    def _loaded(self) -> Array:
        # Read into memory, not mapped: access is random, and this memory is accounted for.
        if self._slots is None:
            self._slots = np.fromfile(self._path, np.uint32)
        return self._slots

    def release(self) -> None:
        """Free the memory; the file is read again on the next use."""
        self._slots = None

    def find(self, ids: Any, pool: Executor) -> Array:
        """Return ``[len(ids)]`` uint32, numbers of an Arrow array of ids, or `NO_NODE`."""
        slots, numbers = self._loaded(), np.empty(len(ids), np.uint32)

        def piece(start: int) -> None:
            end = min(start + _PIECE, len(ids))
            if len(slots) == self._num_nodes:  # numbers of rows
                _find_rows(_integers(ids.slice(start, end - start)), slots, numbers[start:end])
                return
            _find(*self._keys(ids.slice(start, end - start)), slots, numbers[start:end])

        # Compiled code releases the interpreter's lock, so threads help. `list` raises the errors
        # of threads.
        list(pool.map(piece, range(0, len(ids), _PIECE)))
        # A null was looked up as 0, or as an empty text, which may be a node.
        if ids.null_count:
            numbers[ids.is_null().to_numpy(zero_copy_only=False)] = NO_NODE
        return numbers

    def _keys(self, ids: Any) -> tuple[Array, Array]:
        """Return ``[len(ids)]`` uint64 checks, and ``[len(ids)]`` uint64 for home slots."""
        checks, homes = np.empty(len(ids), np.uint64), np.empty(len(ids), np.uint64)
        if self._text:
            _, offsets, data = ids.buffers()
            # Arrow's own buffers: no str is created. A slice has the buffers of the whole array.
            ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
            _text_keys(ends, np.frombuffer(data or b"", np.uint8), checks, homes)
        else:
            _integer_keys(_integers(ids), checks, homes)
        return checks, homes


def _batches(pairs: Path) -> Iterator[Any]:
    # By number, as the files of the table are: rows are counted over them.
    for path in sorted(pairs.glob("*.parquet"), key=lambda path: int(path.stem)):
        yield from pq.ParquetFile(path).iter_batches(
            ResumableJob.sizes.table_rows, use_threads=False
        )


def _integers(ids: Any) -> Array:
    filled = ids.fill_null(0) if ids.null_count else ids
    return cast("Array", filled.cast(pa.int64()).to_numpy().view(np.uint64))


_compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)


@_compiled
def _mixed(z: Any) -> Any:
    """Finalizer of SplitMix64: see `random_owner`."""
    z = (z ^ (z >> _30)) * _A
    z = (z ^ (z >> _27)) * _B
    return z ^ (z >> _31)


@_compiled
def _integer_keys(ids: Any, checks: Any, homes: Any) -> Any:
    for i in range(ids.shape[0]):
        checks[i] = ids[i]
        homes[i] = _mixed(ids[i] + _C)  # else consecutive ids would make long runs


@_compiled
def _text_keys(ends: Any, data: Any, checks: Any, homes: Any) -> Any:
    """Hash each text twice, eight bytes at a time; its length goes in first."""
    for i in range(ends.shape[0] - 1):
        at, end = ends[i], ends[i + 1]
        check, home = np.uint64(end - at) * _C, np.uint64(end - at) + _D
        while at < end:
            word = np.uint64(0)
            for k in range(min(8, end - at)):
                word |= np.uint64(data[at + k]) << np.uint64(8 * k)
            check = (check ^ word) * _A
            check ^= check >> _HALF
            home = (home + word) * _D
            home ^= home >> _29
            at += 8
        checks[i], homes[i] = _mixed(check), _mixed(home)


@_compiled
def _home(bits: Any, count: Any) -> Any:
    # Lemire's multiplication instead of a division. Past 2**32 slots (3.2 billion nodes) the
    # product wraps: homes are still slots, but crowd in the first 2**32.
    return np.int64(((bits >> _HALF) * np.uint64(count)) >> _HALF)


@_compiled
def _find(checks: Any, homes: Any, slots: Any, numbers: Any) -> Any:
    count = slots.shape[0] // _WORDS
    for i in range(checks.shape[0]):
        low, high = np.uint32(checks[i] & _LOW), np.uint32(checks[i] >> _HALF)
        at = _home(homes[i], count)
        while True:
            number = slots[_WORDS * at + 2]
            if number == _EMPTY:
                break
            if slots[_WORDS * at] == low and slots[_WORDS * at + 1] == high:
                break
            at += 1
            if at == count:
                at = 0
        numbers[i] = number


@_compiled
def _find_rows(rows: Any, of_rows: Any, numbers: Any) -> Any:
    for i in range(rows.shape[0]):
        # unsigned: a negative id is past the end, too
        known = rows[i] < np.uint64(of_rows.shape[0])
        numbers[i] = of_rows[np.int64(rows[i])] if known else _EMPTY


@_compiled
def _insert(checks: Any, homes: Any, numbers: Any, slots: Any) -> Any:
    """Return the number of ids that were already there."""
    count = slots.shape[0] // _WORDS
    alike = 0
    for i in range(checks.shape[0]):
        low, high = np.uint32(checks[i] & _LOW), np.uint32(checks[i] >> _HALF)
        # The second of two equal ids is left out: a table with any is not used.
        at = _home(homes[i], count)
        while slots[_WORDS * at + 2] != _EMPTY:
            if slots[_WORDS * at] == low and slots[_WORDS * at + 1] == high:
                alike += 1
                break
            at += 1
            if at == count:
                at = 0
        if slots[_WORDS * at + 2] == _EMPTY:
            slots[_WORDS * at], slots[_WORDS * at + 1] = low, high
            slots[_WORDS * at + 2] = numbers[i]
    return alike


# --- edges, mapped by the index -------------------------------------------------------------------
#
# Read once, in batches, and written by partition. The engine reads the table, casts the columns
# that accompany edges, and uses all threads that it may.

_BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of edges per look-up, with their other columns; several such batches are in memory."""


def look_up_edges(
    job: ResumableJob,
    indexes: tuple[Index, Index],
    bounds: Array,
    draft: Path,
    query: str,
    *,
    extra_bytes: int,
    filesystem: Any = None,
) -> list[int]:
    """Write edges by partition into ``draft``, with numbers instead of ids.

    Args:
        job: The run.
        indexes: Of the end that groups edges, and of the other one.
        bounds: ``[num_partitions]`` int64, one past the last number of each partition.
        draft: The directory.
        query: SQL for the edges: the ids of both ends, and the other columns.
        extra_bytes: Bytes of the other columns per edge.
        filesystem: The file system of the table, if it is not on disk.

    Returns:
        Edges by partition, with the dangling ones last.
    """
    # 16: the ids of both ends; texts take more, and the limit is not strict.
    rows = min(job.sizes.looked_up_rows, max(1024, _BATCH_BYTES // (extra_bytes + 16)))
    # A set: both ends of an edge may be of one type.
    held = sum(index.nbytes for index in set(indexes))
    with (
        # The pool ends before the engine does, and the writer before both: it writes its remaining
        # rows when all batches have come.
        job.engine(ordered=True, beside=held) as engine,
        ThreadPoolExecutor(job.threads) as pool,
        PartWriter(draft, len(bounds)) as writer,
    ):
        if filesystem is not None:
            engine.register_filesystem(filesystem)
        for batch in engine.sql(query).to_arrow_reader(rows):
            writer.add(*_mapped(batch, indexes, bounds, pool))
    return [*writer.counts[:-1].tolist(), int(writer.counts[-1])]


def _mapped(
    batch: Any, indexes: tuple[Index, Index], bounds: Array, pool: Executor
) -> tuple[Any, Array]:
    """Return a batch with numbers, and each row's partition; one past the last: no owner."""
    row, neighbor = (index.find(batch.column(i), pool) for i, index in enumerate(indexes))
    # `NO_NODE` is past all bounds. uint16: there are 1,024 partitions at most.
    parts = np.searchsorted(bounds, row, "right").astype(np.uint16)
    parts[(row == NO_NODE) | (neighbor == NO_NODE)] = len(bounds)
    columns = [pa.array(row), pa.array(neighbor), *batch.columns[2:]]
    names = ["row", "neighbor", *batch.schema.names[2:]]
    return pa.RecordBatch.from_arrays(columns, names), parts


class PartWriter:
    """Writes Parquet files by partition.

    Args:
        folder: The parent directory: a partition's own is created with its first row.
        count: Partitions.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._nbytes = folder, 0
        self._waiting: list[list[Any]] = [[] for _ in range(count)]
        self._files: dict[int, Any] = {}
        self._last: dict[int, int] = {}
        self._mixed: set[int] = set()
        self.counts = np.zeros(count + 1, np.int64)

    def __enter__(self) -> "PartWriter":
        allow_files(len(self._waiting))
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if exception == (None, None, None):
                self._write()
        finally:
            for file in self._files.values():
                file.close()
        for k in self._last.keys() - self._mixed if exception == (None, None, None) else ():
            folder = self._folder / f"part={k}"
            (folder / "0.parquet").rename(folder / IN_ORDER)

    def add(self, batch: Any, parts: Sequence[int] | Array) -> None:
        """Take rows in; those of the partition after the last are only counted."""
        # One `take` for all partitions, and slices of it: a filter per partition would read the
        # batch once for each. Stable: the sort orders edges later, but files are then the same in
        # each run.
        counts = np.bincount(parts, minlength=len(self.counts))
        if counts.max(initial=0) == len(batch):  # all of one partition: in order as they are
            ordered = batch
        else:
            ordered = batch.take(pa.array(np.argsort(parts, kind="stable")))
        starts = np.cumsum(counts) - counts
        for k, waiting in enumerate(self._waiting):
            if counts[k]:
                waiting.append(ordered.slice(starts[k], counts[k]))
                self._note_order(k, waiting[-1])
        self.counts += counts
        # All partitions are written together when there are enough rows, so that row groups are
        # larger than a batch's share of a partition.
        self._nbytes += ordered.nbytes
        if self._nbytes > ResumableJob.sizes.waiting_bytes:
            self._write()

    def _note_order(self, k: int, edges: Any) -> None:
        """Note whether the edges of a partition come in the order in which they are stored."""
        if k in self._mixed or edges.schema.names[:2] != ["row", "neighbor"]:
            return
        row, neighbor = (edges.column(i).to_numpy().astype(np.uint64) for i in range(2))
        keys = (row << _HALF) | neighbor
        if (keys[1:] < keys[:-1]).any() or int(keys[0]) < self._last.get(k, 0):
            self._mixed.add(k)
        self._last[k] = int(keys[-1])

    def _write(self) -> None:
        for k, waiting in enumerate(self._waiting):
            if waiting:
                self._file(k, waiting[0].schema).write_table(pa.Table.from_batches(waiting))
                waiting.clear()
        self._nbytes = 0

    def _file(self, k: int, schema: Any) -> Any:
        if k not in self._files:
            folder = self._folder / f"part={k}"
            folder.mkdir()
            # Read once, whole: neither a dictionary nor statistics would help.
            self._files[k] = pq.ParquetWriter(
                folder / "0.parquet", schema, use_dictionary=False, write_statistics=False
            )
        return self._files[k]
