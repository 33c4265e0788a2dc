"""The identity of a graph: the same for its parts and copies, another for another graph."""

import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, partition_graph


def _graph(value: float = 0.0) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, generator=generator)
    x[17, 1] += value
    return Data(x=x, edge_index=torch.randint(40, (2, 200), generator=generator))


@pytest.mark.parametrize("format", ["mapped", "glt"])
def test_parts_of_one_run_have_one_identity_and_parts_of_others_another(
    tmp_path: Path, format: Literal["mapped", "glt"]
) -> None:
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        partition_graph(
            _graph(), 2, tmp_path / name, method="random", seed=seed, format=format, progress=False
        )
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    partition_graph(
        _graph(0.5), 2, tmp_path / "changed", method="random", format=format, progress=False
    )
    found = {
        name: {DistDataset.load(tmp_path / name, k).graph_identity for k in range(2)}
        for name in ("one", "again", "other", "copy", "changed")
    }
    assert all(len(one) == 1 for one in found.values())
    assert found["one"] == found["again"] == found["copy"]
    assert found["one"] != found["other"]
    if format == "mapped":  # graphlearn-torch's has no digest of features
        assert found["one"] != found["changed"]


def test_identity_is_that_of_the_directory_however_it_is_opened_and_sent(tmp_path: Path) -> None:
    partition_graph(_graph(), 2, tmp_path / "graph", progress=False)
    resident = DistDataset.load(tmp_path / "graph", 0)
    mapped = DistDataset.load(tmp_path / "graph", 1, mmap=True)
    assert resident.graph_identity == mapped.graph_identity
    make, arguments = mapped.share_ipc()
    assert make(*arguments).graph_identity == mapped.graph_identity
    assert resident.view().identity == resident.graph_identity


def test_graphs_in_memory_are_told_by_what_they_hold() -> None:
    book = torch.arange(40) % 2
    found = {
        DistDataset.from_pyg(_graph(), partition_book=book, partition_idx=k).graph_identity
        for k in range(2)
    }
    assert len(found) == 1
    others = [
        DistDataset.from_pyg(_graph(0.5), partition_book=book).graph_identity,
        DistDataset.from_pyg(_graph(), partition_book=1 - book).graph_identity,
        DistDataset.from_pyg(_graph(), partition_book=book, edge_dir="out").graph_identity,
        DistDataset.from_pyg(_graph()).graph_identity,
        DistDataset.from_pyg(_graph(0.5)).graph_identity,
    ]
    assert len({*found, *others}) == 6
    assert DistDataset.from_pyg(_graph()).graph_identity == others[3]


def test_another_large_array_is_noticed_from_a_sample() -> None:
    x = torch.zeros(3_000_000, 2)
    graph = Data(x=x, edge_index=torch.zeros((2, 1), dtype=torch.int64))
    one = DistDataset.from_pyg(graph).graph_identity
    assert one == DistDataset.from_pyg(graph).graph_identity
    graph.x = x + torch.randint(2, x.shape)
    assert DistDataset.from_pyg(graph).graph_identity != one
