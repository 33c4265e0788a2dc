"""All edges of given nodes, beside a loop over them, and those that stay of a partition."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.partition.adjacency import all_edges, edges_of, kept_edges
from gigl_loader.dataset.partition.partition_view import Adjacency


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6), st.integers(0, 3), st.data())
def test_edges_come_node_after_node(rows: list[list[int]], first_row: int, data) -> None:
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = torch.tensor([id for row in rows for id in row], dtype=torch.int32)
    weights = torch.arange(indices.numel()) / 2
    adjacency = Adjacency(ends, indices, None, weights, first_row, first_edge=100)
    # nodes past the last row have no edge
    ids = data.draw(st.lists(st.integers(first_row, first_row + len(rows) + 2), max_size=8))
    asked = torch.tensor(ids, dtype=torch.int64)
    found = all_edges(adjacency, asked, weights=True, edge_ids=True)
    expected = [
        (rows[id - first_row][i], position, int(ends[id - first_row]) + i)
        for position, id in enumerate(ids)
        if id - first_row < len(rows)
        for i in range(len(rows[id - first_row]))
    ]
    assert found.positions is not None
    assert found.weights is not None
    assert found.edge_ids is not None
    columns = (found.sources.tolist(), found.targets.tolist(), found.positions.tolist())
    assert list(zip(*columns, strict=True)) == expected
    assert found.sources.dtype == torch.int64
    assert found.weights.tolist() == [position / 2 for _, _, position in expected]
    assert found.edge_ids.tolist() == [100 + position for _, _, position in expected]
    targets = [target for _, target, _ in expected]
    assert found.counts.tolist() == [targets.count(position) for position in range(len(ids))]
    bare = all_edges(adjacency, asked)
    assert (bare.weights, bare.edge_ids) == (None, None)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6), st.integers(0, 3), st.data())
def test_edges_that_stay_keep_their_ids(rows: list[list[int]], first_row: int, data) -> None:
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = torch.tensor([id for row in rows for id in row], dtype=torch.int64)
    count = indices.numel()
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    mask = torch.tensor(keep, dtype=torch.bool)
    for known in (torch.arange(count) * 3, None):
        weights = torch.arange(count) / 4
        whole = Adjacency(
            ends, indices, known, weights, first_row, None if known is not None else 7
        )
        found = kept_edges(whole, mask)
        assert torch.equal(edges_of(found, "in"), edges_of(whole, "in")[:, mask])
        assert torch.equal(edges_of(found, "out"), edges_of(whole, "in").flip(0)[:, mask])
        ids = torch.arange(count) + 7 if known is None else known
        assert found.edge_ids is not None
        assert found.weights is not None
        assert torch.equal(found.edge_ids, ids[mask])
        assert torch.equal(found.weights, weights[mask])
        assert found.indptr.numel() == len(rows) + 1
