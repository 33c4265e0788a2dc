"""Draw faults at random under real jobs of all kinds; compare every epoch with the undisturbed one.

Jobs of one and several ranks, colocated and of a graph store, with all kinds of loaders. While
burners keep the cores busy, workers, supervisors, servers and trainers are killed and stopped,
links are cut, a process that is let in attacks a server, epochs are broken off and resumed with
other numbers of workers and ranks. No epoch may end short, no batch may have other bits or come
twice, no job may hang or leave a process, a listening port or shared memory behind. An error of
this library is counted by name. The same ``--seed`` draws the same jobs and faults.

    python examples/benchmarks/faults/chaos.py --minutes 60 --load 10 --log chaos.jsonl
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # where quick starts are
from _chaos_cases import CASES, RECIPES, Case, alone, write
from _chaos_check import Digests
from _chaos_job import AWAY_S, ChaosJob, Outcome, run_job
from _chaos_plan import ALONE, FAULTS, draw, undisturbed
from _cluster import machine_name
from _machines import Link, Machines

from tests.support.scripts import forked_pythons
from tests.support.zygote import current_zygote


def burn(parent: int) -> None:
    """Keep a core busy until the process that asked for it is gone."""
    while os.getppid() == parent:
        sum(range(100_000))


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep ``count`` processes busy that do nothing else."""
    context = multiprocessing.get_context("fork")
    burners = [context.Process(target=burn, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for one in burners:
        one.start()
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.join()


def quick_starts(fresh: bool) -> contextlib.AbstractContextManager[None]:
    """Fork trainers, servers and supervisors from processes that have imported all they need."""
    if fresh or current_zygote() is not None:  # a test has forked this one from such a process
        return contextlib.nullcontext()
    return forked_pythons("tests.support.warm", "torch_geometric.sampler")


def can_make_machines() -> bool:
    """Whether this process may make network namespaces."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError), Machines(Link("a cable")):
        return True
    return False


class Run:
    """Jobs one after another, some at once, until there were enough."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._until = time.monotonic() + 60.0 * args.minutes
        self._lock, self._number = threading.RLock(), 0
        self._expected: dict[tuple[str, int], Digests] = {}
        self._locks: dict[str, threading.Lock] = {}
        self.outcomes: list[Outcome] = []
        self.over = threading.Event()

    def is_over(self) -> bool:
        """Whether no further epoch is to begin."""
        whole = sum(one.found.whole for one in self.outcomes if one.plan.number != ALONE)
        enough = bool(self._args.epochs) and whole >= self._args.epochs
        return enough or self.over.is_set() or time.monotonic() > self._until

    def go(self) -> None:
        """Run jobs until it is over."""
        while not self.is_over():
            with self._lock:
                number, self._number = self._number, self._number + 1
            args = self._args
            plan = draw(args.seed, number, args.cases, args.faults, args.job_epochs, args.rate)
            expected = self._expected_of(plan.case)
            if expected is None or self.is_over():
                continue
            self._run(
                ChaosJob(
                    plan,
                    self._folder / f"job{number}",
                    self._root(CASES[plan.case]),
                    expected,
                    pace=args.pace,
                    silence_s=args.silence,
                    stop=self.is_over,
                    away_s=args.reconnect,
                    every_s=args.servers_every,
                )
            )

    def _run(self, job: ChaosJob) -> Outcome:
        outcome = run_job(job, self._args.keep)
        with self._lock:
            self.outcomes.append(outcome)
            print(line_of(outcome), *outcome.crashes, sep="\n", flush=True)
            if self._args.log is not None:
                with self._args.log.open("a") as file:
                    file.write(json.dumps(outcome.as_dict()) + "\n")
        return outcome

    def _root(self, case: Case) -> Path:
        """Return the partitions of a case, written once for all that have the same."""
        graph = RECIPES[case.recipe].graph
        root = self._folder / f"{graph}.{case.nodes}.{case.partitions}"
        with self._lock:
            if not root.exists():
                write(graph, case.nodes, case.partitions, root)
        return root

    def _expected_of(self, name: str) -> Digests | None:
        """Return the digests of a case when nothing happens to it; None where even that fails.

        Taken by one rank from one partition: a deployment does not change a batch.
        """
        kind = alone(CASES[name])
        with self._lock:
            lock = self._locks.setdefault(kind.recipe, threading.Lock())
        with lock:
            key = (kind.recipe, kind.nodes)
            if key not in self._expected:
                plan = undisturbed(name, self._args.job_epochs)
                folder = self._folder / f"undisturbed.{kind.recipe}.{kind.nodes}"
                root, silence_s = self._root(kind), self._args.silence
                job = ChaosJob(plan, folder, root, None, pace=0.0, silence_s=silence_s)
                self._expected[key] = self._run(job).found.digests
            found = self._expected[key]
        return found if len(found) == self._args.job_epochs else None


def line_of(outcome: Outcome) -> str:
    """Return what is said of a job when it is over."""
    found, plan = outcome.found, outcome.plan
    counts = {
        "short": found.short,
        "wrong": found.wrong,
        "duplicates": found.duplicates,
        "unnamed": outcome.unnamed,
        "left": outcome.left,
    }
    bad = [f"{len(what)} {name.upper()} {what[:2]}" for name, what in counts.items() if what]
    bad += [f"HANG {outcome.hang}"] if outcome.hang else []
    errors = [f"{count} {name}" for name, count in outcome.errors.items()]
    if outcome.server:
        errors.append(
            f"{outcome.attacks.total()} attacks, {outcome.silent.total()} more that found the "
            f"server silent, the server {outcome.server}"
        )
    faults = sum(outcome.done.values())
    what = "undisturbed" if plan.number == ALONE else f"job {plan.number}, {faults} faults"
    return (
        f"{time.strftime('%X')} {plan.case}: {what}: {found.whole} whole epochs, "
        f"{outcome.seconds:.0f} s, load {outcome.load:.0f}"
        + "".join(f"; {one}" for one in errors + bad)
    )


def table_of(outcomes: list[Outcome]) -> str:
    """Return the summary."""
    disturbed = [one for one in outcomes if one.plan.number != ALONE]
    store = [one for one in disturbed if CASES[one.plan.case].servers]
    faults, errors = Counter[str](), Counter[str]()
    attacks, silent = Counter[str](), Counter[str]()
    for one in disturbed:
        faults.update(one.done)
        attacks.update(one.attacks)
        silent.update(one.silent)
        errors.update(one.errors)

    def count(name: str) -> int:
        return sum(len(getattr(one.found, name)) for one in outcomes)

    rows = [
        ("jobs, of them of a graph store", f"{len(disturbed)}, {len(store)}"),
        ("whole epochs", sum(one.found.whole for one in disturbed)),
        ("of them of a graph store", sum(one.found.whole for one in store)),
        ("faults", faults.total()),
        *((f"- {kind}", number) for kind, number in faults.most_common()),
        ("attacks", attacks.total()),
        *((f"- {name}", number) for name, number in attacks.most_common()),
        ("attacks that found the server silent", silent.total()),
        ("seconds of the longest job", round(max((one.seconds for one in disturbed), default=0))),
        ("short epochs", count("short")),
        ("wrong batches", count("wrong")),
        ("duplicate batches", count("duplicates")),
        ("hangs", sum(bool(one.hang) for one in outcomes)),
        ("jobs that left something behind", sum(bool(one.left) for one in outcomes)),
        ("errors without a name", sum(len(one.unnamed) for one in outcomes)),
        ("named errors", errors.total()),
        *((f"- {name}", number) for name, number in errors.most_common()),
    ]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="of all that is drawn; the same again")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="then jobs end with their epoch"
    )
    parser.add_argument("--epochs", type=int, default=0, help="end after so many; 0: by the clock")
    parser.add_argument("--cases", type=names_of(CASES), default=list(CASES), metavar="NAME,...")
    parser.add_argument("--faults", type=names_of(FAULTS), default=list(FAULTS), metavar="KIND,...")
    parser.add_argument("--rate", type=float, default=0.8, help="faults in an epoch, on average")
    parser.add_argument(
        "--servers-every",
        type=seconds_apart,
        metavar="S,S",
        help="kill a storage server again and again: least and most seconds after all serve",
    )
    parser.add_argument(
        "--reconnect", type=float, default=AWAY_S, help="reconnect_timeout of loaders and servers"
    )
    parser.add_argument("--load", type=int, default=0, help="processes that keep cores busy")
    parser.add_argument("--at-once", type=int, default=1, help="jobs at the same time")
    parser.add_argument("--job-epochs", type=int, default=10, help="epochs of a job")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start each process in a new interpreter, as users "
        "do: many seconds each on a busy machine, so fewer epochs",
    )
    parser.add_argument("--pace", type=float, default=0.02, help="seconds of a training step")
    parser.add_argument(
        "--silence", type=float, default=420.0, help="seconds without a batch that are a hang"
    )
    parser.add_argument("--log", type=Path, help="append a line of JSON for each job")
    parser.add_argument(
        "--keep", type=Path, default=Path("out/chaos"), help="of jobs that went wrong"
    )
    args = parser.parse_args(argv)
    args.seed = random.randrange(2**31) if args.seed is None else args.seed
    return args


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what reads some of these names, joined by commas."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if set(names) - set(known):
            raise argparse.ArgumentTypeError(f"of {', '.join(known)}")
        return names

    return read


def seconds_apart(text: str) -> tuple[float, float]:
    """Read two numbers, joined by a comma."""
    least, most = map(float, text.split(","))
    return least, most


def main(argv: list[str] | None = None) -> int:
    """Run; return 0 if nothing happened that must not."""
    args = parse(argv)
    if any(CASES[name].machines for name in args.cases) and not can_make_machines():
        print("no link is cut: network namespaces need root and `ip`", flush=True)
        args.cases = [name for name in args.cases if not CASES[name].machines]
    print(f"seed {args.seed}; {machine_name()}; load {os.getloadavg()[0]:.1f}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos")).resolve()
    os.environ["OMP_NUM_THREADS"] = "1"
    run = Run(args, folder)
    signal.signal(signal.SIGTERM, lambda *_: run.over.set())
    signal.signal(signal.SIGINT, lambda *_: run.over.set())
    try:
        with quick_starts(args.fresh), busy(args.load), ThreadPoolExecutor(args.at_once) as lanes:
            for lane in [lanes.submit(run.go) for _ in range(args.at_once)]:
                lane.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table_of(run.outcomes), flush=True)
    good = run.outcomes and all(one.is_good for one in run.outcomes)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
