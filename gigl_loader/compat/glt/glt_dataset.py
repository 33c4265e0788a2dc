"""`DistDataset` with graphlearn-torch's constructor and its ``load``, which fills the object."""

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from gigl_loader import DistDataset as OwnDataset
from gigl_loader.dataset.schema import EdgeDir, FilePath, NodeType
from gigl_loader.errors import ConfigError


class DistDataset(OwnDataset):
    """A partition, empty until ``load`` or ``build`` fills it.

    ::

        dataset = DistDataset()
        dataset.load("partitions", partition_idx=0)

    Args:
        num_partitions: Number of partitions; ``load`` finds it in the directory.
        partition_idx: The partition.
        graph_partition: The edges, a ``Graph``, or a dict of them by edge type. None: the dataset
            is empty until ``load`` or ``build``, which need no other part.
        node_feature_partition: A ``Feature``, or a dict of them by type.
        edge_feature_partition: The same, of edges.
        whole_node_labels: The labels of all nodes, or a dict by type.
        node_pb: The owner of each node, or a dict by type; for several partitions.
        edge_pb: The same, of edges.
        node_feat_pb: Kept as the attribute; rows are looked up by ``node_pb``.
        edge_feat_pb: The same, of edges.
        edge_dir: Direction in which nodes are expanded. None: that of the directory, and ``"out"``
            without one.
        graph_caching: Has to be False: ``load(..., edges="all")`` of `gigl_loader.DistDataset`
            keeps the edges of all partitions.
        node_split: Ids for training, validation and testing, or dicts of them by type.
        id_filter: Kept as the attribute.
        id_select: Kept as the attribute.

    Raises:
        ConfigError: A value cannot work.
    """

    def __init__(
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        graph_partition: Any = None,
        node_feature_partition: Any = None,
        edge_feature_partition: Any = None,
        whole_node_labels: Any = None,
        node_pb: Any = None,
        edge_pb: Any = None,
        node_feat_pb: Any = None,
        edge_feat_pb: Any = None,
        edge_dir: EdgeDir | None = None,
        graph_caching: bool = False,
        node_split: tuple[Any, Any, Any] | None = None,
        id_filter: Callable[..., Any] | None = None,
        id_select: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(partition_idx, num_partitions, edge_dir or "out")
        self._given_edge_dir = edge_dir
        if graph_caching:
            raise ConfigError(
                "graph_caching=True is not here: gigl_loader.DistDataset.load(root, rank, "
                'edges="all") keeps the edges of all partitions'
            )
        if not graph_partition:
            return
        self.init_node_labels(whole_node_labels)
        train, val, test = node_split or (None, None, None)
        self._take_parts(
            graph=graph_partition,
            node_features=node_feature_partition,
            edge_features=edge_feature_partition,
            node_labels=self.node_labels,
            node_pb=node_pb,
            edge_pb=edge_pb,
            _node_feat_pb=node_feat_pb,
            _edge_feat_pb=edge_feat_pb,
            train_idx=train,
            val_idx=val,
            test_idx=test,
            id_filter=id_filter,
            id_select=id_select,
        )

    @classmethod
    @override
    def _made(cls, *parts: Any, **how: Any) -> OwnDataset:
        # what another process gets: its constructor has another order of arguments
        return OwnDataset._made(*parts, **how)

    def load(  # type: ignore[override]  # other arguments than the base class
        self,
        root_dir: FilePath,
        partition_idx: int,
        graph_mode: str = "ZERO_COPY",
        input_layout: str = "COO",
        feature_with_gpu: bool = True,
        graph_caching: bool = False,
        device_group_list: Any = None,
        whole_node_label_file: FilePath | dict[NodeType, FilePath] | None = None,
        device: int | None = None,
    ) -> None:
        """Read a partition from a directory, in graphlearn-torch's format or in ours.

        Args:
            root_dir: The directory.
            partition_idx: The partition to read.
            graph_mode: Not looked at: edges are in shared memory, as are those of all that follow.
            input_layout: Not looked at.
            feature_with_gpu: Not looked at; ``to("cuda")`` moves a dataset.
            graph_caching: Not looked at.
            device_group_list: Not looked at.
            whole_node_label_file: A file with the labels of all nodes, or a dict of files by type.
            device: Not looked at.

        Raises:
            ConfigError: The directory cannot be read; see `gigl_loader.DistDataset.load`.
        """
        loaded = OwnDataset.load(
            root_dir,
            partition_idx,
            edge_dir=self._given_edge_dir,
            whole_node_label_file=whole_node_label_file,
        )
        self.__dict__.update(loaded.__dict__)
