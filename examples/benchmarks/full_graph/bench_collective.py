"""Seeds per second of `exchange="collective"` against sampling workers that ask over TCP.

    python examples/benchmarks/full_graph/bench_collective.py --nodes 200000

See README.md beside this file.
"""

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from _graph import add_sizes, make_graph, parse
from torch.multiprocessing.spawn import spawn

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.testing import free_port

RANKS = 2
WAYS: dict[str, dict[str, Any]] = {
    "workers over TCP": {"num_workers": 1},
    "collective": {"num_workers": 0, "exchange": "collective"},
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare ways in which ranks sample together.")
    add_sizes(parser)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=40, help="of each rank and round")
    parser.add_argument("--step", type=float, default=0.0, help="seconds that a step computes")
    parser.add_argument(
        "--device",
        default="cpu",
        choices=["cpu", "cuda"],
        help="where batches go; cuda: one GPU a rank, and rows of the collective by NCCL",
    )
    parser.add_argument("--rounds", type=int, default=5, help="the ways are timed in turn")
    return parse(parser)


def on_a_rank(rank: int, args: argparse.Namespace, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    os.environ["GIGL_LOADER_SAME_MEMORY"] = "0"  # as if each rank had a machine of its own
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    on_gpus = args.device == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    dist.init_process_group(backend, rank=rank, world_size=RANKS)
    dataset = DistDataset.load(f"{folder}/graph", rank)
    seeds = dataset.node_ids[torch.randperm(len(dataset.node_ids))]
    seeds = seeds[: args.batch_size * args.batches]
    loaders = {
        way: DistNeighborLoader(
            dataset,
            args.fanouts,
            seeds,
            batch_size=args.batch_size,
            seed=0,
            shard="machine",
            local_process_rank=0,
            local_process_world_size=1,
            pin_memory_device=device,
            **how,
        )
        for way, how in WAYS.items()
    }
    shares = []
    for number in range(args.rounds + 1):  # the first round waits for compiled code
        speeds = {way: timed(loader, args) for way, loader in loaders.items()}
        if number and rank == 0:
            shares.append(speeds["collective"][0] / speeds["workers over TCP"][0])
            texts = [
                f"{w} {s:,.0f} seeds/s, waiting {100 * p:.0f}%" for w, (s, p) in speeds.items()
            ]
            print(
                f"  round {number}: {'; '.join(texts)}; collective is {shares[-1]:.2f}", flush=True
            )
    if rank == 0:
        middle = statistics.median(shares)
        print(f"  collective is {middle:.2f} of workers ({min(shares):.2f} to {max(shares):.2f})")
    for loader in loaders.values():
        loader.shutdown()
    dist.destroy_process_group()


def timed(loader: DistNeighborLoader, args: argparse.Namespace) -> tuple[float, float]:
    """Return (seeds per second of this rank, share of the time that it waited for batches)."""
    dist.barrier()
    started, count = time.perf_counter(), 0
    for batch in loader:
        count += batch.batch_size
        time.sleep(args.step)
    dist.barrier()
    return count / (time.perf_counter() - started), loader.stats()["wait_share"]


def main() -> None:
    args = parse_args()
    print(
        f"{args.nodes:,} nodes, {args.edges:,} edges, {args.width} float32, {RANKS} ranks, fanouts "
        f"{args.fanouts}, batches of {args.batch_size}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        partition_graph(make_graph(args), RANKS, f"{folder}/graph", method="random", progress=False)
        spawn(on_a_rank, (args, folder, free_port()), RANKS)


if __name__ == "__main__":
    main()
