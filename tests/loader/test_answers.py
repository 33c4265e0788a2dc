"""Likely mistakes: each answer says where it is and what to do."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GraphSAGE

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    full_graph,
)
from gigl_loader.sampler.row_cache.tables import RowTables, segment_bytes
from gigl_loader.testing import TinyGraph

GRAPH = TinyGraph.random(30, 90)
TYPED = TinyGraph.random(30, 90, heterogeneous=True)
TYPES = next(name for name in TYPED.edges if name[0] != name[2])
BUYS = ("user", "to", "item")
NO_TYPE: Any = {"buys": [2]}


def _swapped() -> Any:
    """50 items in the row of 5 users."""
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 5, 50
    data["user", "to", "item"].edge_index = torch.tensor([[0, 1], [48, 2]])
    links = data["user", "to", "item"].edge_index.flip(0)
    return DistLinkNeighborLoader(DistDataset.from_pyg(data), [2], (BUYS, links))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DistNeighborLoader("graph", [2]), r"got str; DistDataset.load\(path, partition"),
        (lambda: DistNeighborLoader(Path("g"), [2]), r"DistDataset.load\(path, partition_idx\)"),
        (lambda: DistDataset.from_pyg(FakeDataset(num_graphs=1)), r"give one, dataset\[0\]"),
        (
            lambda: full_graph(GRAPH.dataset(), GraphSAGE(2, 4, 1)).__enter__(),
            "got DistDataset: the model comes first",
        ),
        (
            lambda: DistNeighborLoader(TYPED.dataset(), {TYPES[::-1]: [2]}, ("user", [1])),
            r"is none of them, did you mean .*; it lacks .*; a list in place of the dict",
        ),
        (
            lambda: DistNeighborLoader(TYPED.dataset(), NO_TYPE, ("user", [1])),
            r"'buys' is no edge type \(source, relation, destination\)",
        ),
        (_swapped, r"of 'user' are in \[0, 5\); are its rows swapped\? 'user' is row 0"),
    ],
)
def test_an_answer_says_what_to_do(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_what_is_of_no_use_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A cache without other machines, a channel that no batch fits, a loader that is dropped."""
    dataset = GRAPH.dataset()
    with DistNeighborLoader(
        dataset, [2], batch_size=8, remote_cache="1MB", channel_size="1KB"
    ) as loader:
        assert len(list(loader)) == len(loader)
    assert "remote_cache='1MB' keeps nothing: the dataset is one partition" in caplog.text
    assert caplog.text.count("channel_size is 1000: batches are made one at a time") == 1
    for partitions in (1, 2):
        assert "dropped" not in caplog.text, "no other rank waits for it"
        loader = DistNeighborLoader(dataset, [2], num_workers=0)
        loader.num_data_partitions = partitions
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as Python does by default
            del loader
    assert "DistNeighborLoader was dropped without shutdown()" in caplog.text


def test_a_cache_too_small_to_keep_anything_is_told_the_least(caplog: Any) -> None:
    """In both deployments: their tables are made here. What it names is enough, and is silent."""
    owner, rows = ("node", "n"), 100_000
    matrices: Any = {owner: {("node_features", "n"): ("float32", (16,))}}

    def kept(size: int) -> int:
        caplog.clear()
        tables = RowTables.of(matrices, {owner: rows}, {owner: rows}, size)
        assert segment_bytes(tables) <= size or tables[owner].capacity == 1
        return tables[owner].capacity

    with caplog.at_level(logging.WARNING):
        assert kept(2 * 2**20) == 1
        (record,) = caplog.records
        least = int(record.getMessage().rsplit('"', 2)[1].removesuffix("MB")) * 10**6
        assert "keeps 1 of 100000 rows" in record.getMessage()
        assert kept(least) > rows // 20
        assert not caplog.records
        assert kept(2**30) == rows
        assert not caplog.records
