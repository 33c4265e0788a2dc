"""Rows and edges by id, asked from storage servers."""

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import DEFAULT_HOMOGENEOUS_NODE_TYPE as DEFAULT_TYPE
from gigl_loader import ConfigError, DistDataset, DistFeature, RemoteDistDataset, ServerDiedError
from gigl_loader.errors import ProtocolError
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.client.row_requests import merged_edges
from gigl_loader.graph_store.server import partition_answers
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.testing import TinyGraph, wait_until
from tests.graph_store.in_process import SECURITY, joined, storage
from tests.graph_store.store_cluster import HOST, info_of

pytestmark = pytest.mark.waits

PLAIN = TinyGraph.random(60, 400, seed=5)
TYPED = TinyGraph.random(40, 200, heterogeneous=True)
BUYS = ("user", "buys", "item")
NUM_IDS = (1 << 16) + 50
"""More than one question has: they are asked in several pieces."""
TakePart = Callable[[Any], None]


def plain(rank: int, servers: int) -> DistDataset:
    return PLAIN.partitions(servers)[rank]


def typed(rank: int, servers: int) -> DistDataset:
    return TYPED.partitions(servers)[rank]


@contextmanager
def remote(partition: Any, servers: int, take_part: TakePart) -> Iterator[RemoteDistDataset]:
    """Give the graph of servers in this process."""
    with storage(servers, partition=partition) as endpoints:
        address = (HOST, endpoints[0].address[1])
        with joined(address, servers) as cluster:
            take_part(cluster)
            yield RemoteDistDataset(info_of(servers, 1), 0, timeout=60.0)


class _Held:
    """Look-ups of storage server 1 wait until it is gone; those of one started again do not."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.gone = threading.Event()
        for name in ("get_rows", "get_edges"):
            patch.setattr(StorageService, name, self._waiting(name, getattr(StorageService, name)))

    def _waiting(self, name: str, method: Any) -> Any:
        @functools.wraps(method)
        def wait_and_call(server: StorageService, **arguments: Any) -> Any:
            if server.server_rank == 1 and not self.gone.is_set():
                self.asked.append(name)
                assert self.gone.wait(60)
            return method(server, **arguments)

        return wait_and_call

    def lose(self, endpoint: Endpoint) -> None:
        """End the server once all is asked of it: what comes while it ends is refused."""
        wait_until(lambda: len(self.asked) == 3, "rows, rows and edges are asked for")
        endpoint.close()
        wait_until(lambda: current_cluster().lost == [1], "the client has heard of it")
        self.gone.set()


def whole(rank: int, servers: int) -> DistDataset:
    return PLAIN.partitions(1)[0]


@given(st.data())
def test_edges_of_several_servers_are_put_in_the_order_of_the_nodes(data: st.DataObject) -> None:
    """Against edges that are labelled by their node: ``100 * node + number``."""
    counts = data.draw(st.lists(st.integers(0, 3), max_size=8))
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(counts), max_size=len(counts)))
    positions, parts = [], []
    for owner in sorted(set(owners)) or [0]:
        at = [node for node, one in enumerate(owners) if one == owner]
        edges = [100 * node + number for node in at for number in range(counts[node])]
        positions.append(torch.tensor(at, dtype=torch.int64))
        parts.append(
            {
                "counts": torch.tensor([counts[node] for node in at], dtype=torch.int64),
                "indices": torch.tensor(edges, dtype=torch.int64),
                "edge_ids": torch.tensor(edges, dtype=torch.int64) + 7,
            }
        )
    parts[0]["weights"] = parts[0]["indices"].float()
    found = merged_edges(len(counts), positions, parts)
    expected = [100 * node + number for node, n in enumerate(counts) for number in range(n)]
    assert found.counts.tolist() == counts
    assert found.sources.tolist() == expected
    assert found.edge_ids is not None
    assert found.edge_ids.tolist() == [one + 7 for one in expected]
    assert (found.weights is None) == (len(parts) > 1), "a column that a server lacks is left out"


@pytest.mark.parametrize("how", ["replica", "back", "never"])
def test_a_question_under_way_outlives_its_server(
    how: str, take_part: TakePart, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, (node_type,) = torch.arange(60), PLAIN.num_nodes
    (edge_type,) = PLAIN.edges
    features, _ = PLAIN.node_rows(node_type, ids.tolist())
    held, partition = _Held(monkeypatch), whole if how == "replica" else plain
    with (
        storage(2, partition=partition, rejoin_s=60.0) as (zero, one),
        joined(zero.address, 2) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):
        take_part(cluster)
        dataset = RemoteDistDataset(
            info_of(2, 1), 0, timeout=60.0, reconnect_timeout=0.0 if how == "never" else 60.0
        )
        if how == "replica":
            cluster._holders = [1]
        asked = pool.submit(dataset.get_features, ids)
        later = DistFeature(dataset, "node_features").async_get(ids)
        edges = pool.submit(dataset.lookup.edges, edge_type, ids)
        held.lose(one)
        if how == "never":
            for wait in (asked.result, later.wait, edges.result):
                with pytest.raises(ServerDiedError):
                    wait()
            return
        again = _started_again(zero) if how == "back" else None
        try:
            assert asked.result(60).tolist() == later.wait().tolist() == features
            expected = PLAIN.dataset().view().adjacency[edge_type]
            assert torch.equal(edges.result(60).sources, expected.indices.long())
        finally:
            if again is not None:
                again.close()


def _started_again(zero: Endpoint) -> Endpoint:
    leader = LeaderLink(*zero.address, SECURITY, "server 1", 10.0)
    server = StorageService(plain(1, 2), 1, 2, security=SECURITY)
    again = Endpoint(server, HOST, 0, SECURITY, None, leader, rejoin_s=60.0)
    again.start()
    return again


@pytest.mark.parametrize("most", [1, 3, 20])
def test_edges_beyond_one_answer_are_asked_for_again(
    most: int, take_part: TakePart, constants: Any
) -> None:
    """Nodes are divided over answers, and the edges of a node that has more than one allows."""
    constants(partition_answers, _MOST_EDGES=most)
    (edge_type,) = PLAIN.edges
    adjacency = PLAIN.dataset().view().adjacency[edge_type]
    ids = torch.cat([torch.arange(60), torch.arange(60)])
    with remote(plain, 2, take_part) as dataset:
        found = dataset.lookup.edges(edge_type, ids, edge_ids=True)
        assert torch.equal(found.counts, adjacency.indptr.diff().repeat(2))
        assert torch.equal(found.sources, adjacency.indices.long().repeat(2))
        assert found.edge_ids is not None
        assert found.edge_ids.numel() == found.sources.numel()
        assert dataset.lookup.edges(edge_type, ids[:0]).sources.numel() == 0


@pytest.mark.parametrize("counts", [[], [5]])
def test_a_server_that_answers_for_no_node_is_not_asked_without_end(
    counts: list[int], take_part: TakePart, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {name: torch.empty(0, dtype=torch.int64) for name in ("counts", "indices")}
    nothing["counts"] = torch.tensor(counts, dtype=torch.int64)
    monkeypatch.setattr(StorageService, "get_edges", lambda *_, **__: nothing)
    words = "storage server 0 answered for none of 60 nodes"
    with remote(plain, 1, take_part) as dataset, pytest.raises(ProtocolError, match=words):
        dataset.lookup.edges(next(iter(PLAIN.edges)), torch.arange(60))


@pytest.mark.parametrize(
    ("counts", "indices"),
    [([-1] * 60, 0), ([1] * 61, 61), ([1], 9), ([1, 1], 1), ([2**62] * 4, 0), ([[1, 1]], 2)],
    ids=["negative", "more nodes", "more edges", "fewer edges", "wrapping", "a matrix"],
)
def test_edges_of_a_false_server_are_refused_by_name(
    counts: list[Any], indices: int, take_part: TakePart, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {name: torch.arange(indices) for name in ("indices", "edge_ids")}
    answer["counts"] = torch.tensor(counts)
    monkeypatch.setattr(StorageService, "get_edges", lambda *_, **__: answer)
    words = r"storage server 0 answered (with \d+ edges of .* do not fit|for none of 60 nodes)"
    with remote(plain, 1, take_part) as dataset, pytest.raises(ProtocolError, match=words):
        dataset.lookup.edges(next(iter(PLAIN.edges)), torch.arange(60), edge_ids=True)


@pytest.mark.parametrize("servers", [1, 3])
def test_rows_are_those_of_the_graph(servers: int, take_part: TakePart) -> None:
    ids = torch.randint(40, (NUM_IDS,), generator=torch.Generator().manual_seed(1))
    nodes = list(range(40))
    with remote(plain, servers, take_part) as dataset:
        features, labels = map(torch.tensor, PLAIN.node_rows(next(iter(PLAIN.num_nodes)), nodes))
        assert torch.equal(dataset.get_features(ids), features[ids])
        assert torch.equal(dataset.get_labels(ids), labels[ids])
        times = DistFeature(dataset, "node_attributes").get(ids, (DEFAULT_TYPE, "node_time"))
        assert torch.equal(times, PLAIN.node_attributes(ids)[0])
        none = dataset.get_features(ids[:0])
        assert (none.shape, none.dtype) == ((0, 2), torch.float32)
    with remote(typed, servers, take_part) as dataset:
        for name in ("user", "item"):
            features, labels = map(torch.tensor, TYPED.node_rows(name, nodes))
            assert torch.equal(dataset.get_features(ids, name), features[ids])
            assert torch.equal(dataset.get_labels(ids, name), labels[ids])
        edges = DistFeature(dataset, "edge_features")
        wanted = torch.tensor(TYPED.edge_rows(BUYS, nodes))[ids]
        assert torch.equal(edges[BUYS, ids], wanted)
        assert torch.equal(edges.async_get(ids, BUYS).wait(), wanted)


@pytest.mark.parametrize("servers", [1, 3])
def test_edges_are_those_of_the_graph(servers: int, take_part: TakePart) -> None:
    whole = TYPED.dataset().view().adjacency[BUYS]
    ids = torch.randint(40, (NUM_IDS,), generator=torch.Generator().manual_seed(1))
    with remote(typed, servers, take_part) as dataset:
        found = dataset.lookup.edges(BUYS, ids, edge_ids=True)
    starts = whole.indptr[ids].long()
    counts = whole.indptr[ids + 1].long() - starts
    assert torch.equal(found.counts, counts)
    first = torch.repeat_interleave(starts - (counts.cumsum(0) - counts), counts)
    positions = first + torch.arange(first.numel())
    assert torch.equal(found.sources, whole.indices[positions].long())
    assert found.edge_ids is not None
    assert torch.equal(found.edge_ids, whole.edge_ids_at(positions))
    assert found.weights is None


def test_what_cannot_be_found(take_part: TakePart) -> None:
    with remote(typed, 2, take_part) as dataset:
        for ids, name, text in (
            (torch.tensor([40]), "user", r"\[0, 40\), got 40 to 40"),
            (torch.tensor([-1]), "user", "got -1"),
            (torch.tensor([1.0]), "user", "1-D int64"),
            (torch.tensor([1]), None, "name the type"),
            (torch.tensor([1]), "shop", "'shop'"),
        ):
            with pytest.raises(ConfigError, match=text):
                dataset.get_features(ids, name)
        with pytest.raises(ConfigError, match="no edges"):
            dataset.lookup.edges(("user", "sells", "item"), torch.tensor([1]))
