"""What tables hold: which columns are ids, features, labels. Checked before anything is read."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    FilePath,
    NodeType,
    edge_type_str,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, WrongTypeError

if TYPE_CHECKING:
    import pyarrow

METHODS = ("contiguous", "random", "column", "ldg", "metis")
FEATURE_DTYPES = ("float16", "float32", "float64")

Columns = str | Sequence[str] | None


@dataclass(frozen=True)
class NodeTable:
    """The nodes of one type, one in each row."""

    source: "FilePath | Sequence[FilePath] | pyarrow.Table"
    """A Parquet or CSV file, a directory or a pattern of them, a list of those, also as a URL that
    ``fsspec`` reads (``s3://``, ``gs://``), or a ``pyarrow.Table``."""
    _: KW_ONLY
    id: str = "id"
    """The column that names a node: integers or text, each value once."""
    features: Columns = None
    """A column of lists or numbers, several columns of numbers, or a ``.npy`` file with a row for
    each row of the table."""
    feature_dtype: str | None = None
    """``"float16"``, ``"float32"`` or ``"float64"``: the type that batches have features in. None:
    that of the columns, and float32 for float64, which fractions in CSV and Python's own floats
    are: models compute in float32."""
    label: Columns = None
    """One column of numbers, or several. A node without a label needs a number that is none: -1."""
    split: str | None = None
    """A column with ``"train"``, ``"val"`` (or ``"valid"``, ``"validation"``), ``"test"``, or
    nothing."""
    time: str | None = None
    """A column of integers or timestamps; batches carry it as ``time`` (timestamps: in their own
    unit)."""
    attributes: Columns = None
    """Columns of numbers or lists that batches carry under their names."""
    partition: str | None = None
    """A column with the partition of each node, for ``method="column"``."""


@dataclass(frozen=True)
class EdgeTable:
    """Edges of one type, one in each row."""

    source: "FilePath | Sequence[FilePath] | pyarrow.Table"
    """As in `NodeTable`."""
    _: KW_ONLY
    src: str = "src"
    """The column with the id of the source; of a supervision edge, the anchor."""
    dst: str = "dst"
    """The column with the id of the destination."""
    features: Columns = None
    """A column of lists or numbers, or several columns of numbers."""
    feature_dtype: str | None = None
    """As in `NodeTable`."""
    weight: str | None = None
    """A column of finite numbers that are not negative."""
    time: str | None = None
    """A column of integers or timestamps; batches carry it as ``time``."""
    supervision: Literal["positive", "negative"] | None = None
    """The rows are label edges of the type, not edges that are walked."""


Nodes = NodeTable | Mapping[NodeType, NodeTable]
Edges = EdgeTable | Sequence[EdgeTable] | Mapping[EdgeType, EdgeTable | Sequence[EdgeTable]]


@dataclass(frozen=True)
class TableGraph:
    """All tables of a graph, checked."""

    heterogeneous: bool
    nodes: dict[NodeType, NodeTable]
    edges: dict[EdgeType, EdgeTable]
    """By edge type; supervision has the type of its label edges."""

    @property
    def walked(self) -> list[EdgeType]:
        """Edge types that sampling walks."""
        return [edge_type for edge_type in self.edges if not is_label_edge_type(edge_type)]


def read_graph(nodes: Nodes, edges: Edges) -> TableGraph:
    """Return the tables of a graph, by type.

    Raises:
        ConfigError: A type is missing, named twice or not fit for a file's name.
    """
    # A dict of one type is heterogeneous, too: batches are `HeteroData` then, as the user asked.
    heterogeneous = isinstance(nodes, Mapping)
    by_node = dict(nodes) if isinstance(nodes, Mapping) else {DEFAULT_HOMOGENEOUS_NODE_TYPE: nodes}
    if heterogeneous and not isinstance(edges, Mapping):
        raise WrongTypeError("nodes come by type, so edges must be a dict by edge type, too")
    by_edge = edges if isinstance(edges, Mapping) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: edges}
    found = TableGraph(heterogeneous, {}, {})
    for node_type, table in by_node.items():
        _check_kind(table, NodeTable, f"nodes of {node_type!r}")
        _check_name(node_type)
        _check_dtype(table, f"nodes of {node_type!r}")
        found.nodes[node_type] = table
    for edge_type, tables in by_edge.items():
        for one in [tables] if isinstance(tables, EdgeTable) else list(tables):
            _add_edges(found, edge_type, one)
    if not found.walked:
        raise ConfigError("there is no table of edges but supervision: give edges to be walked")
    return found


def _add_edges(found: TableGraph, edge_type: EdgeType, table: EdgeTable) -> None:
    _check_kind(table, EdgeTable, f"edges of {edge_type}")
    if not (isinstance(edge_type, tuple) and len(edge_type) == 3):
        raise WrongTypeError(f"an edge type is (source type, relation, destination type), "
                             f"got {edge_type!r}")  # fmt: skip
    _check_name(edge_type_str(edge_type))
    _check_dtype(table, f"edges of {edge_type}")
    for node_type in (edge_type[0], edge_type[2]):
        if node_type not in found.nodes:
            raise ConfigError(
                f"edges of {edge_type} end at node type {node_type!r}, of which there is no table "
                f"(there are {sorted(found.nodes)})"
            )
    # Label edges are looked up, never walked: samplers have no place for what travels with them.
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
    if edge_type in found.edges:
        raise ConfigError(
            f"there are two tables of {edge_type}: give one, whose source is a list of files"
        )
    found.edges[edge_type] = table


def _check_kind(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise WrongTypeError(f"{where} must be a {kind.__name__}, got {type(value).__name__}")


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


def _check_name(name: Any) -> None:
    # Types are parts of paths, and in quotes in SQL.
    if not isinstance(name, str) or not name or name in (".", "..") or set("/\0'") & set(name):
        raise ConfigError(f"type {name!r} cannot be the name of a file: rename it")


def columns_of(given: Columns) -> list[str]:
    """Return column names as a list."""
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def is_npy(given: Columns) -> bool:
    """Return whether features are in a file beside the table."""
    return isinstance(given, str) and given.endswith(".npy")
