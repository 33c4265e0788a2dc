"""What workers send, filed: each message for whom it is, and nothing lost on the way."""

import gc
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.batch.leases import ShmChannel, field_of
from gigl_loader.batch.message import BatchTicket
from gigl_loader.batch.slots import SlotWriter
from gigl_loader.errors import ProtocolError, SamplingError, WorkerDiedError
from gigl_loader.sources.workers import pipe, recovery
from gigl_loader.sources.workers import tasks as module
from gigl_loader.sources.workers.pool import WorkerEvent
from gigl_loader.sources.workers.recovery import Recovery
from gigl_loader.sources.workers.schedule import BatchStream
from gigl_loader.sources.workers.tasks import Tasks
from gigl_loader.testing import open_files


class _Pool:
    """Gives out the events that a test has put there, one poll each list."""

    num_workers = 2
    pids = (100, 101)

    def __init__(self) -> None:
        self.polls: deque[list[WorkerEvent]] = deque()
        self.sent: list[tuple[int, Any]] = []
        self.waited: list[float] = []
        self.is_news = False
        self.listeners: dict[int, int] = {}

    def poll(self, timeout_s: float) -> list[WorkerEvent]:
        self.waited.append(timeout_s)
        return self.polls.popleft() if self.polls else []

    def has_news(self) -> bool:
        return self.is_news

    def send(self, number: int, message: Any, obj: Any = None) -> None:
        self.sent.append((number, message))

    def replace(self, number: int) -> None:
        self.polls.append([WorkerEvent(number, (pipe.READY, None), ())])

    def describe(self, numbers: list[int]) -> str:
        return f"workers {numbers}"

    def take_listener(self, number: int) -> int | None:
        return self.listeners.pop(number, None)


class _Channel(ShmChannel):
    """One that has room for many batches before it knows how large they are."""

    @property
    def largest(self) -> int:
        return max(1, super().largest)


class _Producer:
    """Tasks over a fake pool; all else is real."""

    def __init__(self, streams: int = 1, max_restarts: int = 3) -> None:
        self.pool, self.channel = _Pool(), _Channel(16, 2**30)
        self.writers = [SlotWriter(), SlotWriter()]
        recovery = Recovery(self.pool, 2, max_restarts, lambda task: [1], lambda: None)  # type: ignore[arg-type]  # a stand-in
        orders = SimpleNamespace(of=lambda stream, epoch, seed: None)
        self.refused: list[tuple[int, int, str]] = []
        ranks = SimpleNamespace(
            assignments=dict,
            introduction=lambda worker, known: ((pipe.PEERS, worker), None),
            answer_for_lost=lambda worker, fd, error: self.refused.append((worker, fd, str(error))),
        )
        self.lock = threading.RLock()
        parts: Any = (recovery, self.channel, orders, 2, ranks, self.lock)
        self.tasks = Tasks(*parts)
        self.recovery = recovery
        for number in range(streams):
            self.tasks.add(BatchStream(number, 8))
            self.tasks.begin(number, 0, range(8))
        self.tasks.dispatch()

    def tickets(self, worker: int) -> list[Any]:
        return list(self.recovery.under_way.tickets[worker])

    def batch(self, worker: int, task: Any, value: float = 1.0) -> WorkerEvent:
        """Return what a worker sends that has sampled ``task``."""
        written = self.writers[worker].write([field_of("x", torch.full((3,), value))])
        fds = () if written.fd is None else (written.fd,)
        return WorkerEvent(
            worker,
            (
                pipe.BATCH,
                task,
                written.slot,
                written.nbytes,
                written.retired,
                written.layout,
                {"seeds": 4},
            ),
            fds,
        )

    def error(self, worker: int, task: Any, words: str) -> WorkerEvent:
        return WorkerEvent(worker, (pipe.ERROR, task, f"ValueError: {words}", "its trace"), ())


@pytest.fixture
def producer():
    found = _Producer()
    yield found
    found.tasks.close()
    found.channel.close()


def test_a_batch_goes_to_its_consumer_with_what_was_measured(producer: _Producer) -> None:
    task = producer.tickets(1)[0]
    gc.collect()
    before = open_files()
    before_it = producer.tickets(0)[0]
    producer.pool.polls.append([producer.batch(1, task, 7.0), producer.batch(0, before_it)])
    assert producer.tasks.pump(5.0)
    assert open_files() == before, "its descriptor is closed"
    first, received = (producer.tasks.streams[0].take() for _ in range(2))
    assert first is not None
    assert received is not None
    assert first.ticket == before_it
    assert received.message["x"].tolist() == [7.0] * 3
    assert received.ticket == task
    assert received.stats == {"seeds": 4, "worker": 1, "nbytes": 65536, "restarts": 0}
    assert task not in producer.tickets(1)
    assert not producer.tasks.pump(0.5)
    assert producer.pool.waited == [5.0, 0.5]


def test_a_failure_costs_no_other_its_batch_and_is_raised_to_who_takes_the_next() -> None:
    producer = _Producer(streams=2)
    of = {task.stream: (w, task) for w in (0, 1) for task in producer.tickets(w)}
    producer.pool.polls.append([producer.error(*of[0], "bad"), producer.batch(*of[1])])
    where = r"worker 0 \(pid 100\), epoch 0, batch"
    assert producer.tasks.pump(1.0)
    assert producer.tasks.streams[1].waiting == 1
    assert producer.tasks.streams[0].finished
    for _ in range(2):
        with pytest.raises(SamplingError, match=rf"{where}.*bad") as found:
            producer.tasks.streams[0].take()
        assert "its trace" in str(found.value)
    producer.tasks.begin(0, 1, range(8))
    assert producer.tasks.streams[0].take() is None, "it was of the epoch before"
    producer.channel.close()


def test_what_is_left_of_a_broken_off_epoch_is_dropped_and_its_slot_comes_back(
    producer: _Producer,
) -> None:
    done, failed, stale = producer.tickets(0)[:3]
    producer.tasks.note_cancel(0)
    producer.tasks.cancel_noted()
    producer.pool.polls.append(
        [
            producer.batch(0, done),
            producer.error(0, failed, "late"),
            WorkerEvent(0, (pipe.STALE, stale), ()),
        ]
    )
    assert producer.tasks.pump(1.0), "no error"
    assert producer.tasks.streams[0].waiting == 0
    assert len(producer.recovery.under_way.tickets[0]) == 1, "of four"
    gc.collect()
    assert producer.channel.returned(0, 2) == ([0], [])


def test_a_consumer_that_has_left_leaves_no_descriptor_open(producer: _Producer) -> None:
    task = producer.tickets(0)[0]
    gc.collect()
    before = open_files()
    event = producer.batch(0, task)
    producer.tasks.remove(0)
    producer.pool.polls.append([event])
    producer.tasks.pump(1.0)
    assert open_files() == before


def test_batches_are_counted_before_they_are_filed(producer: _Producer) -> None:
    one, other = producer.tickets(0)[:2]
    producer.pool.polls += [[producer.batch(0, one)], [producer.batch(0, other)]]
    assert producer.tasks.count_batches() == 1
    assert producer.tasks.count_batches() == 2
    assert producer.tasks.streams[0].waiting == 0
    assert producer.tasks.pump(9.0)
    assert producer.tasks.streams[0].waiting == 2
    assert 9.0 not in producer.pool.waited, "nothing was waited for"
    assert producer.tasks.count_batches() == 0


def test_closing_closes_what_was_read_and_not_filed(producer: _Producer) -> None:
    gc.collect()
    before = open_files()
    producer.pool.polls.append([producer.batch(0, producer.tickets(0)[0])])
    producer.tasks.count_batches()
    producer.tasks.close()
    assert open_files() == before
    producer.tasks.close()


def test_a_worker_that_died_is_replaced_and_told_all_that_it_has_to_know(clock_of) -> None:
    producer = _Producer()
    clock = clock_of(recovery)
    given_up: list[str] = []
    producer.tasks.look_ahead = SimpleNamespace(  # type: ignore[assignment]  # a stand-in
        give_up=lambda: given_up.append("ahead"), limit=lambda taken, room: 8
    )
    producer.pool.polls.append(
        [producer.batch(0, producer.tickets(0)[0]), WorkerEvent(0, (pipe.DIED, 100, -9), ())]
    )
    producer.tasks.pump(60.0)
    assert producer.tasks.streams[0].waiting == 1, "what it had sent"
    assert given_up == ["ahead"], "a batch that was drawn is drawn anew"
    assert producer.channel.largest == 1, "its successor's slots are others, though of its numbers"
    clock.now += 1.0
    producer.pool.sent.clear()
    producer.tasks.pump(60.0)  # starts it
    kinds = [message[0] for worker, message in producer.pool.sent if worker == 0]
    assert kinds[:2] == [pipe.ATTEMPT, pipe.PEERS]
    assert set(kinds[2:]) <= {pipe.TASK, pipe.SLOTS}
    assert not producer.recovery.is_pending
    producer.channel.close()


def test_what_ends_the_sampling_is_raised_anew_for_each_caller() -> None:
    producer = _Producer(max_restarts=0)
    producer.pool.polls.append([WorkerEvent(1, (pipe.DIED, 101, -9), ())])
    raised = []
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match="worker 1") as found:
            producer.tasks.pump(1.0)
        raised.append(found.value)
    assert raised[0] is not raised[1]
    producer.channel.close()


def test_a_worker_that_cannot_start_again_ends_the_sampling(producer: _Producer) -> None:
    failed = (pipe.FAILED, "ValueError: no such sampler", "its trace")
    producer.pool.polls.append([WorkerEvent(1, failed, ())])
    with pytest.raises(SamplingError, match=r"start of sampling worker 1.*no such sampler"):
        producer.tasks.pump(1.0)


def test_ranks_that_did_not_answer_a_worker_are_suspected(producer: _Producer, monkeypatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(module, "suspect_ranks", told.append)
    producer.pool.polls.append([WorkerEvent(0, (pipe.UNHEARD, "rank 3 is silent"), ())])
    producer.tasks.pump(1.0)
    assert told == ["rank 3 is silent"]


def test_a_look_for_losses_files_only_where_a_worker_is_lost(producer: _Producer) -> None:
    task = producer.tickets(0)[0]
    producer.pool.polls.append([producer.batch(0, task)])
    producer.tasks.pump_if_lost()
    assert producer.pool.waited == [], "who takes batches files them"
    producer.tasks.count_batches()
    producer.tasks.pump_if_lost()
    assert producer.tasks.streams[0].waiting == 0
    producer.pool.is_news = True
    producer.tasks.pump_if_lost()
    assert producer.tasks.streams[0].waiting == 1


def test_a_look_for_losses_keeps_failures_for_those_who_wait(producer: _Producer) -> None:
    producer.pool.is_news = True
    producer.pool.polls.append([producer.error(0, producer.tickets(0)[0], "bad")])
    producer.tasks.pump_if_lost()
    with pytest.raises(SamplingError, match="bad"):
        producer.tasks.streams[0].take()


def test_a_death_that_was_counted_and_not_filed_is_attended_to(producer: _Producer) -> None:
    producer.pool.polls.append([WorkerEvent(1, (pipe.DIED, 101, -9), ())])
    assert producer.tasks.count_batches() == 0
    producer.tasks.pump_if_lost()
    assert producer.recovery.is_pending


def test_the_lock_is_free_while_messages_are_waited_for(producer: _Producer) -> None:
    taken: list[bool] = []

    def poll(timeout_s: float) -> list[WorkerEvent]:
        def take() -> None:
            taken.append(producer.lock.acquire(blocking=False))
            if taken[-1]:
                producer.lock.release()

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        return []

    producer.pool.poll = poll
    producer.tasks.pump(0.0)
    assert taken == [True]


def test_batches_drawn_are_counted_by_epoch(producer: _Producer) -> None:
    told: list[tuple[int, int, int]] = []
    producer.tasks.look_ahead = SimpleNamespace(  # type: ignore[assignment]  # a stand-in
        count=lambda *given: told.append(given), limit=lambda taken, room: 8
    )
    ticket = BatchTicket(0, 9, 0, 3)
    producer.pool.polls.append([WorkerEvent(0, (pipe.DRAWN, ticket, 1000, 50), ())])
    producer.tasks.pump(0.0)
    assert told == [(9, 1000, 50)]


def test_what_comes_of_a_worker_that_is_lost_is_dropped(producer: _Producer) -> None:
    """Its batches are another's by now: an answer would be filed twice, or for nobody."""
    done, failed, stale, drawn = producer.tickets(0)[:4]
    gc.collect()
    before = open_files()
    late = [
        producer.batch(0, done),
        producer.error(0, failed, "late"),
        WorkerEvent(0, (pipe.STALE, stale), ()),
        WorkerEvent(0, (pipe.DRAWN, drawn, 10, 5), ()),
    ]
    producer.pool.polls.append([WorkerEvent(0, (pipe.DIED, 100, None, 1), ()), *late])
    assert producer.tasks.pump(1.0), "no error"
    assert producer.tasks.streams[0].waiting == 0
    assert open_files() == before, "its descriptor is closed"
    assert producer.channel.largest == 1, "and its memory not mapped"


@pytest.mark.parametrize("error", [StopIteration, OSError(24, "Too many open files"), KeyError(7)])
def test_a_message_that_cannot_be_filed_ends_the_epochs(
    error: Exception, producer: _Producer
) -> None:
    """Not only for who files it, a look for losses perhaps: the batch would be missing for ever."""

    def fail(*given: Any) -> None:
        raise error

    one, other = producer.tickets(0)[0], producer.tickets(1)[0]
    producer.pool.is_news = True
    producer.pool.polls.append([producer.batch(0, one), producer.batch(1, other)])
    channel: Any = producer.channel
    channel.open = fail
    with pytest.raises(SamplingError, match="taking 'batch' of sampling worker 0"):
        producer.tasks.pump_if_lost()
    with pytest.raises(SamplingError, match="taking 'batch' of sampling worker 0"):
        producer.tasks.pump(0.0)


def test_an_answer_that_nobody_asked_for_is_an_error(producer: _Producer) -> None:
    task = producer.tickets(0)[0]
    producer.pool.polls += [[producer.batch(0, task)], [producer.batch(0, task)]]
    producer.tasks.pump(0.0)
    with pytest.raises(ProtocolError, match="was not given"):
        producer.tasks.pump(0.0)


def test_who_asks_a_worker_without_a_successor_hears_why(monkeypatch) -> None:
    producer = _Producer(max_restarts=1)
    producer.pool.listeners = {0: 50, 1: 51}
    producer.pool.polls.append([WorkerEvent(0, (pipe.DIED, 100, -9), ())])
    producer.tasks.pump(0.0)
    assert producer.refused == [], "a successor is to come"
    producer.pool.polls.append([WorkerEvent(0, (pipe.DIED, 102, -9), ())])
    with pytest.raises(WorkerDiedError, match="max_restarts=1 are used up"):
        producer.tasks.pump(0.0)
    assert [one[:2] for one in producer.refused] == [(0, 50)]
    assert "pid 102" in producer.refused[0][2]
    assert producer.pool.listeners == {1: 51}, "the other one answers on"
    producer.channel.close()


def test_a_worker_that_cannot_be_started_again_is_not_waited_for(producer: _Producer) -> None:
    def refuse(number: int) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    producer.pool.replace = refuse
    producer.pool.polls.append([WorkerEvent(0, (pipe.DIED, 100, -9), ())])
    producer.tasks.pump(0.0)
    producer.recovery._due = dict.fromkeys(producer.recovery._due, 0.0)
    with pytest.raises(SamplingError, match=r"in the place of one that was lost.*Resource"):
        producer.tasks.pump(0.0)
