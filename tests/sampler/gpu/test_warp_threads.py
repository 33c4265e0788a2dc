"""Two loaders sample in two threads: Warp's runtime, without locks, is entered by one at a time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import warp as wp

from gigl_loader.dataset.partition.partition_view import Adjacency
from gigl_loader.sampler.gpu import warp_kernels
from gigl_loader.sampler.gpu.device_kernels import (
    DeviceDraw,
    DeviceLabels,
    TorchKernels,
    TypedPlaces,
)
from gigl_loader.sampler.gpu.warp_kernels import WarpKernels
from gigl_loader.sampler.plan import Draw

CPU = torch.device("cpu")
ROUNDS = 20


class Runtime:
    """Takes the place of the calls that enter Warp's runtime; notices a second one at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.entered_twice: list[str] = []
        self._inside: str | None = None
        launch = wp.launch
        self._guard(monkeypatch, "launch", lambda *given, stream, **how: launch(*given, **how))
        self._guard(monkeypatch, "load_module", wp.load_module)
        self._guard(monkeypatch, "stream_from_torch", lambda stream: f"Warp's {stream.cuda_stream}")
        monkeypatch.setattr(torch.cuda, "current_stream", self._stream_of_the_thread)

    def _guard(self, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., Any]) -> None:
        def guarded(*given: Any, **how: Any) -> Any:
            if self._inside is not None:
                self.entered_twice.append(f"{name} during {self._inside}")
            self._inside = name
            self.calls.append(name)
            time.sleep(0.001)  # the other thread has the interpreter meanwhile, as during a launch
            try:
                return call(*given, **how)
            finally:
                self._inside = None

        monkeypatch.setattr(wp, name, guarded)

    @staticmethod
    def _stream_of_the_thread(device: torch.device) -> Any:
        return SimpleNamespace(device_index=0, cuda_stream=threading.get_ident())


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    WarpKernels(CPU)  # compiled, if it never was
    monkeypatch.setattr(warp_kernels, "_streams", {})
    return Runtime(monkeypatch)


def _hop(kernels: TorchKernels) -> list[torch.Tensor]:
    """Return what a draw, labels and rows give."""
    indptr = torch.arange(0, 101, 10)
    view = Adjacency(indptr, torch.arange(100) % 10, None, None)
    draw = Draw(("n", "to", "n"), 4, 7)
    key = torch.tensor([7])
    drawn = kernels.draw(DeviceDraw(draw, view, torch.arange(10), torch.arange(10), key, 4))
    roots = torch.cat([torch.arange(3), torch.full((17,), -1)])
    labels = DeviceLabels(roots, torch.tensor([3]), [0, 20], torch.tensor([0, 20]))
    places = TypedPlaces([40], torch.tensor([40]))
    reached = kernels.label(labels, drawn.edges.reshape(-1) % 10, places)
    return [
        drawn.edges,
        drawn.counts,
        reached,
        kernels.gather(torch.rand(10, 3), drawn.counts % 10),
    ]


def test_two_threads_never_enter_the_runtime_at_once(runtime: Runtime) -> None:
    expected = _hop(TorchKernels(CPU))[:3]
    both = threading.Barrier(2, timeout=60)

    def sample() -> list[list[torch.Tensor]]:
        both.wait()
        kernels = WarpKernels(CPU)  # a constructor loads the module, beside the other thread's
        kernels._has_streams = True
        return [_hop(kernels)[:3] for _ in range(ROUNDS)]

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(sample) for _ in range(2)]
        found = [hop for result in results for hop in result.result(timeout=120)]
    assert runtime.entered_twice == []
    assert all(a.equal(b) for hop in found for a, b in zip(hop, expected, strict=True))
    assert runtime.calls.count("load_module") == 2, "in the constructors"
    assert runtime.calls.count("launch") >= 2 * ROUNDS * 3
    assert runtime.calls.count("stream_from_torch") == 2, "one for each stream of torch, kept"
