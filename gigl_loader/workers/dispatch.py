"""Which worker is given which batch, and when: the way of a task to a worker.

::

    begin() --> a stream's batches to start --dispatch()--> the worker with the least to do
                 while the consumer may have more, and the channel has room for one more message

It has no lock: its producer holds one around each call.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from gigl_loader.memory.slots import Written
from gigl_loader.message import AT_ONCE_STREAM, Attempt, BatchTicket, Received, SampleMessage
from gigl_loader.rowcache.look_ahead import STREAM, LookAhead
from gigl_loader.workers import messages
from gigl_loader.workers.recovery import Recovery
from gigl_loader.workers.sampled_input import SeedOrders
from gigl_loader.workers.schedule import BatchStream, FairQueue

_log = logging.getLogger(__name__)

_MANY_MESSAGES = 1 << 20
"""More than are ever under way: a channel with room for them is not limited by its bytes."""


class MessageMemory(Protocol):
    """Where messages come to lie in this process; see `gigl_loader.memory.channel.ShmChannel`."""

    capacity: int
    size: int

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote."""
        ...

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of a worker that are free again: (to reuse, to give up)."""
        ...

    def forget(self, sender: int) -> None:
        """Release what a worker that is gone had written, once nobody uses it."""
        ...

    def bind(self, source: Callable[[float | None], SampleMessage] | None) -> None:
        """Let ``recv`` ask ``source``."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        ...


class Dispatcher:
    """Gives the batches of all consumers to workers.

    Args:
        recovery: The workers, and what each of them has.
        channel: Whose room limits what is started.
        orders: What workers have to know of an epoch's order.
        concurrency: Batches that a worker samples at a time.
    """

    def __init__(
        self, recovery: Recovery, channel: MessageMemory, orders: SeedOrders, concurrency: int
    ) -> None:
        self._recovery, self._channel = recovery, channel
        self._said_narrow = False
        self._orders, self._concurrency = orders, concurrency
        self._queue: FairQueue[Received] = FairQueue()
        self.streams = self._queue.streams
        """The consumers, by number."""
        self.look_ahead: LookAhead | None = None
        """Says how far to draw ahead of the rows, where rows of other machines are kept."""

    def add(self, stream: BatchStream[Received]) -> None:
        """Add a consumer."""
        self._queue.add(stream)

    def remove(self, number: int) -> None:
        """Forget a consumer; what is under way for it will be stale."""
        self._queue.remove(number)

    def begin(self, number: int, attempt: Attempt | int, batches: Sequence[int]) -> None:
        """Begin an epoch of a consumer, and tell the workers; `dispatch` gives its batches out."""
        state = self.streams[number]
        attempt = state.start(attempt, batches)
        if self.look_ahead is not None and number != AT_ONCE_STREAM:
            self.look_ahead.begin(attempt.serial, len(batches))
        # before any task of the epoch, which a worker would take for a stale one: its socket keeps
        # the order. Workers that are being replaced hear of it in `catch_up`
        for worker in sorted(self._recovery.at_work):
            self._announce(worker, state)

    def cancel(self, number: int) -> None:
        """Break the epoch of a consumer off, where one is under way: workers drop its batches."""
        state = self.streams[number]
        was_over = state.finished
        state.cancel()
        for worker in [] if was_over else sorted(self._recovery.at_work):
            self._recovery.send(worker, (messages.ATTEMPT, number, None, False))

    def catch_up(self, worker: int) -> None:
        """Tell a worker that took the place of another which epochs are under way."""
        for state in self.streams.values():
            if not state.finished:
                self._announce(worker, state)

    def _announce(self, worker: int, state: BatchStream[Received]) -> None:
        assert state.attempt is not None, "a stream that is not finished was started"
        order = self._orders.of(state.number, state.attempt.epoch)
        message = (messages.ATTEMPT, state.number, state.attempt, order is not None)
        self._recovery.send(worker, message, order)

    def dispatch(self) -> None:
        """Give out all batches that may be started now."""
        self._look_ahead_from_here()
        self._give_out()
        self._give_slots_back()

    def _give_out(self) -> None:
        under_way = self._recovery.under_way
        # asked after each message and each batch that is taken, mostly for nothing: to look for a
        # free worker takes a look at all of them
        if not (under_way.has_lost or self._queue.has_turns):
            return
        while (worker := self._recovery.free_worker()) is not None:
            ticket = self._ticket_for(worker)
            if ticket is None:
                return
            if not any(under_way.loads):  # nobody could make progress before
                self._recovery.note_progress()
            # noted before it is sent: a worker that turns out to be gone loses the batch to another
            under_way.give(worker, ticket)
            free, retired = self._channel.returned(worker, self._concurrency)
            self._recovery.send(worker, (messages.TASK, ticket, free, retired))

    def _give_slots_back(self) -> None:
        """Return slots that nobody reads to workers that have drawn all of an epoch.

        They travel with tasks otherwise. Where hundreds of batches were drawn ahead, none is left
        to give out long before the last one is filled, and each would get a slot of its own.
        """
        if self.look_ahead is None:
            return
        state = self.streams[STREAM]
        # tasks are to come, now or once one of those under way was taken, and take slots along
        if state.has_room or state.in_flight >= state.limit:
            return
        for worker in sorted(self._recovery.at_work):
            free, retired = self._channel.returned(worker, self._concurrency)
            if free or retired:
                self._recovery.send(worker, (messages.SLOTS, free, retired))

    def _look_ahead_from_here(self) -> None:
        """Set how many batches may be drawn, and tell workers which may get their rows."""
        if self.look_ahead is None:
            return
        state, largest = self.streams[STREAM], self._largest()
        # batches of which nothing is known may be of any size: one for each worker
        room = self._channel.size // largest if largest else self._recovery.pool.num_workers
        room = max(1, min(self._channel.capacity, room))
        state.limit = self.look_ahead.limit(state.taken, room)

    def _ticket_for(self, worker: int) -> BatchTicket | None:
        """Return what ``worker`` is to do next; what a lost worker had comes first.

        While something lost is left, nothing new is started: the consumer may be waiting for it,
        and its room in the channel was taken when it was given out the first time.
        """
        under_way = self._recovery.under_way
        if under_way.has_lost:
            lost = under_way.next_lost(self.is_wanted, idle=not under_way.loads[worker])
            if lost is not None or under_way.has_lost:
                return lost
        at_once = self.streams.get(AT_ONCE_STREAM)
        # a batch at once is waited for by itself: it goes out even where the channel is full
        found = None if at_once is None else at_once.next_ticket()
        if found is None and self._has_room():
            found = self._queue.next_ticket()
        return found

    def is_wanted(self, ticket: BatchTicket) -> bool:
        """Return whether the epoch of a batch still goes on."""
        stream = self.streams.get(ticket.stream)
        return stream is not None and stream.wants(ticket)

    def _largest(self) -> int:
        """Return the bytes of the largest message so far; says once that the channel has less."""
        largest = self._channel.largest
        if largest > self._channel.size and not self._said_narrow:
            self._said_narrow = True
            _log.warning(
                "a batch takes %d bytes and channel_size is %d: batches are made one at a time; "
                "give at least twice as much as a batch for each worker", largest,
                self._channel.size,
            )  # fmt: skip
        return largest

    def _has_room(self) -> bool:
        """Return whether one more message of the largest size seen fits into the channel."""
        if self.look_ahead is not None:
            return True  # it decides which batches are filled; one that is only drawn takes no room
        largest = self._largest()
        if 0 < largest * _MANY_MESSAGES <= self._channel.size:
            return True  # without a look at each stream: a server has one per compute process
        # what waits to be taken and what workers have; what consumers hold is theirs, not counted
        under_way = sum(stream.waiting for stream in self.streams.values())
        under_way += sum(self._recovery.under_way.loads)
        if largest == 0:  # nothing is known of their size yet: one per worker
            return under_way < self._recovery.pool.num_workers
        # alone, a message passes that is larger than the whole channel
        return under_way == 0 or (under_way + 1) * largest <= self._channel.size
