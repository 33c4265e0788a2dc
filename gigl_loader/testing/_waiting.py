"""Waiting for what another process or thread does."""

import threading
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Ask ``condition`` every 10 ms until it is true.

    Args:
        condition: Asked at least once.
        what: Named where it does not become true.
        timeout_s: Upper bound; generous, since it costs nothing where all is well.

    Raises:
        AssertionError: It was not true in time.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        pause.wait(0.01)
