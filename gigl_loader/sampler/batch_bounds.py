"""The most nodes and edges that a batch can have, from fan-outs, roots and the graph's sizes.

Batches of one shape are as large as these bounds, and a device reserves memory for them. So no
batch may exceed them. Arithmetic alone: no torch, and no array.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError

# Eight bytes each for the position of an edge, its neighbour, two labels and its place among the
# existing edges; and the keys and places that are sorted to give labels.
_PLACE_BYTES, _SORTED_BYTES = 5 * 8, 4 * 8
BATCHES_HELD = 2
"""Batches that a device holds beside those under way: the current one in training, and the next."""


@dataclass(frozen=True)
class BatchBounds:
    """The largest size of a batch. Edge types have their names in the graph.

    The total of a type may be less than the sum over its hops: each node is found by one hop only.
    """

    nodes_per_hop: dict[NodeType, tuple[int, ...]]
    """``[hops + 1]``: the roots, then the nodes that each hop can find."""
    edges_per_hop: dict[EdgeType, tuple[int, ...]]
    """``[hops]``: the edges that each hop can draw."""
    nodes: dict[NodeType, int]
    """Total over all hops."""
    edges: dict[EdgeType, int]
    """Total over all hops."""

    @property
    def device_bytes(self) -> int:
        """Bytes of a device that draws such a batch, without the rows of its nodes and edges."""
        places, labels = sum(self.edges.values()), sum(self.nodes.values())
        return places * _PLACE_BYTES + (places + labels) * _SORTED_BYTES


def batch_bounds(
    fanouts: Mapping[EdgeType, Sequence[int]],
    roots: Mapping[NodeType, int],
    num_nodes: Mapping[NodeType, int],
    *,
    edge_dir: str,
    disjoint: bool = False,
    roots_repeat: bool = True,
    degrees: Mapping[EdgeType, int] | None = None,
    num_edges: Mapping[EdgeType, int] | None = None,
) -> BatchBounds:
    """Return the most nodes and edges of a batch that is grown hop by hop.

    Args:
        fanouts: Neighbours per hop by edge type, the same number of hops for all; -1: all.
        roots: The most roots of a batch, by type; a type that is left out has none.
        num_nodes: Nodes of the whole graph by type: all types that a batch can have.
        edge_dir: ``"in"``: the destination of an edge type is expanded, ``"out"``: its source.
        disjoint: Nodes come once in each tree, so the graph's size limits nothing.
        roots_repeat: Whether a node may be a root more than once, each time with another label.
            This changes only the count of merged nodes.
        degrees: The largest degree of the expanded nodes, by edge type, used in place of a
            fan-out of -1. None: such a fan-out has no bound.
        num_edges: Edges of the whole graph by type, for draws without replacement: then an edge
            is drawn once for each time that its node is expanded. That is once in a batch, and in
            each of its disjoint trees; a root that comes again is expanded again. The limit of a
            type that is left out is not known. None: of all.

    Raises:
        ConfigError: A fan-out is -1 and ``degrees`` has no bound for it.
    """
    expanded, neighbor = (2, 0) if edge_dir == "in" else (0, 2)
    limits = {name: count for name, count in (num_edges or {}).items() if name in fanouts}
    widths = {
        name: tuple(_at_most(width, limits.get(name)) for width in _widths(name, hops, degrees))
        for name, hops in fanouts.items()
    }
    start = {name: roots.get(name, 0) for name in num_nodes}
    if not (roots_repeat or disjoint):
        start = {name: min(count, num_nodes[name]) for name, count in start.items()}
    # With roots, at least one node is already found: all roots may be that one.
    most = {
        name: None if disjoint else max(count - min(start[name], 1), 0)
        for name, count in num_nodes.items()
    }
    given = {}  # by the graph to a batch, at most
    for name, count in limits.items():
        if disjoint:  # to each tree, and for each time that a root comes in it
            given[name] = sum(start.values()) * count
        else:  # a node that is a root n times draws n times in the first hop, all others once
            again = max(start[name[expanded]] - 1, 0) if roots_repeat else 0
            given[name] = count + again * max(widths[name][:1], default=0)
    nodes_per_hop = {name: [count] for name, count in start.items()}
    edges_per_hop: dict[EdgeType, list[int]] = {name: [] for name in widths}
    for hop in range(len(next(iter(widths.values()), ()))):
        for name, counts in edges_per_hop.items():
            drawn = nodes_per_hop[name[expanded]][hop] * widths[name][hop]
            counts.append(_at_most(drawn, given.get(name)))
        for node_type, counts in nodes_per_hop.items():
            # At worst each edge of the hop leads to a node that no other edge led to.
            reached = sum(
                edges[hop] for name, edges in edges_per_hop.items() if name[neighbor] == node_type
            )
            counts.append(_at_most(reached, most[node_type]))
    nodes = {}
    for node_type, (first, *later) in nodes_per_hop.items():
        found = _at_most(sum(later), most[node_type])
        leading = [name for name in widths if name[neighbor] == node_type]
        if given.keys() >= set(leading):  # each of them was found by an edge of its own
            found = min(found, sum(given[name] for name in leading))
        nodes[node_type] = first + found
        if not (roots_repeat or disjoint):
            nodes[node_type] = min(nodes[node_type], num_nodes[node_type])
    ends = {name: name[expanded] for name in widths}
    return BatchBounds(
        {name: tuple(counts) for name, counts in nodes_per_hop.items()},
        {name: tuple(counts) for name, counts in edges_per_hop.items()},
        nodes,
        {
            name: _at_most(
                _most_edges(widths[name], nodes_per_hop[end], nodes[end]), given.get(name)
            )
            for name, end in ends.items()
        },
    )


def _widths(
    edge_type: EdgeType, hops: Sequence[int], degrees: Mapping[EdgeType, int] | None
) -> tuple[int, ...]:
    """Return the most neighbours drawn for a node in each hop."""
    if min(hops, default=0) >= 0:
        return tuple(hops)
    if degrees is None or edge_type not in degrees:
        raise ConfigError(
            f"num_neighbors of {edge_type} is {list(hops)}: -1 takes all neighbours of a node, "
            "which bounds no batch"
        )
    return tuple(degrees[edge_type] if fanout < 0 else fanout for fanout in hops)


def _at_most(count: int, most: int | None) -> int:
    return count if most is None else min(count, most)


def _most_edges(widths: Sequence[int], frontiers: Sequence[int], num_nodes: int) -> int:
    """Return the most edges of a type over all hops; each node is expanded once.

    Args:
        widths: ``[hops]``, the most neighbours of a node.
        frontiers: ``[hops + 1]``, the most nodes expanded in each hop.
        num_nodes: The most nodes of that type in all hops together.
    """
    # In the worst case all possible nodes are expanded in the hops that draw most.
    total, left = 0, num_nodes
    for width, frontier in sorted(zip(widths, frontiers, strict=False), reverse=True):
        taken = min(frontier, left)
        total, left = total + taken * width, left - taken
    return total
