"""Facts that the kernel tells of this machine and its processes: CPUs, memory, states."""

import os
from pathlib import Path


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    # not os.cpu_count(): a container or taskset may give a process fewer
    return len(os.sched_getaffinity(0))


def available_memory(root: str = "") -> int:
    """Return how many bytes of memory could be had now: pages of files give way.

    In a container or a control group, no more than it may have in all.

    Args:
        root: Where ``/proc`` and ``/sys`` are, if not there.
    """
    limits = (number_in(root + file) for file in _limit_files(root))
    return min([meminfo("MemAvailable", root), *(one for one in limits if one is not None)])


def _limit_files(root: str) -> list[str]:
    """Return the files that limit the memory of this process, in either version of cgroups.

    A group's limit holds for all groups in it. A container sees its own group as the root.
    """
    try:
        lines = Path(f"{root}/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif controllers == "":
            folder, name = "/sys/fs/cgroup", "memory.max"
        else:
            continue
        groups = (Path(group), *Path(group).parents)
        # files that are not there, as above a container's own root, are left out by number_in()
        files += [f"{folder}{str(one).rstrip('/')}/{name}" for one in groups]
    return files


def meminfo(field: str, root: str = "") -> int:
    """Return what Linux says of its memory, in bytes; 0: there is no such field."""
    for line in Path(f"{root}/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def number_in(path: str) -> int | None:
    """Return the number in a file of the kernel; None: no file, or no number (``max``)."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def read_stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the third, the state, on; None: it is gone.

    A process that ends between the opening and the reading of the file is a ProcessLookupError,
    one that had ended before a FileNotFoundError.
    """
    # the second field is the program's name in brackets, which may have spaces and brackets in it
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
