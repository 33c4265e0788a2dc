"""Bidirectional and induced subgraphs, disjoint trees and LABOR, beside plain Python."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.sampler.base import HeteroSamplerOutput, SamplerOutput

from gigl_loader import ConfigError
from gigl_loader.collate.pyg import to_data, to_hetero_data
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, reverse_edge_type
from gigl_loader.message import BatchTicket
from gigl_loader.options import EpochOptions, ExpansionKeywords, ExpansionOptions
from gigl_loader.sampler.neighbor import NeighborSampler, subgraph_sampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.questions import Draw
from gigl_loader.sampler.store import LocalStore
from gigl_loader.testing import (
    InProcessPeers,
    TinyGraph,
    as_worker_gets,
    check_batch,
    check_same_batches,
    sample_message,
)

N = DEFAULT_HOMOGENEOUS_NODE_TYPE


def _plan(graph, fanout, how=None, **plan):
    expansion = ExpansionOptions(**(how or {}))
    names = sorted(graph.edges)
    return SamplingPlan(
        fanouts={name: tuple(fanout) for name in names}, expansion=expansion,
        **{"seed": 3, "with_edge": True, "input_type": sorted(graph.num_nodes)[-1], **plan},
    )  # fmt: skip


def _sample(views, graph, plan, seeds, *, make=NeighborSampler, where=0, number=0, edge_dir="in"):
    peers = InProcessPeers(views) if len(views) > 1 else None
    seeds = torch.tensor(seeds)
    request = SampleRequest(BatchTicket(0, 1, 0, number), seeds, torch.arange(seeds.numel()))
    message = sample_message(make(as_worker_gets(views[where]), plan, peers), request)
    if not graph.is_heterogeneous:
        return to_data(message)
    types = [name if edge_dir == "in" else reverse_edge_type(name) for name in plan.fanouts]
    return to_hetero_data(message, sorted(graph.num_nodes), types)


@st.composite
def cases(draw):
    graph = TinyGraph.random(
        draw(st.integers(1, 12)), draw(st.integers(0, 50)), heterogeneous=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
    )  # fmt: skip
    count = graph.num_nodes[sorted(graph.num_nodes)[-1]]
    seeds = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
    fanout = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2))
    return graph, seeds, fanout, draw(st.sampled_from(["in", "out"]))


def _stores(batch, graph, edge_type, edge_dir):
    """Return (edges, nodes of their row 0, nodes of their row 1)."""
    if not graph.is_heterogeneous:
        return batch, batch, batch
    name = edge_type if edge_dir == "in" else reverse_edge_type(edge_type)
    return batch[name], batch[name[0]], batch[name[2]]


@settings(max_examples=25)
@given(case=cases(), count=st.integers(1, 3), cut=st.integers(0, 10**6))
def test_an_induced_subgraph_has_all_edges_between_its_nodes(case, count, cut) -> None:
    graph, seeds, fanout, edge_dir = case
    plan = _plan(graph, fanout, {"subgraph_type": "induced"})
    plain = _sample([graph.dataset(edge_dir=edge_dir).view()], graph,
                    _plan(graph, fanout), seeds, edge_dir=edge_dir)  # fmt: skip
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    batch = _sample(views, graph, plan, seeds, where=count - 1, edge_dir=edge_dir)
    assert getattr(batch, "num_sampled_nodes", None) is None
    for edge_type, pairs in graph.edges.items():
        edges, first, second = _stores(batch, graph, edge_type, edge_dir)
        sampled = _stores(plain, graph, edge_type, edge_dir)[1]
        assert first.n_id.tolist() == sampled.n_id.tolist(), "the nodes are those of the hops"
        copies = Counter(second.n_id.tolist())
        present = set(first.n_id.tolist())
        expected = Counter()
        for edge_id, pair in enumerate(pairs):
            other, node = pair if edge_dir == "in" else pair[::-1]
            if other in present and node in copies:
                expected[edge_id] = copies[node]  # a repeated seed has its edges again
        assert Counter(edges.e_id.tolist()) == expected
        ends = torch.stack([first.n_id[edges.edge_index[0]], second.n_id[edges.edge_index[1]]])
        found = [tuple(pair if edge_dir == "in" else pair[::-1]) for pair in ends.t().tolist()]
        assert found == [pairs[edge_id] for edge_id in edges.e_id.tolist()]
        assert edges.edge_attr[:, 0].tolist() == edges.e_id.tolist()


@settings(max_examples=25)
@given(case=cases())
def test_bidirectional_edges_are_those_of_pyg(case) -> None:
    """The oracle is PyG's own conversion, on the directional batch."""
    graph, seeds, fanout, edge_dir = case
    views = [graph.dataset(edge_dir=edge_dir).view()]
    plain = _sample(views, graph, _plan(graph, fanout), seeds, edge_dir=edge_dir)
    plan = _plan(graph, fanout, {"subgraph_type": "bidirectional"})
    batch = _sample(views, graph, plan, seeds, edge_dir=edge_dir)
    if not graph.is_heterogeneous:
        sampled = SamplerOutput(plain.n_id, *plain.edge_index, plain.e_id)
        expected = {None: sampled.to_bidirectional()}
        rows = {None: (expected[None].row, expected[None].col)}
        stores = {None: batch}
        chosen = dict(zip(map(tuple, plain.edge_index.t().tolist()), plain.e_id.tolist(),
                          strict=True))  # fmt: skip
        for pair, edge_id in zip(batch.edge_index.t().tolist(), batch.e_id.tolist(), strict=True):
            ids = {chosen.get(tuple(pair)), chosen.get(tuple(pair[::-1]))}
            assert edge_id in ids or len(chosen) < plain.e_id.numel()
    else:
        rows = {name: plain[name].edge_index for name in plain.edge_types}
        sampled = HeteroSamplerOutput(
            {name: plain[name].n_id for name in plain.node_types},
            {name: index[0] for name, index in rows.items()},
            {name: index[1] for name, index in rows.items()},
            {name: plain[name].e_id for name in plain.edge_types},
        )
        expected = sampled.to_bidirectional()
        rows = {name: (expected.row[name], expected.col[name]) for name in plain.edge_types}
        stores = {name: batch[name] for name in plain.edge_types}
    for name, (row, col) in rows.items():
        pairs = stores[name].edge_index.t().tolist()
        assert sorted(pairs) == sorted(torch.stack([row, col], 1).tolist()), name


@settings(max_examples=25)
@given(case=cases(), count=st.integers(1, 3), cut=st.integers(0, 10**6))
def test_each_tree_is_the_batch_of_one_seed(case, count: int, cut: int) -> None:
    """As to shape; and the first tree, whose draws have the same keys, as to every edge."""
    graph, seeds, fanout, edge_dir = case
    plan = _plan(graph, fanout, {"disjoint": True})
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    batch = _sample(whole, graph, plan, seeds, edge_dir=edge_dir)
    split = _sample(views, graph, plan, seeds, where=count - 1, edge_dir=edge_dir)
    check_same_batches([split], [batch])
    first = _sample(whole, graph, _plan(graph, fanout), seeds[:1], edge_dir=edge_dir)
    all_edges = _sample(whole, graph, _plan(graph, [-1] * len(fanout), {"disjoint": True}), seeds,
                        edge_dir=edge_dir)  # fmt: skip
    input_type = plan.input_type
    store = batch[input_type] if graph.is_heterogeneous else batch
    assert store.n_id[: len(seeds)].tolist() == seeds
    assert store.batch[: len(seeds)].tolist() == list(range(len(seeds)))
    for edge_type in graph.edges:
        edges, others, nodes = _stores(batch, graph, edge_type, edge_dir)
        trees = nodes.batch[edges.edge_index[1]]
        assert torch.equal(trees, others.batch[edges.edge_index[0]])
        alone = _stores(first, graph, edge_type, edge_dir)[0]
        assert edges.e_id[trees == 0].tolist() == alone.e_id.tolist()
        assert others.batch.numel() == others.n_id.numel()
        pairs = list(zip(others.batch.tolist(), others.n_id.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs), "a node twice in a tree"
        full = _stores(all_edges, graph, edge_type, edge_dir)
        for tree, seed in enumerate(seeds):
            only = _sample(whole, graph, _plan(graph, [-1] * len(fanout)), [seed],
                           edge_dir=edge_dir)  # fmt: skip
            wanted = _stores(only, graph, edge_type, edge_dir)[0].e_id.tolist()
            of_tree = full[2].batch[full[0].edge_index[1]] == tree
            assert full[0].e_id[of_tree].tolist() == wanted


def test_the_seeds_of_an_induced_subgraph_are_mapped() -> None:
    graph = TinyGraph.random(12, 60)
    plan = _plan(graph, [0], {"subgraph_type": "induced"})
    batch = _sample([graph.dataset().view()], graph, plan, [4, 7, 4, 1], make=subgraph_sampler)
    assert batch.n_id.tolist() == [4, 7, 1]
    assert batch.mapping.tolist() == [0, 1, 0, 2]
    assert batch.batch.tolist() == [4, 7, 4, 1]
    inside = [i for i, pair in enumerate(graph.edges[next(iter(graph.edges))])
              if set(pair) <= {4, 7, 1}]  # fmt: skip
    assert sorted(batch.e_id.tolist()) == inside


# --- LABOR ---------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(case=cases(), with_weight=st.booleans(), count=st.integers(1, 3))
def test_labor_draws_as_many_as_uniform_does(case, with_weight, count) -> None:
    graph, seeds, fanout, edge_dir = case
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir)]
    plan = _plan(graph, fanout, {"sampler": "labor"}, with_weight=with_weight)
    batch = _sample(views, graph, plan, seeds, edge_dir=edge_dir)
    check_batch(
        batch, graph, seeds=torch.tensor(seeds), num_neighbors=fanout, edge_dir=edge_dir,
        input_type=plan.input_type, with_weight=with_weight,
    )  # fmt: skip
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    check_same_batches([_sample(whole, graph, plan, seeds, edge_dir=edge_dir)], [batch])


def test_labor_is_unbiased() -> None:
    """Each edge of a row is drawn equally often, parallel ones too; the mean of a sum is right."""
    pairs = [(i, 20) for i in range(8)] + [(3, 20), (3, 20)]
    graph = TinyGraph.homogeneous(21, pairs)
    store = LocalStore(as_worker_gets(graph.dataset().view()))
    edge_type, rounds, fanout = next(iter(graph.edges)), 6000, 3
    seen: Counter = Counter()
    for key in range(rounds):
        drawn = store.draw(
            Draw(edge_type, fanout, key * 7919 + 1, with_edge=True, labor=True), np.array([20])
        )
        assert len(set(drawn.edge_ids.tolist())) == fanout
        seen.update(drawn.edge_ids.tolist())
    expected = rounds * fanout / len(pairs)
    chi_squared = sum((seen[i] - expected) ** 2 / expected for i in range(len(pairs)))
    assert chi_squared < 32, "9 degrees of freedom: p is about 0.0002"


def test_labor_finds_fewer_nodes_for_the_same_fan_out() -> None:
    graph = TinyGraph.random(400, 12000, seed=4)
    views = [graph.dataset().view()]
    seeds = list(range(0, 400, 4))
    plain = _sample(views, graph, _plan(graph, [5]), seeds)
    labor = _sample(views, graph, _plan(graph, [5], {"sampler": "labor"}), seeds)
    assert plain.edge_index.size(1) == labor.edge_index.size(1)
    assert labor.n_id.numel() < 0.9 * plain.n_id.numel()
    other = _sample(views, graph, _plan(graph, [5], {"sampler": "labor"}), seeds, number=1)
    assert other.e_id.tolist() != labor.e_id.tolist()


# --- what cannot work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"subgraph_type": "undirected"}, "subgraph_type must be one of"),
        ({"temporal_strategy": "first", "time_attr": "t"}, "temporal_strategy must be one of"),
        ({"sampler": "ppr"}, "sampler must be one of"),
        ({"disjoint": 1}, "disjoint must be"),
        ({"disjoint": "by_time"}, "need time_attr"),
        ({"disjoint": True, "subgraph_type": "induced"}, "one graph of all seeds"),
        ({"time_attr": "t", "subgraph_type": "induced"}, "one graph of all seeds"),
        ({"time_attr": "t", "sampler": "labor"}, "lets seeds share neighbours"),
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
        EpochOptions(seed=1, replace=True, expansion=ExpansionOptions(sampler="labor"))


def test_a_keyword_is_declared_once() -> None:
    assert ExpansionKeywords.__annotations__.keys() == ExpansionOptions.__dataclass_fields__.keys()
