"""The contents of tables, checked before anything is read; and the report of the result.

`TableGraph` names the columns of ids, features, labels. `Report` has sizes, edge cut and remote
neighbours of the partitions, as JSON and as a picture.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np

from gigl_loader.dataset.format.mapped import Part, rows_at
from gigl_loader.dataset.partition.frames import FrameColumns
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    FilePath,
    NodeType,
    check_type_names,
    edge_type_str,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, WrongTypeError, without_default_types, without_only_type
from gigl_loader.runtime.keyword_names import with_known_fields
from gigl_loader.runtime.memory.segments import Array, storage_dtype

Method = Literal["contiguous", "random", "column", "ldg", "metis"]
METHODS = get_args(Method)
TableDtype = Literal["float16", "float32", "float64"]
FEATURE_DTYPES = get_args(TableDtype)

SOURCES = ("source", "delta", "iceberg")
"""Keywords for the rows of a table, of which one is given."""
Columns = str | Sequence[str] | None


class ArrowBatches(Protocol):
    """Arrow batches of any library: tables of pyarrow, DuckDB, Polars and pandas have this."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the batches; see Arrow's PyCapsule interface."""


Source = FilePath | Sequence[FilePath] | ArrowBatches | Callable[[], ArrowBatches] | None


@with_known_fields
@dataclass(frozen=True)
class NodeTable:
    """The nodes of one type, one in each row.

    Give one of ``source``, ``delta`` and ``iceberg``.

    Args:
        source: A Parquet or CSV file, a directory or a pattern of them, a list of those, also as a
            URL that ``fsspec`` reads (``s3://``, ``gs://``). Or Arrow batches that can be read
            again: a ``pyarrow.Table``, a DuckDB relation, another object with
            ``__arrow_c_stream__``, or a function that returns a new
            ``pyarrow.RecordBatchReader`` each time.
        delta: The path or URL of a Delta table (extra ``delta``).
        version: The version of the Delta table; None: the newest when the run starts. For Arrow
            batches: your own name for these rows, without which a killed run does not continue.
        iceberg: An Iceberg table as ``"catalogue.namespace.table"`` (extra ``iceberg``);
            ``.pyiceberg.yaml`` or the environment describe the catalogue.
        snapshot: The snapshot of the Iceberg table; None: the current one when the run starts.
        id: The column of node ids: integers or text, each value once.
        features: A column of lists or numbers, several columns of numbers, or a ``.npy`` file with
            a row for each row of the table.
        feature_dtype: ``"float16"``, ``"float32"`` or ``"float64"``: the type of features in
            batches. None: that of the columns, but float32 for float64 (fractions in CSV and
            Python's own floats): models compute in float32.
        label: One column of numbers, or several; use -1 for unlabelled nodes.
        split: A column with ``"train"``, ``"val"`` (or ``"valid"``, ``"validation"``), ``"test"``,
            or nothing.
        time: A column of integers or timestamps; batches carry it as ``time`` (timestamps: in their
            own unit).
        attributes: Columns of numbers or lists that batches carry under their names.
        partition: A column with the partition of each node, for ``method="column"``.
    """

    source: Source = None
    _: KW_ONLY
    delta: FilePath | None = None
    version: int | str | None = None
    iceberg: str | None = None
    snapshot: int | None = None
    id: str = "id"
    features: Columns = None
    feature_dtype: TableDtype | None = None
    label: Columns = None
    split: str | None = None
    time: str | None = None
    attributes: Columns = None
    partition: str | None = None


@dataclass(frozen=True)
class FrameNodes(NodeTable):
    """Nodes of one type with rows of mixed types: a column of lists or bytes for each attribute."""

    _: KW_ONLY
    frame: FrameColumns = ()


@with_known_fields
@dataclass(frozen=True)
class EdgeTable:
    """Edges of one type, one in each row.

    Args:
        source: As in `NodeTable`, as are the following.
        delta: A Delta table.
        version: Its version, or the name of Arrow batches.
        iceberg: An Iceberg table.
        snapshot: Its snapshot.
        src: The column with the id of the source; of a supervision edge, the anchor.
        dst: The column with the id of the destination.
        features: A column of lists or numbers, or several columns of numbers.
        feature_dtype: As in `NodeTable`.
        weight: A column of finite numbers, not negative.
        time: A column of integers or timestamps; batches carry it as ``time``.
        supervision: ``"positive"`` or ``"negative"``: the rows are label edges of the type, which
            sampling does not walk. None: they are edges.
    """

    source: Source = None
    _: KW_ONLY
    delta: FilePath | None = None
    version: int | str | None = None
    iceberg: str | None = None
    snapshot: int | None = None
    src: str = "src"
    dst: str = "dst"
    features: Columns = None
    feature_dtype: TableDtype | None = None
    weight: str | None = None
    time: str | None = None
    supervision: Literal["positive", "negative"] | None = None


Nodes = NodeTable | Mapping[NodeType, NodeTable]
Edges = EdgeTable | Sequence[EdgeTable] | Mapping[EdgeType, EdgeTable | Sequence[EdgeTable]]


@dataclass(frozen=True)
class TableGraph:
    """All tables of a graph, checked."""

    heterogeneous: bool
    nodes: dict[NodeType, NodeTable]
    edges: dict[EdgeType, EdgeTable]
    """By edge type; supervision has the type of its label edges."""
    files: dict[str, str] = field(default_factory=dict)
    """Texts of further files of the directory, by name."""
    database: str = ""
    """A digest of the database that they are made of, and of what was asked for."""

    @property
    def tables(self) -> "dict[str, NodeTable | EdgeTable]":
        """All tables, by their names in errors."""
        nodes = {nodes_of(node_type): table for node_type, table in self.nodes.items()}
        return nodes | {edges_of(edge_type): table for edge_type, table in self.edges.items()}

    @property
    def walked(self) -> list[EdgeType]:
        """Edge types that sampling walks."""
        return [edge_type for edge_type in self.edges if not is_label_edge_type(edge_type)]


def nodes_of(node_type: NodeType) -> str:
    """Return the name of a table of nodes in errors."""
    return f"nodes of {node_type!r}"


def edges_of(edge_type: EdgeType) -> str:
    """Return the name of a table of edges in errors."""
    return f"edges of {edge_type}"


def read_graph(nodes: Nodes, edges: Edges) -> TableGraph:
    """Return the tables of a graph, by type.

    Raises:
        ConfigError: A type is missing, named twice or not usable as a file name.
    """
    if isinstance(nodes, TableGraph):  # of a database
        return nodes
    # A dict of one type is heterogeneous, too: batches are `HeteroData`, as requested.
    heterogeneous = isinstance(nodes, Mapping)
    by_node = dict(nodes) if isinstance(nodes, Mapping) else {DEFAULT_HOMOGENEOUS_NODE_TYPE: nodes}
    if heterogeneous and not isinstance(edges, Mapping):
        raise WrongTypeError("nodes come by type, so edges must be a dict by edge type, too")
    by_edge = edges if isinstance(edges, Mapping) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: edges}
    graph = TableGraph(heterogeneous, {}, {})
    for node_type, table in by_node.items():
        _check_kind(table, NodeTable, nodes_of(node_type))
        check_name(node_type)
        _check_rows(table, nodes_of(node_type))
        _check_dtype(table, nodes_of(node_type))
        graph.nodes[node_type] = table
    for edge_type, tables in by_edge.items():
        for edge_table in [tables] if isinstance(tables, EdgeTable) else list(tables):
            _add_edges(graph, edge_type, edge_table)
    check_type_names([*graph.nodes, *graph.edges])
    if not graph.walked:
        raise ConfigError("all tables of edges are supervision: give edges to sample")
    return graph


def _add_edges(graph: TableGraph, edge_type: EdgeType, table: EdgeTable) -> None:
    _check_kind(table, EdgeTable, edges_of(edge_type))
    if not (isinstance(edge_type, tuple) and len(edge_type) == 3):
        raise WrongTypeError(
            f"an edge type is (source type, relation, destination type), got {edge_type!r}"
        )
    check_name(edge_type_str(edge_type))
    _check_rows(table, edges_of(edge_type))
    _check_dtype(table, edges_of(edge_type))
    for node_type in (edge_type[0], edge_type[2]):
        if node_type not in graph.nodes:
            raise ConfigError(
                f"edges of {edge_type} end at node type {node_type!r}, of which there is no table "
                f"(there are {sorted(graph.nodes)})"
            )
    # Label edges are looked up, never walked: samplers have no place for their other columns.
    if table.supervision is not None:
        if (table.weight, table.features, table.time) != (None, None, None):
            raise ConfigError(
                f"supervision of {edge_type} has weight, time or features: leave them out"
            )
        if table.supervision == "positive":
            edge_type = message_passing_to_positive_label(edge_type)
        elif table.supervision == "negative":
            edge_type = message_passing_to_negative_label(edge_type)
        else:
            raise ConfigError(
                f'supervision must be "positive" or "negative", got {table.supervision!r}'
            )
    if edge_type in graph.edges:
        raise ConfigError(
            f"there are two tables of {edge_type}: give one, whose source is a list of files"
        )
    graph.edges[edge_type] = table


def _check_kind(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise WrongTypeError(f"{where} must be a {kind.__name__}, got {type(value).__name__}")


def _check_rows(table: NodeTable | EdgeTable, where: str) -> None:
    """Check where the rows of a table come from, before anything is read."""
    given = [name for name in SOURCES if getattr(table, name) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{where}: give one of source, delta and iceberg, got {' and '.join(given) or 'none'}"
        )
    if table.snapshot is not None and table.iceberg is None:
        raise ConfigError(f"{where}: snapshot= is of an Iceberg table, and {given[0]} is given")
    if table.version is not None and (table.iceberg is not None or is_files(table.source)):
        advice = "an Iceberg table has snapshot=" if table.iceberg else "files have no version"
        raise ConfigError(f"{where}: version= is of a Delta table or of Arrow batches; {advice}")
    if table.source is not None:
        _check_source(table.source, where)


def _check_source(source: Any, where: str) -> None:
    if hasattr(source, "__next__"):
        raise ConfigError(
            f"{where}: source is a {type(source).__name__}, which can be read once only: give a "
            "function that returns a new pyarrow.RecordBatchReader each time"
        )
    if not (is_files(source) or hasattr(source, "__arrow_c_stream__") or callable(source)):
        raise ConfigError(
            f"{where}: source must be a path, a list of paths, Arrow batches (an object with "
            "__arrow_c_stream__, as tables of pyarrow, DuckDB and Polars are) or a function that "
            f"returns them, got {type(source).__name__}"
        )


def _check_dtype(table: NodeTable | EdgeTable, where: str) -> None:
    if table.feature_dtype is None:
        return
    if table.feature_dtype not in FEATURE_DTYPES:
        raise ConfigError(
            f"{where}: feature_dtype must be {' or '.join(FEATURE_DTYPES)}, "
            f"got {table.feature_dtype!r}"
        )
    if table.features is None:
        raise ConfigError(f"{where}: feature_dtype is given, and no features")


def check_name(name: Any, what: str = "type") -> None:
    """Check a name that becomes part of paths, and is quoted in SQL."""
    if not isinstance(name, str) or not name or name in (".", "..") or set("/\0'") & set(name):
        raise ConfigError(f"{what} {name!r} cannot be the name of a file: rename it")


def columns_of(given: Columns) -> list[str]:
    """Return column names as a list."""
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def columns_used(table: NodeTable | EdgeTable) -> list[str]:
    """Return the names of all columns that are read."""
    of_nodes = ("id", "features", "label", "split", "time", "attributes", "partition")
    of_edges = ("src", "dst", "features", "weight", "time")
    roles = of_nodes if isinstance(table, NodeTable) else of_edges
    given = [getattr(table, role) for role in roles]
    names = [name for value in given if not is_npy(value) for name in columns_of(value)]
    return list(dict.fromkeys(names))  # one may be label and attribute


def is_files(source: Any) -> bool:
    """Return whether a source is paths or URLs."""
    return isinstance(source, str | os.PathLike | list | tuple)


def is_npy(given: Columns) -> bool:
    """Return whether features are in a file beside the table."""
    return isinstance(given, str) and given.endswith(".npy")


REPORT, PICTURE = "report.json", "report.svg"
_CHUNK_EDGES = 2**22
"""Edges per count: some arrays of 32 MB."""
_COLORS = ("#4c78a8", "#f58518", "#54a24b")


@dataclass(frozen=True)
class PartReport:
    """One partition."""

    nodes: int
    edges: int
    """Sampled edges; label edges do not count."""
    nbytes: int
    """Bytes of all files of the partition."""
    cut: int
    """Edges whose neighbour is in another partition."""
    training_neighbors: int
    """Edges of its training nodes."""
    remote_training_neighbors: int
    """Those of them whose neighbour is in another partition."""


@dataclass(frozen=True)
class Report:
    """Result of `partition_tables`: counts and sizes, by partition and type."""

    run: str
    """The run id: a digest of all that was written."""
    parts: list[PartReport]
    dangling: dict[str, int]
    """Dropped edges by edge type, with an end that is no node."""
    seconds: float
    """Seconds that this call took; a run that was killed and resumed took longer. 0: the partitions
    were there already."""
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By table: the version of the Delta or Iceberg table, or of Arrow batches, that was read."""
    request: str = ""
    """A digest of tables, settings and code: the same request of the same versions of all tables
    need not run again."""

    @property
    def edge_cut(self) -> float:
        """The share of edges between partitions."""
        return _share(sum(p.cut for p in self.parts), sum(p.edges for p in self.parts))

    @property
    def remote_training_share(self) -> float:
        """The share of the neighbours of training nodes that are in another partition."""
        return _share(
            sum(p.remote_training_neighbors for p in self.parts),
            sum(p.training_neighbors for p in self.parts),
        )

    def __str__(self) -> str:
        lines = [
            f"partition {k}: {p.nodes:,} nodes, {p.edges:,} edges, {p.nbytes / 1e6:,.1f} MB"
            for k, p in enumerate(self.parts)
        ]
        lines.append(f"edge cut {self.edge_cut:.1%}")
        if any(p.training_neighbors for p in self.parts):
            lines.append(f"remote neighbours of training nodes {self.remote_training_share:.1%}")
        for name, count in self.dangling.items():
            if count:
                title = without_only_type(f"dangling edges left out of {name}")
                lines.append(f"{title}: {count:,}")
        for where, version in self.versions.items():
            words = ", ".join(f"{name} {version[name]}" for name in version if name != "id")
            lines.append(without_default_types(f"{where}: {words}"))
        return "\n".join(lines)

    @classmethod
    def read(cls, root: Path) -> "Report":
        """Return the report that was written below a directory."""
        return cls.decode((root / REPORT).read_bytes())

    @classmethod
    def decode(cls, data: bytes) -> "Report":
        """Return the report that is written in the bytes of a file."""
        content = json.loads(data)
        parts = [PartReport(**part) for part in content["parts"]]
        return cls(
            content["run"],
            parts,
            content["dangling"],
            0.0,
            content.get("versions", {}),
            content.get("request", ""),
        )

    def write(self, out: Path) -> None:
        """Write it below a directory, without the time, which differs between runs."""
        content: dict[str, Any] = asdict(self)
        content.pop("seconds")
        if not self.versions:
            del content["versions"], content["request"]
        content |= {"edge_cut": self.edge_cut, "remote_training_share": self.remote_training_share}
        (out / REPORT).write_text(json.dumps(content, indent=1) + "\n")
        (out / PICTURE).write_text(_picture(self))


def _share(some: int, of: int) -> float:
    return some / of if of else 0.0


def describe_part(
    part: Part, k: int, walked: list[EdgeType], edge_dir: EdgeDir, ends: dict[NodeType, Array]
) -> PartReport:
    """Return the figures of a partition, read from its files, a part at a time."""
    row_end = 2 if edge_dir == "in" else 0
    # All node types, and only edges that are walked: labels are looked up, not sampled.
    nodes = sum(int(e[k] - (e[k - 1] if k else 0)) for e in ends.values())
    totals = np.zeros(4, np.int64)
    for edge_type in walked:
        totals += _count(part, edge_type, edge_type[row_end], ends[edge_type[2 - row_end]], k)
    nbytes = sum(spec.nbytes for spec in part.arrays.values())
    return PartReport(nodes, int(totals[0]), nbytes, *(int(n) for n in totals[1:]))


def _count(part: Part, edge_type: EdgeType, row_type: NodeType, ends: Array, k: int) -> Array:
    """Return edges, cut edges, edges of training nodes, and cut ones of those."""
    where = rows_at("edges", edge_type)
    spec = part.arrays[f"{where}/indices"]
    # 8 bytes per node of this partition; its edges, which may exceed memory, are read in chunks.
    pointer = np.fromfile(part.path(f"{where}/indptr"), np.int64)
    training = np.zeros(len(pointer) - 1, bool)
    name = f"splits/train/{row_type}"
    if name in part.arrays:
        # A partition's splits have its own nodes, and so do the rows of its edges.
        ids = np.fromfile(part.path(name), np.int64)
        training[ids - part.ranges[where]["first_row"]] = True
    first, last = (ends[k - 1] if k else 0), ends[k]
    totals, row = np.zeros(4, np.int64), 0
    with part.path(f"{where}/indices").open("rb") as file:
        while row < len(training):
            # Whole rows with up to so many edges; at least one row, of any size.
            stop = int(np.searchsorted(pointer, pointer[row] + _CHUNK_EDGES, "right")) - 1
            stop = min(max(stop, row + 1), len(training))
            count = int(pointer[stop] - pointer[row])
            neighbors = np.fromfile(file, storage_dtype(spec.dtype), count)
            # A partition owns a range of ids: ownership of a neighbour is two comparisons.
            remote = (neighbors < first) | (neighbors >= last)
            mine = np.repeat(training[row:stop], np.diff(pointer[row : stop + 1]))
            totals += [count, remote.sum(), mine.sum(), (remote & mine).sum()]
            row = stop
    return totals


def _picture(report: Report) -> str:
    """Return bars for each partition, each figure as a share of the largest."""
    rows = (("nodes", "nodes"), ("edges", "edges"), ("nbytes", "bytes"))
    height, width = 18 * len(report.parts) * len(rows) + 12 * len(report.parts) + 60, 640
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20">{len(report.parts)} partitions, edge cut {report.edge_cut:.1%}, '
        f"remote neighbours of training nodes {report.remote_training_share:.1%}</text>",
    ]
    y = 40
    for k, part in enumerate(report.parts):
        lines.append(f'<text x="10" y="{y + 12}">part {k}</text>')
        for (name, label), color in zip(rows, _COLORS, strict=True):
            value = getattr(part, name)
            # Bars of a kind show their share of the longest: 640 wide in all, 380 for the bars, the
            # rest for names before them and figures behind.
            most = max(1, *(getattr(other, name) for other in report.parts))
            bar = 380 * value / most
            lines.append(f'<rect x="70" y="{y}" width="{bar:.1f}" height="14" fill="{color}"/>')
            lines.append(f'<text x="{75 + bar:.1f}" y="{y + 12}">{value:,} {label}</text>')
            y += 18
        y += 12
    return "\n".join([*lines, "</svg>", ""])
