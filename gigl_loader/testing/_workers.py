"""Which processes sample for a loader, for tests that kill them."""

from typing import Any

from gigl_loader.errors import UsageError
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.testing._waiting import wait_until


def worker_pid(loader: BaseDistLoader, number: int = 0, *, former: int | None = None) -> int:
    """Return the process id of a sampling worker, once it has one.

    Args:
        loader: A loader that samples in worker processes of its own.
        number: Which of its workers.
        former: The process id of the one that it replaces, which is not meant.

    Raises:
        AssertionError: It was not started in time.
        UsageError: The loader has no such workers.
    """
    producer: Any = getattr(loader, "_mp_producer", None)
    found: list[int] = []
    # num_workers=0, or samplers on a graph store
    if not hasattr(producer, "pids"):
        raise UsageError("this loader has no sampling workers of its own")

    def started() -> bool:
        pid = producer.pids[number]
        # None while it is being replaced
        if pid is not None and pid != former:
            found.append(pid)
        return bool(found)

    wait_until(started, f"worker {number} has been started")
    return found[0]
