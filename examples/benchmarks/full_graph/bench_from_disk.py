"""Embeddings of a graph that lies on disk: tables, partitions, layer by layer, in mapped files.

    python examples/benchmarks/full_graph/bench_from_disk.py --scratch DIR

See README.md beside this file. Needs 8 GB in DIR for the default size.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from _memory import Clock, PeakMemory, warm_up
from torch.multiprocessing.spawn import spawn
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, EdgeTable, NodeTable, full_graph_inference, partition_tables

_FILE_EDGES = 10_000_000


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the inference of a graph on disk.")
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--scratch", help="folder for tables, partitions and embeddings")
    return parser.parse_args()


def make_partitions(args: argparse.Namespace, folder: Path) -> None:
    """Write tables of a random graph and partition them; the tables are removed then."""
    random = np.random.default_rng(0)
    ids = pa.table({"id": np.arange(args.nodes)})
    x = np.lib.format.open_memmap(
        folder / "x.npy", "w+", np.dtype(np.float16), (args.nodes, args.width)
    )
    for start in range(0, args.nodes, _FILE_EDGES // 10):
        part = x[start : start + _FILE_EDGES // 10]
        part[:] = random.standard_normal(part.shape, np.float32)
    del x
    files = []
    for start in range(0, args.edges, _FILE_EDGES):
        ends = random.integers(0, args.nodes, (2, min(_FILE_EDGES, args.edges - start)))
        files.append(folder / f"edges-{start}.parquet")
        pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), files[-1])
    partition_tables(
        NodeTable(ids, id="id", features=str(folder / "x.npy")),
        EdgeTable([str(file) for file in files], src="src", dst="dst"),
        num_partitions=args.ranks,
        root=folder / "graph",
        memory="2GB",
    )
    for file in (folder / "x.npy", *files):
        file.unlink()


def on_a_rank(rank: int, args: argparse.Namespace, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=args.ranks)
    torch.manual_seed(0)
    model = GraphSAGE(args.width, args.hidden, 2).eval()
    warm_up(rank, args.ranks, folder)
    before, clock = PeakMemory.now(), Clock()
    dataset = DistDataset.load(folder / "graph", rank, mmap=True, verify="off")
    opened = str(clock)
    dist.barrier()
    clock = Clock()
    with PeakMemory() as memory:
        found = full_graph_inference(
            model, dataset, out=folder / "out", dtype=torch.float16, progress=rank == 0
        )
    took, resident = str(clock), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(args.ranks):
        dist.barrier()
        if turn == rank:
            print(f"  rank {rank}: opened in {opened}, computed in {took}", flush=True)
            print(
                f"    peak {memory.peak / 2**20:,.0f} MiB that the kernel cannot drop, "
                f"{before / 2**20:,.0f} of them before the graph; {resident / 2**10:,.0f} with all "
                f"pages of files; rows {tuple(found.values.shape)} {found.values.dtype}",
                flush=True,
            )
    dist.destroy_process_group()


def main() -> None:
    args = parse_args()
    print(
        f"{args.nodes:,} nodes, {args.edges:,} edges, {args.width} float16, SAGE 2 x "
        f"{args.hidden}, {args.ranks} ranks",
        flush=True,
    )
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        folder, started = Path(name), time.perf_counter()
        make_partitions(args, folder)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(
            f"  tables and partitions {time.perf_counter() - started:.0f} s; partitions have "
            f"{size / 2**30:.1f} GiB",
            flush=True,
        )
        spawn(on_a_rank, (args, folder), args.ranks)


if __name__ == "__main__":
    main()
