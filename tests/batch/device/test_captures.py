"""Captures of launches, one at a time, and what is left of one that was broken off."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.batch.device.device_memory import DeviceMemory


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


class Driver:
    """Takes the place of torch's captures: refuses two at once, and breaks one off if told to.

    Source:
        CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": to wait for a device of
        which a stream is captured is invalid, and torch waits for it before it captures.
    """

    def __init__(self) -> None:
        self.under_way: list[object] = []
        self.pools: list[object] = []
        """Pools that memory is taken from."""
        self.breaks = False
        self.generator = Generator()

    @contextmanager
    def capture(self, graph: Any, pool: Any, stream: Any, **how: Any) -> Iterator[None]:
        assert not self.under_way, "waits for the device while it captures"
        assert not gc.isenabled()
        self.under_way.append(graph)
        self.pools.append(pool)
        self.generator.state["captures"] = True
        try:
            yield
        finally:
            self.under_way.remove(graph)
            self._end(pool)

    def _end(self, pool: object) -> None:
        if self.breaks:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.generator.state["captures"] = False
        self.pools.remove(pool)

    def end(self, device: int, pool: object) -> None:
        if pool not in self.pools:
            raise RuntimeError("not currently recording to this pool")
        self.pools.remove(pool)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "graph", driver.capture)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", driver.end, raising=False)
    monkeypatch.setattr(torch.cuda, "default_generators", (driver.generator,))
    return driver


def test_loaders_in_two_threads_capture_one_after_the_other(driver: Driver) -> None:
    memory = DeviceMemory(torch.device("cpu"))
    is_inside, goes_on = threading.Event(), threading.Event()
    results: list[str] = []

    def capture(job: Callable[[], str]) -> None:
        results.append(memory.captured(job)[0])

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


@pytest.mark.parametrize("why", ["its job", "the driver"])
def test_one_that_fails_leaves_no_pool_that_takes_memory(driver: Driver, why: str) -> None:
    def job() -> None:
        if why == "its job":
            raise RuntimeError("a shape that depends on a value")
        driver.breaks = True

    memory = DeviceMemory(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="previous error" if why == "the driver" else "a shape"):
        memory.captured(job)
    assert driver.pools == []
    assert gc.isenabled()
    driver.generator.dropout()  # of the model, whose next step draws
    driver.breaks = False
    assert memory.captured(lambda: 7)[0] == 7
