"""Which processes sample for a loader, for tests that kill them."""

from typing import Any

from gigl_loader.testing._waiting import wait_until


def worker_pid(loader: Any, number: int = 0, *, former: int | None = None) -> int:
    """Return the process id of a sampling worker, once it has one.

    Args:
        loader: A loader that samples in worker processes of its own.
        number: Which of its workers.
        former: The process id of the one that it replaces, which is not meant.

    Raises:
        AssertionError: It was not started in time.
    """
    found: list[int] = []

    def started() -> bool:
        pid = loader._mp_producer.pids[number]
        if pid not in (None, former):
            found.append(pid)
        return bool(found)

    wait_until(started, f"worker {number} has been started")
    return found[0]
