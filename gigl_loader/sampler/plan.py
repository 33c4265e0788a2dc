"""What a sampler is told once (`SamplingPlan`), per batch (`SampleRequest`), returns (`Field`)."""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gigl_loader.dataset.schema import EdgeType, NodeType, edge_type_str
from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory.segments import Array
from gigl_loader.message import NODE_FEATURES, SCALES, BatchTicket, Field, key
from gigl_loader.options import ExpansionOptions, FeatureStoreOptions

__all__ = [
    "DRAW_VERSION",
    "STRICT_PAIRS_VERSION",
    "Field",
    "SampleRequest",
    "Sampler",
    "SamplerFactory",
    "SamplingPlan",
    "draw_key",
    "scale_fields",
]


DRAW_VERSION = 1
"""Goes up with a release that draws or shuffles otherwise for the same seed, so that a state of the
one before is refused, in place of going on with other batches."""
STRICT_PAIRS_VERSION = 2
"""The same of loaders with strict binary negatives, in place of `DRAW_VERSION`. In 1 a source kept
its negative whatever share of its pairs were edges, so that pairs were not uniform."""


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How to sample; the same for every batch, worker and machine."""

    input_type: NodeType
    """Type of the seeds."""
    fanouts: dict[EdgeType, tuple[int, ...]]
    """Neighbours per hop by message-passing edge type, in a fixed order; -1: all, 0: none."""
    seed: int
    """``[0, 2**63)``; with epoch and batch index it decides every draw."""
    with_edge: bool = False
    with_weight: bool = False
    replace: bool = False
    collect_features: bool = True
    feature_store: FeatureStoreOptions | None = None
    """Source of node features that the partition lacks; None: there are none."""
    expansion: ExpansionOptions = field(default_factory=ExpansionOptions)
    """How a batch grows from its seeds."""

    @property
    def num_hops(self) -> int:
        """Hops, the same for all edge types."""
        return len(next(iter(self.fanouts.values()), ()))


def draw_key(plan: SamplingPlan, ticket: BatchTicket, hop: int, edge_type: EdgeType) -> int:
    """Return the uint64 key under which one hop of one batch draws over one edge type.

    A keyed hash (BLAKE2b, RFC 7693) of nothing but ``(seed, epoch, batch, hop, edge type)``: the
    same on every worker, machine and Python version.
    """
    # Little-endian on any machine; a hash of Python's own would differ from process to process.
    numbers = struct.pack("<4Q", plan.seed, ticket.epoch, ticket.batch, hop)
    digest = hashlib.blake2b(numbers + edge_type_str(edge_type).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class SampleRequest:
    """One batch to sample."""

    ticket: BatchTicket
    seeds: Array
    """``[batch_size]`` int64, global ids of the input type; repeats allowed."""
    input_id: Array
    """``[batch_size]`` int64, positions in the loader's input."""
    extra: dict[str, Array] = field(default_factory=dict)
    """Further columns of the input, one row per seed (labels of anchors, for example)."""


class Sampler(Protocol):
    """Turns seeds into the fields of a message. Used by one thread; holds its scratch memory.

    A class of one's own is named by `CustomSamplerOptions` and is built in every sampling thread as
    ``cls(view, plan, peers, **keywords)``. `gigl_loader.sampler.reader.GraphReader` of ``view`` and
    ``peers`` reads the whole graph: what this partition has, what is in ``view.same_host``, and
    what ``peers`` have to be asked for (None: nobody has).
    """

    def sample(self, request: SampleRequest) -> Sequence[Field]:
        """Return the fields. They are written, in this order, before the next call."""
        ...


SamplerFactory = Callable[[PartitionView[Array], SamplingPlan, Any], Sampler]


def scale_fields(view: PartitionView[Array], fields: Sequence[Field]) -> list[Field]:
    """Return what the trainer makes float32 of, for features stored in fewer bytes."""
    found = []
    sent = {field.key for field in fields}
    for node_type, rows in view.node_features.items():
        name = key(NODE_FEATURES, node_type if view.is_heterogeneous else None)
        # Only with features that are in the batch: the trainer looks for these by that key.
        if rows.scales is not None and name in sent:
            found.append(Field.of(SCALES + name, rows.scales))
    return found
