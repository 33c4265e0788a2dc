"""Dropout and batch norm over a graph of several ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gigl_loader.errors import ConfigError
from gigl_loader.inference.full_graph import WholeGraphStatistics, _hash_keys, full_graph
from gigl_loader.inference.local_graph import local_graph
from tests.inference import full_jobs
from tests.inference.exchange_in_threads import ThreadExchange, run_threads

CPU = torch.device("cpu")
ALONE = full_jobs.partition(full_jobs.graph(), 0, 1)


def test_dropout_keeps_its_share() -> None:
    data = full_jobs.graph(num_nodes=3000)
    data.x = torch.ones(3000, 50)
    model = torch.nn.Dropout(0.3).train()
    with full_graph(model, full_jobs.partition(data, 0, 1)) as mine:
        first, second = model(mine.x), model(mine.x)
    assert (first == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert not torch.equal(first, second)
    for axis in (0, 1):
        assert ((first == 0).float().mean(axis) < 0.9).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_batch_norm_is_that_of_torch(dtype: torch.dtype) -> None:
    """In half the width too, where neither the count nor the sums of 70,000 rows have room."""
    data = full_jobs.graph(num_nodes=70_000, num_edges=10)
    torch.manual_seed(0)
    x = (torch.randn(70_000, 3) * 2 + 5).to(dtype)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    ours, theirs = (torch.nn.BatchNorm1d(3, dtype=kept).train() for _ in range(2))
    with full_graph(ours, full_jobs.partition(data, 0, 1)):
        found = ours(x)
    assert found.dtype == theirs(x).dtype
    # by torch in float64: its sums of 70,000 float32 vary by 1e-5 with the number of its threads
    wanted = torch.nn.BatchNorm1d(3, dtype=torch.float64).train()(x.double()).to(dtype)
    near: Any = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, wanted, **near)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_batch_norm_over_ranks_is_that_of_all_rows() -> None:
    data = full_jobs.graph()
    wanted = torch.nn.functional.batch_norm(data.x, None, None, training=True)

    def job(exchange: ThreadExchange) -> tuple[Tensor, Tensor]:
        dataset = full_jobs.partition(data, exchange.rank, 3)
        graph = local_graph(dataset, exchange, CPU, None, 0)
        with WholeGraphStatistics(graph, 0, rows_missing=False):
            out = torch.nn.functional.batch_norm(graph.data.x, None, None, training=True)
        return graph.data.n_id, out

    for ids, out in run_threads(3, job):
        torch.testing.assert_close(out, wanted[ids])


def test_batch_norm_of_some_rows_is_refused() -> None:
    with (
        full_graph(torch.nn.BatchNorm1d(6), ALONE, nodes=torch.tensor([3])) as mine,
        pytest.raises(ConfigError, match=r"nodes= leaves some out"),
    ):
        torch.nn.functional.batch_norm(mine.x, None, None, training=True)


def _drop(exchange: Any, world: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Return node ids, and the masks of two calls in each of two forwards."""
    graph = local_graph(
        full_jobs.partition(full_jobs.graph(), exchange.rank, world), exchange, CPU, None, 0
    )
    found = []
    statistics = WholeGraphStatistics(graph, seed, rows_missing=False)
    with statistics:
        for _ in range(2):
            statistics.begin()
            ones = torch.ones(graph.data.num_nodes, 8)
            found += [torch.nn.functional.dropout(ones, 0.5, training=True) for _ in range(2)]
    return graph.data.n_id, found


def test_a_nodes_mask_is_the_same_on_any_number_of_ranks() -> None:
    ((_, alone),) = run_threads(1, lambda exchange: _drop(exchange, 1, 3))
    assert {float(v) for v in torch.stack(alone).unique()} == {0.0, 2.0}
    for i, one in enumerate(alone):
        assert not any(torch.equal(one, other) for other in alone[:i]), "each call has its own"
    for ids, found in run_threads(3, lambda exchange: _drop(exchange, 3, 3)):
        assert all(torch.equal(one, other[ids]) for one, other in zip(found, alone, strict=True))
    ((_, other),) = run_threads(1, lambda exchange: _drop(exchange, 1, 4))
    assert not torch.equal(other[0], alone[0]), "the seed decides"


@pytest.mark.parametrize(("p", "kept"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_ends_of_dropout(p: float, kept: float) -> None:
    with full_graph(torch.nn.Identity(), ALONE) as mine:
        out = torch.nn.functional.dropout(torch.ones(mine.num_nodes, 3), p, training=True)
    assert (out == kept).all()


def test_the_hash_is_splitmix64() -> None:
    def reference(key: int) -> int:
        mask = (1 << 64) - 1
        key = (key + 0x9E3779B97F4A7C15) & mask
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & mask
        return key ^ (key >> 31)

    keys = [0, 1, 2**62, -1, -(2**63), 1234567890123456789]
    found = _hash_keys(torch.tensor(keys)).tolist()
    assert [key % 2**64 for key in found] == [reference(key) for key in keys]
