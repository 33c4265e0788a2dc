"""One partition as loose tensors (`Pieces`), and how it becomes what workers read."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gigl_loader.dataset.build import compress, make_rows, owned_ids
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.parts import FeaturePartitionData, GraphPartitionData
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    NEIGHBOR_TIME,
    DatasetSchema,
    EdgeDir,
    EdgeType,
    FeatureInfo,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows, Splits
from gigl_loader.errors import ConfigError

SPLITS = ("train", "val", "test")
WEIGHT_NAMES = ("edge_weight", "weights")
"""What weights are called in a PyG graph; without a name they are carried as the first."""

_K = TypeVar("_K", NodeType, EdgeType, tuple[NodeType, str], tuple[EdgeType, str])


@dataclass
class Pieces:
    """The tensors of one partition, checked, in the caller's order."""

    heterogeneous: bool
    """Whether the graph came by type. A homogeneous one uses the default types."""
    edge_dir: EdgeDir
    num_partitions: int
    partition_idx: int
    num_nodes: dict[NodeType, int]
    edges: dict[EdgeType, GraphPartitionData]
    """Message-passing edges that this partition owns."""
    label_edges: dict[EdgeType, Tensor] = field(default_factory=dict)
    """By label edge type: ``[2, num_labels]``, anchors first; the anchors are this partition's."""
    node_books: dict[NodeType, Book] = field(default_factory=dict)
    edge_books: dict[EdgeType, Book] = field(default_factory=dict)
    node_features: dict[NodeType, FeaturePartitionData] = field(default_factory=dict)
    edge_features: dict[EdgeType, FeaturePartitionData] = field(default_factory=dict)
    node_labels: dict[NodeType, FeaturePartitionData] = field(default_factory=dict)
    splits: Splits = field(default_factory=dict)
    node_attributes: dict[tuple[NodeType, str], FeaturePartitionData] = field(default_factory=dict)
    """By type and name; what has a row per node and is none of the above."""
    edge_attributes: dict[tuple[EdgeType, str], FeaturePartitionData] = field(default_factory=dict)
    num_classes: dict[NodeType, int] = field(default_factory=dict)
    """Over all partitions, where that is known."""
    identity: GraphIdentity | None = None
    """As the directory says, where these are of one that does."""


def is_labeled_homogeneous(num_nodes: dict[NodeType, int], edge_types: list[EdgeType]) -> bool:
    """Return whether there are the default types and label edge types, nothing else."""
    plain = [edge_type for edge_type in edge_types if not is_label_edge_type(edge_type)]
    return (
        set(num_nodes) == {DEFAULT_HOMOGENEOUS_NODE_TYPE}
        and plain == [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        and len(plain) < len(edge_types)
    )


def expanded_end(edge_dir: EdgeDir) -> int:
    """Return the row of an edge index that holds the node that is expanded."""
    return 1 if edge_dir == "in" else 0


def make_view(pieces: Pieces) -> PartitionView:
    """Return the partition as workers read it, in shared memory."""
    adjacency = {
        edge_type: _message_passing(pieces, edge_type, part)
        for edge_type, part in pieces.edges.items()
    }
    for edge_type, labels in pieces.label_edges.items():
        adjacency[edge_type] = label_adjacency(labels, edge_type, pieces.num_nodes)
    labeled = is_labeled_homogeneous(pieces.num_nodes, list(adjacency))
    several = pieces.num_partitions > 1
    # labels and attributes share the index of the features where their ids are the same
    features = _node_rows(pieces, pieces.node_features, [])
    node_labels = _node_rows(pieces, pieces.node_labels, list(features.values()))
    like = [*features.values(), *node_labels.values()]
    edge_features = _edge_rows(pieces, pieces.edge_features, adjacency, [])
    return PartitionView(
        is_heterogeneous=pieces.heterogeneous and not labeled,
        edge_dir=pieces.edge_dir,
        num_partitions=pieces.num_partitions,
        partition_idx=pieces.partition_idx,
        num_nodes=dict(pieces.num_nodes),
        adjacency=adjacency,
        # without books samplers take a shorter way: nobody else is to be asked
        node_books=dict(pieces.node_books) if several else {},
        edge_books=dict(pieces.edge_books) if several else {},
        node_features=features,
        node_labels=node_labels,
        edge_features=edge_features,
        node_attributes=_node_rows(pieces, pieces.node_attributes, like),
        edge_attributes=_edge_rows(
            pieces, _with_weights(pieces), adjacency, list(edge_features.values())
        ),
        # those of the whole graph where whoever cut it knew them; counted here, they need all
        # labels
        num_classes=pieces.num_classes or count_classes(node_labels),
        identity=pieces.identity,
    )


def _message_passing(pieces: Pieces, edge_type: EdgeType, part: GraphPartitionData) -> Adjacency:
    end = expanded_end(pieces.edge_dir)
    types = (edge_type[0], edge_type[2])
    return compress(
        part.edge_index[end],
        part.edge_index[1 - end],
        num_rows=pieces.num_nodes[types[end]],
        num_cols=pieces.num_nodes[types[1 - end]],
        edge_ids=part.edge_ids,
        weights=part.weights,
    )


def label_adjacency(
    labels: Tensor, edge_type: EdgeType, num_nodes: Mapping[NodeType, int]
) -> Adjacency:
    """Group label edges by anchor, in both directions: the loader looks labels up by anchor."""
    found = compress(
        labels[0],
        labels[1],
        num_rows=num_nodes[edge_type[0]],
        num_cols=num_nodes[edge_type[2]],
    )
    # positions as ids would look like ids of message-passing edges, which a batch could ask for
    return Adjacency(found.indptr, found.indices, None, None)


def _node_rows(
    pieces: Pieces, parts: Mapping[_K, FeaturePartitionData], like: list[Rows]
) -> dict[_K, Rows]:
    """Return features, labels or attributes of nodes; ``like``: rows that may share an index."""
    found: dict[_K, Rows] = {}
    for name, part in parts.items():
        node_type: Any = name if isinstance(name, str) else name[0]
        where = f"features, labels or attributes of node type {node_type!r}"
        num_nodes = pieces.num_nodes[node_type]
        _check_known(part.ids, num_nodes, where, "nodes")
        rows = make_rows(part.feats, part.ids, num_nodes, [*like, *found.values()])
        owned = None
        if rows.index is not None and node_type in pieces.node_books:
            # rows of further ids are allowed, and never asked for
            owned = owned_ids(pieces.node_books[node_type], pieces.partition_idx)
        _check_rows(rows, owned, where)
        found[name] = rows if part.scales is None else replace(rows, scales=part.scales)
    return found


def _edge_rows(
    pieces: Pieces,
    parts: Mapping[_K, FeaturePartitionData],
    adjacency: dict[EdgeType, Adjacency],
    like: list[Rows],
) -> dict[_K, Rows]:
    """Return features or attributes of edges; ``like``: rows that may share an index."""
    found: dict[_K, Rows] = {}
    for name, part in parts.items():
        # an edge type, or (edge type, attribute)
        edge_type: Any = name if len(name) == 3 else name[0]
        where = f"features or attributes of edge type {edge_type}"
        num_ids = _num_edge_ids(pieces, edge_type, part)
        _check_known(part.ids, num_ids, where, "edges")
        rows = make_rows(part.feats, part.ids, num_ids, [*like, *found.values()])
        # by the edges that are here, not by the book: a batch asks for what was sampled
        _check_rows(rows, adjacency[edge_type].edge_ids, where)
        found[name] = rows
    return found


def _with_weights(pieces: Pieces) -> dict[tuple[EdgeType, str], FeaturePartitionData]:
    """Return the attributes of edges, and the weights among them: batches carry these too."""
    found = dict(pieces.edge_attributes)
    for edge_type, part in pieces.edges.items():
        # a user's own attribute of that name is carried as it is, in its own type
        if part.weights is None or any((edge_type, name) in found for name in WEIGHT_NAMES):
            continue
        # a batch has edges of other partitions, and only a book tells whom to ask for their weights
        if pieces.num_partitions > 1 and edge_type not in pieces.edge_books:
            reason = "there is no edge partition book"
            warn_not_carried({f"weights of {edge_type}": reason}, stacklevel=4)
            continue
        found[edge_type, WEIGHT_NAMES[0]] = FeaturePartitionData(part.weights, part.edge_ids)
    return found


def warn_not_carried(reasons: Mapping[str, str], *, stacklevel: int) -> None:
    """Warn that batches will lack something, by name; ``stacklevel``: of the caller to blame."""
    if reasons:
        text = "; ".join(f"{name} ({why})" for name, why in reasons.items())
        # all names in one: filters of warnings show a line of code once
        warnings.warn(f"batches will not carry: {text}", stacklevel=stacklevel + 1)


def count_classes(labels: Mapping[NodeType, Rows]) -> dict[NodeType, int]:
    """Return the classes of each type's labels, where all of them are here.

    Source:
        PyG, ``Dataset.num_classes``: one past the highest label; of labels with several columns,
        these. (Distinct values, which it counts in floating-point labels, are no classes.)
    """
    found = {}
    for node_type, rows in labels.items():
        values = rows.values
        if values.dim() and values.numel() != len(values):
            found[node_type] = int(values.size(-1))
        # of a part of the labels the highest may be elsewhere
        elif rows.whole and not values.is_floating_point() and not values.is_complex():
            found[node_type] = int(values.max()) + 1 if values.numel() else 0
    return found


def _check_known(ids: Tensor | None, num_ids: int, what: str, unit: str) -> None:
    """Check that rows are given for ids that there are, and once each."""
    if ids is None or not ids.numel():
        return
    low, high = (int(limit) for limit in torch.aminmax(ids))
    if low < 0 or high >= num_ids:
        wrong = ids[(ids < 0) | (ids >= num_ids)]
        raise ConfigError(
            f"{what} are given for ids that there are not: {wrong[:3].tolist()}"
            f"{'...' if wrong.numel() > 3 else ''} ({wrong.numel()} of {ids.numel()}); the "
            f"partition book has {num_ids} {unit} (ids 0 to {num_ids - 1})"
        )
    # the usual case, in one pass; `unique` sorts
    ascending = bool((ids[1:] > ids[:-1]).all())
    if not ascending and torch.unique(ids).numel() < ids.numel():
        raise ConfigError(f"{what}: an id has several rows; give each id once")


def _check_rows(rows: Rows, owned: Tensor | None, what: str) -> None:
    """Check that there is a row for each id that this partition owns (None: for all ids)."""
    num_ids = rows.values.size(0) if rows.index is None else rows.index.numel()
    # before the index is asked: an id past its end would raise torch's own error
    if owned is not None and owned.numel() and int(owned.max()) >= num_ids:
        raise ConfigError(f"{what}: id {int(owned.max())} has no row, there are {num_ids} ids")
    if rows.index is None:
        return
    missing = int(((rows.index if owned is None else rows.index[owned]) < 0).sum())
    if missing:
        raise ConfigError(f"{what}: {missing} of this partition's ids have no row")


def _num_edge_ids(pieces: Pieces, edge_type: EdgeType, part: FeaturePartitionData) -> int:
    if edge_type in pieces.edge_books:
        return pieces.edge_books[edge_type].num_ids
    ids = part.ids
    return 0 if ids is None or not ids.numel() else int(ids.max()) + 1


def make_schema(view: PartitionView) -> DatasetSchema:
    """Return the shape of a dataset."""
    labeled = is_labeled_homogeneous(view.num_nodes, list(view.adjacency))
    # batches of a labeled-homogeneous graph are plain, but its label edges need names
    typed = labeled or view.is_heterogeneous
    nodes = {node_type: feature_info(rows) for node_type, rows in view.node_features.items()}
    edges = {edge_type: feature_info(rows) for edge_type, rows in view.edge_features.items()}
    return DatasetSchema(
        is_homogeneous_with_labeled_edge_type=labeled,
        edge_types=list(view.adjacency) if typed else None,
        node_feature_info=(nodes or None) if typed else nodes.get(DEFAULT_HOMOGENEOUS_NODE_TYPE),
        edge_feature_info=(edges or None) if typed else edges.get(DEFAULT_HOMOGENEOUS_EDGE_TYPE),
        edge_dir=view.edge_dir,
        node_attributes=_names(view.node_attributes),
        edge_attributes=_names(view.edge_attributes),
        num_classes=dict(view.num_classes),
    )


def _names(attributes: Mapping[tuple[Any, str], Rows]) -> dict[Any, tuple[str, ...]]:
    found: dict[Any, tuple[str, ...]] = {}
    for owner, name in sorted(attributes, key=str):
        if not name.startswith(NEIGHBOR_TIME):
            found[owner] = (*found.get(owner, ()), name)
    return found


def feature_info(rows: Rows) -> FeatureInfo:
    """Return width and dtype of one feature matrix."""
    width = 1
    for size in rows.values.shape[1:]:
        # of a matrix with more dimensions, what a model flattens it to
        width *= size
    # as batches have it, which are widened again, and not as it is stored
    return FeatureInfo(width, rows.values.dtype if rows.scales is None else torch.float32)


def check_ownership(owner: Tensor, partition_idx: int, what: str, hint: str) -> None:
    """Check that all of ``owner`` (``[n]``, partitions) is ``partition_idx``."""
    # all of them: the number tells a few stray edges from the wrong direction
    wrong = (owner != partition_idx).nonzero().view(-1)
    if wrong.numel():
        other = int(owner[wrong[0]])
        raise ConfigError(
            f"{what}: {wrong.numel()} of {owner.numel()} belong to other partitions (the one at "
            f"position {int(wrong[0])} to partition {other}, not {partition_idx}); {hint}"
        )


def no_edges() -> Tensor:
    """Return an edge index without edges."""
    return torch.empty((2, 0), dtype=torch.int64)
