"""Rows of mapped files are asked for before they are read: which pages, when, and when not."""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.partition.partition_view import Rows
from gigl_loader.runtime.memory import read_ahead
from gigl_loader.runtime.memory.segments import MappedFile, mapped_file_at
from gigl_loader.runtime.memory.tensors import map_file
from gigl_loader.sampler.rows.row_exchange import gather_rows, located
from gigl_loader.testing import wait_until
from tests.support.conditions import SetConstants

PAGE = mmap.PAGESIZE
ROWS, WIDTH = 4096, PAGE // 4
"""A row is a page."""


@pytest.fixture
def values(tmp_path: Path) -> np.ndarray:
    """A matrix in a file; out of memory, where the file system lets go of it."""
    path = tmp_path / "rows.bin"
    path.write_bytes(np.arange(ROWS, dtype=np.int32).repeat(WIDTH).tobytes())
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return map_file(path, "int32", (ROWS, WIDTH)).numpy()


@pytest.fixture(autouse=True)
def _memory_is_as_before() -> Iterator[None]:
    """Whether files fit is known for the whole process."""
    was_set = read_ahead.do_not_fit.is_set()
    read_ahead.do_not_fit.clear()
    yield
    if was_set:
        read_ahead.do_not_fit.set()
    else:
        read_ahead.do_not_fit.clear()


def _mapped(values: np.ndarray) -> MappedFile:
    """Return what is known of the file under an array."""
    found = mapped_file_at(values.ctypes.data)
    assert found is not None
    return found


def resident(values: np.ndarray) -> np.ndarray:
    """Return ``[num_pages]`` bool: which pages the kernel has in memory."""
    found = ctypes.create_string_buffer(-(-values.nbytes // PAGE))
    libc = ctypes.CDLL(None)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    assert libc.mincore(values.ctypes.data, values.nbytes, found) == 0
    return np.frombuffer(found.raw, np.uint8) & 1 == 1


def test_pages_come_before_they_are_touched(values: np.ndarray) -> None:
    rows = np.random.default_rng(1).permutation(np.arange(0, ROWS, 40))
    there = resident(values)
    if there.all():
        assert read_ahead.want(values, rows) == 0
        return  # a file system that is memory itself
    rows = rows[~there[rows]]  # the kernel may have kept a few
    assert read_ahead.want(values, rows) == rows.size
    wait_until(lambda: resident(values)[rows].all(), "all pages that were asked for are there")
    read = resident(values).sum() - there.sum()
    assert read < ROWS / 4, "pages that nobody asked for were read"
    assert read_ahead.want(values, rows) == 0, "asked for again"
    out = np.empty((rows.size, WIDTH), np.int32)
    gather_rows([(values, rows, None)], out)
    assert (out == rows[:, None]).all()


def test_what_is_in_memory_is_not_asked_for(values: np.ndarray) -> None:
    rows = np.arange(100)
    assert read_ahead.want(np.zeros((ROWS, WIDTH), np.int32), rows) == 0
    assert read_ahead.want(torch.zeros(ROWS, WIDTH).share_memory_().numpy(), rows) == 0
    values.sum()
    assert read_ahead.want(values, rows) == 0


@pytest.mark.parametrize("fits", [False, True])
def test_the_kernel_reads_on_only_where_files_fit_into_memory(
    fits: bool, values: np.ndarray, tmp_path: Path, constants: SetConstants
) -> None:
    (tmp_path / "other.bin").write_bytes(bytes(64 * PAGE))
    other = map_file(tmp_path / "other.bin", "int32", (64, WIDTH)).numpy()
    (tmp_path / "proc").mkdir()
    available = values.nbytes // 1024 * 10 * fits
    (tmp_path / "proc" / "meminfo").write_text(f"MemAvailable: {available:10} kB\n")
    constants(read_ahead, _ROOT=str(tmp_path))
    _mapped(values).tells_residency = False
    read_ahead.want(values, np.arange(0, ROWS, 40))
    shown = Path("/proc/self/smaps").read_text()
    for mapped in (values, other):  # what is read on in any of them takes the memory of all
        mapping = shown[shown.index(f"{mapped.ctypes.data:x}-") :]
        flags = mapping[mapping.index("VmFlags:") :].split("\n")[0].split()
        assert ("rr" in flags) == (not fits), "rr: read at random"
    assert read_ahead.do_not_fit.is_set() == (not fits)


def test_more_pages_are_looked_at_where_files_do_not_fit(
    values: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def look(at: np.ndarray) -> bool:
        looked.append(at.size)
        return True

    monkeypatch.setattr(read_ahead, "_is_resident", look)
    rows = np.arange(ROWS)
    for at_random in (False, True):
        _mapped(values).at_random = at_random
        assert read_ahead.want(values, rows) == 0
    assert looked == [32, 256]


def test_rows_that_an_index_finds_are_asked_for_after_its_own(
    values: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(
        read_ahead, "want", lambda array, rows: asked.append((array.ctypes.data, rows.tolist()))
    )
    index, ids = np.arange(ROWS)[::-1].copy(), np.arange(0, ROWS, 40)
    out = np.empty((ids.size, WIDTH), np.int32)
    gather_rows([(values, located(Rows(values, index), ids), None)], out)
    assert (out == ROWS - 1 - ids[:, None]).all()
    found = (ROWS - 1 - ids).tolist()
    assert asked == [(index.ctypes.data, ids.tolist()), (values.ctypes.data, found)]


def test_a_kernel_that_refuses_is_asked_once(
    values: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Refusing:
        def mincore(self, *_: object) -> int:
            return 1  # not told: as of a file of others

        def syscall(self, *given: object) -> int:
            calls.append(given)
            ctypes.set_errno(errno.EPERM)
            return -1

    monkeypatch.setattr(read_ahead, "_refused", False)
    _mapped(values).tells_residency = False
    monkeypatch.setattr(read_ahead, "_libc", Refusing())
    for _ in range(3):
        assert read_ahead.want(values, np.arange(0, ROWS, 9)) == 0
    assert len(calls) == 1


@given(st.data())
def test_ranges_are_the_pages_of_the_rows(data: st.DataObject) -> None:
    nbytes = data.draw(st.integers(1, 3 * PAGE))
    rows = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=40))
    start = data.draw(st.integers(1, 5)) * PAGE + data.draw(st.integers(0, PAGE))
    addresses = start + np.array(rows, np.int64) * nbytes
    ranges = read_ahead._ranges(addresses, nbytes)
    wanted = {
        p for at in addresses.tolist() for p in range(at // PAGE, (at + nbytes - 1) // PAGE + 1)
    }
    asked = [p for at, size in ranges.tolist() for p in range(at // PAGE, (at + size) // PAGE)]
    assert (ranges % PAGE == 0).all()
    assert asked == sorted(set(asked))
    assert wanted <= set(asked)
    for page in set(asked) - wanted:  # between two that are wanted, and near
        assert any(page - back in wanted for back in (1, 2))
        assert any(page + on in wanted for on in (1, 2))
