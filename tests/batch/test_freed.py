"""Memory that was freed goes back to the kernel."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from gigl_loader.runtime.memory.tensors import give_back_freed


def _resident_bytes() -> int:
    shown = Path("/proc/self/status").read_text()
    return int(shown[shown.index("VmRSS:") :].split()[1]) * 1024


def test_pages_between_blocks_that_are_used_are_given_back() -> None:
    """By itself malloc keeps them: it gives a heap back from its top only."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("no glibc")
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    nbytes = 60_000  # small enough to be of a heap, not of a mapping of its own
    blocks = [libc.malloc(nbytes) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, nbytes)
    for block in blocks[:-1]:
        libc.free(block)
    before = _resident_bytes()
    give_back_freed()
    assert _resident_bytes() < before - 500 * nbytes
    libc.free(blocks[-1])


def test_another_libc_is_left_alone(libc_is: Callable[..., None]) -> None:
    libc_is()
    give_back_freed()
