"""How a batch grows from its roots: hop after hop, merged or in disjoint trees."""

from dataclasses import dataclass, field

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.memory.segments import Array
from gigl_loader.message import BatchTicket
from gigl_loader.sampler import _kernels as kernels
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import SamplingPlan, draw_key
from gigl_loader.sampler.questions import Draw, Drawn
from gigl_loader.sampler.roots import EdgeFilter
from gigl_loader.sampler.store import GraphStore


class EdgeCollector:
    """Sampled edges of one type, hop after hop."""

    def __init__(self) -> None:
        self.neighbors: list[Array] = []
        self.targets: list[Array] = []
        self.edge_ids: list[Array] = []
        self.per_hop: list[int] = []

    def add(self, neighbors: Array, targets: Array, edge_ids: Array | None) -> None:
        """Add the edges of one hop, by local labels."""
        self.neighbors.append(neighbors)
        self.targets.append(targets)
        if edge_ids is not None:
            self.edge_ids.append(edge_ids)
        self.per_hop.append(neighbors.size)

    @property
    def count(self) -> int:
        """How many edges there are."""
        return sum(self.per_hop)

    def ids(self) -> Array:
        """Return ``[count]`` int64, the ids of all."""
        return np.concatenate(self.edge_ids) if self.edge_ids else np.empty(0, np.int64)

    def write_edge_index(self, out: Array) -> None:
        """Write all edges to ``out``, ``[2, count]``."""
        if self.neighbors:
            np.concatenate(self.neighbors, out=out[0])
            np.concatenate(self.targets, out=out[1])


@dataclass
class Sampled:
    """What a batch grew to, besides its nodes."""

    edges: dict[EdgeType, EdgeCollector]
    nodes_per_hop: dict[NodeType, list[int]] = field(default_factory=dict)


class Expansion:
    """Expands each node once, in the hop after the one that found it, as PyG does.

    Args:
        store: All partitions.
        plan: Fanouts, and how to draw.
        nodes: Where new nodes get their labels.
    """

    def __init__(self, store: GraphStore, plan: SamplingPlan, nodes: BatchNodes) -> None:
        self._store, self._plan, self._nodes = store, plan, nodes
        self._ends = {name: store.ends(name) for name in plan.fanouts}

    def run(self, ticket: BatchTicket, keep_edges: EdgeFilter | None) -> Sampled:
        """Grow the batch from the roots that are in its nodes; return its edges."""
        counts = {name: self._nodes.count(name) for name in self._nodes.types}
        found = Sampled({name: EdgeCollector() for name in self._plan.fanouts})
        found.nodes_per_hop = {name: [count] for name, count in counts.items()}
        frontier = {name: (0, count) for name, count in counts.items()}
        for hop in range(self._plan.num_hops):
            self._expand(ticket, hop, frontier, found, keep_edges)
            for name in self._nodes.types:
                frontier[name] = (frontier[name][1], self._nodes.count(name))
                found.nodes_per_hop[name].append(frontier[name][1] - frontier[name][0])
        return found

    def _expand(
        self, ticket: BatchTicket, hop: int, frontier: dict[NodeType, tuple[int, int]],
        found: Sampled, keep_edges: EdgeFilter | None,
    ) -> None:  # fmt: skip
        pending = []
        for edge_type, fanout in self._plan.fanouts.items():
            expanded = self._ends[edge_type][0]
            start, stop = frontier[expanded]
            nodes = self._nodes.ids(expanded, start, stop).copy()
            draw = make_draw(self._plan, ticket, hop, edge_type, fanout[hop])
            pending.append((edge_type, start, self._store.draw(draw, nodes)))
        for edge_type, start, drawn in pending:  # asked all before the first is waited for
            self._collect(edge_type, start, drawn(), found.edges[edge_type], keep_edges)

    def _collect(
        self, edge_type: EdgeType, first: int, drawn: Drawn, edges: EdgeCollector,
        keep_edges: EdgeFilter | None,
    ) -> None:  # fmt: skip
        targets = np.empty(drawn.neighbors.size, np.int64)
        kernels.repeat_rows(drawn.counts, first, targets)
        if keep_edges is not None:
            targets, drawn = keep_edges(edge_type, targets, drawn)
        expanded, neighbor = self._ends[edge_type]
        labels = self._nodes.reach(neighbor, drawn.neighbors, expanded, targets)
        edges.add(labels, targets, drawn.edge_ids)


def make_draw(
    plan: SamplingPlan, ticket: BatchTicket, hop: int, edge_type: EdgeType, fanout: int
) -> Draw:
    """Return the question that one hop of a batch asks over one edge type."""
    return Draw(
        edge_type,
        fanout,
        draw_key(plan, ticket, hop, edge_type),
        replace=plan.replace,
        with_weight=plan.with_weight,
        with_edge=plan.with_edge,
    )
