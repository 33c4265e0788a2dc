"""When a worker is replaced, when it is ended first, and when neither is of any use."""

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gigl_loader.batch.message import BatchTicket
from gigl_loader.errors import FileChangedError, PeerError, PeerTimeoutError, WorkerDiedError
from gigl_loader.sources.workers import recovery
from gigl_loader.sources.workers.recovery import Recovery, RestartThread
from tests.support.conditions import Clock


class _Pool:
    """Says what was asked of the processes."""

    def __init__(self, num_workers: int = 3) -> None:
        self.num_workers = num_workers
        self.killed: list[int] = []
        self.replaced: list[int] = []
        self.stopped: set[int] = set()
        self.does_not_read: set[int] = set()
        self.sent: list[tuple[int, Any]] = []

    def kill(self, number: int) -> None:
        self.killed.append(number)

    def replace(self, number: int) -> None:
        self.replaced.append(number)

    def is_stopped(self, number: int) -> bool:
        return number in self.stopped

    def describe(self, numbers: list[int]) -> str:
        return f"workers {numbers}"

    def send(self, number: int, message: Any, obj: Any = None) -> None:
        if number in self.does_not_read:
            raise PeerTimeoutError(f"worker {number} did not take it")
        self.sent.append((number, message))


@pytest.fixture
def clock(clock_of: Callable[..., Clock]) -> Clock:
    """The time that the module under test sees."""
    return clock_of(recovery)


def _recovery(
    pool: _Pool,
    max_restarts: int = 3,
    concurrency: int = 2,
    check_files: Callable[[], None] = lambda: None,
) -> Recovery:
    def seeds_of(ticket: BatchTicket) -> list[int]:
        return list(range(10 * ticket.batch, 10 * ticket.batch + 10))

    return Recovery(pool, concurrency, max_restarts, seeds_of, check_files)  # type: ignore[arg-type]  # a stand-in


def _task(batch: int) -> BatchTicket:
    return BatchTicket(0, 1, 4, batch, batch)


def test_the_worker_with_the_least_to_do_is_free(clock) -> None:
    found = _recovery(_Pool())
    assert found.under_way.free_worker(found.at_work) == 0
    for batch, worker in enumerate((0, 2, 0)):
        found.under_way.give(worker, _task(batch))
    assert found.under_way.free_worker(found.at_work) == 1
    found.at_work.discard(1)
    assert found.under_way.free_worker(found.at_work) == 2
    found.at_work.clear()
    assert found.under_way.free_worker(found.at_work) is None


def test_a_lost_worker_is_replaced_after_a_pause(clock, caplog) -> None:
    pool = _Pool()
    found = _recovery(pool)
    found.under_way.give(1, _task(6))
    caplog.set_level(logging.WARNING)
    assert found.died(1, 77, -9) is None
    assert "died: SIGKILL" in caplog.text
    assert "2 of max_restarts left" in caplog.text
    assert "batch 6 of epoch 4" in caplog.text
    assert found.is_pending
    assert found.under_way.has_lost
    found.replace_due()
    assert pool.replaced == []
    assert found.next_step_in(60.0) == pytest.approx(0.05)
    assert found.next_step_in(0.01) == 0.01
    clock.now += 0.06
    assert found.next_step_in(60.0) == 0.0
    found.replace_due()
    found.replace_due()
    assert pool.replaced == [1]
    assert found.is_pending, "it is being started"
    found.at_work.add(1)
    assert not found.is_pending
    assert found.next_step_in(60.0) == 60.0


def test_a_batch_lost_with_two_workers_ends_the_epoch(clock) -> None:
    pool = _Pool()
    found = _recovery(pool)
    for worker in (0, 1):
        found.under_way.give(worker, _task(3))
        error = found.died(worker, 70 + worker, -11)
        if worker == 0:
            assert error is None
            assert found.under_way.next_lost(lambda ticket: True, idle=True) == _task(3)
    assert isinstance(error, WorkerDiedError)
    assert "batch 3 of epoch 4 was lost with two workers" in str(error)
    assert "10 seeds are [30, 31, 32, 33, 34, 35, 36, 37, ...]" in str(error)


def test_a_worker_that_ends_by_sigbus_names_the_file_that_changed(clock, caplog) -> None:
    """Another one would end by it, too; without such a file, or by another signal, it may not."""

    def check_files() -> None:
        if changed:
            raise FileChangedError("x.bin was changed")

    changed, pool = False, _Pool()
    found = _recovery(pool, check_files=check_files)
    found.under_way.give(1, _task(6))
    assert found.died(1, 77, -signal.SIGBUS) is None
    assert "SIGBUS; a page of a mapped file could not be read" in caplog.text
    changed = True
    assert found.died(2, 78, -signal.SIGKILL) is None
    error = found.died(0, 79, -signal.SIGBUS)
    assert isinstance(error, FileChangedError)
    assert str(error) == "sampling worker 0 (pid 79) died: SIGBUS; x.bin was changed"


def _give_again(found: Recovery) -> None:
    """Give worker 0 the next batch that was lost."""
    task = found.under_way.next_lost(lambda ticket: True, idle=True)
    assert task is not None
    found.under_way.give(0, task)


def test_kills_from_outside_end_no_epoch_before_the_restarts_are_used_up(clock) -> None:
    """Of a batch, of a stopped worker, and of supervisors; the batch is named at the end."""
    pool = _Pool()
    found = _recovery(pool, max_restarts=5)
    found.under_way.give(0, _task(3))
    for orphan_of in (1, 2):
        assert found.died(0, 70, None, orphan_of) is None
        assert found.under_way.next_lost(lambda ticket: True, idle=False) == _task(3)
        found.under_way.give(0, _task(3))
    pool.stopped = {0}
    for _ in range(2):
        assert found.kill([0])
        assert found.died(0, 70, -9) is None
        _give_again(found)
    assert found.died(0, 70, -15) is None
    assert found.restarts.left == 0
    _give_again(found)
    error = found.died(0, 70, -9)
    assert isinstance(error, WorkerDiedError)
    assert "max_restarts=5 are used up" in str(error)
    assert "batch 3 of epoch 4 was lost with 4 workers that had no other" in str(error)


def test_a_batch_that_hangs_counts_although_its_workers_are_killed(clock) -> None:
    pool = _Pool()
    found = _recovery(pool, max_restarts=9)
    found.under_way.give(0, _task(3))
    for last in (False, True):
        assert found.kill([0])
        error = found.died(0, 70, -9)
        assert (error is not None) == last
        if not last:
            _give_again(found)
    assert isinstance(error, PeerTimeoutError)


def test_a_supervisor_with_more_workers_than_restarts_is_one_loss(clock, caplog) -> None:
    pool = _Pool(8)
    found = _recovery(pool, max_restarts=1)
    found.under_way.give(3, _task(6))
    assert [found.died(worker, 70, None, 1) for worker in range(8)] == [None] * 8
    told = [text for text in caplog.messages if "samples again: 1 batches" in text]
    assert len(told) == 1
    assert "worker 3" in told[0]
    clock.now += 0.06
    found.replace_due()
    assert pool.replaced == list(range(8)), "all at once"
    assert isinstance(found.died(0, 70, None, 2), WorkerDiedError)


def test_one_more_than_may_be_replaced_ends_the_epoch(clock) -> None:
    pool = _Pool()
    found = _recovery(pool, max_restarts=1)
    assert found.died(0, 70, 1) is None
    error = found.died(1, 71, 1)
    assert isinstance(error, WorkerDiedError)
    assert "max_restarts=1 are used up" in str(error)
    assert (error.pid, error.exitcode) == (71, 1)
    found.restarts.start_epoch()
    assert found.died(2, 72, 1) is None


def test_without_restarts_nothing_is_said_of_them(clock) -> None:
    error = _recovery(_Pool(), max_restarts=0).died(0, 70, -9)
    assert "max_restarts" not in str(error)


def test_workers_that_make_no_progress_are_killed_once(clock, caplog) -> None:
    pool = _Pool()
    found = _recovery(pool)
    found.under_way.give(1, _task(0))
    found.note_progress()
    clock.now += 9.9
    assert found.replace_stalled(10.0)
    assert pool.killed == []
    clock.now += 0.2
    assert found.is_stalled(10.0)
    assert found.replace_stalled(10.0)
    assert pool.killed == [1], "the others have nothing to do"
    assert not found.is_stalled(10.0), "its successor has as long"
    clock.now += 10.1
    assert not found.replace_stalled(10.0), "it does not even die"
    assert found.died(1, 71, -9) is None
    assert "made no progress; it is replaced" in caplog.text


def test_a_batch_that_two_workers_hang_at_is_a_timeout(clock) -> None:
    found = _recovery(_Pool())
    for worker in (0, 1):
        found.under_way.give(worker, _task(3))
        assert found.kill([worker])
        error = found.died(worker, 70 + worker, -9)
        if worker == 0:
            found.under_way.next_lost(lambda ticket: True, idle=True)
    assert isinstance(error, PeerTimeoutError)
    assert "workers [1] made no progress; batch 3 of epoch 4" in str(error)
    assert "raise `timeout`" in str(error)


def test_one_that_is_starting_may_hang_and_one_that_waits_for_its_start_may_not(clock) -> None:
    pool = _Pool()
    found = _recovery(pool)
    found.died(0, 70, 1)
    clock.now += 0.01
    found.died(1, 71, 1)
    clock.now += 0.05
    found.replace_due()
    assert pool.replaced == [0]
    clock.now += 10.0
    assert found.replace_stalled(10.0)
    assert pool.killed == [0]


def test_no_more_are_killed_than_may_be_replaced(clock) -> None:
    pool = _Pool()
    found = _recovery(pool, max_restarts=1)
    assert not found.kill([0, 1])
    assert not found.kill([])
    assert pool.killed == []
    assert found.kill([0])


def test_one_is_stopped_when_so_many_looks_in_a_row_say_so(clock) -> None:
    pool = _Pool()
    found = _recovery(pool)
    pool.stopped = {0, 2}
    found.end_stopped(3)
    found.end_stopped(3)
    pool.stopped = {2}  # worker 0 goes on for a moment
    found.end_stopped(3)
    assert pool.killed == [2]
    pool.stopped = {0, 2}
    found.end_stopped(3)
    found.end_stopped(3)
    assert pool.killed == [2], "once; and worker 0 is counted anew"
    found.end_stopped(3)
    assert pool.killed == [2, 0]


def test_a_thread_goes_on_after_an_error_and_ends_when_told() -> None:
    calls: list[threading.Thread] = []
    enough = threading.Event()

    def attend() -> None:
        calls.append(threading.current_thread())
        if len(calls) == 3:
            enough.set()
        raise (OSError("of no class of ours") if len(calls) == 1 else PeerError("for the taker"))

    thread = RestartThread(attend, every_s=0.001)
    assert enough.wait(60.0)
    thread.close()
    thread.close()
    assert not calls[0].is_alive()
    assert set(calls) == {thread._thread}


def test_a_thread_may_be_closed_from_its_own_thread() -> None:
    may_close, closed = threading.Event(), threading.Event()

    def attend() -> None:
        may_close.wait(60.0)
        thread.close()
        closed.set()

    thread = RestartThread(attend, every_s=0.001)
    may_close.set()
    assert closed.wait(60.0)
    thread._thread.join()
