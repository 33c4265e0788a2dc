"""Properties of a partition: types, counts, ids, books, labels, and the ids in its tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset import degrees
from gigl_loader.dataset.format.mapped_reader import OriginalIds
from gigl_loader.dataset.from_pyg.split_ids import names_of
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.one_or_by_type import (
    Counts,
    EdgeCounts,
    EdgeInfo,
    NodeIds,
    NodeInfo,
    SplitIds,
)
from gigl_loader.dataset.partition.adjacency import edges_of, weights_as_given
from gigl_loader.dataset.partition.build import owned_ids
from gigl_loader.dataset.partition.checks import count_not_numbers
from gigl_loader.dataset.partition.frames import FRAME, is_of_frame
from gigl_loader.dataset.partition.partition_view import PartitionView, Rows
from gigl_loader.dataset.schema import (
    COMMUNITY,
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    DatasetSchema,
    EdgeType,
    FeatureInfo,
    NodeType,
    Split,
    is_in_batches,
    is_label_edge_type,
    is_labeled_homogeneous,
    label_to_message_passing,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.dataset.summary import summary_of
from gigl_loader.errors import ConfigError, UsageError, warn_user
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.plain_values import check_count

# Minutes of a disk, not hours.
_MOST_BYTES, _ROWS_AT_A_TIME = 4 << 30, 1 << 16
_NO_TABLES = "this graph was not made of tables: its ids are those it was given"


def node_ids_of(view: PartitionView) -> dict[NodeType, Tensor]:
    """Return the global ids of the nodes that a partition owns, ascending, by type."""
    return {
        node_type: owned_ids(view.node_books[node_type], view.partition_idx)
        if node_type in view.node_books
        else torch.arange(count, device="cpu")
        for node_type, count in view.num_nodes.items()
    }


class DatasetProperties:
    """The properties of a `gigl_loader.DistDataset`; that class holds the data."""

    num_partitions: int
    partition_idx: int
    train_idx: Any
    val_idx: Any
    test_idx: Any
    node_pb: Any
    edge_pb: Any
    _schema: DatasetSchema | None
    _max_labels: int | None
    _degrees: dict[NodeType, Tensor] | None
    _original: dict[NodeType | EdgeType, OriginalIds]

    def view(self) -> PartitionView:
        """Return the partition as sampling workers read it."""
        raise NotImplementedError

    @property
    def schema(self) -> DatasetSchema:
        """Types, feature widths and direction."""
        # raises for an empty dataset, which has no schema yet
        self.view()
        assert self._schema is not None
        return self._schema

    @property
    def graph_identity(self) -> GraphIdentity:
        """The identity of the whole graph, the same for all partitions; see `GraphIdentity`."""
        identity = self.view().identity
        assert identity is not None  # `DistDataset._fill` ensures it
        return identity

    @property
    def is_typed(self) -> bool:
        """Whether values come as dicts by type: heterogeneous or labeled homogeneous."""
        return self.schema.edge_types is not None

    @property
    def num_nodes(self) -> Counts:
        """Nodes over all partitions."""
        counts = self.view().num_nodes
        return dict(counts) if self.is_typed else counts[DEFAULT_HOMOGENEOUS_NODE_TYPE]

    @property
    def num_edges(self) -> EdgeCounts:
        """Edges of this partition, without label edges; by edge type if the graph has types."""
        counts = {
            edge_type: adjacency.indices.numel()
            for edge_type, adjacency in self.view().adjacency.items()
            if not is_label_edge_type(edge_type)
        }
        return counts if self.is_typed else counts.get(DEFAULT_HOMOGENEOUS_EDGE_TYPE, 0)

    @property
    def num_features(self) -> Counts:
        """Columns of the node features, as PyG's; 0 without features; by node type if typed."""
        info = self.node_feature_info
        if self.is_typed:
            return {name: one.dim for name, one in info.items()} if isinstance(info, dict) else {}
        return info.dim if isinstance(info, FeatureInfo) else 0

    def summary(self) -> str:
        """Return types, counts, feature sizes and splits as text, a line for each type.

        ``here`` is what this partition has: nodes that it owns, edges that it holds, ids of splits.
        """
        splits = {split: self.known_split(split) for split in SPLITS}
        position = f"partition {self.partition_idx} of {self.num_partitions}"
        return summary_of(self.view(), splits, position)

    @property
    def node_ids(self) -> NodeIds:
        """``[num_owned]`` int64: global ids of the nodes that this partition owns, ascending."""
        ids = node_ids_of(self.view())
        return ids if self.is_typed else ids[DEFAULT_HOMOGENEOUS_NODE_TYPE]

    @property
    def train_node_ids(self) -> SplitIds:
        """Global ids of this partition's training nodes, ascending; None where none are known."""
        return self._split_or_warn("train")

    @property
    def val_node_ids(self) -> SplitIds:
        """Global ids of this partition's validation nodes."""
        return self._split_or_warn("val")

    @property
    def test_node_ids(self) -> SplitIds:
        """Global ids of this partition's test nodes."""
        return self._split_or_warn("test")

    def split_node_ids(self, split: Split) -> SplitIds:
        """Return the ids of ``"train"``, ``"val"`` or ``"test"``; None, with a warning: no split.

        Raises:
            ConfigError: There is no such split.
        """
        return self._split_or_warn(split)

    def known_split(self, split: Split) -> SplitIds:
        """Return what `split_node_ids` does, without a warning."""
        if split not in SPLITS:
            raise ConfigError(f'split must be "train", "val" or "test", got {split!r}')
        return getattr(self, f"{split}_idx")

    def _split_or_warn(self, split: Split) -> SplitIds:
        """Return the ids of a split; the first time that there are none, warn the reader."""
        ids, warned = self.known_split(split), vars(self).setdefault("_missing_splits", set())
        if ids is None and self._schema is not None and split not in warned:
            warned.add(split)
            missing, _ = self.missed_splits()
            does = "refuses input_nodes=None" if missing else "takes input_nodes=None as all nodes"
            warn_user(
                f"the dataset has no {split} split, so its ids are None: the graph has no "
                f"{names_of(split)}, or its table no split column. A loader {does}"
            )
        return ids

    def missed_splits(self) -> tuple[list[Split], list[Split]]:
        """Return the splits that were read and are not there, and those that are there.

        Both are empty if there are none at all: then nobody takes None for a split.
        """
        there: list[Split] = [split for split in SPLITS if self.known_split(split) is not None]
        read = vars(self).get("_missing_splits", ())
        missing: list[Split] = [split for split in SPLITS if split in read and split not in there]
        return (missing, there) if missing and there else ([], [])

    @property
    def node_feature_info(self) -> NodeInfo:
        """Width and dtype of the node features; None where there are none."""
        return self.schema.node_feature_info

    node_quantization_metadata = edge_quantization_metadata = None
    """GiGL's names: packed columns are floats here."""

    @property
    def edge_feature_info(self) -> EdgeInfo:
        """Width and dtype of the edge features; None where there are none."""
        return self.schema.edge_feature_info

    def count_nan_features(self) -> dict[NodeType, tuple[int, int]]:
        """Return by node type how many of its features here are NaN, and how many were read.

        Of mapped files, too, which are read block by block; of each matrix up to 4 GiB, evenly over
        its rows.
        """
        counts = {}
        for node_type, rows in self.view().node_features.items():
            blocks = rows.values.split(_ROWS_AT_A_TIME)[
                :: -(-rows.values.nbytes // _MOST_BYTES) or 1
            ]
            total = sum(block.numel() for block in blocks)
            counts[node_type] = sum(map(count_not_numbers, blocks)), total
        return counts

    @property
    def num_classes(self) -> Counts:
        """Classes of the node labels over all partitions, as PyG counts them; 0 without labels.

        One past the highest label; for labels with several columns, their number. On a typed
        dataset a dict by the types that have labels.

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
        # a part of the labels may lack classes, and ranks would build different models
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
        """The owner of each edge; with one partition, of edges with features alone, else None."""
        return self.edge_pb

    @property
    def max_labels_per_anchor_node(self) -> int | None:
        """The largest number of positives, and of negatives, per anchor; None (the default): all.

        An anchor with more gets those with the lowest ids. Set it before you build loaders or start
        storage servers.

        Raises:
            ConfigError: Set to something else than None or a number above 0.
        """
        return self._max_labels

    @max_labels_per_anchor_node.setter
    def max_labels_per_anchor_node(self, value: int | None) -> None:
        # checked when it is set, so that the error shows the caller's line; workers only read it
        if value is not None:
            check_count(value, "max_labels_per_anchor_node")
        self._max_labels = value

    @property
    def has_edge_weights(self) -> bool:
        """Whether edges of some type have weights, for ``with_weight=True``."""
        return any(edges.weights is not None for edges in self.view().adjacency.values())

    @property
    def edge_weights(self) -> Any:
        """``[num_edges]`` float32: weights of this partition's edges, in the order of its input.

        That of `from_pyg` and `build`; of partitions on disk it is that of edge ids. Those of
        ``dataset.graph.topo`` are in the order of its edges.

        A dict by the edge types that have weights on a typed dataset; None where no type has.
        """
        view = self.view()
        weights = {
            edge_type: weights_as_given(view, edge_type)
            for edge_type, edges in view.adjacency.items()
            if edges.weights is not None and not is_label_edge_type(edge_type)
        }
        return (weights or None) if self.is_typed else weights.get(DEFAULT_HOMOGENEOUS_EDGE_TYPE)

    @property
    def degree_tensor(self) -> Any:
        """``[num_nodes]`` int32: edges by which each node of the whole graph is expanded.

        A dict by node type on a typed dataset, summed over edge types, of types that are expanded;
        label edges do not count. With several partitions the first use is collective: the ranks add
        theirs up, each partition once, so all ranks have to read it.

        Raises:
            ConfigError: No rank holds some partition.
            PeerError: A rank ended.
        """
        if self._degrees is None:
            self._degrees = degrees.of_whole_graph(self.view())
        if self.is_typed:
            return dict(self._degrees)
        return self._degrees[DEFAULT_HOMOGENEOUS_NODE_TYPE]

    @property
    def positive_edge_label(self) -> Any:
        """The positives of all supervision edge types: ``[2, n]`` int64, anchors first.

        A dict by supervision edge type on a heterogeneous dataset; None where there are none.
        """
        return self._labels_of(message_passing_to_positive_label)

    @property
    def negative_edge_label(self) -> Any:
        """The negatives, as `positive_edge_label`."""
        return self._labels_of(message_passing_to_negative_label)

    def _labels_of(self, to_label_type: Callable[[EdgeType], EdgeType]) -> Any:
        labels = {
            supervised: edges
            for label_type, edges in self.label_edges.items()
            if to_label_type(supervised := label_to_message_passing(label_type)) == label_type
        }
        labeled = self.schema.is_homogeneous_with_labeled_edge_type
        return labels.get(DEFAULT_HOMOGENEOUS_EDGE_TYPE) if labeled else (labels or None)

    @property
    def label_edges(self) -> dict[EdgeType, Tensor]:
        """Label edges of this partition's anchors by label edge type: ``[2, n]``, anchors first."""
        edges = {}
        for edge_type, adjacency in self.view().adjacency.items():
            if is_label_edge_type(edge_type):
                edges[edge_type] = edges_of(adjacency, "out")
        return edges

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

    # --- the tables of the graph ------------------------------------------------------------------

    @property
    def has_original_ids(self) -> bool:
        """Whether the source tables had other node ids, see `to_original`."""
        return any(isinstance(key, str) for key in self._original)

    def to_original(self, ids: Tensor | Array, node_type: NodeType | None = None) -> Array:
        """Return the ids that nodes had in the source tables of `partition_tables`.

        Args:
            ids: ``[n]`` int64, a tensor or an array; of any partition, as in ``batch.n_id``.
            node_type: None: the only one.

        Returns:
            ``[n]`` array of int64, or of `str` objects.

        Raises:
            ConfigError: There is no such node or node type.
            UsageError: The graph was not made from tables.
        """
        return self._dictionary("node_type", node_type, _NO_TABLES).to_original(_as_ids(ids))

    def original_id_column(self, node_type: NodeType | None = None) -> str:
        """Return the name of the column that has the ids of `to_original` in the source table.

        ``"id"`` if the partitions were written before the name was kept.

        Args:
            node_type: None: the only one.

        Raises:
            ConfigError: There is no such node type, or pyarrow is not installed.
            UsageError: The graph was not made from tables.
        """
        return self._dictionary("node_type", node_type, _NO_TABLES).column()

    def from_original(
        self, values: Sequence[int] | Sequence[str] | Array, node_type: NodeType | None = None
    ) -> Tensor:
        """Return the ids in this dataset of nodes given by their ids in the tables.

        Reads the file of all ids once, block by block: pass many ids in one call.

        Args:
            values: A sequence or an array of `int` or `str`.
            node_type: None: the only one.

        Returns:
            ``[n]`` int64.

        Raises:
            ConfigError: An id is missing, or pyarrow is not installed.
            UsageError: The graph was not made from tables.
        """
        ids = self._dictionary("node_type", node_type, _NO_TABLES).from_original(values)
        return torch.from_numpy(ids)

    def to_table_rows(self, edge_ids: Tensor | Array, edge_type: EdgeType | None = None) -> Array:
        """Return the row numbers that edges had in the source table of `partition_tables`.

        Rows count over all files of the table in reading order: as given, and within a directory or
        a pattern by name; of an Iceberg table as pyiceberg reads it.

        Args:
            edge_ids: ``[n]`` int64, a tensor or an array; of any partition, as in ``batch.e_id``.
            edge_type: None: the only one.

        Returns:
            ``[n]`` int64.

        Raises:
            ConfigError: There is no such edge or edge type.
            UsageError: The graph was not made from tables with ``edge_rows=True``.
        """
        missing = "rows of edges were not kept: this takes partition_tables(..., edge_rows=True)"
        return self._dictionary("edge_type", edge_type, missing).to_original(_as_ids(edge_ids))

    def _dictionary(
        self, what: str, given: NodeType | EdgeType | None, missing: str
    ) -> OriginalIds:
        """Return the dictionary of a ``"node_type"`` or an ``"edge_type"``; None: the only one."""
        self.view()  # raises the error that the background comparison found
        kind = str if what == "node_type" else tuple
        known = {key: ids for key, ids in self._original.items() if isinstance(key, kind)}
        if not known:
            raise UsageError(missing)
        if given is None and len(known) == 1:
            return next(iter(known.values()))
        if given not in known:
            raise ConfigError(f"{what} must be one of {sorted(known)}, got {given!r}")
        return known[given]


def _as_ids(ids: Tensor | Array) -> Array:
    return ids.numpy() if isinstance(ids, Tensor) else np.asarray(ids, np.int64)


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
        frames=dict(view.frames),
        types_with_communities=tuple(
            sorted(of for of, name in view.node_attributes if name == COMMUNITY)
        ),
    )


def _names(attributes: Mapping[tuple[Any, str], Rows]) -> dict[Any, tuple[str, ...]]:
    names: dict[Any, tuple[str, ...]] = {}
    for owner, name in sorted(attributes, key=str):
        name = FRAME if is_of_frame(name) else name
        if is_in_batches(name) and name not in names.get(owner, ()):
            names[owner] = (*names.get(owner, ()), name)
    return names


def feature_info(rows: Rows) -> FeatureInfo:
    """Return width and dtype of one feature matrix."""
    width = 1
    for size in rows.values.shape[1:]:
        # a matrix with more dimensions counts as flattened, as a model reads it
        width *= size
    # the dtype in batches, which are widened again, not the stored one
    return FeatureInfo(width, rows.values.dtype if rows.scales is None else torch.float32)
