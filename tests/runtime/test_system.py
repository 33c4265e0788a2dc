"""What the kernel says of this system."""

import os
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
