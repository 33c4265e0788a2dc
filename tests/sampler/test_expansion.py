"""How a batch grows: disjoint trees and LABOR, beside plain Python."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import ConfigError
from gigl_loader.sampler.expansion import EdgeCollector
from gigl_loader.sampler.options import ExpansionOptions, SourceOptions
from gigl_loader.sampler.plan import Draw
from gigl_loader.sampler.rows.reader import LocalReader
from gigl_loader.testing import TinyGraph, as_worker_gets, check_batch, check_same_batches
from tests.sampler.expansion_cases import cases, plan_of, sample, stores_of
from tests.support.draws import examples


@settings(max_examples=examples(25))
@given(case=cases(), count=st.integers(1, 3), cut=st.integers(0, 10**6))
def test_each_tree_is_the_batch_of_one_seed(case, count: int, cut: int) -> None:
    """As to shape; and the first tree, whose draws have the same keys, as to every edge."""
    graph, seeds, fanout, edge_dir = case
    plan = plan_of(graph, fanout, {"disjoint": True})
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    batch = sample(whole, graph, plan, seeds, edge_dir=edge_dir)
    split = sample(views, graph, plan, seeds, where=count - 1, edge_dir=edge_dir)
    check_same_batches([split], [batch])
    first = sample(whole, graph, plan_of(graph, fanout), seeds[:1], edge_dir=edge_dir)
    all_edges = sample(
        whole,
        graph,
        plan_of(graph, [-1] * len(fanout), {"disjoint": True}),
        seeds,
        edge_dir=edge_dir,
    )
    input_type = plan.input_type
    store = batch[input_type] if graph.is_heterogeneous else batch
    assert store.n_id[: len(seeds)].tolist() == seeds
    assert store.batch[: len(seeds)].tolist() == list(range(len(seeds)))
    for edge_type in graph.edges:
        edges, others, nodes = stores_of(batch, graph, edge_type, edge_dir)
        trees = nodes.batch[edges.edge_index[1]]
        assert torch.equal(trees, others.batch[edges.edge_index[0]])
        alone = stores_of(first, graph, edge_type, edge_dir)[0]
        assert edges.e_id[trees == 0].tolist() == alone.e_id.tolist()
        assert others.batch.numel() == others.n_id.numel()
        pairs = list(zip(others.batch.tolist(), others.n_id.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs), "a node twice in a tree"
        full = stores_of(all_edges, graph, edge_type, edge_dir)
        for tree, seed in enumerate(seeds):
            only = sample(
                whole, graph, plan_of(graph, [-1] * len(fanout)), [seed], edge_dir=edge_dir
            )
            wanted = stores_of(only, graph, edge_type, edge_dir)[0].e_id.tolist()
            of_tree = full[2].batch[full[0].edge_index[1]] == tree
            assert full[0].e_id[of_tree].tolist() == wanted


@settings(max_examples=examples(25))
@given(case=cases(), with_weight=st.booleans(), count=st.integers(1, 3))
def test_labor_draws_as_many_as_uniform_does(case, with_weight, count) -> None:
    graph, seeds, fanout, edge_dir = case
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir)]
    plan = plan_of(graph, fanout, {"sampling_method": "labor"}, with_weight=with_weight)
    batch = sample(views, graph, plan, seeds, edge_dir=edge_dir)
    check_batch(
        batch,
        graph,
        seeds=torch.tensor(seeds),
        num_neighbors=fanout,
        edge_dir=edge_dir,
        input_type=plan.input_type,
        with_weight=with_weight,
    )
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    check_same_batches([sample(whole, graph, plan, seeds, edge_dir=edge_dir)], [batch])


def test_labor_is_unbiased() -> None:
    """Each edge of a row is drawn equally often, parallel ones too; the mean of a sum is right."""
    pairs = [(i, 20) for i in range(8)] + [(3, 20), (3, 20)]
    graph = TinyGraph.homogeneous(21, pairs)
    store = LocalReader(as_worker_gets(graph.dataset().view()))
    edge_type, rounds, fanout = next(iter(graph.edges)), 6000, 3
    seen: Counter = Counter()
    for key in range(rounds):
        drawn = store.draw(
            Draw(edge_type, fanout, key * 7919 + 1, with_edge=True, method="labor"), np.array([20])
        )
        assert drawn.edge_ids is not None
        assert len(set(drawn.edge_ids.tolist())) == fanout
        seen.update(drawn.edge_ids.tolist())
    expected = rounds * fanout / len(pairs)
    chi_squared = sum((seen[i] - expected) ** 2 / expected for i in range(len(pairs)))
    assert chi_squared < 32, "9 degrees of freedom: p is about 0.0002"


def test_labor_finds_fewer_nodes_for_the_same_fan_out() -> None:
    graph = TinyGraph.random(400, 12000, seed=4)
    views = [graph.dataset().view()]
    seeds = list(range(0, 400, 4))
    plain = sample(views, graph, plan_of(graph, [5]), seeds)
    labor = sample(views, graph, plan_of(graph, [5], {"sampling_method": "labor"}), seeds)
    assert plain.edge_index.size(1) == labor.edge_index.size(1)
    assert labor.n_id.numel() < 0.9 * plain.n_id.numel()
    other = sample(views, graph, plan_of(graph, [5], {"sampling_method": "labor"}), seeds, number=1)
    assert other.e_id.tolist() != labor.e_id.tolist()


def test_labor_draws_the_same_neighbours_whichever_edge_type_leads_to_them() -> None:
    """That is what saves nodes: a number belongs to the neighbour, in this hop of this batch."""
    pairs = [(user, item) for item in range(6) for user in range(30)]
    types = [("user", "buys", "item"), ("user", "views", "item")]
    graph = TinyGraph({"user": 30, "item": 6}, dict.fromkeys(types, pairs))
    views, seeds = [graph.dataset().view()], list(range(6))
    drawn = {}
    for how in ({}, {"sampling_method": "labor"}):
        batch = sample(views, graph, plan_of(graph, [4], how, input_type="item"), seeds)
        drawn[bool(how)] = [batch[name].e_id.tolist() for name in types]
    assert drawn[True][0] == drawn[True][1]
    assert drawn[False][0] != drawn[False][1], "other draws are each edge type's own"


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"subgraph_type": "undirected"}, "subgraph_type must be one of"),
        ({"temporal_strategy": "first", "time_attr": "t"}, "temporal_strategy must be one of"),
        ({"sampling_method": "ppr"}, "sampling_method must be one of"),
        ({"disjoint": 1}, "disjoint must be"),
        ({"disjoint": "by_time"}, "need time_attr"),
        ({"disjoint": True, "subgraph_type": "induced"}, "one graph of all seeds"),
        ({"time_attr": "t", "subgraph_type": "induced"}, "one graph of all seeds"),
        ({"time_attr": "t", "sampling_method": "labor"}, "lets seeds share neighbours"),
        ({"time_window": 3}, "need time_attr"),
        ({"temporal_strategy": "last"}, "need time_attr"),
        ({"time_attr": 3}, "must name an attribute"),
        ({"time_attr": "t", "time_window": -1}, "time_window must be"),
        ({"time_attr": "t", "time_window": float("nan")}, "time_window must be"),
    ],
)
def test_what_cannot_be_combined_is_refused(how, match) -> None:
    with pytest.raises(ConfigError, match=match):
        ExpansionOptions(**how)


def test_labor_draws_without_replacement() -> None:
    with pytest.raises(ConfigError, match="without replacement"):
        SourceOptions(seed=1, replace=True, expansion=ExpansionOptions(sampling_method="labor"))


def test_edges_are_those_of_the_hops_one_after_the_other() -> None:
    edges = EdgeCollector()
    hops: list[list[list[int]]] = [[[3, 1], [0, 0], [10, 11]], [[], [], []], [[5], [3], [12]]]
    for hop in hops:
        edges.add(*(np.array(column, np.int64) for column in hop))
    assert (edges.count, edges.per_hop) == (3, [2, 0, 1])
    assert edges.as_index().tolist() == [[3, 1, 5], [0, 0, 3]]
    assert edges.ids().tolist() == [10, 11, 12]
    out = np.full((2, 3), -1)
    edges.write_edge_index(out)
    assert out.tolist() == edges.as_index().tolist()


def test_no_edges_have_their_shapes_and_types() -> None:
    edges = EdgeCollector()
    assert edges.as_index().shape == (2, 0)
    assert edges.ids().shape == (0,)
    assert edges.as_index().dtype == edges.ids().dtype == np.int64
    edges.add(np.array([1]), np.array([2]), None)
    assert edges.ids().size == 0, "of edges that were drawn without ids"
    assert edges.count == 1
