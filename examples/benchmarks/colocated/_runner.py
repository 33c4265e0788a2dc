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
    segments = _unused_segments()
    with tempfile.TemporaryDirectory() as scratch:
        logs = [Path(scratch) / str(rank) for rank in range(job.world_size)]
        ranks = [
            _start(contestant, replace(job, rank=rank), log, name) for rank, log in enumerate(logs)
        ]
        try:
            return _wait(ranks, logs, timeout_s)
        finally:
            for process in ranks:
                _end(process)
            for segment in _unused_segments() - segments:  # a peer may leave gigabytes behind
                subprocess.run(["ipcrm", "-m", segment], check=False)


def _unused_segments() -> set[str]:
    """Return the System V segments of this machine that no process has attached."""
    rows = [row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[6] == "0"}


def _start(contestant: Contestant, job: Job, log: Path, run: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **contestant.environment, "PYTHONUNBUFFERED": "1", RUN: run}
    if contestant.script in ("run_gigl.py", "run_floor.py"):  # this checkout, installed or not
        environment["PYTHONPATH"] = str(_REPOSITORY)
    with log.open("wb") as out:
        return subprocess.Popen(
            [str(contestant.python), str(_HERE / contestant.script), job.to_json()],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _wait(ranks: "list[subprocess.Popen[bytes]]", logs: list[Path], timeout_s: float) -> Outcome:
    """Wait for the results of all ranks; the first rank that fails ends the wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in ranks]  # before the logs: these end with the process
        texts = [log.read_text(errors="replace") for log in logs]
        results = [_result(text) for text in texts]
        for text, result, code in zip(texts, results, codes, strict=True):
            if result is None and code is not None:
                return Outcome(None, _explain(text, code))
            if result is None and time.monotonic() > deadline:
                return Outcome(None, f"no result after {timeout_s:.0f} s; {_last_line(text)}")
        found = [result for result in results if result is not None]
        if len(found) == len(ranks):
            for process in ranks:  # a peer may hang in its teardown, after its result is out
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            return Outcome(_merge(found))
        time.sleep(0.1)


def _result(text: str) -> dict[str, Any] | None:
    found = [line for line in text.splitlines() if line.startswith(MARK)]
    result: dict[str, Any] | None = json.loads(found[0][len(MARK) :]) if found else None
    return result


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


def _merge(results: list[dict[str, Any]]) -> dict[str, Any]:
    merged = {name: value for result in results for name, value in result.items()}
    shares = [result["others_cpu"] for result in results if "others_cpu" in result]
    if (
        shares
    ):  # of who looked first: later, the time of processes that have ended counts as others'
        merged["others_cpu"] = min(shares)
    if len(results) > 1 and "seeds_per_s" in merged:
        merged["seeds_per_s"] = sum(result["seeds_per_s"] for result in results)
        merged["seconds"] = max(result["seconds"] for result in results)
    return merged


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
