"""Kernel data on this machine and its processes (CPUs, memory, states, leftovers), and signals."""

import contextlib
import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SHM = Path("/dev/shm")
_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp
_POLL_S = 0.02
# of both versions of cgroups: the limit, and what is used
_OF_MEMORY = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
_M_ARENA_MAX = -8  # of mallopt
_NO_LIMIT = 1 << 62
"""More than any memory: so version 1 says that there is no limit."""
IGNORED: set[str] = set()
"""Names in ``/proc/<pid>/comm`` of processes that do not count, nor their descendants."""


def usable_cpus(root: str = "") -> int:
    """Return the number of CPUs that this process may use.

    In a container or a control group, no more than its limit.

    Args:
        root: Parent of ``/proc`` and ``/sys``, if not ``/``.
    """
    # not os.cpu_count(): a container or taskset may give a process fewer
    shares = (_cpu_share(folder) for folder in _groups("cpu", root))
    return min([len(os.sched_getaffinity(0)), *(share for share in shares if share is not None)])


def _cpu_share(folder: str) -> int | None:
    """Return the CPUs that a control group may use at a time, rounded up; None: no limit."""
    try:  # version 2: "200000 100000", or "max 100000"
        quota, period = Path(f"{folder}/cpu.max").read_text().split()
    except (OSError, ValueError):
        quota = str(number_in(f"{folder}/cpu.cfs_quota_us") or -1)
        period = str(number_in(f"{folder}/cpu.cfs_period_us") or 100_000)
    if not quota.isdigit():  # "max", or -1
        return None
    return max(1, -(-int(quota) // int(period)))


def available_memory(root: str = "") -> int:
    """Return the bytes of available memory, with reclaimable page cache.

    In a container or a control group, no more than its limit.

    Args:
        root: Parent of ``/proc`` and ``/sys``, if not ``/``.
    """
    limit = memory_limit(root)
    available = meminfo("MemAvailable", root)
    return available if limit is None else min(available, limit[0])


def memory_limit(root: str = "") -> tuple[int, int] | None:
    """Return the least limit on memory of a control group that holds this process, and its use.

    Args:
        root: Parent of ``/proc`` and ``/sys``, if not ``/``.

    Returns:
        Bytes, and bytes of all processes of that group; None: there is no limit.
    """
    limits = [
        (limit, number_in(f"{folder}/{use}") or 0)
        for folder in _groups("memory", root)
        for name, use in _OF_MEMORY
        if (limit := number_in(f"{folder}/{name}")) is not None and limit < _NO_LIMIT
    ]
    return min(limits, default=None)


def _groups(controller: str, root: str) -> list[str]:
    """Return the folders of the groups that limit this process, in either version of cgroups.

    A group's limit holds for all groups in it. A container sees its own group as the root.

    Args:
        controller: ``"cpu"`` or ``"memory"``.
        root: Parent of ``/proc`` and ``/sys``.
    """
    try:
        lines = Path(f"{root}/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            folder = f"{root}/sys/fs/cgroup/{controller}"
        elif controllers == "":
            folder = f"{root}/sys/fs/cgroup"
        else:
            continue
        groups = (Path(group), *Path(group).parents)
        # missing files, as above a container's own root, are no limit
        folders += [f"{folder}{str(path).rstrip('/')}" for path in groups]
    return folders


def meminfo(field: str, root: str = "") -> int:
    """Return Linux's figure of memory, in bytes; 0: there is no such field."""
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


def use_one_heap() -> None:
    """Let threads that start from here on allocate from one heap of malloc.

    By itself glibc has eight for each core. What a thread frees serves those of its own heap alone,
    and each heap keeps up to twice the largest block that was ever freed, at most 64 MB: a server
    with a thread for each connection grew by 28 MB of free memory in four minutes on two cores.
    Does nothing with another libc.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def machine_name() -> str:
    """Return a name of this machine, and of the part of it that this process can see.

    Only processes of the same name try each other's memory; `same_host.SameHostProof` decides.
    """
    # all containers of a machine have its boot id; a pid namespace hides the descriptors of a
    # process in /proc from others, and another user may not open them
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino} {os.getuid()}"


def read_stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the third, the state, on; None: it is gone.

    A process that ends between opening and reading of the file raises ProcessLookupError, one that
    ended before FileNotFoundError.
    """
    # the second field is the program's name in brackets, and may contain spaces and brackets
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


# --- leftovers of processes -----------------------------------------------------------------------


@dataclass
class Footprint:
    """Processes, listening ports and named shared memory of processes, recorded while they lived.

    Processes are identified by pid and start time, so that a reused pid is no leftover. A zombie
    process counts as gone.
    """

    pids: dict[int, str] = field(default_factory=dict)
    """Start time by pid."""
    sockets: set[str] = field(default_factory=set)
    """Inodes of listening TCP sockets."""
    others: frozenset[int] = frozenset()
    """Processes to ignore, with their descendants: they existed before."""

    @classmethod
    def below(cls, pid: int | None = None, *, itself: bool = False) -> "Footprint":
        """Return the current resources of all processes below ``pid`` (None: this one).

        Args:
            pid: Root of the tree.
            itself: Include ``pid``.
        """
        footprint = cls()
        root = os.getpid() if pid is None else pid
        footprint.look(root, itself=itself)
        return footprint

    def look(self, pid: int, *, itself: bool = False) -> None:
        """Add the current resources of the processes below ``pid``."""
        pids = descendants(pid, self.others) + ([pid] if itself else [])
        # the start time now: later the pid may belong to another process
        for process in pids:
            started = _start_time(process)
            if started is not None:
                self.pids[process] = started
        # only listening sockets count: others end with their process, and are many
        self.sockets |= _listening() & {i for process in pids for i in _socket_inodes(process)}

    def alive(self) -> list[int]:
        """Return the pids of the processes that still run."""
        return [pid for pid, started in self.pids.items() if _start_time(pid) == started]

    def leftovers(self) -> list[str]:
        """Return the leftovers in words."""
        texts = [f"process {pid} ({_command(pid)})" for pid in self.alive()]
        texts += [f"listening socket (inode {inode})" for inode in self.sockets & _listening()]
        # by name: a segment in /dev/shm outlives its creator
        texts += [f"{_SHM / name}" for name in _shared_memory_of(self.pids)]
        texts += [f"System V segment of process {pid}" for pid in _sysv_creators() & set(self.pids)]
        return texts

    def check_gone(self, timeout: float = 120.0) -> None:
        """Wait until nothing is left.

        Raises:
            AssertionError: Something is left after ``timeout`` seconds; names it.
        """
        deadline = time.monotonic() + timeout
        while left := self.leftovers():
            if time.monotonic() >= deadline:
                raise AssertionError(f"left after {timeout:g} s: {left}")
            time.sleep(_POLL_S)  # ends of processes and sockets send no event


def _start_time(pid: int) -> str | None:
    stat = read_stat(pid)
    # fields after the name in brackets: state, and the start in clock ticks since boot
    return None if stat is None or stat[0] in "ZX" else stat[19]


def descendants(root: int, others: Collection[int] = ()) -> list[int]:
    """Return the processes below ``root``, each after its parent; ``others`` and theirs left out.

    Names in `IGNORED` are left out, too.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := read_stat(int(entry.name))) is not None:
            # one pass over /proc, then a walk down: /proc knows parents, not children
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    pids: list[int] = []
    frontier = [root]
    while frontier:
        below = [
            pid
            for pid in children.get(frontier.pop(), [])
            if pid not in others and not _is_ignored(pid)
        ]
        pids += below
        frontier += below
    return pids


def _is_ignored(pid: int) -> bool:
    """Whether the process is a helper of the observer, and ends with its parent."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in IGNORED
    except OSError:  # it has ended
        return False


def open_files(pid: int | None = None) -> list[str]:
    """Return the targets of a process's descriptors (None: this one), like ``socket:[7]``.

    Other threads open and close some meanwhile: closed ones are left out.
    """
    folder = Path(f"/proc/{os.getpid() if pid is None else pid}/fd")
    targets = []
    with contextlib.suppress(OSError):  # the process has ended
        for fd in os.listdir(folder):
            with contextlib.suppress(OSError):  # also the descriptor that lists them
                targets.append(os.readlink(folder / fd))
    return targets


def _socket_inodes(pid: int) -> set[str]:
    return {name[8:-1] for name in open_files(pid) if name.startswith("socket:[")}


def _listening() -> set[str]:
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        # fields: 3 is the state, 9 the inode, which /proc/PID/fd shows as socket:[inode]
        inodes |= {fields[9] for fields in map(str.split, lines) if fields[3] == _LISTEN}
    return inodes


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return b" ".join(words).decode(errors="replace")[:120]


def _shared_memory_of(pids: dict[int, str]) -> list[str]:
    """Return names in /dev/shm from this package (which makes none), or from one of ``pids``.

    torch and multiprocessing put the pid between dashes; others' names are left out.
    """
    names = os.listdir(_SHM) if _SHM.is_dir() else []
    return [
        name
        for name in names
        if "gigl" in name
        or {int(pid) for pid in re.findall(r"(?<=[_-])\d+(?=[_-])", name)} & set(pids)
    ]


def _sysv_creators() -> set[int]:
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    except OSError:
        return set()
    # cpid, the creator
    return {int(line.split()[4]) for line in lines}


@contextlib.contextmanager
def told_to_end(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call ``on_signal`` with the number of each SIGTERM and SIGINT, in the main thread.

    Handlers, not a mask: that holds for one thread, and a library's would take the signal. The
    former ones are restored afterwards. In another thread it does nothing, as Python lets the main
    thread alone set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda number, _: on_signal(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
