"""How long storage servers may be away, and how often they may come back without any progress."""

import time
from collections.abc import Iterable, Mapping

MOST_RETURNS = 10
"""Most returns of one server without a batch, or a response, in between. One that ends again and
again, for example because its memory is too small, would otherwise keep a job waiting for ever."""


class ServerOutages:
    """The outages of servers during one task: a recovery, a call, the start of a loader.

    ::

        away --longer than limit_s------------------> overdue
        away --> back --> away, counted from zero --> ... --> restless, after `MOST_RETURNS` times

    So a task may take much longer than ``limit_s``, as long as servers come back.

    Args:
        renewals: How often each server came back so far; the cluster's own counts, which go on.
        limit_s: Longest absence of one server in seconds; 0: none.
    """

    def __init__(self, renewals: Mapping[int, int], limit_s: float) -> None:
        self._limit_s, self._renewals = limit_s, renewals
        self._before = dict(renewals)
        self.go_on()

    def go_on(self) -> None:
        """Begin all clocks anew, and keep the counts: the same task fails once more."""
        self._last, self._since = dict(self._renewals), time.monotonic()
        self._away: dict[int, float] = {}
        """Since when each server is away."""

    def overdue(self, away: Iterable[int]) -> int | None:
        """Note the servers that are away now; return one that has been for ``limit_s``."""
        now = time.monotonic()
        self._notice_returns(now)
        self._away = {rank: self._away.get(rank, now) for rank in away}
        long = (rank for rank, since in self._away.items() if now - since >= self._limit_s)
        return next(long, None)

    @property
    def restless(self) -> int | None:
        """A server that came back too often without progress; None: there is none."""
        before = self._before
        counts = dict(self._renewals).items()
        often = (rank for rank, count in counts if count - before.get(rank, 0) >= MOST_RETURNS)
        return next(often, None)

    @property
    def is_over(self) -> bool:
        """Whether ``limit_s`` has passed since the task began, or a server came back last."""
        now = time.monotonic()
        self._notice_returns(now)
        return now - self._since >= self._limit_s

    def _notice_returns(self, now: float) -> None:
        current = dict(self._renewals)
        if current == self._last:
            return
        for rank, count in current.items():
            if count != self._last.get(rank, 0):
                self._away.pop(rank, None)
        self._last, self._since = current, now
