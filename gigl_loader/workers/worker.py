"""A sampling process: takes tasks from its socket, samples, writes each batch into a slot.

Threads: the main one reads the socket, so that the end of the trainer is noticed at once; sampling
threads take tasks from a queue, as many as batches are to overlap their waits for other partitions;
the peer server answers those partitions.

Nothing here imports torch, which takes longer than all else that a worker does before its first
batch.
"""

import contextlib
import ctypes
import dataclasses
import importlib
import logging
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any

import numpy as np

from gigl_loader.memory.segments import Array
from gigl_loader.memory.slots import SlotWriter
from gigl_loader.message import BatchTicket
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.peers import PeerPool, PeerServer
from gigl_loader.sampler.plan import Field, Sampler, SampleRequest
from gigl_loader.sampler.store import LocalStore
from gigl_loader.workers import pipe
from gigl_loader.workers import setup as kinds
from gigl_loader.workers.same_host import ShownPlace, read_partitions
from gigl_loader.workers.setup import Plugins, WorkerSetup

logger = logging.getLogger(__name__)

_MAX_TRACEBACK = 60_000
_LINGER_STEP_S = 1.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST_MMAP_THRESHOLD = 32 * 2**20
"""What glibc allows."""


def keep_freed_memory() -> None:
    """Let malloc keep what is freed: work arrays of the next batch then cost no page faults."""
    with contextlib.suppress(OSError, AttributeError):  # another libc: slower, not wrong
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**30)
        libc.mallopt(_M_ARENA_MAX, 1)  # what one thread freed, another may use


def load_sampler(setup: WorkerSetup[Array], plugins: Plugins, peers: PeerPool | None) -> Sampler:
    """Build the sampler of one thread."""
    if plugins.sampler is None:
        return NeighborSampler(setup.view, setup.plan, peers)
    path, keywords = plugins.sampler
    module, _, name = path.rpartition(".")
    sampler: Sampler = getattr(importlib.import_module(module), name)(
        setup.view, setup.plan, peers, **keywords
    )
    return sampler


class Worker:
    """The state of one sampling process."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self._sock, self._number = sock, number
        self._setup: WorkerSetup[Array] = pipe.receive_object(sock)
        self._plugins = Plugins()
        self._slots = SlotWriter()
        self._tasks: queue.SimpleQueue[tuple[BatchTicket, int] | None] = queue.SimpleQueue()
        self._rounds: dict[int, tuple[int, Array | None]] = {}  # stream -> (round, order)
        self._send_lock = threading.Lock()
        self._server: PeerServer | None = None
        self._last_question = time.monotonic()
        self._peers: PeerPool | None = None
        self._spared: PeerPool | None = None  # workers whose partition is read in memory
        self._num_asked = 0

    # -- start ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Set the process up and open the door to other partitions."""
        keep_freed_memory()
        if self._setup.peer_host is not None:
            self._server = PeerServer(
                self._setup.peer_host, self._setup.token, self._answer, f"worker {self._number}"
            )
            self._server.start()
        self._plugins = pickle.loads(self._setup.plugins)
        if self._plugins.init_fn is not None:
            self._plugins.init_fn(self._number)
        # a sampler that cannot be built fails here, at the start
        load_sampler(self._setup, self._plugins, None)
        if "torch" in sys.modules:  # a plugin's: its operations are not to take others' CPUs
            sys.modules["torch"].set_num_threads(1)
        self._send((kinds.READY, self._server.address if self._server else None))

    def _answer(self, op: int, args: tuple[int, ...], arrays: list[Array]) -> list[Array]:
        store = getattr(_per_thread, "store", None)
        if store is None:
            store = _per_thread.store = LocalStore(self._setup.view)
        self._last_question = time.monotonic()
        answer: list[Array] = store.answer(op, args, arrays)
        return answer

    # -- messages -------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop, or until the trainer is gone."""
        while True:
            got = pipe.receive(self._sock)
            if got is None:
                os._exit(0)  # the trainer is gone: nobody is left to tell
            (kind, *rest), _ = got
            if kind == kinds.TASK:
                self._take_task(*rest)
            elif kind == kinds.ROUND:
                self._start_round(*rest)
            elif kind == kinds.PEERS:
                self._connect(*rest)
            elif kind == kinds.STOP:
                self._stop(*rest)
                return

    def _take_task(
        self, ticket: BatchTicket, place: int, free: list[int], retired: list[int]
    ) -> None:
        self._slots.give_back(free, retired)
        self._tasks.put((ticket, place))

    def _start_round(self, stream: int, round_number: int, has_order: bool) -> None:
        order = pipe.receive_object(self._sock) if has_order else None
        self._rounds[stream] = (round_number, order)

    def _connect(
        self,
        addresses: dict[int, tuple[Any, ...]] | None,
        nearby: dict[int, list[ShownPlace]],
        name: str,
    ) -> None:
        setup, addresses = self._setup, addresses or {}
        view = dataclasses.replace(setup.view, nearby=read_partitions(nearby, setup.token))
        self._setup = dataclasses.replace(setup, view=view)
        asked = addresses.keys() - view.nearby.keys()
        self._num_asked = len(asked)
        self._peers = self._pool_of(addresses, name, asked)
        self._spared = self._pool_of(addresses, name, view.nearby.keys())
        if self._spared is not None:  # they need not wait for this worker to end
            threading.Thread(target=self._spared.say_bye, daemon=True).start()
        if (unseen := nearby.keys() - view.nearby.keys()) and self._number == 0:
            logger.warning(
                "%s asks over TCP for partitions %s, which are on this machine: their memory "
                "cannot be seen from here (another user's, or another container's)",
                name, sorted(unseen),
            )  # fmt: skip
        # threads that wait for peers cost nothing; without peers they share this worker's CPUs:
        # one samples while another gathers rows
        alone = min(setup.concurrency, setup.cpus)
        for _ in range(alone if self._peers is None else setup.concurrency):
            threading.Thread(target=self._sample_loop, daemon=True).start()

    def _pool_of(
        self, addresses: dict[int, tuple[Any, ...]], name: str, partitions: Iterable[int]
    ) -> PeerPool | None:
        some = {partition: addresses[partition] for partition in partitions}
        token, timeout_s = self._setup.token, self._setup.rpc_timeout_s
        return PeerPool(some, token, timeout_s, name, self._number) if some else None

    def _stop(self, linger_s: float, expected: list[str]) -> None:
        """End; but answer the other partitions until their workers are done, or ask no more."""
        self._rounds.clear()
        for pool in (self._peers, self._spared):
            if pool is not None:
                pool.say_bye()
        if self._server is None or linger_s <= 0:
            return
        self._last_question = time.monotonic()
        while missing := self._server.wait_for_byes(set(expected), _LINGER_STEP_S):
            self._send((kinds.LINGERING,))
            if time.monotonic() - self._last_question > linger_s:
                logger.warning(
                    "worker %d no longer answers other partitions: for %.0f s none of these asked, "
                    "or said that it was done: %s", self._number, linger_s, sorted(missing),
                )  # fmt: skip
                return

    # -- sampling -------------------------------------------------------------------------------

    def _sample_loop(self) -> None:
        sampler: Sampler | None = None
        while True:
            waited = time.perf_counter()
            task = self._tasks.get()
            if task is None:
                return
            ticket, place = task
            idle_s = time.perf_counter() - waited
            try:
                request = self._request(ticket)
                if request is None:
                    self._send((kinds.STALE, ticket))
                    continue
                if sampler is None:
                    sampler = load_sampler(self._setup, self._plugins, self._peers)
                self._sample(sampler, request, place, idle_s)
            except OSError as error:
                if not self._report(ticket, error):
                    os._exit(0)
            except BaseException as error:
                self._report(ticket, error)

    def _request(self, ticket: BatchTicket) -> SampleRequest | None:
        """Return what to sample, or None: the epoch was broken off."""
        round_number, order = self._rounds.get(ticket.stream, (-1, None))
        if ticket.round != round_number:
            return None
        source, size = self._setup.seed_input, self._setup.batch_size
        start, stop = ticket.batch * size, min((ticket.batch + 1) * size, len(source))
        input_id = np.arange(start, stop) if order is None else order[start:stop].copy()
        extra = {name: column[input_id] for name, column in source.extra.items()}
        return SampleRequest(ticket, source.seeds[input_id], input_id, extra)

    def _sample(self, sampler: Sampler, request: SampleRequest, place: int, idle_s: float) -> None:
        started = time.perf_counter()
        fields = [_as_field(field) for field in sampler.sample(request)]
        sampled = time.perf_counter()
        written = self._slots.write(fields)
        stats = {
            "seeds": request.seeds.size,
            "idle_s": idle_s,
            "sample_s": sampled - started,
            "gather_s": time.perf_counter() - sampled,
            "ended_ns": time.time_ns(),
            "asked": self._num_asked,
        }
        message = (
            kinds.BATCH, request.ticket, place, written.slot, written.nbytes, written.retired,
            written.layout, stats,
        )  # fmt: skip
        fds = [] if written.fd is None else [written.fd]
        try:
            self._send(message, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _report(self, ticket: BatchTicket, error: BaseException) -> bool:
        text = traceback.format_exc()[-_MAX_TRACEBACK:]
        try:
            self._send((kinds.ERROR, ticket, f"{type(error).__name__}: {error}"[:8000], text))
        except OSError:
            return False
        return True

    def _send(self, message: Any, fds: list[int] | None = None) -> None:
        with self._send_lock:
            pipe.send(self._sock, message, fds or ())


_per_thread = threading.local()


def _as_field(field: Field | tuple[str, Any]) -> Field:
    return field if isinstance(field, Field) else Field.of(*field)


def main(sock: socket.socket, number: int) -> None:
    """Be worker ``number`` on ``sock``; the entry point of the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        worker = Worker(sock, number)
        worker.prepare()
    except BaseException as error:
        text = traceback.format_exc()[-_MAX_TRACEBACK:]
        with contextlib.suppress(OSError):
            pipe.send(sock, (kinds.FAILED, f"{type(error).__name__}: {error}"[:8000], text))
        os._exit(1)
    worker.run()
    os._exit(0)  # sampling and peer threads end with the process
