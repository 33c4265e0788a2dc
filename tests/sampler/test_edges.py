"""Batches seeded by edges, against a reference, and how their negatives are drawn."""

import contextlib
import functools
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import ConfigError
from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE
from gigl_loader.sampler.edges import Negatives, uniform
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.testing import TinyGraph, as_worker_gets, check_batch, check_same_batches
from tests.loader.link.edge_cases import cases, sample_edges
from tests.loader.link.link_reference import edge_pairs, edge_stores
from tests.support.draws import examples


@settings(max_examples=examples(40))
@given(case=cases(), count=st.sampled_from([1, 2, 3]), cut=st.integers(0, 10**6))
def test_any_batch_of_edges(case, count: int, cut: int) -> None:
    """What PyG says of a batch, whatever was drawn; and the same bits over any partitions."""
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {**how, "edge_dir": edge_dir, "batch": 3}
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    batch = sample_edges(whole, graph, edge_type, plan, edges, **how)
    seeds, negatives = edge_pairs(batch, graph, edge_type, how["kind"])
    ends: dict[str, list[int]] = {edge_type[0]: [], edge_type[2]: []}
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
        found = sample_edges(parts, graph, edge_type, plan, edges, where=where, **how)
        check_same_batches([found], [batch])


@settings(max_examples=examples(30))
@given(case=cases(), count=st.sampled_from([1, 2]))
def test_strict_negatives_are_no_edges(case, count: int) -> None:
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {"amount": 2, **how, "kind": how["kind"] or "binary"}
    known = set(graph.edges[edge_type])
    full = {
        s
        for s in range(graph.num_nodes[edge_type[0]])
        if all((s, d) in known for d in range(graph.num_nodes[edge_type[2]]))
    }
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir)]
    ask = functools.partial(
        sample_edges, views, graph, edge_type, plan, edges, edge_dir=edge_dir, strict=True, **how
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
        batch = sample_edges(
            [graph.dataset(edge_dir=edge_dir).view()],
            graph,
            edge_type,
            plan,
            [(0, 1)] * 5,
            edge_dir=edge_dir,
            kind="triplet",
            strict=True,
        )
        assert set(edge_pairs(batch, graph, edge_type, "triplet")[1]) == {(0, 23)}


def test_negatives_are_uniform_and_follow_weights() -> None:
    """Chi-square over 10 nodes: 27.9 is exceeded once in a thousand, and the key is fixed."""
    counts = Counter((uniform(7, 10_000) * 10).astype(int).tolist())
    assert sum((counts[i] - 1000) ** 2 / 1000 for i in range(10)) < 27.9
    graph = TinyGraph.homogeneous(4, [(0, 1)])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (0,)}, seed=3)
    batch = sample_edges(
        [graph.dataset().view()],
        graph,
        edge_type,
        plan,
        [(0, 1)] * 2000,
        edge_dir="in",
        kind="binary",
        src_weight=[0, 0, 1, 0],
        dst_weight=[1, 0, 0, 3],
    )
    drawn = Counter(edge_pairs(batch, graph, edge_type, "binary")[1])
    assert set(drawn) == {(2, 0), (2, 3)}
    assert 1400 < drawn[2, 3] < 1600


def _negatives(graph: TinyGraph, **how) -> Negatives:
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    store = GraphReader(as_worker_gets(graph.dataset().view()), None)
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (1,)}, seed=3)
    given = {"kind": "binary", "amount": 1, "strict": False, "src_weight": None, "dst_weight": None}
    return Negatives(store, plan, edge_type, **{**given, **how})


@pytest.mark.parametrize(
    ("kind", "amount", "num_edges", "seeds"),
    [
        (None, 3, 2, []),
        ("binary", 2, 0, []),
        ("binary", 1.5, 3, [0, 1, 2, 0, 1]),
        ("binary", 0.3, 3, [0]),
        ("triplet", 2, 3, [0, 0, 1, 1, 2, 2]),
    ],
)
def test_each_negative_belongs_to_a_seed_edge(kind, amount, num_edges, seeds) -> None:
    graph = TinyGraph.homogeneous(4, [(0, 1)])
    found = _negatives(graph, kind=kind, amount=amount).seeds(num_edges)
    assert found.dtype == np.int64
    assert found.tolist() == seeds


def test_one_draw_for_a_position_whatever_others_are_refused() -> None:
    """A negative that may stay is the same with ``strict`` and without it."""
    graph = TinyGraph.random(12, 60)
    known = set(graph.edges[DEFAULT_HOMOGENEOUS_EDGE_TYPE])
    src, ticket = np.arange(12).repeat(5), BatchTicket(0, 1, 0, 4)
    loose, strict = (_negatives(graph, kind="triplet", strict=one) for one in (False, True))
    seeds = loose.seeds(src.size)
    none, free = loose.draw(ticket, src, seeds, None)
    _, kept = strict.draw(ticket, src, seeds, None)
    assert none.size == 0, "triplets have no sources of their own"
    refused = np.array([(s, d) in known for s, d in zip(src.tolist(), free.tolist(), strict=True)])
    assert 0 < refused.sum() < refused.size
    assert kept[~refused].tolist() == free[~refused].tolist()
    assert not known & set(zip(src.tolist(), kept.tolist(), strict=True))
    _, again = strict.draw(BatchTicket(0, 1, 0, 5), src, seeds, None)
    assert again.tolist() != kept.tolist(), "the batch is part of the key"


def test_a_position_is_drawn_again_whatever_becomes_of_the_others() -> None:
    """Its second number is its own, however many positions before it need one, too."""
    graph = TinyGraph.homogeneous(12, [(0, node) for node in range(6)])
    strict, ticket = _negatives(graph, kind="triplet", strict=True), BatchTicket(0, 1, 0, 4)
    seeds, found = np.arange(60), []
    for other in (0, 7):  # edges of 0 are refused, of 7 there are none
        src = np.array([other] * 30 + [0] * 30)
        found.append(strict.draw(ticket, src, seeds, None)[1])
    assert found[0][30:].tolist() == found[1][30:].tolist()
    assert found[0][:30].tolist() != found[1][:30].tolist()


def _counts(strict: Negatives, src: np.ndarray) -> Counter[tuple[int, int]]:
    """Return how often each pair is a negative of seed edges from ``src``, one for each."""
    own, dst = strict.draw(BatchTicket(0, 1, 0, 4), src, np.arange(src.size), None)
    own = own if own.size else src
    return Counter(zip(own.tolist(), dst.tolist(), strict=True))


def _distance(found: Counter[tuple[int, int]], weight_of: dict[tuple[int, int], int]) -> float:
    """Return chi-square of pairs that should come as their weights say."""
    assert found.keys() == weight_of.keys()
    share = found.total() / sum(weight_of.values())
    return sum((found[pair] - share * one) ** 2 / (share * one) for pair, one in weight_of.items())


@pytest.mark.parametrize("kind", ["binary", "triplet"])
def test_both_ends_and_all_rounds_are_drawn_apart(kind: str) -> None:
    """Under one key for both ends all pairs are self-pairs; under one for all rounds, a node that
    is refused comes again, and the next one that is free takes the place of all of them."""
    src = np.arange(16_000) % 8
    everything = dict.fromkeys(itertools.product(range(8), range(8)), 1)
    loose = _negatives(TinyGraph.homogeneous(8, [(0, 0)]), kind=kind)
    assert _distance(_counts(loose, src), everything) < 104, "once in a thousand: 63 pairs"
    graph = TinyGraph.homogeneous(8, list(itertools.product(range(8), range(5))))
    strict = _negatives(graph, kind=kind, strict=True)
    free = dict.fromkeys(itertools.product(range(8), range(5, 8)), 1)
    assert _distance(_counts(strict, src), free) < 50, "once in a thousand: 23 pairs"


def _staircase(num_nodes: int) -> TinyGraph:
    """Return a graph whose nodes have from no edge to edges to all nodes but one."""
    return TinyGraph.homogeneous(
        num_nodes,
        [(node, (node + i) % num_nodes) for node in range(num_nodes) for i in range(node)],
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_strict_pairs_are_uniform_over_all_that_are_no_edges(weighted: bool) -> None:
    """The key is fixed.

    With sources drawn first, and destinations for each, the last node's only pair came 11 times as
    often as one of the first node's.
    """
    graph, count = _staircase(11), 40_000
    weights = [1 + node % 3 for node in range(11)] if weighted else None
    strict = _negatives(graph, strict=True, src_weight=weights, dst_weight=weights)
    known = set(graph.edges[DEFAULT_HOMOGENEOUS_EDGE_TYPE])
    heavy = {
        (s, d): 1 if weights is None else weights[s] * weights[d]
        for s, d in itertools.product(range(11), range(11))
        if (s, d) not in known
    }
    found = _counts(strict, np.zeros(count, np.int64))
    assert _distance(found, heavy) < 108, "once in a thousand: 66 pairs"
    assert (0, 0) in found, "a node and itself are a pair like others"


def test_the_only_pair_without_an_edge_is_found() -> None:
    """Far beyond the number of times that a pair is drawn again."""
    pairs = [(s, d) for s in range(40) for d in range(40)]
    free = pairs.pop(1234)
    seeds, ticket = np.zeros(3, np.int64), BatchTicket(0, 1, 0, 4)
    src, dst = _negatives(TinyGraph.homogeneous(40, pairs), strict=True).draw(
        ticket, seeds, seeds, None
    )
    assert set(zip(src.tolist(), dst.tolist(), strict=True)) == {free}
    with pytest.raises(ConfigError, match="no two nodes can be a negative"):
        _negatives(TinyGraph.homogeneous(40, [*pairs, free]), strict=True).draw(
            ticket, seeds, seeds, None
        )


@pytest.mark.parametrize("kind", ["binary", "triplet"])
def test_a_node_without_weight_is_not_taken_for_want_of_another(kind: str) -> None:
    graph = TinyGraph.homogeneous(4, [(s, d) for s in range(4) for d in range(2)])
    strict = _negatives(graph, kind=kind, strict=True, dst_weight=[1, 1, 0, 0])
    with pytest.raises(ConfigError, match="strict=False"):
        strict.draw(BatchTicket(0, 1, 0, 0), np.array([2]), np.array([0]), None)


def test_a_source_with_an_edge_to_every_node_is_named() -> None:
    graph = TinyGraph.homogeneous(5, [(2, node) for node in range(5)])
    strict = _negatives(graph, kind="triplet", strict=True)
    with pytest.raises(ConfigError, match="has an edge to every node"):
        strict.draw(BatchTicket(0, 1, 0, 0), np.array([2]), np.array([0]), None)


def test_uniform_numbers_are_those_of_the_source() -> None:
    """Worked out with Python integers."""

    def slow(key: int, count: int) -> float:
        value = (key + count * 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return ((value ^ value >> 31) >> 11) / 2**53

    for key in (0, 1, 2**64 - 1):
        assert uniform(key, 4).tolist() == [slow(key, count) for count in range(1, 5)]
    assert uniform(1, 0).size == 0
