"""Tasks of a database: rows of (entity, time, target), by SQL, from a column, or as files.

::

    dataset.task("churn") --> Task --> split("train") --> Split --> DistNeighborLoader(..., split)
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import FilePath, NodeType
from gigl_loader.errors import ConfigError, UsageError, WrongTypeError
from gigl_loader.loader.seeds.split import Split
from gigl_loader.partitioning.databases.database_tables import digest_of_source
from gigl_loader.partitioning.databases.source import (
    MANIFEST,
    Database,
    family_of,
    named,
    one_row,
    open_database,
    read_yaml,
    seconds_of,
    seconds_sql,
    upto_sql,
)
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name

SplitName = Literal["train", "val", "test"]
Kind = Literal["forecast", "autocomplete", "external"]
_LABELS, _ROWS = '"gigl_loader labels"', '"gigl_loader rows"'
_ALIKE = ("name", "kind", "task_type", "timedelta", "num_eval_timestamps", "sql")
_log = logging.getLogger(__name__)
Column = Callable[[str], Any]
"""Returns the values of some SQL over the rows, as Arrow's."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is predicted of the rows of a table, at which times.

    ``dataset.task(name)`` reads one of a folder of RelBench; ``dataset.task(Task(...))`` takes one
    that you write down. Seed times, cuts and rows are RelBench's: see the page "Tasks".
    """

    entity: tuple[NodeType, str]
    """The table of the seeds, and the column of their primary keys in the task's rows."""
    target: str = ""
    """The column of the labels."""
    sql: str | None = None
    """Query for DuckDB with columns for entity, target and time. It sees each table by its name, as
    it may be known to the split, and ``timestamps(timestamp)``; ``{timedelta}`` is replaced by the
    text of `timedelta`. None: the labels are files, or a column of the entity's table."""
    time: str | None = None
    """The column of the seeds' times."""
    timedelta: str | int | timedelta | None = None
    """A label at a time ``t`` is about ``(t, t + timedelta]``: ``"60 days"``, or seconds."""
    destination: tuple[NodeType, str] | None = None
    """For recommendation, the table of the destinations, and the column with lists of their keys;
    there is no ``target``."""
    kind: Kind = "forecast"
    """Labels come from ``sql``, are a column of the entity's table, or only files."""
    task_type: str = "regression"
    """As in RelBench: ``"multiclass_classification"`` has int64 targets, others float64, or lists
    of numbers."""
    num_eval_timestamps: int = 1
    """The most times of validation and of test."""
    val_timestamp: str | int | date | None = None
    """Where validation begins; None: as the database says."""
    test_timestamp: str | int | date | None = None
    """Where the test begins; None: as the database says."""
    remove_columns: tuple[tuple[str, str], ...] = ()
    """(table, column) that no batch of the task has, with the edges of a foreign key."""
    folder: Path | None = None
    """The directory of ``train.parquet``, ``val.parquet`` and ``test.parquet``; those that are
    there are taken as they are."""
    name: str = "task"
    database: Database | None = field(default=None, repr=False, compare=False)
    """Its rows; None: that of the dataset."""
    dataset: DistDataset | None = field(default=None, repr=False, compare=False)
    """Gives the ids of nodes; None: they are the primary keys."""

    @classmethod
    def read(cls, folder: FilePath) -> "Task":
        """Return the task of a directory with ``manifest.yaml``, as RelBench writes it.

        Raises:
            ConfigError: The manifest is missing or damaged, or lacks what its kind needs.
        """
        told = read_yaml(Path(folder) / MANIFEST)
        source = "src_entity" if told.get("src_entity_table") else "entity"
        entity = told.get(f"{source}_table")
        if entity is None or told.get("kind") not in get_args(Kind):
            raise ConfigError(
                f"{folder}/{MANIFEST} must have entity_table, and kind as one of {get_args(Kind)}"
            )
        given: dict[str, Any] = {name: told.get(name) for name in _ALIKE}
        given |= {"target": told.get("target_col"), "time": told.get("time_col")}
        if told.get("dst_entity_table"):
            given["destination"] = (told["dst_entity_table"], told.get("dst_entity_col"))
        return cls(
            entity=(entity, told.get(f"{source}_col") or ""),
            remove_columns=tuple((table, name) for table, name in told.get("remove_columns") or ()),
            folder=Path(folder),
            **{name: value for name, value in given.items() if value is not None},
        )

    @classmethod
    def from_folder(cls, folder: FilePath, name: str) -> "Task":
        """Return a task of a folder of RelBench, without a dataset: ids are its primary keys."""
        return replace(cls.read(Path(folder) / "tasks" / name), database=open_database(folder))

    @classmethod
    def of(cls, dataset: DistDataset, task: object, known: Mapping[str, Any]) -> "Task":
        """Return a task of a dataset, see `DistDataset.task`; ``known``: its ``database.json``."""
        source = known["source"]
        if isinstance(task, str | os.PathLike):
            in_source = Path(source or "") / "tasks" / task
            task = cls.read(in_source if in_source.is_dir() else task)
        if not isinstance(task, Task):
            raise WrongTypeError(f"a task is a name, a directory, or a Task, got {task!r}")
        if task.database is None and source is not None:
            keys = None if Path(source).is_dir() else known["tables"]
            task = replace(task, database=open_database(source, keys))
            if "files" in known and known["files"] != digest_of_source(source):
                _log.warning(
                    "%s has changed since the dataset was made of it (sizes or times of its "
                    "files): labels come from other rows than batches; make the dataset again",
                    source,
                )
        return replace(task, dataset=dataset)

    @property
    def hidden(self) -> dict[NodeType, list[str]]:
        """By table, the columns that no batch has: `remove_columns`, and a target that is one."""
        own = [(self.entity[0], self.target)] if self.kind == "autocomplete" else []
        found: dict[NodeType, list[str]] = {}
        for table, column in (*self.remove_columns, *own):
            found.setdefault(table, []).append(column)
        return found

    @property
    def col_stats(self) -> dict[str, dict[str, dict[Any, Any]]]:
        """``dataset.col_stats`` of the columns that batches of the task have."""
        known, hidden = self.dataset.col_stats if self.dataset else {}, self.hidden
        return {
            table: {name: of for name, of in columns.items() if name not in hidden.get(table, ())}
            for table, columns in known.items()
        }

    def split(self, name: SplitName, *, mask: bool | None = None) -> Split:
        """Return the rows of a split as seeds.

        Args:
            name: ``"train"``, ``"val"`` or ``"test"``.
            mask: Leave the labels out. None: those of the test, as in RelBench.

        Raises:
            ConfigError: SQL, labels, times or entities cannot be used; names the task.
            UsageError: The task has no database.
        """
        what = f"task {self.name!r}, split {name!r}"
        if name not in get_args(SplitName):
            raise ConfigError(f"a split is one of {get_args(SplitName)}, got {name!r}")
        if self.database is None:
            raise UsageError(
                f"task {self.name!r} has no database: take it from dataset.task(...), or give "
                "database=open_database(source)"
            )
        database, is_masked = self.database, name == "test" if mask is None else mask
        _check_hidden(self, database)
        file = None if self.folder is None else self.folder / f"{name}.parquet"
        is_shipped = file is not None and file.is_file()
        # RelBench cuts for training and validation alone: labels of the test are the future
        cut = None if is_shipped or name == "test" else _stamp(self, database, "test_timestamp")
        with closing(database.upto(cut).connect()) as connection, named(what):
            if is_shipped:
                made, chosen = f"SELECT * FROM read_parquet({quoted(file)})", "ORDER BY rowid"
            elif self.kind == "autocomplete":
                made, chosen = _of_column(self, database, name, connection)
            elif self.kind == "forecast" and self.sql is not None:
                made, chosen = _forecast(self, database, name, connection)
            else:
                raise ConfigError(f"{what}: there are neither sql nor labels ({file})")
            connection.execute(f"CREATE TEMP TABLE {_LABELS} AS SELECT * FROM ({made}\n)")
            table = connection.sql(f"FROM {_LABELS} {chosen}").to_arrow_table()
            connection.register(_ROWS[1:-1], table)
            return _as_split(self, database, name, table, connection, what, mask=is_masked)


def _stamp(task: Task, database: Database, name: str) -> int:
    given = getattr(task, name)
    found = getattr(database, name) if given is None else seconds_of(given, name)
    if found is None:
        raise ConfigError(
            f"task {task.name!r} needs {name}, which the database does not say: give it to Task"
        )
    return int(found)


def _check_hidden(task: Task, database: Database) -> None:
    for table, columns in task.hidden.items():
        for column in columns:
            if column not in database.columns.get(table, ()):
                raise ConfigError(
                    f"task {task.name!r} hides column {column!r} of table {table!r}, and there is "
                    "none of that name"
                )
            if column == database.tables[table].time_col:
                raise ConfigError(
                    f"task {task.name!r} hides {column!r}, the time column of table {table!r}, "
                    "which says what a seed may know: leave it out of remove_columns"
                )


# --- times ----------------------------------------------------------------------------------------


def _delta(task: Task, connection: Any) -> int:
    given = task.timedelta
    if isinstance(given, str):
        text = quoted(given)
        parts = f"epoch({text}::INTERVAL), date_part('month', {text}::INTERVAL)"
        seconds, months = one_row(connection, f"SELECT {parts}")
        given = -1 if months else seconds
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if seconds is None or seconds <= 0 or seconds != int(seconds):
        raise ConfigError(
            f"task {task.name!r}: timedelta must be whole seconds, or a text such as '60 days', "
            f"got {task.timedelta!r}"
        )
    return int(seconds)


def _range(connection: Any, database: Database) -> tuple[int, int]:
    """Return the first second of all tables, rounded up, and the last one, rounded down."""
    found = []
    for table, keys in database.tables.items():
        if keys.time_col is not None:
            kind, rows = database.columns[table][keys.time_col], quoted_name(table)
            seconds = seconds_sql(quoted_name(keys.time_col), kind)
            first, last = one_row(connection, f"SELECT min({seconds}), max({seconds}) FROM {rows}")
            if first is not None:
                at_once = upto_sql(keys.time_col, kind, first)
                is_whole = one_row(connection, f"SELECT count(*) FROM {rows} WHERE {at_once}")[0]
                found.append((first + (not is_whole), last))
    if not found:
        raise ConfigError("no table has a time, so there are no splits by time")
    return min(first for first, _ in found), max(last for _, last in found)


def seed_times(task: Task, database: Database, split: str, connection: Any) -> list[int]:
    """Return the times of a split's seeds, in RelBench's order.

    Raises:
        ConfigError: There are too few, or labels would reach beyond the database.
    """
    delta, (first, last) = _delta(task, connection), _range(connection, database)
    val, test = (_stamp(task, database, name) for name in ("val_timestamp", "test_timestamp"))
    start = test if split == "test" else val
    if delta > test - val or (split != "train" and start + delta > last):
        raise ConfigError(
            f"task {task.name!r}: timedelta ({delta} s) is longer than the time from "
            f"{'validation to test' if delta > test - val else f'{split} to the last row'}"
        )
    if split == "train":
        found = list(range(val - delta, first - 1, -delta))
        if len(found) < 3:
            raise ConfigError(
                f"task {task.name!r}: the rows before validation have {len(found)} times of "
                f"{delta} s, and training takes 3"
            )
        return found
    latest = last if split == "test" else test
    end = min(start + delta * (task.num_eval_timestamps - 1), latest - delta)
    return list(range(start, end + 1, delta))


# --- rows -----------------------------------------------------------------------------------------


def _forecast(task: Task, database: Database, split: str, connection: Any) -> tuple[str, str]:
    """Return SQL for the labels, and for those whose entities the database has at test time."""
    if task.time is None or not (task.target or task.destination):
        raise ConfigError(
            f"task {task.name!r}: sql needs time=, the column of the seeds' times, and target= or "
            "destination="
        )
    times, delta = seed_times(task, database, split, connection), _delta(task, connection)
    connection.execute(
        "CREATE TEMP TABLE timestamps AS SELECT make_timestamp(unnest(?::BIGINT[]) * 1000000) AS "
        '"timestamp"',
        [times],
    )
    text = f"{delta // 86_400} days {timedelta(seconds=delta % 86_400)!s:0>8}"
    made = str(task.sql).replace("{timedelta}", text).rstrip("; \n")
    entity, time = quoted_name(task.entity[1]), quoted_name(str(task.time))
    there = _keys(task, database, task.entity[0], connection)
    known = f"WHERE {entity} IN ({there}) ORDER BY {time}, {entity}"
    if task.destination is None:
        return made, f"{known}, {quoted_name(task.target)}"
    lists, there = quoted_name(task.destination[1]), task.destination[0]
    there = _keys(task, database, there, connection)
    return made, (
        f"AS l JOIN (SELECT r, list(d ORDER BY d) AS d FROM (SELECT rowid AS r, unnest({lists}) AS "
        f"d FROM {_LABELS}) WHERE d IN ({there}) GROUP BY r) "
        f"AS k ON l.rowid = k.r SELECT l.* REPLACE (k.d AS {lists}) {known}, k.d"
    )


def _keys(task: Task, database: Database, table: str, connection: Any) -> str:
    """Return SQL for the keys of a table's rows at test time; without a key, their numbers."""
    if table not in database.tables:
        raise ConfigError(f"task {task.name!r} names table {table!r}, which the database has not")
    keys, where = database.tables[table], ""
    if keys.time_col is not None:
        test = _stamp(task, database, "test_timestamp")
        where = f" WHERE {upto_sql(keys.time_col, database.columns[table][keys.time_col], test)}"
    key = _key_sql(task, database, table, connection)
    return f"SELECT {key} FROM {quoted_name(table)}{where}"


def _key_sql(task: Task, database: Database, table: str, connection: Any) -> str:
    """Return SQL for the primary key of a table; without one, for the number of the row."""
    keys = database.tables[table]
    if keys.pkey is not None:
        return quoted_name(keys.pkey)
    if keys.time_col is not None:
        time, view = quoted_name(keys.time_col), quoted_name(table)
        before = f"SELECT {time} AS t, lag({time}) OVER () AS u FROM {view}"
        if one_row(connection, f"SELECT count(*) FROM ({before}) WHERE t < u")[0]:
            raise ConfigError(
                f"task {task.name!r}: table {table!r} has no primary key and is not sorted by "
                f"{keys.time_col!r}, so rows have other numbers when it is cut: give it a key"
            )
    return "(row_number() OVER () - 1)"


def _of_column(task: Task, database: Database, split: str, connection: Any) -> tuple[str, str]:
    """Return SQL for the rows of the entity's table whose time is in the split."""
    table, target = task.entity[0], quoted_name(task.target)
    keys, columns = database.tables[table], database.columns[table]
    if keys.time_col is None:
        raise ConfigError(f"task {task.name!r}: table {table!r} has no time to split it by")
    ends = [
        upto_sql(keys.time_col, columns[keys.time_col], _stamp(task, database, name))
        for name in ("val_timestamp", "test_timestamp")
    ]
    within = {"train": ends[0], "val": f"{ends[1]} AND NOT {ends[0]}", "test": f"NOT {ends[1]}"}
    missing = f"{target} IS NULL"
    if family_of(columns[task.target]) == "float":
        missing = f"({missing} OR isnan({target}))"
    key, time = quoted_name(keys.pkey or "primary_key"), quoted_name(keys.time_col)
    number = f"{_key_sql(task, database, table, connection)} AS {key}"
    made = (
        f"SELECT {time}, {key}, {target} FROM (SELECT *{'' if keys.pkey else ', ' + number} FROM "
    )
    made += f"{quoted_name(table)}) WHERE {within[split]} AND NOT {missing}"
    return made, f"ORDER BY {time}, {key}"


# --- tensors --------------------------------------------------------------------------------------


def _as_split(
    task: Task,
    database: Database,
    split: str,
    table: Any,
    connection: Any,
    what: str,
    *,
    mask: bool,
) -> Split:
    found = connection.execute(f"DESCRIBE {_ROWS}").fetchall()
    kinds = {name: kind for name, kind, *_ in found}
    entity, time = task.entity[1], task.time
    if task.kind == "autocomplete" and task.entity[0] in database.tables:
        keys = database.tables[task.entity[0]]
        entity, time = entity or keys.pkey or "primary_key", time or keys.time_col
    label = None if mask else task.destination[1] if task.destination else task.target
    if lost := [name for name in (entity, time, label) if name is not None and name not in kinds]:
        raise ConfigError(f"{what}: its rows have no column {lost}, but {list(kinds)}")

    def column(sql: str) -> Any:
        return connection.sql(f"SELECT {sql} AS v FROM {_ROWS}").to_arrow_table()["v"]

    ids = _ids(task, task.entity[0], column, quoted_name(entity), kinds[entity], what)
    seconds = target = pairs = None
    if time is not None:
        seconds = _tensor(
            column(f"{seconds_sql(quoted_name(time), kinds[time])}::BIGINT"), what, time
        )
    if mask:
        table = table.select([name for name in (time, entity) if name is not None])
    elif task.destination is not None:
        other, name = task.destination
        lists, kind = quoted_name(name), kinds[name].removesuffix("[]")
        counts = _tensor(column(f"len({lists})"), what, name)
        of = _ids(task, other, column, f"unnest({lists})", kind, what)
        pairs = (
            other,
            torch.stack([torch.arange(len(ids), device="cpu").repeat_interleave(counts), of]),
        )
    else:
        target = _target(task, column, kinds[task.target], what)
    num_dst = 0
    if task.destination is not None and task.dataset is not None:
        num_dst = task.dataset.view().num_nodes[task.destination[0]]
    elif pairs is not None and pairs[1].numel():
        num_dst = int(pairs[1][1].max()) + 1
    nodes = task.entity[0], ids
    return Split(task.name, split, table, nodes, seconds, target, pairs, num_dst, task.hidden)


def _tensor(values: Any, what: str, column: str) -> Tensor:
    if values.null_count:
        raise ConfigError(f"{what}: column {column!r} is null in {values.null_count} rows")
    return torch.from_numpy(np.array(values.to_numpy()))


def _target(task: Task, column: Column, kind: str, what: str) -> Tensor:
    name = quoted_name(task.target)
    if kind.endswith("]"):
        rows = column(name).to_pylist()
        if len({len(row) for row in rows}) > 1:
            raise ConfigError(f"{what}: the lists of {task.target!r} have different lengths")
        try:
            return torch.as_tensor(rows, device="cpu")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what}: {task.target!r} has no numbers: {error}") from error
    if task.task_type == "multiclass_classification":
        return _tensor(column(f"{name}::BIGINT"), what, task.target)
    return _tensor(column(f"coalesce({name}::DOUBLE, 'nan'::DOUBLE)"), what, task.target)


def _ids(task: Task, table: str, column: Column, name: str, kind: str, what: str) -> Tensor:
    """Return the ids in the dataset of keys; without a dataset, they are the keys."""
    dataset = task.dataset
    is_text = False
    if dataset is not None:
        some = np.arange(min(1, dataset.view().num_nodes.get(table, 0)))
        is_text = dataset.to_original(some, table).dtype == object
    is_number = family_of(kind) in ("int", "float", "decimal") and not is_text
    may_be_fractions = is_number and family_of(kind) != "int"
    # not by way of floats where there are none, which are rounded from 2^53 on
    as_type = kind if may_be_fractions else "BIGINT" if is_number else "VARCHAR"
    keys = column(f"TRY_CAST({name} AS {as_type})")
    if may_be_fractions:  # null, as the others that name no row: a cast would round
        try:
            keys = pc.if_else(pc.equal(keys, pc.floor(keys)), keys, None).cast("int64")
        except pa.ArrowInvalid as error:
            raise ConfigError(f"{what}: {name} has no keys of {table!r}: {error}") from error
    if dataset is None and not is_number:
        raise ConfigError(f"{what}: keys of {table!r} are text: take the task from a dataset")
    if dataset is None or keys.null_count:
        return _tensor(keys, what, name)
    try:
        ids: Tensor = dataset.from_original(keys.combine_chunks(), table)
    except ConfigError as error:
        raise ConfigError(
            f"{what}: {error}. Rows after the dataset's upto= are not in it: open it with a later "
            "one, or leave such seeds out"
        ) from error
    return ids
