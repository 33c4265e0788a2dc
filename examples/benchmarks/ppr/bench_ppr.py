"""Batches by personalised PageRank, beside PyG's ``get_ppr``: seeds per CPU second.

    python examples/benchmarks/ppr/bench_ppr.py

One process bound to one core; the two take turns in each round. Ours has the rows of all nodes,
ranks them and keeps 50; ``get_ppr`` gives ids and scores in no order. See README.md beside this
file.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import get_ppr

from gigl_loader import DistDataset, DistNeighborLoader, PPRSamplerOptions

WIDTH, BATCH, ALPHA = 64, 512, 0.2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time batches by personalised PageRank.")
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--eps", type=float, nargs="+", default=[1e-3, 1e-4])
    parser.add_argument("--seeds", type=int, default=4096, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--costs", action="store_true", help="what a seed costs by eps and alpha")
    return parser.parse_args()


def skewed_edges(args: argparse.Namespace) -> torch.Tensor:
    """Return edges whose destinations are few nodes more often than many."""
    draw = torch.Generator().manual_seed(0)
    sources = torch.randint(args.nodes, (args.edges,), generator=draw)
    skewed = (args.nodes * torch.rand(args.edges, generator=draw).double() ** 1.5).long()
    return torch.stack([sources, torch.randperm(args.nodes, generator=draw)[skewed]])


def two_types(edges: torch.Tensor, num_nodes: int) -> HeteroData:
    """Return the same edges, between the even and the odd nodes as two types, and back."""
    data = HeteroData()
    for name in ("even", "odd"):
        data[name].x = torch.rand((num_nodes + 1) // 2, WIDTH)
    between = edges[:, (edges[0] % 2 == 0) & (edges[1] % 2 == 1)] // 2
    back = edges[:, (edges[0] % 2 == 1) & (edges[1] % 2 == 0)] // 2
    data["even", "to", "odd"].edge_index, data["odd", "back", "even"].edge_index = between, back
    return data


def ours(graph: Data | HeteroData, seeds: Any, eps: float, alpha: float = ALPHA) -> Iterator[Any]:
    options = PPRSamplerOptions(
        alpha=alpha, eps=eps, max_ppr_nodes=50, num_neighbors_per_hop=1_000_000
    )
    how: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0, "seed": 1}
    loader = DistNeighborLoader(
        DistDataset.from_pyg(graph), [1], seeds, sampler_options=options, **how
    )
    while True:
        yield from loader


def take(batches: Iterator[Any], number: int) -> list[Any]:
    return [next(batches) for _ in range(number)]


def timed(work: Callable[[], Any], num_seeds: int) -> tuple[float, float]:
    """Return seeds per second of CPU time, and of wall time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return num_seeds / (time.process_time() - cpu), num_seeds / (time.perf_counter() - wall)


def spread(values: list[float], form: str = ",.0f") -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def print_costs(graph: Data, seeds: torch.Tensor) -> None:
    alphas = (0.1, 0.2, 0.5)
    print("| eps | " + " | ".join(f"alpha {alpha}" for alpha in alphas) + " |")
    print("| --- |" + " --- |" * len(alphas))
    for eps in (1e-2, 1e-3, 1e-4, 1e-5):
        costs = []
        for alpha in alphas:
            batches = ours(graph, seeds, eps, alpha)
            take(batches, 2)
            rounds = [timed(partial(take, batches, 2), 2 * BATCH)[0] for _ in range(3)]
            costs.append(f"{1e6 / max(rounds):,.0f}")
        print(f"| {eps:g} | " + " | ".join(costs) + " |", flush=True)


def main() -> None:
    args = parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    edges = skewed_edges(args)
    seeds = torch.randperm(args.nodes, generator=torch.Generator().manual_seed(1))
    homogeneous = Data(x=torch.rand(args.nodes, WIDTH), edge_index=edges)
    if args.costs:
        return print_costs(homogeneous, seeds[: args.seeds])
    typed = two_types(edges, args.nodes)
    # ours walks against the edges, to the neighbours of a seed; get_ppr along them
    turned = EdgeIndex(edges.flip(0), sparse_size=(args.nodes, args.nodes)).sort_by("row")[0]
    turned.get_csr()
    for eps in args.eps:
        few = seeds[: args.seeds]
        loaders = {
            "one type": ours(homogeneous, few, eps),
            "two types": ours(typed, ("even", few // 2), eps),
        }
        number = args.seeds // BATCH
        ways: dict[str, Callable[[], Any]] = {
            name: partial(take, batches, number) for name, batches in loaders.items()
        }
        how = {"alpha": ALPHA, "eps": eps, "num_nodes": args.nodes}
        ways["get_ppr, one type"] = partial(get_ppr, turned, target=few, **how)
        for work in ways.values():  # compiled, and memory is warm
            work()
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, work in ways.items():
                found[name].append(timed(work, args.seeds))
        print(f"\neps={eps:g}, {args.edges:,} edges, {args.nodes:,} nodes, {WIDTH} floats\n")
        print("| | seeds/s of CPU time | seeds/s of wall time | beside get_ppr, by CPU time |")
        print("| --- | --- | --- | --- |")
        peer = [cpu for cpu, _ in found["get_ppr, one type"]]
        for name, rounds in found.items():
            ratios = [cpu / other for (cpu, _), other in zip(rounds, peer, strict=True)]
            by_cpu, by_wall = (spread(list(column)) for column in zip(*rounds, strict=True))
            print(f"| {name} | {by_cpu} | {by_wall} | {spread(ratios, '.2f')} |", flush=True)


if __name__ == "__main__":
    main()
