"""The coordination of a graph store's job at 16 to 4,096 ranks, and 200 drawn schedules of faults.

    python examples/benchmarks/at_size/simulate.py [--most 4096] [--faults 200]

Each size runs in a process of its own, so that its memory can be told, two at a time. Then sizes in
which each rank keeps rows. See README.md here for what
is real and what is modelled.
"""

import argparse
import gc
import json
import logging
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # where the simulated cluster is
from tests.support.simulation import Deadlock, Outcome, SimulatedJob, Size, draw_faults, run_job

RANKS = (16, 64, 256, 1024, 4096)
RANKS_PER_SERVER = 16
FAULTY = Size(ranks=16, servers=8, batches=20, epochs=2, in_step=True, save_every=5)
SIZES = {"each with its own part": FAULTY, "each with a replica": replace(FAULTY, partitions=4)}
"""What schedules of faults are drawn for, in turn."""


def measure(ranks: int, batches: int, cache: float) -> dict[str, float]:
    """Run one size; return what it took."""
    gc.disable()  # what a run makes lives until its end
    started, cpu = time.perf_counter(), time.process_time()
    servers = ranks // RANKS_PER_SERVER
    job = SimulatedJob(Size(ranks=ranks, servers=servers, batches=batches, cache=cache)).run()
    seconds = time.perf_counter() - started
    assert not any(rank.error or rank.wrong_rows for rank in job.ranks)
    assert len({position for rank in job.ranks for position in rank.positions}) == ranks * batches
    followers = [rank for rank in job.ranks if rank.number > 0]
    return {
        "ranks": ranks,
        "batches": batches,
        "hits": 100 * sum(rank.hit_rate for rank in job.ranks) / ranks,
        "memory_at_end_kb": (job.memory_at_end - job.memory_before) / ranks / 1e3,
        "servers": job.size.servers,
        "messages": sum(rank.messages_at_start for rank in job.ranks) / ranks,
        "most_messages": max(rank.messages_at_start for rank in followers),
        "leader_messages": job.ranks[0].messages_at_start,
        "kb": sum(rank.bytes_at_start for rank in followers) / len(followers) / 1e3,
        "memory_kb": (job.memory_at_start - job.memory_before) / ranks / 1e3,
        "rank_kb": job.held.rank / 1e3,
        "server_kb": job.held.server / 1e3,
        "first_rank_kb": job.held.first_rank / 1e3,
        "first_server_kb": job.held.first_server / 1e3,
        "links": max(rank.connections for rank in followers),
        "simulated_start_s": max(rank.started or 0.0 for rank in job.ranks),
        "simulated_s": job.world.clock.now,
        "wall_s": seconds,
        "cpu_s": time.process_time() - cpu,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


COLUMNS = {
    "ranks": "ranks",
    "servers": "servers",
    "messages": "messages per rank",
    "kb": "KB per rank",
    "rank_kb": "held by a rank, KB",
    "server_kb": "by a server, KB",
    "memory_kb": "simulation per rank, KB",
    "links": "servers per rank",
    "leader_messages": "messages of rank 0",
    "simulated_start_s": "loaders there after, s",
    "wall_s": "run, s",
    "cpu_s": "CPU, s",
    "peak_gb": "peak, GB",
}


OF_CACHES = {
    "ranks": "ranks",
    "servers": "servers",
    "batches": "batches per rank",
    "hits": "rows that were kept, %",
    "memory_at_end_kb": "simulation per rank at the end, KB",
    "simulated_s": "simulated s",
    "wall_s": "run, s",
    "cpu_s": "CPU, s",
    "peak_gb": "peak, GB",
}
CACHE, SIZES_OF_CACHES = 0.1, (64, 1024, 4096)


def table(rows: list[dict[str, float]], columns: dict[str, str]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| " + " | ".join(columns.values()) + " |", "| --: " * len(columns) + "|"]
    for row in rows:
        cells = (
            f"{row[name]:,.0f}" if float(row[name]).is_integer() else f"{row[name]:,.1f}"
            for name in columns
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def faults(count: int) -> int:
    """Run drawn schedules; return how many went wrong, naming their seeds."""
    wrong = 0
    for number, (words, size) in enumerate(SIZES.items() if count else ()):
        seeds = range(number, count, len(SIZES))
        undisturbed, lost_s, restarts = run_job(size, []), [], 0
        for seed in seeds:
            text, found = _outcome(seed, size)
            if found is None or text or found.digest != undisturbed.digest:
                wrong += 1
                print(f"schedule {seed}: {text or 'other batches'}", flush=True)
            else:
                lost_s.append(found.seconds - undisturbed.seconds)
                restarts += found.restarts
        lost_s = sorted(lost_s) or [0.0]
        print(
            f"{len(seeds)} schedules of faults, {size.ranks} ranks and {size.servers} servers, "
            f"{words}: {wrong} wrong so far; time lost, of {undisturbed.seconds:.1f} s: median "
            f"{lost_s[len(lost_s) // 2]:.1f} s, most {lost_s[-1]:.1f} s; ranks started again "
            f"{restarts} times",
            flush=True,
        )
    return wrong


def _outcome(seed: int, size: Size) -> tuple[str, Outcome | None]:
    try:
        found = run_job(size, draw_faults(seed, size))
    except (Deadlock, RuntimeError) as error:
        return f"{type(error).__name__}: {error}", None
    return found.wrong, found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=4096, help="ranks of the largest size")
    parser.add_argument("--batches", type=int, default=100, help="per rank")
    parser.add_argument(
        "--cache-batches", type=int, default=10, help="where rows are kept; 0: none"
    )
    parser.add_argument("--cache", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--faults", type=int, default=200, help="schedules; 0: none")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)  # what is lost and comes back is said by each rank
    if args.one:
        print(json.dumps(measure(args.one, args.batches, args.cache)))
        return 0
    wanted = [(ranks, args.batches, 0.0) for ranks in RANKS]
    if args.cache_batches:
        wanted += [(ranks, args.cache_batches, CACHE) for ranks in SIZES_OF_CACHES]
    wanted = [one for one in wanted if one[0] <= args.most]
    with ThreadPoolExecutor(2) as pool:  # the largest first: it takes as long as all others
        found = {one: pool.submit(in_a_process, *one) for one in sorted(wanted, reverse=True)}
        wrong = pool.submit(faults, args.faults)
        rows = [found[one].result() for one in wanted]
    print(table([row for row in rows if not row["hits"]], COLUMNS))
    print(table([row for row in rows if row["hits"]], OF_CACHES))
    return 1 if wrong.result() else 0


def in_a_process(ranks: int, batches: int, cache: float) -> dict[str, float]:
    """Run one size in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--one",
        str(ranks),
        "--batches",
        str(batches),
        "--cache",
        str(cache),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout.strip(), file=sys.stderr, flush=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
