"""Input and output of a sampler, and the requests between partitions.

A sampler receives a `SamplingPlan` once and a `SampleRequest` for each batch, and returns `Field`.
It requests neighbours of nodes (`Draw`) and rows of a matrix from other partitions. Requests travel
unchanged, arrays beside them. A response depends on its request alone, so a request whose response
was lost with a connection is simply sent again.
"""

import hashlib
import struct
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, cast

import numpy as np
from typing_extensions import TypeVar

from gigl_loader.batch.message import (
    AT_ONCE_STREAM,
    NODE_FEATURES,
    BatchTicket,
    Field,
    declared,
    key,
    scales_key,
)
from gigl_loader.dataset.partition.partition_view import ROW_KINDS, A, PartitionView, Rows
from gigl_loader.dataset.schema import EdgeType, NodeType, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.options import ExpansionOptions, FeatureStoreOptions, SamplingMethod

__all__ = [
    "Field",
    "SampleRequest",
    "Sampler",
    "SamplerFactory",
    "SamplingPlan",
    "draw_key",
    "quantization_scale_fields",
]

RowsName = NodeType | EdgeType | tuple[NodeType | EdgeType, str]
"""Key of a matrix, its type; key of an attribute, type and name."""


def draw_version(*, by_logarithm: bool, strict_pairs: bool, in_groups: bool = False) -> int:
    """Return the version of a loader's draws, which its saved states have.

    It increases with a release that draws or shuffles otherwise for the same seed, so that an older
    state is refused instead of continued with other batches.

    Args:
        by_logarithm: The loader draws by weight without replacement. In 1 and 2 such a draw took
            the logarithm of the machine's C library, which no GPU has.
        strict_pairs: It has strict binary negatives. In 1 a source kept its negative however many
            of its pairs were edges, so that pairs were not uniform.
        in_groups: Its seeds are shuffled in groups, which came with 4.
    """
    if in_groups:
        return 4
    if by_logarithm:
        return 3
    return 2 if strict_pairs else 1


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How to sample; the same for every batch, worker and machine."""

    input_type: NodeType
    """Type of the seeds."""
    fanouts: dict[EdgeType, tuple[int, ...]]
    """Neighbours per hop by message-passing edge type, in a fixed order; -1: all, 0: none."""
    seed: int
    """``[0, 2**63)``; with epoch and batch index it decides every draw, unless the ticket has a
    seed."""
    with_edge: bool = False
    with_weight: bool = False
    replace: bool = False
    collect_features: bool = True
    feature_store: FeatureStoreOptions | None = None
    """Source of node features that the partition lacks; None if it lacks none."""
    expansion: ExpansionOptions = field(default_factory=ExpansionOptions)
    """How a batch grows from its seeds."""
    most_drawn: int = 4 * 10**9 // 32
    """Neighbours that one request may draw, and negatives of a batch."""

    @property
    def num_hops(self) -> int:
        """Hops, the same for all edge types."""
        return len(next(iter(self.fanouts.values()), ()))

    def has_rows(self, kind: str) -> bool:
        """Return whether batches have rows of a kind, one of `ROW_KINDS`."""
        of_edges_here = self.with_edge or not kind.startswith("edge")
        return of_edges_here and (self.collect_features or kind.endswith("_labels"))

    def draw_of(
        self, ticket: BatchTicket, hop: int, edge_type: EdgeType, view: PartitionView[Any]
    ) -> "Draw":
        """Return the request of one hop of a batch over one edge type."""
        how = self.expansion
        keyed_by = edge_type
        if how.sampling_method == "labor":  # a neighbour has the same number for every edge type
            keyed_by = ("", "labor", view.ends_of(edge_type)[1])
        return Draw(
            edge_type,
            self.fanouts[edge_type][hop],
            draw_key(self, ticket, hop, keyed_by),
            replace=self.replace,
            with_weight=self.with_weight,
            with_edge=self.with_edge,
            method=how.sampling_method,
            timed=how.time_attr is not None and edge_type in view.times,
            last=how.temporal_strategy == "last",
            most=self.most_drawn,
        )


DRAWN_BYTES = 32
"""Bytes of a drawn neighbour: its position, its id, and the two ends of its edge."""


def check_drawn(count: int, most: int, what: str) -> None:
    """Raise `ConfigError` if a batch draws more than its channel could hold."""
    if count > most:
        raise ConfigError(
            f"a batch draws {count:,} {what} at once, and its channel_size allows {most:,} of "
            f"{DRAWN_BYTES} bytes: lower num_neighbors or batch_size, or raise channel_size"
        )


def draw_key(plan: SamplingPlan, ticket: BatchTicket, hop: int, edge_type: EdgeType) -> int:
    """Return the uint64 key under which one hop of one batch draws over one edge type.

    A keyed hash (BLAKE2b, RFC 7693) of ``(seed, epoch, batch, hop, edge type)`` alone: the same on
    every worker, machine and Python version.
    """
    # Little-endian on any machine; Python's own hash would differ from process to process.
    seed = plan.seed if ticket.seed is None else ticket.seed
    numbers = struct.pack("<4Q", seed, ticket.epoch, ticket.batch, hop)
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

    A custom class is named by `CustomSamplerOptions` and is built in every sampling thread as
    ``cls(view, plan, peers, **keywords)``. `sampler.rows.reader.GraphReader` of ``view`` and
    ``peers`` reads the whole graph: this partition, those in ``view.same_host``, the edges in
    ``view.other_edges``, and what ``peers`` request (None: nothing).
    """

    def sample(self, request: SampleRequest) -> Sequence[Field]:
        """Return the fields. They are written, in this order, before the next call."""


SamplerFactory = Callable[[PartitionView[Array], SamplingPlan, Any], Sampler]


def quantization_scale_fields(view: PartitionView[Array], sent: Container[str]) -> list[Field]:
    """Return the scales by which the trainer makes quantized features float32.

    Args:
        view: The partition.
        sent: Keys of the batch.
    """
    fields = []
    found = [(NODE_FEATURES, node_type, rows) for node_type, rows in view.node_features.items()]
    for (node_type, attribute), rows in view.node_attributes.items():  # embeddings of a ``tf``
        found.append((declared("node", attribute), node_type, rows))
    for field_name, node_type, rows in found:
        name = key(field_name, node_type if view.is_heterogeneous else None)
        # Only for features in the batch: the trainer looks for scales by the features' key.
        if rows.scales is not None and name in sent:
            fields.append(Field.of(scales_key(name), rows.scales))
    return fields


T_co = TypeVar("T_co", covariant=True)
Ids = TypeVar("Ids", default=Array)
"""The form of ids, numbers and times: arrays, or for the way `sampler.rows.packing.PackedInts`."""
I2 = TypeVar("I2")


@dataclass(frozen=True)
class Draw:
    """A request for neighbours, without the nodes."""

    edge_type: EdgeType
    fanout: int
    """Neighbours of each node; -1: all."""
    key: int
    """uint64; with node and edge type it decides the draw."""
    replace: bool = False
    with_weight: bool = False
    with_edge: bool = False
    method: SamplingMethod = "uniform"
    """How to draw. ``"labor"``: random numbers belong to the neighbours, so that nodes of one
    request share them."""
    timed: bool = False
    """Only neighbours within the time limits of each node (`TreesAndTimes`)."""
    last: bool = False
    """The latest of these instead of any."""
    most: int = 2**62
    """Neighbours of all nodes together; see `check_drawn`."""


@dataclass(frozen=True)
class TreesAndTimes(Generic[Ids]):
    """The tree of each requested node, and the times it allows, in disjoint sampling."""

    tree: Ids
    """``[num_nodes]`` int64, number of its tree: with key and node it decides the draw."""
    until: Ids | None = None
    """``[num_nodes]`` int64, the latest time of a neighbour, as `TimeOrder.times`; None: any."""
    since: Ids | None = None
    """``[num_nodes]`` int64, the earliest time of a neighbour; None: any."""
    fanout: Ids | None = None
    """``[num_nodes]`` int64, neighbours of each, in place of the `Draw`'s; None: that of all."""

    def take(self: "TreesAndTimes[Array]", at: Array) -> "TreesAndTimes[Array]":
        """Return the trees and times of the nodes at the positions ``at``."""
        return self.map(lambda column: column.take(at))

    def map(self, form: Callable[[Ids], I2]) -> "TreesAndTimes[I2]":
        """Return the same in another form."""
        rest = (_maybe(form, column) for column in (self.until, self.since, self.fanout))
        return TreesAndTimes(form(self.tree), *rest)

    def fits(self: "TreesAndTimes[Array]", num_nodes: int, timed: bool) -> bool:
        """Return whether there is a value for each node."""
        all_columns = (self.tree, self.until, self.since, self.fanout)
        columns = [column for column in all_columns if column is not None]
        alike = all(column.dtype == "int64" and column.shape == (num_nodes,) for column in columns)
        fanout = self.fanout if alike else None
        if fanout is not None and ((fanout < 0) | (fanout >= 1 << 31)).any():
            return False
        return alike and (self.until is not None or not timed)


def _maybe(form: Callable[[Ids], I2], column: Ids | None) -> I2 | None:
    return None if column is None else form(column)


@dataclass(frozen=True)
class DrawRequest(Generic[Ids]):
    """Requests neighbours of some nodes that the partition owns; the response is a `Drawn`."""

    draw: Draw
    nodes: Ids
    """``[num_nodes]`` int64, global ids."""
    trees: TreesAndTimes[Ids] | None = None
    """None: trees are merged, and no time counts."""

    def map(self, form: Callable[[Ids], I2]) -> "DrawRequest[I2]":
        """Return the same in another form."""
        trees = None if self.trees is None else self.trees.map(form)
        return DrawRequest(self.draw, form(self.nodes), trees)


@dataclass(frozen=True)
class Drawn(Generic[Ids]):
    """Neighbours of some nodes, row after row."""

    counts: Ids
    """``[num_nodes]`` int64, the number of neighbours of each."""
    neighbors: Ids
    """``[counts.sum()]`` int64, global ids."""
    edge_ids: Ids | None
    """``[counts.sum()]`` int64; None if not requested."""

    def map(self, form: Callable[[Ids], I2]) -> "Drawn[I2]":
        """Return the same in another form."""
        return Drawn(form(self.counts), form(self.neighbors), _maybe(form, self.edge_ids))


@dataclass(frozen=True)
class RowsRequest(Generic[Ids]):
    """Requests rows of one matrix; the response is a `RowsAnswer`."""

    kind: str
    """``node_features``, ``node_labels``, ``edge_features``, ``node_attributes``,
    ``edge_attributes``, or ``degrees`` of an edge type."""
    name: NodeType | EdgeType
    ids: Ids
    """``[num_ids]`` int64, global ids that the partition owns."""
    attribute: str | None = None
    """Name among ``node_attributes`` and ``edge_attributes``; None: the features."""
    with_scales: bool = False
    """Whether to send the scales of quantised rows; batches bring their own."""

    @classmethod
    def of(cls, kind: str, name: RowsName, ids: Ids) -> "RowsRequest[Ids]":
        """Return the request for rows of the matrix ``kind`` of ``name``."""
        if kind.endswith("_attributes"):
            graph_type, attribute = cast("tuple[NodeType | EdgeType, str]", name)
            return cls(kind, graph_type, ids, attribute)
        return cls(kind, cast("NodeType | EdgeType", name), ids)

    def matrix_in(self, view: PartitionView[Any]) -> Rows[Any] | None:
        """Return the requested matrix of ``view``, or None."""
        # only these kinds: they came over the network, and the view has other attributes
        matrices: Any = getattr(view, self.kind) if self.kind in ROW_KINDS else {}
        name = self.name if self.attribute is None else (self.name, self.attribute)
        matrix: Rows[Any] | None = matrices.get(name)
        return matrix

    def map(self, form: Callable[[Ids], I2]) -> "RowsRequest[I2]":
        """Return the same in another form."""
        return RowsRequest(self.kind, self.name, form(self.ids), self.attribute, self.with_scales)


@dataclass(frozen=True)
class RowsAnswer:
    """Rows in the order of the ids."""

    values: Array
    """``[num_ids, ...]``, of the matrix's storage type."""
    dtype: str = ""
    """Name of the stored type; empty if there is no matrix."""
    scales: Array | None = None
    """Scales of quantised rows, if requested; see `dataset.view.Rows.scales`."""


class PendingAnswer(Protocol[T_co]):
    """A response under way."""

    @property
    def has_come(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> T_co:
        """Return the response, or raise its error."""


class RowPeers(Protocol):
    """Owners of rows that can be asked for them: partitions, or servers."""

    def rows(self, owner: int, request: RowsRequest, out: Array, /) -> PendingAnswer[RowsAnswer]:
        """Request rows, which may be written to ``out``; return before they are there.

        The response says where they are. ``out`` is memory of their shape and type, contiguous,
        and unused by others until the response is there.
        """


class Peers(RowPeers, Protocol):
    """The other partitions, for a sampler."""

    @property
    def rows_later(self) -> bool:
        """Whether a batch's rows are read after it was sampled; `GraphReader` then asks for none.

        See `sampler.rows.row_exchange`.
        """

    def draw(self, partition: int, request: DrawRequest, /) -> PendingAnswer[Drawn]:
        """Request neighbours; return before they are there."""


@dataclass(frozen=True)
class SeedInput(Generic[A]):
    """Seeds and their further columns, in the user's order."""

    seeds: A
    """``[num_seeds]`` int64, global ids of the input type."""
    extra: dict[str, A] = field(default_factory=dict)
    """Further columns by name, one row per seed."""

    def __len__(self) -> int:
        seeds: Any = self.seeds
        return int(seeds.shape[0])

    def request(self, ticket: BatchTicket, order: Array | None, batch_size: int) -> SampleRequest:
        """Return the seeds of one batch; only for input whose columns are arrays.

        Args:
            ticket: The batch.
            order: Positions of all seeds in the epoch's order, or those of a batch at once. None:
                the user's order.
            batch_size: Seeds of a batch. The last one may have fewer; the loader decides whether
                to sample it.
        """
        start, stop = ticket.batch * batch_size, min((ticket.batch + 1) * batch_size, len(self))
        if ticket.stream == AT_ONCE_STREAM and order is not None:
            start, stop = 0, len(order)
        # a copy, as a slice would keep the order of the whole epoch alive with the batch
        chosen = np.arange(start, stop) if order is None else order[start:stop].copy()
        columns: Any = self.extra
        extra = {name: column[chosen] for name, column in columns.items()}
        seeds: Any = self.seeds
        return SampleRequest(ticket, seeds[chosen], chosen, extra)
