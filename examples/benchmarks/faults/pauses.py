"""How long training waits when something is lost: the longest time between two batches after it.

    python examples/benchmarks/faults/pauses.py --rounds 5 --out results.json

Each fault is made several times under one running job. A stopped process is noticed by the timeout,
so that is part of its pause; so is the start of a server, which is measured too.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _cluster import AWAY_S, HOST, Job, Store, machine_name, workers_below, write_graph

from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import wait_until

TIMEOUT_S = 30.0
"""Of the job whose worker is stopped; a worker has to start within it, too."""
AFTER = 150
"""Batches after a fault in which its pause is looked for: more than wait ready anywhere."""


@dataclass
class Scene:
    """What is running, and what is lost of it."""

    job: Job
    store: Store | None
    waits_s: list[float] = field(default_factory=list)
    """Of each fault, the part of its pause that the product cannot help: a start, a timeout."""

    def kill_worker(self) -> None:
        """Kill a worker of the trainer."""
        os.kill(self._worker(), signal.SIGKILL)
        self.waits_s.append(0.0)

    def stop_worker(self) -> None:
        """Stop a worker of the trainer."""
        pid = self._worker()
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: process_state(pid).startswith("stopped"), "it is stopped", 30)
        self.waits_s.append(TIMEOUT_S)

    def kill_server_worker(self) -> None:
        """Kill a worker of the last server."""
        assert self.store is not None
        os.kill(random.choice(self.store.worker_pids(len(self.store.processes) - 1)), 9)
        self.waits_s.append(0.0)

    def restart_server(self) -> None:
        """Kill the last server and start it again; it says in its log when it has loaded."""
        assert self.store is not None
        before = self.store.log.read_text().count(" loaded DistDataset")
        self.store.restart(len(self.store.processes) - 1, signal.SIGKILL)
        started = time.monotonic()
        wait_until(
            lambda: self.store.log.read_text().count(" loaded DistDataset") > before,
            "the server has loaded its partition",
            120,
        )
        self.waits_s.append(time.monotonic() - started)

    def lose_replica(self) -> None:
        """Kill the last server that lives; others have its partition, and it stays away."""
        assert self.store is not None
        last = [process for process in self.store.processes if process.poll() is None][-1]
        last.kill()
        last.wait()
        self.waits_s.append(0.0)

    def _worker(self) -> int:
        wait_until(lambda: bool(workers_below(self.job.processes[0].pid)), "a worker", 60)
        return random.choice(workers_below(self.job.processes[0].pid))


@dataclass(frozen=True)
class Case:
    """One kind of fault. A further one is a line in `CASES`."""

    fault: Callable[[Scene], None]
    servers: int
    """Storage servers; 0: colocated."""
    bar_s: float
    """The most that the pause may exceed what the product cannot help, in seconds."""
    partitions: int = 1
    timeout_s: float = 120.0


CASES = {
    "a worker is killed": Case(Scene.kill_worker, 0, 2.0),
    "a worker is stopped": Case(Scene.stop_worker, 0, 2.0, timeout_s=TIMEOUT_S),
    "a worker of a storage server is killed": Case(Scene.kill_server_worker, 2, 2.0, 2),
    "a storage server is killed and started again": Case(Scene.restart_server, 2, 5.0, 2),
    "one of several servers of a partition is killed": Case(Scene.lose_replica, 6, 10.0),
}


@contextlib.contextmanager
def running(case: Case, args: argparse.Namespace) -> Iterator[Scene]:
    """Give a job that takes batches without end."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, root = Path(name, "job"), Path(name, "graph")
        write_graph(root, args.nodes, case.partitions)
        options: dict[str, Any] = {
            "nodes": args.nodes,
            "epochs": 10**6,
            "workers": args.workers,
            "pace": args.pace,
            "timeout": case.timeout_s,
        }
        store = Store(root, [HOST] * case.servers) if case.servers else None
        if store is not None:
            stack.callback(store.close)
            options |= {"store": store.address, "servers": case.servers, "reconnect": AWAY_S}
        else:
            options["root"] = root
        job = Job(folder, 1, **options)
        stack.callback(job.kill)
        job.wait_for(AFTER)
        yield Scene(job, store)


def pauses_of(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured: seconds, a value for each round."""
    with running(case, args) as scene:
        quiet = _longest(scene.job, 0.0)
        pauses = []
        for _ in range(args.rounds):
            began = time.monotonic()
            case.fault(scene)
            taken = len(scene.job.notes())
            scene.job.wait_for(taken + AFTER)
            pauses.append(_longest(scene.job, began))
    beyond = [pause - wait for pause, wait in zip(pauses, scene.waits_s, strict=True)]
    return {
        "pauses_s": pauses,
        "of_that_timeout_or_start_s": scene.waits_s,
        "beyond_s": beyond,
        "median_beyond_s": statistics.median(beyond),
        "bar_s": case.bar_s,
        "longest_step_before_s": quiet,
    }


def _longest(job: Job, began: float) -> float:
    """Return the longest time between two batches of which the second came after ``began``."""
    times = [line["at"] for line in job.notes()][-3 * AFTER :]
    steps = itertools.pairwise(times)
    return float(max(after - before for before, after in steps if after > began))


def row(name: str, found: dict[str, Any]) -> str:
    """Return a line of the table."""
    pauses, beyond = found["pauses_s"], found["beyond_s"]
    return (
        f"| {name} | {statistics.median(pauses):.2f} ({min(pauses):.2f} to {max(pauses):.2f}) | "
        f"{statistics.median(found['of_that_timeout_or_start_s']):.2f} | "
        f"{found['median_beyond_s']:.2f} ({min(beyond):.2f} to {max(beyond):.2f}) | "
        f"{found['bar_s']:g} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--workers", type=int, default=1, help="of a colocated job")
    parser.add_argument("--pace", type=float, default=0.01, help="seconds of a training step")
    parser.add_argument("--out", type=Path, help="write everything to this file, as JSON")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine_name(),
        "load_average": os.getloadavg(),
        "rounds": args.rounds,
        "cases": {},
    }
    print(
        "| fault | pause, s | of that timeout or start | beyond it | bar |\n|---|---|---|---|---|"
    )
    for name in args.cases:
        result["cases"][name] = pauses_of(CASES[name], args)
        print(row(name, result["cases"][name]), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
