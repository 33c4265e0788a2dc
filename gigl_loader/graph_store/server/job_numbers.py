"""The numbers of jobs: which are used, which are over, which were stopped.

Every server has them. Server 0 gives them out (`JobRules`); the others learn them from its news and
from clients. What all servers must know of each job, such as a secret that its clients show, has
its place here, by number.
"""

from typing import Any

_MOST_REMEMBERED = 10_000
"""Most jobs that are over to remember, about 1 MB of them."""
_MOST_STOPPED = 100
"""Most stopped jobs to remember."""


class JobNumbers:
    """Numbers of the cluster's jobs; no number is used twice."""

    def __init__(self) -> None:
        self.latest = -1
        """The latest number in use, or that was; a restarted server has given out none."""
        self.served = 0
        """Number of jobs that are over."""
        self.stopped: tuple[int, ...] = ()
        """Numbers of jobs that were stopped, the latest last."""
        self._over: dict[int, None] = {}
        """Numbers of jobs that are over, the oldest first."""
        self._given_up: dict[str, int] = {}
        """By name the last job, if its clients were given up: they may still come back."""

    def give_next(self, name: str) -> int:
        """Return the number for a job of this name that begins."""
        self._given_up.pop(name, None)  # this one takes its place
        self.latest += 1
        return self.latest

    def mark_used(self, number: int | None) -> None:
        """Note a number that another process knows; None: it knows none."""
        self.latest = max(self.latest, -1 if number is None else number)

    def learn_served(self, count: int) -> None:
        """Note how many jobs are over, as far as another process knows."""
        self.served = max(self.served, count)

    def end(self, name: str, number: int, *, given_up: bool) -> None:
        """Note that a job is over; ``given_up``: its clients ended without a goodbye."""
        self._over[number] = None
        if given_up:
            self._given_up[name] = number
        _forget_oldest(self._over)
        _forget_oldest(self._given_up)
        self.served += 1

    def is_over(self, number: int) -> bool:
        """Return whether a job of that number has ended here."""
        return number in self._over

    def was_given_up(self, name: str, number: int) -> bool:
        """Return whether the latest job of that name has that number, and was given up."""
        return self._given_up.get(name) == number

    def take_back_end(self, name: str, number: int) -> None:
        """Note that a job that was given up goes on."""
        del self._given_up[name]
        self._over.pop(number, None)
        self.served -= 1  # it was counted too early

    def stop(self, number: int) -> None:
        """Note that a job was stopped."""
        # the latest are enough: a process does not come back after hours
        self.stopped = (*self.stopped, number)[-_MOST_STOPPED:]

    def learn_stopped(self, numbers: tuple[int, ...]) -> set[int]:
        """Take over server 0's numbers of stopped jobs; return those that are new."""
        fresh, self.stopped = {*numbers} - {*self.stopped}, numbers
        return fresh


def _forget_oldest(known: dict[Any, Any]) -> None:
    while len(known) > _MOST_REMEMBERED:
        del known[next(iter(known))]
