"""`DistDataset.load(edges="all")`: what a machine has of partitions whose rows are elsewhere."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, partition_graph
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import is_label_edge_type
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.tensors import is_mapped_file
from tests.dataset.dataset_reference import BUYS, RING, SHOP, Graph, ring, rows_of, write

COUNT = 3
NOT_EDGES = ("node_features", "node_labels", "edge_features", "splits")


def _edges(view: PartitionView) -> dict[Any, Any]:
    """Return what draws read of a partition, as plain values."""
    found: dict[Any, Any] = {name: rows_of(edges) for name, edges in view.adjacency.items()}
    for name, times in view.times.items():
        found[name, "times"] = times.order.tolist(), times.times.tolist(), times.is_float
    return found


def _loaded(root: Path, how: dict[str, Any]) -> list[DistDataset]:
    return [DistDataset.load(root, number, edges="all", **how) for number in range(COUNT)]


def _check(datasets: list[PartitionView]) -> None:
    """Check that each partition has the edges of all others, as these have them."""
    for number, view in enumerate(datasets):
        others = [other for other in range(COUNT) if other != number]
        assert sorted(view.other_edges) == others
        for other in others:
            there = view.other_edges[other]
            assert _edges(there) == _edges(datasets[other]), (number, other)
            assert there.partition_idx == other
            assert not there.node_features, "rows stay with their owners"
            assert not there.edge_features


@pytest.mark.parametrize(
    "how", [{}, {"mmap": True}, {"format": "glt"}], ids=["resident", "mapped", "glt"]
)
@pytest.mark.parametrize("method", ["contiguous", "random"])
@pytest.mark.parametrize("graph", [RING, SHOP], ids=["plain", "typed"])
def test_edges_of_all_partitions(
    tmp_path: Path, graph: Graph, method: str, how: dict[str, Any]
) -> None:
    how = dict(how)
    write(graph, tmp_path, COUNT, method=method, format=how.pop("format", "mapped"))
    datasets = _loaded(tmp_path, how)
    _check([dataset.view() for dataset in datasets])
    assert any(map(is_label_edge_type, datasets[0].view().other_edges[1].adjacency)) == (
        graph is SHOP
    ), "strict negatives look up labels of any anchor"
    _check([dataset.weighted_by("edge_weight").view() for dataset in datasets])
    copies = [pickle.loads(pickle.dumps(dataset)) for dataset in datasets]
    _check([copy.view() for copy in copies])
    assert not DistDataset.load(tmp_path, 0).view().other_edges


@pytest.mark.parametrize("format", ["mapped", "glt"])
@pytest.mark.parametrize("attribute", ["edge_time", "time"], ids=["of edges", "of nodes"])
def test_times_and_weights_of_all_partitions(tmp_path: Path, attribute: str, format: Any) -> None:
    time_attr = "time" if attribute == "time" else None
    partition_graph(ring(12), COUNT, tmp_path, method="random", time_attr=time_attr, format=format)
    datasets = _loaded(tmp_path, {})
    _check([dataset.view_by_time(attribute) for dataset in datasets])
    by_time = [dataset.weighted_by("edge_time") for dataset in datasets]
    _check([dataset.view_by_time(attribute) for dataset in by_time])
    for dataset in by_time:
        for other in dataset.view().other_edges.values():
            for entries in rows_of(next(iter(other.adjacency.values()))).values():
                assert all(weight == edge_id for _, edge_id, weight in entries)


def test_one_partition_has_no_others(tmp_path: Path) -> None:
    write(RING, tmp_path, 1)
    assert not DistDataset.load(tmp_path, 0, edges="all").view().other_edges


@pytest.mark.parametrize("mmap", [False, True])
def test_only_edges_of_others_have_to_be_there(tmp_path: Path, mmap: bool) -> None:
    write(SHOP, tmp_path, COUNT)
    for folder in NOT_EDGES:
        for other in (1, 2):
            shutil.rmtree(tmp_path / f"part{other}" / folder, ignore_errors=True)
    dataset = DistDataset.load(tmp_path, 0, edges="all", mmap=mmap, verify="now")
    assert dataset.view().other_edges[2].adjacency[BUYS].indices.numel()
    with pytest.raises(ConfigError, match="is missing"):
        DistDataset.load(tmp_path, 1, edges="all", mmap=mmap)


@pytest.mark.parametrize("format", ["mapped", "glt"])
def test_partitions_that_are_not_here_are_named(tmp_path: Path, format: str) -> None:
    write(RING, tmp_path, COUNT, format=format)
    shutil.rmtree(tmp_path / "part2")
    with pytest.raises(ConfigError, match=r'edges="all" reads .* of all 3 .*/part2 is missing'):
        DistDataset.load(tmp_path, 0, edges="all")
    shutil.rmtree(tmp_path / "part1")
    with pytest.raises(ConfigError, match=r"/part1, .*/part2 are missing: copy .*edges/"):
        DistDataset.load(tmp_path, 0, edges="all")
    assert DistDataset.load(tmp_path, 0).num_partitions == COUNT
    with pytest.raises(ConfigError, match='edges must be "own" or "all", got \'whole\''):
        DistDataset.load(tmp_path, 0, edges="whole")  # type: ignore[arg-type]  # wrong on purpose


def test_partitions_of_another_run_are_named(tmp_path: Path) -> None:
    write(RING, tmp_path / "a", COUNT, seed=1, method="random")
    write(RING, tmp_path / "b", COUNT, seed=2, method="random")
    shutil.rmtree(tmp_path / "a" / "part1")
    shutil.copytree(tmp_path / "b" / "part1", tmp_path / "a" / "part1")
    DistDataset.load(tmp_path / "a", 0)
    with pytest.raises(ConfigError, match="part1 is of another run"):
        DistDataset.load(tmp_path / "a", 0, edges="all")


def test_changed_files_of_other_partitions_are_found(tmp_path: Path) -> None:
    write(RING, tmp_path, COUNT)
    mapped = DistDataset.load(tmp_path, 0, edges="all", mmap=True, verify="off")
    handle = mapped.share_ipc()
    file = next((tmp_path / "part2" / "edges").rglob("indices.bin"))
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"part2.*indices\.bin was changed while it was in use"):
        mapped.view()
    with pytest.raises(ConfigError, match=r"part2.*indices\.bin was changed"):
        DistDataset.from_ipc_handle(handle)
    with pytest.raises(ConfigError, match=r"part2.*indices\.bin has changed"):
        DistDataset.load(tmp_path, 0, edges="all", verify="now")
    DistDataset.load(tmp_path, 0, verify="now")


def test_a_device_has_the_edges_that_were_loaded(tmp_path: Path) -> None:
    write(RING, tmp_path, COUNT)
    dataset = DistDataset.load(tmp_path, 0, edges="all")
    place = dataset.to("cpu", kernels="torch").placement
    assert place is not None
    assert place.edges == "all"
    assert not place.copy_view(dataset.view()).other_edges, "they come from the other devices"
    own = DistDataset.load(tmp_path, 0).to("cpu", kernels="torch").placement
    assert own is not None
    assert own.edges == "own"


def test_memory_is_taken_for_what_each_draw_reads(tmp_path: Path) -> None:
    """Eight bytes a node and four an edge; ids, weights and attributes are mapped."""
    partition_graph(ring(12), COUNT, tmp_path, method="random")
    (edges,) = DistDataset.load(tmp_path, 0, edges="all").view().other_edges[1].adjacency.values()
    assert edges.indices.dtype == torch.int32
    columns = {
        "indptr": edges.indptr,
        "indices": edges.indices,
        "edge_ids": edges.edge_ids,
        "weights": edges.weights,
    }
    mapped = {
        name for name, column in columns.items() if column is not None and is_mapped_file(column)
    }
    assert mapped == {"edge_ids", "weights"}
