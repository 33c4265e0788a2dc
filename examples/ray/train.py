"""What each worker of a Ray ``TorchTrainer`` runs: training from a graph store, with checkpoints.

A checkpoint holds the model, the optimizer and the loader's state. The state counts the batches
that the whole job has taken (``shard="world"``), so any number of workers goes on from it.
"""

import os
import tempfile
from typing import Any, Literal

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistNeighborLoader, RemoteDistDataset, sum_over_ranks
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process
from gigl_loader.testing import batch_digest

CLASSES = 10


def train_loop(config: dict[str, Any]) -> None:
    """Train; the process group is Ray Train's, and `init_compute_process` uses it."""
    context = ray.train.get_context()
    init_compute_process(context.get_local_rank(), config["cluster"])
    try:
        dataset = RemoteDistDataset(config["cluster"], context.get_local_rank())
        train(config, dataset)
    finally:
        shutdown_compute_process()


def make_loader(
    dataset: RemoteDistDataset,
    config: dict[str, Any],
    split: Literal["train", "val", "test"],
    **how: Any,
) -> DistNeighborLoader:
    """Return a loader over a split: all ranks are given all of its ids, and take turns."""
    return DistNeighborLoader(
        dataset,
        config["num_neighbors"],
        dataset.fetch_node_ids(split=split),
        shard="world",
        seed=0,
        reconnect_timeout=300.0,  # as the store waits; Ray starts a lost server again
        **how,
    )


def train(config: dict[str, Any], dataset: RemoteDistDataset) -> None:
    torch.manual_seed(0)
    features = dataset.fetch_node_feature_info().dim
    model = ray.train.torch.prepare_model(GraphSAGE(features, 64, 2, out_channels=CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with (
        make_loader(
            dataset,
            config,
            "train",
            batch_size=config["batch_size"],
            shuffle=True,
            even_ranks="wrap",  # as many steps on all ranks: DDP waits for each
        ) as loader,
        make_loader(dataset, config, "val", batch_size=256) as val_loader,
    ):
        epoch = resume(model, optimizer, loader)
        while epoch < config["epochs"]:
            if not train_epoch(config, epoch, model, optimizer, loader):
                return
            epoch += 1
            found = {"epoch": epoch, "accuracy": accuracy(val_loader, model)}
            report(found, epoch, model, optimizer, loader)


def train_epoch(
    config: dict[str, Any],
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DistNeighborLoader,
) -> bool:
    """Train to the end of the epoch, wherever the loader is in it; False: told to stop before."""
    model.train()
    for step, batch in enumerate(loader, start=1):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken = loader.state_dict()["yielded"]  # of this epoch, by all ranks
        note(config, epoch, taken, batch)
        stop = config["stop_at"] is not None and (epoch, taken) >= config["stop_at"]
        if stop or step % config["checkpoint_every"] == 0:
            report({"epoch": epoch, "loss": loss.item()}, epoch, model, optimizer, loader)
        if stop:
            return False
    return True


def note(config: dict[str, Any], epoch: int, taken: int, batch: Any) -> None:
    """Write down which batch this was, for the demo to compare."""
    number = taken - dist.get_world_size() + dist.get_rank()
    with open(f"{config['notes']}/batches", "a") as file:
        file.write(f"{epoch} {number} {batch_digest(batch)}\n")


def report(
    metrics: dict[str, Any],
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DistNeighborLoader,
) -> None:
    """Tell Ray Train; rank 0's checkpoint is that of the job. All ranks call it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if dist.get_rank() == 0:
            state = {
                "epoch": epoch,
                "model": plain(model).state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
            }
            torch.save(state, os.path.join(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


def resume(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: DistNeighborLoader
) -> int:
    """Go on from the last checkpoint, if there is one; return the epoch that it is in."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(os.path.join(folder, "state.pt"))
    plain(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return int(state["epoch"])


def plain(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model without DDP, which one rank alone does not have."""
    return getattr(model, "module", model)


@torch.no_grad()
def accuracy(loader: DistNeighborLoader, model: torch.nn.Module) -> float:
    """Return the share of a split, over all ranks, that ``model`` gets right."""
    model = plain(model)
    model.eval()
    right = count = 0.0
    for batch in loader:
        found = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=-1)
        right += float((found == batch.y[: batch.batch_size]).sum())
        count += batch.batch_size
    right, count = sum_over_ranks(right, count)
    return right / count
