"""Neighbourhoods of seed edges: both ends, and the ends of negatives.

Negatives are drawn under keys. One that is not allowed is drawn again.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gigl_loader.batch.message import BatchTicket, SeedColumns, SeedEdges, heterogeneous_field
from gigl_loader.dataset.identity import GAMMA, mixed
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Draw, Peers, SampleRequest, SamplingPlan, check_drawn, draw_key
from gigl_loader.sampler.roots import RootFields, SeedTimes
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.sampler.sampler_kinds import SamplerKind

BINARY, TRIPLET = "binary", "triplet"

_FIRST = 1 << 32
"""First of the numbers that replace a hop in the keys of negatives: above any hop."""
_ROUNDS = 8
"""Draws of a negative that is not allowed, before it is looked up among the remaining ones."""
_SOURCES, _DESTINATIONS = (0, *range(100, 100 + _ROUNDS - 1)), tuple(range(1, 1 + _ROUNDS))
"""Numbers of the rounds that draw sources and destinations, above `_FIRST`."""
_PAIRS, _NEXT_PAIR = 64, 1000
"""Draws of a pair that is an edge, and the step that each draw adds to the numbers above."""

Refused = Callable[[Array, Any], Array]
"""Takes nodes, and the positions of the negatives that they would serve; returns those refused."""


class EdgeRoots:
    """The ends of seed edges and of their negatives, in one batch.

    ::

        one node type    [ sources and destinations, each once | 1st hop | 2nd hop ... ]
        two node types   [ sources, each once | 1st hop ... ]  [ destinations, each once | ... ]

    The seeds are the sources. Destinations come with them as the column ``targets`` (see
    `SeedColumns`), labels as ``label``. Negatives are keyed by seed, epoch and batch, like all
    draws. In disjoint sampling each end has its own tree, and belongs to its seed edge.

    Args:
        reader: Reader of all partitions.
        plan: How to sample; its input type is that of the sources.
        edge_type: Type of the seed edges; names the types of both ends, and with ``strict`` the
            edges that no negative may be.
        negatives: ``"binary"``: pairs of drawn nodes; ``"triplet"``: drawn destinations for each
            source; None: no negatives.
        amount: Negatives per seed edge; the number in a batch is rounded up.
        strict: No negative is an edge of ``edge_type``.
        src_weight: ``[num_nodes]``, weights for sources of binary negatives; None: uniform.
        dst_weight: The same for destinations.
    """

    def __init__(
        self,
        reader: GraphReader,
        plan: SamplingPlan,
        *,
        edge_type: Sequence[str],
        negatives: str | None = None,
        amount: float = 1,
        strict: bool = False,
        src_weight: Sequence[float] | None = None,
        dst_weight: Sequence[float] | None = None,
    ) -> None:
        self._is_heterogeneous = reader.view.is_heterogeneous
        src, relation, dst = edge_type
        self._edge_type: EdgeType = (src, relation, dst)
        self._kind = negatives
        self._negatives = Negatives(
            reader,
            plan,
            self._edge_type,
            kind=negatives,
            amount=amount,
            strict=strict,
            src_weight=src_weight,
            dst_weight=dst_weight,
        )

    def place(self, request: SampleRequest, nodes: BatchNodes) -> RootFields:
        """Place the ends of seed edges and negatives; merged, each node once."""
        given = SeedColumns.of(request.extra)
        src, dst = request.seeds, given.targets
        seeds = self._negatives.seeds(src.size)
        neg_src, neg_dst = self._negatives.draw(request.ticket, src, seeds, nodes.seed_times)
        source_type, _, target_type = self._edge_type
        # Labels count up in this order, which is PyG's: ends of seed edges, then of negatives.
        # Triplets have no sources of their own, so none of their seeds is used for these.
        ends = (
            nodes.label(source_type, src),
            nodes.label(target_type, dst),
            nodes.label(source_type, neg_src, seeds[: neg_src.size]),
            self._label_negatives(nodes, neg_dst, seeds),
        )
        edges = SeedEdges(
            self._links(*ends),
            # a loader may send other numbers than positions, in a column of that name
            request.input_id if given.input_id is None else given.input_id,
            given.label,
            self._times(nodes.seed_times, seeds),
        )
        return RootFields([heterogeneous_field(self._is_heterogeneous), *edges.fields()])

    def _label_negatives(self, nodes: BatchNodes, neg_dst: Array, seeds: Array) -> Array:
        """Label the destinations of negatives.

        Their trees are in PyG's order: one of each seed edge, then the next of each.
        """
        other = self._edge_type[2]
        if not nodes.disjoint or self._kind != TRIPLET or seeds.size == 0:
            return nodes.label(other, neg_dst, seeds)
        # Of 2 edges with 3 negatives each, 0 0 0 1 1 1 becomes 0 1, 0 1, 0 1: trees in that order.
        by_turn = np.arange(seeds.size).reshape(int(seeds[-1]) + 1, -1).T.reshape(-1)
        labels = np.empty_like(neg_dst)
        labels[by_turn] = nodes.label(other, neg_dst[by_turn], seeds[by_turn])
        return labels

    def _links(self, src: Array, dst: Array, neg_src: Array, neg_dst: Array) -> Array:
        """Return the ends of seed edges and negatives as local labels."""
        if self._kind == TRIPLET:
            return np.concatenate([src, dst, neg_dst])
        return np.stack([np.concatenate([src, neg_src]), np.concatenate([dst, neg_dst])])

    def _times(self, times: Array | None, seeds: Array) -> Array | None:
        """Return the times of seed edges; in the binary form, then those of negatives."""
        # PyG's triplets have one time for an edge and its negatives, binary pairs one each.
        if times is None or self._kind != BINARY:
            return times
        return np.concatenate([times, times[seeds]])


def edge_sampler(
    view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None, **keywords: Any
) -> NeighborSampler:
    """Return a sampler around seed edges; ``keywords`` are those of `EdgeRoots`."""
    return NeighborSampler(view, plan, peers, lambda reader: EdgeRoots(reader, plan, **keywords))


class EdgeKind(SamplerKind):
    """The sampler around seed edges; its keywords are those of `EdgeRoots`."""

    @property
    def edge_type(self) -> EdgeType:
        """Type of the seed edges."""
        src, relation, dst = self.keywords["edge_type"]
        return (src, relation, dst)

    @property
    def has_triplets(self) -> bool:
        """Whether each seed edge has negatives of its own."""
        return self.keywords.get("negatives") == TRIPLET

    def most_roots(
        self,
        input_type: NodeType,
        num_seeds: int,
        known: Collection[EdgeType],
        widths: Mapping[str, int],
    ) -> dict[NodeType, int]:
        """Return the most ends of seed edges and negatives, by type."""
        src, _, dst = self.edge_type
        amount = self.keywords.get("amount", 1) if self.keywords.get("negatives") else 0
        # With triplets each edge has this number; pairs are drawn for all edges together.
        pairs = 0 if self.has_triplets else math.ceil(num_seeds * amount)
        ends = num_seeds * math.ceil(amount) if self.has_triplets else pairs
        most = {src: num_seeds + pairs}
        most[dst] = most.get(dst, 0) + num_seeds + ends
        return most


EDGE_KIND = EdgeKind(
    "gigl_loader.sampler.edges.edge_sampler", roots=EdgeRoots, merges_roots=True, can_pad=True
)


class Negatives:
    """Draws the negatives of seed edges; see `EdgeRoots`."""

    def __init__(
        self,
        reader: GraphReader,
        plan: SamplingPlan,
        edge_type: EdgeType,
        *,
        kind: str | None,
        amount: float,
        strict: bool,
        src_weight: Sequence[float] | None,
        dst_weight: Sequence[float] | None,
    ) -> None:
        self._reader, self._plan, self._edge_type = reader, plan, edge_type
        self._kind, self._amount, self._strict = kind, amount, strict
        self._times = SeedTimes(reader, plan)
        num_nodes = reader.view.num_nodes
        self._src = _NegativeEnd(edge_type[0], num_nodes[edge_type[0]], src_weight, _SOURCES)
        self._dst = _NegativeEnd(edge_type[2], num_nodes[edge_type[2]], dst_weight, _DESTINATIONS)

    def seeds(self, num_edges: int) -> Array:
        """Return for each negative the position in the batch of its seed edge."""
        if self._kind is None or num_edges == 0:
            return np.empty(0, np.int64)
        count = math.ceil(num_edges * self._amount)
        check_drawn(count, self._plan.most_drawn, f"negatives of {num_edges:,} edges")
        if self._kind == TRIPLET:
            # Side by side: the trainer reads triplets as ``[num_edges, amount]``.
            return np.repeat(np.arange(num_edges), count // num_edges)
        # In turn, as ``amount`` need not be whole: each edge has its share, or one more.
        return np.resize(np.arange(num_edges), count)

    def draw(
        self, ticket: BatchTicket, src: Array, seeds: Array, seed_times: Array | None
    ) -> tuple[Array, Array]:
        """Return (sources, destinations); triplets have no sources of their own.

        Args:
            ticket: Identifies the batch.
            src: ``[num_edges]`` int64, the sources of the seed edges.
            seeds: From `seeds`.
            seed_times: ``[num_edges]``, no node is later than its seed edge; None: no limit.
        """
        if seeds.size == 0:
            return seeds, seeds
        times = None if seed_times is None else seed_times[seeds]
        if self._kind != TRIPLET:
            return self._pairs(ticket, seeds.size, times)
        sources = src[seeds]
        rounds = self._rounds(ticket, self._dst, seeds.size, np.arange(seeds.size))
        refused = self._refused(self._dst, times, sources if self._strict else None)
        return seeds[:0], self._allowed(self._dst, rounds, refused)

    def _pairs(self, ticket: BatchTicket, count: int, times: Array | None) -> tuple[Array, Array]:
        """Draw ``count`` binary negatives, uniform over all allowed pairs, or by weight.

        A pair that is an edge is drawn again as a whole. If its source were kept, a source with
        edges to nearly all nodes would have as many negatives as any other, from few pairs.
        """
        src, dst = np.empty((2, count), np.int64)
        at = np.arange(count)
        for number in range(_PAIRS):
            mine = None if times is None else times[at]
            for nodes, end in ((src, self._src), (dst, self._dst)):
                rounds = self._rounds(ticket, end, count, at, number * _NEXT_PAIR)
                nodes[at] = self._allowed(end, rounds, self._refused(end, mine))
            if not self._strict:
                return src, dst
            at = at[self._are_edges(src[at], dst[at])]
            if at.size == 0:
                return src, dst
        # Nearly every pair is an edge: take the next non-edge after the last drawn pair.
        for position in at.tolist():
            time = None if times is None else times[position : position + 1]
            src[position], dst[position] = self._next_pair(src[position], dst[position], time)
        return src, dst

    def _next_pair(self, src: int, dst: int, time: Array | None) -> tuple[int, int]:
        """Return the next allowed pair from ``src`` on.

        Raises:
            ConfigError: There is none.
        """
        later = self._refused(self._src, time)
        for step in range(self._src.num_nodes):
            source = np.array([(src + step) % self._src.num_nodes])
            if not self._src.has(source).all() or (later is not None and later(source, 0).any()):
                continue
            refused = self._refused(self._dst, time, source)
            target = self._next_allowed(self._dst, refused, 0, dst)
            if target is not None:
                return int(source[0]), target
        raise ConfigError(
            f"no two nodes can be a negative of type {self._edge_type}: all that may be drawn have "
            "an edge (use strict=False), or are later than the seed edge"
        )

    def _rounds(
        self, ticket: BatchTicket, end: "_NegativeEnd", count: int, at: Array, first: int = 0
    ) -> Iterator[Array]:
        """Yield nodes for the positions ``at`` of ``count``, with new draws each time."""
        # A generator: a second round is drawn only if the first had refusals.
        for number in end.numbers:
            key = draw_key(self._plan, ticket, _FIRST + first + number, self._edge_type)
            # By position: a draw does not depend on the other positions that are drawn again.
            yield end.draw(key, count)[at]

    def _refused(
        self, end: "_NegativeEnd", times: Array | None, sources: Array | None = None
    ) -> Refused | None:
        """Return a filter against nodes later than ``times`` or with an edge from ``sources``."""
        if times is None and sources is None:
            return None

        def refused(nodes: Array, positions: Any) -> Array:
            wrong = np.zeros(nodes.size, bool)
            if sources is not None:
                wrong |= self._are_edges(np.broadcast_to(sources[positions], nodes.shape), nodes)
            if times is not None:
                allowed = np.broadcast_to(times[positions], nodes.shape)
                wrong |= self._times.later(end.node_type, nodes, allowed)
            return wrong

        return refused

    def _allowed(
        self, end: "_NegativeEnd", rounds: Iterator[Array], refused: Refused | None
    ) -> Array:
        """Draw nodes again until none is refused.

        Raises:
            ConfigError: All nodes are refused for some negative.
        """
        nodes: Array = next(rounds)
        if refused is None:
            return nodes
        everywhere = np.arange(nodes.size)
        for again in rounds:
            wrong = np.flatnonzero(refused(nodes, everywhere))
            if wrong.size == 0:
                return nodes
            nodes[wrong] = again[wrong]
        # A source with edges to nearly all nodes may never draw one of the few that are left. These
        # are looked up one by one, starting at the node drawn last, so that low ids are not
        # preferred.
        for position in np.flatnonzero(refused(nodes, everywhere)).tolist():
            node = self._next_allowed(end, refused, position, int(nodes[position]))
            if node is None:
                raise self._no_negative()
            nodes[position] = node
        return nodes

    def _next_allowed(
        self, end: "_NegativeEnd", refused: Refused | None, position: int, start: int
    ) -> int | None:
        """Return the first allowed node from ``start`` on, around the end."""
        # In pieces: each requests the times of its nodes, and the first free node is usually near.
        for first in range(0, end.num_nodes, 4096):
            nodes = (start + np.arange(first, min(first + 4096, end.num_nodes))) % end.num_nodes
            wrong = ~end.has(nodes)
            if refused is not None:
                wrong |= refused(nodes, np.full(nodes.size, position))
            free = np.flatnonzero(~wrong)
            if free.size:
                return int(nodes[free[0]])
        return None

    def _no_negative(self) -> ConfigError:
        reasons = ["has an edge to every node (use strict=False)"] if self._strict else []
        if self._plan.expansion.time_attr is not None:
            reasons.append("is earlier than every node")
        return ConfigError(
            f"a seed edge of type {self._edge_type} has no negative, as it or its source "
            f"{' or '.join(reasons)}: leave such edges out of edge_label_index"
        )

    def _are_edges(self, src: Array, dst: Array) -> Array:
        """Return for each pair whether the graph has it; the owners of its rows are asked."""
        rows, others = (dst, src) if self._reader.view.edge_dir == "in" else (src, dst)
        # Each row is requested once, whole: a source in a batch of triplets comes ``amount`` times.
        distinct, position = np.unique(rows, return_inverse=True)
        answer = self._reader.draw(Draw(self._edge_type, fanout=-1, key=0), distinct)()
        owner = np.repeat(np.arange(distinct.size), answer.counts)
        # One number for a pair: a requested row, and the node at the other end.
        width = 1 + max(int(others.max()), int(answer.neighbors.max(initial=0)))
        edges = owner * width + answer.neighbors
        return np.isin(position.reshape(-1) * width + others, edges)


class _NegativeEnd:
    """One end of the negatives: its nodes, and how they are drawn."""

    def __init__(
        self, node_type: NodeType, num_nodes: int, weights: Any, numbers: Sequence[int]
    ) -> None:
        self.node_type, self.num_nodes, self.numbers = node_type, num_nodes, numbers
        self._weights = None if weights is None else np.asarray(weights, np.float64)
        self._ends = None if self._weights is None else np.cumsum(self._weights)

    def draw(self, key: int, count: int) -> Array:
        """Return ``[count]`` int64 nodes."""
        if self._ends is None:
            return (uniform(key, count) * self.num_nodes).astype(np.int64)
        # "right" and the minimum: as in `weighted_kernels.draw_weighted`.
        positions = np.searchsorted(self._ends, uniform(key, count) * self._ends[-1], side="right")
        nodes: Array = np.minimum(positions, self._ends.size - 1).astype(np.int64)
        return nodes

    def has(self, nodes: Array) -> Array:
        """Return for each of ``nodes`` whether it can be drawn."""
        if self._weights is None:
            return np.ones(nodes.size, bool)
        return self._weights[nodes] > 0


def uniform(key: int, count: int) -> Array:
    """Return ``[count]`` float64 in [0, 1), a function of ``key`` alone.

    Source:
        SplitMix64: see `mixed`, here over its counter.
    """
    value = mixed(np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * GAMMA)
    return (value >> np.uint64(11)) * 2.0**-53
