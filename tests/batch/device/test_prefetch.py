import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.device import prefetch
from gigl_loader.batch.device.prefetch import (
    NOT_READY,
    CopyAhead,
    CopyEngine,
    DevicePrefetcher,
    _LoaderPass,
    copy_message,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from tests.batch.device.fake_gpu import WRONG_ENGINES, FakeGpu, SlotLoader

SCHEDULES = [("lazy", 0), ("eager", 0), ("compute_first", 0), ("copy_first", 0)]
SCHEDULES += [("random", seed) for seed in range(12)]
NUM_BATCHES = 12


def pull_from(batches: Iterator[Any]) -> Any:
    return lambda wait: next(batches)


def train(
    gpu: FakeGpu, engine: CopyEngine, *, depth: int, slots: int, run_ahead: int | None = None
) -> SlotLoader:
    """Run a loop whose kernels read each batch; the batch is dropped as soon as they are queued."""
    loader = SlotLoader(NUM_BATCHES, slots)
    limits: dict[str, Any] = {"depth": depth, "max_held": slots, "run_ahead": run_ahead}
    ahead = CopyAhead(pull_from(iter(loader)), engine, **limits)
    for batch in ahead:
        gpu.read(batch.values())
        del batch
    gpu.finish_all()
    return loader


def expected(cast: dict[str, torch.dtype] | None = None) -> list[list[bytes]]:
    gpu = FakeGpu("eager")
    for batch in SlotLoader(NUM_BATCHES, 2):  # the loop's variable keeps the last one
        gpu.read([t.to((cast or {}).get(key, t.dtype)) for key, t in batch.items()])
    return gpu.results


# every order that the device may choose


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("cast", [None, {"x": torch.float32}])
@pytest.mark.parametrize(
    ("depth", "slots", "run_ahead"),
    [(1, 1, None), (2, 2, 1), (2, 3, None), (2, 3, 4), (4, 2, None), (20, 20, 2)],
)
def test_values_arrive_whatever_the_order(
    schedule: str, seed: int, cast: Any, depth: int, slots: int, run_ahead: int | None
) -> None:
    gpu = FakeGpu(schedule, seed)
    engine = CopyEngine("meta", backend=gpu, cast=cast)
    loader = train(gpu, engine, depth=depth, slots=slots, run_ahead=run_ahead)
    assert gpu.results == expected(cast)
    assert len(loader.free) == slots


def test_blocking_gives_the_same_values() -> None:
    gpu = FakeGpu("lazy")
    train(gpu, CopyEngine("meta", backend=gpu, non_blocking=False), depth=2, slots=1)
    assert gpu.results == expected()
    assert "copy on copy" not in gpu.log


@pytest.mark.parametrize("wrong", WRONG_ENGINES)
def test_each_safeguard_is_needed(wrong: type[CopyEngine]) -> None:
    wrong_values = []
    for schedule, seed in SCHEDULES:
        gpu = FakeGpu(schedule, seed)
        train(gpu, wrong("meta", backend=gpu), depth=2, slots=3)
        if gpu.results != expected():
            wrong_values.append(schedule)
    assert wrong_values, "the tests above would not see it"


# overlap


def test_copies_run_ahead_of_compute_on_their_own_stream() -> None:
    gpu = FakeGpu("copy_first")
    engine = CopyEngine("meta", backend=gpu)
    ahead = CopyAhead(pull_from(iter(SlotLoader(6, 6))), engine, depth=2, run_ahead=None)
    for index, batch in enumerate(ahead):
        gpu.read(batch.values())
        assert ahead.num_ahead == min(2, 5 - index)
        assert gpu.compute.done == 0, "no copy waited for compute"
    assert {note for note in gpu.log if note.startswith("copy")} == {"copy on copy"}
    assert engine.stats.host_waits == 0, "nor did the host"
    assert engine.stats.batches == 6
    assert engine.stats.copied_bytes == 6 * (24 + 16 + 5)
    gpu.finish_all()


def test_the_host_waits_only_for_old_copies() -> None:
    gpu = FakeGpu("lazy")
    engine = CopyEngine("meta", backend=gpu)
    ahead = CopyAhead(pull_from(iter(SlotLoader(6, 3))), engine, depth=2)
    next(ahead)
    assert engine.stats.host_waits == 0
    assert engine.num_held == 3
    next(ahead)
    assert engine.stats.host_waits == 1
    ahead.close()


@pytest.mark.parametrize(("run_ahead", "most"), [(1, 1), (3, 3), (None, NUM_BATCHES)])
def test_a_host_that_never_waits_is_held_back(run_ahead: int | None, most: int) -> None:
    gpu = FakeGpu("copy_first")
    engine = CopyEngine("meta", backend=gpu)
    loader, unfinished = iter(SlotLoader(NUM_BATCHES, 4)), []
    for batch in CopyAhead(pull_from(loader), engine, depth=2, run_ahead=run_ahead):
        unfinished.append(sum(not seen for seen in gpu.results))
        gpu.read(batch.values())
    assert max(unfinished) == min(most, NUM_BATCHES - 1)
    assert engine.stats.throttled == max(0, NUM_BATCHES - most)
    assert engine.stats.host_waits == 0
    gpu.finish_all()
    assert gpu.results == expected()


def test_a_ready_batch_is_not_kept_back_by_a_slow_loader() -> None:
    waits: list[bool] = []
    answers: list[Any] = [torch.tensor(0), torch.tensor(1), NOT_READY, NOT_READY, torch.tensor(2)]

    def pull(wait: bool) -> Any:
        waits.append(wait)
        if not answers:
            raise StopIteration
        return answers.pop(0)

    gpu = FakeGpu("eager")
    ahead = CopyAhead(pull, CopyEngine("meta", backend=gpu), depth=2)
    assert [int(next(ahead)), waits] == [0, [True, False, False]]
    assert [int(next(ahead)), waits[3:]] == [1, [False]]
    assert [int(next(ahead)), waits[4:]] == [2, [True, False]]
    assert list(ahead) == []


@pytest.mark.parametrize("engine_options", [{}, {"non_blocking": False}])
def test_no_batch_is_pulled_before_it_is_needed(engine_options: dict[str, Any]) -> None:
    loader = SlotLoader(NUM_BATCHES, 1)
    gpu = FakeGpu("eager")
    engine = CopyEngine("meta", backend=gpu, **engine_options)
    ahead = CopyAhead(pull_from(iter(loader)), engine, depth=1, max_held=1)
    assert engine.stats.batches == 0
    next(ahead)
    assert engine.stats.batches == (1 if engine_options else 2)
    ahead.close()


# messages


def test_copy_message_through_an_engine() -> None:
    gpu = FakeGpu("lazy")
    engine = CopyEngine("meta", backend=gpu, keep_on_host=lambda key: key == "#META")
    message = {"ids": torch.arange(4), "#META": torch.tensor([1])}
    moved = copy_message(message, "meta", engine=engine)
    assert moved["#META"] is message["#META"]
    gpu.finish_all()
    assert torch.equal(moved["ids"], message["ids"])
    assert moved["ids"] is not message["ids"]
    engine.close()


def test_copy_message_without_an_engine_blocks() -> None:
    moved = copy_message({"ids": torch.arange(4)}, "meta")
    assert moved["ids"].device.type == "meta"


def test_copy_message_refuses_a_foreign_engine() -> None:
    engine = CopyEngine("meta")
    with pytest.raises(ConfigError, match="copies to meta"):
        copy_message({}, "cpu", engine=engine)
    with pytest.raises(ConfigError, match="own casts"):
        copy_message({}, "meta", engine=engine, cast={"x": torch.float32})


# ends


def failing(after: int, error: BaseException) -> Iterator[Tensor]:
    for index in range(after):
        yield torch.tensor(index)
    raise error


@pytest.mark.parametrize("after", [0, 1, 2, 5])
@pytest.mark.parametrize("schedule", ["lazy", "eager"])
def test_an_error_comes_after_the_batches_before_it(after: int, schedule: str) -> None:
    gpu, seen = FakeGpu(schedule), list[Tensor]()
    prefetcher = DevicePrefetcher(failing(after, KeyError("broken")), "meta", backend=gpu)
    with pytest.raises(KeyError, match="broken") as caught:
        seen.extend(prefetcher)
    gpu.finish_all()
    assert [int(batch) for batch in seen] == list(range(after))
    assert "failing" in {entry.name for entry in caught.traceback}
    assert prefetcher.engine.num_held == 0


def test_ctrl_c_is_not_put_off() -> None:
    batches = iter(
        DevicePrefetcher(failing(1, KeyboardInterrupt()), "meta", backend=FakeGpu("lazy"))
    )
    with pytest.raises(KeyboardInterrupt):
        next(batches)


def test_a_failed_copy_keeps_its_source_until_the_rest_is_done() -> None:
    class Full(FakeGpu):
        def copy(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
            if tensor.dtype == torch.uint8:
                raise torch.cuda.OutOfMemoryError("no memory")
            return super().copy(tensor, non_blocking=non_blocking)

    gpu, loader = Full("lazy"), SlotLoader(3, 3)
    ahead = CopyAhead(pull_from(iter(loader)), CopyEngine("meta", backend=gpu), depth=2)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(ahead)
    assert gpu.copy_stream.done == gpu.copy_stream.issued


@pytest.mark.parametrize("how", ["break", "close"])
def test_leaving_early_lets_go_of_everything_once_it_is_copied(how: str) -> None:
    gc.disable()  # it must not take the garbage collector
    try:
        gpu, loader = FakeGpu("lazy"), SlotLoader(NUM_BATCHES, 4)
        prefetcher = DevicePrefetcher(loader, "meta", backend=gpu)
        batches = iter(prefetcher)
        for batch in batches:
            gpu.read(batch.values())
            break
        assert len(loader.free) == 1
        del batch
        if how == "close":
            assert isinstance(batches, _LoaderPass)
            batches.close()
        del batches
        assert len(loader.free) == 4
        assert gpu.copy_stream.done == gpu.copy_stream.issued
        gpu.finish_all()
        assert gpu.results == expected()[:1]
    finally:
        gc.enable()


def test_leaving_early_near_the_end_needs_no_garbage_collector() -> None:
    gc.disable()
    try:
        loader = SlotLoader(2, 4)
        for _ in DevicePrefetcher(loader, "meta", backend=FakeGpu("lazy")):
            break
        assert len(loader.free) == 4
    finally:
        gc.enable()


def test_the_loaders_generator_is_closed_and_the_loader_is_not() -> None:
    closed: list[str] = []

    class Loader:
        def __iter__(self) -> Iterator[Tensor]:
            try:
                yield from torch.arange(9)
            finally:
                closed.append("generator")

        def close(self) -> None:
            closed.append("loader")

    batches = iter(DevicePrefetcher(Loader(), "meta", backend=FakeGpu("eager")))
    next(batches)
    assert isinstance(batches, _LoaderPass)
    batches.close()
    assert closed == ["generator"]
    assert list(batches) == []


def test_sources_are_dropped_as_soon_as_their_copies_are_done() -> None:
    gpu, loader = FakeGpu("eager"), SlotLoader(NUM_BATCHES, 3)
    batches = iter(DevicePrefetcher(loader, "meta", backend=gpu))
    next(batches)
    assert len(loader.free) == 2, "the newest one is looked at with the next batch"
    assert isinstance(batches, _LoaderPass)
    batches.close()


def test_batches_are_not_kept_after_hand_over() -> None:
    batches = iter(DevicePrefetcher(SlotLoader(4, 4), "meta", backend=FakeGpu("eager")))
    batch = next(batches)
    gone = weakref.ref(batch["x"])
    del batch
    assert gone() is None


def test_a_second_epoch() -> None:
    prefetcher = DevicePrefetcher(SlotLoader(3, 3), "meta", backend=FakeGpu("eager"))
    assert [[int(b["ids"][0]) for b in prefetcher] for _ in range(2)] == [[1, 2, 3]] * 2


# manners of a loader


class StatefulLoader:
    """Counts what was taken from it, as torchdata's StatefulDataLoader does."""

    def __init__(self, size: int) -> None:
        self.size, self.start, self.taken, self.epoch = size, 0, 0, 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Tensor]:
        self.taken, self.start = self.start, 0
        while self.taken < self.size:
            self.taken += 1
            yield torch.tensor(self.taken - 1)
        self.taken = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = self.taken = max(state["taken"], 0)


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_the_state_counts_batches_handed_over(depth: int) -> None:
    prefetcher = DevicePrefetcher(StatefulLoader(5), "meta", depth=depth, backend=FakeGpu("eager"))
    assert prefetcher.state_dict() == {"taken": 0}
    for index, batch in enumerate(prefetcher):
        assert int(batch) == index
        assert prefetcher.state_dict() == {"taken": index + 1}
    assert prefetcher.state_dict() == {"taken": -1}


@pytest.mark.parametrize("stop", range(1, 5))
def test_resuming_yields_what_had_not_been_yielded(stop: int) -> None:
    first = DevicePrefetcher(StatefulLoader(5), "meta", backend=FakeGpu("eager"))
    seen = []
    for batch in first:
        seen.append(int(batch))
        if len(seen) == stop:
            break
    second = DevicePrefetcher(StatefulLoader(5), "meta", backend=FakeGpu("eager"))
    second.load_state_dict(first.state_dict())
    assert seen + [int(batch) for batch in second] == list(range(5))


def test_attributes_of_the_loader_shine_through() -> None:
    loader = StatefulLoader(5)
    prefetcher = DevicePrefetcher(loader, "cpu")
    prefetcher.set_epoch(3)
    assert prefetcher.loader is loader
    assert (prefetcher.epoch, loader.epoch, len(prefetcher)) == (3, 3, 5)
    plain = DevicePrefetcher([1, 2], "cpu")
    assert not hasattr(plain, "state_dict")
    with pytest.raises(AttributeError, match="set_epoch"):
        plain.set_epoch(1)


def test_on_a_cpu_batches_pass_through_unchanged() -> None:
    hetero = HeteroData({"user": {"x": torch.ones(2, 3), "n_id": torch.arange(2)}})
    batches = [hetero, Data(x=torch.ones(2)), {"x": torch.ones(1)}]
    for non_blocking in (True, False):
        seen = list(DevicePrefetcher(batches, "cpu", non_blocking=non_blocking))
        assert all(new is old for new, old in zip(seen, batches, strict=True))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"depth": 0}, ConfigError, "depth must be an int >= 1, got 0"),
        ({"depth": 1.5}, ConfigError, "got 1.5"),
        ({"max_held": 0}, ConfigError, "max_held must be"),
        ({"run_ahead": 0}, ConfigError, "run_ahead must be"),
        ({"cast": {"x": "float32"}}, WrongTypeError, "torch dtypes"),
        ({"cast": torch.float32}, WrongTypeError, "map names"),
    ],
)
def test_wrong_options_are_refused(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DevicePrefetcher([], "cpu", **options)


def test_public_names_are_sorted() -> None:
    assert all(hasattr(prefetch, name) for name in prefetch.__all__)
