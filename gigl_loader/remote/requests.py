"""What clients ask of servers beyond GLT's own options: frozen, pickled, sent over the wire."""

from dataclasses import dataclass

from torch import Tensor

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.shares import WHOLE, Share
from gigl_loader.options import EpochOptions


@dataclass(frozen=True, kw_only=True)
class ProducerRequest:
    """Which part of the batches a server samples, and for whom.

    ::

        batches of the whole input   0  1  2  3  4  5  6  7      2 active servers, 2 consumers
        sampled by active server     0  1  0  1  0  1  0  1      place % num_stripes
        taken by consumer            0  0  1  1  0  0  1  1      place within the stripe % consumers
    """

    epoch_options: EpochOptions
    stripe: int | None = 0
    """Place of this server among those with input of their own; None: it samples no batch."""
    num_stripes: int = 1
    """How many servers have input of their own."""
    client_ranks: tuple[int, ...] = ()
    """Compute ranks that share the producer, by consumer number; empty: whoever asked."""

    @property
    def num_consumers(self) -> int:
        """How many streams of batches there are."""
        return max(1, len(self.client_ranks))


def share_of_batches(total: int, request: ProducerRequest, consumer: int) -> range:
    """Return the batches that this server samples for one consumer, of ``total`` in an epoch."""
    if request.stripe is None:
        return range(0)
    return range(request.stripe, total, request.num_stripes)[consumer :: request.num_consumers]


@dataclass(frozen=True, kw_only=True)
class EpochRequest:
    """An epoch of one consumer."""

    consumer: int = 0
    round: int = 0
    """The consumer's count of its epochs, broken-off ones too; its fetches carry it."""
    batches: Tensor | None = None
    """``[n]`` int64, indices over the whole input, in the order wanted; None: the whole share."""


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """One batch, please."""

    producer_id: int
    consumer: int = 0
    round: int = 0
    same_memory: bool = False
    """The client can map the server's memory: it only wants to know where the batch lies."""


@dataclass(frozen=True, kw_only=True)
class NodeIdsRequest:
    """Ids of the nodes that a server owns."""

    split: str | None = None
    """``"train"``, ``"val"``, ``"test"``; None: all nodes."""
    node_type: NodeType | None = None
    share: Share = WHOLE
    """Which part of them."""


@dataclass(frozen=True, kw_only=True)
class ABLPRequest:
    """Anchors that a server owns, with their labels."""

    split: str | None = None
    anchor_node_type: NodeType | None = None
    supervision_edge_type: EdgeType | None = None
    share: Share = WHOLE
