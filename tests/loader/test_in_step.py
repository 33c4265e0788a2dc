"""Batches between the threads that sample them and the one that takes them: order, room, end."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gigl_loader import PeerError, PeerTimeoutError, SamplingError, UsageError
from gigl_loader.batch.message import Attempt, BatchTicket, Received
from gigl_loader.sources.in_process import in_process_source
from gigl_loader.sources.in_process.in_process_source import EpochBatches, ExchangeTurns
from tests.support.conditions import SetConstants


def _batch(step: int) -> Received:
    return Received(BatchTicket(0, 0, 3, step), {}, {})


def _epoch(batches: Sequence[int], room: int) -> EpochBatches:
    return EpochBatches(Attempt(3, 1), batches, range(len(batches)), None, room)


@contextmanager
def _meanwhile(*steps) -> Iterator[list[BaseException]]:
    """Do something in a thread while the block runs; gives what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield raised
    thread.join(20.0)
    assert not thread.is_alive()


def test_turns_are_taken_in_the_order_of_steps_and_end_at_one_of_them() -> None:
    turns, taken = ExchangeTurns(), list[int]()
    late = threading.Thread(target=lambda: taken.append(2) if turns.wait(2) else None)
    late.start()
    assert turns.wait(0)
    turns.end(3)  # a lane that is further than the others had an error
    turns.passed(0)
    assert not turns.wait(4)
    assert turns.wait(1), "steps before the one that ended it have their turn"
    turns.end(1)
    late.join()
    assert not taken, "a step after the one that ended it has none"


@pytest.mark.parametrize(
    "told",
    [lambda turns: turns.allow(1), lambda turns: turns.release(), lambda turns: turns.end(0)],
    ids=["allow", "release", "end"],
)
def test_who_waits_for_a_turn_is_told(
    told: Callable[[ExchangeTurns], None], constants: SetConstants
) -> None:
    constants(in_process_source, _WAKE_S=60.0)
    turns = ExchangeTurns(num_allowed=0)
    with _meanwhile(lambda: turns.wait(0)):
        time.sleep(0.05)  # so that it waits, most often
        told(turns)


def test_who_waits_for_the_turn_of_a_lane_is_told(constants: SetConstants) -> None:
    constants(in_process_source, _WAKE_S=60.0)
    turns = ExchangeTurns()
    with _meanwhile(lambda: turns.wait_until_passed(0, time.monotonic() + 600.0)):
        time.sleep(0.05)
        turns.passed(0)


def test_batches_are_taken_in_order_whoever_was_first() -> None:
    epoch = _epoch([7, 4, 9], room=3)
    for step in (2, 0, 1):
        epoch.hand_over(step, _batch(step))
    assert epoch.num_ready == 3
    assert [epoch.take(1.0).ticket.batch for _ in range(3)] == [0, 1, 2]
    assert epoch.taken == 3
    assert epoch.would_not_wait(), "at the end there is nothing to wait for"


def test_a_batch_beyond_the_room_waits_for_the_one_that_is_missing() -> None:
    epoch = _epoch(range(4), room=2)
    epoch.hand_over(1, _batch(1))
    assert not epoch.would_not_wait()
    filed = threading.Event()
    with _meanwhile(lambda: epoch.hand_over(2, _batch(2)), filed.set):
        assert not filed.wait(0.05), "steps 0 and 1 have all of the room"
        epoch.hand_over(0, _batch(0))
        assert epoch.take(5.0).ticket.batch == 0
        assert filed.wait(20.0)
    assert epoch.num_ready == 2


def test_an_error_comes_after_the_batches_before_it() -> None:
    epoch = _epoch(range(3), room=2)
    epoch.hand_over(0, _batch(0))
    epoch.fail(PeerError("first"))
    epoch.fail(PeerError("a consequence"))
    assert epoch.would_not_wait()
    assert epoch.take(1.0).ticket.batch == 0
    for _ in range(2):
        epoch.hand_over(2, _batch(2))  # beyond the room: who hands over does not wait any more
        with pytest.raises(PeerError, match="first"):
            epoch.take(1.0)


def test_each_thread_gets_an_error_of_its_own() -> None:
    epoch = _epoch(range(3), room=2)
    error = SamplingError("rank 0", "ValueError: no luck", "Traceback ...")
    error.__cause__ = ValueError("no luck")
    epoch.fail(error)
    with ThreadPoolExecutor(2) as pool:
        one, other = [pool.submit(epoch.take, 60.0).exception(60) for _ in range(2)]
    assert len({id(error), id(one), id(other)}) == 3
    for found in (one, other):
        assert isinstance(found, SamplingError)
        assert (found.args, str(found)) == (error.args, str(error))
        assert found.__cause__ is error.__cause__


def test_an_error_of_others_comes_as_one_of_ours() -> None:
    """A class of others may not be copied; it ends a lane, and the epoch with it."""
    epoch = _epoch(range(3), room=2)

    def sample() -> None:
        raise ValueError("no luck")

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(sample).exception(60)
    assert error is not None
    epoch.fail(error)
    with pytest.raises(SamplingError, match="epoch 3 failed: ValueError: no luck") as caught:
        epoch.take(1.0)
    assert caught.value.__cause__ is error
    assert "in sample" in caught.value.remote_traceback


def test_a_batch_that_does_not_come_in_time() -> None:
    epoch = _epoch([8], room=2)
    with pytest.raises(PeerTimeoutError, match="batch 8 of epoch 3 was not sampled in 0 s"):
        epoch.take(0.0)


def test_nobody_waits_in_an_epoch_that_is_broken_off() -> None:
    """A loader may be shut down by a signal's handler, in the thread that waits for a batch."""
    epoch = _epoch(range(9), room=1)
    with (
        _meanwhile(lambda: epoch.take(600.0)) as taking,
        _meanwhile(lambda: epoch.hand_over(5, _batch(5))),
    ):
        epoch.break_off()
    assert [type(error) for error in taking] == [UsageError]
    assert epoch.num_ready == 0, "what comes afterwards is dropped"
