"""Graphs, features and books that stand in for those of GLT; see `test_glt_classes` for both."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError, NativeLibraryError
from gigl_loader.runtime.glt_classes import topology as parts


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=30),
    st.sampled_from([7, 2**62]),  # 5 * 2**62 does not fit into one sort key
)
def test_edges_ascend_by_row_and_column_and_equal_ones_stay(
    edges: list[tuple[int, int]], num_cols: int
) -> None:
    row, col = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).unbind(1)
    order = parts.row_major_order(row, col, (5, num_cols)).tolist()
    assert order == sorted(range(len(edges)), key=lambda i: (edges[i], i))
    offsets = parts.row_offsets(row, 5)
    assert offsets.tolist() == [sum(r < n for r, _ in edges) for n in range(6)]
    assert parts._expand(offsets).tolist() == sorted(r for r, _ in edges)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20),
    st.sampled_from(["COO", "CSR", "CSC"]),
    st.sampled_from(["CSR", "CSC"]),
)
def test_edges_keep_ids_and_weights_from_any_layout_to_any_other(
    edges: list[tuple[int, int]], given_as: str, kept_as: str
) -> None:
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    ids = torch.arange(len(edges)) + 100
    first = parts.Topology(index, ids, ids / 2, layout="CSC" if given_as == "CSC" else "CSR")
    source, target, ids, weights = (
        first.to_coo() if given_as == "COO" else getattr(first, f"to_{given_as.lower()}")()
    )
    found = parts.Topology((source, target), ids, weights, given_as, kept_as)
    assert found.row_count == len(found.degrees)
    source, target, ids, weights = found.to_coo()
    assert weights is not None
    assert weights.dtype == torch.float32
    told = zip(ids.tolist(), source.tolist(), target.tolist(), weights.tolist(), strict=True)
    assert sorted(told) == [(i + 100, *edge, 50 + i / 2) for i, edge in enumerate(edges)]


def test_rows_of_no_matrix() -> None:
    """Rows by anything that is indexed, and of any number of dimensions."""
    feature = parts.Feature(
        np.arange(8.0).reshape(2, 2, 2), parts.OffsetId2Index(10), with_gpu=False, dtype=None
    )
    assert feature[torch.tensor([11])].tolist() == [[[4.0, 5.0], [6.0, 7.0]]]
    assert feature.feature_tensor.dtype == torch.float64


def test_tensors_are_found_wherever_they_are() -> None:
    data = {"a": np.array([1, 2]), "b": (torch.tensor([3]), "text", None)}
    found = parts.as_tensors(data, torch.int32)
    assert found["a"].tolist() == [1, 2]
    assert found["a"].dtype == found["b"][0].dtype == torch.int32
    assert found["b"][1:] == ("text", None)
    doubled = parts.each(found, lambda one: one * 2)
    assert doubled["b"][0].tolist() == [6]
    assert found["b"][0].tolist() == [3]
    assert parts.shared(found)["a"].is_shared()


@pytest.mark.parametrize("count", [1, 3])
def test_a_table_of_owners(count: int) -> None:
    book = torch.tensor([2, 0, 2, 1, 0]) % count
    owned = [parts.owned_by(book, i) for i in range(count)]
    assert torch.cat(owned).sort().values.tolist() == [0, 1, 2, 3, 4]
    for i, ids in enumerate(owned):
        assert torch.equal(ids, ids.sort().values)
        assert (book[ids] == i).all()
    assert parts.selected(torch.tensor([5, 6]), torch.tensor([True, False])).tolist() == [5]


def test_gpu_parts_are_refused_with_the_way_out() -> None:
    graph = parts.Graph(parts.Topology(torch.tensor([[0], [1]])), "CUDA")
    with pytest.raises(NativeLibraryError, match='graph_mode="CPU"'):
        graph.lazy_init()
    with pytest.raises(NativeLibraryError, match='graph_mode="CPU"'):
        graph.row_count  # noqa: B018
    with pytest.raises(NativeLibraryError, match="with_gpu=False"):
        parts.Feature(torch.ones(1, 1))


def test_malformed_parts_are_refused() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ConfigError, match="edge_ids has 1 entries for 2 edges"):
        parts.Topology(edges, torch.tensor([0]))
    with pytest.raises(ConfigError, match="edge_weights has 3 entries for 2 edges"):
        parts.Topology(edges, edge_weights=torch.ones(3))
    with pytest.raises(ConfigError, match="cannot be read as 'CSX'"):
        parts.Topology(edges, input_layout="CSX")
    with pytest.raises(ConfigError, match="kept as 'COO'"):
        parts.Topology(edges, layout="COO")
    with pytest.raises(ConfigError, match="2 sources"):
        parts.Topology((edges[0], edges[0, :1]))
    with pytest.raises(ConfigError, match="leave gaps or overlap"):
        parts.RangePartitionBook([(0, 3), (2, 5)], 0)
