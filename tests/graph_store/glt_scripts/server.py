"""A server as scripts for graphlearn-torch start it; the test changes its import alone."""

import argparse
from pathlib import Path

import graphlearn_torch as glt
import torch


def serve(args: argparse.Namespace, dataset: "glt.distributed.DistDataset") -> None:
    glt.distributed.init_server(
        num_servers=args.num_servers,
        num_clients=args.num_clients,
        server_rank=args.rank,
        dataset=dataset,
        master_addr="localhost",
        master_port=args.port,
        num_rpc_threads=16,
        server_group_name="sage-server",
    )
    print(f"server {args.rank} serves", flush=True)
    glt.distributed.wait_and_shutdown_server()
    print(f"server {args.rank} has ended", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("rank", "num_servers", "num_clients", "port"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--root", type=Path)
    args = parser.parse_args()
    dataset = glt.distributed.DistDataset()
    dataset.load(
        root_dir=str(args.root / "parts"),
        partition_idx=args.rank,
        graph_mode="ZERO_COPY",
        whole_node_label_file=str(args.root / "labels.pt"),
    )
    process = torch.multiprocessing.get_context("spawn").Process(target=serve, args=(args, dataset))
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
