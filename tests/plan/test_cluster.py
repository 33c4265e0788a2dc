"""What processes spend, counted by hand."""

import multiprocessing
import os
import time
from typing import Any

import pytest

from gigl_loader.errors import PeerError
from gigl_loader.plan import cluster
from gigl_loader.plan.cluster import BatchKind, Took, cpu_s_below


def test_batches_that_count_come_after_those_that_fill_the_cache() -> None:
    plain, small = BatchKind("g", (5,), 1024), BatchKind("g", (5,), 255)
    assert (plain.warm_up, plain.counted, plain.taken) == (8, 24, 8 + 24 + 6)
    assert (small.warm_up, small.counted, small.taken) == (8, 96, 8 + 96 + 6)
    kept, both = BatchKind("g", (5,), 1024, 0.5), BatchKind("g", (5,), 255, 0.5)
    assert (kept.warm_up, kept.counted, kept.taken) == (10, 24, 10 + 24 + 48)
    assert both.taken == 4 * kept.taken
    assert Took(1.0, 2.0, 0.5, 0.25, 0.5).cpu_s == 0.75


def test_time_of_this_process_is_counted_in_ticks() -> None:
    before, here = cpu_s_below(os.getpid()), time.process_time()
    while time.process_time() - here < 0.1:
        sum(range(1000))
    assert cpu_s_below(os.getpid()) - before > 0.05, "0.1 s, less two ticks"
    assert cpu_s_below(2**30) == 0, "no such process"


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a tree of processes that is made up: by pid, (parent, user ticks, system ticks)."""
    tree = {
        7: (1, 100, 20),
        9: (7, 30, 0),
        8: (9, 5, 5),
        10: (1, 999, 999),
        11: (8, 1, 0),
        13: (7, 4, 0),
    }

    def read_stat(pid: int) -> list[str] | None:
        if pid not in tree:
            return None  # it ended meanwhile
        parent, user, system = tree[pid]
        return ["S", str(parent), *["0"] * 9, str(user), str(system)]

    monkeypatch.setattr(os, "listdir", lambda path: ["self", "12", *map(str, tree)])
    monkeypatch.setattr(cluster, "read_stat", read_stat)
    monkeypatch.setattr(cluster, "_HZ", 100)
    return tree


def test_descendants_count_after_their_parents(processes: Any) -> None:
    assert cluster._below(7) == [(7, 1.2), (9, 0.3), (13, 0.04), (8, 0.1), (11, 0.01)]
    assert cpu_s_below(9) == pytest.approx(0.41)


def test_a_batch_has_its_share_of_what_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers, two ranks: each rank counted 10 batches."""
    spent = iter([1.0, 2.0, 5.0, 6.0, 1.5, 2.5, 7.0, 8.0])
    monkeypatch.setattr(cluster, "cpu_s_below", lambda pid: next(spent))
    pairs = [multiprocessing.Pipe() for _ in range(2)]
    for number, (_, rank) in enumerate(pairs):
        rank.send("at work")
        rank.send((1000 + 200 * number, 3000, 0.25 + 0.5 * number))
    ranks = [cluster._Process(None, ours) for ours, _ in pairs]
    found = cluster._measure_one(ranks, [1, 2, 3, 4], 2, 10)
    assert found == Took(110.0, 300.0, 0.5, 4.0 / 20, 1.0 / 20)
    for ours, rank in pairs:
        assert [rank.recv(), rank.recv()] == ["go on", "go on"]
        ours.close()
        rank.close()


def test_a_process_that_ends_or_is_silent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_WAIT_S", 0.01)
    ours, theirs = multiprocessing.Pipe()
    ranks = [cluster._Process(None, ours)]
    with ours, theirs:
        with pytest.raises(PeerError, match="said nothing for 0 s"):
            cluster._hear(ranks)
        with pytest.raises(PeerError, match="the process that measures is gone"):
            cluster._wait(theirs, "at work")
        assert cluster._hear(ranks) == ["at work"]
        theirs.close()
        with pytest.raises(PeerError, match="ended early"):
            cluster._hear(ranks)
