"""Batches of the nodes with the largest personalised PageRank around each root."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory.segments import Array
from gigl_loader.message import EDGE_FEATURES, EDGE_INDEX, EDGES_PER_HOP, PPR, BatchTicket, key
from gigl_loader.options import PPRSamplerOptions
from gigl_loader.sampler import _ppr_kernels as kernels
from gigl_loader.sampler.edges import EdgeRoots
from gigl_loader.sampler.link import AnchorRoots
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import Field, SampleRequest, SamplingPlan, draw_key
from gigl_loader.sampler.ppr_push import ForwardPush, Neighbourhood
from gigl_loader.sampler.ppr_top import Top, merged, target_counts, top_nodes
from gigl_loader.sampler.questions import Draw, Drawn, Peers
from gigl_loader.sampler.roots import EdgeFilter, MakeRoots
from gigl_loader.sampler.sampled import EdgeCollector, Sampled

_ROOTS = {"anchor_sampler": AnchorRoots, "edge_sampler": EdgeRoots}
_HOP = 1 << 33
"""Takes the position of a hop in the keys of rows that are too long: above those of negatives."""
_NOT_A_ROOT = 1 << 62


class PPRSampler(NeighborSampler):
    """Samples the top nodes of each root, in place of its neighbourhood.

    Args:
        view: The partition.
        plan: What to sample; its fanouts name the edge types to walk.
        peers: The other partitions.
        options: How to push, and how much to keep.
        seed_types: Node types of roots; a batch has edges from each to every node type.
        channels: Edge types and share of each; none: all edge types are walked together.
        roots: As in `NeighborSampler`.
    """

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
        # Compiled before the first batch, whose time would show it; other samplers do without them.
        kernels.load()
        super().__init__(view, plan, peers, roots)
        self._options, self._seed_types = options, sorted(set(seed_types))
        self._edge_types = list(plan.fanouts)
        self._ends = {edge_type: self._reader.ends(edge_type) for edge_type in self._edge_types}
        self._channels = [edge_types for edge_types, _ in channels]
        self._targets = target_counts([ratio for _, ratio in channels], options.max_ppr_nodes)

    def sample(self, request: SampleRequest) -> Sequence[Field]:
        """Return the fields of the batch of ``request``."""
        self._nodes.reset(self._times.of(request))
        placed = self._roots.place(request, self._nodes)
        types = self._nodes.types
        # Copies: what is labelled below may move the memory that these are views of.
        roots = {name: self._nodes.ids(name).copy() for name in types}
        around = self._around(request.ticket, roots, placed.keep_edges)
        fields = []
        for seed_type in self._seed_types:
            tops = self._tops(around, seed_type, roots[seed_type])
            for node_type in types:
                fields += self._ppr_fields(seed_type, node_type, tops[node_type])
        count = self._nodes.count
        # After all tops were labelled: "hop 1" is what they have added to the roots.
        per_hop = {t: [roots[t].size, count(t) - roots[t].size] for t in types}
        followed = self._walked(around) if self._options.include_sampled_edges else {}
        found = Sampled(followed, per_hop)
        return [*placed.fields, *self._node_fields(found), *fields, *self._edge_fields(found)]

    def _around(
        self, ticket: BatchTicket, roots: Mapping[NodeType, Array], keep: EdgeFilter | None
    ) -> Neighbourhood:
        most = self._options.num_neighbors_per_hop
        with_edge = self._plan.with_edge and self._options.include_sampled_edges
        draws = {
            name: Draw(name, most, draw_key(self._plan, ticket, _HOP, name), with_edge=with_edge)
            for name in self._edge_types
        }

        def kept(edge_type: EdgeType, ids: Array, drawn: Drawn) -> Drawn:
            """Drop what a batch goes without: edges between roots."""
            expanded = self._ends[edge_type][0]
            # Filters take labels of the batch, and know a root by one below the number of roots.
            # Other nodes have none yet, or one as the top of another seed type: they get one above.
            labels = self._nodes.find(expanded, ids)
            labels[(labels < 0) | (labels >= roots[expanded].size)] = _NOT_A_ROOT
            assert keep is not None
            return keep(edge_type, np.repeat(labels, drawn.counts), drawn)[1]

        return Neighbourhood(
            self._reader, self._ends, draws, self._nodes.types, None if keep is None else kept
        )

    def _tops(
        self, around: Neighbourhood, seed_type: NodeType, seeds: Array
    ) -> dict[NodeType, Top]:
        """Return the top of all seeds, by type of the nodes."""
        options, pushed = self._options, []
        for edge_types in self._channels or [self._edge_types]:
            push = ForwardPush(
                around, edge_types, options.alpha, options.eps, options.max_fetch_iterations
            )
            pushed.append(push.run(seed_type, seeds))
        found = {}
        most, topup = options.max_ppr_nodes, options.enable_residual_topup
        for node_type in self._nodes.types:
            tops = [top_nodes(slots, around, node_type, most, topup=topup) for slots in pushed]
            found[node_type] = merged(tops, self._targets) if self._channels else tops[0]
        return found

    def _ppr_fields(self, seed_type: NodeType, node_type: NodeType, top: Top) -> list[Field]:
        links = np.stack([top.seed, self._nodes.label(node_type, top.ids)])
        values = top.values.astype(np.float32)
        if self._view.is_heterogeneous:
            name = (seed_type, PPR, node_type)
            return [
                Field.of(key(EDGE_INDEX, name), links), Field.of(key(EDGE_FEATURES, name), values)
            ]  # fmt: skip
        return [
            Field.of(EDGE_INDEX, links),
            Field.of(EDGE_FEATURES, values),
            Field.of(EDGES_PER_HOP, np.empty(0, np.int64)),
        ]

    def _walked(self, around: Neighbourhood) -> dict[EdgeType, EdgeCollector]:
        """Return the edges among the nodes of the batch that were followed."""
        found = {}
        for edge_type, (expanded, neighbor) in self._ends.items():
            owners, others, ids = around.rows[edge_type].edges(around.size)
            # Rows were asked for beyond the top nodes: only edges with both ends in the batch are
            # kept.
            targets = self._nodes.find(expanded, around.ids_of_type(expanded, owners))
            sources = self._nodes.find(neighbor, around.ids_of_type(neighbor, others))
            both = np.flatnonzero((targets >= 0) & (sources >= 0))
            found[edge_type] = EdgeCollector()
            found[edge_type].add(
                sources[both], targets[both], None if ids is None else ids[both]
            )  # fmt: skip
        return found


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
    """Return a `PPRSampler` of values that can travel.

    Args:
        view: The partition.
        plan: What to sample.
        peers: The other partitions.
        options: Fields of `PPRSamplerOptions`, but for the channels.
        seed_types: Node types of roots.
        channels: As in `PPRSampler`.
        around: ``"anchor_sampler"`` or ``"edge_sampler"``, whose roots are to be used; empty: the
            seeds themselves.
        roots: Keywords of those.
    """
    make: MakeRoots | None = None
    if around:
        kind, keywords = _ROOTS[around], dict(roots or {})
        make = lambda reader: kind(reader, plan, **keywords)  # noqa: E731
    typed = [
        ([(src, relation, dst) for src, relation, dst in edge_types], ratio)
        for edge_types, ratio in channels
    ]
    return PPRSampler(
        view, plan, peers, options=PPRSamplerOptions(**options), seed_types=seed_types,
        channels=typed, roots=make,
    )  # fmt: skip
