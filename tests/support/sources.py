"""The seam below a loader: what its source of batches has, and does, for tests of a source.

See `gigl_loader.source.batch_source` for the kinds of sources.
"""

from typing import Any

from gigl_loader import BaseDistLoader


def source_of(loader: BaseDistLoader) -> Any:
    """Return the source of a loader's batches; its kind is the test's to know."""
    return loader._source


def supervisor_pid(loader: BaseDistLoader) -> int:
    """Return the process that started the loader's workers, which may be gone already."""
    pid: int = source_of(loader).recovery.pool.supervisor_pid
    return pid
