"""``gigl-loader partition``: tables, or a graph of another library, to partitions, from the shell.

``--pyg`` names a `Data` or `HeteroData` that ``torch.save`` wrote, ``--from`` the library that
wrote a graph or its partitions, ``--database`` a database with keys. Tables are described in a YAML
file, or for a graph of one type by flags::

    nodes:
      user: {source: users/*.parquet, id: name, features: x, label: y, split: split}
      item: {source: items.csv, id: id, features: [price, size]}
    edges:
      - {type: [user, buys, item], source: buys/, src: user, dst: item, weight: amount}
      - {type: [user, buys, item], source: held_out.parquet, supervision: positive}
      - {type: [user, sees, item], delta: s3://lake/views, version: 12, src: user, dst: item}
    time_attr: joined  # an attribute of nodes that loaders are to sample by
    edge_rows: true  # from e_id back to the rows of tables
    order: degree  # rows that most edges lead to first, for training from disk
    communities: 400  # groups of nodes with many edges within, with method ldg or metis
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigl_loader.dataset.format.directory import FORMATS, ORDERS
from gigl_loader.errors import ConfigError, GiglLoaderError, exit_code
from gigl_loader.partitioning.partition_tables import ENGINES, partition_tables
from gigl_loader.partitioning.tables.spec import (
    FEATURE_DTYPES,
    METHODS,
    SOURCES,
    EdgeTable,
    NodeTable,
)
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.yaml_files import read_yaml

_OPTIONS = ("time_attr", "order", "edge_rows", "communities")
"""What the YAML file may say beside the tables; a flag of the same name comes before it."""
_OF_PARTITIONS = ("root", "num_partitions", "method", "edge_dir", "seed", "overwrite", "quiet")
_OF_GRAPHS = ("pyg", "format", "time_attr", "order", "feature_dtype", "communities")
"""Options that a saved graph has beside those of `_OF_PARTITIONS`."""
_OF_DATABASES = ("database", "keys", "upto", "drop_dangling", "memory", "threads")
"""The same of a database."""
_LIBRARIES = ("dgl", "pyg", "gigl", "glt")
_OF_TABLES = ("pyg", "database", "nodes", "edges", "id", "split", "partition_column", "src", "dst")
"""Options that a graph of another library lacks: its files say what these do."""
_OF_GLT = ("library", "tables", "root", "num_partitions", "method", "overwrite", "format", "quiet")
"""Options of partitions that are copied as they are."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, or 2 where something is wrong with the input."""
    verb = parser()
    args = verb.parse_args(argv)
    try:
        if args.pyg is not None:
            _check_count(args)
            _check_beside("--pyg", _OF_GRAPHS, verb, args)
            # Imports torch, which tables do not need.
            from gigl_loader.commands.saved_graph import partition_saved_graph

            print(partition_saved_graph(args))
            return 0
        if args.library is not None:
            _check_for_library(verb, args)
            from gigl_loader.commands.partition_from import partition_or_copy

            print(partition_or_copy(args))
            return 0
        if args.database is not None:
            _check_beside("--database", _OF_DATABASES, verb, args)
            from gigl_loader.partitioning.databases.partition_database import partition_database

            _, report = partition_database(args.database, **_database_options(args))
            return _say(args, report)
        _check_count(args)
        nodes, edges, options = _tables(args)
        # A flag that was not given is None, and leaves the value of the file.
        options |= {name: value for name in _OPTIONS if (value := getattr(args, name)) is not None}
        report = partition_tables(
            nodes,
            edges,
            args.num_partitions,
            args.root,
            method=args.method or METHODS[0],
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
            **options,
        )
    # One line for errors that the user can fix. Others keep their traceback: they are our bugs.
    except GiglLoaderError as error:
        print(f"{verb.prog}: error: {in_shell_words(str(error), vars(args))}", file=sys.stderr)
        return exit_code(error)
    return _say(args, report)


def _say(args: argparse.Namespace, report: Any) -> int:
    print(report)
    took = f"{report.seconds:.1f} s" if report.seconds else "already there"
    print(f"{args.root}: run {report.run}, {took}")
    return 0


def _option(name: str) -> str:
    """Return the option of a keyword: ``--edge-dir`` of ``edge_dir``."""
    return f"--{name.replace('_', '-')}"


def in_shell_words(message: str, names: Iterable[str]) -> str:
    """Return a message with options in place of keywords, those of ``names``."""
    for name in names:
        option = _option(name)
        # A switch has no value, others do.
        message = re.sub(rf"\b{name}=True\b", option, message)
        message = re.sub(rf"\b{name}=(?=[\w\"'])", f"{option} ", message)
        message = re.sub(rf"\b{name}=(?= |$)", option, message)
    return message


def _check_beside(
    source: str, own: Sequence[str], parser: argparse.ArgumentParser, args: argparse.Namespace
) -> None:
    """Refuse options that mean nothing for what is no table."""
    if args.tables is not None:
        raise ConfigError(f"give a YAML file that describes tables, or {source}, not both")
    names = vars(args).keys() - {*own, *_OF_PARTITIONS}
    if given := [n for n in vars(args) if n in names and getattr(args, n) != parser.get_default(n)]:
        options = ", ".join(map(_option, given))
        raise ConfigError(f"{source} takes no options of tables: leave out {options}")


def _check_for_library(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that mean nothing for a graph of another library."""
    if args.tables is None:
        raise ConfigError(f"--from {args.library} needs the path of what it wrote")
    refused = [n for n in vars(args) if n not in _OF_GLT] if args.library == "glt" else _OF_TABLES
    given = [name for name in refused if getattr(args, name) != parser.get_default(name)]
    if given:
        raise ConfigError(
            f"--from {args.library} does not take {', '.join(map(_option, given))}: leave out"
        )


def _database_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `partition_database` that flags give."""
    same = ("root", "edge_dir", "seed", "memory", "threads", "overwrite", "upto")
    options: dict[str, Any] = {name: getattr(args, name) for name in same}
    content = {} if args.keys is None else read_yaml(args.keys)
    if not isinstance(content, dict) or set(content) - {"keys", "kinds", "stats_upto"}:
        raise ConfigError(f"{args.keys} may have keys, kinds and stats_upto, and no others")
    options["num_partitions"] = 1 if args.num_partitions is None else args.num_partitions
    options["dangling"] = "drop" if args.drop_dangling else "error"
    return options | content | {"method": args.method or METHODS[0], "progress": not args.quiet}


def _check_count(args: argparse.Namespace) -> None:
    if args.num_partitions is None:
        raise ConfigError("give --num-partitions, the number of partitions to write")


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser(
        "partition",
        "Turn tables, or a graph of another library, into partitions.",
        "gigl-loader partition tables.yaml --root /data/graph --num-partitions 4 --memory 4GB",
    )
    graph = parser.add_argument_group("the graph")
    graph.add_argument(
        "tables",
        nargs="?",
        metavar="PATH",
        help="YAML file that describes the tables; with --from, what its library wrote",
    )
    graph.add_argument(
        "--from",
        dest="library",
        choices=_LIBRARIES,
        help="library that wrote PATH: the JSON file of DGL's or GraphStorm's "
        "partitions, the directory of PyG's Partitioner or graphlearn-torch's, or "
        "the YAML file of a GiGL task",
    )
    graph.add_argument(
        "--pyg",
        metavar="FILE",
        help="a Data or HeteroData that torch.save wrote, in place of tables",
    )
    graph.add_argument(
        "--database",
        metavar="SOURCE",
        help="a folder as RelBench has them, or a file of DuckDB or SQLite, in place of tables",
    )
    graph.add_argument(
        "--keys", metavar="FILE", help="with --database: YAML with its keys, kinds, stats_upto"
    )
    graph.add_argument("--upto", help="with --database: the time of the last row, or all")
    graph.add_argument(
        "--drop-dangling", action="store_true", help="leave out edges to unknown nodes"
    )
    partitions = parser.add_argument_group("the partitions")
    partitions.add_argument(
        "--root", "--out", required=True, help="directory to write, or its s3:// URL"
    )
    partitions.add_argument(
        "--num-partitions",
        type=int,
        help="number of partitions; with --from dgl, pyg and glt: left out to keep theirs",
    )
    partitions.add_argument(
        "--method",
        choices=METHODS,
        help="who owns a node; column and ldg: for tables (default: contiguous; with --from dgl "
        "and pyg as there)",
    )
    partitions.add_argument(
        "--edge-dir",
        choices=("in", "out"),
        default="in",
        help="direction in which loaders walk edges",
    )
    partitions.add_argument("--seed", type=int, default=0, help="for random and metis")
    partitions.add_argument("--overwrite", action="store_true", help="replace partitions at --root")
    partitions.add_argument(
        "--format",
        choices=FORMATS,
        default="mapped",
        help="glt: the format of graphlearn-torch's own classes",
    )
    partitions.add_argument(
        "--time-attr",
        help="attribute of nodes to sample by: edges keep the "
        "times of neighbours (in YAML: time_attr)",
    )
    partitions.add_argument(
        "--order",
        choices=ORDERS,
        help="order of the rows of nodes; degree: those "
        "with most edges first, for training from disk (in YAML: order)",
    )
    partitions.add_argument(
        "--edge-rows",
        action="store_true",
        default=None,
        help="keep the row of each edge in its table, 8 bytes per edge (in YAML: edge_rows)",
    )
    partitions.add_argument(
        "--communities",
        type=int,
        metavar="N",
        help="with ldg and metis: also find N groups of nodes with many edges "
        "within, each in one partition (in YAML: communities)",
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--memory", default="2GB", help="memory limit of the process")
    run.add_argument("--scratch", help="directory for temporary files (default: beside --root)")
    run.add_argument("--threads", type=int, help="threads of the engine (default: one per CPU)")
    run.add_argument(
        "--engine",
        choices=ENGINES,
        default="duckdb",
        help="ray: joins and sorts as tasks of a Ray cluster",
    )
    run.add_argument("--quiet", action="store_true", help="show no progress")
    group = parser.add_argument_group("a graph of one type, without a YAML file")
    group.add_argument("--nodes", help="files of nodes: a path, a pattern, a directory or a URL")
    group.add_argument("--edges", help="files of edges")
    # Not "--partition", which would have another meaning than "--num-partitions".
    for name in ("id", "split", "time", "partition-column"):
        group.add_argument(f"--{name}", help=f"column of nodes: {name.replace('-column', '')}")
    group.add_argument("--features", nargs="+", help="columns of nodes, or a .npy file")
    group.add_argument("--label", nargs="+", help="columns of nodes")
    group.add_argument(
        "--feature-dtype",
        metavar="DTYPE",
        help="type to store the features of nodes in: "
        f"{', '.join(FEATURE_DTYPES)}; with --pyg int8, uint8, float16, bfloat16",
    )
    for name in ("src", "dst", "weight"):
        group.add_argument(f"--{name}", help=f"column of edges: {name}")
    group.add_argument("--edge-time", help="column of edges: time")
    group.add_argument("--edge-features", nargs="+", help="columns of edges")
    return parser


def _tables(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    if args.tables is not None:
        if args.nodes or args.edges:
            raise ConfigError("give a YAML file, or --nodes and --edges, not both")
        return read_tables(Path(args.tables))
    if not (args.nodes and args.edges):
        raise ConfigError("give a YAML file that describes the tables, or --nodes and --edges")
    nodes = {
        "source": args.nodes,
        "id": args.id,
        "features": _one_or_all(args.features),
        "label": _one_or_all(args.label),
        "feature_dtype": args.feature_dtype,
        "split": args.split,
        "time": args.time,
        "partition": args.partition_column,
    }
    edges = {
        "source": args.edges,
        "src": args.src,
        "dst": args.dst,
        "weight": args.weight,
        "features": _one_or_all(args.edge_features),
        "time": args.edge_time,
    }
    return _make(NodeTable, nodes, "--nodes"), _make(EdgeTable, edges, "--edges"), {}


def _one_or_all(columns: list[str] | None) -> Any:
    return columns[0] if columns and len(columns) == 1 else columns


def read_tables(path: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return nodes, edges and further arguments of a file, as `partition_tables` takes them.

    Raises:
        ConfigError: The file is missing or describes something else; the message says what.
    """
    content = read_yaml(path)
    if not isinstance(content, dict) or set(content) - set(_OPTIONS) != {"nodes", "edges"}:
        raise ConfigError(
            f"{path} must have the keys nodes and edges, may have {' and '.join(_OPTIONS)}, and no "
            "others"
        )
    # One kind of nodes or several, as in the arguments: columns, or a dict of them by type. So no
    # node type may be called "source".
    nodes, edges = content["nodes"], content["edges"]
    options = {name: content[name] for name in _OPTIONS if content.get(name) is not None}
    if not isinstance(nodes, dict):
        raise ConfigError(f"{path}, nodes: give columns by name, or those by node type")
    # A type of nodes may have the name of another keyword: then it is described by a mapping.
    if "source" in nodes or any(isinstance(nodes.get(name), str) for name in SOURCES):
        return _make(NodeTable, nodes, f"{path}, nodes"), _edges(path, edges), options
    by_type = {
        str(node_type): _make(NodeTable, table, f"{path}, nodes, {node_type}")
        for node_type, table in nodes.items()
    }
    return by_type, _edges_by_type(path, edges), options


def _edges(path: Path, edges: Any) -> list[EdgeTable]:
    given = edges if isinstance(edges, list) else [edges]
    return [_make(EdgeTable, table, f"{path}, edges") for table in given]


def _edges_by_type(path: Path, edges: Any) -> dict[Any, list[EdgeTable]]:
    tables: dict[Any, list[EdgeTable]] = {}
    for table in edges if isinstance(edges, list) else [edges]:
        edge_type = table.get("type") if isinstance(table, dict) else None
        if not isinstance(edge_type, list) or len(edge_type) != 3:
            raise ConfigError(
                f"{path}, edges: each table needs type: [source type, relation, destination type]"
            )
        columns = {name: value for name, value in table.items() if name != "type"}
        # YAML keys cannot be lists, so the type is in the table, and a type may come several times.
        tables.setdefault(tuple(map(str, edge_type)), []).append(
            _make(EdgeTable, columns, f"{path}, edges of {edge_type}")
        )
    return tables


def _make(kind: Any, given: Any, where: str) -> Any:
    names = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(given, Mapping) or not set(SOURCES) & set(given):
        raise ConfigError(f"{where}: source is missing, and neither delta nor iceberg is given")
    unknown = sorted(set(given) - names)
    if unknown:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; there are {sorted(names)}")
    # Without empty values, so that the classes' own defaults apply: `id: ` in YAML is None.
    return kind(**{name: value for name, value in given.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
