"""Kill workers, storage servers and trainers at random under a job; at the end compare all bits.

Takes three shuffled epochs undisturbed, then the same ones again and again while something is
killed every few seconds: a sampling worker, a server, which is started again with the same
arguments, or a trainer, after which the job goes on from its state on another number of ranks. The
sha256 over the three epochs has to be the same each time.

    python examples/benchmarks/faults/soak.py --minutes 10 --every 5 --out results.json
"""

import argparse
import datetime
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _cluster import AWAY_S, HOST, Job, Store, end, machine_name, write_graph

RANKS = (1, 2, 3)
WEIGHTS = {"worker": 5, "server": 3, "trainer": 2}
"""How often each is killed: a job that only starts again shows nothing."""


class Killer(threading.Thread):
    """Kills something every few seconds while all ranks take batches."""

    def __init__(self, store: Store, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._store, self._every_s, self._lot = store, every_s, random.Random(seed)
        self.lock = threading.RLock()
        self._job: Job | None = None
        self.over = threading.Event()
        self.killed: Counter[str] = Counter()

    def follow(self, job: Job | None) -> None:
        """Let this job be disturbed; None: leave it alone from here on."""
        with self.lock:
            self._job = job

    def run(self) -> None:
        """Kill, until `over` is set."""
        while not self.over.wait(self._every_s * self._lot.uniform(0.5, 1.5)):
            with self.lock:
                if self._job is None or not self._all_are_at_work(self._job):
                    continue
                (kind,) = self._lot.choices(list(WEIGHTS), list(WEIGHTS.values()))
                what = getattr(self, f"_kill_{kind}")(self._job)
            self.killed[what] += 1
            print(f"{time.strftime('%X')} killed: {what}", flush=True)

    def _all_are_at_work(self, job: Job) -> bool:
        """Whether a batch is taken in the next moments, so that what was lost before is back."""
        before = len(job.notes())
        if not before:
            return False
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            if job.is_over():
                return False
            if len(job.notes()) > before:
                return job.has_begun()
            time.sleep(0.05)
        return False

    def _kill_worker(self, job: Job) -> str:
        rank = self._lot.randrange(len(self._store.processes))
        pids = self._store.worker_pids(rank)
        if not pids:
            return "nothing"
        try:
            os.kill(self._lot.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return "nothing"
        return "a worker of a server"

    def _kill_server(self, job: Job) -> str:
        how = self._lot.choice([signal.SIGKILL, signal.SIGTERM])
        self._store.restart(self._lot.randrange(len(self._store.processes)), how)
        return f"a server by {how.name}"

    def _kill_trainer(self, job: Job) -> str:
        """Kill a rank, then end the others, as torchrun does; other ranks go on."""
        former = len(job.processes)
        self._lot.choice(job.processes).send_signal(signal.SIGKILL)
        end(job.processes)
        ranks = self._lot.choice([number for number in RANKS if number != former])
        job.start(ranks)
        return f"a trainer; {former} ranks became {ranks}"


def soak(store: Store, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return what was killed, and how many runs of three epochs had the same bits."""
    options = {
        "store": store.address,
        "servers": args.servers,
        "nodes": args.nodes,
        "reconnect": AWAY_S,
        "pace": args.pace,
        "save": True,
    }
    quiet = Job(folder / "expected", 1, **options)
    assert quiet.join(), quiet.error()
    expected = quiet.digest()
    killer, runs, same, errors = Killer(store, args.every, args.seed), 0, 0, []
    until = time.monotonic() + 60.0 * args.minutes
    killer.start()
    while time.monotonic() < until:
        job = Job(folder / f"run {runs}", 1 + runs % len(RANKS), **options)
        try:
            killer.follow(job)
            good = joined(job, killer)
        finally:
            job.kill()
        runs += 1
        same += good and job.digest() == expected
        errors += [] if good else [job.error()]
        print(
            f"{time.strftime('%X')} {same} of {runs} runs of 3 epochs are the same",
            *errors[-1:],
            flush=True,
        )
    killer.over.set()
    killer.join(90)
    batches = 3 * -(-args.nodes // 32)
    return {
        "killed": dict(sorted(killer.killed.items())),
        "runs": runs,
        "same_bits": same,
        "batches_of_a_run": batches,
        "errors": errors,
    }


def joined(job: Job, killer: Killer) -> bool:
    """Wait for the end of a job whose ranks are replaced meanwhile; return whether it is good."""
    while True:
        with killer.lock:  # not between the end of one number of ranks and the start of another
            if job.is_over():
                killer.follow(None)
                return job.join()
        time.sleep(0.2)


def main() -> int:
    """Run; return 0 if all bits were the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--pace", type=float, default=0.01, help="seconds of a training step")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when")
    parser.add_argument("--out", type=Path, help="write the outcome to this file, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "graph")
        write_graph(root, args.nodes, args.servers)
        store = Store(root, [HOST] * args.servers)
        try:
            found = soak(store, Path(name), args)
        finally:
            store.close()
    found |= {"minutes": args.minutes, "every_s": args.every, "machine": machine_name()}
    found |= {"date": datetime.date.today().isoformat(), "load_average": os.getloadavg()}
    print(json.dumps(found, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["same_bits"] == found["runs"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
