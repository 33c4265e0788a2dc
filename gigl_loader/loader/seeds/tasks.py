"""Tasks of a database: rows of (entity, time, target), by SQL, from a column, or as files.

::

    dataset.task("churn") --> Task --> split("train") --> Split --> DistNeighborLoader(..., split)
"""

import logging
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import FilePath, NodeType
from gigl_loader.errors import ConfigError, UsageError, WrongTypeError
from gigl_loader.loader.seeds.split import Split
from gigl_loader.partitioning.databases.database_tables import digest_of_source
from gigl_loader.partitioning.databases.encode import key_sql
from gigl_loader.partitioning.databases.source import (
    MANIFEST,
    NUMBERS,
    Database,
    family_of,
    named,
    one_row,
    open_database,
    seconds_of,
    seconds_sql,
    upto_sql,
)
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name
from gigl_loader.runtime.yaml_files import read_yaml

SplitName = Literal["train", "val", "test"]
Kind = Literal["forecast", "autocomplete", "external"]
_LABELS, _ROWS = '"gigl_loader labels"', '"gigl_loader rows"'
_TOLD = {
    **{name: name for name in ("name", "kind", "task_type", "timedelta", "num_eval_timestamps")},
    **{"sql": "sql", "target": "target_col", "time": "time_col"},
}
"""What a manifest calls the fields of a task."""
_log = logging.getLogger(__name__)


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
        told = read_yaml(Path(folder) / MANIFEST) or {}
        source = "src_entity" if told.get("src_entity_table") else "entity"
        entity = told.get(f"{source}_table")
        if entity is None or told.get("kind") not in get_args(Kind):
            raise ConfigError(
                f"{folder}/{MANIFEST} must have entity_table, and kind as one of {get_args(Kind)}"
            )
        given: dict[str, Any] = {name: told.get(there) for name, there in _TOLD.items()}
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
        if name not in get_args(SplitName):
            raise ConfigError(f"a split is one of {get_args(SplitName)}, got {name!r}")
        if self.database is None:
            raise UsageError(
                f"task {self.name!r} has no database: take it from dataset.task(...), or give "
                "database=open_database(source)"
            )
        _check_hidden(self, self.database)
        file = None if self.folder is None else self.folder / f"{name}.parquet"
        is_shipped = file is not None and file.is_file()
        # RelBench cuts for training and validation alone: labels of the test are the future
        whole = is_shipped or name == "test"
        cut = None if whole else _stamp(self, self.database, "test_timestamp")
        what = f"task {self.name!r}, split {name!r}"
        with closing(self.database.upto(cut).connect()) as connection, named(what):
            rows = _Rows(self, self.database, name, connection, what)
            if is_shipped:
                rows.make(f"SELECT * FROM read_parquet({quoted(file)})", "ORDER BY rowid")
            elif self.kind == "autocomplete":
                rows.make(*rows.of_column())
            elif self.kind == "forecast" and self.sql is not None:
                rows.make(*rows.of_query())
            else:
                raise ConfigError(f"{what}: there are neither sql nor labels ({file})")
            return rows.as_split(mask=name == "test" if mask is None else mask)


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
            is_there = column in database.columns.get(table, ())
            if not is_there or column == database.tables[table].time_col:
                which = "the time column of" if is_there else "and there is none of that name in"
                raise ConfigError(
                    f"task {task.name!r} hides {column!r}, {which} table {table!r}: leave it out "
                    "of remove_columns, which may name all columns but that of the time"
                )


@dataclass
class _Rows:
    """The rows of a split, while they are read."""

    task: Task
    database: Database
    """Has all rows; the connection's may be cut."""
    split: str
    connection: Any
    what: str
    """The split's name in errors."""
    times: str = "as they were shipped"
    """The times of the split, for people."""

    def make(self, query: str, chosen: str) -> None:
        """Run SQL for the labels, and for those of them that are taken, in order."""
        self.connection.execute(f"CREATE TEMP TABLE {_LABELS} AS SELECT * FROM ({query}\n)")
        self.table = self.connection.sql(f"FROM {_LABELS} {chosen}").to_arrow_table()
        self.connection.register(_ROWS[1:-1], self.table)
        if not self.table.num_rows:
            _log.warning("%s has no rows (%s)", self.what, self.times)

    # --- times ------------------------------------------------------------------------------------

    def _delta(self) -> int:
        given = self.task.timedelta
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        text = quoted(given if isinstance(given, str) else f"{seconds} seconds")
        parts = "epoch(i), date_part('year', i) + date_part('month', i)"
        query = f"SELECT {parts} FROM (SELECT TRY_CAST({text} AS INTERVAL) AS i)"
        found, months = one_row(self.connection, query)
        if found is None or months or found <= 0 or found % 1:
            raise ConfigError(
                f"task {self.task.name!r}: timedelta must be whole seconds, or a text such as "
                f"'60 days', got {given!r}"
            )
        return int(found)

    def _range(self) -> tuple[int, int]:
        """Return the first second of all tables, rounded up, and the last one, rounded down."""
        ends = []
        for table, keys in self.database.tables.items():
            if keys.time_col is not None:
                kind = self.database.columns[table][keys.time_col]
                down = seconds_sql(quoted_name(keys.time_col), kind)
                up = f"{down} + (NOT {upto_sql(keys.time_col, kind, down)})::BIGINT"
                ends.append(f"SELECT {up} AS up, {down} AS down FROM {quoted_name(table)}")
        both = " UNION ALL ".join(ends) or "SELECT NULL::BIGINT AS up, NULL::BIGINT AS down"
        first, last = one_row(self.connection, f"SELECT min(up), max(down) FROM ({both})")
        if first is None:
            raise ConfigError("no table has a time, so there are no splits by time")
        return first, last

    def _seed_times(self) -> list[int]:
        """Return the times of the seeds, in RelBench's order."""
        task, delta, (first, last) = self.task, self._delta(), self._range()
        val, test = (_stamp(task, self.database, f"{at}_timestamp") for at in ("val", "test"))
        start = test if self.split == "test" else val
        if delta > test - val or (self.split != "train" and start + delta > last):
            raise ConfigError(
                f"task {task.name!r}: timedelta ({delta} s) is longer than the time from "
                f"{'validation to test' if delta > test - val else f'{self.split} to the last row'}"
            )
        if self.split == "train":
            found = list(range(val - delta, first - 1, -delta))
            if len(found) < 3:
                raise ConfigError(
                    f"task {task.name!r}: the rows before validation have {len(found)} times of "
                    f"{delta} s, and training takes 3"
                )
            return found
        latest = last if self.split == "test" else test
        end = min(start + delta * (task.num_eval_timestamps - 1), latest - delta)
        return list(range(start, end + 1, delta))

    # --- rows -------------------------------------------------------------------------------------

    def of_query(self) -> tuple[str, str]:
        """Return SQL for the labels, and for those whose entities exist at test time."""
        task = self.task
        if task.time is None or not (task.target or task.destination):
            raise ConfigError(
                f"task {task.name!r}: sql needs time=, the column of the seeds' times, and target= "
                "or destination="
            )
        times, delta = self._seed_times(), self._delta()
        self.times = f"seeds at {', '.join(str(np.datetime64(at, 's')) for at in sorted(times))}"
        self.connection.execute(
            "CREATE TEMP TABLE timestamps AS SELECT make_timestamp(unnest(?::BIGINT[]) * 1000000) "
            'AS "timestamp"',
            [times],
        )
        text = f"{delta // 86_400} days {timedelta(seconds=delta % 86_400)!s:0>8}"
        made = str(task.sql).replace("{timedelta}", text).rstrip("; \n")
        entity, time = quoted_name(task.entity[1]), quoted_name(task.time)
        known = f"WHERE {entity} IN ({self._keys(task.entity[0])}) ORDER BY {time}, {entity}"
        if task.destination is None:
            return made, f"{known}, {quoted_name(task.target)}"
        lists = quoted_name(task.destination[1])
        return made, (
            f"AS l JOIN (SELECT r, list(d ORDER BY d) AS d FROM (SELECT rowid AS r, unnest({lists})"
            f" AS d FROM {_LABELS}) WHERE d IN ({self._keys(task.destination[0])}) GROUP BY r) "
            f"AS k ON l.rowid = k.r SELECT l.* REPLACE (k.d AS {lists}) {known}, k.d"
        )

    def of_column(self) -> tuple[str, str]:
        """Return SQL for the rows of the entity's table whose time is in the split, sorted."""
        table, target = self.task.entity[0], quoted_name(self.task.target)
        keys, columns = self.database.tables[table], self.database.columns[table]
        if keys.time_col is None:
            raise ConfigError(
                f"task {self.task.name!r}: table {table!r} has no time to split it by"
            )
        val, test = (self._upto(table, f"{at}_timestamp") for at in ("val", "test"))
        within = {"train": val, "val": f"{test} AND NOT {val}", "test": f"NOT {test}"}[self.split]
        self.times = f"where {within}"
        missing = f"{target} IS NULL"
        if family_of(columns[self.task.target]) == "float":
            missing = f"({missing} OR isnan({target}))"
        key, time = quoted_name(keys.pkey or "primary_key"), quoted_name(keys.time_col)
        numbered = f"SELECT *, {self._key(table)} AS {key} FROM {quoted_name(table)}"
        rows = quoted_name(table) if keys.pkey else f"({numbered})"
        made = f"SELECT {time}, {key}, {target} FROM {rows} WHERE {within} AND NOT {missing}"
        return made, f"ORDER BY {time}, {key}"

    def _upto(self, table: str, name: str) -> str:
        """Return SQL that is true for rows of a table up to a time stamp."""
        time_col = self.database.tables[table].time_col
        if time_col is None:
            return "true"
        kind = self.database.columns[table][time_col]
        return upto_sql(time_col, kind, _stamp(self.task, self.database, name))

    def _keys(self, table: str) -> str:
        """Return SQL for the keys of a table's rows at test time."""
        if table not in self.database.tables:
            raise ConfigError(
                f"task {self.task.name!r} names table {table!r}, which the database has not"
            )
        where = self._upto(table, "test_timestamp")
        return f"SELECT {self._key(table)} FROM {quoted_name(table)} WHERE {where}"

    def _key(self, table: str) -> str:
        """Return SQL for the primary key of a table; without one, for the number of the row."""
        keys = self.database.tables[table]
        if keys.pkey is not None:
            return quoted_name(keys.pkey)
        if keys.time_col is not None:
            time = quoted_name(keys.time_col)
            before = f"SELECT {time} AS t, lag({time}) OVER () AS u FROM {quoted_name(table)}"
            if one_row(self.connection, f"SELECT count(*) FROM ({before}) WHERE t < u")[0]:
                raise ConfigError(
                    f"task {self.task.name!r}: table {table!r} has no primary key and is not "
                    f"sorted by {keys.time_col!r}, so rows have other numbers when it is cut: give "
                    "it a key"
                )
        return "(row_number() OVER () - 1)"

    # --- tensors ----------------------------------------------------------------------------------

    def as_split(self, *, mask: bool) -> Split:
        """Return the rows as seeds."""
        task, (table, entity), time = self.task, self.task.entity, self.task.time
        kinds = {n: k for n, k, *_ in self.connection.execute(f"DESCRIBE {_ROWS}").fetchall()}
        if task.kind == "autocomplete" and table in self.database.tables:
            keys = self.database.tables[table]
            entity, time = entity or keys.pkey or "primary_key", time or keys.time_col
        other, label = task.destination or ("", task.target)
        wanted = [name for name in (entity, time, None if mask else label) if name is not None]
        if lost := [name for name in wanted if name not in kinds]:
            raise ConfigError(f"{self.what}: its rows have no column {lost}, but {list(kinds)}")
        ids = self._ids(table, quoted_name(entity), kinds[entity])
        seconds = target = pairs = None
        if time is not None:
            seconds = _tensor(self._column(seconds_sql(quoted_name(time), kinds[time]), time))
        if mask:
            self.table = self.table.select([name for name in (time, entity) if name is not None])
        elif other:
            lists = quoted_name(label)
            of = self._ids(other, f"unnest({lists})", kinds[label].removesuffix("[]"))
            counts = _tensor(self._column(f"len({lists})", label))
            rows = torch.arange(len(ids), device="cpu").repeat_interleave(counts)
            pairs = other, torch.stack([rows, of])
        else:
            target = self._target(kinds[label])
        num_dst = 0
        if other and task.dataset is not None:
            num_dst = task.dataset.view().num_nodes[other]
        elif pairs is not None and pairs[1].numel():
            num_dst = int(pairs[1][1].max()) + 1
        given = (self.table, (table, ids), seconds, target, pairs, num_dst, task.hidden)
        return Split(task.name, self.split, *given)

    def _column(self, sql: str, name: str) -> Any:
        """Return the values of some SQL over the rows, as Arrow's; ``name``: in errors."""
        values = self.connection.sql(f"SELECT {sql} AS v FROM {_ROWS}").to_arrow_table()["v"]
        if values.null_count:
            raise ConfigError(
                f"{self.what}: column {name!r} is null in {values.null_count} rows, or has no "
                "whole number of 64 bits there"
            )
        return values

    def _target(self, kind: str) -> Tensor:
        column = self.task.target
        name = quoted_name(column)
        if kind.endswith("]"):
            try:
                return torch.as_tensor(self._column(name, column).to_pylist(), device="cpu")
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.what}: {column!r} has no numbers, or not as many in each row: {error}"
                ) from error
        classes = self.task.task_type == "multiclass_classification"
        number = f"coalesce({name}::DOUBLE, 'nan'::DOUBLE)"
        sql = key_sql(name, kind, as_text=False) if classes else number
        return _tensor(self._column(sql, column))

    def _ids(self, table: str, name: str, kind: str) -> Tensor:
        """Return the ids in the dataset of keys; without a dataset, they are the keys."""
        dataset, is_text = self.task.dataset, False
        if dataset is not None:
            some = np.arange(min(1, dataset.view().num_nodes.get(table, 0)))
            is_text = dataset.to_original(some, table).dtype == object
        if not is_text and family_of(kind) not in NUMBERS:
            raise ConfigError(
                f"{self.what}: keys of {table!r} are text, which only a dataset with such keys "
                "knows: take the task from one"
            )
        keys = self._column(key_sql(name, kind, as_text=is_text), name)
        if dataset is None:
            return _tensor(keys)
        try:
            ids: Tensor = dataset.from_original(keys.combine_chunks(), table)
        except ConfigError as error:
            raise ConfigError(
                f"{self.what}: {error}. Rows after the dataset's upto= are not in it: open it with "
                "a later one, or leave such seeds out"
            ) from error
        return ids


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.array(values.to_numpy()))
