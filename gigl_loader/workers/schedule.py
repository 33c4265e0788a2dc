"""Which batch to start next, and which to hand out next. No processes, no memory, no clock."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gigl_loader.message import BatchTicket

T = TypeVar("T")


class BatchStream(Generic[T]):
    """One consumer's epoch.

    ::

        start() -> to start --next_ticket()--> started --arrived()--> arrived --take()-->
                             at most `limit` batches are started and not yet taken

    In order, `take` waits for the batch whose turn it is; otherwise it takes what came first.
    """

    def __init__(self, number: int, limit: int, in_order: bool = True) -> None:
        self.number, self._limit, self.in_order = number, limit, in_order
        self.generation = 0
        self.epoch = 0
        self._batches: Sequence[int] = ()
        self._started = 0
        self._taken = 0
        self._arrived: dict[int, T] = {}  # by position in self._batches
        self.on_room: Callable[[int], None] | None = None
        """Told the stream's number when a batch of it may be started."""

    def start(self, epoch: int, batches: Sequence[int]) -> int:
        """Begin an epoch over ``batches``, forget what the last one left; return the generation."""
        self.cancel()  # counts the generation, so that what is under way is told from this epoch
        self.epoch, self._batches = epoch, batches
        self._tell_room()
        return self.generation

    def cancel(self) -> None:
        """Break the epoch off: nothing more is started, and what is under way will be stale."""
        self.generation += 1
        self._batches, self._started, self._taken = (), 0, 0
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
        started = self._started
        return started < len(self._batches) and started - self._taken < self._limit

    @property
    def taken(self) -> int:
        """Batches of the epoch that were taken."""
        return self._taken

    @property
    def in_flight(self) -> int:
        """Batches started and not yet taken."""
        return self._started - self._taken

    @property
    def finished(self) -> bool:
        """Whether every batch of the epoch was taken."""
        return self._taken == len(self._batches)

    @property
    def awaited(self) -> int | None:
        """The batch that `take` waits for; None out of order or at the end."""
        if not self.in_order or self.finished:
            return None
        return self._batches[self._taken]

    @property
    def waiting(self) -> int:
        """Batches that arrived and are not taken: the queue's depth."""
        return len(self._arrived)

    @property
    def can_take(self) -> bool:
        """Whether `take` would return a batch."""
        return self._taken in self._arrived if self.in_order else bool(self._arrived)

    def next_ticket(self) -> tuple[BatchTicket, int] | None:
        """Return the next batch to start and its position; None: at the limit, or all started."""
        if not self.has_room:
            return None
        position = self._started
        self._started += 1
        batch = self._batches[position]
        return BatchTicket(self.number, self.generation, self.epoch, batch), position

    def arrived(self, ticket: BatchTicket, position: int, item: T) -> bool:
        """File a finished batch; False: it belongs to an epoch that was broken off."""
        if ticket.generation != self.generation:
            return False
        self._arrived[position] = item
        return True

    def take(self) -> T | None:
        """Return the next batch, or None if it has not arrived."""
        # out of order: the one that came first, as dicts keep their order; -1 is no position
        position = self._taken if self.in_order else next(iter(self._arrived), -1)
        item = self._arrived.pop(position, None)
        if item is not None:
            self._taken += 1
            self._tell_room()
        return item


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

    def next_ticket(self) -> tuple[BatchTicket, int] | None:
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
