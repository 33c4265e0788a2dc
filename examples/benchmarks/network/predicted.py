"""What ``gigl-loader plan`` predicts beside what `bench_machines.py` measured, case by case.

The plan gets the partition directories and the costs that were calibrated on the same machine, with
a graph of their own and without a link, and of each case what a user would give: deployment,
machines, link, cache. With ``--fit``, one figure is taken of the first case, in which cores are the
limit, and of no other: the CPU seconds of a gigabyte that crosses a link, which one machine cannot
calibrate. All machines of the benchmark share the cores
of one, so their limit is what the work of all of them costs together::

    gigl-loader plan --calibrate costs.json
    python examples/benchmarks/network/bench_machines.py --keep GRAPHS --records records.jsonl
    python examples/benchmarks/network/predicted.py records.jsonl --costs costs.json --out FILE
"""

import argparse
import dataclasses
import datetime
import functools
import json
import os
from pathlib import Path
from typing import Any

from gigl_loader.commands.capacity.graph_on_disk import read_root
from gigl_loader.commands.capacity.model import Job, Plan, estimate, together
from gigl_loader.commands.capacity.needs import SHIPPED, Costs

RATE_WITHIN, MEMORY_WITHIN = 0.20, 0.10
HEADINGS = (
    "graph",
    "columns",
    "machines",
    "deployment",
    "link",
    "cache",
    "limit",
    "seeds/s: predicted",
    "measured",
    "predicted / measured",
    "bytes per seed: ratio",
    "hit rate: predicted",
    "measured",
    "GB: predicted",
    "measured",
    "predicted / measured",
)

read_once = functools.cache(read_root)


def plan_of(case: dict[str, Any], costs: Costs) -> Plan:
    """Return the plan of what was measured."""
    known, degrees, _ = read_once(Path(case["folder"]))  # the case says how many partitions
    is_store = case["deployment"] != "colocated"
    gbit = float(case["rate"][:-4]) / {"gbit": 1, "mbit": 1000}[case["rate"][-4:]]
    job = Job(
        **{**known, "dtype": case["dtype"]},
        num_neighbors=(15, 10),
        batch_size=case["batch_size"],
        machines=case["parts"],
        num_servers=case["parts"] if is_store else 0,
        link_gbit=gbit,
        deployment="graph-store" if is_store else "colocated",
        num_workers=1,
        cores=os.cpu_count() or 1,  # threads of a worker use what the others leave
        remote_cache=0.0 if case["cache"] == "none" else float(case["cache"].rstrip("%")) / 100,
    )
    return estimate(job, costs, degrees)


def rate_of(plan: Plan, cores: float) -> tuple[float, str]:
    """Return (seeds/s of a rank, what limits it) where all machines share ``cores``."""
    bounds = {name: bound for name, bound in plan.bounds.items() if "cores" not in name}
    bounds["cores, shared"] = cores / sum(plan.cpu.values())
    limit = min(bounds, key=lambda name: bounds[name])
    return together(plan.job, bounds) / plan.job.machines, limit


def line_of(case: dict[str, Any], costs: Costs) -> tuple[str, float, float]:
    """Return the row of the table, and predicted over measured: seeds/s and memory."""
    plan = plan_of(case, costs)
    rate, limit = rate_of(plan, cores_of(case))
    rates, memory = rate / case["seeds_per_s"], plan.total_memory / max(case["memory"])
    to_rank = case["rows_per_seed"] + case["structure_per_seed"]
    nbytes = sum(
        n for name, n in plan.network.items() if not plan.job.is_store or "batches" in name
    )
    is_without = case["hit_rate"] is None
    cells = (
        case["graph"],
        f"{plan.job.dim} {case['dtype']}",
        case["parts"],
        case["deployment"],
        case["rate"],
        case["cache"],
        limit,
        f"{rate:,.0f}",
        f"{case['seeds_per_s']:,.0f}",
        f"**{rates:.2f}**",
        f"{nbytes / to_rank:.2f}",
        "-" if is_without else f"{plan.batch.hit_rate:.0%}",
        "-" if is_without else f"{case['hit_rate']:.0%}",
        f"{plan.total_memory / 1e9:.2f}",
        f"{max(case['memory']) / 1e9:.2f}",
        f"**{memory:.2f}**",
    )
    return f"| {' | '.join(map(str, cells))} |", rates, memory


def fitted(case: dict[str, Any], costs: Costs) -> Costs:
    """Return the costs with what packets take, of what cores did in a case beyond what is known."""
    plan = plan_of(case, dataclasses.replace(costs, link_s_per_gb=0.0))
    used = cores_of(case) / (case["seeds_per_s"] * plan.job.machines)
    left = max(0.0, used - sum(plan.cpu.values()))
    return dataclasses.replace(costs, link_s_per_gb=left / sum(plan.network.values()) * 1e9)


def cores_of(case: dict[str, Any]) -> float:
    """Return the cores that all machines had together."""
    # where a machine's processes ended before the last look, what others used is not known
    others = case["others"] if sum(case["cpu_s"]) > 0 else 0.0
    return max(0.1, (os.cpu_count() or 1) - others)


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, help="of bench_machines.py --records")
    parser.add_argument("--costs", type=Path, default=SHIPPED)
    parser.add_argument("--fit", action="store_true", help="see above")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    costs = Costs.read(args.costs)
    cases = [json.loads(line) for line in args.records.read_text().splitlines()]
    costs = fitted(cases[0], costs) if args.fit else costs
    found = [line_of(case, costs) for case in cases]
    near = sum(abs(rates - 1) <= RATE_WITHIN for _, rates, _ in found)
    fits = sum(abs(memory - 1) <= MEMORY_WITHIN for *_, memory in found)
    lines = [
        f"{datetime.date.today()}, {os.cpu_count()} CPUs for all machines; costs: "
        f"{costs.machine}, {costs.date}, {costs.link_s_per_gb:.2f} s per GB over a link. "
        f"Seeds/s within {RATE_WITHIN:.0%}: {near} of {len(found)}; "
        f"memory within {MEMORY_WITHIN:.0%}: {fits} of {len(found)}.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
        *(line for line, *_ in found),
    ]
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
