"""Rows of nodes, whoever computes them."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.inference import rank_rows
from gigl_loader.inference.graph_sources import RangeShares
from gigl_loader.inference.local_graph import NodeShares
from gigl_loader.inference.rank_rows import MappedRanks, OwnedRows, RowFetcher
from gigl_loader.runtime.memory import same_host
from gigl_loader.runtime.memory.tensors import share_tensor
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from tests.inference import full_jobs
from tests.inference.exchange_in_threads import ThreadExchange, run_threads
from tests.support.draws import examples

NUM_NODES = 60
WIDE = torch.randn(NUM_NODES, 3, generator=torch.Generator().manual_seed(1))
FLAT = torch.arange(NUM_NODES, dtype=torch.float64) / 7
"""Rows of nodes by global id."""


def _owners(exchange: ThreadExchange, *, ranges: bool) -> RangeShares | NodeShares:
    if ranges:
        return RangeShares({NODE: NUM_NODES}, exchange)
    view = full_jobs.partition(full_jobs.graph(), exchange.rank, exchange.size).view()
    return NodeShares(view, exchange)


class _NothingSent(ThreadExchange):
    """Ranks that may agree on values, and exchange no rows."""

    def all_to_all_values(self, *args: Any, **how: Any) -> Tensor:
        raise AssertionError("rows were exchanged")


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 3), st.booleans(), st.booleans(), st.data())
def test_rows_of_any_nodes_on_any_ranks(
    world: int, ranges: bool, in_place: bool, data: st.DataObject
) -> None:
    """Repeats and no nodes too; two calls, so that memory is used again while rows are held."""
    asked = [data.draw(st.lists(st.integers(0, NUM_NODES - 1), max_size=80)) for _ in range(world)]

    def job(exchange: ThreadExchange) -> None:
        owners = _owners(exchange, ranges=ranges)
        own = owners.own_ids[NODE]
        turned = torch.arange(len(own)).flip(0)
        sources: Any = [OwnedRows(WIDE[own]), OwnedRows(FLAT[own].flip(0), turned)]
        if in_place:
            ranks = MappedRanks(owners, exchange)
            sources = [
                ranks.map({NODE: OwnedRows(share_tensor(source.values), source.rows)})[NODE]
                for source in sources
            ]
            exchange = _NothingSent(exchange.meeting, exchange.rank)
        fetcher = RowFetcher(owners, exchange)
        nodes = torch.tensor(asked[exchange.rank], dtype=torch.int64)
        first = fetcher.get(NODE, nodes, sources)
        second = fetcher.get(NODE, nodes.flip(0), sources)
        for found, ids in ((first, nodes), (second, nodes.flip(0))):
            assert torch.equal(found[0], WIDE[ids])
            assert torch.equal(found[1], FLAT[ids])
        assert fetcher.get(NODE, nodes, []) == []

    run_threads(world, job)


@pytest.mark.parametrize("why", ["private", "one rank cannot", "switched off"])
def test_rows_that_not_all_ranks_can_map_are_exchanged(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "switched off":
        monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    calls, lock = [0], threading.Lock()

    def read_offers(offers: Any, kind: Any) -> Any:
        with lock:
            calls[0] += 1
            cannot = calls[0] == 4 and why == "one rank cannot"  # three calls are about nodes
        return {} if cannot else same_host.read_offers(offers, kind)

    monkeypatch.setattr(rank_rows, "read_offers", read_offers)

    def job(exchange: ThreadExchange) -> None:
        owners = _owners(exchange, ranges=True)
        own = owners.own_ids[NODE]
        # the first rank's rows are its own alone
        private = why == "private" and exchange.rank == 0
        rows = WIDE[own] if private else share_tensor(WIDE[own])
        sources = MappedRanks(owners, exchange).map({NODE: OwnedRows(rows)})
        nodes = torch.arange(NUM_NODES)
        (found,) = RowFetcher(owners, exchange).get(NODE, nodes, list(sources.values()))
        assert torch.equal(found, WIDE)
        source = sources[NODE]
        assert isinstance(source, OwnedRows)
        assert source.of_ranks is None

    run_threads(3, job)


@pytest.mark.parametrize("stored_first", [False, True])
def test_rows_of_servers_stand_where_they_were_asked_for(stored_first: bool) -> None:
    nodes = torch.tensor([7, 0, 7, 59])

    def job(exchange: ThreadExchange) -> list[Tensor]:
        owners = RangeShares({NODE: NUM_NODES}, exchange)
        both = [OwnedRows(FLAT), lambda ids: WIDE[ids]]
        fetcher = RowFetcher(owners, exchange)
        return fetcher.get(NODE, nodes, both[::-1] if stored_first else both)  # type: ignore[arg-type]  # rows of two kinds

    (found,) = run_threads(1, job)
    wanted = [FLAT[nodes], WIDE[nodes]]
    for one, other in zip(found, wanted[::-1] if stored_first else wanted, strict=True):
        assert torch.equal(one, other)


def test_quantised_rows_are_widened() -> None:
    scales = torch.tensor([[0.5, 2.0, 1.0], [0.0, 1.0, -1.0]])  # times, plus
    stored = torch.tensor([[1, 2, 3], [-4, 5, 6]], dtype=torch.int8)
    rows = OwnedRows(stored, torch.tensor([1, 0]), scales)
    values, positions, _ = rows.part(np.array([0]), None)
    taken = torch.from_numpy(values[positions])
    assert torch.equal(taken, stored[1:])
    assert rows.widen(taken).tolist() == [[-2.0, 11.0, 5.0]]
