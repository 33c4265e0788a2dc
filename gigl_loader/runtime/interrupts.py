"""Ctrl-C that comes between two steps of bookkeeping is raised after the last of them.

::

    with uninterrupted:             SIGINT is noted, and raised at the end of the block,
        with interruptible():       or at once in a wait, where nothing is half done
            ...

Python runs handlers of signals in the main thread alone, between any two of its instructions. An
object whose methods an interrupt leaves in the middle would be of no use to a script that catches
it and goes on. A handler of the user's that only notes the signal runs later, too.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class _Uninterrupted:
    """Of the main thread, which alone changes it."""

    def __init__(self) -> None:
        self.depth = 0
        """Blocks that the main thread is in."""
        self.handler: Callable[[int, FrameType | None], Any] | None = None
        """What SIGINT calls outside of them; None: no Python function, so nothing is raised."""
        self.noted: FrameType | None = None
        """Where the main thread was when a signal came; None: none came."""

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT within a block."""
        self.noted = frame

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        # counted while the handler is changed: the collector may run there, and in it another
        # block, which must take `note` for nobody's handler
        self.depth += 1
        if self.depth > 1:
            return
        try:
            handler = signal.getsignal(signal.SIGINT)
            # ignored, or of the system or another language: nothing is raised in Python
            self.handler, self.noted = (handler if callable(handler) else None), None
            if self.handler is not None:
                signal.signal(signal.SIGINT, self.note)
        except BaseException:  # it came before
            self.depth -= 1
            raise

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        if self.depth > 1:
            self.depth -= 1
            return
        try:
            if self.handler is not None:
                # from here on a signal calls the handler itself
                signal.signal(signal.SIGINT, self.handler)
        finally:
            self.depth -= 1
        if self.noted is not None and self.handler is not None:
            self.handler(signal.SIGINT, self.noted)


uninterrupted = _Uninterrupted()
"""Blocks whose interrupts come after them. A block within a block costs next to nothing."""


class UninterruptedLock:
    """A reentrant lock whose holder gets no KeyboardInterrupt before it has released the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        uninterrupted.__enter__()
        try:
            self._lock.acquire()
        except BaseException:  # of another signal's handler
            uninterrupted.__exit__()
            raise
        self._holder, self._depth = threading.get_ident(), self._depth + 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = None
        try:
            self._lock.release()
        finally:
            uninterrupted.__exit__()

    def is_held_here(self) -> bool:
        """Return whether this thread holds it: then the collector may run within its block."""
        return self._holder == threading.get_ident()


class interruptible:
    """Lets SIGINT be raised at once in a wait within a block of `uninterrupted`."""

    # a class: an interrupt within contextlib's functions would leave a generator for the collector,
    # which would end it at any later time

    def __enter__(self) -> None:
        state = uninterrupted
        is_main = threading.get_ident() == threading.main_thread().ident
        self._handler = state.handler if is_main and state.depth else None
        if self._handler is None:
            return
        signal.signal(signal.SIGINT, self._handler)
        if state.noted is not None:
            noted, state.noted = state.noted, None
            try:
                self._handler(signal.SIGINT, noted)
            except BaseException:
                signal.signal(signal.SIGINT, state.note)
                raise

    def __exit__(self, *exc: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, uninterrupted.note)
