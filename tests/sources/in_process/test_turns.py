"""When lanes may exchange between devices: in the time of the trainer, so many steps ahead."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gigl_loader import PeerTimeoutError, UsageError
from gigl_loader.batch.message import Attempt, BatchTicket, Received
from gigl_loader.sources.in_process import in_process_source
from gigl_loader.sources.in_process.in_process_source import EpochBatches

TOTAL = 7
"""Steps of the rank with most batches."""


def _epoch(num_batches: int, num_ahead: int | None = 2) -> EpochBatches:
    batches = range(num_batches)
    return EpochBatches(Attempt(0, 0), batches, batches, None, 3, num_ahead)


@contextmanager
def _lane(epoch: EpochBatches, ends_at: int = TOTAL) -> Iterator[Callable[[], list[int]]]:
    """Let a thread exchange all steps, and hand over its own; yield what returns those so far."""
    exchanged: list[int] = []

    def run() -> None:
        for step in range(ends_at):
            epoch.turns.wait(step)
            exchanged.append(step)
            epoch.turns.passed(step)
            if step < len(epoch.batches):
                epoch.hand_over(step, Received(BatchTicket(0, 0, 0, step), {}, {}))
        epoch.turns.end(ends_at)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield lambda: list(exchanged)
    finally:
        epoch.break_off()
        thread.join(60.0)
        assert not thread.is_alive()


def test_exchanges_are_launched_while_the_trainer_waits_for_a_batch() -> None:
    epoch = _epoch(TOTAL)
    with _lane(epoch) as exchanged:
        assert exchanged() == []
        for step in range(TOTAL):
            assert epoch.take(60.0).ticket.batch == step
            assert exchanged() == list(range(min(step + 3, TOTAL)))


def test_a_rank_with_fewer_batches_serves_the_others_after_its_last_one() -> None:
    epoch = _epoch(4)
    with _lane(epoch) as exchanged:
        for step in range(4):
            epoch.take(60.0)
            # steps 4 and on are those of other ranks alone: nobody waits for them
            assert exchanged()[:4] == list(range(min(step + 3, 4)))
        epoch.turns.wait_until_passed(TOTAL - 1, time.monotonic() + 20.0)
        assert exchanged() == list(range(TOTAL))


@pytest.mark.parametrize("taken", [0, 1])
def test_a_rank_that_has_left_or_has_none_serves_the_others(taken: int) -> None:
    epoch = _epoch(4 * taken)
    with _lane(epoch) as exchanged:
        for _ in range(taken):
            epoch.take(60.0)
            epoch.break_off()
            with pytest.raises(UsageError, match="was broken off"):
                epoch.take(60.0)
    assert exchanged() == list(range(TOTAL))


def test_without_devices_lanes_exchange_at_any_time() -> None:
    epoch = _epoch(3, None)
    with _lane(epoch) as exchanged:
        epoch.turns.wait_until_passed(TOTAL - 1, time.monotonic() + 20.0)
        assert exchanged() == list(range(TOTAL))


def test_whether_a_copy_starts_early_depends_on_no_state_of_one_rank() -> None:
    epoch = _epoch(4)
    assert not epoch.would_not_wait()
    with _lane(epoch, ends_at=1):
        epoch.take(60.0)  # the lane ends: no further batch comes
        assert epoch.would_not_wait()


def test_a_lane_that_does_not_come_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process_source, "LOOK_S", 0.0)
    with pytest.raises(PeerTimeoutError, match="batch 0 of epoch 0 was not sampled in 0 s"):
        _epoch(4).take(0.01)
