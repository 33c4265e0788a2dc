"""The sums over batches that `stats()` and the metrics are made of."""

import pytest

from gigl_loader.workers.counts import BatchCounts

SECOND = 10**9


def _measured(ended_s: float, sample_s: float = 0.0, gather_s: float = 0.0, **more: object) -> dict:
    ended = round(ended_s * SECOND)
    return {"sample_s": sample_s, "gather_s": gather_s, "ended_ns": ended, **more}


def test_sums_over_all_workers_and_positions() -> None:
    counts = BatchCounts()
    counts.count(_measured(1, 0.25, 0.5, seeds=3, nbytes=100), "a", 0)
    counts.count(_measured(2, 0.5, 0.125, seeds=4, nbytes=20), "b", 1)
    counts.count({}, "c", 1)  # of a worker that measures nothing
    assert (counts.batches, counts.seeds, counts.nbytes) == (3, 7, 120)
    assert (counts.sample_s, counts.gather_s) == (0.75, 0.625)


def test_a_worker_is_busy_once_with_batches_that_overlap() -> None:
    counts = BatchCounts()
    counts.count(_measured(10, 1.0, 1.0), "a", 0)  # from 8 to 10
    counts.count(_measured(11, 3.0), "a", 0)  # from 8 to 11
    counts.count(_measured(10.5, 2.0), "a", 0)  # within; its message came later
    counts.count(_measured(20, 1.0), "a", 0)
    counts.count(_measured(11, 3.0), "b", 0)
    assert counts.busy_s == pytest.approx({"a": 2 + 1 + 0 + 1, "b": 3})
    assert counts.busy_until == {"a": 20.0, "b": 11.0}


def test_each_batch_tells_the_restarts_of_its_position() -> None:
    counts = BatchCounts()
    for position, restarts in ((0, 1), (1, 4), (0, 3), (0, 2)):
        counts.count({"restarts": restarts}, "a", position)
    counts.count({}, "a", 1)
    assert counts.restarts == {0: 3, 1: 4}
