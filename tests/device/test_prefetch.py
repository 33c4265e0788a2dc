import gc
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_gpu import WRONG_ENGINES, FakeGpu, SlotLoader
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData

from gigl_loader.device import _engine, prefetch
from gigl_loader.device.prefetch import (
    NOT_READY,
    CopyAhead,
    CopyEngine,
    DevicePrefetcher,
    copy_message,
)
from gigl_loader.errors import ConfigError, WrongTypeError

SCHEDULES = [("lazy", 0), ("eager", 0), ("compute_first", 0), ("copy_first", 0)]
SCHEDULES += [("random", seed) for seed in range(12)]
NUM_BATCHES = 12
LABELS = {"x": [torch.tensor([1, 2]), torch.tensor([])], "pair": (torch.ones(1), "name", None)}
Pair = namedtuple("Pair", ["left", "right"])


def pull_from(batches: Iterator[Any]) -> Any:
    return lambda wait: next(batches)


def train(
    gpu: FakeGpu, engine: CopyEngine, *, depth: int, slots: int, run_ahead: int | None = None
) -> SlotLoader:
    """Run a loop whose kernels read each batch; the batch is dropped as soon as they are queued."""
    loader = SlotLoader(NUM_BATCHES, slots)
    limits = {"depth": depth, "max_held": slots, "run_ahead": run_ahead}
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


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_on_the_device_is_waited_for_before_it_is_cast(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:  # so that this test is known to see it
        monkeypatch.setattr(_engine._Transfer, "_wait_for_consumer", lambda self: None)
    gpu, ones = FakeGpu("copy_first"), torch.ones(4, dtype=torch.float16)
    made_by_the_loader = gpu.copy(ones, non_blocking=True)
    engine = CopyEngine("meta", backend=gpu, cast={"x": torch.float32})
    gpu.read(engine.copy({"x": made_by_the_loader}).values())
    gpu.finish_all()
    assert (gpu.results == [[ones.float().numpy().tobytes()]]) is waits
    engine.close()


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


# what a batch may be made of


def hetero() -> HeteroData:
    data = HeteroData()
    data.y_positive = {("a", "b", "c"): {0: torch.tensor([3]), 1: torch.tensor([])}}
    data["user"].x = torch.ones(2, 3, dtype=torch.float16)
    data["user"].n_id = data["user"].node = torch.arange(2)
    data["item"].x = torch.empty(0, 3, dtype=torch.uint8)
    data["user", "to", "item"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["user"].num_sampled_nodes = [1, 1]
    data.batch_size = 2
    return data


BATCHES = {
    "data": Data(x=torch.ones(3, 2, dtype=torch.int8), y=LABELS, batch_size=3, name="graph"),
    "hetero": hetero(),
    "batch": Batch.from_data_list([Data(x=torch.ones(1, 1)), Data(x=torch.zeros(2, 1))]),
    "edge index": Data(
        edge_index=EdgeIndex([[0, 1], [1, 0]], sort_order="row", sparse_size=(2, 2))
    ),
    "sparse": Data(adj=torch.eye(2).to_sparse()),
    "nested": [{"a": (Pair(torch.ones(1), 2), {3}), "b": OrderedDict(c=torch.ones(1))}, None, "s"],
    "not contiguous": {"t": torch.arange(6).view(2, 3).t(), "e": torch.ones(1).expand(4)},
    "scalar": torch.tensor(3),
}


def leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Data | HeteroData):
        for store in value.stores:
            yield from leaves(dict(store.items()))
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


@pytest.mark.parametrize("name", BATCHES)
def test_every_tensor_of_a_batch_goes(name: str) -> None:
    batch = BATCHES[name]
    before = [(id(t), t.device.type) for t in leaves(batch)]
    (moved,) = DevicePrefetcher([batch], "meta", non_blocking=False)
    assert type(moved) is type(batch)
    assert [t.device.type for t in leaves(moved)] == ["meta"] * len(before)
    assert [(id(t), t.device.type) for t in leaves(batch)] == before, "the source was modified"
    for new, old in zip(leaves(moved), leaves(batch), strict=True):
        assert (type(new), new.shape, new.dtype) == (type(old), old.shape, old.dtype)


@pytest.mark.parametrize("name", ["data", "hetero", "batch", "nested", "scalar", "not contiguous"])
def test_values_of_nested_batches_survive_delayed_copies(name: str) -> None:
    gpu = FakeGpu("lazy")
    (moved,) = DevicePrefetcher([BATCHES[name]], "meta", backend=gpu)
    gpu.finish_all()
    for new, old in zip(leaves(moved), leaves(BATCHES[name]), strict=True):
        assert new is not old
        assert torch.equal(new, old)
        assert new.dtype == old.dtype


def test_what_is_no_tensor_stays_as_it_is() -> None:
    batch = hetero()
    (moved,) = DevicePrefetcher([batch], "meta", non_blocking=False)
    assert moved["user"].num_sampled_nodes is batch["user"].num_sampled_nodes
    assert moved.batch_size == 2
    assert moved["user"].n_id is moved["user"].node, "two names of one tensor"


class Movable:
    """Like SparseTensor of torch_sparse: moves, but is no tensor."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def to(self, device: torch.device) -> "Movable":
        return Movable(device.type)


def test_objects_that_can_move_do() -> None:
    (moved,) = DevicePrefetcher([Data(adj=Movable())], "meta", non_blocking=False)
    assert moved.adj.device == "meta"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_the_parts_of_compound_tensors_are_recorded() -> None:
    coo, csr = torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()
    index = BATCHES["edge index"].edge_index
    assert [len(list(_engine._plain_parts(t))) for t in (torch.ones(1), coo, csr)] == [1, 2, 3]
    assert all(type(part) is Tensor for part in _engine._plain_parts(index))


# casting


@pytest.mark.parametrize("stored", [torch.float16, torch.uint8, torch.int8, torch.bfloat16])
@pytest.mark.parametrize("non_blocking", [True, False])
def test_features_are_cast_on_the_device(stored: torch.dtype, non_blocking: bool) -> None:
    data = hetero()
    data["user"].x = torch.arange(6).view(2, 3).to(stored)
    gpu = FakeGpu("lazy")
    (moved,) = DevicePrefetcher(
        [data], "meta", cast={"x": torch.float32}, backend=gpu, non_blocking=non_blocking
    )
    gpu.finish_all()
    assert torch.equal(moved["user"].x, data["user"].x.float())
    assert moved["item"].x.shape == (0, 3)
    assert moved["item"].x.dtype == torch.float32
    assert moved["user"].n_id.dtype == torch.int64
    assert data["user"].x.dtype == stored


def test_casts_of_one_type_and_of_nested_values() -> None:
    cast = {("user", "x"): torch.float64, "y_positive": torch.int32}
    (moved,) = DevicePrefetcher([hetero()], "cpu", cast=cast)
    assert moved["user"].x.dtype == torch.float64
    assert moved["item"].x.dtype == torch.uint8
    assert {t.dtype for t in leaves(moved.y_positive)} == {torch.int32}


def test_message_keys_are_cast_by_their_last_part() -> None:
    message = {"user.nfeats": torch.ones(2).half(), "nfeats": torch.ones(1).half()}
    moved = copy_message(
        message, "cpu", cast={"nfeats": torch.float32, "user.nfeats": torch.double}
    )
    assert [t.dtype for t in moved.values()] == [torch.float64, torch.float32]


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
    batches.close()
    assert closed == ["generator"]
    assert list(batches) == []


def test_sources_are_dropped_as_soon_as_their_copies_are_done() -> None:
    gpu, loader = FakeGpu("eager"), SlotLoader(NUM_BATCHES, 3)
    batches = iter(DevicePrefetcher(loader, "meta", backend=gpu))
    next(batches)
    assert len(loader.free) == 2, "the newest one is looked at with the next batch"
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


def test_a_broken_device_does_not_hide_the_first_error(caplog: pytest.LogCaptureFixture) -> None:
    gpu = FakeGpu("lazy")
    engine = CopyEngine("meta", backend=gpu)
    engine.launch(torch.ones(2))
    gpu.tick = lambda: (_ for _ in ()).throw(RuntimeError("device-side assert"))
    engine.close()
    assert engine.num_held == 0
    assert "device-side assert" in caplog.text


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
    prefetcher = DevicePrefetcher(StatefulLoader(5), "cpu")
    prefetcher.set_epoch(3)
    assert (prefetcher.epoch, prefetcher.loader.epoch, len(prefetcher)) == (3, 3, 5)
    plain = DevicePrefetcher([1, 2], "cpu")
    assert not hasattr(plain, "state_dict")
    with pytest.raises(AttributeError, match="set_epoch"):
        plain.set_epoch(1)


def test_on_a_cpu_batches_pass_through_unchanged() -> None:
    batches = [hetero(), Data(x=torch.ones(2)), {"x": torch.ones(1)}]
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


@pytest.mark.parametrize("device", ["gpu", 3.4, None])
def test_what_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match=f"device={device!r} is no torch device"):
        DevicePrefetcher([], device)


def test_public_names_are_sorted() -> None:
    assert all(hasattr(prefetch, name) for name in prefetch.__all__)
