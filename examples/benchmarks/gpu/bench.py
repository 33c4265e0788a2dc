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
is 0 if all is measured, 1 if something of ours failed, 2 for a wrong start, 3 if time was up.
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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _sizes import FOUND, FROM_PINNED, GATHERED, LEFT_OUT, OWN, PEERS, TRAINING, case_of

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
TESTS, CASES = "tests", "cases"
PROGRAMMES = {
    "facts": ("facts.py", 60.0),
    "bits": ("smoke.py --part bits", 120.0),
    "broken": ("broken.py", 150.0),
    "copies": ("../device/bench_step.py", 300.0),
    "smoke": ("smoke.py", 200.0),
    "ranks": ("smoke.py --part ranks", 120.0),
    # pytest alone, whatever else of its family is installed
    TESTS: ("-m pytest -v -o addopts=--import-mode=importlib -m gpu", 600.0),
    "steps": ("steps.py", 150.0),
    CASES: ("_cases.py --part", 300.0),
    "draws": ("../draws/bench_draws.py", 300.0),
    "sanitizer": ("sanitizer.py", 150.0),
}
"""By piece, what is run, and the seconds that each run may take: the most valuable first."""
PIECES = {piece: (*OWN, *TRAINING, *PEERS) if piece == CASES else (piece,) for piece in PROGRAMMES}
"""By piece, the names of all that is run."""
FIRST_RUN_SECONDS = 60.0
"""Seconds that have to be left for what was not run yet, however soon the piece ends."""
SAID = "said"
"""In place of findings: the table that was printed, or else the last line."""
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
        """By name, the findings of each run that ended well."""
        self.findings: dict[str, dict[str, Any]] = {}
        """By name, those of the last run, to whose end nobody may have waited."""
        self.problems: dict[str, str] = {}
        """Of what was run and failed, the reason."""
        self.seconds: dict[str, float] = {}
        """Seconds of the last run of each, the start of its process included."""
        self.pieces: list[str] = []
        """Dates."""

    # -- results on disk ---------------------------------------------------------------------------

    @property
    def _path(self) -> Path:
        return self.page.with_suffix(".json")

    def _made_for(self) -> dict[str, Any]:
        """Return what has to be the same in all pieces of a run."""
        versions = {"torch": torch.__version__, "Python": platform.python_version()}
        sizes = asdict(case_of("", self.args.device))
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
        vars(self).update(state)

    def save(self) -> None:
        """Write the page, and what `load` reads."""
        kept = ("results", "findings", "problems", "seconds", "pieces")
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
        names = [
            name
            for piece in self.args.pieces
            for number in range(self.args.rounds if piece == CASES else 1)
            for name in PIECES[piece]
            if len(self.results[name]) <= number
        ]
        return sorted(names, key=lambda name: name in self.problems)

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
            is_done = self.run_one(name)
            self.seconds[name] = time.monotonic() - begun
            if name in self.problems:
                failed.add(name)
            self.save()
            if not is_done:
                return False
        return True

    def run_one(self, name: str) -> bool:
        """Run one in a process; return False if only this piece's end broke it off."""
        script, seconds = PROGRAMMES.get(name, PROGRAMMES[CASES])
        # a CPU may be busy with other things
        seconds *= 4 if self.args.device == "cpu" else 1
        limit = min(self.left, self._half, seconds)
        found: dict[str, Any] = {}
        self.findings[name] = found
        code, lines = output_of(self._words(name, script, limit), limit, partial(self._heard, name))
        if LEFT_OUT in found:
            self.problems[name] = found[LEFT_OUT]
        elif code == 0:
            if not found:
                table = [line for line in lines if line.startswith("|")]
                found[SAID] = table or [lines[-1].strip("= ")]
            self.results[name].append(found)
        elif code is not None:
            failed = [key for key, value in found.items() if "FAILED" in str(value)]
            self.problems[name] = f"failed: {', '.join(failed) or lines[-1].strip('= ')[:200]}"
        elif limit < min(seconds, self._half):
            return False
        else:
            self.problems[name] = f"not done after {limit:.0f} s"
        print(f"{name}: {self.problems.get(name, 'done')}", flush=True)
        return True

    def _words(self, name: str, script: str, seconds: float) -> list[str]:
        """Return what Python gets to run one, which may take so long."""
        path, *more = script.split()
        if name == TESTS:
            return [path, *more, *gpu_tests()]
        if name == "draws":
            small = ["--rows", "500", "--rounds", "1"]
            more = ["--device", self.args.device, *(small if self.args.device == "cpu" else [])]
        elif name != "copies":
            more += [] if name in PROGRAMMES else [name]
            more += ["--device", self.args.device, "--seconds", str(seconds)]
        return [str(_HERE / path), *more]

    def _heard(self, name: str, line: str) -> None:
        """Keep what one said: findings on the page, all lines in the log, at once."""
        with self.page.with_suffix(".log").open("a") as log:
            log.write(f"{name}: {line}\n")
        if line.startswith(FOUND):
            key, value = json.loads(line.removeprefix(FOUND))
            self.findings[name][key] = value
            print(f"{name}: {key}: {_short(value)}", flush=True)
            self.save()


def output_of(
    words: list[str], seconds: float, heard: Callable[[str], None]
) -> tuple[int | None, list[str]]:
    """Run Python; return its exit status, or None if it took too long; and the lines that it said.

    Args:
        words: What Python gets.
        seconds: Those that it may take.
        heard: Is called with each line that it says, within half a second.
    """
    # packages may have been brought that way, too
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    code: int | None = None
    lines: list[str] = []
    rest, ends = "", time.monotonic() + seconds
    # a file: what it started may outlive it, and would hold the end of a pipe
    with tempfile.NamedTemporaryFile("w") as said, Path(said.name).open(errors="replace") as reader:
        # A session of its own: loaders have workers, and those of a case that is ended end with it.
        process = subprocess.Popen(
            [sys.executable, "-u", *words],
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=_ROOT,
            start_new_session=True,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        try:
            while code is None and time.monotonic() < ends:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(max(0.01, min(0.4, ends - time.monotonic())))
                *new, rest = (rest + reader.read()).split("\n")
                for line in filter(str.strip, new):
                    heard(line)
                    lines.append(line)
        finally:
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return code, [*lines, *filter(str.strip, [rest])] or ["no output"]


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
    device = bench.args.device
    plain, typed = case_of("", device), case_of("R-GAT", device)
    facts = bench.findings.get("facts", {})
    missing = [name for name in bench.todo() if name not in bench.problems]
    dates = " and ".join(sorted(set(bench.pieces)))
    lines = [
        "# On a GPU",
        "",
        *([REHEARSAL, ""] if device == "cpu" else []),
        *([UNFINISHED, ""] if missing else []),
        f"`make gpu`, {dates}, {device_name(device)}, torch {torch.__version__}, "
        f"Python {platform.python_version()}. Written by `bench.py`; do not edit.",
        "",
        "Measured on this machine: all figures below, but for shares, which are computed from two "
        "of them. Figures [computed beforehand](../../../docs/guide/gpu.md#speed-computed) are on "
        "the guide's page alone.",
        "",
        f"The yardstick: {facts.get(FROM_PINNED, 0):.1f} {FROM_PINNED}, and "
        f"{facts.get(GATHERED, 0):.1f} {GATHERED}.",
        "",
        f"{plain.nodes:,} nodes, {plain.nodes * plain.degree:,} edges, {plain.dim} float32 "
        f"features, neighbours {', '.join(map(str, plain.fanout))}, batches of "
        f"{plain.batch_size}; {plain.workers} workers.",
        "",
        *_table(bench, [*OWN, PEERS[0]], facts.get(FROM_PINNED)),
        "",
        f"R-GAT as in MLPerf: neighbours {', '.join(map(str, typed.fanout))} from the seeds on, "
        f"hidden {typed.hidden}, a graph with the types of IGBH, {typed.nodes:,} papers, "
        f"{typed.dim} float16 features; training in bfloat16 included, layers trimmed to the "
        "hops that they need; with one shape, each hop has as many places in every batch.",
        "",
        *_table(bench, [*TRAINING, PEERS[1]], None),
    ]
    for name, (script, _) in PROGRAMMES.items():
        if name == CASES:
            continue
        state = "done" if bench.results[name] else bench.problems.get(name, "not run yet")
        lines += ["", f"**{name}** (`{script}`): {state}.", ""]
        for key, value in bench.findings.get(name, {}).items():
            lines += value if key == SAID else [f"- {key}: {_short(value)}"]
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
    parser.add_argument("--minutes", type=float, default=30, help="of this piece")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each case; a rehearsal's: 1")
    parser.add_argument("--out", type=Path, help="the page; else $OUT/gpu.md, where that is set")
    return parser


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
        args.rounds = 1
    elif not torch.cuda.is_available():
        print("there is no GPU here: --rehearse does the same on the CPU")
        return 2
    # what ends this piece from outside ends its case, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    out = args.out or (_ROOT / "out" / "gpu.md" if args.rehearse else _HERE / "README.md")
    if args.out is None and "OUT" in os.environ:  # of a machine that gives back what lies there
        out = Path(os.environ["OUT"]) / "gpu.md"
    bench = Bench(args, out)
    if args.go_on:
        bench.load()
    is_done = bench.run()
    print(out.read_text())
    failed = [
        name
        for name, problem in bench.problems.items()
        if name not in PEERS and not problem.startswith(LEFT_OUT)
    ]
    print(f"written: {out}" + (f"; failed: {failed}" if failed else ""))
    if not is_done:
        print(f"time is up, {len(bench.todo())} runs are missing: go on with --continue")
        return 3
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
