"""GiGL's way to make a storage server's dataset, and to learn about the clusters."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import ConfigError, GraphStoreInfo, partition_graph
from gigl_loader.graph_store import build_storage_dataset, get_graph_store_info
from gigl_loader.testing import TinyGraph, run_ranks

GRAPH = TinyGraph.random(40, 100)


def _each_its_own(rank: int, size: int, root: str) -> None:
    dataset = build_storage_dataset(
        task_config_uri=root, sample_edge_direction="in", max_labels_per_anchor_node=3
    )
    assert (dataset.partition_idx, dataset.num_partitions) == (rank, size)
    assert dataset.max_labels_per_anchor_node == 3
    owned: list[Any] = [None] * size
    dist.all_gather_object(owned, dataset.node_ids.tolist())
    assert sorted(owned[0] + owned[1]) == list(range(40))


@pytest.mark.multiprocess
def test_each_rank_of_the_storage_cluster_has_its_partition(tmp_path: Path) -> None:
    root = tmp_path / "parts"
    partition_graph(GRAPH.to_pyg(), 2, root)
    run_ranks(_each_its_own, str(root), world_size=2, tmp_path=tmp_path)


def test_one_process_has_the_one_partition(tmp_path: Path) -> None:
    partition_graph(GRAPH.to_pyg(), 1, tmp_path / "parts")
    dataset = build_storage_dataset(tmp_path / "parts")
    assert torch.equal(dataset.node_ids, torch.arange(40))
    with pytest.raises(ConfigError, match='not "out"'):
        build_storage_dataset(tmp_path / "parts", "out")


@pytest.mark.parametrize(
    "given",
    [
        {"splitter": object()},
        {"tf_record_uri_pattern": ".*"},
        {"ssl_positive_label_percentage": 0.5},
    ],
)
def test_what_belongs_to_task_configurations_is_refused(given: Any, tmp_path: Path) -> None:
    partition_graph(GRAPH.to_pyg(), 1, tmp_path / "parts")
    with pytest.raises(ConfigError, match=f"no use for .*{next(iter(given))}.*partition_tables"):
        build_storage_dataset(tmp_path / "parts", "in", **given)


def test_what_is_neither_a_task_nor_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no task's YAML file, and no directory.*partition_graph"
    ):
        build_storage_dataset(tmp_path / "none", "in")


def test_the_clusters_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGL_LOADER_STORAGE_ADDR", "storage0:29700")
    monkeypatch.setenv("GIGL_GRAPH_STORE_NUM_STORAGE_NODES", "3")
    found = get_graph_store_info()
    assert found == GraphStoreInfo.from_env("storage0:29700", num_storage_nodes=3)
    assert (found.num_storage_nodes, found.rpc_master_port) == (3, 29700)
    monkeypatch.delenv("GIGL_GRAPH_STORE_NUM_STORAGE_NODES")
    with pytest.raises(ConfigError, match="num_storage_nodes"):
        get_graph_store_info()
