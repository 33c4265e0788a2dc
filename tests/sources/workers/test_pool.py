"""What `WorkerPool` makes of its sockets; the other ends are held by the test."""

import contextlib
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.errors import UsageError, WorkerDiedError
from gigl_loader.runtime.memory import tensors
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers import pool as pool_module
from gigl_loader.sources.workers.pool import WorkerEvent, WorkerPool, process_state
from gigl_loader.testing import open_files

SETUP: Any = SimpleNamespace(main_path=None, users_code=False, kernels=())


class _Quiet:
    """A supervisor that starts two workers, with the test's own ends, and leaves all else to it."""

    def __init__(self, control: pipe.Socket, pids: Sequence[int] = (100, 101)) -> None:
        self.control, self._pids, self.workers = control, pids, list[pipe.Socket]()
        self.told = list[str]()
        self._begins = threading.Thread(target=self._begin)
        self._begins.start()

    def _begin(self) -> None:
        for _ in self._pids:
            got = pipe.receive(self.control)
            assert got is not None
            self.workers.append(pipe.Socket(fileno=got[1][0]))
        for number, (sock, pid) in enumerate(zip(self.workers, self._pids, strict=True)):
            pipe.receive_object(sock)
            pipe.receive(sock)
            pipe.send(self.control, (pipe.FORKED, number, pid))
            pipe.send(sock, (pipe.READY, None))

    def poll(self) -> None: ...

    def wait(self, timeout_s: float) -> None:
        self.told.append("wait")

    def kill(self) -> None:
        self.told.append("kill")

    def close(self) -> None:
        self._begins.join(60.0)
        for sock in (self.control, *self.workers):
            sock.close()


@contextlib.contextmanager
def _of_quiet(
    kind: Callable[[pipe.Socket], _Quiet] = _Quiet,
) -> Iterator[tuple[WorkerPool, _Quiet]]:
    """Start a pool of two workers; both are up, and nothing of theirs is unread."""
    started: list[_Quiet] = []

    def starts(script: str, fds: Sequence[int]) -> Any:
        started.append(kind(pipe.Socket(fileno=os.dup(fds[0]))))
        return started[-1]

    pool, setup = WorkerPool(2, tensors.dumps, starts), SETUP
    pool.start(setup, 60.0)
    yield pool, started[0]
    pool.stop(0.0)
    started[0].close()


@pytest.fixture
def ends():
    """A pool of two workers, with the other ends: (pool, control, worker 0, worker 1)."""
    with _of_quiet() as (pool, supervisor):
        yield pool, supervisor.control, *supervisor.workers


def _died(events: list[WorkerEvent]) -> list[tuple]:
    return [(e.worker, *e.message[1:]) for e in events if e.message[0] == pipe.DIED]


def test_a_death_is_told_once_while_others_keep_sending(ends) -> None:
    pool, supervisor, first, second = ends
    pipe.send(first, (pipe.ERROR, "last words"))
    first.close()
    assert not pool.has_news()
    pipe.send(supervisor, (pipe.EXITED, 0, 100, -signal.SIGKILL))
    assert pool.has_news()
    heard: list[WorkerEvent] = []
    for _ in range(4):
        pipe.send(second, (pipe.STALE, None))
        heard += [event for event in pool.poll(1.0) if event.worker == 0]
    assert [event.message[0] for event in heard] == [pipe.ERROR, pipe.DIED]
    assert _died(heard) == [(0, 100, -signal.SIGKILL, None)]


def test_a_message_whose_object_cannot_be_sent_is_not_sent(ends) -> None:
    """The worker would take the next message for the object."""
    pool, _, first, _ = ends
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        pool.send(0, ("orders",), lambda: None)
    pool.send(0, ("the next",))
    received = pipe.receive(first)
    assert received is not None
    assert received[0] == ("the next",)


def test_the_end_of_one_that_was_replaced_is_no_news(ends) -> None:
    pool, supervisor, *_ = ends
    pipe.send(supervisor, (pipe.EXITED, 0, 99, -signal.SIGKILL))
    assert pool.poll(1.0) == pool.poll(0.0) == []


def test_a_worker_whose_supervisor_is_gone_is_dead_at_the_end_of_its_own_socket(ends) -> None:
    """The kernel gets to it later, on a busy machine much later: until then it sends."""
    pool, supervisor, first, second = ends
    supervisor.close()
    for _ in range(3):
        assert pool.poll(0.1) == []
        assert pool.has_news(), "who looks on is told"
    pipe.send(first, (pipe.STALE, 1))
    second.close()
    heard = pool.poll(1.0)
    while not any(event.worker == 0 for event in heard):
        heard += pool.poll(1.0)
    assert _died(heard) == [(1, 101, None, 1)]
    pipe.send(first, (pipe.STALE, 2))
    first.close()
    while pool.has_news():
        heard += pool.poll(1.0)
        if (0, 100, None, 1) in _died(heard):
            break
    assert [event.message[1] for event in heard if event.worker == 0] == [1, 2, 100]


def test_nothing_comes_of_a_worker_after_its_end(ends, constants) -> None:
    """Not even where one lives on, which the kernel has not got to: it reads its own end."""
    pool, supervisor, first, _ = ends
    constants(pool_module, _EXIT_REPORT_S=0.0)
    pipe.send(first, (pipe.STALE, 1))
    supervisor.close()
    heard: list[WorkerEvent] = []
    while (0, 100, None, 1) not in _died(heard):
        heard += pool.poll(0.1)
    assert [event.message[1] for event in heard if event.worker == 0] == [1, 100]
    with pytest.raises(OSError, match="Broken pipe"):
        pipe.send(first, (pipe.STALE, 2))
    assert pipe.receive(first) is None
    assert not any(event.worker == 0 for event in pool.poll(0.1))


def test_what_a_worker_sent_is_heard_though_it_left_something_unread(ends) -> None:
    pool, supervisor, first, _ = ends
    pipe.send(first, (pipe.STALE, 1))
    pool.send(0, (pipe.TASK,))
    first.close()
    pipe.send(supervisor, (pipe.EXITED, 0, 100, -9))
    heard = pool.poll(1.0)
    while (0, 100, -9, None) not in _died(heard):
        heard += pool.poll(1.0)
    assert [event.message[1] for event in heard] == [1, 100]


def test_sending_to_a_dead_worker(ends) -> None:
    pool, supervisor, first, _ = ends
    first.close()
    pipe.send(supervisor, (pipe.EXITED, 0, 100, 3))
    pool.send(0, (pipe.STOP,))
    assert _died(pool.poll(1.0) + pool.poll(0.0)) == [(0, 100, 3, None)]


def test_a_stopped_pool(ends) -> None:
    pool, *_ = ends
    pool.stop(0.0)
    pool.stop(0.0)
    with pytest.raises(UsageError, match="stopped"):
        pool.poll(0.0)


class _Slow(_Quiet):
    """One that does not end."""

    def wait(self, timeout_s: float) -> None:
        super().wait(timeout_s)
        raise subprocess.TimeoutExpired("it", timeout_s)


def test_a_supervisor_that_does_not_end_is_killed_and_stopping_never_raises() -> None:
    """Killed, it is gone when the kernel gets to it: on a machine that stands still, later."""
    with _of_quiet(_Slow) as (pool, supervisor):
        pool.stop(0.0)
        assert supervisor.told == ["wait", "kill", "wait"]


def test_a_worker_that_was_not_heard_of_is_not_called_gone() -> None:
    with _of_quiet(partial(_Quiet, pids=(100, os.getpid()))) as (pool, _):
        pool.replace(0)  # nobody says that it was started
        assert pool.pids == [None, os.getpid()], "no number that a signal could be sent to"
        assert pool.describe([0, 1]) == (
            f"worker 0 (not started yet), worker 1 (pid {os.getpid()}, running)"
        )


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError])
def test_a_process_that_ends_while_it_is_looked_at_is_gone(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file cannot be opened any more, or is open and cannot be read."""

    def ended(path: Path) -> str:
        raise error(path)

    assert process_state(os.getpid()) == "running"
    monkeypatch.setattr(Path, "read_text", ended)
    assert process_state(os.getpid()) == "gone"


class _Supervisor:
    """One that is played by a thread: ``plays`` is told of each worker that it is to start."""

    def __init__(self, control: pipe.Socket, plays: Callable[["_Supervisor", int], None]) -> None:
        self.control, self.plays = control, plays
        self.workers: dict[int, pipe.Socket] = {}
        self._sockets = [control]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (got := pipe.receive(self.control)) is not None:
            (_, number), fds = got
            self.workers[number] = pipe.Socket(fileno=fds[0])
            self._sockets.append(self.workers[number])
            # a pool that gave up in the meantime has closed its end
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.plays(self, number)
        for sock in self._sockets:
            sock.close()

    def begin(self, number: int) -> None:
        pipe.send(self.control, (pipe.FORKED, number, 200 + number))
        pipe.send(self.workers[number], (pipe.READY, None))

    def end(self) -> None:
        """End as a process does that was killed: its socket first, its workers' later."""
        for sock in (self.control, *self.workers.values()):
            pipe.end(sock)

    def poll(self) -> None:
        """It cannot be reaped so far: on a busy machine that takes its time."""

    def wait(self, timeout_s: float) -> None: ...

    def kill(self) -> None: ...


def _started(
    *plays: Callable[[_Supervisor, int], None], max_restarts: int
) -> tuple[WorkerPool, list[_Supervisor]]:
    """Start a pool of two workers whose supervisors do, one after another, what ``plays`` say."""
    supervisors: list[_Supervisor] = []

    def starts(script: str, fds: Sequence[int]) -> Any:
        control = pipe.Socket(fileno=os.dup(fds[0]))
        supervisors.append(_Supervisor(control, plays[len(supervisors)]))
        return supervisors[-1]

    pool = WorkerPool(2, tensors.dumps, starts)
    pool.start(SETUP, 60.0, max_restarts)
    return pool, supervisors


def _lets_begin(supervisor: _Supervisor, number: int) -> None:
    supervisor.begin(number)


def _is_killed(supervisor: _Supervisor, number: int) -> None:
    if number == 0:
        supervisor.begin(number)
    else:
        supervisor.end()


def test_what_is_killed_while_the_pool_starts_is_started_again(caplog) -> None:
    deaths = {0: [-signal.SIGKILL]}

    def one_is_killed(supervisor: _Supervisor, number: int) -> None:
        if not deaths.get(number):
            supervisor.begin(number)
            return
        pipe.send(supervisor.control, (pipe.FORKED, number, 99))
        pipe.end(supervisor.workers[number])
        pipe.send(supervisor.control, (pipe.EXITED, number, 99, deaths[number].pop()))

    pool, supervisors = _started(one_is_killed, max_restarts=1)
    assert (len(supervisors), pool.pids) == (1, [200, 201])
    assert "worker 0 (pid 99) died: SIGKILL" in caplog.text
    pool.stop(0.0)
    pool, supervisors = _started(_is_killed, _lets_begin, max_restarts=1)
    assert (len(supervisors), pool.pids) == (2, [200, 201])
    pool.stop(0.0)
    with pytest.raises(WorkerDiedError, match=r"\((pid 200|not started yet)\)"):
        # a supervisor found dead while a worker is asked for is renewed before its end is counted
        _started(*[_is_killed] * 6, max_restarts=1)
    deaths[0] = [1]  # it would do so again
    with pytest.raises(WorkerDiedError, match=r"worker 0 .pid 99. died: exit code 1"):
        _started(one_is_killed, max_restarts=9)


def _read_all(sock: pipe.Socket) -> list[Any]:
    """Return the messages that a worker gets, with the object after each `pipe.ATTEMPT`."""
    found = list[Any]()
    while pipe.is_readable(sock):
        got = pipe.receive(sock)
        assert got is not None
        found.append(got[0])
        if got[0][0] == pipe.ATTEMPT:
            found.append(pipe.receive_object(sock).tolist())
    return found


def test_one_that_does_not_read_keeps_nobody_waiting_and_gets_all_in_order() -> None:
    """Each send waited 30 s for it, and other consumers for the lock that was held meanwhile."""
    with _of_quiet() as (pool, quiet):
        asked = [(pipe.TASK, number, bytes(40_000)) for number in range(20)]
        for message in asked:
            pool.send(0, message)
        pool.send(0, (pipe.ATTEMPT, 0), torch.arange(30_000))
        pool.send(1, (pipe.TASK, "of the other"))
        assert pipe.receive(quiet.workers[1]) == ((pipe.TASK, "of the other"), [])
        before = open_files()
        found = list[Any]()
        while len(found) < len(asked) + 2:
            found += _read_all(quiet.workers[0])
            assert not pool.poll(0.01)
        assert found == [*asked, (pipe.ATTEMPT, 0), [*range(30_000)]]
        assert len(open_files()) <= len(before), "descriptors of the object are closed"


def test_one_that_does_not_read_for_long_is_reported_once_in_that_time(clock_of) -> None:
    clock = clock_of(pool_module)
    with _of_quiet() as (pool, quiet):
        for number in range(20):
            pool.send(0, (pipe.TASK, number, bytes(40_000)))
        assert not pool.poll(0.0)
        clock.now += pool_module.SEND_TIMEOUT_S + 1
        assert pool.poll(0.0) == [WorkerEvent(0, (pipe.UNREAD,), ())]
        assert not pool.poll(0.0)
        found = list[Any]()
        while len(found) < 20:
            found += _read_all(quiet.workers[0])
            pool.poll(0.0)
        clock.now += pool_module.SEND_TIMEOUT_S + 1
        assert not pool.poll(0.0), "it reads again"


def test_a_send_within_a_send_comes_after_it(monkeypatch) -> None:
    """As by the collector, which ends an iterator, whose epoch workers are told of."""
    with _of_quiet() as (pool, quiet):
        send_packed = pipe.send_packed

        def sending(sock: pipe.Socket, data: bytes, fds: Sequence[int] = ()) -> None:
            monkeypatch.setattr(pipe, "send_packed", send_packed)
            pool.send(0, (pipe.ATTEMPT, 1, None, False))
            send_packed(sock, data, fds)

        monkeypatch.setattr(pipe, "send_packed", sending)
        pool.send(0, (pipe.TASK, "first"))
        assert [pipe.receive(quiet.workers[0]) for _ in range(2)] == [
            ((pipe.TASK, "first"), []),
            ((pipe.ATTEMPT, 1, None, False), []),
        ]
