"""Replaces workers that die or hang: when, how often, and with which log lines.

::

    at work --dies--> lost --pause--> starting --READY--> at work
       |  no progress: killed
       `-----------------> dies

A batch is a function of seed, epoch and index, so another worker samples exactly the same one.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable

from gigl_loader.batch.message import BatchTicket
from gigl_loader.errors import (
    ConfigError,
    FileChangedError,
    GiglLoaderError,
    PeerTimeoutError,
    WorkerDiedError,
)
from gigl_loader.runtime.threads import start_aside
from gigl_loader.sources.workers.pool import WorkerPool
from gigl_loader.sources.workers.schedule import Restarts, UnderWay, ended_by_itself

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""Seconds between two checks of `RestartThread` for a death reported by the supervisor: one poll
of a socket each."""
_SHOWN_SEEDS = 8


class Recovery:
    """Handles the loss of one producer's workers.

    Args:
        pool: The processes.
        concurrency: Batches that a worker samples at a time.
        max_restarts: Most workers replaced in one epoch.
        seeds_of: Returns the seeds of a batch, for errors.
        check_files: Raises `FileChangedError` if a mapped file of the dataset has changed.
    """

    def __init__(
        self,
        pool: WorkerPool,
        concurrency: int,
        max_restarts: int,
        seeds_of: Callable[[BatchTicket], list[int]],
        check_files: Callable[[], None],
    ) -> None:
        self.pool, self._seeds_of, self._check_files = pool, seeds_of, check_files
        self.under_way = UnderWay(pool.num_workers, concurrency)
        self.restarts = Restarts(max_restarts)
        self.at_work = set(range(pool.num_workers))
        """Workers that may be given batches."""
        self._due: dict[int, float] = {}
        """Time at which to replace each lost worker (`time.monotonic`)."""
        self.hung: dict[int, str] = {}
        """Workers that were killed because they made no progress, and their last state."""
        self._innocent: set[int] = set()
        """Those of them that had been stopped by a signal, so that no batch made them hang."""
        self._stopped: dict[int, int] = {}
        """How many times in a row `end_stopped` has found each worker stopped."""
        self.last_progress = time.monotonic()
        """Time at which a worker last sent something, or a wait for workers began."""

    # -- losses ---------------------------------------------------------------------------------

    @property
    def may_have_lost(self) -> bool:
        """Whether a worker is lost or being replaced, or may have ended since the last `poll`."""
        return self.is_pending or self.pool.has_news()

    @property
    def is_pending(self) -> bool:
        """Whether a worker is lost or being replaced."""
        return len(self.at_work) < self.pool.num_workers

    def next_step_in(self, limit_s: float) -> float:
        """Return how long a wait may be until `replace_due` is due; at most ``limit_s``."""
        first = min(self._due.values(), default=float("inf"))
        return max(0.0, min(limit_s, first - time.monotonic()))

    def replace_due(self) -> None:
        """Start the workers whose pause is over."""
        now = time.monotonic()
        for worker in [worker for worker, due in self._due.items() if due <= now]:
            del self._due[worker]
            self.pool.replace(worker)

    def died(
        self, worker: int, pid: int | None, exitcode: int | None, orphan_of: int | None = None
    ) -> GiglLoaderError | None:
        """Take back a worker's batches, and plan its replacement.

        Args:
            worker: Number of the worker.
            pid: Its process id; None: it had not been started yet.
            exitcode: Its exit code; None: unknown.
            orphan_of: The supervisor with whose end the worker was lost; None: it is alive.

        Returns:
            The error that ends the epoch if the worker is not replaced.
        """
        # in this order, as `killed_twice` uses the deaths that `lose` counts
        self.at_work.discard(worker)
        hung, by_itself = self.hung.pop(worker, None), ended_by_itself(exitcode)
        if hung is not None:
            by_itself = worker not in self._innocent
        self._innocent.discard(worker)
        num_had = len(self.under_way.tickets[worker])
        suspects = self.under_way.lose(worker, suspects_any=orphan_of is None, by_itself=by_itself)
        error = changed_file(WorkerDiedError(worker, pid, exitcode), self._check_files)
        if error is not None:  # its successor would end by it, too
            return error
        if by_itself and (ticket := self.under_way.killed_twice(suspects)) is not None:
            error = self._error_of_batch(ticket, worker, pid, exitcode, hung)
        elif not self.restarts.may_take(orphan_of):
            error = WorkerDiedError(worker, pid, exitcode, self._used_up(suspects))
        if error is not None:
            return error
        pause = self.restarts.take(orphan_of)
        self._due[worker] = time.monotonic() + pause
        logger.warning(
            "%s; it is replaced (%d of max_restarts left in this epoch), and samples again: %s",
            hung or WorkerDiedError(worker, pid, exitcode),
            self.restarts.left,
            _named(suspects) if suspects else f"{num_had} batches",
        )
        return None

    def note_progress(self) -> None:
        """Note that a worker sent something, or that a wait for workers begins now."""
        self.last_progress = time.monotonic()

    def is_stalled(self, limit_s: float) -> bool:
        """Return whether no worker made progress for ``limit_s`` seconds."""
        return time.monotonic() - self.last_progress >= limit_s

    def replace_stalled(self, limit_s: float) -> bool:
        """End workers that made no progress for ``limit_s`` seconds, so that they are replaced.

        Returns:
            False if that is of no use; see `kill`.
        """
        if not self.is_stalled(limit_s):
            return True
        self.note_progress()  # gives their successors as long
        # also one that is starting and does not get ready; not one whose turn has yet to come
        starting = {*range(self.pool.num_workers)} - self.at_work - self._due.keys()
        return self.kill(sorted({*self.under_way.busy} | starting))

    def end_stopped(self, most: int) -> None:
        """End the workers that all of the last ``most`` calls found stopped (`SIGSTOP`).

        This counts calls, not seconds: if this process was stopped as well, with its terminal or
        its container, all processes continue together.
        """
        stopped = [worker for worker in self.at_work if self.pool.is_stopped(worker)]
        self._stopped = {worker: self._stopped.get(worker, 0) + 1 for worker in stopped}
        late = [worker for worker, times in self._stopped.items() if times >= most]
        self.kill([worker for worker in late if worker not in self.hung])

    def kill(self, workers: list[int]) -> bool:
        """End workers that hang, so that they are replaced.

        Returns:
            False if that is of no use: too few may be replaced, or they were killed before.
        """
        # Killed before and not dead yet: it is in a system call that cannot be interrupted, so
        # another signal would not end it either.
        known = [worker for worker in workers if worker in self.hung]
        if not workers or known or self.restarts.left < len(workers):
            return False
        for worker in workers:
            self.hung[worker] = f"sampling {self.pool.describe([worker])} made no progress"
            if self.pool.is_stopped(worker):
                self._innocent.add(worker)
            self.pool.kill(worker)
        return True

    def _used_up(self, suspects: list[BatchTicket]) -> str:
        most = self.restarts.most
        if not most:
            return ""
        text = f"max_restarts={most} are used up in this epoch"
        # only this shows which batch takes all memory of the workers that sample it
        if (lost := self.under_way.losses(suspects)) > 1:
            text += f"; {_named(suspects)} was lost with {lost} workers that had no other"
            text += self._seeds_told(suspects[0])
        return text

    def _seeds_told(self, ticket: BatchTicket) -> str:
        seeds = self._seeds_of(ticket)
        shown = ", ".join(map(str, seeds[:_SHOWN_SEEDS])) + ", ..." * (len(seeds) > _SHOWN_SEEDS)
        return f"; its {len(seeds)} seeds are [{shown}]"

    def _error_of_batch(
        self,
        ticket: BatchTicket,
        worker: int,
        pid: int | None,
        exitcode: int | None,
        hung: str | None,
    ) -> GiglLoaderError:
        note = (
            f"{_named([ticket])} was lost with two workers that ended while they sampled it alone, "
            f"so it is not sampled a third time{self._seeds_told(ticket)}"
        )
        if hung is None:
            return WorkerDiedError(worker, pid, exitcode, note)
        return PeerTimeoutError(f"{hung}; {note}; if a batch takes that long, raise `timeout`")


def changed_file(died: WorkerDiedError, check_files: Callable[[], None]) -> GiglLoaderError | None:
    """Return the error that names the file that changed, if a worker ended by SIGBUS because of it.

    Args:
        died: The end of the worker.
        check_files: See `Recovery`.
    """
    if died.exitcode != -signal.SIGBUS:
        return None
    try:
        check_files()
    except FileChangedError as error:
        which = "not started yet" if died.pid is None else f"pid {died.pid}"
        return FileChangedError(f"sampling worker {died.worker} ({which}) died: SIGBUS; {error}")
    except ConfigError as error:
        return error
    return None


def _named(tickets: list[BatchTicket]) -> str:
    if not tickets:
        return "no batch"
    return ", ".join("batch {1} of epoch {0}".format(*one.content) for one in tickets)


class RestartThread:
    """Lets a producer replace its workers while no thread waits for a batch.

    Workers of other ranks send requests to this rank's: a training loop that waits for those ranks
    would never return to notice that one of its own workers is gone.

    Args:
        replace_lost: Called again and again; returns at once if there is nothing to do.
        every_s: Seconds between two calls.
    """

    def __init__(self, replace_lost: Callable[[], None], every_s: float = LOOK_EVERY_S) -> None:
        self._replace_lost, self._every_s = replace_lost, every_s
        self._ended = threading.Event()
        self._thread = start_aside("gigl_loader restarts workers", self._run)

    def _run(self) -> None:
        said = ""
        while not self._ended.wait(self._every_s):
            try:
                self._replace_lost()
            except GiglLoaderError:  # kept for the thread that takes batches
                continue
            except Exception as error:  # e.g. a descriptor that is missing now may be freed soon
                if repr(error) != said:
                    said = repr(error)
                    logger.exception("cannot look after the workers; it is tried again")

    def close(self) -> None:
        """Stop; idempotent."""
        self._ended.set()
        # the caller must not hold the lock that `replace_lost` takes, or both would wait
        if self._thread is not threading.current_thread():
            # Checks do not wait, but replacing a worker may start a supervisor. If even that does
            # not end, the daemon thread is left behind.
            self._thread.join(5.0)
