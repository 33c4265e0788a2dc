"""The seam below a loader: what its source of batches has, and does, for tests of a source.

See `gigl_loader.sources.batch_source` for the kinds of sources.
"""

from typing import Any

from gigl_loader import BaseDistLoader
from gigl_loader.testing import wait_until


def source_of(loader: BaseDistLoader) -> Any:
    """Return the source of a loader's batches; its kind is the test's to know."""
    return loader._source


def wait_for_batches(loader: BaseDistLoader, count: int) -> None:
    """Wait until so many batches of an epoch have been sampled and not taken."""
    wait_until(lambda: source_of(loader).count_waiting() >= count, f"{count} batches", 60.0)


def supervisor_pid(loader: BaseDistLoader) -> int:
    """Return the process that started the loader's workers, which may be gone already."""
    pid: int = source_of(loader).recovery.pool.supervisor_pid
    return pid
