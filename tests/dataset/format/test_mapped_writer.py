"""What is written of a partition that is mapped, and in which order."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader import partition_graph
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.mapped import Part, read_header, read_part
from gigl_loader.dataset.format.mapped_writer import (
    PartFiles,
    allow_files,
    index_type,
    seal,
    write_array,
)
from gigl_loader.errors import UsageError
from gigl_loader.partitioning.split_links import split_partitions
from tests.dataset.dataset_reference import BUYS, RING, SHOP, E, Graph, N, by_type, write


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
        for root, mmap in (("a", True), ("a", False), ("b", True)):
            dataset = DistDataset.load(tmp_path / root, index, mmap=mmap, verify="now")
            for node_type, ids in by_type(dataset.node_ids).items():
                found = [
                    dataset.view().node_features[node_type],
                    dataset.view().node_labels[node_type],
                    dataset.view().node_attributes[node_type, "age"],
                ]
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
        write_array(shared, f"ids/{N}/part{index}.values", part)
    parts = [read_part(source, header, index) for index in range(2)]
    del made["identity"], made["num_partitions"]
    made["edge_bounds"] = {E: made["edge_bounds"].pop("__".join(E))}
    seal(shared, parts, **{**made, "original_ids": [N]})
    dataset = DistDataset.load(source, 0, verify="now")
    assert dataset.to_original(torch.tensor([0, 7])).tolist() == [0, 70]
    split_partitions(source, tmp_path / "b", num_val=0.2)
    again = DistDataset.load(tmp_path / "b", 1, verify="now")
    assert again.to_original(torch.tensor([5, 0])).tolist() == [50, 0]


# --- arrays that are written piece by piece -------------------------------------------------------


def test_files_of_parts_are_written_in_any_position(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / str(k) for k in range(2)]
    with PartFiles(paths) as files:
        files.write(1, 8, np.array([[3, 4]], np.int32))
        files.write(1, 0, np.array([1, 2], np.int32))
    with PartFiles(paths) as files:  # a step that is run again
        files.write(1, 4, np.array([2], np.int32))
    assert np.fromfile(paths[1], np.int32).tolist() == [1, 2, 3, 4]
    assert paths[0].stat().st_size == 0


def test_an_array_without_bytes_has_a_file(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.note_array("a/b", "float16", (0, 3))
    assert part.path("a/b").read_bytes() == b""
    assert (part.arrays["a/b"].dtype, part.arrays["a/b"].shape) == ("float16", (0, 3))


def test_ids_have_four_bytes_where_these_are_enough() -> None:
    assert [index_type(count).name for count in (0, 2**31 - 1, 2**31)] == [
        "int32",
        "int32",
        "int64",
    ]


def test_files_of_all_partitions_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        held = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 100, hard))
        allow_files(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == held + 100, "they fit"
        allow_files(300)
        assert held + 300 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] < min(held + 500, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (held - 1, hard))
        allow_files(10)  # not even one more can be opened, to count them
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > held + 10
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 200, hard))
        PartFiles([tmp_path / str(k) for k in range(300)]).close()
        if hard != resource.RLIM_INFINITY:
            with pytest.raises(UsageError, match=rf"may have {hard}: raise ulimit -n"):
                allow_files(hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(tmp_path.iterdir())) == 300
