"""What becomes of the sampled edges: the last step of an expansion.

``"bidirectional"`` and ``"induced"`` have PyG's meaning; edges of an induced subgraph that are at
other partitions are asked for.
"""

from collections.abc import Iterator

import numpy as np

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.memory.segments import Array
from gigl_loader.sampler import _kernels as kernels
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.sampler.questions import Draw, Drawn
from gigl_loader.sampler.reader import GraphReader
from gigl_loader.sampler.roots import EdgeFilter
from gigl_loader.sampler.sampled import EdgeCollector, Sampled


def induced(
    nodes: BatchNodes, reader: GraphReader, plan: SamplingPlan, keep_edges: EdgeFilter | None
) -> Sampled:
    """Return all edges between the sampled nodes, of the types that are walked."""
    pending = []
    for edge_type in plan.fanouts:
        # No key: of all neighbours nothing is drawn.
        draw = Draw(edge_type, fanout=-1, key=0, with_edge=plan.with_edge)
        asked = nodes.ids(reader.ends(edge_type)[0]).copy()
        pending.append((edge_type, reader.draw(draw, asked)))
    found = Sampled({})
    for edge_type, answer in pending:  # asked all before the first is waited for
        drawn = answer()
        targets = np.empty(drawn.neighbors.size, np.int64)
        kernels.repeat_rows(drawn.counts, 0, targets)
        if keep_edges is not None:
            targets, drawn = keep_edges(edge_type, targets, drawn)
        found.edges[edge_type] = _inside(nodes, reader.ends(edge_type)[1], targets, drawn)
    return found


def _inside(nodes: BatchNodes, neighbor: str, targets: Array, drawn: Drawn) -> EdgeCollector:
    labels = nodes.find(neighbor, drawn.neighbors)
    # Asked for whole rows, as owners do not know which nodes a batch has.
    here = np.flatnonzero(labels >= 0)
    edges = EdgeCollector()
    ids = None if drawn.edge_ids is None else drawn.edge_ids[here]
    edges.add(labels[here], targets[here], ids)
    return edges


def bidirectional(sampled: Sampled, *, typed: bool) -> Sampled:
    """Return the sampled edges in both directions, each pair of nodes once.

    An edge type between two node types takes in the edges of its reverse type: that of the name
    ``rev_...``, or the only one between these types the other way round. One without a reverse
    type stays as it was sampled. Of a graph with several types merged ones have no edge ids, as PyG
    has it: an edge stands for two, perhaps of two types.

    Args:
        sampled: The edges.
        typed: The batch will be a `HeteroData`.
    """
    found = Sampled(dict(sampled.edges))
    for edge_type, reverse in _pairs(list(sampled.edges)):
        both = _merged(sampled.edges[edge_type], sampled.edges[reverse], with_ids=not typed)
        found.edges[edge_type] = both
        if reverse[1] == f"rev_{edge_type[1]}":
            turned = EdgeCollector(has_ids=False)
            # That name says that it is the same edges turned round, which `_pairs` leaves to this.
            turned.add(both.targets[0], both.neighbors[0], None)
            found.edges[reverse] = turned
    return found


def _pairs(edge_types: list[EdgeType]) -> Iterator[tuple[EdgeType, EdgeType]]:
    """Yield each edge type that has a reverse type, with it; a type may be its own."""
    for edge_type in edge_types:
        src, relation, dst = edge_type
        # Paired, if at all, by the type that it is the reverse of.
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


def _merged(own: EdgeCollector, other: EdgeCollector, *, with_ids: bool) -> EdgeCollector:
    """Return the edges of ``own`` and those of ``other`` turned round, ascending by target."""
    first, second = own.as_index(), other.as_index()
    neighbors, targets = np.concatenate([first, second[::-1]], axis=1)
    width = 1 + int(neighbors.max(initial=0))
    # Sorted by target, then neighbour; of a pair that is there twice the first edge gives its id.
    keys, chosen = np.unique(targets * width + neighbors, return_index=True)
    ids = own.ids()
    edges = EdgeCollector(has_ids=with_ids and own.has_ids)
    found = np.concatenate([ids, ids])[chosen] if with_ids and ids.size else None
    edges.add(keys % width, keys // width, found)
    return edges
