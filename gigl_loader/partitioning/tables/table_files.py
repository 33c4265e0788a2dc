"""Files of a table: found, or written from another source, and read in batches."""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.partition.doubts import not_numbers
from gigl_loader.errors import ConfigError, without_default_types
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.tables.row_sources import (
    ArrowStream,
    CsvFile,
    RowSource,
    no_column,
    write_rows,
)
from gigl_loader.partitioning.tables.table_folders import CSV, files_at, key_folder
from gigl_loader.runtime.memory.segments import Array

_log = logging.getLogger(__name__)
_NAMED = 5
"""Number of invalid rows that an error names."""
_READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class TableFile:
    """One Parquet file of a table."""

    path: str
    """The path to open."""
    name: str
    """The name for errors: the user's file or other source."""
    first_row: int
    """Rows of the table before it."""
    group_rows: tuple[int, ...]
    """Rows of each row group; empty if the file was not Parquet."""
    num_rows: int
    skipped_rows: int = 0
    """Rows of the user's source before this file, which has some of its rows."""

    def describe_row(self, row: int) -> str:
        """Return the location of a row of this file in the user's file or source, in words."""
        # Parquet tools show and cut by row groups. "right" skips empty ones.
        ends = np.cumsum(self.group_rows)
        group = int(np.searchsorted(ends, row, "right")) if len(ends) else None
        return (
            f"row {self.skipped_rows + row}" if group is None else f"row {row} (row group {group})"
        )


class Table:
    """A table: its files in order.

    Args:
        job: The run; rows that cannot be read in place are written into its scratch directory.
        key: A name for the table, unique in the job.
        source: Paths, a `RowSource` or a ``pyarrow.Table``.
        where: Its name in errors.
        columns: The columns that are read. None: all.
    """

    def __init__(
        self, job: ResumableJob, key: str, source: Any, where: str, columns: list[str] | None = None
    ) -> None:
        self.where, self.filesystem = where, cast("Any", None)
        self.files: list[TableFile] = []
        self.num_rows = 0
        self.in_place_of: str | None = None
        """The name of the version whose files are read in place."""
        for number, given in enumerate(self._list(job, source)):
            if not isinstance(given, RowSource):
                self._add_parquet(given)
            elif (paths := self._files_of(job, f"files/{key}", given, columns)) is not None:
                self.in_place_of = given.name
                for path in paths:
                    self._add_parquet(path)
            else:
                self._import(job, f"import/{key}/{number}", given, columns)
        self._leave_out_headers()
        first = self.files[0]
        self.schema: Any = self._open(first.path, first.name).schema_arrow
        # Files of a version are alike in the used columns, and may have had others over time.
        for file in self.files[1:] if self.in_place_of is None else []:
            self._check_alike(file)

    def _leave_out_headers(self) -> None:
        """Leave out CSV files without rows: the types of their columns cannot be detected."""
        headers = [file for file in self.files if file.name.endswith(CSV) and not file.num_rows]
        if headers and len(headers) == len(self.files):
            raise ConfigError(
                f"{self.where}: {headers[0].name} has no row below its header, so the types of its "
                "columns are not known: give a file with rows, or a Parquet file, which has types"
            )
        self.files = [file for file in self.files if file not in headers]

    def _files_of(
        self, job: ResumableJob, name: str, source: RowSource, columns: list[str] | None
    ) -> list[str] | None:
        """Return the Parquet files with the rows of a source; None: they must be copied."""
        if columns is None or source.identity is None:
            return None
        # Noted, as the steps of a resumed run are those of these files.
        paths: list[str] | None = job.step(name, lambda: source.parquet_files(columns))
        if gone := [path for path in paths or [] if not os.path.exists(path)]:
            raise files_are_gone(source.name, gone)
        return paths

    def _add_parquet(self, path: str) -> None:
        metadata = self._open(path, path).metadata
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self._add(TableFile(path, path, self.num_rows, tuple(groups), metadata.num_rows))

    def _check_alike(self, file: TableFile) -> None:
        other = self._open(file.path, file.name).schema_arrow
        # Metadata is added by writers (pandas: its index), and may differ from file to file.
        if other.remove_metadata() != self.schema.remove_metadata():
            different = [f.name for f in self.schema if f not in list(other)]
            raise ConfigError(
                f"{file.name} has other columns than {self.files[0].name} "
                f"({', '.join(different) or 'their order'}): a table's files must be alike"
            )

    def _list(self, job: ResumableJob, source: Any) -> list[RowSource | str]:
        """Return the parts of a table: paths of Parquet files, and other sources."""
        if isinstance(source, RowSource):
            return [source]
        if isinstance(source, pa.Table):
            return [ArrowStream(source, self.where)]
        paths: list[str] = []
        for given in source if isinstance(source, list | tuple) else [source]:
            if not isinstance(given, str | os.PathLike):
                raise ConfigError(
                    f"{self.where}: a list of sources has paths only, got {type(given).__name__}"
                )
            some, filesystem = files_at(os.fspath(given), self.where)
            self.filesystem = filesystem or self.filesystem
            paths += some
        return [CsvFile(job, p, self.filesystem) if p.endswith(CSV) else p for p in paths]

    def _import(
        self, job: ResumableJob, name: str, source: RowSource, columns: list[str] | None
    ) -> None:
        folder, skipped = job.folder / name, 0
        # The types of CSV are detected; a missing column is named by `type_of`, which knows all.
        wanted = None if isinstance(source, CsvFile) else columns
        counts = job.step(name, partial(write_rows, job, source, wanted, folder))
        for number, count in enumerate(counts):
            path = str(folder / f"{number}.parquet")
            self._add(TableFile(path, source.name, self.num_rows, (), count, skipped))
            skipped += count

    def _add(self, file: TableFile) -> None:
        self.files.append(file)
        self.num_rows += file.num_rows

    def _open(self, path: str, name: str) -> Any:
        try:
            remote = self.filesystem is not None and "://" in path
            # Not buffered in advance, as is pyarrow's default: it keeps the compressed columns of
            # all row groups until the file is read. So many bytes of a column at a time instead.
            return pq.ParquetFile(
                self.filesystem.open(path) if remote else path,
                pre_buffer=False,
                buffer_size=_READ_BYTES,
            )
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"{self.where}: {name} cannot be read as Parquet: {error}") from error

    def register(self, connection: Any) -> None:
        """Let an engine read the files."""
        if self.filesystem is not None:
            connection.register_filesystem(self.filesystem)

    def type_of(self, column: str) -> Any:
        """Return the Arrow type of a column.

        Raises:
            ConfigError: There is no such column.
        """
        index = self.schema.get_field_index(column)
        if index < 0:
            name = self.files[0].name
            if (folder := key_folder(name, column)) is None:
                raise no_column(self.where, name, column, self.schema.names)
            raise ConfigError(
                f"{self.where}: {name} has no column {column!r}; its values are in the names of "
                f"folders only ({folder}): write it into the files, for example with DuckDB's COPY "
                "(FROM read_parquet('.../*.parquet', hive_partitioning=true)) TO 'table.parquet'"
            )
        return self.schema.field(index).type

    def batches(self, file: TableFile, columns: list[str]) -> Iterator[tuple[int, Any]]:
        """Yield (first row in the file, record batch) of some columns of a file."""
        row = 0
        parquet = self._open(file.path, file.name)
        try:
            for batch in parquet.iter_batches(
                ResumableJob.sizes.table_rows, columns=columns, use_threads=False
            ):
                yield row, batch
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:  # of the system, not of what is in it
                raise
            raise ConfigError(
                f"{self.where}: {file.name} is damaged from row {row} on: {error}"
            ) from error

    def refuse(
        self, file: TableFile, column: str, rows: Any, what: str, values: Any = None
    ) -> None:
        """Raise an error that names the first of some rows.

        Args:
            file: Their file.
            column: The column that is wrong.
            rows: Their numbers in the file.
            what: The problem with them.
            values: Their values.
        """
        shown = [
            file.describe_row(int(row)) + ("" if values is None else f": {values[i]!r}")
            for i, row in enumerate(rows[:_NAMED])
        ]
        more = len(rows) - len(shown)
        raise ConfigError(
            f"{self.where}: column {column!r} of {file.name} {what}: {'; '.join(shown)}"
            + (f"; and {more} more" if more > 0 else "")
        )


def files_are_gone(version: str, paths: list[str]) -> ConfigError:
    """Return the error for files of a version that were removed or changed during a run."""
    return ConfigError(
        f"{version} no longer has the files that the run reads in place (a vacuum, or the removal "
        f"of old snapshots, does that): {', '.join(paths[:3])}{'...' if len(paths) > 3 else ''} "
        f"{'was' if len(paths) == 1 else 'were'} removed or changed; unfinished work is removed: "
        "run again with a version that is kept, such as the newest, and keep its files until the "
        "run ends"
    )


def stamp(path: str) -> list[int]:
    """Return a mark that changes with the file: size and time. Empty: it is not on disk."""
    try:
        at = os.stat(path)
    except OSError:
        return []
    return [at.st_size, at.st_mtime_ns]


def id_kind(table: Table, column: str) -> str:
    """Return ``"int"`` or ``"text"``, the kind of ids in a column.

    Raises:
        ConfigError: It holds something else.
    """
    kind = table.type_of(column)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    raise ConfigError(
        f"{table.where}: column {column!r} holds {kind}; ids must be integers or text"
    )


def ids_in(table: Table, file: TableFile, column: str, first: int, values: Any) -> Any:
    """Return a batch of ids as an Arrow array of int64 or string, without nulls."""
    if values.null_count:
        rows = first + np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        table.refuse(file, column, rows, "has nulls")
    kind = pa.int64() if id_kind(table, column) == "int" else pa.string()
    try:  # a uint64 may be too large, and a batch may have more text than 32-bit offsets reach
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{table.where}: column {column!r} of {file.name}: {error}") from error


def matrix_in(
    table: Table,
    file: TableFile,
    columns: list[str],
    first: int,
    batch: Any,
    width: int | None,
    *,
    hint: str = "",
) -> Array:
    """Return columns of a batch as ``[rows, width]``; a column of lists may be the only one.

    ``hint`` tells the user what to do about nulls.

    Raises:
        ConfigError: There are nulls, lists of different lengths, or no numbers.
    """
    arrays = []
    for column in columns:
        values = batch.column(column)
        if values.null_count:
            rows = first + np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            table.refuse(file, column, rows, f"has nulls{hint}")
        if pa.types.is_temporal(values.type):  # its integer, in its own unit
            values = values.cast(pa.int64())
        if is_list(values.type):
            values = _flat(table, file, column, first, values, width)
        if pa.types.is_fixed_size_binary(values.type):
            size, buffers = values.type.byte_width, [None, values.buffers()[1]]
            numbers = len(values) * size
            values = pa.Array.from_buffers(
                pa.uint8(), numbers, buffers, offset=values.offset * size
            )
        arrays.append(_numbers(values, len(batch)))
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0])
    return np.concatenate(arrays, axis=1)


def in_type(
    table: Table, file: TableFile, columns: list[str], first: int, values: Array, dtype: Any
) -> Array:
    """Return ``values`` (``[rows, width]``, of some columns) in another type.

    Raises:
        ConfigError: The type cannot represent a number: it would be infinite, or another one.
    """
    with np.errstate(over="ignore"):
        converted = values.astype(dtype, copy=False)
    lost = None
    if dtype.kind == "f" and dtype.itemsize < values.dtype.itemsize:
        # Infinite input is the user's own. Fewer digits, and 0 for tiny numbers, are expected of a
        # smaller type.
        lost = np.isinf(converted) & np.isfinite(values)
    elif dtype.kind == "i" and values.dtype.kind == "u" and dtype.itemsize <= values.dtype.itemsize:
        lost = converted < 0  # numpy copies the bits
    if lost is not None and lost.any():
        rows, positions = np.nonzero(lost)
        column = columns[positions[0]] if len(columns) > 1 else columns[0]
        wrong = values[rows, positions].tolist()
        table.refuse(file, column, first + rows, f"has numbers too large for {dtype}", wrong)
    return converted


def count_not_numbers(counts: dict[str, int], columns: list[str], values: Array) -> None:
    """Add to ``counts``, by column, how many of ``values`` (``[rows, width]``) are NaN."""
    if values.dtype.kind != "f":
        return
    found = np.isnan(values).sum(0)
    # a column of lists is one column
    of_columns = found if len(columns) == len(found) else [found.sum()]
    for column, count in zip(columns, of_columns, strict=True):
        if count:
            counts[column] = counts.get(column, 0) + int(count)


def doubts_of_columns(what: str, total: int, counts: Iterable[Mapping[str, int]]) -> list[str]:
    """Return the doubt about values that are NaN in the files of a table, if there are any.

    Args:
        what: The values.
        total: Their number.
        counts: Of each file, from `count_not_numbers`.
    """
    whole = Counter[int | str]()
    for of_file in counts:
        whole.update(of_file)
    return [not_numbers(what, total, whole)] if whole else []


def is_list(kind: Any) -> bool:
    """Return whether a type is a list, of fixed length or not."""
    types = pa.types
    fixed = types.is_fixed_size_list(kind)
    return bool(fixed or types.is_list(kind) or types.is_large_list(kind))


def _flat(
    table: Table, file: TableFile, column: str, first: int, values: Any, width: int | None
) -> Any:
    # `offsets` and `flatten` respect that a batch is a slice, which `values` does not.
    if not pa.types.is_fixed_size_list(values.type):
        lengths = np.diff(values.offsets.to_numpy())
        wrong = np.flatnonzero(lengths != (lengths[0] if width is None else width))
        if wrong.size:
            table.refuse(
                file,
                column,
                first + wrong,
                f"has lists of other lengths than {lengths[0] if width is None else width}",
                lengths[wrong].tolist(),
            )
    flat = values.flatten()
    if flat.null_count:
        size = max(1, len(flat) // max(1, len(values)))  # of a list: all have one length here
        inside = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False)) // size
        table.refuse(file, column, first + np.unique(inside), "has nulls in its lists")
    return flat


def _numbers(values: Any, num_rows: int) -> Array:
    # Booleans are bits in Arrow, so a copy must be allowed. Without rows, no width can be inferred.
    array: Array = values.to_numpy(zero_copy_only=False)
    return array.reshape(num_rows, -1) if num_rows else array.reshape(0, 0)


def time_type(table: Table, column: str) -> "np.dtype[Any]":
    """Return int64, the type of times.

    Raises:
        ConfigError: The column holds no integers or timestamps.
    """
    kind = table.type_of(column)
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise ConfigError(
            f"{table.where}: column {column!r} holds {kind}; times must be integers or timestamps"
        )
    return np.dtype(np.int64)


def feature_type(table: Table, dtype: "np.dtype[Any]", chosen: str | None) -> "np.dtype[Any]":
    """Return the type of features: as chosen, float32 for float64, or that of the column."""
    if chosen is not None:
        return np.dtype(chosen)
    # Fractions in CSV and Python's own floats are float64; models are float32, and torch refuses to
    # mix the two.
    if dtype == np.float64:
        _log.warning(
            'features of %s are float64 and are stored as float32: give feature_dtype="float64" to '
            'keep them, or "float32" to say so',
            without_default_types(table.where),
        )
        return np.dtype(np.float32)
    return stored_type(dtype)


def stored_type(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the type of a column's numbers on disk and in batches."""
    if dtype.kind == "u" and dtype.itemsize > 1:
        return np.dtype(np.int64)  # torch cannot compute with unsigned types wider than a byte
    return dtype


def number_type(table: Table, columns: list[str], what: str) -> "np.dtype[Any]":
    """Return numpy's type for some columns of numbers or lists of numbers.

    Raises:
        ConfigError: One of them holds something else.
    """
    dtypes = []
    for column in columns:
        kind = table.type_of(column)
        if is_list(kind):
            if len(columns) > 1:
                raise ConfigError(
                    f"{table.where}: {what} are {columns}, of which {column!r} holds lists: give "
                    "one column of lists, or several of numbers"
                )
            kind = kind.value_type
        types = pa.types
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise ConfigError(
                f"{table.where}: column {column!r} holds {kind}; {what} must be numbers"
            )
        dtypes.append(np.dtype(kind.to_pandas_dtype()))
    # Several columns become one matrix: by numpy's rules, as in `np.concatenate`.
    return np.result_type(*dtypes)


def width_of(table: Table, columns: list[str]) -> int:
    """Return the width of the matrix of some columns; for lists, from the first row."""
    kind = table.type_of(columns[0])
    if not is_list(kind):
        return len(columns)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    # The first value that is not null: a column without one is refused when its rows are read.
    for file in table.files:
        for _, batch in table.batches(file, columns):
            for value in batch.column(0):
                if value.is_valid:
                    return len(value)
    return 0
