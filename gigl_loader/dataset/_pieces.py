"""One partition as loose tensors (`Pieces`), and how it becomes what workers read."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gigl_loader.dataset._build import compress, make_rows, owned_ids
from gigl_loader.dataset.parts import FeaturePartitionData, GraphPartitionData
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeDir,
    EdgeType,
    FeatureInfo,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows
from gigl_loader.errors import ConfigError

SPLITS = ("train", "val", "test")


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
    splits: dict[str, dict[NodeType, Tensor]] = field(default_factory=dict)
    """By ``"train"``, ``"val"``, ``"test"`` and node type: ids that this partition owns."""


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
        adjacency[edge_type] = _labels(pieces, edge_type, labels)
    labeled = is_labeled_homogeneous(pieces.num_nodes, list(adjacency))
    several = pieces.num_partitions > 1
    return PartitionView(
        is_heterogeneous=pieces.heterogeneous and not labeled,
        edge_dir=pieces.edge_dir,
        num_partitions=pieces.num_partitions,
        partition_idx=pieces.partition_idx,
        num_nodes=dict(pieces.num_nodes),
        adjacency=adjacency,
        node_books=dict(pieces.node_books) if several else {},
        edge_books=dict(pieces.edge_books) if several else {},
        node_features=_node_rows(pieces, pieces.node_features),
        node_labels=_node_rows(pieces, pieces.node_labels),
        edge_features=_edge_rows(pieces, adjacency),
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


def _labels(pieces: Pieces, edge_type: EdgeType, labels: Tensor) -> Adjacency:
    """Group label edges by anchor, in both directions: the loader looks labels up by anchor."""
    found = compress(
        labels[0],
        labels[1],
        num_rows=pieces.num_nodes[edge_type[0]],
        num_cols=pieces.num_nodes[edge_type[2]],
    )
    return Adjacency(found.indptr, found.indices, None, None)


def _node_rows(pieces: Pieces, parts: dict[NodeType, FeaturePartitionData]) -> dict[NodeType, Rows]:
    found = {}
    for node_type, part in parts.items():
        rows = make_rows(part.feats, part.ids, pieces.num_nodes[node_type])
        owned = None
        if rows.index is not None and node_type in pieces.node_books:
            owned = owned_ids(pieces.node_books[node_type], pieces.partition_idx)
        _check_rows(rows, owned, f"features or labels of node type {node_type!r}")
        found[node_type] = rows
    return found


def _edge_rows(pieces: Pieces, adjacency: dict[EdgeType, Adjacency]) -> dict[EdgeType, Rows]:
    found = {}
    for edge_type, part in pieces.edge_features.items():
        rows = make_rows(part.feats, part.ids, _num_edge_ids(pieces, edge_type, part))
        _check_rows(rows, adjacency[edge_type].edge_ids, f"features of edge type {edge_type}")
        found[edge_type] = rows
    return found


def _check_rows(rows: Rows, owned: Tensor | None, what: str) -> None:
    """Check that there is a row for each id that this partition owns (None: for all ids)."""
    num_ids = rows.values.size(0) if rows.index is None else rows.index.numel()
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
    typed = labeled or view.is_heterogeneous
    nodes = {node_type: feature_info(rows) for node_type, rows in view.node_features.items()}
    edges = {edge_type: feature_info(rows) for edge_type, rows in view.edge_features.items()}
    return DatasetSchema(
        is_homogeneous_with_labeled_edge_type=labeled,
        edge_types=list(view.adjacency) if typed else None,
        node_feature_info=(nodes or None) if typed else nodes.get(DEFAULT_HOMOGENEOUS_NODE_TYPE),
        edge_feature_info=(edges or None) if typed else edges.get(DEFAULT_HOMOGENEOUS_EDGE_TYPE),
        edge_dir=view.edge_dir,
    )


def feature_info(rows: Rows) -> FeatureInfo:
    """Return width and dtype of one feature matrix."""
    width = 1
    for size in rows.values.shape[1:]:
        width *= size
    return FeatureInfo(width, rows.values.dtype)


def check_ownership(owner: Tensor, partition_idx: int, what: str, hint: str) -> None:
    """Check that all of ``owner`` (``[n]``, partitions) is ``partition_idx``."""
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
