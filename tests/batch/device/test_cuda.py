"""The same promises on a real device: run where there is one (``pytest -m gpu``)."""

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.device.copy_stream import TorchBackend
from gigl_loader.batch.device.prefetch import CopyAhead, CopyEngine, DevicePrefetcher
from gigl_loader.runtime.memory.pinned import PinMemoryError, PinnedRange
from gigl_loader.runtime.memory.segments import create_memfd, map_fd, unmap
from tests.batch.device.fake_gpu import DoesNotWait, DropsSources, borrow, tensor_at

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SLOT_BYTES = 1 << 16
NUM_BATCHES = 300


class PinnedSlots:
    """Batches in a few slots of pinned shared memory, overwritten as soon as they are free."""

    def __init__(self, num_slots: int) -> None:
        self.nbytes = num_slots * SLOT_BYTES
        fd = create_memfd(self.nbytes)
        self.address = map_fd(fd, self.nbytes)
        os.close(fd)
        self.pinned = PinnedRange(self.address, self.nbytes, torch.device("cuda"))
        self.free = [
            (ctypes.c_char * SLOT_BYTES).from_address(self.address + i * SLOT_BYTES)
            for i in range(num_slots)
        ]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for index in range(NUM_BATCHES):
            yield self._batch(index)

    def _batch(self, index: int) -> dict[str, Tensor]:
        slot = self.free.pop(0)
        handle = borrow(slot, lambda: self._recycle(slot))
        x = tensor_at(handle, torch.float16, (SLOT_BYTES // 8,))
        ids = tensor_at(handle, torch.int64, (SLOT_BYTES // 32,), offset=SLOT_BYTES // 2)
        return {"x": x.fill_(index % 100), "ids": ids.fill_(index), "empty": torch.empty(0, 3)}

    def _recycle(self, slot: Any) -> None:
        ctypes.memset(slot, 0xAB, SLOT_BYTES)
        self.free.append(slot)

    def close(self) -> None:
        self.pinned.release()
        unmap(self.address, self.nbytes)


class SlowCopies(TorchBackend):
    """Lets every copy wait a while, so that whoever does not wait for it is found out."""

    def copy(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        if non_blocking:
            torch.cuda._sleep(200_000)
        return super().copy(tensor, non_blocking=non_blocking)


def sums(engine: CopyEngine, *, depth: int, slots: int) -> list[tuple[float, int]]:
    """Return two sums of each batch as the device saw them; nothing waits before the end."""
    source = PinnedSlots(slots)
    batches = iter(source)
    out = []
    for batch in CopyAhead(lambda wait: next(batches), engine, depth=depth, max_held=slots):
        out.append((batch["x"].float().sum(), batch["ids"].sum()))
        del batch
    torch.cuda.synchronize()
    source.close()
    return [(float(a), int(b)) for a, b in out]


def slow_engine(cls: type[CopyEngine] = CopyEngine, **options: Any) -> CopyEngine:
    device = torch.device("cuda", torch.cuda.current_device())
    return cls(device, backend=SlowCopies(device), **options)


@pytest.mark.parametrize(("depth", "slots"), [(1, 1), (2, 2), (2, 3), (4, 3)])
def test_overlapped_equals_blocking_under_heavy_reuse(depth: int, slots: int) -> None:
    blocking = sums(CopyEngine("cuda", non_blocking=False), depth=depth, slots=2)
    assert [ids // (SLOT_BYTES // 32) for _, ids in blocking] == list(range(NUM_BATCHES))
    assert sums(slow_engine(), depth=depth, slots=slots) == blocking


@pytest.mark.parametrize("wrong", [DropsSources, DoesNotWait])
def test_a_missing_safeguard_is_seen(wrong: type[CopyEngine]) -> None:
    blocking = sums(CopyEngine("cuda", non_blocking=False), depth=2, slots=2)
    assert sums(slow_engine(wrong), depth=2, slots=3) != blocking


def test_another_consumer_stream_waits_too() -> None:
    blocking = sums(CopyEngine("cuda", non_blocking=False), depth=2, slots=2)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert sums(slow_engine(), depth=2, slots=3) == blocking


def test_no_stream_or_device_is_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: Any) -> None:
        raise AssertionError("synchronize")

    source = [Data(x=torch.full((64,), float(i)).pin_memory()) for i in range(50)]
    monkeypatch.setattr(torch.cuda, "synchronize", forbidden)
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", forbidden)
    try:
        torch.cuda.set_sync_debug_mode("error")
        seen = [batch.x.sum() for batch in DevicePrefetcher(source, "cuda")]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [float(total) for total in seen] == [64.0 * i for i in range(50)]


def test_every_kind_of_tensor_goes() -> None:
    data = HeteroData()
    data["user"].x = torch.arange(6, dtype=torch.uint8).view(2, 3)
    data["user"].code = torch.tensor([-3], dtype=torch.int8)
    data["item"].x = torch.empty(0, 3, dtype=torch.float16)
    data["item"].adj = torch.eye(3).to_sparse()
    data["user", "to", "item"].edge_index = EdgeIndex([[0, 1], [1, 0]], sparse_size=(2, 2))
    data.y_positive = {("u", "to", "i"): {0: torch.tensor([3]), 1: torch.tensor([]).long()}}
    results = [
        next(iter(DevicePrefetcher([data], "cuda", cast={"x": torch.float32}, non_blocking=waits)))
        for waits in (True, False)
    ]
    for moved in results:
        assert moved["user"].x.cpu().equal(data["user"].x.float())
        assert moved["user"].code.cpu().equal(data["user"].code)
        assert moved["item"].x.shape == (0, 3)
        assert moved["item"].x.dtype == torch.float32
        assert moved["item"].adj.to_dense().cpu().equal(torch.eye(3))
        edge_index = moved["user", "to", "item"].edge_index
        assert type(edge_index) is EdgeIndex
        assert edge_index.tolist() == [[0, 1], [1, 0]]
        assert moved.y_positive["u", "to", "i"][0].is_cuda
    assert not data["user"].x.is_cuda


def test_pinned_memory_is_seen_as_pinned_and_a_refusal_leaves_cuda_usable() -> None:
    source = PinnedSlots(2)
    assert source.pinned.is_pinned
    batch = next(iter(source))
    assert batch["x"].is_pinned()
    with pytest.raises(PinMemoryError, match="pin every mapping once"):
        PinnedRange(source.address, source.nbytes, torch.device("cuda"))
    assert float(torch.ones(3, device="cuda").sum()) == 3.0
    del batch
    source.close()
    assert not source.pinned.is_pinned
