"""The supervisor that rests for the next loader: who gets it, what it is told, how it ends."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    PPRSamplerOptions,
    partition_graph,
    release_workers,
)
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.runtime.system import descendants
from gigl_loader.sources.workers import pool, resting
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import TinyGraph, batch_digest, open_files, wait_until, worker_pid
from tests.sources.workers.resting_jobs import note_compiling, tell
from tests.support.conditions import SetConstants
from tests.support.resting import at_rest
from tests.support.sources import supervisor_pid
from tests.support.zygote import Zygote, new_zygote, use_zygote

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[3]
DATASET = TinyGraph.random(60, 500).dataset()
GONE = ("gone", "dead")


def _make(**how: Any) -> DistNeighborLoader:
    given = {"num_workers": 1, "batch_size": 8, "seed": 1}
    dataset = how.pop("dataset", DATASET)
    return DistNeighborLoader(dataset, [3, 2], torch.arange(60), **{**given, **how})


def _run(**how: Any) -> tuple[int, list[str]]:
    """Run a loader for an epoch; return its supervisor, and the digests of its batches."""
    with _make(**how) as loader:
        return supervisor_pid(loader), [batch_digest(batch) for batch in loader]


def _at_rest(pid: int | None = None) -> list[int]:
    return at_rest(descendants(os.getpid() if pid is None else pid))


@pytest.fixture(autouse=True)
def _nothing_rests() -> Iterator[None]:
    release_workers()
    yield
    release_workers()
    assert not _at_rest()


def test_the_next_loader_has_the_supervisor_and_other_workers() -> None:
    with _make() as loader:
        pids = [worker_pid(loader)]
    first, batches = _run()
    assert _at_rest() == [first], "nothing else is left of the loader"
    assert process_state(pids[0]) in GONE
    assert _run() == (first, batches), "and the same batches"
    assert _run(with_weight=True)[0] == first, "which may need kernels that it has not loaded"
    release_workers()
    assert process_state(first) in GONE
    release_workers()  # there is none
    assert _run()[1] == batches


KINDS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {},
        {"with_edge": True},
        {"replace": True},
        {"shuffle": True, "num_workers": 2},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
    ],
    "by weight": [{"with_weight": True}, {"with_weight": True, "replace": True}],
    "LABOR": [{"sampling_method": "labor"}, {"sampling_method": "labor", "with_weight": True}],
    "trees": [
        {"disjoint": True},
        {"time_attr": "node_time"},
        {"time_attr": "node_time", "time_window": 9, "temporal_strategy": "last"},
    ],
    "PPR": [{"sampler_options": PPRSamplerOptions()}],
}


@pytest.fixture(scope="module")
def cold_zygote() -> Iterator[Zygote]:
    """What forks supervisors in which no kernel is loaded, as it is not in a new interpreter."""
    with new_zygote("gigl_loader.sources.workers.supervisor") as zygote:
        yield zygote


@pytest.mark.parametrize("kind", KINDS)
def test_the_supervisor_loads_what_workers_need(
    kind: str, cold_zygote: Zygote, tmp_path: Path
) -> None:
    """Else each worker would, in the time of its first batch, and compile it on a new machine."""
    notes = tmp_path / "notes"
    partition_graph(TinyGraph.random(60, 500).to_pyg(), 1, tmp_path / "graph", format="mapped")
    mapped = DistDataset.load(tmp_path / "graph", 0, mmap=True)
    # the second loader has the supervisor of the first
    kinds = [*KINDS[kind], *({**how, "dataset": mapped} for how in KINDS[kind])]
    with use_zygote(cold_zygote):
        for how in kinds:
            assert _run(worker_init_fn=partial(note_compiling, str(notes)), **how)[1]
            assert not notes.exists(), notes.read_text()
    release_workers()


TELL_MEMORY = """
import os
import torch
from gigl_loader import DistNeighborLoader
from gigl_loader.runtime.system import descendants
from gigl_loader.testing import TinyGraph
from tests.support.resting import at_rest, memory_of

with DistNeighborLoader(TinyGraph.random(60, 500).dataset(), [3], torch.arange(60)) as loader:
    list(loader)
(pid,) = at_rest(descendants(os.getpid()))
print(*memory_of(pid))
"""


def test_it_takes_the_memory_that_the_page_says() -> None:
    # a new interpreter, as a user's: the supervisors of tests are forked from a process of theirs
    code = [sys.executable, "-c", TELL_MEMORY]
    told = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    shown, own = map(int, told.stdout.split())
    page = " ".join((ROOT / "docs/guide/tuning.md").read_text().split())
    said = re.search(r"Tools show (\d+) MB for it, of which (\d+) MB are its own", page)
    assert said is not None
    # other versions of Python and Numba take a little more or less
    assert shown < 1.25 * 10**6 * int(said[1])
    assert own < 1.25 * 10**6 * int(said[2])


def test_it_holds_no_graph_no_folder_and_no_pipe() -> None:
    _run()
    (pid,) = _at_rest()
    assert "gigl_loader" not in "".join(
        line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd" in line
    )
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == [os.devnull] * 3
    others = [file for file in open_files(pid) if file != os.devnull]
    assert len([file for file in others if file.startswith("socket:")]) == 1, "the trainer's"
    assert not [file for file in others if "memfd" in file]


def test_a_loader_has_what_its_trainer_has_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, supervisors = [], set()
    for turn in ("one", "three"):
        folder = tmp_path / turn
        folder.mkdir()
        (folder / "written_between_loaders.py").write_text(f"VALUE = '{turn}'\n")
        with monkeypatch.context() as patch, (folder / "errors").open("w") as errors:
            patch.syspath_prepend(str(folder))
            patch.setenv("SET_BETWEEN_LOADERS", turn)
            patch.chdir(folder)
            with _errors_to(errors.fileno()):
                supervisors.add(_run(worker_init_fn=partial(tell, str(folder / "told")))[0])
        told.append(json.loads((folder / "told").read_text()))
        assert told[-1].pop("errors") == str(folder / "errors")
        assert told[-1].pop("folder") == str(folder)
        assert told[-1].pop("variable") == turn
        assert told[-1].pop("module") == turn
    assert told[0] != told[1], "numpy draws on, and does not draw the same"
    assert len(supervisors) == 1
    # the next one has no such variable
    (tmp_path / "written_between_loaders.py").write_text("VALUE = 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _run(worker_init_fn=partial(tell, str(tmp_path / "told")))[0] in supervisors
    assert json.loads((tmp_path / "told").read_text())["variable"] is None


def test_a_module_of_the_user_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook: the same file, with other content."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for value in (1, 1000):
        (tmp_path / "written_between_loaders.py").write_text(f"VALUE = {value}\n")
        _run(worker_init_fn=partial(tell, str(tmp_path / "told")))
        assert json.loads((tmp_path / "told").read_text())["module"] == value


@contextlib.contextmanager
def _errors_to(fd: int) -> Iterator[None]:
    before = os.dup(2)
    os.dup2(fd, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@contextlib.contextmanager
def _umask() -> Iterator[None]:
    before = os.umask(0o77)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _cpus() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _blocked_signal() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})


@contextlib.contextmanager
def _variable(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, "1")
        yield


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (_umask, False),
        (_limit, False),
        (_blocked_signal, False),
        (partial(_variable, "NUMBA_OPT"), False),
        (partial(_variable, "OMP_NUM_THREADS"), False),
        (partial(_variable, "LD_PRELOAD"), False),
        (partial(_variable, "CUDA_VISIBLE_DEVICES"), True),
        (partial(_variable, "MINE"), True),
    ],
)
def test_what_no_message_changes_is_compared(
    change: Callable[[], contextlib.AbstractContextManager[None]], same: bool
) -> None:
    origin = resting.Origin.now(pool.start_supervisor, False)
    assert origin == resting.Origin.now(pool.start_supervisor, False)
    assert origin != resting.Origin.now(pool.start_supervisor, True)
    assert origin != resting.Origin.now(_cpus, False)
    with change():
        assert (origin == resting.Origin.now(pool.start_supervisor, False)) == same


def test_one_of_another_kind_of_process_is_not_taken() -> None:
    first, batches = _run()
    if len(os.sched_getaffinity(0)) > 1:
        with _cpus():
            assert resting.take(_origin(), ()) is None
    with _umask():
        second, found = _run()
    assert (second != first, found) == (True, batches)
    assert sorted(_at_rest()) == sorted([first, second])
    assert _run()[0] == first, "it waits for its like"


def _origin() -> resting.Origin:
    origin = resting.Origin.now(pool.start_supervisor, False)
    assert origin is not None
    return origin


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_died_or_stands_still_is_replaced_in_silence(
    how: signal.Signals, constants: SetConstants, caplog: pytest.LogCaptureFixture
) -> None:
    first, batches = _run()
    os.kill(first, how)
    wait_until(lambda: process_state(first) not in ("running", "sleeping"), "the signal is there")
    if how == signal.SIGSTOP:
        constants(resting, _ANSWER_S=0.1)
    second, found = _run()
    assert (second != first, found) == (True, batches)
    wait_until(lambda: process_state(first) == "gone", "it is no zombie either")
    assert caplog.text == ""


def test_its_rest_is_over_after_a_while(constants: SetConstants) -> None:
    constants(resting, REST_S=0.01)
    first, batches = _run()
    wait_until(lambda: process_state(first) in GONE, "it has ended")
    constants(resting, REST_S=60.0)
    second, found = _run()
    assert (second != first, found) == (True, batches)
    assert process_state(first) == "gone", "reaped"


def test_loaders_at_work_have_one_each_and_few_rest() -> None:
    loaders = [_make() for _ in range(resting.MOST + 1)]
    pids = [supervisor_pid(loader) for loader in loaders]
    assert len(set(pids)) == len(pids)
    release_workers()  # these are at work
    digests = [[batch_digest(batch) for batch in loader] for loader in loaders]
    assert digests[0] == digests[1] == digests[-1]
    for loader in loaders:
        loader.shutdown()
    assert sorted(_at_rest()) == sorted(pids[1:])
    assert process_state(pids[0]) in GONE


def test_threads_build_loaders() -> None:
    _, batches = _run()
    found: list[list[str]] = []

    def work() -> None:
        found.extend(_run(num_workers=1)[1] for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    assert found == [batches] * 9
    assert len(_at_rest()) <= resting.MOST


def test_a_forked_child_leaves_that_of_its_parent() -> None:
    first, batches = _run()
    if (child := os.fork()) == 0:
        release_workers()
        os._exit(0 if resting.take(_origin(), ()) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _run() == (first, batches)


def _trainer(told: Connection) -> None:
    """Leave one at rest and a forked child, which has copies of all that this process had open."""
    pid, _ = _run()
    child = os.fork()
    if child == 0:
        signal.pause()
    told.send((pid, child))
    signal.pause()


def test_it_ends_with_its_trainer() -> None:
    ours, theirs = Pipe()
    trainer = ForkedProcess(target=_trainer, args=(theirs,))
    trainer.start()
    assert ours.poll(200.0)
    pid, child = ours.recv()
    try:
        assert _at_rest(trainer.pid) == [pid]
        trainer.kill()
        trainer.join()
        wait_until(lambda: process_state(pid) in GONE, "it has ended")
        assert process_state(child) not in GONE
    finally:
        os.kill(child, signal.SIGKILL)
