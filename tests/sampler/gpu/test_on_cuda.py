"""The same on a real GPU: the bits of the CPU, no wait at a launch, rows over the bus.

Run by ``make gpu``; nothing here is needed where there is no GPU.
"""

import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistNeighborLoader
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.batch.leases import own_messages
from gigl_loader.batch.message import BatchTicket
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.testing import batch_digest, wait_until
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES
from tests.sampler.gpu.test_device_batches import REFUSED
from tests.support.sources import source_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no gpu on this machine"),
]
KNOWN = json.loads((Path(cases.__file__).parent / "digests.json").read_text())
KERNELS = ["torch", *(["warp"] if importlib.util.find_spec("warp") else [])]
ONE: dict[str, Any] = {"batch_size": 4, "seed": 5, "num_workers": 0}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", sorted(set(CASES) - REFUSED))
def test_the_bits_of_the_cpu(name: str, kernels: Any) -> None:
    case = CASES[name]
    dataset = case.partition(0, 1).to("cuda", kernels=kernels)
    assert cases.in_one_process(case, dataset, num_workers=0) == KNOWN[name]


@pytest.mark.parametrize("kernels", KERNELS)
def test_features_that_stay_on_the_host(kernels: Any) -> None:
    nodes, plain = torch.arange(40), cases.partition(0, 1, typed=False)
    with DistNeighborLoader(plain, [3, 2], nodes, **ONE) as loader:
        known = [batch_digest(batch) for batch in loader]
    for cache in (None, "30%"):
        placed = plain.to("cuda", kernels=kernels, features="host", cache=cache)
        with DistNeighborLoader(placed, [3, 2], nodes, **ONE) as loader:
            batches = list(loader)
        assert all(batch.x.is_cuda for batch in batches)
        assert [batch_digest(batch) for batch in batches] == known


@contextmanager
def waits_are_errors() -> Iterator[None]:
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("count", [4, 3], ids=["replayed", "launched"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_no_launch_waits(kernels: Any, count: int) -> None:
    """What would wait for the device raises: torch watches its own calls."""
    nodes, placed = torch.arange(40), cases.partition(0, 1, typed=True).to("cuda", kernels=kernels)
    with DistNeighborLoader(placed, [3, 2], ("user", nodes), **ONE) as loader:
        list(loader)  # kernels are compiled, memory is allocated, launches are captured
        sampler, seeds = source_of(loader).sampler, nodes[:count].numpy()
        request, memory = SampleRequest(BatchTicket(0, 1, 0, 0), seeds, seeds), own_messages()
        with waits_are_errors():
            launched = sampler.launch(*sampler.place(request))
            launched.roots.write(memory)
        torch.cuda.synchronize()
        _, rows = sampler.finish(sampler.cut(launched))
        assert rows.lent()["user.x"].is_cuda


def test_the_device_may_be_named_without_its_number() -> None:
    nodes, placed = torch.arange(40), cases.partition(0, 1, typed=False).to("cuda")
    for how in ({"device": "cuda"}, {"pin_memory_device": torch.device("cuda")}):
        with DistNeighborLoader(placed, [3, 2], nodes, **how, **ONE) as loader:
            assert all(batch.x.is_cuda for batch in loader)


def test_a_capture_that_is_broken_off_costs_no_memory() -> None:
    """To wait for the device breaks it off; torch then holds what streams lend back for good."""
    memory = DeviceMemory(torch.device("cuda"))
    with memory.in_use(), pytest.raises(RuntimeError):
        memory.captured(torch.cuda.synchronize, 0)
    before = torch.cuda.memory_reserved()
    for _ in range(50):
        with memory.in_use():
            lent = memory.empty(4 << 20)
        memory.lend([lent])
        del lent
        torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= before + (50 << 20)
    name = sorted(set(CASES) - REFUSED)[0]
    dataset = CASES[name].partition(0, 1).to("cuda")
    assert cases.in_one_process(CASES[name], dataset, num_workers=0) == KNOWN[name]


def test_one_cuda_graph_serves_all_padded_batches() -> None:
    placed = cases.partition(0, 1, typed=False).to("cuda")
    model = GraphSAGE(3, 8, num_layers=2, out_channels=4).cuda()
    with (
        torch.no_grad(),
        DistNeighborLoader(placed, [3, 2], torch.arange(40), pad=True, **ONE) as loader,
    ):
        batches = list(loader)
        x, edge_index = batches[0].x.clone(), batches[0].edge_index.clone()
        model(x, edge_index)  # what is made once is made before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = model(x, edge_index)
        for batch in batches:
            x.copy_(batch.x)
            edge_index.copy_(batch.edge_index)
            graph.replay()
            torch.testing.assert_close(found, model(batch.x, batch.edge_index))


@contextmanager
def events_are_asked_for() -> Iterator[Callable[[], int]]:
    """Let a thread ask for an event all the time, as loaders of partitions and NCCL do.

    Yields what returns how often it has asked.
    """
    memory, is_over, num_asked = DeviceMemory(torch.device("cuda")), threading.Event(), 0
    with memory.in_use():
        event = memory.mark()

    def ask() -> None:
        nonlocal num_asked
        while not is_over.is_set():
            memory.wait(event, 60.0)
            num_asked += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        wait_until(lambda: num_asked, "the thread asks", 60.0)
        yield lambda: num_asked
    finally:
        is_over.set()
        thread.join(60.0)


def test_a_capture_survives_a_thread_that_asks_for_events() -> None:
    values, graph = torch.ones(1000, device="cuda"), torch.cuda.CUDAGraph()
    with events_are_asked_for() as num_asked:
        before = num_asked()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            doubled = values * 2
            wait_until(lambda: num_asked() > before + 100, "it asks during the capture", 60.0)
        graph.replay()
    assert doubled.sum().item() == 2000


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("how", [{}, {"sampling_method": "labor"}, {"disjoint": True}])
def test_launches_of_a_batch_are_captured_and_replayed(how: dict[str, Any], kernels: Any) -> None:
    nodes, plain = ("user", torch.arange(40)), cases.partition(0, 1, typed=True)
    with DistNeighborLoader(plain, [3, 2], nodes, **ONE, **how) as loader:
        known = [batch_digest(batch) for _ in range(2) for batch in loader]
    placed = plain.to("cuda", kernels=kernels)
    with events_are_asked_for(), DistNeighborLoader(placed, [3, 2], nodes, **ONE, **how) as loader:
        assert [batch_digest(batch) for _ in range(2) for batch in loader] == known
        assert source_of(loader).sampler.replays.num_replayed == 2 * 10 - 1, "all but the first"
