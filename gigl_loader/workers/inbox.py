"""What workers send, filed: batches to their consumers, errors to who waits, deaths to recovery."""

import threading
import traceback
from typing import Any

from gigl_loader.errors import GiglLoaderError, SamplingError
from gigl_loader.memory import segments
from gigl_loader.memory.slots import Written
from gigl_loader.message import BatchTicket, Received
from gigl_loader.ranks import suspect_ranks
from gigl_loader.workers import messages
from gigl_loader.workers.agreement import Agreement
from gigl_loader.workers.dispatch import Dispatcher, MessageMemory
from gigl_loader.workers.pool import WorkerEvent
from gigl_loader.workers.recovery import Recovery

_OF_TASKS = {messages.BATCH, messages.ERROR, messages.STALE, messages.DRAWN}


class Inbox:
    """Reads and files the messages of all workers of a producer.

    Args:
        recovery: The workers.
        dispatcher: The consumers; given a turn after each message, as it may have made room.
        ranks: What a worker that takes another's place is told.
        channel: Where batches come to lie.
        lock: The producer's, for all that has no lock of its own. Not held while messages are
            waited for, so that others can take batches and start epochs meanwhile.
    """

    def __init__(
        self, recovery: Recovery, dispatcher: Dispatcher, ranks: Agreement,
        channel: MessageMemory, lock: threading.RLock,
    ) -> None:  # fmt: skip
        self._recovery, self._dispatcher, self._ranks = recovery, dispatcher, ranks
        self._channel, self._lock = channel, lock
        # One thread at a time reads and files, so that what a worker sent is filed before its
        # death is. Taken before `lock`, never inside it.
        self._pumping = threading.RLock()
        self._unfiled: list[WorkerEvent] = []
        """Messages that `count_batches` has read, for the next `pump`."""
        self._fatal: GiglLoaderError | None = None
        """Why nothing can be sampled any more."""

    def pump(self, timeout_s: float) -> bool:
        """File what workers sent; see `DistSamplingProducer.pump`."""
        with self._pumping:
            with self._lock:
                self._replace_due()
                events, self._unfiled = self._unfiled, []
            # outside of `lock`: this is the wait. No longer than to the next worker that is due
            events = events or self._recovery.pool.poll(self._recovery.next_step_in(timeout_s))
            with self._lock:
                for event in events:  # all of them: the failure of one costs no other its batch
                    self._file_or_fail(event)
                self._dispatcher.dispatch()
        self.raise_if_fatal()
        return bool(events)

    def attend(self) -> None:
        """File what workers sent where one of them is lost."""
        # deaths alone: to file a batch is up to who takes it, and `has_news` no longer tells of a
        # death that `count_batches` has read
        unfiled = any(event.message[0] == messages.DIED for event in self._unfiled)
        if unfiled or self._recovery.is_pending or self._recovery.pool.has_news():
            self.pump(0.0)

    def raise_if_fatal(self) -> None:
        """Raise what ended the sampling, anew for each caller."""
        # a new object each time: one that is raised in several threads would collect the
        # tracebacks of all of them
        if self._fatal is not None:
            raise type(self._fatal)(*self._fatal.args)

    def count_batches(self) -> int:
        """Return how many batches workers have sent that are not filed; see `count_waiting`."""
        with self._pumping:
            self._unfiled += self._recovery.pool.poll(0.0)
        return sum(event.message[0] == messages.BATCH for event in self._unfiled)

    def close(self) -> None:
        """Drop what was not filed, with its descriptors."""
        unfiled, self._unfiled = self._unfiled, []
        for event in unfiled:
            segments.close_fds(list(event.fds))

    def _replace_due(self) -> None:
        """Start the workers whose turn it is. One that cannot be started would be waited for."""
        try:
            self._recovery.replace_due()
        except OSError as error:  # no more processes, or files
            where = "starting a worker in the place of one that was lost"
            cause = f"{type(error).__name__}: {error}"
            self._fatal = self._fatal or SamplingError(where, cause, traceback.format_exc())

    def _file_or_fail(self, event: WorkerEvent) -> None:
        """File a message. One that cannot be filed would be missing for ever: it ends all epochs.

        Whoever happens to file it may not be who waits for it, or may be a thread that would end.
        """
        try:
            self._file(event)
        except GiglLoaderError as error:
            self._fatal = self._fatal or error
        except Exception as error:
            where = f"taking {event.message[0]!r} of sampling worker {event.worker}"
            cause, text = f"{type(error).__name__}: {error}", traceback.format_exc()
            self._fatal = self._fatal or SamplingError(where, cause, text)

    def _file(self, event: WorkerEvent) -> None:
        kind, *rest = event.message
        # of a worker whose batches were taken back: another one samples them, and what it wrote is
        # not read. Its slots are gone with it
        if kind in _OF_TASKS and event.worker not in self._recovery.at_work:
            segments.close_fds(list(event.fds))
            return
        self._recovery.note_progress()
        if kind == messages.BATCH:
            self._file_batch(event, *rest)
        elif kind == messages.UNHEARD:
            suspect_ranks(*rest)
        elif kind == messages.ERROR:
            self._file_error(event.worker, *rest)
        elif kind == messages.DRAWN:
            self._count_drawn(*rest)
        elif kind == messages.STALE:
            self._recovery.under_way.done(event.worker, rest[0])
        elif kind == messages.DIED:
            self._lose(event.worker, *rest)
        elif kind == messages.READY:
            self._welcome(event.worker)
        elif kind == messages.FAILED:
            error = SamplingError(f"start of sampling worker {event.worker}", *rest)
            self._give_up(event.worker, error)

    def _file_batch(
        self, event: WorkerEvent, ticket: BatchTicket, slot: int, nbytes: int,
        retired: tuple[int, ...], layout: Any, stats: dict[str, Any],
    ) -> None:  # fmt: skip
        # first of all, and whether the batch is still wanted or not: the worker is done with it
        self._recovery.under_way.done(event.worker, ticket)
        fd = event.fds[0] if event.fds else None
        # one that nobody wants is opened, too: its slot goes back once the message is dropped
        try:
            message = self._channel.open(event.worker, Written(slot, nbytes, fd, retired, layout))
        finally:
            segments.close_fds(list(event.fds))
        stream = self._dispatcher.streams.get(ticket.stream)
        if stream is not None:
            restarts = self._recovery.restarts.total
            stats.update(worker=event.worker, nbytes=nbytes, restarts=restarts)
            stream.arrived(ticket, Received(ticket, message, stats))

    def _file_error(self, worker: int, ticket: BatchTicket, cause: str, text: str) -> None:
        self._recovery.under_way.done(worker, ticket)
        if not self._dispatcher.is_wanted(ticket):
            return  # of an epoch that was broken off: nobody waits for it
        pid = self._recovery.pool.pids[worker]
        where = f"sampling worker {worker} (pid {pid}), epoch {ticket.epoch}, batch {ticket.batch},"
        self._dispatcher.streams[ticket.stream].fail(SamplingError(where, cause, text))

    def _count_drawn(self, ticket: BatchTicket, asked: int, kept: int) -> None:
        if self._dispatcher.look_ahead is not None:
            self._dispatcher.look_ahead.count(ticket.serial, asked, kept)

    def _lose(
        self, worker: int, pid: int | None, exitcode: int | None, orphan_of: int | None = None
    ) -> None:
        # all that it sent was filed before. Its successor counts its slots from 0 again
        self._channel.forget(worker)
        if self._dispatcher.look_ahead is not None:
            self._dispatcher.look_ahead.give_up()
        error = self._recovery.died(worker, pid, exitcode, orphan_of)
        if error is not None:
            self._give_up(worker, error)

    def _give_up(self, worker: int, error: GiglLoaderError) -> None:
        """End all epochs, and tell other ranks that ask a worker which has no successor."""
        self._fatal = error
        listener = self._recovery.pool.take_listener(worker)
        if listener is not None:
            self._ranks.refuse(worker, listener, error)

    def _welcome(self, worker: int) -> None:
        """Tell a worker that took another's place what that one knew."""
        # both before it is given batches: epochs, so that its tasks are not stale, and whom to ask
        self._dispatcher.catch_up(worker)
        assignments = self._ranks.assignments()
        self._recovery.send(worker, *self._ranks.introduction(worker, assignments))
        self._recovery.is_ready(worker)
