"""`DistDataset` with graphlearn-torch's constructor and its ``load``, which fills the object."""

from typing import Any

from typing_extensions import override

from gigl_loader import DistDataset as OwnDataset
from gigl_loader.dataset.schema import EdgeDir, FilePath, NodeType


class DistDataset(OwnDataset):
    """A partition, empty until ``load`` or ``build`` fills it.

    ::

        dataset = DistDataset()
        dataset.load("partitions", partition_idx=0)

    Args:
        num_partitions: Number of partitions; ``load`` finds it in the directory.
        partition_idx: The partition.
        edge_dir: Direction in which nodes are expanded. None: that of the directory, and ``"out"``
            without one.

    Raises:
        ConfigError: A value cannot work.
    """

    def __init__(
        self, num_partitions: int = 1, partition_idx: int = 0, *, edge_dir: EdgeDir | None = None
    ) -> None:
        super().__init__(partition_idx, num_partitions, edge_dir or "out")
        self._given_edge_dir = edge_dir

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
