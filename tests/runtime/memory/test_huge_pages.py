"""Large tensors lie in huge pages where the machine has some, and nobody notices where not."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gigl_loader.runtime.memory import segments, tensors
from gigl_loader.runtime.system import number_in
from tests.support.conditions import SetConstants, files_up_to

SET_ASIDE = "sys/kernel/mm/hugepages/hugepages-2048kB"
MADE = "sys/kernel/mm/transparent_hugepage"
ROWS, WIDTH = 300_001, 32
"""More than 32 MiB of float32, and not a whole number of pages."""


def share() -> tuple[torch.Tensor, np.ndarray]:
    """Return a matrix in shared memory, and as another process maps it."""
    shared = tensors.share_tensor(torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH))
    data, fds = tensors.dumps(shared)
    try:
        return shared, segments.loads(data, fds)
    finally:
        segments.close_fds(fds)


def check(shared: torch.Tensor, mapped: np.ndarray) -> None:
    """See that both are the same memory, with the values that were shared."""
    assert shared.is_shared()
    assert mapped.shape == (ROWS, WIDTH)
    assert (mapped.reshape(-1) == np.arange(ROWS * WIDTH, dtype=np.float32)).all()
    shared[-1, -1] = -7.0
    assert mapped[-1, -1] == -7.0


def page_bytes(mapped: np.ndarray) -> int:
    """Return the size of the pages under an array."""
    shown = Path("/proc/self/smaps").read_text()
    mapping = shown[shown.index(f"{mapped.ctypes.data:x}-") :]
    return int(mapping[mapping.index("KernelPageSize:") :].split()[1]) * 1024


@pytest.fixture
def set_aside(tmp_path: Path, constants: SetConstants) -> Callable[[int], None]:
    """A machine with huge pages of 2 MiB, which the kernel makes if it can; how many are free."""
    folders = {name: tmp_path / name for name in ("proc", SET_ASIDE, MADE)}
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["proc"] / "meminfo").write_text("Hugepagesize:       2048 kB\n")
    (folders[SET_ASIDE] / "resv_hugepages").write_text("0\n")
    (folders[MADE] / "hpage_pmd_size").write_text(f"{1 << 21}\n")
    (folders[MADE] / "shmem_enabled").write_text("always [advise] never\n")
    constants(tensors, _ROOT=str(tmp_path))

    def free(count: int) -> None:
        (folders[SET_ASIDE] / "free_hugepages").write_text(f"{count}\n")

    return free


def test_pages_that_are_set_aside_are_taken() -> None:
    free, promised = (
        number_in(f"/{SET_ASIDE}/{which}_hugepages") or 0 for which in ("free", "resv")
    )
    shared, mapped = share()
    if free - promised >= 20:
        assert page_bytes(mapped) == 1 << 21
    elif free == promised:
        assert page_bytes(mapped) == os.sysconf("SC_PAGE_SIZE")
    check(shared, mapped)


def test_a_file_of_whole_huge_pages_is_larger_than_its_tensor(
    set_aside: Callable[[int], None], constants: SetConstants
) -> None:
    set_aside(10_000)
    constants(os, MFD_HUGETLB=0)  # ordinary pages, but all the rest as with huge ones
    shared, mapped = share()
    assert shared.untyped_storage().nbytes() % (1 << 21) == 0
    check(shared, mapped)


@pytest.mark.parametrize("free", [0, 10_000])
def test_nothing_fails_where_the_kernel_gives_none(
    free: int, set_aside: Callable[[int], None]
) -> None:
    set_aside(free)
    before = len(os.listdir("/proc/self/fd"))
    with files_up_to(39_000_000):  # the tensor's bytes, and less than its whole huge pages
        shared, mapped = share()
    check(shared, mapped)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # torch keeps the memory's


def test_small_tensors_and_those_that_do_not_fit_are_as_before(
    set_aside: Callable[[int], None],
) -> None:
    set_aside(10)
    small = tensors.share_tensor(torch.ones(5))
    assert small.untyped_storage().nbytes() == 20
    shared, mapped = share()  # 18 pages of ten
    assert shared.untyped_storage().nbytes() == ROWS * WIDTH * 4
    check(shared, mapped)
