"""No memory of a device is used, or given away, while another stream may still work on it."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gigl_loader import DistNeighborLoader
from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.placement import Placement
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.sources.in_process import device_source
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES
from tests.sampler.gpu.streams import StreamedMemory, Streams, Watch
from tests.sampler.gpu.test_device_batches import KNOWN, REFUSED
from tests.support.sources import source_of

ONE: dict[str, Any] = {"batch_size": 4, "seed": 5, "num_workers": 0}


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    """Pretended streams; at the end nothing may have gone wrong."""
    made = Streams()
    watched = type("MemoryOfThisTest", (StreamedMemory,), {"streams": made})
    monkeypatch.setattr(device_source, "DeviceMemory", watched)
    copy_view = Placement.copy_view

    def copied(place: Placement, view: Any) -> Any:
        placed = copy_view(place, view)
        made.host_waits()  # copies from memory that is not pinned are over when they return
        return placed

    monkeypatch.setattr(Placement, "copy_view", copied)
    with Watch(made):
        yield made
        gc.collect()
    assert made.num_checked > 0, "nothing went from stream to stream"
    assert made.errors == []


FEW = ("links, triplet", "nodes", "nodes, by time", "typed anchors", "typed nodes, disjoint")
"""One of each kind of roots, keys and rows."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FEW else pytest.mark.wide)
        for name in sorted(set(CASES) - REFUSED)
    ],
)
def test_every_batch(name: str, streams: Streams) -> None:
    case = CASES[name]
    with torch.utils._python_dispatch._disable_current_modes():
        dataset = case.partition(0, 1)  # of the host
    placed = dataset.to("cpu", kernels="torch")
    assert cases.in_one_process(case, placed, num_workers=0) == KNOWN[name]


@pytest.mark.parametrize("cache", [None, "30%"])
def test_loaders_that_are_built_and_dropped_in_mid_training(
    cache: str | None, streams: Streams
) -> None:
    """Kernels of the model are pending on the default stream, and own memory that was freed."""
    with torch.utils._python_dispatch._disable_current_modes():
        plain = cases.partition(0, 1, typed=False)
    nodes = torch.arange(40)
    placed = plain.to("cpu", kernels="torch", features="host", cache=cache)
    with DistNeighborLoader(placed, [3, 2], nodes, **ONE) as loader:
        for batch in loader:
            step = batch.x.sum() + batch.edge_index.sum()
        for at, batch in enumerate(loader):
            step = step + batch.x.sum()
            if at == 2:
                with DistNeighborLoader(placed, [3, 2], nodes, **ONE) as second:
                    for _, other in zip(range(3), second, strict=False):
                        step = step + other.x.sum()
        first = iter(loader)
        next(first)
        sampler, seeds = source_of(loader).sampler, nodes[:4].numpy()
        request = SampleRequest(BatchTicket(0, 1, 0, 0), seeds, seeds)
        launched = sampler.launch(*sampler.place(request))  # which nobody takes
    placed.to("cpu")  # its copies go with the last loader, while that batch is under way
    del loader, first, placed, sampler, launched


# --- that mistakes are seen -----------------------------------------------------------------------


@pytest.fixture
def watched() -> Iterator[tuple[Streams, StreamedMemory]]:
    made = Streams()
    memory = type("MemoryOfThisTest", (StreamedMemory,), {"streams": made})
    with Watch(made):
        yield made, memory(torch.device("cpu"))


def _used_before_it_was_written(streams: Streams, memory: StreamedMemory) -> None:
    with memory.in_use():
        values = torch.ones(3)
    values.sum()


def _allocated_elsewhere(streams: Streams, memory: StreamedMemory) -> None:
    slots = torch.empty(3)
    with memory.in_use():
        slots.fill_(1)


def _freed_while_it_is_read(streams: Streams, memory: StreamedMemory) -> None:
    with memory.in_use():
        values = torch.ones(3)
    memory.follow(memory.mark())
    values.sum()


def _written_while_it_is_read(streams: Streams, memory: StreamedMemory) -> None:
    with memory.in_use():
        values = torch.ones(3)
    memory.follow(memory.mark())
    memory.lend([values])
    values.sum()
    with memory.in_use():
        values.fill_(2)


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (_used_before_it_was_written, "does not wait for what side 1 does"),
        (_allocated_elsewhere, "does not wait for what default does"),
        (_freed_while_it_is_read, "memory of side 1 is freed while default uses it"),
        (_written_while_it_is_read, "is written while default reads it"),
    ],
)
def test_mistakes_are_seen(
    mistake: Callable[[Streams, StreamedMemory], None],
    error: str,
    watched: tuple[Streams, StreamedMemory],
) -> None:
    mistake(*watched)
    gc.collect()
    assert any(error in one for one in watched[0].errors), watched[0].errors
