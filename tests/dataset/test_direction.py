"""Which way a directory was partitioned, where only its edges can tell."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from gigl_loader.dataset._direction import choose_edge_dir, keep_owned
from gigl_loader.dataset.parts import GraphPartitionData
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N
from gigl_loader.dataset.view import Book
from gigl_loader.errors import ConfigError


@dataclass
class _Directory:
    """Partition 0 owns nodes 0 and 1, partition 1 owns 2 and 3; edges are given by partition."""

    parts: list[list[tuple[int, int]]]
    cached: bool = False
    edge_owners: list[int] | None = None
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_partitions = len(self.parts)
        self.node_books = {N: Book(bounds=torch.tensor([2, 4][: self.num_partitions]))}
        self.edge_types, owners = [E], self.edge_owners
        self.edge_books = {} if owners is None else {E: Book(table=torch.tensor(owners))}

    def edges(self, edge_type: tuple[str, str, str], partition_idx: int) -> GraphPartitionData:
        self.asked.append(partition_idx)
        parts = self.parts if self.cached else [self.parts[partition_idx]]
        pairs = [pair for part in parts for pair in part]
        ends = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
        return GraphPartitionData(ends, torch.arange(len(pairs)), torch.arange(len(pairs)) / 2)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[(2, 0), (0, 1)], [(0, 3)]], "in"),
        ([[(0, 2), (0, 1)], [(3, 0)]], "out"),
        ([[(0, 1)], [(0, 3)]], "in"),  # partition 0 fits both
        ([[(0, 1)], [(3, 0)]], "out"),
        ([[(0, 1)], [(2, 3)]], "in"),  # both fit both
        ([[], []], "in"),
        ([[(0, 1)]], "in"),
    ],
)
def test_all_partitions_answer_alike(parts: list, expected: str) -> None:
    for index in range(len(parts)):
        assert choose_edge_dir(_Directory(parts), index) == expected


def test_others_are_read_only_where_the_own_edges_cannot_tell() -> None:
    clear = _Directory([[(2, 0)], [(0, 3)]])
    choose_edge_dir(clear, 1)
    assert clear.asked == [1]
    unclear = _Directory([[(2, 0)], [(2, 3)]])
    choose_edge_dir(unclear, 1)
    assert unclear.asked == [1, 0]


def test_edges_that_neither_rule_assigns() -> None:
    with pytest.raises(ConfigError, match="partition 0 are assigned neither by source nor by"):
        choose_edge_dir(_Directory([[(2, 3)], []]), 1)


def test_a_cached_graph_is_told_by_its_edge_book() -> None:
    pairs = [[(0, 2), (3, 1)]]
    by_source, by_target = [0, 1], [1, 0]
    two = [*pairs, []]
    assert choose_edge_dir(_Directory(two, True, by_source), 0) == "out"
    assert choose_edge_dir(_Directory(two, True, by_target), 1) == "in"
    assert choose_edge_dir(_Directory(two, True), 1) == "in", "no book can tell"


def test_own_edges_are_picked_from_a_cached_graph_and_checked_elsewhere() -> None:
    cached = _Directory([[(0, 2), (3, 1)], [(1, 3)]], cached=True)
    whole = cached.edges(E, 0)
    mine: Any = keep_owned(cached, E, whole, "in", 1)
    assert mine.edge_index.tolist() == [[0, 1], [2, 3]]
    assert mine.edge_ids.tolist() == [0, 2]
    assert mine.weights.tolist() == [0, 1]
    bare: Any = keep_owned(cached, E, GraphPartitionData(whole.edge_index), "out", 1)
    assert (bare.edge_ids.tolist(), bare.weights) == ([1], None), "positions among all edges"
    plain = _Directory([[(2, 0)], [(0, 3)]])
    edges = plain.edges(E, 0)
    assert keep_owned(plain, E, edges, "in", 0) is edges
    with pytest.raises(ConfigError, match=r'do not fit edge_dir="out"; try "in"'):
        keep_owned(plain, E, edges, "out", 0)
