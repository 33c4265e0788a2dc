"""Memory for rows that ranks exchange: what is asked of torch's streams, in which order."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.batch.device.device_memory import DeviceMemory


def test_without_streams_the_host_waits_for_each_copy() -> None:
    memory = DeviceMemory(torch.device("cpu"))
    host = memory.on_host(6)
    assert (host.dtype, host.shape, host.is_pinned()) == (torch.uint8, (6,), False)
    host[:] = torch.arange(6)
    with memory.in_use():
        out = memory.empty(3)
        assert (out.dtype, out.shape, out.device.type) == (torch.uint8, (3,), "cpu")
        uploaded = memory.uploaded(host)
    assert uploaded.tolist() == list(range(6))
    assert memory.mark() is None, "there is nothing that a stream would have to wait for"
    memory.lend([uploaded])


class _Cuda:
    """Stands for ``torch.cuda``: notes on which stream, of which device, things happen."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[Any] = []
        self.streams, self.devices = ["default"], [torch.device("cuda", 0)]
        names = ("Stream", "stream", "device", "Event", "current_device", "current_stream")
        for name in names:
            patch.setattr(torch.cuda, name, getattr(self, name))

    def Stream(self, device: torch.device, priority: int) -> str:
        return f"own of {device}"

    @contextlib.contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self.streams.append(stream)
        yield
        self.streams.pop()

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.devices.append(device)
        yield
        self.devices.pop()

    def current_device(self) -> int:
        return self.devices[-1].index

    def current_stream(self, device: torch.device) -> str:
        return f"{self.streams[-1]} of {device}"

    def Event(self) -> Any:
        return SimpleNamespace(record=lambda stream: self.log.append(("event", stream)))


def test_on_cuda_all_happens_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _Cuda(monkeypatch)
    cuda.devices.append(torch.device("cuda", 2))
    memory = DeviceMemory(torch.device("cuda"))
    assert memory.device == torch.device("cuda", 2), "the current one, whatever threads have later"
    cuda.devices.pop()
    with memory.in_use():
        assert (cuda.streams[-1], cuda.devices[-1].index) == ("own of cuda:2", 2)
    assert (cuda.streams, len(cuda.devices)) == (["default"], 1)
    assert memory.mark() is not None
    assert cuda.log == [("event", "own of cuda:2")]
    lent: list[str] = []
    rows: list[Any] = [SimpleNamespace(record_stream=lent.append)] * 2
    memory.lend(rows)
    assert lent == ["default of cuda:2"] * 2, "whoever computes with them, not the exchange"


def test_a_copy_is_pinned_and_not_waited_for_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    _Cuda(monkeypatch)
    memory, asked = DeviceMemory(torch.device("cuda", 1)), []
    monkeypatch.setattr(torch, "empty", lambda size, **how: asked.append((size, how)))
    memory.on_host(8)
    assert asked == [(8, {"dtype": torch.uint8, "pin_memory": True, "device": "cpu"})]
    host: Any = SimpleNamespace(to=lambda device, **how: (device, how))
    device, how = memory.uploaded(host)
    assert (device, how) == (torch.device("cuda", 1), {"non_blocking": True})
