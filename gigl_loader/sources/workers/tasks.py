"""Assigns batches to workers and handles the results.

::

    begin() --> a stream's batches to start --dispatch()--> the worker with the least to do
                 while the consumer may have more, and the channel has room for one more message
    a stream that its consumer takes from <-- a batch or an error --pump()-- workers' messages
                     `Recovery`, which gets the batches sampled again <-- the end of a worker
"""

import logging
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any

from gigl_loader.batch.leases import MessageMemory
from gigl_loader.batch.message import AT_ONCE_STREAM, Attempt, BatchTicket, Received
from gigl_loader.batch.slots import Written
from gigl_loader.errors import GiglLoaderError, PeerTimeoutError, SamplingError, explained_limits
from gigl_loader.runtime.interrupts import UninterruptedLock
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.ranks.collectives import suspect_ranks
from gigl_loader.runtime.transport.failures import fresh_copy
from gigl_loader.sampler.row_cache.look_ahead import LookAhead
from gigl_loader.sources.sampled_input import SeedOrders
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.agreement import Agreement
from gigl_loader.sources.workers.job_turns import Place
from gigl_loader.sources.workers.pool import SEND_TIMEOUT_S, WorkerEvent
from gigl_loader.sources.workers.recovery import Recovery
from gigl_loader.sources.workers.schedule import BatchStream, FairQueue

_log = logging.getLogger(__name__)

_MANY_MESSAGES = 1 << 20
"""More batches than are ever under way: a channel with room for them is not limited by bytes."""


_OF_TASKS = {pipe.BATCH, pipe.ERROR, pipe.STALE, pipe.DRAWN}


class Tasks:
    """Gives the batches of all consumers to workers, and files workers' messages.

    Args:
        recovery: The workers, and each one's batches.
        channel: Its room limits the started batches; it receives the results.
        orders: The order of each epoch, as workers get it.
        concurrency: Batches that a worker samples at a time.
        ranks: What a replacement worker must know of other ranks.
        lock: The producer's lock, for all that has no lock of its own. Callers hold it, except for
            `pump`, `pump_if_lost` and `count_batches`, which do not hold it while they wait.
        place: This producer's place among those of the machine; None: it shares with nobody.
    """

    def __init__(
        self,
        recovery: Recovery,
        channel: MessageMemory,
        orders: SeedOrders,
        concurrency: int,
        ranks: Agreement,
        lock: UninterruptedLock,
        place: Place | None = None,
    ) -> None:
        self._recovery, self._channel = recovery, channel
        self._pool, self._under_way = recovery.pool, recovery.under_way
        self._ranks, self._lock = ranks, lock
        self._warned_small_channel = False
        self._orders, self._concurrency = orders, concurrency
        self._place = place
        self._queue: FairQueue[Received] = FairQueue()
        self.streams = self._queue.streams
        """Consumers by number."""
        self.look_ahead: LookAhead | None = None
        """Decides how far to draw ahead of the rows if there is a cache."""
        # One thread at a time reads and files, so that a worker's messages are filed before its
        # death. Taken before `lock`, never while holding it.
        self._pumping = UninterruptedLock()
        self._unfiled: list[WorkerEvent] = []
        """Messages that `count_batches` has read, for the next `pump`."""
        self._cancelled: deque[tuple[int, Attempt]] = deque()
        """Epochs that were cancelled, perhaps by the collector within one of the calls below."""
        self._fatal: GiglLoaderError | None = None
        """Error after which nothing can be sampled any more."""

    # -- to workers -----------------------------------------------------------------------------

    def add(self, stream: BatchStream[Received]) -> None:
        """Add a consumer."""
        self._queue.add(stream)

    def remove(self, number: int) -> None:
        """Forget a consumer; its batches in progress become stale."""
        self._queue.remove(number)

    def begin(
        self,
        number: int,
        attempt: Attempt | int,
        batches: Sequence[int],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Begin an epoch of a consumer, and tell the workers; `dispatch` gives its batches out."""
        self.cancel_noted()
        state = self.streams[number]
        attempt = state.start(attempt, batches, positions)
        if self.look_ahead is not None and number != AT_ONCE_STREAM:
            self.look_ahead.begin(attempt.serial, len(batches))
        # Before any task of the epoch, which a worker would otherwise take for stale; a socket
        # keeps the order. Workers that are being replaced learn of it in `catch_up`.
        self._send_to_all(*self._announcement(state))

    def note_cancel(self, number: int) -> None:
        """Note that a consumer's epoch is cancelled; changes nothing else, at any time."""
        state = self.streams.get(number)
        if state is not None and state.attempt is not None:
            self._cancelled.append((number, state.attempt))

    def cancel_noted(self) -> None:
        """Cancel the epochs that were noted: workers drop their batches."""
        while self._cancelled:
            number, attempt = self._cancelled.popleft()
            state = self.streams.get(number)
            if state is not None and state.attempt == attempt and not state.finished:
                state.cancel()
                self._send_to_all((pipe.ATTEMPT, number, None, False))

    def _send_to_all(self, message: tuple[Any, ...], obj: Any = None) -> None:
        for worker in sorted(self._recovery.at_work):
            self._pool.send(worker, message, obj)

    def catch_up(self, worker: int) -> None:
        """Tell a replacement worker which epochs are under way."""
        for state in self.streams.values():
            if not state.finished:
                self._pool.send(worker, *self._announcement(state))

    def _announcement(self, state: BatchStream[Received]) -> tuple[tuple[Any, ...], Any]:
        """Return the message that tells a worker of a consumer's epoch, and the order of seeds."""
        assert state.attempt is not None, "a stream that is not finished was started"
        order = self._orders.of(state.number, state.attempt.epoch, state.attempt.seed)
        return (pipe.ATTEMPT, state.number, state.attempt, order is not None), order

    def dispatch(self) -> None:
        """Give out all batches that may be started now."""
        self.cancel_noted()
        if self.look_ahead is not None:
            self._look_ahead_from_here(self.look_ahead)
        # first, as this may let another producer begin, which then comes before this one
        self._note_at_place()
        while (worker := self._worker_for_next()) is not None:
            if self._place is not None and not self._place.may_begin():
                break
            ticket = self._ticket_for(worker)
            if ticket is None:
                if self._place is not None:
                    self._place.withdraw()
                break
            self._give(worker, ticket)
        else:
            if self._place is not None:
                self._place.withdraw()
        self._note_at_place()
        if self.look_ahead is not None:
            self._return_slots_to_workers_done_drawing()

    def _give(self, worker: int, ticket: BatchTicket) -> None:
        if not self._under_way.count:  # until now no worker could make progress
            self._recovery.note_progress()
        # noted before it is sent: if the worker turns out to be gone, another gets the batch
        self._under_way.give(worker, ticket)
        self._note_at_place()
        free, retired = self._channel.returned(worker, self._concurrency)
        self._pool.send(worker, (pipe.TASK, ticket, free, retired))

    def _note_at_place(self) -> None:
        if self._place is not None:
            self._place.note(self._under_way.count)

    def _worker_for_next(self) -> int | None:
        """Return the worker for the next batch; None: there is no worker, or no batch."""
        # called after each message and each batch that is taken, mostly in vain, and the search for
        # a free worker looks at all of them
        if not (self._queue.has_turns or self._under_way.has_lost):
            return None
        return self._under_way.free_worker(self._recovery.at_work)

    def leave_turns(self) -> None:
        """Begin no batch any more, as nobody files those that come."""
        if self._place is not None:
            self._place.close()

    def _return_slots_to_workers_done_drawing(self) -> None:
        """Return unused slots to workers that have drawn all of an epoch.

        Otherwise slots travel with tasks. If hundreds of batches were drawn ahead, no task is left
        long before the last batch is filled, and each batch would get a new slot.
        """
        state = self.streams[pipe.STREAM_AHEAD]
        # tasks will come, now or once a batch under way is taken, and will carry slots
        if state.has_room or state.in_flight >= state.limit:
            return
        for worker in sorted(self._recovery.at_work):
            free, retired = self._channel.returned(worker, self._concurrency)
            if free or retired:
                self._pool.send(worker, (pipe.SLOTS, free, retired))

    def _look_ahead_from_here(self, look_ahead: LookAhead) -> None:
        """Set how many batches may be drawn."""
        state, largest = self.streams[pipe.STREAM_AHEAD], self._largest()
        # batches of unknown size may have any size: one for each worker
        room = self._channel.size // largest if largest else self._pool.num_workers
        room = max(1, min(self._channel.capacity, room))
        state.limit = look_ahead.limit(state.taken, room)

    def _ticket_for(self, worker: int) -> BatchTicket | None:
        """Return the next task for ``worker``; tasks of a lost worker come first.

        While a lost task is left, no new one is started: the consumer may be waiting for the lost
        one, whose room in the channel was taken when it was first given out.
        """
        if self._under_way.has_lost:
            idle = not self._under_way.tickets[worker]
            lost = self._under_way.next_lost(self.is_wanted, idle=idle)
            if lost is not None or self._under_way.has_lost:
                return lost
        at_once = self.streams.get(AT_ONCE_STREAM)
        # a thread waits for a batch at once alone, so it goes out even if the channel is full
        found = None if at_once is None else at_once.next_ticket()
        if found is None and self._has_room():
            found = self._queue.next_ticket()
        return found

    @property
    def num_waiting(self) -> int:
        """Batches of all consumers that have arrived and are not taken."""
        return self._queue.waiting.count

    def is_wanted(self, ticket: BatchTicket) -> bool:
        """Return whether the epoch of a batch is still current."""
        stream = self.streams.get(ticket.stream)
        return stream is not None and stream.wants(ticket)

    def _largest(self) -> int:
        """Return the bytes of the largest message so far; warn once if the channel has less."""
        largest = self._channel.largest
        if largest > self._channel.size and not self._warned_small_channel:
            self._warned_small_channel = True
            _log.warning(
                "a batch takes %d bytes and channel_size is %d: batches are made one at a time; "
                "give at least twice as much as a batch for each worker",
                largest,
                self._channel.size,
            )
        return largest

    def _has_room(self) -> bool:
        """Return whether one more message of the largest size seen fits into the channel."""
        if self.look_ahead is not None:
            return True  # it decides which batches are filled; a drawn batch takes no room
        largest = self._largest()
        if 0 < largest * _MANY_MESSAGES <= self._channel.size:
            return True  # without looking at each stream: a server has one per compute process
        # batches that wait to be taken and those at workers; consumers' own batches do not count
        under_way = self.num_waiting + self._under_way.count
        if largest == 0:  # no size is known yet: one batch per worker
            return under_way < self._pool.num_workers
        # an only message may be larger than the whole channel
        return under_way == 0 or (under_way + 1) * largest <= self._channel.size

    # -- messages of workers --------------------------------------------------------------------

    def pump(self, timeout_s: float) -> bool:
        """File messages of workers; see `DistSamplingProducer.pump`."""
        with self._pumping:
            with self._lock:
                self._replace_due()
                events, self._unfiled = self._unfiled, []
            # the wait, outside `lock`
            if not events:
                with explained_limits("taking a batch of a sampling worker"):
                    events = self._pool.poll(self._recovery.next_step_in(timeout_s))
            with self._lock:
                for event in events:  # all, so that the failure of one costs no other its batch
                    self._file_or_fail(event)
                self.dispatch()
        self.raise_if_fatal()
        return bool(events)

    def pump_if_lost(self) -> None:
        """File messages of workers if one of them is lost."""
        # only for deaths, as the thread that takes batches files them; the pool does not show a
        # death that `count_batches` has read
        unfiled = any(event.message[0] == pipe.DIED for event in self._unfiled)
        if unfiled or self._recovery.may_have_lost:
            self.pump(0.0)

    def raise_if_fatal(self) -> None:
        """Raise the error that ended the sampling, a copy for each caller."""
        if self._fatal is not None:
            raise fresh_copy(self._fatal)

    def count_batches(self) -> int:
        """Return how many batches workers have sent that are not filed; see `count_waiting`."""
        with self._pumping:
            self._unfiled += self._pool.poll(0.0)
        return sum(event.message[0] == pipe.BATCH for event in self._unfiled)

    def close(self) -> None:
        """Drop messages that were not filed, with their descriptors."""
        self.leave_turns()
        unfiled, self._unfiled = self._unfiled, []
        for event in unfiled:
            segments.close_fds(list(event.fds))

    def _replace_due(self) -> None:
        """Start the workers that are due; a failure ends all, or consumers would wait for ever."""
        try:
            self._recovery.replace_due()
        except OSError as error:  # no more processes or files
            self._end_by(error, "starting a worker in the place of one that was lost")

    def _file_or_fail(self, event: WorkerEvent) -> None:
        """File a message. If that fails, it ends all epochs, as the batch would never come.

        The filing thread may not be the one that waits for the batch, or may end by the error.
        """
        try:
            if event.message[0] == pipe.UNREAD:
                self._end_one_that_does_not_read(event.worker)
            else:
                self._file(event)
        except Exception as error:
            self._end_by(error, f"taking {event.message[0]!r} of sampling worker {event.worker}")

    def _end_by(self, error: Exception, where: str) -> None:
        """End all epochs by the first error; the caller handles it."""
        if not isinstance(error, GiglLoaderError):
            cause = f"{type(error).__name__}: {error}"
            error = SamplingError(where, cause, traceback.format_exc())
        self._fatal = self._fatal or error

    def _file(self, event: WorkerEvent) -> None:
        kind, *rest = event.message
        # its batches were taken back: another worker samples them, and this result is not read. Its
        # slots are gone with it
        if kind in _OF_TASKS and event.worker not in self._recovery.at_work:
            segments.close_fds(list(event.fds))
            return
        self._recovery.note_progress()
        if kind == pipe.BATCH:
            self._file_batch(event, *rest)
        elif kind == pipe.ERROR:
            self._file_error(event.worker, *rest)
        elif kind == pipe.DRAWN:
            self._count_drawn(*rest)
        elif kind == pipe.STALE:
            self._under_way.done(event.worker, rest[0])
        elif kind == pipe.UNHEARD:
            suspect_ranks(*rest)
        elif kind == pipe.DIED:
            self._lose(event.worker, *rest)
        elif kind == pipe.READY:
            self._welcome(event.worker)
        elif kind == pipe.FAILED:
            error = SamplingError(f"start of sampling worker {event.worker}", *rest)
            self._give_up(event.worker, error)

    def _end_one_that_does_not_read(self, worker: int) -> None:
        if not self._recovery.kill([worker]):
            raise PeerTimeoutError(
                f"sampling {self._pool.describe([worker])} did not take a message for "
                f"{SEND_TIMEOUT_S:.0f} s"
            )

    def _file_batch(
        self,
        event: WorkerEvent,
        ticket: BatchTicket,
        slot: int,
        nbytes: int,
        retired: tuple[int, ...],
        layout: Any,
        stats: dict[str, Any],
    ) -> None:
        # first of all, whether the batch is still wanted or not: the worker is done with it
        self._under_way.done(event.worker, ticket)
        fd = event.fds[0] if event.fds else None
        # an unwanted batch is opened too, so that its slot is returned when the message is dropped
        try:
            message = self._channel.open(event.worker, Written(slot, nbytes, fd, retired, layout))
        finally:
            segments.close_fds(list(event.fds))
        stream = self.streams.get(ticket.stream)
        if stream is not None:
            restarts = self._recovery.restarts.total
            stats.update(worker=event.worker, nbytes=nbytes, restarts=restarts)
            stream.arrived(ticket, Received(ticket, message, stats))

    def _file_error(self, worker: int, ticket: BatchTicket, cause: str, text: str) -> None:
        self._under_way.done(worker, ticket)
        if not self.is_wanted(ticket):
            return  # its epoch was cancelled: no consumer waits for it
        pid = self._pool.pids[worker]
        where = f"sampling worker {worker} (pid {pid}), epoch {ticket.epoch}, batch {ticket.batch},"
        self.streams[ticket.stream].fail(SamplingError(where, cause, text))

    def _count_drawn(self, ticket: BatchTicket, asked: int, kept: int) -> None:
        if self.look_ahead is not None:
            self.look_ahead.count(ticket.serial, asked, kept)

    def _lose(
        self, worker: int, pid: int | None, exitcode: int | None, orphan_of: int | None = None
    ) -> None:
        # all that it sent has been filed. Its successor counts its slots from 0 again
        self._channel.forget(worker)
        if self.look_ahead is not None:
            self.look_ahead.give_up()
        error = self._recovery.died(worker, pid, exitcode, orphan_of)
        if error is not None:
            self._give_up(worker, error)

    def _give_up(self, worker: int, error: GiglLoaderError) -> None:
        """End all epochs, and tell other ranks' workers that this worker has no successor."""
        self._fatal = error
        listener = self._pool.take_listener(worker)
        if listener is not None:
            self._ranks.answer_for_lost(worker, listener, error)

    def _welcome(self, worker: int) -> None:
        """Send a replacement worker the data that the lost one had."""
        # both before it gets batches: the epochs, or its tasks would be stale, and its peers
        self.catch_up(worker)
        assignments = self._ranks.assignments()
        self._pool.send(worker, *self._ranks.introduction(worker, assignments))
        self._recovery.at_work.add(worker)
