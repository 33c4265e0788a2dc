"""What loaders do when something goes wrong: the comparison table, measured on this machine.

    python examples/benchmarks/faults/compare.py
    python examples/benchmarks/faults/compare.py --python-glt PYTHON --python-pyg PYTHON

Ours beside PyG's ``NeighborLoader`` and graphlearn-torch's ``DistNeighborLoader``. Each cell of the
table is a process of its own (`_compare_case.py`). One that is silent for ``--limit`` seconds after
the fault hangs. Exit status 1: ours did not keep a promise.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASE = Path(__file__).with_name("_compare_case.py")
ROWS = {
    "killed": "a sampling worker is killed",
    "break": "`break` in an epoch",
    "resume": "resume in the middle of an epoch",
    "same": "the same batches with 1 and 3 workers",
    "neighbours": "neighbours on the CPU",
}
PROMISED = {
    "killed": "the epoch is complete, each seed once",
    "break": "the next epoch is clean",
    "resume": "yes, the same batches",
    "same": "yes",
    "neighbours": "without replacement",
}
_COMPILE_S = 600.0
CONTESTANTS = {"ours": "gigl_loader", "pyg": "PyG `NeighborLoader`", "glt": "graphlearn-torch"}


def measured(
    python: str, contestant: str, row: str, limit_s: float, case: Path = CASE
) -> dict[str, Any]:
    """Run one case; return what it says: ``outcome``, and ``version`` of the library."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python, str(case), contestant, row], stdout=out, stderr=errors, start_new_session=True
        )
        try:
            process.wait(limit_s)
            silent = False
        except subprocess.TimeoutExpired:
            silent = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers are in its session
            process.wait()
        out.seek(0)
        said: list[dict[str, Any]] = [json.loads(line) for line in out if line.startswith("{")]
        errors.seek(0)
        log = errors.read()
    # the last line that came: of a case that hangs, how far it got
    found = said[-1] if said else {}
    if silent:
        where = "" if found.get("fault") else ", before the fault"
        return {**found, "outcome": f"**hangs**: silent for {limit_s:.0f} s{where}"}
    if "outcome" not in found:
        last = (log.strip().splitlines() or ["no output"])[-1]
        return {**found, "outcome": f"ended with {process.returncode}: {last[:100]}"}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=ROWS,
        default=list(ROWS),
        metavar="ROW",
        help=f"of the table: {', '.join(ROWS)} (default: all)",
    )
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for a case, all of it")
    parser.add_argument(
        "--python-glt",
        default=sys.executable,
        metavar="PYTHON",
        help="interpreter of an environment with graphlearn-torch",
    )
    parser.add_argument(
        "--python-pyg",
        default=sys.executable,
        metavar="PYTHON",
        help="interpreter of an environment with PyG and pyg-lib or torch-sparse",
    )
    parser.add_argument(
        "--without", nargs="*", choices=CONTESTANTS, default=[], help="contestants to leave out"
    )
    args = parser.parse_args()
    pythons = {"ours": sys.executable, "pyg": args.python_pyg, "glt": args.python_glt}
    names = [name for name in CONTESTANTS if name not in args.without]
    versions: dict[str, str] = {}
    table = []
    if "ours" in names:
        # the first loader of an installation compiles the kernels: longer than a case may take
        measured(sys.executable, "ours", "neighbours", _COMPILE_S)
    for row in args.rows:
        cells = []
        for name in names:
            found = measured(pythons[name], name, row, args.limit)
            versions.setdefault(name, found.get("version", ""))
            cells.append(found["outcome"])
            print(f"{CONTESTANTS[name]}: {ROWS[row]}: {found['outcome']}", file=sys.stderr)
        table.append((row, cells))
    print("| | " + " | ".join(f"{CONTESTANTS[name]} {versions[name]}" for name in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for row, cells in table:
        print(f"| {ROWS[row]} | " + " | ".join(cells) + " |")
    ours = [cells[names.index("ours")] == PROMISED[row] for row, cells in table if "ours" in names]
    return 0 if all(ours) else 1


if __name__ == "__main__":
    sys.exit(main())
