"""Which batch to start next, which to hand out next, and what becomes of a lost worker's batches.

::

    give() --> under way at a worker --done()--> gone from here
                  |  lose(): the worker is lost
                  v
               to be sampled again, the earliest first; each batch that may have killed it alone on
               a worker, so that a second death names one batch

A worker that was ended from outside, by the kernel for want of memory or by an operator, says
nothing about its batch: only a worker that crashed, left or hung while sampling counts against it
(`ended_by_itself`).

No processes, no memory, no clock.
"""

import signal
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gigl_loader.batch.message import Attempt, BatchTicket
from gigl_loader.errors import GiglLoaderError, ProtocolError
from gigl_loader.runtime.transport.failures import fresh_copy

T = TypeVar("T")


@dataclass
class Waiting:
    """How many batches of a group of consumers have arrived and are not taken."""

    count: int = 0


class BatchStream(Generic[T]):
    """One consumer's epoch. Each started batch is in one place: under way, arrived, taken or again.

    ::

        start() -> to start --next_ticket()--> started --arrived()--> arrived --take()--> taken
                      ^     at most `limit` batches are started and not yet taken           |
                      `------------------------------ put_back() <--------------------------'

    In order, `take` waits for the next batch in turn; otherwise it takes the first to arrive.
    """

    def __init__(self, number: int, limit: int, in_order: bool = True) -> None:
        self.number, self._limit, self.in_order = number, limit, in_order
        self.attempt: Attempt | None = None
        """The attempt started last; None: none was started."""
        self.is_broken_off = False
        self.error: GiglLoaderError | None = None
        """Failure that ended the attempt; `take` raises copies until the next attempt starts."""
        self._batches: Sequence[int] = ()
        self._positions: Sequence[int] = ()
        # all of these hold turns: a batch's number in `_batches`
        self._started = 0
        self._again: deque[int] = deque()
        """Batches put back: they are started again, before the others."""
        self._arrived: dict[int, T] = {}
        self.all_waiting = Waiting()
        """Counts `_arrived`, with those of other consumers of the same workers."""
        self._taken = array("q")
        self.on_room: Callable[[int], None] | None = None
        """Called with the stream's number when one of its batches may be started."""

    def start(
        self, attempt: Attempt | int, batches: Sequence[int], positions: Sequence[int] | None = None
    ) -> Attempt:
        """Begin an epoch over ``batches`` and drop the rest of the last one; return the attempt.

        Args:
            attempt: The attempt; a plain epoch means its next attempt after the last one started.
            batches: Indices within the epoch.
            positions: Position of each in the loader's epoch; None: they count from 0.
        """
        if isinstance(attempt, int):
            attempt = Attempt(attempt, 1 if self.attempt is None else self.attempt.serial + 1)
        self._drop(batches)
        self._positions = range(len(batches)) if positions is None else positions
        self.attempt, self.is_broken_off, self.error = attempt, False, None
        self._tell_room()
        return attempt

    def cancel(self) -> None:
        """Cancel the epoch: no more batches are started, and those in progress are stale."""
        self._drop(())
        self.is_broken_off, self.error = True, None

    def fail(self, error: GiglLoaderError) -> None:
        """End the epoch with an error."""
        self.error = error  # first, so that a reader that finds nothing finds the reason
        self._drop(())

    def _drop(self, batches: Sequence[int]) -> None:
        self._batches, self._started, self._taken = batches, 0, array("q")
        self._again.clear()
        self.all_waiting.count -= len(self._arrived)
        self._arrived.clear()

    @property
    def limit(self) -> int:
        """Most batches that may be started and not taken."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._tell_room()

    def _tell_room(self) -> None:
        if self.on_room is not None and self.has_room:
            self.on_room(self.number)

    @property
    def has_room(self) -> bool:
        """Whether a batch may be started."""
        if self.in_flight < self._limit:
            return bool(self._again) or self._started < len(self._batches)
        # batches that arrived after one that was put back take up its room, and wait for it
        return self.in_order and bool(self._again) and self._again[0] == self.taken

    def wants(self, ticket: BatchTicket) -> bool:
        """Return whether a batch belongs to the current attempt."""
        is_over = self.is_broken_off or self.error is not None
        return not is_over and ticket.attempt == self.attempt

    @property
    def taken(self) -> int:
        """Number of batches of the epoch that were taken."""
        return len(self._taken)

    @property
    def left(self) -> int:
        """Number of batches of the epoch that were not taken."""
        return len(self._batches) - self.taken

    @property
    def in_flight(self) -> int:
        """Number of batches started and not yet taken."""
        return self._started - self.taken - len(self._again)

    @property
    def finished(self) -> bool:
        """Whether every batch of the epoch was taken."""
        return self.left == 0

    @property
    def awaited(self) -> int | None:
        """The batch that `take` waits for; None: out of order, or at the end."""
        if not self.in_order or self.finished:
            return None
        return self._batches[self.taken]

    @property
    def waiting(self) -> int:
        """Number of batches that arrived and are not taken: the queue's depth."""
        return len(self._arrived)

    @property
    def can_take(self) -> bool:
        """Whether `take` would return a batch, or raise."""
        if self.error is not None:
            return True
        return self.taken in self._arrived if self.in_order else bool(self._arrived)

    def next_ticket(self) -> BatchTicket | None:
        """Return the next batch to start; None: at the limit, or all are started."""
        if not self.has_room or self.attempt is None:
            return None
        if self._again:
            turn = self._again.popleft()
        else:
            turn = self._started
            self._started += 1
        attempt, batch, position = self.attempt, self._batches[turn], self._positions[turn]
        return BatchTicket(
            self.number, attempt.serial, attempt.epoch, batch, position, attempt.seed, turn
        )

    def arrived(self, ticket: BatchTicket, item: T) -> bool:
        """File a finished batch; return False if it belongs to a cancelled epoch."""
        if not self.wants(ticket):
            return False
        self._arrived[ticket.turn] = item
        self.all_waiting.count += 1
        return True

    def take(self) -> T | None:
        """Return the next batch, or None if it has not arrived.

        Raises:
            GiglLoaderError: A copy of the error that ended the epoch.
        """
        if self.error is not None:
            raise fresh_copy(self.error)
        # out of order: the first to arrive, as dicts keep their order; -1 is no turn
        turn = self.taken if self.in_order else next(iter(self._arrived), -1)
        item = self._arrived.pop(turn, None)
        if item is not None:
            self.all_waiting.count -= 1
            self._taken.append(turn)
            self._tell_room()
        return item

    def put_back(self, taken: int) -> None:
        """Make the batches that were taken after the first ``taken`` available once more.

        They are sampled again: a batch is a function of seed, epoch and index. Batches in progress
        stay.
        """
        self._again.extendleft(reversed(self._taken[taken:]))
        del self._taken[taken:]
        self._tell_room()


class FairQueue(Generic[T]):
    """The streams of one producer, served in turn, so that no consumer starves another."""

    def __init__(self) -> None:
        self.streams: dict[int, BatchStream[T]] = {}
        self.waiting = Waiting()
        """Batches of all consumers."""
        # Only streams with room: of thousands of consumers, few want a batch at a time. A stream
        # reports when it gets room; one that loses it by being cancelled is skipped at its turn.
        self._turns: OrderedDict[int, None] = OrderedDict()  # each has one turn at a time

    def add(self, stream: BatchStream[T]) -> None:
        """Add a consumer."""
        self.streams[stream.number] = stream
        stream.all_waiting = self.waiting
        stream.on_room = self._give_turn
        if stream.has_room:
            self._give_turn(stream.number)

    def remove(self, number: int) -> None:
        """Cancel and forget a consumer; unknown numbers are ignored."""
        stream = self.streams.pop(number, None)
        if stream is not None:
            stream.cancel()
            stream.on_room = None
            self._turns.pop(number, None)

    @property
    def has_turns(self) -> bool:
        """Whether a batch may be started."""
        return bool(self._turns)

    def next_ticket(self) -> BatchTicket | None:
        """Return the next batch to start, over all consumers, or None."""
        while self._turns:
            number = next(iter(self._turns))
            stream = self.streams[number]
            ticket = stream.next_ticket()
            if stream.has_room:  # goes to the end, so that each stream gets one batch in a round
                self._turns.move_to_end(number)
            else:
                del self._turns[number]
            if ticket is not None:
                return ticket
        return None

    def _give_turn(self, number: int) -> None:
        self._turns.setdefault(number)


# 0.05, 0.2, 0.8, 3.2, 5, 5...: a single death costs almost nothing, and if workers die one after
# another, as when memory runs out, other processes have some seconds to release theirs
_FIRST_PAUSE_S, _GROWTH, _LONGEST_PAUSE_S = 0.05, 4.0, 5.0


_OWN_SIGNALS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGXCPU,
    signal.SIGXFSZ,
}
"""Signals that the kernel sends for a fault of the process itself."""


def ended_by_itself(exitcode: int | None) -> bool:
    """Return whether a process exited or crashed, rather than being ended from outside.

    SIGKILL counts as from outside, even if memory ran out: the kernel may choose a worker although
    another process took the memory, and nobody can tell which. `Restarts` limits those.

    Args:
        exitcode: ``-n``: ended by signal ``n``; None: unknown.
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
        self.tickets: list[list[BatchTicket]] = [[] for _ in range(num_workers)]
        """Each worker's batches, in the order in which it got them."""
        self.count = 0
        """How many batches workers have."""
        self._lost: list[BatchTicket] = []
        self._alone: set[int] = set()
        self.suspected: set[tuple[int, int]] = set()
        """Batches that a lost worker may have died of, and that nobody has sampled since."""
        self._deaths: Counter[tuple[int, int]] = Counter()
        """Number of workers by batch that ended by themselves while it was their only one."""
        self._losses: Counter[tuple[int, int]] = Counter()
        """Number of workers by batch that were lost in any way while it was their only one."""

    @property
    def busy(self) -> list[int]:
        """Workers that have batches, ascending."""
        return [worker for worker, tickets in enumerate(self.tickets) if tickets]

    def free_worker(self, at_work: Iterable[int]) -> int | None:
        """Return the one of ``at_work`` with the fewest batches; None: none can take one."""
        able = (worker for worker in at_work if worker not in self._alone)
        return min(able, key=lambda worker: (len(self.tickets[worker]), worker), default=None)

    def give(self, worker: int, ticket: BatchTicket) -> None:
        """Note that ``worker`` was sent a batch to sample."""
        self.tickets[worker].append(ticket)
        self.count += 1
        if self.suspected and ticket.content in self.suspected:
            self._alone.add(worker)

    def done(self, worker: int, ticket: BatchTicket) -> None:
        """Note that ``worker`` has sent the result of a batch.

        Raises:
            ProtocolError: The worker does not have that batch.
        """
        # a handful, or some thousand drawn ahead, of which the first are done first
        if ticket not in self.tickets[worker]:
            raise ProtocolError(f"worker {worker} answered for {ticket}, which it was not given")
        self.tickets[worker].remove(ticket)
        self.count -= 1
        self._alone.discard(worker)
        if self.suspected:
            self._acquit(ticket)

    def lose(
        self, worker: int, *, suspects_any: bool = True, by_itself: bool = True
    ) -> list[BatchTicket]:
        """Take back all batches of a lost worker; return those that may have killed it.

        Args:
            worker: Number of the worker.
            suspects_any: Whether a batch may be the cause; not if its supervisor was ended.
            by_itself: Whether the worker ended itself or hung, which counts against a batch.
        """
        had, self.tickets[worker] = self.tickets[worker], []
        self.count -= len(had)
        self._alone.discard(worker)
        self._lost = sorted([*self._lost, *had], key=lambda ticket: ticket.position)
        if not suspects_any:
            return []
        # Later batches wait in the worker's queue: it cannot have died of one that had not begun.
        # Which of the begun ones it died of is unknown, so each is tried alone.
        suspects = had[: self._concurrency]
        self.suspected.update(ticket.content for ticket in suspects)
        # with several batches all are suspects, so nothing is counted against this one
        if len(suspects) == 1:
            self._losses[suspects[0].content] += 1
            self._deaths[suspects[0].content] += by_itself
        return suspects

    def losses(self, suspects: Sequence[BatchTicket]) -> int:
        """Return how many workers were lost with the one batch that the last lost one had."""
        return self._losses[suspects[0].content] if len(suspects) == 1 else 0

    def killed_twice(self, suspects: Sequence[BatchTicket]) -> BatchTicket | None:
        """Return the only batch of a lost worker, if it is the second worker lost with it."""
        if len(suspects) == 1 and self._deaths[suspects[0].content] > 1:
            return suspects[0]
        return None

    def _acquit(self, ticket: BatchTicket) -> None:
        content = ticket.content
        self.suspected.discard(content)
        # counted batches are suspected ones
        for counted in (self._deaths, self._losses):
            del counted[content]  # a Counter raises no error for a missing key

    @property
    def has_lost(self) -> bool:
        """Whether batches of lost workers have to be sampled again, before any new one."""
        return bool(self._lost)

    def next_lost(
        self, is_wanted: Callable[[BatchTicket], bool], *, idle: bool
    ) -> BatchTicket | None:
        """Return the earliest batch of a lost worker for another worker, or None.

        No batch is skipped: later ones may have to wait for it, on the only worker that could
        sample it.

        Args:
            is_wanted: Returns whether the epoch of a batch is still current.
            idle: Whether the worker has nothing to do: only then may it get a suspected batch.
        """
        # its epoch was cancelled: no consumer waits for it, so it is not sampled again
        while self._lost and not is_wanted(self._lost[0]):
            self._acquit(self._lost.pop(0))
        if not self._lost or (self._lost[0].content in self.suspected and not idle):
            return None
        return self._lost.pop(0)


class Restarts:
    """How many workers may still be replaced, and when.

    Args:
        most: Most replacements in one epoch.
    """

    def __init__(self, most: int) -> None:
        self.most, self._used = most, 0
        self._supervisor: int | None = None
        self._pause = 0.0
        self.total = 0
        """Number of workers replaced so far."""

    @property
    def left(self) -> int:
        """How many more workers may be replaced in this epoch."""
        return self.most - self._used

    def start_epoch(self) -> None:
        """Count from zero again."""
        self._used = 0

    def may_take(self, orphan_of: int | None = None) -> bool:
        """Return whether one more worker may be replaced; see `take`."""
        return self.left > 0 or (orphan_of is not None and orphan_of == self._supervisor)

    def take(self, orphan_of: int | None = None) -> float:
        """Count one replacement; return the seconds to wait before it, longer each time.

        Args:
            orphan_of: The supervisor with whose end the worker was lost. All of its workers count
                as one loss, and come back at once.
        """
        self.total += 1
        if orphan_of is None or orphan_of != self._supervisor:
            self._pause = min(_FIRST_PAUSE_S * _GROWTH**self._used, _LONGEST_PAUSE_S)
            self._used += 1
            self._supervisor = orphan_of
        return self._pause
