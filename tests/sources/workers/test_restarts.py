"""Which batches a lost worker had, which of them it may have died of, and when another starts."""

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.batch.message import BatchTicket
from gigl_loader.errors import ProtocolError
from gigl_loader.sources.workers.schedule import Restarts, UnderWay, ended_by_itself


def _task(batch: int, *, serial: int = 1) -> BatchTicket:
    return BatchTicket(0, serial, 5, batch, position=batch)


def _always(ticket: BatchTicket) -> bool:
    return True


def test_what_a_worker_has_and_has_answered_for() -> None:
    under_way = UnderWay(2, 3)
    for batch in range(4):
        under_way.give(batch % 2, _task(batch))
    assert [len(had) for had in under_way.tickets] == [2, 2]
    under_way.done(0, _task(2))
    assert [len(had) for had in under_way.tickets] == [1, 2]
    with pytest.raises(ProtocolError, match=r"worker 0 answered for .*batch=2"):
        under_way.done(0, _task(2))
    assert not under_way.has_lost


def _next_lost(under_way: UnderWay) -> BatchTicket:
    task = under_way.next_lost(_always, idle=True)
    assert task is not None
    return task


def test_only_batches_that_were_begun_are_suspected() -> None:
    under_way = UnderWay(2, 2)
    for batch in (4, 1, 3, 2):
        under_way.give(0, _task(batch))
    assert [task.batch for task in under_way.lose(0)] == [4, 1]
    assert [len(had) for had in under_way.tickets] == [0, 0]
    found = []
    while under_way.has_lost:
        task = _next_lost(under_way)
        under_way.give(1, task)
        found.append((task.batch, (under_way.free_worker([1]) is not None)))
        under_way.done(1, task)
    assert found == [(1, False), (2, True), (3, True), (4, False)], "suspected ones are alone"
    assert under_way.free_worker([1]) is not None


def test_a_suspected_batch_waits_for_an_idle_worker_and_what_is_after_it_waits_too() -> None:
    under_way = UnderWay(2, 1)
    under_way.give(0, _task(0))
    under_way.give(0, _task(1))
    under_way.lose(0)
    assert under_way.next_lost(_always, idle=False) is None
    assert under_way.has_lost
    assert under_way.next_lost(_always, idle=True) == _task(0)
    assert under_way.next_lost(_always, idle=False) == _task(1), "it had not been begun"
    assert under_way.next_lost(_always, idle=True) is None


def test_a_batch_that_was_alone_with_two_lost_workers_is_named() -> None:
    under_way = UnderWay(3, 2)
    under_way.give(0, _task(7))
    under_way.give(0, _task(8))
    suspects = under_way.lose(0)
    assert under_way.killed_twice(suspects) is None, "it had two"
    for worker, expected in ((1, None), (2, _task(7))):
        task = under_way.next_lost(_always, idle=True)
        assert task == _task(7)
        under_way.give(worker, task)
        suspects = under_way.lose(worker)
        assert suspects == [task]
        assert under_way.killed_twice(suspects) == expected


@pytest.mark.parametrize("code", [0, 1, 3, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS])
def test_a_worker_that_left_or_crashed_ended_by_itself(code: int) -> None:
    assert ended_by_itself(code)


@pytest.mark.parametrize("code", [None, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -40])
def test_one_that_somebody_else_ended_did_not(code: int | None) -> None:
    assert not ended_by_itself(code)


def test_workers_that_were_ended_from_outside_count_against_no_batch() -> None:
    under_way = UnderWay(1, 1)
    under_way.give(0, _task(7))
    for lost in range(1, 10):
        suspects = under_way.lose(0, by_itself=False)
        assert suspects == [_task(7)], "memory may have run out: it is tried alone"
        assert under_way.killed_twice(suspects) is None
        assert under_way.losses(suspects) == lost
        under_way.give(0, _next_lost(under_way))
        assert under_way.free_worker([0]) is None
    under_way.done(0, _task(7))
    under_way.give(0, _task(7))
    assert under_way.losses(under_way.lose(0, by_itself=False)) == 1, "it was sampled since"


def test_the_end_of_a_supervisor_makes_no_batch_suspected() -> None:
    under_way = UnderWay(2, 2)
    for worker, batch in ((0, 4), (1, 2), (0, 5)):
        under_way.give(worker, _task(batch))
    assert under_way.lose(0, suspects_any=False) == under_way.lose(1, suspects_any=False) == []
    again = [under_way.next_lost(_always, idle=False) for _ in range(3)]
    assert again == [_task(2), _task(4), _task(5)], "at once, on workers that have others"
    under_way.give(0, _task(2))
    assert under_way.free_worker([0]) is not None


def test_all_workers_of_a_supervisor_are_one_loss() -> None:
    restarts = Restarts(2)
    assert [restarts.take(orphan_of=1) for _ in range(8)] == [0.05] * 8
    assert (restarts.left, restarts.total) == (1, 8)
    assert restarts.take(orphan_of=2) == 0.2
    assert restarts.left == 0
    assert restarts.may_take(orphan_of=2)
    assert not restarts.may_take(orphan_of=3)
    assert not restarts.may_take()
    assert not Restarts(0).may_take(orphan_of=1)


def test_a_batch_that_was_sampled_is_suspected_no_more() -> None:
    under_way = UnderWay(2, 1)
    for _ in range(2):  # two deaths with it, and an answer between them
        under_way.give(0, _task(7))
        suspects = under_way.lose(0)
        assert under_way.killed_twice(suspects) is None
        under_way.give(1, _next_lost(under_way))
        under_way.done(1, _task(7))
        assert under_way.free_worker([1]) is not None


def test_what_was_lost_of_an_epoch_that_was_broken_off_is_dropped() -> None:
    under_way = UnderWay(1, 1)
    under_way.give(0, _task(3, serial=1))
    under_way.lose(0)
    under_way.give(0, _task(4, serial=2))
    under_way.lose(0)
    found = under_way.next_lost(lambda ticket: ticket.serial == 2, idle=True)
    assert found == _task(4, serial=2)
    assert not under_way.has_lost
    under_way.give(0, _task(3, serial=3))
    assert under_way.free_worker([0]) is not None, (
        "the next epoch's batch of that number is not suspected"
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["give", "done", "lose", "again"])),
        max_size=60,
    ),
    st.integers(1, 3),
)
def test_no_batch_is_lost_or_given_twice(steps: list[tuple[int, str]], concurrency: int) -> None:
    under_way = UnderWay(3, concurrency)
    has: list[list[Any]] = [[], [], []]
    lost: list[Any] = []
    next_batch = 0
    for worker, step in steps:
        if step == "give" and (under_way.free_worker([worker]) is not None):
            under_way.give(worker, _task(next_batch))
            has[worker].append(next_batch)
            next_batch += 1
        elif step == "done" and has[worker]:
            under_way.done(worker, _task(has[worker].pop(0)))
        elif step == "lose":
            suspects = under_way.lose(worker)
            assert [task.batch for task in suspects] == has[worker][:concurrency]
            lost, has[worker] = sorted(lost + has[worker]), []
        elif step == "again" and (under_way.free_worker([worker]) is not None):
            task = under_way.next_lost(_always, idle=not has[worker])
            if task is not None:
                assert task.batch == lost.pop(0), "the earliest first"
                under_way.give(worker, task)
                has[worker].append(task.batch)
        assert [[task.batch for task in had] for had in under_way.tickets] == has
        assert under_way.has_lost == bool(lost)


def test_pauses_grow_to_five_seconds_and_begin_anew_with_each_epoch() -> None:
    restarts = Restarts(6)
    assert [round(restarts.take(), 9) for _ in range(6)] == [0.05, 0.2, 0.8, 3.2, 5.0, 5.0]
    assert (restarts.left, restarts.total) == (0, 6)
    restarts.start_epoch()
    assert restarts.left == 6
    assert restarts.take() == 0.05
    assert (restarts.left, restarts.total) == (5, 7)
