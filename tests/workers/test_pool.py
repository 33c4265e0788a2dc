"""What `WorkerPool` makes of its sockets; the other ends are held by the test."""

import os
import selectors
import signal
import subprocess
from pathlib import Path

import pytest

from gigl_loader.errors import UsageError
from gigl_loader.workers import messages, pipe
from gigl_loader.workers.pool import WorkerEvent, WorkerPool, _Worker, process_state


@pytest.fixture
def ends():
    """A pool of two workers, with the other ends: (pool, control, worker 0, worker 1)."""
    pool = WorkerPool(2)
    (control, supervisor), *pairs = (pipe.pair() for _ in range(3))
    pool._control = control
    pool._workers = [
        _Worker(number, ours, pid=100 + number) for number, (ours, _) in enumerate(pairs)
    ]
    for sock, worker in [(control, None), *((w.sock, w) for w in pool._workers)]:
        pool._selector.register(sock, selectors.EVENT_READ, worker)
    others = [supervisor, *(theirs for _, theirs in pairs)]
    yield pool, *others
    pool.stop(0.0)
    for sock in others:
        sock.close()


def _died(events: list[WorkerEvent]) -> list[tuple]:
    return [(e.worker, *e.message[1:]) for e in events if e.message[0] == messages.DIED]


def test_a_death_is_told_once_while_others_keep_sending(ends) -> None:
    pool, supervisor, first, second = ends
    pipe.send(first, (messages.ERROR, "last words"))
    first.close()
    assert not pool.has_news()
    pipe.send(supervisor, (messages.EXITED, 0, 100, -signal.SIGKILL))
    assert pool.has_news()
    heard: list[WorkerEvent] = []
    for _ in range(4):
        pipe.send(second, (messages.STALE, None))
        heard += [event for event in pool.poll(1.0) if event.worker == 0]
    assert [event.message[0] for event in heard] == [messages.ERROR, messages.DIED]
    assert _died(heard) == [(0, 100, -signal.SIGKILL)]


def test_the_end_of_one_that_was_replaced_is_no_news(ends) -> None:
    pool, supervisor, *_ = ends
    pipe.send(supervisor, (messages.EXITED, 0, 99, -signal.SIGKILL))
    assert pool.poll(1.0) == pool.poll(0.0) == []


def test_a_supervisor_that_is_gone_takes_its_workers_along(ends) -> None:
    pool, supervisor, *_ = ends
    supervisor.close()
    assert _died(pool.poll(1.0)) == [(0, 100, None), (1, 101, None)]


def test_sending_to_a_dead_worker(ends) -> None:
    pool, supervisor, first, _ = ends
    first.close()
    pipe.send(supervisor, (messages.EXITED, 0, 100, 3))
    pool.send(0, (messages.STOP,))
    assert _died(pool.poll(1.0) + pool.poll(0.0)) == [(0, 100, 3)]


def test_a_stopped_pool(ends) -> None:
    pool, *_ = ends
    pool.stop(0.0)
    pool.stop(0.0)
    with pytest.raises(UsageError, match="stopped"):
        pool.poll(0.0)


def test_a_supervisor_that_does_not_end_is_killed_and_stopping_never_raises(ends) -> None:
    """Killed, it is gone when the kernel gets to it: on a machine that stands still, later."""
    told = []

    class Slow:
        def wait(self, timeout_s: float) -> None:
            told.append("wait")
            raise subprocess.TimeoutExpired("it", timeout_s)

        def kill(self) -> None:
            told.append("kill")

    pool, *_ = ends
    pool._supervisor = Slow()
    pool.stop(0.0)
    assert told == ["wait", "kill", "wait"]


def test_a_worker_that_was_not_heard_of_is_not_called_gone(ends) -> None:
    pool, *_ = ends
    pool._workers[0].pid, pool._workers[1].pid = _Worker(0, pool._control).pid, os.getpid()
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
