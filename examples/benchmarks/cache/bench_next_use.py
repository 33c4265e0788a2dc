"""Hit rates of the row cache beside least-recently-used, on the same recorded trace of node ids.

The trace is the one of ``bench_cache.py``: an epoch of batches over a graph in four random parts,
and the ids of rows of other parts that each batch needs. A hit is a row that is in the cache as its
batch is filled. Counts alone, so the machine does not matter::

    python examples/benchmarks/cache/bench_next_use.py [--scale 18] [--out next_use.md]
"""

import argparse
import datetime
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_cache import FANOUTS, SHARES, Trace, batches_of, ours, power_law, uniform

HEADER = (
    "| graph | rows a batch | cache | next use: hits | least recently used: hits | "
    "fetched, next use / least recently used |\n|---|---|---|---|---|---|"
)


def hits_by_next_use(trace: Trace, num_ids: int, capacity: int) -> int:
    """Return the rows that the loaders' cache has, with the look-ahead that they choose."""
    return sum(map(len, trace)) - ours(trace, num_ids, capacity)[0]


def reuse_of(trace: Trace) -> tuple[int, float]:
    """Return how many rows are needed more than once, and the hits of a cache without a limit."""
    rows, counts = np.unique(np.concatenate(trace), return_counts=True)
    needed = int(counts.sum())
    return int((counts > 1).sum()), (needed - len(rows)) / needed


def hits_by_last_use(trace: Trace, capacity: int) -> int:
    """Return the rows that a cache has which always drops the row that was used longest ago."""
    kept: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for ids in trace:
        for one in ids.tolist():
            if one in kept:
                hits += 1
                kept.move_to_end(one)
            else:
                if len(kept) == capacity:
                    kept.popitem(last=False)
                kept[one] = None
    return hits


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=18, help="2 ** scale nodes")
    parser.add_argument("--edges", type=int, default=16, help="of a node")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=1 << 20, help="of an epoch, at most")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    num_ids = 1 << args.scale
    lines = [
        f"{datetime.date.today()}: {num_ids:,} nodes, {args.edges * num_ids:,} edges, {args.parts} "
        f"random parts, fan-outs {list(FANOUTS)}, {args.batch_size:,} seeds a batch.",
        "",
        HEADER,
    ]
    notes = [""]
    for name, make in (("power law", power_law), ("uniform", uniform)):
        random = np.random.default_rng(0)
        edges = make(args.scale, random, args.edges)
        parts = random.integers(0, args.parts, num_ids)
        trace: Trace = batches_of(edges, args.scale, args.batch_size, parts, args.batches)["trace"]
        rows, others = sum(map(len, trace)), int((parts != 0).sum())
        again, best = reuse_of(trace)
        notes.append(
            f"{name}: {again:,} rows are needed more than once, {again / others:.0%} of those of "
            f"other parts; a cache without a limit has {best:.1%} hits."
        )
        for share in SHARES:
            capacity = round(share * others)
            next_use = hits_by_next_use(trace, num_ids, capacity)
            last_use = hits_by_last_use(trace, capacity)
            lines.append(
                f"| {name} | {rows // len(trace):,} | {share:.0%} | {next_use / rows:.1%} | "
                f"{last_use / rows:.1%} | {(rows - next_use) / (rows - last_use):.2f} |"
            )
    lines += notes
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
