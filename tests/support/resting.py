"""Which processes rest for the next loader of the process that they belong to."""

from collections.abc import Iterable
from pathlib import Path

from gigl_loader.sources.workers.supervisor import AT_REST


def at_rest(pids: Iterable[int]) -> list[int]:
    """Return those of the processes that rest; such a process has no worker and no graph."""
    return [pid for pid in pids if _name(pid) == AT_REST]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
