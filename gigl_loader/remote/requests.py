"""What compute processes and storage servers tell each other, a dataclass each.

How a method of `DistServer` is called is in `gigl_loader.remote.calls`; these are the values that
it takes and returns, and the messages that batches travel in.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigl_loader.dataset.identity import WHOLE, Share
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.memory import same_host
from gigl_loader.message import Attempt, BatchTicket
from gigl_loader.options import EpochOptions
from gigl_loader.remote.compact import NOBODY, Runs
from gigl_loader.sampler.packing import PackedRuns


@dataclass(frozen=True)
class Nothing:
    """A response without content: it was done."""

    value: None = None


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
    """Name of the request, each time that it is asked, on all servers; empty: it has none."""
    servers: Runs = NOBODY
    """Servers that take part, ascending; empty: all of them. The others are lost, and have replicas
    that serve the same partition."""

    @property
    def num_consumers(self) -> int:
        """How many streams of batches there are."""
        return max(1, len(self.client_ranks))


@dataclass(frozen=True, kw_only=True)
class EpochRequest:
    """An epoch of one consumer."""

    consumer: int = 0
    attempt: Attempt | None = None
    """Which attempt of the consumer's loader; its fetches carry it. None: it counts none."""
    batches: np.ndarray | None = None
    """``[n]`` int64, indices over the whole input, in the order wanted; None: the whole share."""


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """Asks for one batch. The same one when it is asked again after a lost connection."""

    producer_id: int
    consumer: int = 0
    attempt: Attempt | None = None
    """The one that the batch is wanted for; None where the position is."""
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
    """Whose; None: those of the server that is asked. Its replicas may be asked in its place."""


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
class RowBook:
    """Partition book of the rows of one type."""

    group: str
    """``"node"`` or ``"edge"``."""
    name: NodeType | EdgeType
    num_ids: int
    bounds: np.ndarray | None = None
    """``[num_partitions]`` int64, where each partition's range of ids ends."""
    table: np.ndarray | None = None
    """``[num_ids]``, the owner of each id; neither: one partition has all."""
