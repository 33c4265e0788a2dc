r"""`partition_tables`: tables of nodes and edges to partitions that `DistDataset.load` opens.

::

    tables --number--> ids and numbers --map--> edges by partition --sort--> part<k>/edges
       \--rows, in the order of the table---------------------------------> part<k>/node_features

With ``order="degree"`` rows take another path, after the edges: see `degree_order`. With a method
that reads edges, ``map`` runs twice: once to rows of the tables, the input of the method, and once
to numbers.
"""

import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import shutil
import time
import uuid
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal, cast, get_args

from gigl_loader.dataset.format.directory import (
    LOCK,
    Format,
    RowOrder,
    Target,
    check_format,
    check_order,
    clear_killed,
    lock_of,
    only_writer,
)
from gigl_loader.dataset.format.mapped import ROOT_FILE
from gigl_loader.dataset.schema import EdgeDir, FilePath
from gigl_loader.errors import ConfigError, UsageError, WrongTypeError, explained_limits, needed
from gigl_loader.partitioning.metis import check_communities
from gigl_loader.partitioning.tables.spec import (
    METHODS,
    REPORT,
    Edges,
    EdgeTable,
    Method,
    Nodes,
    NodeTable,
    Report,
    TableGraph,
    is_files,
    read_graph,
)
from gigl_loader.runtime.object_storage.object_folder import is_url, shown_url
from gigl_loader.runtime.plain_values import check_flag
from gigl_loader.runtime.sizes import parse_size

_log = logging.getLogger(__name__)

_MOST_PARTITIONS = 1024
"""Each has open files while edges and rows are written; some owners are int16 or uint16."""
_MIN_BYTES = 300_000_000
"""Less memory than this suffices for the libraries only."""
Engine = Literal["duckdb", "ray"]
ENGINES = get_args(Engine)
_GLT_COPIES = 4
"""Bytes in memory per byte of a partition during conversion to graphlearn-torch's format."""


def partition_tables(
    nodes: Nodes,
    edges: Edges,
    num_partitions: int,
    root: FilePath,
    *,
    method: Method = "contiguous",
    edge_dir: EdgeDir = "in",
    seed: int = 0,
    memory: int | str = "2GB",
    scratch: FilePath | None = None,
    threads: int | None = None,
    drop_dangling: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    format: Format = "mapped",
    engine: Engine = "duckdb",
    time_attr: str | None = None,
    order: RowOrder = "ids",
    edge_rows: bool = False,
    communities: int | None = None,
) -> Report:
    """Write the graph of some tables as partitions below ``root``; tables may exceed memory.

    Ids become numbers: partition by partition, in the order of the tables;
    ``DistDataset.to_original`` maps them back. A killed run continues when it is called again with
    the same arguments; the directory appears when it is complete. The same tables and arguments
    give the same bytes.

    Args:
        nodes: A `NodeTable`, or for a heterogeneous graph a dict of them by node type.
        edges: An `EdgeTable`, or several (one to sample, others with ``supervision``), or a dict of
            those by edge type.
        num_partitions: 1 to 1024.
        root: Directory to write: a path that does not exist, or an empty directory; or a URL
            (``s3://bucket/folder``, ``gs://``, ``az://``), to which the partitions are uploaded
            from the cache of this machine when they are complete.
        method: ``"contiguous"``: equal runs of rows; ``"random"``: each row independently;
            ``"column"``: from a column; ``"ldg"``: few edges between partitions, edges read from
            disk; ``"metis"``: fewer, if the graph fits into memory.
        edge_dir: An edge goes to the owner of its destination (``"in"``) or its source (``"out"``).
        seed: For ``"random"`` and ``"metis"``.
        memory: Memory limit of the process, in bytes, or as ``"4GB"`` (10^9) or ``"4GiB"`` (2^30).
            Other data is spilled to ``scratch``.
        scratch: A directory for spilled data and the state of the run. None: beside ``root``, or
            in the cache for a URL.
        threads: Threads of the engine. None: one for each CPU.
        drop_dangling: Leave out edges to unknown nodes, instead of an error.
        overwrite: Replace partitions at ``root``, and unfinished work of a run with other tables or
            settings.
        progress: Show rows, rows/s and time left for each stage on stderr.
        format: ``"mapped"``: our own; ``"glt"``: that of graphlearn-torch's own classes, which
            needs a partition in memory, and 8 bytes per edge of the graph.
        engine: ``"duckdb"``: in this process; ``"ray"``: joins and sorts run as tasks of a Ray
            cluster, each with ``threads`` and ``memory``. All nodes must share the file system of
            tables, ``root`` and ``scratch``.
        time_attr: A node attribute to sample by, as in `partition_graph`: ``"time"`` for the column
            in ``NodeTable.time``.
        order: Order of the rows of nodes in a partition, as in `partition_graph`: ``"ids"`` or
            ``"degree"``. With ``"degree"`` rows are written twice, to ``scratch`` and from there to
            ``root``.
        edge_rows: Keep the table row of each edge, for ``dataset.to_table_rows(batch.e_id)``. It
            takes 8 bytes per edge, and 8 more in ``scratch``.
        communities: Find about so many communities, as in `partition_graph`. Needs
            ``method="metis"`` or ``"ldg"``, which then cuts clusters of nodes in place of nodes and
            leaves fewer edges between partitions. It takes 20 bytes per node in memory, and 16 to
            50 bytes per edge in ``scratch``.

    Returns:
        Sizes and the edge cut; also written as ``report.json`` and ``report.svg``.

    Raises:
        ConfigError: An argument, a file or a row of a table cannot work; the message names it.
        ObjectStorageError: Object storage failed; called again, only the upload is repeated.
        UsageError: Memory or disk are too small for the engine; finished work is kept. Or another
            process is writing to ``root`` or ``scratch``.
        ResourceError: The disk is full, or a file may not become so large; finished work is kept.
    """
    began = time.monotonic()
    # All checks that need no table run before anything is created on disk.
    limit = check_settings(num_partitions, method, edge_dir, seed, memory)
    graph = read_graph(nodes, edges)
    check_communities(communities, num_partitions, method, METHODS)
    check_format(format)
    check_order(order, format)
    place = Target(root, overwrite=overwrite, format=format)
    _check_options(scratch, edge_rows, format, time_attr, engine)
    # Beside `root`, so on the same file system: the last step is a rename.
    target = place.path
    building = target.with_name(f".{target.name}.building")
    settings = {
        "graph": _fingerprint(graph),
        "num_partitions": num_partitions,
        "method": method,
        "edge_dir": edge_dir,
        "seed": seed,
        "drop_dangling": drop_dangling,
        "root": str(target),
        "format": format,
        "time_attr": time_attr,
        "order": order,
        "edge_rows": edge_rows,
        "communities": communities,
    }
    folder = Path(scratch).absolute() if scratch else target.with_name(f".{target.name}.scratch")
    request = _request(settings)
    if (present := _already_there(folder, place, graph, request)) is not None:
        return present
    _check_root(folder, place)
    with _resumable_limits(target, folder), ExitStack() as stack:
        target.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(only_writer(lock_of(target), target))
        clear_killed(target)
        if scratch:  # two runs to different roots may share one
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(only_writer(folder / LOCK, folder))
        from gigl_loader.partitioning import resumable

        # a given scratch directory may belong to a run with another root
        of_others = not scratch and resumable.ResumableJob.is_of_others(folder, settings)
        finished = _left_behind(folder, building, target, of_others=of_others, overwrite=overwrite)
        if finished is not None:
            _hand_over(place, folder, progress)
            return finished
        _check_root(folder, place)  # again: another run may have ended since
        run_steps, count = stack.enter_context(resumable.runner_of(engine, limit, threads))
        job = resumable.ResumableJob(
            folder, settings, memory=limit, threads=count, progress=progress, run_steps=run_steps
        )
        from gigl_loader.partitioning.stages import pipeline  # needs optional packages

        try:
            report = pipeline.Run(
                job,
                graph,
                num_partitions,
                method,
                edge_dir,
                seed,
                limit,
                drop_dangling,
                building,
                time_attr,
                order,
                edge_rows,
                communities,
                request,
            ).make(began)
        except ConfigError:  # finished work is useless with other tables or arguments
            for path in (building, folder):
                shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            job.close()
        versions = {"versions": report.versions} if report.versions else {}
        _finish(report, building, target, format, limit, method=method, seed=seed, **versions)
        _hand_over(place, folder, progress)
    return report


def _hand_over(place: Target, folder: Path, progress: bool) -> None:
    place.publish(progress=progress)
    shutil.rmtree(folder)  # after it: until then, a killed run is recognised as ours
    place.clear()


def _resumable_limits(target: Path, folder: Path) -> AbstractContextManager[None]:
    """Raise `ResourceError` for a full disk, which says that the run can go on."""
    return explained_limits(
        f"writing {target} (temporary files in {folder}; finished work is kept: with space there, "
        "call again to continue)"
    )


def _left_behind(
    folder: Path, building: Path, target: Path, *, of_others: bool, overwrite: bool
) -> Report | None:
    """Remove useless leftovers of a killed run; return its result, if that was finished."""
    is_done = _is_published(folder, building, target)
    if is_done:
        shutil.rmtree(_old_name(target), ignore_errors=True)
        if not of_others:
            return Report.read(target)
    if is_done or (of_others and overwrite):
        _log.info("removing %s, which a run that was killed left", folder)
        shutil.rmtree(folder)
    # Without its notes, the output of a run is useless: scratch was removed by hand, or is another
    # directory than before.
    if not (folder / "job.json").exists():
        shutil.rmtree(building, ignore_errors=True)
    return None


def _check_root(folder: Path, place: Target) -> None:
    # Not in a resumed run: it was allowed then, and may have been killed between its renames.
    if not (folder / "job.json").exists():
        place.check()


def _finish(
    report: Report, building: Path, target: Path, format: str, limit: int, **made: Any
) -> None:
    """Give the finished directory its format and its name."""
    if format == "mapped":
        _publish(building, target)
        return
    _check_fits(report, limit)
    plain = _as_glt(building, len(report.parts), **made)
    _publish(plain, target)
    os.rename(building, _old_name(target))  # else a run killed here would leave half of it
    shutil.rmtree(_old_name(target))


def _check_fits(report: Report, limit: int) -> None:
    """Check that the largest partition fits into memory, as graphlearn-torch's format requires."""
    edges = sum(part.edges for part in report.parts)
    need = _GLT_COPIES * max(part.nbytes for part in report.parts) + 8 * edges
    if need > limit:
        raise UsageError(
            f'format="glt" keeps a whole partition in memory and needs about {need / 1e9:.1f} GB, '
            f"memory is {limit / 1e9:.1f} GB: call again with more memory, or with "
            'format="mapped"'
        )


def _as_glt(mapped: Path, num_partitions: int, **made: Any) -> Path:
    """Write the partitions of a directory in graphlearn-torch's format beside it."""
    from gigl_loader.dataset.format import (
        glt_files,  # they import torch, only needed here
        view_writer,
    )

    plain = mapped.with_suffix(".glt")
    shutil.rmtree(plain, ignore_errors=True)
    plain.mkdir()
    # One at a time: a generator, and each is freed before the next is read.
    shares = (glt_files.read_partition(mapped, k, None) for k in range(num_partitions))
    view_writer.write_views(plain, shares, format="glt", **made)
    for path in mapped.glob("ids/*.parquet"):
        (plain / "ids").mkdir(exist_ok=True)
        shutil.copyfile(path, plain / "ids" / path.name)
    for path in mapped.glob("report.*"):
        shutil.copyfile(path, plain / path.name)
    return plain


def check_settings(
    num_partitions: Any, method: str, edge_dir: str, seed: Any, memory: int | str
) -> int:
    """Check what is the same for all tables; return the memory limit in bytes.

    Raises:
        ConfigError: One of them cannot work, or a package is missing.
    """
    for package in ("duckdb", "pyarrow"):
        with needed(f'partition_tables needs {package}: run pip install "gigl_loader[tables]"'):
            importlib.import_module(package)
    limit = parse_size(memory, "memory")
    if isinstance(num_partitions, bool) or not isinstance(num_partitions, int):
        raise WrongTypeError(f"num_partitions must be an int, got {num_partitions!r}")
    if not 1 <= num_partitions <= _MOST_PARTITIONS:
        raise ConfigError(f"num_partitions must be 1 to {_MOST_PARTITIONS}, got {num_partitions}")
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if edge_dir not in ("in", "out"):
        raise ConfigError(f'edge_dir must be "in" or "out", got {edge_dir!r}')
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise WrongTypeError(f"seed must be a non-negative int, got {seed!r}")
    if limit < _MIN_BYTES:
        raise ConfigError(f"memory must be at least {_MIN_BYTES // 10**6} MB, got {limit} bytes")
    return limit


def _check_options(scratch: Any, edge_rows: Any, format: str, time_attr: Any, engine: Any) -> None:
    if scratch is not None and is_url(scratch):
        raise ConfigError(f"scratch must be a local directory, got {shown_url(str(scratch))}")
    check_flag(edge_rows, "edge_rows")
    if edge_rows and format != "mapped":
        raise ConfigError(f'edge_rows=True needs format="mapped": {format!r} has no place for them')
    if time_attr is not None and not isinstance(time_attr, str):
        raise WrongTypeError(f"time_attr must name an attribute, got {time_attr!r}")
    if engine not in ENGINES:
        raise ConfigError(f'engine must be "duckdb" or "ray", got {engine!r}')


def _fingerprint(graph: TableGraph) -> list[Any]:
    """Return a description that identifies these tables."""
    # Names and columns; the files are compared by size and time once they are found, and versions
    # are chosen once the run starts.
    facts: list[Any] = []
    tables: list[tuple[Any, Any]] = [*graph.nodes.items(), *graph.edges.items()]
    for key, table in tables:
        columns = {name: value for name, value in vars(table).items() if name != "source"}
        facts.append((key, columns, _fingerprint_of(table)))
    return facts


def _fingerprint_of(table: NodeTable | EdgeTable) -> Any:
    import pyarrow as pa

    source = table.source
    if source is None or isinstance(source, str | os.PathLike):
        return str(source)
    if is_files(source):
        return [str(path) for path in cast("list[FilePath]", source)]
    if table.version is not None:
        return "rows that the version names"
    # Rows of other batches are not known before they are read: no two are taken for the same.
    return digest_of_table(source) if isinstance(source, pa.Table) else uuid.uuid4().hex


def _request(settings: dict[str, Any]) -> str:
    """Return a digest of what is asked for, at any versions and in any directory."""
    from gigl_loader.partitioning.resumable import digest_of_settings

    anything: dict[str, Any] = {"version": None, "snapshot": None}
    tables = [(key, columns | anything, source) for key, columns, source in settings["graph"]]
    code = importlib.metadata.version("gigl_loader")
    return digest_of_settings({**settings, "graph": tables, "root": None, "code": code})


def _already_there(folder: Path, place: Target, graph: TableGraph, request: str) -> Report | None:
    """Return the report of the same request of the same versions, if ``place`` has its result."""
    if (folder / "job.json").exists():
        return None
    report = complete_report(place)
    if report is None or report.request != request or len(report.versions) < len(graph.tables):
        return None
    from gigl_loader.partitioning.tables.row_sources import newest_sources, versions_of

    return report if report.versions == versions_of(newest_sources(graph.tables)) else None


def complete_report(place: Target) -> Report | None:
    """Return the report of the partitions at ``place``; None: there are none, or not only those."""
    manifest = place.read(ROOT_FILE)  # in object storage, nothing counts without it
    data = None if manifest is None else place.read(REPORT)
    if manifest is None or data is None:
        return None
    try:
        report, run = Report.decode(data), json.loads(manifest).get("run")
    except (ValueError, KeyError, TypeError, AttributeError):  # damaged: what checks it says so
        return None
    # two machines that wrote to one URL may have left the report of one and the manifest of the
    # other; graphlearn-torch's format, which is local, notes no run
    return report if run in (None, report.run) else None


def digest_of_table(table: Any) -> str:
    """Return a digest of an Arrow table, which has no name and date to identify it."""
    import pyarrow as pa

    class Hashed:
        """A file that computes the digest of the written bytes."""

        closed, digest = False, hashlib.blake2b()

        def write(self, data: Any) -> int:
            self.digest.update(data)
            return len(data)

        def flush(self) -> None:
            pass

    # As a stream, which is written batch by batch: no second copy of the table exists in memory.
    sink = Hashed()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.digest.hexdigest()


def _is_published(scratch: Path, building: Path, target: Path) -> bool:
    """Return whether a killed run was complete except for the removal of its scratch directory."""
    # By the run id: partitions at `root` may be old ones that are to be replaced.
    note = scratch / "done" / "seal.json"
    if building.exists() or not note.exists() or not (target / "report.json").exists():
        return False
    return bool(Report.read(target).run == json.loads(note.read_text()))


def _old_name(target: Path) -> Path:
    """Return the name of a path that is about to be removed."""
    return target.with_name(f".{target.name}.old")


def _publish(building: Path, target: Path) -> None:
    # `target` is whole at any moment, or missing: a rename cannot replace a directory that has
    # files, so for a moment between the two there is none. `_is_published` and a resumed run handle
    # both states.
    shutil.rmtree(_old_name(target), ignore_errors=True)
    if target.exists():
        os.rename(target, _old_name(target))
    os.rename(building, target)
    shutil.rmtree(_old_name(target), ignore_errors=True)
