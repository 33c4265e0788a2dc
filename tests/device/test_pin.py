import os
import pickle
import resource
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from gigl_loader import errors
from gigl_loader.device import prefetch
from gigl_loader.device.prefetch import CudaHostRegistry, PinMemoryError, PinnedRange

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
    ("code", "limit", "hint"),
    [
        (2, 1 << 20, "RLIMIT_MEMLOCK is 1.0 MiB"),
        (2, resource.RLIM_INFINITY, "make the channel smaller"),
        (712, 1 << 20, "pin every mapping once"),
        (1, 1 << 20, "not mapped memory"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    code: int, limit: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    registry = FakeRegistry(code)
    with pytest.raises(PinMemoryError, match=hint) as caught:
        PinnedRange(PAGE, 8 << 20, registry=registry)
    assert str(caught.value).startswith("could not pin 8.0 MiB of host memory at 0x")
    assert f"the driver said no (cudaError {code})" in str(caught.value)
    assert isinstance(caught.value, errors.PeerError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert registry.calls == [("pin", PAGE)], "what was not pinned is not unpinned"


@pytest.mark.parametrize(("address", "nbytes"), [(0, 10), (PAGE, 0), (-1, 10), (PAGE, -1)])
def test_a_range_must_exist(address: int, nbytes: int) -> None:
    with pytest.raises(errors.ConfigError, match="address > 0 and nbytes > 0"):
        PinnedRange(address, nbytes, registry=FakeRegistry())


class FakeRuntime:
    def __init__(self, code: int) -> None:
        self.code = code

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        return self.code


@pytest.mark.parametrize("code", [0, 2])
def test_a_failure_does_not_stay_behind_as_the_last_error(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []

    def zeros(size: int, device: torch.device) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")  # torch finds the old error here

    cuda = SimpleNamespace(
        init=lambda: None, cudart=lambda: FakeRuntime(code), device=lambda device: nullcontext()
    )
    monkeypatch.setattr(prefetch, "torch", SimpleNamespace(cuda=cuda, zeros=zeros))
    registry = CudaHostRegistry(torch.device("cuda", 1))
    assert registry.register(PAGE, 10) == code
    assert registry.unregister(PAGE) == code
    assert launched == [torch.device("cuda", 1)] * (2 if code else 0)
    assert registry.describe(code) == "refused by the CUDA runtime"
