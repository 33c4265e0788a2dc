"""Which versions of tables are read in place: those whose rows are exactly those of their files.

A version of a Delta or Iceberg table is a list of Parquet files, and what has been done to them:
rows are marked as deleted, columns are renamed, added, widened, or taken from the names of folders.
Where nothing of it concerns the columns that are used, its files are read as any Parquet files are,
without a copy (`row_sources.write_rows`). The rows are the same, in the same order, so this choice
changes time, memory and disk, but no byte of the result.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_FEW_FILES = 64
_SMALL_BYTES = 4 * 1024 * 1024
"""Many files that are smaller are copied into a few: each file costs a stage 25 ms of CPU time,
a copy 10 ms for each MB."""
_FIELD_ID = b"PARQUET:field_id"
_ENGINE_COLUMN = "file_row_number"
"""A name that the engine takes for itself, see `engine_sql.rows_of`."""


def can_be_read_in_place(
    paths: Sequence[str],
    sizes: Sequence[int],
    wanted: Any,
    field_ids: Mapping[str, int] | None = None,
) -> bool:
    """Return whether Parquet files have some columns as a table does, and are quickly read.

    Args:
        paths: The files. Those behind URLs are copied: their credentials are of the table's own
            reader. One that cannot be read has no columns, so that reader says what is wrong.
        sizes: Their bytes.
        wanted: The Arrow schema of the columns.
        field_ids: By column, the number that stands for it in all files of an Iceberg table,
            whatever its name was at the time. None: names do.
    """
    many_small = len(sizes) > _FEW_FILES and sum(sizes) < _SMALL_BYTES * len(sizes)
    if many_small or any("://" in path for path in paths):
        return False
    first, num_rows = None, 0
    for path in paths:
        try:
            file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError):
            return False
        with file:
            schema = file.schema_arrow
            num_rows += file.metadata.num_rows
        if not _has_columns(schema, wanted, field_ids):
            return False
        # All files have one layout, since the first tells later code the length of lists.
        types = [schema.field(name).type for name in wanted.names]
        first = first or types
        if types != first:
            return False
    return num_rows > 0  # without rows, there may be no file that tells the types


def _has_columns(schema: Any, wanted: Any, field_ids: Mapping[str, int] | None) -> bool:
    # The engine does not tell "X" from "x": a table has not both, but what it has removed remains
    # in its files.
    names = [name.casefold() for name in schema.names]
    if len({*names, _ENGINE_COLUMN}) <= len(names):
        return False
    for column in wanted:
        index = schema.get_field_index(column.name)
        if index < 0 or not _same_values(schema.field(index).type, column.type):
            return False
        if field_ids is not None:
            number = (schema.field(index).metadata or {}).get(_FIELD_ID)
            if number is None or int(number) != field_ids[column.name]:
                return False
    return True


def _same_values(of_file: Any, of_table: Any) -> bool:
    """Return whether two types differ at most in the layout of texts and lists in Arrow."""
    # Only layouts that all later code reads: no views, no dictionaries.
    types = pa.types
    if types.is_string(of_file) or types.is_large_string(of_file):
        return any(is_kind(of_table) for is_kind in (types.is_string, types.is_large_string))
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_kind(of_file) for is_kind in lists) and any(is_kind(of_table) for is_kind in lists):
        return _same_values(of_file.value_type, of_table.value_type)
    return bool(of_file.equals(of_table))
