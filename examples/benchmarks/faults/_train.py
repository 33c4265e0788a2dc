"""One training process of the scripts in this folder: writes each batch's position, time and hash.

Of a graph store with ``--store``, else colocated: rank ``r`` loads partition ``r``. The loader has
``shard="world"``, so that a position in the job's sequence means the same batch on any number of
ranks. Goes on where the state in ``--folder`` says, if there is one.
"""

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process
from gigl_loader.testing import batch_digest

GROUP_TIMEOUT = timedelta(seconds=300)


@contextlib.contextmanager
def dataset_of(
    args: argparse.Namespace, load: Callable[[], DistDataset] | None = None
) -> Iterator[Any]:
    """Join the others; give the graph, colocated what ``load`` returns (None: partition `rank`)."""
    if not args.store:
        host = f"[{args.host}]" if ":" in args.host else args.host
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{host}:{args.group_port}",
            rank=args.rank,
            world_size=args.world,
            timeout=GROUP_TIMEOUT,
        )
        yield DistDataset.load(args.root, args.rank) if load is None else load()
        dist.destroy_process_group()
        return
    host, _, port = args.store.rpartition(":")
    info = GraphStoreInfo(
        args.servers, args.world, 1, host, host, args.host, 0, 0, args.group_port, int(port), 0
    )
    os.environ["RANK"] = str(args.rank)
    init_compute_process(0, info, "gloo", timeout=300.0)
    try:
        yield RemoteDistDataset(info, 0)
    finally:
        shutdown_compute_process()


def loader_of(dataset: Any, args: argparse.Namespace) -> DistNeighborLoader:
    """Return the loader; the same batches for all numbers of ranks."""
    nodes = dataset.fetch_node_ids() if args.store else torch.arange(args.nodes)
    how = {"reconnect_timeout": args.reconnect} if args.store else {}
    return DistNeighborLoader(
        dataset,
        [5, 5],
        nodes,
        batch_size=32,
        shuffle=True,
        seed=5,
        shard="world",
        even_ranks="wrap",
        num_workers=args.workers,
        max_restarts=1000,
        timeout=args.timeout,
        **how,
    )


class Notes:
    """What this process took, a line a batch, and where the job is."""

    def __init__(self, args: argparse.Namespace, loader: DistNeighborLoader) -> None:
        self._args, self._loader = args, loader
        self._state = Path(args.folder, "state.pt")
        self._file = Path(args.folder, f"{os.getpid()}.jsonl").open("a")  # noqa: SIM115
        self.total = -(-args.nodes // 32)
        self.taken = 0
        if self._state.exists():
            loader.load_state_dict(torch.load(self._state))
            self.taken = loader.state_dict()["yielded"]

    def add(self, step: int, batch: Any) -> None:
        """Write down the batch of this rank's ``step``-th step."""
        args = self._args
        position = (self.taken + args.rank + step * args.world) % self.total
        line = {
            "at": time.monotonic(),
            "epoch": self._loader.epoch,
            "position": position,
            "rank": args.rank,
            "digest": batch_digest(batch),
            "restarts": self._loader.stats()["restarts"],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def save(self) -> None:
        """Save the state, on rank 0; there is a whole one at any time."""
        if self._args.rank == 0:
            new = self._state.with_suffix(".new")
            torch.save(self._loader.state_dict(), new)
            new.replace(self._state)


def train(args: argparse.Namespace) -> None:
    """Take the epochs that are left."""
    with dataset_of(args) as dataset, loader_of(dataset, args) as loader:
        notes = Notes(args, loader)
        for epoch in range(loader.epoch, args.epochs):
            loader.set_epoch(epoch)
            for step, batch in enumerate(loader):
                notes.add(step, batch)
                time.sleep(args.pace)
                if args.world > 1:
                    dist.all_reduce(torch.zeros(1))  # all have written this step down
                if args.save:
                    notes.save()
            notes.taken = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, help="for notes and the state")
    parser.add_argument("--root", help="the partitions, where there is no store")
    parser.add_argument("--store", help="HOST:PORT of storage server 0")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--host", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--group-port", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--reconnect", type=float, default=60.0)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of a training step")
    parser.add_argument("--save", action="store_true", help="save the state after each step")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
