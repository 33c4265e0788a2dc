"""Rows, books and edges as samplers find them."""

from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader.dataset.partition.partition_view import Adjacency, Book, Rows


@pytest.mark.parametrize("ids", [[], [0], [2, 4, 3], [4, 5], [9, 5], [1, 2], [2, 9, 4]])
def test_who_owns_ids_is_the_same_by_range_and_by_table(ids: list[int]) -> None:
    owners = np.array([0, 0, 1, 1, 1, 3, 3, 3, 3, 3])  # partition 2 has none
    ranges = np.array([2, 5, 5, 10])
    asked = np.array(ids, np.int64)
    array: Any
    for array in (np.asarray, torch.from_numpy):
        for book in (Book(table=array(owners)), Book(bounds=array(ranges))):
            assert book.owner(array(asked)).tolist() == [owners[one] for one in ids]
    for partition in range(4):
        owned = all(owners[one] == partition for one in ids)
        for arrays in (Book(table=owners), Book(bounds=ranges)):
            assert arrays.owns(partition, np.array(ids, np.int64)) == owned
        table, bounds = torch.from_numpy(owners), torch.from_numpy(ranges)
        for tensors in (Book(table=table), Book(bounds=bounds)):
            assert tensors.owns(partition, torch.tensor(ids, dtype=torch.int64)) == owned


@pytest.mark.parametrize("as_tensor", [False, True])
def test_rows_are_found_by_index_by_range_and_by_ids(as_tensor: bool) -> None:
    def array(values: list[int], dtype: str = "int64") -> Any:
        found = np.array(values, dtype)
        return torch.from_numpy(found) if as_tensor else found

    values, asked = array([50, 40, 70]), array([7, 4, 7, 5])
    in_order = array([40, 50, 70])
    wanted = [70, 40, 70, 50]
    short = array([1, 0, -1, 2], "int32")  # of the ids 4 to 7
    for rows in (
        Rows(values, array([-1, -1, -1, -1, *short.tolist()])),
        Rows(values, short, first=4),
        Rows(in_order, ids=array([4, 5, 7])),
        Rows(array([40, 50, 60, 70]), first=4),
        Rows(array(list(range(0, 80, 10)))),
    ):
        positions = rows.locate(asked)
        assert str(positions.dtype).removeprefix("torch.") == "int64"
        assert rows.values[positions].tolist() == wanted


def test_rows_know_their_type_by_torchs_name() -> None:
    assert Rows(torch.ones(1, dtype=torch.bfloat16)).dtype == "bfloat16"
    assert Rows(np.ones(1, np.float32)).dtype == "float32"
    assert Rows(np.ones(1, np.uint16), dtype="bfloat16").dtype == "bfloat16", "bits of one"


def test_ids_of_edges_are_listed_or_follow_from_their_position() -> None:
    listed = Adjacency(np.array([0, 2]), np.array([3, 4]), np.array([8, 6]), None)
    placed = Adjacency(np.array([0, 2]), np.array([3, 4]), None, None, first_row=5, first_edge=9)
    none = Adjacency(np.array([0, 2]), np.array([3, 4]), None, None)
    assert [edges.has_edge_ids for edges in (listed, placed, none)] == [True, True, False]
    assert listed.edge_ids_at(np.array([1, 0])).tolist() == [6, 8]
    assert placed.edge_ids_at(np.array([1, 0])).tolist() == [10, 9]
    assert placed.locate(np.array([6, 5])).tolist() == [1, 0]


def test_rows_of_a_turned_edge_index_are_looked_up_without_a_warning() -> None:
    pairs = torch.tensor([[0, 7], [2, 8], [4, 9]]).t()
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else once in a process, which another test may have been
    try:
        assert Book(bounds=torch.tensor([2, 5, 5])).owner(pairs[0]).tolist() == [0, 1, 1]
        assert Rows(torch.ones(3), ids=torch.tensor([0, 2, 4])).locate(pairs[0]).tolist() == [
            0,
            1,
            2,
        ]
    finally:
        torch.set_warn_always(before)


def test_how_many_ids_a_book_covers() -> None:
    assert Book(bounds=np.array([2, 5, 5])).num_ids == 5
    assert Book(table=np.array([1, 0, 1])).num_ids == 3
