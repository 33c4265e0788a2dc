"""What a partition says of itself: types, counts, ids, books, labels. All of it is read."""

from typing import Any, cast

import torch
from torch import Tensor

from gigl_loader.dataset._checks import check_count
from gigl_loader.dataset._pieces import SPLITS
from gigl_loader.dataset.build import owned_ids
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.neighbours import edges_of
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    FeatureInfo,
    NodeType,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.dataset.view import PartitionView, Rows
from gigl_loader.errors import ConfigError, UsageError

ByNodeType = Tensor | dict[NodeType, Tensor]


class PartitionFacts:
    """The properties of a `gigl_loader.DistDataset`; that class holds what they are read from."""

    num_partitions: int
    partition_idx: int
    train_idx: Any
    val_idx: Any
    test_idx: Any
    node_pb: Any
    edge_pb: Any
    _schema: DatasetSchema | None
    _max_labels: int | None

    def view(self) -> PartitionView:
        """Return the partition as sampling workers read it."""
        raise NotImplementedError

    @property
    def schema(self) -> DatasetSchema:
        """Types, feature widths and direction."""
        # raises for a dataset that is empty, which has no schema yet
        self.view()
        assert self._schema is not None
        return self._schema

    @property
    def graph_identity(self) -> GraphIdentity:
        """Which graph this is a partition of: the same for all partitions, see `GraphIdentity`."""
        found = self.view().identity
        assert found is not None  # `DistDataset._fill` sees to it
        return found

    @property
    def is_typed(self) -> bool:
        """Whether values come as dicts by type: heterogeneous or labeled homogeneous."""
        return self.schema.edge_types is not None

    @property
    def num_nodes(self) -> int | dict[NodeType, int]:
        """Nodes over all partitions."""
        counts = self.view().num_nodes
        return dict(counts) if self.is_typed else counts[DEFAULT_HOMOGENEOUS_NODE_TYPE]

    @property
    def node_ids(self) -> ByNodeType:
        """``[num_owned]`` int64: global ids of the nodes that this partition owns, ascending."""
        view = self.view()
        ids = {
            node_type: owned_ids(view.node_books[node_type], view.partition_idx)
            if node_type in view.node_books
            else torch.arange(count)
            for node_type, count in view.num_nodes.items()
        }
        return ids if self.is_typed else ids[DEFAULT_HOMOGENEOUS_NODE_TYPE]

    @property
    def train_node_ids(self) -> ByNodeType | None:
        """Global ids of this partition's training nodes, ascending; None where none are known."""
        return cast("ByNodeType | None", self.train_idx)

    @property
    def val_node_ids(self) -> ByNodeType | None:
        """Global ids of this partition's validation nodes."""
        return cast("ByNodeType | None", self.val_idx)

    @property
    def test_node_ids(self) -> ByNodeType | None:
        """Global ids of this partition's test nodes."""
        return cast("ByNodeType | None", self.test_idx)

    def split_node_ids(self, split: str) -> ByNodeType | None:
        """Return the ids of ``"train"``, ``"val"`` or ``"test"``.

        Raises:
            ConfigError: There is no such split.
        """
        if split not in SPLITS:
            raise ConfigError(f'split must be "train", "val" or "test", got {split!r}')
        return cast("ByNodeType | None", getattr(self, f"{split}_idx"))

    @property
    def node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Width and dtype of the node features; None where there are none."""
        return self.schema.node_feature_info

    @property
    def edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Width and dtype of the edge features; None where there are none."""
        return self.schema.edge_feature_info

    @property
    def num_classes(self) -> int | dict[NodeType, int]:
        """Classes of the node labels over all partitions, as PyG counts them; 0 without labels.

        One past the highest label; of labels with several columns, the columns. On a typed dataset
        a dict by the types that have labels.

        Raises:
            UsageError: Only this partition's labels are known here.
        """
        view = self.view()
        counts = {t: self._count_classes(t, rows) for t, rows in view.node_labels.items()}
        return counts if self.is_typed else counts.get(DEFAULT_HOMOGENEOUS_NODE_TYPE, 0)

    def _count_classes(self, node_type: NodeType, rows: Rows) -> int:
        known = self.view().num_classes.get(node_type)
        if known is not None:
            return known
        # of a part of the labels, classes may be missing, and ranks would build different models
        if rows.whole:  # floating point: PyG counts distinct values
            distinct: Tensor = torch.unique(rows.values)
            return distinct.numel()
        raise UsageError(
            f"this dataset holds the labels of partition {self.partition_idx} of "
            f"{self.num_partitions} alone and does not know those of the others: all_reduce the "
            "highest label over the ranks, or write the directory with partition_graph, which "
            "keeps the number"
        )

    @property
    def node_partition_book(self) -> Any:
        """The owner of each node: GLT's range book where ranges allow, else a tensor."""
        return self.node_pb

    @property
    def edge_partition_book(self) -> Any:
        """The owner of each edge; None where there is one partition and nothing to look up."""
        return self.edge_pb

    @property
    def max_labels_per_anchor_node(self) -> int | None:
        """Most positives, and most negatives, that an anchor is given; None (the default): all.

        Where an anchor has more, it is given those with the lowest ids. Set it before loaders are
        built, or storage servers started.

        Raises:
            ConfigError: Set to something else than None or a number above 0.
        """
        return self._max_labels

    @max_labels_per_anchor_node.setter
    def max_labels_per_anchor_node(self, value: int | None) -> None:
        # checked when it is set, in the caller's line; workers only read it
        if value is not None:
            check_count(value, "max_labels_per_anchor_node")
        self._max_labels = value

    @property
    def label_edges(self) -> dict[EdgeType, Tensor]:
        """Label edges of this partition's anchors by label edge type: ``[2, n]``, anchors first."""
        found = {}
        for edge_type, adjacency in self.view().adjacency.items():
            if is_label_edge_type(edge_type):
                found[edge_type] = edges_of(adjacency, "out")
        return found

    def positive_label_edges(self, edge_type: EdgeType | None = None) -> Tensor | None:
        """Return the positives of a supervision edge type, ``[2, n]`` int64, anchors first.

        Args:
            edge_type: None: the default type of a labeled-homogeneous dataset.
        """
        edge_type = edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE
        return self.label_edges.get(message_passing_to_positive_label(edge_type))

    def negative_label_edges(self, edge_type: EdgeType | None = None) -> Tensor | None:
        """Return the negatives of a supervision edge type, ``[2, n]`` int64, anchors first."""
        edge_type = edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE
        return self.label_edges.get(message_passing_to_negative_label(edge_type))
