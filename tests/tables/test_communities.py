"""Communities that partitioning finds, beside planted ones and beside METIS."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from dataset_reference import N

from gigl_loader import DistDataset, EdgeTable, NodeTable
from gigl_loader.dataset.schema import COMMUNITY
from gigl_loader.tables.partition_tables import partition_tables

COUNT, SIZE = 20, 50
"""Planted communities, and the nodes of each."""


def _planted(seed: int = 0, inside: float = 0.8, degree: int = 16) -> tuple[Any, Any]:
    """Return edges ``[2, num_edges]`` and the planted community of each node, in drawn order."""
    rng = np.random.default_rng(seed)
    num_nodes = COUNT * SIZE
    ends = rng.integers(0, num_nodes, (2, num_nodes * degree // 2))
    kept = np.less(rng.random(ends.shape[1]), inside)
    ends[0, kept] = ends[1, kept] // SIZE * SIZE + rng.integers(0, SIZE, int(kept.sum()))
    names = rng.permutation(num_nodes)
    planted = np.empty(num_nodes, np.int64)
    planted[names] = np.arange(num_nodes) // SIZE
    return names[ends], planted


def _tables(edges: Any, num_nodes: int) -> tuple[NodeTable, EdgeTable]:
    nodes = pa.table({"id": np.arange(num_nodes), "x": np.arange(num_nodes, dtype=np.float32)})
    return (
        NodeTable(nodes, features="x"),
        EdgeTable(pa.table({"src": edges[0], "dst": edges[1]})),
    )


def _loaded(root: Path, count: int, num_nodes: int, **how: Any) -> tuple[Any, Any]:
    """Return owner and community of each node by the id that it had in the input."""
    owners, communities = np.full(num_nodes, -1), np.full(num_nodes, -1)
    for k in range(count):
        dataset = DistDataset.load(root, k, verify="now", **how)
        view, owned = dataset.view(), dataset.node_ids
        rows, features = view.node_attributes[N, COMMUNITY], view.node_features[N]
        names = features.values[features.locate(owned)].view(-1).long().numpy()
        assert rows.values.dtype == torch.int64
        assert rows.values.dim() == 1
        owners[names], communities[names] = k, rows.values[rows.locate(owned)].numpy()
    assert owners.min() == 0, "each node is in some partition"
    return owners, communities


def _check_nested(owners: Any, communities: Any) -> None:
    """Check that ids are dense, and each community lies in one partition."""
    assert np.unique(communities).tolist() == list(range(communities.max() + 1))
    pairs = np.unique(np.stack([communities, owners]), axis=1)
    assert pairs.shape[1] == communities.max() + 1


@pytest.mark.parametrize("method", ["ldg", "metis"])
def test_planted_communities_are_found(tmp_path: Path, method: Any) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    edges, planted = _planted()
    partition_tables(
        *_tables(edges, len(planted)), 4, tmp_path / "parts", method=method, communities=COUNT,
        progress=False, threads=1,
    )  # fmt: skip
    owners, communities = _loaded(tmp_path / "parts", 4, len(planted))
    _check_nested(owners, communities)
    sizes = np.bincount(communities)
    same = [np.bincount(planted[communities == k]).max() for k in range(len(sizes))]
    assert sum(same) > 0.95 * len(planted)
    assert len(sizes) == COUNT
