"""Batches of the nodes with the largest personalised PageRank around each root."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from gigl_loader.batch.message import EDGE_FEATURES, EDGE_INDEX, EDGES_PER_HOP, BatchTicket, key
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import PPR, EdgeType, NodeType
from gigl_loader.runtime.memory import read_ahead
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.edges import EDGE_KIND
from gigl_loader.sampler.expansion import EdgeCollector, Sampled
from gigl_loader.sampler.kernels import ppr_kernels as kernels
from gigl_loader.sampler.neighbor import SUBGRAPH_KIND, NeighborSampler
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.options import PPRSamplerOptions
from gigl_loader.sampler.plan import (
    Draw,
    Drawn,
    Field,
    Peers,
    SampleRequest,
    SamplingPlan,
    draw_key,
)
from gigl_loader.sampler.ppr.ppr_here import PushHere, can_push_here
from gigl_loader.sampler.ppr.ppr_push import (
    ForwardPush,
    Neighbourhood,
    PushMemory,
    SeedScores,
    TopNodes,
)
from gigl_loader.sampler.roots import EdgeFilter, MakeRoots
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sampler.tokens import (
    Candidates,
    EdgeRows,
    TokenMaker,
    TokenNodes,
    parts_of,
    ticket_of_tokens,
)

_AROUND = {kind.name: kind for kind in (ANCHOR_KIND, EDGE_KIND, SUBGRAPH_KIND)}
"""Samplers at whose roots pushes may start, by the name that travels."""
_HOP = 1 << 33
"""Replaces a hop in the keys of rows that are too long: above those of negatives."""
_NOT_A_ROOT = 1 << 62


class PPRSampler(NeighborSampler):
    """Samples the top nodes of each root, in place of its neighbourhood.

    Args:
        view: The partition.
        plan: How to sample; its fanouts name the edge types to walk.
        peers: The other partitions.
        options: How to push, and how much to keep.
        seed_types: Node types of roots; a batch has edges from each to every node type.
        channels: Edge types and share of each; none: all edge types are walked together.
        roots: As in `NeighborSampler`.
    """

    _in_trees = False

    def __init__(
        self,
        view: PartitionView[Array],
        plan: SamplingPlan,
        peers: Peers | None,
        *,
        options: PPRSamplerOptions,
        seed_types: Sequence[NodeType],
        channels: Sequence[tuple[Sequence[EdgeType], float]] = (),
        roots: MakeRoots | None = None,
    ) -> None:
        # Compiled before the first batch, whose time it would add to; other samplers skip this.
        kernels.load()
        super().__init__(view, plan, peers, roots)
        self._options, self._seed_types = options, sorted(set(seed_types))
        self._edge_types = list(plan.fanouts)
        self._ends = {edge_type: self._reader.ends(edge_type) for edge_type in self._edge_types}
        self._channels = [edge_types for edge_types, _ in channels]
        self._known = Neighbourhood(self._reader, self._ends, self.nodes.types)
        self._memory = PushMemory()
        self._here: PushHere | None = None
        if self._reader.is_alone and can_push_here(view, options):
            self._here = PushHere(view, self._ends, self.nodes.types, options)
        self._targets = target_counts([ratio for _, ratio in channels], options.max_ppr_nodes)

    def sample(self, request: SampleRequest) -> Sequence[Field]:
        """Return the fields of the batch of ``request``."""
        placed = self.place(request)
        types = self.nodes.types
        # Copies: labelling below may move the memory of these views.
        roots = {name: self.nodes.ids(name).copy() for name in types}
        ticket = request.ticket if self.tokens is None else ticket_of_tokens(request.ticket)
        draws = self._draws(ticket)
        around = self._around(draws, roots, placed.keep_edges)
        # a disk is asked for the rows of all seeds at once
        asks_more = placed.keep_edges is not None or self.tokens is not None
        here = None if asks_more or read_ahead.do_not_fit.is_set() else self._here
        fields, all_tops = [], {}
        for seed_type in self._seed_types:
            tops = self._tops(draws, here or around, seed_type, roots[seed_type])
            all_tops[seed_type] = tops
            for node_type in types:
                fields += self._ppr_fields(seed_type, node_type, tops[node_type])
        if self.tokens is not None:
            fields += self._token_fields(request, self.tokens, around, roots, all_tops)
        count = self.nodes.count
        # After all tops were labelled: "hop 1" is their addition to the roots.
        per_hop = {t: [roots[t].size, count(t) - roots[t].size] for t in types}
        followed = self._walked(around) if self._options.include_sampled_edges else {}
        sampled = Sampled(followed, per_hop, per_hop)
        return [*placed.fields, *self._node_fields(sampled), *fields, *self._edge_fields(sampled)]

    def _draws(self, ticket: BatchTicket) -> dict[EdgeType, Draw]:
        most = self._options.num_neighbors_per_hop
        with_edge = self._plan.with_edge and self._options.include_sampled_edges
        return {
            name: Draw(
                name,
                most,
                draw_key(self._plan, ticket, _HOP, name),
                with_edge=with_edge,
                most=self._plan.most_drawn,
            )
            for name in self._edge_types
        }

    def _around(
        self,
        draws: Mapping[EdgeType, Draw],
        roots: Mapping[NodeType, Array],
        keep: EdgeFilter | None,
    ) -> Neighbourhood:
        def kept(edge_type: EdgeType, ids: Array, drawn: Drawn) -> Drawn:
            """Drop excluded edges: those between roots."""
            expanded = self._ends[edge_type][0]
            # Filters take labels of the batch, and know a root by a label below the number of
            # roots. Other nodes have none yet, or one from another seed type: they get one above.
            labels = self.nodes.find(expanded, ids)
            labels[(labels < 0) | (labels >= roots[expanded].size)] = _NOT_A_ROOT
            assert keep is not None
            return keep(edge_type, np.repeat(labels, drawn.counts), drawn)[1]

        self._known.reset(draws, None if keep is None else kept)
        return self._known

    def _tops(
        self,
        draws: Mapping[EdgeType, Draw],
        around: Neighbourhood | PushHere,
        seed_type: NodeType,
        seeds: Array,
    ) -> dict[NodeType, TopNodes]:
        """Return the top of all seeds, by type of the nodes."""
        options = self._options
        how = (options.alpha, options.eps, options.max_fetch_iterations, self._memory)
        most, topup = options.max_ppr_nodes, options.enable_residual_topup
        found = []
        for edge_types in self._channels or [self._edge_types]:
            if isinstance(around, PushHere):
                found.append(around.tops([draws[name] for name in edge_types], seed_type, seeds))
                continue
            scores = ForwardPush(around, edge_types, *how).run(seed_type, seeds)
            types = self.nodes.types
            found.append({t: top_nodes(scores, around, t, most, topup=topup) for t in types})
        if not self._channels:
            return found[0]
        return {t: merged([tops[t] for tops in found], self._targets) for t in self.nodes.types}

    def _ppr_fields(self, seed_type: NodeType, node_type: NodeType, top: TopNodes) -> list[Field]:
        links = np.stack([top.seed, self.nodes.add(node_type, top.ids)])
        values = top.values.astype(np.float32)
        if self._view.is_heterogeneous:
            name = (seed_type, PPR, node_type)
            return [
                Field.of(key(EDGE_INDEX, name), links),
                Field.of(key(EDGE_FEATURES, name), values),
            ]
        return [
            Field.of(EDGE_INDEX, links),
            Field.of(EDGE_FEATURES, values),
            Field.of(EDGES_PER_HOP, np.empty(0, np.int64)),
        ]

    def _token_fields(
        self,
        request: SampleRequest,
        maker: TokenMaker,
        around: Neighbourhood,
        roots: Mapping[NodeType, Array],
        tops: Mapping[NodeType, Mapping[NodeType, TopNodes]],
    ) -> list[Field]:
        """Return the fields of tokens: the top nodes of each root, by descending score."""
        nodes = self.nodes
        assert isinstance(nodes, TokenNodes)
        counts = [roots[name].size for name in nodes.types]
        begins = dict(zip(nodes.types, np.cumsum([0, *counts]), strict=False))
        parts = [_candidates(name, roots[name], begins, tops, nodes) for name in nodes.types]
        base = np.cumsum([0, *(part[0].size for part in parts)])
        root, ids, row, score, hop, pushed = map(np.concatenate, zip(*parts, strict=True))
        kind = np.repeat(np.arange(len(parts)), np.diff(base))
        # The seed first. Ties by type, then as the push has them: by ascending id.
        order = ranked(root, hop != 0, -score, kind, ids)
        starts = np.searchsorted(root[order], np.arange(sum(counts) + 1))
        of_types, labels, _ = nodes.roots()
        found = Candidates(
            base,
            order,
            starts,
            hop.astype(np.int8),
            self._rows_between(maker, around, base, root, ids, pushed),
            root=np.array([begins[name] for name in nodes.types])[of_types] + labels,
            score=score.astype(np.float32),
        )
        begins_of, tokens = maker.chosen(request, nodes, found, ids)
        return maker.fields(request, nodes, found, row.astype(np.int32), begins_of, tokens)

    def _rows_between(
        self,
        maker: TokenMaker,
        around: Neighbourhood,
        base: Array,
        root: Array,
        ids: Array,
        pushed: Array,
    ) -> EdgeRows:
        """Return the edges that were followed from a candidate to another one of its root."""
        types = self.nodes.types
        number = [around.number(t, ids[base[k] : base[k + 1]]) for k, t in enumerate(types)]
        keys = root << 32 | np.concatenate(number)
        by_key = keys.argsort()
        edges, sizes = [], []
        for edge_type in maker.relations:
            kind = types.index(self._ends[edge_type][0])
            channels = [
                1 << channel
                for channel, walked in enumerate(self._channels or [self._edge_types])
                if edge_type in walked
            ]
            # of this seed's pushes alone: rows of others are here, too
            slots = np.flatnonzero(pushed[base[kind] : base[kind + 1]] & sum(channels))
            begin, count, neighbors = around.rows[edge_type].table(around.size)
            nodes = number[kind][slots]
            slots = np.repeat(slots, count[nodes])
            _, reached = parts_of(neighbors, begin[nodes], count[nodes])
            wanted = root[base[kind] + slots] << 32 | reached
            at = by_key[np.minimum(np.searchsorted(keys, wanted, sorter=by_key), keys.size - 1)]
            is_candidate = keys[at] == wanted
            edges.append((slots[is_candidate], at[is_candidate]))
            sizes.append(int(base[kind + 1] - base[kind]))
        return EdgeRows.of(edges, sizes)

    def _walked(self, around: Neighbourhood) -> dict[EdgeType, EdgeCollector]:
        """Return the followed edges among the nodes of the batch."""
        walked = {}
        for edge_type, (expanded, neighbor) in self._ends.items():
            owners, others, ids = around.rows[edge_type].edges(around.size)
            # Rows were requested beyond the top nodes: only edges with both ends in the batch are
            # kept.
            targets = self.nodes.find(expanded, around.ids_of_type(expanded, owners))
            sources = self.nodes.find(neighbor, around.ids_of_type(neighbor, others))
            both = np.flatnonzero((targets >= 0) & (sources >= 0))
            walked[edge_type] = EdgeCollector()
            walked[edge_type].add(sources[both], targets[both], None if ids is None else ids[both])
        return walked


def _candidates(
    name: NodeType,
    roots: Array,
    begins: Mapping[NodeType, int],
    tops: Mapping[NodeType, Mapping[NodeType, TopNodes]],
    nodes: BatchNodes,
) -> tuple[Array, ...]:
    """Return (root, id, row, score, hop, pushed) of the nodes of one type, the roots first."""
    score, places = np.zeros(roots.size), np.arange(roots.size)
    found = [(begins[name] + places, roots, places, score, 0 * places, 0 * places - 1)]
    for seed_type, by_type in tops.items():
        top = by_type[name]
        row = nodes.find(name, top.ids)
        is_root = (row == top.seed) & (seed_type == name)
        score[top.seed[is_root]] = top.values[is_root, 0]
        hop = np.minimum(np.rint(1.0 / top.values[:, 1] - 1.0), 127).astype(np.int64)
        columns = begins[seed_type] + top.seed, top.ids, row, top.values[:, 0], hop, top.pushed
        others = ~is_root
        found.append(tuple(column[others] for column in columns))
    return tuple(map(np.concatenate, zip(*found, strict=True)))


def ppr_sampler(
    view: PartitionView[Array],
    plan: SamplingPlan,
    peers: Peers | None,
    *,
    options: Mapping[str, Any],
    seed_types: Sequence[NodeType],
    channels: Sequence[tuple[Sequence[Sequence[str]], float]] = (),
    around: str = "",
    roots: Mapping[str, Any] | None = None,
) -> PPRSampler:
    """Return a `PPRSampler` from values that can be sent to another process.

    Args:
        view: The partition.
        plan: How to sample.
        peers: The other partitions.
        options: Fields of `PPRSamplerOptions`, but for the channels.
        seed_types: Node types of roots.
        channels: As in `PPRSampler`.
        around: Name of the sampler whose roots are used; empty: the seeds themselves.
        roots: Keywords of those.
    """
    make: MakeRoots | None = None
    if around:
        make_roots, keywords = _AROUND[around].roots, dict(roots or {})
        assert make_roots is not None
        make = lambda reader: make_roots(reader, plan, **keywords)  # noqa: E731
    typed = [
        ([(src, relation, dst) for src, relation, dst in edge_types], ratio)
        for edge_types, ratio in channels
    ]
    return PPRSampler(
        view,
        plan,
        peers,
        options=PPRSamplerOptions(**options),
        seed_types=seed_types,
        channels=typed,
        roots=make,
    )


PPR_KIND = SamplerKind("gigl_loader.sampler.ppr.ppr_sampler.ppr_sampler", kernels=("ppr",))


def ppr_around(
    sampler: SamplerKind, input_type: NodeType, options: PPRSamplerOptions
) -> SamplerKind:
    """Return the PPR sampler whose pushes start at the roots of another sampler.

    Args:
        sampler: The other sampler.
        input_type: Node type of the seeds.
        options: How to push, and how much to keep.
    """
    has_roots = sampler.roots is not None
    return PPR_KIND.with_keywords(
        {
            **ppr_keywords(options),
            "seed_types": sorted(sampler.root_types(input_type)),
            "around": sampler.name if has_roots else "",
            "roots": sampler.keywords if has_roots else {},
        }
    )


def ppr_keywords(options: PPRSamplerOptions) -> dict[str, Any]:
    """Return ``options`` as keywords of `ppr_sampler`, plain values that can be sent."""
    values = {option.name: getattr(options, option.name) for option in fields(options)}
    values.pop("typed_channel_ratios")  # its keys cannot be keys of a message
    return {"options": values, "channels": options.channels}


# --- from scores to nodes -------------------------------------------------------------------------


def top_nodes(
    scores: SeedScores, around: Neighbourhood, node_type: NodeType, most: int, *, topup: bool
) -> TopNodes:
    """Return the nodes of a type with the largest scores, at most ``most`` for each seed.

    Args:
        scores: Result of a push.
        around: The neighbourhood of the push.
        node_type: Type of the nodes.
        most: Nodes for a seed.
        topup: Add residuals to scores, and let nodes that were not pushed fill remaining places.
    """
    by_seed, sizes = scores.by_seed
    most = min(most, int(sizes.max(initial=0)))
    seed, ids, pushed = (np.empty(sizes.size * most, np.int64) for _ in range(3))
    out = seed, ids, pushed, np.empty((sizes.size * most, 2))
    of_slots = scores.score, scores.slots, scores.alpha, topup
    codes = around.codes(node_type)
    count = kernels.top(by_seed, sizes, scores.keys, *codes, *of_slots, most, out)
    return TopNodes(seed[:count], ids[:count], out[-1][:count], pushed[:count])


def merged(channels: Sequence[TopNodes], targets: Sequence[int]) -> TopNodes:
    """Return the nodes of all channels, each once, with the values from each channel.

    A node counts for the channel where it scores most. Each channel fills up to its number of
    positions. Remaining positions go to the best other nodes of any channel.

    Args:
        channels: The top of each.
        targets: Positions of each; their sum is the most nodes for a seed.
    """
    seed = np.concatenate([top.seed for top in channels])
    ids = np.concatenate([top.ids for top in channels])
    number = np.repeat(np.arange(len(channels)), [top.ids.size for top in channels])
    pairs, position = np.unique(np.stack([seed, ids]), axis=1, return_inverse=True)
    # Three numbers of each channel: score, proximity, and whether it has the node.
    by_channel = np.zeros((pairs.shape[1], len(channels), 3))
    top_values = np.concatenate([top.values for top in channels])
    pushed = np.zeros(pairs.shape[1], np.int64)
    for channel, top in enumerate(channels):
        pushed[position.reshape(-1)[number == channel]] |= top.pushed << channel
    by_channel[position.reshape(-1), number, :2] = top_values
    by_channel[position.reshape(-1), number, 2] = 1.0
    scores, near = by_channel[:, :, 0], by_channel[:, :, 1].max(1, initial=0)
    best, channel = scores.max(1, initial=0), scores.argmax(1)
    seed, ids = pairs
    # Ids last in each order: they alone decide between two equal scores.
    order = ranked(seed, channel, -best, ids)
    in_channel = positions_within(seed[order], channel[order])
    # Nodes within their channel's positions come first; the others fill the rest of the sum, best
    # first.
    full = in_channel < np.asarray(targets)[channel[order]]
    order = order[ranked(seed[order], ~full, -best[order], channel[order], ids[order])]
    kept = order[positions_within(seed[order]) < sum(targets)]
    kept = kept[ranked(seed[kept], -best[kept], channel[kept], ids[kept])]
    details = by_channel[kept].reshape(kept.size, 3 * len(channels))
    values = np.concatenate([best[kept, None], near[kept, None], details], axis=1)
    return TopNodes(seed[kept], ids[kept], values, pushed[kept])


def target_counts(ratios: Sequence[float], most: int) -> list[int]:
    """Return the positions of each channel: ``ratios`` of ``most``, by largest remainders."""
    exact = np.asarray(ratios) * most
    # 0.29 * 100 is 28.999...: a whole number that floats miss by a little counts as whole.
    counts = np.floor(exact + 1e-9).astype(np.int64)
    remainders = exact - counts
    for channel in np.argsort(-remainders, kind="stable")[: most - int(counts.sum())]:
        counts[channel] += 1
    return [int(count) for count in counts]


def ranked(*keys: Array) -> Array:
    """Return the order that sorts by the first key, then the next."""
    order: Array = np.lexsort(keys[::-1])
    return order


def positions_within(*groups: Array) -> Array:
    """Return the position of each item in its group; items of a group are side by side."""
    size = groups[0].size
    starts = np.zeros(size, np.bool_)
    starts[:1] = True
    for group in groups:
        starts[1:] |= group[1:] != group[:-1]
    at = np.arange(size)
    # The position where the group began is the largest start up to here.
    positions: Array = at - np.maximum.accumulate(np.where(starts, at, 0)) if size else at
    return positions
