"""Batches from files that are mapped are those from memory, and from graphlearn-torch's format."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.runtime.memory import read_ahead
from gigl_loader.testing import TinyGraph, check_same_batches

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]


def _as_from_disk(worker: int) -> None:
    """Have a worker sample as where files do not fit into memory: more batches at once."""
    read_ahead.do_not_fit.set()


def _batches(dataset: DistDataset, worker_init_fn: Callable[[int], None] | None = None) -> list:
    seeds = torch.arange(40)
    with DistNeighborLoader(
        dataset,
        [3, 2],
        ("user", seeds),
        batch_size=8,
        num_workers=2,
        seed=3,
        with_edge=True,
        with_weight=True,
        worker_init_fn=worker_init_fn,
    ) as loader:
        return list(loader)


def test_where_a_partition_lies_does_not_change_a_batch(tmp_path: Path) -> None:
    graph = TinyGraph.random(40, 300, heterogeneous=True).to_pyg()
    for format in ("mapped", "glt"):
        partition_graph(graph, 1, tmp_path / format, format=format, progress=False)
    partition_graph(graph, 1, tmp_path / "degree", order="degree", progress=False)
    expected = _batches(DistDataset.load(tmp_path / "glt", 0))
    assert len(expected) == 5
    for name, is_mapped, init in (
        ("mapped", False, None),
        ("mapped", True, None),
        ("degree", True, _as_from_disk),
    ):
        found = _batches(DistDataset.load(tmp_path / name, 0, mmap=is_mapped), init)
        check_same_batches(found, expected)
