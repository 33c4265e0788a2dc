"""What compute processes and storage servers say to each other: a dataclass each, one fixed table.

`CALLS` names every method of `DistServer` that may be asked over the network. A request has a field
for each parameter of its method; an answer has what the method returned. Both are made of what
`gigl_loader.transport` carries: plain values, dataclasses and numpy arrays. Tensors, and GLT's
classes, become messages here and tensors again at the other end; nothing is pickled, and nothing
that arrives can name code, but for a sampler's import path, which a server has to allow.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.shares import WHOLE, Share
from gigl_loader.memory import same_host
from gigl_loader.message import BatchTicket
from gigl_loader.options import EpochOptions
from gigl_loader.remote import values
from gigl_loader.remote.answers import (
    ABLPInput,
    Answer,
    Batch,
    BookAnswer,
    EdgeTypes,
    FeatureInfos,
    Flag,
    Ids,
    Mark,
    NodeCounts,
    NodeTypes,
    Nothing,
    Number,
    Numbers,
    RowBooks,
    Rows,
    Sampled,
    Schema,
    Status,
    Tensors,
    Text,
)
from gigl_loader.remote.compact import NOBODY, Runs
from gigl_loader.remote.values import (
    InputMessage,
    SamplerMessage,
    SamplingConfigMessage,
    TensorMessage,
    WorkerOptionsMessage,
)
from gigl_loader.sampler.packing import PackedRuns
from gigl_loader.workers.wire import RowsQuestion

R = TypeVar("R", bound="Request")


class Request:
    """Arguments of a call, as they travel: a field for each parameter of the method."""

    @classmethod
    def of(cls: type[R], arguments: dict[str, Any]) -> R:
        """Return the message for ``arguments``.

        Raises:
            ConfigError: One of them cannot travel.
        """
        # fields have no defaults: a second place for those of the methods would drift away from
        # them, so whoever asks names every argument
        return cls(**{name: values.to_message(value) for name, value in arguments.items()})

    @property
    def arguments(self) -> dict[str, Any]:
        """What the method is called with.

        Raises:
            ProtocolError: A tensor is of no type that travels.
        """
        # not `dataclasses.asdict`, which copies arrays and turns nested dataclasses into dicts
        return {name: values.from_message(value) for name, value in vars(self).items()}


# --- producers ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProducerRequest:
    """Which part of the batches a server samples, and for whom.

    ::

        batches of the whole input   0  1  2  3  4  5  6  7      2 active servers, 2 consumers
        sampled by active server     0  1  0  1  0  1  0  1      batch % num_shards
        taken by consumer            0  0  1  1  0  0  1  1      position in the shard % consumers
    """

    epoch_options: EpochOptions
    shard: int | None = 0
    """Number of this server among those with input of their own; None: it samples no batch."""
    num_shards: int = 1
    """How many servers have input of their own."""
    client_ranks: Runs = NOBODY
    """Compute ranks that share the producer, by consumer number; empty: whoever asked."""
    request_id: str = ""
    """The same each time that one request is asked, and on all servers; empty: of no other."""
    servers: Runs = NOBODY
    """Servers that take part, ascending; empty: all of them. The others are lost, and have twins
    that serve the same partition."""

    @property
    def num_consumers(self) -> int:
        """How many streams of batches there are."""
        return max(1, len(self.client_ranks))


@dataclass(frozen=True, kw_only=True)
class EpochRequest:
    """An epoch of one consumer."""

    consumer: int = 0
    generation: int = 0
    """The consumer's count of its epochs, broken-off ones too; its fetches carry it."""
    batches: np.ndarray | None = None
    """``[n]`` int64, indices over the whole input, in the order wanted; None: the whole share."""


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """Asks for one batch. The same one when it is asked again after a lost connection."""

    producer_id: int
    consumer: int = 0
    generation: int = 0
    position: int | None = None
    """How many batches of this epoch the consumer has had from this server; None: not counted."""
    same_host: bool = False
    """The client can map the server's memory: it only wants to know where the batch lies."""


@dataclass(frozen=True)
class BatchMessage:
    """One batch: in ``columns`` and ``parts``, or in a ``region`` of the server's memory."""

    ticket: BatchTicket
    stats: dict[str, Any]
    layout: list[tuple[str, str, tuple[int, ...], int]]
    """(key, dtype, shape, offset in bytes) of each tensor."""
    columns: dict[str, list[PackedRuns]] = field(default_factory=dict)
    """Ids and labels of edges, by key; see `gigl_loader.remote.payload`."""
    parts: list[np.ndarray] = field(default_factory=list)
    """uint8 each, the memory of all other tensors."""
    region: same_host.Region | None = None
    lease: int = -1
    """Names the batch in ``region`` when it is given back."""


@dataclass(frozen=True)
class FetchAnswer:
    """A batch, or none: the epoch was broken off."""

    batch: BatchMessage | None
    finished: bool
    """Whether the server has no more for this consumer in this epoch."""


@dataclass(frozen=True)
class GiveBack:
    """Leases of batches that nothing on the client reads any more."""

    leases: tuple[int, ...]


@dataclass(frozen=True)
class CreateProducer(Request):
    """Arguments of `DistServer.create_sampling_producer`."""

    sampler_input: InputMessage
    sampling_config: SamplingConfigMessage
    worker_options: WorkerOptionsMessage
    sampler_options: SamplerMessage | None
    request: ProducerRequest | None


@dataclass(frozen=True)
class DestroyProducer(Request):
    """Arguments of `DistServer.destroy_sampling_producer`."""

    producer_id: int
    linger_s: float


@dataclass(frozen=True)
class ReleaseProducer(Request):
    """Arguments of `DistServer.release_sampling_producer`."""

    producer_id: int
    consumer: int
    linger_s: float


@dataclass(frozen=True)
class StartEpoch(Request):
    """Arguments of `DistServer.start_new_epoch_sampling`."""

    producer_id: int
    epoch: int
    request: EpochRequest | None


@dataclass(frozen=True)
class CancelEpoch(Request):
    """Arguments of `DistServer.cancel_epoch_sampling`."""

    producer_id: int
    request: EpochRequest


@dataclass(frozen=True)
class FetchOne(Request):
    """Arguments of `DistServer.fetch_one_sampled_message`."""

    producer_id: int
    consumer: int


@dataclass(frozen=True)
class SampleSeeds(Request):
    """Arguments of `DistServer.sample_seeds`."""

    producer_id: int
    index: TensorMessage


@dataclass(frozen=True)
class OfProducer(Request):
    """Arguments of methods about one producer."""

    producer_id: int


# --- what a server holds --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeIdsRequest:
    """Ids of the nodes that a server owns."""

    split: str | None = None
    """``"train"``, ``"val"``, ``"test"``; None: all nodes."""
    node_type: NodeType | None = None
    share: Share = WHOLE
    """Which part of them."""
    server: int | None = None
    """Whose; None: those of the server that is asked. Its twins may be asked in its place."""


@dataclass(frozen=True, kw_only=True)
class ABLPRequest:
    """Anchors that a server owns, with their labels."""

    split: str | None = None
    anchor_node_type: NodeType | None = None
    supervision_edge_type: EdgeType | None = None
    share: Share = WHOLE
    server: int | None = None
    """As for `NodeIdsRequest`."""


@dataclass(frozen=True, kw_only=True)
class EdgesRequest:
    """All edges that a server expands nodes by, of one type."""

    edge_type: EdgeType
    ids: np.ndarray
    """``[n]`` int64, global ids of nodes that the server owns."""
    weights: bool = False
    edge_ids: bool = False


@dataclass(frozen=True)
class NoArguments(Request):
    """Arguments of the methods without any."""


@dataclass(frozen=True)
class OfNodeType(Request):
    """Arguments of methods about one node type."""

    node_type: NodeType | None


@dataclass(frozen=True)
class OfEdgeType(Request):
    """Arguments of methods about one edge type."""

    edge_type: EdgeType | None


@dataclass(frozen=True)
class GetNodeIds(Request):
    """Arguments of `DistServer.get_node_ids`."""

    request: NodeIdsRequest | None


@dataclass(frozen=True)
class GetABLPInput(Request):
    """Arguments of `DistServer.get_ablp_input`."""

    request: ABLPRequest


@dataclass(frozen=True)
class GetRows(Request):
    """Arguments of `DistServer.get_rows`."""

    request: RowsQuestion


@dataclass(frozen=True)
class GetEdges(Request):
    """Arguments of `DistServer.get_edges`."""

    request: EdgesRequest


@dataclass(frozen=True)
class GetFreePorts(Request):
    """Arguments of `DistServer.get_free_ports`."""

    num_ports: int


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """How one method of `DistServer` is asked."""

    request: type[Request]
    answer: type[Answer]


CALLS: dict[str, Call] = {
    # `fetch` is not among them: a batch is lent or packed by `Handout`, and received into memory of
    # a pool, which no answer of this table is
    "create_sampling_producer": Call(CreateProducer, Number),
    "destroy_sampling_producer": Call(DestroyProducer, Nothing),
    "release_sampling_producer": Call(ReleaseProducer, Nothing),
    "start_new_epoch_sampling": Call(StartEpoch, Flag),
    "cancel_epoch_sampling": Call(CancelEpoch, Nothing),
    "fetch_one_sampled_message": Call(FetchOne, Sampled),
    "sample_seeds": Call(SampleSeeds, Batch),
    "describe_workers": Call(OfProducer, Text),
    "memory_mark": Call(NoArguments, Mark),
    "ping": Call(NoArguments, Number),
    "status": Call(NoArguments, Status),
    "get_schema": Call(NoArguments, Schema),
    "get_graph_identity": Call(NoArguments, Text),
    "get_num_nodes": Call(NoArguments, NodeCounts),
    "get_node_feature_info": Call(NoArguments, FeatureInfos),
    "get_edge_feature_info": Call(NoArguments, FeatureInfos),
    "get_edge_dir": Call(NoArguments, Text),
    "get_edge_types": Call(NoArguments, EdgeTypes),
    "get_node_types": Call(NoArguments, NodeTypes),
    "get_node_partition_book": Call(OfNodeType, BookAnswer),
    "get_edge_partition_book": Call(OfEdgeType, BookAnswer),
    "get_partition_index": Call(NoArguments, Number),
    "get_row_books": Call(NoArguments, RowBooks),
    "get_node_ids": Call(GetNodeIds, Ids),
    "get_ablp_input": Call(GetABLPInput, ABLPInput),
    "get_rows": Call(GetRows, Rows),
    "get_edges": Call(GetEdges, Tensors),
    "get_free_ports": Call(GetFreePorts, Numbers),
}
"""Every method of `DistServer` that may be asked over the network."""
