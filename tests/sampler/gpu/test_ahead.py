"""The host does not wait for a device that is two steps behind it: counted, on a pretended one."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.testing import batch_digest
from tests.loader import digest_cases as cases

MARKS = 3
"""Events of a batch: launched, cut, finished."""


class LateMemory(DeviceMemory):
    """Memory of a device that passes an event when the host is two batches further."""

    last: ClassVar["LateMemory"]
    """That of the source that was built last."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        LateMemory.last = self
        self.marks, self.waits = 0, 0
        self.followed: list[int] = []
        self.lent: set[int] = set()

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def has_passed(self, event: int) -> bool:
        return self.marks >= event + 2 * MARKS

    def wait(self, event: int, timeout_s: float) -> bool:
        self.waits += not self.has_passed(event)
        return True

    def follow(self, event: int) -> None:
        """Streams wait for each other, not the host."""
        self.followed.append(event)

    def lend(self, tensors: Iterable[torch.Tensor]) -> None:
        self.lent |= {one.untyped_storage().data_ptr() for one in tensors}


@pytest.fixture
def late_device(memory_of_devices: Callable[[type[DeviceMemory]], None]) -> None:
    memory_of_devices(LateMemory)


def _placed(**how: Any) -> DistDataset:
    return cases.partition(0, 1, typed=False).to("cpu", kernels="torch", **how)


def _waits(dataset: DistDataset, concurrency: int, batches: int) -> int:
    """Return how often the host waited in an epoch of so many batches."""
    nodes = torch.arange(cases.NODES).repeat(8)[: 4 * batches]
    with DistNeighborLoader(
        dataset, [3, 2], nodes, batch_size=4, seed=5, num_workers=0, worker_concurrency=concurrency
    ) as loader:
        found, memory = [batch_digest(batch) for batch in loader], LateMemory.last
        assert len(found) == batches
        assert memory.marks == MARKS * batches
        return memory.waits


@pytest.mark.usefixtures("late_device")
@pytest.mark.parametrize("how", [{}, {"features": "host"}])
def test_the_host_waits_for_the_first_and_last_batches_alone(how: dict[str, Any]) -> None:
    """For two each: nothing was launched before the first ones, and nothing after the last."""
    dataset = _placed(**how)
    assert _waits(dataset, 2, 10) == _waits(dataset, 2, 40) <= 4
    assert _waits(dataset, 1, 40) >= 39, "with one batch under way there is no time: it is seen"


@pytest.mark.usefixtures("late_device")
def test_batches_are_handed_over_to_the_stream_that_takes_them() -> None:
    """It waits for the last event of each, and their memory is kept for it."""
    with DistNeighborLoader(
        _placed(), [3, 2], torch.arange(40), batch_size=4, seed=5, num_workers=0, with_edge=True
    ) as loader:
        memory = LateMemory.last
        for number, batch in enumerate(loader):
            assert len(memory.followed) == number + 1
            assert memory.followed[-1] <= memory.marks
            assert len(set(memory.followed)) == number + 1, "an event of its own"
            for name in ("x", "y", "n_id", "e_id", "edge_index", "edge_attr"):
                assert batch[name].untyped_storage().data_ptr() in memory.lent, name


@pytest.mark.usefixtures("late_device")
def test_nor_for_ids_of_rows_that_are_kept() -> None:
    """Batches are drawn so far ahead that ids have come when the cache asks for them."""
    dataset = _placed(features="host", cache="40%")
    assert _waits(dataset, 2, 40) <= _waits(dataset, 2, 10) + 2
