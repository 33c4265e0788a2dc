"""Processes that a storage server does not let in."""

import logging
import math
import threading
import time

from gigl_loader.runtime.transport.failures import one_line

_log = logging.getLogger(__name__)

_SAY_EVERY_S = 60.0


_MOST_SAID = 1000
"""Most processes and reasons to remember; beyond that refusals are counted and not logged."""


class RefusedJoins:
    """Processes that were refused; thread-safe.

    A process that tries again and again is logged once a minute for each reason, since a job that
    waits for its servers tries for as long as its ``reconnect_timeout``.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        """Time of the last log line and refusals since, by process and reason; oldest first."""

    def add(self, who: str, why: Exception) -> None:
        """Count a refusal; log it unless that was done a moment ago."""
        # cut, as both are kept: a reason may quote a megabyte of what the process said
        key, now = (who, one_line(str(why))), time.monotonic()
        with self._lock:
            self.count += 1
            said_at, unsaid = self._said.get(key, (-math.inf, 0))
            if now - said_at < _SAY_EVERY_S:
                self._said[key] = (said_at, unsaid + 1)
                return
            self._said.pop(key, None)
            # invented reasons must fill neither memory nor the log
            oldest = next(iter(self._said.values()), (-math.inf, 0))[0]
            if len(self._said) >= _MOST_SAID:
                if now - oldest < _SAY_EVERY_S:
                    return
                del self._said[next(iter(self._said))]
            self._said[key] = (now, 0)
        more = f" ({unsaid} more times since it was said last)" if unsaid else ""
        _log.warning("%s cannot join: %s%s", *key, more)
