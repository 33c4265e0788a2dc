"""Memory that is moved into huge pages holds what it held, here and in what is forked."""

import ctypes
import mmap
import os
import random
import re
from pathlib import Path

import pytest

from gigl_loader.testing.local_processes import running_processes
from tests.support.huge_pages import SIZE, move_into_huge_pages

pytestmark = pytest.mark.multiprocess

_LENGTH = 8 * SIZE
_BYTES = random.Random(1).randbytes(_LENGTH)


def _written_memory() -> mmap.mmap:
    memory = mmap.mmap(-1, _LENGTH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # the kernel may give some by itself
    memory.write(_BYTES)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _start_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _huge_bytes_from(start: int) -> int:
    """Return the bytes in huge pages of the range of memory that begins at ``start``."""
    shown = Path("/proc/self/smaps").read_text()
    (found,) = re.findall(rf"^{start:x}-(?:.|\n)*?^AnonHugePages: +(\d+) kB", shown, re.MULTILINE)
    return int(found) * 1024


def _move_and_fork() -> None:
    memory = _written_memory()
    start = _start_of(memory)
    assert _huge_bytes_from(start) == 0
    move_into_huge_pages()
    assert memory[:] == _BYTES
    if _kernel_moves():
        assert _huge_bytes_from(start) >= _LENGTH - SIZE, "all but what is not aligned"
    child = os.fork()
    if child == 0:
        same = memory[:] == _BYTES
        memory[5 * SIZE] ^= 1
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory[:] == _BYTES, "what a child writes is its own"


def _kernel_moves() -> bool:
    """Whether the kernel moves anything into huge pages."""
    memory = _written_memory()
    aligned = -(-_start_of(memory) // SIZE) * SIZE
    collapse = 25  # MADV_COLLAPSE
    answer = ctypes.CDLL(None).madvise(ctypes.c_void_p(aligned), ctypes.c_size_t(SIZE), collapse)
    return bool(answer == 0)


def test_it_is_the_same_memory(tmp_path: Path) -> None:
    # in a process of its own: this one would have other memory from now on
    with running_processes(tmp_path) as started:
        started.join([started.start(_move_and_fork)])
