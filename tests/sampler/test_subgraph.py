"""Bidirectional and induced subgraphs, beside plain Python."""

import warnings
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.sampler.base import HeteroSamplerOutput, SamplerOutput

from gigl_loader.sampler.neighbor import subgraph_sampler
from gigl_loader.testing import TinyGraph
from tests.sampler.expansion_cases import cases, plan_of, sample, stores_of
from tests.support.draws import examples


@settings(max_examples=examples(25))
@given(case=cases(), count=st.integers(1, 3), cut=st.integers(0, 10**6))
def test_an_induced_subgraph_has_all_edges_between_its_nodes(case, count, cut) -> None:
    graph, seeds, fanout, edge_dir = case
    plan = plan_of(graph, fanout, {"subgraph_type": "induced"})
    plain = sample(
        [graph.dataset(edge_dir=edge_dir).view()],
        graph,
        plan_of(graph, fanout),
        seeds,
        edge_dir=edge_dir,
    )
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    batch = sample(views, graph, plan, seeds, where=count - 1, edge_dir=edge_dir)
    assert getattr(batch, "num_sampled_nodes", None) is None
    for edge_type, pairs in graph.edges.items():
        edges, first, second = stores_of(batch, graph, edge_type, edge_dir)
        sampled = stores_of(plain, graph, edge_type, edge_dir)[1]
        assert first.n_id.tolist() == sampled.n_id.tolist(), "the nodes are those of the hops"
        copies = Counter(second.n_id.tolist())
        present = set(first.n_id.tolist())
        expected: Counter[int] = Counter()
        for edge_id, pair in enumerate(pairs):
            other, node = pair if edge_dir == "in" else pair[::-1]
            if other in present and node in copies:
                expected[edge_id] = copies[node]  # a repeated seed has its edges again
        assert Counter(edges.e_id.tolist()) == expected
        ends = torch.stack([first.n_id[edges.edge_index[0]], second.n_id[edges.edge_index[1]]])
        found = [tuple(pair if edge_dir == "in" else pair[::-1]) for pair in ends.t().tolist()]
        assert found == [pairs[edge_id] for edge_id in edges.e_id.tolist()]
        assert edges.edge_attr[:, 0].tolist() == edges.e_id.tolist()


BUYS, REV_BUYS = ("user", "buys", "item"), ("item", "rev_buys", "user")
VIEWS = ("user", "views", "item")
KNOWS, REV_KNOWS = ("user", "knows", "user"), ("user", "rev_knows", "user")
TO, BACK = ("user", "to", "item"), ("item", "to", "user")


@pytest.mark.parametrize(
    "relations",
    [
        pytest.param(None, id="one type"),
        pytest.param([BUYS, REV_BUYS, KNOWS], id="named, and its own reverse"),
        pytest.param([TO, BACK], id="one relation name"),
        pytest.param([TO, ("item", "fro", "user")], id="two names"),
        pytest.param([BUYS, VIEWS, BACK], id="one reverse of two"),
        pytest.param([KNOWS, REV_KNOWS, BUYS], id="named within a type, and none"),
        pytest.param([TO, ("item", "rev_other", "user")], id="reverse of another name"),
    ],
)
@settings(max_examples=examples(12))
@given(data=st.data())
def test_bidirectional_edges_are_those_of_pyg(relations, data) -> None:
    """The oracle is PyG's own conversion, on the directional batch."""
    graph, seeds, fanout, edge_dir = data.draw(cases(relations))
    views = [graph.dataset(edge_dir=edge_dir).view()]
    how = {"disjoint": data.draw(st.booleans())}
    plain = sample(views, graph, plan_of(graph, fanout, how), seeds, edge_dir=edge_dir)
    plan = plan_of(graph, fanout, {**how, "subgraph_type": "bidirectional"})
    batch = sample(views, graph, plan, seeds, edge_dir=edge_dir)
    if not graph.is_heterogeneous:
        sampled = SamplerOutput(plain.n_id, *plain.edge_index, plain.e_id).to_bidirectional()
        assert batch.edge_index.tolist() == torch.stack([sampled.row, sampled.col]).tolist()
        chosen = dict(
            zip(map(tuple, plain.edge_index.t().tolist()), plain.e_id.tolist(), strict=True)
        )
        for pair, edge_id in zip(batch.edge_index.t().tolist(), batch.e_id.tolist(), strict=True):
            ids = {chosen.get(tuple(pair)), chosen.get(tuple(pair[::-1]))}
            assert edge_id in ids or len(chosen) < plain.e_id.numel()
        return
    # by the names in the dataset: with "out" a batch has other ones, all of which begin with "rev_"
    stores = {name: stores_of(plain, graph, name, edge_dir)[0] for name in graph.edges}
    sampled = HeteroSamplerOutput(
        {name: plain[name].n_id for name in plain.node_types},
        {name: store.edge_index[0] for name, store in stores.items()},
        {name: store.edge_index[1] for name, store in stores.items()},
        {name: store.e_id for name, store in stores.items()},
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot convert to bidirectional")
        expected = sampled.to_bidirectional()
    for name in graph.edges:
        found = stores_of(batch, graph, name, edge_dir)[0]
        # in PyG's order: merged edges ascend by target, those of a ``rev_`` type by source
        pairs = torch.stack([expected.row[name], expected.col[name]])
        assert found.edge_index.tolist() == pairs.tolist(), name
        assert ("e_id" in found) == (expected.edge[name] is not None), name
        assert ("edge_attr" in found) == ("e_id" in found), "rows of edges are found by their ids"
        if "e_id" in found:
            assert found.e_id.tolist() == expected.edge[name].tolist()


def test_the_seeds_of_an_induced_subgraph_are_mapped() -> None:
    graph = TinyGraph.random(12, 60)
    plan = plan_of(graph, [0], {"subgraph_type": "induced"})
    batch = sample([graph.dataset().view()], graph, plan, [4, 7, 4, 1], make=subgraph_sampler)
    assert batch.n_id.tolist() == [4, 7, 1]
    assert batch.mapping.tolist() == [0, 1, 0, 2]
    assert batch.batch.tolist() == [4, 7, 4, 1]
    inside = [
        i for i, pair in enumerate(graph.edges[next(iter(graph.edges))]) if set(pair) <= {4, 7, 1}
    ]
    assert sorted(batch.e_id.tolist()) == inside
