"""Graph store against graphlearn-torch's server-client mode and against colocated loading.

python examples/benchmarks/graph_store/bench.py --cache CACHE --python-glt GLT/bin/python
python examples/benchmarks/graph_store/bench.py --cache CACHE --case startup
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "colocated"))

import _graph
import _job
import _runner

HERE = Path(__file__).resolve().parent
SERVERS = 2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the graph store.")
    parser.add_argument("--cache", type=Path, required=True, help="where the graph is kept")
    parser.add_argument("--python-glt", help="interpreter with graphlearn-torch's native library")
    parser.add_argument("--case", choices=("throughput", "startup"), default="throughput")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--warmup", type=int, default=32)
    parser.add_argument("--batches", type=int, default=200, help="per compute process")
    parser.add_argument("--workers", type=int, default=1, help="per server and compute process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def contestants(args: argparse.Namespace) -> list[_runner.Contestant]:
    store, glt = str(HERE / "run_gigl_store.py"), str(HERE / "run_glt_store.py")
    four = {"world_size": 4, "epochs": SERVERS}  # two servers and two compute processes
    return [
        _runner.Contestant(
            name="gigl_loader, graph store", script=store, python=sys.executable, changes=four
        ),
        _runner.Contestant(
            name="gigl_loader, graph store, all over TCP",
            script=store,
            python=sys.executable,
            changes=four,
            environment={"GIGL_LOADER_SAME_MEMORY": "0"},
        ),
        _runner.Contestant(
            name="gigl_loader, colocated",
            script="run_gigl.py",
            python=sys.executable,
            changes={"world_size": 2, "num_workers": SERVERS * args.workers},
        ),
        _runner.Contestant(name="GLT, unseeded", script=glt, python=args.python_glt, changes=four),
        _runner.Contestant(
            name="GLT, seeded", script=glt, python=args.python_glt, changes={**four, "seed": 1}
        ),
    ]


def note(args: argparse.Namespace, entry: dict[str, Any]) -> None:
    print(json.dumps(entry), flush=True)
    if args.out is not None:
        with args.out.open("a") as out:
            out.write(json.dumps(entry) + "\n")


def throughput(args: argparse.Namespace, job: _job.Job) -> None:
    """Let all contestants run in turns; print medians, and ratios within rounds."""
    rates: dict[str, list[float | None]] = {}
    everybody = contestants(args)
    for number in range(args.rounds):
        shift = number % len(everybody)
        for contestant in everybody[shift:] + everybody[:shift]:
            outcome = _runner.run(contestant, job, args.timeout)
            rate = None if outcome.result is None else outcome.result["seeds_per_s"]
            rates.setdefault(contestant.name, []).append(rate)
            note(
                args,
                {
                    "round": number,
                    "name": contestant.name,
                    "seeds_per_s": rate,
                    "problem": outcome.problem,
                    **(outcome.result or {}),
                },
            )
    own = rates[everybody[0].name]
    print("\n| contestant | seeds/s, median | graph store / it, median (least to most) |")
    print("| --- | ---: | ---: |")
    for contestant in everybody:
        found = [rate for rate in rates[contestant.name] if rate]
        ratios = [a / b for a, b in zip(own, rates[contestant.name], strict=True) if a and b]
        if found and ratios:
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {contestant.name} | {median(found):,.0f} | {spread} |")
        else:
            print(f"| {contestant.name} | no result | |")


def startup(args: argparse.Namespace, job: _job.Job) -> None:
    """Print the seconds from a loader's construction to its first batch."""
    print("| servers | 1 client | 4 clients | 8 clients |")
    print("| ---: | ---: | ---: | ---: |")
    for servers in (1, 2, 4):
        cells = []
        for clients in (1, 4, 8):
            contestant = _runner.Contestant(
                name="startup",
                script=str(HERE / "run_gigl_store.py"),
                python=sys.executable,
                changes={"mode": "startup", "world_size": servers + clients, "epochs": servers},
            )
            outcome = _runner.run(contestant, job, args.timeout)
            cells.append(f"{outcome.result['seconds']:.1f}" if outcome.result else outcome.problem)
        print(f"| {servers} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    args = parse_args()
    repository = str(HERE.parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [repository, os.environ.get("PYTHONPATH")])
    )
    folder = _graph.build(_graph.GraphSpec(args.nodes, args.edges, args.dim), args.cache)
    job = _job.Job(
        folder=str(folder),
        fanout=args.fanout,
        batch_size=args.batch_size,
        warmup=args.warmup,
        batches=args.batches,
        num_workers=args.workers,
    )
    (startup if args.case == "startup" else throughput)(args, job)


if __name__ == "__main__":
    main()
