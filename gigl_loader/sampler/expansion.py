"""How a batch grows from its roots: hop after hop, merged or in disjoint trees."""

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.message import BatchTicket
from gigl_loader.sampler import _kernels as kernels
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import SamplingPlan, draw_key
from gigl_loader.sampler.questions import Asked, Draw, Drawn
from gigl_loader.sampler.reader import GraphReader
from gigl_loader.sampler.roots import EdgeFilter
from gigl_loader.sampler.sampled import EdgeCollector, Sampled
from gigl_loader.sampler.subgraph import bidirectional, induced
from gigl_loader.sampler.times import Limits, SeedTimes


class Expansion:
    """Expands each node once, in the hop after the one that found it, as PyG does.

    Args:
        reader: Of all partitions.
        plan: Fanouts, and how to draw.
        nodes: Where new nodes get their labels.
        times: What the times of seeds allow.
    """

    def __init__(
        self, reader: GraphReader, plan: SamplingPlan, nodes: BatchNodes, times: SeedTimes
    ) -> None:
        self._reader, self._plan, self._nodes, self._times = reader, plan, nodes, times
        self._ends = {name: reader.ends(name) for name in plan.fanouts}

    def run(self, ticket: BatchTicket, keep_edges: EdgeFilter | None) -> Sampled:
        """Grow the batch from the roots that are in its nodes; return its edges."""
        counts = {name: self._nodes.count(name) for name in self._nodes.types}
        found = Sampled({name: EdgeCollector() for name in self._plan.fanouts})
        found.nodes_per_hop = {name: [count] for name, count in counts.items()}
        # Labels of the nodes that the last hop found: [start, stop) by type. First, the roots.
        frontier = {name: (0, count) for name, count in counts.items()}
        # Once a batch: no tree is added after the roots, and a tree has one time.
        limits = self._times.limits(self._nodes)
        for hop in range(self._plan.num_hops):
            self._expand(ticket, hop, frontier, found, limits, keep_edges)
            for name in self._nodes.types:
                # After all edge types of the hop: a node that one of them finds is expanded in the
                # next hop, not by an edge type that comes later in this one.
                frontier[name] = (frontier[name][1], self._nodes.count(name))
                found.nodes_per_hop[name].append(frontier[name][1] - frontier[name][0])
        # An induced subgraph starts from the nodes alone; the edges that led to them are dropped.
        kind = self._plan.expansion.subgraph_type
        if kind == "induced":
            return induced(self._nodes, self._reader, self._plan, keep_edges)
        if kind == "bidirectional":
            return bidirectional(found, typed=self._reader.view.is_heterogeneous)
        return found

    def _expand(
        self, ticket: BatchTicket, hop: int, frontier: dict[NodeType, tuple[int, int]],
        found: Sampled, limits: Limits | None, keep_edges: EdgeFilter | None,
    ) -> None:  # fmt: skip
        pending = []
        for edge_type, fanout in self._plan.fanouts.items():
            expanded = self._ends[edge_type][0]
            start, stop = frontier[expanded]
            nodes = self._nodes.ids(expanded, start, stop)
            nodes = nodes if self._nodes.disjoint else nodes.copy()  # a view of what may move
            draw = self._draw(ticket, hop, edge_type, fanout[hop])
            asked = None
            if self._nodes.disjoint:
                trees = self._nodes.trees(expanded, start, stop)
                # An edge type may have no times though others have: its neighbours are of any time.
                asked = limits.asked(trees) if limits and draw.timed else Asked(trees)
            pending.append((edge_type, start, self._reader.draw(draw, nodes, asked)))
        for edge_type, start, drawn in pending:  # asked all before the first is waited for
            # In the order of the plan, whatever comes first: labels count up in the order of this.
            self._collect(edge_type, start, drawn(), found.edges[edge_type], keep_edges)

    def _collect(
        self, edge_type: EdgeType, first: int, drawn: Drawn, edges: EdgeCollector,
        keep_edges: EdgeFilter | None,
    ) -> None:  # fmt: skip
        targets = np.empty(drawn.neighbors.size, np.int64)
        kernels.repeat_rows(drawn.counts, first, targets)
        # Before nodes are labelled: one that only such edges lead to is not in the batch.
        if keep_edges is not None:
            targets, drawn = keep_edges(edge_type, targets, drawn)
        expanded, neighbor = self._ends[edge_type]
        labels = self._nodes.reach(neighbor, drawn.neighbors, expanded, targets)
        edges.add(labels, targets, drawn.edge_ids)

    def _draw(self, ticket: BatchTicket, hop: int, edge_type: EdgeType, fanout: int) -> Draw:
        """Return the question that one hop of a batch asks over one edge type."""
        plan, how = self._plan, self._plan.expansion
        labor = how.sampler == "labor"
        # of LABOR a neighbour's number is the same whichever edge type leads to it
        keyed_by = ("", "labor", self._ends[edge_type][1]) if labor else edge_type
        return Draw(
            edge_type,
            fanout,
            draw_key(plan, ticket, hop, keyed_by),
            replace=plan.replace,
            with_weight=plan.with_weight,
            with_edge=plan.with_edge,
            labor=labor,
            timed=how.time_attr is not None and edge_type in self._reader.view.times,
            last=how.temporal_strategy == "last",
        )
