"""What the world does to a process, for tests: each condition is made in one place.

Fixtures for all tests; `tests/conftest.py` has them loaded.
"""

import contextlib
import ctypes
import importlib
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import pytest


class SetConstants(Protocol):
    """What the fixture `constants` gives."""

    def __call__(self, module: str | ModuleType, **values: float | str) -> None:
        """Let ``module`` have other constants until the end of the test."""


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> SetConstants:
    """Other constants of a module: an interval too long to wait for, a limit too large to reach.

    Numbers and texts by the names of constants: what a module does is never replaced.
    """

    def set_to(module: str | ModuleType, **values: float | str) -> None:
        found = importlib.import_module(module) if isinstance(module, str) else module
        for name, value in values.items():
            assert name.isupper(), f"{name} is no constant"
            assert isinstance(getattr(found, name), int | float | str), f"{name} is no value"
            monkeypatch.setattr(found, name, value)

    return set_to


# --- time -----------------------------------------------------------------------------------------


class Clock:
    """A clock that a test turns by ``now``; to sleep turns it, too."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return its time, as all its hands do."""
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        """Turn it on."""
        self.now += seconds


@pytest.fixture
def clock_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Give a module a clock, the test's own or a `Clock`; return that."""

    def give(module: ModuleType, clock: Any = None) -> Any:
        found = Clock() if clock is None else clock
        monkeypatch.setattr(module, "time", found)
        return found

    return give


@pytest.fixture
def wall_clock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of this machine stands, and is an hour slow; no other clock is."""
    nanoseconds = time.time_ns() - 3600 * 10**9
    for name, told in (("time", nanoseconds / 1e9), ("time_ns", nanoseconds)):
        monkeypatch.setattr(time, name, lambda told=told: told)


# --- limits of the kernel -------------------------------------------------------------------------


@contextlib.contextmanager
def limited(which: int, limit: int) -> Iterator[None]:
    """Have the kernel refuse this process more than ``limit`` of a resource within the block."""
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (soft, hard))


def files_up_to(nbytes: int) -> contextlib.AbstractContextManager[None]:
    """Have the kernel refuse larger files of this process, those in memory too."""
    return limited(resource.RLIMIT_FSIZE, nbytes)


@contextlib.contextmanager
def no_descriptors_but(count: int) -> Iterator[None]:
    """Let this process open ``count`` more descriptors within the block."""
    free = [os.dup(0) for _ in range(count + 1)]
    for fd in free:
        os.close(fd)
    with limited(resource.RLIMIT_NOFILE, free[-1]):
        yield


# --- this process and its machine -----------------------------------------------------------------


@pytest.fixture
def take_part(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let this process be part of a graph store, through the cluster that it is called with.

    `gigl_loader.graph_store.init_compute_process` also starts a process group.
    """
    from gigl_loader.graph_store.client import compute_process  # here: not all tests need it

    return partial(monkeypatch.setattr, compute_process, "_cluster")


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say what this process was started with: a script and its words."""
    return lambda *words: monkeypatch.setattr(sys, "argv", [str(word) for word in words])


@pytest.fixture
def handlers_of_root(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the root logger have these handlers and no other, as in a program without pytest's."""
    return lambda *handlers: monkeypatch.setattr(logging.getLogger(), "handlers", [*handlers])


@pytest.fixture
def host_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is in this machine's hosts file besides: addresses by name; "": it has none so far."""
    found: dict[str, str] = {}
    known = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **how: Any) -> Any:
        address = found.get(host, host)
        if address == "":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(address, *args, **how)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return found


@pytest.fixture
def libc_is(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the C library have these functions alone; who asks for another one finds none."""

    def replace(**functions: Callable[..., Any]) -> None:
        library = SimpleNamespace(**functions)
        monkeypatch.setattr(ctypes, "CDLL", lambda name, **how: library)

    return replace


class Gpus(list[int]):
    """Bytes that are free on each GPU, by its number."""

    total = 80 * 10**9
    """Bytes of each."""
    reserved, allocated = 0, 0
    """Bytes that torch holds, and how many of them tensors use."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """The GPUs that torch finds: of a machine that has none so far, and whose first is current."""
    import torch  # here: not all tests need it

    found = Gpus()

    def number(device: Any) -> int:
        return device if isinstance(device, int) else (torch.device(device).index or 0)

    says = {
        "is_available": lambda: bool(found),
        "device_count": lambda: len(found),
        "current_device": lambda: 0,
        "get_device_name": lambda device: f"H{number(device)}00",
        "mem_get_info": lambda device: (found[number(device)], found.total),
        "memory_reserved": lambda device: found.reserved,
        "memory_allocated": lambda device: found.allocated,
    }
    for name, told in says.items():
        monkeypatch.setattr(torch.cuda, name, told)
    return found


@pytest.fixture
def torch_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let `torch.distributed` answer each question by its name with what a test gives."""

    import torch.distributed  # here: the process that only hands tests to others needs none of it

    def answer(**answers: object) -> None:
        for question, told in answers.items():
            monkeypatch.setattr(torch.distributed, question, lambda group=None, told=told: told)

    return answer


@pytest.fixture
def backends(torch_says: Callable[..., None]) -> Callable[[str], None]:
    """Let the process group have the backends that a test says, by device."""
    return lambda config: torch_says(get_backend_config=config)
