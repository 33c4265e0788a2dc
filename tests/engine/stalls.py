"""Processes of a loader, and a timeout that is over at once where a worker hangs.

It is never over for one that is only slow.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from gigl_loader import DistNeighborLoader
from gigl_loader.sources.workers.pool import process_state
from tests.support.sources import source_of

ENDED = ("gone", "dead", "state X")


def pass_the_timeout(loader: DistNeighborLoader, hung: Callable[[], Collection[int]]) -> None:
    """Let the loader's timeout pass whenever each worker that is not idle is one of ``hung()``.

    A short timeout would do, were it not that a healthy worker of a busy machine may take longer.

    Args:
        loader: Workers are processes of its own.
        hung: Process ids of workers that hang now.
    """
    producer = source_of(loader)
    pump, recovery = producer.pump, producer.recovery

    def pump_and_age(timeout_s: float, *failures: list) -> bool:
        found = pump(min(timeout_s, 0.05), *failures)
        # also those that are being replaced: they would count as stalled before they are ready
        busy = {
            producer.pids[worker]
            for worker in range(recovery.pool.num_workers)
            if worker in recovery.under_way.busy or worker not in recovery.at_work
        }
        if not found and busy and not recovery.hung and busy <= set(hung()):
            recovery.last_progress = float("-inf")
        return found

    producer.pump = pump_and_age


def worker_pids(loader: DistNeighborLoader) -> list[int]:
    """Return the workers that have a process now, which may be gone already."""
    return [pid for pid in source_of(loader).pids if pid]


def is_stopped(pid: int) -> bool:
    return process_state(pid).startswith("stopped")


def hung_pids(note: Path) -> list[int]:
    """Return workers that wrote their pid into ``note``, a file or a folder, and still live."""
    files = note.iterdir() if note.is_dir() else [note] if note.exists() else []
    pids = [int(text) for text in (file.read_text() for file in files) if text]
    return [pid for pid in pids if process_state(pid) not in ENDED]
