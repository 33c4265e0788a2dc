"""``examples/benchmarks/faults/chaos.py``: what it draws, what it notices, and one tiny job."""

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gigl_loader.errors import ConfigError, PeerLostError, ServerDiedError
from tests.support.scripts import run_python

FOLDER = Path(__file__).parents[2] / "examples" / "benchmarks" / "faults"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give their modules by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_a_seed_repeats_its_draws(scripts: Any) -> None:
    plan, cases = scripts("_chaos_plan"), scripts("_chaos_cases").CASES

    def drawn(seed: int) -> list[Any]:
        return [plan.draw(seed, number, list(cases), plan.FAULTS, 5, 1.0) for number in range(60)]

    assert drawn(1) == drawn(1) != drawn(2)
    jobs = drawn(1)
    assert {job.case for job in jobs[: len(cases)]} == set(cases), "each comes before one again"
    assert {fault.kind for job in jobs for fault in job.faults} == set(plan.FAULTS)
    for job in jobs:
        case = cases[job.case]
        assert set(job.worlds) <= set(case.worlds)
        assert {fault.kind for fault in job.faults} <= set(plan.kinds_of(case))
    servers = [job for job in jobs if cases[job.case].servers]
    assert len(servers) >= len(jobs) / 2, "half of it is of a graph store"


def _lines(*segments: tuple[int, int, str]) -> list[dict[str, Any]]:
    """Return what ranks note: life, start and digests of each segment of epoch 0; then its end."""
    found: list[dict[str, Any]] = []
    for life, start, digests in segments:
        common = {"segment": [life, 0], "epoch": 0}
        found.append({"kind": "segment", "start": start, "total": 4, **common})
        for position, digest in enumerate(digests, start):
            found.append({"kind": "batch", "position": position, "digest": digest, **common})
    return [*found, {"kind": "whole", "epoch": 0, "segment": [segments[-1][0], 0]}]


def test_what_is_noticed(scripts: Any) -> None:
    check = scripts("_chaos_check").check
    expected = [list("abcd")]

    def noticed(*segments: tuple[int, int, str]) -> tuple[int, int, int, int]:
        found = check(_lines(*segments), expected)
        return found.whole, len(found.short), len(found.wrong), len(found.duplicates)

    assert noticed((0, 0, "abcd")) == (1, 0, 0, 0)
    assert noticed((0, 0, "abc"), (1, 2, "cd")) == (1, 0, 0, 0), "lost with the last state"
    assert noticed((0, 0, "abc")) == (0, 1, 0, 0)
    assert noticed((0, 0, "ab"), (1, 3, "d")) == (0, 1, 0, 0)
    assert noticed((0, 0, "abXd")) == (1, 0, 1, 0)
    assert noticed((0, 0, "abX"), (1, 2, "cd")) == (1, 0, 1, 0), "wrong, though taken again"
    twice = _lines((0, 0, "abcd"))
    assert len(check([*twice[:-1], twice[-2], twice[-1]], expected).duplicates) == 1
    undisturbed = check(_lines((0, 0, "abcd")), None)
    assert undisturbed.digests == expected
    unsaved = check([*_lines((0, 0, "abcd")), *_lines((1, 2, "c"))[:-1]], expected)
    assert (unsaved.whole, unsaved.short) == (0, []), "its end was lost with a rank"


def test_lines_that_are_being_written(scripts: Any, tmp_path: Path) -> None:
    reader, file = scripts("_chaos_check").Reader(tmp_path), tmp_path / "000.0.jsonl"
    file.write_text('{"a": 1}\n{"a"')
    assert reader.new_lines() == [{"a": 1}]
    with file.open("a") as more:
        more.write(": 2}\n")
    assert reader.new_lines() == [{"a": 2}]


def test_what_a_crash_wrote(scripts: Any, tmp_path: Path) -> None:
    log, crash_in = tmp_path / "servers.log", scripts("_chaos_job").crash_in
    log.write_text("serves\n")
    assert crash_in(log) == ""
    code = "import ctypes; ctypes.string_at(0)"
    with log.open("a") as stream:
        words = [sys.executable, "-X", "faulthandler", "-c", code]
        assert subprocess.run(words, stderr=stream).returncode == -signal.SIGSEGV
    found = crash_in(log)
    assert found.startswith("servers.log: Fatal Python error: Segmentation fault")
    assert "in string_at" in found


def test_what_a_stranger_leaves_in_a_server(scripts: Any) -> None:
    first = {"MB": 300, "descriptors": 15, "threads": 5}
    growth = scripts("_chaos_job").growth
    assert growth(first, {"MB": 400, "descriptors": 19, "threads": 3}) == []
    last = {"MB": 401, "descriptors": 20, "threads": 8}
    assert growth(first, last) == ["300 -> 401 MB", "15 -> 20 descriptors", "5 -> 8 threads"]


def test_a_silent_server_is_a_fault_where_the_job_meets_it(scripts: Any, tmp_path: Path) -> None:
    """An attacker whose call finds it so on a busy machine was harmed by nobody."""
    is_silence = scripts("_chaos_stranger").is_silence
    assert is_silence(PeerLostError("it is lost (silent): nothing was heard for 10.9 s", "silent"))
    assert is_silence(ServerDiedError("it is gone: nothing was heard from it"))
    assert not is_silence(PeerLostError("it is lost (gone): the connection was closed"))
    assert not is_silence(ServerDiedError("it is gone: its process ended"))
    assert not is_silence(ConfigError("nothing was heard"))
    plan, module = scripts("_chaos_plan"), scripts("_chaos_job")

    def unnamed_of(case: str, name: str) -> list[str]:
        drawn = plan.draw(1, 0, [case], plan.FAULTS, 5, 1.0)
        job = module.ChaosJob(drawn, tmp_path, tmp_path, None, pace=0.0, silence_s=1.0)
        error = {"kind": "error", "rank": 0, "name": name, "text": "x", "short": False}
        job._lines.append({**error, "named": True})
        job._count_errors()
        assert job.outcome.errors == {name: 1}
        found: list[str] = job.outcome.unnamed
        return found

    assert unnamed_of("store-stranger", "ServerDiedError") == ["life 0, rank 0: ServerDiedError: x"]
    assert unnamed_of("store-stranger", "WorkerDiedError") == [], "workers are killed"
    assert unnamed_of("store", "ServerDiedError") == [], "servers are killed"


@pytest.mark.multiprocess
@pytest.mark.parametrize("case", ["rank", "store-stranger"])
def test_a_job(scripts: Any, tmp_path: Path, case: str) -> None:
    """Whose workers are killed, whose epochs are broken off, whose server is attacked."""
    log = tmp_path / "log.jsonl"
    words = (
        f"--seed 9 --minutes 30 --epochs 1 --cases {case} --faults kill-worker --rate 1 "
        "--job-epochs 3 --pace 0.01 --silence 600"
    )
    done = run_python(
        str(FOLDER / "chaos.py"),
        *words.split(),
        "--log",
        str(log),
        "--keep",
        str(tmp_path / "kept"),
        timeout_s=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    undisturbed, job = map(json.loads, log.read_text().splitlines())
    assert undisturbed["whole"] == job["whole"] == 3
    assert job["done"].keys() == {"kill-worker"}
    assert "| short epochs | 0 |" in done.stdout
    if case == "store-stranger":
        known = scripts("_chaos_stranger").ATTACKS
        assert job["attacks"].keys() == known.keys()
        assert len(job["server"]) == 2
