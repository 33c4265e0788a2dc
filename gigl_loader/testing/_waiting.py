"""Waiting for what another process or thread does."""

import threading
import time
from collections.abc import Callable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 120.0) -> None:
    """Ask ``condition`` until it is true: every few milliseconds, later ten times a second.

    Args:
        condition: Asked at least once.
        what: Named where it does not become true.
        timeout_s: Upper bound; generous, since it costs nothing where all is well.

    Raises:
        AssertionError: It was not true in time.
    """
    deadline = time.monotonic() + timeout_s
    pause, pause_s = threading.Event(), _FIRST_PAUSE_S
    while not condition():
        # after the condition was asked: once at least, also where there is no time
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        pause.wait(pause_s)
        pause_s = min(pause_s * 1.2, _LONGEST_PAUSE_S)  # what waits takes no time from the others
