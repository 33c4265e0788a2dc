"""Edges on their way to partitions: columns, owners and order."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.dataset.mapped import Part, array_path
from gigl_loader.errors import ConfigError
from gigl_loader.tables import _edges, _nodes
from gigl_loader.tables._edges import Extras, Mapped, _IndexPointer, read_extras, sort_edges
from gigl_loader.tables._job import Job
from gigl_loader.tables._source import Table

TYPE = ("n", "to", "n")


def _job(folder: Path) -> Job:
    return Job(folder / "scratch", {}, memory=10**9, threads=1, progress=False)


def _partition(folder: Path, edges: dict[str, Any], columns: dict[str, Any], **more: Any) -> Any:
    """Partition a graph of nodes 0 to 3 in one part; return what loads of it."""
    nodes = NodeTable(pa.table({"id": [0, 1, 2, 3]}))
    table = EdgeTable(pa.table({"src": [0, 1, 2], "dst": [1, 2, 3], **edges}), **columns)
    partition_tables(nodes, table, 1, folder / "parts", progress=False, threads=1, **more)
    return DistDataset.load(folder / "parts", 0).view()


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.integers(0, 12), st.lists(st.integers(0, 11), max_size=30), st.integers(1, 9),
       st.integers(1, 4))  # fmt: skip
def test_the_index_pointer_counts_edges_by_node(
    monkeypatch: pytest.MonkeyPatch, nodes: int, rows: list[int], batch: int, chunk: int
) -> None:
    monkeypatch.setattr(_edges, "_MANY_ROWS", chunk)
    rows, first = sorted(row for row in rows if row < nodes), 100
    file = io.BytesIO()
    pointer = _IndexPointer(file, (first, first + nodes))
    for start in range(0, len(rows), batch):
        pointer.add(np.array(rows[start : start + batch], np.int64) + first)
    pointer.add(np.empty(0, np.int64))
    pointer.finish()
    wanted = [0, *np.cumsum(np.bincount(rows, minlength=nodes)[:nodes]).tolist()] if nodes else [0]
    assert np.frombuffer(file.getvalue(), np.int64).tolist() == wanted


def test_a_partition_is_sorted_and_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_edges, "_SORT_BYTES", 1)
    random = np.random.default_rng(2)
    edges = pa.table(
        {"row": pa.array(random.integers(5, 9, 60), pa.uint32()),
         "neighbor": pa.array(random.integers(0, 4, 60), pa.uint32()),
         "weight": pa.array(np.arange(60), pa.float32()),
         "pos": random.permutation(60)}
    )  # fmt: skip
    mapped = Mapped(tmp_path, np.array([0, 60]), files=[tmp_path / "0", tmp_path / "1"])
    for i in range(2):
        (tmp_path / f"{i}/part=1").mkdir(parents=True)
        pq.write_table(edges.slice(30 * i, 30), tmp_path / f"{i}/part=1/0.parquet")
    part, name = Part(), "edges/n__to__n"
    sort_edges(_job(tmp_path), mapped, Extras("w", []), TYPE, 1, tmp_path / "out", part, Part(),
               rows=(4, 10), num_neighbors=4, first_edge=7)()  # fmt: skip
    assert part.ranges == {name: {"first_row": 4, "first_edge": 7}}

    def read(what: str) -> list[Any]:
        spec = part.arrays[f"{name}/{what}"]
        path = array_path(tmp_path / "out/part1", f"{name}/{what}")
        return np.fromfile(path, spec.dtype).tolist()

    wanted = sorted(edges.to_pylist(), key=lambda e: (e["row"], e["neighbor"], e["pos"]))
    assert read("indices") == [edge["neighbor"] for edge in wanted]
    assert read("weights") == [edge["weight"] for edge in wanted]
    degrees = [sum(edge["row"] == row for edge in wanted) for row in range(4, 10)]
    assert read("indptr") == [0, *np.cumsum(degrees).tolist()]
    assert part.arrays[f"{name}/indices"].dtype == "int32"
    none = Mapped(tmp_path, np.array([0]))
    sort_edges(_job(tmp_path), none, Extras(None, []), TYPE, 0, tmp_path / "out", part, Part(),
               rows=(0, 2), num_neighbors=2**31, first_edge=None)()  # fmt: skip
    assert part.arrays[f"{name}/indices"].dtype == "int64", "ids of 32 bits are not enough"
    assert array_path(tmp_path / "out/part0", f"{name}/indptr").stat().st_size == 24


@pytest.mark.parametrize("kind", [pa.uint16(), pa.uint32(), pa.uint64()])
def test_unsigned_features_become_numbers_that_torch_computes_with(tmp_path: Path, kind) -> None:
    view = _partition(tmp_path, {"f": pa.array([3, 5, 7], kind)}, {"features": "f"})
    (rows,) = view.edge_features.values()
    assert (str(rows.values.dtype), rows.values.tolist()) == ("torch.int64", [[3], [5], [7]])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_keep_the_unit_of_their_file(tmp_path: Path, unit: str) -> None:
    given = pa.array([-1500, 0, 7], pa.timestamp(unit))
    ((_, rows),) = _partition(tmp_path, {"t": given}, {"time": "t"}).edge_attributes.items()
    times = 1000 if unit == "s" else 1  # Parquet has no seconds
    assert rows.values.tolist() == [-1500 * times, 0, 7 * times]


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [("weight", [1.0, 1e300, 1.0], r"too large for float32: row 1: 1e\+300"),
     ("weight", [1.0, None, 1.0], "has nulls: row 1"),
     ("weight", [1.0, -0.5, 1.0], "must be finite and not negative: row 1: -0.5"),
     ("weight", [[1.0], [2.0], [3.0]], "weights are numbers, 'c' holds lists"),
     ("time", pa.array([1, 2, 2**63], pa.uint64()), "too large for int64: row 2: 9223372036"),
     ("time", [0.5, 1.5, 2.5], "times must be integers or timestamps"),
     ("features", pa.array([1, 2, 2**63], pa.uint64()), "too large for int64: row 2"),
     ("features", ["a", "b", "c"], "features must be numbers")],
)  # fmt: skip
def test_columns_that_cannot_be_stored(tmp_path: Path, column: str, values, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _partition(tmp_path, {"c": values}, {column: "c"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fits", [True, False])
def test_an_id_beyond_int64_is_no_node(tmp_path: Path, monkeypatch, fits: bool) -> None:
    if not fits:  # joined
        monkeypatch.setattr(_nodes, "fits", lambda job, indexes: False)
        monkeypatch.setattr(_edges, "fits", lambda job, indexes: False)
    edges = {"dst": pa.array([1, 2**63 + 5, 3], pa.uint64())}
    with pytest.raises(ConfigError, match=r"'dst' .* are no nodes .*: row 1: 9223372036854775813"):
        _partition(tmp_path, edges, {})
    (adjacency,) = _partition(tmp_path, edges, {}, drop_dangling=True).adjacency.values()
    assert adjacency.indices.tolist() == [0, 2]


def test_what_travels_has_names_of_its_own(tmp_path: Path) -> None:
    columns = {"src": [1], "w": [0.5], "a": [1], "b": [2.5], 'q"': pa.array([9], pa.int32())}
    table = Table(_job(tmp_path), "e", pa.table(columns), "edges")
    extras = read_extras(table, EdgeTable("e", weight="w", features=["a", "b"], time='q"'))
    assert extras.names == ["c0", "c1", "weight", "time", "pos"]
    assert (extras.width, extras.dtype) == (2, np.float32)
    with _job(tmp_path).engine() as engine:
        source = f"(SELECT *, 4 AS file_row_number FROM '{table.files[0].path}') e"
        found = engine.sql(f"SELECT 0{extras.select(100)} FROM {source}").fetchall()
    assert found == [(0, 1, 2.5, 0.5, 9, 104)]
    assert read_extras(table, EdgeTable("e")).names == []
    assert read_extras(table, EdgeTable("e")).nbytes == 0
