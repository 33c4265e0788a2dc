"""Rows of nodes by degree: the position of each row, and the way of the rows to their places.

::

    sorted edges --count--> degrees --rank--> lookup: the position of each node's row
    tables, in their order --deal--> buckets of neighbouring positions --place--> rows, in their
    order

Ids do not change, so edges, splits and dictionaries do not depend on this. Memory has a limit for
any size of graph: degrees are counted for as many nodes at a time as fit, their ranks follow from
the number of nodes of each degree (E edges have at most sqrt(2 E) different degrees), and rows are
dealt to buckets on disk, each of which fits.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from gigl_loader.dataset.format.mapped import LOOKUPS, Part
from gigl_loader.dataset.format.mapped_writer import (
    PartFiles,
    allow_files,
    index_type,
    new_file,
    write_npy,
    write_numbers,
)
from gigl_loader.dataset.schema import NodeType
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.node_ids import Numbering
from gigl_loader.runtime.memory.segments import Array

_COUNT_SHARE, _BUCKET_SHARE, _DEAL_SHARE = 2, 4, 8
"""Memory divided by this is for degrees, for a bucket, and for rows being dealt: a bucket is in
memory twice when it is written, dealt rows when they are sorted."""
_UINT32_LIMIT = 2**32
_CODEC = "lz4"
"""Limit of buckets: columns that Parquet compresses well would take many times the table."""

_compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)


# --- degrees --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EdgeFile:
    """Neighbours of the sorted edges of one type and partition."""

    path: Path
    dtype: str
    count: int


@dataclass(frozen=True)
class Degrees:
    """Edges that lead to each node of a type as a neighbour, on disk: a file per ``span`` nodes."""

    paths: list[Path]
    dtype: Any
    span: int

    def chunks(self, first: int, end: int) -> Iterator[Array]:
        """Yield the degrees of a range of nodes, in order."""
        # A chunk ends where its file ends, so a range may begin and end in any of them.
        while first < end:
            file, at = divmod(first, self.span)
            count = min(ResumableJob.sizes.numbers, self.span - at, end - first)
            yield np.fromfile(self.paths[file], self.dtype, count, offset=at * self.dtype.itemsize)
            first += count


def count_degrees(
    job: ResumableJob, node_type: NodeType, num_nodes: int, edges: list[EdgeFile]
) -> Degrees:
    """Count edges by neighbour, in as many passes as the memory limit needs.

    Args:
        job: The run.
        node_type: Of the neighbours.
        num_nodes: Their number.
        edges: All sampled edges that lead to nodes of the type.
    """
    total = sum(file.count for file in edges)
    # No degree is above the number of edges.
    dtype = np.dtype(np.uint32 if total < _UINT32_LIMIT else np.uint64)
    span = max(job.sizes.numbers, job.usable_bytes // _COUNT_SHARE // dtype.itemsize)
    firsts = range(0, num_nodes, span)
    groups = _groups(edges, job.sizes.edges_a_node * num_nodes)
    name = f"degrees/{node_type}/{span}"  # a resumed run may have another memory limit
    (job.folder / name).mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    with job.work_on(f"degrees {node_type}", total * len(firsts), "edges") as progress:
        for first in firsts:
            count = min(span, num_nodes - first)
            path: Path | None = None
            for number, group in enumerate(groups):
                step, before = f"{name}/{first}.{number}", path
                path = job.folder / f"{step}.bin"
                job.step(step, partial(_count, before, path, first, count, dtype, group))
                # After the note of the step, which will not read it again; gone if this run was
                # resumed.
                if before is not None:
                    before.unlink(missing_ok=True)
                progress(sum(file.count for file in group))
            paths += [] if path is None else [path]
    return Degrees(paths, dtype, span)


def _groups(edges: list[EdgeFile], least: int) -> list[list[EdgeFile]]:
    """Return the files in groups of at least ``least`` edges, except the last; at least one."""
    groups: list[list[EdgeFile]] = [[]]
    for file in edges:
        if sum(earlier.count for earlier in groups[-1]) >= max(least, 1):
            groups.append([])
        groups[-1].append(file)
    return groups


def _count(
    before: Path | None, path: Path, first: int, count: int, dtype: Any, edges: list[EdgeFile]
) -> None:
    """Write the degrees of ``count`` nodes from ``first`` on: ``before`` plus new edges."""
    chunk = ResumableJob.sizes.numbers
    degrees = np.zeros(count, dtype) if before is None else np.fromfile(before, dtype, count)
    for edge_file in edges:
        with edge_file.path.open("rb") as file:
            while (neighbors := np.fromfile(file, edge_file.dtype, chunk)).size:
                _add(neighbors, first, degrees)
    # Written whole or not at all: `before` is removed as soon as this step is noted.
    draft = path.with_name(f"{path.name}.tmp")
    write_numbers(draft, degrees)
    os.replace(draft, path)


@_compiled
def _add(neighbors: Any, first: Any, degrees: Any) -> Any:
    # One loop, not `np.add.at` or `bincount`, which make arrays as long as edges or degrees.
    for i in range(neighbors.shape[0]):
        at = neighbors[i] - first
        if 0 <= at < degrees.shape[0]:
            degrees[at] += 1


# --- positions
# ---------------------------------------------------------------------------------------


class Positions:
    """The position of each row of a node type in its partition: the highest degree first.

    Args:
        job: The run.
        parts: The partitions.
        node_type: The type.
        numbering: Its nodes.
        degrees: The degrees of its nodes.
    """

    def __init__(
        self,
        job: ResumableJob,
        parts: list[Part],
        node_type: NodeType,
        numbering: Numbering,
        degrees: Degrees,
    ) -> None:
        self.job, self.parts, self.node_type, self.numbering = job, parts, node_type, numbering
        self.counts = np.diff(numbering.ends, prepend=0)
        self.name = f"{LOOKUPS}/{node_type}"
        ranges = enumerate(zip(numbering.starts.tolist(), numbering.ends.tolist(), strict=True))
        with job.work_on(f"order {node_type}", numbering.num_nodes) as progress:
            for k, (first, end) in ranges:
                make = partial(_rank, degrees, first, end, self.path(k), self.dtype(k))
                job.step(f"order/{node_type}/{k}", make)
                progress(end - first)

    def path(self, k: int) -> Path:
        """Return the file with the positions of a partition's rows."""
        return self.parts[k].path(self.name)

    def dtype(self, k: int) -> "np.dtype[Any]":
        """Return the type of its numbers."""
        return index_type(int(self.counts[k]))

    def note(self, k: int, where: str) -> None:
        """Enter the index of the rows at ``where`` in the manifest of a partition."""
        self.parts[k].note_array(self.name, self.dtype(k).name, (int(self.counts[k]),))
        self.parts[k].ranges[where]["lookup"] = 1


def _rank(degrees: Degrees, first: int, end: int, path: Path, dtype: Any) -> None:
    """Write the positions of a range of nodes; with equal degrees, the lower id comes first."""
    # First pass: the number of nodes of each degree. Both arrays have one entry per different
    # degree.
    known, counts = np.empty(0, degrees.dtype), np.empty(0, np.int64)
    for chunk in degrees.chunks(first, end):
        values, chunk_counts = np.unique(chunk, return_counts=True)
        both = np.union1d(known, values)
        total = np.zeros(both.size, np.int64)
        total[np.searchsorted(both, known)] += counts
        total[np.searchsorted(both, values)] += chunk_counts
        known, counts = both, total
    # First place of each degree: the number of nodes of higher degrees, which end the array.
    free = counts[::-1].cumsum()[::-1] - counts
    # Second pass, in the order of ids.
    with new_file(path) as file:
        for chunk in degrees.chunks(first, end):
            positions = np.empty(chunk.size, dtype)
            _take(chunk, known, free, positions)
            file.write(positions.data)


@_compiled
def _take(degrees: Any, known: Any, free: Any, positions: Any) -> Any:
    """Give each node the next free position of its degree."""
    for i in range(degrees.shape[0]):
        at = np.searchsorted(known, degrees[i])
        positions[i] = free[at]
        free[at] += 1


# --- rows -----------------------------------------------------------------------------------------


class Buckets:
    """Rows on their way to their places, on disk.

    A row is a record: its place in its bucket, 4 bytes, and the bytes of each of its matrices. The
    rows of one table file are in one file, in slices: (bucket, rows, offset, bytes).

    Args:
        positions: The new positions of rows.
        widths: By name of a matrix, the bytes of a row.
    """

    def __init__(self, positions: Positions, widths: Mapping[str, int]) -> None:
        memory, most = positions.job.usable_bytes, positions.job.sizes.bucket_bytes
        self._positions, self.widths = positions, dict(widths)
        self.deal_bytes = min(memory // _DEAL_SHARE, most)
        record = 4 + sum(widths.values())
        self.rows = max(1, min(memory // _BUCKET_SHARE, most) // record)
        several = -(-positions.counts // self.rows)  # buckets of each partition, rounded up
        self.ends = np.cumsum(several)
        self.starts = self.ends - several
        self.count = int(self.ends[-1])
        self.name = f"{positions.node_type}/{self.rows}"  # see `count_degrees`

    def file(self, i: int) -> Path:
        """Return the path of the rows of a table file; their slices are beside it."""
        return self._positions.job.folder / "buckets" / self.name / f"{i}.bin"

    def sink(self, i: int) -> "_Dealer":
        """Return the writer for the rows of a table file."""
        return _Dealer(self, self._positions, self.file(i))

    def write_rows(self, num_files: int) -> None:
        """Write all rows to their places, bucket by bucket, once all files were dealt."""
        # A bucket is a step: it alone writes its range of positions, so buckets may run in any
        # order, and on other nodes.
        makes, positions = {}, self._positions
        files = [self.file(i) for i in range(num_files)]
        for bucket in range(self.count):
            k = int(np.searchsorted(self.ends, bucket, "right"))
            first = (bucket - int(self.starts[k])) * self.rows
            count = min(self.rows, int(positions.counts[k]) - first)
            targets = {
                positions.parts[k].path(f"{where}/values"): width
                for where, width in self.widths.items()
            }
            makes[f"position/{self.name}/{bucket}"] = partial(
                _write_bucket, files, bucket, first, count, targets
            )
        with positions.job.work_on(
            f"place {positions.node_type}", self.count, "buckets"
        ) as progress:
            for _ in positions.job.steps(makes):
                progress(1)


class _Dealer:
    """Deals the rows of a table file to buckets.

    Args:
        buckets: The buckets.
        positions: The position of each row.
        path: The file to write.
    """

    def __init__(self, buckets: Buckets, positions: Positions, path: Path) -> None:
        self._buckets, self._positions, self._path = buckets, positions, path
        self._waiting: list[tuple[Array, Array]] = []
        self._nbytes, self._slices = 0, [np.empty((0, 4), np.int64)]
        self._lookups: dict[int, Any] = {}

    def __enter__(self) -> "_Dealer":
        allow_files(len(self._positions.counts))  # a look-up for each partition
        self._file = new_file(self._path)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            # Sorted by bucket, so that a reader finds one bucket's slices without reading the
            # others; stable, so that it reads them in file order.
            if exception == (None, None, None):
                self._write()
                slices = np.concatenate(self._slices)
                order = np.argsort(slices[:, 0], kind="stable")
                write_npy(self._path.with_suffix(".npy"), slices[order])
        finally:
            for file in (self._file, *self._lookups.values()):
                file.close()

    def add(self, rows: Mapping[str, Array], pieces: list[tuple[int, int, Array]]) -> None:
        """Take a batch: by name, ``[n, width]``; and the places from `Placer`."""
        count = sum(len(positions) for _, _, positions in pieces)
        if not count:
            return
        buckets, at = np.empty(count, np.int64), np.empty((count, 1), np.uint32)
        # rows from `first` on are by ids, the order of the look-up's file; `positions` are those of
        # the batch.
        for partition, first, positions in pieces:
            places = self._look_up(partition, first, len(positions))
            bucket, at[positions, 0] = np.divmod(places, self._buckets.rows)
            buckets[positions] = bucket + self._buckets.starts[partition]
        fields = [at, *rows.values()]
        # Bytes, for any type: rows of several matrices move in one piece, and are split by the
        # widths when they are placed.
        records = np.concatenate([np.ascontiguousarray(f).view(np.uint8) for f in fields], 1)
        self._waiting.append((buckets, records))
        self._nbytes += records.nbytes
        if self._nbytes > self._buckets.deal_bytes:
            self._write()

    def _look_up(self, partition: int, first: int, count: int) -> Array:
        # Read, not mapped: a batch's rows of a partition have consecutive ids, so it is one read,
        # and pages of a mapping would count as memory of this process.
        if partition not in self._lookups:
            self._lookups[partition] = self._positions.path(partition).open("rb", buffering=0)
        file, dtype = self._lookups[partition], self._positions.dtype(partition)
        positions: Array = np.frombuffer(
            os.pread(file.fileno(), count * dtype.itemsize, first * dtype.itemsize), dtype
        )
        return positions.astype(np.int64)

    def _write(self) -> None:
        if not self._waiting:
            return
        buckets, records = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        self._waiting, self._nbytes = [], 0
        order = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=self._buckets.count)
        ends = np.cumsum(counts)
        slices = []
        for bucket in np.flatnonzero(counts).tolist():
            mine = order[ends[bucket] - counts[bucket] : ends[bucket]]
            # The rows of one bucket are copied at a time, instead of all of them.
            data = pa.compress(records[mine].data, _CODEC, asbytes=True)
            slices.append((bucket, len(mine), self._file.tell(), len(data)))
            self._file.write(data)
        self._slices.append(np.array(slices, np.int64))


def _write_bucket(
    files: list[Path], bucket: int, first: int, count: int, targets: Mapping[Path, int]
) -> None:
    """Write the rows of a bucket to their places in a partition, from ``first`` on.

    ``targets``: by file, the bytes of a row.
    """
    # Every row is written: a bucket has as many positions as rows, and each was dealt once.
    rows = np.empty((count, sum(targets.values())), np.uint8)
    for path in files:
        slices = np.load(path.with_suffix(".npy"))
        begin, end = np.searchsorted(slices[:, 0], [bucket, bucket + 1])
        with path.open("rb") as file:
            for _, number, offset, nbytes in slices[begin:end].tolist():
                file.seek(offset)
                size = number * (4 + rows.shape[1])
                data = pa.decompress(file.read(nbytes), size, _CODEC)
                records = np.frombuffer(data, np.uint8).reshape(number, -1)
                rows[np.ascontiguousarray(records[:, :4]).view(np.uint32)[:, 0]] = records[:, 4:]
    column = 0
    for path, width in targets.items():
        # Only this bucket's range: other steps write the same file at the same time.
        with PartFiles([path]) as target:
            target.write(0, first * width, rows[:, column : column + width])
        column += width
