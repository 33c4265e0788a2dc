"""A client as scripts for graphlearn-torch start it; the test changes its import alone."""

import argparse
from pathlib import Path

import graphlearn_torch as glt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE


def make_loader(
    args: argparse.Namespace, servers: list[int], name: str, shuffle: bool
) -> "glt.distributed.DistNeighborLoader":
    devices = glt.distributed.request_server(server_rank=servers[0], func=torch.cuda.device_count)
    num_workers = max(devices, 1)
    return glt.distributed.DistNeighborLoader(
        data=None,
        num_neighbors=[5, 5],
        input_nodes=[str(args.root / f"{name}{server}.pt") for server in servers],
        batch_size=16,
        shuffle=shuffle,
        collect_features=True,
        to_device=torch.device("cpu"),
        random_seed=3,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=servers,
            num_workers=num_workers,
            worker_devices=[torch.device("cpu")] * num_workers,
            worker_concurrency=4,
            master_addr="localhost",
            master_port=args.port + 1,
            buffer_size="64MB",
            prefetch_size=2,
            worker_key=name,
        ),
    )


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: "glt.distributed.DistNeighborLoader") -> torch.Tensor:
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(-1)
        right = out == batch.y[: batch.batch_size]
        counts += torch.tensor([int(right.sum()), right.numel()])
    return counts


def run(args: argparse.Namespace) -> None:
    glt.distributed.init_client(
        num_servers=args.num_servers,
        num_clients=args.num_clients,
        client_rank=args.rank,
        master_addr="localhost",
        master_port=args.port,
        num_rpc_threads=4,
        client_group_name="sage-client",
    )
    context = glt.distributed.get_context()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{args.root}/group",
        rank=context.rank,
        world_size=context.world_size,
    )
    servers = list(range(args.num_servers))
    train = make_loader(args, servers, "train", shuffle=True)
    test = make_loader(args, servers, "test", shuffle=False)
    torch.manual_seed(0)
    model = DistributedDataParallel(GraphSAGE(8, 16, num_layers=2, out_channels=4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seeds = []
    for _ in range(args.epochs):
        model.train()
        with Join([model]):
            for batch in train:
                seeds += batch.batch.tolist()
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
                optimizer.step()
        dist.barrier()
    counts = evaluate(model.module, test)
    dist.all_reduce(counts)
    result = {"right": counts.tolist(), "seeds": seeds, "model": model.module.state_dict()}
    torch.save(result, args.root / f"client{args.rank}.pt")
    print(f"client {args.rank}: accuracy {counts[0] / counts[1]:.4f}", flush=True)
    glt.distributed.shutdown_client()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("rank", "num_servers", "num_clients", "port", "epochs"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--root", type=Path)
    run(parser.parse_args())
