"""The format that is mapped: what is wrong is named, and workers share the files."""

import json
import os
import pickle
import shutil
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from dataset_reference import BUYS, KNOWS, REV_BUYS, E, Graph, N, by_type, check_partitions

from gigl_loader.dataset import _mapped
from gigl_loader.dataset.links import split_partitions
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.partition import partition_graph
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.memory import tensors as _tensors
from gigl_loader.memory.segments import close_fds, loads
from gigl_loader.testing import open_files

RING = Graph({N: 8}, {E: [(i, (i + 1) % 8) for i in range(8)] + [(3, 3), (0, 1)]}, {}, False)
SHOP = Graph(
    {"user": 5, "item": 4},
    {BUYS: [(0, 1), (4, 3), (2, 0), (0, 1)], REV_BUYS: [(1, 0), (3, 4)], KNOWS: []},
    {BUYS: ([(2, 1), (0, 3), (4, 0)], [(0, 0)])},
)


def _write(graph: Graph, root: Path, count: int = 2, **options) -> Path:
    partition_graph(
        graph.to_pyg(),
        count,
        root,
        supervision=graph.supervision(),
        progress=False,
        **{"overwrite": True, **options},
    )
    return root


def _arrays(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.bin") if path.stat().st_size)


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
    options = {"method": method, "order": "degree", "progress": False, "overwrite": True}
    partition_graph(_with_rows(graph), count, tmp_path / "a", **options)
    edge_type = BUYS if graph.heterogeneous else None
    split_partitions(tmp_path / "a", tmp_path / "b", edge_type, num_val=0.3)  # written again
    for index in range(count):
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
                    assert found[0].index.numel() == size
                feature = by_type(dataset.node_features)[node_type]  # as GLT's own code asks
                assert torch.equal(feature[ids][:, 0] - 0.5, ids.float())


def _uses(graph: Graph, node_type: str, node: int) -> int:
    return sum(
        src == node for t, pairs in graph.edges.items() if t[0] == node_type for src, _ in pairs
    )


# --- what it takes --------------------------------------------------------------------------------


def test_a_partition_of_a_range_has_rows_for_that_range_only(tmp_path: Path) -> None:
    _write(RING, tmp_path)
    for index in range(2):
        adjacency = DistDataset.load(tmp_path, index).view().adjacency[E]
        assert adjacency.first_row == 4 * index
        assert adjacency.indptr.numel() == 5
        assert adjacency.indices.dtype == torch.int32


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_no_file_has_eight_bytes_for_every_edge_of_the_graph(tmp_path: Path, method: str) -> None:
    graph = Graph({N: 4}, {E: [(i % 4, (i * 7) % 4) for i in range(1000)]}, {}, False)
    _write(graph, tmp_path, method=method)
    books = [path.stat().st_size for path in (tmp_path / "books").rglob("*.bin")]
    assert sum(books) <= 4 + 1000
    for index in range(2):
        assert DistDataset.load(tmp_path, index).view().edge_books[E].num_ids == 1000


@pytest.mark.parametrize("memory", ["resident", "mapped"])
@pytest.mark.parametrize("graph", [RING, SHOP], ids=["homogeneous", "heterogeneous"])
def test_what_glt_code_reads_is_there_by_global_id(
    tmp_path: Path, graph: Graph, memory: str
) -> None:
    _write(graph, tmp_path)
    data = graph.to_pyg()
    for index in range(2):
        dataset = DistDataset.load(tmp_path, index, memory=memory)
        topology = dataset.graph[BUYS].topo if graph.heterogeneous else dataset.graph.topo
        pairs = graph.edges[BUYS if graph.heterogeneous else E]
        store = data[BUYS] if graph.heterogeneous else data
        ids = topology.edge_ids
        rows = torch.repeat_interleave(
            torch.arange(topology.indptr.numel() - 1), topology.indptr.diff()
        )
        assert torch.equal(store.edge_index[:, ids], torch.stack([topology.indices, rows]))
        assert topology.indptr.numel() - 1 == graph.num_nodes[BUYS[2] if graph.heterogeneous else N]
        assert len(ids) < len(pairs)
        for node_type in graph.num_nodes:
            feature = (
                dataset.node_features[node_type] if graph.heterogeneous else (dataset.node_features)
            )
            owned = dataset.node_ids[node_type] if graph.heterogeneous else dataset.node_ids
            assert feature[owned][:, 0].tolist() == owned.tolist()


# --- what is wrong --------------------------------------------------------------------------------


def test_a_part_of_another_run_is_named(tmp_path: Path) -> None:
    _write(RING, tmp_path / "a", seed=1, method="random")
    _write(RING, tmp_path / "b", seed=2, method="random")
    shutil.rmtree(tmp_path / "a" / "part1")
    shutil.copytree(tmp_path / "b" / "part1", tmp_path / "a" / "part1")
    DistDataset.load(tmp_path / "a", 0)
    with pytest.raises(ConfigError, match=r"part1 is of another run"):
        DistDataset.load(tmp_path / "a", 1)


def test_a_part_in_the_place_of_another_is_named(tmp_path: Path) -> None:
    _write(RING, tmp_path)
    shutil.rmtree(tmp_path / "part1")
    shutil.copytree(tmp_path / "part0", tmp_path / "part1")
    with pytest.raises(ConfigError, match=r"manifest\.json has changed.*another partition"):
        DistDataset.load(tmp_path, 1)


def test_every_missing_or_short_file_is_named(tmp_path: Path) -> None:
    _write(SHOP, tmp_path, method="random")
    for path in _arrays(tmp_path):
        index = 0 if "part0" in path.parts else 1
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(ConfigError, match=rf"{path.name} has {len(content) - 1} bytes"):
            DistDataset.load(tmp_path, index)
        path.unlink()
        with pytest.raises(ConfigError, match=rf"{path.name} is missing"):
            DistDataset.load(tmp_path, index)
        path.write_bytes(content)
    for name in ("part0/manifest.json", "gigl_loader.json"):
        content = (tmp_path / name).read_text()
        (tmp_path / name).write_text(content[: len(content) // 2])
        with pytest.raises(ConfigError, match=r"json (is damaged|is missing)|META is missing"):
            DistDataset.load(tmp_path, 0)
        (tmp_path / name).write_text(content)
    check_partitions(SHOP, [DistDataset.load(tmp_path, index) for index in range(2)], "in")


def test_a_flipped_bit_is_found_on_request(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_mapped, "BLOCK_BYTES", 16)
    _write(RING, tmp_path)
    path = tmp_path / "part0" / "node_features" / N / "values.bin"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"values\.bin has changed.*bytes 16 to 32"):
        DistDataset.load(tmp_path, 0, verify="now")
    dataset = DistDataset.load(tmp_path, 0, verify="off")
    with pytest.raises(ConfigError, match=r"values\.bin has changed"):
        dataset.verify()
    DistDataset.load(tmp_path, 1, verify="now")


def test_a_flipped_bit_is_found_in_the_background(tmp_path: Path, caplog) -> None:
    _write(RING, tmp_path)
    path = tmp_path / "part0" / "edges" / "__".join(E) / "indices.bin"
    path.write_bytes(bytes(path.stat().st_size))
    dataset = DistDataset.load(tmp_path, 0, memory="mapped")
    for thread in threading.enumerate():
        if thread.name == "gigl_loader.verify":
            thread.join(30)
    with pytest.raises(ConfigError, match=r"indices\.bin has changed"):
        dataset.view()
    assert "indices.bin has changed" in caplog.text


def test_another_version_is_named(tmp_path: Path) -> None:
    _write(RING, tmp_path)
    path = tmp_path / "gigl_loader.json"
    path.write_text(path.read_text().replace('"format_version": 2', '"format_version": 7'))
    with pytest.raises(ConfigError, match="format version 7, this gigl_loader reads 2"):
        DistDataset.load(tmp_path, 0)


def test_the_order_of_rows_is_checked(tmp_path: Path) -> None:
    for options, match in (({"order": "size"}, "must be"), ({"format": "glt"}, "needs format")):
        with pytest.raises(ConfigError, match=match):
            partition_graph(RING.to_pyg(), 1, tmp_path / "a", **{"order": "degree", **options})
    assert not (tmp_path / "a").exists()


def test_arguments_of_load_are_checked(tmp_path: Path) -> None:
    _write(RING, tmp_path / "ours")
    _write(RING, tmp_path / "glt", format="glt")
    for options, message in (
        ({"memory": "disk"}, "memory must be"),
        ({"verify": True}, "verify must be"),
        ({"edge_dir": "out"}, 'partitioned for edge_dir="in", not "out"'),
        ({"whole_node_label_file": "labels.pt"}, "whole_node_label_file"),
    ):
        with pytest.raises(ConfigError, match=message):
            DistDataset.load(tmp_path / "ours", 0, **options)
    with pytest.raises(ConfigError, match="cannot be mapped"):
        DistDataset.load(tmp_path / "glt", 0, memory="mapped")
    with pytest.raises(ConfigError, match="partition_idx must be in"):
        DistDataset.load(tmp_path / "ours", 2)
    with pytest.raises(UsageError, match="checksums"):
        DistDataset.load(tmp_path / "glt", 0).verify()
    with pytest.raises(UsageError, match="not made of tables"):
        DistDataset.load(tmp_path / "ours", 0).to_original(torch.tensor([0]))


# --- other processes ------------------------------------------------------------------------------


def test_workers_map_the_files_themselves(tmp_path: Path) -> None:
    _write(RING, tmp_path)
    for path in _arrays(tmp_path):
        path.chmod(0o444)
    view = DistDataset.load(tmp_path, 1, memory="mapped").view()
    data, fds = _tensors.dumps(view)
    try:
        inodes = {os.fstat(fd).st_ino for fd in fds}
        read = loads(data, fds)
    finally:
        close_fds(fds)
    wanted = {
        path.stat().st_ino for path in _arrays(tmp_path / "part1") if "splits" not in str(path)
    }
    assert inodes >= wanted
    assert read.adjacency[E].indices.tolist() == view.adjacency[E].indices.tolist()
    assert read.node_features[N].values.tolist() == view.node_features[N].values.tolist()


def test_what_is_written_to_a_mapped_tensor_stays_in_the_process(tmp_path: Path) -> None:
    _write(RING, tmp_path)
    values = DistDataset.load(tmp_path, 0, memory="mapped").view().node_features[N].values
    values.fill_(-1)
    DistDataset.load(tmp_path, 0, verify="now")


def _of(folder: Path) -> list[str]:
    """Return the files in ``folder`` that this process has open."""
    return [name for name in open_files() if name.startswith(str(folder))]


def test_descriptors_and_mappings_go_with_the_dataset(tmp_path: Path) -> None:
    _write(RING, tmp_path)
    assert not _of(tmp_path)
    dataset = DistDataset.load(tmp_path, 0, memory="mapped", verify="off")
    assert _of(tmp_path)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del dataset
    assert not _of(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("memory", ["resident", "mapped"])
def test_a_dataset_is_pickled_without_its_data(tmp_path: Path, memory: str) -> None:
    _write(RING, tmp_path)
    dataset = DistDataset.load(tmp_path, 1, memory=memory)
    data = bytes(ForkingPickler.dumps(dataset))
    assert len(data) < 20_000
    copy = pickle.loads(data)
    assert copy.train_node_ids.tolist() == dataset.train_node_ids.tolist()
    assert copy.view().adjacency[E].indices.tolist() == dataset.view().adjacency[E].indices.tolist()
    again = DistDataset.from_ipc_handle(dataset.share_ipc())
    assert again.node_ids.tolist() == dataset.node_ids.tolist()


def test_a_directory_that_was_replaced_is_not_opened_again(tmp_path: Path) -> None:
    _write(RING, tmp_path / "graph", seed=1, method="random")
    handle = DistDataset.load(tmp_path / "graph", 0, memory="mapped").share_ipc()
    _write(RING, tmp_path / "graph", seed=2, method="random")
    with pytest.raises(ConfigError, match="written anew"):
        DistDataset.from_ipc_handle(handle)


def test_manifests_are_the_same_for_the_same_graph(tmp_path: Path) -> None:
    manifests = [
        json.loads(
            (_write(RING, tmp_path / name, method="random") / "gigl_loader.json").read_text()
        )
        for name in ("a", "b")
    ]
    assert manifests[0] == manifests[1]
