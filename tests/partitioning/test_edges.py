"""Edges on their way to partitions: columns, owners and order."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.edges_by_owner import read_extras
from gigl_loader.partitioning.tables.table_files import Table


def _job(folder: Path) -> ResumableJob:
    return ResumableJob(folder / "scratch", {}, memory=10**9, threads=1, progress=False)


def _partition(folder: Path, edges: dict[str, Any], columns: dict[str, Any], **more: Any) -> Any:
    """Partition a graph of nodes 0 to 3 in one part; return what loads of it."""
    nodes = NodeTable(pa.table({"id": [0, 1, 2, 3]}))
    table = EdgeTable(pa.table({"src": [0, 1, 2], "dst": [1, 2, 3], **edges}), **columns)
    partition_tables(nodes, table, 1, folder / "parts", progress=False, threads=1, **more)
    return DistDataset.load(folder / "parts", 0).view()


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_edges_are_written_in_batches_of_any_size(tmp_path: Path, work_sizes, rows: int) -> None:
    random, count = np.random.default_rng(2), 60
    nodes = NodeTable(pa.table({"id": list(range(12))}))
    # nodes 0, 5, 6 and 11 have no edge, others several that are alike but for their weight
    ends = random.choice([1, 2, 3, 4, 7, 8, 9, 10], (2, count))
    edges = pa.table({"src": ends[0], "dst": ends[1], "w": np.arange(count) / 2})
    work_sizes(sorted_rows=rows)
    partition_tables(
        nodes, EdgeTable(edges, weight="w"), 2, tmp_path / "parts", progress=False, threads=2
    )
    for k in range(2):
        (adjacency,) = DistDataset.load(tmp_path / "parts", k).view().adjacency.values()
        mine = [(d, s, i / 2) for i, (s, d) in enumerate(ends.T.tolist()) if d // 6 == k]
        wanted = sorted(mine)
        assert adjacency.weights is not None
        assert adjacency.indices.tolist() == [neighbor for _, neighbor, _ in wanted]
        assert adjacency.weights.tolist() == [weight for _, _, weight in wanted]
        degrees = [sum(edge[0] == row for edge in wanted) for row in range(6 * k, 6 * k + 6)]
        assert adjacency.indptr.tolist() == [0, *np.cumsum(degrees).tolist()]


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
    [
        ("weight", [1.0, 1e300, 1.0], r"too large for float32: row 1: 1e\+300"),
        ("weight", [1.0, None, 1.0], "has nulls: row 1"),
        ("weight", [1.0, -0.5, 1.0], "must be finite and not negative: row 1: -0.5"),
        ("weight", [[1.0], [2.0], [3.0]], "weights are numbers, 'c' holds lists"),
        ("time", pa.array([1, 2, 2**63], pa.uint64()), "too large for int64: row 2: 9223372036"),
        ("time", [0.5, 1.5, 2.5], "times must be integers or timestamps"),
        ("features", pa.array([1, 2, 2**63], pa.uint64()), "too large for int64: row 2"),
        ("features", ["a", "b", "c"], "features must be numbers"),
    ],
)
def test_columns_that_cannot_be_stored(tmp_path: Path, column: str, values, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _partition(tmp_path, {"c": values}, {column: "c"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("csv", [True, False])
@pytest.mark.parametrize("fits", [True, False])
def test_ids_beyond_int32_and_beyond_doubles_are_told_apart(
    tmp_path: Path, work_sizes, fits: bool, csv: bool
) -> None:
    if not fits:
        work_sizes(index_share=0.0)
    ids = [2**31, 2**31 - 1, 2**32, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1]
    nodes, edges = pa.table({"id": ids}), pa.table({"src": ids, "dst": [*ids[1:], ids[0]]})
    if csv:
        for name, table in (("nodes", nodes), ("edges", edges)):
            pyarrow.csv.write_csv(table, tmp_path / f"{name}.csv")
        nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    partition_tables(
        NodeTable(nodes),
        EdgeTable(edges),
        2,
        tmp_path / "parts",
        progress=False,
        threads=1,
        method="random",
    )
    found: dict[int, int] = {}
    for k in range(2):
        dataset = DistDataset.load(tmp_path / "parts", k)
        (adjacency,) = dataset.view().adjacency.values()
        assert adjacency.indptr.diff().tolist() == [1] * len(dataset.node_ids)
        ends = dataset.to_original(dataset.node_ids).tolist()
        found |= dict(zip(ends, dataset.to_original(adjacency.indices).tolist(), strict=True))
        in_order = dataset.to_original(dataset.from_original(ids)).tolist()
        assert in_order == ids
    assert found == dict(zip([*ids[1:], ids[0]], ids, strict=True))


@pytest.mark.parametrize("fits", [True, False])
def test_an_id_beyond_int64_is_no_node(tmp_path: Path, work_sizes, fits: bool) -> None:
    if not fits:  # joined
        work_sizes(index_share=0.0)
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
