"""Where a graph store is, and what processes of one machine fetch together."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from store_cluster import info_of

from gigl_loader import RemoteDistDataset
from gigl_loader.dataset.schema import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.dataset.shares import Share
from gigl_loader.errors import ConfigError, PeerTimeoutError, ServerDiedError, UsageError
from gigl_loader.remote import dataset as dataset_module
from gigl_loader.remote.dataset import ABLPInputNodes, _nodes_of

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


def test_labels_are_cut_with_their_anchors_and_named_by_either_edge_type() -> None:
    anchors = torch.arange(5)
    positives, negatives = anchors.view(5, 1) * 10, anchors.view(5, 1) * 100
    whole = ABLPInputNodes(
        anchors, "user", {BUYS: (positives, negatives), LIKES: (positives, None)}
    )
    part = whole.cut(Share(1, 2, 2))
    assert part.anchor_nodes.tolist() == [2, 3, 4]
    assert part.labels[BUYS][0].view(-1).tolist() == [20, 30, 40]
    assert part.labels[BUYS][1].view(-1).tolist() == [200, 300, 400]
    assert part.labels[LIKES][1] is None
    assert list(part.positive_labels) == [
        message_passing_to_positive_label(one) for one in (BUYS, LIKES)
    ]
    assert part.negative_labels is not None
    assert list(part.negative_labels) == [message_passing_to_negative_label(BUYS)]
    none = ABLPInputNodes(anchors, "user", {LIKES: (positives, None)})
    assert none.negative_labels is None
    again = _nodes_of(("user", anchors, whole.positive_labels, whole.negative_labels))
    assert again.labels.keys() == whole.labels.keys()
    assert again.labels[BUYS][1] is negatives
    assert again.labels[LIKES] == (positives, None)
    assert _nodes_of(("user", anchors, none.positive_labels, None)).labels[LIKES][1] is None


def test_what_is_shared_is_shared_whole() -> None:
    with pytest.raises(ConfigError, match="given together"):
        RemoteDistDataset(info_of(1, 1), 0, {})
    with pytest.raises(ConfigError, match="given together"):
        RemoteDistDataset(info_of(1, 1), 0, mp_barrier=threading.Barrier(1))


def _together(fetches: list[Callable[[], Any]], key: str = "ids") -> list[Any]:
    """Return what each process of a machine gets, or its error; here they are threads."""
    shared: dict[str, Any] = {}
    barrier = threading.Barrier(len(fetches))

    def fetch(rank: int) -> Any:
        dataset = RemoteDistDataset(info_of(1, 1), rank, shared, barrier)
        try:
            return dataset._once((key,), fetches[rank])
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(fetches)) as pool:
        return list(pool.map(fetch, range(len(fetches))))


def _never() -> Any:
    raise AssertionError("local rank 0 fetches for all")


def test_local_rank_0_fetches_for_all_and_tells_of_its_failure() -> None:
    fetched = _together([lambda: {0: (torch.arange(3), "text")}, _never, _never])
    assert all(one is fetched[0] for one in fetched)
    tensor, text = fetched[0][0]
    assert (tensor.tolist(), tensor.is_shared(), text) == ([0, 1, 2], True, "text")

    def fail() -> Any:
        raise ServerDiedError("storage server 0 is gone")

    for one in _together([fail, _never]):
        assert isinstance(one, ServerDiedError)


def test_a_fetch_that_failed_may_be_made_again() -> None:
    """The error is not kept for good, and each process gets that of the same attempt."""
    shared: dict[str, Any] = {}
    barrier, luck = threading.Barrier(3), iter([ServerDiedError("once"), ServerDiedError("twice")])

    def fetch() -> str:
        error = next(luck, None)
        if error is not None:
            raise error
        return "ids"

    def four_times(rank: int) -> list[str]:
        dataset = RemoteDistDataset(info_of(1, 1), rank, shared, barrier)
        found = []
        for _ in range(4):
            try:
                found.append(dataset._once(("ids",), fetch))
            except ServerDiedError as error:
                found.append(str(error))
        return found

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(four_times, range(3))) == [["once", "twice", "ids", "ids"]] * 3


def test_who_fetches_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(1)
    other = RemoteDistDataset(info_of(1, 1), 1, {}, barrier)
    with pytest.raises(ConfigError, match=r"local rank 0 did not fetch \('ids', 'train'\)"):
        other._once(("ids", "train"), _never)
    monkeypatch.setattr(dataset_module, "_SHARING_TIMEOUT_S", 0.01)
    alone = RemoteDistDataset(info_of(1, 1), 1, {}, threading.Barrier(2))
    with pytest.raises(PeerTimeoutError, match=r"local rank 1: .* did not all fetch \('ids',\)"):
        alone._once(("ids",), _never)


def test_the_schema_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(self: Any, name: str, requests: dict[int, Any]) -> dict[int, Any]:
        asked.append((name, requests))
        return dict.fromkeys(requests, "a schema")

    monkeypatch.setattr(RemoteDistDataset, "_ask_each", answer)
    dataset = RemoteDistDataset(info_of(2, 1), 0)
    assert [dataset.fetch_schema(), dataset.fetch_schema()] == ["a schema"] * 2
    assert asked == [("get_schema", {0: ()})]
