"""Edges mapped by look-ups in memory: read once, in batches, and written by partition.

The engine reads the table, casts what travels with edges, and uses as many threads as it may; ids
are looked up in `Index`.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.memory.segments import Array
from gigl_loader.tables._index import NO_NODE, Index
from gigl_loader.tables._job import Job, allow_files

_BATCH_BYTES = 16 * 1024 * 1024
"""Of edges that are looked up at a time, with what travels with them; several are in memory."""
_BATCH_ROWS = 2**18
"""The most, where nothing travels: pieces of it for each thread, and batches of 4 MB."""
_BUFFER_BYTES = 32 * 1024 * 1024
"""Edges that wait until they are written, of all partitions together."""


def look_up_edges(
    job: Job, indexes: tuple[Index, Index], bounds: Array, draft: Path, query: str, *,
    extra_bytes: int, filesystem: Any = None,
) -> list[int]:  # fmt: skip
    """Write edges by partition into ``draft``, with numbers in place of ids.

    Args:
        job: The run.
        indexes: Of the end that edges are grouped by, and of the other one.
        bounds: ``[num_partitions]`` int64, where the numbers of each partition end.
        draft: The directory.
        query: SQL for the edges: the ids of both ends, and what travels with them.
        extra_bytes: Of what travels with an edge.
        filesystem: Where the table is, if it is on no disk.

    Returns:
        Edges by partition, and the dangling ones last.
    """
    # 16: the ids of both ends; of texts it is more, and the limit is not sharp.
    rows = min(_BATCH_ROWS, max(1024, _BATCH_BYTES // (extra_bytes + 16)))
    # A set: both ends of an edge may be of one type.
    held = sum(index.nbytes for index in set(indexes))
    with (
        # The pool ends before the engine does, and the writer before both: what it still holds is
        # written when all batches have come.
        job.engine(beside=held) as engine,
        ThreadPoolExecutor(job.threads) as pool,
        _PartWriter(draft, len(bounds)) as writer,
    ):
        if filesystem is not None:
            engine.register_filesystem(filesystem)
        for batch in engine.sql(query).to_arrow_reader(rows):
            writer.add(*_mapped(batch, indexes, bounds, pool))
    return [*writer.counts[:-1].tolist(), int(writer.counts[-1])]


def _mapped(
    batch: Any, indexes: tuple[Index, Index], bounds: Array, pool: Executor
) -> tuple[Any, Array]:
    """Return a batch with numbers, and the partition of each row; one past the last: none."""
    row, neighbor = (index.find(batch.column(i), pool) for i, index in enumerate(indexes))
    # `NO_NODE` is past all bounds. uint16: partitions are 1,024 at most.
    parts = np.searchsorted(bounds, row, "right").astype(np.uint16)
    parts[(row == NO_NODE) | (neighbor == NO_NODE)] = len(bounds)
    columns = [pa.array(row), pa.array(neighbor), *batch.columns[2:]]
    names = ["row", "neighbor", *batch.schema.names[2:]]
    return pa.RecordBatch.from_arrays(columns, names), parts


class _PartWriter:
    """Writes Parquet files by partition.

    Args:
        folder: Where: that of a partition is made with its first row.
        count: Partitions.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._nbytes = folder, 0
        self._waiting: list[list[Any]] = [[] for _ in range(count)]
        self._files: dict[int, Any] = {}
        self.counts = np.zeros(count + 1, np.int64)

    def __enter__(self) -> "_PartWriter":
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

    def add(self, batch: Any, parts: Sequence[int] | Array) -> None:
        """Take rows in; those of the partition after the last are counted only."""
        # One `take` for all partitions, and slices of it: a filter for each partition would read
        # the batch as often as there are partitions. Stable: not needed, the sort puts edges in
        # order, but then files are the same in each run.
        counts = np.bincount(parts, minlength=len(self.counts))
        ordered = batch.take(pa.array(np.argsort(parts, kind="stable")))
        starts = np.cumsum(counts) - counts
        for k, waiting in enumerate(self._waiting):
            if counts[k]:
                waiting.append(ordered.slice(starts[k], counts[k]))
        self.counts += counts
        # All partitions are written at once when there is enough, so that row groups do not become
        # as small as a batch's share of a partition.
        self._nbytes += ordered.nbytes
        if self._nbytes > _BUFFER_BYTES:
            self._write()

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
            # Read once, whole: neither a dictionary nor statistics would be of use.
            self._files[k] = pq.ParquetWriter(
                folder / "0.parquet", schema, use_dictionary=False, write_statistics=False
            )
        return self._files[k]
