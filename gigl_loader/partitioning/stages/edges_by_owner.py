"""Edges: ids to numbers by a join, then each partition's edges in order.

One file of the table is mapped at a time, so that a killed run repeats no more than one. It uses
look-ups in memory if the ids of nodes fit into half of it, else a join of the engine. The result is
Parquet by partition; dangling edges are counted there and written nowhere.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.format.mapped import EDGE_ROWS, ArraySpec, Part, rows_at
from gigl_loader.dataset.format.mapped_writer import index_type, new_file
from gigl_loader.dataset.partition.doubts import warn_of
from gigl_loader.dataset.schema import EdgeType, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.id_index import IN_ORDER, Index, look_up_edges
from gigl_loader.partitioning.stages.node_ids import Dictionary, fits
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name, rows_of, to_read
from gigl_loader.partitioning.tables.spec import EdgeTable, columns_of
from gigl_loader.partitioning.tables.table_files import (
    Table,
    TableFile,
    count_not_numbers,
    doubts_of_columns,
    feature_type,
    id_kind,
    in_type,
    is_list,
    matrix_in,
    number_type,
    time_type,
    width_of,
)
from gigl_loader.runtime.memory.segments import Array

_DANGLING = -1
"""The partition of edges without one; the last in a list of counts by partition."""
_SORT_BYTES = 64 * 1024 * 1024
"""Bytes of a batch from a sort."""


@dataclass(frozen=True)
class Extras:
    """Columns that accompany edges."""

    weight: str | None
    features: list[str]
    time: str | None = None
    time_sql: str = ""
    """The time as an integer, in the unit of its column: the engine has its own units."""
    dtype: Any = None
    """numpy's type of the features."""
    width: int = 0
    rows: bool = False
    """Whether edges keep their row in the table."""

    @property
    def names(self) -> list[str]:
        """Their names in intermediate files; ``pos`` is the row, to order equal edges."""
        names = [f"c{i}" for i in range(len(self.features))]
        names += ["weight"] if self.weight else []
        names += ["time"] if self.time else []
        return [*names, "pos"] if names or self.rows else []

    @property
    def nbytes(self) -> int:
        """Bytes per edge in memory."""
        # 20: pos 8, weight 4, time 8. Too many if one is missing; batches are smaller then.
        return 20 * bool(self.names) + (self.width * self.dtype.itemsize if self.features else 0)

    def select(self, first_row: int) -> str:
        """Return SQL for them, for edges from the user's table."""
        columns = [f"e.{quoted_name(column)} AS c{i}" for i, column in enumerate(self.features)]
        if self.weight:
            # Samplers draw with float32; `check_values` has checked that all fit.
            columns.append(f"CAST(e.{quoted_name(self.weight)} AS FLOAT) AS weight")
        if self.time:
            columns.append(f"CAST({self.time_sql} AS BIGINT) AS time")
        if columns or self.rows:
            # Edges with the same ends are not distinguishable: without their row in the table, the
            # order of their weights would depend on threads.
            columns.append(f"CAST(e.file_row_number + {first_row} AS BIGINT) AS pos")
        return "".join(f", {column}" for column in columns)


def read_extras(table: Table, spec: EdgeTable, *, rows: bool = False) -> Extras:
    """Return the columns of a table that accompany its edges, with checked types.

    ``rows``: also the position of an edge in the table.
    """
    columns = columns_of(spec.features)
    if spec.weight is not None:
        number_type(table, [spec.weight], "weights")
        if is_list(table.type_of(spec.weight)):
            raise ConfigError(f"{table.where}: weights are numbers, {spec.weight!r} holds lists")
    time_sql = "" if spec.time is None else _time_sql(table, spec.time)
    if not columns:
        return Extras(spec.weight, [], spec.time, time_sql, rows=rows)
    dtype = feature_type(table, number_type(table, columns, "features"), spec.feature_dtype)
    width = width_of(table, columns)
    return Extras(spec.weight, columns, spec.time, time_sql, dtype, width, rows)


def _time_sql(table: Table, column: str) -> str:
    time_type(table, column)
    kind, name = table.type_of(column), f"e.{quoted_name(column)}"
    if pa.types.is_integer(kind):
        return name
    # The engine has no function for seconds as an integer, and Parquet has no seconds either, so
    # the milliseconds there divide without a remainder.
    return f"epoch_ms({name}) // 1000" if kind.unit == "s" else f"epoch_{kind.unit}({name})"


@dataclass(frozen=True)
class EndIds:
    """The dictionaries that look up the ids of both ends of an edge type."""

    row: str
    """The column of the node that groups edges."""
    neighbor: str
    row_ids: Dictionary
    neighbor_ids: Dictionary
    bounds: Array
    """``[num_partitions]`` int64, one past the last number of each partition, for the row's
    type."""

    def indexes(self, job: ResumableJob) -> tuple[Index, Index] | None:
        """Return the indexes of both, if they fit into memory together."""
        # Each fits by itself when it is built; both at a time may not.
        row, neighbor = self.row_ids.index, self.neighbor_ids.index
        if row is None or neighbor is None or not fits(job, {row, neighbor}):
            return None
        return row, neighbor

    def release(self) -> None:
        """Free the memory of indexes."""
        for ids in (self.row_ids, self.neighbor_ids):
            if ids.index is not None:
                ids.index.release()


@dataclass
class EdgesByPartition:
    """Edges by partition, in intermediate files."""

    folder: Path
    counts: Array
    """``[num_partitions]`` int64."""
    dangling: int = 0
    files: list[Path] = field(default_factory=list)

    def add(self, counts: list[int]) -> None:
        """Count the edges of a file: by partition, with the dangling ones last."""
        self.counts += np.array(counts[:-1])
        self.dangling += counts[_DANGLING]

    def of_partition(self, k: int) -> list[str]:
        """Return the files with the edges of a partition."""
        # By name, in the order of the table's files, not in the order of completion.
        return sorted(
            str(path) for file in self.files for path in (file / f"part={k}").glob("*.parquet")
        )


def check_values(
    job: ResumableJob, table: Table, spec: EdgeTable, extras: Extras, key: str
) -> None:
    """Check weights and features row by row; warn of features that are NaN.

    Raises:
        ConfigError: A weight is missing, negative or not finite, or features are ragged.
    """

    def check(file: TableFile) -> dict[str, int]:
        counts = dict[str, int]()
        columns = [c for c in (spec.weight, spec.time, *extras.features) if c is not None]
        for row, batch in table.batches(file, columns):
            if extras.features:
                values = matrix_in(table, file, extras.features, row, batch, extras.width)
                in_type(table, file, extras.features, row, values, extras.dtype)
                count_not_numbers(counts, extras.features, values)
            if spec.time:
                times = matrix_in(table, file, [spec.time], row, batch, 1)
                in_type(table, file, [spec.time], row, times, np.dtype(np.int64))
            if spec.weight:
                values = matrix_in(table, file, [spec.weight], row, batch, 1)
                in_type(table, file, [spec.weight], row, values, np.dtype(np.float32))
                weights = values.reshape(-1)
                bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
                if bad.size:
                    table.refuse(
                        file,
                        spec.weight,
                        row + bad,
                        "must be finite and not negative",
                        weights[bad].tolist(),
                    )
        return counts

    # A separate pass before anything is written: the engine, which reads these columns next, would
    # produce infinities, or stop with an error that names no row.
    if extras.names:
        counts = [
            job.step(f"check/{key}/{i}", partial(check, f)) for i, f in enumerate(table.files)
        ]
        total = table.num_rows * (extras.width or 1)
        warn_of(doubts_of_columns(f"features of {table.where}", total, counts))


def map_edges(
    job: ResumableJob,
    table: Table,
    ends: EndIds,
    extras: Extras,
    edge_type: EdgeType,
    stage: str,
    *,
    drop_dangling: bool,
    skip_nulls: bool = False,
) -> EdgesByPartition:
    """Write the edges of a table by partition, with numbers instead of ids.

    With ``skip_nulls``, a row without one of the ends is no edge; else it is an error.

    Raises:
        ConfigError: An end of an edge is no node, and such edges are not dropped.
    """
    key = edge_type_str(edge_type)
    folder = job.folder / stage / key
    mapped = EdgesByPartition(folder, np.zeros(len(ends.bounds), np.int64))
    joins, files = {}, {}
    for i, file in enumerate(table.files):
        target, name = folder / str(i), f"{stage}/{key}/{i}"
        source = rows_of(to_read(file.path), numbered=True)
        if skip_nulls:
            names = (quoted_name(ends.row), quoted_name(ends.neighbor))
            source = f"(FROM {source} WHERE {' AND '.join(f'{n} IS NOT NULL' for n in names)})"
        select = extras.select(file.first_row)
        joins[name] = partial(_map, job, table, ends, extras, target, source, select)
        files[name] = file
        mapped.files.append(target)
    with job.work_on(f"{stage} {key}", table.num_rows) as progress:
        for name, counts in job.steps(joins):
            # Also for steps of an earlier run: that one was killed before it could raise the error.
            # Nulls are refused even if dangling edges are dropped.
            if counts[_DANGLING] and not skip_nulls:
                _refuse_dangling(job, table, files[name], ends, counts[_DANGLING], drop_dangling)
            mapped.add(counts)
            progress(files[name].num_rows)
    ends.release()
    return mapped


def _map(
    job: ResumableJob,
    table: Table,
    ends: EndIds,
    extras: Extras,
    target: Path,
    source: str,
    select: str,
) -> list[int]:
    """Return edges by partition, with the dangling ones last."""
    # A new name for each attempt: if Ray has lost a node and repeats the task, the lost node may
    # still run and write, and must not write into the other's files.
    draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}.tmp")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    row, neighbor = _key(table, "e", ends.row), _key(table, "e", ends.neighbor)
    indexes = ends.indexes(job)
    if indexes is None:
        counts = _join(job, table, ends, draft, source, row, neighbor, select)
    else:
        counts = look_up_edges(
            job,
            indexes,
            ends.bounds,
            draft,
            f"SELECT {row}, {neighbor}{select} FROM {source} e",
            extra_bytes=extras.nbytes,
            filesystem=table.filesystem,
        )
    os.replace(draft, target)
    return counts


def _join(
    job: ResumableJob,
    table: Table,
    ends: EndIds,
    draft: Path,
    source: str,
    row: str,
    neighbor: str,
    select: str,
) -> list[int]:
    # Branches are taken in order: the first end above a number is its owner's.
    owner = " ".join(f"WHEN r.node < {end} THEN {k}" for k, end in enumerate(ends.bounds.tolist()))
    sql = f"""
        COPY (
            SELECT r.node AS row, n.node AS neighbor{select},
                CASE WHEN r.node IS NULL OR n.node IS NULL THEN {_DANGLING} {owner} END AS part
            FROM {source} e
            LEFT JOIN {_pairs(ends.row_ids.pairs)} r ON {row} = r.id
            LEFT JOIN {_pairs(ends.neighbor_ids.pairs)} n ON {neighbor} = n.id
        ) TO {quoted(draft)} (FORMAT parquet, PARTITION_BY (part), COMPRESSION snappy)
    """
    with job.engine() as engine:
        table.register(engine)
        engine.execute(sql)
    draft.mkdir(exist_ok=True)  # without edges, nothing is written
    # Counted in the footers: COPY tells the number of rows, not their files.
    counts = [
        sum(pq.read_metadata(path).num_rows for path in (draft / f"part={k}").glob("*.parquet"))
        for k in [*range(len(ends.bounds)), _DANGLING]
    ]
    shutil.rmtree(draft / f"part={_DANGLING}", ignore_errors=True)
    return counts


def _pairs(folder: Path) -> str:
    return rows_of(to_read(folder, "/*.parquet"))


def _key(table: Table, alias: str, column: str) -> str:
    """Return SQL for a column of ids, in the type of the pairs.

    It is null for an unsigned number outside that type, which is no node's id.
    """
    kind = "BIGINT" if id_kind(table, column) == "int" else "VARCHAR"
    return f"TRY_CAST({alias}.{quoted_name(column)} AS {kind})"


def check_ends(table: Table, nodes: Table, column: str, id_column: str) -> None:
    """Check that an edge column has the same kind of ids as nodes."""
    kind, wanted = id_kind(table, column), id_kind(nodes, id_column)
    if kind != wanted:
        names = {"int": "integers", "text": "text"}
        raise ConfigError(
            f"{table.where}: column {column!r} holds {names[kind]}, the ids of {nodes.where} are "
            f"{names[wanted]}: convert one of them"
        )


def _refuse_dangling(
    job: ResumableJob, table: Table, file: TableFile, ends: EndIds, count: int, drop: bool
) -> None:
    source = rows_of(to_read(file.path), numbered=True)
    sides = ((ends.row, ends.row_ids.pairs), (ends.neighbor, ends.neighbor_ids.pairs))
    for column, pairs in sides:
        key = _key(table, "e", column)
        # Null is neither in a set nor out of it, so it needs its own test.
        missing = f"{key} IS NULL OR {key} NOT IN (SELECT id FROM {_pairs(pairs)})"
        tests = [(f"e.{quoted_name(column)} IS NULL", "has nulls")]
        if not drop:
            what = (
                f"has ids that are no nodes ({count} dangling edge(s) in it; drop_dangling=True or "
                "--drop-dangling leaves them out)"
            )
            tests.append((missing, what))
        for test, what in tests:
            with job.engine() as engine:
                table.register(engine)
                bad_rows = engine.execute(
                    f"SELECT file_row_number, e.{quoted_name(column)} FROM {source} e WHERE {test} "
                    "ORDER BY file_row_number LIMIT 5"
                ).fetchall()
            if bad_rows:
                rows, values = [row[0] for row in bad_rows], [row[1] for row in bad_rows]
                table.refuse(file, column, rows, what, None if values[0] is None else values)


# --- in order -------------------------------------------------------------------------------------


def sort_edges(
    job: ResumableJob,
    mapped: EdgesByPartition,
    extras: Extras,
    edge_type: EdgeType,
    k: int,
    part: Part,
    shared: Part,
    *,
    rows: tuple[int, int],
    num_neighbors: int,
    first_edge: int | None,
) -> Callable[[], None]:
    """Return a writer of one partition's edges, grouped by node, neighbours ascending.

    Args:
        job: The run.
        mapped: The edges.
        extras: Columns that accompany them.
        edge_type: Their type.
        k: The partition.
        part: The folder of the partition.
        shared: The root, with the shared data.
        rows: The first of the numbers of its nodes, and one past the last.
        num_neighbors: Number of possible neighbours.
        first_edge: The id of its first edge; None: edges have no ids.
    """
    # The result's shape is known before the sort: the manifest is made here, in this process, even
    # if an earlier run or a task elsewhere does the sort.
    where, num_edges = rows_at("edges", edge_type), int(mapped.counts[k])
    arrays: dict[str, tuple[str, ArraySpec]] = {
        "indptr": (f"{where}/indptr", ArraySpec("int64", (rows[1] - rows[0] + 1,))),
        "indices": (f"{where}/indices", ArraySpec(index_type(num_neighbors).name, (num_edges,))),
    }
    part.ranges[where] = {"first_row": rows[0]}
    if first_edge is not None:
        part.ranges[where]["first_edge"] = first_edge
    if extras.weight:
        arrays["weight"] = f"{where}/weights", ArraySpec("float32", (num_edges,))
    if extras.time:
        times = rows_at("edge_attributes", edge_type, "time")
        arrays["time"] = f"{times}/values", ArraySpec("int64", (num_edges,))
        part.ranges[times] = {"first": first_edge or 0}
    if extras.features:
        features_at = rows_at("edge_features", edge_type)
        shape = (num_edges, extras.width)
        arrays["features"] = f"{features_at}/values", ArraySpec(extras.dtype.name, shape)
        part.ranges[features_at] = {"first": first_edge or 0}
    part.arrays.update(arrays.values())
    files = {what: (part.path(name), spec.dtype) for what, (name, spec) in arrays.items()}
    if extras.rows:
        name = EDGE_ROWS.format(edge_type=edge_type_str(edge_type), partition=k)
        shared.arrays[name] = ArraySpec("int64", (num_edges,))
        files["pos"] = shared.path(name), "int64"
    return partial(_sort, job, mapped, extras, k, rows, files)


def _sort(
    job: ResumableJob,
    mapped: EdgesByPartition,
    extras: Extras,
    k: int,
    rows: tuple[int, int],
    files: dict[str, tuple[Path, str]],
) -> None:
    with ExitStack() as stack:
        # Emptied: a killed sort begins again, and each file belongs to one sort.
        opened = {what: stack.enter_context(new_file(path)) for what, (path, _) in files.items()}
        pointer = _IndexPointer(opened["indptr"], rows)
        for batch in _in_order(job, mapped.of_partition(k), extras):
            pointer.add(batch.column("row").to_numpy().astype(np.int64))
            for what, (_, dtype) in files.items():
                if what != "indptr":
                    values = _column(batch, what, extras)
                    opened[what].write(np.ascontiguousarray(values, dtype).data)
        pointer.finish()


def _in_order(job: ResumableJob, files: list[str], extras: Extras) -> Iterator[Any]:
    if not files:
        return
    if len(files) == 1 and Path(files[0]).name == IN_ORDER:
        # As foreign keys are, seen from their own table. Equal ones are in the order of the table.
        yield from pq.ParquetFile(files[0]).iter_batches(job.sizes.sorted_rows, use_threads=False)
        return
    columns = ["row", "neighbor", *extras.names]
    # Edges equal in all stored values may come in any order: the bytes are the same.
    order = "row, neighbor" + (", pos" if extras.names else "")
    count = min(job.sizes.sorted_rows, max(1024, _SORT_BYTES // (16 + extras.nbytes)))
    with job.engine() as engine:
        source = rows_of(f"[{', '.join(map(to_read, files))}]")
        sorted_edges = engine.sql(f"SELECT {', '.join(columns)} FROM {source} ORDER BY {order}")
        # A reader, not a table: the engine merges its spilled data while batches are written.
        yield from sorted_edges.to_arrow_reader(count)


def _column(batch: Any, what: str, extras: Extras) -> Array:
    if what == "features":
        columns = [batch.column(f"c{i}") for i in range(len(extras.features))]
        flat = [c.flatten() if is_list(c.type) else c for c in columns]
        arrays = [c.to_numpy(zero_copy_only=False).reshape(len(batch), -1) for c in flat]
        return np.concatenate(arrays, axis=1)
    column = batch.column("neighbor" if what == "indices" else what)
    return cast("Array", (column.cast(pa.int64()) if what == "time" else column).to_numpy())


class _IndexPointer:
    """Writes the end of each node's edges, as edges come node by node."""

    def __init__(self, file: Any, rows: tuple[int, int]) -> None:
        self._file, self._next, self._end, self._edges = file, rows[0], rows[1], 0
        file.write(np.zeros(1, np.int64).data)

    def add(self, rows: Array) -> None:
        if len(rows):
            self._write_ends_before(int(rows[-1]), rows)
            self._edges += len(rows)

    def _write_ends_before(self, last: int, rows: Array) -> None:
        """Write the ends of all nodes before ``last``: that one may go on in the next batch."""
        while self._next < last:
            stop = min(last, self._next + ResumableJob.sizes.sorted_rows)
            # Rows ascend, so the end of a node is the number of edges at or before it. A million
            # nodes at a time: after the last edge there may be billions of nodes without any.
            ends = np.searchsorted(rows, np.arange(self._next, stop), "right") + self._edges
            self._file.write(ends.astype(np.int64).data)
            self._next = stop

    def finish(self) -> None:
        self._write_ends_before(self._end, np.empty(0, np.int64))
