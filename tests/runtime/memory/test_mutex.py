"""The lock in shared memory: who holds it, and what happens when its holder is gone or stopped."""

import errno
import os
import signal
import threading

import numpy as np
import pytest

from gigl_loader.errors import PeerTimeoutError
from gigl_loader.runtime.memory import mutex, segments
from gigl_loader.runtime.memory.mutex import Mutex

NBYTES = Mutex.NBYTES + 64


@pytest.fixture(params=["clocklock", "trylock"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either function: that of glibc since 2.30, and what others have."""
    if request.param == "trylock":
        monkeypatch.setattr(mutex, "_clocklock", None)
    else:
        assert mutex._clocklock is not None, "the tests run on a glibc that has it"


@pytest.fixture
def memory():
    """Memory that forked processes share: a lock, then what it guards."""
    fd = segments.create_memfd(NBYTES)
    address = segments.map_fd(fd, NBYTES)
    os.close(fd)
    yield segments.array_in(segments.buffer_at(address, NBYTES), "uint8", (NBYTES,), 0)
    segments.unmap(address, NBYTES)


def test_one_holds_it_at_a_time(memory: np.ndarray) -> None:
    Mutex(memory[: Mutex.NBYTES]).make()
    count = memory[Mutex.NBYTES :].view(np.int64)

    def add() -> None:
        for _ in range(200):
            with Mutex(memory[: Mutex.NBYTES]).held(60.0) as was_abandoned:
                assert not was_abandoned
                found = int(count[0])
                inside.append(None)
                assert len(inside) == 1
                count[0] = found + 1
                inside.pop()

    inside: list[None] = []
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count[0] == 800


def test_a_lock_that_stays_held_is_a_timeout_and_an_error_inside_frees_it(
    memory: np.ndarray,
) -> None:
    Mutex(memory[: Mutex.NBYTES]).make()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with Mutex(memory[: Mutex.NBYTES]).held(60.0):
            held.set()
            done.wait(60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60.0)
    with (
        pytest.raises(PeerTimeoutError, match="held a lock for 0 s"),
        Mutex(memory[: Mutex.NBYTES]).held(0.01),
    ):
        pytest.fail("it is held")
    done.set()
    thread.join()
    with pytest.raises(ArithmeticError), Mutex(memory[: Mutex.NBYTES]).held(60.0):
        raise ArithmeticError
    with Mutex(memory[: Mutex.NBYTES]).held(0.0) as was_abandoned:
        assert not was_abandoned


@pytest.mark.usefixtures("wall_clock_behind")
def test_a_wall_clock_that_is_set_ends_no_wait(memory: np.ndarray) -> None:
    """Behind by an hour when the wait began, and right since: its end would lie in the past."""
    Mutex(memory[: Mutex.NBYTES]).make()
    held, order = threading.Event(), []

    def hold() -> None:
        with Mutex(memory[: Mutex.NBYTES]).held(60.0):
            held.set()
            threading.Event().wait(0.05)  # the other one waits, or has raised
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60.0)
    with Mutex(memory[: Mutex.NBYTES]).held(60.0):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.multiprocess
def test_the_next_one_is_told_once_that_its_holder_was_killed(memory: np.ndarray) -> None:
    Mutex(memory[: Mutex.NBYTES]).make()
    killed = os.fork()
    if killed == 0:
        try:
            with Mutex(memory[: Mutex.NBYTES]).held(10.0):
                memory[-1] = 7
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    for expected in (True, False):
        with Mutex(memory[: Mutex.NBYTES]).held(10.0) as was_abandoned:
            assert was_abandoned == expected
            assert memory[-1] == 7


def test_a_system_without_such_locks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __getattr__(self, name: str):
            return lambda *_: errno.ENOTSUP if "robust" in name else 0

    monkeypatch.setattr(mutex, "_libc", Refusing())
    with pytest.raises(OSError, match=os.strerror(errno.ENOTSUP)):
        Mutex(np.zeros(Mutex.NBYTES, np.uint8)).make()
