from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import partition_tables
from gigl_loader.errors import UsageError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages import pipeline


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


@pytest.fixture
def run_all_but_the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Let `partition_tables` run with some arguments until it seals its result, where it fails."""

    def full(*args: Any, **more: Any) -> str:
        raise UsageError("the disk is full")

    def run(given: dict[str, Any]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "seal", full)
            with pytest.raises(UsageError, match="full"):
                partition_tables(**given)

    return run


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return an Iceberg catalogue in a file, which the environment describes as ``lake``."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "lake").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/lake")
    # It reads the environment when it is imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    opened: Any = pyiceberg.catalog.load_catalog("lake")
    opened.create_namespace("n")
    yield opened
    opened.close()
