"""Each started batch is in one place: given, lost, again, arrived or taken; whatever happens."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gigl_loader.batch.message import BatchTicket
from gigl_loader.errors import SamplingError
from gigl_loader.runtime.interrupts import UninterruptedLock
from gigl_loader.sources.workers import pipe, recovery
from gigl_loader.sources.workers.pool import WorkerEvent
from gigl_loader.sources.workers.recovery import Recovery
from gigl_loader.sources.workers.schedule import BatchStream
from gigl_loader.sources.workers.tasks import Tasks
from tests.support.draws import examples

WORKERS, STREAMS, MIB = 3, 2, 2**20


class _Pool:
    """Workers that hold what they are given until the test lets them answer."""

    def __init__(self) -> None:
        self.num_workers, self.pids = WORKERS, [100 + worker for worker in range(WORKERS)]
        self.tasks: list[list[BatchTicket]] = [[] for _ in range(WORKERS)]
        self.news: list[WorkerEvent] = []

    def send(self, number: int, message: tuple[Any, ...], obj: Any = None) -> None:
        if message[0] == pipe.TASK:
            self.tasks[number].append(message[1])

    def tell(self, worker: int, *message: Any) -> None:
        self.news.append(WorkerEvent(worker, message, ()))

    def poll(self, timeout_s: float) -> list[WorkerEvent]:
        news, self.news = self.news, []
        return news

    def replace(self, number: int) -> None:
        self.tell(number, pipe.READY, None)

    def has_news(self) -> bool:
        return bool(self.news)

    def take_listener(self, number: int) -> None: ...


class _Channel:
    def __init__(self, size: int) -> None:
        self.size, self.capacity, self.largest = size, 8, MIB

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        return [], []

    def open(self, sender: int, written: Any) -> dict[str, Any]:
        return {}

    def forget(self, sender: int) -> None: ...


class Tickets(RuleBasedStateMachine):
    """Epochs begin and are broken off; workers answer, raise, die and come back."""

    @initialize(
        limit=st.integers(1, 4),
        in_order=st.booleans(),
        size=st.sampled_from((MIB, 3 * MIB, 2**40)),
        concurrency=st.integers(1, 2),
    )
    def make(self, limit: int, in_order: bool, size: int, concurrency: int) -> None:
        # no pause of a lost worker ends by itself, however long an example takes
        self.clock = patch.object(recovery, "time", SimpleNamespace(monotonic=lambda: 0.0))
        self.clock.start()
        self.pool, ranks = (
            _Pool(),
            SimpleNamespace(assignments=dict, introduction=lambda *_: ((0,),)),
        )
        pool: Any = self.pool
        self.recovery = Recovery(pool, concurrency, 10**6, lambda task: [], lambda: None)
        orders = SimpleNamespace(of=lambda *_: None)
        parts: Any = (
            self.recovery,
            _Channel(size),
            orders,
            concurrency,
            ranks,
            UninterruptedLock(),
        )
        self.tasks = Tasks(*parts)
        for number in range(STREAMS):
            self.tasks.add(BatchStream(number, limit, in_order))

    # -- consumers --------------------------------------------------------------------------------

    @rule(number=st.integers(0, STREAMS - 1), epoch=st.integers(0, 3), count=st.integers(0, 7))
    def begin(self, number: int, epoch: int, count: int) -> None:
        self.tasks.begin(number, epoch, range(count))
        self.tasks.dispatch()

    @rule(number=st.integers(0, STREAMS - 1))
    def cancel(self, number: int) -> None:
        self.tasks.note_cancel(number)
        self.tasks.cancel_noted()

    @rule(number=st.integers(0, STREAMS - 1))
    def cancel_by_the_collector(self, number: int) -> None:
        """It is noted alone; the next call does the rest."""
        self.tasks.note_cancel(number)

    @rule(number=st.integers(0, STREAMS - 1))
    def take(self, number: int) -> None:
        try:
            received = self.tasks.streams[number].take()
        except SamplingError:
            return
        if received is not None:
            self.tasks.dispatch()

    @rule(number=st.integers(0, STREAMS - 1), data=st.data())
    def put_back(self, number: int, data: st.DataObject) -> None:
        stream = self.tasks.streams[number]
        stream.put_back(data.draw(st.integers(0, stream.taken)))
        self.tasks.dispatch()

    # -- workers ----------------------------------------------------------------------------------

    @property
    def busy(self) -> list[int]:
        return [worker for worker, tasks in enumerate(self.pool.tasks) if tasks]

    @precondition(lambda self: bool(self.busy))
    @rule(data=st.data(), how=st.sampled_from((pipe.BATCH, pipe.BATCH, pipe.STALE, pipe.ERROR)))
    def answer(self, data: st.DataObject, how: str) -> None:
        worker = data.draw(st.sampled_from(self.busy))
        ticket = data.draw(st.sampled_from(self.pool.tasks[worker]))
        if how == pipe.STALE and self.tasks.is_wanted(ticket):
            return
        self._answer(worker, ticket, how)

    def _answer(self, worker: int, ticket: BatchTicket, how: str) -> None:
        self.pool.tasks[worker].remove(ticket)
        rest: dict[str, tuple[Any, ...]] = {
            pipe.BATCH: (0, MIB, (), (), {}),
            pipe.STALE: (),
            pipe.ERROR: ("no luck", "traceback"),
        }
        self.pool.tell(worker, how, ticket, *rest[how])
        self.tasks.pump(0.0)

    @rule(data=st.data(), exitcode=st.sampled_from((-9, -15)))
    def die(self, data: st.DataObject, exitcode: int) -> None:
        if self.recovery.at_work:
            worker = data.draw(st.sampled_from(sorted(self.recovery.at_work)))
            self.pool.tasks[worker].clear()
            self.pool.tell(worker, pipe.DIED, 100 + worker, exitcode)
            self.tasks.pump(0.0)

    @rule()
    def come_back(self) -> None:
        """The pauses of lost workers are over."""
        self.recovery._due = dict.fromkeys(self.recovery._due, 0.0)
        self.tasks.pump(0.0)
        self.tasks.pump(0.0)

    # -- what holds -------------------------------------------------------------------------------

    @invariant()
    def each_started_batch_is_in_one_place(self) -> None:
        if not hasattr(self, "tasks"):
            return
        under_way = self.recovery.under_way
        assert [*map(len, under_way.tickets)] == [*map(len, self.pool.tasks)]
        held = [ticket for tickets in (*under_way.tickets, under_way._lost) for ticket in tickets]
        for number, stream in self.tasks.streams.items():
            wanted = [one for one in held if one.stream == number and stream.wants(one)]
            places = [ticket.turn for ticket in wanted]
            places += [*stream._again, *stream._arrived, *stream._taken]
            assert sorted(places) == [*range(stream._started)]

    @invariant()
    def what_is_counted_is_there(self) -> None:
        if not hasattr(self, "tasks"):
            return
        assert self.recovery.under_way.count == sum(map(len, self.pool.tasks))
        waiting = [len(stream._arrived) for stream in self.tasks.streams.values()]
        assert self.tasks.num_waiting == sum(waiting)

    def teardown(self) -> None:
        """All that was begun ends: no batch waits for ever."""
        if not hasattr(self, "tasks"):
            return
        try:
            self._end_all()
        finally:
            self.clock.stop()

    def _end_all(self) -> None:
        for _ in range(200):
            self.come_back()
            for number in range(STREAMS):
                self.take(number)
            for worker in self.busy:
                ticket = self.pool.tasks[worker][0]
                wanted = self.tasks.is_wanted(ticket)
                self._answer(worker, ticket, pipe.BATCH if wanted else pipe.STALE)
        for stream in self.tasks.streams.values():
            assert stream.finished or stream.error is not None


TestTickets = Tickets.TestCase
TestTickets.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
