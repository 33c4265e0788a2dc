"""Edges by time: of the edge, of the neighbour, and of another partition's neighbour."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader import ConfigError, DistDataset
from gigl_loader.dataset.partition.adjacency import check_time_attr, with_times
from gigl_loader.dataset.partition.partition_view import keys_of
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E
from gigl_loader.dataset.schema import EdgeDir
from tests.support.draws import examples

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=20)


def _data(pairs: list[tuple[int, int]], **attributes) -> Data:
    ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    return Data(edge_index=ends, num_nodes=5, **attributes)


def _by_row(view, edge_type=E) -> dict[int, list[tuple[int, int]]]:
    """Return (time, edge id) of each row, in the order by time."""
    edges, times = view.adjacency[edge_type], view.times[edge_type]
    ptr = edges.indptr.tolist()
    return {
        row + edges.first_row: list(
            zip(times.times[a:b].tolist(), edges.edge_ids[times.order[a:b]].tolist(), strict=True)
        )
        for row, (a, b) in enumerate(pairwise(ptr))
        if a < b
    }


@given(PAIRS, st.sampled_from(["in", "out"]), st.data())
def test_rows_ascend_by_time_and_then_as_they_did(pairs, edge_dir: EdgeDir, data) -> None:
    times = data.draw(st.lists(st.integers(-2, 2), min_size=len(pairs), max_size=len(pairs)))
    if len(pairs) == 5:  # PyG would take them for those of nodes
        return
    graph = _data(pairs, when=torch.tensor(times, dtype=torch.int64))
    view = with_times(DistDataset.from_pyg(graph, edge_dir=edge_dir).view(), "when")
    expected: dict[int, list] = {}
    for edge_id, (src, dst) in enumerate(pairs):
        row, neighbor = (dst, src) if edge_dir == "in" else (src, dst)
        expected.setdefault(row, []).append((times[edge_id], neighbor, edge_id))
    assert _by_row(view) == {
        row: [(time, edge_id) for time, _, edge_id in sorted(entries)]
        for row, entries in expected.items()
    }
    assert not view.times[E].is_float


@settings(max_examples=examples(30))
@given(PAIRS, st.sampled_from(["in", "out"]))
def test_neighbours_times_are_the_same_over_partitions(pairs, edge_dir: EdgeDir) -> None:
    if len(pairs) == 5:
        return
    graph = _data(pairs, when=torch.tensor([0.5, -3, 7, 0, 7]))
    whole = with_times(DistDataset.from_pyg(graph, edge_dir=edge_dir).view(), "when")
    rows: dict[int, Any] = {}
    for index in range(2):
        book = torch.tensor([0, 1, 1, 0, 1])
        part = DistDataset.from_pyg(
            graph,
            edge_dir=edge_dir,
            partition_book=book,
            partition_idx=index,
            time_attr="when",
            num_partitions=2,
        )
        rows |= _by_row(with_times(part.view(), "when"))
    assert rows == _by_row(whole)
    keys = keys_of(graph.when.numpy(), is_float=True)
    by_id = {i: int(keys[pair[0 if edge_dir == "in" else 1]]) for i, pair in enumerate(pairs)}
    assert all(time == by_id[edge_id] for row in rows.values() for time, edge_id in row)


def test_types_are_of_nodes_or_of_edges_and_all_floats_or_none() -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 3, 2
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 0]])
    data["b", "to", "a"].edge_index = torch.tensor([[0], [2]])
    data["a"].when, data["b"].when = torch.tensor([3, 1, 2]), torch.tensor([0.5, 1.5])
    view = DistDataset.from_pyg(data).view()
    assert check_time_attr(view, "when")
    found = with_times(view, "when").times
    assert [order.is_float for order in found.values()] == [True, True]
    del data["b"].when
    found = with_times(DistDataset.from_pyg(data).view(), "when").times
    assert list(found) == [("a", "to", "b")], "the other type has neighbours without times"
    assert found["a", "to", "b"].order.tolist() == [1, 0]
    data["a", "to", "b"].age = torch.tensor([3, 4])
    assert not check_time_attr(DistDataset.from_pyg(data).view(), "age")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, r"no attribute of nodes or edges: there are \['other'\]"),
        ({"when": torch.ones(5, 2)}, r"one number each, got \[5, 2\]"),
        ({"when": torch.ones(5, dtype=torch.bool)}, "torch.bool"),
        ({"when": torch.full((5,), torch.nan, dtype=torch.bfloat16)}, "5 are not a number"),
    ],
)
def test_what_cannot_be_a_time(attributes: dict, message: str) -> None:
    data = _data([(0, 1), (1, 2)], other=torch.ones(5), **attributes)
    with pytest.raises(ConfigError, match=message):
        with_times(DistDataset.from_pyg(data).view(), "when")


def test_times_that_other_partitions_have() -> None:
    data = _data([(0, 1), (1, 2)], when=torch.arange(5))
    part = DistDataset.from_pyg(data, partition_book=torch.tensor([0, 1, 0, 0, 0]))
    with pytest.raises(ConfigError, match=r"partition 0 of 2 alone.*time_attr='when'"):
        with_times(part.view(), "when")


def test_an_attribute_of_both_or_of_no_neighbour() -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 3, 2
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 0]])
    data["b"].when = torch.tensor([1, 2])
    with pytest.raises(ConfigError, match="no node type that is ever a neighbour"):
        with_times(DistDataset.from_pyg(data).view(), "when")
    data["a", "to", "b"].when = torch.tensor([1, 2])
    with pytest.raises(ConfigError, match=r"of nodes \['b'\] and of edges"):
        with_times(DistDataset.from_pyg(data).view(), "when")
