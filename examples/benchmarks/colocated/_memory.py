"""What a process holds in memory, told apart by what backs it. Linux only."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

_HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$")
_GRAPH = "gigl_loader.tensor"
_KIB_PER_MIB = 1024


@dataclass
class Holdings:
    """Resident memory of one process, MiB."""

    pid: int
    private: float = 0.0
    """Its own: would be free if the process ended. Shared memory of the loader is left out."""
    graph: float = 0.0
    """Pages of the graph and its features, which all processes share."""
    batches: float = 0.0
    """Pages of the shared memory that batches are written to."""
    libraries: float = 0.0
    """Clean pages of files: code, shared with every process that runs it."""


def of_process(pid: int) -> Holdings:
    """Read ``/proc/<pid>/smaps``."""
    held, path = Holdings(pid), ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        header = _HEADER.match(line)
        if header:
            path = header.group(1)
            continue
        name, _, rest = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty", "Shared_Clean", "Shared_Dirty"):
            _add(held, name, path, int(rest.split()[0]) / _KIB_PER_MIB)
    return held


def _add(held: Holdings, name: str, path: str, mib: float) -> None:
    if path.startswith(("/memfd:", "/dev/shm")):
        if _GRAPH in path or path.startswith("/dev/shm"):
            held.graph += mib
        else:
            held.batches += mib
    elif name in ("Private_Dirty", "Private_Clean"):
        held.private += mib
    else:
        held.libraries += mib


def of_children() -> dict[str, Any]:
    """Return the holdings of every process below this one, and this one's own private memory."""
    here = psutil.Process()
    children = [of_process(child.pid) for child in here.children(recursive=True)]
    return {
        "own_private": of_process(here.pid).private,
        "children": [asdict(child) for child in children],
        "most_private": max((child.private for child in children), default=0.0),
        "most_batches": max((child.batches for child in children), default=0.0),
    }
