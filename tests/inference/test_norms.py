"""Edge weights with the degrees of the whole graph, against ``gcn_norm`` of PyG over all of it."""

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.inference.local_graph import Level, local_graph
from gigl_loader.inference.modules import Norm, WholeGraphNorms
from tests.inference import full_jobs
from tests.inference.exchange_in_threads import ThreadExchange, run_threads

WAYS = [
    pyg.GCNConv(6, 2),
    pyg.GCNConv(6, 2, improved=True),
    pyg.GCNConv(6, 2, add_self_loops=False),
    pyg.TAGConv(6, 2),
]
CPU = torch.device("cpu")
Triples = list[tuple[int, int, float]]


def _triples(sources: Tensor, targets: Tensor, weights: Tensor) -> Triples:
    rows = zip(sources.tolist(), targets.tolist(), weights.tolist(), strict=True)
    return sorted((source, target, round(weight, 5)) for source, target, weight in rows)


def _wanted(module: Any, weight: Tensor | None) -> Triples:
    loops = getattr(module, "add_self_loops", False)
    edges, weights = gcn_norm(
        full_jobs.graph().edge_index, weight, 60, getattr(module, "improved", False), loops
    )
    return _triples(edges[0], edges[1], weights)


@pytest.mark.parametrize("module", WAYS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_levels_have_the_weights_of_one_process(module: Any, weighted: bool) -> None:
    data = full_jobs.graph()

    def job(exchange: ThreadExchange) -> Triples:
        dataset = full_jobs.partition(data, exchange.rank, 3)
        graph = local_graph(dataset, exchange, CPU, None, 0)
        level: Level = graph.plans[EDGE].whole
        weight = graph.data.edge_weight if weighted else None
        norms = WholeGraphNorms([graph.data.edge_weight])
        first = norms.of(module, level, level, weight, torch.float32)
        assert norms.of(module, level, level, weight, torch.float32) is first, "kept"
        edges, weights = first
        mine = edges[1] < level.num_targets  # not the loops of the halo
        ids = level.extend(graph.data.n_id)
        return _triples(ids[edges[0, mine]], ids[edges[1, mine]], weights[mine])

    found = sorted(one for part in run_threads(3, job) for one in part)
    assert found == _wanted(module, data.edge_weight if weighted else None)


def test_what_may_change_is_not_kept() -> None:
    def job(exchange: ThreadExchange) -> None:
        dataset = full_jobs.partition(full_jobs.graph(), 0, 1)
        graph = local_graph(dataset, exchange, CPU, None, 0)
        level, own = graph.plans[EDGE].whole, graph.data.edge_weight
        norms = WholeGraphNorms([own])

        def weights(weight: Tensor) -> Tensor:
            return norms.of(WAYS[0], level, level, weight, torch.float32)[1]

        first = weights(own)
        own *= torch.rand(len(own))
        assert not torch.equal(weights(own), first), "changed in place"
        other = own.clone()
        assert weights(other) is not weights(other), "another tensor may come to have its id"
        own.requires_grad_()
        assert weights(own).requires_grad, "what was kept before has no gradient"
        assert weights(own) is not weights(own), "backward() frees the graph of the first"

    run_threads(1, job)


@pytest.mark.parametrize("module", WAYS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_chunk_has_the_weights_of_the_whole(module: Any, weighted: bool) -> None:
    """Edges into 20 of 60 nodes, these counted first, with degrees worked out elsewhere."""
    data = full_jobs.graph()
    weight = data.edge_weight if weighted else None
    norm = Norm.of(module, EDGE, weighted=weighted)
    degrees = norm.degrees(data.edge_index, weight, 60, 60)
    targets = torch.arange(20, 40)
    order = torch.cat([targets, torch.arange(20), torch.arange(40, 60)])
    number = torch.argsort(order)
    chosen = torch.isin(data.edge_index[1], targets)
    edges, weights = norm.weigh(
        number[data.edge_index[:, chosen]],
        None if weight is None else weight[chosen],
        degrees[order],
        torch.float32,
    )
    mine = edges[1] < len(targets)
    found = _triples(order[edges[0, mine]], order[edges[1, mine]], weights[mine])
    assert found == [one for one in _wanted(module, weight) if 20 <= one[1] < 40]


def test_a_node_without_edges_weighs_nothing() -> None:
    norm = Norm.of(WAYS[2], EDGE, weighted=False)
    edges = torch.tensor([[0, 1], [1, 1]])
    degrees = norm.degrees(edges, None, 3, 3)
    assert degrees.tolist() == [0.0, 2.0, 0.0]
    _, weights = norm.weigh(edges, None, degrees, torch.float64)
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx([0.0, 0.5])
