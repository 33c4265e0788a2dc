"""Processes of a loader, and a timeout that is over at once where a worker hangs.

It is never over for one that is only slow.
"""

from collections.abc import Callable
from pathlib import Path

from support.sources import source_of

from gigl_loader import DistNeighborLoader
from gigl_loader.workers.pool import process_state

ENDED = ("gone", "dead", "state X")


def pass_the_timeout(loader: DistNeighborLoader, hangs: Callable[[], object]) -> None:
    """Let the loader's timeout pass whenever ``hangs()`` and all other workers are done.

    A short timeout would do, were it not that a healthy worker of a busy machine may take longer.
    """
    producer = source_of(loader)
    pump, recovery = producer.pump, producer.recovery

    def pump_and_age(timeout_s: float, *failures: list) -> bool:
        found = pump(min(timeout_s, 0.05), *failures)
        busy = sum(map(bool, recovery.under_way.loads))
        if not found and busy == 1 and not recovery.hung and hangs():
            recovery.last_progress = float("-inf")
        return found

    producer.pump = pump_and_age


def worker_pids(loader: DistNeighborLoader) -> list[int]:
    """Return the workers that have a process now, which may be gone already."""
    return [pid for pid in source_of(loader).pids if pid]


def is_stopped(pid: int) -> bool:
    return process_state(pid).startswith("stopped")


def has_hung(note: Path) -> bool:
    """Return whether a worker that wrote its pid into ``note``, a file or a folder, still lives."""
    files = note.iterdir() if note.is_dir() else [note] if note.exists() else []
    pids = [int(text) for text in (file.read_text() for file in files) if text]
    return any(process_state(pid) not in ENDED for pid in pids)
