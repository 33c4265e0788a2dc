"""Compare colocated loading with its peers: alternating, several rounds, medians and spread.

Example::

    python examples/benchmarks/colocated/bench.py --python-glt PATH --python-graphbolt PATH \
        --python-pyg PATH --cache DIRECTORY --out results.jsonl

A peer whose interpreter is not given is reported as "not installed". See README.md.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import _graph
import _runner
import _summary
import _tasks
import growth
import page
import picture
from _job import Job
from _runner import Contestant, Outcome
from _table import Bar, markdown, ratios, spread, verdict

_GIGL = "gigl_loader, 1 worker"
_BARE = "bare loop: kernels and gather in one process"
_WIDE_BYTES = 1_000_000_000
_NARROW_DIM = 8
_SMALL_BATCH = 128
_SCALE = 10
_ENDS = 4  # of a seed edge and its negative
_LONGER = 4  # times the batches for the fast ones, so that all are on the clock for seconds


class Bench:
    """One invocation: its options, its output, its results."""

    def __init__(self, args: argparse.Namespace, cache: Path, out: Any) -> None:
        self.args, self._cache, self._out = args, cache, out
        self.problems: dict[str, str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.seeds_per_s: dict[str, dict[int, float]] = defaultdict(dict)
        self.cpu_ms: dict[str, dict[int, float]] = defaultdict(dict)
        self.growth: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
        self.disturbed = 0.0

    def job(self, **changes: Any) -> Job:
        """Return the job that all contestants share; the graph is built where missing."""
        args = self.args
        size = {name: changes.pop(name, getattr(args, name)) for name in ("nodes", "edges", "dim")}
        folder = _graph.build(_graph.GraphSpec(**size), self._cache)
        job = Job(
            folder=str(folder),
            fanout=args.fanout,
            batch_size=args.batch_size,
            warmup=args.warmup,
            batches=args.batches,
        )
        return replace(job, **changes)

    def run(self, contestant: Contestant, job: Job, round_number: int) -> dict[str, Any] | None:
        """Run one contestant once, keep its JSON line, return its result."""
        if contestant.name in self.problems:
            return None
        outcome = self._least_disturbed(contestant, job)
        self.record(contestant.name, round_number, outcome)
        return outcome.result

    def _least_disturbed(self, contestant: Contestant, job: Job) -> Outcome:
        best = _runner.run(contestant, job, self.args.timeout)
        for _ in range(self.args.retries):
            if best.result is None or best.result.get("others_cpu", 0.0) <= picture.QUIET:
                break
            again = _runner.run(contestant, job, self.args.timeout)
            if again.result and again.result["others_cpu"] < best.result["others_cpu"]:
                best = again
        return best

    def record(self, name: str, round_number: int, outcome: Outcome) -> None:
        """Write one JSON line and tell how it goes."""
        line = {
            "case": self.args.case,
            "contestant": name,
            "round": round_number,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "load_1min": os.getloadavg()[0],
            **(outcome.result or {"problem": outcome.problem}),
        }
        if self._out is not None:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()
        if outcome.result is None:
            self.problems[name] = outcome.problem
            print(f"  {name}: {outcome.problem}", file=sys.stderr)
            return
        self.versions[name] = outcome.result.get("versions", {})
        self.disturbed = max(self.disturbed, outcome.result.get("others_cpu", 0.0))
        figure = outcome.result.get("seeds_per_s")
        if figure is not None:
            self.seeds_per_s[name][round_number] = figure
            self.cpu_ms[name][round_number] = outcome.result["cpu_ms_per_batch"]
        text = f"{outcome.result.get('seconds', 0):.2f} s" if figure is None else f"{figure:,.0f}/s"
        print(f"  round {round_number}: {name}: {text}", file=sys.stderr)

    def summary(self, table: str) -> dict[str, Any]:
        """Return ``table`` and the medians of all contestants that the picture shows."""
        return _summary.summarize(
            self.seeds_per_s,
            self.cpu_ms,
            self.versions,
            args=self.args,
            machine=machine(),
            others_cpu=self.disturbed,
            table=table,
        )

    def alternate(self, contestants: Sequence[Contestant], job: Job, figure: str) -> Any:
        """Run all contestants in turn, ``rounds`` times.

        Returns:
            By contestant: ``figure`` by round, and the last result.
        """
        values: dict[str, dict[int, float]] = defaultdict(dict)
        last: dict[str, dict[str, Any]] = {}
        for number in range(self.args.rounds):
            shift = number % len(contestants)  # nobody always runs right after the same neighbour
            for contestant in [*contestants[shift:], *contestants[:shift]]:
                result = self.run(contestant, job, number)
                if result is not None:
                    values[contestant.name][number] = result[figure]
                    last[contestant.name] = result
        return values, last


def _contestants(args: argparse.Namespace) -> list[tuple[Contestant, Bar | None]]:
    here = sys.executable
    longer = args.batches * _LONGER

    def one(name: str, script: str, python: str | None, **changes: Any) -> Contestant:
        return Contestant(name=name, script=script, python=python, changes=changes)

    return [
        (one(_GIGL, "run_gigl.py", here, batches=longer), None),
        (one("gigl_loader, 2 workers", "run_gigl.py", here, batches=longer, num_workers=2), None),
        (
            one(
                "gigl_loader, 1 worker, with replacement",
                "run_gigl.py",
                here,
                batches=longer,
                replace=True,
            ),
            None,
        ),
        *((peer, bar) for peer, bar, _ in _peers(args)),
        (one(_BARE, "run_bare.py", here, batches=longer), Bar(0.75)),
    ]


def _peers(args: argparse.Namespace) -> list[tuple[Contestant, Bar | None, Collection[str]]]:
    """Return each peer with each number of workers, its bar for nodes, and kinds to run it for."""
    glt = args.python_glt
    # whole subgraphs are torch-sparse's in PyG, whatever else is installed
    of_pyg = {*_tasks.KINDS} - {"labels", "labor", "induced"}
    # of two ways to run a library, the faster one stands for it
    table: list[tuple[str, str, str | None, Bar | None, Collection[str], dict[str, Any]]] = [
        ("GLT as installed", "run_glt.py", glt, Bar(10), (), {}),
        ("GLT seeded", "run_glt.py", glt, Bar(3), ("nodes",), {"seed": 1}),
        (
            "DGL GraphBolt",
            "run_graphbolt.py",
            args.python_graphbolt,
            Bar(3),
            ("nodes", "labor"),
            {},
        ),
        ("PyG NeighborLoader", "run_pyg.py", args.python_pyg, Bar(5), ("induced",), {}),
        ("PyG NeighborLoader, pyg-lib", "run_pyg.py", args.python_pyg_lib, None, of_pyg, {}),
    ]
    return [
        (
            Contestant(
                name=f"{name}, {_workers(count)}",
                script=script,
                python=python,
                changes={"num_workers": count, **changes},
            ),
            bar,
            kinds,
        )
        for name, script, python, bar, kinds, changes in table
        for count in args.peer_workers
    ]


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count > 1)}"


def throughput(bench: Bench) -> str:
    """All contestants on one partition."""
    entries = [(contestant, bar, _GIGL) for contestant, bar in _contestants(bench.args)]
    return _compare(bench, entries, bench.job())


def _compare(bench: Bench, entries: Sequence[tuple[Contestant, Bar | None, str]], job: Job) -> str:
    """Run (contestant, bar, whom it is compared with) in turn; return the table."""
    values, last = bench.alternate([entry for entry, _, _ in entries], job, "seeds_per_s")
    rows = []
    for contestant, bar, reference in entries:
        name = contestant.name
        if name not in values:
            problem = bench.problems.get(name, "not run")
            rows.append([name, problem, "", "", "", "", "", verdict([], bar)])
            continue
        against = ratios(values[reference], values[name])
        cpu = bench.cpu_ms
        rows.append(
            [
                name,
                spread(list(values[name].values())),
                f"{last[name]['ms_per_batch']:.1f}",
                spread(list(cpu[name].values()), 1),
                f"{last[name]['rows_per_batch']:,.0f}",
                spread(against, 2) if against else "not measured",
                # the kernel counts CPU time in ticks of 10 ms: a very short run has none
                spread(ratios(cpu[name], cpu[reference]), 2)
                if against and all(cpu[reference].values())
                else "not measured",
                verdict(against, bar),
            ]
        )
    header = [
        "contestant",
        "seeds/s",
        "ms a batch (last)",
        "CPU ms a batch",
        "nodes a batch",
        "seeds/s: gigl_loader / it",
        "CPU: it / gigl_loader",
        "bar (seeds/s)",
    ]
    return markdown(header, rows)


def links(bench: Bench) -> str:
    """Seed edges with a negative each, against PyG: a batch has as many ends as others nodes."""
    job = bench.job(task="links", batch_size=max(1, bench.args.batch_size // _ENDS))
    return _compare(bench, _against_pyg(bench.args, "LinkNeighborLoader"), job)


def times(bench: Bench) -> str:
    """Seeds with a time each, against PyG, and against our loader without times."""
    uniform, last = (
        _against_pyg(bench.args, f"NeighborLoader, {strategy}", temporal_strategy=strategy)
        for strategy in ("uniform", "last")
    )
    timed = uniform[0][0]
    untimed = replace(
        timed,
        name="gigl_loader, the same graph without time_attr, 1 worker",
        changes={**timed.changes, "task": "untimed"},
    )
    entries = [*uniform, *last, (untimed, Bar(0.7), timed.name)]
    return _compare(bench, entries, bench.job(task="times"))


def kinds(bench: Bench) -> str:
    """Each kind of loader beside every peer that has it, with the workers that serve the peer."""
    args, rows = bench.args, []
    for task in args.kinds:
        words = _tasks.KINDS[task]
        size = max(1, args.batch_size // (_ENDS if task == "links" else 1))
        ours, *peers = _of_kind(args, task)
        job = bench.job(task=task, batch_size=size)
        values, last = bench.alternate([ours, *peers], job, "seeds_per_s")
        figures = {name: statistics.median(found.values()) for name, found in values.items()}
        measured = [peer.name for peer in peers if peer.name in figures]
        if ours.name not in figures or not measured:
            wrong = [bench.problems.get(one.name, "") for one in (ours, *peers)]
            problems = sorted({problem.partition(":")[0] for problem in wrong} - {""})
            rows.append([words, *_figure_of(values, ours.name), ", ".join(problems) or "no peer"])
            rows[-1] += [""] * 5
            continue
        best = max(measured, key=lambda name: figures[name])
        against = ratios(values[ours.name], values[best])
        rows.append(
            [
                words,
                *_figure_of(values, ours.name),
                best.removeprefix(f"{task}: "),
                *_figure_of(values, best),
                spread(against, 2),
                spread(ratios(bench.cpu_ms[best], bench.cpu_ms[ours.name]), 2)
                if all(bench.cpu_ms[ours.name].values())
                else "not measured",
                f"{last[ours.name]['memory_mb']:,.0f}; {last[best]['memory_mb']:,.0f}",
                verdict(against, Bar(3)),
            ]
        )
    header = [
        "seeds",
        "gigl_loader, 1 worker, seeds/s",
        "best peer",
        "its seeds/s",
        "seeds/s: gigl_loader / it",
        "CPU a batch: it / gigl_loader",
        "memory, MB: gigl_loader; it",
        "bar (seeds/s)",
    ]
    return markdown(header, rows)


def growing(bench: Bench) -> str:
    """What a seed costs in CPU and wall time as one thing after the other grows."""
    args, found = bench.args, bench.growth
    for number in range(args.rounds):
        for axis, values in growth.AXES.items():
            for value, given in values.items():
                changes = growth.work_of(given, args.batches * _LONGER, args.batch_size)
                entry = Contestant(
                    name=f"{axis}: {value}",
                    script="run_gigl.py",
                    python=sys.executable,
                    environment=changes.pop("environment", {}),
                )
                job = bench.job(**changes)
                if (result := bench.run(entry, job, number)) is not None:
                    seeds = job.batch_size * job.world_size  # CPU time is that of all ranks
                    found[axis, value].append(growth.costs_of(result, seeds))
    return growth.table(found)


def _figure_of(values: Any, name: str) -> list[str]:
    return [spread(list(values[name].values())) if name in values else "not measured"]


def _of_kind(args: argparse.Namespace, task: str) -> list[Contestant]:
    """Return gigl_loader, and each peer that has the kind with each number of workers."""
    ours = Contestant(
        name="gigl_loader",
        script="run_gigl.py",
        python=sys.executable,
        changes={"batches": args.batches * _LONGER},
    )
    having = [peer for peer, _, has in _peers(args) if task in has]
    return [replace(one, name=f"{task}: {one.name}") for one in (ours, *having)]


def _against_pyg(
    args: argparse.Namespace, name: str, **changes: Any
) -> list[tuple[Contestant, Bar | None, str]]:
    ours = Contestant(
        name=f"gigl_loader Dist{name}, 1 worker",
        script="run_gigl.py",
        python=sys.executable,
        changes={"batches": args.batches * _LONGER, **changes},
    )
    theirs = Contestant(
        name=f"PyG {name}, 1 worker", script="run_pyg.py", python=args.python_pyg, changes=changes
    )
    return [(ours, None, ours.name), (theirs, Bar(5), ours.name)]


def partitions(bench: Bench) -> str:
    """Two partitions, two ranks on this machine, against GLT on the same two."""
    job = bench.job(world_size=2)
    glt, here = bench.args.python_glt, sys.executable
    gigl = Contestant(name="gigl_loader", script="run_gigl.py", python=here)
    tcp = replace(gigl, name="gigl_loader, over TCP", environment={"GIGL_LOADER_SAME_MEMORY": "0"})
    seeded = Contestant(name="GLT seeded", script="run_glt.py", python=glt, changes={"seed": 1})
    plain = Contestant(name="GLT as installed", script="run_glt.py", python=glt)
    everybody = [gigl, tcp, seeded, plain]
    values, _ = bench.alternate(everybody, job, "seeds_per_s")
    rows = []
    for name in (contestant.name for contestant in everybody):
        bar = Bar(2.5) if name == seeded.name else None
        if name not in values:
            rows.append([name, bench.problems.get(name, "not run"), "", verdict([], bar)])
            continue
        against = ratios(values["gigl_loader"], values[name])
        rows.append(
            [name, spread(list(values[name].values())), spread(against, 2), verdict(against, bar)]
        )
    return markdown(
        ["2 partitions, 2 ranks, 1 worker each", "seeds/s, both ranks", "gigl_loader / it", "bar"],
        rows,
    )


def startup(bench: Bench) -> str:
    """Time to the first batch of a fresh loader, against a bare import of torch."""
    job = bench.job(mode="startup", warmup=0, batches=max(bench.args.batches, 16))
    times: dict[str, dict[int, float]] = defaultdict(dict)
    bare = 'python -c "import torch"'
    entries = [
        Contestant(
            name=f"gigl_loader, {_workers(count)}",
            script="run_gigl.py",
            python=sys.executable,
            changes={"num_workers": count},
        )
        for count in bench.args.workers
    ]
    if bench.args.python_glt:
        entries.append(
            Contestant(name="GLT, 1 worker", script="run_glt.py", python=bench.args.python_glt)
        )
    _runner.time_bare_import()  # files into the page cache
    for number in range(bench.args.rounds):
        seconds = _runner.time_bare_import()
        bench.record(bare, number, Outcome({"seconds": seconds}))
        times[bare][number] = seconds
        for entry in entries:
            result = bench.run(entry, job, number)
            if result is not None:
                times[entry.name][number] = result["seconds"]
    rows = [
        [name, spread(list(taken.values()), 2), spread(ratios(taken, times[bare]), 2)]
        for name, taken in times.items()
    ]
    return markdown(["what", "seconds", "over the bare import (bar for gigl_loader: 1.5)"], rows)


def memory(bench: Bench) -> str:
    """A worker's memory beyond the graph, over epochs, and with wide features."""
    epochs = bench.args.epochs
    wide = max(_WIDE_BYTES // (4 * bench.args.nodes), _NARROW_DIM)
    rows = []
    small = {"batch_size": _SMALL_BATCH, "epochs": 5}
    runs = ((bench.args.dim, {"epochs": epochs}), (_NARROW_DIM, small), (wide, small))
    for dim, changes in runs:
        name = f"{dim} columns"
        entry = Contestant(name=name, script="run_gigl.py", python=sys.executable)
        job = bench.job(mode="memory", dim=dim, warmup=0, **changes)
        result = bench.run(entry, job, 0)
        if result is None:
            rows.append([name, bench.problems[name], "", "", "", ""])
            continue
        for point in result["history"]:
            rows.append(
                [
                    name,
                    f"{result['feature_bytes'] / 1e6:,.0f}",
                    str(point["epoch"]),
                    f"{point['most_private']:.1f}",
                    f"{point['most_batches']:.1f}",
                    f"{point['own_private']:.1f}",
                ]
            )
    header = [
        "features",
        "their size, MB",
        "after epoch",
        "worker's own memory, MiB (bar: 300)",
        "batches in shared memory, MiB",
        "trainer's own memory, MiB",
    ]
    return markdown(header, rows)


def scale(bench: Bench) -> str:
    """Cost per seed on a graph ten times as large, of the same mean degree."""
    args = bench.args
    values: dict[str, dict[int, float]] = defaultdict(dict)
    sizes = (args.nodes, args.nodes * _SCALE)
    here = sys.executable
    for number in range(args.rounds):
        for nodes in sizes:
            job = bench.job(nodes=nodes, edges=args.edges * nodes // args.nodes)
            for kind, script in (("gigl_loader", "run_gigl.py"), ("bare loop", "run_bare.py")):
                name = f"{kind}, {nodes:,} nodes"
                entry = Contestant(name=name, script=script, python=here)
                result = bench.run(entry, job, number)
                if result is not None:
                    values[name][number] = 1e6 / result["seeds_per_s"]
    rows = []
    for name, costs in values.items():
        kind = name.partition(",")[0]
        base = values[f"{kind}, {sizes[0]:,} nodes"]
        rows.append([name, spread(list(costs.values()), 1), spread(ratios(costs, base), 2)])
    return markdown(["what", "microseconds a seed", "over the small graph"], rows)


CASES = {
    "throughput": throughput,
    "links": links,
    "times": times,
    "kinds": kinds,
    "growth": growing,
    "partitions": partitions,
    "startup": startup,
    "memory": memory,
    "scale": scale,
}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--case", choices=CASES, default="throughput")
    add("--nodes", type=int, default=1_000_000)
    add("--edges", type=int, default=20_000_000)
    add("--dim", type=int, default=100, help="feature columns")
    add("--fanout", type=int, nargs="+", default=[15, 10])
    add("--batch-size", type=int, default=1024)
    add("--warmup", type=int, default=10, help="batches before the clock starts")
    add("--batches", type=int, default=60, help="batches on the clock; per epoch in --case memory")
    add("--rounds", type=int, default=5)
    add("--retries", type=int, default=0, help="runs again, at most, where others took CPU time")
    add("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="for --case startup")
    add(
        "--peer-workers",
        type=int,
        nargs="+",
        default=[1, 2],
        help="workers of each peer in --case throughput and kinds; 1 has to be among them",
    )
    add("--epochs", type=int, default=50, help="for --case memory")
    add("--timeout", type=float, default=300.0, help="seconds that one run may take")
    add("--cache", type=Path, help="where graphs are kept (default: a temporary folder)")
    add("--out", type=Path, help="file that JSON lines are appended to")
    add("--kinds", nargs="+", choices=_tasks.KINDS, default=list(_tasks.KINDS), metavar="KIND")
    add("--peers", type=Path, help="folder of peers.py: interpreters that are not given lie there")
    add("--python-glt", help="interpreter that has graphlearn-torch")
    add("--python-graphbolt", help="interpreter that has DGL")
    add("--python-pyg", help="interpreter that has PyG with torch-sparse, or with pyg-lib alone")
    add("--python-pyg-lib", help="interpreter that has PyG with pyg-lib, beside the other one")
    add("--summary", type=Path, help="JSON file for the medians of --case throughput")
    add("--picture", type=Path, help="PNG file for their chart; one for dark pages lies beside it")
    add("--page", type=Path, help="Markdown file whose table of --case throughput is replaced")
    args = parser.parse_args(argv)
    for name in ("glt", "graphbolt", "pyg", "pyg_lib") if args.peers else ():
        there = args.peers / name.replace("_", "") / "bin" / "python"
        setattr(args, f"python_{name}", getattr(args, f"python_{name}") or str(there))
    if (args.summary and args.case not in ("throughput", "growth")) or (
        args.page and args.case != "throughput"
    ):
        parser.error(
            "--summary and --picture are of --case throughput and growth, --page of the first"
        )
    if 1 not in args.peer_workers:
        parser.error("--peer-workers needs 1, which the picture compares")
    if (args.picture or args.page) and not args.summary:
        parser.error("--picture and --page are made from --summary: give that as well")
    return args


def machine() -> str:
    """Describe this machine in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    release = ".".join(platform.release().split(".")[:2])
    return f"{model}, {os.cpu_count()} cores, {gib:.0f} GiB, {platform.system()} {release}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one case and print its table."""
    args = parse(argv)
    with ExitStack() as stack:
        cache = args.cache or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        out = stack.enter_context(args.out.open("a")) if args.out else None
        bench = Bench(args, cache, out)
        table = CASES[args.case](bench)
        if args.summary and args.case == "growth":
            found = {**bench.summary(table), "axes": growth.medians(bench.growth)}
            del found["seeds_per_s"]  # of peers
            args.summary.write_text(json.dumps(found, indent=1) + "\n")
            if args.picture:
                growth.draw(args.summary, args.picture)
        elif args.summary:
            _summary.write(args.summary, bench.summary(table))
            if args.picture:
                picture.draw(args.summary, args.picture)
            if args.page:
                page.write(args.summary, args.page)
    today = time.strftime("%Y-%m-%d")
    print(f"{args.case}: {today}, {machine()}; load {os.getloadavg()[0]:.1f}\n\n{table}\n")
    if bench.disturbed > picture.QUIET:
        print(
            f"Other processes took up to {bench.disturbed:.0%} of the CPUs in a run: not quiet.\n"
        )
    for name, versions in bench.versions.items():
        if versions:
            print(f"- {name}: " + ", ".join(f"{key} {value}" for key, value in versions.items()))
    for name, problem in bench.problems.items():
        print(f"- {name}: {problem}")
    failed = [problem for problem in bench.problems.values() if "not installed" not in problem]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
