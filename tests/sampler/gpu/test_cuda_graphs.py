"""A batch is replayed from what was captured of another one, and has its own bits."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from gigl_loader import DistNeighborLoader
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.sources.in_process import device_source
from gigl_loader.testing import batch_digest, run_ranks
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES
from tests.sampler.gpu.tapes import TapedMemory
from tests.sampler.gpu.test_device_batches import KNOWN, REFUSED
from tests.support.sources import source_of

T = TypeVar("T")
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
    grown = replays._captured[1]
    copied = (grown._ends, grown._edges, grown._order)
    # of each place both labels and its edge are int64, and its order is int32: 32 bytes before
    assert sum(part.nbytes for part in copied) == 28 * grown._edges.numel() + 4


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


class Noting(TapedMemory):
    """Notes whether the training thread waited for a batch when one was captured."""

    waited: ClassVar[list[bool]] = []
    trainer_waits: ClassVar[bool] = False

    def captured(self, job: Callable[[], T], nbytes: int) -> tuple[T, Callable[[], None]]:
        Noting.waited.append(Noting.trainer_waits)
        return super().captured(job, nbytes)


def _captures_of(loader: Any) -> list[bool]:
    Noting.waited.clear()
    batches = iter(loader)
    for _ in range(len(loader)):
        Noting.trainer_waits = True
        next(batches)
        Noting.trainer_waits = False
        time.sleep(0.02)  # a step of the model
    return Noting.waited


def test_captures_are_made_while_the_training_thread_waits(
    memory_of_devices: Callable[[type[DeviceMemory]], None],
) -> None:
    """In the meantime torch refuses random numbers to other threads."""
    memory_of_devices(Noting)
    placed = cases.partition(0, 1, typed=False).to("cpu", kernels="torch")
    with DistNeighborLoader(placed, [3, 2], torch.arange(42), **ONE) as loader:
        assert _captures_of(loader) == [True]


def _rank_with_all_edges(rank: int, size: int, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_source, "DeviceMemory", Noting)
        part = cases.partition(rank, size, typed=False)
        placed = part.to("cpu", kernels="torch", edges="all")
        seeds = torch.arange(rank, 40, size)
        with DistNeighborLoader(placed, [3, 2], seeds, exchange="collective", **ONE) as loader:
            (folder / f"{rank}.json").write_text(json.dumps(_captures_of(loader)))


@pytest.mark.multiprocess
def test_so_are_those_of_a_thread_that_samples_ahead(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(_rank_with_all_edges, tmp_path, world_size=2, tmp_path=ranks)
    assert [(tmp_path / f"{rank}.json").read_text() for rank in range(2)] == ["[true]"] * 2
