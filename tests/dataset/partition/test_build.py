"""Edges in canonical order, books and indexes of rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.partition import adjacency
from gigl_loader.dataset.partition.adjacency import canonical, compress, expand_rows, is_canonical
from gigl_loader.dataset.partition.build import (
    book_table,
    contiguous_book,
    make_book,
    make_rows,
    owned_ids,
)
from gigl_loader.dataset.partition.partition_view import Adjacency
from tests.dataset.dataset_reference import as_index, rows_of


@given(
    # of few rows and columns: long rows, and edges that are there twice
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=300),
    st.randoms(),
    st.booleans(),
)
def test_compress_sorts_whatever_the_input_order(pairs, random, weighted) -> None:
    ids = list(range(10, 10 + len(pairs)))
    if weighted:
        random.shuffle(ids)
    edges, edge_ids = as_index(pairs), torch.tensor(ids, dtype=torch.int64)
    weights = edge_ids.double() if weighted else None
    found = compress(edges[0], edges[1], num_rows=5, edge_ids=edge_ids, weights=weights)
    expected: dict[int, list] = {}
    for (row, col), edge_id in zip(pairs, ids, strict=True):
        expected.setdefault(row, []).append((col, edge_id, float(edge_id) if weighted else None))
    assert rows_of(found) == {row: sorted(entries) for row, entries in expected.items()}
    assert is_canonical(found)
    assert found.indptr.is_shared()


# more threads than rows with edges, too: one row has most of them
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 5, 400])
def test_each_thread_groups_the_edges_of_its_rows(
    constants, monkeypatch: pytest.MonkeyPatch, threads: int, rows: int
) -> None:
    constants(adjacency, _EDGES_OF_A_THREAD=1)
    monkeypatch.setattr(adjacency, "usable_cpus", lambda: threads)
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(rows, (2, 2000), generator=draw)
    ends[0, :1500] = rows // 2
    found = compress(ends[0], ends[1], num_rows=rows + 3, edge_ids=torch.arange(7, 2007))
    expected: dict[int, list] = {}
    for edge_id, (row, col) in enumerate(ends.T.tolist(), 7):
        expected.setdefault(row, []).append((col, edge_id, None))
    assert rows_of(found) == {row: sorted(entries) for row, entries in expected.items()}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12), st.booleans())
def test_canonical_order_is_told_and_made(edges: list[tuple[int, int]], with_ids: bool) -> None:
    """Rows as they are given, of which each is sorted or not."""
    edges = sorted(edges, key=lambda edge: edge[0])
    rows, cols = as_index(edges)
    indptr = torch.tensor([0, *torch.bincount(rows, minlength=4).cumsum(0).tolist()])
    ids = torch.arange(len(edges)).flip(0) if with_ids else None
    given = Adjacency(indptr, cols, ids, None)
    numbers = [0] * len(edges) if ids is None else ids.tolist()
    found = [(row, col, number) for (row, col), number in zip(edges, numbers, strict=True)]
    assert is_canonical(given) == (found == sorted(found))
    assert torch.equal(expand_rows(indptr), rows)
    if with_ids:
        made = canonical(given)
        assert is_canonical(made)
        assert made.edge_ids is not None
        entries = zip(
            expand_rows(made.indptr).tolist(),
            made.indices.tolist(),
            made.edge_ids.tolist(),
            strict=True,
        )
        assert list(entries) == sorted(found)


@given(st.lists(st.integers(0, 3), max_size=12), st.sampled_from([4, 300]))
def test_a_book_says_the_same_as_its_table(owners: list[int], num_partitions: int) -> None:
    table = torch.tensor(owners, dtype=torch.int64)
    book = make_book(table, num_partitions)
    assert (book.bounds is not None) == (owners == sorted(owners))
    assert book.num_ids == len(owners)
    assert book_table(book).tolist() == owners
    for partition in range(4):
        ids = [id for id, owner in enumerate(owners) if owner == partition]
        assert owned_ids(book, partition).tolist() == ids
    if book.table is not None:
        assert book.table.dtype == (torch.uint8 if num_partitions == 4 else torch.int32)


def test_a_book_does_not_change_with_the_users_table() -> None:
    table = torch.tensor([1, 0, 1], dtype=torch.uint8).share_memory_()
    book = make_book(table, 2)
    table.zero_()
    assert book_table(book).tolist() == [1, 0, 1]


@given(st.integers(0, 40), st.integers(1, 7))
def test_equal_runs_differ_by_one_at_most(num_ids: int, num_partitions: int) -> None:
    book = contiguous_book(num_ids, num_partitions)
    assert book.bounds is not None
    bounds = book.bounds.tolist()
    sizes = [end - start for start, end in zip([0, *bounds], bounds, strict=False)]
    assert sum(sizes) == num_ids
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_rows_of_the_same_ids_share_an_index() -> None:
    ids = torch.tensor([5, 1, 3])
    one = make_rows(torch.tensor([50, 10, 30]), ids, 7)
    assert one.index is not None
    assert one.index.tolist() == [-1, 1, -1, 2, -1, 0, -1]
    assert not one.whole
    same = make_rows(torch.ones(3, 2), ids.clone(), 7, [one])
    assert same.index is one.index
    for other in (torch.tensor([5, 3, 1]), torch.tensor([5, 1]), torch.tensor([5, 1, 4])):
        assert make_rows(torch.ones(len(other)), other, 7, [one]).index is not one.index
    longer = make_rows(torch.ones(3), ids, 8, [one]).index
    assert longer is not None
    assert longer.numel() == 8


def test_rows_of_all_ids_in_order_need_no_index() -> None:
    for ids in (None, torch.arange(3)):
        rows = make_rows(torch.ones(2, 3).t(), ids, 3)
        assert (rows.index, rows.whole) == (None, True)
        assert rows.values.is_contiguous()
        assert rows.values.is_shared()
    turned = make_rows(torch.arange(3), torch.tensor([2, 1, 0]), 3)
    assert turned.whole
    assert turned.values[turned.locate(torch.tensor([0, 2]))].tolist() == [2, 0]
