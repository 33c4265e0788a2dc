r"""`partition_tables`: tables of nodes and edges to partitions that `DistDataset.load` opens.

::

    tables --number--> ids and numbers --map--> edges by partition --sort--> part<k>/edges
       \--rows, in the order of the table---------------------------------> part<k>/node_features

With a method that looks at edges, ``map`` runs twice: once to rows of the tables, which is what the
method reads, and from there to numbers.
"""

import importlib
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.dataset._mapped import is_mapped_format, read_header
from gigl_loader.dataset.partition import check_target
from gigl_loader.dataset.schema import EdgeDir, FilePath
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.tables.spec import METHODS, Edges, Graph, Nodes, read_graph

if TYPE_CHECKING:
    from gigl_loader.tables._report import Report

_MOST_PARTITIONS = 1024
_MIN_BYTES = 300_000_000
"""Less memory than this holds the libraries and nothing else."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip


def partition_tables(
    nodes: Nodes,
    edges: Edges,
    num_partitions: int,
    root: FilePath,
    *,
    method: str = "contiguous",
    edge_dir: EdgeDir = "in",
    seed: int = 0,
    memory: int | str = "2GB",
    scratch: FilePath | None = None,
    threads: int | None = None,
    drop_dangling: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> "Report":
    """Write the graph in some tables as partitions below ``root``; tables may exceed memory.

    Ids become numbers: partition by partition, in the order of the tables. `DistDataset` gives the
    ids back (``to_original``). A run that was killed goes on where it was if it is called again
    with the same arguments; the directory appears when it is complete. The same tables and
    arguments give the same bytes.

    Args:
        nodes: A `NodeTable`, or of a heterogeneous graph a dict of them by node type.
        edges: An `EdgeTable`, or several (one that is walked, others with ``supervision``), or a
            dict of those by edge type.
        num_partitions: 1 to 1024.
        root: Where to write: a path that does not exist, or an empty directory.
        method: ``"contiguous"``: equal runs of rows; ``"random"``: each row by itself;
            ``"column"``: as a column says; ``"ldg"``: few edges between partitions, edges read
            from disk; ``"metis"``: fewer, where the graph fits into memory.
        edge_dir: An edge goes to the owner of its destination (``"in"``) or its source (``"out"``).
        seed: For ``"random"`` and ``"metis"``.
        memory: What the process may use, in bytes, or as ``"4GB"``. What does not fit is spilled.
        scratch: A directory for that, and for the state of the run. None: beside ``root``.
        threads: Of the engine. None: one for each CPU.
        drop_dangling: Leave edges out of which an end is no node, instead of an error.
        overwrite: Replace partitions that are at ``root``.
        progress: Show rows, rows/s and time left for each stage on stderr.

    Returns:
        Sizes and the edge cut; also written as ``report.json`` and ``report.svg``.

    Raises:
        ConfigError: An argument, a file or a row of a table cannot work: the message says which.
        UsageError: Memory or disk are too small; what is done is kept.
    """
    began = time.monotonic()
    _check_installed()
    graph = read_graph(nodes, edges)
    limit = parse_bytes(memory)
    _check(num_partitions, method, edge_dir, seed, limit)
    target = Path(root).absolute()
    building = target.with_name(f".{target.name}.building")
    settings = {
        "graph": _fingerprint(graph), "num_partitions": num_partitions, "method": method,
        "edge_dir": edge_dir, "seed": seed, "drop_dangling": drop_dangling, "root": str(target),
    }  # fmt: skip
    folder = Path(scratch).absolute() if scratch else target.with_name(f".{target.name}.scratch")
    if not (folder / "job.json").exists():
        check_target(target, overwrite=overwrite)
    if _is_published(folder, building, target):
        from gigl_loader.tables._report import Report

        shutil.rmtree(folder)
        return Report.read(target)
    if not (folder / "job.json").exists():
        shutil.rmtree(building, ignore_errors=True)
    count = threads or os.cpu_count() or 1
    from gigl_loader.tables._job import Job  # these need what may not be installed
    from gigl_loader.tables._run import Run

    job = Job(folder, settings, memory=limit, threads=count, progress=progress)
    try:
        report = Run(
            job, graph, num_partitions, method, edge_dir, seed, limit, drop_dangling, building
        ).make(began)
    except ConfigError:  # what was done is of no use once tables or arguments are changed
        for path in (building, folder):
            shutil.rmtree(path, ignore_errors=True)
        raise
    _publish(building, target)
    shutil.rmtree(folder)
    return report


def _check_installed() -> None:
    for package in ("duckdb", "pyarrow"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f'partition_tables needs {package}: run pip install "gigl_loader[tables]"'
            ) from error


def _check(num_partitions: Any, method: str, edge_dir: str, seed: Any, limit: int) -> None:
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


def parse_bytes(given: int | str) -> int:
    """Return a number of bytes, as in ``"4GB"``, ``"512MiB"`` or ``4000000000``.

    Raises:
        ConfigError: It is none.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(given).lower())
    if isinstance(given, bool) or found is None or found[2] not in _UNITS:
        raise ConfigError(f'a number of bytes is as in "4GB" or 4000000000, got {given!r}')
    return int(float(found[1]) * _UNITS[found[2]])


def _fingerprint(graph: Graph) -> list[Any]:
    """Return what tells these tables from others."""
    found: list[Any] = []
    tables: list[tuple[Any, Any]] = [*graph.nodes.items(), *graph.edges.items()]
    for key, table in tables:
        source = table.source
        columns = {name: value for name, value in vars(table).items() if name != "source"}
        if hasattr(source, "nbytes"):  # an Arrow table
            source = (source.schema.to_string(), source.num_rows, source.nbytes)
        several = isinstance(source, list | tuple)
        found.append((key, columns, [str(one) for one in source] if several else str(source)))
    return found


def _is_published(scratch: Path, building: Path, target: Path) -> bool:
    """Return whether a run was killed when nothing was left to do but to remove its scratch."""
    note = scratch / "done" / "seal.json"
    if building.exists() or not note.exists() or not is_mapped_format(target):
        return False
    return bool(read_header(target)[0]["run"] == json.loads(note.read_text()))


def _publish(building: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(building, target)
    shutil.rmtree(old, ignore_errors=True)
