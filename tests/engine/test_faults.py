"""Promises 6 and 7: a fault ends in an error that says who, why, what next, and leaves nothing.

``docs/guide/faults.md`` has a row for each fault here.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from gigl_loader import (
    CustomSamplerOptions,
    DistNeighborLoader,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    WorkerDiedError,
    release_workers,
)
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import Footprint, TinyGraph, one_rank, wait_until, worker_pid
from tests.engine import faults
from tests.engine.stalls import ENDED, hung_pids, is_stopped, pass_the_timeout, worker_pids
from tests.support.resting import at_rest
from tests.support.scripts import FinalizedPython
from tests.support.sources import supervisor_pid

pytestmark = pytest.mark.multiprocess

GRAPH = TinyGraph.random(60, 500)
DATASET = GRAPH.dataset()
AT_MOST_S = 60.0
"""Beyond the loader's own timeout: far below the deadlines that a hang would run into, 120 s and
more, and far above what an error takes on a machine whose cores are all busy."""


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


def _make(seeds: torch.Tensor | None = None, **how) -> DistNeighborLoader:
    seeds = torch.arange(60) if seeds is None else seeds
    given = {"num_workers": 2, "batch_size": 2, "seed": 1}
    return DistNeighborLoader(DATASET, [3, 2], seeds, **{**given, **how})


def _faulty(how: str, **where) -> CustomSamplerOptions:
    return CustomSamplerOptions("tests.engine.faults.Faulty", {"how": how, **where})


@contextlib.contextmanager
def _leaves_nothing() -> Iterator[Footprint]:
    """Check that no process below this one is left; ``look`` adds what is seen while it lives.

    One that rests for the next loader is left until it is told to end.
    """
    release_workers()
    seen = Footprint(others=frozenset(Footprint.below().pids))
    yield seen
    seen.look(os.getpid())
    assert len(at_rest(seen.alive())) <= 1
    release_workers()
    seen.check_gone()


@contextlib.contextmanager
def _bounded(limit_s: float = AT_MOST_S) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < limit_s


def _is_gone(pid: int) -> bool:
    return process_state(pid) in ENDED


def _kill(*pids: int, dead: tuple[int, ...] = ()) -> None:
    """Kill ``pids``; return when they and ``dead`` have ended."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in (*pids, *dead):
        wait_until(partial(_is_gone, pid), f"{pid} has ended")


# --- workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [True, False])
def test_a_killed_worker(in_order: bool) -> None:
    """The others could go on for long; the error comes while the batches under way are taken."""
    with (
        _leaves_nothing() as seen,
        _make(torch.arange(60).repeat(100), in_order=in_order, max_restarts=0) as loader,
    ):
        iterator = iter(loader)
        next(iterator)
        seen.look(os.getpid())
        pid = worker_pid(loader, 1)
        _kill(pid)
        taken: list[Any] = []
        with (
            _bounded(),
            pytest.raises(WorkerDiedError, match=rf"worker 1 .pid {pid}. died: SIGKILL"),
        ):
            taken.extend(batch.batch_size for batch in iterator)
        assert len(taken) < 1000  # of 3,000: how soon depends on the load
        with _bounded(), pytest.raises(WorkerDiedError, match="num_workers or batch_size"):
            list(loader)


@pytest.mark.parametrize(("how", "died"), [("exit", "exit code 3"), ("segfault", "SIGSEGV")])
def test_a_worker_that_ends_while_it_samples(how: str, died: str) -> None:
    with _leaves_nothing() as seen, _make(sampler_options=_faulty(how), max_restarts=0) as loader:
        seen.look(os.getpid())
        with _bounded(), pytest.raises(WorkerDiedError, match=rf"worker \d .pid \d+. died: {died}"):
            list(loader)


def test_a_stopped_worker() -> None:
    with _leaves_nothing() as seen, _make(max_restarts=0) as loader:
        iterator = iter(loader)
        next(iterator)
        seen.look(os.getpid())
        pid = worker_pid(loader)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid), "the worker is stopped")
        pass_the_timeout(loader, lambda: [pid] if is_stopped(pid) else [])
        with _bounded(), pytest.raises(PeerTimeoutError, match=r"120\.0 s") as caught:
            list(iterator)
        assert f"worker 0 (pid {pid}, stopped by a signal" in str(caught.value)
        assert "raise `timeout`" in str(caught.value)
        with _bounded():
            loader.shutdown()


def test_a_worker_that_hangs(tmp_path: Path) -> None:
    with (
        _leaves_nothing() as seen,
        _make(sampler_options=_faulty("hang", hung=str(tmp_path)), max_restarts=0) as loader,
    ):
        seen.look(os.getpid())
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        pass_the_timeout(loader, lambda: hung_pids(tmp_path))
        with (
            _bounded(),
            pytest.raises(PeerTimeoutError, match=r"batch 3 of epoch 0 from worker \d .pid \d+, "),
        ):
            next(iterator)


def test_a_sampler_that_raises() -> None:
    options = _faulty("raise", epoch=1, batch=4)
    with _leaves_nothing() as seen, _make(sampler_options=options) as loader:
        seen.look(os.getpid())
        assert len(list(loader)) == 30
        with _bounded(), pytest.raises(SamplingError, match=r"epoch 1, batch 4") as caught:
            list(loader)
        pids = worker_pids(loader)
        assert re.search(rf"worker (0 .pid {pids[0]}|1 .pid {pids[1]})", str(caught.value))
        assert "ArithmeticError: this batch does not add up" in str(caught.value)
        assert "faults.py" in caught.value.remote_traceback
        assert len(list(loader)) == 30, "the next epoch is whole"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (_faulty("constructor"), "LookupError: 'no such table'|LookupError: no such table"),
        (CustomSamplerOptions("no_such_module.Sampler"), "ModuleNotFoundError.*no_such_module"),
        (CustomSamplerOptions("tests.engine.faults.NoSuchClass"), "AttributeError.*NoSuchClass"),
    ],
)
def test_a_sampler_that_cannot_be_built(options: CustomSamplerOptions, cause: str) -> None:
    with (
        _leaves_nothing(),
        _bounded(),
        pytest.raises(SamplingError, match=rf"start of sampling worker \d failed: {cause}"),
    ):
        _make(sampler_options=options)


def test_a_worker_init_fn_that_raises() -> None:
    with _leaves_nothing(), _bounded(), pytest.raises(SamplingError) as caught:
        _make(worker_init_fn=faults.raise_in_worker)
    assert re.search(r"PermissionError: worker \d may not do this", str(caught.value))
    assert "raise_in_worker" in caught.value.remote_traceback


def test_a_worker_that_never_gets_ready() -> None:
    with _leaves_nothing(), _bounded(6.0 + AT_MOST_S), pytest.raises(PeerTimeoutError) as caught:
        _make(worker_init_fn=faults.block_worker, timeout=6.0)
    assert re.search(
        r"workers \[(0, )?1\] were not ready 6 s.*worker 1 .(pid \d+, |not started yet)",
        str(caught.value),
    )


def test_no_shared_memory_left() -> None:
    with (
        _leaves_nothing() as seen,
        _make(worker_init_fn=faults.limit_memory, batch_size=60, num_workers=1) as loader,
    ):
        assert len(list(loader)) == 1, "a batch that fits still comes"
    big = TinyGraph.random(3000, 30_000)
    with (
        _leaves_nothing() as seen,
        DistNeighborLoader(
            big.dataset(),
            [-1],
            torch.arange(3000),
            batch_size=3000,
            worker_init_fn=faults.limit_memory,
        ) as loader,
    ):
        seen.look(os.getpid())
        with _bounded(), pytest.raises(SamplingError, match="could not reserve") as caught:
            list(loader)
        assert "lower batch_size, num_neighbors" in str(caught.value)
        assert "worker 0" in str(caught.value)


def test_a_killed_supervisor() -> None:
    with _leaves_nothing() as seen, _make(max_restarts=0) as loader:
        iterator = iter(loader)
        next(iterator)
        seen.look(os.getpid())
        _kill(supervisor_pid(loader), dead=tuple(worker_pids(loader)))
        with (
            _bounded(),
            pytest.raises(WorkerDiedError, match=r"worker \d .pid \d+. died: .*supervis"),
        ):
            list(iterator)


def test_shutdown_in_the_middle_of_an_epoch() -> None:
    release_workers()
    before = set(Footprint.below().pids)  # multiprocessing's resource tracker, of earlier tests
    with _leaves_nothing() as seen:
        loader = _make(num_workers=3)
        next(iter(loader))
        seen.look(os.getpid())
        with _bounded():
            loader.shutdown()
        loader.shutdown()
        left = set(seen.alive()) - before
        assert left == set(at_rest(left)), "shutdown() returns when the workers are gone"
        assert len(left) == 1, "what rests for the next loader"
        release_workers()
        assert not set(seen.alive()) - before


# --- the trainer ----------------------------------------------------------------------------------


def _stop_children_and_kill(trainer: FinalizedPython) -> None:
    """Stop the supervisor: it cannot read that its trainer is gone."""
    children = psutil.Process(trainer.pid).children()
    for child in children:
        child.suspend()
    wait_until(lambda: all(is_stopped(child.pid) for child in children), "they are stopped")
    trainer.kill()


def _press_ctrl_c(trainer: FinalizedPython) -> None:
    os.killpg(trainer.pid, signal.SIGINT)


ENDS: dict[str, tuple[Callable[[FinalizedPython], None] | None, int]] = {
    "SIGKILL": (lambda p: p.kill(), -signal.SIGKILL),
    "SIGTERM": (lambda p: p.terminate(), -signal.SIGTERM),
    "Ctrl-C": (_press_ctrl_c, -signal.SIGINT),
    "exception": (None, 1),
    "end": (None, 0),
    "fork": (lambda p: p.kill(), -signal.SIGKILL),
    "early": (lambda p: p.kill(), -signal.SIGKILL),
    "stopped": (_stop_children_and_kill, -signal.SIGKILL),
}
SCRIPT = Path(__file__).parent / "trainer.py"


def _start_trainer(arguments: list[str], stdin: Connection, errors: Path) -> FinalizedPython:
    with errors.open("wb") as stderr:
        return FinalizedPython(
            [sys.executable, str(SCRIPT), *arguments],
            stdin=stdin.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )


def _has_ended(trainer: FinalizedPython, how: str) -> bool:
    """Return whether it has; tell it again, as its user would, where nothing has come of Ctrl-C.

    Python drops a KeyboardInterrupt that comes while an object is deleted, and batches are.
    """
    if how == "Ctrl-C":
        with contextlib.suppress(subprocess.TimeoutExpired):
            trainer.wait(10.0)
        if trainer.poll() is None:
            _press_ctrl_c(trainer)
    return trainer.poll() is not None


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple]]:
    """All trainers, started at once: starting is the slow part."""
    root = tmp_path_factory.mktemp("trainers")
    started: dict[str, tuple[FinalizedPython, Path, Path, Connection]] = {}
    try:
        for how in ENDS:
            folder, errors = root / how, root / f"{how}.err"
            theirs, ours = Pipe(duplex=False)
            with theirs:
                trainer = _start_trainer([str(folder), how], theirs, errors)
            started[how] = (trainer, folder, errors, ours)
        yield started
    finally:
        for trainer, _, _, ours in started.values():
            ours.close()
            trainer.kill()
            trainer.wait(60.0)


@pytest.mark.parametrize("how", ["early", *(end for end in ENDS if end != "early")])
def test_the_end_of_the_trainer_is_the_end_of_its_workers(trainers, how: str) -> None:
    process, folder, errors, stdin = trainers[how]
    end, code = ENDS[how]

    def ready() -> bool:
        assert process.poll() is None, errors.read_text()
        return (folder / "ready").exists()

    wait_until(ready, "the trainer is ready", 400.0)
    enough = 1 if how == "early" else 3  # the supervisor; the supervisor and two workers
    wait_until(
        lambda: len(Footprint.below(process.pid).pids) >= enough, "it has started them", 400.0
    )
    # a forked child of the trainer keeps the sockets of the trainer's process group open
    seen = Footprint.below(process.pid, itself=how != "fork")
    os.write(stdin.fileno(), b"go\n")
    if how == "fork":
        wait_until(lambda: (folder / "child").exists(), "the trainer has forked")
    if end is not None:
        end(process)
    wait_until(lambda: _has_ended(process, how), "the trainer has ended")
    assert process.returncode == code, errors.read_text()
    seen.check_gone()
    text = errors.read_text()
    assert ("KeyboardInterrupt" in text) == (how == "Ctrl-C")
    assert ("a bug in the training loop" in text) == (how == "exception")


def test_errors_are_one_family() -> None:
    assert issubclass(WorkerDiedError, PeerError)
    assert issubclass(SamplingError, PeerError)
    assert issubclass(PeerTimeoutError, (PeerError, TimeoutError))
