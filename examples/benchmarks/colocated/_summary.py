"""The medians of a throughput run in one file, of which the picture is drawn."""

import json
import re
import shlex
import statistics
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LABELS = {
    "gigl_loader": "gigl_loader",
    "DGL GraphBolt": "DGL GraphBolt",
    "GLT seeded": "GLT, seeded",
    "GLT as installed": "GLT, as installed",
    "PyG NeighborLoader": "PyG NeighborLoader",
    "PyG NeighborLoader, pyg-lib": "PyG NeighborLoader",
}
"""Contestants with a bar in the picture, and its label; PyG's names its library of kernels."""
_WITH_WORKERS = re.compile(r"(?P<who>.+), (?P<workers>\d+) workers?")
_KERNELS = {"pyg_lib": "pyg-lib", "torch_sparse": "torch-sparse"}


def summarize(
    seeds_per_s: Mapping[str, Mapping[int, float]],
    cpu_ms: Mapping[str, Mapping[int, float]],
    versions: Mapping[str, Mapping[str, str]],
    *,
    args: Namespace,
    machine: str,
    others_cpu: float,
    table: str,
) -> dict[str, Any]:
    """Return median, least and most of each contestant, and of what they are.

    A contestant has its figures with one worker, and under ``best`` those with the number of
    workers that gives it most seeds/s, which may be one.

    Args:
        seeds_per_s: By contestant, such as ``"GLT seeded, 2 workers"``, and round.
        cpu_ms: CPU milliseconds of a batch in all its processes, by contestant and round.
        versions: By contestant, of its packages.
        args: The command line of the benchmark.
        machine: What it ran on.
        others_cpu: Most of the CPUs that other processes took in a run, a share.
        table: All contestants, as Markdown.
    """
    by_workers: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    kinds = {}
    for name, rounds in seeds_per_s.items():
        found = _WITH_WORKERS.fullmatch(name)
        if found is None or found["who"] not in LABELS:
            continue
        by_workers[found["who"]][int(found["workers"])] = {
            "median": round(statistics.median(rounds.values())),
            "least": round(min(rounds.values())),
            "most": round(max(rounds.values())),
            "cpu_ms": round(statistics.median(cpu_ms[name].values()), 1),
        }
        kinds[found["who"]] = versions[name]
    rows = [
        {
            "contestant": _label(who, kinds[who]),
            "versions": ", ".join(f"{key} {value}" for key, value in kinds[who].items()),
            **figures[1],
            "best": _best(figures),
        }
        for who, figures in by_workers.items()
        if 1 in figures
    ]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine,
        "case": args.case,
        "work": f"{args.nodes:,} nodes, {args.edges:,} edges, {args.dim} float32 features, "
        f"fanout {args.fanout}, batches of {args.batch_size}, {args.batches} of them in each of "
        f"{args.rounds} rounds",
        "others_cpu": round(others_cpu, 3),
        "command": shlex.join(["python", *sys.argv]),
        "table": table.splitlines(),
        "seeds_per_s": sorted(rows, key=lambda row: -row["median"]),
    }


def _best(by_workers: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    workers = max(by_workers, key=lambda count: by_workers[count]["median"])
    return {"workers": workers, **by_workers[workers]}


def _label(name: str, versions: Mapping[str, str]) -> str:
    kernels = [text for package, text in _KERNELS.items() if package in versions]
    return ", ".join([LABELS[name], *kernels])


def write(target: Path, summary: Mapping[str, Any]) -> None:
    """Write ``summary`` with a line for each contestant."""
    rows = ",\n    ".join(json.dumps(row) for row in summary["seeds_per_s"])
    rest = {name: value for name, value in summary.items() if name != "seeds_per_s"}
    head = json.dumps(rest, indent=2).removesuffix("\n}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f'{head},\n  "seeds_per_s": [\n    {rows}\n  ]\n}}\n')
