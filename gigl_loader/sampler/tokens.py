"""Tokens: a sequence of nodes for each root of a batch, from its own tree or PPR nodes.

::

    roots --> trees --> order_trees() --> in order, cut, filled --> tokens
                                                      |
                                                      +--> nodes of the batch, each once

`gigl_loader.batch.tokens` has what becomes of them in the training process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigl_loader.batch.message import TOKENS, BatchTicket
from gigl_loader.dataset.identity import mixed
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import EdgeType, NodeType, reverse_edge_type
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.expansion import EdgeCollector, Sampled
from gigl_loader.sampler.kernels import token_kernels as kernels
from gigl_loader.sampler.nodes import BatchNodes, NodeLabels
from gigl_loader.sampler.options import TokenOptions
from gigl_loader.sampler.plan import Field, SampleRequest, SamplingPlan, draw_key
from gigl_loader.sampler.roots import SeedTimes
from gigl_loader.sampler.rows.reader import GraphReader

_TOKENS = 1 << 34
"""Replaces a hop in the keys of tokens: above those of negatives and of PPR."""


def ticket_of_tokens(ticket: BatchTicket) -> BatchTicket:
    """Return the ticket under which tokens are drawn: the same for all batches of an epoch."""
    return replace(ticket, batch=0)


class TokenNodes(BatchNodes):
    """The nodes of a batch with tokens, merged; its roots are remembered, one for each sequence.

    Args:
        num_nodes: Nodes of each type over all partitions.
        forest: Gets the roots, too, each in a tree of its own; None: sequences have no trees.
    """

    def __init__(self, num_nodes: Mapping[NodeType, int], forest: BatchNodes | None = None) -> None:
        super().__init__(num_nodes)
        self.forest = forest
        self._placed: list[tuple[NodeType, Array, Array]] = []

    def reset(self, seed_times: Array | None = None, seed_starts: Array | None = None) -> None:
        """Forget the previous batch; take the times of the next one's seeds."""
        super().reset(seed_times, seed_starts)
        self._placed = []
        if self.forest is not None:
            self.forest.reset(seed_times, seed_starts)

    def place(self, node_type: NodeType, ids: Array, seeds: Array | None = None) -> Array:
        """Make each of ``ids`` a root, once; return their labels."""
        return self.label(node_type, ids, seeds)

    def label(self, node_type: NodeType, ids: Array, seeds: Array | None = None) -> Array:
        """Make each of ``ids`` a root, once; return their labels."""
        labels = super().label(node_type, ids)
        self._placed.append((node_type, labels, np.arange(ids.size) if seeds is None else seeds))
        if self.forest is not None:
            self.forest.place(node_type, ids, seeds)
        return labels

    def roots(self) -> tuple[Array, Array, Array]:
        """Return (type, label, seed) of the root of each sequence; the type as its place."""
        placed = self._placed or [(self.types[0], *np.empty((2, 0), np.int64))]
        kinds = [np.full(labels.size, self.types.index(name)) for name, labels, _ in placed]
        labels, seeds = zip(*((labels, seeds) for _, labels, seeds in placed), strict=True)
        return np.concatenate(kinds), np.concatenate(labels), np.concatenate(seeds)


@dataclass
class Candidates:
    """The nodes that may become tokens, numbered as in `token_kernels`."""

    base: Array
    """``[num_types + 1]`` int64."""
    order: Array
    """``[n]`` int64: the nodes of each root, itself first."""
    starts: Array
    """``[num_roots + 1]`` int64: where those of each root begin in ``order``."""
    hop: Array
    """By node: int8."""
    rows: "EdgeRows"
    root: Array | None = None
    """``[num_sequences]`` int64: the root of each sequence; None: one each."""
    score: Array | None = None
    """By node: float32; None without PPR."""

    @property
    def kind(self) -> Array:
        """By node: its type."""
        return np.repeat(np.arange(self.base.size - 1, dtype=np.int16), np.diff(self.base))


@dataclass
class EdgeRows:
    """Edges between candidates of one root, as rows; see `token_kernels`."""

    first: Array
    pointers: Array
    neighbors: Array

    @classmethod
    def of(cls, edges: Sequence[tuple[Array, Array]], sizes: Sequence[int]) -> "EdgeRows":
        """Return the rows of each relation.

        Args:
            edges: By relation (slots, neighbours); slots ascend, neighbours are nodes.
            sizes: By relation, the number of nodes of the type that it expands.
        """
        first, pointers, at, begin = [], [], 0, 0
        for (slots, _), size in zip(edges, sizes, strict=True):
            counts = np.bincount(slots, minlength=size)
            first.append(begin)
            pointers += [np.array([at]), at + counts.cumsum()]
            begin, at = begin + size + 1, at + slots.size
        neighbors = [found for _, found in edges]
        nothing = np.empty(0, np.int64)
        return cls(
            np.array(first, np.int64),
            np.concatenate([*pointers, nothing]),
            np.concatenate([*neighbors, nothing]),
        )


class TokenMaker:
    """Makes the tokens of batches. One object per sampling thread.

    Args:
        reader: Reader of all partitions.
        plan: How to sample; it has options of tokens.
        times: Reads times of nodes.
    """

    def __init__(self, reader: GraphReader, plan: SamplingPlan, times: SeedTimes) -> None:
        options = plan.expansion.tokens
        assert options is not None, "a plan with tokens"
        self._plan, self._times = plan, times
        self.options: TokenOptions = options
        view = reader.view
        self._types, self._num_nodes = sorted(view.num_nodes), view.num_nodes
        self._timed = timed_types(view, plan.expansion.time_attr)
        self.relations = relations_of(view, list(plan.fanouts))
        ends = [reader.ends(edge_type) for edge_type in self.relations]
        self._expanded = [self._types.index(expanded) for expanded, _ in ends]
        self._neighbor = [self._types.index(neighbor) for _, neighbor in ends]
        by_kind = [
            [r for r, kind in enumerate(self._expanded) if kind == of]
            for of in range(len(self._types))
        ]
        self._kind_start = np.cumsum([0, *map(len, by_kind)])
        self._by_kind = np.array([r for of in by_kind for r in of], np.int64)
        self._edges = NodeLabels()
        self._known: dict[NodeType, tuple[Array, Array]] = {}

    # -- of trees ---------------------------------------------------------------------------------

    def of_trees(
        self, request: SampleRequest, nodes: TokenNodes, sampled: Sampled
    ) -> tuple[Sampled, list[Field]]:
        """Return the edges of a batch, and the fields of its tokens.

        Args:
            request: The batch.
            nodes: Its nodes: roots, and their trees; gets the other nodes.
            sampled: The edges of the trees.
        """
        trees = nodes.forest
        assert trees is not None, "nodes with trees"
        counts = [trees.count(name) for name in self._types]
        base = np.cumsum([0, *counts])
        edges = []
        for relation, edge_type in enumerate(self.relations):
            neighbors, targets = sampled.edges[edge_type].as_index()
            edges.append((targets, neighbors + base[self._neighbor[relation]]))
        rows = EdgeRows.of(edges, [counts[kind] for kind in self._expanded])
        roots = np.empty(trees.seeds.size, np.int64)
        for kind, name in enumerate(self._types):
            first = sampled.found_per_hop[name][0]
            roots[trees.trees(name, 0, first)] = base[kind] + np.arange(first)
        found = Candidates(
            base,
            np.empty(base[-1], np.int64),
            np.empty(roots.size + 1, np.int64),
            np.empty(base[-1], np.int8),
            rows,
        )
        seen = np.zeros(base[-1], np.bool_)
        where = roots, found.kind, *self._where(found)
        kernels.order_trees(*where, found.order, found.starts, found.hop, seen)
        ids = np.concatenate([trees.ids(name) for name in self._types])
        starts, tokens = self.chosen(request, nodes, found, ids)
        row = self._label(nodes, base, ids, tokens)
        fields = self.fields(request, nodes, found, row, starts, tokens)
        return self._edges_between(sampled, base, row), fields

    def _where(self, found: Candidates) -> tuple[Array, Array, Array, Array, Array, Array]:
        rows = found.rows
        return (
            found.base,
            self._kind_start,
            self._by_kind,
            rows.first,
            rows.pointers,
            rows.neighbors,
        )

    # -- of any candidates ------------------------------------------------------------------------

    def _label(self, nodes: TokenNodes, base: Array, ids: Array, tokens: Array) -> Array:
        """Give the nodes of tokens their rows in the batch; return these by node, -1 elsewhere."""
        is_token = np.zeros(ids.size, np.bool_)
        is_token[tokens] = True
        row = np.full(ids.size, -1, np.int32)
        for kind, name in enumerate(self._types):
            # in the order of their hops, over all trees: nodes of near hops come first
            at = base[kind] + np.flatnonzero(is_token[base[kind] : base[kind + 1]])
            row[at] = nodes.add(name, ids[at])
        return row

    def chosen(
        self, request: SampleRequest, nodes: TokenNodes, found: Candidates, ids: Array
    ) -> tuple[Array, Array]:
        """Return where each sequence begins, and its nodes: in order, and cut."""
        self._known = {}
        root = np.arange(found.starts.size - 1) if found.root is None else found.root
        sizes, most = np.diff(found.starts)[root], self.options.max_tokens
        begins, listed = parts_of(found.order, found.starts[root], sizes)
        sequence = np.repeat(np.arange(sizes.size), sizes)
        if (keys := self._sort_keys(request, nodes, found, ids, listed, sequence)) is not None:
            is_seed = np.zeros(listed.size, np.bool_)
            is_seed[begins[:-1]] = True
            listed = listed[np.lexsort((keys, ~is_seed, sequence))]  # stable
        return parts_of(listed, begins[:-1], np.minimum(sizes, most))

    def _sort_keys(
        self,
        request: SampleRequest,
        nodes: TokenNodes,
        found: Candidates,
        ids: Array,
        listed: Array,
        sequence: Array,
    ) -> Array | None:
        """Return what the nodes of sequences are sorted by; None: they are in order."""
        order = self.options.order
        if order == "score" or (order == "hop" and found.score is None):
            return None
        if order == "hop":
            return found.hop[listed]
        if order == "time":
            return self._ages(nodes, found, ids)[listed]
        own = ids.astype(np.uint64) * np.uint64(len(self._types)) + found.kind.astype(np.uint64)
        return mixed(self._keys(request, nodes)[sequence] ^ mixed(own)[listed])

    def _keys(self, request: SampleRequest, nodes: TokenNodes) -> Array:
        """Return ``[num_sequences]`` uint64, of the epoch and the seed's place in the input."""
        ticket = ticket_of_tokens(request.ticket)
        key = draw_key(self._plan, ticket, _TOKENS, ("", "tokens", ""))
        _, _, seeds = nodes.roots()
        return mixed(request.input_id[seeds].astype(np.uint64) + np.uint64(key))

    def _ages(self, nodes: TokenNodes, found: Candidates, ids: Array) -> Array:
        """Return by node how long it was before its seed; the largest number without a time."""
        trees, times = nodes.forest, nodes.seed_times
        assert trees is not None
        assert times is not None
        ages = np.full(ids.size, np.inf)
        for kind, name in enumerate(self._types):
            begin, end = found.base[kind], found.base[kind + 1]
            if self._timed[kind] and end > begin:
                distinct, at = np.unique(ids[begin:end], return_inverse=True)
                own = self._times.of_nodes(name, distinct)
                self._known[name] = distinct, own
                until = times[trees.seeds[trees.trees(name)]]
                ages[begin:end] = until - own.reshape(-1)[at.reshape(-1)]
        return ages

    def known_times(self, node_type: NodeType, ids: Array) -> Array | None:
        """Return the times of nodes of the batch that sorting asked for; None: it did not."""
        if node_type not in self._known:
            return None
        known, times = self._known[node_type]
        return times[np.searchsorted(known, ids)]

    def _edges_between(self, sampled: Sampled, base: Array, row: Array) -> Sampled:
        """Return the edges between tokens, each once; with ids, each id of two nodes once."""
        between = Sampled({}, {}, {})
        for relation, edge_type in enumerate(self.relations):
            drawn, merged = sampled.edges[edge_type], EdgeCollector()
            neighbors, targets = drawn.as_index()
            neighbors = row[base[self._neighbor[relation]] + neighbors].astype(np.int64)
            targets = row[base[self._expanded[relation]] + targets].astype(np.int64)
            kept = np.flatnonzero((neighbors >= 0) & (targets >= 0))
            ids = drawn.ids()[kept] if drawn.edge_ids else None
            neighbors, targets = neighbors[kept], targets[kept]
            width = 1 + int(neighbors.max(initial=0))
            labels = self._distinct(targets * width + neighbors)
            if ids is not None:  # parallel edges have ids of their own, and two edges may share one
                labels = self._distinct(labels * ids.size + self._distinct(ids))
            some = np.empty(self._edges.count, np.int64)
            some[labels] = np.arange(labels.size)
            merged.add(neighbors[some], targets[some], None if ids is None else ids[some])
            between.edges[edge_type] = merged
        return between

    def _distinct(self, numbers: Array) -> Array:
        """Return the label of each number: 0, 1, 2... in order of first appearance."""
        self._edges.reset()
        return self._edges.label(numbers)

    # -- fields -----------------------------------------------------------------------------------

    def fields(
        self,
        request: SampleRequest,
        nodes: TokenNodes,
        found: Candidates,
        row: Array,
        starts: Array,
        tokens: Array,
    ) -> list[Field]:
        """Return the fields of tokens; what follows from their types is left to the trainer."""
        options, kind = self.options, found.kind
        types = np.array([[self._num_nodes[name] for name in self._types], self._timed], np.int64)
        take = self._filled(request, nodes, starts)
        of = tokens if take is None else tokens[take]
        sizes = np.diff(starts) if take is None else np.full(starts.size - 1, options.max_tokens)
        fields = [
            Field.of(TOKENS + "types", types),
            Field.of(TOKENS + "length", sizes.astype(np.int32)),
            Field.of(TOKENS + "row", row[of]),
            Field.of(TOKENS + "hop", found.hop[of]),
        ]
        if len(self._types) > 1:
            fields.append(Field.of(TOKENS + "type", kind[of]))
        if nodes.seed_times is not None and any(self._timed):
            _, _, seeds = nodes.roots()
            fields.append(Field.of(TOKENS + "until", nodes.seed_times[seeds]))
        if found.score is not None:
            fields.append(Field.of(TOKENS + "score", found.score[of]))
        if options.walk_length or options.with_degree:
            for name, values in self._walks(found, kind, starts, tokens).items():
                fields.append(Field.of(name, values if take is None else values[take]))
        if options.pairs:
            filled = starts if take is None else np.arange(starts.size) * options.max_tokens
            fields.append(Field.of(TOKENS + "pair", self._pairs(found, kind, filled, of)))
        return fields

    def _filled(self, request: SampleRequest, nodes: TokenNodes, starts: Array) -> Array | None:
        """Return the token of each place up to ``max_tokens``; None: places are left out."""
        if self.options.fill != "repeat":
            return None
        most, sizes = self.options.max_tokens, np.diff(starts)[:, None]
        place = np.arange(most)[None]
        key = self._keys(request, nodes)[:, None]
        unit = (mixed(key ^ mixed(place.astype(np.uint64))) >> np.uint64(11)) * 2.0**-53
        again = np.minimum(1, sizes - 1) + (unit * np.maximum(sizes - 1, 1)).astype(np.int64)
        return (starts[:-1, None] + np.where(place < sizes, place, again)).reshape(-1)

    def _pairs(self, found: Candidates, kind: Array, starts: Array, tokens: Array) -> Array:
        """Return ``[num_pairs, 4]`` int32: sequence, query, key and relation."""
        place, after = np.full(found.base[-1], -1, np.int64), np.empty(tokens.size, np.int64)
        where = starts, tokens, kind, *self._where(found), place, after
        counts = np.zeros(len(self.relations), np.int64)
        kernels.pair_tokens(*where, counts, np.empty((0, 4), np.int32))
        pairs = np.empty((counts.sum(), 4), np.int32)
        kernels.pair_tokens(*where, counts.cumsum() - counts, pairs)
        return pairs

    def _walks(
        self, found: Candidates, kind: Array, starts: Array, tokens: Array
    ) -> dict[str, Array]:
        """Return the encodings of tokens, from the edges between those of one sequence."""
        sequence, query, key, _ = self._pairs(found, kind, starts, tokens).astype(np.int64).T
        longest = int(np.diff(starts).max(initial=1))
        others = query != key
        ends = np.stack([query[others], key[others]])
        codes = np.unique(
            sequence[others] * longest**2 + np.stack([ends[0], ends[1]]) * longest + ends[::-1]
        )
        sequences, codes = np.divmod(codes, longest**2)
        code_starts = np.searchsorted(sequences, np.arange(starts.size))
        degree = np.empty(tokens.size, np.int32)
        landing = np.empty((tokens.size, self.options.walk_length), np.float32)
        kernels.walk_tokens(starts, codes, code_starts, longest, degree, landing)
        made = {TOKENS + "walk": landing} if self.options.walk_length else {}
        return made | ({TOKENS + "degree": degree} if self.options.with_degree else {})


def parts_of(values: Array, starts: Array, sizes: Array) -> tuple[Array, Array]:
    """Return where parts begin, and the parts: ``sizes`` of ``values`` from each of ``starts``."""
    begins = np.concatenate([[0], sizes.cumsum()])
    at = np.arange(begins[-1]) + np.repeat(starts - begins[:-1], sizes)
    return begins, values[at]


def relations_of(view: PartitionView[Any], walked: Sequence[EdgeType]) -> list[EdgeType]:
    """Return the walked edge types in the order of relations: sorted by their names in batches."""
    if view.edge_dir == "out" and view.is_heterogeneous:
        return sorted(walked, key=reverse_edge_type)
    return sorted(walked)


def timed_types(view: PartitionView[Any], time_attr: str | None) -> list[bool]:
    """Return for each node type, sorted, whether its nodes have times."""
    return [(name, time_attr) in view.node_attributes for name in sorted(view.num_nodes)]
