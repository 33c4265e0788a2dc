"""A storage server's responses under graphlearn-torch's names, and the seeds that it reads."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.glt_files import load_tensor
from gigl_loader.dataset.lookup import check_ids, widened
from gigl_loader.dataset.partition.partition_view import Rows
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    NodeType,
    glt_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.wire.requests import NodeIdsRequest
from gigl_loader.graph_store.wire.signatures import PartitionSignatures
from gigl_loader.runtime.memory.tensors import as_array
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.runtime.system import available_memory
from gigl_loader.sources.held_seeds import HeldPart, HeldSeeds


def check_answer(nbytes: int, what: str) -> None:
    """Raise `ConfigError` if an answer would take more than a quarter of the free memory."""
    if nbytes > (limit := available_memory() // 4):
        raise ConfigError(
            f"{what} would be an answer of {size_in_words(nbytes)}, where this storage server has "
            f"{size_in_words(limit)} for one: partition the graph into more parts"
        )


class GLTAnswers(PartitionSignatures):
    """The methods of graphlearn-torch's server that only read the partition."""

    dataset: DistDataset
    server_rank: int
    num_partitions: int
    allow_seed_files = False
    """Whether clients may name files with seeds."""

    @abstractmethod
    def _check_owned(self, ids: Any, name: Any, book: Any) -> None:
        """Raise `ConfigError` unless this partition owns ``ids``."""

    @override
    def get_dataset_meta(self) -> tuple[int, int, list[NodeType] | None, list[EdgeType] | None]:
        partition = self.get_partition_index()
        return self.num_partitions, partition, self.get_node_types(), self.get_edge_types()

    @override
    def get_node_partition_id(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        view, name = self.dataset.view(), node_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
        if name not in view.num_nodes:
            raise ConfigError(f"node_type must be one of {sorted(view.num_nodes)}, got {name!r}")
        check_ids(index, name, view.num_nodes[name])
        book = view.node_books.get(name)  # None: one partition has all
        return torch.zeros_like(index) if book is None else book.owner(index)

    @override
    def get_node_feature(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        return self._read("node_features", node_type, index)

    @override
    def get_tensor_size(self, node_type: NodeType | None) -> tuple[int, ...]:
        return tuple(self._matrix("node_features", node_type)[1].values.shape)

    @override
    def get_node_label(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        labels = self._read("node_labels", node_type, index)
        one_column = labels.dim() == 2 and labels.size(1) == 1
        return labels.squeeze(1) if one_column else labels

    def _matrix(self, kind: str, node_type: NodeType | None) -> tuple[NodeType, Rows[Tensor]]:
        name = node_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
        matrices: dict[NodeType, Rows[Tensor]] = getattr(self.dataset.view(), kind)
        if name not in matrices:
            raise ConfigError(
                f"the graph has no {kind.replace('_', ' ')} of {name!r}; types that have some: "
                f"{sorted(matrices)}"
            )
        return name, matrices[name]

    def _read(self, kind: str, node_type: NodeType | None, index: Tensor) -> Tensor:
        view = self.dataset.view()
        name, rows = self._matrix(kind, node_type)
        check_ids(index, name, view.num_nodes[name])
        if not rows.whole:
            self._check_owned(as_array(index), name, view.node_books.get(name))
        return widened(rows.values[rows.locate(index)], rows.scales)

    @override
    def get_edge_index(
        self, edge_type: EdgeType | None, layout: str = "coo"
    ) -> tuple[Tensor, Tensor]:
        topology = self._graph(edge_type, layout).topo
        check_answer(16 * (count := topology.indices.numel()), f"the {count:,} edges of a type")
        row, col, *_ = topology.to_coo()
        return row, col

    @override
    def get_edge_size(self, edge_type: EdgeType | None, layout: str = "coo") -> tuple[int, int]:
        # what GLT's graph counts, which it makes when it is first asked: clients ask at one time
        topology = self._graph(edge_type, layout).topo
        return int(topology.row_count), topology.indices.unique().numel()

    def _graph(self, edge_type: EdgeType | None, layout: str) -> Any:
        if layout != "coo":
            raise ConfigError(f"layout must be 'coo', got {layout!r}")
        view, name = self.dataset.view(), edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE
        if name not in view.adjacency:
            raise ConfigError(f"edge_type must be one of {sorted(view.adjacency)}, got {name!r}")
        # its own object of GLT's class, made at the first call
        return self.dataset.get_graph(glt_edge_type(name, view.edge_dir))

    @override
    def get_device_count(self) -> int:
        return torch.cuda.device_count()

    # -- seeds that stay here -------------------------------------------------------------------

    @override
    def get_num_seeds(self, part: HeldPart, node_type: NodeType | None = None) -> int:
        return self.get_seeds(part, node_type).numel()

    @override
    def get_seeds(self, part: HeldPart, node_type: NodeType | None = None) -> Tensor:
        if part.path is None:
            name = None if node_type == DEFAULT_HOMOGENEOUS_NODE_TYPE else node_type
            request = NodeIdsRequest(split=part.split, node_type=name, server=part.server)
            return self.get_node_ids(request)
        if not self.allow_seed_files:
            raise ConfigError(
                f"storage server {self.server_rank} reads no files that clients name: start it "
                "with init_server(...), or init_storage_process(allow_seed_files=True)"
            )
        path = Path(part.path)
        if not path.is_file():
            raise ConfigError(
                f"storage server {self.server_rank} has no file {part.path} to read seeds from: "
                "name one of its machine, with ids by torch.save"
            )
        ids = load_tensor(path)
        name = node_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
        check_ids(ids, name, self.dataset.view().num_nodes.get(name))
        return ids

    def read_own(self, seeds: HeldSeeds, servers: Sequence[int]) -> dict[int, Tensor]:
        """Return what this server reads of an input, by the number of the part.

        A replica among ``servers``, which take part, reads in place of a server that does not.

        Raises:
            ConfigError: A part cannot be read, or is not what it was when it was counted.
        """
        own = {}
        for number, part in enumerate(seeds.parts):
            if reader_of(part.server, servers, self.num_partitions) == self.server_rank:
                own[number] = self.get_seeds(part, seeds.input_type)
                part.check_same(own[number], self.server_rank)
        return own


def reader_of(server: int, servers: Sequence[int], num_partitions: int) -> int:
    """Return the server that reads the seeds of ``server``: itself, or the first replica."""
    if server in servers:
        return server
    return next(other for other in servers if (other - server) % num_partitions == 0)
