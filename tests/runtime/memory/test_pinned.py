import mmap
import os
import pickle
import resource
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, errors, partition_graph
from gigl_loader.dataset.placement import Placement
from gigl_loader.runtime.memory import pinned
from gigl_loader.runtime.memory.pinned import (
    CudaHostRegistry,
    PinMemoryError,
    PinnedRange,
    pinned_tensors,
)
from gigl_loader.runtime.sizes import size_in_words
from tests.support.conditions import Gpus

PAGE = resource.getpagesize()


class FakeRegistry(CudaHostRegistry):
    def __init__(self, code: int = 0) -> None:
        self.code, self.calls = code, list[tuple[str, int]]()

    def register(self, address: int, nbytes: int) -> int:
        self.calls.append(("pin", address))
        return self.code

    def unregister(self, address: int) -> int:
        self.calls.append(("unpin", address))
        return 0

    def describe(self, code: int) -> str:
        return "the driver said no"


def test_it_unpins_exactly_once() -> None:
    registry = FakeRegistry()
    pinned = PinnedRange(PAGE, 10, registry=registry)
    assert pinned.is_pinned
    pinned.release()
    assert not pinned.is_pinned
    pinned.release()
    del pinned
    assert registry.calls == [("pin", PAGE), ("unpin", PAGE)]


def test_a_collected_range_is_unpinned() -> None:
    registry = FakeRegistry()
    PinnedRange(PAGE, 10, registry=registry)
    assert registry.calls == [("pin", PAGE), ("unpin", PAGE)]


def test_a_forked_child_leaves_the_pinning_to_its_owner() -> None:
    registry = FakeRegistry()
    pinned = PinnedRange(PAGE, 10, registry=registry)
    child = os.fork()
    if child == 0:
        pinned.release()
        os._exit(registry.calls != [("pin", PAGE)])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pinned.release()
    assert registry.calls == [("pin", PAGE), ("unpin", PAGE)]


def test_it_does_nothing_for_a_cpu() -> None:
    assert not PinnedRange(PAGE, 10, torch.device("cpu")).is_pinned


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_it_does_nothing_without_cuda() -> None:
    assert not PinnedRange(PAGE, 10).is_pinned


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (2, "too little memory that can stay in place: .*smaller channel_size or fewer features"),
        (712, "pin every mapping once"),
        (1, "not mapped memory"),
        (999, "the log of the driver"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    code: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No limit of the process counts what CUDA's driver pins."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 20, 1 << 20))
    registry = FakeRegistry(code)
    with pytest.raises(PinMemoryError, match=hint) as caught:
        PinnedRange(PAGE, 8 << 20, registry=registry)
    assert str(caught.value).startswith("could not pin 8.0 MiB of host memory at 0x")
    assert f"the driver said no (cudaError {code})" in str(caught.value)
    assert "MEMLOCK" not in str(caught.value)
    assert isinstance(caught.value, errors.PeerError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert registry.calls == [("pin", PAGE)], "what was not pinned is not unpinned"


@pytest.mark.parametrize(("address", "nbytes"), [(0, 10), (PAGE, 0), (-1, 10), (PAGE, -1)])
def test_a_range_must_exist(address: int, nbytes: int) -> None:
    with pytest.raises(errors.ConfigError, match="address > 0 and nbytes > 0"):
        PinnedRange(address, nbytes, registry=FakeRegistry())


class FakeRuntime:
    """Keeps the code of a failure until it is asked for the last error, as after a launch."""

    def __init__(self, code: int) -> None:
        self.code, self.last_error = code, 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.last_error = self.code
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.last_error = self.code
        return self.code


class OnTheGpu:
    """A tensor. Operators launch kernels; what fills memory need not, and asks for no error."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime

    def add_(self, other: object) -> None:
        code, self.runtime.last_error = self.runtime.last_error, 0
        if code:
            raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize("code", [0, 2])
def test_a_failure_does_not_stay_behind_as_the_last_error(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, devices = FakeRuntime(code), list[torch.device]()

    def filled(*args: object, device: torch.device) -> OnTheGpu:
        devices.append(device)
        return OnTheGpu(runtime)

    cuda = SimpleNamespace(
        init=lambda: None, cudart=lambda: runtime, device=lambda device: nullcontext()
    )
    pretended = SimpleNamespace(cuda=cuda, zeros=filled, ones=filled, empty=filled)
    monkeypatch.setattr(pinned, "torch", pretended)
    registry = CudaHostRegistry(torch.device("cuda", 1))
    for call in (lambda: registry.register(PAGE, 10), lambda: registry.unregister(PAGE)):
        assert call() == code
        assert runtime.last_error == 0
    assert devices == [torch.device("cuda", 1)] * (2 if code else 0)
    assert registry.describe(code) == "refused by the CUDA runtime"


# --- tensors that are read where they lie ---------------------------------------------------------

GPU = torch.device("cuda", 0)


class CountingRegistry(FakeRegistry):
    """Notes ranges; refuses those that begin in ``refused``, a range of addresses."""

    def __init__(self, refused: range = range(0)) -> None:
        super().__init__()
        self.refused, self.ranges = refused, list[tuple[int, int]]()

    def register(self, address: int, nbytes: int) -> int:
        if address in self.refused:
            return 801
        self.ranges.append((address, nbytes))
        return 0

    def unregister(self, address: int) -> int:
        self.ranges = [one for one in self.ranges if one[0] != address]
        return 0


@pytest.fixture
def registry_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[CountingRegistry], None]:
    """Let a runtime of the test pin, and torch pin nothing."""

    def give(registry: CountingRegistry) -> None:
        monkeypatch.setattr(pinned, "default_registry", lambda device: registry)

    return give


def _pages(*ranges: tuple[int, int]) -> list[int]:
    """Return the numbers of the pages that hold ranges of (address, bytes), ascending."""
    return sorted(
        page
        for address, nbytes in ranges
        if nbytes
        for page in range(address // PAGE, -(-(address + nbytes) // PAGE))
    )


def _needed(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the numbers of the pages that hold tensors, each once."""
    return sorted(set(_pages(*((tensor.data_ptr(), tensor.nbytes) for tensor in tensors))))


def test_what_is_pinned_are_the_pages_of_the_tensors_each_once(
    registry_is: Callable[[CountingRegistry], None],
) -> None:
    """Requested bytes are needed bytes: torch would ask for the next power of two."""
    registry = CountingRegistry()
    registry_is(registry)
    memory = torch.frombuffer(mmap.mmap(-1, 300 * PAGE), dtype=torch.uint8)
    tensors = [
        memory[100 : 70 * PAGE + 100],  # ends in the page in which the next one begins
        memory[70 * PAGE + 200 : 71 * PAGE].view(torch.int64),
        memory[90 * PAGE : 90 * PAGE],  # none
        memory[200 * PAGE : 201 * PAGE].view(torch.float16).view(-1, 8),
    ]
    results, ranges = pinned_tensors(tensors, GPU)
    assert all(result is tensor for result, tensor in zip(results, tensors, strict=True))
    assert _pages(*registry.ranges) == _needed(tensors)
    assert sum(nbytes for _, nbytes in registry.ranges) == 72 * PAGE
    del ranges
    assert registry.ranges == []


def test_memory_that_cannot_be_pinned_in_place_has_a_copy_of_its_size(
    registry_is: Callable[[CountingRegistry], None], caplog: pytest.LogCaptureFixture
) -> None:
    memory = torch.frombuffer(mmap.mmap(-1, 100 * PAGE), dtype=torch.uint8)
    memory.copy_(torch.arange(100 * PAGE) % 251)
    registry = CountingRegistry(range(memory.data_ptr(), memory.data_ptr() + 50 * PAGE))
    registry_is(registry)
    tensors = [memory[8 : 3 * PAGE].view(torch.int64), memory[60 * PAGE : 61 * PAGE]]
    results, ranges = pinned_tensors(tensors, GPU)
    (said,) = caplog.messages
    assert said.startswith(f"{size_in_words(tensors[0].nbytes)} of the host could not be pinned")
    assert "takes as much memory again" in said
    assert results[1] is tensors[1]
    assert results[0].data_ptr() != tensors[0].data_ptr()
    assert results[0].dtype == torch.int64
    assert results[0].equal(tensors[0])
    assert sorted(nbytes for _, nbytes in registry.ranges) == [PAGE, 3 * PAGE]
    assert _pages(*registry.ranges) == _needed(results)
    ranges.clear()
    assert registry.ranges == []


def test_features_that_stay_on_the_host_are_pinned_in_shared_memory(
    registry_is: Callable[[CountingRegistry], None],
    monkeypatch: pytest.MonkeyPatch,
    gpus: Gpus,
    tmp_path: Path,
) -> None:
    registry = CountingRegistry()
    registry_is(registry)
    gpus.append(10**12)
    data = Data(x=torch.rand(1000, 33), edge_index=torch.randint(1000, (2, 5000)))
    partition_graph(data, 1, tmp_path)
    view = DistDataset.load(tmp_path, 0).view()
    placement = Placement(GPU, features="host")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *where, **how: tensor.clone())
    placed = placement.copy_view(view)
    features, on_host = view.node_features, placed.node_features
    for name, rows in features.items():
        assert on_host[name].values.data_ptr() == rows.values.data_ptr()
    needed = _needed(rows.values for rows in features.values())
    assert sum(nbytes for _, nbytes in registry.ranges) == len(needed) * PAGE
    placement.copy_view(view)
    assert len(registry.ranges) == 1, "once, for all loaders"
    del placement
    assert registry.ranges == []
