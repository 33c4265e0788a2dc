"""Neighbourhoods of seed edges: both ends, and the ends of negatives that are drawn for them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.message import (
    EDGE_INPUT_ID,
    EDGE_LABEL,
    EDGE_LABEL_INDEX,
    EDGE_TARGETS,
    INPUT_ID,
    IS_HETERO,
    BatchTicket,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Field, SampleRequest, SamplingPlan, draw_key
from gigl_loader.sampler.questions import Draw, Peers
from gigl_loader.sampler.roots import Placed
from gigl_loader.sampler.store import GraphStore

BINARY, TRIPLET = "binary", "triplet"

_NEGATIVES = 1 << 32
"""First of the numbers that take the place of a hop in the keys of negatives: above any hop."""
_ROUNDS = 8
"""How often a negative that is an edge is drawn again before it is looked up among what is left."""


class EdgeRoots:
    """The ends of seed edges and of their negatives, in one batch.

    ::

        one node type    [ sources and destinations, each once | 1st hop | 2nd hop ... ]
        two node types   [ sources, each once | 1st hop ... ]  [ destinations, each once | ... ]

    The seeds are the sources; destinations come with them as the column ``EDGE_TARGETS``, labels
    as ``EDGE_LABEL``. Negatives are keyed by seed, epoch and batch as all draws are.

    Args:
        store: All partitions.
        plan: What to sample; its input type is that of the sources.
        edge_type: Of the seed edges; names the types of both ends, and with ``strict`` the edges
            that no negative may be.
        negatives: ``"binary"``: pairs of drawn nodes; ``"triplet"``: drawn destinations for each
            source; None: there are none.
        amount: Negatives per seed edge; the number in a batch is rounded up.
        strict: No negative is an edge of ``edge_type``.
        src_weight: ``[num_nodes]``, what sources of binary negatives are drawn by; None: uniformly.
        dst_weight: The same of destinations.
    """

    def __init__(
        self,
        store: GraphStore,
        plan: SamplingPlan,
        *,
        edge_type: Sequence[str],
        negatives: str | None = None,
        amount: float = 1,
        strict: bool = False,
        src_weight: Sequence[float] | None = None,
        dst_weight: Sequence[float] | None = None,
    ) -> None:
        self._store, self._view, self._plan = store, store.view, plan
        src, relation, dst = edge_type
        self._edge_type: EdgeType = (src, relation, dst)
        self._kind, self._amount, self._strict = negatives, amount, strict
        self._num_dst = self._view.num_nodes[dst]
        self._draw_src = _drawer(self._view.num_nodes[src], src_weight)
        self._draw_dst = _drawer(self._num_dst, dst_weight)

    def place(self, request: SampleRequest, nodes: BatchNodes) -> Placed:
        """Put the ends of seed edges and negatives down, each node once."""
        src, dst = request.seeds, request.extra[EDGE_TARGETS]
        neg_src, neg_dst = self._negatives(request.ticket, src)
        own, _, other = self._edge_type
        ends = (
            nodes.label(own, src),
            nodes.label(other, dst),
            nodes.label(own, neg_src),
            nodes.label(other, neg_dst),
        )
        return Placed(self._fields(request, *ends))

    # -- negatives ------------------------------------------------------------------------------

    def _negatives(self, ticket: BatchTicket, src: Array) -> tuple[Array, Array]:
        """Return (sources, destinations) of the batch's negatives; triplets have no sources."""
        nothing = np.empty(0, np.int64)
        if self._kind is None or src.size == 0:
            return nothing, nothing
        count = math.ceil(src.size * self._amount)
        if self._kind == TRIPLET:
            sources = np.repeat(src, count // src.size)
        else:
            sources = self._draw_src(self._key(ticket, 0), count)
        destinations = self._draw_dst(self._key(ticket, 1), count)
        if self._strict:
            destinations = self._without_edges(ticket, sources, destinations)
        return (nothing if self._kind == TRIPLET else sources), destinations

    def _key(self, ticket: BatchTicket, number: int) -> int:
        return draw_key(self._plan, ticket, _NEGATIVES + number, self._edge_type)

    def _without_edges(self, ticket: BatchTicket, sources: Array, drawn: Array) -> Array:
        """Draw destinations again until no pair is an edge.

        Raises:
            ConfigError: A source has an edge to every node.
        """
        found = drawn.copy()
        for turn in range(1, _ROUNDS):
            wrong = np.flatnonzero(self._are_edges(sources, found))
            if wrong.size == 0:
                return found
            again = self._draw_dst(self._key(ticket, 1 + turn), found.size)
            found[wrong] = again[wrong]  # by position: the answer is one of the key alone
        for pair in np.flatnonzero(self._are_edges(sources, found)):
            found[pair] = self._any_without_edge(int(sources[pair]), int(found[pair]))
        return found

    def _are_edges(self, src: Array, dst: Array) -> Array:
        """Return for each pair whether the graph has it, asking the owners of its rows."""
        rows, others = (dst, src) if self._view.edge_dir == "in" else (src, dst)
        asked, position = np.unique(rows, return_inverse=True)
        answer = self._store.draw(Draw(self._edge_type, fanout=-1, key=0), asked)()
        owner = np.repeat(np.arange(asked.size), answer.counts)
        width = 1 + max(int(others.max()), int(answer.neighbors.max(initial=0)))
        there = owner * width + answer.neighbors
        found: Array = np.isin(position.reshape(-1) * width + others, there)
        return found

    def _any_without_edge(self, src: int, start: int) -> int:
        """Return the first destination from ``start`` on, around the end, without an edge."""
        for first in range(0, self._num_dst, 4096):
            stop = min(first + 4096, self._num_dst)
            nodes = (start + np.arange(first, stop)) % self._num_dst
            free = np.flatnonzero(~self._are_edges(np.full(nodes.size, src), nodes))
            if free.size:
                return int(nodes[free[0]])
        raise ConfigError(
            f"node {src} has an edge {self._edge_type} to every node, so it has no negative: use "
            "strict=False, or leave its edges out of edge_label_index"
        )

    # -- fields ---------------------------------------------------------------------------------

    def _fields(
        self, request: SampleRequest, src: Array, dst: Array, neg_src: Array, neg_dst: Array
    ) -> list[Field]:
        """Return the ends of seed edges and negatives, local labels, and the labels given."""
        if self._kind == TRIPLET:
            links = np.concatenate([src, dst, neg_dst])
        else:
            links = np.stack([np.concatenate([src, neg_src]), np.concatenate([dst, neg_dst])])
        fields = [
            Field.of(IS_HETERO, np.uint8(self._view.is_heterogeneous)),
            Field.of(EDGE_LABEL_INDEX, links),
            Field.of(EDGE_INPUT_ID, request.extra.get(INPUT_ID, request.input_id)),
        ]
        if EDGE_LABEL in request.extra:
            fields.append(Field.of(EDGE_LABEL, request.extra[EDGE_LABEL]))
        return fields


def edge_sampler(
    view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None, **keywords: Any
) -> NeighborSampler:
    """Return a sampler around seed edges; ``keywords`` are those of `EdgeRoots`."""
    return NeighborSampler(view, plan, peers, lambda store: EdgeRoots(store, plan, **keywords))


def _drawer(num_nodes: int, weights: Any) -> Callable[[int, int], Array]:
    """Return a function from (key, count) to ``[count]`` int64 nodes."""
    if weights is None:
        return lambda key, count: (uniform(key, count) * num_nodes).astype(np.int64)
    ends = np.cumsum(np.asarray(weights, np.float64))

    def by_weight(key: int, count: int) -> Array:
        found = np.searchsorted(ends, uniform(key, count) * ends[-1], side="right")
        nodes: Array = np.minimum(found, ends.size - 1).astype(np.int64)
        return nodes

    return by_weight


def uniform(key: int, count: int) -> Array:
    """Return ``[count]`` float64 in [0, 1), a function of ``key`` alone.

    Source:
        The finaliser of SplitMix64 over a counter: Steele, Lea, Flood, "Fast Splittable
        Pseudorandom Number Generators" (2014), with the constants of Stafford's variant 13.
    """
    with np.errstate(over="ignore"):
        value = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        value ^= value >> np.uint64(31)
    unit: Array = (value >> np.uint64(11)) * 2.0**-53
    return unit
