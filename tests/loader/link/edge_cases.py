"""Batches of seed edges: of one sampler, and what ends they have."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from gigl_loader.batch.collate import add_edge_labels, to_data, to_hetero_data
from gigl_loader.batch.message import EDGE_LABEL, EDGE_TARGETS, BatchTicket
from gigl_loader.dataset.schema import reverse_edge_type
from gigl_loader.sampler.edges import edge_sampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets, sample_message


def sample_edges(views, graph, edge_type, plan, edges, *, edge_dir, kind, where=0, batch=0, **how):
    peers = InProcessPeers(views) if len(views) > 1 else None
    sampler = edge_sampler(
        as_worker_gets(views[where]), plan, peers, edge_type=edge_type, negatives=kind, **how
    )
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    extra = {EDGE_TARGETS: dst.contiguous(), EDGE_LABEL: torch.arange(len(edges)) + 5}
    if kind == "triplet":
        del extra[EDGE_LABEL]
    request = SampleRequest(
        BatchTicket(0, 1, 0, batch), src.contiguous().numpy(), np.arange(len(edges)), extra
    )
    message = sample_message(sampler, request)
    if not graph.is_heterogeneous:
        found = to_data(message)
    else:
        types = list(plan.fanouts)
        types = [reverse_edge_type(t) for t in types] if edge_dir == "out" else types
        found = to_hetero_data(message, sorted(graph.num_nodes), types)
    add_edge_labels(found, message, edge_type if graph.is_heterogeneous else None, kind=kind)
    return found


@st.composite
def cases(draw):
    graph = TinyGraph.random(
        draw(st.integers(2, 12)),
        draw(st.integers(0, 40)),
        heterogeneous=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
    )
    edge_type = draw(st.sampled_from(sorted(graph.edges)))
    ends = (graph.num_nodes[edge_type[0]], graph.num_nodes[edge_type[2]])
    pair = st.tuples(st.integers(0, ends[0] - 1), st.integers(0, ends[1] - 1))
    kind = draw(st.sampled_from([None, "binary", "triplet"]))
    how = {"kind": kind}
    if kind is not None:
        amounts = [1, 2, 3] if kind == "triplet" else [0.4, 1, 1.5, 3]
        how["amount"] = draw(st.sampled_from(amounts))
    fanouts: dict[Any, tuple[int, ...]] = {
        name: (draw(st.integers(0, 3)), 2) for name in sorted(graph.edges)
    }
    plan = SamplingPlan(
        input_type=edge_type[0],
        fanouts=fanouts,
        seed=draw(st.integers(0, 2**63 - 1)),
        with_edge=True,
    )
    edges = draw(st.lists(pair, min_size=1, max_size=6))
    return graph, edge_type, plan, edges, draw(st.sampled_from(["in", "out"])), how
