"""The files of a table: those at a path, in a folder, of a pattern, or behind a URL.

A folder is taken as Spark and Arrow take it: all data files below it, except those whose name or
folder begins with "_" or ".". Folders of tables with versions (Delta Lake, Iceberg, Hudi) also have
the files of earlier versions, and rows that are marked as deleted elsewhere, so they are refused.
"""

import contextlib
import glob
import logging
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gigl_loader.errors import ConfigError, without_default_types
from gigl_loader.runtime.object_storage.file_systems import file_system_of
from gigl_loader.runtime.object_storage.object_folder import is_url

CSV = (".csv", ".csv.gz", ".tsv")
_log = logging.getLogger(__name__)

_VERSIONED = (
    ("_delta_log", "", "Delta Lake", "Give the folder as delta= (delta: in a table file)"),
    (
        "metadata",
        ".metadata.json",
        "Iceberg",
        'Give its name as iceberg="catalogue.namespace.table" (iceberg: in a table file)',
    ),
    (".hoodie", "", "Hudi", "Give its current rows, as its own engine reads them"),
)
"""A folder in that of the table, part of the name of a file in it, the kind of the table, and how
to have its current rows read."""


def files_at(path: str, where: str) -> tuple[list[str], Any]:
    """Return the data files of a path in order, and the file system of a URL (else None).

    Args:
        path: A file, a directory, a pattern, or a URL of one of them.
        where: Name of the table, for errors.

    Raises:
        ConfigError: There is no data file, or it is one of a table with versions.
    """
    if is_url(path):
        return _remote_files(path, where)
    if os.path.isdir(path):
        paths = _data_files(_walked(path), path, where)
    elif os.path.exists(path):
        paths = [path]
    else:
        paths = _not_hidden(glob.glob(path, recursive=True), path, where)
    # A link may lead into such a folder, or be in one: both ways up are looked at.
    ends = {path, *paths}
    _refuse_versions(
        {os.path.abspath(end) for end in ends} | {os.path.realpath(end) for end in ends},
        where,
        os.listdir,
    )
    return _in_order(paths, path, where), None


def _walked(path: str) -> Iterator[str]:
    """Yield the files below a folder; those of a linked folder once, also if links make a ring."""
    seen: set[str] = set()
    for folder, below, names in os.walk(path, followlinks=True):
        seen.add(os.path.realpath(folder))
        yield from (os.path.join(folder, name) for name in names)
        # In place, as `os.walk` goes on from here; in one order, whatever the file system's is.
        below[:] = [
            name
            for name in sorted(below)
            if os.path.realpath(os.path.join(folder, name)) not in seen
        ]


def _remote_files(path: str, where: str) -> tuple[list[str], Any]:
    files, inner = file_system_of(path)
    if files.isdir(inner):
        paths = _data_files(files.find(inner), inner, where)
    elif glob.has_magic(inner):
        paths = _not_hidden(files.glob(inner), inner, where)
    else:
        paths = [inner]
    # A web server has no folders, and may answer for any name.
    if not path.startswith(("http://", "https://")):
        _refuse_versions({inner, *paths}, where, lambda folder: files.ls(folder, detail=False))
    return _in_order([files.unstrip_protocol(name) for name in paths], path, where), files


def _in_order(paths: list[str], path: str, where: str) -> list[str]:
    # Numbers of nodes follow the order of files, which neither a directory nor a store guarantees.
    # A list of paths keeps its own order, each of them sorted by itself.
    if not paths:
        raise ConfigError(f"{where}: there is no Parquet or CSV file at {path}")
    return sorted(paths)


def _data_files(names: Iterable[str], folder: str, where: str) -> list[str]:
    # Others are beside them: "_SUCCESS" of Spark, checksums, notes.
    return _not_hidden([n for n in names if n.endswith((".parquet", *CSV))], folder, where)


def _not_hidden(names: list[str], path: str, where: str) -> list[str]:
    """Return the names without those that writers keep from readers, by the rule of the field."""
    # What an interrupted job of Spark leaves is in "_temporary". "_key=value" is a folder of data.
    # What the path itself names, or its pattern begins with, is the user's own choice.
    chosen = path.split("/")
    if any(_is_hidden(part) and glob.has_magic(part) for part in chosen):
        return names
    kept = [
        name
        for name in names
        if not any(_is_hidden(part) for part in name.split("/") if part not in chosen)
    ]
    if len(kept) < len(names):
        _log.warning(
            "%s: %d of %d files at %s are left out, as Spark and Arrow do: names of these or of "
            'their folders begin with "_" or "."',
            without_default_types(where),
            len(names) - len(kept),
            len(names),
            path,
        )
    return kept


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) and name not in (".", "..") and "=" not in name


def _refuse_versions(paths: set[str], where: str, names_in: Callable[[str], Iterable[str]]) -> None:
    """Refuse files and folders that are, at any depth, in a folder of a table with versions.

    Args:
        paths: The files and folders.
        where: Name of the table, for errors.
        names_in: Lists a folder.
    """
    seen: set[str] = set()
    for path in sorted(paths):
        folder = path
        while folder and folder not in seen:
            seen.add(folder)
            for mark, name, kind, advice in _VERSIONED:
                logs: list[str] = []
                # Most folders have no such folder. One that is closed to this user is no table's
                # that they read. Stores raise errors of many libraries.
                with contextlib.suppress(Exception):
                    logs = [file for file in names_in(posixpath.join(folder, mark)) if name in file]
                if logs:
                    raise ConfigError(
                        f"{where}: {folder} is a {kind} table, whose folder keeps the files of "
                        "earlier versions: rows that were deleted or replaced would come back. "
                        f"{advice}, or write its rows as plain Parquet files and give those"
                    )
            folder = posixpath.dirname(folder)


def key_folder(path: str, column: str) -> str | None:
    """Return the folder ``column=value`` in a path: the value of a column for its files."""
    return next((part for part in path.split("/") if part.startswith(f"{column}=")), None)
