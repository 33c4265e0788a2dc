"""Graphs and partitions that other libraries wrote, for ``gigl-loader partition --from``."""

import argparse
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigl_loader.dataset.format.directory import Target, complete_or_nothing, lock_of, only_writer
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.other_libraries.foreign_graphs import (
    OF_EDGES,
    OF_NODES,
    count_foreign,
    read_dgl,
    read_pyg,
)
from gigl_loader.partitioning.other_libraries.gigl_graphs import read_gigl
from gigl_loader.partitioning.partition_tables import partition_tables
from gigl_loader.partitioning.tables.spec import Method

_READERS = {"dgl": read_dgl, "pyg": read_pyg, "gigl": read_gigl}


def partition_or_copy(args: argparse.Namespace) -> str:
    """Partition the graph of ``--from`` by the options of the command; return what was written."""
    if args.library == "glt":
        return _copy_glt(args)
    path = Path(args.tables)
    given = {option: _several(getattr(args, option)) for option in (*OF_NODES, *OF_EDGES)}
    method, count = _choice(args, path)
    with _folder_for(args) as folder:
        graph = _READERS[args.library](path, folder, given)
        if args.feature_dtype is not None:
            graph.nodes = {
                node_type: replace(
                    table, feature_dtype=args.feature_dtype if table.features else None
                )
                for node_type, table in graph.nodes.items()
            }
        nodes, edges = graph.tables
        report = partition_tables(
            nodes,
            edges,
            count,
            args.root,
            method=method,
            edge_dir=args.edge_dir,
            seed=args.seed,
            memory=args.memory,
            scratch=args.scratch,
            threads=args.threads,
            drop_dangling=args.drop_dangling,
            overwrite=args.overwrite,
            progress=not args.quiet,
            format=args.format,
            engine=args.engine,
            time_attr=args.time_attr,
            order=args.order or "ids",
            edge_rows=bool(args.edge_rows),
            communities=args.communities,
        )
    return f"{report}\n{args.root}: run {report.run}, {report.seconds:.1f} s"


def _several(names: Any) -> list[str]:
    return names if isinstance(names, list) else [names] if names else []


def _choice(args: argparse.Namespace, path: Path) -> tuple[Method, int]:
    """Return method and number of partitions: the library's own, unless a method is given."""
    own, asked = count_foreign(args.library, path), args.num_partitions
    count: int | None = own if asked is None else asked
    if count is None:
        raise ConfigError(f"{path} has no partitions: give --num-partitions")
    if args.method is None and own is not None:
        if asked not in (None, own):
            raise ConfigError(
                f"{path} has {own} partitions: leave --num-partitions out to keep them, or give "
                "--method to partition the graph again"
            )
        return "column", own
    return args.method or "contiguous", count


@contextmanager
def _folder_for(args: argparse.Namespace) -> Iterator[Path]:
    """Yield a folder for tables. A killed run leaves it, and goes on with the files in it."""
    target = Target(args.root, overwrite=args.overwrite, format=args.format)
    beside = Path(args.scratch).absolute() if args.scratch else target.path
    folder = beside.with_name(f".{beside.name}.tables")
    if not folder.exists():
        # Before all is read; a run that goes on may have been killed after its last step.
        target.check()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(lock_of(folder), folder):
        try:
            yield folder
        except ConfigError:  # another graph or other options are needed, so other tables
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)


def _copy_glt(args: argparse.Namespace) -> str:
    """Write partitions in graphlearn-torch's format again, in ``--format``; ids stay the same."""
    # They import torch, which tables do not need.
    from gigl_loader.dataset.format import glt_files, view_writer

    root, started = Path(args.tables), time.monotonic()
    count = glt_files.count_partitions(root)
    if args.num_partitions not in (None, count) or args.method is not None:
        raise ConfigError(
            f"--from glt keeps the {count} partitions of {root}: leave "
            "--num-partitions and --method out"
        )
    target = Target(args.root, overwrite=args.overwrite, format=args.format)
    with complete_or_nothing(target, progress=not args.quiet) as folder:
        shares = (glt_files.read_partition(root, k, None) for k in range(count))
        view_writer.write_views(folder, shares, format=args.format)
    return f"{args.root}: {count} partitions, {time.monotonic() - started:.1f} s"
