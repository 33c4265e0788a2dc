"""`hop` of each node: the distance from its seeds along sampled edges, by a search of its own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader, RemoteDistDataset
from gigl_loader.graph_store import GraphStoreInfo
from gigl_loader.testing import TinyGraph, run_cluster

GRAPH = TinyGraph.random(60, 240, seed=7)
HOW: dict[str, Any] = {"batch_size": 6, "seed": 4, "with_hop": True, "num_workers": 0}
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def _distances(
    edges: Iterable[tuple[Any, Any, torch.Tensor]], nodes: dict[Any, int], roots: dict[Any, int]
) -> dict[Any, list[int]]:
    """Walk from the roots against the edges, one step at a time."""
    found = {name: [-1] * count for name, count in nodes.items()}
    for name, count in roots.items():
        found[name][:count] = [0] * count
    links = [(src, dst, pair) for src, dst, index in edges for pair in index.t().tolist()]
    for step in range(1, 9):
        for src, dst, (neighbor, node) in links:
            if found[dst][node] == step - 1 and found[src][neighbor] == -1:
                found[src][neighbor] = step
    return found


def _check(batch: Any, num_roots: int) -> None:
    count, edges = batch.n_id.numel(), batch.edge_index
    if "pad_node_mask" in batch:
        count, edges = int(batch.pad_node_mask.sum()), edges[:, batch.pad_edge_mask]
        num_roots = int(batch.seed_mask.sum())
    expected = _distances([("", "", edges)], {"": count}, {"": num_roots})[""]
    assert batch.hop[:count].tolist() == expected
    assert batch.hop.dtype == torch.int64
    assert not batch.hop[count:].any(), "dead nodes"


def _check_all(loader: DistNeighborLoader) -> None:
    with loader:
        for batch in loader:
            _check(batch, batch.batch_size)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"disjoint": True},
        {"sampling_method": "labor"},
        {"pad": True},
        {"pad": {"nodes": 50, "edges": 90}},
        pytest.param({"num_workers": 2}, marks=pytest.mark.multiprocess),
    ],
    ids=str,
)
def test_nodes_are_as_far_as_a_search_finds_them(how: dict[str, Any]) -> None:
    _check_all(DistNeighborLoader(GRAPH.dataset(), [3, 2, 2], **{**HOW, **how}))


def _hops(dataset: DistDataset, **more: Any) -> list[tuple[list[int], list[int]]]:
    with DistNeighborLoader(dataset, [3, 2], **HOW, **more) as loader:
        return [(batch.n_id.tolist(), batch.hop.tolist()) for batch in loader]


@pytest.mark.parametrize("kind", ["induced", "bidirectional"])
def test_hops_are_those_of_the_sampled_edges_whatever_edges_are_given(kind: Any) -> None:
    directional = _hops(GRAPH.dataset())
    assert _hops(GRAPH.dataset(), subgraph_type=kind) == directional


@pytest.mark.parametrize("kernels", ["torch", "warp"])
def test_a_device_gives_the_same(kernels: Any) -> None:
    assert _hops(GRAPH.dataset().to("cpu", kernels=kernels)) == _hops(GRAPH.dataset())


def test_both_ends_of_seed_edges_are_roots() -> None:
    with DistLinkNeighborLoader(
        GRAPH.dataset(), [3, 2], edge_label_index=GRAPH.to_pyg().edge_index[:, :12], **HOW
    ) as loader:
        for batch in loader:
            _check(batch, batch.edge_label_index.unique().numel())


def _typed() -> HeteroData:
    draw = torch.Generator().manual_seed(5)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.rand(40, 2), torch.rand(15, 2)
    data[CITES].edge_index = torch.randint(40, (2, 120), generator=draw)
    data[WRITES].edge_index = torch.stack(
        [torch.randint(15, (90,), generator=draw), torch.randint(40, (90,), generator=draw)]
    )
    return data


def test_each_type_has_its_own() -> None:
    with DistNeighborLoader(
        DistDataset.from_pyg(_typed()), [3, 2], ("paper", torch.arange(20)), **HOW
    ) as loader:
        for batch in loader:
            nodes = {name: batch[name].n_id.numel() for name in batch.node_types}
            edges = [
                (src, dst, batch[src, to, dst].edge_index) for src, to, dst in batch.edge_types
            ]
            found = _distances(edges, nodes, {"paper": batch["paper"].batch_size})
            assert {name: batch[name].hop.tolist() for name in nodes} == found


def test_without_the_keyword_there_is_none() -> None:
    with DistNeighborLoader(GRAPH.dataset(), [3], **{**HOW, "with_hop": False}) as loader:
        assert "hop" not in next(iter(loader))


def _partition(rank: int, count: int) -> DistDataset:
    return DistDataset.from_pyg(
        GRAPH.to_pyg(),
        partition_book=torch.arange(60) * count // 60,
        partition_idx=rank,
        num_partitions=count,
    )


def _use_store(info: GraphStoreInfo, rank: int, expected: list[list[int]]) -> None:
    seeds = {0: torch.arange(60)}
    with DistNeighborLoader(
        RemoteDistDataset(info, rank), [3, 2], seeds, **{**HOW, "num_workers": 1}
    ) as loader:
        batches = [*loader]
    for batch in batches:
        _check(batch, batch.batch_size)
    assert [batch.hop.tolist() for batch in batches] == expected


@pytest.mark.multiprocess
def test_servers_give_the_same(tmp_path: Path) -> None:
    with DistNeighborLoader(GRAPH.dataset(), [3, 2], torch.arange(60), **HOW) as loader:
        expected = [batch.hop.tolist() for batch in loader]
    run_cluster(_use_store, expected, dataset=_partition, tmp_path=tmp_path, servers=2, clients=1)
