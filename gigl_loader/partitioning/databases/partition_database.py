"""`partition_database`: a database to partitions that `DistDataset.load` opens."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import CodeType
from typing import Any, Literal, cast

from gigl_loader.dataset.format.directory import Target
from gigl_loader.dataset.schema import EdgeDir, FilePath
from gigl_loader.errors import ConfigError, WrongTypeError, explained_limits
from gigl_loader.partitioning.partition_tables import (
    check_settings,
    complete_report,
    partition_tables,
)
from gigl_loader.partitioning.tables.spec import Method, Report
from gigl_loader.runtime.keyword_names import with_known_names
from gigl_loader.runtime.object_storage.folder_cache import Cache

Time = str | int | date | None
"""A time, or ``"all"``: see `partition_database`."""


@with_known_names
def partition_database(
    source: FilePath | Mapping[str, Any],
    root: FilePath | None = None,
    num_partitions: int = 1,
    *,
    upto: Time = None,
    keys: Mapping[str, Mapping[str, Any]] | None = None,
    kinds: Mapping[str, Mapping[str, Any]] | None = None,
    embed: Callable[[list[str]], Any] | None = None,
    dangling: Literal["error", "drop"] = "error",
    stats_upto: Time = None,
    method: Method = "contiguous",
    edge_dir: EdgeDir = "in",
    seed: int = 0,
    memory: int | str = "2GB",
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> tuple[FilePath, Report]:
    """Write a database as partitions: tables are node types, foreign keys are edge types.

    A foreign key ``k`` of table ``s`` to ``p`` gives the edges ``(s, "f2p_k", p)`` and ``(p,
    "rev_f2p_k", s)``; one that is null gives none. Columns that are no keys are the rows of nodes,
    and the time column is ``time`` as well: seconds since 1970, rounded down. A killed run
    continues when it is called again, and what is there already is not written again; processes of
    one machine that ask for the same wait for the first.

    Args:
        source: A folder as RelBench has them, a file of DuckDB or SQLite, or a dict of DataFrames,
            Arrow tables, or paths of Parquet and CSV files.
        root: As for `partition_tables`. None: a folder of this machine's cache, named by a digest
            of the source (of files: their sizes and times) and of these arguments.
        num_partitions: As for `partition_tables`.
        upto: Rows up to this time are read, inclusive: a date, a text such as ``"2020-01-31"``, or
            seconds since 1970. None: the ``test_timestamp`` of a folder that names one, as in
            RelBench; ``"all"``: all rows.
        keys: ``{table: {"pkey": column, "time_col": column, "fkeys": {column: table}}}``, of tables
            that do not declare theirs.
        kinds: ``{table: {column: kind}}`` of columns that the rules get wrong: a text, a
            ``torch_frame.stype``, or None to leave the column out.
        embed: A function from a list of texts to an array ``[n, d]``, called once for each distinct
            text. None: texts are left out. It is known by its name and code: an object with other
            contents, such as a newer model, needs ``overwrite=True``.
        dangling: ``"error"``, or ``"drop"`` to leave out edges of foreign keys that are in no row.
        stats_upto: Statistics and categories come from rows before this time. None: the
            ``val_timestamp`` of a folder that names one; ``"all"``: from all rows.
        method: As for `partition_tables`, as are the following.
        edge_dir: See there.
        seed: See there.
        memory: See there.
        threads: See there.
        overwrite: See there.
        progress: See there.

    Returns:
        (``root``, or the folder of the cache; sizes and the edge cut).

    Raises:
        ConfigError: A table, a key, a column or an argument cannot work; the message names it.
        ResourceError: The disk is full; finished work is kept.
        UsageError: Memory or disk are too small for the engine; finished work is kept.
    """
    limit = check_settings(num_partitions, method, edge_dir, seed, memory)
    # They need DuckDB, as has just been checked.
    from gigl_loader.partitioning.databases import database_tables
    from gigl_loader.partitioning.databases import source as databases
    from gigl_loader.partitioning.resumable import ResumableJob, digest_of_settings

    if dangling not in ("error", "drop"):
        raise ConfigError(f'dangling must be "error" or "drop", got {dangling!r}')
    times: dict[str, Any] = {
        name: value if value in (None, "all") else databases.seconds_of(value, name)
        for name, value in (("upto", upto), ("stats_upto", stats_upto))
    }
    if embed is not None and not callable(embed):
        raise WrongTypeError(f"embed must be a function of a list of texts, got {embed!r}")
    chosen = _kinds_by_name(kinds)
    request = {
        "form": 2,  # of what is written: work and caches of another are not taken for this one's
        "source": database_tables.digest_of_source(source),
        "keys": keys,
        "kinds": chosen,
        "embed": None if embed is None else _told_of(embed),
        **times,
        "rest": [num_partitions, dangling, method, edge_dir, seed],
    }
    digest = digest_of_settings(request)
    place = Target(root or Cache().folder / "databases" / digest[:32], overwrite=overwrite)
    folder = place.path.with_name(f".{place.path.name}.database")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with explained_limits(f"reading the database (temporary files in {folder})"), _alone(folder):
        report = complete_report(place)
        if report and report.versions.get("database") == {"digest": digest} and not overwrite:
            return root or place.path, report
        if not folder.exists():
            place.check()
        elif overwrite and ResumableJob.is_of_others(folder, request):
            shutil.rmtree(folder)
        database = databases.open_database(source, keys)
        database_tables.check_kinds(database, chosen)
        known = {"upto": database.test_timestamp, "stats_upto": database.val_timestamp}
        ends = {n: known[n] if t is None else None if t == "all" else t for n, t in times.items()}
        cut, drop = database.upto(ends["upto"]), dangling == "drop"
        job = ResumableJob(
            folder, request, memory=limit, threads=threads or os.cpu_count() or 1, progress=progress
        )
        try:
            graph = database_tables.tables_of(
                job, cut, chosen, ends["stats_upto"], embed, digest, drop=drop
            )
            # files of a folder are read several times, and the digest is older than all of that
            is_folder = database.source is not None and os.path.isdir(database.source)
            if is_folder and database_tables.digest_of_source(source) != request["source"]:
                raise ConfigError(
                    f"files of {source} changed while they were read: call again when nothing "
                    "writes to them"
                )
        except ConfigError:  # finished work is useless with other tables or arguments
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            job.close()
        has_times = any(keys.time_col for keys in database.tables.values())
        report = partition_tables(
            cast("Any", graph),
            {},
            num_partitions,
            root or place.path,
            method=method,
            edge_dir=edge_dir,
            seed=seed,
            memory=memory,
            threads=threads,
            overwrite=overwrite,
            progress=progress,
            drop_dangling=True,  # they are checked
            time_attr="time" if has_times and num_partitions > 1 else None,
        )
        shutil.rmtree(folder)
    return root or place.path, report


def _told_of(part: Any) -> Any:
    """Return what is known of a function without a call, down to its constants and values held."""
    code = getattr(part, "__code__", part)
    if isinstance(code, CodeType):
        held = [cell.cell_contents for cell in getattr(part, "__closure__", None) or ()]
        parts = [_told_of(one) for one in (*code.co_consts, *held)]
        names = getattr(part, "__module__", ""), code.co_qualname, *code.co_names
        return [names, code.co_code.hex(), parts]
    if isinstance(part, frozenset):  # its order differs between runs
        return sorted(map(repr, part))
    is_plain = isinstance(part, str | bytes | int | float | tuple | None)
    return repr(part) if is_plain else str(type(part))  # others have the address in their text


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only process of this machine that writes; the lock ends with the process."""
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _kinds_by_name(kinds: Any) -> dict[str, dict[str, str | None]]:
    try:
        return {
            table: {c: k if k is None else str(getattr(k, "value", k)) for c, k in columns.items()}
            for table, columns in (kinds or {}).items()
        }
    except AttributeError as error:
        raise WrongTypeError(
            f"kinds must be a dict by table, of dicts by column, got {kinds!r}"
        ) from error
