"""Graphs, plans and batches of one sampler, for the tests of how a batch grows."""

import numpy as np
from hypothesis import strategies as st

from gigl_loader.batch.collate import to_data, to_hetero_data
from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    reverse_edge_type,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.options import ExpansionOptions
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets, sample_message

N = DEFAULT_HOMOGENEOUS_NODE_TYPE


def plan_of(graph, fanout, how=None, **plan):
    expansion = ExpansionOptions(**(how or {}))
    names = sorted(graph.edges)
    return SamplingPlan(
        fanouts={name: tuple(fanout) for name in names},
        expansion=expansion,
        **{"seed": 3, "with_edge": True, "input_type": sorted(graph.num_nodes)[-1], **plan},
    )


def sample(views, graph, plan, seeds, *, make=NeighborSampler, where=0, number=0, edge_dir="in"):
    peers = InProcessPeers(views) if len(views) > 1 else None
    request = SampleRequest(BatchTicket(0, 1, 0, number), np.array(seeds), np.arange(len(seeds)))
    message = sample_message(make(as_worker_gets(views[where]), plan, peers), request)
    if not graph.is_heterogeneous:
        return to_data(message)
    types = [name if edge_dir == "in" else reverse_edge_type(name) for name in plan.fanouts]
    return to_hetero_data(message, sorted(graph.num_nodes), types)


_EITHER = object()


@st.composite
def cases(draw, relations=_EITHER):
    """Draw a graph, seeds, fanout and direction.

    ``relations``: its edge types, None: a graph of one type; by default one or the other.
    """
    size, seed = (draw(st.integers(1, 12)), draw(st.integers(0, 50))), draw(st.integers(0, 10**6))
    typed = draw(st.booleans()) if relations is _EITHER else relations is not None
    graph = TinyGraph.random(*size, heterogeneous=typed, seed=seed)
    if relations is not _EITHER and relations is not None:
        graph = TinyGraph(
            graph.num_nodes,
            {
                name: TinyGraph.random(*size, seed=seed + number).edges[
                    DEFAULT_HOMOGENEOUS_EDGE_TYPE
                ]
                for number, name in enumerate(relations)
            },
        )
    count = graph.num_nodes[sorted(graph.num_nodes)[-1]]
    seeds = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
    fanout = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
    return graph, seeds, fanout, draw(st.sampled_from(["in", "out"]))


def stores_of(batch, graph, edge_type, edge_dir):
    """Return (edges, nodes of their row 0, nodes of their row 1)."""
    if not graph.is_heterogeneous:
        return batch, batch, batch
    name = edge_type if edge_dir == "in" else reverse_edge_type(edge_type)
    return batch[name], batch[name[0]], batch[name[2]]
