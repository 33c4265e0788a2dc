"""What `CopyEngine` moves, casts and waits for, on a pretend GPU; see `fake_gpu`."""

import ctypes
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData

from gigl_loader.batch.device import copy_stream
from gigl_loader.batch.device.copy_stream import CopyEngine, TorchBackend, full_device, plain_parts
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.batch.device.prefetch import DevicePrefetcher, copy_message
from gigl_loader.errors import ConfigError
from tests.batch.device.fake_gpu import POISON, FakeEvent, FakeGpu, Stream, borrow, tensor_at

LABELS = {"x": [torch.tensor([1, 2]), torch.tensor([])], "pair": (torch.ones(1), "name", None)}
Pair = namedtuple("Pair", ["left", "right"])


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
    assert [len(list(plain_parts(t))) for t in (torch.ones(1), coo, csr)] == [1, 2, 3]
    assert all(type(part) is Tensor for part in plain_parts(index))


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


# order of work, and what is kept for how long


class DeafCopies(FakeGpu):
    """Its copies wait for nothing."""

    def wait_event(self, stream: Stream, event: FakeEvent) -> None:
        if stream is not self.copy_stream:
            super().wait_event(stream, event)


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_on_the_device_is_waited_for_before_it_is_cast(waits: bool) -> None:
    kind = FakeGpu if waits else DeafCopies  # so that this test is known to see it
    gpu, ones = kind("copy_first"), torch.ones(4, dtype=torch.float16)
    made_by_the_loader = gpu.copy(ones, non_blocking=True)
    engine = CopyEngine("meta", backend=gpu, cast={"x": torch.float32})
    gpu.read(engine.copy({"x": made_by_the_loader}).values())
    gpu.finish_all()
    assert (gpu.results == [[ones.float().numpy().tobytes()]]) is waits
    engine.close()


class MadeWhenRead(Mapping[str, Any]):
    """Makes its tensors as they are read, and keeps none: each takes the place of one before."""

    def __init__(self, device_memory: bool = False) -> None:
        self._borrows = device_memory

    def _tensor(self, value: int) -> Tensor:
        if not self._borrows:
            return torch.full((2,), value, dtype=torch.float64)
        memory = (ctypes.c_char * 16)()
        handle = borrow(memory, lambda: ctypes.memset(memory, POISON, 16))
        return tensor_at(handle, torch.float64, (2,)).fill_(value)

    def __getitem__(self, key: str) -> Any:
        return {"a": self._tensor(int(key)), "b": self._tensor(int(key) + 100)}

    def __iter__(self) -> Iterator[str]:
        return iter("0123456789")

    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize("schedule", [None, "lazy", "eager", "copy_first"])
def test_tensors_that_are_made_as_they_are_read(schedule: str | None) -> None:
    """Python gives their ids, and the host their memory, to those that are made next."""
    if schedule is None:
        cast = dict.fromkeys("ab", torch.float32)
        moved = CopyEngine("cpu", cast=cast).copy(MadeWhenRead())
    else:
        gpu = FakeGpu(schedule)
        engine = CopyEngine("meta", backend=gpu)
        moved = engine.copy(MadeWhenRead(device_memory=True))
        gpu.finish_all()
        engine.close()
    for key in "0123456789":
        assert moved[key]["a"].tolist() == [int(key)] * 2
        assert moved[key]["b"].tolist() == [int(key) + 100] * 2


@pytest.mark.parametrize("max_held", [1, 2, 4])
def test_room_is_made_by_waiting_for_the_oldest_copies_alone(max_held: int) -> None:
    gpu = FakeGpu("lazy")
    engine = CopyEngine("meta", backend=gpu)
    for value in range(4):
        engine.launch(torch.full((1,), value))
    assert engine.num_held == engine.reap() == 4
    engine.make_room(max_held)
    assert engine.num_held == max_held - 1
    assert engine.stats.host_waits == gpu.log.count("host waits") == 5 - max_held
    assert gpu.copy_stream.done == 5 - max_held, "the others are under way"
    engine.close()
    assert engine.num_held == 0
    assert engine.launch(torch.ones(1)).event is not None, "it can be used again"
    engine.close()


def test_an_engine_that_does_not_overlap_holds_and_waits_for_nothing() -> None:
    engine = CopyEngine("cpu", cast={"x": torch.float64})
    assert not engine.overlaps
    pending = engine.launch({"x": torch.ones(3), "n": torch.arange(2)})
    assert (pending.event, engine.num_held) == (None, 0)
    assert engine.hand_over(pending)["x"].dtype == torch.float64
    engine.throttle(1)
    engine.throttle(1)
    assert engine.stats.throttled == 0
    assert (engine.stats.batches, engine.stats.copied_bytes) == (1, 0), "all was there already"


def test_a_broken_device_does_not_hide_the_first_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGpu("lazy")
    engine = CopyEngine("meta", backend=gpu)
    engine.launch(torch.ones(2))
    monkeypatch.setattr(gpu, "tick", Mock(side_effect=RuntimeError("device-side assert")))
    engine.close()
    assert engine.num_held == 0
    assert "device-side assert" in caplog.text


def test_a_device_gets_its_index() -> None:
    assert full_device("cpu") == torch.device("cpu")
    assert full_device(torch.device("cuda", 3)) == torch.device("cuda:3")


def test_side_streams_come_before_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[torch.device, int]] = []

    class NotedStream:
        def __init__(self, device: torch.device, priority: int = 0) -> None:
            made.append((device, priority))

    monkeypatch.setattr(torch.cuda, "Stream", NotedStream)
    monkeypatch.setattr(copy_stream, "_capture_streams", {})
    device = torch.device("cuda", 1)
    TorchBackend(device)
    DeviceMemory(device)
    assert made == [(device, -1)] * 3, "one for captures; in torch lower numbers come first"
    for without in ("cpu", "meta"):
        TorchBackend(torch.device(without))
        DeviceMemory(torch.device(without))
    assert len(made) == 3


@pytest.mark.parametrize("device", ["gpu", 3.4, None])
def test_what_is_no_device_is_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match=f"device={device!r} is no torch device"):
        DevicePrefetcher([], device)
