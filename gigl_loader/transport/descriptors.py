"""How many descriptors this process may have, and how many of them strangers may hold."""

import contextlib
import os
import resource
import time

_COUNT_EVERY_S = 0.1
_SHARE = 4
"""Strangers hold at most one in so many of those that are free: the rest is for the job's work."""


def raise_limit() -> None:
    """Let this process have as many descriptors as it may: the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Spare:
    """Counts the free descriptors for connections of unknown peers; used by one thread."""

    def __init__(self) -> None:
        self._counted_at, self._used = -_COUNT_EVERY_S, 0

    def for_strangers(self, held: int) -> int:
        """Return how many descriptors strangers may hold, who hold ``held`` now; at least one."""
        now = time.monotonic()
        # not for each stranger: to count thousands takes a millisecond
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._counted_at, self._used = now, max(0, _open() - held)
        return max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._used) // _SHARE)


def _open() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # none is left to look with
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
