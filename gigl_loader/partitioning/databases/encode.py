"""Keys of a database, checked; and the rows of its tables as Parquet, for `partition_tables`.

A table becomes one file with its id, its keys, its time and its features: a column for each
attribute of its frame, of bytes for the kinds side by side, of lists for others.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.partition.frames import (
    NO_TIME,
    PADDED,
    STORED,
    FrameColumns,
    FrameGroup,
    frame_attribute,
    lengths_attribute,
    places_in_row,
    stamp_parts,
)
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.databases.kinds import Column, Columns
from gigl_loader.partitioning.databases.source import (
    NUMBERS,
    Database,
    family_of,
    named,
    one_row,
    seconds_sql,
)
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.tables.engine_sql import quoted_name
from gigl_loader.runtime.memory.segments import Array

Embed = Callable[[list[str]], Any]
_NO_TIME_OF_ROW = -9_223_372_037
"""The time of a row without one, as in RelBench: it is always in the past."""
_TEXTS = 4096
"""Texts that are embedded in one call."""
_COMPARABLE = (NUMBERS, ("text", "enum"), ("time",))
_THERE = '"gigl_loader key"'
_EXACT = {"DOUBLE": 2**53 - 1, "FLOAT": 2**24 - 1}
"""Integers up to here are one float each."""
_log = logging.getLogger(__name__)


# --- keys -----------------------------------------------------------------------------------------


def key_sql(name: str, kind: str, *, as_text: bool) -> str:
    """Return SQL for a key, itself SQL, as it is stored; null for a number that is not whole."""
    family = family_of(kind)
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


def check_keys(job: ResumableJob, database: Database, *, drop: bool) -> dict[str, bool]:
    """Check keys and times of all tables; return whether the primary keys of each become text.

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
        for table, keys in database.tables.items():
            _check_times(whole, database, table)
            for column in keys.fkeys:
                _check_foreign_key(cut, whole, database, table, column, as_text, drop)
    return as_text


def _check_primary_key(connection: Any, database: Database, table: str) -> bool:
    """Return whether the primary key of a table is stored as text: it is no int64."""
    column = database.tables[table].pkey
    if column is None:
        return False
    kind, view, name = database.columns[table][column], quoted_name(table), quoted_name(column)
    where, is_number = f"table {table!r}: primary key {column!r}", family_of(kind) in NUMBERS
    whole = key_sql(name, kind, as_text=False) if is_number else name
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
) -> None:
    """Check a foreign key; ``cut`` has the rows that become nodes, ``whole`` also later ones."""
    parent, view = database.tables[table].fkeys[column], quoted_name(table)
    pkey, where = str(database.tables[parent].pkey), f"table {table!r}: foreign key {column!r}"
    kind, wanted = database.columns[table][column], database.columns[parent][pkey]
    given = f"{view} WHERE NOT {_is_null(column, kind)}"
    families = {family_of(kind), family_of(wanted)}
    if kind != wanted and not any(families <= {*group} for group in _COMPARABLE):
        # one that is null everywhere may be of any type
        if one_row(cut, f"SELECT count(*) FROM {given}")[0]:
            raise ConfigError(
                f"{where} is {kind}, and the primary key {pkey!r} of table {parent!r} is {wanted}: "
                "convert one of them"
            )
        return
    key = key_sql(quoted_name(column), kind, as_text=as_text[parent])
    there = key_sql(quoted_name(pkey), wanted, as_text=as_text[parent])
    # the alias is no column of the table, in which "k" may be one
    there = f"(SELECT {there} AS {_THERE} FROM {quoted_name(parent)}) ON {key} = {_THERE}"
    lost = f"(FROM {given}) ANTI JOIN {there}"
    missing = one_row(cut, f"SELECT count(*) FROM {lost}")[0]
    in_none = missing and one_row(whole, f"SELECT count(*) FROM {lost}")[0]
    if in_none and not drop:
        raise ConfigError(
            f"{where} has {in_none} row(s) with a key that is in no row of table {parent!r}, such "
            f"as {_examples(whole, f'SELECT {quoted_name(column)} FROM {lost}')}: repair them, or "
            'give dangling="drop", which leaves their edges out'
        )
    if missing:
        which = "does not exist" if in_none else "is later, or has no time"
        _log.warning("%s: %d row(s) name a row of %r that %s", where, missing, parent, which)


# --- rows -----------------------------------------------------------------------------------------


@dataclass
class EncodedTable:
    """A table on disk, as `encode_table` notes it."""

    frame: FrameColumns
    stats: dict[str, dict[str, Any]]
    """See `Column.stats`."""
    left_out: dict[str, list[str]]
    """See `Columns.left_out`."""


def encode_table(
    job: ResumableJob,
    database: Database,
    table: str,
    as_text: Mapping[str, bool],
    kinds: Mapping[str, str | None],
    before: int | None,
    embed: Embed | None,
    path: Path,
) -> dict[str, Any]:
    """Write a table to a Parquet file; return the fields of `EncodedTable`.

    The columns are ``id``, ``key-0`` and so on, ``time``, and the attributes of its frame.

    Args:
        job: The run.
        database: The database, with its cut.
        table: The table.
        as_text: See `check_keys`.
        kinds: Kinds that the caller chose, by column.
        before: Rows of earlier seconds count in statistics; None: all rows.
        embed: Texts to ``[n, d]``; None: texts are left out.
        path: The file.
    """
    keys, types = database.tables[table], database.columns[table]
    path.parent.mkdir(parents=True, exist_ok=True)
    select, counts = {"id": "row_number() OVER () - 1"}, "true"
    named_by = {"id": (keys.pkey, table)} if keys.pkey is not None else {}
    named_by |= {f"key-{i}": one for i, one in enumerate(keys.fkeys.items())}
    for name, (column, parent) in named_by.items():
        select[name] = key_sql(quoted_name(column), types[column], as_text=as_text[parent])
    if keys.time_col is not None:
        seconds = seconds_sql(quoted_name(keys.time_col), types[keys.time_col])
        select["time"] = f"coalesce({seconds}, {_NO_TIME_OF_ROW})"
        counts = "true" if before is None else f"{seconds} < {before}"
    features = {c: kind for c, kind in types.items() if c != keys.pkey and c not in keys.fkeys}
    # Read a few times, and removed: see `write_rows`.
    plain: Any = {"use_dictionary": False, "write_statistics": False, "compression": "none"}
    with job.engine(ordered=True) as connection, named(f"table {table!r}"):
        database.connect(connection)
        found = Columns(connection, table, features, kinds, counts, embeds=embed is not None)
        frame = _Frame(connection, table, found.all, embed, path)
        listed = ", ".join(
            f"{sql} AS {quoted_name(name)}" for name, sql in (select | frame.select).items()
        )
        query = connection.sql(f"SELECT {listed} FROM {found.view}")
        reader = query.to_arrow_reader(job.sizes.table_rows)
        none = frame.joined(pa.RecordBatch.from_pylist([], reader.schema))
        with (
            pq.ParquetWriter(path, none.schema, **plain) as writer,
            job.work_on(f"read {table}", 0) as progress,
        ):
            for batch in reader:
                writer.write_batch(frame.joined(batch))
                progress(batch.num_rows)
    stats = {column.name: column.stats for column in found.all}
    return asdict(EncodedTable(tuple(frame.groups), stats, found.left_out))


class _Frame:
    """The features of a table: what the engine selects, and attributes made of that."""

    def __init__(
        self, connection: Any, table: str, columns: list[Column], embed: Embed | None, path: Path
    ) -> None:
        self._connection = connection
        self.select: dict[str, str] = {}
        self.groups: list[FrameGroup] = []
        texts = sorted((c for c in columns if c.kind == "text_embedded"), key=lambda c: c.name)
        self._texts = {
            f"text-{i}": _Embeddings(connection, table, c, embed, path.with_name(f"text-{i}.bin"))
            for i, c in enumerate(texts)
            if embed is not None
        }
        self.select |= {name: of.hash_sql for name, of in self._texts.items()}
        kinds = [str(c.kind) for c in columns if c.kind != "text_embedded"]
        # texts are embeddings after the others, as PyTorch Frame merges them
        for kind in dict.fromkeys([*kinds, "embedding"] if texts else kinds):
            of_kind = sorted((c for c in columns if c.kind == kind), key=lambda c: c.name)
            widths = [7 if kind == "timestamp" else c.width for c in of_kind]
            if kind in PADDED:
                widths = [max(widths)] * len(widths)
            if of_kind:
                self._select(kind, of_kind, widths)
            if kind == "embedding":
                of_kind, widths = of_kind + texts, widths + [c.width for c in texts]
            names, dtype = tuple(c.name for c in of_kind), STORED.get(kind, "float32")
            self.groups.append(FrameGroup(kind, names, tuple(widths), dtype))
        self._places, self._nbytes = places_in_row(tuple(self.groups))

    def _select(self, kind: str, columns: list[Column], widths: list[int]) -> None:
        """Select the columns of a kind, those of varying length and embeddings as one array."""
        name, cells = frame_attribute(kind), list(map(self._cell, columns))
        if kind not in (*PADDED, "embedding"):
            self.select |= {f"{kind}-{i}": cell for i, cell in enumerate(cells)}
            return
        of, width = "INTEGER" if kind == "multicategorical" else "FLOAT", sum(widths)
        if kind in PADDED:
            lengths = ", ".join(f"len({cell})::INTEGER" for cell in cells)
            self.select[lengths_attribute(kind)] = f"array_value({lengths})"
            pad = "-1" if of == "INTEGER" else "'nan'::FLOAT"
            cells = [f"list_resize({cell}, {widths[0]}, {pad})" for cell in cells]
        self.select[name] = f"CAST(flatten([{', '.join(cells)}]) AS {of}[{width}])"

    def _cell(self, column: Column) -> str:
        """Return SQL of what is stored of a cell."""
        value = column.sql
        if column.kind == "categorical":
            return f"coalesce({self._code(column, column.category_sql)}, -1::INTEGER)"
        if column.kind == "timestamp":
            return f"coalesce({value}, {NO_TIME})::BIGINT"
        if column.kind == "embedding":
            return f"CAST({value} AS FLOAT[])"
        if column.kind == "multicategorical":
            codes = f"list_transform({column.parts_sql}, lambda x: {self._code(column, 'x')})"
            return f"coalesce(list_filter({codes}, lambda x: x IS NOT NULL), [-1])"
        if column.kind == "sequence_numerical":
            numbers = f"list_transform({value}, lambda x: coalesce(CAST(x AS FLOAT), 'nan'))"
            return f"coalesce(CAST({numbers} AS FLOAT[]), [])"
        value = f"{value}::TINYINT" if column.family == "bool" else value
        # the engine refuses numbers that numpy makes infinite
        large = f"{value} * 'inf'::DOUBLE"
        return f"CAST(coalesce(TRY_CAST({value} AS FLOAT), {large}, 'nan') AS FLOAT)"

    def _code(self, column: Column, value: str) -> str:
        """Return SQL of the number of a category: its rank; null for others."""
        if not column.categories:
            return "NULL::INTEGER"
        # An enum of the engine finds a text by a hash table, and rows stay in order, as in a join
        # they need not.
        name, values = f"categories of {column.name}", pa.array(column.categories, pa.string())
        kind = quoted_name(name)
        # Under the name of the type, and not for longer: a table may be called so.
        self._connection.register(name, pa.table({"v": values}))
        self._connection.execute(
            f"DROP TYPE IF EXISTS {kind}; CREATE TYPE {kind} AS ENUM (SELECT v FROM {kind})"
        )
        self._connection.unregister(name)
        return f"CAST(enum_code(TRY_CAST({value} AS {kind})) AS INTEGER)"

    def joined(self, batch: Any) -> Any:
        """Return a batch with kinds side by side, and embeddings of texts in place of hashes."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        rows = np.zeros((len(batch), self._nbytes), np.uint8)
        for group in self.groups:
            if group.kind not in self._places:
                continue
            of_kind: Any = rows.view(group.dtype)[:, self._places[group.kind]]
            for i in range(len(group.columns)):
                values = columns.pop(f"{group.kind}-{i}").to_numpy()
                if group.kind == "timestamp":
                    of_kind[:, 7 * i : 7 * i + 7] = stamp_parts(values)
                else:
                    of_kind[:, i] = values
        if self._places:
            kind, content = pa.binary(self._nbytes), pa.py_buffer(rows)
            whole = pa.Array.from_buffers(kind, len(rows), [None, content])
            columns[frame_attribute(next(iter(self._places)))] = whole
        if self._texts:
            name, blocks = frame_attribute("embedding"), list[Array]()
            if (own := columns.pop(name, None)) is not None:
                blocks.append(own.flatten().to_numpy().reshape(len(own), own.type.list_size))
            blocks += [texts.rows_of(columns.pop(of)) for of, texts in self._texts.items()]
            flat: Any = np.concatenate(blocks, axis=1)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
            columns[name] = lists
        return pa.RecordBatch.from_pydict(columns)


class _Embeddings:
    """The embeddings of the distinct texts of a column, in a file.

    A row finds its own by a hash of 64 bits, so texts are not kept in memory.
    """

    def __init__(
        self, connection: Any, table: str, column: Column, embed: Embed, path: Path
    ) -> None:
        text, where = column.sql, f"column {column.name!r} of table {table!r}"
        self.hash_sql = f"CASE WHEN {text} IS NOT NULL THEN hash({text}) END"
        query = (
            f"SELECT {text} AS t, hash({text}) AS h FROM {quoted_name(table)} WHERE {text} IS NOT "
            "NULL GROUP BY ALL ORDER BY h, t"
        )
        hashes, width = [np.empty(0, np.uint64)], 0
        with path.open("wb") as file:
            for batch in connection.sql(query).to_arrow_reader(_TEXTS):
                vectors = _embedded(embed, batch.column("t").to_pylist(), width, where)
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


def _embedded(embed: Embed, texts: list[str], width: int, where: str) -> Array:
    given = embed(texts)
    try:
        with np.errstate(over="ignore"):  # refused below
            vectors = np.ascontiguousarray(np.asarray(given), np.float32)
        if vectors.shape != (len(texts), width or vectors.shape[-1]):
            raise ValueError(f"got {vectors.shape}")
        if not np.isfinite(vectors).all():  # no column of embeddings can say that one is missing
            raise ValueError("got NaN, or an infinite number")
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ConfigError(
            f"embed= must return an array [{len(texts)}, d] for {len(texts)} texts of {where}, of "
            f"finite numbers and with the same d each time: {error}"
        ) from error
    return vectors
