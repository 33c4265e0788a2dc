"""Ctrl-C that comes between two steps of bookkeeping is raised after the last of them.

::

    with lock:                      SIGINT is noted, and raised when the lock is released,
        with interruptible():       or at once in a wait, where nothing is half done
            ...

Python runs handlers of signals in the main thread alone, between any two of its instructions. An
object whose methods an interrupt leaves in the middle would be of no use to a script that catches
it and goes on. A handler of the user's that only notes the signal runs later, too.
"""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class _Deferral:
    """Of the main thread, which alone changes it."""

    depth: int = 0
    """Locks that it holds."""
    handler: Callable[[int, FrameType | None], Any] | None = None
    """What SIGINT calls outside of them; None: no Python function, so nothing is raised."""
    noted: FrameType | None = None
    """Where it was when a signal came; None: none came."""


_of_main_thread = _Deferral()


def _note(number: int, frame: FrameType | None) -> None:
    _of_main_thread.noted = frame


class UninterruptedLock:
    """A reentrant lock whose holder gets no KeyboardInterrupt before it has released the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        _begin()
        try:
            self._lock.acquire()
        except BaseException:  # of another signal's handler
            _end()
            raise
        self._holder, self._depth = threading.get_ident(), self._depth + 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
        try:
            self._lock.release()
        finally:
            _end()

    def is_held_here(self) -> bool:
        """Return whether this thread holds it: then the collector may run within its block."""
        return self._holder == threading.get_ident()


class interruptible:
    """Lets SIGINT be raised at once in a wait, although an `UninterruptedLock` is held."""

    # a class: an interrupt within contextlib's functions would leave a generator for the collector,
    # which would end it at any later time

    def __enter__(self) -> None:
        state = _of_main_thread
        self._applies = _is_main_thread() and state.depth > 0 and state.handler is not None
        if not self._applies:
            return
        assert state.handler is not None
        signal.signal(signal.SIGINT, state.handler)
        if state.noted is not None:
            noted, state.noted = state.noted, None
            try:
                state.handler(signal.SIGINT, noted)
            except BaseException:
                signal.signal(signal.SIGINT, _note)
                raise

    def __exit__(self, *exc: object) -> None:
        if self._applies:
            signal.signal(signal.SIGINT, _note)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _begin() -> None:
    state = _of_main_thread
    if not _is_main_thread():
        return
    # counted while the handler is changed: the collector may run there, and in it another lock's
    # block, which must take `_note` for nobody's handler
    state.depth += 1
    try:
        if state.depth == 1:
            handler = signal.getsignal(signal.SIGINT)
            # ignored, or of the system or another language: nothing is raised in Python
            state.handler, state.noted = (handler if callable(handler) else None), None
            if state.handler is not None:
                signal.signal(signal.SIGINT, _note)
    except BaseException:  # it came before
        state.depth -= 1
        raise


def _end() -> None:
    state = _of_main_thread
    if not _is_main_thread():
        return
    try:
        if state.depth == 1 and state.handler is not None:
            # from here on a signal calls the handler itself
            signal.signal(signal.SIGINT, state.handler)
    finally:
        state.depth -= 1
    if not state.depth and state.noted is not None and state.handler is not None:
        state.handler(signal.SIGINT, state.noted)
