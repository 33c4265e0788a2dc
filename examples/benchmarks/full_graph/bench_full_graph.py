"""Embeddings of all nodes: layer by layer on two ranks, against one process and against sampling.

    python examples/benchmarks/full_graph/bench_full_graph.py --nodes 200000

See README.md beside this file.
"""

import argparse
import resource
import tempfile

import torch
import torch.distributed as dist
from _graph import add_sizes, make_graph, parse
from _memory import Clock, PeakMemory, warm_up
from torch.multiprocessing.spawn import spawn
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
from gigl_loader.inference.graph_sources import PartitionGraph
from gigl_loader.inference.layers import ChunkReader, LayerInputs
from gigl_loader.runtime.ranks.collectives import RankExchange

THREADS = 2
"""Of each way: two ranks with one each, or one process with both."""
WAYS = ("ranks", "rank", "pyg", "sampling")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the inference of all nodes.")
    add_sizes(parser)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, help="rows of a chunk; default: by their size")
    parser.add_argument("--rounds", type=int, default=2, help="the ways are timed in turn")
    parser.add_argument("--pyg-batch", type=int, default=8192, help="rows of a chunk of PyG's")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="what is timed")
    return parse(parser)


def make_model(args: argparse.Namespace) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(args.width, args.hidden, 2).eval()


def partition_bytes(dataset: DistDataset) -> int:
    view = dataset.view()
    (adjacency,), (rows,) = view.adjacency.values(), view.node_features.values()
    tensors = (adjacency.indptr, adjacency.indices, adjacency.edge_ids, rows.values)
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def on_a_rank(rank: int, args: argparse.Namespace, folder: str, ranks: int, number: int) -> None:
    torch.set_num_threads(THREADS // ranks)
    store = f"file://{folder}/store-{ranks}-{number}"
    dist.init_process_group("gloo", store, rank=rank, world_size=ranks)
    model = make_model(args)
    warm_up(rank, ranks, f"{folder}/warm-{ranks}-{number}")
    before = PeakMemory.now()
    dataset = DistDataset.load(f"{folder}/graph-{ranks}", rank)
    size = partition_bytes(dataset)
    who = f"  {ranks} rank{'s' if ranks > 1 else ''}, "
    dist.barrier()
    clock = Clock()
    with PeakMemory() as memory:
        found = full_graph_inference(
            model, dataset, out=f"{folder}/out-{ranks}-{number}", batch_size=args.batch_size
        )
    chunks, share = str(clock), (memory.peak - before) / size
    dist.barrier()
    clock = Clock()
    with full_graph(model, dataset) as data, torch.no_grad():
        assert isinstance(found.values, torch.Tensor)  # of a graph of one type
        same = torch.allclose(model(data.x, data.edge_index), found.values, atol=1e-4)
    if rank == 0:
        print(f"{who:10}full_graph_inference  {chunks} on each", flush=True)
        print(
            f"      peak memory {share:.2f} of the partition of {size / 2**20:.0f} MiB, above "
            f"{before / 2**20:.0f} of a process with torch and compiled code",
            flush=True,
        )
        print(f"{who:10}full_graph            {clock} on each, same: {same}", flush=True)
    dist.destroy_process_group()


@torch.no_grad()
def in_one_process(model: GraphSAGE, args: argparse.Namespace) -> str:
    """Time ``BasicGNN.inference``.

    Where its ``NeighborLoader`` lacks the native library that it needs, our chunks stand in for it,
    and PyG's own function of a layer runs over them.
    """
    if WITH_PYG_LIB or WITH_TORCH_SPARSE:
        from torch_geometric.loader import NeighborLoader

        data = make_graph(args)
        data.edge_index = data.edge_index[:, data.edge_index[1].argsort()]
        loader = NeighborLoader(data, [-1], batch_size=args.pyg_batch, is_sorted=True)
        clock = Clock()
        model.inference(loader)
        return f"{clock}  (BasicGNN.inference, batches of {args.pyg_batch:,})"
    exchange = RankExchange()
    name = DEFAULT_HOMOGENEOUS_NODE_TYPE
    dataset = DistDataset.from_pyg(make_graph(args))
    graph = PartitionGraph(dataset, exchange)
    reader = ChunkReader(graph, name, exchange, args.pyg_batch)
    reads = LayerInputs(graph.features())
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
def by_sampling(model: GraphSAGE, args: argparse.Namespace) -> str:
    """Time some batches of all neighbours; the rest would take as long each."""
    seeds, batches = 256, 4
    dataset = DistDataset.from_pyg(make_graph(args))
    with DistNeighborLoader(
        dataset, [-1, -1], torch.arange(seeds * batches), batch_size=seeds, num_workers=0
    ) as loader:
        clock = None
        for batch in loader:
            if clock is None:  # the first one waits for compiled code
                clock = Clock()
                continue
            model(batch.x, batch.edge_index)
        assert clock is not None
    scale = args.nodes / seeds / (batches - 1)
    return f"{clock.times(scale)}  (scaled up from {batches - 1} batches of {seeds})"


def most_memory() -> str:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return f"this process had {most:.1f} GiB at most, with the graph that it made"


def main() -> None:
    args = parse_args()
    sizes = f"{args.nodes:,} nodes, {args.edges:,} edges, {args.width} float32"
    print(f"{sizes}, SAGE 2 x {args.hidden}", flush=True)
    counts = [count for way, count in (("ranks", THREADS), ("rank", 1)) if way in args.ways]
    with tempfile.TemporaryDirectory() as folder:
        for ranks in counts:
            graph = make_graph(args)
            partition_graph(
                graph, ranks, f"{folder}/graph-{ranks}", method="contiguous", progress=False
            )
            del graph
        for number in range(args.rounds):
            for ranks in counts:
                spawn(on_a_rank, (args, folder, ranks, number), ranks)
    torch.set_num_threads(THREADS)
    model = make_model(args)
    for number in range(args.rounds if "pyg" in args.ways else 0):
        alone = in_one_process(model, args)
        print(f"  1 process, PyG, round {number}         {alone}; {most_memory()}", flush=True)
    if "sampling" in args.ways:
        print(f"  1 process, fan-out -1           {by_sampling(model, args)}", flush=True)
    print(f"  {most_memory()}", flush=True)


if __name__ == "__main__":
    main()
