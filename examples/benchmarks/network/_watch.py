"""What machines did over a time: bytes over their links, CPU time and memory of their processes.

A machine is a network namespace, and its processes are those that are in it, whoever started them.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _machines import LINK, Machine

EVERY_S = 0.5
_ENOUGH = 4
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """What the counters said at one moment; lists are by machine."""

    at: float
    """`time.time`, which the machines share."""
    received: list[int]
    sent: list[int]
    cpu_s: list[float]
    """Of the processes that live."""
    all_cpu_s: float
    """For which processes were at work on a CPU, with whatever else ran."""
    memory: list[int]


@dataclass(frozen=True)
class Seen:
    """The same between two moments; lists are by machine."""

    seconds: float
    received: list[float]
    sent: list[float]
    cpu_s: list[float]
    others: float
    """Cores that were at work for other processes."""
    memory: list[int]
    """The most."""

    def busiest(self, gbit: float) -> float:
        """Return the share of its link that the machine with most traffic in a direction used."""
        return max(*self.received, *self.sent) / self.seconds / (gbit * 1e9 / 8)


class Watch:
    """Samples the counters of machines in a thread of its own."""

    def __init__(self, watched: Sequence[Machine]) -> None:
        self._machines = {
            os.stat(f"/run/netns/{one.namespace}").st_ino: k for k, one in enumerate(watched)
        }
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            found = self._sample()
            if found is not None:
                self._samples.append(found)

    def _sample(self) -> Sample | None:
        """Return what the counters say; None where a machine has no process, or lost one now."""
        num = len(self._machines)
        processes: list[list[_Process]] = [[] for _ in range(num)]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            found = _process(pid, self._machines)
            if found is not None:
                processes[found.machine].append(found)
        try:
            links = [_link_bytes(one[0].pid) for one in processes]
        except (OSError, IndexError):
            return None
        return Sample(
            time.time(),
            [received for received, _ in links],
            [sent for _, sent in links],
            [sum(one.cpu_s for one in some) for some in processes],
            all_cpu_s(),
            [sum(one.own for one in some) + max(one.files for one in some) for some in processes],
        )

    def between(self, began: float, ended: float) -> Seen:
        """Return what happened between two moments, to the samples inside or next to them.

        Raises:
            RuntimeError: Nothing was seen.
        """
        inside = [one for one in self._samples if began <= one.at <= ended]
        if len(inside) < _ENOUGH:
            inside = [one for one in self._samples if began - EVERY_S <= one.at <= ended + EVERY_S]
        if len(inside) < 2:
            raise RuntimeError(f"{ended - began:.1f} s were too short to be watched")
        first, last = inside[0], inside[-1]
        seconds = last.at - first.at
        cpu = [max(0.0, b - a) for a, b in zip(first.cpu_s, last.cpu_s, strict=True)]
        return Seen(
            seconds,
            [b - a for a, b in zip(first.received, last.received, strict=True)],
            [b - a for a, b in zip(first.sent, last.sent, strict=True)],
            cpu,
            (last.all_cpu_s - first.all_cpu_s - sum(cpu)) / seconds,
            [max(column) for column in zip(*(one.memory for one in inside), strict=True)],
        )


def all_cpu_s() -> float:
    """Return the CPU seconds of all processes of the machine that runs all of these."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system) / _TICKS


def _link_bytes(pid: str) -> tuple[int, int]:
    """Return the bytes that a process's machine received and sent over its link so far."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == LINK:
            numbers = counts.split()
            return int(numbers[0]), int(numbers[8])
    raise ProcessLookupError(f"process {pid} has no {LINK}")


@dataclass(frozen=True)
class _Process:
    pid: str
    machine: int
    cpu_s: float
    own: int
    """Bytes of memory; what processes share is counted in parts, so that their sum is right."""
    files: int
    """Bytes of files, libraries above all, which elsewhere are shared within a machine alone."""


def _process(pid: str, machines: dict[int, int]) -> _Process | None:
    """Return a process of one of the machines; None: of none, or it ended meanwhile."""
    try:
        machine = machines.get(os.stat(f"/proc/{pid}/ns/net").st_ino)
        if machine is None:
            return None
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        shared, alone = _kilobytes(f"/proc/{pid}/smaps_rollup"), _kilobytes(f"/proc/{pid}/status")
    except (OSError, ValueError):
        return None
    own = 1024 * (shared["Pss_Anon"] + shared["Pss_Shmem"])
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
    return _Process(pid, machine, cpu_s, own, 1024 * alone["RssFile"])


def _kilobytes(path: str) -> dict[str, int]:
    found = {"Pss_Anon": 0, "Pss_Shmem": 0, "RssFile": 0}
    for line in Path(path).read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0])
    return found
