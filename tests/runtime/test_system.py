"""What the kernel says of this system."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gigl_loader.runtime import system


@pytest.mark.parametrize(
    ("groups", "files", "wanted"),
    [
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ("0::/a/b\n", {"/sys/fs/cgroup/a/cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            "3:cpu,cpuacct:/a\n",
            {
                "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        ("3:cpu:/a\n", {"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1"}, None),
    ],
)
def test_a_share_of_the_cpus_counts(
    groups: str, files: dict[str, str], wanted: int | None, tmp_path: Path
) -> None:
    for name, content in ({"/proc/self/cgroup": groups} | files).items():
        (tmp_path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name[1:]).write_text(content)
    mine = len(os.sched_getaffinity(0))
    assert system.usable_cpus(str(tmp_path)) == min(mine, wanted or mine)


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/\n", {"/sys/fs/cgroup/memory.max": 7}, 7),  # in a container
        ("0::/jobs.slice/1\n", {"/sys/fs/cgroup/jobs.slice/1/memory.max": 5}, 5),
        ("0::/jobs.slice/1\n", {"/sys/fs/cgroup/jobs.slice/memory.max": 6}, 6),
        (
            "9:cpu,cpuacct:/\n4:memory:/jobs/1\n0::/\n",
            {
                "/sys/fs/cgroup/memory/jobs/1/memory.limit_in_bytes": 4,
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096,
            },
            4,
        ),
        ("4:memory:/jobs/1\n", {"/sys/fs/cgroup/memory/jobs/2/memory.limit_in_bytes": 3}, 10240),
        ("", {}, 10240),
    ],
)
def test_limits_of_control_groups_count(
    groups: str, limits: dict[str, int], wanted: int, tmp_path: Path
) -> None:
    files = {"/proc/self/cgroup": groups, "/proc/meminfo": "MemAvailable:   10 kB\n"}
    for name, content in (files | limits).items():
        path = Path(f"{tmp_path}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}")
    assert system.available_memory(str(tmp_path)) == wanted


def test_a_number_of_the_kernels(tmp_path: Path) -> None:
    for text, number in (("12\n", 12), ("max\n", None)):
        (tmp_path / "limit").write_text(text)
        assert system.number_in(str(tmp_path / "limit")) == number
    assert system.number_in(str(tmp_path / "missing")) is None
    assert system.meminfo("NoSuchField") == 0
    assert system.meminfo("MemTotal") >= system.meminfo("MemAvailable") > 0


_HEAPS = """
import ctypes, sys, threading
from gigl_loader.runtime.system import use_one_heap

if sys.argv[1] == "one":
    use_one_heap()
all_have, may_end = threading.Barrier(9), threading.Event()

def hold():
    kept = bytearray(50_000)
    all_have.wait()
    may_end.wait()

for _ in range(8):
    threading.Thread(target=hold).start()
all_have.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
may_end.set()
"""


@pytest.mark.parametrize(("heaps", "is_one"), [("one", True), ("many", False)])
def test_threads_share_a_heap_where_malloc_is_told(heaps: str, is_one: bool) -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_info"):
        pytest.skip("another libc")
    # a new interpreter: a forked one has the heaps that there were
    words = [sys.executable, "-c", _HEAPS, heaps]
    told = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=240).stdout
    count = told.count(b"<heap nr=")
    assert count == 1 if is_one else count > 1


def test_another_libc_is_not_told(libc_is: Callable[..., None]) -> None:
    libc_is()
    system.use_one_heap()
