from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gigl_loader.tables.resumable import ResumableJob


@pytest.fixture
def work_sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let runs hold as much in memory at a time as a test says, in place of megabytes."""

    def change(**sizes: Any) -> None:
        monkeypatch.setattr(ResumableJob, "sizes", replace(ResumableJob.sizes, **sizes))

    return change
