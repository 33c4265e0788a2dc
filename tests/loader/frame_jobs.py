"""Ranks, servers and clients whose batches have rows of mixed types."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader import DistDataset, DistNeighborLoader, RemoteDistDataset
from gigl_loader.testing import batch_digest
from tests.support.frames import check_rows, shop

HOW: dict[str, Any] = {"batch_size": 4, "seed": 7}


def digests(dataset: Any, seeds: Any, **how: Any) -> list[str]:
    """Check all batches of two epochs by the graph itself; return the digests of the first."""
    graph, found = shop(), []
    with DistNeighborLoader(dataset, [3, 2], seeds, **{**HOW, **how}) as loader:
        for epoch in range(2):
            for batch in loader:
                check_rows(batch, graph)
                if not epoch:
                    found.append(batch_digest(batch))
    return found


def two_ranks(rank: int, size: int, folder: Path) -> None:
    seeds = ("user", torch.arange(23).tensor_split(size)[rank])
    wanted = digests(DistDataset.from_pyg(shop()), seeds, num_workers=0, shard="machine")
    for root, how in (
        ("mapped", {"num_workers": 1}),
        ("mapped", {"num_workers": 1, "remote_cache": "30%"}),
        ("mapped", {"num_workers": 0, "exchange": "collective"}),
        ("glt", {"num_workers": 1}),
    ):
        dataset = DistDataset.load(folder / root, rank)
        assert digests(dataset, seeds, **how) == wanted, (root, how)
        dist.barrier()


def partition(rank: int, servers: int) -> DistDataset:
    books = {name: torch.arange(count) % servers for name, count in COUNTS.items()}
    return DistDataset.from_pyg(shop(), partition_book=books, partition_idx=rank)


COUNTS = {"user": 23, "item": 31, "shop": 4}


def client(info: Any, rank: int) -> None:
    remote = RemoteDistDataset(info, rank)
    whole = DistDataset.from_pyg(shop())
    assert remote.fetch_schema().frames == whole.schema.frames
    seeds = ("user", remote.fetch_node_ids(node_type="user"))
    assert len(digests(remote, seeds, num_workers=1, timeout=90.0)) == 6
