"""Which rank computes which node."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.inference.local_graph import NodeShares
from tests.inference import full_jobs
from tests.inference.exchange_in_threads import ThreadExchange, run_threads
from tests.support.draws import examples


def _on_ranks(held: list[int], num_partitions: int, num_nodes: int = 60) -> list[Any]:
    """Return the shares of ranks that hold the partitions ``held``."""
    data = full_jobs.graph(num_nodes=num_nodes)

    def job(exchange: ThreadExchange) -> NodeShares:
        dataset = full_jobs.partition(data, held[exchange.rank], num_partitions)
        return NodeShares(dataset.view(), exchange)

    return run_threads(len(held), job)


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=3, max_size=6).filter(lambda held: len({*held}) == 3),
    st.integers(1, 12),
)
def test_each_node_has_one_owner_and_all_ranks_name_it(held: list[int], num_nodes: int) -> None:
    """Any ranks that share three partitions; with few nodes some have none."""
    shares = _on_ranks(held, 3, num_nodes)
    (name,) = shares[0].own_ids
    ids = torch.randperm(num_nodes)
    owner = torch.full((num_nodes,), -1)
    for rank, one in enumerate(shares):
        own = one.own_ids[name]
        assert torch.equal(own, own.unique()), "ascending"
        assert (owner[own] == -1).all()
        owner[own] = rank
    assert (owner >= 0).all()
    for one in shares:
        assert torch.equal(one.owner(name, ids), owner[ids])
        assert torch.equal(one.owner(name, ids[:0]), ids[:0])


def test_ranks_of_one_partition_have_about_as_many() -> None:
    sizes = [
        len(one.own_ids[name]) for one in _on_ranks([0, 0, 0, 0], 1, 10) for name in one.own_ids
    ]
    assert sizes == [3, 3, 2, 2]


@pytest.mark.parametrize("held", [[0, 0], [1, 2]])
def test_a_partition_that_nobody_holds_is_named(held: list[int]) -> None:
    missing = sorted({0, 1, 2} - {*held})
    with pytest.raises(
        ConfigError, match=rf"no rank loaded partitions \[{str(missing)[1:-1]}\] of 3"
    ):
        _on_ranks(held, 3)


def test_partitions_of_two_graphs_are_refused() -> None:
    def job(exchange: ThreadExchange) -> NodeShares:
        dataset = full_jobs.partition(full_jobs.graph(), exchange.rank, 2 + exchange.rank)
        return NodeShares(dataset.view(), exchange)

    with pytest.raises(ConfigError, match=r"\[\(0, 2\), \(1, 3\)\]; together"):
        run_threads(2, job)
