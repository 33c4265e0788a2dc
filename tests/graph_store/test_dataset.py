"""Where a graph store is, and what processes of one machine fetch together."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import GraphStoreInfo, RemoteDistDataset
from gigl_loader.dataset.identity import Share
from gigl_loader.dataset.schema import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, PeerTimeoutError, ServerDiedError, UsageError
from gigl_loader.runtime.ranks.collectives import gather_from_ranks
from gigl_loader.sources.remote_interface import ABLPInputNodes
from gigl_loader.testing import run_ranks
from tests.graph_store.store_cluster import info_of

BUYS, LIKES = ("user", "buys", "item"), ("user", "likes", "item")


def test_info_ranks(monkeypatch):
    info = info_of(2, 4)
    assert info.num_cluster_nodes == 3
    assert info.compute_cluster_world_size == 4
    monkeypatch.setenv("RANK", "2")
    assert info.storage_node_rank == 1
    with pytest.raises(ConfigError, match="no compute machine"):
        info.compute_node_rank  # noqa: B018
    monkeypatch.setenv("RANK", "0")
    assert info.compute_node_rank == 0
    with pytest.raises(ConfigError, match=r"RANK=0 is no storage machine: those are \[1, 3\)"):
        info.storage_node_rank  # noqa: B018
    monkeypatch.delenv("RANK")
    with pytest.raises(UsageError, match="start the compute processes with torchrun"):
        info.compute_node_rank  # noqa: B018


_VARIABLES = (
    "GIGL_GRAPH_STORE_NUM_STORAGE_NODES",
    "GIGL_GRAPH_STORE_NUM_COMPUTE_NODES",
    "COMPUTE_CLUSTER_LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GIGL_LOADER_STORAGE_ADDR",
)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def _figures(info: GraphStoreInfo) -> tuple[int, int, int]:
    return info.num_storage_nodes, info.num_compute_nodes, info.num_processes_per_compute


def test_an_address_and_a_count_say_where_a_graph_store_is(unset: pytest.MonkeyPatch) -> None:
    info = GraphStoreInfo.from_env("storage0", num_storage_nodes=2)
    assert _figures(info) == (2, 1, 1)
    assert (info.storage_cluster_master_ip, info.rpc_master_port) == ("storage0", 29600)
    assert info.compute_cluster_master_ip == "127.0.0.1"
    for name, value in {
        "GROUP_WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "trainer0",
        "MASTER_PORT": "29501",
        "GIGL_LOADER_STORAGE_ADDR": "storage1:7000",
        "GIGL_GRAPH_STORE_NUM_STORAGE_NODES": "5",
    }.items():
        unset.setenv(name, value)
    info = GraphStoreInfo.from_env()
    assert _figures(info) == (5, 3, 4), "torchrun's variables"
    assert (info.storage_cluster_master_ip, info.rpc_master_port) == ("storage1", 7000)
    where = (info.compute_cluster_master_ip, info.compute_cluster_master_port)
    assert where == ("trainer0", 29501)
    unset.setenv("GIGL_GRAPH_STORE_NUM_COMPUTE_NODES", "6")
    unset.setenv("COMPUTE_CLUSTER_LOCAL_WORLD_SIZE", "7")
    assert _figures(GraphStoreInfo.from_env()) == (5, 6, 7), "GiGL's go before torchrun's"
    assert _figures(GraphStoreInfo.from_env(num_compute_nodes=1)) == (5, 1, 7)


def test_what_the_environment_does_not_say_is_asked_for(unset: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set GIGL_GRAPH_STORE_NUM_STORAGE_NODES"):
        GraphStoreInfo.from_env("storage0")
    unset.setenv("GIGL_GRAPH_STORE_NUM_STORAGE_NODES", "two")
    with pytest.raises(ConfigError, match="NUM_STORAGE_NODES must be an integer > 0, got 'two'"):
        GraphStoreInfo.from_env("storage0")
    for wrong in ("storage0:2960O", "storage0:", "storage0:99999"):
        with pytest.raises(ConfigError, match=f"takes HOST:PORT, got '{wrong}'"):
            GraphStoreInfo.from_env(wrong, num_storage_nodes=2)
    for given, port in (("::1", 29600), ("[::1]", 29600), ("[::1]:7000", 7000)):
        info = GraphStoreInfo.from_env(given, num_storage_nodes=2)
        assert (info.storage_cluster_master_ip, info.rpc_master_port) == ("::1", port)
    with pytest.raises(ConfigError, match=r"give storage_addr=.* or set GIGL_LOADER_STORAGE_ADDR"):
        GraphStoreInfo.from_env(num_storage_nodes=2)


def _find_each_other(rank: int, size: int) -> None:
    os.environ.update(
        GIGL_GRAPH_STORE_NUM_STORAGE_NODES="2",
        GIGL_GRAPH_STORE_NUM_COMPUTE_NODES="1",
        MASTER_ADDR="127.0.0.1",
    )
    os.environ.pop("GIGL_LOADER_STORAGE_ADDR", None)
    info = GraphStoreInfo.from_env()
    assert gather_from_ranks(info, size, GraphStoreInfo) == [info] * size
    assert _figures(info) == (2, 1, 1)
    assert info.storage_cluster_master_ip == info.compute_cluster_master_ip == "127.0.0.1"
    ports = {info.rpc_master_port, info.storage_cluster_master_port, info.rpc_wait_port}
    assert len(ports) == 3
    with pytest.raises(ConfigError, match="over the 4 machines of both clusters"):
        GraphStoreInfo.from_env(num_compute_nodes=2)


@pytest.mark.multiprocess
def test_machines_of_both_clusters_agree_as_in_gigl(tmp_path: Path) -> None:
    run_ranks(_find_each_other, world_size=3, tmp_path=tmp_path)


def test_labels_are_cut_with_their_anchors_and_named_by_either_edge_type(fetches) -> None:
    anchors = torch.arange(5)
    positives, negatives = anchors.view(5, 1) * 10, anchors.view(5, 1) * 100
    whole = ABLPInputNodes(
        anchors, "user", {BUYS: (positives, negatives), LIKES: (positives, None)}
    )
    part = whole.cut(Share(1, 2, 2))
    assert part.anchor_nodes.tolist() == [2, 3, 4]
    bought, not_bought = part.labels[BUYS]
    assert bought.view(-1).tolist() == [20, 30, 40]
    assert not_bought is not None
    assert not_bought.view(-1).tolist() == [200, 300, 400]
    assert part.labels[LIKES][1] is None
    assert list(part.positive_labels) == [
        message_passing_to_positive_label(one) for one in (BUYS, LIKES)
    ]
    assert part.negative_labels is not None
    assert list(part.negative_labels) == [message_passing_to_negative_label(BUYS)]
    none = ABLPInputNodes(anchors, "user", {LIKES: (positives, None)})
    assert none.negative_labels is None
    both = ("user", anchors, whole.positive_labels, whole.negative_labels)
    fetches(both, ("user", anchors, none.positive_labels, None))
    dataset = RemoteDistDataset(info_of(1, 1), 0)
    again = dataset.fetch_ablp_input(None)[0]
    assert again.labels.keys() == whole.labels.keys()
    assert again.labels[BUYS][1] is negatives
    assert again.labels[LIKES] == (positives, None)
    assert dataset.fetch_ablp_input(None)[0].labels[LIKES][1] is None


def test_what_is_shared_is_shared_whole() -> None:
    with pytest.raises(ConfigError, match="given together"):
        RemoteDistDataset(info_of(1, 1), 0, {})
    with pytest.raises(ConfigError, match="given together"):
        RemoteDistDataset(info_of(1, 1), 0, mp_barrier=threading.Barrier(1))


class _Servers:
    """Servers that answer, or raise, one after the other, and keep the questions."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers, self.asked = answers, list[Any]()

    def ask_each(self, name: str, requests: dict[int, Any], *limits: float) -> dict[int, Any]:
        self.asked.append((name, requests))
        answer = self._answers[len(self.asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(requests, answer)


@pytest.fixture
def fetches(take_part: Callable[[Any], None]) -> Callable[..., list[Any]]:
    """Let servers give these answers; returns the questions."""

    def let(*answers: Any) -> list[Any]:
        servers = _Servers(answers)
        take_part(servers)
        return servers.asked

    return let


class _Impatient(threading.Barrier):
    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "whoever does not come is given up"
        return super().wait(0.01)


def _together(size: int, times: int = 1) -> list[list[Any]]:
    """Return by local rank what each process of a machine fetches; here they are threads."""
    shared: dict[str, Any] = {}
    barrier = threading.Barrier(size)

    def fetch(rank: int) -> list[Any]:
        dataset, found = RemoteDistDataset(info_of(1, 1), rank, shared, barrier), list[Any]()
        for _ in range(times):
            try:
                found.append(dataset.fetch_node_ids()[0])
            except ServerDiedError as error:
                found.append(str(error))
        return found

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(fetch, range(size)))


def test_local_rank_0_fetches_for_all_and_tells_of_its_failure(fetches) -> None:
    asked = fetches(torch.arange(3))
    fetched = [ids for (ids,) in _together(3)]
    assert len(asked) == 1
    assert all(ids.tolist() == [0, 1, 2] and ids.is_shared() for ids in fetched)
    assert len({ids.data_ptr() for ids in fetched}) == 1
    fetches(ServerDiedError("storage server 0 is gone"))
    assert _together(2) == [["storage server 0 is gone"]] * 2


def test_a_fetch_that_failed_may_be_made_again(fetches) -> None:
    """The error is not kept for good, and each process gets that of the same attempt."""
    once, twice = ServerDiedError("once"), ServerDiedError("twice")
    asked = fetches(once, twice, torch.arange(3))
    for found in _together(3, times=4):
        assert found[:2] == ["once", "twice"]
        assert [ids.tolist() for ids in found[2:]] == [[0, 1, 2]] * 2
    assert len(asked) == 3


def test_who_fetches_something_else_is_named(fetches) -> None:
    asked = fetches()
    other = RemoteDistDataset(info_of(1, 1), 1, {}, threading.Barrier(1))
    with pytest.raises(ConfigError, match=r"local rank 0 did not fetch \('get_node_ids', 'train'"):
        other.fetch_node_ids(split="train")
    alone = RemoteDistDataset(info_of(1, 1), 1, {}, _Impatient(2))
    words = r"local rank 1: .* did not all fetch \('get_ablp_input', 'val'"
    with pytest.raises(PeerTimeoutError, match=words):
        alone.fetch_ablp_input("val")
    assert asked == []


def test_the_schema_is_asked_for_once(fetches) -> None:
    asked = fetches("a schema")
    dataset: Any = RemoteDistDataset(info_of(2, 1), 0)
    assert [dataset.fetch_schema(), dataset.fetch_schema()] == ["a schema"] * 2
    assert asked == [("get_schema", {0: {}})]
