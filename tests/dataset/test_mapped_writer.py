"""What is written of a partition that is mapped, and in which order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dataset_reference import BUYS, RING, SHOP, E, Graph, N, by_type, write

from gigl_loader import partition_graph
from gigl_loader.dataset.links import split_partitions
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.mapped import read_header, read_part, seal, write_array


def _with_rows(graph: Graph):
    """Return the graph with a row, a label and an attribute of each node that tell its id."""
    data = graph.to_pyg()
    for node_type, count in graph.num_nodes.items():
        store = data[node_type] if graph.heterogeneous else data
        store.x = torch.arange(count, dtype=torch.float32)[:, None] + 0.5
        store.y, store.age = torch.arange(count), torch.arange(count) + 100
    return data


@pytest.mark.parametrize("method", ["contiguous", "random"])
@pytest.mark.parametrize("graph", [RING, SHOP], ids=["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("count", [1, 2])
def test_rows_may_lie_by_degree(tmp_path: Path, graph: Graph, method: str, count: int) -> None:
    options: dict[str, Any] = {
        "method": method,
        "order": "degree",
        "progress": False,
        "overwrite": True,
    }
    partition_graph(_with_rows(graph), count, tmp_path / "a", **options)
    edge_type = BUYS if graph.heterogeneous else None
    split_partitions(tmp_path / "a", tmp_path / "b", edge_type, num_val=0.3)  # written again
    for index in range(count):
        memory: Any
        for root, memory in (("a", "mapped"), ("a", "resident"), ("b", "mapped")):
            dataset = DistDataset.load(tmp_path / root, index, memory=memory, verify="now")
            for node_type, ids in by_type(dataset.node_ids).items():
                found = [dataset.view().node_features[node_type],
                         dataset.view().node_labels[node_type],
                         dataset.view().node_attributes[node_type, "age"]]  # fmt: skip
                x, y, age = (rows.values[rows.locate(ids)].view(-1) for rows in found)
                assert torch.equal(x - 0.5, ids.float())
                assert torch.equal(y, ids)
                assert torch.equal(age, ids + 100)
                uses = [_uses(graph, node_type, int(i)) for i in found[1].values]
                assert uses == sorted(uses, reverse=True)
                if root == "a":  # the other one has no index where rows ascend by chance
                    one_range = bool((ids.diff() == 1).all())
                    size = len(ids) if one_range else graph.num_nodes[node_type]
                    assert found[0].index is not None
                    assert found[0].index.numel() == size
                feature = by_type(dataset.node_features)[node_type]  # as GLT's own code asks
                assert torch.equal(feature[ids][:, 0] - 0.5, ids.float())


def _uses(graph: Graph, node_type: str, node: int) -> int:
    return sum(
        src == node for t, pairs in graph.edges.items() if t[0] == node_type for src, _ in pairs
    )


def test_a_partition_of_a_range_has_rows_for_that_range_only(tmp_path: Path) -> None:
    write(RING, tmp_path)
    for index in range(2):
        adjacency = DistDataset.load(tmp_path, index).view().adjacency[E]
        assert adjacency.first_row == 4 * index
        assert adjacency.indptr.numel() == 5
        assert adjacency.indices.dtype == torch.int32


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_no_file_has_eight_bytes_for_every_edge_of_the_graph(tmp_path: Path, method: str) -> None:
    graph = Graph({N: 4}, {E: [(i % 4, (i * 7) % 4) for i in range(1000)]}, {}, False)
    write(graph, tmp_path, method=method)
    books = [path.stat().st_size for path in (tmp_path / "books").rglob("*.bin")]
    assert sum(books) <= 4 + 1000
    for index in range(2):
        assert DistDataset.load(tmp_path, index).view().edge_books[E].num_ids == 1000


def test_manifests_are_the_same_for_the_same_graph(tmp_path: Path) -> None:
    manifests = [
        json.loads((write(RING, tmp_path / name, method="random") / "gigl_loader.json").read_text())
        for name in ("a", "b")
    ]
    assert manifests[0] == manifests[1]


def test_dictionaries_of_ids_are_copied_and_sealed_anew(tmp_path: Path) -> None:
    source, numbers = write(RING, tmp_path / "a"), np.arange(8) * 10
    header, shared = read_header(source)
    made = {key: value for key, value in vars(header).items() if key not in ("run", "parts")}
    for index, part in enumerate((numbers[:4], numbers[4:])):
        write_array(source, shared, f"ids/{N}/part{index}.values", part)
    parts = [read_part(source, header, index) for index in range(2)]
    del made["identity"]
    seal(source, {**made, "original_ids": [N]}, shared, parts)
    dataset = DistDataset.load(source, 0, verify="now")
    assert dataset.to_original(torch.tensor([0, 7])).tolist() == [0, 70]
    split_partitions(source, tmp_path / "b", num_val=0.2)
    again = DistDataset.load(tmp_path / "b", 1, verify="now")
    assert again.to_original(torch.tensor([5, 0])).tolist() == [50, 0]
