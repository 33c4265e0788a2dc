"""Keys of a database, checked; and the rows of its tables as Parquet, for `partition_tables`.

A table becomes one file with its id, its keys, its time and its features; and one for each foreign
key that is null in some rows.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.partition.frames import FrameColumns, FrameGroup
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.kinds import Column, Columns, stats_of
from gigl_loader.partitioning.databases.source import (
    Database,
    family_of,
    named,
    one_row,
    seconds_sql,
)
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.tables.engine_sql import quoted_name
from gigl_loader.partitioning.tables.frame_rows import NO_TIME, PADDED
from gigl_loader.runtime.memory.segments import Array

Embed = Callable[[list[str]], Any]
_CONSTANT = "__const__"
"""The feature of a table that has none, as in RelBench: the number 1."""
_NO_TIME_OF_ROW = -9_223_372_037
"""The time of a row without one, as in RelBench: it is always in the past."""
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_TEXTS = 4096
"""Texts that are embedded in one call."""
_COMPARABLE = (("int", "float", "decimal"), ("text", "enum"), ("time",))
_NUMBERS = _COMPARABLE[0]
_THERE = '"gigl_loader key"'
_EXACT = {"DOUBLE": 2**53 - 1, "FLOAT": 2**24 - 1}
"""Integers up to here are one float each."""
_log = logging.getLogger(__name__)


# --- keys -----------------------------------------------------------------------------------------


@dataclass
class KeyFacts:
    """What is known of the keys of a table once they are checked."""

    as_text: bool
    """Whether primary keys are stored as text: they are no integers of 64 bits."""
    nulls: list[str]
    """Foreign keys that are null in some rows."""


def _key_sql(column: str, kind: str, *, as_text: bool) -> str:
    """Return SQL for a key as it is stored; null for a number that is not whole."""
    name, family = quoted_name(column), family_of(kind)
    if as_text:
        return f"CAST({f'CAST({name} AS DOUBLE)' if family == 'float' else name} AS VARCHAR)"
    whole = f"CASE WHEN {name} = trunc({name}) THEN TRY_CAST({name} AS BIGINT) END"
    if family == "float":  # a larger one may be another integer, rounded
        whole = f"CASE WHEN abs({name}) <= {_EXACT[kind]} THEN {whole} END"
    return whole if family in ("float", "decimal") else f"TRY_CAST({name} AS BIGINT)"


def _is_null(column: str, kind: str) -> str:
    name = quoted_name(column)
    return f"({name} IS NULL OR isnan({name}))" if family_of(kind) == "float" else f"{name} IS NULL"


def _examples(connection: Any, query: str) -> str:
    found = connection.execute(f"SELECT DISTINCT * FROM ({query}) ORDER BY 1 LIMIT 5").fetchall()
    return ", ".join(repr(value) for (value,) in found)


def check_keys(job: ResumableJob, database: Database, *, drop: bool) -> dict[str, Any]:
    """Check keys and times of all tables; return the fields of `KeyFacts` of each.

    Args:
        job: The run.
        database: The database, with its cut.
        drop: Foreign keys that are in no row give no edge, in place of an error.

    Raises:
        ConfigError: A primary key is missing or repeated, a foreign key is in no row or no whole
            number, or times are no times.
    """
    with job.engine() as whole, job.engine() as cut:
        database.upto(None).connect(whole)
        database.connect(cut)
        as_text = {table: _check_primary_key(whole, database, table) for table in database.tables}
        for table in database.tables:
            _check_times(whole, database, table)
        facts = {
            table: KeyFacts(
                as_text[table],
                [
                    column
                    for column in database.tables[table].fkeys
                    if _check_foreign_key(cut, whole, database, table, column, as_text, drop)
                ],
            )
            for table in database.tables
        }
    return {table: asdict(of_table) for table, of_table in facts.items()}


def _check_primary_key(connection: Any, database: Database, table: str) -> bool:
    """Return whether the primary key of a table is stored as text."""
    column = database.tables[table].pkey
    if column is None:
        return False
    kind, view, name = database.columns[table][column], quoted_name(table), quoted_name(column)
    where, is_number = f"table {table!r}: primary key {column!r}", family_of(kind) in _NUMBERS
    whole = _key_sql(column, kind, as_text=False) if is_number else name
    rows, nulls, wholes, different = one_row(
        connection,
        f"SELECT count(*), count(*) FILTER ({_is_null(column, kind)}), count({whole}), "
        f"count(DISTINCT {name}) FROM {view}",
    )
    if nulls:
        raise ConfigError(f"{where} is null in {nulls} of {rows} rows: it must name each row")
    if different < rows:
        twice = f"SELECT {name} FROM {view} GROUP BY {name} HAVING count(*) > 1"
        raise ConfigError(
            f"{where} has {rows - different} key(s) more than once, such as "
            f"{_examples(connection, twice)}: it must name one row"
        )
    return not is_number or wholes < rows


def _check_times(connection: Any, database: Database, table: str) -> None:
    column, view = database.tables[table].time_col, quoted_name(table)
    if column is None:
        return
    kind, name = database.columns[table][column], quoted_name(column)
    seconds = seconds_sql(name, kind)
    query = f"SELECT count(*), count({name}), count({seconds}) FROM {view}"
    rows, values, times = one_row(connection, query)
    if family_of(kind) == "text" and times < values:
        wrong = f"SELECT {name} FROM {view} WHERE {name} IS NOT NULL AND {seconds} IS NULL"
        raise ConfigError(
            f"table {table!r}: the time column {column!r} has {values - times} text(s) that are no "
            f"times, such as {_examples(connection, wrong)}: write them as 2020-01-31 12:00:00"
        )
    if rows > times:
        what = (
            "left out, as the table is cut" if database.cut is not None else "taken as of long ago"
        )
        _log.warning("table %r: %d of %d rows have no time: %s", table, rows - times, rows, what)


def _check_foreign_key(
    cut: Any,
    whole: Any,
    database: Database,
    table: str,
    column: str,
    as_text: Mapping[str, bool],
    drop: bool,
) -> bool:
    """Return whether a foreign key is null in some rows, or is no whole number.

    ``cut`` has the rows that become nodes, ``whole`` those of later times as well.
    """
    parent, view = database.tables[table].fkeys[column], quoted_name(table)
    pkey, where = str(database.tables[parent].pkey), f"table {table!r}: foreign key {column!r}"
    kind, wanted = database.columns[table][column], database.columns[parent][pkey]
    null, key = _is_null(column, kind), _key_sql(column, kind, as_text=as_text[parent])
    there = _key_sql(pkey, wanted, as_text=as_text[parent])
    # the alias is no column of the table, in which "k" may be one
    there = f"(SELECT {there} AS {_THERE} FROM {quoted_name(parent)}) ON {key} = {_THERE}"
    families = {family_of(kind), family_of(wanted)}
    if kind != wanted and not any(families <= {*group} for group in _COMPARABLE):
        # one that is null everywhere may be of any type
        if one_row(cut, f"SELECT count(*) FROM {view} WHERE NOT {null}")[0]:
            raise ConfigError(
                f"{where} is {kind}, and the primary key {pkey!r} of table {parent!r} is {wanted}: "
                "convert one of them"
            )
        return True
    nulls, missing = one_row(
        cut,
        f"SELECT count(*) FILTER ({null}), count(*) FILTER (NOT {null} AND {_THERE} IS NULL) FROM "
        f"{view} LEFT JOIN {there}",
    )
    in_none, lost = 0, f"{view} ANTI JOIN {there} WHERE NOT {null}"
    if missing:
        in_none = one_row(whole, f"SELECT count(*) FROM {lost}")[0]
        if in_none and not drop:
            raise ConfigError(
                f"{where} has {in_none} row(s) with a key that is in no row of table {parent!r}, "
                f"such as {_examples(whole, f'SELECT {quoted_name(column)} FROM {lost}')}: repair "
                'them, or give dangling="drop", which leaves their edges out'
            )
        which = "does not exist" if in_none else "is later, or has no time"
        _log.warning("%s: %d row(s) name a row of %r that %s", where, missing, parent, which)
    # a number that is not whole was missed, too
    return bool(nulls or missing)


# --- rows -----------------------------------------------------------------------------------------


@dataclass
class EncodedTable:
    """A table on disk, as `encode_table` notes it."""

    path: str
    rows: int
    edges: dict[str, tuple[str, str]]
    """By foreign key: the file with its edges, and the column there."""
    frame: FrameColumns
    stats: dict[str, dict[str, Any]]
    """See `Column.stats`."""
    left_out: dict[str, list[str]]
    """See `Columns.left_out`."""


def encode_table(
    job: ResumableJob,
    database: Database,
    table: str,
    facts: Mapping[str, KeyFacts],
    kinds: Mapping[str, str | None],
    before: int | None,
    embed: Embed | None,
    folder: Path,
) -> dict[str, Any]:
    """Write a table to Parquet files; return the fields of `EncodedTable`.

    Args:
        job: The run.
        database: The database, with its cut.
        table: The table.
        facts: Of all tables.
        kinds: Kinds that the caller chose, by column.
        before: Rows of earlier seconds count in statistics; None: all rows.
        embed: Texts to ``[n, d]``; None: texts are left out.
        folder: The directory of the files.
    """
    keys, types = database.tables[table], database.columns[table]
    folder.mkdir(parents=True, exist_ok=True)
    select, counts = {"id": "row_number() OVER () - 1"}, "true"
    if keys.pkey is not None:
        select["id"] = _key_sql(keys.pkey, types[keys.pkey], as_text=facts[table].as_text)
    names = {column: f"key-{i}" for i, column in enumerate(keys.fkeys)}
    for column, parent in keys.fkeys.items():
        as_text = facts[parent].as_text
        select[names[column]] = _key_sql(column, types[column], as_text=as_text)
    if keys.time_col is not None:
        seconds = seconds_sql(quoted_name(keys.time_col), types[keys.time_col])
        select["time"] = f"coalesce({seconds}, {_NO_TIME_OF_ROW})"
        counts = "true" if before is None else f"{seconds} < {before}"
    features = {c: kind for c, kind in types.items() if c != keys.pkey and c not in keys.fkeys}
    with job.engine(ordered=True) as connection, named(f"table {table!r}"):
        database.connect(connection)
        found = Columns(connection, table, features, kinds, counts, embeds=embed is not None)
        frame = _Frame(connection, table, found.all, embed, folder)
        select |= frame.select
        listed = ", ".join(f"{sql} AS {quoted_name(name)}" for name, sql in select.items())
        reader = connection.sql(f"SELECT {listed} FROM {quoted_name(table)}")
        batches = frame.batches(reader.to_arrow_reader(job.sizes.table_rows))
        partial = [names[column] for column in facts[table].nulls]
        with job.work_on(f"read {table}", 0) as progress:
            rows = _write(batches, partial, folder, progress)
    files = {name: f"{name if name in partial else 'rows'}.parquet" for name in names.values()}
    edges = {column: (str(folder / files[name]), name) for column, name in names.items()}
    stats = {column.name: stats_of(column) for column in found.all}
    if not stats:
        one = 1.0 if rows else None
        stats = {_CONSTANT: {"MEAN": one, "STD": one and 0.0, "QUANTILES": [one] * 5}}
    path = str(folder / "rows.parquet")
    return asdict(EncodedTable(path, rows, edges, frame.groups, stats, found.left_out))


def _write(
    batches: Iterator[Any], partial: list[str], folder: Path, progress: Callable[[int], None]
) -> int:
    """Write all rows, and those of each partial key that have it; return their number."""
    # Read a few times, and removed: see `write_rows`.
    plain: Any = {"use_dictionary": False, "write_statistics": False, "compression": "none"}
    rows, writers = 0, dict[str, Any]()
    with ExitStack() as stack:
        for batch in batches:
            pieces = {"rows": batch}
            for name in partial:
                pieces[name] = batch.select(["id", name]).filter(batch.column(name).is_valid())
            for name, piece in pieces.items():
                if name not in writers:
                    writer = pq.ParquetWriter(folder / f"{name}.parquet", piece.schema, **plain)
                    writers[name] = stack.enter_context(writer)
                writers[name].write_batch(piece)
            rows += batch.num_rows
            progress(batch.num_rows)
    return rows


class _Frame:
    """The features of a table: what the engine selects, under the names of `stored_rows`."""

    def __init__(
        self, connection: Any, table: str, columns: list[Column], embed: Embed | None, folder: Path
    ) -> None:
        self._connection, self._columns = connection, columns
        self._vectors: dict[str, tuple[int, _Embeddings | None]] = {}
        self.select: dict[str, str] = {}
        texts = sorted((c for c in columns if c.kind == "text_embedded"), key=lambda c: c.name)
        embedded = {
            c.name: _Embeddings(connection, table, c, embed, folder / f"text-{i}.bin")
            for i, c in enumerate(texts)
            if embed is not None
        }
        kinds = [str(c.kind) for c in columns if c.kind != "text_embedded"]
        groups = []
        # texts are embeddings after the others, as PyTorch Frame merges them
        for kind in dict.fromkeys([*kinds, "embedding"] if texts else kinds):
            of_kind = sorted((c for c in columns if c.kind == kind), key=lambda c: c.name)
            of_kind += texts if kind == "embedding" else []
            widths = [7 if kind == "timestamp" else c.width for c in of_kind]
            if kind in PADDED:
                widths = [max(widths)] * len(widths)
            groups.append(FrameGroup(kind, tuple(c.name for c in of_kind), tuple(widths)))
            numbered = {f"{kind}-{i}": c for i, c in enumerate(of_kind)}
            if kind in PADDED:
                self._add_padded(kind, numbered, widths[0])
                continue
            for name, column in numbered.items():
                self.select[name] = self._sql(name, column)
                if kind == "embedding":
                    self._vectors[name] = column.width, embedded.get(column.name)
                if column.name in embedded:
                    self.select[name] = embedded[column.name].hash_sql
        if not columns:
            groups, self.select["numerical-0"] = (
                [FrameGroup("numerical", (_CONSTANT,), (1,))],
                "1.0::FLOAT",
            )
        self.groups: FrameColumns = tuple(groups)

    def _sql(self, name: str, column: Column) -> str:
        if column.kind == "categorical":
            return f"coalesce({self._code(name, column, column.category_sql)}, -1)"
        if column.kind == "timestamp":
            return f"coalesce({column.sql}, {NO_TIME})"
        if column.kind == "embedding":
            return f"CAST({column.sql} AS FLOAT[])"
        value = f"CAST({column.sql} AS FLOAT)"
        if column.family != "bool" and column.type != "FLOAT":
            # the engine refuses numbers that numpy makes infinite
            wide = f"CAST({column.sql} AS DOUBLE)"
            largest = f"abs({wide}) > {_LARGEST_FLOAT!r}::DOUBLE"
            value = f"CASE WHEN {largest} THEN sign({wide}) * 'inf'::FLOAT ELSE {value} END"
        return f"CAST(coalesce({value}, 'nan') AS FLOAT)"

    def _code(self, name: str, column: Column, value: str) -> str:
        """Return SQL of the number of a category: its rank; null for others."""
        values = next(iter(column.stats.values()))[0]
        if not values:
            return "NULL::INTEGER"
        # An enum of the engine finds a text by a hash table, and rows stay in order, as in a join
        # they need not.
        kind = quoted_name(f"categories {name}")
        # Under the name of the type, and not for longer: a table may be called categories.
        self._connection.register(kind[1:-1], pa.table({"v": pa.array(values, pa.string())}))
        self._connection.execute(
            f"DROP TYPE IF EXISTS {kind}; CREATE TYPE {kind} AS ENUM (SELECT v FROM {kind})"
        )
        self._connection.unregister(kind[1:-1])
        return f"CAST(enum_code(TRY_CAST({value} AS {kind})) AS INTEGER)"

    def _add_padded(self, kind: str, numbered: Mapping[str, Column], width: int) -> None:
        cells = []
        for name, column in numbered.items():
            if kind == "multicategorical":
                codes = (
                    f"list_transform({column.parts_sql}, lambda x: {self._code(name, column, 'x')})"
                )
                cell, pad = f"coalesce(list_filter({codes}, lambda x: x IS NOT NULL), [-1])", "-1"
            else:
                numbers = (
                    f"list_transform({column.sql}, lambda x: coalesce(CAST(x AS FLOAT), 'nan'))"
                )
                cell, pad = f"coalesce(CAST({numbers} AS FLOAT[]), [])", "'nan'::FLOAT"
            self.select[f"{name}-length"] = f"CAST(len({cell}) AS INTEGER)"
            cells.append(f"list_resize({cell}, {width}, {pad})")
        self.select[kind] = f"flatten([{', '.join(cells)}])"

    def batches(self, reader: Any) -> Iterator[Any]:
        """Yield the batches of the engine, with all embeddings as one list; at least one batch."""
        schema, is_empty = reader.schema, True
        for batch in reader:
            is_empty = False
            yield self._with_vectors(batch)
        if is_empty:
            arrays = [pa.array([], kind.type) for kind in schema]
            yield self._with_vectors(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def _with_vectors(self, batch: Any) -> Any:
        if not self._vectors:
            return batch
        blocks: list[Array] = []
        for name, (width, texts) in self._vectors.items():
            values = batch.column(name)
            if texts is not None:
                blocks.append(texts.rows_of(values))
                continue
            flat: Array = values.flatten().to_numpy(zero_copy_only=False)
            blocks.append(flat.reshape(len(values), width))
        joined: Any = np.concatenate(blocks, axis=1)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(joined.reshape(-1)), joined.shape[1])
        rest = batch.drop_columns(list(self._vectors))
        return pa.RecordBatch.from_arrays([*rest.columns, lists], [*rest.schema.names, "embedding"])


class _Embeddings:
    """The embeddings of the distinct texts of a column, in a file.

    A row finds its own by a hash of 64 bits, so texts are not kept in memory.
    """

    def __init__(
        self, connection: Any, table: str, column: Column, embed: Embed, path: Path
    ) -> None:
        name, where = quoted_name(column.name), f"column {column.name!r} of table {table!r}"
        text = f"CAST({name} AS VARCHAR)"
        self.hash_sql = f"CASE WHEN {name} IS NOT NULL THEN hash({text}) END"
        query = (
            f"SELECT {text} AS t, hash({text}) AS h FROM {quoted_name(table)} WHERE {name} IS NOT "
            "NULL GROUP BY ALL ORDER BY h, t"
        )
        hashes, width = [np.empty(0, np.uint64)], 0
        with path.open("wb") as file:
            for batch in connection.sql(query).to_arrow_reader(_TEXTS):
                texts = batch.column("t").to_pylist()
                given = embed(texts)
                try:
                    vectors = np.ascontiguousarray(np.asarray(given), np.float32)
                except (TypeError, ValueError, RuntimeError) as error:
                    raise ConfigError(
                        f"embed= must return an array [{len(texts)}, d] for {len(texts)} texts of "
                        f"{where}, got {type(given).__name__}: {error}"
                    ) from error
                if vectors.ndim != 2 or vectors.shape != (len(texts), width or vectors.shape[1]):
                    raise ConfigError(
                        f"embed= must return an array [{len(texts)}, d] for {len(texts)} texts of "
                        f"{where}, with the same d each time, got {vectors.shape}"
                    )
                width = vectors.shape[1]
                file.write(vectors.data)
                hashes.append(batch.column("h").to_numpy())
        self._hashes = np.concatenate(hashes)
        if len(np.unique(self._hashes)) < len(self._hashes):
            raise ConfigError(f"two texts of {where} have one hash: leave it out with kinds=")
        column.width = column.stats["EMB_DIM"] = width or 1
        shape = (len(self._hashes), column.width)
        # mapped: it may exceed memory
        self._vectors: Array = (
            np.memmap(path, np.float32, "r", 0, shape) if width else np.empty(shape, np.float32)
        )

    def rows_of(self, hashes: Any) -> Array:
        """Return the embeddings of some rows, by their hashes; a row without a text has zeros."""
        found = np.zeros((len(hashes), self._vectors.shape[1]), np.float32)
        valid = hashes.is_valid().to_numpy(zero_copy_only=False)
        asked = hashes.drop_null().to_numpy()
        found[valid] = self._vectors[np.searchsorted(self._hashes, asked)]
        return found
