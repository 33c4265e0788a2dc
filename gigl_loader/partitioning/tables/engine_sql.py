"""Paths, names and files in the SQL of the engine."""

import re
from typing import Any


def quoted(text: Any) -> str:
    """Return a text in SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def to_read(path: Any, pattern: str = "") -> str:
    """Return SQL for a path that the engine reads, and a pattern below it."""
    # The engine treats any path as a pattern: "graph[1]" would be "graph1". A character in brackets
    # stands for itself. File systems of fsspec have patterns of their own.
    text = str(path)
    return quoted((text if "://" in text else re.sub(r"([*?[])", r"[\1]", text)) + pattern)


def rows_of(files: str, *, numbered: bool = False) -> str:
    """Return SQL that reads Parquet files: ``files`` as `to_read` writes them, or a list of them.

    With ``numbered`` there is a column ``file_row_number``, too.
    """
    # By itself, the engine takes "id=7" anywhere in a path for the column "id" of all rows, also
    # where the file has a column of that name.
    more = ", file_row_number=true" if numbered else ""
    return f"read_parquet({files}, hive_partitioning=false{more})"


def quoted_name(column: str) -> str:
    """Return a column's name in SQL."""
    return '"' + column.replace('"', '""') + '"'
