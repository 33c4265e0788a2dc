"""Steps are noted when they are done, and run again where they are not."""

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pytest

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.partitioning.resumable import ResumableJob


def _job(folder: Path, **more: Any) -> ResumableJob:
    given: dict[str, Any] = {
        "settings": {"seed": 1},
        "memory": 10**9,
        "threads": 1,
        "progress": False,
    } | more
    return ResumableJob(folder / "scratch", **given)


def test_a_step_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    ran: list[str] = []

    def step(found: Any) -> Any:
        ran.append("once")
        return found

    assert _job(tmp_path).step("rows/a", lambda: step((1, "x"))) == [1, "x"]
    assert _job(tmp_path).step("rows/a", lambda: step("not run")) == [1, "x"], "the same types"
    assert ran == ["once"]


def test_a_step_that_fails_is_run_again(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _job(tmp_path).step("rows", lambda: 1 // 0)
    assert _job(tmp_path).step("rows", lambda: 7) == 7


def test_steps_that_are_left_are_handed_out_together(tmp_path: Path) -> None:
    _job(tmp_path).step("b", lambda: "old")
    given: list[int] = []

    def backwards(makes: list[Any]) -> Iterator[tuple[int, Any]]:
        given.append(len(makes))
        yield from ((position, makes[position]()) for position in reversed(range(len(makes))))

    job = _job(tmp_path, run_steps=backwards)
    makes = {name: partial(str.upper, name) for name in "abc"}
    assert list(job.steps(makes)) == [("b", "old"), ("c", "C"), ("a", "A")]
    assert given == [2]
    assert dict(_job(tmp_path).steps(makes)) == {"a": "A", "b": "old", "c": "C"}


def test_steps_that_were_not_taken_are_not_noted(tmp_path: Path) -> None:
    steps = _job(tmp_path).steps({"a": lambda: 1, "b": lambda: 2})
    assert next(steps) == ("a", 1)
    steps.close()  # type: ignore[attr-defined]  # a generator
    assert dict(_job(tmp_path).steps({"a": lambda: 3, "b": lambda: 4})) == {"a": 1, "b": 4}


def test_a_copy_elsewhere_runs_its_steps_there(tmp_path: Path) -> None:
    def nowhere(makes: list[Any]) -> Iterator[tuple[int, Any]]:
        raise AssertionError("a task hands out no tasks")
        yield

    copy = pickle.loads(pickle.dumps(_job(tmp_path, run_steps=nowhere)))
    assert list(copy.steps({"a": lambda: 1})) == [("a", 1)]


def test_only_the_same_run_goes_on(tmp_path: Path) -> None:
    _job(tmp_path)
    _job(tmp_path, memory=2 * 10**9, threads=3)  # with more memory, it may end
    with pytest.raises(ConfigError, match="unfinished run of other tables or settings"):
        _job(tmp_path, settings={"seed": 2})
    (tmp_path / "scratch" / "job.json").unlink()
    (tmp_path / "scratch" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds other files"):
        _job(tmp_path)


def test_what_a_killed_step_left_is_removed(tmp_path: Path) -> None:
    _job(tmp_path)
    for name in ("spill/a", "map/edges/0.123.tmp/part=0", "map/edges/1/part=0"):
        (tmp_path / "scratch" / name).mkdir(parents=True)
    _job(tmp_path)
    assert not (tmp_path / "scratch/spill").exists()
    assert [path.name for path in (tmp_path / "scratch/map/edges").iterdir()] == ["1"]


def _fail(job: ResumableJob, error: Exception) -> None:
    with job.engine() as engine:
        assert engine.execute("SELECT 1").fetchone() == (1,)
        raise error


def test_an_engine_leaves_no_spill_and_says_what_to_do(tmp_path: Path) -> None:
    job = _job(tmp_path)
    for error, text in (
        (duckdb.OutOfMemoryException("failed to pin\nmore"), r"too few.*failed to pin; call again"),
        (duckdb.IOException("disk full"), "disk full; call again to continue"),
    ):
        with pytest.raises(UsageError, match=text):
            _fail(job, error)
        assert list((tmp_path / "scratch/spill").iterdir()) == []


def _setting(engine: Any, name: str) -> Any:
    ((value,),) = engine.execute(f"SELECT current_setting('{name}')").fetchall()
    return value


def test_engines_share_a_database_until_it_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open one takes ten milliseconds; one that has spilled keeps a file and memory."""
    opened: list[Any] = []
    connect = duckdb.connect

    def noted(*args: Any, **keywords: Any) -> Any:
        opened.append(connect(*args, **keywords))
        return opened[-1]

    monkeypatch.setattr(duckdb, "connect", noted)
    job = _job(tmp_path, memory=120_000_000)  # 12 MB of it are the engine's
    numbers = pa.table({"number": np.arange(1_000_000)[::-1]})
    with job.engine() as engine, job.engine(ordered=True) as beside:
        assert len(opened) == 2, "two at a time are two databases"
        engine.register_filesystem(fsspec.filesystem("memory"))
        beside.register("here_alone", numbers)
        limits = [_setting(one, "memory_limit") for one in (engine, beside)]
    for ordered in (False, True):
        with job.engine(ordered=ordered, beside=10**7) as engine:
            assert len(opened) == 2
            assert _setting(engine, "preserve_insertion_order") == ordered
            assert _setting(engine, "memory_limit") not in limits
            with pytest.raises(duckdb.CatalogException):
                engine.execute("FROM here_alone")
            engine.register_filesystem(fsspec.filesystem("memory"))  # for the second time
            spill = Path(_setting(engine, "temp_directory"))
            in_order = engine.sql("SELECT number FROM numbers ORDER BY number")
            first = in_order.to_arrow_reader(1000).read_next_batch()
            assert first.column(0)[:2].to_pylist() == [0, 1]
            assert list(spill.iterdir()), "it has spilled"
        assert not spill.exists()
    with job.engine():
        assert len(opened) == 3
    copy = pickle.loads(pickle.dumps(job))
    with copy.engine():
        assert len(opened) == 4, "what waits here is no other process's"
    copy.close()
    job.close()
    with pytest.raises(duckdb.ConnectionException):
        opened[-1].execute("SELECT 1")
    assert list((tmp_path / "scratch/spill").iterdir()) == []


def test_an_engine_shows_no_bar_of_its_own(tmp_path: Path) -> None:
    """Seen: it is on stdout, of a run without progress, as soon as a query takes two seconds."""
    with _job(tmp_path).engine() as engine:
        shown = engine.execute("SELECT current_setting('enable_progress_bar')").fetchone()
    assert shown == (False,)


def test_progress_is_shown_of_what_is_done(tmp_path: Path, capsys: Any) -> None:
    for shown in (True, False):
        with _job(tmp_path, progress=shown).work_on("map edges", 1500, "edges") as progress:
            progress(1000)
            progress(500)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("map edges: 1,500 of 1,500 edges, ")
    assert line.endswith(" 0 s left")
