"""The lines of the table of `bench_machines`, and the medians of its rounds.

As a script: the medians of what ``--records`` wrote, however many runs wrote it; with ``--steps``
also how many times as fast as the first step each one is::

    python examples/benchmarks/network/_lines.py [--steps] RECORDS...
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

HEADINGS = (
    "graph",
    "order",
    "edges",
    "rows as",
    "machines",
    "deployment",
    "link",
    "cache",
    "seeds/s per rank",
    "bytes per seed: rows",
    "structure",
    "hit rate",
    "CPU s per GB",
    "of its processes",
    "CPU us per seed: servers",
    "ranks",
    "busiest link",
    "GB of memory",
    "cores for other work",
)
_SAME = ("graph", "order", "edges", "dtype", "parts", "deployment", "rate", "cache")
_BEFORE = {"order": "random", "edges": "own"}
"""Of records that were written before there was a choice."""


def line_of(found: dict[str, Any]) -> str:
    """Return the row of the table."""
    cells = (
        *(found[name] for name in _SAME),
        f"{found['seeds_per_s']:,.0f}",
        f"{found['rows_per_seed']:,.0f}",
        f"{found['structure_per_seed']:,.0f}",
        "-" if found["hit_rate"] is None else f"{found['hit_rate']:.0%}",
        f"{found['cpu_s_per_gb']:.2f}",
        f"{own_cpu_s_per_gb(found):.2f}",
        *_cpu_us_per_seed(found),
        f"{found['busiest_link']:.0%}",
        f"{max(found['memory']) / 1e9:.2f}",
        f"{found['others']:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def own_cpu_s_per_gb(found: dict[str, Any]) -> float:
    """Return CPU seconds of servers and ranks per gigabyte that ranks received.

    Unlike ``cpu_s_per_gb`` it leaves out other work of the machine. The kernel's own threads, which
    carry some of the packets, are left out as well.
    """
    num_servers = found["parts"] if "graph store" in found["deployment"] else 0
    return float(sum(found["cpu_s"]) / sum(found["received"][num_servers:]) * 1e9)


def _cpu_us_per_seed(found: dict[str, Any]) -> tuple[str, str]:
    """Return CPU microseconds of all servers, and of all ranks, for one seed."""
    num_servers = found["parts"] if "graph store" in found["deployment"] else 0
    seeds = found["seeds_per_s"] * found["parts"] * found["seconds"]
    servers, ranks = sum(found["cpu_s"][:num_servers]), sum(found["cpu_s"][num_servers:])
    return (f"{1e6 * servers / seeds:,.0f}" if num_servers else "-"), f"{1e6 * ranks / seeds:,.0f}"


def medians(every: list[dict[str, Any]]) -> list[str]:
    """Return a table of medians, with the least and the most, of the runs of each case."""
    headings = (
        *HEADINGS[:8],
        "rounds",
        "seeds/s per rank",
        "bytes per seed",
        "busiest link",
        "cores for other work",
    )
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in every:
        key = tuple((_BEFORE | one)[name] for name in _SAME)
        cases.setdefault(key, []).append(one)
    for case, runs in cases.items():
        sent = [one["rows_per_seed"] + one["structure_per_seed"] for one in runs]
        cells = (
            *case,
            len(runs),
            _spread([one["seeds_per_s"] for one in runs], ",.0f"),
            f"{median(sent):,.0f}",
            _spread([one["busiest_link"] for one in runs], ".0%"),
            _spread([one["others"] for one in runs], ".1f"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def gains(every: list[dict[str, Any]]) -> list[str]:
    """Return a table of steps by deployment and link: medians, and their ratio to the first one."""
    headings = (
        "deployment",
        "link",
        "step",
        "rounds",
        "seeds/s per rank",
        "of the first",
        "busiest link",
    )
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    by_place: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for one in every:
        step = ", ".join((one["graph"], f"{one['order']} seeds", f"{one['edges']} edges"))
        steps = by_place.setdefault((one["deployment"], one["rate"]), {})
        steps.setdefault(step, []).append(one)
    for place, steps in by_place.items():
        rates = {step: [one["seeds_per_s"] for one in runs] for step, runs in steps.items()}
        first = median(next(iter(rates.values())))
        for step, runs in steps.items():
            cells = (
                *place,
                step,
                len(runs),
                _spread(rates[step], ",.0f"),
                f"{median(rates[step]) / first:.2f}",
                _spread([one["busiest_link"] for one in runs], ".0%"),
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _spread(values: list[float], style: str) -> str:
    return f"{median(values):{style}} ({min(values):{style}} to {max(values):{style}})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("records", nargs="+", type=Path)
    args = parser.parse_args()
    records = [json.loads(line) for file in args.records for line in file.read_text().splitlines()]
    print("\n".join([*medians(records), *(["", *gains(records)] if args.steps else [])]))
