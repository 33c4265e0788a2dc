"""One pass over batches that are there already: what is counted, and what ends it."""

from collections import deque
from typing import Any

import pytest
import torch

from gigl_loader import SamplingError, UsageError
from gigl_loader.batch.device.prefetch import CopyEngine
from gigl_loader.batch.message import Attempt, BatchTicket, Received
from gigl_loader.loader.epochs.epoch import EpochProgress, LoaderStats
from gigl_loader.loader.epochs.iterator import EpochIterator, Epochs


class Source:
    """Gives the batches at the positions that it was told; an error is raised in its turn."""

    def __init__(self, *given: int | Exception, num_batches: int = 100) -> None:
        self.to_come, self.cancelled, self.waiting = deque(given), 0, 0
        self.num_batches = num_batches
        self.begun: list[tuple[Attempt, list[int], list[int]]] = []
        self.ended = False

    def ready(self) -> bool:
        return bool(self.to_come)

    def next(self, timeout_s: float | None = None) -> Received | None:
        if not self.to_come:
            self.ended = True
            return None
        position = self.to_come.popleft()
        if isinstance(position, Exception):
            raise position
        number = position % self.num_batches
        stats = {"seeds": 2, "sample_s": 0.5, "restarts": 0}
        return Received(
            BatchTicket(0, 1, 0, number, position), {"x": torch.tensor([number])}, stats
        )

    def start_epoch(self, attempt: Attempt, batches: list[int], positions: list[int]) -> None:
        self.begun.append((attempt, batches, positions))

    def count_waiting(self) -> int:
        return self.waiting

    def cancel_epoch(self) -> None:
        self.cancelled += 1


class Owner:
    """What an iterator is given; a batch is the number of its message."""

    def __init__(self, source: Source, ahead: bool = False) -> None:
        self.source, self.progress = source, EpochProgress()
        self.engine = CopyEngine("cpu", non_blocking=False) if ahead else None
        self.recorded: list[dict[str, Any]] = []
        self.stats = LoaderStats(recorders=[self.recorded.append])

    def collate(self, message: dict[str, torch.Tensor]) -> int:
        assert set(message) == {"x"}
        return int(message["x"])


def _iterate(owner: Owner, num_left: int) -> EpochIterator:
    source: Any = owner.source
    return EpochIterator(
        source,
        num_left,
        owner.progress,
        collate=lambda message: owner.collate(message),
        stats=owner.stats,
        engine=owner.engine,
    )


@pytest.mark.parametrize("ahead", [False, True])
def test_batches_come_and_are_counted(ahead: bool) -> None:
    owner = Owner(Source(0, 1, 2), ahead)
    iterator = _iterate(owner, 3)
    assert (iter(iterator), len(iterator)) == (iterator, 3)
    assert next(iterator) == 0
    assert (len(iterator), owner.progress.yielded, owner.stats.num_received) == (2, 1, 1)
    assert list(iterator) == [1, 2]
    assert iterator.is_over
    assert (owner.progress.yielded, owner.progress.finished) == (3, True)
    assert (owner.stats.batches, owner.stats.seeds) == (3, 6)
    assert len(owner.recorded) == 3
    with pytest.raises(StopIteration):
        next(iterator)
    iterator.end("it is over")
    assert owner.source.cancelled == 0, "the source may be in the next epoch by now"


def test_a_batch_that_comes_twice_is_of_two_positions() -> None:
    """With even_ranks="wrap" positions go on beyond the batches, which then start again."""
    owner = Owner(Source(0, 1, 2, num_batches=2))
    iterator = _iterate(owner, 3)
    assert list(iterator) == [0, 1, 0]
    assert owner.progress.yielded == 3


def test_batches_out_of_order_are_positions_ahead_of_the_run() -> None:
    owner = Owner(Source(2, 0))
    iterator = _iterate(owner, 3)
    next(iterator)
    assert (owner.progress.yielded, owner.progress.ahead) == (0, {2})
    next(iterator)
    assert (owner.progress.yielded, owner.progress.ahead) == (1, {2})


def test_a_batch_whose_collating_raised_is_not_in_the_state() -> None:
    owner: Any = Owner(Source(0, 1))
    iterator = _iterate(owner, 2)
    next(iterator)
    owner.collate = lambda _: 1 // 0
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert (owner.progress.yielded, owner.stats.batches) == (1, 1)


@pytest.mark.parametrize("ahead", [False, True])
def test_nothing_that_collating_returns_is_an_end(ahead: bool) -> None:
    """Whoever gives None is told so by the loader; here it is one batch of several."""
    owner: Any = Owner(Source(0, 1, 2), ahead)
    owner.collate = lambda _: None
    assert list(_iterate(owner, 3)) == [None] * 3


def test_a_message_may_have_a_key_that_the_copying_had() -> None:
    class Tickets(Source):
        def next(self, timeout_s: float | None = None) -> Received | None:
            found = super().next(timeout_s)
            if found is not None:
                found.message["ticket"] = torch.tensor([7])
            return found

    owner: Any = Owner(Tickets(0, 1), ahead=True)
    owner.collate = lambda message: int(message["ticket"])
    assert list(_iterate(owner, 2)) == [7, 7]


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_of_the_source_ends_the_epoch(ahead: bool) -> None:
    owner = Owner(Source(0, ValueError("lost")), ahead)
    iterator = _iterate(owner, 3)
    assert next(iterator) == 0
    with pytest.raises(ValueError, match="lost"):
        next(iterator)
    assert owner.source.cancelled == 1
    assert iterator.is_over
    with pytest.raises(UsageError, match="this iterator is over: an error broke it off"):
        next(iterator)


@pytest.mark.parametrize("ahead", [False, True])
def test_dropping_it_ends_the_epoch_at_once(ahead: bool) -> None:
    """By its reference count: after a `break`, workers must not sample until Python cleans up."""
    owner = Owner(Source(0, 1, 2), ahead)
    for _ in _iterate(owner, 3):
        break
    assert owner.source.cancelled == 1


def test_waiting_batches_are_those_of_the_source_and_those_copied_ahead() -> None:
    owner = Owner(Source(0, 1))
    owner.source.waiting = 5
    iterator = _iterate(owner, 2)
    next(iterator)
    assert owner.stats.depth == 5
    owner.source.waiting = 3
    next(iterator)
    assert owner.stats.depth == 8


@pytest.mark.parametrize("ahead", [False, True])
def test_a_stop_iteration_of_something_else_is_not_the_end(ahead: bool) -> None:
    """A bare next() in a sampler, in a producer: the loop would end as if the epoch were whole."""
    owner = Owner(Source(0, StopIteration("foreign"), 1), ahead)
    iterator = _iterate(owner, 3)
    found: list[Any] = []
    with pytest.raises(SamplingError, match="StopIteration was raised"):
        found.extend(batch for batch in iterator)
    assert found == [0]
    assert not owner.progress.finished
    assert owner.source.cancelled == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_nor_is_one_of_what_makes_the_batch(ahead: bool) -> None:
    def fail(*given: Any) -> None:
        raise StopIteration

    for name in ("collate", "recorders", "count_waiting"):
        owner = Owner(Source(0, 1), ahead)
        if name == "recorders":
            owner.stats.recorders = [fail]
        elif name == "collate":
            setattr(owner, name, fail)
        else:
            setattr(owner.source, name, fail)
        with pytest.raises(SamplingError, match="StopIteration was raised"):
            list(_iterate(owner, 2))


def test_a_batch_again_leaves_the_source_at_the_end_of_its_epoch() -> None:
    source: Any = Source(1)
    epochs = Epochs(source)
    epochs.num_batches = 3
    assert epochs.sample_again(5, 1).ticket.batch == 1
    assert source.ended, "an error of its last steps would be raised here"
    source.to_come.append(1)
    assert epochs.sample_again(5, 1).ticket.batch == 1
    assert source.begun == [(Attempt(5, 1), [1], [1]), (Attempt(5, 2), [1], [1])], (
        "told apart everywhere"
    )
    assert (source.cancelled, epochs.next_epoch) == (0, 0)
