"""Embeddings of all nodes: layer by layer on two ranks, against one process and against sampling.

    python examples/benchmarks/full_graph/bench_full_graph.py --nodes 200000

See README.md beside this file.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from _graph import add_sizes, make_graph, parse
from torch.multiprocessing.spawn import spawn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    full_graph,
    full_graph_inference,
    partition_graph,
)
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.chunks import ChunkReader, Reads
from gigl_loader.inference.sources import PartitionGraph

RANKS = 2
CHUNK = 8192
"""Of the one process."""
_EVERY_S = 0.01


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the inference of all nodes.")
    add_sizes(parser)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, help="rows of a chunk; default: by their size")
    parser.add_argument("--rounds", type=int, default=2, help="the ways are timed in turn")
    parser.add_argument("--ranks-only", action="store_true", help="no comparison")
    return parse(parser)


def make_model(args: argparse.Namespace) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(args.width, args.hidden, 2).eval()


def partition_bytes(dataset: DistDataset) -> int:
    view = dataset.view()
    (adjacency,), (rows,) = view.adjacency.values(), view.node_features.values()
    tensors = (adjacency.indptr, adjacency.indices, adjacency.edge_ids, rows.values)
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


class PeakMemory:
    """The most memory of this process inside a ``with`` block that the kernel cannot drop.

    Pages of mapped files count as free: they are written back, and read again, as memory is needed.
    """

    def __enter__(self) -> "PeakMemory":
        self.peak, self._ended = self.now(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.peak = max(self.peak, self.now())

    @staticmethod
    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        kinds = ("RssAnon:", "RssShmem:")
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


class Clock:
    """Wall seconds, and CPU seconds of this process: what others do on the machine adds to one."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return f"{wall:7.1f} s {cpu:7.1f} CPU s"


def on_a_rank(rank: int, args: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = make_model(args)
    warm_up(rank, folder)
    before = PeakMemory.now()
    dataset = DistDataset.load(f"{folder}/graph", rank)
    size = partition_bytes(dataset)
    for number in range(args.rounds):
        dist.barrier()
        clock = Clock()
        with PeakMemory() as memory:
            found = full_graph_inference(
                model, dataset, out=f"{folder}/out{number}", batch_size=args.batch_size
            )
        chunks, share = str(clock), (memory.peak - before) / size
        dist.barrier()
        clock = Clock()
        with full_graph(model, dataset) as data, torch.no_grad():
            same = torch.allclose(model(data.x, data.edge_index), found.values, atol=1e-4)
        if rank == 0:
            print(f"  {RANKS} ranks, full_graph_inference  {chunks} on each", flush=True)
            print(f"      peak memory {share:.2f} of the partition", flush=True)
            print(
                f"  {RANKS} ranks, full_graph            {clock} on each, same: {same}", flush=True
            )
    if rank == 0:
        print(
            f"  a partition is {size / 2**20:.0f} MiB, a process with torch and compiled code "
            f"{before / 2**20:.0f}", flush=True,
        )  # fmt: skip
    dist.destroy_process_group()


def warm_up(rank: int, folder: str) -> None:
    """Let a tiny graph load what is compiled, so that neither time nor memory count it."""
    tiny = Data(x=torch.randn(9, 3), edge_index=torch.arange(9).repeat(2, 1))
    book = torch.arange(9) % RANKS
    part = DistDataset.from_pyg(tiny, partition_book=book, partition_idx=rank)
    full_graph_inference(GraphSAGE(3, 3, 1).eval(), part, out=f"{folder}/tiny")


@torch.no_grad()
def in_one_process(dataset: DistDataset, model: GraphSAGE, args: argparse.Namespace) -> str:
    """Time ``BasicGNN.inference``.

    Where its ``NeighborLoader`` lacks the native library that it needs, our chunks stand in for it,
    and PyG's own function of a layer runs over them.
    """
    if WITH_PYG_LIB or WITH_TORCH_SPARSE:
        from torch_geometric.loader import NeighborLoader

        loader = NeighborLoader(make_graph(args), [-1], batch_size=CHUNK)
        clock = Clock()
        model.inference(loader)
        return f"{clock}  (BasicGNN.inference)"
    exchange = RankExchange()
    name = DEFAULT_HOMOGENEOUS_NODE_TYPE
    graph = PartitionGraph(dataset, exchange)
    reader = ChunkReader(graph, name, exchange, CHUNK)
    reads = Reads(graph.features())
    x = dataset.view().node_features[name].values
    clock = Clock()
    for layer in range(model.num_layers):
        parts = []
        for index in range(reader.num_chunks):
            chunk = reader.structure(index, *reader.bounds(index), reads)
            (edges,) = chunk.edges.values()
            rows = x[chunk.n_id[name]]
            parts.append(model.inference_per_layer(layer, rows, edges.edge_index, chunk.num_dst))
        x = torch.cat(parts)
    return f"{clock}  (its function of a layer, our chunks)"


@torch.no_grad()
def by_sampling(dataset: DistDataset, model: GraphSAGE, num_nodes: int) -> str:
    """Time some batches of all neighbours; the rest would take as long each."""
    seeds, batches = 256, 4
    with DistNeighborLoader(
        dataset, [-1, -1], torch.arange(seeds * batches), batch_size=seeds, num_workers=0
    ) as loader:
        started = None
        for batch in loader:
            if started is None:  # the first one waits for compiled code
                started = time.process_time()
                continue
            model(batch.x, batch.edge_index)
        assert started is not None
        each = (time.process_time() - started) / (batches - 1)
    return (
        f"          {each * num_nodes / seeds:7.1f} CPU s (from {batches - 1} batches of {seeds})"
    )


def main() -> None:
    args = parse_args()
    sizes = f"{args.nodes:,} nodes, {args.edges:,} edges, {args.width} float32"
    print(f"{sizes}, SAGE 2 x {args.hidden}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        partition_graph(
            make_graph(args), RANKS, f"{folder}/graph", method="contiguous", progress=False
        )
        spawn(on_a_rank, (args, folder), RANKS)
    if args.ranks_only:
        return
    torch.set_num_threads(RANKS)
    dataset, model = DistDataset.from_pyg(make_graph(args)), make_model(args)
    for _ in range(args.rounds):
        alone = in_one_process(dataset, model, args)
        print(f"  1 process, PyG                  {alone}", flush=True)
    print(
        f"  1 process, fan-out -1           {by_sampling(dataset, model, args.nodes)}", flush=True
    )


if __name__ == "__main__":
    main()
