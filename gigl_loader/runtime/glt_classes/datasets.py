"""Datasets with the interface of graphlearn-torch (GLT); see `glt_classes.classes`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gigl_loader.runtime.glt_classes.topology import (
    Feature,
    Graph,
    Topology,
    as_tensors,
    each,
    owned_by,
    refuse,
    selected,
)


class Dataset:
    """A graph with features, labels and splits; dicts by type if it is heterogeneous."""

    def __init__(
        self,
        graph: Graph | dict[Any, Graph] | None = None,
        node_features: Feature | dict[Any, Feature] | None = None,
        edge_features: Feature | dict[Any, Feature] | None = None,
        node_labels: Any = None,
        edge_dir: str = "out",
        node_split: Any = None,
    ) -> None:
        self.graph: Any = graph
        self.node_features: Any = node_features
        self.edge_features: Any = edge_features
        # GLT squeezes: `[n, 1]`, as tables give it, becomes `[n]`
        self.node_labels: Any = each(as_tensors(node_labels), torch.squeeze)
        self.edge_dir = edge_dir
        self.train_idx: Any = None
        self.val_idx: Any = None
        self.test_idx: Any = None
        self.init_node_split(node_split)

    def init_graph(
        self,
        edge_index: Any = None,
        edge_ids: Any = None,
        edge_weights: Any = None,
        layout: str | dict[Any, str] = "COO",
        graph_mode: str = "ZERO_COPY",
        directed: bool = False,
        device: int | None = None,
    ) -> None:
        """Make the graph from edges; see `Topology`. Each argument may be a dict by edge type."""
        self._directed = directed
        # grouped by the expanded end, so that a node's neighbours are contiguous
        kept = "CSR" if self.edge_dir == "out" else "CSC"

        def made(index: Any, ids: Any, weights: Any, given: str) -> Graph:
            graph = Graph(Topology(index, ids, weights, given, kept), graph_mode, device)
            graph.lazy_init()
            return graph

        if isinstance(edge_index, dict):
            self.graph = {
                key: made(
                    index,
                    _of(edge_ids, key),
                    _of(edge_weights, key),
                    layout[key] if isinstance(layout, dict) else layout,
                )
                for key, index in edge_index.items()
            }
        elif edge_index is not None:
            self.graph = made(edge_index, edge_ids, edge_weights, str(layout))

    def init_node_features(
        self,
        node_feature_data: Any = None,
        id2idx: Any = None,
        sort_func: Any = None,
        split_ratio: Any = 0.0,
        device_group_list: Any = None,
        device: int | None = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Store node features, alone or by node type; see `Feature`.

        Raises:
            NativeLibraryError: ``with_gpu``, or ``sort_func``, which orders rows for GPUs.
        """
        if sort_func is not None:
            refuse("sort_func", "leave it out")
        if node_feature_data is not None:
            self.node_features = _features(node_feature_data, id2idx, with_gpu, dtype)

    def init_edge_features(
        self,
        edge_feature_data: Any = None,
        id2idx: Any = None,
        split_ratio: Any = 0.0,
        device_group_list: Any = None,
        device: int | None = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Store edge features, alone or by edge type; see `Feature`.

        Raises:
            NativeLibraryError: ``with_gpu``.
        """
        if edge_feature_data is not None:
            self.edge_features = _features(edge_feature_data, id2idx, with_gpu, dtype)

    def init_node_labels(self, node_label_data: Any = None, id2idx: Any = None) -> None:
        """Store node labels: of all nodes, or with ``id2idx`` of some, then as int64."""
        if node_label_data is None:
            return
        if id2idx is None:
            self.node_labels = each(as_tensors(node_label_data), torch.squeeze)
        else:
            # as in GLT; without id2idx labels keep their type, also float ones
            data = as_tensors(node_label_data, torch.int64)
            self.node_labels = _features(data, id2idx, False, None)

    def init_node_split(self, node_split: Any = None) -> None:
        """Store the ids for training, validation and test."""
        if node_split is not None:
            splits = (each(as_tensors(ids), torch.squeeze) for ids in node_split)
            self.train_idx, self.val_idx, self.test_idx = splits

    def random_node_split(self, num_val: float, num_test: float) -> None:
        """Split the labelled nodes at random: counts as int, shares as float; the rest trains."""
        if isinstance(self.node_labels, dict):
            parts = {t: _split(self._node_pool(t), num_val, num_test) for t in self.node_labels}
            # from {type: (train, val, test)} to (train by type, val by type, test by type)
            self.init_node_split([{t: part[i] for t, part in parts.items()} for i in range(3)])
        else:
            self.init_node_split(_split(self._node_pool(None), num_val, num_test))

    def _node_pool(self, node_type: Any) -> Tensor:
        labels = self.node_labels if node_type is None else self.node_labels[node_type]
        return torch.arange(labels.shape[0], device="cpu")

    def get_graph(self, etype: Any = None) -> Any:
        """Return the graph, of ``etype`` if the dataset is heterogeneous."""
        return _of(self.graph, etype)

    def get_node_types(self) -> list[str] | None:
        """Return the node types; None if the dataset is homogeneous."""
        if not isinstance(self.graph, dict):
            return None
        return list(
            # in no order, like GLT's
            {node_type for source, _, target in self.graph for node_type in (source, target)}
        )

    def get_edge_types(self) -> list[tuple[str, str, str]] | None:
        """Return the edge types; None if the dataset is homogeneous."""
        return list(self.graph) if isinstance(self.graph, dict) else None

    def get_node_feature(self, ntype: Any = None) -> Any:
        """Return the node features, of ``ntype`` if the dataset is heterogeneous."""
        return _of(self.node_features, ntype)

    def get_edge_feature(self, etype: Any = None) -> Any:
        """Return the edge features, of ``etype`` if the dataset is heterogeneous."""
        return _of(self.edge_features, etype)

    def get_node_label(self, ntype: Any = None) -> Any:
        """Return the node labels, of ``ntype`` if the dataset is heterogeneous."""
        return _of(self.node_labels, ntype)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key, None)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)


class DistDataset(Dataset):
    """One partition of a dataset, with the partition books (the owners of nodes and edges)."""

    graph_caching = False
    _node_feat_pb: Any = None
    _edge_feat_pb: Any = None

    def __init__(
        self, num_partitions: int = 1, partition_idx: int = 0, *, edge_dir: str = "out"
    ) -> None:
        super().__init__(edge_dir=edge_dir)
        self.num_partitions = num_partitions
        self.partition_idx = partition_idx
        # set afterwards, as the parts of a dataset are: `gigl_loader.glt` has GLT's constructor
        self.node_pb: Any = None
        self.edge_pb: Any = None
        self.id_filter: Callable[[Any, int], Tensor] = owned_by
        self.id_select: Callable[..., Tensor] = selected

    @property
    def node_feat_pb(self) -> Any:
        """The owner of each node's features; by default that of the node."""
        # computed on use: node_pb may be set after the constructor, as GLT's load() does
        return self.node_pb if self._node_feat_pb is None else self._node_feat_pb

    @property
    def edge_feat_pb(self) -> Any:
        """The owner of each edge's features; by default that of the edge."""
        return self.edge_pb if self._edge_feat_pb is None else self._edge_feat_pb

    def _node_pool(self, node_type: Any) -> Tensor:
        return self.id_filter(_of(self.node_pb, node_type), self.partition_idx)


def _of(by_type: Any, key: Any) -> Any:
    return by_type.get(key) if isinstance(by_type, dict) else by_type


def _features(data: Any, id2idx: Any, with_gpu: bool, dtype: torch.dtype | None) -> Any:
    if isinstance(data, dict):
        return {
            key: _features(rows, _of(id2idx, key), with_gpu, dtype) for key, rows in data.items()
        }
    return Feature(data, id2idx, with_gpu=with_gpu, dtype=dtype)


def _split(ids: Tensor, num_val: float, num_test: float) -> Sequence[Tensor]:
    total = ids.numel()
    # int is a count, float a share: 1 is one node, and 1.0 all of them
    val, test = (round(n * total) if isinstance(n, float) else n for n in (num_val, num_test))
    shuffled = ids[torch.randperm(total, device="cpu")]
    return (
        # clones: a view would keep the ids of all three alive, and travel with them to workers
        shuffled[val + test :].clone(),
        shuffled[:val].clone(),
        shuffled[val : val + test].clone(),
    )
