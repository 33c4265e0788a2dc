"""Batches seeded by edges: the sampler against a reference."""

import contextlib
import functools
import math
from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_reference import edge_pairs, edge_stores

from gigl_loader import ConfigError
from gigl_loader.collate.edges import add_edge_labels
from gigl_loader.collate.pyg import to_data, to_hetero_data
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, reverse_edge_type
from gigl_loader.message import EDGE_LABEL, EDGE_TARGETS, BatchTicket
from gigl_loader.sampler.edges import edge_sampler
from gigl_loader.sampler.negatives import uniform
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import (
    InProcessPeers,
    TinyGraph,
    as_worker_gets,
    check_batch,
    check_same_batches,
    sample_message,
)


def _sample(views, graph, edge_type, plan, edges, *, edge_dir, kind, where=0, batch=0, **how):
    peers = InProcessPeers(views) if len(views) > 1 else None
    sampler = edge_sampler(
        as_worker_gets(views[where]), plan, peers, edge_type=edge_type, negatives=kind, **how
    )
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    extra = {EDGE_TARGETS: dst.contiguous(), EDGE_LABEL: torch.arange(len(edges)) + 5}
    if kind == "triplet":
        del extra[EDGE_LABEL]
    request = SampleRequest(
        BatchTicket(0, 1, 0, batch), src.contiguous(), torch.arange(len(edges)), extra
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
        draw(st.integers(2, 12)), draw(st.integers(0, 40)), heterogeneous=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
    )  # fmt: skip
    edge_type = draw(st.sampled_from(sorted(graph.edges)))
    ends = (graph.num_nodes[edge_type[0]], graph.num_nodes[edge_type[2]])
    pair = st.tuples(st.integers(0, ends[0] - 1), st.integers(0, ends[1] - 1))
    kind = draw(st.sampled_from([None, "binary", "triplet"]))
    how = {"kind": kind}
    if kind is not None:
        amounts = [1, 2, 3] if kind == "triplet" else [0.4, 1, 1.5, 3]
        how["amount"] = draw(st.sampled_from(amounts))
    fanouts = {name: (draw(st.integers(0, 3)), 2) for name in sorted(graph.edges)}
    plan = SamplingPlan(
        input_type=edge_type[0], fanouts=fanouts, seed=draw(st.integers(0, 2**63 - 1)),
        with_edge=True,
    )  # fmt: skip
    edges = draw(st.lists(pair, min_size=1, max_size=6))
    return graph, edge_type, plan, edges, draw(st.sampled_from(["in", "out"])), how


@settings(max_examples=120)
@given(case=cases(), count=st.sampled_from([1, 2, 3]), cut=st.integers(0, 10**6))
def test_any_batch_of_edges(case, count: int, cut: int) -> None:
    """What PyG says of a batch, whatever was drawn; and the same bits over any partitions."""
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {**how, "edge_dir": edge_dir, "batch": 3}
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    batch = _sample(whole, graph, edge_type, plan, edges, **how)
    seeds, negatives = edge_pairs(batch, graph, edge_type, how["kind"])
    ends = {edge_type[0]: [], edge_type[2]: []}
    ends[edge_type[0]] += [s for s, _ in edges]
    ends[edge_type[2]] += [d for _, d in edges]
    if how["kind"] != "triplet":
        ends[edge_type[0]] += [s for s, _ in negatives]
    ends[edge_type[2]] += [d for _, d in negatives]
    roots = {name: torch.tensor(list(dict.fromkeys(ids))) for name, ids in ends.items()}
    check_batch(batch, graph, seeds=roots, num_neighbors=dict(plan.fanouts), edge_dir=edge_dir)
    assert seeds == edges
    assert len(negatives) == math.ceil(len(edges) * how.get("amount", 0))
    if how["kind"] == "triplet":
        assert [s for s, _ in negatives] == [s for s, _ in edges for _ in range(how["amount"])]
    else:
        zeros = [0] * len(negatives)
        links = edge_stores(batch, graph, edge_type)[0]
        assert links.edge_label.tolist() == [*range(5, 5 + len(edges)), *zeros]
    parts = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    for where in range(count):
        found = _sample(parts, graph, edge_type, plan, edges, where=where, **how)
        check_same_batches([found], [batch])


@settings(max_examples=80)
@given(case=cases(), count=st.sampled_from([1, 2]))
def test_strict_negatives_are_no_edges(case, count: int) -> None:
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {"amount": 2, **how, "kind": how["kind"] or "binary"}
    known = set(graph.edges[edge_type])
    full = {s for s in range(graph.num_nodes[edge_type[0]])
            if all((s, d) in known for d in range(graph.num_nodes[edge_type[2]]))}  # fmt: skip
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir)]
    ask = functools.partial(
        _sample, views, graph, edge_type, plan, edges, edge_dir=edge_dir, strict=True, **how
    )
    if full:  # a source without a free destination may come: it is named
        with contextlib.suppress(ConfigError):
            ask()
        return
    batch = ask()
    assert not known & set(edge_pairs(batch, graph, edge_type, how["kind"])[1])


def test_a_source_with_one_free_destination_gets_it() -> None:
    graph = TinyGraph.homogeneous(40, [(0, d) for d in range(40) if d != 23])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (1,)}, seed=1)
    for edge_dir in ("in", "out"):
        batch = _sample(
            [graph.dataset(edge_dir=edge_dir).view()], graph, edge_type, plan, [(0, 1)] * 5,
            edge_dir=edge_dir, kind="triplet", strict=True,
        )  # fmt: skip
        assert set(edge_pairs(batch, graph, edge_type, "triplet")[1]) == {(0, 23)}


def test_negatives_are_uniform_and_follow_weights() -> None:
    """Chi-square over 10 nodes: 27.9 is exceeded once in a thousand, and the key is fixed."""
    counts = Counter((uniform(7, 10_000) * 10).astype(int).tolist())
    assert sum((counts[i] - 1000) ** 2 / 1000 for i in range(10)) < 27.9
    graph = TinyGraph.homogeneous(4, [(0, 1)])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (0,)}, seed=3)
    batch = _sample(
        [graph.dataset().view()], graph, edge_type, plan, [(0, 1)] * 2000, edge_dir="in",
        kind="binary", src_weight=[0, 0, 1, 0], dst_weight=[1, 0, 0, 3],
    )  # fmt: skip
    drawn = Counter(edge_pairs(batch, graph, edge_type, "binary")[1])
    assert set(drawn) == {(2, 0), (2, 3)}
    assert 1400 < drawn[2, 3] < 1600
