"""All edges of given nodes, beside a loop over them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.neighbours import all_edges
from gigl_loader.dataset.view import Adjacency


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6), st.integers(0, 3), st.data())
def test_edges_come_node_after_node(rows: list[list[int]], first_row: int, data) -> None:
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    indices = torch.tensor([id for row in rows for id in row], dtype=torch.int32)
    adjacency = Adjacency(ends, indices, None, None, first_row)
    # nodes past the last row have no edge
    ids = data.draw(st.lists(st.integers(first_row, first_row + len(rows) + 2), max_size=8))
    found = all_edges(adjacency, torch.tensor(ids, dtype=torch.int64))
    expected = [
        (rows[id - first_row][i], position, int(ends[id - first_row]) + i)
        for position, id in enumerate(ids)
        if id - first_row < len(rows)
        for i in range(len(rows[id - first_row]))
    ]
    columns = (found.sources.tolist(), found.targets.tolist(), found.positions.tolist())
    assert list(zip(*columns, strict=True)) == expected
    assert found.sources.dtype == torch.int64
