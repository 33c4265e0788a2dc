"""Local numbers, halos, and the rows that some nodes' outputs depend on, on ranks as threads."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.inference.local_graph import (
    EdgePlan,
    NodeShares,
    narrow_plans,
    plan_edges,
    position_of,
)
from tests.inference import full_jobs
from tests.inference.exchange_in_threads import ThreadExchange, run_threads
from tests.support.draws import examples


def test_position_of() -> None:
    ids = torch.tensor([5, 2, 9, 7, 2])
    assert position_of(ids, torch.tensor([2, 5, 8])).tolist() == [1, 0, -1, -1, 0]
    assert position_of(ids, ids[:0]).tolist() == [-1] * 5
    assert position_of(ids[:0], ids).tolist() == []


def _plan(data: Any, exchange: Any) -> tuple[EdgePlan, Tensor]:
    view = full_jobs.partition(data, exchange.rank, exchange.size).view()
    shares = NodeShares(view, exchange)
    (own,) = shares.own_ids.values()
    return plan_edges(EDGE, view.adjacency[EDGE], shares, exchange), own


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 3), st.integers(0, 999), st.integers(1, 30), st.integers(0, 90))
def test_rows_behind_local_numbers_are_those_of_the_edges(
    world: int, seed: int, num_nodes: int, num_edges: int
) -> None:
    data = full_jobs.graph(seed, num_nodes, num_edges)

    def job(exchange: ThreadExchange) -> Tensor:
        plan, own = _plan(data, exchange)
        level = plan.whole
        ids = level.extend(own) if world > 1 else own
        assert len(ids) == level.num_rows
        assert torch.equal(ids[level.num_sources :], plan.halo)
        return torch.stack([ids[level.edge_index[0]], own[level.edge_index[1]]])

    found = torch.cat(run_threads(world, job), 1)
    order = torch.argsort(found[1] * num_nodes + found[0], stable=True)
    assert torch.equal(found[:, order], data.edge_index)


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(1, 3),
    st.integers(0, 999),
    st.integers(1, 40),
    st.integers(0, 60),
    st.integers(1, 3),
)
def test_narrow_levels_have_what_the_wanted_nodes_depend_on(
    world: int, seed: int, num_nodes: int, num_edges: int, num_layers: int
) -> None:
    """Edges by hops to come, against a walk backwards over the whole graph."""
    data = full_jobs.graph(seed, num_nodes, num_edges)
    some = torch.randperm(num_nodes)[:2]
    wanted, reference = {*some.tolist()}, []
    for _ in range(num_layers):
        edges = [(s, t) for s, t in data.edge_index.t().tolist() if t in wanted]
        reference.append((set(wanted), sorted(edges)))
        wanted |= {source for source, _ in edges}

    def job(exchange: ThreadExchange) -> list[Any]:
        plan, own = _plan(data, exchange)
        narrow_plans({EDGE: plan}, {EDGE[2]: torch.isin(own, some)}, num_layers)
        found = []
        for hops in range(num_layers):
            level = plan.level(hops)
            assert level.edges is not None
            ids = level.extend(own) if world > 1 else own[level.sources]
            assert torch.equal(ids[: level.num_targets], level.cut(own)), "computed rows first"
            edges = torch.stack([ids[level.edge_index[0]], ids[level.edge_index[1]]])
            found.append((level.cut(own).tolist(), edges.t().tolist()))
            back = level.put_back(ids.view(-1, 1).float() + 1, len(own)).view(-1)
            computed = torch.isin(own, level.cut(own))
            assert torch.equal(back, torch.where(computed, own + 1, 0).float())
        return found

    parts = run_threads(world, job)
    for hops, (nodes, edges) in enumerate(reference):
        assert {i for part in parts for i in part[hops][0]} == nodes
        assert sorted(tuple(e) for part in parts for e in part[hops][1]) == edges


@pytest.mark.parametrize("hops", [None, 1])
def test_where_nothing_was_narrowed_all_rows_are_computed(hops: int | None) -> None:
    ((plan, _),) = run_threads(1, lambda exchange: _plan(full_jobs.graph(), exchange))
    assert plan.level(hops) is plan.whole
