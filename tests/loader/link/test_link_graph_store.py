"""The loader over a graph store of two servers, for two compute processes."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import (
    ABLPInputNodes,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    RemoteDistDataset,
)
from gigl_loader.dataset.schema import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.ablp import zip_with_negatives
from gigl_loader.testing import batch_tensors, run_cluster
from tests.loader.link.link_reference import (
    BUYS,
    KNOWS,
    E,
    check,
    check_same,
    collate,
    expect,
    fanouts_of,
    ring,
    sample,
    shop,
)

pytestmark = pytest.mark.multiprocess


def _loader(dataset, num_neighbors, nodes, **how) -> DistABLPLoader:
    how = {"batch_size": 4, "seed": 1, "with_edge": True, **how}
    return DistABLPLoader(dataset, num_neighbors, nodes, **how)


def _lists(graph, *hops):
    return {edge_type: list(fanout) for edge_type, fanout in fanouts_of(graph, *hops).items()}


def _fetch(remote, rank, edge_type, split=None) -> dict[int, ABLPInputNodes]:
    asked = None if edge_type == E else edge_type
    return remote.fetch_ablp_input(split, rank, 2, supervision_edge_type=asked)


def _check_input(graph, nodes, edge_type, split) -> list[int]:
    """Check the labels of each anchor; return the anchors of all servers."""
    anchors = []
    for one in nodes.values():
        assert one.anchor_node_type == edge_type[0]
        given = (one.positive_labels, one.negative_labels or {})
        types = (message_passing_to_positive_label, message_passing_to_negative_label)
        for labels, label_type, pairs in zip(given, types, graph.labels[edge_type], strict=True):
            assert set(labels) == ({label_type(edge_type)} if pairs is not None else set())
            for anchor, row in zip(
                one.anchor_nodes.tolist(), labels.get(label_type(edge_type), []), strict=False
            ):
                assert row[row >= 0].tolist() == sorted(n for a, n in pairs if a == anchor)
        anchors += one.anchor_nodes.tolist()
    if split == "train":
        assert all(anchor % 3 for anchor in anchors)
    return anchors


def _all_ranks(anchors: list[int]) -> list[int]:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, anchors)
    return sorted(chain.from_iterable(found))


def _check_loader(loader, graph, supervision, nodes, edge_dir, exclude=()) -> None:
    fanouts = fanouts_of(graph, -1, -1)
    anchors = []
    for batch in loader:
        seeds = (batch["user"] if graph.heterogeneous else batch).batch.tolist()
        expected = expect(graph, seeds, supervision, fanouts, edge_dir=edge_dir, exclude=exclude)
        check(batch, graph, expected, supervision, edge_dir=edge_dir)
        anchors += seeds
    assert sorted(anchors) == sorted(n for one in nodes.values() for n in one.anchor_nodes.tolist())


def _check_like_colocated(loader, graph, supervision, fanout, edge_dir) -> None:
    """Check that each batch is, bit for bit, the one that a single partition gives."""
    whole = graph.partitions(edge_dir=edge_dir)
    for number, batch in enumerate(loader):
        seeds = (batch["user"] if graph.heterogeneous else batch).batch.tolist()
        message = sample(
            whole,
            seeds,
            supervision,
            fanouts_of(graph, *fanout),
            number=number,
            with_edge=True,
            with_weight=True,
            exclude=tuple(graph.edges),
        )
        alike = collate(message, whole[0], supervision, as_edge_index=True)
        check_same(batch_tensors(batch), batch_tensors(alike), {"input_id"})


def _use_shop(info, rank: int) -> None:
    graph, remote = shop(), RemoteDistDataset(info, rank)
    whole = {t: _fetch(remote, rank, t) for t in (BUYS, KNOWS)}
    for edge_type, nodes in whole.items():
        anchors = _check_input(graph, nodes, edge_type, None)
        assert _all_ranks(anchors) == list(range(22))
    train = _fetch(remote, rank, BUYS, "train")
    found = _check_input(graph, train, BUYS, "train")
    assert _all_ranks(found) == [n for n in range(22) if n % 3]
    with _loader(remote, _lists(graph, -1, -1), whole[BUYS]) as loader:
        _check_loader(loader, graph, [BUYS], whole[BUYS], "in")
    both = {  # several supervision edge types, merged by hand
        server: ABLPInputNodes(
            one.anchor_nodes, "user", {**one.labels, **whole[KNOWS][server].labels}
        )
        for server, one in whole[BUYS].items()
    }
    with _loader(
        remote, _lists(graph, -1, -1), both, exclude_supervision=True, shuffle=True
    ) as loader:
        for _ in range(2):
            _check_loader(loader, graph, [BUYS, KNOWS], both, "in", tuple(graph.edges))
    how = {"use_label_edge_index_output": True, "exclude_supervision": True, "with_weight": True}
    with _loader(remote, _lists(graph, 2, 1), train, **how) as loader:
        _check_like_colocated(loader, graph, [BUYS], (2, 1), "in")
    items = ("item", remote.fetch_node_ids(rank, 2, node_type="item"))
    with (
        _loader(remote, [2], train) as links,
        DistNeighborLoader(remote, [2], items, batch_size=3) as random_items,
    ):
        for batch, negatives in zip_with_negatives(links, random_items):
            assert batch.y_positive.keys() == set(range(batch["user"].batch_size))
            assert negatives["item"].batch.numel() <= 3
    _check_refusals(remote, whole[BUYS])


def _check_refusals(remote, nodes) -> None:
    anchors = {server: one.anchor_nodes for server, one in nodes.items()}
    for given, how, match in (
        (("user", anchors), {}, "server_rank: ABLPInputNodes"),
        (anchors, {}, "server_rank: ABLPInputNodes"),
        (nodes, {"supervision_edge_type": BUYS}, "belongs to colocated mode"),
        (nodes, {"exclude_supervision": [KNOWS]}, "cannot hold copies"),
        ({9: nodes[0]}, {}, "storage servers .9."),
    ):
        with pytest.raises(ConfigError, match=match):
            _loader(remote, [2], given, **how)


def _use_ring(info, rank: int) -> None:
    graph, remote = ring(), RemoteDistDataset(info, rank)
    nodes = _fetch(remote, rank, E)
    assert _all_ranks(_check_input(graph, nodes, E, None)) == list(range(13))
    with _loader(remote, [-1, -1], nodes) as loader:
        _check_loader(loader, graph, [E], nodes, "out")
    how = {"use_label_edge_index_output": True, "exclude_supervision": [E], "with_weight": True}
    one_server = {rank: nodes[rank]}  # the other server has nothing to do
    with _loader(remote, [1, 2], one_server, **how) as loader:
        assert len(loader) == -(-len(nodes[rank].anchor_nodes) // 4)
        _check_like_colocated(loader, graph, [E], (1, 2), "out")


def _shop_partition(rank: int, servers: int) -> DistDataset:
    return shop().partitions(servers)[rank]


def _ring_partition(rank: int, servers: int) -> DistDataset:
    return ring().partitions(servers, edge_dir="out")[rank]


def test_heterogeneous_graph(tmp_path: Path) -> None:
    run_cluster(_use_shop, dataset=_shop_partition, tmp_path=tmp_path)


def test_labeled_homogeneous_graph(tmp_path: Path) -> None:
    run_cluster(_use_ring, dataset=_ring_partition, tmp_path=tmp_path)


def test_reference_graphs_have_what_the_tests_need() -> None:
    positives, negatives = shop().labels[BUYS]
    assert set(positives) & set(shop().edges[BUYS])  # something to exclude
    assert negatives
    assert len(shop().edges) == 20
    assert len({a for a, _ in positives}) < 20  # anchors without labels
    assert torch.tensor(ring().edges[E]).max() < 12  # node 12 is isolated
