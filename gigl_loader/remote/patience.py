"""How long is waited for others, and what is said meanwhile."""

import logging
import math
import time

from gigl_loader.errors import ConfigError

_log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""Default of how long an outage of the network may last."""
# most waits are over by then, and a line for each of them would hide those that are not
_FIRST_REPORT_S = 5.0
_REPORT_EVERY_S = 10.0


def check_patience(patience_s: float) -> None:
    """Raise `ConfigError` unless ``patience_s`` can be waited for."""
    # as one chain, so that nan, which compares as false, is refused
    if not (isinstance(patience_s, (int, float)) and 0 < patience_s < math.inf):
        raise ConfigError(f"patience_s must be a finite number of seconds > 0, got {patience_s!r}")


class WaitReport:
    """Says in the log, now and then, what this process waits for.

    As warnings: these show where no logging was set up, and a process that waits for minutes
    without a word looks like one that hangs.

    Args:
        name: Who waits.
        deadline: Until when (`time.monotonic`).
    """

    def __init__(self, name: str, deadline: float) -> None:
        self._name = name
        self._started = time.monotonic()
        # of the whole wait, as the user set it; what is left of it would be another number in each
        # line
        self._until_s = deadline - self._started
        self._next = self._started + _FIRST_REPORT_S

    @property
    def next_in_s(self) -> float:
        """Seconds until there is something to say again."""
        return max(0.0, self._next - time.monotonic())

    def say(self, what: str) -> None:
        """Say what is waited for, unless that was said a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY_S
            _log.warning(
                "%s has waited %.0f s for %s; it gives up after %.0f s",
                *(self._name, now - self._started, what, self._until_s),
            )
