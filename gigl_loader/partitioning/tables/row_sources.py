"""Where the rows of a table come from, if not from Parquet files that the user names.

A `RowSource` is a CSV file, a version of a Delta or Iceberg table, or a stream of Arrow batches.
Later code, also tasks in other processes, reads Parquet files: those of a version, if they have
exactly its rows (`files_in_place`). Else the rows are written once to files in the scratch
directory, in bounded memory.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, Self, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.errors import ConfigError, UsageError, WrongTypeError, first_line
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.tables.engine_sql import quoted_name, to_read
from gigl_loader.partitioning.tables.files_in_place import can_be_read_in_place
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable, columns_used, is_files
from gigl_loader.runtime.files_of_others import inside

_COMPARED_ROWS = 8
"""Rows at the start of a stream that two reads must agree on."""
_IN_PLACE_FEATURES = frozenset(
    (
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    )
)
"""What may be in use in a Delta table whose files are read in place: looked at here, or in the
files, or of no concern to rows."""
_MOST_MASKED_ROWS = 100_000_000
"""Rows of a Delta table that are looked at for deleted ones, with at most a byte for each."""

Opened = tuple[Any, Iterator[Any]]
"""The Arrow schema of a source, and its record batches."""


class RowSource(ABC):
    """Rows that can be read several times, each time in the same order."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the source in errors."""

    @property
    def identity(self) -> dict[str, Any] | None:
        """Equal for equal versions of the rows only, as a run notes it; None: unknown."""
        return None

    @abstractmethod
    def open(self, columns: list[str] | None) -> AbstractContextManager[Opened]:
        """Return a context of the schema and the batches of some columns; None: of all."""

    def parquet_files(self, columns: list[str]) -> list[str] | None:
        """Return paths of Parquet files with the rows of `open`, in its order; None: copy them."""
        return None


@dataclass(frozen=True)
class CsvFile(RowSource):
    """A CSV file, whose types the engine detects."""

    job: ResumableJob
    path: str
    filesystem: Any

    @property
    def name(self) -> str:
        """See `RowSource`."""
        return self.path

    @contextmanager
    def open(self, columns: list[str] | None) -> Iterator[Opened]:
        """See `RowSource`."""
        # In the order of the file: it determines the numbers of nodes, and errors name rows.
        # Strict, else the engine would guess at broken lines.
        with self.job.engine(ordered=True) as engine:
            if self.filesystem is not None:
                engine.register_filesystem(self.filesystem)
            names = "*" if columns is None else ", ".join(map(quoted_name, columns))
            source = f"read_csv({to_read(self.path)}, strict_mode=true, hive_partitioning=false)"
            rows = engine.sql(f"SELECT {names} FROM {source}")
            reader = rows.to_arrow_reader(self.job.sizes.table_rows)
            yield reader.schema, reader


@dataclass(frozen=True)
class TableVersion(RowSource):
    """A version of a table that keeps several."""

    id: str
    """The id of the table, which one that takes its place has not."""

    @property
    def identity(self) -> dict[str, Any]:
        """See `RowSource`."""
        return asdict(self)

    def _check_same(self, table_id: Any) -> None:
        if str(table_id) != self.id:
            raise ConfigError(
                f"{self.name}: another table has its place since the run began (id {table_id}, was "
                f"{self.id})"
            )


@dataclass(frozen=True)
class DeltaVersion(TableVersion):
    """A version of a Delta table."""

    delta: str
    """The path or the URL of the table."""
    version: int

    @classmethod
    def of(cls, delta: str, version: int | None) -> Self:
        """Return a version of a table; None: the newest."""
        whole = isinstance(version, Integral) and not isinstance(version, bool) and version >= 0
        if version is not None and not whole:
            raise ConfigError(
                f"version of the Delta table {delta} must be a whole number from 0 on, got "
                f"{version!r}{_newest_of(delta)}"
            )
        table = _open_delta(delta, version)
        return cls(str(table.metadata().id), delta, table.version())

    @property
    def name(self) -> str:
        """See `RowSource`."""
        return f"version {self.version} of the Delta table {self.delta}"

    @contextmanager
    def open(self, columns: list[str] | None) -> Iterator[Opened]:
        """See `RowSource`."""
        table = self._opened()
        from deltalake import QueryBuilder

        # Its query engine, not `to_pyarrow_dataset`: that one refuses deletion vectors and renamed
        # columns. In one partition, else files are read at once, and rows come in any order.
        query = QueryBuilder({"datafusion.execution.target_partitions": "1"})
        names = "*" if columns is None else ", ".join(map(quoted_name, columns))
        with _reading(self.name):
            stream = query.register("versioned", table).execute(f"SELECT {names} FROM versioned")
            reader = pa.RecordBatchReader.from_stream(stream)
        yield reader.schema, _guarded(self.name, reader)

    def parquet_files(self, columns: list[str]) -> list[str] | None:
        """See `RowSource`; a version with deleted rows or renamed columns has none."""
        table = self._opened()
        facts = table.metadata()
        # A file may have a partition column, too, but the log tells its values.
        if (
            facts.configuration.get("delta.columnMapping.mode", "none") != "none"
            or not set(columns).isdisjoint(facts.partition_columns)
            or not _IN_PLACE_FEATURES.issuperset(table.protocol().reader_features or ())
        ):
            return None
        with _reading(self.name):
            actions = pa.table(table.get_add_actions())
            if _may_have_deleted_rows(table, actions["num_records"].to_pylist()):
                return None
            schema = pa.schema(table.schema().to_arrow())
            wanted = pa.schema([schema.field(name) for name in columns])
            # In the order of the log, as `open` reads them.
            paths, sizes = table.file_uris(), actions["size_bytes"].to_pylist()
            return paths if can_be_read_in_place(paths, sizes, wanted) else None

    def _opened(self) -> Any:
        table = _open_delta(self.delta, self.version)
        self._check_same(table.metadata().id)
        for name in pa.table(table.get_add_actions())["path"].to_pylist():
            path = unquote(name)
            if re.match(r"/|\w+:/", path) or ".." in path.split("/"):
                raise ConfigError(
                    f"{self.name} names {name}, which is not in its folder, from which alone files "
                    "are read: write the table anew"
                )
            if "://" not in self.delta:
                inside(Path(self.delta), path)
        return table


def _may_have_deleted_rows(table: Any, counts: list[int | None]) -> bool:
    """Return False if no file of a Delta table has a deletion vector; ``counts`` are their rows."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    # deltalake tells which files have one with a byte for each of their rows.
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or sum(known) > _MOST_MASKED_ROWS:
        return True
    return any(
        batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors())
    )


def _open_delta(path: str, version: int | None) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        _refuse_missing("delta", "deltalake", error)
    try:
        return DeltaTable(path, version=version)
    except Exception as error:  # deltalake's own classes, and those of its stores
        which = "the newest version" if version is None else f"version {version}"
        raise ConfigError(
            f"{which} of the Delta table {path} cannot be read: {first_line(error)}"
            + ("" if version is None else _newest_of(path))
        ) from error


def _newest_of(path: str) -> str:
    """Return the newest version of a Delta table, for an error; "": it cannot be read either."""
    try:
        return f"; the newest version is {_open_delta(path, None).version()}"
    except ConfigError:
        return ""


@dataclass(frozen=True)
class IcebergSnapshot(TableVersion):
    """A snapshot of an Iceberg table."""

    iceberg: str
    """``catalogue.namespace.table``."""
    snapshot: int | None
    """None: the table has no snapshot yet, so it has no rows."""
    schema: int
    """The id of the schema, which names the columns: renaming one makes no snapshot."""

    @classmethod
    def of(cls, iceberg: str, snapshot: int | None) -> Self:
        """Return a snapshot of a table; None: the current one."""
        table = _open_iceberg(iceberg)
        schema = table.schema().schema_id
        if snapshot is None:
            newest = table.current_snapshot()
            snapshot = None if newest is None else newest.snapshot_id
        else:  # with the names of its time, as pyiceberg's own `scan` has them
            its_schema = _snapshot(table, iceberg, snapshot).schema_id
            schema = schema if its_schema is None else its_schema
        return cls(str(table.metadata.table_uuid), iceberg, snapshot, schema)

    @property
    def name(self) -> str:
        """See `RowSource`."""
        return f"snapshot {self.snapshot} of the Iceberg table {self.iceberg}"

    @contextmanager
    def open(self, columns: list[str] | None) -> Iterator[Opened]:
        """See `RowSource`."""
        table = _open_iceberg(self.iceberg)
        self._check_same(table.metadata.table_uuid)
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        fields = table.schemas()[self.schema]
        fields = fields if columns is None else fields.select(*columns)
        schema = schema_to_pyarrow(fields, include_field_ids=False)
        yield schema, _guarded(self.name, self._batches(table, fields, schema))

    def _batches(self, table: Any, fields: Any, schema: Any) -> Iterator[Any]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        # A file at a time: `to_arrow_batch_reader` reads all files at once into memory.
        scan = ArrowScan(table.metadata, table.io, fields, AlwaysTrue())
        for task in self._files(table):
            for batch in scan.to_record_batches([task]):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def _files(self, table: Any) -> list[Any]:
        """Return the files of the snapshot, with what was deleted from each.

        In the order of its manifests, as pyiceberg reads them: rows are counted over them.
        """
        if self.snapshot is None:
            return []
        snapshot = _snapshot(table, self.iceberg, self.snapshot)
        files = list(table.scan(snapshot_id=self.snapshot).plan_files())
        if table.catalog.supports_server_side_planning():  # it promises no order
            entries = (
                entry
                for manifest in snapshot.manifests(table.io)
                for entry in manifest.fetch_manifest_entry(table.io)
            )
            places = {str(entry.data_file.file_path): i for i, entry in enumerate(entries)}
            files.sort(key=lambda task: places[str(task.file.file_path)])
        return files

    def parquet_files(self, columns: list[str]) -> list[str] | None:
        """See `RowSource`; a snapshot with deleted rows or renamed columns has none."""
        table = _open_iceberg(self.iceberg)
        self._check_same(table.metadata.table_uuid)
        from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
        from pyiceberg.manifest import FileFormat

        fields = table.schemas()[self.schema].select(*columns)
        wanted = schema_to_pyarrow(fields, include_field_ids=False)
        field_ids = {field.name: field.field_id for field in fields.fields}
        paths, sizes = [], []
        with _reading(self.name):
            for task in self._files(table):
                if task.delete_files or task.file.file_format != FileFormat.PARQUET:
                    return None
                scheme, _, path = PyArrowFileIO.parse_location(task.file.file_path)
                paths.append(path if scheme == "file" else task.file.file_path)
                sizes.append(task.file.file_size_in_bytes)
            return paths if can_be_read_in_place(paths, sizes, wanted, field_ids) else None


def _open_iceberg(name: str) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        _refuse_missing("iceberg", "pyiceberg", error)
    catalog, _, table = name.partition(".")
    try:
        return load_catalog(catalog).load_table(table)
    except Exception as error:  # pyiceberg's own classes, and those of catalogues and stores
        raise ConfigError(
            f"the Iceberg table {table!r} of the catalogue {catalog!r} cannot be read: "
            f"{first_line(error)}; catalogues are described in .pyiceberg.yaml or "
            f"PYICEBERG_CATALOG__{catalog.upper()}__URI"
        ) from error


def _snapshot(table: Any, name: str, snapshot: int) -> Any:
    known = table.snapshot_by_id(snapshot)
    if known is None:
        raise ConfigError(f"the Iceberg table {name} has no snapshot {snapshot}, or no longer")
    return known


@dataclass
class ArrowStream(RowSource):
    """Arrow batches of an object, or of the new object that a function returns for each read."""

    source: Any
    where: str
    """Name of the table in errors."""
    version: int | str | None = None
    """The caller's name for these rows."""
    _first_rows: str | None = None

    @property
    def name(self) -> str:
        """See `RowSource`."""
        kind = "table" if isinstance(self.source, pa.Table) else "source"
        return f"the Arrow {kind} of {self.where}"

    @property
    def identity(self) -> dict[str, Any] | None:
        """See `RowSource`."""
        return None if self.version is None else {"arrow": self.version}

    @contextmanager
    def open(self, columns: list[str] | None) -> Iterator[Opened]:
        """See `RowSource`."""
        with _reading(self.name):
            has_stream = hasattr(self.source, "__arrow_c_stream__")
            stream = self.source if has_stream else self.source()
            if not hasattr(stream, "__arrow_c_stream__"):
                raise WrongTypeError(
                    f"{self.name} must return a pyarrow.RecordBatchReader or another object with "
                    f"__arrow_c_stream__, got {type(stream).__name__}"
                )
            reader = pa.RecordBatchReader.from_stream(stream)
            first = next((batch for batch in reader if batch.num_rows), None)
        self._check_first_rows(first)
        batches = itertools.chain([] if first is None else [first], _guarded(self.name, reader))
        names = reader.schema.names if columns is None else columns
        schema = pa.schema([reader.schema.field(name) for name in names])
        yield schema, (batches if columns is None else (b.select(names) for b in batches))

    def _check_first_rows(self, first: Any) -> None:
        """Check that a second read begins as the first one did: a reader may be used up."""
        rows = "" if first is None else repr(first.slice(0, _COMPARED_ROWS).to_pylist())
        if self._first_rows not in (None, rows):
            raise ConfigError(
                f"{self.name} cannot be read again: the second time it began with other rows, or "
                "had none; give a function that returns a new reader of the same rows each time"
            )
        self._first_rows = rows


def _refuse_missing(extra: str, package: str, error: ImportError) -> NoReturn:
    raise ConfigError(
        f'tables of {extra}= need {package}: run pip install "gigl_loader[{extra}]" ({error})'
    ) from error


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Name the source in an error of its reader."""
    try:
        yield
    except (ConfigError, UsageError):
        raise
    except Exception as error:  # of any library, and of the caller's own function
        raise UsageError(
            f"{name} cannot be read: {first_line(error)}; call again to continue, or with "
            "overwrite=True to begin anew"
        ) from error


def _guarded(name: str, batches: Iterable[Any]) -> Iterator[Any]:
    with _reading(name):
        yield from batches


# --- of a graph -----------------------------------------------------------------------------------


Tables = Mapping[str, NodeTable | EdgeTable]
Sources = dict[str, RowSource | None]
"""By the name of a table in errors; None: it is files."""


def newest_sources(tables: Tables) -> Sources:
    """Return the source of each table, at the version that it names, or else the newest.

    Raises:
        ConfigError: There is no such table, version or column, or a package is missing.
    """
    sources: Sources = {}
    for where, table in tables.items():  # one after the other: errors name the first bad table
        source = sources[where] = _source_of(where, table, None)
        if source is None:
            continue
        with source.open(None) as (schema, _):
            for column in columns_used(table):
                if schema.get_field_index(column) < 0:
                    raise no_column(where, source.name, column, schema.names)
    return sources


def versions_of(sources: Sources) -> dict[str, dict[str, Any]]:
    """Return the identity of each source that has one."""
    identities = {where: source.identity for where, source in sources.items() if source}
    return {where: identity for where, identity in identities.items() if identity}


def noted_sources(tables: Tables, versions: Mapping[str, Mapping[str, Any]]) -> Sources:
    """Return the source of each table at noted versions, see `versions_of`; nothing is opened."""
    return {where: _source_of(where, table, versions) for where, table in tables.items()}


def _source_of(
    where: str, table: NodeTable | EdgeTable, versions: Mapping[str, Mapping[str, Any]] | None
) -> RowSource | None:
    """Return the source of a table: at a noted version, or without those at its own or newest."""
    if table.delta is not None:
        if versions is not None:
            return DeltaVersion(**versions[where])
        return DeltaVersion.of(str(table.delta), cast("Any", table.version))
    if table.iceberg is not None:
        if versions is not None:
            return IcebergSnapshot(**versions[where])
        return IcebergSnapshot.of(table.iceberg, table.snapshot)
    return None if is_files(table.source) else ArrowStream(table.source, where, table.version)


def no_column(where: str, name: str, column: str, names: Sequence[str]) -> ConfigError:
    """Return the error for a column that is missing, or that exists twice."""
    return ConfigError(f"{where}: {name} has no column {column!r}; it has {', '.join(names)}")


# --- to Parquet -----------------------------------------------------------------------------------


def write_rows(
    job: ResumableJob, source: RowSource, columns: list[str] | None, folder: Path
) -> list[int]:
    """Write the rows of a source to ``0.parquet``, ``1.parquet`` ...; return the rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    with (
        job.work_on(f"read {source.name}", 0) as progress,
        source.open(columns) as (schema, batches),
    ):
        groups = _row_groups(job, schema, batches)
        for group in groups:
            # Read a few times, and removed: neither a dictionary, statistics nor compression are
            # worth their time.
            with pq.ParquetWriter(
                folder / f"{len(counts)}.parquet",
                group.schema,
                use_dictionary=False,
                write_statistics=False,
                compression="none",
            ) as writer:
                counts.append(0)
                for several in itertools.chain([group], groups):
                    writer.write_table(several)
                    counts[-1] += several.num_rows
                    progress(several.num_rows)
                    if counts[-1] >= job.sizes.file_rows:
                        break
    pa.default_memory_pool().release_unused()  # later stages need the memory
    return counts


def _row_groups(job: ResumableJob, schema: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield tables of some megabytes; at least one, which may be empty."""
    # Views of texts, as Polars and DataFusion have them, differ in their layout only.
    kept = pa.schema(
        [f.with_type(pa.string()) if pa.types.is_string_view(f.type) else f for f in schema]
    )
    waiting, nbytes, num_groups = [kept.empty_table()], 0, 0
    most = job.sizes.table_rows
    for batch in batches:
        for start in range(0, batch.num_rows, most):
            # Cast before it is measured: views of texts share buffers, which count for each.
            piece = pa.Table.from_batches([batch.slice(start, most)], schema).cast(kept)
            waiting.append(piece)
            nbytes += piece.nbytes
            if nbytes >= job.sizes.waiting_bytes:
                yield pa.concat_tables(waiting)
                waiting, nbytes, num_groups = [], 0, num_groups + 1
    if nbytes or not num_groups:
        yield pa.concat_tables(waiting)
