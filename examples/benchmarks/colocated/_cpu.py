"""What the processes of a contestant used of the machine, and what others did. Linux only."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN = "GIGL_LOADER_BENCHMARK_RUN"
"""Environment variable that all processes of one run of one contestant share."""


@dataclass(frozen=True)
class CpuClock:
    """CPU time so far, in ticks."""

    total: int
    """Of all cores, idle time included."""
    idle: int
    own: int
    """Of what the benchmark started for this contestant: all that carry its `RUN` variable."""

    @classmethod
    def now(cls) -> "CpuClock":
        """Read ``/proc``."""
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return cls(sum(fields), fields[3] + fields[4], _ticks_of_run(os.environ.get(RUN)))


def _texts_of_run(run: str | None, name: str) -> Iterator[str]:
    """Yield the file ``name`` in ``/proc`` of each process of a run."""
    mark = f"{RUN}={run}".encode()
    for entry in Path("/proc").iterdir():
        if run and entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile, or is not ours
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield (entry / name).read_text()


def _ticks_of_run(run: str | None) -> int:
    fields = [text.rpartition(")")[2].split() for text in _texts_of_run(run, "stat")]
    return sum(int(of[11]) + int(of[12]) for of in fields)


def memory_mb() -> float:
    """Return the memory of all processes of this run now, in MB; what they share counts once."""
    kib = 0
    for text in _texts_of_run(os.environ.get(RUN), "smaps_rollup"):
        lines = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
        kib += sum(int(line[1]) for line in lines)
    return kib * 1024 / 1e6


def own_seconds(before: CpuClock, after: CpuClock) -> float:
    """Return the CPU seconds of all processes of the contestant that are still there."""
    return (after.own - before.own) / os.sysconf("SC_CLK_TCK")


def share_of_others(before: CpuClock, after: CpuClock) -> float:
    """Return the part of all cores' time, 0 to 1, that neither idled nor was the contestant's."""
    total = after.total - before.total
    busy = total - (after.idle - before.idle)
    return max(0.0, busy - (after.own - before.own)) / max(total, 1)
