"""A graph store whose compute processes keep rows: the same bits as without, after a restart too."""

from pathlib import Path

import pytest
import torch
from store_cluster import run_cluster

from gigl_loader import DistNeighborLoader, RemoteDistDataset
from gigl_loader.testing import batch_digest

pytestmark = pytest.mark.multiprocess

HOW = {"batch_size": 4, "seed": 7, "shuffle": True, "timeout": 60.0}


def _digests(loader: DistNeighborLoader, epochs: int = 2) -> list[str]:
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found += [batch_digest(batch) for batch in loader]
    return found


def _client(info, rank: int) -> None:
    dataset = RemoteDistDataset(info, rank)
    nodes = dataset.fetch_node_ids()
    for more in ({}, {"with_edge": True, "prefetch_size": 1}):
        with DistNeighborLoader(dataset, [3, 2], nodes, **HOW, **more) as loader:
            expected = _digests(loader)
            without = loader.stats()
        assert without["hit_rate"] is None
        for how in ({"remote_cache": "20%"}, {"remote_cache": "100%", "lookahead": 0}):
            with DistNeighborLoader(dataset, [3, 2], nodes, **HOW, **more, **how) as loader:
                next(iter(loader))
                next(iter(loader))  # an epoch that was broken off
                assert _digests(loader) == expected
                stats = loader.stats()
                assert stats["hit_rate"] > 0


def test_batches_are_the_same_bits(tmp_path: Path) -> None:
    run_cluster(tmp_path, _client, clients=1)
