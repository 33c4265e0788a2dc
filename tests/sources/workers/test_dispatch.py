"""Which worker is given which batch, and what it is told before and with it."""

from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.batch.message import AT_ONCE_EPOCH, AT_ONCE_STREAM, Attempt
from gigl_loader.runtime.interrupts import UninterruptedLock
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.recovery import Recovery
from gigl_loader.sources.workers.schedule import BatchStream
from gigl_loader.sources.workers.tasks import Tasks

MIB = 2**20


class _Pool:
    """Keeps what was sent to each worker."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.sent: list[tuple[int, tuple[Any, ...], Any]] = []

    def send(self, number: int, message: tuple[Any, ...], obj: Any = None) -> None:
        self.sent.append((number, message, obj))

    def take(self, kind: str) -> list[tuple[int, Any]]:
        """Return (worker, rest) of the messages of one kind since the last call for any."""
        found = [(worker, message[1:]) for worker, message, _ in self.sent if message[0] == kind]
        self.sent.clear()
        return found

    def take_listener(self, number: int) -> None: ...

    def is_stopped(self, number: int) -> bool:
        return False

    def describe(self, numbers: list[int]) -> str:
        return f"workers {numbers}"


class _Channel:
    """Room in bytes, and slots that came back."""

    def __init__(self, size: int, capacity: int = 16) -> None:
        self.size, self.capacity, self.largest = size, capacity, 0
        self.back: dict[int, tuple[list[int], list[int]]] = {}

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        return self.back.pop(sender, ([], []))


class _LookAhead:
    """Notes what it is told of."""

    def __init__(self, limit: int) -> None:
        self.begun: list[tuple[int, int]] = []
        self.asked: list[tuple[int, int]] = []
        self._limit = limit

    def begin(self, sequence: int, total: int) -> None:
        self.begun.append((sequence, total))

    def limit(self, taken: int, room: int) -> int:
        self.asked.append((taken, room))
        return self._limit


class _Tasks(Tasks):
    recovery: Recovery


def _make(
    *, workers: int = 2, size: int = 2**40, limit: int = 8, concurrency: int = 2, streams: int = 1
) -> tuple[_Tasks, _Pool, _Channel]:
    pool, channel = _Pool(workers), _Channel(size)
    orders = SimpleNamespace(
        of=lambda stream, epoch, seed: ("order", stream, epoch) if epoch else None
    )
    recovery = Recovery(pool, concurrency, 3, lambda task: [], lambda: None)  # type: ignore[arg-type]  # a stand-in
    parts: Any = (recovery, channel, orders, concurrency, None, UninterruptedLock())
    found = _Tasks(*parts)
    found.recovery = recovery
    for number in range(streams):
        found.add(BatchStream(number, limit))
    return found, pool, channel


def _batches(tasks: list[tuple[int, Any]]) -> list[tuple[int, int]]:
    return [(worker, rest[0].batch) for worker, rest in tasks]


def _arrive(found: _Tasks, batch: int, worker: int) -> None:
    """Let the answer for a batch be filed."""
    under_way = found.recovery.under_way
    ticket = next(one for one in under_way.tickets[worker] if one.batch == batch)
    under_way.done(worker, ticket)
    found.streams[ticket.stream].arrived(ticket, ticket)  # type: ignore[arg-type]  # a stand-in


def test_workers_hear_of_an_epoch_before_its_batches_which_are_dealt_evenly() -> None:
    found, pool, channel = _make(limit=5)
    channel.largest = 1
    found.begin(0, 7, range(10, 20))
    assert [(worker, message, order) for worker, message, order in pool.sent] == [
        (worker, (pipe.ATTEMPT, 0, Attempt(7, 1), True), ("order", 0, 7)) for worker in (0, 1)
    ]
    channel.back = {1: ([4], [2])}
    found.dispatch()
    tasks = pool.take(pipe.TASK)
    assert _batches(tasks) == [(0, 10), (1, 11), (0, 12), (1, 13), (0, 14)], "5 at most"
    assert [rest[0].position for _, rest in tasks] == [0, 1, 2, 3, 4]
    assert [rest[1:] for _, rest in tasks] == [([], []), ([4], [2]), *[([], [])] * 3]
    found.dispatch()
    assert pool.sent == []
    _arrive(found, 10, 0)
    found.dispatch()
    assert pool.sent == [], "it is not taken"
    assert found.streams[0].take() is not None
    found.dispatch()
    assert _batches(pool.take(pipe.TASK)) == [(0, 15)]


def test_an_input_in_the_users_order_sends_none() -> None:
    found, pool, _ = _make(workers=1)
    found.begin(0, 0, range(3))
    assert pool.sent == [(0, (pipe.ATTEMPT, 0, Attempt(0, 1), False), None)]


@pytest.mark.parametrize(
    ("largest", "size", "started"),
    [
        (0, 100 * MIB, 2),  # nothing is known: one for each worker
        (MIB, 100 * MIB, 8),
        (MIB, 5 * MIB, 5),
        (MIB, 5 * MIB - 1, 4),
        (10 * MIB, MIB, 1),  # one that is larger than the channel passes alone
    ],
)
def test_what_may_be_under_way_fits_into_the_channel(largest: int, size: int, started: int) -> None:
    found, pool, channel = _make(size=size)
    channel.largest = largest
    found.begin(0, 0, range(20))
    found.dispatch()
    assert len(pool.take(pipe.TASK)) == started
    _arrive(found, 0, 0)
    found.dispatch()
    assert pool.take(pipe.TASK) == [], "what has arrived takes room"


def test_consumers_get_batches_in_turn_and_a_removed_one_none() -> None:
    found, pool, channel = _make(streams=3, limit=2)
    channel.largest = 1
    for number in range(3):
        found.begin(number, 0, range(5))
    found.remove(1)
    found.dispatch()
    tasks = pool.take(pipe.TASK)
    assert [rest[0].stream for _, rest in tasks] == [0, 2, 0, 2]
    assert not found.is_wanted(tasks[0][1][0].__class__(1, 1, 0, 0))
    assert found.is_wanted(tasks[0][1][0])


def test_workers_are_told_of_an_epoch_that_is_broken_off_once() -> None:
    found, pool, _ = _make()
    found.begin(0, 3, range(2))
    found.dispatch()
    (_, (ticket, *_)), *_ = pool.take(pipe.TASK)
    found.note_cancel(0)
    found.cancel_noted()
    assert pool.sent == [(w, (pipe.ATTEMPT, 0, None, False), None) for w in (0, 1)]
    assert not found.is_wanted(ticket)
    pool.sent.clear()
    found.note_cancel(0)
    found.cancel_noted()
    assert pool.sent == []


def test_one_that_takes_anothers_position_hears_of_epochs_under_way() -> None:
    found, pool, _ = _make(streams=3)
    found.begin(0, 4, range(2))
    found.begin(2, 0, range(2))
    pool.sent.clear()
    found.catch_up(1)
    assert pool.sent == [
        (1, (pipe.ATTEMPT, 0, Attempt(4, 1), True), ("order", 0, 4)),
        (1, (pipe.ATTEMPT, 2, Attempt(0, 1), False), None),
    ]


def test_what_a_lost_worker_had_comes_first_and_nothing_new_beside_it() -> None:
    found, pool, channel = _make(concurrency=1, limit=4)
    channel.largest = 1
    found.begin(0, 0, range(9))
    found.dispatch()
    assert _batches(pool.take(pipe.TASK)) == [(0, 0), (1, 1), (0, 2), (1, 3)]
    found.recovery.died(0, 70, -9)
    _arrive(found, 1, 1)
    found.dispatch()
    assert pool.take(pipe.TASK) == [], "batch 0, suspected, waits for an idle worker"
    _arrive(found, 3, 1)
    found.dispatch()
    assert _batches(pool.take(pipe.TASK)) == [(1, 0)], "alone"
    _arrive(found, 0, 1)
    found.dispatch()
    assert _batches(pool.take(pipe.TASK)) == [(1, 2)]
    assert found.streams[0].take() is not None
    found.dispatch()
    assert _batches(pool.take(pipe.TASK)) == [(1, 4)]


def test_a_batch_at_once_goes_out_where_the_channel_is_full() -> None:
    found, pool, channel = _make(size=MIB)
    channel.largest = MIB
    found.begin(0, 0, range(9))
    found.dispatch()
    assert _batches(pool.take(pipe.TASK)) == [(0, 0)]
    found.add(BatchStream(AT_ONCE_STREAM, 1))
    found.begin(AT_ONCE_STREAM, AT_ONCE_EPOCH, (0,))
    found.dispatch()
    ((worker, (ticket, *_)),) = pool.take(pipe.TASK)
    assert (worker, ticket.stream) == (1, AT_ONCE_STREAM)


def test_the_look_ahead_says_how_many_are_started_and_the_channel_does_not() -> None:
    found, pool, channel = _make(size=10 * MIB, limit=1)
    ahead: Any = _LookAhead(limit=7)
    found.look_ahead = ahead
    found.begin(0, 3, range(9))
    found.dispatch()
    assert ahead.begun == [(1, 9)]
    assert ahead.asked == [(0, 2)], "nothing is known of their size: as many as workers"
    assert len(pool.take(pipe.TASK)) == 7
    channel.largest = 4 * MIB
    _arrive(found, 0, 0)
    assert found.streams[0].take() is not None
    found.dispatch()
    assert ahead.asked[-1] == (1, 2)
    channel.largest = 100 * MIB
    found.dispatch()
    assert ahead.asked[-1] == (1, 1), "at least one"
    channel.largest = 1
    found.dispatch()
    assert ahead.asked[-1] == (1, channel.capacity)
    found.add(BatchStream(AT_ONCE_STREAM, 1))
    found.begin(AT_ONCE_STREAM, AT_ONCE_EPOCH, (0,))
    assert ahead.begun == [(1, 9)], "a batch at once is no epoch"


def test_slots_go_back_by_themselves_only_where_no_task_will_take_them() -> None:
    found, pool, channel = _make(limit=2)
    ahead: Any = _LookAhead(limit=4)
    found.look_ahead = ahead
    found.begin(0, 3, range(4))
    found.dispatch()
    channel.back = {0: ([3], []), 1: ([], [])}
    pool.sent.clear()
    found.dispatch()
    assert pool.sent == [], "tasks go out again once batches are taken"
    _arrive(found, 0, 0)
    found.streams[0].take()
    found.dispatch()
    assert pool.sent == [(0, (pipe.SLOTS, [3], []), None)]
