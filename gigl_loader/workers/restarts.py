"""Which worker has which batches, and what becomes of those of a worker that is lost.

::

    give() --> under way at a worker --done()--> gone from here
                  |  lose(): the worker is lost
                  v
               to be sampled again, the earliest first; those that it may have died of each alone on
               a worker, so that a second death names one batch

A worker that somebody else ended, the kernel for want of memory or an operator, says nothing of its
batch: only one that crashed, left or hung while it sampled counts against it (`ended_by_itself`).

No processes, no memory, no clock.
"""

import signal
from collections import Counter
from collections.abc import Callable, Sequence

from gigl_loader.errors import ProtocolError
from gigl_loader.message import BatchTicket

# 0.05, 0.2, 0.8, 3.2, 5, 5...: a single death costs next to nothing, and workers that die one after
# another, as where memory runs out, have some seconds in which others may let go of theirs
_FIRST_PAUSE_S, _GROWTH, _LONGEST_PAUSE_S = 0.05, 4.0, 5.0


_OWN_SIGNALS = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP,
    signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ,
}  # fmt: skip
"""Signals that the kernel sends for a fault of the process itself."""


def ended_by_itself(exitcode: int | None) -> bool:
    """Return whether a process left or crashed, in place of being ended from outside.

    SIGKILL is from outside, also where memory ran out: the kernel may choose a worker for what
    another process took, and which it was nobody can tell. `Restarts` bounds those.

    Args:
        exitcode: ``-n`` means ended by signal ``n``; None: nobody knows.
    """
    return exitcode is not None and (exitcode >= 0 or -exitcode in _OWN_SIGNALS)


class UnderWay:
    """The batches that workers have, each worker's in the order in which it got them.

    Args:
        num_workers: How many workers there are.
        concurrency: Batches that a worker samples at a time; further ones wait there.
    """

    def __init__(self, num_workers: int, concurrency: int) -> None:
        self._concurrency = concurrency
        self._of: list[list[BatchTicket]] = [[] for _ in range(num_workers)]
        self._lost: list[BatchTicket] = []
        self._alone: set[int] = set()
        self._suspected: set[tuple[int, int]] = set()
        self._deaths: Counter[tuple[int, int]] = Counter()
        """By batch: workers that ended by themselves while it was their only one."""
        self._losses: Counter[tuple[int, int]] = Counter()
        """By batch: workers that were lost, however they ended, while it was their only one."""

    @property
    def loads(self) -> list[int]:
        """How many batches each worker has."""
        return [len(tickets) for tickets in self._of]

    def give(self, worker: int, ticket: BatchTicket) -> None:
        """Note that ``worker`` was sent a batch to sample."""
        self._of[worker].append(ticket)
        if ticket.content in self._suspected:
            self._alone.add(worker)

    def done(self, worker: int, ticket: BatchTicket) -> None:
        """Note that ``worker`` has answered for a batch.

        Raises:
            ProtocolError: It does not have it.
        """
        # a handful, or some thousand drawn ahead, of which the first ones are done first
        if ticket not in self._of[worker]:
            raise ProtocolError(f"worker {worker} answered for {ticket}, which it was not given")
        self._of[worker].remove(ticket)
        self._alone.discard(worker)
        self._acquit(ticket)

    def may_have(self, worker: int) -> bool:
        """Return whether ``worker`` may be given a further batch."""
        return worker not in self._alone

    def lose(
        self, worker: int, *, suspects_any: bool = True, by_itself: bool = True
    ) -> list[BatchTicket]:
        """Take back all that a lost worker had; return what it may have died of.

        Args:
            worker: Which one.
            suspects_any: Whether a batch may be the cause; not where its supervisor was ended.
            by_itself: Whether the worker ended itself, or hung: that counts against a batch.
        """
        had, self._of[worker] = self._of[worker], []
        self._alone.discard(worker)
        if not suspects_any:
            self._lost = sorted([*self._lost, *had], key=lambda one: one.position)
            return []
        # those after them wait in the worker's queue: it cannot have died of one that it had not
        # begun. Which of several it died of cannot be told, so each is tried alone
        suspects = had[: self._concurrency]
        self._lost = sorted([*self._lost, *had], key=lambda one: one.position)
        self._suspected.update(one.content for one in suspects)
        # had it others as well, they are suspects as much: nothing is counted against this one
        if len(suspects) == 1:
            self._losses[suspects[0].content] += 1
            self._deaths[suspects[0].content] += by_itself
        return suspects

    def losses(self, suspects: Sequence[BatchTicket]) -> int:
        """Return how many workers were lost with the one batch that the last lost one had."""
        return self._losses[suspects[0].content] if len(suspects) == 1 else 0

    def killed_twice(self, suspects: Sequence[BatchTicket]) -> BatchTicket | None:
        """Return the batch that a lost worker had alone, if it is the second that ended of it."""
        if len(suspects) == 1 and self._deaths[suspects[0].content] > 1:
            return suspects[0]
        return None

    def _acquit(self, ticket: BatchTicket) -> None:
        self._suspected.discard(ticket.content)
        for counted in (self._deaths, self._losses):
            del counted[ticket.content]  # of a Counter: no error where there is none

    @property
    def has_lost(self) -> bool:
        """Whether batches of lost workers are to be sampled again: before any further one."""
        return bool(self._lost)

    def next_lost(
        self, is_wanted: Callable[[BatchTicket], bool], *, idle: bool
    ) -> BatchTicket | None:
        """Return a batch of a lost worker for another one: the earliest, or none.

        None is passed over: what comes after it may have to wait for it, on the one worker that
        could sample it.

        Args:
            is_wanted: Tells whether the epoch of a batch still goes on.
            idle: Whether the worker has nothing to do: only then may it have a suspected batch.
        """
        # of an epoch that was broken off: nobody waits for it, so it is not sampled again
        while self._lost and not is_wanted(self._lost[0]):
            self._acquit(self._lost.pop(0))
        if not self._lost or (self._lost[0].content in self._suspected and not idle):
            return None
        return self._lost.pop(0)


class Restarts:
    """How many workers may still be replaced, and when.

    Args:
        most: In one epoch.
    """

    def __init__(self, most: int) -> None:
        self.most, self._used = most, 0
        self._supervisor: int | None = None
        self._pause = 0.0
        self.total = 0
        """Workers replaced so far."""

    @property
    def left(self) -> int:
        """How many more there may be in this epoch."""
        return self.most - self._used

    def start_epoch(self) -> None:
        """Count from zero again."""
        self._used = 0

    def may_take(self, orphan_of: int | None = None) -> bool:
        """Return whether one more worker may be replaced; see `take`."""
        return self.left > 0 or (orphan_of is not None and orphan_of == self._supervisor)

    def take(self, orphan_of: int | None = None) -> float:
        """Count one; return how many seconds to wait before it: longer each time.

        Args:
            orphan_of: The supervisor with whose end the worker was lost. All of its workers are
                one loss, and come back at once.
        """
        self.total += 1
        if orphan_of is None or orphan_of != self._supervisor:
            self._pause = min(_FIRST_PAUSE_S * _GROWTH**self._used, _LONGEST_PAUSE_S)
            self._used += 1
            self._supervisor = orphan_of
        return self._pause
