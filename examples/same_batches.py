"""One graph sampled in many ways: the table of hashes of docs/guide/same_batches.md.

    python examples/same_batches.py

Each row is a way to run the same loaders, each hash is over three shuffled epochs. The test of the
page runs this, and compares.
"""

import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_geometric.data import Data

from gigl_loader import (
    BaseDistLoader,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    RemoteDistDataset,
    replay,
)
from gigl_loader.testing import batch_digest, run_cluster, run_ranks, worker_pid

NODES, DEGREE, EPOCHS = 200, 7, 3
LOADERS = ("DistNeighborLoader", "DistABLPLoader")
HOW: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 2026, "shard": "world"}


def graph() -> Data:
    """Return a graph made by arithmetic alone: the same on every machine, in every version."""
    node = torch.arange(NODES)
    dst = node.repeat_interleave(DEGREE)
    src = (dst * 13 + torch.arange(DEGREE).repeat(NODES) ** 3 + 1) % NODES
    x = torch.stack([node, node * 3 % 17, node * 5 % 31], dim=1).float()
    return Data(x=x, y=node % 6, edge_index=torch.stack([src, dst]), train_mask=node >= 0)


def partition(rank: int, num_partitions: int) -> DistDataset:
    """Return one partition; nodes are dealt out in contiguous blocks."""
    node = torch.arange(NODES)
    pairs = torch.stack([node, (node * 29 + 11) % NODES])
    book = node * num_partitions // NODES
    where: dict[str, Any] = (
        {"partition_book": book, "partition_idx": rank} if num_partitions > 1 else {}
    )
    return DistDataset.from_pyg(graph(), supervision=(pairs, None), **where)


def make(name: str, dataset: Any, seeds: Any, **how: Any) -> BaseDistLoader:
    kind = {"DistNeighborLoader": DistNeighborLoader, "DistABLPLoader": DistABLPLoader}[name]
    return kind(dataset, [5, 3], seeds, **HOW, **how)


Digests = dict[tuple[int, int], str]
"""By epoch and number of the batch in it."""


def epochs(loader: BaseDistLoader, steps: int | None = None) -> Digests:
    """Return the digests of this rank's batches; ``steps``: break off there in the second epoch."""
    found: Digests = {}
    for epoch in range(loader.epoch, EPOCHS):
        state = loader.state_dict()  # of the epoch before, or of where a state was loaded
        first = 0 if state["finished"] else state["yielded"]
        for step, batch in enumerate(loader):
            found[epoch, first + step * world_size() + rank()] = batch_digest(batch)
            if epoch == 1 and step + 1 == steps:
                return found
    return found


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def write(folder: Path, name: str, found: Digests) -> None:
    named = [[*key, digest] for key, digest in found.items()]
    file = Path(tempfile.mkdtemp(dir=folder)) / f"{name}.json"
    file.write_text(json.dumps(named))


# -- the ways --------------------------------------------------------------------------------------


def alone(folder: Path, **how: Any) -> None:
    """Sample in one process over one partition."""
    for name in LOADERS:
        with make(name, partition(0, 1), torch.arange(NODES), **how) as loader:
            write(folder, name, epochs(loader))


def with_killed_workers(folder: Path) -> None:
    """Kill a worker early in each epoch, by SIGKILL."""
    for name in LOADERS:
        found: Digests = {}
        with make(name, partition(0, 1), torch.arange(NODES), num_workers=2) as loader:
            for epoch in range(EPOCHS):
                for number, batch in enumerate(loader):
                    found[epoch, number] = batch_digest(batch)
                    if number == 1:
                        os.kill(worker_pid(loader, epoch % 2), signal.SIGKILL)
        write(folder, name, found)


def one_by_one(folder: Path) -> None:
    """Replay each batch, the last one first."""
    for name in LOADERS:
        with make(name, partition(0, 1), torch.arange(NODES), num_workers=0) as loader:
            keys = [(epoch, batch) for epoch in range(EPOCHS) for batch in range(len(loader))]
            write(folder, name, {k: batch_digest(replay(loader, *k)) for k in reversed(keys)})


def of_a_rank(rank: int, size: int, folder: Path, how: dict[str, Any]) -> None:
    """Sample on one of several ranks, each with a partition of its own."""
    for name in LOADERS:
        with make(name, partition(rank, size), torch.arange(NODES), **how) as loader:
            write(folder, name, epochs(loader))


def of_a_run(rank: int, size: int, folder: Path, steps: int | None) -> None:
    """Go on where the run before was broken off, if there was one."""
    for name in LOADERS:
        with make(name, partition(0, 1), torch.arange(NODES), num_workers=0) as loader:
            saved = folder / f"{name}.state"
            if steps is None:
                loader.load_state_dict(torch.load(saved))
            write(folder, name, epochs(loader, steps))
            if rank == 0 and steps is not None:
                torch.save(loader.state_dict(), saved)


def of_a_client(info: Any, rank: int, folder: Path) -> None:
    """Sample on the servers of a graph store."""
    remote = RemoteDistDataset(info, rank)
    seeds = {
        "DistNeighborLoader": remote.fetch_node_ids(split="train"),
        "DistABLPLoader": remote.fetch_ablp_input("train"),
    }
    for name in LOADERS:
        with make(name, remote, seeds[name]) as loader:
            write(folder, name, epochs(loader))


def ranks(folder: Path, size: int, **how: Any) -> None:
    run_ranks(of_a_rank, folder, how, world_size=size, tmp_path=sub(folder), timeout=300)


def changing(folder: Path) -> None:
    for size, steps in ((4, 2), (2, None)):
        run_ranks(of_a_run, folder, steps, world_size=size, tmp_path=sub(folder), timeout=300)


def store(folder: Path, servers: int, clients: int) -> None:
    run_cluster(
        of_a_client,
        folder,
        dataset=partition,
        tmp_path=sub(folder),
        servers=servers,
        clients=clients,
        timeout=300,
    )


def sub(folder: Path) -> Path:
    """Return an empty folder for the ranks' store and tracebacks."""
    return Path(tempfile.mkdtemp(dir=folder, prefix="ranks_"))


WAYS: dict[str, Callable[[Path], None]] = {
    "1 partition, no worker": lambda folder: alone(folder, num_workers=0),
    "1 partition, 3 workers": lambda folder: alone(folder, num_workers=3, worker_concurrency=2),
    "1 partition, 2 workers, one of them killed in each epoch": with_killed_workers,
    "each batch alone, by `replay`, the last one first": one_by_one,
    "2 partitions on 2 ranks, 1 worker each": lambda folder: ranks(folder, 2),
    '4 partitions on 4 ranks, `exchange="collective"`': lambda folder: ranks(
        folder, 4, exchange="collective"
    ),
    "graph store, 2 servers, 1 trainer": lambda folder: store(folder, 2, 1),
    "4 ranks stopped within an epoch, resumed on 2": changing,
}


def hash_of(folder: Path, name: str) -> str:
    """Return the hash over all batches of all epochs; each was taken once."""
    found: Digests = {}
    for file in folder.glob(f"*/{name}.json"):
        for epoch, number, digest in json.loads(file.read_text()):
            assert (epoch, number) not in found, "a batch was taken twice"
            found[epoch, number] = digest
    return hashlib.sha256("".join(found[key] for key in sorted(found)).encode()).hexdigest()


def table() -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield f"| how | {' | '.join(f'`{name}`' for name in LOADERS)} |"
    yield "| --- |" + " --- |" * len(LOADERS)
    for title, run in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))
            hashes = [hash_of(Path(folder), name) for name in LOADERS]
        yield f"| {title} | {' | '.join(f'`{found[:16]}`' for found in hashes)} |"


if __name__ == "__main__":
    for line in table():
        print(line)
        sys.stdout.flush()
