"""How a batch grows from its roots: hop after hop, merged or in disjoint trees.

The last step of an expansion may replace the sampled edges. ``"bidirectional"`` and ``"induced"``
have PyG's meaning; edges of an induced subgraph in other partitions are requested.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.kernels import sampling_kernels as kernels
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Draw, Drawn, SamplingPlan, TreesAndTimes
from gigl_loader.sampler.roots import EdgeFilter, Limits, SeedTimes
from gigl_loader.sampler.rows.reader import GraphReader


class EdgeCollector:
    """Sampled edges of one type, hop after hop, by local labels."""

    def __init__(self, *, has_ids: bool = True) -> None:
        self.neighbors: list[Array] = []
        self.targets: list[Array] = []
        self.edge_ids: list[Array] = []
        self.per_hop: list[int] = []
        self.has_ids = has_ids
        """False: an edge here stands for several of the graph."""

    def add(self, neighbors: Array, targets: Array, edge_ids: Array | None) -> None:
        """Add the edges of one hop."""
        self.neighbors.append(neighbors)
        self.targets.append(targets)
        if edge_ids is not None:
            self.edge_ids.append(edge_ids)
        self.per_hop.append(neighbors.size)

    @property
    def count(self) -> int:
        """The number of edges."""
        return sum(self.per_hop)

    def ids(self) -> Array:
        """Return ``[count]`` int64, the ids of all."""
        return np.concatenate(self.edge_ids) if self.edge_ids else np.empty(0, np.int64)

    def as_index(self) -> Array:
        """Return ``[2, count]`` int64, neighbours and the nodes they were drawn for."""
        index = np.empty((2, self.count), np.int64)
        self.write_edge_index(index)
        return index

    def write_edge_index(self, out: Array) -> None:
        """Write `as_index` to ``out``."""
        if self.neighbors:
            # Into the message: edges of all hops are concatenated once, directly where they are
            # sent.
            np.concatenate(self.neighbors, out=out[0])
            np.concatenate(self.targets, out=out[1])


@dataclass
class Sampled:
    """Result of the expansion of a batch, besides its nodes."""

    edges: dict[EdgeType, EdgeCollector]
    nodes_per_hop: dict[NodeType, list[int]] = field(default_factory=dict)
    """Empty if hops are no longer distinguished."""
    found_per_hop: dict[NodeType, list[int]] = field(default_factory=dict)
    """The same, but never empty: nodes lie in the order in which hops found them."""


class Expansion:
    """Expands each node once, in the hop after the one that found it, as PyG does.

    Args:
        reader: Reader of all partitions.
        plan: Fanouts, and how to draw.
        nodes: Gives labels to new nodes.
        times: Limits from the times of seeds.
    """

    def __init__(
        self, reader: GraphReader, plan: SamplingPlan, nodes: BatchNodes, times: SeedTimes
    ) -> None:
        self._reader, self._plan, self._nodes, self._times = reader, plan, nodes, times
        self._ends = {name: reader.ends(name) for name in plan.fanouts}

    def run(self, ticket: BatchTicket, keep_edges: EdgeFilter | None) -> Sampled:
        """Grow the batch from the roots that are in its nodes; return its edges."""
        counts = {name: self._nodes.count(name) for name in self._nodes.types}
        sampled = Sampled({name: EdgeCollector() for name in self._plan.fanouts})
        sampled.nodes_per_hop = {name: [count] for name, count in counts.items()}
        # Labels of the nodes that the last hop found: [start, stop) by type. First, the roots.
        frontier = {name: (0, count) for name, count in counts.items()}
        # Once per batch: no tree is added after the roots, and a tree has one time.
        limits = self._times.limits(self._nodes)
        adaptive = self._plan.expansion.adaptive_fanout
        free = np.zeros(self._nodes.seeds.size, np.int64) if adaptive else None
        for hop in range(self._plan.num_hops):
            self._expand(ticket, hop, frontier, sampled, limits, keep_edges, free)
            for name in self._nodes.types:
                # After all edge types of the hop: a node found by one of them is expanded in the
                # next hop, not by a later edge type of this one.
                frontier[name] = (frontier[name][1], self._nodes.count(name))
                sampled.nodes_per_hop[name].append(frontier[name][1] - frontier[name][0])
        # An induced subgraph starts from the nodes alone; the edges that led to them are dropped.
        kind, found_per_hop = self._plan.expansion.subgraph_type, sampled.nodes_per_hop
        if kind == "induced":
            sampled = induced(self._nodes, self._reader, self._plan, keep_edges)
        elif kind == "bidirectional":
            sampled = bidirectional(sampled, typed=self._reader.view.is_heterogeneous)
        sampled.found_per_hop = found_per_hop
        return sampled

    def _expand(
        self,
        ticket: BatchTicket,
        hop: int,
        frontier: dict[NodeType, tuple[int, int]],
        sampled: Sampled,
        limits: Limits | None,
        keep_edges: EdgeFilter | None,
        free: Array | None,
    ) -> None:
        """Expand the nodes of the last hop.

        ``free`` has the places of each tree that earlier hops left free, and gets those that this
        hop leaves; None: places are not moved.
        """
        pending = []
        fanouts = {} if free is None else self._adapted(hop, frontier, free)
        for edge_type in self._plan.fanouts:
            expanded = self._ends[edge_type][0]
            start, stop = frontier[expanded]
            if start == stop or not self._plan.fanouts[edge_type][hop]:
                sampled.edges[edge_type].per_hop.append(0)
                continue  # nothing to draw: most types are not reached in each hop
            nodes = self._nodes.ids(expanded, start, stop)
            nodes = nodes if self._nodes.disjoint else nodes.copy()  # the view's memory may move
            draw = self._plan.draw_of(ticket, hop, edge_type, self._reader.view)
            of_trees = None
            if self._nodes.disjoint:
                trees = self._nodes.trees(expanded, start, stop)
                # An edge type may lack times that others have: its neighbours are of any time.
                of_trees = limits.of(trees) if limits and draw.timed else TreesAndTimes(trees)
                if (places := self._nodes.places) is not None:
                    of_trees = replace(of_trees, tree=places[trees])
                of_trees = replace(of_trees, fanout=fanouts.get(edge_type))
            pending.append((edge_type, start, stop, self._reader.draw(draw, nodes, of_trees)))
        for edge_type, start, stop, answer in pending:  # all are requested before the first wait
            drawn = answer()
            if free is not None and edge_type in fanouts:
                trees = self._nodes.trees(self._ends[edge_type][0], start, stop)
                np.add.at(free, trees, fanouts[edge_type] - drawn.counts)
            # In the order of the plan, not of arrival: this order decides the labels.
            self._collect(edge_type, start, drawn, sampled.edges[edge_type], keep_edges)

    def _adapted(
        self, hop: int, frontier: dict[NodeType, tuple[int, int]], free: Array
    ) -> dict[EdgeType, Array]:
        """Return by edge type the fan-out of each expanded node, free places shared out evenly.

        They are taken from ``free`` of the node's tree. What does not divide goes to the first
        nodes, in the order of edge types and labels.
        """
        fanouts = {name: hops[hop] for name, hops in self._plan.fanouts.items() if hops[hop]}
        ends = [self._ends[name][0] for name in fanouts]
        trees = [self._nodes.trees(end, *frontier[end]) for end in ends]
        of = np.concatenate([np.empty(0, np.int64), *trees])
        counts = np.bincount(of, minlength=free.size)
        rank = np.empty(of.size, np.int64)  # of a node among all that its tree expands
        order = np.argsort(of, kind="stable")
        rank[order] = np.arange(of.size) - (counts.cumsum() - counts)[of[order]]
        share, rest = np.divmod(free, np.maximum(counts, 1))
        more = share[of] + (rank < rest[of])
        free[counts > 0] = 0
        parts = np.split(more, np.cumsum([one.size for one in trees]))
        most = (1 << 31) - 1  # a wider one is refused by other partitions
        of_each = zip(fanouts.items(), parts[:-1], strict=True)
        return {name: np.minimum(part + fanout, most) for (name, fanout), part in of_each}

    def _collect(
        self,
        edge_type: EdgeType,
        first: int,
        drawn: Drawn,
        edges: EdgeCollector,
        keep_edges: EdgeFilter | None,
    ) -> None:
        targets = np.empty(drawn.neighbors.size, np.int64)
        kernels.repeat_rows(drawn.counts, first, targets)
        # Before nodes are labelled: a node reached only by dropped edges is not in the batch.
        if keep_edges is not None:
            targets, drawn = keep_edges(edge_type, targets, drawn)
        expanded, neighbor = self._ends[edge_type]
        labels = self._nodes.label_ids(neighbor, drawn.neighbors, expanded, targets)
        edges.add(labels, targets, drawn.edge_ids)


def induced(
    nodes: BatchNodes, reader: GraphReader, plan: SamplingPlan, keep_edges: EdgeFilter | None
) -> Sampled:
    """Return all edges between the sampled nodes, of the walked types."""
    pending = []
    for edge_type in plan.fanouts:
        # No key: all neighbours are taken.
        draw = Draw(edge_type, -1, 0, with_edge=plan.with_edge, most=plan.most_drawn)
        expanded = nodes.ids(reader.ends(edge_type)[0]).copy()
        pending.append((edge_type, reader.draw(draw, expanded)))
    sampled = Sampled({})
    for edge_type, answer in pending:  # all are requested before the first wait
        drawn = answer()
        targets = np.empty(drawn.neighbors.size, np.int64)
        kernels.repeat_rows(drawn.counts, 0, targets)
        if keep_edges is not None:
            targets, drawn = keep_edges(edge_type, targets, drawn)
        sampled.edges[edge_type] = _inside(nodes, reader.ends(edge_type)[1], targets, drawn)
    return sampled


def _inside(nodes: BatchNodes, neighbor: str, targets: Array, drawn: Drawn) -> EdgeCollector:
    labels = nodes.find(neighbor, drawn.neighbors)
    # Whole rows are requested, as owners do not know the nodes of the batch.
    sampled = np.flatnonzero(labels >= 0)
    edges = EdgeCollector()
    ids = None if drawn.edge_ids is None else drawn.edge_ids[sampled]
    edges.add(labels[sampled], targets[sampled], ids)
    return edges


def bidirectional(sampled: Sampled, *, typed: bool) -> Sampled:
    """Return the sampled edges in both directions, each pair of nodes once.

    An edge type between two node types includes the edges of its reverse type: the type named
    ``rev_...``, or the only one between these types in the other direction. An edge type without a
    reverse type is unchanged. With several edge types, merged ones have no edge ids, as in PyG: an
    edge stands for two, perhaps of two types.

    Args:
        sampled: The edges.
        typed: The batch will be a `HeteroData`.
    """
    both_ways = Sampled(dict(sampled.edges))
    for edge_type, reverse in _pairs(list(sampled.edges)):
        both = _with_reverse_edges(
            sampled.edges[edge_type], sampled.edges[reverse], with_ids=not typed
        )
        both_ways.edges[edge_type] = both
        if reverse[1] == f"rev_{edge_type[1]}":
            turned = EdgeCollector(has_ids=False)
            # The name means that these are the same edges reversed, so `_pairs` skips them.
            turned.add(both.targets[0], both.neighbors[0], None)
            both_ways.edges[reverse] = turned
    return both_ways


def _pairs(edge_types: list[EdgeType]) -> Iterator[tuple[EdgeType, EdgeType]]:
    """Yield each edge type with its reverse type, if any; a type may be its own reverse."""
    for edge_type in edge_types:
        src, relation, dst = edge_type
        # Paired, if at all, by the type whose reverse it is.
        if relation.startswith("rev_"):
            continue
        named = (dst, f"rev_{relation}", src)
        turned = [other for other in edge_types if (other[0], other[2]) == (dst, src)]
        if named in edge_types:
            yield edge_type, named
        elif src == dst:
            yield edge_type, edge_type
        elif len(turned) == 1:
            yield edge_type, turned[0]


def _with_reverse_edges(
    edges: EdgeCollector, to_reverse: EdgeCollector, *, with_ids: bool
) -> EdgeCollector:
    """Return the edges of ``edges`` and those of ``to_reverse``, reversed, ascending by target."""
    first, second = edges.as_index(), to_reverse.as_index()
    neighbors, targets = np.concatenate([first, second[::-1]], axis=1)
    width = 1 + int(neighbors.max(initial=0))
    # Sorted by target, then neighbour; a repeated pair has the id of its first edge.
    keys, chosen = np.unique(targets * width + neighbors, return_index=True)
    ids = edges.ids()
    both = EdgeCollector(has_ids=with_ids and edges.has_ids)
    edge_ids = np.concatenate([ids, ids])[chosen] if with_ids and ids.size else None
    both.add(keys % width, keys // width, edge_ids)
    return both
