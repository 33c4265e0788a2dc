"""`PartitionOutput` as checked `Pieces`: the low-level way into a dataset."""

from typing import Any

from torch import Tensor

from gigl_loader.dataset._attributes import glt_edge_type
from gigl_loader.dataset._books import read_book
from gigl_loader.dataset._checks import (
    check_edge_index,
    check_edge_type,
    check_ids,
    check_matrix,
    check_weights,
)
from gigl_loader.dataset._pieces import Pieces, check_ownership, expanded_end
from gigl_loader.dataset.parts import (
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
    by_type,
)
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    NodeType,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, WrongTypeError

_NODE_FIELDS = ("node_partition_book", "partitioned_node_features", "partitioned_node_labels")


def read_output(
    output: PartitionOutput, *, num_partitions: int, partition_idx: int, edge_dir: EdgeDir
) -> Pieces:
    """Return ``output`` checked.

    Raises:
        ConfigError: A field is malformed, misses ids, or holds what another partition owns.
    """
    if not isinstance(output, PartitionOutput):
        raise WrongTypeError(
            f"partition_output must be a PartitionOutput, got {type(output).__name__}"
        )
    edges = by_type(output.partitioned_edge_index, DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    if not edges:
        raise ConfigError("partition_output.partitioned_edge_index is missing: a graph needs edges")
    pieces = Pieces(
        # by the edges alone: node fields may be dicts by type in a graph of one type as well
        heterogeneous=isinstance(output.partitioned_edge_index, dict),
        edge_dir=edge_dir,
        num_partitions=num_partitions,
        partition_idx=partition_idx,
        num_nodes={},
        edges={},
    )
    # GiGL keeps supervision among the edges; what is left is what messages pass over
    labels = {key: edges.pop(key) for key in list(edges) if _is_label_type(key)}
    if not edges:
        raise ConfigError(
            "partition_output.partitioned_edge_index has label edges only: a graph needs edges to "
            "pass messages over"
        )
    # first: all that follows is checked against the numbers of nodes and their owners
    _read_books(pieces, output, {**edges, **labels})
    for edge_type, part in edges.items():
        pieces.edges[edge_type] = _read_edges(pieces, edge_type, part)
    _read_label_edges(pieces, labels)
    _read_labels(pieces, output)
    _read_rows(pieces, output)
    return pieces


def _read_books(pieces: Pieces, output: PartitionOutput, edges: dict[EdgeType, Any]) -> None:
    node_books = by_type(output.node_partition_book, DEFAULT_HOMOGENEOUS_NODE_TYPE)
    for node_type, value in node_books.items():
        book = read_book(value, pieces.num_partitions, f"node_partition_book of {node_type!r}")
        pieces.node_books[node_type] = book
        pieces.num_nodes[node_type] = book.num_ids
    for edge_type, value in by_type(
        output.edge_partition_book, DEFAULT_HOMOGENEOUS_EDGE_TYPE
    ).items():
        if not _is_label_type(edge_type):  # labels are looked up by anchor
            where = f"edge_partition_book of {edge_type}"
            pieces.edge_books[edge_type] = read_book(value, pieces.num_partitions, where)
    for edge_type in edges:
        check_edge_type(edge_type, "partitioned_edge_index")
        for node_type in (edge_type[0], edge_type[2]):
            if node_type in pieces.num_nodes:
                continue
            if pieces.num_partitions > 1:
                raise ConfigError(
                    f"node_partition_book has no entry for node type {node_type!r}, "
                    "which several partitions need"
                )
            # a partition that sees a part of the graph cannot count; one that has all of it can
            pieces.num_nodes[node_type] = _count_nodes(node_type, output, edges)


def _count_nodes(
    node_type: NodeType, output: PartitionOutput, edges: dict[EdgeType, GraphPartitionData]
) -> int:
    """Return one past the highest id of a type that anything mentions. For one partition."""
    count = 0
    for name in ("partitioned_node_features", "partitioned_node_labels"):
        part = by_type(getattr(output, name), DEFAULT_HOMOGENEOUS_NODE_TYPE).get(node_type)
        if part is not None:
            count = max(count, len(part.feats) if part.ids is None else _past(part.ids))
    for edge_type, part in edges.items():
        for row, end in ((0, edge_type[0]), (1, edge_type[2])):
            if end == node_type:
                edge_index = check_edge_index(part.edge_index, None, None, f"edges {edge_type}")
                count = max(count, _past(edge_index[row]))
    return count


def _past(ids: Tensor) -> int:
    return int(ids.max()) + 1 if ids.numel() else 0


def _read_edges(
    pieces: Pieces, edge_type: EdgeType, part: GraphPartitionData
) -> GraphPartitionData:
    where = f"partitioned_edge_index of {edge_type}"
    if not isinstance(part, GraphPartitionData):
        raise WrongTypeError(f"{where} must be a GraphPartitionData, got {type(part).__name__}")
    types = (edge_type[0], edge_type[2])
    edge_index = check_edge_index(
        part.edge_index, pieces.num_nodes[types[0]], pieces.num_nodes[types[1]], where
    )
    num_edges, edge_ids, weights = edge_index.size(1), part.edge_ids, part.weights
    # features and weights of edges are looked up by id at other partitions: positions would clash
    if edge_ids is None and pieces.num_partitions > 1:
        raise ConfigError(f"{where} needs edge_ids: ids must agree over several partitions")
    if edge_ids is not None:
        # without a book, there are as many ids as the highest in sight says
        limit = pieces.edge_books[edge_type].num_ids if edge_type in pieces.edge_books else None
        edge_ids = check_ids(edge_ids, limit, f"{where}, edge_ids")
        if edge_ids.numel() != num_edges:
            raise ConfigError(f"{where} has {edge_ids.numel()} edge_ids for {num_edges} edges")
    if weights is not None:
        weights = check_weights(weights, num_edges, f"{where}, weights")
    end = expanded_end(pieces.edge_dir)
    if types[end] in pieces.node_books and pieces.num_partitions > 1:
        check_ownership(
            pieces.node_books[types[end]].owner(edge_index[end]),
            pieces.partition_idx,
            f"{where}, {('sources', 'destinations')[end]}",
            f'with edge_dir="{pieces.edge_dir}" an edge is stored where its '
            f"{('source', 'destination')[end]} is",
        )
    return GraphPartitionData(edge_index, edge_ids, weights)


def _read_labels(pieces: Pieces, output: PartitionOutput) -> None:
    for name, to_label_type in (
        ("partitioned_positive_labels", message_passing_to_positive_label),
        ("partitioned_negative_labels", message_passing_to_negative_label),
    ):
        for edge_type, labels in by_type(
            getattr(output, name), DEFAULT_HOMOGENEOUS_EDGE_TYPE
        ).items():
            where = f"{name} of {edge_type}"
            check_edge_type(edge_type, name)
            _keep_labels(pieces, to_label_type(edge_type), labels, where)


def _is_label_type(edge_type: Any) -> bool:
    return is_label_edge_type(check_edge_type(edge_type, "partition_output"))


def _read_label_edges(pieces: Pieces, parts: dict[EdgeType, Any]) -> None:
    """Read label edges that came among the edges: stored as all edges are, as GiGL keeps them."""
    for given, part in parts.items():
        where = f"partitioned_edge_index of {given}"
        if not isinstance(part, GraphPartitionData):
            raise WrongTypeError(f"{where} must be a GraphPartitionData, got {type(part).__name__}")
        edge_type, labels = glt_edge_type(given, pieces.edge_dir), part.edge_index
        # not by the names: those are the same where the anchors and their labels are of one type
        if pieces.edge_dir == "in":
            labels = check_edge_index(labels, None, None, where).flip(0)
            where = f'{where}, turned to {edge_type} for edge_dir="in"'
        _keep_labels(pieces, edge_type, labels, where)


def _keep_labels(pieces: Pieces, label_type: EdgeType, labels: Any, where: str) -> None:
    """Check labels, ``[2, n]`` with the anchors first, and keep them."""
    src, _, dst = label_type
    for node_type in (src, dst):
        if node_type not in pieces.num_nodes:
            raise ConfigError(f"{where}: there is no node type {node_type!r}")
    if label_type in pieces.label_edges:
        raise ConfigError(f"{where}: the labels {label_type} were given already; give them once")
    labels = check_edge_index(labels, pieces.num_nodes[src], pieces.num_nodes[dst], where)
    # a sampler looks labels up where the anchor is: elsewhere they would be lost without a word
    if src in pieces.node_books and pieces.num_partitions > 1:
        check_ownership(
            pieces.node_books[src].owner(labels[0]), pieces.partition_idx,
            f"{where}, anchors (row 0)", "labels are stored where their anchor is",
        )  # fmt: skip
    pieces.label_edges[label_type] = labels


def _read_rows(pieces: Pieces, output: PartitionOutput) -> None:
    for name, target in (
        ("partitioned_node_features", pieces.node_features),
        ("partitioned_node_labels", pieces.node_labels),
    ):
        for node_type, part in by_type(
            getattr(output, name), DEFAULT_HOMOGENEOUS_NODE_TYPE
        ).items():
            where = f"{name} of {node_type!r}"
            if node_type not in pieces.num_nodes:
                raise ConfigError(f"{where}: there is no such node type")
            target[node_type] = _read_matrix(pieces, part, pieces.num_nodes[node_type], where)
            # features of one column keep their shape: only labels have this rule in GiGL
            if name == "partitioned_node_labels":
                target[node_type] = _one_column(target[node_type])
    for edge_type, part in by_type(
        output.partitioned_edge_features, DEFAULT_HOMOGENEOUS_EDGE_TYPE
    ).items():
        where = f"partitioned_edge_features of {edge_type}"
        if edge_type not in pieces.edges:
            raise ConfigError(f"{where}: there are no edges of this type")
        if pieces.num_partitions > 1 and edge_type not in pieces.edge_books:
            raise ConfigError(f"{where}: several partitions need an edge_partition_book")
        num_edges = pieces.edges[edge_type].edge_index.size(1)
        pieces.edge_features[edge_type] = _read_matrix(pieces, part, num_edges, where)


def _one_column(labels: FeaturePartitionData) -> FeaturePartitionData:
    """Return labels of one column as GiGL's batches have them: with one dimension."""
    if labels.feats.dim() == 2 and labels.feats.size(1) == 1:
        return FeaturePartitionData(labels.feats.squeeze(1), labels.ids)
    return labels


def _read_matrix(pieces: Pieces, part: Any, num_ids: int, where: str) -> FeaturePartitionData:
    if not isinstance(part, FeaturePartitionData):
        raise WrongTypeError(f"{where} must be a FeaturePartitionData, got {type(part).__name__}")
    if part.ids is None and pieces.num_partitions > 1:
        raise ConfigError(f"{where} needs ids: several partitions share the rows")
    ids = None if part.ids is None else check_ids(part.ids, None, f"{where}, ids")
    # ids are not held against `num_ids` here: `make_view` does, with the book's count in its error
    num_rows = num_ids if ids is None else ids.numel()
    return FeaturePartitionData(check_matrix(part.feats, num_rows, "id", where), ids)
