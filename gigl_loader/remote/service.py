"""`DistServer`: what a storage server knows and does. Its connections are the endpoint's."""

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gigl_loader._glt import (
    Dataset,
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
)
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeDir,
    EdgeType,
    FeatureInfo,
    NodeType,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, GiglLoaderError, PeerTimeoutError, UsageError
from gigl_loader.memory.leases import MemoryMark, Packed, Place, ServerMemory
from gigl_loader.message import SampleMessage
from gigl_loader.options import EpochOptions, SamplerOptions, parse_size
from gigl_loader.remote.requests import (
    ABLPRequest,
    EpochRequest,
    FetchRequest,
    NodeIdsRequest,
    ProducerRequest,
)
from gigl_loader.remote.shared import Fetched, SharedProducer
from gigl_loader.sampler._kernels import load as load_kernels
from gigl_loader.workers.producer import LINGER_S, DistSamplingProducer, seed_or_drawn

_log = logging.getLogger(__name__)

caller: ContextVar[Hashable] = ContextVar("caller", default="this process")
"""The client that the request being served came from."""

_RESERVED_PORTS = 64
_END_S = 60.0
"""The most that a closing server waits for a producer's workers to end."""


@dataclass
class _Slot:
    """A worker key: whoever asks first creates, the others wait for the same outcome."""

    id: int
    ready: threading.Event = field(default_factory=threading.Event)
    shared: SharedProducer | None = None
    error: BaseException | None = None


class DistServer:
    """One storage server: a partition, and the producers that sample it for compute processes.

    Methods are thread-safe, and are called by clients through `request_server`.

    Args:
        dataset: The partition.
        server_rank: This server among the storage servers.
        num_servers: How many there are.
        host: The address of this machine, on which ports are looked for.
    """

    def __init__(
        self,
        dataset: Dataset,
        server_rank: int = 0,
        num_servers: int = 1,
        host: str = "127.0.0.1",
    ) -> None:
        self.dataset = DistDataset.wrap(dataset)
        self.server_rank, self.num_servers = server_rank, num_servers
        self._host = host
        self._started = time.time()
        self._lock = threading.Lock()
        self._slots: dict[int, _Slot] = {}
        self._by_key: dict[tuple[Hashable, str], int] = {}
        self._next_id = 0
        self._destroyed: set[int] = set()
        self._gone: set[Hashable] = set()
        self._closed = False
        self._reserved: deque[socket.socket] = deque()
        self._mark = MemoryMark()
        self.create_calls = 0
        """Create calls that this server has seen."""
        self.connections: Callable[[], dict[str, Any]] = dict
        """Who is connected; set by the endpoint."""

    # -- producers ------------------------------------------------------------------------------

    def create_sampling_producer(
        self,
        sampler_input: NodeSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: RemoteDistSamplingWorkerOptions,
        sampler_options: SamplerOptions | None = None,
        *,
        request: ProducerRequest | None = None,
    ) -> int:
        """Start a producer, or return the one that the worker key has; one however many ask.

        Args:
            sampler_input: What is sampled: the input of all servers that take part.
            sampling_config: How.
            worker_options: GLT's ``RemoteDistSamplingWorkerOptions``; ``worker_key`` may be None:
                nobody shares it.
            sampler_options: Another sampler.
            request: Seed, order, and which batches are this server's. None: all are, for one
                consumer.

        Raises:
            PeerError: A worker or another server failed; nothing is left.
            ConfigError: A value cannot work.
        """
        if request is None:
            drawn = EpochOptions(seed=seed_or_drawn(sampling_config.seed))
            request = ProducerRequest(epoch_options=drawn)
        client = caller.get()
        slot, is_first = self._slot_of(client, worker_options.worker_key)
        if not is_first:
            slot.ready.wait(3 * request.epoch_options.timeout_s)
            if slot.error is not None:
                raise slot.error
            if slot.shared is None:
                raise PeerTimeoutError(
                    f"storage server {self.server_rank}: the producer of worker key "
                    f"{worker_options.worker_key!r}, which another process asked for, is not up"
                )
            return slot.id
        try:
            shared = self._start(
                slot.id, sampler_input, sampling_config, worker_options, sampler_options, request
            )
            self._adopt(slot, shared, client)
        except BaseException as error:
            slot.error = error
            self._forget(slot.id)
            raise
        finally:
            slot.ready.set()  # last: who waits for it looks at the slot next
        return slot.id

    def _slot_of(self, client: Hashable, key: str | None) -> tuple[_Slot, bool]:
        with self._lock:
            self._check_open()
            self.create_calls += 1
            job = client[0] if isinstance(client, tuple) else None
            known = self._by_key.get((job, key)) if key is not None else None
            if known is not None:
                return self._slots[known], False
            slot = self._slots[self._next_id] = _Slot(self._next_id)
            self._next_id += 1
            if key is not None:
                self._by_key[job, key] = slot.id
            return slot, True

    def _start(
        self, number: int, sampler_input: NodeSamplerInput, config: SamplingConfig, options: Any,
        sampler_options: SamplerOptions | None, request: ProducerRequest,
    ) -> SharedProducer:  # fmt: skip
        self._check_columns(config)
        capacity = max(options.prefetch_size, options.num_workers * options.worker_concurrency)
        memory = ServerMemory(capacity)
        producer = DistSamplingProducer(
            self.dataset, sampler_input, config, options, memory, sampler_options,
            epoch_options=request.epoch_options,
        )  # fmt: skip
        producer.init()
        client = caller.get()
        job = client[0] if isinstance(client, tuple) else None
        clients: list[Hashable] = [(job, rank) for rank in request.client_ranks] or [client]
        key = options.worker_key or f"producer {number}"
        return SharedProducer(
            key, producer, memory, request, clients, parse_size(options.buffer_size)
        )

    def _check_columns(self, config: SamplingConfig) -> None:
        walked = {
            name: adjacency
            for name, adjacency in self.dataset.view().adjacency.items()
            if not is_label_edge_type(name)
        }
        if config.with_weight and all(one.weights is None for one in walked.values()):
            raise ConfigError(f"edge types {list(walked)} have no weights, which were asked for")
        missing = [name for name, one in walked.items() if not one.has_edge_ids]
        if config.with_edge and missing:
            raise ConfigError(f"edge types {missing} have no edge_ids, which were asked for")

    def _adopt(self, slot: _Slot, shared: SharedProducer, client: Hashable) -> None:
        slot.shared = shared
        _log.info(
            "server %d: producer %d (%s) started for %s, workers %s",
            *(self.server_rank, slot.id, shared.key, client, shared.producer.pids),
        )
        for gone in set(self._gone):  # it left while its producer started
            self.client_gone(gone)
        if self._closed:
            shared.close(0.0)

    def _forget(self, producer_id: int) -> SharedProducer | None:
        with self._lock:
            slot = self._slots.pop(producer_id, None)
            self._destroyed.add(producer_id)
            self._by_key = {k: v for k, v in self._by_key.items() if v != producer_id}
        return slot.shared if slot is not None else None

    def _shared(self, producer_id: int) -> SharedProducer:
        with self._lock:
            slot = self._slots.get(producer_id)
        if slot is None or slot.shared is None:
            what = "was destroyed" if producer_id in self._destroyed else "never existed"
            raise UsageError(
                f"producer {producer_id} of storage server {self.server_rank} {what}: build a new "
                "loader"
            )
        return slot.shared

    def destroy_sampling_producer(self, producer_id: int, *, linger_s: float = LINGER_S) -> None:
        """End a producer, whoever else uses it.

        Args:
            producer_id: From `create_sampling_producer`.
            linger_s: How long the workers may go on answering those of other servers.

        Raises:
            UsageError: There is no such producer.
        """
        self._shared(producer_id)
        self._end(producer_id, linger_s)

    def release_sampling_producer(
        self, producer_id: int, consumer: int = 0, *, linger_s: float = LINGER_S
    ) -> None:
        """Let a consumer go; the producer ends with the last one.

        Args:
            producer_id: From `create_sampling_producer`.
            consumer: Its number.
            linger_s: How long the workers may go on answering those of other servers.

        Raises:
            UsageError: There is no such producer, or consumer.
        """
        if self._shared(producer_id).release(consumer):
            self._end(producer_id, linger_s)

    def _end(self, producer_id: int, linger_s: float = LINGER_S) -> None:
        shared = self._forget(producer_id)
        if shared is not None:
            shared.close(linger_s)
            _log.info(
                "server %d: producer %d (%s) ended", self.server_rank, producer_id, shared.key
            )

    def start_new_epoch_sampling(
        self, producer_id: int, epoch: int, *, request: EpochRequest | None = None
    ) -> None:
        """Begin an epoch of one consumer.

        Args:
            producer_id: From `create_sampling_producer`.
            epoch: With the seed it decides the shuffle and every draw.
            request: Consumer, round and batches. None: of consumer 0, all of this server's.

        Raises:
            UsageError: There is no such producer.
            PeerError: A worker is gone.
        """
        self._shared(producer_id).start_epoch(epoch, request or EpochRequest())

    def cancel_epoch_sampling(self, producer_id: int, request: EpochRequest) -> None:
        """Break the epoch of one consumer off.

        Raises:
            UsageError: There is no such producer.
        """
        self._shared(producer_id).cancel_epoch(request)

    def fetch(self, request: FetchRequest) -> "Future[Fetched]":
        """Return a batch of a consumer, as soon as there is one. Never waits.

        Raises:
            UsageError: There is no such producer.
            PeerError: A worker died or raised.
        """
        return self._shared(request.producer_id).fetch(request.consumer, request.round)

    def fetch_one_sampled_message(
        self, producer_id: int, *, consumer: int = 0
    ) -> tuple[SampleMessage | None, bool]:
        """Return the next batch and whether it was the last: ``(message | None, end_of_epoch)``.

        Raises:
            UsageError: There is no such producer.
            PeerError: A worker died, stalled or raised.
        """
        shared = self._shared(producer_id)
        limit = shared.producer.epoch_options.timeout_s
        try:
            received, finished = shared.fetch(consumer, None).result(limit)
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"storage server {self.server_rank}: no batch within {limit:.0f} s: "
                f"{shared.describe_workers()}"
            ) from error
        if received is None:
            return None, finished
        assert isinstance(received.message, Packed)
        return received.message.tensors(), finished

    def memory_mark(self) -> tuple[Place, bytes]:
        """Return what a client needs to find out whether it can map this process's memory."""
        return self._mark.show()

    def describe_workers(self, producer_id: int) -> str:
        """Say what the workers of a producer are doing, for an error elsewhere."""
        return self._shared(producer_id).describe_workers()

    def client_gone(self, client: Hashable) -> None:
        """Release all that a client has: it ended, or can no longer be reached."""
        with self._lock:
            self._gone.add(client)
            started = [slot for slot in self._slots.values() if slot.shared is not None]
        _at_once(  # those that are still starting: `_adopt` asks again
            self._release_of_gone,
            [
                (slot.id, consumer, client)
                for slot in started
                if slot.shared is not None
                for consumer in slot.shared.consumers_of(client)
            ],
        )

    def _release_of_gone(self, producer_id: int, consumer: int, client: Hashable) -> None:
        _log.info("server %d: client %s left producer %d", self.server_rank, client, producer_id)
        try:  # no lingering: whoever the workers answered belongs to the same client
            self.release_sampling_producer(producer_id, consumer, linger_s=0.0)
        except GiglLoaderError as error:  # released or destroyed meanwhile
            _log.debug("%s", error)

    def close(self) -> None:
        """End all producers. Idempotent."""
        with self._lock:
            self._closed = True
            ids = [slot.id for slot in self._slots.values() if slot.shared is not None]
        _at_once(self._end, [(number, 0.0) for number in ids])
        while self._reserved:
            self._reserved.popleft().close()
        self._mark.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"storage server {self.server_rank} is shutting down")

    # -- what it holds --------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return this server's state as plain values."""
        view = self.dataset.view()
        with self._lock:
            shared = {s.id: s.shared for s in self._slots.values() if s.shared is not None}
            starting = [s.id for s in self._slots.values() if s.shared is None]
        connections = self.connections()
        producers = {number: producer.status() for number, producer in shared.items()}
        failed = sorted(number for number, one in producers.items() if one["failed"] is not None)
        health = "serving" if not failed else f"serving, but producers {failed} failed"
        return {
            "health": connections.get("lost") or health,
            "server_rank": self.server_rank,
            "num_servers": self.num_servers,
            "pid": os.getpid(),
            "uptime_s": time.time() - self._started,
            "partition_idx": view.partition_idx,
            "num_partitions": view.num_partitions,
            "num_nodes": dict(view.num_nodes),
            "create_calls": self.create_calls,
            "producers": producers,
            "starting_producers": starting,
            **connections,
        }

    def get_schema(self) -> DatasetSchema:
        """Return types, feature widths and direction."""
        return self.dataset.schema

    def get_num_nodes(self) -> dict[NodeType, int]:
        """Return how many nodes of each type there are over all servers."""
        return dict(self.dataset.view().num_nodes)

    def get_node_feature_info(self) -> FeatureInfo | dict[NodeType, FeatureInfo] | None:
        """Return width and dtype of the node features."""
        return self.dataset.node_feature_info

    def get_edge_feature_info(self) -> FeatureInfo | dict[EdgeType, FeatureInfo] | None:
        """Return width and dtype of the edge features."""
        return self.dataset.edge_feature_info

    def get_edge_dir(self) -> EdgeDir:
        """Return the direction in which nodes are expanded."""
        return self.dataset.schema.edge_dir

    def get_edge_types(self) -> list[EdgeType] | None:
        """Return all edge types, label edge types included; None for a homogeneous graph."""
        return self.dataset.schema.edge_types

    def get_node_types(self) -> list[NodeType] | None:
        """Return all node types; None for a homogeneous graph."""
        return sorted(self.dataset.view().num_nodes) if self.dataset.is_typed else None

    def get_node_partition_book(self, node_type: NodeType | None = None) -> Any:
        """Return the owner of each node of a type."""
        return self._of_type(self.dataset.node_partition_book, node_type, "node")

    def get_edge_partition_book(self, edge_type: EdgeType | None = None) -> Any:
        """Return the owner of each edge of a type; None where no edge is looked up."""
        books = self.dataset.edge_partition_book
        if books is None:
            books = dict.fromkeys(self.dataset.schema.edge_types or ()) or None
        return self._of_type(books, edge_type, "edge")

    def get_node_ids(self, request: NodeIdsRequest | None = None) -> Tensor:
        """Return ``[n]`` int64: the ids of nodes that this server owns, ascending.

        Raises:
            ConfigError: No such split or node type.
        """
        request = request or NodeIdsRequest()
        if request.split is None:
            ids = self.dataset.node_ids
        else:
            found = self.dataset.split_node_ids(request.split)
            if found is None:
                raise ConfigError(
                    f"the graph has no {request.split!r} split: give it {request.split}_mask"
                )
            ids = found
        found = self._of_type(ids, request.node_type, "node")
        return request.share.cut(found)

    def get_ablp_input(
        self, request: ABLPRequest
    ) -> tuple[NodeType, Tensor, dict[EdgeType, Tensor], dict[EdgeType, Tensor] | None]:
        """Return (anchor type, anchors, positives, negatives) of this server.

        Anchors are ``[n]`` int64. Labels are by label edge type ``[n, most]`` int64, padded with
        -1; negatives are None where the graph has none.

        Raises:
            ConfigError: The graph has no such label edges.
        """
        edge_type = request.supervision_edge_type or self._only_supervision_type()
        anchor_type = request.anchor_node_type or edge_type[0]
        if anchor_type != edge_type[0]:
            raise ConfigError(
                f"anchors of type {anchor_type!r} have no labels of {edge_type}: its anchors are "
                f"of type {edge_type[0]!r}"
            )
        anchors = self.get_node_ids(
            NodeIdsRequest(split=request.split, node_type=anchor_type, share=request.share)
        )
        positive = message_passing_to_positive_label(edge_type)
        negative = message_passing_to_negative_label(edge_type)
        adjacency = self.dataset.view().adjacency
        if positive not in adjacency:
            known = [name for name in adjacency if is_label_edge_type(name)]
            raise ConfigError(f"the graph has no labels {positive}; its label edge types: {known}")
        most = self.dataset.max_labels_per_anchor_node
        labels = {name: padded_rows(adjacency[name], anchors, most) for name in (positive, negative)
                  if name in adjacency}  # fmt: skip
        negatives = {negative: labels[negative]} if negative in labels else None
        return anchor_type, anchors, {positive: labels[positive]}, negatives

    def _only_supervision_type(self) -> EdgeType:
        if self.dataset.schema.is_homogeneous_with_labeled_edge_type:
            return DEFAULT_HOMOGENEOUS_EDGE_TYPE
        raise ConfigError(
            "supervision_edge_type must be given: the graph is not a homogeneous one with labels"
        )

    def _of_type(self, value: Any, name: Any, kind: str) -> Any:
        if not isinstance(value, dict):
            default = (
                DEFAULT_HOMOGENEOUS_NODE_TYPE if kind == "node" else DEFAULT_HOMOGENEOUS_EDGE_TYPE
            )
            if name not in (None, default):
                raise ConfigError(f"the graph is homogeneous: it has no {kind} type {name!r}")
            return value
        if name is None and self.dataset.schema.is_homogeneous_with_labeled_edge_type:
            name = (
                DEFAULT_HOMOGENEOUS_NODE_TYPE if kind == "node" else DEFAULT_HOMOGENEOUS_EDGE_TYPE
            )
        if name not in value:
            raise ConfigError(f"{kind}_type must be one of {sorted(value)}, got {name!r}")
        return value[name]

    def get_free_ports(self, num_ports: int) -> list[int]:
        """Return ports that are free on this server, kept from other programs for a while.

        A socket that is bound and does not listen holds each port: the system then gives it to
        nobody, and a rendezvous that reuses addresses may still listen there.
        """
        ports = []
        with self._lock:
            for _ in range(num_ports):
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((self._host, 0))
                ports.append(int(sock.getsockname()[1]))
                self._reserved.append(sock)
            while len(self._reserved) > max(_RESERVED_PORTS, 2 * num_ports):
                self._reserved.popleft().close()
        return ports


def padded_rows(adjacency: Any, nodes: Tensor, limit: int | None = None) -> Tensor:
    """Return the neighbours of ``nodes`` as ``[len(nodes), most]`` int64, padded with -1.

    With ``limit``, these are the first ``limit`` of each.
    """
    indptr, rows = adjacency.indptr, adjacency.locate(nodes)
    known = rows < indptr.numel() - 1  # ids past the end have no edge
    rows = torch.where(known, rows, 0)
    starts = indptr[rows]
    counts = torch.where(known, indptr[rows + 1] - starts, 0) if indptr.numel() > 1 else nodes * 0
    counts = counts if limit is None else counts.clamp(max=limit)
    most = int(counts.max()) if counts.numel() else 0
    table = nodes.new_full((nodes.numel(), most), -1)
    places = torch.arange(most)
    filled = places < counts[:, None]
    table[filled] = adjacency.indices[(starts[:, None] + places)[filled]].long()
    return table


def _at_once(function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Make all ``calls``, each in a thread: the end of a producer may wait for other servers'."""
    threads = [threading.Thread(target=function, args=args, daemon=True) for args in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_END_S)


def call_on_server(
    server: DistServer, function: Callable[..., Any], args: Any, keywords: Any
) -> Any:
    """Call a method of ``server``'s class with it as ``self``, or any other function without it."""
    name = getattr(function, "__name__", "")
    if getattr(type(server), name, None) is function:
        return function(server, *args, **keywords)
    return function(*args, **keywords)


def warm_up() -> None:
    """Compile or load the sampling kernels before the first client waits for them."""
    load_kernels()
