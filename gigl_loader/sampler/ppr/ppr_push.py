"""Approximate personalised PageRank by forward push, over all partitions.

Each seed of a batch has a vector of *scores* and one of *residuals*, which begins as 1 at the seed.
A *push* of a node takes its residual ``r``: ``alpha * r`` becomes score, the rest goes to its
neighbours, evenly. All due nodes are pushed in one turn, for all seeds of the batch. So a turn asks
each other partition once for rows that are not here yet, and once for the degrees that decide
which nodes are due next::

    due ---rows of nodes that are new---> push ---degrees of nodes that are new---> due ...

Nodes are numbered in order of appearance, over all types and for all seeds; a *slot* is one node of
one seed. Nothing depends on the owner of a row, so any number of partitions gives the same bits.

Source:
    Andersen, Chung, Lang, "Local graph partitioning using PageRank vectors", FOCS 2006: the push,
    and with it ``0 <= exact(v) - score(v) < eps * degree(v)`` on an undirected graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.kernels import ppr_kernels as kernels
from gigl_loader.sampler.kernels.sampling_kernels import group_by_owner
from gigl_loader.sampler.nodes import NodeLabels
from gigl_loader.sampler.plan import Draw, Drawn
from gigl_loader.sampler.rows.reader import GraphReader

_UNKNOWN = -1


class GrowingVector:
    """A vector that grows; new items have the given value."""

    def __init__(self, dtype: Any, value: Any) -> None:
        self._values = np.full(1024, value, dtype)
        self._value = value

    def wipe(self, size: int) -> None:
        """Give the first ``size`` items the value again."""
        self._values[:size] = self._value

    def upto(self, size: int) -> Array:
        """Return the first ``size`` items, a view that the next call may move."""
        if size > self._values.size:
            # Half as much again as needed, so that many small steps cost a few copies.
            more = np.full(size + size // 2 - self._values.size, self._value, self._values.dtype)
            self._values = np.concatenate([self._values, more])
        return self._values[:size]


class NeighborCache:
    """Requested rows of one edge type, by node."""

    def __init__(self) -> None:
        self._starts, self._counts = GrowingVector(np.int64, 0), GrowingVector(np.int64, _UNKNOWN)
        self._neighbors, self._edge_ids = GrowingVector(np.int64, 0), GrowingVector(np.int64, 0)
        self._size = 0
        self.with_ids = False

    def reset(self, total: int) -> None:
        """Forget all rows, those of ``total`` nodes."""
        self._counts.wipe(total)
        self._size, self.with_ids = 0, False

    def missing(self, nodes: Array, total: int) -> Array:
        """Return those of ``nodes`` whose rows are not here; ``total`` is the number of nodes."""
        missing: Array = nodes[self._counts.upto(total)[nodes] == _UNKNOWN]
        return missing

    def add(self, nodes: Array, counts: Array, neighbors: Array, edge_ids: Array | None) -> None:
        """Keep the rows of ``nodes``; ``neighbors`` are nodes, too."""
        # Rows are stored in order of arrival, not by node.
        starts = self._size + counts.cumsum() - counts
        highest = int(nodes.max(initial=-1)) + 1
        self._starts.upto(highest)[nodes] = starts
        self._counts.upto(highest)[nodes] = counts
        end = self._size + neighbors.size
        self._neighbors.upto(end)[self._size :] = neighbors
        if edge_ids is not None:
            self._edge_ids.upto(end)[self._size :] = edge_ids
            self.with_ids = True
        self._size = end

    def counts(self, nodes: Array, total: int) -> Array:
        """Return the number of neighbours here of each of ``nodes``."""
        counts: Array = np.maximum(self._counts.upto(total)[nodes], 0)
        return counts

    def table(self, total: int) -> tuple[Array, Array, Array]:
        """Return (starts of rows, their lengths, neighbours); a row not here has length -1."""
        return self._starts.upto(total), self._counts.upto(total), self._neighbors.upto(self._size)

    def edges(self, total: int) -> tuple[Array, Array, Array | None]:
        """Return (expanded node, neighbour, edge id) of all rows, by ascending expanded node."""
        starts, counts, neighbors = self.table(total)
        counts = np.maximum(counts, 0)
        owners = np.repeat(np.arange(total), counts)
        positions = np.arange(owners.size) + np.repeat(starts - (counts.cumsum() - counts), counts)
        ids = self._edge_ids.upto(self._size)[positions] if self.with_ids else None
        return owners, neighbors[positions], ids


class Neighbourhood:
    """The part of the graph that one batch has requested: nodes by number, rows, degrees.

    Memory is kept for the next batch.

    Args:
        reader: Reader of all partitions.
        ends: By edge type, (type that is expanded, type of its neighbours).
        types: All node types.
    """

    def __init__(
        self,
        reader: GraphReader,
        ends: Mapping[EdgeType, tuple[NodeType, NodeType]],
        types: Sequence[NodeType],
    ) -> None:
        self._reader, self._ends = reader, ends
        self._draws: Mapping[EdgeType, Draw] = {}
        self._keep: Callable[[EdgeType, Array, Drawn], Drawn] | None = None
        self.types = list(types)
        self._number = {name: number for number, name in enumerate(self.types)}
        self._type_bits = (len(self.types) - 1).bit_length()
        self._labels = NodeLabels()
        self._degrees = GrowingVector(np.int64, _UNKNOWN)
        self.rows = {edge_type: NeighborCache() for edge_type in ends}

    def reset(
        self,
        draws: Mapping[EdgeType, Draw],
        keep: Callable[[EdgeType, Array, Drawn], Drawn] | None = None,
    ) -> None:
        """Forget the previous batch.

        Args:
            draws: By edge type, the request for rows.
            keep: Takes an edge type, the requested nodes and the response; returns the part to
                keep. None: all.
        """
        self._draws, self._keep = draws, keep
        self._degrees.wipe(self.size)
        for rows in self.rows.values():
            rows.reset(self.size)
        self._labels.reset()

    @property
    def size(self) -> int:
        """The number of numbered nodes."""
        return self._labels.count

    def number(self, node_type: NodeType, ids: Array) -> Array:
        """Return the number of each of ``ids`` (``[n]`` int64, global), new ones if needed."""
        # One code for id and type: nodes of all types are counted together.
        return self._labels.label(ids << self._type_bits | self._number[node_type])

    def ids(self, node_type: NodeType, nodes: Array) -> tuple[Array, Array]:
        """Return (those of ``nodes`` that are of the type, their global ids)."""
        ids = self.ids_of_type(node_type, nodes)
        chosen = np.flatnonzero(ids >= 0)
        return nodes[chosen], ids[chosen]

    def codes(self, node_type: NodeType) -> tuple[Array, int, int]:
        """Return by node ``id << bits | type``, the bits of a type, and that of ``node_type``."""
        return self._labels.nodes, self._type_bits, self._number[node_type]

    def ids_of_type(self, node_type: NodeType, nodes: Array) -> Array:
        """Return the global id of each of ``nodes``, -1 if it is of another type."""
        codes: Array = self._labels.nodes[nodes]
        if not self._type_bits:
            return codes
        types = codes & ((1 << self._type_bits) - 1)
        ids: Array = np.where(types == self._number[node_type], codes >> self._type_bits, -1)
        return ids

    def fetch(self, nodes: Array, edge_types: Sequence[EdgeType]) -> bool:
        """Request the rows of ``nodes`` (each once) that are not here; return whether any was."""
        pending = []
        for edge_type in edge_types:
            # Rows of a node that was pushed before, for another channel, are here.
            missing = self.rows[edge_type].missing(nodes, self.size)
            own, ids = self.ids(self._ends[edge_type][0], missing)
            if own.size:
                answer = self._reader.draw(self._draws[edge_type], ids)
                pending.append((edge_type, own, ids, answer))
        for edge_type, own, ids, answer in pending:  # all are requested before the first wait
            drawn = answer()
            if self._keep is not None:
                drawn = self._keep(edge_type, ids, drawn)
            # In the order of the edge types, not of arrival: numbers decide the order of slots,
            # and so the order in which floats are added.
            neighbors = self.number(self._ends[edge_type][1], drawn.neighbors)
            self.rows[edge_type].add(own, drawn.counts, neighbors, drawn.edge_ids)
        return bool(pending)

    def degrees(self, slots: Array, keys: Array) -> Array:
        """Return the degrees by node, over all edge types; those of ``slots`` are then known."""
        # Nothing is numbered below, so this view stays valid.
        known, new = self._degrees.upto(self.size), np.empty(slots.size, np.int64)
        # Not "unknown" even without an edge of any type: it would be requested again each turn.
        new = np.sort(new[: kernels.first_met(slots, keys, known, _UNKNOWN, 0, new)])
        if new.size:
            pending = []
            for edge_type, (expanded, _) in self._ends.items():
                own, ids = self.ids(expanded, new)
                if own.size:
                    pending.append((own, self._reader.degrees(edge_type, ids)))
            for own, answer in pending:
                known[own] += answer()
        return known


@dataclass
class SeedScores:
    """Scores of all seeds, an item for each slot; the next push from that memory replaces them."""

    keys: Array
    """``[n]`` int64: position of the seed in the batch ``<< 32``, with the node's number in its
    `Neighbourhood`."""
    score: Array
    """``[n]`` float64; 0 if the node was not pushed."""
    slots: Array
    """``[n]`` `ppr_kernels.SLOT`: ``residual`` times ``alpha`` is the score that further pushes of
    the node alone would add; ``hop`` the fewest steps from the seed by which a push reached it."""
    alpha: float

    @cached_property
    def by_seed(self) -> tuple[Array, Array]:
        """The slots, seed after seed, and the number of those of each seed, both int64."""
        seeds = self.keys >> 32
        slots, sizes = np.empty_like(seeds), np.empty(1 + int(seeds.max(initial=-1)), np.int64)
        group_by_owner(seeds, slots, sizes)
        return slots, sizes


@dataclass(frozen=True)
class TopNodes:
    """Nodes of one type, seed after seed."""

    seed: Array
    """``[n]`` int64, ascending: position of the seed in the batch."""
    ids: Array
    """``[n]`` int64, global ids; those of a seed descend by score, equal ones ascend by id."""
    values: Array
    """``[n, columns]`` float64: score, proximity, and the columns of channels."""
    pushed: Array
    """``[n]`` int64: bit ``c``: the node was pushed in channel ``c``, and edges of it were drawn
    for this seed."""


class PushMemory:
    """What a push knows of its slots; kept for the next one."""

    def __init__(self) -> None:
        self.keys = NodeLabels()
        # written when a slot is new: nothing of a former push is wiped
        self.slots, self.score = GrowingVector(kernels.SLOT, 0), GrowingVector(float, 0.0)
        self.asked = GrowingVector(np.int64, _UNKNOWN)
        """By node: 0 once its rows were requested."""
        self._num_nodes = 0

    def reset(self) -> None:
        """Forget the former push."""
        self.asked.wipe(self._num_nodes)
        self.keys.reset()

    def asked_upto(self, num_nodes: int) -> Array:
        """Return `asked` of so many nodes."""
        self._num_nodes = num_nodes
        return self.asked.upto(num_nodes)


@dataclass
class ForwardPush:
    """Forward push from all seeds of a batch, along some edge types.

    Args:
        around: The known part of the graph; may be shared with other pushes of the batch.
        edge_types: Edge types to walk.
        alpha: Probability of a return to the seed.
        eps: A node is due while its residual is at least this times its degree.
        max_fetches: Most rounds of requests for rows; None: no limit.
        memory: Of a push whose scores are not needed any more.
    """

    around: Neighbourhood
    edge_types: Sequence[EdgeType]
    alpha: float
    eps: float
    max_fetches: int | None = None
    memory: PushMemory = field(default_factory=PushMemory)

    def run(self, node_type: NodeType, seeds: Array) -> SeedScores:
        """Push until nothing is due; ``seeds`` are ``[n]`` int64 global ids, repeats allowed."""
        memory, keys = self.memory, self.memory.keys
        memory.reset()
        # Slots are found by seed and node in one number; a repeated seed has slots of its own.
        start = (np.arange(seeds.size) << 32) | self.around.number(node_type, seeds)
        due = keys.label(start)
        memory.slots.upto(keys.count)[due] = (1.0, 0, 0)
        memory.score.upto(keys.count)[due] = 0.0
        fetches, turn = 0, 0
        while due.size:
            turn += 1
            # At the limit, pushes continue over the rows that are here. A node without its row
            # counts as one without neighbours; the share of its neighbours is lost.
            if self.max_fetches is None or fetches < self.max_fetches:
                fetches += self.around.fetch(self._first_pushed(due), self.edge_types)
            due = self._due(self._push(due, turn))
        score, slots = memory.score.upto(keys.count), memory.slots.upto(keys.count)
        return SeedScores(keys.nodes, score, slots, self.alpha)

    def _first_pushed(self, due: Array) -> Array:
        """Return the nodes of ``due`` whose rows were never requested, ascending."""
        known, new = self.memory.asked_upto(self.around.size), np.empty(due.size, np.int64)
        found: Array = new[
            : kernels.first_met(due, self.memory.keys.nodes, known, _UNKNOWN, 0, new)
        ]
        return np.sort(found)

    def _push(self, due: Array, turn: int) -> Array:
        """Push the slots ``due``, and return those that received something."""
        memory, keys, total = self.memory, self.memory.keys, self.around.size
        count = keys.count
        nodes, taken, hops = np.empty_like(due), np.empty(due.size, np.float64), np.empty_like(due)
        state = memory.slots.upto(count), memory.score.upto(count)
        kernels.take(due, self.alpha, keys.nodes, *state, nodes, taken, hops)
        # Neighbours of all types together: a node gives each of them the same.
        lengths = [self.around.rows[e].counts(nodes, total) for e in self.edge_types]
        neighbors = sum(lengths, np.zeros(due.size, np.int64))
        rest = (1.0 - self.alpha) / np.maximum(neighbors, 1)
        # Room for as many new slots as there are neighbours: kernels do not grow arrays.
        size = int(neighbors.sum())
        places = keys.with_room(size)
        score, slots = memory.score.upto(count + size), memory.slots.upto(count + size)
        touched, num_touched = np.empty(size, np.int64), 0
        for edge_type in self.edge_types:
            rows = self.around.rows[edge_type].table(total)
            count, num_touched = kernels.spread(
                due,
                nodes,
                taken,
                hops,
                rest,
                *rows,
                *places,
                count,
                slots,
                score,
                turn,
                touched,
                num_touched,
            )
        keys.count = count
        return touched[:num_touched]

    def _due(self, touched: Array) -> Array:
        """Return those of ``touched`` that are due; the others cannot be, as they got nothing."""
        keys = self.memory.keys.nodes
        slots = self.memory.slots.upto(keys.size)
        # Before degrees are requested, perhaps from other machines: most touched residuals are
        # small.
        large, due = np.empty(touched.size, np.int64), np.empty(touched.size, np.int64)
        # a degree is at least 1 here
        large = large[: kernels.at_least(touched, slots, self.eps, large)]
        degrees = self.around.degrees(large, keys)
        return due[: kernels.due(large, keys, slots, degrees, self.eps, due)]
