"""Embeddings of all nodes: layer by layer on two ranks, against one process and against sampling.

    python examples/benchmarks/full_graph/bench_full_graph.py --nodes 200000 --edges 4000000

See README.md beside this file.
"""

import argparse
import tempfile
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, full_graph, full_graph_inference
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.chunks import ChunkReader
from gigl_loader.inference.shares import NodeShares

RANKS = 2
CHUNK = 8192


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the inference of all nodes.")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2, help="the ways are timed in turn")
    return parser.parse_args()


def make_graph(args: argparse.Namespace) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(args.nodes, args.width, generator=generator),
        edge_index=torch.randint(args.nodes, (2, args.edges), generator=generator),
    )


def make_model(args: argparse.Namespace) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(args.width, args.hidden, 2).eval()


def partition_bytes(dataset: DistDataset) -> int:
    view = dataset.view()
    (adjacency,), (rows,) = view.adjacency.values(), view.node_features.values()
    tensors = (adjacency.indptr, adjacency.indices, adjacency.edge_ids, rows.values)
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


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
    book = torch.arange(args.nodes) * RANKS // args.nodes
    dataset = DistDataset.from_pyg(make_graph(args), partition_book=book, partition_idx=rank)
    model = make_model(args)
    for number in range(args.rounds):
        dist.barrier()
        clock = Clock()
        found = full_graph_inference(model, dataset, out=f"{folder}/out{number}", batch_size=CHUNK)
        chunks = str(clock)
        dist.barrier()
        clock = Clock()
        with full_graph(model, dataset) as data, torch.no_grad():
            same = torch.allclose(model(data.x, data.edge_index), found.values, atol=1e-4)
        if rank == 0:
            print(f"  {RANKS} ranks, full_graph_inference  {chunks} on each", flush=True)
            print(
                f"  {RANKS} ranks, full_graph            {clock} on each, same: {same}", flush=True
            )
    if rank == 0:
        print(f"  a partition is {partition_bytes(dataset) / 2**20:.0f} MiB", flush=True)
    dist.destroy_process_group()


@torch.no_grad()
def in_one_process(dataset: DistDataset, model: GraphSAGE) -> str:
    """Time PyG's own function of a layer over chunks of all neighbours.

    That is what ``BasicGNN.inference`` runs, with our chunks in place of its ``NeighborLoader``,
    which needs a native library.
    """
    view, exchange = dataset.view(), RankExchange()
    (adjacency,) = view.adjacency.values()
    shares = NodeShares(view, exchange)
    reader = ChunkReader(adjacency, DEFAULT_HOMOGENEOUS_NODE_TYPE, shares, exchange, CHUNK)
    x = view.node_features[DEFAULT_HOMOGENEOUS_NODE_TYPE].values
    clock = Clock()
    for layer in range(model.num_layers):
        parts = []
        for index in range(reader.num_chunks):
            start, stop = reader.bounds(index)
            edge_index, _, nodes = reader.structure(start, stop)
            parts.append(model.inference_per_layer(layer, x[nodes], edge_index, stop - start))
        x = torch.cat(parts)
    return str(clock)


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
        spawn(on_a_rank, (args, folder), RANKS)
    torch.set_num_threads(RANKS)
    dataset, model = DistDataset.from_pyg(make_graph(args)), make_model(args)
    print(f"  1 process, PyG's layer function {in_one_process(dataset, model)}", flush=True)
    print(
        f"  1 process, fan-out -1           {by_sampling(dataset, model, args.nodes)}", flush=True
    )


if __name__ == "__main__":
    main()
