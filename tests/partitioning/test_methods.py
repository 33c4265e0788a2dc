"""Owners of nodes: rules that may never change, and cuts that are small."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.edges_by_owner import EdgesByPartition
from gigl_loader.partitioning.stages.owners import (
    Union,
    check_metis,
    contiguous_owner,
    place_by_ldg,
    place_by_metis,
    random_owner,
    write_owners_without_edges,
)
from gigl_loader.partitioning.tables.spec import NodeTable
from gigl_loader.partitioning.tables.table_files import Table


def _job(folder: Path) -> ResumableJob:
    return ResumableJob(folder / "scratch", {}, memory=10**9, threads=1, progress=False)


@given(st.integers(0, 200), st.integers(1, 30))
def test_contiguous_owners_are_equal_runs(num_rows: int, count: int) -> None:
    found = contiguous_owner(np.arange(num_rows), num_rows, count)
    wanted = [k for k, run in enumerate(np.array_split(np.arange(num_rows), count)) for _ in run]
    assert found.tolist() == wanted


def _split_mix(row: int, seed: int) -> int:
    """Return the number of a row in Python's integers."""
    whole = 2**64
    key = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) % whole
    z = (row + 1) * 0x9E3779B97F4A7C15 % whole ^ key
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % whole
    z = (z ^ z >> 27) * 0x94D049BB133111EB % whole
    return z ^ z >> 31


@given(st.lists(st.integers(0, 2**40), max_size=9), st.integers(0, 2**70), st.integers(1, 1024))
def test_random_owners_follow_from_row_and_seed(rows: list[int], seed: int, count: int) -> None:
    found = random_owner(np.array(rows, np.uint64), count, seed)
    assert found.tolist() == [_split_mix(row, seed) % count for row in rows]


def test_random_owners_stay_those_that_files_have_and_are_even() -> None:
    assert random_owner(np.arange(12), 5, 0).tolist() == [
        _split_mix(row, 0) % 5 for row in range(12)
    ]
    counts = np.bincount(random_owner(np.arange(30_000), 3, 7))
    assert counts.min() > 9700, "10,000 and 3 standard deviations of 82"


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_owners_are_written_in_chunks(tmp_path: Path, work_sizes, method: str) -> None:
    work_sizes(numbers=7)
    table = Table(_job(tmp_path), "t", pa.table({"id": list(range(40))}), "nodes")
    write_owners_without_edges(method, table, NodeTable("t"), 3, 5, tmp_path / "a/owners.bin")
    rows = np.arange(40)
    wanted = contiguous_owner(rows, 40, 3) if method == "contiguous" else random_owner(rows, 3, 5)
    assert np.fromfile(tmp_path / "a/owners.bin", np.uint16).tolist() == wanted.tolist()


def test_a_column_says_who_owns_a_node(tmp_path: Path) -> None:
    job, path = _job(tmp_path), tmp_path / "owners.bin"

    def place(key: str, owners: Any, column: str | None = "p") -> list[int]:
        table = Table(job, key, pa.table({"p": owners}), "nodes of 'n'")
        write_owners_without_edges("column", table, NodeTable("t", partition=column), 3, 0, path)
        return np.fromfile(path, np.uint16).tolist()

    for number, kind in enumerate((pa.int64(), pa.int8(), pa.uint8())):
        assert place(f"good{number}", pa.array([2, 0, 1], kind)) == [2, 0, 1]
        with pytest.raises(
            ConfigError,
            match=r"'p' .*must hold partitions, 0 to 2: row 1: None; "
            r"row 2: 3$",
        ):
            place(f"null{number}", pa.array([2, None, 3], kind))
    with pytest.raises(ConfigError, match="row 0: -1"):
        place("negative", pa.array([-1]))
    with pytest.raises(ConfigError, match="'p' holds double, not integers"):
        place("fraction", pa.array([0.0]))
    with pytest.raises(ConfigError, match=r'give partition="..."'):
        place("none", pa.array([0]), None)


def _union(folder: Path, pairs: dict[tuple, list[tuple[int, int]]], counts: dict) -> Union:
    """Write (row, neighbor) of edge types as `map_edges` does, where all have one owner."""
    edges = {}
    for edge_type, ends in pairs.items():
        where = folder / edge_type[1] / "part=0"
        where.mkdir(parents=True)
        table = pa.table(
            {
                "row": pa.array([a for a, _ in ends], pa.uint32()),
                "neighbor": pa.array([b for _, b in ends], pa.uint32()),
            }
        )
        pq.write_table(table, where / "0.parquet")
        edges[edge_type] = EdgesByPartition(
            where.parent, np.array([len(ends)]), files=[where.parent]
        )
    return Union(_job(folder), counts, edges, 1)


def _cliques(folder: Path, num: int = 20) -> Union:
    """Two cliques of even and of odd nodes, and one edge from one to the other."""
    pairs = [(a, b) for a in range(num) for b in range(a) if (a - b) % 2 == 0]
    return _union(folder, {("n", "x", "n"): [*pairs, (0, 1)]}, {"n": num})


def test_a_union_has_all_edges_in_both_directions(tmp_path: Path) -> None:
    # rows are destinations: of the type of the edge's last name
    pairs = {("a", "x", "b"): [(0, 1), (2, 0), (0, 1)], ("b", "y", "b"): [(1, 1), (1, 2)]}
    union = _union(tmp_path, pairs, {"a": 2, "b": 3, "c": 4})
    assert (union.starts, union.num_nodes, union.num_edges) == ({"a": 0, "b": 2, "c": 5}, 9, 10)
    found = [(int(u), int(v)) for us, vs in union.read() for u, v in zip(us, vs, strict=True)]
    one_way = [(2, 1), (4, 0), (2, 1), (3, 4)]
    assert found == sorted([*one_way, *((v, u) for u, v in one_way)]), "and no loops"
    assert list(_union(tmp_path / "empty", {}, {"a": 2}).read()) == []


def test_ldg_keeps_neighbours_together_and_goes_on(tmp_path: Path) -> None:
    kept: dict[int, Any] = {}

    def step(number: int, one_pass: Any) -> Any:
        kept.setdefault(number, None)
        kept[number] = one_pass() if kept[number] is None else kept[number]
        return kept[number]

    found = place_by_ldg(_cliques(tmp_path), 2, step)
    assert found[::2].tolist() == [found[0]] * 10
    assert found[1::2].tolist() == [1 - found[0]] * 10
    assert sorted(kept) == [0, 1, 2]
    again = place_by_ldg(_cliques(tmp_path / "again"), 2, lambda number, one_pass: kept[number])
    assert again.tolist() == found.tolist()


def test_ldg_fills_no_partition_beyond_its_slack(tmp_path: Path) -> None:
    star = _union(tmp_path, {("n", "x", "n"): [(0, i) for i in range(1, 100)]}, {"n": 103})
    found = place_by_ldg(star, 4, lambda number, one_pass: one_pass())
    assert np.bincount(found, minlength=4).max() <= 1 + 1.05 * 26
    assert found.min() >= 0, "those without edges have an owner, too"


def test_metis_cuts_between_cliques(tmp_path: Path) -> None:
    metis = pytest.importorskip("pymetis")
    found, _ = place_by_metis(_cliques(tmp_path), 2, 3, metis)
    assert found[::2].tolist() == [found[0]] * 10
    assert found[1::2].tolist() == [1 - found[0]] * 10
    lonely = _union(tmp_path / "lonely", {}, {"n": 5})
    assert place_by_metis(lonely, 2, 3, metis)[0].tolist() == [0, 0, 0, 1, 1]


def test_metis_is_refused_where_it_does_not_fit_or_is_not_there(monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match=r'about 0\.4 GB for 1000000 edges.*method="ldg"'):
        check_metis(10**6, 10**8)
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(ConfigError, match=r"gigl_loader\[metis\]"):
        check_metis(1, 10**8)
