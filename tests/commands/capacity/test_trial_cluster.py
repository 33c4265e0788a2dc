"""What processes spend, counted by hand."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import partition_graph
from gigl_loader.commands.capacity.measure import Child, cpu_s_below, say
from gigl_loader.commands.capacity.trial_cluster import (
    BatchKind,
    MeasuredBatch,
    measure,
    measure_one,
)
from gigl_loader.errors import PeerError
from gigl_loader.testing import wait_until


def test_batches_that_count_come_after_those_that_fill_the_cache() -> None:
    plain, small = BatchKind("g", (5,), 1024), BatchKind("g", (5,), 255)
    assert (plain.warm_up, plain.counted, plain.taken) == (8, 24, 8 + 24 + 6)
    assert (small.warm_up, small.counted, small.taken) == (8, 96, 8 + 96 + 6)
    kept, both = BatchKind("g", (5,), 1024, 0.5), BatchKind("g", (5,), 255, 0.5)
    assert (kept.warm_up, kept.counted, kept.taken) == (10, 24, 10 + 24 + 48)
    assert both.taken == 4 * kept.taken
    assert MeasuredBatch(1.0, 2.0, 0.5, 0.25, 0.5).cpu_s == 0.75


def test_time_of_this_process_is_counted_in_ticks() -> None:
    before, here = cpu_s_below(os.getpid()), time.process_time()
    while time.process_time() - here < 0.1:
        sum(range(1000))
    assert cpu_s_below(os.getpid()) - before > 0.05, "0.1 s, less two ticks"
    assert cpu_s_below(2**30) == 0, "no such process"


TREE = """
work() {  # five ticks of user and system time
    while set -- $(</proc/$BASHPID/stat); ((${14} + ${15} < 5)); do :; done; echo $BASHPID >>pids
}
( ( work; exec sleep 600 ) & work; wait ) &
( work; exec sleep 600 ) &
work; wait
"""


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process with two below it, one of which has another: all have worked, and sleep now."""
    with subprocess.Popen(["bash", "-c", TREE], cwd=tmp_path, start_new_session=True) as first:
        try:
            pids = tmp_path / "pids"
            wait_until(
                lambda: pids.exists() and len(pids.read_text().split()) == 4, "all have worked"
            )
            yield psutil.Process(first.pid)
        finally:
            os.killpg(first.pid, signal.SIGKILL)


@pytest.mark.multiprocess
def test_descendants_count_and_no_other_process(tree: psutil.Process) -> None:
    def used(*some: psutil.Process) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in some)

    below = tree.children(recursive=True)
    (branch,) = [one for one in below if one.children()]
    assert (len(below), len(branch.children())) == (3, 1)
    for root, others in ((tree, below), (branch, branch.children())):
        assert cpu_s_below(root.pid) == pytest.approx(used(root, *others), abs=0.011)
        assert cpu_s_below(root.pid) > used(root)


@pytest.mark.multiprocess
def test_processes_that_end_meanwhile_do_not_count(tree: psutil.Process) -> None:
    before = cpu_s_below(tree.pid)
    with subprocess.Popen(["bash", "-c", "while :; do (:); done"]) as others:
        try:
            assert [cpu_s_below(tree.pid) for _ in range(20)] == pytest.approx([before] * 20)
        finally:
            others.kill()


@pytest.mark.multiprocess
def test_a_trial_cluster_takes_batches_of_each_kind_in_each_deployment(tmp_path: Path) -> None:
    """All nodes of a graph have as many neighbours, so that the sizes of its batches are known."""
    nodes = torch.arange(40)
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    for root, degree in ((first, 2), (second, 3)):
        sources = torch.cat([(nodes + step) % 40 for step in range(1, degree + 1)])
        edge_index = torch.stack([sources, nodes.repeat(degree)])
        graph = Data(x=torch.ones(40, 4), edge_index=edge_index)
        partition_graph(graph, 2, root, method="random", progress=False)

    for from_store in (False, True):
        kinds = [
            BatchKind(root, (4,), 1, cache, from_store)
            for root, cache in ((first, 0.0), (second, 0.5), (second, 0.0))
        ]
        plain, cached, other = measure(kinds)
        for took, degree in ((plain, 2), (cached, 3), (other, 3)):
            assert (took.nodes, took.edges) == (1 + degree, degree)
            assert took.training_s > 0
            assert (took.storage_s > 0) == from_store
        assert plain.hit_rate == other.hit_rate == 0.0 < cached.hit_rate <= 1.0


class _Here:
    """A process that is none: its function runs when it starts, up to its first wait."""

    pid = 1

    def __init__(self, target: Any, args: Any) -> None:
        self._run = lambda: target(*args)

    def start(self) -> None:
        self._run()

    def join(self, timeout: float | None = None) -> None:
        pass

    kill = join


def _tell(pipe: Connection, *words: object) -> None:
    """Say all at once what a rank says one after another, and keep its end of the pipe."""
    for word in words:
        pipe.send(word)
    _ENDS.append(pipe.__class__(os.dup(pipe.fileno())))


_ENDS: list[Connection] = []


def test_a_batch_has_its_share_of_what_was_spent() -> None:
    """Two servers, two ranks: each rank counted 10 batches."""
    _ENDS.clear()
    spent = iter([5.0, 6.0, 1.0, 2.0, 7.0, 8.0, 1.5, 2.5])
    kind: Any = _Here
    ranks = [
        Child(_tell, "at work", (1000 + 200 * number, 3000, 0.25 + 0.5 * number), kind=kind)
        for number in range(2)
    ]
    servers = [Child(_tell, kind=kind) for _ in range(2)]
    found = measure_one(ranks, servers, 10, cpu_s=lambda pid: next(spent))
    assert found == MeasuredBatch(110.0, 300.0, 0.5, 4.0 / 20, 1.0 / 20)
    for end in _ENDS[:2]:
        assert [end.recv(), end.recv()] == ["go on", "go on"]


def test_a_process_that_ends_or_is_silent_is_an_error() -> None:
    kind: Any = _Here
    with Child(_tell, kind=kind, wait_s=0.01) as one:
        with pytest.raises(PeerError, match="said nothing for 0 s"):
            one.hear()
        with pytest.raises(PeerError, match="the process that measures is gone"):
            say(_ENDS[-1], "at work", wait_s=0.01)
        assert one.hear() == "at work"
        _ENDS.pop().close()
        with pytest.raises(PeerError, match="ended early"):
            one.hear()
