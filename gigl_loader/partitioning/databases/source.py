"""A database to read: its tables, their keys, and its rows as views of DuckDB.

A `Database` is a folder in RelBench's layout, a DuckDB or SQLite file, or a dict of tables. Row
``i`` of a view is row ``i`` of the table, in every connection.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.schema import FilePath
from gigl_loader.errors import ConfigError, WrongTypeError, first_line
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name, rows_of, to_read
from gigl_loader.partitioning.tables.spec import check_name
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.yaml_files import read_yaml

Source = FilePath | Mapping[str, Any]
Keys = Mapping[str, Mapping[str, Any]] | None
MANIFEST = "manifest.yaml"
_ATTACHED = "gigl_loader_source"
_SQLITE_ROWS = 65_536
NUMBERS = ("int", "float", "decimal")
"""Families of types that may be keys, or seconds."""


class TableKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of one table."""

    pkey: str | None = None
    """Column of the primary key; None: rows have no other name than their number."""
    time_col: str | None = None
    """Column of the time at which a row came to be."""
    fkeys: dict[str, str] = msgspec.field(default_factory=dict)
    """Table that a column refers to, by column."""


@dataclass(frozen=True)
class Database:
    """Tables with keys; their rows are not read before `connect`."""

    tables: dict[str, TableKeys]
    rows: dict[str, Any] = field(repr=False)
    """By table: SQL of its rows, or an Arrow table."""
    source: str | None = None
    """Absolute path; None: tables in memory."""
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    """DuckDB's type of each column, by table."""
    val_timestamp: int | None = None
    """Seconds since 1970; None: the source names none."""
    test_timestamp: int | None = None
    cut: int | None = None
    """Views end at this second, inclusive; None: they have all rows."""
    attached: str | None = None
    """A file of DuckDB that `rows` name."""

    def upto(self, seconds: int | None) -> "Database":
        """Return the database as it was at a time, inclusive; tables without a time are whole."""
        return replace(self, cut=seconds)

    def connect(self, connection: Any = None) -> Any:
        """Return a connection to DuckDB with a view for each table, by its name.

        Args:
            connection: One to add the views to. None: a new one, in memory.
        """
        connection = connection or duckdb.connect(config={"autoinstall_known_extensions": False})
        # else times with a zone and those without are compared by the clock of this machine
        connection.execute("SET TimeZone = 'UTC'")
        if self.attached is not None:
            path = quoted(self.attached)
            connection.execute(f"ATTACH IF NOT EXISTS {path} AS {_ATTACHED} (READ_ONLY)")
        for table, keys in self.tables.items():
            rows = self.rows[table]
            if not isinstance(rows, str):
                connection.register(f"arrow rows of {table}", rows)
                rows = f"SELECT * FROM {quoted_name(f'arrow rows of {table}')}"
            if self.cut is not None and keys.time_col is not None:
                kind = self.columns[table][keys.time_col]
                rows = f"SELECT * FROM ({rows}) WHERE {upto_sql(keys.time_col, kind, self.cut)}"
            with named(f"table {table!r}"):
                view = quoted_name(table)
                connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {rows}")
        return connection


@contextmanager
def named(what: str) -> Iterator[None]:
    """Name what is read in an error of DuckDB; one of memory or disk stays as it is."""
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException):
        raise
    except duckdb.Error as error:
        raise ConfigError(f"{what} cannot be read: {first_line(error)}") from error


def one_row(connection: Any, query: str) -> Any:
    """Return the row of a query that has one."""
    # all of them: a connection with an unfinished result cannot be asked again
    return connection.execute(query).fetchall()[0]


# --- types and times ------------------------------------------------------------------------------

_FAMILIES = {
    **{"BOOLEAN": "bool", "FLOAT": "float", "DOUBLE": "float", "DATE": "time", "VARCHAR": "text"},
    **{"UUID": "text", "TIME": "span", "TIME_NS": "span", "INTERVAL": "span"},
    **{f"{u}{size}": "int" for u in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER")},
    **{f"{u}{size}": "int" for u in ("", "U") for size in ("BIGINT", "HUGEINT")},
}


def family_of(kind: str) -> str | None:
    """Return the family of one of DuckDB's types, of lists ``"float[]"``; None: of no other use.

    There are ``"bool"``, ``"int"``, ``"float"``, ``"decimal"``, ``"time"``, ``"span"``, ``"text"``
    and ``"enum"``.
    """
    if kind.endswith("]"):
        inner = family_of(kind[: kind.rindex("[")])
        return f"{inner}[]" if inner in ("int", "float", "decimal", "text") else None
    starts = {"TIMESTAMP": "time", "DECIMAL": "decimal", "ENUM": "enum"}
    found = (family for start, family in starts.items() if kind.startswith(start))
    return next(found, _FAMILIES.get(kind))


def _seconds(number: str, units: int) -> str:
    # the engine's own division of integers goes towards 0
    return f"({number} - ({number} % {units} + {units}) % {units}) // {units}"


def seconds_sql(name: str, kind: str) -> str:
    """Return SQL for a value, itself SQL, as whole seconds since 1970; null for no time."""
    family = family_of(kind)
    if family in NUMBERS:
        return name if kind == "BIGINT" else f"TRY_CAST(floor({name}) AS BIGINT)"
    if kind == "TIMESTAMP_NS":
        return _seconds(f"epoch_ns({name})", 10**9)
    stamp = f"TRY_CAST({name} AS {'TIMESTAMPTZ' if 'ZONE' in kind else 'TIMESTAMP'})"
    return f"CASE WHEN isfinite({stamp}) THEN {_seconds(f'epoch_us({stamp})', 10**6)} END"


def upto_sql(column: str, kind: str, cut: int | str) -> str:
    """Return SQL that is true for rows up to a second, inclusive; ``cut`` may be SQL as well."""
    # not by seconds, which are rounded down: half a second later is later
    name, family = quoted_name(column), family_of(kind)
    if family in NUMBERS:
        return f"{name} <= {cut}"
    zone = "TIMESTAMPTZ" if "ZONE" in kind else "TIMESTAMP"
    name = f"TRY_CAST({name} AS TIMESTAMP)" if family == "text" else name
    return f"{name} <= CAST(make_timestamp(({cut})::BIGINT * 1000000) AS {zone})"


def seconds_of(value: Any, what: str) -> int:
    """Return a time (a date, a text of ISO 8601, in UTC) as whole seconds since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    with closing(Database({}, {}).connect()) as connection:
        seconds = seconds_sql(quoted(value), "TIMESTAMP WITH TIME ZONE")
        found = one_row(connection, f"SELECT {seconds}")[0]
    if found is None:
        raise ConfigError(f"{what} must be a time such as 2020-01-31, got {value!r}")
    return int(found)


# --- opening --------------------------------------------------------------------------------------


def open_database(source: Source, keys: Keys = None) -> Database:
    """Return a database, with all names checked.

    Args:
        source: A folder with ``manifest.yaml`` and ``db/<table>.parquet``, as RelBench has them; a
            file of DuckDB or SQLite; or a dict of tables: DataFrames, Arrow tables, or paths of
            Parquet and CSV files.
        keys: By table: ``{"pkey": column, "time_col": column, "fkeys": {column: table}}``, each of
            which may be missing. For a file, they come before the keys that it declares. Not for a
            folder, whose manifest has them.

    Raises:
        ConfigError: A table, a column or a key cannot work; the message names it.
    """
    given = _read_keys(keys, "keys")
    if isinstance(source, Mapping):
        rows = {table: _rows_of(table, value) for table, value in source.items()}
        return _checked(Database({table: TableKeys() for table in rows}, rows), given)
    if not isinstance(source, str | os.PathLike):
        raise WrongTypeError(
            f"a database is a folder, a file or a dict of tables, got {type(source).__name__}"
        )
    path = Path(source).absolute()
    if path.is_dir():
        if keys is not None:
            raise ConfigError(f"keys= is for files and tables: {path / MANIFEST} has those of it")
        return _open_folder(path)
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise ConfigError(f"database {path} cannot be read: {error.strerror}") from error
    if head[8:12] != b"DUCK" and head != b"SQLite format 3\0":
        raise ConfigError(
            f"{path} is neither a file of DuckDB nor of SQLite: give one, a folder with "
            f"{MANIFEST}, or a dict of tables with keys="
        )
    opened = _open_duckdb(path) if head[8:12] == b"DUCK" else _open_sqlite(path)
    return _checked(opened, given)


def _read_keys(given: Any, where: str) -> dict[str, TableKeys]:
    """Return keys by table, of which only the form is checked."""
    if not isinstance(given, Mapping | None):
        raise WrongTypeError(f"{where} must be a dict by table, got {type(given).__name__}")
    keys = {}
    for table, entry in (given or {}).items():
        try:
            keys[table] = msgspec.convert(entry, analysed(TableKeys))
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{where} of table {table!r}: {error}; pkey and time_col are the name of a column, "
                "fkeys has tables by column: a key of several columns cannot be used, give the "
                "table one column that names a row"
            ) from error
    return keys


def _open_folder(folder: Path) -> Database:
    path = folder / MANIFEST
    content = read_yaml(path)
    if not isinstance(content, dict) or not isinstance(content.get("tables"), dict):
        raise ConfigError(f"{path} must have the key tables, a mapping from names to keys")
    tables = _read_keys(content["tables"], f"{path}: keys")
    for table in tables:
        check_name(table, "table")  # before it is part of a path
    rows = {table: _rows_of_file(table, folder / "db" / f"{table}.parquet") for table in tables}
    val, test = (
        None if content.get(name) is None else seconds_of(content[name], f"{path}: {name}")
        for name in ("val_timestamp", "test_timestamp")
    )
    return _checked(Database(tables, rows, str(folder), {}, val, test), {})


def _rows_of_file(table: str, path: Path) -> str:
    """Return SQL for the rows of a Parquet or CSV file."""
    if not path.is_file():
        raise ConfigError(f"table {table!r}: there is no file {path}")
    if path.suffix == ".csv":
        # strict and with quotes, else the engine would guess at broken lines
        how = "strict_mode=true, delim=',', quote='\"', escape='\"', hive_partitioning=false"
        return f"SELECT * FROM read_csv({to_read(path)}, {how})"
    try:  # under their own names, as the engine renames some
        _check_columns(table, pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"table {table!r}: {path} is no Parquet: {first_line(error)}") from error
    return f"SELECT * FROM {rows_of(to_read(path))}"


def _open_duckdb(path: Path) -> Database:
    try:
        connection = Database({}, {}, attached=str(path)).connect()
    except duckdb.Error as error:
        raise ConfigError(
            f"{path} cannot be opened: {first_line(error)}; if another process writes to it, close "
            "it there or give a copy"
        ) from error
    of_file = f"WHERE database_name = '{_ATTACHED}'"
    with closing(connection), named(str(path)):
        found = connection.execute(
            f"SELECT schema_name, table_name FROM duckdb_tables() {of_file} ORDER BY table_oid"
        ).fetchall()
        constraints = connection.execute(
            "SELECT constraint_type, table_name, constraint_column_names, referenced_table, "
            f"referenced_column_names FROM duckdb_constraints() {of_file}"
        ).fetchall()
    _check_alike([name for _, name in found], "tables")
    rows = {
        name: f"SELECT * FROM {_ATTACHED}.{quoted_name(schema)}.{quoted_name(name)}"
        for schema, name in found
    }
    primary = {table: columns for kind, table, columns, *_ in constraints if kind == "PRIMARY KEY"}
    foreign = [key for kind, *key in constraints if kind == "FOREIGN KEY"]
    return Database(_declared(rows, primary, foreign), rows, str(path), attached=str(path))


def _declared(
    tables: Mapping[str, Any], primary: Mapping[str, list[str]], foreign: list[Any]
) -> dict[str, TableKeys]:
    """Return the keys that a file declares; a primary key of several columns names no row.

    ``foreign``: (table, its columns, the other table, the columns there) of each.
    """
    pkeys = {table: columns[0] for table, columns in primary.items() if len(columns) == 1}
    fkeys: dict[str, dict[str, str]] = {table: {} for table in tables}
    # as SQL: a reference may be in other letters than the table
    spelled = {name.casefold(): name for name in tables}
    for table, columns, written, named_by in foreign:
        parent = spelled.get(written.casefold(), written)
        if len(columns) > 1:
            raise ConfigError(
                f"table {table!r} refers to {parent!r} by {', '.join(columns)}: a key of several "
                "columns cannot be used; give both tables one column for it"
            )
        there = named_by[0] or pkeys.get(parent, "")  # SQLite: None is the primary key
        if pkeys.setdefault(parent, there).casefold() != there.casefold():
            raise ConfigError(
                f"table {table!r} refers to {parent!r} by its column {there!r}, and rows there are "
                f"named by {pkeys[parent]!r}: refer to that one"
            )
        fkeys[table][columns[0]] = parent
    return {table: TableKeys(pkeys.get(table) or None, None, fkeys[table]) for table in tables}


# --- SQLite and tables in memory ------------------------------------------------------------------


def _open_sqlite(path: Path) -> Database:
    """Read a SQLite file into memory, as the engine's extension for it is a download."""
    tables = "FROM (SELECT rowid AS i, name AS t FROM sqlite_master WHERE type = 'table' AND "
    tables += "substr(name, 1, 7) <> 'sqlite_')"
    primary, foreign, rows = {}, list[Any](), {}
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
            for (table,) in file.execute(f"SELECT t {tables} ORDER BY i").fetchall():
                info = file.execute(f"PRAGMA table_info({quoted_name(table)})").fetchall()
                primary[table] = [column for _, column, *_, number in info if number]
                rows[table] = _read_sqlite(file, table, {c[1]: c[2].upper() for c in info})
            found = file.execute(
                'SELECT t, json_group_array("from"), "table", json_group_array("to") '
                f"{tables}, pragma_foreign_key_list(t) GROUP BY i, id ORDER BY i, id DESC"
            )
            foreign = [(t, json.loads(by), to, json.loads(named)) for t, by, to, named in found]
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return Database(_declared(rows, primary, foreign), rows, str(path))


def _read_sqlite(file: Any, table: str, columns: dict[str, str]) -> Any:
    # By the declared type, as SQLite finds the affinity; dates are text there, booleans 0 and 1.
    names = {"BOOL": pa.int8(), "INT": pa.int64(), "BLOB": pa.binary()}
    names |= dict.fromkeys(("REAL", "FLOA", "DOUB", "NUM", "DEC"), pa.float64())
    types = {
        column: next((kind for part, kind in names.items() if part in said), pa.string())
        for column, said in columns.items()
    }
    batches, schema = [], pa.schema(types)
    cursor = file.execute(f"SELECT * FROM {quoted_name(table)}")
    while several := cursor.fetchmany(_SQLITE_ROWS):
        arrays = []
        for (name, kind), values in zip(types.items(), zip(*several, strict=True), strict=True):
            try:
                arrays.append(pa.array(values, kind))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ConfigError(
                    f"table {table!r}: column {name!r} is declared {columns[name]!r} and has other "
                    f"values: {first_line(error)}"
                ) from error
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    flags = {name: pa.bool_() if kind == pa.int8() else kind for name, kind in types.items()}
    return pa.Table.from_batches(batches, schema).cast(pa.schema(flags))


def _rows_of(table: str, value: Any) -> Any:
    is_path = isinstance(value, str | os.PathLike)
    return _rows_of_file(table, Path(value).absolute()) if is_path else as_arrow(table, value)


def as_arrow(table: str, value: Any) -> Any:
    """Return a table in memory as Arrow's, without an index of pandas."""
    is_pandas = hasattr(value, "iloc")
    if is_pandas:  # its own stream names no column in its errors
        _check_columns(table, list(value.columns))
    try:
        arrow = pa.Table.from_pandas(value, preserve_index=False) if is_pandas else pa.table(value)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(
            f"table {table!r} must be an Arrow table, a DataFrame with one type in each column, or "
            f"the path of a Parquet or CSV file: {'; '.join(map(str, error.args))}"
        ) from error
    _check_columns(table, arrow.schema.names)
    return arrow


# --- names ----------------------------------------------------------------------------------------


def _check_alike(names: list[str], what: str) -> None:
    counts = Counter(str(name).casefold() for name in names)
    if alike := [name for name in names if counts[str(name).casefold()] > 1]:
        raise ConfigError(
            f"{what} {', '.join(map(repr, alike))} have one name: SQL does not tell upper case "
            "from lower case; rename all but one"
        )


def _check_columns(table: str, names: list[Any]) -> None:
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ConfigError(f"table {table!r}: names of columns must be text, got {wrong[:5]}")
    _check_alike(names, f"table {table!r}: columns")


def _checked(database: Database, given: Mapping[str, TableKeys]) -> Database:
    """Return a database with the keys that it lacks, all of them checked."""
    tables = database.tables
    for table in tables:
        check_name(table, "table")
    _check_alike(list(tables), "tables")
    if unknown := set(given) - set(tables):
        raise ConfigError(f"keys name tables {sorted(unknown)}, and there are {sorted(tables)}")
    for table, keys in given.items():
        old, fkeys = tables[table], tables[table].fkeys | keys.fkeys
        tables[table] = TableKeys(keys.pkey or old.pkey, keys.time_col or old.time_col, fkeys)
    with closing(database.connect()) as connection:
        for table in tables:
            with named(f"table {table!r}"):
                found = connection.execute(f"DESCRIBE {quoted_name(table)}").fetchall()
            database.columns[table] = {name: kind for name, kind, *_ in found}
            _check_keys(database, table)
    if not any(keys.fkeys for keys in tables.values()):
        raise ConfigError(
            "no table has a foreign key, so the graph would have no edge: give keys={table: "
            '{"fkeys": {column: table}}}'
        )
    return database


def _check_keys(database: Database, table: str) -> None:
    keys, columns, where = database.tables[table], database.columns[table], f"table {table!r}"
    for column in (keys.pkey, keys.time_col, *keys.fkeys):
        if column is not None and column not in columns:
            there = ", ".join(columns)
            raise ConfigError(f"{where} has no column {column!r}, one of its keys; it has {there}")
    for column, parent in keys.fkeys.items():
        check_name(column, f"foreign key of {where}")
        if parent not in database.tables or database.tables[parent].pkey is None:
            lacks = "has no primary key" if parent in database.tables else "does not exist"
            raise ConfigError(f"{where}: {column!r} refers to table {parent!r}, which {lacks}")
    kind = columns.get(keys.time_col or "", "TIMESTAMP")
    if family_of(kind) not in ("time", "text", *NUMBERS):
        raise ConfigError(
            f"{where}: the time column {keys.time_col!r} is {kind}; times are timestamps, dates, "
            "or seconds since 1970"
        )
