"""Which way a directory was partitioned, where only its edges can tell."""

import pickle
from pathlib import Path

import pytest
import torch

from gigl_loader import DistDataset
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import E, as_index, rows_of

Parts = list[list[tuple[int, int]]]


def _save(path: Path, tensor: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensor, path)


def _write(
    root: Path,
    parts: Parts,
    *,
    cached: bool = False,
    owners: list[int] | None = None,
    ids: bool = True,
) -> Path:
    """Write edges by partition as GLT does; partition 0 owns nodes 0 and 1, partition 1 2 and 3.

    Args:
        root: A directory that there is not.
        parts: Their ends.
        cached: All edges lie in one place.
        owners: The edge book.
        ids: Whether edges have ids; an edge's weight is half of its id.
    """
    meta = {"num_parts": len(parts), "data_cls": "homo", "node_types": None, "edge_types": None}
    _save(root / "node_pb.pt", torch.tensor([0, 0, 1, 1] if len(parts) > 1 else [0, 0]))
    (root / "META").write_bytes(pickle.dumps(meta))
    if owners is not None:
        _save(root / "edge_pb.pt", torch.tensor(owners))
    first, places = 0, [pair for part in parts for pair in part]
    for index, pairs in enumerate([places] if cached else parts):
        folder = root / "graph" if cached else root / f"part{index}" / "graph"
        rows, cols = as_index(pairs)
        _save(folder / "rows.pt", rows)
        _save(folder / "cols.pt", cols)
        numbers = torch.arange(first, first + len(pairs))
        if ids:
            _save(folder / "eids.pt", numbers)
        _save(folder / "weights.pt", numbers / 2)
        first += len(pairs)
    for index in range(len(parts)):
        (root / f"part{index}").mkdir(exist_ok=True)
    return root


@pytest.mark.filterwarnings("ignore:batches will not carry. weights")  # without an edge book
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
def test_all_partitions_answer_alike(tmp_path: Path, parts: Parts, expected: str) -> None:
    _write(tmp_path / "g", parts)
    for index in range(len(parts)):
        assert DistDataset.load(tmp_path / "g", index).edge_dir == expected


@pytest.mark.filterwarnings("ignore:batches will not carry. weights")
def test_others_are_read_only_where_the_own_edges_cannot_tell(tmp_path: Path) -> None:
    for name, parts in (("clear", [[(2, 0)], [(0, 3)]]), ("unclear", [[(2, 0)], [(2, 3)]])):
        (_write(tmp_path / name, parts) / "part0" / "graph" / "rows.pt").unlink()
    assert DistDataset.load(tmp_path / "clear", 1).edge_dir == "in"
    with pytest.raises(ConfigError, match=r"part0/graph/rows\.pt is missing"):
        DistDataset.load(tmp_path / "unclear", 1)


def test_edges_that_neither_rule_assigns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partition 0 are assigned neither by source nor by"):
        DistDataset.load(_write(tmp_path / "g", [[(2, 3)], []]), 1)


@pytest.mark.filterwarnings("ignore:batches will not carry. weights")
def test_a_cached_graph_is_told_by_its_edge_book(tmp_path: Path) -> None:
    parts: Parts = [[(0, 2), (3, 1)], []]
    for name, owners, expected in (
        ("source", [0, 1], "out"),
        ("target", [1, 0], "in"),
        ("none", None, "in"),
    ):
        _write(tmp_path / name, parts, cached=True, owners=owners)
        assert {DistDataset.load(tmp_path / name, i).edge_dir for i in range(2)} == {expected}


@pytest.mark.filterwarnings("ignore:batches will not carry. weights")
@pytest.mark.parametrize("ids", [True, False])
def test_own_edges_are_picked_from_a_cached_graph(tmp_path: Path, ids: bool) -> None:
    parts: Parts = [[(0, 2), (3, 1)], [(1, 3)]]
    root = _write(tmp_path / "g", parts, cached=True, ids=ids)
    into = DistDataset.load(root, 1, edge_dir="in").view().adjacency[E]
    assert rows_of(into) == {2: [(0, 0, 0.0)], 3: [(1, 2, 1.0)]}
    out = DistDataset.load(root, 1, edge_dir="out").view().adjacency[E]
    assert rows_of(out) == {3: [(1, 1, 0.5)]}, "ids are positions among all edges"


@pytest.mark.filterwarnings("ignore:batches will not carry. weights")
def test_edges_of_others_are_refused(tmp_path: Path) -> None:
    root = _write(tmp_path / "g", [[(2, 0)], [(0, 3)]])
    assert rows_of(DistDataset.load(root, 0).view().adjacency[E]) == {0: [(2, 0, 0.0)]}
    with pytest.raises(ConfigError, match=r'do not fit edge_dir="out"; try "in"'):
        DistDataset.load(root, 0, edge_dir="out")
