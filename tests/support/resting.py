"""Which processes rest for the next loader of the process that they belong to."""

from collections.abc import Iterable
from pathlib import Path

from gigl_loader.sources.workers.supervisor import AT_REST


def at_rest(pids: Iterable[int]) -> list[int]:
    """Return those of the processes that rest; such a process has no worker and no graph."""
    return [pid for pid in pids if _name(pid) == AT_REST]


def memory_of(pid: int) -> tuple[int, int]:
    """Return the bytes that tools show for a process, and those that are its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (s.partition(":") for s in lines)}
    own = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return 1024 * kilobytes["Rss"], 1024 * own


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
