"""`PartitionOutput`, the low-level input of a dataset: loose tensors, and the view of them."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from gigl_loader.dataset.partition.build import ViewBuilder, read_book
from gigl_loader.dataset.partition.checks import (
    check_edge_index,
    check_edge_type,
    check_ids,
    check_matrix,
    check_ownership,
    check_weights,
)
from gigl_loader.dataset.partition.partition_view import Book, PartitionView
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    LABEL_TYPES,
    EdgeDir,
    EdgeType,
    NodeType,
    expanded_end,
    glt_edge_type,
    is_label_edge_type,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError

_T = TypeVar("_T")


class RangeBook(Protocol):
    """A partition book of ranges, as GLT's ``RangePartitionBook``: upper bounds by partition."""

    partition_bounds: Tensor
    """``[num_partitions]`` int64: partition ``p`` owns the ids from bound ``p - 1`` up to ``p``."""


PartitionBook = Tensor | RangeBook
"""``[num_ids]`` integer tensor, the owner of each id; or ranges."""


@dataclass(frozen=True)
class GraphPartitionData:
    """The edges of one type that one partition owns."""

    edge_index: Tensor
    """``[2, num_edges]`` int64, global ids, row 0 sources, row 1 destinations."""
    edge_ids: Tensor | None = None
    """``[num_edges]`` int64, global edge ids. None: positions; for one partition only."""
    weights: Tensor | None = None
    """``[num_edges]`` floating point, finite and not negative; kept as float32."""

    def __repr__(self) -> str:
        given = [name for name in ("edge_ids", "weights") if getattr(self, name) is not None]
        return f"GraphPartitionData({', '.join([f'edges={self.edge_index.size(1)}', *given])})"


@dataclass(frozen=True)
class FeaturePartitionData:
    """The rows of one feature (or label) matrix that one partition owns."""

    feats: Tensor
    """``[num_rows, num_columns]``, any dtype."""
    ids: Tensor | None = None
    """``[num_rows]`` int64, the global id of each row. None: row ``i`` belongs to id ``i``."""

    def __repr__(self) -> str:
        ids = "" if self.ids is None else ", ids"
        return f"FeaturePartitionData({list(self.feats.shape)} {self.feats.dtype}{ids})"


@dataclass(frozen=True)
class PartitionOutput:
    """The argument of `DistDataset.build`.

    Each field is one value for a homogeneous graph, a dict by node or edge type, or None.
    """

    node_partition_book: PartitionBook | Mapping[NodeType, PartitionBook] | None = None
    """``[num_nodes]`` integer tensor (the owner of each node) or a GLT ``RangePartitionBook``."""
    edge_partition_book: PartitionBook | Mapping[EdgeType, PartitionBook] | None = None
    """The same for edge ids; needed for edge features in several partitions."""
    partitioned_edge_index: GraphPartitionData | dict[EdgeType, GraphPartitionData] | None = None
    """Edges stored at the owner of the expanded node: the destination if the dataset's ``edge_dir``
    is ``"in"``, the source if it is ``"out"``.

    Label edge types may be among them, at the owner of their anchor and stored like all edges:
    ``(anchor type, relation, label type)`` with the anchors in row 0 if ``edge_dir`` is ``"out"``,
    ``(label type, relation, anchor type)`` with the anchors in row 1 if it is ``"in"``, also
    between nodes of one type. GiGL stores them in this way."""
    partitioned_node_features: (
        FeaturePartitionData | dict[NodeType, FeaturePartitionData] | None
    ) = None
    partitioned_edge_features: (
        FeaturePartitionData | dict[EdgeType, FeaturePartitionData] | None
    ) = None
    partitioned_positive_labels: Tensor | dict[EdgeType, Tensor] | None = None
    """``[2, num_labels]`` int64 by supervision edge type ``(anchor type, relation, label type)``:
    row 0 anchors, row 1 label nodes, for any ``edge_dir``; the anchors are this partition's.
    """
    partitioned_negative_labels: Tensor | dict[EdgeType, Tensor] | None = None
    """As the positives."""
    partitioned_node_labels: FeaturePartitionData | dict[NodeType, FeaturePartitionData] | None = (
        None
    )

    def __repr__(self) -> str:
        given = (field.name for field in fields(self) if getattr(self, field.name) is not None)
        return f"PartitionOutput({', '.join(given)})"


def by_type(value: _T | dict[Any, _T] | None, default_type: Any) -> dict[Any, _T]:
    """Return a field of `PartitionOutput` as a dict; a single value belongs to ``default_type``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        return {default_type: value}
    return {plain_edge_type(k) if isinstance(k, tuple) else k: v for k, v in value.items()}


def _as_own(value: Any, kind: type[_T], where: str) -> _T:
    """Return a value as one of ours: a dataclass with the same fields is taken, whoever made it.

    Raises:
        WrongTypeError: It is none.
        ConfigError: It has a value in a field that ours lacks.
    """
    if isinstance(value, kind):
        return value
    own = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]  # each is one
    given = fields(value) if is_dataclass(value) and not isinstance(value, type) else ()
    names = {field.name for field in given}
    missing = {name for name, one in own.items() if one.default is MISSING} | {next(iter(own))}
    if not missing <= names:
        made = f"{type(value).__module__}.{type(value).__qualname__}"
        raise WrongTypeError(
            f"{where} must be a {kind.__name__}, or a dataclass with its fields; got {made}"
        )
    unknown = sorted(name for name in names - set(own) if getattr(value, name) is not None)
    if unknown:
        raise ConfigError(f"{where} has {unknown}, which a {kind.__name__} does not have here")
    return kind(**{name: getattr(value, name) for name in names & set(own)})


# --- its view -------------------------------------------------------------------------------------


def read_output(
    output: PartitionOutput, *, num_partitions: int, partition_idx: int, edge_dir: EdgeDir
) -> PartitionView:
    """Return the view of a partition, checked.

    Raises:
        ConfigError: A field is malformed, lacks ids, or has data of another partition.
    """
    output = _as_own(output, PartitionOutput, "partition_output")
    edges = by_type(output.partitioned_edge_index, DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    if not edges:
        raise ConfigError("partition_output.partitioned_edge_index is missing: a graph needs edges")
    # GiGL keeps supervision among the edges; the others are for message passing
    labels = {key: edges.pop(key) for key in list(edges) if _is_label_type(key)}
    if not edges:
        raise ConfigError(
            "partition_output.partitioned_edge_index has label edges only: a graph needs edges to "
            "pass messages over"
        )
    # first: everything else is checked against the numbers of nodes and their owners
    node_books, edge_books = _read_books(output, num_partitions)
    num_nodes = _num_nodes(output, node_books, {**edges, **labels}, num_partitions)
    # by the edges only: node fields may be dicts by type even in a graph of one type
    typed = isinstance(output.partitioned_edge_index, dict)
    view = PartitionView(
        typed, edge_dir, num_partitions, partition_idx, num_nodes, {}, node_books, edge_books
    )
    builder = ViewBuilder(view)
    for edge_type, part in edges.items():
        _add_edges(builder, edge_type, part)
    for edge_type, part in labels.items():
        _add_label_edges(builder, edge_type, part)
    for where, label_type, labels in labels_of(output):
        _check_labels(builder, label_type, labels, where)
    _add_node_rows(builder, output)
    _add_edge_rows(builder, output)
    return builder.completed_view()


def _read_books(
    output: PartitionOutput, count: int
) -> tuple[dict[NodeType, Book], dict[EdgeType, Book]]:
    of_nodes = by_type(output.node_partition_book, DEFAULT_HOMOGENEOUS_NODE_TYPE)
    of_edges = by_type(output.edge_partition_book, DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    nodes = {t: read_book(b, count, f"node_partition_book of {t!r}") for t, b in of_nodes.items()}
    return nodes, {
        edge_type: read_book(book, count, f"edge_partition_book of {edge_type}")
        for edge_type, book in of_edges.items()
        if not _is_label_type(edge_type)  # labels are looked up by anchor
    }


def _num_nodes(
    output: PartitionOutput, books: dict[NodeType, Book], edges: dict[EdgeType, Any], count: int
) -> dict[NodeType, int]:
    num_nodes = {node_type: book.num_ids for node_type, book in books.items()}
    for edge_type in edges:
        check_edge_type(edge_type, "partitioned_edge_index")
        for node_type in (edge_type[0], edge_type[2]):
            if node_type in num_nodes:
                continue
            if count > 1:
                raise ConfigError(
                    f"node_partition_book has no entry for node type {node_type!r}, "
                    "which several partitions need"
                )
            # a partition with a part of the graph cannot count; one with all of it can
            num_nodes[node_type] = _count_nodes(node_type, output, edges)
    return num_nodes


def _count_nodes(
    node_type: NodeType, output: PartitionOutput, edges: dict[EdgeType, GraphPartitionData]
) -> int:
    """Return one past the highest mentioned id of a type. For one partition."""
    count = 0
    for name in ("partitioned_node_features", "partitioned_node_labels"):
        part = by_type(getattr(output, name), DEFAULT_HOMOGENEOUS_NODE_TYPE).get(node_type)
        if part is not None:
            count = max(count, len(part.feats) if part.ids is None else _end_of_ids(part.ids))
    for edge_type, part in edges.items():
        for row, end in ((0, edge_type[0]), (1, edge_type[2])):
            if end == node_type:
                edge_index = check_edge_index(part.edge_index, None, None, f"edges {edge_type}")
                count = max(count, _end_of_ids(edge_index[row]))
    return count


def _end_of_ids(ids: Tensor) -> int:
    return int(ids.max()) + 1 if ids.numel() else 0


def _graph_part(part: Any, where: str) -> GraphPartitionData:
    return _as_own(part, GraphPartitionData, where)


def _add_edges(builder: ViewBuilder, edge_type: EdgeType, given: Any) -> None:
    view, where = builder.view, f"partitioned_edge_index of {edge_type}"
    part, types = _graph_part(given, where), (edge_type[0], edge_type[2])
    edge_index = check_edge_index(
        part.edge_index, view.num_nodes[types[0]], view.num_nodes[types[1]], where
    )
    num_edges, edge_ids, weights = edge_index.size(1), part.edge_ids, part.weights
    # other partitions find edge features and weights by id: positions would clash
    if edge_ids is None and view.num_partitions > 1:
        raise ConfigError(f"{where} needs edge_ids: ids must agree over several partitions")
    if edge_ids is not None:
        # without a book, the highest id decides the number of ids
        limit = view.edge_books[edge_type].num_ids if edge_type in view.edge_books else None
        edge_ids = check_ids(edge_ids, limit, f"{where}, edge_ids")
        if edge_ids.numel() != num_edges:
            raise ConfigError(f"{where} has {edge_ids.numel()} edge_ids for {num_edges} edges")
    if weights is not None:
        weights = check_weights(weights, num_edges, f"{where}, weights")
    end = expanded_end(view.edge_dir)
    if types[end] in view.node_books and view.num_partitions > 1:
        check_ownership(
            view.node_books[types[end]].owner(edge_index[end]),
            view.partition_idx,
            f"{where}, {('sources', 'destinations')[end]}",
            f'with edge_dir="{view.edge_dir}" an edge is stored where its '
            f"{('source', 'destination')[end]} is",
        )
    builder.add_edges(edge_type, edge_index, edge_ids, weights)


def labels_of(output: PartitionOutput) -> Iterator[tuple[str, EdgeType, Any]]:
    """Yield the place, for errors, label edge type and edges of the labels that are given apart."""
    for sign, to_label_type in LABEL_TYPES.items():
        name = f"partitioned_{sign}_labels"
        given = by_type(getattr(output, name), DEFAULT_HOMOGENEOUS_EDGE_TYPE)
        for edge_type, labels in given.items():
            check_edge_type(edge_type, name)
            yield f"{name} of {edge_type}", to_label_type(edge_type), labels


def _is_label_type(edge_type: Any) -> bool:
    return is_label_edge_type(check_edge_type(edge_type, "partition_output"))


def _add_label_edges(builder: ViewBuilder, given: EdgeType, part: Any) -> None:
    """Add label edges from among the edges: stored like all edges, as GiGL keeps them."""
    where, edge_dir = f"partitioned_edge_index of {given}", builder.view.edge_dir
    labels, edge_type = _graph_part(part, where).edge_index, glt_edge_type(given, edge_dir)
    # not by the names: those are the same if anchors and labels have one type
    if edge_dir == "in":
        labels = check_edge_index(labels, None, None, where).flip(0)
        where = f'{where}, turned to {edge_type} for edge_dir="in"'
    _check_labels(builder, edge_type, labels, where)


def _check_labels(builder: ViewBuilder, label_type: EdgeType, labels: Any, where: str) -> None:
    """Check labels, ``[2, n]`` with the anchors first, and add them."""
    view, (src, _, dst) = builder.view, label_type
    for node_type in (src, dst):
        if node_type not in view.num_nodes:
            raise ConfigError(f"{where}: there is no node type {node_type!r}")
    if label_type in view.adjacency:
        raise ConfigError(f"{where}: the labels {label_type} were given already; give them once")
    labels = check_edge_index(labels, view.num_nodes[src], view.num_nodes[dst], where)
    # a sampler looks labels up at the anchor: elsewhere they would be silently lost
    if src in view.node_books and view.num_partitions > 1:
        check_ownership(
            view.node_books[src].owner(labels[0]),
            view.partition_idx,
            f"{where}, anchors (row 0)",
            "labels are stored where their anchor is",
        )
    builder.add_labels(label_type, labels)


def _add_node_rows(builder: ViewBuilder, output: PartitionOutput) -> None:
    view = builder.view
    for kind in ("node_features", "node_labels"):
        name = f"partitioned_{kind}"
        given = by_type(getattr(output, name), DEFAULT_HOMOGENEOUS_NODE_TYPE)
        for node_type, part in given.items():
            where = f"{name} of {node_type!r}"
            if node_type not in view.num_nodes:
                raise ConfigError(f"{where}: there is no such node type")
            values, ids = _read_matrix(view, part, view.num_nodes[node_type], where)
            # labels of one column get one dimension, as in GiGL's batches; features keep their
            # shape
            if kind == "node_labels" and values.dim() == 2 and values.size(1) == 1:
                values = values.squeeze(1)
            builder.add_rows(kind, node_type, values, ids)


def _add_edge_rows(builder: ViewBuilder, output: PartitionOutput) -> None:
    view = builder.view
    given = by_type(output.partitioned_edge_features, DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    for edge_type, part in given.items():
        where = f"partitioned_edge_features of {edge_type}"
        if edge_type not in view.adjacency or is_label_edge_type(edge_type):
            raise ConfigError(f"{where}: there are no edges of this type")
        if view.num_partitions > 1 and edge_type not in view.edge_books:
            raise ConfigError(f"{where}: several partitions need an edge_partition_book")
        num_edges = view.adjacency[edge_type].indices.numel()
        values, ids = _read_matrix(view, part, num_edges, where)
        builder.add_rows("edge_features", edge_type, values, ids)


def _read_matrix(
    view: PartitionView, part: Any, num_ids: int, where: str
) -> tuple[Tensor, Tensor | None]:
    """Return the rows of a matrix and their ids, checked."""
    part = _as_own(part, FeaturePartitionData, where)
    if part.ids is None and view.num_partitions > 1:
        raise ConfigError(f"{where} needs ids: several partitions share the rows")
    ids = None if part.ids is None else check_ids(part.ids, None, f"{where}, ids")
    # ids are not compared with `num_ids` here: `add_rows` does it, with the book's count in its
    # error
    num_rows = num_ids if ids is None else ids.numel()
    return check_matrix(part.feats, num_rows, "id", where), ids
