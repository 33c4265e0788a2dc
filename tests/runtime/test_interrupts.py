"""SIGINT within a lock's block, in a wait of it, and outside: when it is raised, and by whom."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from gigl_loader.runtime.interrupts import UninterruptedLock, interruptible


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, former)


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_comes_when_the_outermost_block_is_through() -> None:
    lock, other = UninterruptedLock(), UninterruptedLock()
    steps = list[str]()

    def nested() -> None:
        with lock:
            with other, lock:
                _interrupt()
                steps.append("inner")
            steps.append("outer")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert steps == ["inner", "outer"]
    assert not lock.is_held_here()
    with pytest.raises(KeyboardInterrupt):
        _interrupt()


@pytest.mark.parametrize("before", [False, True])
def test_a_wait_within_a_block_is_interrupted_at_once(before: bool) -> None:
    lock, steps = UninterruptedLock(), list[str]()

    def wait() -> None:
        with lock:
            if before:
                _interrupt()
            with interruptible():
                _interrupt()
                steps.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert not steps
    with lock, interruptible():
        steps.append("nothing came")
    assert steps


def test_an_error_of_the_block_is_the_context_of_the_interrupt() -> None:
    def fail() -> None:
        with UninterruptedLock():
            _interrupt()
            raise ValueError("of the block")

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()
    assert isinstance(caught.value.__context__, ValueError)


@pytest.mark.parametrize("kind", [signal.SIG_IGN, "note"])
def test_handlers_of_the_user_stay_theirs(kind: Any) -> None:
    frames: list[FrameType | None] = []
    mine: Any = (lambda number, frame: frames.append(frame)) if kind == "note" else kind
    signal.signal(signal.SIGINT, mine)
    with UninterruptedLock():
        _interrupt()
        assert not frames
    assert signal.getsignal(signal.SIGINT) is mine
    assert len(frames) == (kind == "note")
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_change_no_handler_and_wait_for_the_lock() -> None:
    lock, held, go, seen = UninterruptedLock(), threading.Event(), threading.Event(), list[object]()

    def hold() -> None:
        with lock:
            seen.extend((signal.getsignal(signal.SIGINT), lock.is_held_here()))
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    assert not lock.is_held_here()
    go.set()
    with lock:
        assert lock.is_held_here()
    thread.join()
    assert seen == [signal.default_int_handler, True]
