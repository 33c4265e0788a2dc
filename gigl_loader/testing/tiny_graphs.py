"""Small graphs whose values all follow from ids, and their partitions in one process."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.message import SampleMessage
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    NodeType,
)
from gigl_loader.runtime.memory import segments, tensors
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.plan import (
    Drawn,
    DrawRequest,
    RowsAnswer,
    RowsRequest,
    Sampler,
    SampleRequest,
)
from gigl_loader.sampler.rows.reader import LocalReader

T = TypeVar("T")

_RELATIONS = (("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user"))


@dataclass(frozen=True)
class TinyGraph:
    """A graph in plain Python; an edge's id is its position in the list of its type.

    Node ``i`` of the ``t``-th node type (by name) has features ``[i, t]`` and labels
    ``[i, 100 + i, t]``; edge ``i`` of the ``t``-th edge type has features ``[i, t]`` and weight
    ``i % 4`` (every fourth edge weighs nothing). Further attributes are ``node_time``, ``3 * i`` as
    int64, ``train_mask``, whether ``i`` is even, and ``edge_age``, ``[-i, i]`` as int16.
    """

    num_nodes: dict[NodeType, int]
    edges: dict[EdgeType, list[tuple[int, int]]] = field(default_factory=dict)
    """``(source, destination)`` by edge type."""

    @classmethod
    def homogeneous(cls, num_nodes: int, edges: list[tuple[int, int]]) -> "TinyGraph":
        """Return a graph of one node type and one edge type."""
        return cls(
            {DEFAULT_HOMOGENEOUS_NODE_TYPE: num_nodes}, {DEFAULT_HOMOGENEOUS_EDGE_TYPE: edges}
        )

    @classmethod
    def random(
        cls,
        num_nodes: int = 60,
        num_edges: int = 400,
        *,
        heterogeneous: bool = False,
        seed: int = 0,
    ) -> "TinyGraph":
        """Return a random graph, with repeated edges, loops and, usually, nodes without edges.

        Args:
            num_nodes: Nodes of each type.
            num_edges: Edges of each type.
            heterogeneous: Users who buy items and know each other, instead of one type.
            seed: Seed of the edges.
        """
        generator = torch.Generator().manual_seed(seed)

        def pairs() -> list[tuple[int, int]]:
            # to a power above 1: low ids have many edges, high ones few or none
            ends = torch.rand((num_edges, 2), generator=generator, device="cpu") ** 1.5 * num_nodes
            return [(int(a), int(b)) for a, b in ends.long().tolist()]

        if not heterogeneous:
            return cls.homogeneous(num_nodes, pairs())
        return cls({"user": num_nodes, "item": num_nodes}, {name: pairs() for name in _RELATIONS})

    @property
    def is_heterogeneous(self) -> bool:
        """Whether batches are `HeteroData`."""
        return DEFAULT_HOMOGENEOUS_NODE_TYPE not in self.num_nodes

    def node_rows(self, node_type: NodeType, ids: list[int]) -> tuple[list[list[int]], ...]:
        """Return (features, labels) of nodes."""
        # the type is in the row too: rows of another type are detected, though ids are the same
        number = sorted(self.num_nodes).index(node_type)
        return [[i, number] for i in ids], [[i, 100 + i, number] for i in ids]

    def edge_rows(self, edge_type: EdgeType, ids: list[int]) -> list[list[int]]:
        """Return the features of edges."""
        number = sorted(self.edges).index(edge_type)
        return [[i, number] for i in ids]

    @staticmethod
    def node_attributes(ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (``node_time``, ``train_mask``) of nodes."""
        return 3 * ids, ids % 2 == 0

    @staticmethod
    def edge_ages(ids: Tensor) -> Tensor:
        """Return ``edge_age`` of edges."""
        return torch.stack([-ids, ids], 1).to(torch.int16)

    @staticmethod
    def weight(edge_id: int) -> float:
        """Return the weight of an edge."""
        return float(edge_id % 4)

    def to_pyg(self, *, edge_features: bool = True, labels: bool = True) -> Data | HeteroData:
        """Return it as PyG's `Data` or `HeteroData`, with ``edge_weight``."""
        data = HeteroData() if self.is_heterogeneous else Data()
        for node_type, count in self.num_nodes.items():
            store = data[node_type] if self.is_heterogeneous else data
            features, targets = self.node_rows(node_type, list(range(count)))
            store.x = torch.tensor(features, dtype=torch.float32, device="cpu").reshape(count, 2)
            store.node_time, store.train_mask = self.node_attributes(
                torch.arange(count, device="cpu")
            )
            if labels:
                # without nodes, torch.tensor([]) has lost the width
                store.y = torch.tensor(targets, dtype=torch.int64, device="cpu").reshape(count, 3)
        for edge_type, pairs in self.edges.items():
            store = data[edge_type] if self.is_heterogeneous else data
            store.edge_index = (
                torch.tensor(pairs, dtype=torch.int64, device="cpu").reshape(-1, 2).t().contiguous()
            )
            store.edge_weight = torch.tensor(
                [self.weight(i) for i in range(len(pairs))], device="cpu"
            )
            store.edge_age = self.edge_ages(torch.arange(len(pairs), device="cpu"))
            if edge_features:
                rows = self.edge_rows(edge_type, list(range(len(pairs))))
                store.edge_attr = torch.tensor(rows, dtype=torch.float32, device="cpu").reshape(
                    len(pairs), 2
                )
        return data

    def dataset(self, *, edge_dir: EdgeDir = "in", edge_features: bool = True) -> DistDataset:
        """Return it as a dataset of one partition."""
        return DistDataset.from_pyg(self.to_pyg(edge_features=edge_features), edge_dir=edge_dir)

    def partitions(
        self, count: int, *, edge_dir: EdgeDir = "in", seed: int = 0, edge_features: bool = True
    ) -> list[DistDataset]:
        """Return it as ``count`` partitions, nodes assigned at random."""
        generator = torch.Generator().manual_seed(seed)
        # at random: neighbours are on other partitions, the case to test
        books: dict[NodeType, Tensor] = {
            name: torch.randint(count, (size,), generator=generator, device="cpu")
            for name, size in self.num_nodes.items()
        }
        book = books if self.is_heterogeneous else books[DEFAULT_HOMOGENEOUS_NODE_TYPE]
        data = self.to_pyg(edge_features=edge_features)
        return [
            DistDataset.from_pyg(
                data,
                edge_dir=edge_dir,
                partition_book=book,
                partition_idx=index,
                num_partitions=count,
            )
            for index in range(count)
        ]


# --- samplers of several partitions, in one process -----------------------------------------------


def as_worker_gets(obj: T) -> Any:
    """Return ``obj`` as a worker receives it: its tensors are arrays over shared memory."""
    return tensors.as_received(obj)


class _Answered(Generic[T]):
    has_come = True

    def __init__(self, answer: T) -> None:
        self._answer = answer

    def wait(self) -> T:
        return self._answer


class InProcessPeers:
    """Responds for all partitions, in this process: pass it to a sampler as its ``peers``.

    Args:
        views: Views of all partitions, in order, as from a dataset.

    ``asked`` lists the partition and the contents of every request.
    """

    rows_later = False

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._stores = [LocalReader(as_worker_gets(view)) for view in views]
        self.asked: list[tuple[int, DrawRequest | RowsRequest]] = []

    def draw(self, partition: int, request: DrawRequest) -> _Answered[Drawn]:
        """Respond to a request for neighbours."""
        self.asked.append((partition, request))
        return _Answered(self._stores[partition].answer_draw(request))

    def rows(self, partition: int, request: RowsRequest, out: Array) -> _Answered[RowsAnswer]:
        """Respond to a request for rows, in ``out``."""
        self.asked.append((partition, request))
        # casting="no": a wrong dtype is an error here, as it would be wrong bytes between machines
        np.copyto(out, self._stores[partition].answer_rows(request).values, casting="no")
        return _Answered(RowsAnswer(out))


def sample_message(sampler: Sampler, request: SampleRequest) -> SampleMessage:
    """Return the message that a loader would get from ``sampler`` for ``request``.

    The request's columns may be tensors.
    """
    message = {}
    for batch_field in sampler.sample(as_worker_gets(request)):
        # zeroed memory of exactly the field's size: numpy raises on a write beyond it
        buffer = (ctypes.c_char * segments.nbytes_of(batch_field.dtype, batch_field.shape))()
        batch_field.write(segments.array_in(buffer, batch_field.dtype, batch_field.shape, 0))
        message[batch_field.key] = tensors.tensor_in(
            buffer, batch_field.dtype, batch_field.shape, 0
        )
    return message
