"""What the row cache fetches, beside an offline optimum, LRU and the rows of highest degree.

Batches are sampled from one graph, split into four parts at random, seeds of part 0 shuffled; rows
of the other parts are what a cache may save. Ours is the code of the loaders, with the look-ahead
that they choose; the others are simulated here. Counts alone, so the machine does not matter::

    python examples/benchmarks/cache/bench_cache.py [--scale 18] [--out results.md]
"""

import argparse
import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset
from gigl_loader.batch.message import EDGE_INDEX, NODE, BatchTicket
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.runtime.memory.segments import array_in, nbytes_of
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import DrawnAhead, LookAhead
from gigl_loader.sampler.row_cache.tables import RowTable
from gigl_loader.sampler.rows.packing import PackedInts, PackedRuns
from gigl_loader.testing import as_worker_gets

FANOUTS, ROW_BYTES, SHARES = (15, 10), 400, (0.05, 0.1, 0.2, 0.4)
OWNER = ("node", "rows")
NEVER = 1 << 40
MANY = 1 << 40
"""So many ids that a cache finds them by a hash table."""
Trace = list[np.ndarray]
"""By batch, the distinct ids of other parts' rows."""


def power_law(scale: int, random: np.random.Generator, factor: int) -> np.ndarray:
    """Return ``[2, edges]`` of R-MAT with the parameters of Graph500: 0.57, 0.19, 0.19, 0.05."""
    edges = np.zeros((2, factor << scale), np.int64)
    for _ in range(scale):
        draw = random.random(edges.shape[1], np.float32)
        edges = 2 * edges + np.stack([draw > 0.76, (draw > 0.57) & (draw < 0.76) | (draw > 0.95)])
    return random.permutation(1 << scale)[edges]


def uniform(scale: int, random: np.random.Generator, factor: int) -> np.ndarray:
    """Return ``[2, edges]`` between nodes drawn uniformly."""
    return random.integers(0, 1 << scale, (2, factor << scale))


def batches_of(
    edges: np.ndarray, scale: int, batch_size: int, parts: np.ndarray, most: int
) -> dict[str, Any]:
    """Return the trace of an epoch of ``most`` batches, the CPU ms of one, and bytes per edge."""
    data = Data(edge_index=torch.from_numpy(edges), num_nodes=1 << scale)
    view = as_worker_gets(DistDataset.from_pyg(data).view())
    (node_type,), (edge_type,) = view.num_nodes, view.adjacency
    plan = SamplingPlan(input_type=node_type, fanouts={edge_type: FANOUTS}, seed=1)
    sampler = NeighborSampler(view, plan, None)
    seeds = np.random.default_rng(2).permutation(np.flatnonzero(parts == 0))[: most * batch_size]
    trace, num_edges, packed, elapsed = [], 0, 0, 0.0
    for batch, start in enumerate(range(0, seeds.size, batch_size)):
        chosen = seeds[start : start + batch_size]
        began = time.thread_time()
        fields = sampler.sample(SampleRequest(BatchTicket(0, 0, 0, batch), chosen, chosen))
        read = {field.key: _values(field) for field in fields if field.key in (NODE, EDGE_INDEX)}
        elapsed += time.thread_time() - began
        nodes = np.unique(read[NODE])
        trace.append(np.random.default_rng(batch).permutation(nodes[parts[nodes] != 0]))
        neighbors, targets = read[EDGE_INDEX]
        num_edges += targets.size
        packed += PackedInts.of(neighbors).words.nbytes + PackedRuns.of(targets).nbytes
    return {"trace": trace, "ms": 1e3 * elapsed / len(trace), "edge_bytes": packed / num_edges}


def _values(field: Any) -> np.ndarray:
    out = array_in(bytearray(nbytes_of(field.dtype, field.shape)), field.dtype, field.shape, 0)
    field.write(out)
    return out


# --- ours -----------------------------------------------------------------------------------------


def ours(trace: Trace, num_ids: int, capacity: int) -> tuple[int, int, float]:
    """Return (rows fetched, look-ahead in batches, CPU milliseconds of deciding per batch)."""
    table = RowTable(
        num_ids=num_ids,
        capacity=capacity,
        references=10 * capacity + (1 << 20),
        matrices={("node_features", "rows"): ("uint8", (ROW_BYTES,))},
    )
    cache = RowCache.private({OWNER: table})
    user, numbers = cache.join(), []
    drawn = DrawnAhead(np.zeros(DrawnAhead.NUM_WORDS, np.int64))
    look_ahead = LookAhead(cache, drawn, CacheOptions(size=capacity))
    look_ahead.begin(0, len(trace))
    fetched = added = most = 0
    elapsed = 0.0
    for batch, ids in enumerate(trace):
        while not drawn.may_fill(0, batch):  # as the workers do, whose trainer takes each batch
            known = min(len(trace), batch + look_ahead.limit(batch, 1))
            began = time.thread_time()
            for one in range(added, max(known, added + (added == 0))):
                numbers.append(cache.add(user, {OWNER: trace[one]}))
                drawn.note(0, one)
                look_ahead.count(0, ROW_BYTES * trace[one].size, 20 * trace[one].size)
            elapsed += time.thread_time() - began
            added = max(added, known)
        most = max(most, added - batch - 1)
        began = time.thread_time()
        plan = cache.plan(numbers[batch], {OWNER: ids})[OWNER]
        elapsed += time.thread_time() - began
        fetched += int((plan < 0).sum())
    return fetched, most, 1e3 * elapsed / len(trace)


def least(trace: Trace, num_ids: int, capacity: int) -> tuple[int, int, float]:
    """Return the same of the quickest of three: the first one meets memory that is new."""
    return min((ours(trace, num_ids, capacity) for _ in range(3)), key=lambda found: found[2])


# --- the others -----------------------------------------------------------------------------------


def next_uses(trace: Trace, num_ids: int) -> list[np.ndarray]:
    """Return by batch when each of its ids is needed next."""
    soonest, found = np.full(num_ids, NEVER, np.int64), []
    for batch in range(len(trace) - 1, -1, -1):
        found.append(soonest[trace[batch]])
        soonest[trace[batch]] = batch
    return found[::-1]


def simulate(trace: Trace, num_ids: int, capacity: int, key: Callable[[int], Any]) -> int:
    """Return the rows fetched where those of the least ``key`` are kept after each batch."""
    priority, is_kept = np.zeros(num_ids, np.int64), np.zeros(num_ids, bool)
    kept, fetched = np.empty(0, np.int64), 0
    for batch, ids in enumerate(trace):
        missing = ids[~is_kept[ids]]
        fetched += missing.size
        priority[ids] = key(batch)
        both = np.concatenate([kept, missing])
        chosen = both
        if both.size > capacity:
            chosen = both[np.argpartition(priority[both], capacity)[:capacity]]
        is_kept[kept] = False
        is_kept[chosen] = True
        kept = chosen
    return fetched


def highest_degree(trace: Trace, degrees: np.ndarray, parts: np.ndarray, capacity: int) -> int:
    """Return the rows fetched where nodes of highest degree are kept from the start."""
    remote = np.flatnonzero(parts != 0)
    is_kept = np.zeros(parts.size, bool)
    is_kept[remote[np.argsort(-degrees[remote], kind="stable")[:capacity]]] = True
    return sum(int((~is_kept[ids]).sum()) for ids in trace)


# --- the table ------------------------------------------------------------------------------------

COLUMNS = (
    "graph, seeds",
    "rows a batch",
    "cache",
    "optimum: share fetched",
    "ours / optimum",
    "LRU / optimum",
    "highest degree / optimum",
    "look-ahead",
    "deciding, CPU ms",
    "ns a row",
    "ns a row, many ids",
    "structure, CPU ms",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=18, help="2 ** scale nodes")
    parser.add_argument("--edges", type=int, default=16, help="of a node")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1024, 128])
    parser.add_argument("--batches", type=int, default=1 << 20, help="of an epoch, at most")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    num_ids = 1 << args.scale
    RowCache.load_kernels()
    lines = [
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, numpy "
        f"{np.__version__}: {num_ids:,} nodes, {args.edges * num_ids:,} edges, "
        f"{args.parts} random parts, fan-outs {list(FANOUTS)}.",
        "",
        HEADER,
    ]
    for line in lines:
        print(line)
    for name, make in (("power law", power_law), ("uniform", uniform)):
        random = np.random.default_rng(0)
        edges = make(args.scale, random, args.edges)
        parts = random.integers(0, args.parts, num_ids)
        degrees = np.bincount(edges[0], minlength=num_ids)
        for batch_size in args.batch_sizes:
            found = batches_of(edges, args.scale, batch_size, parts, args.batches)
            trace: Trace = found["trace"]
            uses, asked = next_uses(trace, num_ids), sum(map(len, trace))
            for share in SHARES:
                capacity = round(share * int((parts != 0).sum()))
                optimum = simulate(trace, num_ids, capacity, uses.__getitem__)
                fetched, ahead, ms = least(trace, num_ids, capacity)
                as_many, _, ms_of_many = least(trace, MANY, capacity)
                assert as_many == fetched, "what is kept does not depend on how it is found"
                lru = simulate(trace, num_ids, capacity, lambda batch: -batch)
                degree = highest_degree(trace, degrees, parts, capacity)
                lines.append(
                    f"| {name}, {batch_size:,} | {asked // len(trace):,} | {share:.0%} | "
                    f"{optimum / asked:.3f} | **{fetched / optimum:.3f}** | {lru / optimum:.2f} | "
                    f"{degree / optimum:.2f} | {ahead} | {ms:.2f} | "
                    f"{1e6 * ms * len(trace) / asked:.0f} | "
                    f"{1e6 * ms_of_many * len(trace) / asked:.0f} | {found['ms']:.1f} |"
                )
                print(lines[-1], flush=True)
            print(f"bytes per edge on the wire: {found['edge_bytes']:.2f}")
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
