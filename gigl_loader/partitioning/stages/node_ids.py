"""Nodes: numbers for ids, and rows of features, labels and splits at the number's position.

Ids of the dataset count partition by partition, and within a partition in the order of the table.
So the position of a row in every file of its partition is known without a join or a sort, and a
table file can be repeated without touching the output of others.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gigl_loader.dataset.format.mapped import PARQUET, TABLE_COLUMN, Part
from gigl_loader.dataset.format.mapped_writer import PartFiles
from gigl_loader.dataset.schema import NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.id_index import NO_NODE, Index
from gigl_loader.partitioning.tables.engine_sql import rows_of, to_read
from gigl_loader.partitioning.tables.spec import NodeTable
from gigl_loader.partitioning.tables.table_files import Table, TableFile, id_kind, ids_in
from gigl_loader.runtime.memory.segments import Array

_UINT32_LIMIT = 2**32


@dataclass(frozen=True)
class Numbering:
    """The number of each row of a table of nodes."""

    owners: Array
    """``[rows]`` uint16, the partition of each row."""
    ends: Array
    """``[num_partitions]`` int64, one past the last number of each partition."""
    before: list[Array]
    """By file: ``[num_partitions]`` int64, rows of earlier files in each partition."""

    @classmethod
    def of(cls, table: Table, owners: Array, num_partitions: int) -> "Numbering":
        """Return the numbering that follows from the owner of each row."""
        counts = np.zeros(num_partitions, np.int64)
        before = []
        for file in table.files:
            before.append(counts.copy())
            for start in range(file.first_row, file.first_row + file.num_rows, 2**22):
                end = min(start + 2**22, file.first_row + file.num_rows)
                # In pieces: owners may be mapped from a file, and bincount converts them to int64.
                counts += np.bincount(owners[start:end], minlength=num_partitions)
        return cls(owners, np.cumsum(counts), before)

    @property
    def starts(self) -> Array:
        """``[num_partitions]`` int64, the first number of each partition."""
        return np.concatenate([[0], self.ends[:-1]]).astype(np.int64)

    @property
    def num_nodes(self) -> int:
        """Rows of the table."""
        return int(self.ends[-1])


class Placer:
    """Walks through a table file and gives the places of each batch's rows."""

    def __init__(self, numbering: Numbering, table: Table, file: TableFile) -> None:
        self._numbering, self._first = numbering, file.first_row
        # The start of this file's rows in each partition is known before any file is read, so files
        # can be processed in any order, and repeated. A copy: the walk moves it.
        self.taken = numbering.before[table.files.index(file)].copy()

    def next(self, row: int, count: int) -> tuple[Array, list[tuple[int, int, Array]]]:
        """Return the position of the rows of a batch.

        Args:
            row: The first row of the batch in its file.
            count: Number of its rows; batches come in order.

        Returns:
            (``[count]`` int64 numbers, list of (partition, first row in it, positions in the
            batch))
        """
        start = self._first + row
        owners = np.asarray(self._numbering.owners[start : start + count])
        # Stable: within a partition, numbers follow the order of the table.
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=len(self.taken))
        starts = np.cumsum(counts) - counts
        numbers = np.empty(count, np.int64)
        within = np.arange(count) - np.repeat(starts, counts)  # among the batch's of its partition
        numbers[order] = within
        numbers += (self._numbering.starts + self.taken)[owners]
        pieces = [
            (int(k), int(self.taken[k]), order[starts[k] : starts[k] + counts[k]])
            for k in np.flatnonzero(counts)
        ]
        self.taken += counts
        return numbers, pieces


# --- ids ------------------------------------------------------------------------------------------


def write_dictionary(
    job: ResumableJob,
    table: Table,
    spec: NodeTable,
    node_type: NodeType,
    numbering: Numbering,
    name: str,
    shared: Part | None,
) -> Path:
    """Write Parquet files with the number of each id; return their directory.

    Args:
        job: The run.
        table: Of the nodes.
        spec: Its columns.
        node_type: Of the nodes.
        numbering: Of the nodes.
        name: Name of the directory.
        shared: Root for the files from numbers back to ids. None: they are not needed.
    """
    folder = job.folder / name / node_type
    folder.mkdir(parents=True, exist_ok=True)
    # Current end of the texts of each partition. Lengths are unknown before they are read, so files
    # go one after the other here, and each step notes the start of the next one.
    text = [0] * len(numbering.ends)
    with job.work_on(f"{name} {node_type}", table.num_rows) as progress:
        for i, file in enumerate(table.files):

            def write(file: TableFile = file, i: int = i, text: list[int] = text) -> list[int]:
                path = folder / f"{i}.parquet"
                with _Ids(shared, node_type, numbering, text) as writer:
                    _write_pairs(table, file, spec.id, numbering, path, writer)
                return writer.text_ends

            text = job.step(f"{name}/{node_type}/{i}", write)
            progress(file.num_rows)
    return folder


def arrow_type_of_numbers(num_nodes: int) -> Any:
    """Return the Arrow type for numbers of nodes."""
    # uint32 halves these files. Fewer than 2**32 numbers leave its last value to `NO_NODE`.
    return pa.uint32() if num_nodes < _UINT32_LIMIT else pa.int64()


def _write_pairs(
    table: Table, file: TableFile, column: str, numbering: Numbering, path: Path, writer: "_Ids"
) -> None:
    placer = Placer(numbering, table, file)
    kind = pa.int64() if id_kind(table, column) == "int" else pa.string()
    numbers_kind = arrow_type_of_numbers(numbering.num_nodes)
    schema = pa.schema([("id", kind), ("node", numbers_kind)])
    # Each id occurs once, so a dictionary of values would only take time and memory.
    with pq.ParquetWriter(path, schema, use_dictionary=False) as parquet:
        for row, batch in table.batches(file, [column]):
            ids = ids_in(table, file, column, row, batch.column(0))
            numbers, pieces = placer.next(row, len(ids))
            node = pa.array(numbers).cast(numbers_kind)
            parquet.write_batch(pa.record_batch([ids, node], schema=schema))
            writer.add(ids, pieces)


class _Ids(ExitStack):
    """Writes the ids of nodes in the order of their numbers: see `OriginalIds`."""

    def __init__(
        self, shared: Part | None, node_type: NodeType, numbering: Numbering, text: list[int]
    ) -> None:
        super().__init__()
        self._shared, self._node_type, self._count = shared, node_type, len(numbering.ends)
        self._files: dict[str, PartFiles] = {}
        self.text_ends = list(text)

    def _write(self, what: str, partition: int, offset: int, array: Array) -> None:
        if what not in self._files:  # integer ids have no texts
            assert self._shared is not None
            names = [f"ids/{self._node_type}/part{k}.{what}" for k in range(self._count)]
            paths = [self._shared.path(name) for name in names]
            self._files[what] = self.enter_context(PartFiles(paths))
        self._files[what].write(partition, offset, array)

    def add(self, ids: Any, pieces: list[tuple[int, int, Array]]) -> None:
        if self._shared is None:
            return
        for partition, first, positions in pieces:
            mine = ids.take(pa.array(positions))
            if pa.types.is_integer(ids.type):
                self._write("values", partition, 8 * first, mine.to_numpy())
                continue
            # Arrow's own layout: offsets into one buffer of bytes, copied without a str each.
            # int64, since the ends on disk cover the whole partition.
            _, offsets, data = mine.buffers()
            ends = np.frombuffer(offsets, np.int32)[mine.offset : mine.offset + len(mine) + 1]
            content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
            start = self.text_ends[partition]
            self._write("text", partition, start, content)
            self._write("ends", partition, 8 * first, start + (ends[1:] - ends[0]).astype(np.int64))
            self.text_ends[partition] += len(content)


@dataclass(frozen=True)
class Dictionary:
    """The numbers of ids: on disk, and in memory if they fit."""

    pairs: Path
    """A directory of Parquet files with ids and numbers."""
    index: Index | None
    """These numbers in memory, if they fit into half of it; else None."""


def open_dictionary(
    job: ResumableJob, table: Table, column: str, node_type: NodeType, pairs: Path
) -> Dictionary:
    """Return the numbers of a table's ids, each of which occurs once.

    Raises:
        ConfigError: An id occurs twice; the message names the first ones and their rows.
    """
    text = id_kind(table, column) == "text"
    index = make_index(job, node_type, pairs, table.num_rows, text=text)
    if index is None:
        check_unique(job, table, column, node_type, pairs)
    return Dictionary(pairs, index)


def make_index(
    job: ResumableJob, node_type: NodeType, pairs: Path, num_nodes: int, *, text: bool
) -> Index | None:
    """Build the index of some ids; None: no room, or ids are not distinguishable."""
    name = f"index/{pairs.parent.name}/{node_type}"
    index = Index(job.folder / f"{name}.bin", num_nodes, text=text)
    # Checked in each call, not noted: a resumed run may have another memory limit.
    if num_nodes >= NO_NODE or not fits(job, {index}):
        return None
    # Not distinguishable: the same id twice, which `check_unique` names, or two ids whose checks
    # collide, which only a join can separate.
    return None if job.step(name, lambda: index.build(pairs)) else index


def fits(job: ResumableJob, indexes: set[Index]) -> bool:
    """Return whether indexes leave enough memory to sort the looked-up edges meanwhile."""
    # a set: both ends of an edge may have one type, whose index exists once
    most = job.sizes.index_share * job.usable_bytes
    return sum(index.nbytes for index in indexes) <= most


def check_unique(
    job: ResumableJob, table: Table, column: str, node_type: NodeType, folder: Path
) -> None:
    """Check that no id occurs twice.

    Raises:
        ConfigError: One does; the message names the first ones and their rows.
    """

    def check() -> None:
        files = rows_of(to_read(folder, "/*.parquet"))
        # Counted first, and named only if there are any: grouping by ids takes far more memory than
        # counting them.
        with job.engine() as engine:
            twice = engine.execute(f"SELECT count(*) - count(DISTINCT id) FROM {files}").fetchone()
            if not twice or not twice[0]:
                return
            rows = engine.execute(
                f"SELECT id FROM {files} GROUP BY id HAVING count(*) > 1 ORDER BY id LIMIT 5"
            ).fetchall()
        _refuse_twice(table, column, [row[0] for row in rows], int(twice[0]))

    job.step(f"unique/{node_type}", check)


def _refuse_twice(table: Table, column: str, ids: list[Any], count: int) -> None:
    positions = []
    # The user's table is read again: the pairs have no files and rows, which would enlarge them.
    for file in table.files:
        for row, batch in table.batches(file, [column]):
            values = ids_in(table, file, column, row, batch.column(0))
            for at in np.flatnonzero(pc.is_in(values, pa.array(ids)).to_numpy(False)):
                value = values[int(at)].as_py()
                positions.append(f"{value!r} in {file.name}, {file.describe_row(row + int(at))}")
    raise ConfigError(
        f"{table.where}: column {column!r} has {count} id(s) more than once: "
        f"{'; '.join(sorted(positions)[:6])}; an id may name one node"
    )


def finish_ids(
    job: ResumableJob,
    shared: Part,
    node_type: NodeType,
    numbering: Numbering,
    *,
    text: bool,
    column: str,
) -> None:
    """Enter the arrays of ids in the manifest, and write them as Parquet, ascending by number.

    Args:
        job: The run.
        shared: The root of the directory.
        node_type: The type of the nodes.
        numbering: Their numbers.
        text: Whether ids are text.
        column: The column of the ids in the table of the nodes.
    """
    starts = numbering.starts
    for k, end in enumerate(numbering.ends):
        count, name = int(end - starts[k]), f"ids/{node_type}/part{k}"
        if not text:
            shared.note_array(f"{name}.values", "int64", (count,))
            continue
        shared.note_array(f"{name}.ends", "int64", (count,))
        # From the file, not from this run's memory: an earlier run may have written it.
        path = shared.path(f"{name}.text")
        size = path.stat().st_size if path.exists() else 0
        shared.note_array(f"{name}.text", "uint8", (size,))

    def write() -> None:
        path = shared.folder / PARQUET.format(node_type=node_type)
        kind = pa.string() if text else pa.int64()
        ids_field = pa.field("id", kind, metadata={TABLE_COLUMN: column.encode()})
        schema = pa.schema([ids_field, ("node", pa.int64())])
        with pq.ParquetWriter(path, schema, use_dictionary=False) as parquet:
            for ids, first in _ids_in_order(shared, node_type, numbering, text):
                nodes = pa.array(np.arange(first, first + len(ids)))
                parquet.write_batch(pa.record_batch([ids, nodes], schema=schema))

    job.step(f"ids/{node_type}", write)
    shared.note_file(PARQUET.format(node_type=node_type))


def _ids_in_order(
    shared: Part, node_type: NodeType, numbering: Numbering, text: bool
) -> Iterator[tuple[Any, int]]:
    first = 0
    for k, end in enumerate(numbering.ends):
        done = 0  # bytes of text
        with ExitStack() as stack:
            name = f"ids/{node_type}/part{k}"
            numbers = stack.enter_context(
                shared.path(f"{name}.{'ends' if text else 'values'}").open("rb")
            )
            content = stack.enter_context(shared.path(f"{name}.text").open("rb")) if text else None
            while first < end:
                values = np.fromfile(
                    numbers, np.int64, min(ResumableJob.sizes.table_rows, int(end) - first)
                )
                ids = pa.array(values)
                if content is not None:
                    # Ends count from the partition's first byte, offsets from the batch's first
                    # byte.
                    data = pa.py_buffer(content.read(int(values[-1]) - done))
                    offsets = np.concatenate([[0], values - done]).astype(np.int32)
                    ids = pa.Array.from_buffers(
                        pa.string(), len(values), [None, pa.py_buffer(offsets), data]
                    )
                    done = int(values[-1])
                yield ids, first
                first += len(values)
