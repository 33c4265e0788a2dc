"""The way to a device through real workers and their slots, on a pretend GPU.

That letting go of a slot too early is noticed there is shown in tests/device.
"""

from collections.abc import Iterator

import pytest
import torch

from gigl_loader import DistNeighborLoader
from gigl_loader.batch.device.prefetch import CopyEngine
from gigl_loader.batch.message import stays_on_host
from gigl_loader.testing import TinyGraph
from tests.batch.device.fake_gpu import FakeGpu

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]

GRAPH = TinyGraph.random(80, 600)
FIELDS = ("x", "n_id", "edge_index", "y", "batch")


class FakeDeviceLoader(DistNeighborLoader):
    """Copies to the pretend GPU that a test puts into it."""

    def _make_engine(self) -> CopyEngine:
        return CopyEngine("cpu", backend=FakeGpu("eager"), keep_on_host=stays_on_host)

    def use(self, gpu: FakeGpu) -> None:
        self._engine = CopyEngine("cpu", backend=gpu, keep_on_host=stays_on_host)


@pytest.fixture(scope="module")
def loader() -> Iterator[FakeDeviceLoader]:
    with FakeDeviceLoader(
        GRAPH.dataset(), [4, 3], torch.arange(80), batch_size=4, worker_concurrency=1, seed=5
    ) as one:
        yield one


def seen(loader: FakeDeviceLoader, gpu: FakeGpu, epoch: int) -> list[list[bytes]]:
    """Return the bytes that kernels read of each batch; each is dropped once they are queued."""
    loader.set_epoch(epoch)
    for batch in loader:
        gpu.read([batch[name] for name in FIELDS if name in batch])
        del batch
    gpu.finish_all()
    return gpu.results


@pytest.mark.parametrize("schedule", ["lazy", "copy_first", "compute_first", "random"])
def test_slots_are_reused_only_after_their_copies(loader: FakeDeviceLoader, schedule: str) -> None:
    eager = FakeGpu("eager")
    loader.use(eager)
    expected = seen(loader, eager, epoch=3)
    late = FakeGpu(schedule, seed=1)
    loader.use(late)
    assert seen(loader, late, epoch=3) == expected
    assert len(expected) == len(loader) == 20


def test_breaking_off_leaves_nothing_for_the_next_epoch(loader: FakeDeviceLoader) -> None:
    gpu = FakeGpu("lazy")
    loader.use(gpu)
    loader.set_epoch(8)
    for step, _ in enumerate(loader):
        if step == 2:
            break
    del _
    assert loader.state_dict()["yielded"] == 3  # handed over, not copied ahead
    eager = FakeGpu("eager")
    loader.use(eager)
    first = seen(loader, eager, epoch=9)
    again = FakeGpu("eager")
    loader.use(again)
    assert seen(loader, again, epoch=9) == first
