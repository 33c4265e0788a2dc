"""One pass over batches that are there already: what is counted, and what ends it."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gigl_loader import SamplingError, UsageError
from gigl_loader.device.prefetch import CopyEngine
from gigl_loader.loader.epoch import EpochProgress, LoaderStats
from gigl_loader.loader.iterator import EpochIterator
from gigl_loader.message import BatchTicket, Received


class Source:
    """Gives the batches that it was told to; an error is raised in its turn."""

    count_waiting: Callable[[], Any]  # a graph store's has it, others do not

    def __init__(self, *given: int | Exception) -> None:
        self.to_come, self.cancelled, self.queue_depth = deque(given), 0, 0

    def ready(self) -> bool:
        return bool(self.to_come)

    def next(self, timeout_s: float | None = None) -> Received | None:
        if not self.to_come:
            return None
        number = self.to_come.popleft()
        if isinstance(number, Exception):
            raise number
        stats = {"seeds": 2, "sample_s": 0.5, "restarts": 0}
        return Received(BatchTicket(0, 1, 0, number), {"x": torch.tensor([number])}, stats)

    def cancel_epoch(self) -> None:
        self.cancelled += 1


class Owner:
    """What an iterator needs of a loader; a batch is the number of its message."""

    def __init__(self, source: Source, num_batches: int, ahead: bool = False) -> None:
        self._source, self._num_expected, self._num_recv = source, num_batches, 0
        self._engine = CopyEngine("cpu", non_blocking=False) if ahead else None
        self._device_prefetch, self._stats = 2, LoaderStats()
        self.recorded: list[dict[str, Any]] = []
        self._recorders = [self.recorded.append]

    def _collate_fn(self, message: dict[str, torch.Tensor]) -> int:
        assert set(message) == {"x"}
        return int(message["x"])


def _iterate(owner: Any, positions: list[int]) -> EpochIterator:
    return EpochIterator(owner, positions, EpochProgress())


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_come_and_are_counted(ahead: bool) -> None:
    owner = Owner(Source(0, 1, 2), 3, ahead)
    iterator = _iterate(owner, [0, 1, 2])
    assert (iter(iterator), len(iterator)) == (iterator, 3)
    assert next(iterator) == 0
    assert (len(iterator), iterator._progress.yielded, owner._num_recv) == (2, 1, 1)
    assert list(iterator) == [1, 2]
    assert iterator.is_over
    assert (iterator._progress.yielded, iterator._progress.finished) == (3, True)
    assert (owner._stats.batches, owner._stats.seeds) == (3, 6)
    assert len(owner.recorded) == 3
    with pytest.raises(StopIteration):
        next(iterator)
    iterator.end("it is over")
    assert owner._source.cancelled == 0, "the source may be in the next epoch by now"


def test_a_batch_that_comes_twice_is_of_two_positions() -> None:
    """With even_ranks="wrap" positions go on beyond the batches, which then start again."""
    owner = Owner(Source(0, 1, 0), 2)
    iterator = _iterate(owner, [0, 1, 2])
    assert list(iterator) == [0, 1, 0]
    assert iterator._progress.yielded == 3


def test_batches_out_of_order_are_positions_ahead_of_the_run() -> None:
    owner = Owner(Source(2, 0), 3)
    iterator = _iterate(owner, [0, 1, 2])
    next(iterator)
    assert (iterator._progress.yielded, iterator._progress.ahead) == (0, {2})
    next(iterator)
    assert (iterator._progress.yielded, iterator._progress.ahead) == (1, {2})


def test_a_batch_whose_collating_raised_is_not_in_the_state(monkeypatch) -> None:
    owner = Owner(Source(0, 1), 2)
    iterator = _iterate(owner, [0, 1])
    next(iterator)
    monkeypatch.setattr(owner, "_collate_fn", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert (iterator._progress.yielded, owner._stats.batches) == (1, 1)


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_the_source_ends_the_epoch(ahead: bool) -> None:
    owner = Owner(Source(0, ValueError("lost")), 3, ahead)
    iterator = _iterate(owner, [0, 1, 2])
    assert next(iterator) == 0
    with pytest.raises(ValueError, match="lost"):
        next(iterator)
    assert owner._source.cancelled == 1
    assert iterator.is_over
    with pytest.raises(UsageError, match="this iterator is over: an error broke it off"):
        next(iterator)


@pytest.mark.parametrize("ahead", [False, True])
def test_dropping_it_ends_the_epoch_at_once(ahead: bool) -> None:
    """By its reference count: after a `break`, workers must not sample until Python cleans up."""
    owner = Owner(Source(0, 1, 2), 3, ahead)
    for _ in _iterate(owner, [0, 1, 2]):
        break
    assert owner._source.cancelled == 1


def test_waiting_batches_are_those_of_the_source_and_those_copied_ahead() -> None:
    owner = Owner(Source(0, 1), 2)
    owner._source.queue_depth = 5
    iterator = _iterate(owner, [0, 1])
    next(iterator)
    assert owner._stats.depth == 5
    owner._source.count_waiting = lambda: 3  # a graph store's
    next(iterator)
    assert owner._stats.depth == 8


@pytest.mark.parametrize("ahead", [False, True])
def test_a_stop_iteration_of_something_else_is_not_the_end(ahead: bool) -> None:
    """A bare next() in a sampler, in a producer: the loop would end as if the epoch were whole."""
    owner = Owner(Source(0, StopIteration("foreign"), 1), 3, ahead)
    iterator = _iterate(owner, [0, 1, 2])
    found: list[Any] = []
    with pytest.raises(SamplingError, match="StopIteration was raised"):
        found.extend(batch for batch in iterator)
    assert found == [0]
    assert not iterator._progress.finished
    assert owner._source.cancelled == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_nor_is_one_of_what_makes_the_batch(ahead: bool, monkeypatch) -> None:
    def fail(*given: Any) -> None:
        raise StopIteration

    for name in ("_collate_fn", "_recorders", "_count_waiting"):
        owner = Owner(Source(0, 1), 2, ahead)
        if name == "_recorders":
            owner._recorders = [fail]
        elif name == "_collate_fn":
            monkeypatch.setattr(owner, name, fail)
        else:
            owner._source.count_waiting = fail
        with pytest.raises(SamplingError, match="StopIteration was raised"):
            list(_iterate(owner, [0, 1]))
