"""A sampling process: takes tasks from its socket, samples, writes each batch into a slot.

Threads: the main thread reads the socket, so that it notices the trainer's end at once. Sampling
threads take tasks from a queue; there are as many as batches shall overlap their waits for other
partitions. `PartitionServer` has one for each worker of another partition that sends requests.

Nothing here imports torch, which would take longer than everything else that a worker does before
its first batch.
"""

import contextlib
import ctypes
import dataclasses
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from gigl_loader.batch.message import Attempt, BatchTicket
from gigl_loader.batch.slots import SlotWriter, Written
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.errors import PeerTimeoutError
from gigl_loader.runtime.memory import read_ahead
from gigl_loader.runtime.memory.same_host import Offer, read_offers
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.system import use_one_heap
from gigl_loader.runtime.threads import new_thread
from gigl_loader.sampler.plan import Peers, Sampler, SampleRequest
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import (
    AheadMemory,
    AheadTasks,
    DrawnAhead,
    Waiting,
    copy_drawn,
)
from gigl_loader.sampler.row_cache.pipeline import NOT_PLANNED, Pipeline
from gigl_loader.sampler.rows.reader import Scratch
from gigl_loader.sampler.rows.row_exchange import LaterPeers, rows_apart
from gigl_loader.sampler.sampler_kinds import sampled_fields
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.peers import Assignment, PartitionServer, PeerClient
from gigl_loader.sources.workers.pipe import Plugins, WorkerSetup

logger = logging.getLogger(__name__)

_MAX_TRACEBACK = 60_000
_LINGER_STEP_S = 1.0
"""Seconds between two signs of life to the trainer from a worker that only serves."""
_LANES = 4
"""Most connections to each other partition: one for each sampling thread. Threads that share one
have to hand the reading on, and on a busy machine a woken thread takes the core from the one that
holds the interpreter's lock. Two connections for four threads cost a third of the time."""
_COMES_BACK_S = 30.0
"""Seconds after its start in which a replacement worker expects its predecessor's callers; they may
have said goodbye to that one."""
_BYE_S = 5.0
"""Longest wait, at the end, for goodbyes to workers that get no requests from this one."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 * 2**20
"""Largest mmap threshold that glibc allows."""


def keep_freed_memory() -> None:
    """Make malloc keep freed memory: work arrays of the next batch then cost no page faults."""
    with contextlib.suppress(OSError, AttributeError):  # another libc: slower, not wrong
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**30)
    use_one_heap()


class Worker:
    """The state of one sampling process."""

    def __init__(self, sock: pipe.Socket, number: int) -> None:
        self._sock, self._number = sock, number
        self._setup: WorkerSetup[Array] = pipe.receive_object(sock)
        self._replaces, self._listens_on = _receive_position(sock)
        self._plugins = Plugins()
        self._slots = SlotWriter()
        self._tasks: queue.SimpleQueue[BatchTicket | None] = queue.SimpleQueue()
        # by stream: the current attempt, and the order of the seeds in its epoch
        self._attempts: dict[int, tuple[Attempt | None, Array | None]] = {}
        self._send_lock = threading.Lock()  # sampling threads and the main thread both send
        self._answering: PartitionServer | None = None
        self._asking: PeerClient | None = None
        self._askers: tuple[str, ...] = ()
        self._connecting: list[threading.Thread] = []
        self._num_asked = 0
        self._cache: RowCache | None = None
        self._drawn: DrawnAhead | None = None
        self._user = -1
        self._rows_apart = False
        self._ahead = AheadTasks(self._may_fill)

    # -- start ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Set the process up and listen for other partitions."""
        keep_freed_memory()  # before the first thread, as a thread keeps its arena
        if self._setup.access is not None:
            name = f"sampling worker {self._number}"
            self._answering = PartitionServer(
                self._setup.access,
                self._setup.view,
                name,
                self._listens_on,
                awaits_s=_COMES_BACK_S if self._replaces else None,
                patience_s=self._setup.patience_s,
            )
        self._plugins = pickle.loads(self._setup.plugins)
        if self._plugins.init_fn is not None:
            self._plugins.init_fn(self._number)
        # a sampler that cannot be built fails here, at the start
        self._load_sampler(None)
        if "torch" in sys.modules:  # imported by a plugin: it must not take others' CPUs
            sys.modules["torch"].set_num_threads(1)
        self._report_ready()

    def _load_sampler(self, peers: Peers | None) -> Sampler:
        return self._plugins.sampler.build(self._setup.view, self._setup.plan, peers)

    def _report_ready(self) -> None:
        answering = self._answering
        # the worker's listening socket, for its successor; a worker that got it from its
        # predecessor need not send it, as the trainer has it
        keeps = answering is not None and self._setup.replaceable and self._listens_on is None
        fds = [answering.fileno()] if answering is not None and keeps else []
        self._send((pipe.READY, answering.address if answering else None), fds)

    # -- messages -------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop, or until the trainer is gone."""
        while True:
            got = pipe.receive(self._sock)
            if got is None:
                os._exit(0)  # the trainer is gone: nobody is left to tell
            (kind, *rest), _ = got
            if kind == pipe.TASK:
                self._take_task(*rest)
            elif kind == pipe.SLOTS:
                self._slots.give_back(*rest)
            elif kind == pipe.ATTEMPT:
                self._start_attempt(*rest)
            elif kind == pipe.PEERS:
                self._connect(*rest)
            elif kind == pipe.STOP:
                self._stop(*rest)
                return

    def _take_task(self, ticket: BatchTicket, free: list[int], retired: list[int]) -> None:
        self._slots.give_back(free, retired)  # first, as this batch may be written there
        if self._cache is not None:
            self._ahead.put(ticket)
        else:
            self._tasks.put(ticket)

    def _start_attempt(self, stream: int, attempt: Attempt | None, has_order: bool) -> None:
        order = pipe.receive_object(self._sock) if has_order else None
        # one tuple, replaced in one step, as sampling threads may read it at any time
        self._attempts[stream] = (attempt, order)

    def _goes_on(self, ticket: BatchTicket) -> bool:
        """Return whether a batch belongs to an attempt that was not cancelled."""
        attempt, _ = self._attempts.get(ticket.stream, (None, None))
        return ticket.attempt == attempt

    def _connect(
        self,
        name: str,
        assignment: Assignment | None,
        offers: dict[int, list[Offer]],
        has_cache: bool,
        rows_apart: bool,
    ) -> None:
        setup, self._rows_apart = self._setup, rows_apart
        memory: AheadMemory[Array] | None = None
        if has_cache:
            memory = pipe.receive_object(self._sock)
        # before any sampling thread starts, as each builds its sampler from this
        view = dataclasses.replace(setup.view, same_host=read_offers(offers, PartitionView))
        self._setup = dataclasses.replace(setup, view=view)
        if (unseen := offers.keys() - view.same_host.keys()) and self._number == 0:
            logger.warning(
                "%s asks over TCP for partitions %s, which are on this machine: their memory "
                "cannot be seen from here (another user's, or another container's)",
                name,
                sorted(unseen),
            )
        if assignment is not None:
            self._askers = assignment.askers
            self._ask_from_now_on(name, assignment)
        # Threads that wait for peers or a disk cost nothing. Without such waits they share this
        # worker's CPUs: one samples while another gathers rows.
        alone = min(setup.concurrency, setup.cpus)
        if memory is not None and self._asking is not None:
            self._cache, self._drawn = RowCache(memory.cache), DrawnAhead(memory.drawn)
            self._user = memory.user
        for number in range(setup.concurrency):
            waits = self._asking is None and number >= alone
            target = self._sample_from_disk if waits else self._sample_loop
            new_thread(target=target, name=f"samples {number}", on_death=_end_process).start()

    def _ask_from_now_on(self, name: str, assignment: Assignment) -> None:
        """Connect to other partitions' workers in a thread, so that the trainer is heard meanwhile.

        Workers whose partition is read in memory expect this worker too, as they cannot know: they
        get a goodbye at once.
        """
        access, timeout_s = self._setup.access, self._setup.rpc_timeout_s
        assert access is not None, "a worker with peers serves them"
        same_host = self._setup.view.same_host
        asked = {p: whom for p, whom in assignment.asked.items() if p not in same_host}
        spared = {p: whom for p, whom in assignment.asked.items() if p in same_host}
        self._num_asked = len(asked)
        if asked:
            lanes = min(_LANES, self._setup.concurrency)
            self._asking = PeerClient(asked, access, name, timeout_s, lanes, self._setup.patience_s)
            self._aside(self._asking.connect)
        if spared:
            others = PeerClient(spared, access, name, timeout_s, 1)
            self._aside(others.connect, others.close)

    def _aside(self, *steps: Callable[[], None]) -> None:
        def work() -> None:
            for step in steps:
                step()

        # sampling threads may wait for responses that never come
        thread = new_thread(target=work, name="meets other workers", on_death=_end_process)
        self._connecting.append(thread)
        thread.start()

    def _stop(self, linger_s: float) -> None:
        """End, but serve other partitions until their workers are done, or send no requests."""
        self._attempts.clear()  # batches in the queue are stale now
        if self._cache is not None:  # others of this machine share the memory
            for waiting in self._ahead.drop():
                self._cache.forget(waiting.number)
        if self._answering is None or linger_s <= 0:
            return
        deadline = time.monotonic() + _BYE_S
        for thread in self._connecting:  # a peer never reached would wait for our goodbye
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._asking is not None:
            self._asking.close()
        started = time.monotonic()
        while missing := self._answering.wait_for_askers(self._askers, _LINGER_STEP_S):
            self._send((pipe.LINGERING,))
            if time.monotonic() - max(started, self._answering.last_asked) > linger_s:
                logger.warning(
                    "worker %d no longer answers other partitions: for %.0f s none of these asked, "
                    "or said that it was done: %s",
                    self._number,
                    linger_s,
                    sorted(missing),
                )
                return

    # -- sampling -------------------------------------------------------------------------------

    def _sample_from_disk(self) -> None:
        # if files fit into memory this never ends: a daemon, which ends with the process
        read_ahead.do_not_fit.wait()
        self._sample_loop()

    def _sample_loop(self) -> None:
        """Sample one batch after another, and report failures to the trainer.

        If rows are cached, a batch is drawn first, and filled when its turn comes.
        """
        pipeline, view = None, self._setup.view
        wait: Callable[[], Waiting | BatchTicket | None] = self._tasks.get
        if self._cache is not None and self._asking is not None:
            pipeline = Pipeline(self._asking, Scratch(), self._cache, self._user, view=view)
            wait = self._ahead.get
        later = self._rows_apart or pipeline is not None
        peers = LaterPeers(self._asking) if later else self._asking
        # here, not in `__init__`: a sampler's work arrays belong to one thread, and a thread that
        # never gets a task needs none
        sampler = cache(partial(self._load_sampler, peers))
        while True:
            waited = time.perf_counter()
            work = wait()
            if work is None:
                return
            idle_s = time.perf_counter() - waited
            ticket = work.ticket if isinstance(work, Waiting) else work
            try:
                if isinstance(work, Waiting):
                    self._fill(pipeline, work, idle_s)
                    continue
                request = self._request(ticket)
                if request is None:
                    self._send((pipe.STALE, ticket))
                    continue
                if pipeline is None:
                    self._sample(sampler(), request, idle_s)
                else:
                    self._draw(pipeline, sampler(), request, idle_s)
            # A failure of shared memory or a disk is reported. If the socket failed, the report
            # fails too: the trainer is gone, and this process has no more purpose.
            except OSError as error:
                if not self._report(ticket, error):
                    os._exit(0)
            except BaseException as error:  # a user's sampler may raise anything
                self._report(ticket, error)

    # -- sampling ahead -------------------------------------------------------------------------

    def _may_fill(self, waiting: Waiting) -> bool:
        """Return whether a drawn batch may be filled, or belongs to a cancelled epoch."""
        assert self._drawn is not None
        ticket = waiting.ticket
        return not self._goes_on(ticket) or self._drawn.may_fill(ticket.serial, ticket.turn)

    def _draw(
        self, pipeline: Pipeline, sampler: Sampler, request: SampleRequest, idle_s: float
    ) -> None:
        assert self._cache is not None
        assert self._drawn is not None
        started, view, ticket = time.perf_counter(), self._setup.view, request.ticket
        local = {view.partition_idx, *view.same_host}
        batch = copy_drawn(sampled_fields(sampler, request, view), local)
        is_ahead = ticket.stream == pipe.STREAM_AHEAD
        drawn = Waiting(
            ticket.serial,
            ticket.turn,
            ticket,
            batch,
            pipeline.add(batch) if is_ahead else NOT_PLANNED,
            request.seeds.size,
            time.perf_counter() - started,
        )
        if not is_ahead:
            self._fill(pipeline, drawn, idle_s)
            return
        self._drawn.note(ticket.serial, ticket.turn)
        self._ahead.put_drawn(drawn)
        self._send((pipe.DRAWN, ticket, self._cache.bytes_of(batch.wanted()), batch.nbytes))

    def _fill(self, pipeline: Pipeline | None, drawn: Waiting, idle_s: float) -> None:
        assert pipeline is not None, "batches are drawn ahead for the cache"
        ticket = drawn.ticket
        if not self._goes_on(ticket):
            pipeline.forget(drawn.number)
            self._send((pipe.STALE, ticket))
            return
        started = time.perf_counter()
        filling = pipeline.ask(drawn.batch, drawn.number)
        written = pipeline.complete(filling, self._slots.write)
        stats = {
            "seeds": drawn.num_seeds,
            "idle_s": idle_s,
            "sample_s": drawn.sample_s,
            "gather_s": time.perf_counter() - started,
            "cached_rows": filling.num_cached,
        }
        self._hand_over(ticket, written, stats)

    def _request(self, ticket: BatchTicket) -> SampleRequest | None:
        """Return the seeds to sample; None: the epoch was cancelled."""
        attempt, order = self._attempts.get(ticket.stream, (None, None))
        if ticket.attempt != attempt:
            return None
        return self._setup.seed_input.request(ticket, order, self._setup.batch_size)

    def _sample(self, sampler: Sampler, request: SampleRequest, idle_s: float) -> None:
        started = time.perf_counter()
        fields = sampled_fields(sampler, request, self._setup.view)
        if self._rows_apart:
            fields = rows_apart(fields)
        sampled = time.perf_counter()
        written = self._slots.write(fields)
        stats = {
            "seeds": request.seeds.size,
            "idle_s": idle_s,
            "sample_s": sampled - started,
            "gather_s": time.perf_counter() - sampled,
        }
        self._hand_over(request.ticket, written, stats)

    def _hand_over(self, ticket: BatchTicket, written: Written, stats: dict[str, Any]) -> None:
        stats.update(ended_ns=time.time_ns(), asked=self._num_asked)
        if self._asking is not None:
            stats.update(self._asking.take_traffic().stats())
        message = (
            pipe.BATCH,
            ticket,
            written.slot,
            written.nbytes,
            written.retired,
            written.layout,
            stats,
        )
        fds = [] if written.fd is None else [written.fd]
        try:
            self._send(message, fds)
        finally:  # the socket has its own copy by now, and the mapping stays
            for fd in fds:
                os.close(fd)

    def _report(self, ticket: BatchTicket, error: BaseException) -> bool:
        text = traceback.format_exc()[-_MAX_TRACEBACK:]
        try:
            # cut, so that cause and traceback fit into one datagram of `pipe.MAX_BYTES`
            if isinstance(error, PeerTimeoutError):
                self._send((pipe.UNHEARD, str(error)[:8000]))
            self._send((pipe.ERROR, ticket, f"{type(error).__name__}: {error}"[:8000], text))
        except OSError:
            return False
        return True

    def _send(self, message: Any, fds: list[int] | None = None) -> None:
        with self._send_lock:
            pipe.send(self._sock, message, fds or ())


def _end_process(error: BaseException) -> None:
    """End this worker: the supervisor reports it, and another worker samples its batches."""
    os._exit(1)


def _receive_position(sock: pipe.Socket) -> tuple[bool, int | None]:
    """Return whether this worker replaces another, and that one's listening socket, if any.

    Raises:
        ConnectionError: The trainer is gone.
    """
    got = pipe.receive(sock)
    if got is None:
        raise ConnectionError("the process that sends the set-up is gone")
    (_, replaces), fds = got
    return replaces, fds[0] if fds else None


def main(sock: pipe.Socket, number: int) -> None:
    """Run worker ``number`` on ``sock``; entry point of the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        worker = Worker(sock, number)
        worker.prepare()
    except BaseException as error:
        text = traceback.format_exc()[-_MAX_TRACEBACK:]
        with contextlib.suppress(OSError):
            pipe.send(sock, (pipe.FAILED, f"{type(error).__name__}: {error}"[:8000], text))
        os._exit(1)
    worker.run()
    os._exit(0)  # sampling and peer threads end with the process
