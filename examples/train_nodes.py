"""Classify nodes with GraphSAGE: one process and one partition of the graph per rank, and DDP.

    torchrun --standalone --nproc-per-node 2 examples/train_nodes.py
    torchrun --standalone --nproc-per-node 2 examples/train_nodes.py --dataset cora --root DIR
    python examples/train_nodes.py            # one process, one partition

Each process samples in workers of its own, and asks the workers of the other partition for the
neighbours and features that are there. DistributedDataParallel averages the gradients.
"""

import argparse
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from _data import load_graph
from _figure import save_curve
from _ranks import process_group
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    full_graph,
    on_all_ranks,
    partition_graph,
    shared_folder,
    sum_over_ranks,
)

PRESETS = {
    "digits": {"classes": 10, "epochs": 15, "batch_size": 64, "lr": 0.01, "weight_decay": 0.0},
    "cora": {"classes": 7, "epochs": 30, "batch_size": 35, "lr": 0.01, "weight_decay": 5e-4},
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Classify nodes with sampled neighbourhoods.")
    parser.add_argument("--dataset", choices=PRESETS, default="digits")
    parser.add_argument("--root", help="folder in PyG's Planetoid layout, for --dataset cora")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int, help="seeds per batch and process")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--num-neighbors", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--workers", type=int, default=1, help="sampling processes per rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, default=Path("out/training_curve.png"))
    parser.add_argument("--tensorboard", help="folder for TensorBoard's scalars")
    args = parser.parse_args(argv)
    for name, value in PRESETS[args.dataset].items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    return args


def load_partition(args: argparse.Namespace) -> DistDataset:
    """Cut the graph into one partition per rank, and load this rank's."""
    with shared_folder() as folder:
        if dist.get_rank() == 0:
            graph = load_graph(args.dataset, args.root)
            print(f"{args.dataset}: {graph.num_nodes} nodes, {graph.num_edges} edges", flush=True)
            partition_graph(graph, dist.get_world_size(), f"{folder}/graph", progress=False)
        dist.barrier()
        return DistDataset.load(f"{folder}/graph", dist.get_rank())


def make_loader(
    dataset: DistDataset, args: argparse.Namespace, split: str, **how: Any
) -> DistNeighborLoader:
    """Return a loader over a split of the whole graph.

    Each process holds a partition of its own; all are given the seeds of all partitions, and share
    the batches out.
    """
    return DistNeighborLoader(
        dataset,
        # one node type, so its ids are a tensor
        input_nodes=on_all_ranks(dataset.split_node_ids(split)),  # type: ignore[arg-type]
        shard="world",
        num_workers=args.workers,
        seed=args.seed,
        **how,
    )


def train_epoch(
    loader: DistNeighborLoader, model: torch.nn.Module, optimizer: torch.optim.Optimizer, title: str
) -> tuple[float, float]:
    """Return the mean loss, and the seeds per second of all ranks."""
    model.train()
    total = count = 0.0
    with tqdm(
        total=len(loader), desc=title, unit=" batches", leave=False, disable=dist.get_rank() != 0
    ) as bar:
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]  # the seeds come first
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item() * batch.batch_size, count + batch.batch_size
            bar.update()
        elapsed = bar.format_dict["elapsed"]
    total, count = sum_over_ranks(total, count)
    return total / count, count / max(elapsed, 1e-9)


@torch.no_grad()
def accuracy(loader: DistNeighborLoader, model: torch.nn.Module) -> float:
    """Return the share of this split, over all ranks, that ``model`` gets right."""
    model.eval()
    right = count = 0.0
    for batch in loader:
        found = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=-1)
        right += float((found == batch.y[: batch.batch_size]).sum())
        count += batch.batch_size
    right, count = sum_over_ranks(right, count)
    return right / count


@torch.no_grad()
def whole_graph_accuracy(dataset: DistDataset, model: torch.nn.Module) -> float:
    """Return the share of the test nodes that ``model`` gets right, computed without sampling.

    Each rank computes the nodes of its partition, layer by layer, and only the rows that the test
    nodes depend on.
    """
    model.eval()
    with full_graph(model, dataset, nodes=dataset.test_node_ids) as data:
        rows = data.out_index
        found = model(data.x, data.edge_index)[rows].argmax(dim=-1)
        right, count = sum_over_ranks(float((found == data.y[rows]).sum()), len(rows))
    return right / count


def train(
    args: argparse.Namespace,
    make_loader: Callable[..., DistNeighborLoader],
    num_features: int,
    finish: Callable[[torch.nn.Module], None] | None = None,
) -> float:
    """Return the test accuracy of the epoch with the best validation accuracy.

    ``make_loader(split, **how)`` returns a loader over a split of the whole graph; ``finish`` is
    called with the model of that epoch.
    """
    torch.manual_seed(args.seed)
    is_first = dist.get_rank() == 0
    everything = [-1] * len(args.num_neighbors)
    curve: list[tuple[float, float]] = []
    with (
        make_loader(
            "train",
            num_neighbors=args.num_neighbors,
            batch_size=args.batch_size,
            shuffle=True,
            even_ranks="wrap",  # as many steps on all ranks: DDP waits for each
        ) as train_loader,
        make_loader("val", num_neighbors=everything, batch_size=256) as val_loader,
    ):
        device = train_loader.to_device
        model = GraphSAGE(
            num_features,
            args.hidden,
            len(args.num_neighbors),
            out_channels=args.classes,
            dropout=0.5,
        ).to(device)
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
        board = open_board(args) if is_first else None
        best, best_state = -1.0, deepcopy(model.state_dict())
        for epoch in range(1, args.epochs + 1):
            title = f"epoch {epoch:3d}/{args.epochs}"
            loss, rate = train_epoch(train_loader, parallel, optimizer, title)
            found = accuracy(val_loader, model)
            curve.append((loss, found))
            if found > best:
                best, best_state = found, deepcopy(model.state_dict())
            if is_first:
                print(
                    f"{title}  loss {loss:.4f}  validation accuracy {found:.4f}  "
                    f"{rate:,.0f} seeds/s",
                    flush=True,
                )
            if board is not None:
                note(board, epoch, loss, found, rate, train_loader.stats(reset=True))
    if board is not None:
        board.close()
    if is_first:
        losses, accuracies = map(list, zip(*curve, strict=True))
        save_curve(args.figure, losses, accuracies, f"GraphSAGE on {args.dataset}")
        print(f"training curve: {args.figure}")
    model.load_state_dict(best_state)
    if finish is not None:
        finish(model)
    with make_loader("test", num_neighbors=everything, batch_size=256) as test_loader:
        return accuracy(test_loader, model)


def open_board(args: argparse.Namespace) -> Any:
    if args.tensorboard is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(args.tensorboard)


def note(
    board: Any, epoch: int, loss: float, found: float, rate: float, stats: dict[str, Any]
) -> None:
    board.add_scalar("train/loss", loss, epoch)
    board.add_scalar("validation/accuracy", found, epoch)
    board.add_scalar("loader/seeds_per_s", rate, epoch)
    for name in ("wait_share", "collate_share", "queue_depth", "sample_ms", "gather_ms"):
        board.add_scalar(f"loader/{name}", stats[name], epoch)
    board.add_text("loader/verdict", stats["verdict"], epoch)


def main() -> None:
    args = parse_args()
    with process_group():
        dataset = load_partition(args)
        loaders = partial(make_loader, dataset, args)
        whole: list[float] = []
        result = train(
            args,
            loaders,
            dataset.node_feature_info.dim,
            lambda model: whole.append(whole_graph_accuracy(dataset, model)),
        )
        if dist.get_rank() == 0:
            print(f"test accuracy: {result:.4f}  on the whole graph: {whole[0]:.4f}")


if __name__ == "__main__":
    main()
