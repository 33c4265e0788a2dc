"""Everything that needs a GPU, on a machine that has one: tests, speeds, a page of figures.

::

    make gpu                      30 minutes at most; writes examples/benchmarks/gpu/README.md
    make gpu ARGS="--rehearse"    the same on the CPU, small, in a minute; writes out/gpu.md

Loaders take turns, several rounds; the page has medians and spreads, and each as a share of what
the machine copies at most. A peer that is not installed is named as such. The benchmarks of copies
and of draws, which have pages of their own, are run once.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from _cases import MARK, PEERS, Case

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
OWN = (
    "workers", "in process", "on the device", "on the device, features on the host",
    "on the device, one shape",
)  # fmt: skip
TRAINING = ("R-GAT, workers", "R-GAT, on the device", "R-GAT, on the device, one shape")
SCRIPTS = {
    "Copies that overlap compute": "device/bench_step.py",
    "The draws of one hop": "draws/bench_draws.py",
}
"""Benchmarks with pages of their own, by what they measure."""
LEAST_SECONDS = 60.0
"""Time that tests and other benchmarks have, if little is left."""
REHEARSAL = """\
**No GPU has run this yet.** This page is of a rehearsal: everything once, small, on the CPU. It
shows that each case runs; no figure on it says anything about a GPU. `make gpu`, on a machine that
has one, writes the page again."""


class Bench:
    """One run: what is left of its time, and its results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends = time.monotonic() + 60 * args.minutes
        self.found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.problems: dict[str, str] = {}

    @property
    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.ends - time.monotonic())

    def case(self, name: str) -> Case:
        """Return a case at the size of this run."""
        args, typed = self.args, name.startswith("R-GAT")
        kernels = args.kernels if args.device == "cpu" else None
        return Case(
            name, args.device, kernels, args.typed_nodes if typed else args.nodes, args.degree,
            args.typed_dim if typed else args.dim, tuple((5, 10, 15) if typed else args.fanout),
            args.batch_size, args.warmup, args.batches, args.workers, args.hidden,
        )  # fmt: skip

    def run(self, name: str) -> None:
        """Run one case once; a case that failed is not run again."""
        if name in self.problems:
            return
        if self.left < 5:
            self.problems[name] = "no time was left"
            return
        try:
            done = subprocess.run(
                [sys.executable, str(_HERE / "_cases.py"), self.case(name).to_json()],
                capture_output=True, text=True, timeout=min(self.left, 300), cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.problems[name] = "no result in time"
            return
        lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
        if lines:
            self.found[name].append(json.loads(lines[-1].removeprefix(MARK)))
            print(f"{name}: {self.found[name][-1]}", flush=True)
            return
        said = [line for line in done.stderr.splitlines() if line.strip()]
        self.problems[name] = said[-1][:200] if said else f"ended with {done.returncode}"
        print(f"{name}: {self.problems[name]}", flush=True)

    def tests(self) -> str:
        """Run the tests that need a GPU; return pytest's last line."""
        if self.args.device == "cpu":
            return "not run: a rehearsal"
        found = self._output(["-m", "pytest", "-q", "-n", "0", "-m", "gpu", "tests"], self.left / 2)
        return (found.strip().splitlines() or ["no output"])[-1].strip("= ")

    def script(self, path: str) -> list[str]:
        """Run another benchmark; return its table, or the last line of what it said."""
        more = self.args.draws if path.startswith("draws") else []
        given = ["--device", self.args.device, *more] if path.startswith("draws") else []
        found = self._output([str(_HERE.parent / path), *given], self.left / 4).splitlines()
        return [one for one in found if one.startswith("|")] or found[-1:] or ["no output"]

    def _output(self, words: list[str], seconds: float) -> str:
        """Return what Python prints, its errors too, or that it took too long."""
        try:
            done = subprocess.run(
                [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, timeout=max(LEAST_SECONDS, seconds), cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not done after {max(LEAST_SECONDS, seconds):.0f} s"
        print(done.stdout[-3000:], flush=True)
        return done.stdout


def page(bench: Bench, tests: str, scripts: dict[str, list[str]]) -> str:
    """Return the results as a page.

    Args:
        bench: The cases that were run.
        tests: Result of the tests.
        scripts: Tables of the other benchmarks, by title.
    """
    args = bench.args
    on_cuda = args.device.startswith("cuda")
    device = torch.cuda.get_device_name() if on_cuda else f"the CPU ({platform.machine()})"
    floor = bench.found["copies"][0] if bench.found["copies"] else {}
    lines = [
        "# On a GPU",
        "",
        *([] if on_cuda else [REHEARSAL, ""]),
        f"`make gpu`, {datetime.date.today()}, {device}, torch {torch.__version__}, "
        f"Python {platform.python_version()}. Written by `bench.py`; do not edit.",
        "",
        f"Tests: {tests}.",
        "",
        f"The machine copies {floor.get('host_to_device_gb_per_s', 0):.1f} GB/s from pinned "
        f"memory, and gathers {floor.get('gather_gb_per_s', 0):.1f} GB/s of rows on the device.",
        "",
        f"{args.nodes:,} nodes, {args.nodes * args.degree:,} edges, {args.dim} float32 features, "
        f"neighbours {args.fanout}, batches of {args.batch_size}; {args.workers} workers.",
        "",
        *_table(bench, [*OWN, *PEERS], floor.get("host_to_device_gb_per_s")),
        "",
        f"R-GAT as in MLPerf: neighbours 5, 10, 15, hidden {args.hidden}, a graph with the types "
        f"of IGBH, {args.typed_nodes:,} papers, {args.typed_dim} float16 features; training "
        "included.",
        "",
        *_table(bench, list(TRAINING), None),
    ]
    for title, table in scripts.items():
        lines += [
            "",
            f"{title} ([page](../{SCRIPTS[title].partition('/')[0]}/README.md)):",
            "",
            *table,
        ]
    return "\n".join(lines) + "\n"


def _table(bench: Bench, names: list[str], copied: float | None) -> list[str]:
    lines = [
        "| | seeds/s (spread) | features, GB/s | share of the copy bandwidth | device memory |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        runs = bench.found[name]
        if not runs:
            lines.append(f"| {name} | {bench.problems.get(name, 'not run: needs a GPU')} | | | |")
            continue
        rates = [run["seeds_per_s"] for run in runs]
        rate = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        moved = [run["feature_gb_per_s"] for run in runs if "feature_gb_per_s" in run]
        speed = statistics.median(moved) if moved else None
        memory = runs[-1].get("device_gb")
        lines.append(
            f"| {name} | {rate} | {'' if speed is None else f'{speed:.2f}'} | "
            f"{'' if speed is None or not copied else f'{speed / copied:.0%}'} | "
            f"{'' if memory is None else f'{memory:.1f} GB'} |"
        )
    return lines


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, small")
    parser.add_argument("--kernels", default="warp", help="of a rehearsal: warp or torch")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--degree", type=int, default=25)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--typed-nodes", type=int, default=1_000_000)
    parser.add_argument("--typed-dim", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--out", type=Path)
    parser.set_defaults(draws=[])
    return parser


SMALL = {
    "nodes": 2000, "degree": 8, "dim": 8, "fanout": [3, 2], "batch_size": 32, "warmup": 2,
    "batches": 6, "workers": 1, "typed_nodes": 600, "typed_dim": 16, "hidden": 16, "rounds": 1,
    "minutes": 10, "draws": ["--rows", "500", "--rounds", "1"],
}  # fmt: skip


def main() -> int:
    """Run it; return 1 where one of our own loaders failed."""
    args = make_parser().parse_args()
    args.device = "cpu" if args.rehearse else "cuda:0"
    if args.rehearse:
        vars(args).update(SMALL)
    elif not torch.cuda.is_available():
        print('there is no GPU here: make gpu ARGS="--rehearse" does the same on the CPU')
        return 2
    bench = Bench(args)
    tests = bench.tests()
    bench.run("copies")
    scripts = {title: bench.script(path) for title, path in SCRIPTS.items()}
    for _ in range(args.rounds):
        for name in (*OWN, *TRAINING, *([] if args.rehearse else PEERS)):
            bench.run(name)
    out = args.out or (_ROOT / "out" / "gpu.md" if args.rehearse else _HERE / "README.md")
    out.parent.mkdir(exist_ok=True)
    out.write_text(page(bench, tests, scripts))
    print(out.read_text())
    failed = [name for name in (*OWN, *TRAINING, "copies") if name in bench.problems]
    print(f"failed: {failed}" if failed else f"written: {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
