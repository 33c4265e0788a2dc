"""`DistServer`: the methods of a storage server that clients may call, without their code."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader.batch.message import SampleMessage
from gigl_loader.dataset.schema import DatasetSchema, EdgeDir, EdgeType, NodeType
from gigl_loader.graph_store.wire.calls import FeatureInfos, PartitionBook, calls_of
from gigl_loader.graph_store.wire.requests import (
    EpochRequest,
    NodeIdsRequest,
    ProducerRequest,
    RowBook,
)
from gigl_loader.runtime.glt_classes import (
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
)
from gigl_loader.runtime.memory.same_host import SameHostProof
from gigl_loader.sampler.options import SamplerOptions
from gigl_loader.sampler.plan import RowsAnswer, RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.sources.held_seeds import HeldPart

MOST_PORTS = 64
"""Most free ports in one answer."""


class PartitionSignatures(ABC):
    """The methods that only read a server's partition."""

    @abstractmethod
    def get_partition_index(self) -> int:
        """Return which partition this server has."""

    @abstractmethod
    def get_row_books(self) -> list[RowBook]:
        """Return the owners of the rows of each node and edge type that has features or labels."""

    @abstractmethod
    def get_schema(self) -> DatasetSchema:
        """Return types, feature widths and direction."""

    @abstractmethod
    def get_graph_identity(self) -> str:
        """Return an identity of this graph, as one string."""

    @abstractmethod
    def get_database(self) -> str:
        """Return what ``database.json`` says of the database that the graph is made of."""

    @abstractmethod
    def get_num_nodes(self) -> dict[NodeType, int]:
        """Return how many nodes of each type there are over all servers."""

    @abstractmethod
    def get_num_edges(self) -> dict[EdgeType, int]:
        """Return how many edges of each type there are over all servers, of types with books."""

    @abstractmethod
    def get_node_feature_info(self) -> FeatureInfos:
        """Return width and dtype of the node features."""

    @abstractmethod
    def get_edge_feature_info(self) -> FeatureInfos:
        """Return width and dtype of the edge features."""

    @abstractmethod
    def get_edge_dir(self) -> EdgeDir:
        """Return the direction in which nodes are expanded."""

    @abstractmethod
    def get_edge_types(self) -> list[EdgeType] | None:
        """Return all edge types, label edge types included; None for a homogeneous graph."""

    @abstractmethod
    def get_node_types(self) -> list[NodeType] | None:
        """Return all node types; None for a homogeneous graph."""

    @abstractmethod
    def get_edge_weights_registered(self) -> bool:
        """Return whether edges of some type have weights."""

    @abstractmethod
    def get_node_partition_book(self, node_type: NodeType | None = None) -> PartitionBook:
        """Return the owner of each node of a type."""

    @abstractmethod
    def get_edge_partition_book(self, edge_type: EdgeType | None = None) -> PartitionBook:
        """Return the owner of each edge of a type; None where no edge is looked up."""

    @abstractmethod
    def get_node_ids(self, request: NodeIdsRequest | None = None) -> Tensor:
        """Return ``[n]`` int64: the ids of nodes that a server owns, ascending.

        Each server of a partition owns a part of its nodes, so that none is given twice; each of
        them can respond for the others.

        Raises:
            ConfigError: No such split or node type; the server that is asked for has another
                partition.
        """

    @abstractmethod
    def get_ablp_input(
        self, request: NodeIdsRequest, supervision_edge_type: EdgeType | None = None
    ) -> tuple[NodeType, Tensor, dict[EdgeType, Tensor], dict[EdgeType, Tensor] | None]:
        """Return (anchor type, anchors, positives, negatives) of this server.

        The request names the anchors; without a type, they are the sources of the edges to predict.
        Anchors are ``[n]`` int64. Labels are by label edge type ``[n, most]`` int64, padded with
        -1; negatives are None where the graph has none.

        Raises:
            ConfigError: The graph has no such label edges.
        """

    @abstractmethod
    def get_rows(self, request: RowsRequest[PackedInts]) -> RowsAnswer:
        """Return rows in the order of the ids, as they are stored.

        They are in memory of this thread until its next such request.

        Raises:
            ConfigError: There is no such matrix, or an id is not this server's.
        """

    # graphlearn-torch's methods, by its names

    @abstractmethod
    def get_dataset_meta(self) -> tuple[int, int, list[NodeType] | None, list[EdgeType] | None]:
        """Return the number of partitions, this server's partition, node types and edge types."""

    @abstractmethod
    def get_node_partition_id(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        """Return ``[n]`` int64: the partition that owns each node of ``index`` (``[n]`` int64).

        Raises:
            ConfigError: There is no such type, or node.
        """

    @abstractmethod
    def get_node_feature(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        """Return ``[n, width]``: the features of nodes that this server owns.

        Raises:
            ConfigError: There are no features, or a node is not this server's.
        """

    @abstractmethod
    def get_tensor_size(self, node_type: NodeType | None) -> tuple[int, ...]:
        """Return the shape of this server's node features.

        Raises:
            ConfigError: There are no features.
        """

    @abstractmethod
    def get_node_label(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        """Return the labels of nodes as `get_node_feature` does; one column is ``[n]``."""

    @abstractmethod
    def get_edge_index(
        self, edge_type: EdgeType | None, layout: str = "coo"
    ) -> tuple[Tensor, Tensor]:
        """Return (sources, destinations) of this server's edges, ``[num_edges]`` int64 each.

        Raises:
            ConfigError: There are no such edges, or ``layout`` is not ``"coo"``.
        """

    @abstractmethod
    def get_edge_size(self, edge_type: EdgeType | None, layout: str = "coo") -> tuple[int, int]:
        """Return rows, one for each node of the graph, and columns in use, of this server's edges.

        Raises:
            ConfigError: As `get_edge_index`.
        """

    @abstractmethod
    def get_device_count(self) -> int:
        """Return how many CUDA devices this server has, as ``torch.cuda.device_count`` does."""

    @abstractmethod
    def get_num_seeds(self, part: HeldPart, node_type: NodeType | None = None) -> int:
        """Return how many seeds a server reads itself.

        Raises:
            ConfigError: As `get_seeds`.
        """

    @abstractmethod
    def get_seeds(self, part: HeldPart, node_type: NodeType | None = None) -> Tensor:
        """Return the ids of the seeds that a server reads itself, ``[n]`` int64.

        Raises:
            ConfigError: The graph has no such split or type; clients may not name files there, or
                the file is none with ids of this type.
        """

    @abstractmethod
    def get_edges(
        self,
        edge_type: EdgeType,
        ids: np.ndarray,
        *,
        start: int = 0,
        weights: bool = False,
        edge_ids: bool = False,
    ) -> dict[str, Tensor]:
        """Return the edges of some nodes, one node after the other, each in canonical order.

        Args:
            edge_type: The edges by which the nodes are expanded.
            ids: ``[n]`` int64, global ids of nodes that the server owns.
            start: Edges of the first node to leave out.
            weights: Whether to return the edges' weights.
            edge_ids: Whether to return their ids.

        Returns:
            ``counts``: ``[m]`` int64, edges of each of the first ``m`` nodes: as many as fit an
            answer, at least one; ask again for the others. ``indices``: ``[num_edges]`` int64,
            global ids of the neighbours. They are fewer than ``counts`` say where the first node
            has more than fit: ask again from there, by ``start``. Where they were asked for and
            are known: ``weights``, ``[num_edges]`` float32, and ``edge_ids``, ``[num_edges]``
            int64.

        Raises:
            ConfigError: There is no such edge type, a node is not this server's, or ``start`` is
                beyond the edges of the first.
        """


class DistServer(PartitionSignatures):
    """The methods of a storage server, to name them: ``request_server(0, DistServer.ping)``.

    It has signatures alone, so a client need not import what a server runs; each of them is a call
    that clients may make. Servers run ``StorageService`` of ``gigl_loader.graph_store.server``.
    Methods are thread-safe.
    """

    @abstractmethod
    def create_sampling_producer(
        self,
        sampler_input: NodeSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: RemoteDistSamplingWorkerOptions,
        sampler_options: SamplerOptions | None = None,
        *,
        request: ProducerRequest | None = None,
    ) -> int:
        """Start a producer, or return the one of the worker key, which all its ranks share.

        Args:
            sampler_input: The input of all servers that take part.
            sampling_config: Sampling configuration.
            worker_options: GLT's ``RemoteDistSamplingWorkerOptions``; a ``worker_key`` of None
                means that the producer is not shared.
            sampler_options: Options of another sampler.
            request: Seed, order and this server's batches. None: all batches, for one
                consumer.

        Raises:
            PeerError: A worker or another server failed; nothing is left.
            ConfigError: A value is invalid.
        """

    @abstractmethod
    def destroy_sampling_producer(self, producer_id: int, *, linger_s: float = LINGER_S) -> None:
        """End a producer even if it has other consumers.

        Args:
            producer_id: From `create_sampling_producer`.
            linger_s: Seconds that the workers may go on serving those of other servers.

        Raises:
            UsageError: There is no such producer.
        """

    @abstractmethod
    def release_sampling_producer(
        self, producer_id: int, consumer: int = 0, *, linger_s: float = LINGER_S
    ) -> None:
        """Remove a consumer; the producer ends with the last one. Idempotent.

        Args:
            producer_id: From `create_sampling_producer`.
            consumer: Number of the consumer.
            linger_s: Seconds that the workers may go on serving those of other servers.

        Raises:
            UsageError: There never was such a producer, or consumer.
        """

    @abstractmethod
    def start_new_epoch_sampling(
        self, producer_id: int, epoch: int, *, request: EpochRequest | None = None
    ) -> bool:
        """Begin an epoch of one consumer.

        Args:
            producer_id: From `create_sampling_producer`.
            epoch: With the seed it decides the shuffle and every draw.
            request: Consumer, attempt and batches. None: consumer 0, all batches of this server.

        Returns:
            Whether batches come without rows; see ``SourceOptions.asks_for_rows``.

        Raises:
            UsageError: There is no such producer.
            PeerError: A worker is gone.
        """

    @abstractmethod
    def cancel_epoch_sampling(self, producer_id: int, request: EpochRequest) -> None:
        """Cancel the epoch of one consumer; nothing to do if the producer has ended.

        Raises:
            UsageError: There never was such a producer.
        """

    @abstractmethod
    def fetch_one_sampled_message(
        self, producer_id: int, *, consumer: int = 0
    ) -> tuple[SampleMessage | None, bool]:
        """Return the next batch and whether it was the last: ``(message | None, end_of_epoch)``.

        Raises:
            UsageError: There is no such producer.
            PeerError: A worker died, stalled or raised.
        """

    @abstractmethod
    def sample_seeds(
        self, producer_id: int, index: Tensor, seed: int | None = None
    ) -> SampleMessage:
        """Return the batch of the seeds at ``index`` of a producer's input, beside its epochs.

        Args:
            producer_id: From `create_sampling_producer`.
            index: ``[n]`` int64, positions in the whole input.
            seed: In place of the producer's own, from a state that its client has loaded.

        Raises:
            UsageError: There is no such producer.
            PeerError: A worker died, stalled or raised.
        """

    @abstractmethod
    def memory_mark(self) -> SameHostProof:
        """Return the data with which a client can test whether it can map this process's memory."""

    @abstractmethod
    def describe_workers(self, producer_id: int) -> str:
        """Describe the activity of a producer's workers, for an error elsewhere."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return this server's state as plain values."""

    @abstractmethod
    def stop_job(self, name: str) -> int:
        """End a job; its compute processes raise `JobStoppedError`. Only server 0 does that.

        Returns:
            How many compute processes it had, those included that waited under its name.

        Raises:
            ConfigError: There is no such job, or this is another server.
        """

    @abstractmethod
    def get_free_ports(self, num_ports: int) -> list[int]:
        """Return ports that are free on this server at this moment, at most 64.

        Raises:
            ConfigError: More are asked for: each is a descriptor of the server meanwhile.
        """

    @abstractmethod
    def run_function(
        self, path: str, data: bytes, tensors: tuple[Tensor, ...]
    ) -> tuple[bytes, tuple[Tensor, ...]]:
        """Run a function for which the server was started with leave; see ``request_server``.

        Args:
            path: Its import path.
            data: Its arguments, as ``graph_store.wire.functions`` packs them.
            tensors: Those of them that are tensors.

        Returns:
            Whether the result is a tuple, and the result, as they travel.

        Raises:
            ConfigError: There is no leave, no such function, or its result cannot travel.
        """

    @abstractmethod
    def ping(self) -> int:
        """Return this process's id, which shows that it is alive."""


CALLS = calls_of(DistServer)
"""Every method of `DistServer` that clients may call over the network.

Loaders' fetches are not among them: `BatchSender` lends or packs a batch, which is received into
memory of a pool.
"""
