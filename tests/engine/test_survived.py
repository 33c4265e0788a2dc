"""Promise 11: workers are killed, stopped, hang and crash; the epoch has the same bits.

``docs/guide/faults.md`` has the faults for users.
"""

import contextlib
import hashlib
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    CustomSamplerOptions,
    DistNeighborLoader,
    PeerTimeoutError,
    WorkerDiedError,
    release_workers,
)
from gigl_loader.runtime.system import usable_cpus
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import (
    Footprint,
    TinyGraph,
    batch_tensors,
    one_rank,
    wait_until,
    worker_pid,
)
from tests.engine.faults import end_supervisor
from tests.engine.stalls import ENDED, hung_pids, is_stopped, pass_the_timeout, worker_pids
from tests.support.sources import supervisor_pid

pytestmark = pytest.mark.multiprocess

DATASET = TinyGraph.random(60, 500).dataset()


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


def _make(**how) -> DistNeighborLoader:
    given = {"num_workers": 2, "batch_size": 2, "seed": 1, "shuffle": True}
    return DistNeighborLoader(DATASET, [3, 2], torch.arange(60).repeat(4), **{**given, **how})


def _add(digest, batch) -> None:
    for name, value in sorted(batch_tensors(batch).items()):
        digest.update(name.encode())
        digest.update(value.numpy().tobytes() if hasattr(value, "numpy") else str(value).encode())


def _digest(loader: DistNeighborLoader, epochs: int = 3, disturb=lambda epoch, batch: None) -> str:
    """Return the sha256 of some epochs; ``disturb`` is called after each batch."""
    digest = hashlib.sha256()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            _add(digest, batch)
            disturb(epoch, number)
    return digest.hexdigest()


@pytest.fixture(scope="module")
def undisturbed() -> str:
    with _make() as loader:
        found = _digest(loader)
        assert loader.stats()["restarts"] == 0
        return found


def _end(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, how)
    if how == signal.SIGKILL:
        wait_until(lambda: process_state(pid) in ENDED, f"{pid} has ended")


def test_a_worker_killed_at_drawn_batches(undisturbed: str, caplog) -> None:
    """Three times in each epoch; then its supervisor, with all workers; nothing is left."""
    lot, seen = random.Random(4), Footprint(others=frozenset(Footprint.below().pids))
    kills = {(epoch, batch) for epoch in range(3) for batch in lot.sample(range(5, 80), 3 - epoch)}
    killed: list[Any] = []

    def disturb(epoch: int, batch: int) -> None:
        if (epoch, batch) not in kills and batch != 90:
            return
        seen.look(os.getpid())
        alive = [pid for pid in worker_pids(loader) if process_state(pid) not in ENDED]
        if (epoch, batch) in kills and not alive:
            kills.add((epoch, batch + 1))  # both are being replaced
        elif (epoch, batch) in kills:
            killed.append(lot.choice(alive))
            _end(killed[-1])
        if (epoch, batch) == (2, 90):
            killed.extend(alive)
            _end(supervisor_pid(loader))

    caplog.set_level(logging.WARNING, "gigl_loader")
    with _make() as loader:
        assert _digest(loader, disturb=disturb) == undisturbed
        restarts = loader.stats(reset=True)["restarts"]
        # One that is just being started ends with the supervisor too, and has no pid yet.
        assert 7 <= len(killed) <= restarts <= len(killed) + 1
        assert loader.stats()["restarts"] == 0
    texts = [text for text in caplog.messages if "it is replaced" in text]
    for pid in killed[:6]:  # in any order: two that die one after the other may be found together
        assert any(f"pid {pid}" in text and "SIGKILL" in text for text in texts), texts
    release_workers()
    seen.check_gone()


@contextlib.contextmanager
def _busy_cores(processes_of_each: int) -> Iterator[None]:
    """Keep every core busy: a process that was killed goes on for a while then."""
    command = [sys.executable, "-c", "while True: pass"]
    helpers = [subprocess.Popen(command) for _ in range(processes_of_each * usable_cpus())]
    try:
        yield
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()


@pytest.mark.parametrize("busy", [0, pytest.param(3, marks=pytest.mark.wide)])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_supervisor_killed_again_and_again(undisturbed: str, in_order: bool, busy: int) -> None:
    """Its workers send on until the kernel gets to them, late on busy cores. No epoch is short."""
    kills: list[int] = []

    def disturb(epoch: int, batch: int) -> None:
        if batch % 40 == 5:
            kills.append(supervisor_pid(loader))
            os.kill(kills[-1], signal.SIGKILL)
            # On busy cores it may be dead only after the last batch: no other would take its place.
            wait_until(lambda: process_state(kills[-1]) in ENDED, "the supervisor's end")

    with _busy_cores(busy), _make(in_order=in_order, max_restarts=1000) as loader:
        if in_order:
            assert _digest(loader, disturb=disturb) == undisturbed
        for epoch in () if in_order else range(3):
            loader.set_epoch(epoch)
            seeds = []
            for batch, data in enumerate(loader):
                seeds.append(data.batch)
                disturb(epoch, batch)
            assert torch.cat(seeds).sort().values.equal(torch.arange(60).repeat_interleave(4))
        assert len(set(kills)) >= 3
        assert loader.stats()["restarts"] >= len(set(kills))


def test_a_supervisor_killed_while_a_loader_is_built(
    undisturbed: str, tmp_path: Path, caplog
) -> None:
    """Twice; a third time is one more than may be."""
    caplog.set_level(logging.WARNING, "gigl_loader")
    with _make(worker_init_fn=partial(end_supervisor, str(tmp_path), 2), max_restarts=2) as loader:
        assert len(list(tmp_path.iterdir())) == 2
        assert _digest(loader) == undisturbed
    assert any("is started again" in text for text in caplog.messages)
    assert "pid -1" not in caplog.text
    with pytest.raises(WorkerDiedError, match=r"\((pid [0-9]+|not started yet)\).*supervis"):
        _make(worker_init_fn=partial(end_supervisor, str(tmp_path), 5), max_restarts=2)


def test_a_worker_that_is_stopped_is_replaced(undisturbed: str, caplog) -> None:
    def disturb(epoch: int, batch: int) -> None:
        if (epoch, batch) == (1, 7):
            stopped.append(worker_pid(loader))
            _end(stopped[0], signal.SIGSTOP)
            pass_the_timeout(loader, lambda: [pid for pid in stopped if is_stopped(pid)])

    stopped: list[int] = []
    with _make() as loader:
        assert _digest(loader, disturb=disturb) == undisturbed
        assert loader.stats()["restarts"] >= 1
        assert process_state(stopped[0]) in ENDED
    assert any(f"pid {stopped[0]}, stopped by a signal" in text for text in caplog.messages)


@pytest.mark.parametrize("how", ["exit", "segfault", "hang"])
def test_what_one_worker_stumbles_over_the_next_one_samples(
    how: str, undisturbed: str, tmp_path: Path
) -> None:
    options = CustomSamplerOptions(
        "tests.engine.faults.Faulty",
        {"how": how, "epoch": 1, "batch": 20, "once": str(tmp_path / how)},
    )
    with _make(sampler_options=options) as loader:

        def disturb(epoch: int, batch: int) -> None:
            if how == "hang" and (epoch, batch) == (0, 100):
                pass_the_timeout(loader, lambda: hung_pids(tmp_path / how))

        assert _digest(loader, disturb=disturb) == undisturbed
        assert loader.stats()["restarts"] >= 1


@pytest.mark.parametrize("how", ["exit", "hang"])
def test_a_batch_that_ends_every_worker(how: str, tmp_path: Path) -> None:
    options = CustomSamplerOptions(
        "tests.engine.faults.Faulty", {"how": how, "batch": 20, "hung": str(tmp_path)}
    )
    with _make(sampler_options=options, shuffle=False) as loader:
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
        pass_the_timeout(loader, lambda: hung_pids(tmp_path))
        error = WorkerDiedError if how == "exit" else PeerTimeoutError
        with pytest.raises(error, match=r"batch 20 of epoch 0 .* its 2 seeds are \[40, 41\]"):
            list(iterator)
