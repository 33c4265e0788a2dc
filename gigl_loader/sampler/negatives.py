"""Negatives of seed edges: drawn under keys, and drawn again where they may not be."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.message import BatchTicket
from gigl_loader.sampler.plan import SamplingPlan, draw_key
from gigl_loader.sampler.questions import Draw
from gigl_loader.sampler.reader import GraphReader
from gigl_loader.sampler.times import SeedTimes

BINARY, TRIPLET = "binary", "triplet"

_FIRST = 1 << 32
"""First of the numbers that take the place of a hop in the keys of negatives: above any hop."""
_ROUNDS = 8
"""How often a negative that may not be is drawn again before it is looked up among what is left."""
_SOURCES, _DESTINATIONS = (0, *range(100, 100 + _ROUNDS - 1)), tuple(range(1, 1 + _ROUNDS))
"""Numbers of the rounds that draw sources and destinations, above `_FIRST`."""

Refused = Callable[[Array, Any], Array]
"""Takes nodes and the positions of the negatives that they would serve; returns which may not."""


class Negatives:
    """Draws the negatives of seed edges; see `gigl_loader.sampler.edges.EdgeRoots`."""

    def __init__(
        self, reader: GraphReader, plan: SamplingPlan, edge_type: EdgeType, *,
        kind: str | None, amount: float, strict: bool,
        src_weight: Sequence[float] | None, dst_weight: Sequence[float] | None,
    ) -> None:  # fmt: skip
        self._reader, self._plan, self._edge_type = reader, plan, edge_type
        self._kind, self._amount, self._strict = kind, amount, strict
        self._times = SeedTimes(reader, plan)
        num_nodes = reader.view.num_nodes
        self._draw_src = _drawer(num_nodes[edge_type[0]], src_weight)
        self._draw_dst = _drawer(num_nodes[edge_type[2]], dst_weight)

    def seeds(self, num_edges: int) -> Array:
        """Return for each negative the seed edge that it belongs to, by its place in the batch."""
        if self._kind is None or num_edges == 0:
            return np.empty(0, np.int64)
        count = math.ceil(num_edges * self._amount)
        if self._kind == TRIPLET:
            # Side by side: the trainer reads triplets as ``[num_edges, amount]``.
            return np.repeat(np.arange(num_edges), count // num_edges)
        # Round and round, as ``amount`` need not be whole: each edge has its share, or one more.
        return np.resize(np.arange(num_edges), count)

    def draw(
        self, ticket: BatchTicket, src: Array, seeds: Array, seed_times: Array | None
    ) -> tuple[Array, Array]:
        """Return (sources, destinations); triplets have no sources of their own.

        Args:
            ticket: Which batch.
            src: ``[num_edges]`` int64, the sources of the seed edges.
            seeds: From `seeds`.
            seed_times: ``[num_edges]``, no node is later than its seed edge; None: any may be.
        """
        if seeds.size == 0:
            return seeds, seeds
        times = None if seed_times is None else seed_times[seeds]
        if self._kind == TRIPLET:
            sources, own = src[seeds], seeds[:0]
        else:
            sources = own = self._sources(ticket, seeds.size, times)
        return own, self._destinations(ticket, sources, times)

    def _sources(self, ticket: BatchTicket, count: int, times: Array | None) -> Array:
        def later(nodes: Array, positions: Any) -> Array:
            assert times is not None
            return self._times.later(self._edge_type[0], nodes, times[positions])

        # Generators: a second round is drawn only where something was refused in the first.
        rounds = (self._draw_src(self._key(ticket, number), count) for number in _SOURCES)
        num_nodes = self._reader.view.num_nodes[self._edge_type[0]]
        return next(rounds) if times is None else self._allowed(rounds, later, num_nodes)

    def _destinations(self, ticket: BatchTicket, sources: Array, times: Array | None) -> Array:
        def refused(nodes: Array, positions: Any) -> Array:
            wrong = np.zeros(nodes.size, bool)
            if self._strict:
                wrong |= self._are_edges(np.broadcast_to(sources[positions], nodes.shape), nodes)
            if times is not None:
                wrong |= self._times.later(self._edge_type[2], nodes, times[positions])
            return wrong

        keys = (self._key(ticket, number) for number in _DESTINATIONS)
        rounds = (self._draw_dst(key, sources.size) for key in keys)
        if times is None and not self._strict:
            return next(rounds)
        return self._allowed(rounds, refused, self._reader.view.num_nodes[self._edge_type[2]])

    def _key(self, ticket: BatchTicket, number: int) -> int:
        return draw_key(self._plan, ticket, _FIRST + number, self._edge_type)

    def _allowed(self, rounds: Any, refused: Refused, num_nodes: int) -> Array:
        """Draw nodes again until none is refused.

        Raises:
            ConfigError: All nodes are refused for some negative.
        """
        found: Array = next(rounds).copy()
        everywhere = np.arange(found.size)
        for again in rounds:
            wrong = np.flatnonzero(refused(found, everywhere))
            if wrong.size == 0:
                return found
            found[wrong] = again[wrong]  # by position: the answer is one of the key alone
        # A source with edges to nearly all nodes may never draw one of the few that are left: these
        # are looked up one by one, from the node that was drawn last on, so that low ids are not
        # preferred.
        for position in np.flatnonzero(refused(found, everywhere)):
            found[position] = self._first_allowed(
                refused, int(position), int(found[position]), num_nodes
            )
        return found

    def _first_allowed(self, refused: Refused, position: int, start: int, num_nodes: int) -> int:
        """Return the first node from ``start`` on, around the end, that may serve."""
        # In pieces: each asks for the times of so many nodes, and the first free one is near as a
        # rule.
        for first in range(0, num_nodes, 4096):
            nodes = (start + np.arange(first, min(first + 4096, num_nodes))) % num_nodes
            free = np.flatnonzero(~refused(nodes, np.full(nodes.size, position)))
            if free.size:
                return int(nodes[free[0]])
        reasons = ["has an edge to every node (use strict=False)"] if self._strict else []
        if self._plan.expansion.time_attr is not None:
            reasons.append("is earlier than every node")
        raise ConfigError(
            f"a seed edge of type {self._edge_type} has no negative, as it or its source "
            f"{' or '.join(reasons)}: leave such edges out of edge_label_index"
        )

    def _are_edges(self, src: Array, dst: Array) -> Array:
        """Return for each pair whether the graph has it, asking the owners of its rows."""
        rows, others = (dst, src) if self._reader.view.edge_dir == "in" else (src, dst)
        # Each row is asked for once, whole: a source in a batch of triplets comes ``amount`` times.
        asked, position = np.unique(rows, return_inverse=True)
        answer = self._reader.draw(Draw(self._edge_type, fanout=-1, key=0), asked)()
        owner = np.repeat(np.arange(asked.size), answer.counts)
        # One number for a pair: a row of those asked for, and the node at the other end.
        width = 1 + max(int(others.max()), int(answer.neighbors.max(initial=0)))
        there = owner * width + answer.neighbors
        found: Array = np.isin(position.reshape(-1) * width + others, there)
        return found


def _drawer(num_nodes: int, weights: Any) -> Callable[[int, int], Array]:
    """Return a function from (key, count) to ``[count]`` int64 nodes."""
    if weights is None:
        return lambda key, count: (uniform(key, count) * num_nodes).astype(np.int64)
    ends = np.cumsum(np.asarray(weights, np.float64))

    def by_weight(key: int, count: int) -> Array:
        # "right" and the minimum: as in `gigl_loader.sampler._kernels.draw_weighted`.
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
