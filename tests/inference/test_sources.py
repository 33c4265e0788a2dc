"""Where inference has its graph from: partitions, and a graph store that is stood in for here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError
from gigl_loader.inference.graph_sources import (
    KeptTensors,
    PartitionGraph,
    RangeShares,
    StoredGraph,
)
from tests.inference import full_jobs, typed_layers
from tests.inference.exchange_in_threads import ThreadExchange, run_threads
from tests.support.draws import examples

DATA = full_jobs.graph()
ALONE: Any = SimpleNamespace(rank=0, size=1, gather=lambda value, kind: [value])


@given(st.integers(0, 40), st.integers(1, 7))
def test_ranges_are_all_nodes_in_order(count: int, world: int) -> None:
    shares = [
        RangeShares({NODE: count}, SimpleNamespace(rank=rank, size=world))  # type: ignore[arg-type]  # a stand-in
        for rank in range(world)
    ]
    sizes = [one.own_ids[NODE].numel() for one in shares]
    assert max(sizes) - min(sizes) <= 1
    assert torch.cat([one.own_ids[NODE] for one in shares]).tolist() == list(range(count))
    wanted = [rank for rank, size in enumerate(sizes) for _ in range(size)]
    for one in shares:
        assert one.owner(NODE, torch.arange(count)).tolist() == wanted


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(1, 3), st.booleans(), st.booleans())
def test_edges_of_a_partition(world: int, weight: bool, attr: bool) -> None:
    def job(exchange: ThreadExchange) -> None:
        dataset = full_jobs.partition(DATA, exchange.rank, world)
        graph = PartitionGraph(dataset, exchange)
        assert (graph.edge_types, graph.weighted, graph.with_attr) == ([EDGE], {EDGE}, {EDGE})
        ids = graph.owners.own_ids[NODE][exchange.rank :: 2]
        found = graph.edges(EDGE, ids, weight=weight, attr=attr)
        assert torch.equal(found.targets, found.targets.sort().values)
        for position, node in enumerate(ids.tolist()):
            mine, wanted = found.targets == position, DATA.edge_index[1] == node
            assert torch.equal(found.sources[mine], DATA.edge_index[0, wanted])
            if weight:
                assert found.weights is not None
                assert torch.equal(found.weights[mine], DATA.edge_weight[wanted])
            if attr:
                assert found.attr is not None
                assert torch.equal(found.attr[mine], DATA.edge_attr[wanted])
        assert (found.weights is None, found.attr is None) == (not weight, not attr)

    run_threads(world, job)


def _changed(**values: Any) -> PartitionGraph:
    data = DATA.clone()
    for name, value in values.items():
        data[name] = value
    return PartitionGraph(full_jobs.partition(data, 0, 1), ALONE)


def test_digests_tell_graphs_apart() -> None:
    x, weight = DATA.x.clone(), DATA.edge_weight.clone()
    x[7, 2] += 1
    weight[97] += 1
    other = full_jobs.graph(seed=1)
    same = _changed().digest()
    assert _changed().digest() == same
    for one in (_changed(x=x), _changed(edge_weight=weight), _changed(edge_index=other.edge_index)):
        assert one.digest() != same


def test_what_a_node_reads_is_its_own_row_and_those_of_its_neighbours() -> None:
    assert _changed().bytes_with_neighbors() == (1 + 420 / 60) * full_jobs.WIDTH * 4


class _Store:
    identity = "run digest"

    """Stands in for a `RemoteDistDataset` with ``edge_dir="in"``; counts what it is asked."""

    def __init__(self, with_edge_ids: bool = True) -> None:
        self.asked: list[tuple[int, bool, bool]] = []
        self.lookup, self._with_edge_ids = self, with_edge_ids

    def fetch_graph_identity(self) -> str:
        return self.identity

    def fetch_schema(self) -> Any:
        info = SimpleNamespace(dim=full_jobs.EDGE_WIDTH)
        return SimpleNamespace(edge_feature_info=info, edge_types=None, edge_dir="in")

    def fetch_node_types(self) -> None:
        return None

    def fetch_num_nodes(self) -> dict[str, int]:
        return {NODE: 60}

    def fetch_node_feature_info(self) -> Any:
        return SimpleNamespace(dim=full_jobs.WIDTH)

    def edges(self, name: Any, ids: Tensor, *, weights: bool, edge_ids: bool = False) -> Any:
        self.asked.append((ids.numel(), weights, edge_ids))
        positions = [(DATA.edge_index[1] == node).nonzero().view(-1) for node in ids.tolist()]
        chosen = torch.cat([torch.empty(0, dtype=torch.int64), *positions])
        return SimpleNamespace(
            sources=DATA.edge_index[0, chosen],
            counts=torch.tensor([len(p) for p in positions]),
            weights=DATA.edge_weight[chosen] if weights else None,
            edge_ids=chosen if edge_ids and self._with_edge_ids else None,
        )

    def rows(self, kind: str, name: Any, ids: Tensor) -> Tensor:
        return {"edge_features": DATA.edge_attr, "node_features": DATA.x}[kind][ids]


@pytest.mark.parametrize("kept_where", [None, "memory", "file"])
def test_edges_of_a_store_are_those_of_a_partition(kept_where: Any, tmp_path: Any) -> None:
    store: Any = _Store()
    graph, wanted = StoredGraph(store, ALONE), _changed()
    assert (graph.weighted, graph.with_attr) == ({EDGE}, {EDGE})
    assert not graph.is_heterogeneous
    kept = None
    if kept_where is not None:
        kept = KeptTensors(tmp_path if kept_where == "file" else None)
        graph.keep_edges(kept, weight=True, attr=True)
    store.asked.clear()
    for weight, attr in ((False, False), (True, True), (True, False)):
        for start in (0, 20, 40, 60):
            ids = torch.arange(start, min(start + 20, 60))
            found = graph.edges(EDGE, ids, weight=weight, attr=attr)
            other = wanted.edges(EDGE, ids, weight=weight, attr=attr)
            for name, value in vars(other).items():
                mine = vars(found)[name]
                assert (mine is None) == (value is None), name
                if value is not None:
                    assert mine.dtype == value.dtype
                    assert torch.equal(mine, value), name
    asked = [one for one in store.asked if one[0]]
    if kept is None:
        assert len(asked) == 9
    else:
        assert asked == [(20, True, True)] * 3, "once, with all that any layer reads"
        kept.close()


def test_features_of_edges_without_ids_cannot_be_found() -> None:
    store: Any = _Store(with_edge_ids=False)
    graph = StoredGraph(store, ALONE)
    with pytest.raises(ConfigError, match="have no ids to look their features up by"):
        graph.edges(EDGE, torch.arange(3), weight=False, attr=True)


def test_a_stored_graph_is_measured_by_a_sample() -> None:
    store: Any = _Store()
    graph = StoredGraph(store, ALONE)
    assert graph.bytes_with_neighbors() == (1 + 420 / 60) * full_jobs.WIDTH * 4
    before = graph.digest()
    assert before == StoredGraph(store, ALONE).digest()
    store.identity = "other servers"
    assert graph.digest() != before, "the rows that were sampled are the same"
    (rows,) = graph.features().values()
    assert torch.equal(rows(torch.tensor([5, 5])), DATA.x[[5, 5]])  # type: ignore[operator]  # is a function here


def test_types_of_a_partition_are_named_as_messages_go() -> None:
    data = typed_layers.graph()
    dataset: Any = DistDataset.from_pyg(data, edge_dir="out")
    graph = PartitionGraph(dataset, ALONE)
    assert graph.is_heterogeneous
    assert graph.edge_types == sorted(graph.edge_types)
    assert {name[::-2] for name in graph.edge_types} == {t[::2] for t in typed_layers.TYPES}
    assert len(graph.weighted) == len(graph.with_attr) == 1
