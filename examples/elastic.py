"""Train on a number of ranks that changes: what is lost is started again, with the same batches.

    torchrun --nnodes 1:4 --nproc-per-node 2 --max-restarts 10 --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29500 examples/elastic.py --checkpoint s3://bucket/elastic.pt
    torchrun --standalone --nproc-per-node 3 --max-restarts 10 examples/elastic.py --kill-rank-at 10

torchrun starts all ranks again when one is lost, on the machines that are left. With
``shard="world"`` the batches of an epoch are numbered over the whole job, and the loader's state
says how many it has taken; so the ranks go on after the last checkpoint, however many they are.
``--record`` writes down each batch with its hash, to see that they are those of an undisturbed run.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from _data import digits
from _ranks import process_group
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, load_checkpoint, save_checkpoint
from gigl_loader.testing import batch_digest


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on a number of ranks that changes.")
    parser.add_argument("--checkpoint", default="out/elastic.pt", help="a file, or its s3:// URL")
    parser.add_argument("--save-every", type=int, default=4, help="steps between checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="seeds per batch and rank")
    parser.add_argument("--record", type=Path, help="folder for the batches that each rank took")
    parser.add_argument("--kill-rank-at", type=int, help="step at which a rank here is killed")
    parser.add_argument("--kill-node-at", type=int, help="the same, with the torchrun above it")
    return parser.parse_args(argv)


def make_loader(dataset: DistDataset, batch_size: int, **how: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        dataset,
        [10, 10],
        cast("torch.Tensor", dataset.train_node_ids),
        batch_size=batch_size,
        shuffle=True,
        seed=0,
        shard="world",  # all ranks are given the same seeds; the loaders share the batches out
        even_ranks="wrap",  # as many steps on all ranks: DDP waits for each
        **how,
    )


class Training:
    """A model, its optimiser and its loader: what a checkpoint holds."""

    def __init__(self, args: argparse.Namespace, loader: DistNeighborLoader, width: int) -> None:
        torch.manual_seed(0)
        self.args, self.loader = args, loader
        model = GraphSAGE(width, 64, num_layers=2, out_channels=10).to(loader.to_device)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.load()

    def load(self) -> None:
        # every rank loads the same one, that rank 0 saved
        saved = load_checkpoint(self.args.checkpoint, map_location=self.loader.to_device)
        if saved is None:
            return
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.loader.load_state_dict(saved["loader"])
        if self.rank == 0:
            taken = saved["loader"]["yielded"]
            print(
                f"epoch {self.loader.epoch} goes on after {taken} batches, on {self.world_size} "
                "ranks",
                flush=True,
            )

    def save(self) -> None:
        if self.rank != 0:
            return
        values: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "loader": self.loader,
        }
        # there is a whole one at any time
        state = {name: value.state_dict() for name, value in values.items()}
        save_checkpoint(state, self.args.checkpoint)

    def run(self) -> None:
        for epoch in range(self.loader.epoch, self.args.epochs):
            self.loader.set_epoch(epoch)
            for step, batch in enumerate(self.loader):
                self.note(epoch, batch)
                self.train(batch)
                if (step + 1) % self.args.save_every == 0:
                    self.save()
                fail_on_request(self.args, step)
            self.save()
            if self.rank == 0:
                print(f"epoch {epoch} is done, on {self.world_size} ranks", flush=True)

    def train(self, batch: Any) -> None:
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def note(self, epoch: int, batch: Any) -> None:
        """Write down that this rank took a batch; each process has a file of its own."""
        if self.args.record is None:
            return
        line = {"epoch": epoch, "ranks": self.world_size, "digest": batch_digest(batch)}
        with (self.args.record / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def fail_on_request(args: argparse.Namespace, step: int) -> None:
    """Kill this machine's last rank, or its torchrun too, once: as if it had no memory left."""
    if os.environ.get("LOCAL_RANK") != str(int(os.environ.get("LOCAL_WORLD_SIZE", "0")) - 1):
        return
    for at, victims in (
        (args.kill_rank_at, [os.getpid()]),
        (args.kill_node_at, [os.getppid(), os.getpid()]),
    ):
        done = (args.record or Path("out")) / f"killed{len(victims)}"
        if step == at and not done.exists():
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)


def main() -> None:
    args = parse_args()
    if args.record is not None:
        args.record.mkdir(parents=True, exist_ok=True)
    with process_group():
        dataset = DistDataset.from_pyg(digits())
        with make_loader(dataset, args.batch_size) as loader:
            Training(args, loader, dataset.node_feature_info.dim).run()


if __name__ == "__main__":
    main()
