"""How much of the machine others used while a contestant was on the clock. Linux only."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuClock:
    """CPU time so far, in ticks."""

    total: int
    """Of all cores, idle time included."""
    idle: int
    own: int
    """Of this process's session: what the benchmark started for this contestant."""

    @classmethod
    def now(cls) -> "CpuClock":
        """Read ``/proc``."""
        fields = [int(text) for text in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return cls(sum(fields), fields[3] + fields[4], _ticks_of_session(os.getsid(0)))


def _ticks_of_session(session: int) -> int:
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    ticks += int(fields[11]) + int(fields[12])
    return ticks


def share_of_others(before: CpuClock, after: CpuClock) -> float:
    """Return the part of all cores' time, 0 to 1, that neither idled nor was the contestant's."""
    total = after.total - before.total
    busy = total - (after.idle - before.idle)
    return max(0.0, busy - (after.own - before.own)) / max(total, 1)
