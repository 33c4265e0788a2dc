"""Training on the whole graph with the rows of all ranks at once, and of one rank at a time.

    python examples/benchmarks/full_graph/bench_sequential.py --nodes 50000 --ranks 2 4 8

See README.md beside this file.
"""

import argparse
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from _graph import add_sizes, make_graph, parse
from _memory import PeakMemory, warm_up
from torch.multiprocessing.spawn import spawn
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, full_graph, partition_graph

WAYS = {"at once": False, "sequential": True}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure memory and time of sequential=True.")
    add_sizes(parser)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3, help="both ways are timed in turn")
    return parse(parser)


def train_step(model: GraphSAGE, dataset: DistDataset, *, sequential: bool) -> tuple[float, float]:
    """Return wall and CPU seconds of the second forward and backward pass: the first one warms."""
    with full_graph(model, dataset, sequential=sequential) as data:
        for _ in range(2):
            model.zero_grad()
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            model(data.x, data.edge_index).square().sum().backward()
            dist.barrier()
    return time.perf_counter() - wall, time.process_time() - cpu


def gradients(model: GraphSAGE) -> torch.Tensor:
    grads = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
    dist.all_reduce(grads)
    return grads


def most_of(value: float) -> float:
    most = torch.tensor([value])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def on_a_rank(rank: int, args: argparse.Namespace, folder: str, ranks: int, way: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/{way}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = GraphSAGE(args.width, args.hidden, args.layers)
    warm_up(rank, ranks, folder)
    dataset = DistDataset.load(f"{folder}/graph", rank)
    if way == "time":
        _compare_times(rank, args, model, dataset)
    else:
        before = PeakMemory.now()
        with PeakMemory() as memory:
            train_step(model, dataset, sequential=WAYS[way])
        peak = most_of((memory.peak - before) / 2**20)
        if rank == 0:
            print(
                f"  {ranks} ranks, {way:10}  peak of the fullest rank {peak:6.0f} MiB", flush=True
            )
    dist.destroy_process_group()


def _compare_times(
    rank: int, args: argparse.Namespace, model: GraphSAGE, dataset: DistDataset
) -> None:
    wall, cpu, difference = [], [], 0.0
    for _ in range(args.rounds):
        taken, grads = [], []
        for sequential in WAYS.values():
            taken.append(train_step(model, dataset, sequential=sequential))
            grads.append(gradients(model))
        wall.append(taken[1][0] / taken[0][0])
        cpu.append(taken[1][1] / taken[0][1])
        difference = max(difference, float((grads[1] - grads[0]).norm() / grads[0].norm()))
    if rank == 0:
        print(
            f"  {dist.get_world_size()} ranks, a step of sequential takes "
            f"{statistics.median(wall):.2f} of the time ({min(wall):.2f} to {max(wall):.2f}), "
            f"{statistics.median(cpu):.2f} of the CPU time; gradients differ by {difference:.0e}",
            flush=True,
        )


def main() -> None:
    args = parse_args()
    sizes = f"{args.nodes:,} nodes, {args.edges:,} edges, {args.width} float32"
    print(f"{sizes}, SAGE {args.layers} x {args.hidden}", flush=True)
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            partition_graph(
                make_graph(args), ranks, f"{folder}/graph", method="contiguous", progress=False
            )
            # memory in processes of their own: malloc keeps what a first way has freed
            for way in (*WAYS, "time"):
                spawn(on_a_rank, (args, folder, ranks, way), ranks)


if __name__ == "__main__":
    main()
