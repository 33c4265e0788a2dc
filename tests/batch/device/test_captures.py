"""Captures of launches, one at a time, and what is left of one that was broken off."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pytest
import torch

from gigl_loader.batch.device import copy_stream
from gigl_loader.batch.device.copy_stream import TorchBackend
from gigl_loader.batch.device.device_memory import DeviceMemory

GPU = torch.device("cuda", 0)


class Generator:
    """Takes the place of CUDA's default generator, whose state knows of captures.

    Source:
        torch 2.11, ``CUDAGraph::capture_end``: it throws before the generators' epilogue.
    """

    def __init__(self) -> None:
        self.state = {"captures": False}

    def clone_state(self) -> dict[str, bool]:
        return {"captures": False}

    def graphsafe_set_state(self, state: dict[str, bool]) -> None:
        self.state = state

    def dropout(self) -> None:
        if self.state["captures"]:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")


class Stream:
    """A stream of a pool of two, which give each other's work away: of torch's there are 32."""

    made: ClassVar[int] = 0

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.handle = Stream.made % 2
        Stream.made += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.handle == other.handle

    __hash__ = None  # type: ignore[assignment]


class Driver:
    """Takes the place of torch's captures: refuses two at once, and breaks one off if told to.

    Source:
        CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": to wait for a device of
        which a stream is captured is invalid.
    """

    def __init__(self) -> None:
        self.under_way: list[Graph] = []
        self.pools: list[object] = []
        """Pools that memory is taken from."""
        self.filters: list[weakref.ref[Graph]] = []
        """Graphs that the allocator of pinned memory asks."""
        self.breaks = self.torch_cleans_up = False
        self.generator = Generator()
        self.free, self.num_emptied = 1 << 40, 0
        self._current = threading.local()

    def synchronize(self, device: torch.device) -> None:
        assert not self.under_way, "waits for the device while it captures"

    def empty_cache(self) -> None:
        assert not self.under_way
        self.num_emptied += 1

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._current.stream = getattr(self._current, "stream", None), stream
        try:
            yield
        finally:
            self._current.stream = before

    def launch(self) -> str:
        """Return what becomes of a launch on the calling thread's current stream."""
        stream = self._current.stream
        return "captured" if any(one.stream == stream for one in self.under_way) else "done"

    def begin(self, graph: "Graph", pool: object) -> None:
        assert not gc.isenabled()
        graph.stream, graph.pool = self._current.stream, pool
        self.under_way.append(graph)
        self.pools.append(pool)
        self.filters.append(weakref.ref(graph))
        self.generator.state["captures"] = True

    def end(self, graph: "Graph") -> None:
        self.under_way.remove(graph)
        if not self.breaks or self.torch_cleans_up:
            self.pools.remove(graph.pool)
            self.filters.clear()
        if self.breaks:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.generator.state["captures"] = False

    def end_pool(self, device: int, pool: object) -> None:
        if pool not in self.pools:
            raise RuntimeError("not currently recording to this pool")
        self.pools.remove(pool)

    def pin(self) -> None:
        """Allocate pinned memory."""
        gc.collect()
        assert all(graph() is not None for graph in self.filters), "a filter without its graph"


class Graph:
    stream: Any
    pool: object

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self._driver.begin(self, pool)

    def capture_end(self) -> None:
        self._driver.end(self)

    def replay(self) -> None:
        pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    pretended = {
        "Stream": Stream,
        "stream": driver.stream,
        "device": lambda device: nullcontext(),
        "CUDAGraph": lambda: Graph(driver),
        "graph_pool_handle": object,
        "synchronize": driver.synchronize,
        "empty_cache": driver.empty_cache,
        "mem_get_info": lambda device: (driver.free, 1 << 40),
        "default_generators": (driver.generator,),
    }
    for name, value in pretended.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", driver.end_pool, raising=False)
    monkeypatch.setattr(copy_stream, "_capture_streams", {})
    return driver


def test_loaders_in_two_threads_capture_one_after_the_other(driver: Driver) -> None:
    memory = DeviceMemory(GPU)
    is_inside, goes_on = threading.Event(), threading.Event()
    results: list[str] = []

    def capture(job: Callable[[], str]) -> None:
        results.append(memory.captured(job, 0)[0])

    def first() -> str:
        is_inside.set()
        assert goes_on.wait(60)
        return "first"

    threads = [threading.Thread(target=capture, args=(job,)) for job in (first, lambda: "second")]
    threads[0].start()
    assert is_inside.wait(60)
    threads[1].start()
    assert results == []
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert results == ["first", "second"]
    assert gc.isenabled()


@pytest.mark.parametrize("why", ["its job", "the driver", "the driver, of which torch knows"])
def test_one_that_fails_leaves_no_pool_that_takes_memory(driver: Driver, why: str) -> None:
    def job() -> None:
        if why == "its job":
            raise RuntimeError("a shape that depends on a value")
        driver.breaks, driver.torch_cleans_up = True, why != "the driver"

    memory = DeviceMemory(GPU)
    with pytest.raises(RuntimeError, match="a shape" if why == "its job" else "previous error"):
        memory.captured(job, 0)
    assert driver.pools == []
    assert gc.isenabled()
    driver.generator.dropout()  # of the model, whose next step draws
    driver.pin()
    driver.breaks = False
    assert memory.captured(lambda: 7, 0)[0] == 7


def test_why_a_job_failed_is_told_if_it_broke_the_capture_off(driver: Driver) -> None:
    def job() -> None:
        driver.breaks = True
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        DeviceMemory(GPU).captured(job, 0)
    driver.pin()


def test_a_capture_swallows_nothing_of_other_threads(driver: Driver) -> None:
    """With as many streams as torch gives out, those of two loaders are one and the same."""
    memories = [DeviceMemory(GPU) for _ in range(3)]
    copies = TorchBackend(GPU).copy_stream
    found: list[str] = []

    def launches() -> None:
        for memory in memories:
            with memory.in_use():
                found.append(driver.launch())
        with driver.stream(copies):
            found.append(driver.launch())

    def job() -> str:
        other = threading.Thread(target=launches)
        other.start()
        other.join(60)
        return driver.launch()

    for memory in memories:
        with memory.in_use():
            assert memory.captured(job, 0)[0] == "captured"
            assert driver.launch() == "done", "on its own stream again"
    assert found == ["done"] * 12


def test_torch_keeps_its_memory_where_the_graph_fits_beside_it(driver: Driver) -> None:
    """To empty its caches for each loader would let the model allocate all of its memory again."""
    memory = DeviceMemory(GPU)
    for nbytes, emptied in ((driver.free, 0), (driver.free + 1, 1)):
        memory.captured(lambda: 7, nbytes)
        assert driver.num_emptied == emptied


@pytest.mark.parametrize(
    ("version", "may"), [("2.4.1", False), ("2.6.0+cu124", False), ("2.7.0", True), ("2.13", True)]
)
def test_replays_of_an_old_torch_would_write_to_what_graphs_of_the_user_read(
    driver: Driver, version: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed and offset of the default generator, at each replay, on the stream of the replay."""
    memory = DeviceMemory(GPU)
    monkeypatch.setattr(torch, "__version__", version)
    assert memory.can_capture == may
    assert not DeviceMemory(torch.device("cpu")).can_capture
