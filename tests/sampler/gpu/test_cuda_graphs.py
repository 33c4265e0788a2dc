"""A batch is replayed from what was captured of another one, and has its own bits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gigl_loader import DistNeighborLoader
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.testing import batch_digest
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES
from tests.sampler.gpu.tapes import TapedMemory
from tests.sampler.gpu.test_device_batches import KNOWN, REFUSED
from tests.support.sources import source_of

FEW = ("links, binary", "nodes", "nodes, by time", "nodes, labor", "typed nodes, disjoint")
ONE: dict[str, Any] = {"batch_size": 4, "seed": 5, "num_workers": 0}


@pytest.fixture(autouse=True)
def tapes(memory_of_devices: Callable[[type[DeviceMemory]], None]) -> None:
    memory_of_devices(TapedMemory)
    TapedMemory.num_captured = TapedMemory.num_launches = 0


@pytest.mark.parametrize("kernels", ["torch", "warp"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FEW else pytest.mark.wide)
        for name in sorted(set(CASES) - REFUSED)
    ],
)
def test_the_bits_of_the_cpu(name: str, kernels: Any) -> None:
    """Nothing of a batch but its roots and keys, in device memory, is needed from the host."""
    case = CASES[name]
    placed = case.partition(0, 1).to("cpu", kernels=kernels)
    assert cases.in_one_process(case, placed, num_workers=0) == KNOWN[name]
    if name in FEW:
        assert TapedMemory.num_captured > 0, "as many roots in two batches"


def test_one_capture_serves_all_batches_with_as_many_roots() -> None:
    plain, nodes = cases.partition(0, 1, typed=False), torch.arange(42)
    with DistNeighborLoader(plain, [3, 2], nodes, **ONE) as loader:
        known = [batch_digest(batch) for _ in range(2) for batch in loader]
    placed = plain.to("cpu", kernels="warp")
    with DistNeighborLoader(placed, [3, 2], nodes, **ONE) as loader:
        found = [batch_digest(batch) for _ in range(2) for batch in loader]
        replays = source_of(loader).sampler.replays
    assert found == known
    assert TapedMemory.num_captured == 1
    # all but the first batch, and the last one of each epoch, of two seeds
    assert replays.num_replayed == 2 * 11 - 1 - 2
    assert TapedMemory.num_launches > 30


def test_a_capture_that_fails_leaves_launches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*args: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(TapedMemory, "captured", refused)
    plain, nodes = cases.partition(0, 1, typed=False), torch.arange(42)
    with (
        DistNeighborLoader(plain, [3, 2], nodes, **ONE) as known,
        DistNeighborLoader(plain.to("cpu", kernels="torch"), [3, 2], nodes, **ONE) as loader,
    ):
        assert list(map(batch_digest, loader)) == list(map(batch_digest, known))
    assert caplog.text.count("captures no CUDA graph of a batch") == 1
