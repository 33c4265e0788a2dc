"""What a loader counts, and what it makes of it: without processes."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import ConfigError, DistNeighborLoader
from gigl_loader.batch.message import BatchTicket, Received
from gigl_loader.loader.epochs.epoch import EpochProgress, LoaderStats
from gigl_loader.testing import TinyGraph

OF_TRANSFORM = "transform-bound: your transform takes"
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "training_loop.md"


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between an epoch's start, which is some seconds ago, and a look at what came of it."""
    now = time.perf_counter()
    monkeypatch.setattr("time.perf_counter", lambda: now)


def _received(began_s: float, ended_s: float, worker: Any = 0) -> Received:
    """Return a batch that a worker had under way between two moments; half of it gathering."""
    half = (ended_s - began_s) / 2
    stats = {
        "worker": worker,
        "sample_s": half,
        "gather_s": half,
        "ended_ns": round(ended_s * 1e9),
        "nbytes": 1000,
    }
    return Received(BatchTicket(0, 0, 0, 0), {}, stats)


def _stats(elapsed_s: float = 10.0, **counts: Any) -> LoaderStats:
    return LoaderStats(started=time.perf_counter() - elapsed_s, **counts)


def test_rates_and_shares() -> None:
    stats = _stats(elapsed_s=10.0, seeds=500, collate_s=1.0)
    for worker, began in ((0, 100.0), (1, 100.0), (0, 102.0), (1, 108.0)):
        stats.add(_received(began, began + 1.0, worker), wait_s=0.5, depth=3)
    found = stats.summary()
    expected = {
        "batches": 4,
        "seeds_per_s": 50.0,
        "bytes_per_s": 400.0,
        "wait_share": 0.2,
        "collate_share": 0.1,
        "transform_s": 0.0,
        "transform_share": 0.0,
        "queue_depth": 3.0,
        "sample_ms": 500.0,
        "gather_ms": 500.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=0.01)
    assert found["worker_busy_share"] == pytest.approx({0: 0.2, 1: 0.2}, rel=0.01)


def test_batches_that_a_worker_has_under_way_at_once_count_once() -> None:
    stats = _stats(elapsed_s=10.0)
    for began, ended in ((100.0, 104.0), (100.5, 103.0), (101.0, 106.0), (106.0, 108.0)):
        stats.add(_received(began, ended), wait_s=0.0, depth=0)
    assert stats.summary()["worker_busy_share"] == pytest.approx({0: 0.8}, rel=0.01)


IDENTITY = {"num_seeds": 9, "num_batches": 3, "rank": 1, "world_size": 2, "seed": 7}


@pytest.mark.parametrize(
    "damage",
    [
        {"yielded": -1},
        {"yielded": "2"},
        {"epoch": None},
        {"ahead": None},
        {"ahead": [-2]},
        {"ahead": ["a"]},
        {"finished": 1},
    ],
)
def test_a_damaged_state_is_refused(damage: dict[str, object]) -> None:
    state = EpochProgress(epoch=4, yielded=2).to_dict(IDENTITY)
    lacking = {name: value for name, value in state.items() if name not in damage}
    for wrong in ({**state, **damage}, lacking):
        with pytest.raises(ConfigError, match="not a loader state: epoch, yielded"):
            EpochProgress.from_dict(wrong, IDENTITY)


@pytest.mark.parametrize(
    "beyond", [{"yielded": 4}, {"yielded": 2**70}, {"ahead": [3]}, {"yielded": 9, "finished": True}]
)
def test_a_position_beyond_the_end_is_refused(beyond: dict[str, object]) -> None:
    state = EpochProgress(epoch=4, yielded=3).to_dict(IDENTITY)
    assert EpochProgress.from_dict(state, IDENTITY).yielded == 3  # all of them
    with pytest.raises(ConfigError, match=r"not a loader state.*beyond the 3 batches of an epoch"):
        EpochProgress.from_dict({**state, **beyond}, IDENTITY)


def test_ranks_in_step_share_one_state() -> None:
    of_rank_0 = {**IDENTITY, "rank": 0, "num_seeds": 10}
    state = EpochProgress(epoch=4, yielded=2).to_dict(of_rank_0)
    assert EpochProgress.from_dict(state, IDENTITY, in_step=True) == EpochProgress(
        epoch=4, yielded=2
    )
    with pytest.raises(ConfigError, match=r"rank: 0 -> 1.*what it saved itself; with even_ranks"):
        EpochProgress.from_dict(state, IDENTITY)
    hints = dict.fromkeys(("num_batches", "seed"), "build this loader")
    for name, hint in {**hints, "world_size": r'.*shard="world"'}.items():
        with pytest.raises(ConfigError, match=rf"now\) {name}: \d+ -> \d: {hint}"):
            EpochProgress.from_dict({**state, name: 99}, IDENTITY, in_step=True)
    own = {**state, "rank": 1}
    with pytest.raises(ConfigError, match=r"now\) num_seeds: 10 -> 9"):
        EpochProgress.from_dict(own, IDENTITY, in_step=True)
    out_of_order = EpochProgress(epoch=4, yielded=0, ahead={2}).to_dict(of_rank_0)
    with pytest.raises(ConfigError, match="rank: 0 -> 1"):
        EpochProgress.from_dict(out_of_order, IDENTITY, in_step=True)


@pytest.mark.parametrize(
    ("wait_s", "busy_s", "verdict"),
    [
        (0.0, {}, "training-bound"),
        (0.9, {0: 9.9}, "training-bound"),
        (5.0, {0: 9.0, 1: 8.0}, "sampling-bound: add workers"),
        (5.0, {0: 9.0, 1: 1.0}, "latency-bound"),
        (5.0, {}, "latency-bound"),
    ],
)
def test_the_verdict_is_one_line(wait_s: float, busy_s: dict, verdict: str) -> None:
    found = _stats(elapsed_s=10.0, batches=1, wait_s=wait_s, busy_s=busy_s).summary()["verdict"]
    assert found.startswith(verdict)
    assert "\n" not in found


@pytest.mark.parametrize(
    ("busy_s", "cores", "advice"),
    [
        ({0: 9.0}, 2, "add workers"),
        ({0: 9.0, 1: 9.0}, 4, "add workers"),
        ({0: 9.0, 1: 9.0}, 2, "fill the 2 cores that they have: lower num_neighbors"),
        ({0: 9.0}, 0.5, "fill the 0.5 cores"),  # two ranks on one core
        ({(0, 0): 9.0, (0, 1): 9.0}, 1, "add workers"),  # of a server, on its own cores
    ],
)
def test_workers_are_advised_while_there_are_cores(busy_s: dict, cores: float, advice: str) -> None:
    stats = _stats(elapsed_s=10.0, batches=1, wait_s=5.0, busy_s=busy_s)
    assert advice in stats.summary(cores=cores)["verdict"]


NETWORK = {
    "sample_s": 4.0,
    "gather_s": 6.0,
    "network_s": 8.0,
    "seeds": 4,
    "rows_from": {1: 22, 3: 78},
    "received": {"rows": 4000, "structure": 300},
}


@pytest.mark.parametrize(
    ("more", "remote_bytes", "verdict"),
    [
        ({}, 0, "lower num_neighbors, or use a faster network"),
        ({}, 3 * 10**9, "a cache of 2 GB would hold 67% of them: give the loader remote_cache"),
        ({}, 10**6, "a cache of 1 MB would hold 100% of them: give the loader remote_cache"),
        ({"cached_rows": 300}, 2**20, "the cache has 75% of the rows that are asked for: raise"),
    ],
)
def test_the_network_is_named_with_the_partition(more, remote_bytes, verdict) -> None:
    stats = _stats(elapsed_s=10.0)
    ticket = BatchTicket(0, 0, 0, 0)
    for _ in range(2):
        stats.add(Received(ticket, {}, {**NETWORK, **more}), 2.5, 0)
    found = stats.summary(remote_bytes)
    assert found["verdict"].startswith(
        f"network-bound: 78% of rows come from partition 3; {verdict}"
    )
    assert found["network_bytes"] == {"rows": 8000, "structure": 600}
    assert found["rows_by_partition"] == {1: 44, 3: 156}
    assert found["hit_rate"] == (0.75 if more else None)
    assert found["network_share"] == pytest.approx(0.8)


def test_a_full_link_is_the_verdict_where_no_worker_waits_for_others() -> None:
    speed = 2500e6 / 8
    stats = _stats(elapsed_s=10.0, batches=1, wait_s=5.0)
    stats.received.update(rows=int(0.8 * 10 * speed))
    found = stats.summary(0, speed)
    assert found["link_share"] == pytest.approx(0.8, rel=1e-3)
    assert found["verdict"].startswith("network-bound: the link of this machine is used to 80%")
    assert stats.summary()["link_share"] is None


def test_the_guide_explains_every_key() -> None:
    (table,) = re.findall(r"^\| key \|.*?^$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", table, re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert explained == set(LoaderStats().summary())


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({"wait_s": 0.2, "collate_s": 9.4, "transform_s": 9.3}, f"{OF_TRANSFORM} 93% "),
        ({"wait_s": 4.0, "collate_s": 5.5, "transform_s": 5.0}, f"{OF_TRANSFORM} 50% "),
        ({"wait_s": 0.2, "collate_s": 9.4, "transform_s": 0.5}, "training-bound"),
        ({"wait_s": 0.2, "collate_s": 4.0, "transform_s": 4.0}, "training-bound"),
        ({"wait_s": 6.0, "collate_s": 3.0, "transform_s": 3.0}, "latency-bound"),
    ],
)
def test_a_slow_transform_is_the_verdict(times: dict[str, float], verdict: str) -> None:
    found = _stats(elapsed_s=10.0, batches=1, **times).summary()
    assert found["verdict"].startswith(verdict)
    assert found["collate_s"] == pytest.approx(times["collate_s"] - times["transform_s"])


def test_functions_of_the_user_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def takes(seconds: float):
        def function(value):
            nonlocal now
            now += seconds
            return value

        return function

    dataset = TinyGraph.random(8, 20).dataset()
    with DistNeighborLoader(
        dataset,
        [2],
        torch.arange(6),
        batch_size=2,
        num_workers=0,
        transform=takes(4.0),
        transform_sampler_output=takes(1.0),
    ) as loader:
        assert len(list(loader)) == 3
        loader.collate([0])  # beside the epoch: not counted
        found = loader.stats()
    assert (found["transform_s"], found["collate_s"], found["wait_s"]) == (15.0, 0.0, 0.0)


def test_a_loader_without_a_batch_has_no_verdict() -> None:
    assert _stats(elapsed_s=10.0).summary()["verdict"].startswith("no batch was handed out yet")
