"""Everything that needs a GPU, on a machine that has one: tests, speeds, a page of figures.

::

    make gpu                                 with the Python and the torch that are there
    make gpu PYTHON=/opt/python3.12          with those of this interpreter
    make gpu ARGS="--minutes 9"              as much as nine minutes suffice for
    make gpu ARGS="--minutes 9 --continue"   then what is not measured yet, as often as needed
    make gpu ARGS="--only facts,smoke"       these of `PIECES`, in their order; or --skip tests
    make gpu ARGS=--rehearse                 the same on the CPU, small: out/gpu.md

``python examples/benchmarks/gpu/bench.py`` takes the same options, and needs neither make nor a
network. Pieces run in the order of their value, each in processes with a limit of time. The page
is written again after each finding; the figures behind it, and all that was said, lie beside it.

Loaders take turns, several rounds, each with several windows; the page has medians and spreads, and
each as a share of what the machine copies at most. A peer that is not installed is named as such.
The benchmarks of copies and of draws, which have pages of their own, are run once. The exit status
is 0 if all is measured, 1 if a loader of ours or a test failed, 2 for a wrong start, 3 if time was
up.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from _sizes import FOUND, LEFT_OUT, MARK, MLPERF_FANOUT, OWN, PEERS, TRAINING, Case

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
SCRIPTS = {
    "Copies that overlap compute": "device/bench_step.py",
    "The draws of one hop": "draws/bench_draws.py",
}
"""Benchmarks with pages of their own, by what they measure."""
TESTS = "tests"
PROGRAMMES = {
    "facts": ("facts.py", 60.0),
    "bits": ("smoke.py --part bits", 120.0),
    "broken": ("broken.py", 150.0),
    "smoke": ("smoke.py", 200.0),
    "ranks": ("smoke.py --part ranks", 120.0),
    "steps": ("steps.py", 150.0),
    "sanitizer": ("sanitizer.py", 150.0),
}
"""Programmes that say findings, and the seconds that each may take."""
PIECES = {
    "facts": ["facts"],
    "bits": ["bits"],
    "broken": ["broken"],
    "copies": ["copies", "Copies that overlap compute"],
    "smoke": ["smoke"],
    "ranks": ["ranks"],
    "tests": [TESTS],
    "steps": ["steps"],
    "cases": [*OWN, *TRAINING, *PEERS],
    "draws": ["The draws of one hop"],
    "sanitizer": ["sanitizer"],
}
"""All that is run, the most valuable first."""
CASE_SECONDS = 300.0
"""Seconds that one run of a case may take."""
FIRST_RUN_SECONDS = 60.0
"""Seconds that have to be left for what was not run yet, however soon the piece ends."""
REHEARSAL = """\
**No GPU has run this yet.** This page is of a rehearsal: everything once, small, on the CPU. It
shows that each case runs; no figure on it says anything about a GPU. `make gpu`, on a machine that
has one, writes the page again."""
UNFINISHED = """\
**Not all of it is measured yet**: `make gpu ARGS=--continue` goes on with what is missing."""


class Bench:
    """The results of one page, from all pieces of the run; and what is left of this piece's time.

    Args:
        args: Of the command line.
        page: Where the page is written; the results are beside it.
    """

    def __init__(self, args: argparse.Namespace, page: Path) -> None:
        self.args, self.page = args, page
        self.ends = time.monotonic() + 60 * args.minutes
        self.results: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """By case, one result for each round."""
        self.problems: dict[str, str] = {}
        """Of what was run and failed, the reason."""
        self.tables: dict[str, list[str]] = {}
        """Of the other benchmarks, by title."""
        self.findings: dict[str, dict[str, Any]] = defaultdict(dict)
        """Of programmes, by name."""
        self.done: list[str] = []
        """Programmes that ended well."""
        self.tests = ""
        """pytest's last line; empty: not run yet."""
        self.tests_failed = False
        self.seconds: dict[str, float] = {}
        """Seconds of the last run of each case, the start of its process included."""
        self.pieces: list[str] = []
        """Dates."""

    # -- results on disk ---------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self.page.with_suffix(".json")

    def _made_for(self) -> dict[str, Any]:
        """Return what has to be the same in all pieces of a run."""
        sizes = {name: value for name, value in vars(self.args).items() if name not in _OF_A_PIECE}
        versions = {"torch": torch.__version__, "Python": platform.python_version()}
        return {"machine": device_name(self.args.device), **versions, **sizes}

    def load(self) -> None:
        """Go on from the earlier pieces.

        Raises:
            SystemExit: There are none, or they are of another machine or other sizes.
        """
        if not self._path.exists():
            raise SystemExit(f"--continue: {self._path} is not there: start without --continue")
        state = json.loads(self._path.read_text())
        made_for, wanted = state.pop("made_for"), json.loads(json.dumps(self._made_for()))
        differ = [
            f"{name} {made_for.get(name)!r}, now {wanted.get(name)!r}"
            for name in {**wanted, **made_for}
            if made_for.get(name) != wanted.get(name)
        ]
        if differ:
            raise SystemExit(
                f"--continue: the page was begun with {'; '.join(differ)}: figures of both would "
                "not compare, so start again without --continue"
            )
        self.results.update(state.pop("results"))
        self.findings.update(state.pop("findings"))
        vars(self).update(state)

    def save(self) -> None:
        """Write the page, and what `load` reads."""
        kept = ["results", "problems", "tables", "findings", "done"]
        kept += ["tests", "tests_failed", "seconds", "pieces"]
        state = {name: getattr(self, name) for name in kept}
        self.page.parent.mkdir(parents=True, exist_ok=True)
        for path, text in (
            (self._path, json.dumps({"made_for": self._made_for(), **state}, indent=1) + "\n"),
            (self.page, page(self)),
        ):
            beside = path.with_name(path.name + ".new")  # a piece may be ended at any time
            beside.write_text(text)
            beside.replace(path)

    # -- what is to be done ------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds left of this piece."""
        return max(0.0, self.ends - time.monotonic())

    @property
    def _half(self) -> float:
        """Half of a piece's seconds."""
        return 30 * self.args.minutes

    def todo(self) -> list[str]:
        """Return what is not measured yet, by name: first what never ran, failures last."""
        names = []
        for piece in self.args.pieces:
            rounds = self.args.rounds if piece == "cases" else 1
            names += [
                name
                for number in range(rounds)
                for name in PIECES[piece]
                if self._runs(name) <= number
            ]
        return sorted(names, key=lambda name: name in self.problems)

    def _runs(self, name: str) -> int:
        """Return how often something was run to its end."""
        if name in PROGRAMMES:
            return name in self.done
        return len(self.results[name]) or bool(
            self.tests if name == TESTS else self.tables.get(name)
        )

    def run(self) -> bool:
        """Measure until all is done or the time is up; return whether all that can be done is."""
        self.pieces.append(str(datetime.date.today()))
        self.save()
        failed: set[str] = set()
        for name in self.todo():
            if name in failed:
                continue
            # half of a piece suffices for all: what needs more is cut, and said to
            if self.left <= min(self.seconds.get(name, FIRST_RUN_SECONDS), self._half):
                return False
            self.problems.pop(name, None)
            begun = time.monotonic()
            is_done = self._run_one(name)
            self.seconds[name] = time.monotonic() - begun
            if name in self.problems:
                failed.add(name)
            self.save()
            if not is_done:
                return False
        return True

    def _run_one(self, name: str) -> bool:
        """Run a case, the tests or a script; return False if only this piece's end broke it off."""
        if name == TESTS:
            self._run_tests()
        elif name in PROGRAMMES:
            self._run_programme(name)
        elif name in SCRIPTS:
            self._run_script(name)
        else:
            return self._run_case(name)
        return True

    def _output_of(
        self, name: str, words: list[str], seconds: float
    ) -> tuple[int | None, str, str]:
        """Run Python as `output_of` does: findings on the page, all lines in the log, at once."""

        def heard(line: str) -> None:
            with self.page.with_suffix(".log").open("a") as log:
                log.write(f"{name}: {line}\n")
            if line.startswith(FOUND):
                key, value = json.loads(line.removeprefix(FOUND))
                self.findings[name][key] = value
                print(f"{name}: {key}: {_short(value)}", flush=True)
                self.save()

        code, said, errors = output_of(words, seconds, heard)
        for line in errors.splitlines():
            heard(f"! {line}")
        return code, said, errors

    def _run_programme(self, name: str) -> None:
        script, seconds = PROGRAMMES[name]
        limit = min(self.left / 2, seconds * self.args.patience)
        path, *more = script.split()
        words = [str(_HERE / path), *more, "--device", self.args.device, "--seconds", str(limit)]
        self.findings.pop(name, None)
        code, _, errors = self._output_of(name, words, limit)
        failed = [key for key, value in self.findings[name].items() if "FAILED" in str(value)]
        if code == 0:
            self.done.append(name)
        elif code is None:
            self.problems[name] = f"not done after {limit:.0f} s"
        else:
            said = errors.strip().splitlines()[-1:] or [f"ended with {code}"]
            self.problems[name] = f"failed: {', '.join(failed) or said[0][:200]}"

    def _run_case(self, name: str) -> bool:
        limit = min(self.left, CASE_SECONDS)
        words = [str(_HERE / "_cases.py"), self.case(name).to_json()]
        code, said, errors = self._output_of(name, words, limit)
        lines = [line for line in said.splitlines() if line.startswith(MARK)]
        if lines and LEFT_OUT in json.loads(lines[-1].removeprefix(MARK)):
            self.problems[name] = json.loads(lines[-1].removeprefix(MARK))[LEFT_OUT]
            print(f"{name}: {self.problems[name]}", flush=True)
            return True
        if lines:
            self.results[name].append(json.loads(lines[-1].removeprefix(MARK)))
            print(f"{name}: {self.results[name][-1]}", flush=True)
            return True
        if code is None:
            if limit < min(CASE_SECONDS, self._half):
                return False
            self.problems[name] = f"no result in {limit:.0f} s"
        else:
            reasons = [line for line in errors.splitlines() if line.strip()]
            self.problems[name] = reasons[-1][:200] if reasons else f"ended with {code}"
        print(f"{name}: {self.problems[name]}", flush=True)
        return True

    def case(self, name: str) -> Case:
        """Return a case at the size of this run."""
        args, typed = self.args, name.startswith("R-GAT")
        kernels = args.kernels if args.device == "cpu" else None
        return Case(
            name,
            args.device,
            kernels,
            args.typed_nodes if typed else args.nodes,
            args.degree,
            args.typed_dim if typed else args.dim,
            MLPERF_FANOUT if typed else tuple(args.fanout),
            args.batch_size,
            args.warmup,
            args.batches,
            args.windows,
            args.workers,
            args.hidden,
        )

    def _run_tests(self) -> None:
        """Run the tests that need a GPU; a rehearsal sees that they could be."""
        if find_spec("pytest") is None:  # Python's own error has the status of a test that failed
            self.problems[TESTS] = "pytest is not installed"
            return
        limit = self.left / 2
        # pytest alone, whatever else of its family is installed
        words = ["-m", "pytest", "-v", "-o", "addopts=--import-mode=importlib", "-m", "gpu"]
        code, said, errors = self._output_of(TESTS, [*words, *gpu_tests()], limit)
        if code is None:
            self.problems[TESTS] = f"not done after {limit:.0f} s"
            return
        lines = [line for line in (said or errors or "no output").splitlines() if line.strip()]
        last = lines[-1].removeprefix(f"{sys.executable}: ").strip("= ")
        print(said[-3000:], errors[-3000:], flush=True)
        if code not in (0, 1):  # the tests did not start
            self.problems[TESTS] = last
        else:
            self.tests = f"not run: a rehearsal ({last})" if self.args.device == "cpu" else last
            self.tests_failed = code == 1

    def _run_script(self, title: str) -> None:
        """Run another benchmark; keep its table, or the last line of what it said."""
        path = SCRIPTS[title]
        more = ["--device", self.args.device, *self.args.draws] if path.startswith("draws") else []
        limit = self.left / 2
        words = [str(_HERE.parent / path), *more]
        code, said, errors = self._output_of(title, words, limit)
        if code is None:
            self.problems[title] = f"not done after {limit:.0f} s"
            return
        lines = (said or errors or "no output").splitlines()
        table = [line for line in lines if line.startswith("|")]
        self.tables[title] = table or lines[-1:]
        print(*self.tables[title], sep="\n", flush=True)


_OF_A_PIECE = ("minutes", "out", "go_on", "only", "skip", "pieces", "patience")
"""Options that may differ from piece to piece."""


def output_of(
    words: list[str], seconds: float, heard: Callable[[str], None] = lambda line: None
) -> tuple[int | None, str, str]:
    """Run Python; return its exit status, or None if it took too long; what it said; its errors.

    Args:
        words: What Python gets.
        seconds: Those that it may take.
        heard: Is called with each line that it says, within half a second.
    """
    # packages may have been brought that way, too
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.NamedTemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        # A session of its own: loaders have workers, and those of a case that is ended end with it.
        process = subprocess.Popen(
            [sys.executable, "-u", *words],
            stdout=said,
            stderr=errors,
            cwd=_ROOT,
            start_new_session=True,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        code: int | None = None
        ends, rest = time.monotonic() + seconds, ""
        with Path(said.name).open(errors="replace") as reader:  # beside the position of the writer
            try:
                while code is None and time.monotonic() < ends:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(max(0.01, min(0.4, ends - time.monotonic())))
                    *lines, rest = (rest + reader.read()).split("\n")
                    for line in lines:
                        heard(line)
            finally:
                if code is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        for file in (said, errors):
            file.seek(0)
        return code, said.read(), errors.read()


def gpu_tests() -> list[str]:
    """Return the files with tests that need a GPU.

    Not all files: pytest imports them before it chooses, and most need packages that a machine with
    a GPU may lack.
    """
    files = sorted((_ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(_ROOT)) for path in files if "mark.gpu" in path.read_text()]


def device_name(device: str) -> str:
    """Return the name of a device, as the page has it."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"the CPU ({platform.machine()})"


def page(bench: Bench) -> str:
    """Return the results as a page."""
    args = bench.args
    floor = bench.results["copies"][0] if bench.results["copies"] else {}
    missing = [name for name in bench.todo() if name not in bench.problems]
    dates = " and ".join(sorted(set(bench.pieces)))
    lines = [
        "# On a GPU",
        "",
        *([REHEARSAL, ""] if args.device == "cpu" else []),
        *([UNFINISHED, ""] if missing else []),
        f"`make gpu`, {dates}, {device_name(args.device)}, torch {torch.__version__}, "
        f"Python {platform.python_version()}. Written by `bench.py`; do not edit.",
        "",
        "Measured on this machine: all figures below, but for shares, which are computed from two "
        "of them. Figures [computed beforehand](../../../docs/guide/gpu.md#speed-computed) are on "
        "the guide's page alone.",
        "",
        f"Tests: {bench.tests or bench.problems.get(TESTS, 'not run yet')}.",
        "",
        f"The machine copies {floor.get('host_to_device_gb_per_s', 0):.1f} GB/s from pinned "
        f"memory, and gathers {floor.get('gather_gb_per_s', 0):.1f} GB/s of rows on the device.",
        "",
        f"{args.nodes:,} nodes, {args.nodes * args.degree:,} edges, {args.dim} float32 features, "
        f"neighbours {args.fanout}, batches of {args.batch_size}; {args.workers} workers.",
        "",
        *_table(bench, [*OWN, PEERS[0]], floor.get("host_to_device_gb_per_s")),
        "",
        f"R-GAT as in MLPerf: neighbours {', '.join(map(str, MLPERF_FANOUT))} from the seeds on, "
        f"hidden {args.hidden}, a graph with the types of IGBH, {args.typed_nodes:,} papers, "
        f"{args.typed_dim} float16 features; training in bfloat16 included, layers trimmed to the "
        "hops that they need; with one shape, each hop has as many places in every batch.",
        "",
        *_table(bench, [*TRAINING, PEERS[1]], None),
    ]
    for title, path in SCRIPTS.items():
        table = bench.tables.get(title, [bench.problems.get(title, "not run yet")])
        lines += ["", f"{title} ([page](../{path.partition('/')[0]}/README.md)):", "", *table]
    for name in PROGRAMMES:
        state = "done" if name in bench.done else bench.problems.get(name, "not run yet")
        lines += ["", f"**{name}** (`{PROGRAMMES[name][0]}`): {state}.", ""]
        lines += [f"- {key}: {_short(value)}" for key, value in bench.findings[name].items()]
    return "\n".join(lines).rstrip() + "\n"


def _short(value: object) -> str:
    said = value if isinstance(value, str) else json.dumps(value)
    return " ".join(said.split())[:300]


def _table(bench: Bench, names: list[str], copied: float | None) -> list[str]:
    lines = [
        "| | seeds/s (spread) | features, GB/s | share of the copy bandwidth | device memory |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        runs = bench.results[name]
        if not runs:
            reason = bench.problems.get(name, "not run yet")
            lines.append(f"| {name} | {reason} | | | |")
            continue
        rates = [rate for run in runs for rate in run["seeds_per_s"]]
        rate = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        speeds = [speed for run in runs for speed in run.get("feature_gb_per_s", ())]
        speed = statistics.median(speeds) if speeds else None
        if larger := sum(run.get("larger", 0) for run in runs):
            rate += f"; {larger} batches larger than the shape"
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
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="measure what earlier pieces have not"
    )
    for option in ("--only", "--skip"):
        parser.add_argument(option, default="", help=f"of {','.join(PIECES)}")
    parser.add_argument("--patience", type=float, default=1, help="times the limits of programmes")
    parser.add_argument("--kernels", default="warp", help="of a rehearsal: warp or torch")
    parser.add_argument("--minutes", type=float, default=30, help="of this piece")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--degree", type=int, default=25)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--batches", type=int, default=300, help="most of a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--typed-nodes", type=int, default=1_000_000)
    parser.add_argument("--typed-dim", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--out", type=Path)
    parser.set_defaults(draws=[])
    return parser


SMALL = {
    "nodes": 2000,
    "degree": 8,
    "dim": 8,
    "fanout": [3, 2],
    "batch_size": 32,
    "warmup": 2,
    "batches": 6,
    "windows": 1,
    "workers": 1,
    "typed_nodes": 600,
    "typed_dim": 16,
    "hidden": 16,
    "rounds": 1,
    "draws": ["--rows", "500", "--rounds", "1"],
    "patience": 4,
}


def _chosen(only: str, skip: str) -> list[str]:
    """Return the pieces to run, in their order."""
    named = [set(filter(None, names.split(","))) for names in (only, skip)]
    if unknown := set.union(*named) - set(PIECES):
        raise SystemExit(f"no piece {sorted(unknown)}: there are {', '.join(PIECES)}")
    return [name for name in PIECES if name not in named[1] and name in (named[0] or PIECES)]


def main() -> int:
    """Run a piece; return the exit status."""
    args = make_parser().parse_args()
    args.pieces = _chosen(args.only, args.skip)
    args.device = "cpu" if args.rehearse else "cuda:0"
    if args.rehearse:
        vars(args).update(SMALL)
    elif not torch.cuda.is_available():
        print("there is no GPU here: --rehearse does the same on the CPU")
        return 2
    # what ends this piece from outside ends its case, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    places = _ROOT / "out" / "gpu.md", _HERE / "README.md"
    if "OUT" in os.environ:  # of a machine that gives back what lies there
        places = (Path(os.environ["OUT"]) / "gpu.md",) * 2
    out = args.out or places[not args.rehearse]
    bench = Bench(args, out)
    if args.go_on:
        bench.load()
    is_done = bench.run()
    print(out.read_text())
    failed = [
        name
        for name in (*OWN, *TRAINING, *PROGRAMMES, "copies")
        if not bench.problems.get(name, LEFT_OUT).startswith(LEFT_OUT)
    ]
    if bench.tests_failed:
        failed.append(TESTS)
    print(f"written: {out}" + (f"; failed: {failed}" if failed else ""))
    if not is_done:
        print(f"time is up, {len(bench.todo())} runs are missing: go on with --continue")
        return 3
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
