"""Sampling workers of a simulated storage server: they take the time, and do not sample.

In place of a batch's tensors comes one of them, the batch's seeds, cut out of the epoch's order as
a worker does it: enough to see which batches came, and what was in them.
"""

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from gigl_loader.batch.leases import Packed, ServerMemory
from gigl_loader.batch.message import BATCH, Attempt, BatchTicket, SampleMessage
from gigl_loader.batch.slots import Written
from gigl_loader.runtime.memory.segments import Layout
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.pipe import WorkerSetup
from gigl_loader.sources.workers.pool import WorkerEvent
from tests.support.simulation.rows import RowLaw, packed
from tests.support.simulation.world import SimulatedEvent, World


@dataclass(frozen=True)
class WorkCosts:
    """What work takes that is not done."""

    batch_s: float = 0.02
    """Of a worker's thread, for a batch, questions to other partitions included."""
    spread: float = 0.3
    """How far batches are apart from that, as a share of it."""
    start_s: float = 1.5
    """Until workers are up."""
    step_s: float = 0.05
    """Of the model, for a batch."""


class SimulatedPool:
    """Stands in for `gigl_loader.sources.workers.pool.WorkerPool`."""

    world: World
    costs: WorkCosts

    def __init__(self, num_workers: int, dumps: Any) -> None:
        self.num_workers = num_workers
        self._process = self.world.process
        self._news = SimulatedEvent(self.world)
        self._events: deque[WorkerEvent] = deque()
        self._attempts: dict[int, Attempt | None] = {}
        self._order: dict[tuple[int, Attempt | None], Any] = {}
        self._free_at: list[list[float]] = []
        self._stopped = False
        self._setup: WorkerSetup | None = None

    def start(self, setup: WorkerSetup, timeout_s: float, max_restarts: int = 0) -> None:
        """Take the time that workers take to start."""
        self._setup = setup
        self.world.sleep(self.costs.start_s * self._process.slowness)
        # by worker and thread, when it is through with what it was given
        self._free_at = [[0.0] * setup.concurrency for _ in range(self.num_workers)]

    @property
    def addresses(self) -> list[tuple[str, int] | None]:
        """Where they would answer."""
        return [(self._process.host, 30_000 + number) for number in range(self.num_workers)]

    @property
    def pids(self) -> list[int]:
        """Numbers that mean nothing."""
        return list(range(self.num_workers))

    def send(self, number: int, message: tuple[Any, ...], obj: Any = None) -> None:
        """Take a message; a task is done after as long as it costs."""
        kind, *rest = message
        if kind == pipe.ATTEMPT:
            stream, attempt, _ = rest
            self._attempts[stream] = attempt
            self._order[stream, attempt] = obj
        elif kind == pipe.TASK:
            ticket, _, _ = rest
            lanes = self._free_at[number]
            # the thread that is free first, of equals the first: the same in each run
            lane = min(range(len(lanes)), key=lanes.__getitem__)
            now, world = self.world.clock.now, self.world
            # evenly within 1 - spread to 1 + spread, so that the mean stays
            drawn = 1.0 + self.costs.spread * (2.0 * world.random.random() - 1.0)
            lanes[lane] = (
                max(now, lanes[lane]) + self.costs.batch_s * drawn * self._process.slowness
            )
            world.clock.call_later(lanes[lane] - now, lambda: self._done(number, ticket))

    def _done(self, number: int, ticket: BatchTicket) -> None:
        # events of the clock outlive the process that asked for them
        if self._stopped or not self._process.alive:
            return
        # a worker looks at the attempt when it is done, too
        message: tuple[Any, ...] = (pipe.STALE, ticket)
        if self._attempts.get(ticket.stream) == ticket.attempt:
            seeds = self._seeds(ticket)
            message = (pipe.BATCH, ticket, 0, seeds.nbytes, (), seeds, {"worker": number})
        self._events.append(WorkerEvent(number, message, ()))
        self._news.set()

    def _seeds(self, ticket: BatchTicket) -> Any:
        assert self._setup is not None
        order, size = self._order[ticket.stream, ticket.attempt], self._setup.batch_size
        seeds = self._setup.seed_input.seeds.numpy()
        positions = slice(ticket.batch * size, (ticket.batch + 1) * size)
        return seeds[positions if order is None else order[positions].numpy()]

    def poll(self, timeout_s: float) -> list[WorkerEvent]:
        """Return what came, waiting for the first."""
        if not self._events and timeout_s > 0:
            self._news.wait(timeout_s)
        # after the wait, before the events are taken: one thread, so nothing comes in between
        self._news.clear()
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        """End the wait of `poll`."""
        self._news.set()

    def has_news(self) -> bool:
        """Return whether a worker has ended: none does."""
        return False

    def is_stopped(self, number: int) -> bool:
        """Return whether a worker is stopped: none is."""
        return False

    def describe(self, numbers: list[int]) -> str:
        """Say what they do."""
        return f"workers {numbers}"

    def kill(self, number: int) -> None:
        """Do nothing: no worker hangs."""

    def replace(self, number: int) -> None:
        """Do nothing: none is lost."""

    def take_listener(self, number: int) -> None:
        """Return nothing: nobody asks."""

    def stop(self, linger_s: float) -> None:
        """End."""
        self._stopped = True
        self._news.set()


def _written(layout: Layout, payload: memoryview) -> Any:
    """Return what stands in for the lease of a slot."""
    return SimpleNamespace(layout=layout, payload=payload)


class _Seeds(Packed):
    """A batch of nothing but its seeds."""

    def __init__(self, seeds: Any) -> None:
        layout = [(BATCH, "int64", seeds.shape, 0)]
        self.lease = _written(layout, memoryview(seeds).cast("B"))


class _WithoutRows(Packed):
    """A batch of seeds and of the ids of its rows."""

    def __init__(self, seeds: Any, law: RowLaw) -> None:
        self.lease = _written(*packed(seeds, law))


class SimulatedMemory(ServerMemory):
    """Stands in for `gigl_loader.batch.leases.ServerMemory`: no memory is shared."""

    law: RowLaw | None = None
    """Of rows, which batches come without; None: there are none."""

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that a worker sent."""
        return (
            _Seeds(written.layout) if self.law is None else _WithoutRows(written.layout, self.law)
        )

    @property
    def largest(self) -> int:
        """Bytes of a batch: small, so that the number of batches is what limits a consumer."""
        return 1
