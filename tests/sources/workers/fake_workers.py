"""Worker processes played in this process, step by step: which one answers next is drawn."""

import os
import pickle
import random
import signal
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import torch

from gigl_loader.batch.leases import ShmChannel
from gigl_loader.batch.slots import Slot, SlotWriter
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.memory import segments
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.pipe import WorkerSetup
from gigl_loader.sources.workers.pool import WorkerEvent
from gigl_loader.sources.workers.producer import DistSamplingProducer
from gigl_loader.sources.workers.schedule import UnderWay
from gigl_loader.sources.workers.worker import Worker
from gigl_loader.testing import as_worker_gets


def send_object(sock: pipe.Socket, data: bytes, fds: list[int]) -> None:
    """Send an object that `tensors.dumps` made, and close its descriptors."""
    try:
        for piece, group in pipe.pieces_of(data, fds):
            pipe.send_packed(sock, piece, group)
    finally:
        segments.close_fds(fds)


class _Slots(SlotWriter):
    """Slots that can be counted, and unmapped as those of a process that ends."""

    def held(self) -> list[Slot]:
        """Return those that were made and not given up."""
        return [*self._free.values(), *self._leased.values()]


class FakeWorker(Worker):
    """A worker without a socket and without threads; sampling and slots are the real ones."""

    def __init__(self, number: int, setup: WorkerSetup) -> None:
        self.number = self._number = number
        self._setup = as_worker_gets(setup)
        self._plugins = pickle.loads(setup.plugins)
        self._slots = self.slots = _Slots()
        self._attempts = {}
        self._num_asked, self._asking, self._rows_apart = 0, None, False
        self.tasks: deque[Any] = deque()
        self.sent: deque[tuple[Any, list[int]]] = deque()
        self.sampler = self._load_sampler(None)
        self.sampled: list[Any] = []

    def take(self, message: Any, obj: Any) -> None:
        kind, *rest = message
        if kind == pipe.TASK:
            ticket, free, retired = rest
            self._slots.give_back(free, retired)
            self.tasks.append(ticket)
        elif kind == pipe.SLOTS:
            self._slots.give_back(*rest)
        elif kind == pipe.ATTEMPT:
            stream, attempt, has_order = rest
            assert has_order == (obj is not None)
            self._attempts[stream] = (attempt, as_worker_gets(obj))

    def work(self, index: int, fails: Any = None) -> None:
        """Do the task at ``index``, or find that it is stale."""
        ticket = self.tasks[index]
        del self.tasks[index]
        request = self._request(ticket)
        if request is None:
            self._send((pipe.STALE, ticket))
            return
        self.sampled.append(ticket)
        if fails is not None and fails(ticket):
            try:
                raise ArithmeticError(f"no batch {ticket.batch}")
            except ArithmeticError as error:
                self._report(ticket, error)
        else:
            self._sample(self.sampler, request, 0.0)

    @property
    def num_slots(self) -> int:
        """Slots that this worker has made and not given up."""
        return len(self.slots.held())

    def vanish(self) -> None:
        """End as a killed process does: what it had mapped is unmapped."""
        self.tasks.clear()
        for slot in self.slots.held():
            segments.unmap(slot.address, slot.nbytes)

    def _send(self, message: Any, fds: list[int] | None = None) -> None:
        self.sent.append((message, [os.dup(fd) for fd in fds or ()]))


class FakePool:
    """Stands in for `WorkerPool`."""

    def __init__(self, num_workers: int, concurrency: int, seed: int) -> None:
        self.num_workers, self._concurrency = num_workers, concurrency
        self._random = random.Random(seed)
        self.fails: Any = None
        self.together = False
        """Whether one poll returns what all tasks came to, in place of one."""
        self.kills_of: Any = None
        """Given a ticket, whether the worker dies of it."""
        self.deaths = 0
        self.under_way: UnderWay
        self._dead: set[int] = set()
        self._news: list[WorkerEvent] = []

    def start(self, setup: WorkerSetup, timeout_s: float, max_restarts: int) -> None:
        self.setup = setup
        self.workers = [FakeWorker(number, setup) for number in range(self.num_workers)]
        self.stopped = 0

    def send(self, number: int, message: Any, obj: Any = None) -> None:
        if number not in self._dead:
            self.workers[number].take(message, obj)

    def kill(self, number: int, exitcode: int = -signal.SIGKILL) -> None:
        """Let a worker die: of what it has sent nothing is lost."""
        if number in self._dead:
            return
        worker = self.workers[number]
        self._news += [WorkerEvent(number, message, tuple(fds)) for message, fds in worker.sent] + [
            WorkerEvent(number, (pipe.DIED, 1000 + number, exitcode), ())
        ]
        worker.sent.clear()
        worker.vanish()
        self._dead.add(number)
        self.deaths += 1

    def replace(self, number: int) -> None:
        assert number in self._dead
        self._dead.remove(number)
        self.workers[number] = FakeWorker(number, self.setup)
        self._news.append(WorkerEvent(number, (pipe.READY, None), ()))

    def take_listener(self, number: int) -> None: ...

    def is_stopped(self, number: int) -> bool:
        return False

    def poll(self, timeout_s: float) -> list[WorkerEvent]:
        events, self._news = self._news, []
        while True:
            busy = [worker for worker in self.workers if worker.tasks]
            if busy:
                worker = self._random.choice(busy)
                index = self._random.randrange(min(len(worker.tasks), self._concurrency))
                if self.kills_of is not None and self.kills_of(worker.tasks[index]):
                    self.kill(worker.number, -signal.SIGSEGV)
                    events, self._news = events + self._news, []
                    continue
                worker.work(index, self.fails)
            for worker in self.workers:
                while worker.sent:
                    message, fds = worker.sent.popleft()
                    events.append(WorkerEvent(worker.number, message, tuple(fds)))
            if not busy and not events and self._dead:
                time.sleep(timeout_s)
                return []
            if not busy and not events:
                raise AssertionError("a wait for workers that have nothing to do: a hang")
            if not busy or (events and not self.together):
                return events

    @property
    def pids(self) -> list[int]:
        return [1000 + number for number in range(self.num_workers)]

    addresses: tuple[None, ...] = ()

    def describe(self, numbers: list[int]) -> str:
        return f"workers {numbers}"

    def stop(self, linger_s: float) -> None:
        self.stopped += 1


def make_producer(
    dataset: Any,
    seeds: torch.Tensor,
    *,
    batch_size: int = 4,
    workers: int = 2,
    concurrency: int = 2,
    shuffle: bool = False,
    drop_last: bool = False,
    in_order: bool = True,
    seed: int = 3,
    channel_size: int = 2**30,
    num_neighbors: Any = (2, 2),
    pool_seed: int = 0,
    timeout: float = 120.0,
    max_restarts: int = 3,
    register: Any = None,
) -> tuple[DistSamplingProducer, FakePool]:
    """Return a started producer over fake workers."""
    options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=1,
        num_workers=workers,
        worker_concurrency=concurrency,
        master_ip_address="127.0.0.1",
        master_port=1,
        channel_size=channel_size,
        pin_memory=False,
    )
    config = BaseDistLoader.create_sampling_config(
        list(num_neighbors), dataset.schema, batch_size, shuffle, drop_last, seed=seed
    )
    sampler_input: Any = SimpleNamespace(node=seeds, input_type=None)
    producer = DistSamplingProducer(
        dataset,
        sampler_input,
        config,
        options,
        ShmChannel(options.channel_capacity, channel_size, register),
        source_options=SourceOptions(
            seed=seed, in_order=in_order, timeout_s=timeout, max_restarts=max_restarts
        ),
    )
    pool = FakePool(workers, concurrency, pool_seed)
    recovery: Any = producer.recovery
    producer._pool = recovery.pool = pool  # type: ignore[assignment]  # a stand-in
    producer._tasks._pool = recovery.pool
    pool.under_way = recovery.under_way
    producer.join()
    producer.start()
    return producer, pool


def drain(producer: DistSamplingProducer, most: int | None = None) -> list[Any]:
    """Return what is received up to the end of the epoch, or up to ``most`` batches."""
    found: list[Any] = []
    while most is None or len(found) < most:
        received = producer.next()
        if received is None:
            break
        found.append(received)
    return found
