"""Which batch to start next, and which to hand out next. No processes, no memory, no clock."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gigl_loader.message import Attempt, BatchTicket

T = TypeVar("T")


class BatchStream(Generic[T]):
    """One consumer's epoch.

    ::

        start() -> to start --next_ticket()--> started --arrived()--> arrived --take()--> taken
                      ^     at most `limit` batches are started and not yet taken           |
                      `------------------------------ put_back() <--------------------------'

    In order, `take` waits for the batch whose turn it is; otherwise it takes what came first.
    """

    def __init__(self, number: int, limit: int, in_order: bool = True) -> None:
        self.number, self._limit, self.in_order = number, limit, in_order
        self.attempt: Attempt | None = None
        """The one that was started last; None: there was none."""
        self.is_broken_off = False
        self.error: Exception | None = None
        """A failure that ended the attempt; `take` raises it, until the next one starts."""
        self._batches: Sequence[int] = ()
        # positions in `_batches` all of them
        self._started = 0
        self._again: deque[int] = deque()
        """Put back: started once more, before the others."""
        self._arrived: dict[int, T] = {}
        self._taken = array("q")
        self.on_room: Callable[[int], None] | None = None
        """Told the stream's number when a batch of it may be started."""

    def start(self, attempt: Attempt | int, batches: Sequence[int]) -> Attempt:
        """Begin an epoch over ``batches``, forget what the last one left; return the attempt.

        Args:
            attempt: An epoch alone, of who counts no attempts, is the attempt after the last one.
            batches: Indices within the epoch.
        """
        if isinstance(attempt, int):
            attempt = Attempt(attempt, 1 if self.attempt is None else self.attempt.serial + 1)
        self._drop(batches)
        self.attempt, self.is_broken_off, self.error = attempt, False, None
        self._tell_room()
        return attempt

    def cancel(self) -> None:
        """Break the epoch off: nothing more is started, and what is under way is stale."""
        self._drop(())
        self.is_broken_off, self.error = True, None

    def fail(self, error: Exception) -> None:
        """End the epoch with an error."""
        self.error = error  # first: who sees that nothing was taken finds why
        self._drop(())

    def _drop(self, batches: Sequence[int]) -> None:
        self._batches, self._started, self._taken = batches, 0, array("q")
        self._again.clear()
        self._arrived.clear()

    @property
    def limit(self) -> int:
        """Batches that may be started and not taken."""
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
        # what arrived behind one that was put back takes its room, and waits for it
        return self.in_order and bool(self._again) and self._again[0] == self.taken

    def wants(self, ticket: BatchTicket) -> bool:
        """Return whether a batch is of the attempt that goes on."""
        is_over = self.is_broken_off or self.error is not None
        return not is_over and ticket.attempt == self.attempt

    @property
    def taken(self) -> int:
        """Batches of the epoch that were taken."""
        return len(self._taken)

    @property
    def left(self) -> int:
        """Batches of the epoch that were not taken."""
        return len(self._batches) - self.taken

    @property
    def in_flight(self) -> int:
        """Batches started and not yet taken."""
        return self._started - self.taken - len(self._again)

    @property
    def finished(self) -> bool:
        """Whether every batch of the epoch was taken."""
        return self.left == 0

    @property
    def awaited(self) -> int | None:
        """The batch that `take` waits for; None out of order or at the end."""
        if not self.in_order or self.finished:
            return None
        return self._batches[self.taken]

    @property
    def waiting(self) -> int:
        """Batches that arrived and are not taken: the queue's depth."""
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
            position = self._again.popleft()
        else:
            position = self._started
            self._started += 1
        epoch, serial = self.attempt.epoch, self.attempt.serial
        return BatchTicket(self.number, serial, epoch, self._batches[position], position)

    def arrived(self, ticket: BatchTicket, item: T) -> bool:
        """File a finished batch; False: it belongs to an epoch that was broken off."""
        if not self.wants(ticket):
            return False
        self._arrived[ticket.position] = item
        return True

    def take(self) -> T | None:
        """Return the next batch, or None if it has not arrived; raises what ended the epoch."""
        if self.error is not None:
            raise self.error
        # out of order: the one that came first, as dicts keep their order; -1 is no position
        position = self.taken if self.in_order else next(iter(self._arrived), -1)
        item = self._arrived.pop(position, None)
        if item is not None:
            self._taken.append(position)
            self._tell_room()
        return item

    def put_back(self, taken: int) -> None:
        """Let the batches that were taken after the first ``taken`` come once more.

        They are sampled again: a batch is a function of seed, epoch and index. What is under way
        stays.
        """
        self._again.extendleft(reversed(self._taken[taken:]))
        del self._taken[taken:]
        self._tell_room()


class FairQueue(Generic[T]):
    """The streams of one producer, served in turn, so that no consumer starves another."""

    def __init__(self) -> None:
        self.streams: dict[int, BatchStream[T]] = {}
        # only those with room: of thousands of consumers, few want a batch at a time. A stream that
        # gets room says so; one that loses it, as it is cancelled, is passed over at its turn
        self._turns: deque[int] = deque()
        self._in_turns: set[int] = set()  # the same numbers: each has one turn at a time

    def add(self, stream: BatchStream[T]) -> None:
        """Add a consumer."""
        self.streams[stream.number] = stream
        stream.on_room = self._give_turn
        if stream.has_room:
            self._give_turn(stream.number)

    def remove(self, number: int) -> None:
        """Cancel and forget a consumer; unknown numbers are ignored."""
        stream = self.streams.pop(number, None)
        if stream is not None:
            stream.cancel()
            stream.on_room = None
            if number in self._in_turns:
                self._in_turns.remove(number)
                self._turns.remove(number)

    @property
    def has_turns(self) -> bool:
        """Whether a batch may be started."""
        return bool(self._turns)

    def next_ticket(self) -> BatchTicket | None:
        """Return the next batch to start, over all consumers, or None."""
        while self._turns:
            number = self._turns.popleft()
            stream = self.streams[number]
            found = stream.next_ticket()
            if stream.has_room:  # behind all others, so that each gets one batch in a round
                self._turns.append(number)
            else:
                self._in_turns.remove(number)
            if found is not None:
                return found
        return None

    def _give_turn(self, number: int) -> None:
        if number not in self._in_turns:
            self._in_turns.add(number)
            self._turns.append(number)


def num_batches(num_seeds: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches an epoch over ``num_seeds`` seeds has."""
    return num_seeds // batch_size if drop_last else -(-num_seeds // batch_size)
