from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest

from gigl_loader.tables.resumable import ResumableJob


@pytest.fixture
def work_sizes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let runs hold as much in memory at a time as a test says, in place of megabytes."""

    def change(**sizes: Any) -> None:
        monkeypatch.setattr(ResumableJob, "sizes", replace(ResumableJob.sizes, **sizes))

    return change


@pytest.fixture
def before_stage(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], None]:
    """Let something happen once, as a run begins with a stage."""

    def happens(stage: str, what: Callable[[], None]) -> None:
        happened: list[str] = []

        def then(job: ResumableJob, run: Callable[..., Any], names: Any, *given: Any) -> Any:
            some = [names] if isinstance(names, str) else names
            if not happened and any(name.startswith(f"{stage}/") for name in some):
                happened.append(stage)
                what()
            return run(job, names, *given)

        for name in ("step", "steps"):
            monkeypatch.setattr(
                ResumableJob, name, partialmethod(then, getattr(ResumableJob, name))
            )

    return happens
