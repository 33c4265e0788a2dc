"""Partition books as users give them."""

from typing import Any

import pytest
import torch

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.build import book_table, read_book, read_node_books
from gigl_loader.dataset.partition.partition_view import Book
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import E, Graph, N
from tests.support import glt


def test_owners_in_order_become_ranges() -> None:
    data = Graph({N: 5}, {E: [(0, 1)]}, {}, False).to_pyg()
    for book in (torch.tensor([0, 0, 1, 1, 1]), glt.RangePartitionBook([(0, 2), (2, 5)], 1)):
        dataset: Any = DistDataset.from_pyg(data, partition_book=book, partition_idx=1)
        assert dataset.view().node_books[N].bounds.tolist() == [2, 5]
        assert isinstance(dataset.node_pb, glt.RangePartitionBook)
        assert dataset.node_ids.tolist() == [2, 3, 4]
        assert dataset.id_filter(dataset.node_pb, 0).tolist() == [0, 1]


def test_a_book_may_be_of_each_kind() -> None:
    table = torch.tensor([0, 1, 0])
    for value in (table, table.to(torch.int32), Book(table=table)):
        assert book_table(read_book(value, 2, "pb")).tolist() == [0, 1, 0]
    ranges = glt.RangePartitionBook([(0, 2), (2, 5)], 1)
    for value in (ranges, Book(bounds=torch.tensor([2, 5], dtype=torch.int32))):
        found = read_book(value, 2, "pb")
        assert found.bounds is not None
        assert (found.bounds.tolist(), found.bounds.dtype) == ([2, 5], torch.int64)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor([0, 2]), "pb names partition 2, but there are 2: 0 to 1"),
        (torch.tensor([0, -1]), "names partition -1"),
        (torch.tensor([0.0, 0.5]), r"1-D integer tensor, got \(2,\) torch.float32"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.tensor([[0, 1]]), r"\(1, 2\)"),
        (Book(bounds=torch.tensor([1, 2, 3])), r"3 ranges for 2 partition\(s\)"),
        (Book(table=torch.tensor([0, 5])), "names partition 5"),
        ([0, 1], "got list"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_book(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_book(value, 2, "pb")


def test_books_by_type_agree_on_the_number_of_partitions() -> None:
    given = {"user": torch.tensor([0, 2, 1]), "item": torch.tensor([0])}
    books, count = read_node_books(given, {"user": 3, "item": 1}, None, heterogeneous=True)
    assert count == 3
    bounds = books["item"].bounds
    assert bounds is not None
    assert bounds.tolist() == [1, 1, 1]
    _, count = read_node_books(torch.tensor([0, 1]), {N: 2}, 4, heterogeneous=False)
    assert count == 4


@pytest.mark.parametrize(
    ("value", "heterogeneous", "message"),
    [
        ({"user": torch.tensor([0])}, True, r"node types \['user'\], the graph has"),
        ({"user": torch.tensor([0]), "item": torch.tensor([0])}, True, "'item' covers 1 nodes"),
        (torch.tensor([0]), True, "a dict of books by node type"),
        ({"user": torch.tensor([0])}, False, "one book, not a dict"),
    ],
)
def test_books_that_do_not_cover_the_graph(value, heterogeneous: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_node_books(value, {"user": 1, "item": 2}, None, heterogeneous=heterogeneous)
