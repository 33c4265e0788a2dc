"""Runs contestants, each in processes of its own, and reads their results."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _cpu import RUN
from _job import MARK, Job

_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parents[2]
_runs = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A script, the interpreter it runs in, and how its job differs from the others'."""

    name: str
    script: str
    python: str | None
    """None: not installed here."""
    changes: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables beside this process's own."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run: a result, or why there is none."""

    result: dict[str, Any] | None
    problem: str = ""


def run(contestant: Contestant, job: Job, timeout_s: float) -> Outcome:
    """Run one job: a process per rank. Throughput adds up over the ranks."""
    if contestant.python is None:
        return Outcome(None, "not installed")
    if not Path(contestant.python).exists():
        return Outcome(None, f"not installed: no file {contestant.python}")
    port, rpc_port = _free_ports(2)
    job = replace(job, **contestant.changes, port=port, rpc_port=rpc_port)
    name = f"{os.getpid()}.{next(_runs)}"
    with tempfile.TemporaryDirectory() as scratch:
        ranks = [
            _start(contestant, replace(job, rank=rank), Path(scratch) / str(rank), name)
            for rank in range(job.world_size)
        ]
        try:
            outcomes = [
                _wait(process, Path(scratch) / str(rank), timeout_s)
                for rank, process in enumerate(ranks)
            ]
        finally:
            for process in ranks:
                _end(process)
    failed = [outcome for outcome in outcomes if outcome.result is None]
    return failed[0] if failed else _merge(outcomes)


def _start(contestant: Contestant, job: Job, log: Path, run: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **contestant.environment, "PYTHONUNBUFFERED": "1", RUN: run}
    if contestant.script in ("run_gigl.py", "run_floor.py"):  # this checkout, installed or not
        environment["PYTHONPATH"] = str(_REPOSITORY)
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(contestant.python), str(_HERE / contestant.script), job.to_json()],
            stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip


def _wait(process: "subprocess.Popen[bytes]", log: Path, timeout_s: float) -> Outcome:
    deadline = time.monotonic() + timeout_s
    while True:  # a peer may hang in its teardown, after its result is out
        text = log.read_text(errors="replace")
        for line in text.splitlines():
            if line.startswith(MARK):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                return Outcome(json.loads(line[len(MARK) :]))
        if process.poll() is not None:
            return Outcome(None, _explain(text, process.returncode))
        if time.monotonic() > deadline:
            return Outcome(None, f"no result after {timeout_s:.0f} s; {_last_line(text)}")
        time.sleep(0.1)


def _explain(text: str, code: int) -> str:
    line = _last_line(text)
    if any(error in line for error in ("ImportError", "ModuleNotFoundError")):
        return f"not installed: {line}"
    return f"failed with exit code {code}: {line}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "Error" in line] or text.splitlines()
    return lines[-1].strip()[:200] if lines else "it printed nothing"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and all that it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _merge(outcomes: list[Outcome]) -> Outcome:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    merged = {name: value for result in results for name, value in result.items()}
    if len(results) > 1 and "seeds_per_s" in merged:
        merged["seeds_per_s"] = sum(result["seeds_per_s"] for result in results)
        merged["seconds"] = max(result["seconds"] for result in results)
    return Outcome(merged)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def time_bare_import(python: str = sys.executable) -> float:
    """Return the seconds that ``python -c "import torch"`` takes, start to end."""
    begun = time.perf_counter()
    subprocess.run([python, "-c", "import torch"], check=True)
    return time.perf_counter() - begun
