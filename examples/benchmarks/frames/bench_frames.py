"""Rows of mixed types beside one float matrix of as many bytes: seeds/s of one graph.

    python examples/benchmarks/frames/bench_frames.py

See README.md beside this file.
"""

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor
from torch_geometric.data import HeteroData

from gigl_loader import DistDataset, DistNeighborLoader

TABLES = {
    "customer": {"numerical": 3, "categorical": 4, "timestamp": 0, "embedding": 0},
    "article": {"numerical": 2, "categorical": 12, "timestamp": 0, "embedding": 32},
    "transaction": {"numerical": 2, "categorical": 2, "timestamp": 1, "embedding": 0},
}
"""Columns of each kind; the numbers of one embedding."""
BYTES = {
    "batch": {"numerical": 4, "categorical": 8, "timestamp": 56, "embedding": 4},
    "store": {"numerical": 4, "categorical": 4, "timestamp": 14, "embedding": 4},
}
"""What a column takes in a ``TensorFrame``, and as it is stored."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time batches with rows of mixed types.")
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--fanout", type=int, nargs="+", default=[16, 16])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=40, help="of a round")
    parser.add_argument("--rounds", type=int, default=9, help="both ways are timed in turn")
    parser.add_argument("--bytes", choices=BYTES, default="batch", help="of the float matrix")
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


def frame_of(count: int, columns: dict[str, int], draw: torch.Generator) -> TensorFrame:
    feats: dict[stype, Any] = {}
    feats[stype.numerical] = torch.randn(count, columns["numerical"], generator=draw)
    feats[stype.categorical] = torch.randint(
        -1, 99, (count, columns["categorical"]), generator=draw
    )
    if columns["timestamp"]:
        shape = count, columns["timestamp"], 7
        feats[stype.timestamp] = torch.randint(-1, 60, shape, generator=draw)
    if columns["embedding"]:
        vectors = torch.randn(count, columns["embedding"], generator=draw)
        feats[stype.embedding] = MultiEmbeddingTensor.from_tensor_list([vectors])
    names = {kind: [f"{kind.value}{k}" for k in range(v.size(1))] for kind, v in feats.items()}
    return TensorFrame(feats, names)


def graph_of(args: argparse.Namespace, *, mixed: bool) -> HeteroData:
    """Return transactions that join customers and articles, with rows of one form or the other."""
    draw, graph, number = torch.Generator().manual_seed(0), HeteroData(), args.transactions
    counts = {"customer": number // 10, "article": number // 50, "transaction": number}
    for name, count in counts.items():
        if mixed:
            graph[name].tf = frame_of(count, TABLES[name], draw)
        else:
            nbytes = sum(BYTES[args.bytes][kind] * size for kind, size in TABLES[name].items())
            graph[name].x = torch.randn(count, -(-nbytes // 4), generator=draw)
    draw.manual_seed(1)
    for name in ("customer", "article"):
        ends = torch.stack(
            [torch.arange(number), torch.randint(counts[name], (number,), generator=draw)]
        )
        graph["transaction", f"f2p_{name}", name].edge_index = ends
        graph[name, f"rev_f2p_{name}", "transaction"].edge_index = ends.flip(0)
    return graph


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def spread(values: list[float], form: str = ",.0f") -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    ways = {}
    for name, mixed in (("one float matrix", False), ("rows of mixed types", True)):
        loader = DistNeighborLoader(
            DistDataset.from_pyg(graph_of(args, mixed=mixed)),
            args.fanout,
            ("customer", torch.arange(args.transactions // 10)),
            batch_size=args.batch_size,
            num_workers=args.workers,
            shuffle=True,
            seed=1,
        )
        ways[name] = endless(loader)
        for _ in range(10):  # what is compiled is loaded, and memory is warm
            next(ways[name])
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, batches in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            seeds = sum(next(batches)["customer"].batch_size for _ in range(args.batches))
            spent = time.perf_counter() - wall, time.process_time() - cpu
            found[name].append((seeds / spent[0], seeds / spent[1]))
    print("| | seeds/s of CPU time of the training process | seeds/s of wall time |")
    print("| --- | --- | --- |")
    for name, rounds in found.items():
        walls, cpus = zip(*rounds, strict=True)
        print(f"| {name} | {spread(list(cpus))} | {spread(list(walls))} |")
    matrix, rows = found.values()
    ratios = [(b[0] / a[0], b[1] / a[1]) for a, b in zip(matrix, rows, strict=True)]
    by_wall, by_cpu = (spread(list(values), ".2f") for values in zip(*ratios, strict=True))
    print(f"| ratio, round by round | {by_cpu} | {by_wall} |")


if __name__ == "__main__":
    main()
