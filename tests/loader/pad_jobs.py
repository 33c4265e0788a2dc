"""What ranks and clients of a graph store do in `test_pad.py`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistNeighborLoader,
    RemoteDistDataset,
    padding_sizes,
)
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.testing import TinyGraph, batch_digest
from tests.loader import digest_cases
from tests.loader.digest_cases import CASES
from tests.loader.pad_cases import one_shape, real, seeds_of

SMALL = TinyGraph.random(60, 400, seed=5)


def small_partition(rank: int, size: int) -> DistDataset:
    """Return a rank's or a server's part of the small graph."""
    return SMALL.partitions(size)[rank]


def huge_shapes(dataset: Any, seeds: Any) -> dict[str, list[int]]:
    """Return nodes and edges of batches whose fan-outs are beyond the graph, padded to its bound.

    With and without trees; each real edge is there once in each tree.
    """
    found = {}
    for name, disjoint in (("merged", False), ("trees", True)):
        how: dict[str, Any] = {"batch_size": 3, "seed": 1, "pad": True, "shard": "none"}
        with DistNeighborLoader(
            dataset, [50, 50, 50], seeds, disjoint=disjoint, with_edge=True, **how
        ) as loader:
            batches = one_shape(loader)
        found[name] = [batches[0].num_nodes, batches[0].num_edges]
        for batch in batches:
            edges = real(batch).e_id
            assert edges.numel() == edges.unique().numel() or disjoint
    return found


def huge_of_a_rank(rank: int, size: int, folder: Path) -> None:
    shapes = huge_shapes(small_partition(rank, size), torch.arange(60))
    (folder / f"rank{rank}.json").write_text(json.dumps(shapes))


def huge_of_a_client(info: Any, rank: int, folder: Path) -> None:
    remote = RemoteDistDataset(info, rank)
    shapes = huge_shapes(remote, remote.fetch_node_ids())
    (folder / f"client{rank}.json").write_text(json.dumps(shapes))


def padded_digests(loader: BaseDistLoader, rank: int, size: int) -> digest_cases.Digests:
    """Return the digests of the batches of this rank, without what is dead in them."""
    return {
        (epoch, step * size + rank): batch_digest(real(batch))
        for epoch in range(digest_cases.EPOCHS)
        for step, batch in enumerate(one_shape(loader))
    }


def of_a_rank(rank: int, size: int, folder: Path, names: list[str], how: dict[str, Any]) -> None:
    """Run cases on one of several ranks, each with a partition of its own."""
    for name in names:
        case = CASES[name]
        dataset = case.partition(rank, size)
        dataset.max_labels_per_anchor_node = 1 if "anchors" in name else None
        with case.make(dataset, case.seeds(), pad=True, **how) as loader:
            digest_cases.write(folder, name, rank, padded_digests(loader, rank, size))
    case = CASES["nodes"]
    with pytest.raises(ConfigError, match='same number of steps: add "larger": "bound"'):
        case.make(case.partition(rank, size), case.seeds(), pad={"nodes": 60, "edges": 80}, **how)


def of_a_client(info: Any, rank: int, folder: Path, names: list[str]) -> None:
    """Run cases on the servers of a graph store, and split some of their batches."""
    size = info.num_processes_per_compute
    for name in names:
        case, remote = CASES[name], RemoteDistDataset(info, rank)
        with case.make(remote, case.seeds_of(remote), pad=True) as loader:
            digest_cases.write(folder, name, rank, padded_digests(loader, rank, size))
    remote = RemoteDistDataset(info, rank)
    how: dict[str, Any] = {"batch_size": 8, "seed": 4, "shard": "none"}
    seeds = remote.fetch_node_ids()
    with DistNeighborLoader(remote, [4, 4], seeds, **how) as loader:
        whole = list(loader)
        sizes = padding_sizes(whole, share=0.5)
    with DistNeighborLoader(remote, [4, 4], seeds, pad=sizes, **how) as loader:
        parts = one_shape(loader)
        assert seeds_of(parts) == seeds_of(whole)
        assert len(parts) > len(whole)
