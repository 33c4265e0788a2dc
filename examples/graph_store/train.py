"""A compute process: the training of ``examples/train_nodes.py``, batches from a storage cluster.

    torchrun --nnodes 1 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint COMPUTE:29500 \
        examples/graph_store/train.py --servers 2 --storage-addr STORAGE --rpc-port 29600 \
        --compute-addr COMPUTE --group-port 29501
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import train_nodes  # the model and its training: examples/train_nodes.py

from gigl_loader import DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process


def parse_args() -> tuple[argparse.Namespace, argparse.Namespace]:
    parser = argparse.ArgumentParser(description="Train from a graph store.", add_help=False)
    parser.add_argument("--servers", type=int, default=2, help="storage servers")
    parser.add_argument("--storage-addr", default="127.0.0.1", help="address of storage server 0")
    parser.add_argument("--rpc-port", type=int, default=29600, help="its port")
    parser.add_argument("--compute-addr", default=os.environ.get("MASTER_ADDR", "127.0.0.1"))
    parser.add_argument("--group-port", type=int, default=29501, help="of the process group")
    parser.add_argument("--help", action="help")
    where, rest = parser.parse_known_args()
    return where, train_nodes.parse_args(rest)


def cluster_of(where: argparse.Namespace) -> GraphStoreInfo:
    """Return where both clusters are; torchrun's variables say how many trainers there are."""
    return GraphStoreInfo.from_env(
        where.storage_addr,
        num_storage_nodes=where.servers,
        rpc_port=where.rpc_port,
        compute_addr=where.compute_addr,
        compute_port=where.group_port,
    )


def own_share(ids: dict[int, Tensor]) -> dict[int, Tensor]:
    """Return this rank's block of all ids, by server; blocks are equal, whatever servers hold."""
    sizes = torch.tensor([len(one) for one in ids.values()])
    owner = torch.repeat_interleave(torch.tensor(list(ids)), sizes)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = torch.cat(list(ids.values())).tensor_split(world_size)[rank]
    owner = owner.tensor_split(world_size)[rank]
    return {server: mine[owner == server] for server in ids}


def make_loader(
    dataset: RemoteDistDataset,
    args: argparse.Namespace,
    split: Literal["train", "val", "test"],
    **how: Any,
) -> DistNeighborLoader:
    return DistNeighborLoader(
        dataset,
        input_nodes=own_share(dataset.fetch_node_ids(split=split)),
        num_workers=args.workers,
        seed=args.seed,
        **how,
    )


def main() -> None:
    where, args = parse_args()
    cluster = cluster_of(where)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    init_compute_process(local_rank, cluster, "gloo")
    try:
        dataset = RemoteDistDataset(cluster, local_rank)
        loaders = partial(make_loader, dataset, args)
        result = train_nodes.train(args, loaders, dataset.fetch_node_feature_info().dim)
        if dist.get_rank() == 0:
            name = os.environ.get("GIGL_LOADER_JOB", "training")
            print(f"{name}: test accuracy: {result:.4f}")
    finally:
        shutdown_compute_process()


if __name__ == "__main__":
    main()
