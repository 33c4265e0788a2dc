"""What is wrong in a table is named with its file, its row and what it holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError, UsageError

NODES = {"id": ["a", "b", "c", "d", "e"], "x": [[0.0, 0.5]] * 5, "y": [0, 1, 0, 1, 2]}
EDGES = {"src": ["a", "b", "c", "d"], "dst": ["b", "c", "d", "e"], "w": [1.0, 2.0, 0.0, 1.0]}


def _write(folder: Path, nodes: dict | None = None, edges: dict | None = None) -> dict:
    """Write tables in two files each, of row groups of two; return arguments for them."""
    for name, columns in (("nodes", NODES | (nodes or {})), ("edges", EDGES | (edges or {}))):
        (folder / name).mkdir()
        table = pa.table(columns)
        half = -(-table.num_rows // 2)
        for i in range(2):
            path = folder / name / f"{i}.parquet"
            pq.write_table(table.slice(i * half, half), path, row_group_size=2)
    return {
        "nodes": NodeTable(folder / "nodes", features="x", label="y"),
        "edges": EdgeTable(folder / "edges", weight="w"),
        "num_partitions": 2,
        "root": folder / "parts",
        "progress": False,
        "threads": 1,
    }


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ({"id": ["a", "b", "c", None, "e"]}, {}, r"'id' of .*nodes/1\.parquet has nulls: row 0"),
        (
            {"id": ["a", "b", "c", "d", "c"]},
            {},
            r"'id' has 1 id\(s\) more than once: 'c' in .*0\.parquet, row 2 \(row group 1\); 'c' "
            r"in .*1\.parquet, row 1",
        ),
        ({"id": [0.5] * 5}, {}, "'id' holds double; ids must be integers or text"),
        ({"id": [1, 2, 3, 4, 5]}, {}, "'src' holds text, the ids of .* are integers"),
        (
            {"x": [[0.0], [0.0], [0.0], [1.0, 2.0], [0.0]]},
            {},
            r"'x' of .*nodes/1\.parquet has lists of other lengths than 1: row 0 "
            r"\(row group 0\): 2",
        ),
        ({"x": [[0.0], [0.0], [None], [1.0], [0.0]]}, {}, "has nulls in its lists: row 2"),
        ({"x": ["one"] * 5}, {}, "'x' holds string; features must be numbers"),
        (
            {"y": [0, None, 0, 0, 0]},
            {},
            r"'y' of .*0\.parquet has nulls \(give nodes without a label -1\): row 1",
        ),
        ({}, {"w": [1.0, -1.0, 0.0, 1.0]}, r"'w' of .*0\.parquet must be .*: row 1 .*: -1.0"),
        ({}, {"w": [1.0, 1.0, 0.0, float("nan")]}, r"'w' of .*1.parquet must be .*: row 1 .*: nan"),
        ({}, {"src": ["a", "b", "c", None]}, r"'src' of .*1\.parquet has nulls: row 1"),
        (
            {},
            {"dst": ["b", "c", "z", "e"]},
            r"'dst' of .*1\.parquet has ids that are no nodes \(1 dangling edge.*: row 0 .*: 'z'",
        ),
    ],
)
def test_the_first_offenders_are_named(tmp_path: Path, nodes, edges, message: str) -> None:
    arguments = _write(tmp_path, nodes, edges)
    with pytest.raises(ConfigError, match=message):
        partition_tables(**arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges", "nodes"]


def test_dangling_edges_can_be_left_out(tmp_path: Path) -> None:
    arguments = _write(tmp_path, {}, {"dst": ["b", "z", "d", "z"]})
    for method in ("contiguous", "ldg"):
        report = partition_tables(**arguments, drop_dangling=True, method=method, overwrite=True)
        assert sum(report.dangling.values()) == 2
        assert "dangling edges left out: 2" in str(report)
        assert sum(part.edges for part in report.parts) == 2


def test_nulls_are_refused_where_dangling_edges_are_left_out(tmp_path: Path) -> None:
    arguments = _write(tmp_path, {}, {"dst": ["b", None, "z", "e"]})
    with pytest.raises(ConfigError, match="has nulls: row 1"):
        partition_tables(**arguments, drop_dangling=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_partitions": 0}, "num_partitions must be 1 to"),
        ({"num_partitions": 2.0}, "must be an int"),
        ({"method": "hash"}, "contiguous, random, column, ldg, metis, got 'hash'"),
        ({"method": "column"}, 'give partition="..."'),
        ({"edge_dir": "both"}, "edge_dir"),
        ({"seed": -1}, "seed"),
        ({"memory": "4 apples"}, 'such as "4GB"'),
        ({"memory": "1MB"}, "at least 300 MB"),
        ({"nodes": "nodes.parquet"}, "must be a NodeTable"),
        ({"edges": EdgeTable("edges", supervision="positive")}, "give edges to sample"),
        ({"nodes": NodeTable("no/such/file.parquet")}, "no Parquet or CSV file at no/such"),
        ({"edges": {("a", "to", "b"): EdgeTable("x")}}, "'a', of which there is no table"),
    ],
)
def test_bad_arguments_write_nothing(tmp_path: Path, given: dict, message: str) -> None:
    arguments = _write(tmp_path) | given
    with pytest.raises(ConfigError, match=message):
        partition_tables(**arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges", "nodes"]


def test_columns_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    arguments = _write(tmp_path)
    for given, message in (
        ({"nodes": NodeTable(tmp_path / "nodes", features="z")}, "no column 'z'; it has id, x, y"),
        ({"nodes": NodeTable(tmp_path / "nodes", split="s")}, "no column 's'"),
        ({"edges": EdgeTable(tmp_path / "edges", dst="to")}, "no column 'to'"),
        ({"nodes": NodeTable(tmp_path / "nodes", time="x")}, "times must be integers"),
        ({"nodes": NodeTable(tmp_path / "nodes", features="x.npy")}, r"x\.npy"),
    ):
        with pytest.raises(ConfigError, match=message):
            partition_tables(**(arguments | given))


def test_splits_are_three(tmp_path: Path) -> None:
    arguments = _write(tmp_path, {"split": ["train", "val", "holdout", None, ""]})
    arguments["nodes"] = NodeTable(tmp_path / "nodes", split="split")
    with pytest.raises(ConfigError, match=r"'split' .*must hold .*: row 2 .*: 'holdout'"):
        partition_tables(**arguments)


def test_other_peoples_files_are_safe(tmp_path: Path) -> None:
    arguments = _write(tmp_path)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        partition_tables(**arguments, overwrite=True)
    with pytest.raises(ConfigError, match=r"scratch .* holds other files"):
        partition_tables(**(arguments | {"root": tmp_path / "new", "scratch": tmp_path / "nodes"}))
    (tmp_path / "parts" / "thesis.tex").unlink()
    first = partition_tables(**arguments)
    with pytest.raises(ConfigError, match="overwrite=True"):
        partition_tables(**arguments)
    assert partition_tables(**arguments, overwrite=True).run == first.run


def test_metis_that_does_not_fit_is_said_before_it_starts(tmp_path: Path, constants) -> None:
    constants("gigl_loader.partitioning.stages.owners", METIS_BYTES_AN_EDGE=10**9)
    with pytest.raises(ConfigError, match=r'about 4\.0 GB for 4 edges.*method="ldg"'):
        partition_tables(**_write(tmp_path), method="metis")


def test_features_beside_the_table_and_a_column_of_owners(tmp_path: Path) -> None:
    arguments = _write(tmp_path, {"owner": [1, 0, 1, 0, 1]})
    np.save(tmp_path / "x.npy", np.arange(10, dtype=np.float16).reshape(5, 2))
    arguments["nodes"] = NodeTable(
        tmp_path / "nodes", features=str(tmp_path / "x.npy"), partition="owner"
    )
    partition_tables(**arguments, method="column")
    for index, wanted in enumerate((["b", "d"], ["a", "c", "e"])):
        dataset = DistDataset.load(tmp_path / "parts", index)
        owned: Any = dataset.node_ids
        assert dataset.to_original(owned).tolist() == wanted
        rows = next(iter(dataset.view().node_features.values()))
        positions = ["abcde".index(name) for name in wanted]
        found = rows.values[rows.locate(owned)].tolist()
        assert found == [[2.0 * i, 2.0 * i + 1] for i in positions]
        assert dataset.from_original(wanted).tolist() == owned.tolist()
    with pytest.raises(ConfigError, match=r"1 of these ids are no .*'zz'"):
        dataset.from_original(["a", "zz"])
    with pytest.raises(ConfigError, match="are text in the tables"):
        dataset.from_original([1, 2])
    with pytest.raises(ConfigError, match=r"must be in \[0, 5\)"):
        dataset.to_original(np.array([5]))


def test_too_little_memory_is_said_and_the_run_can_go_on(tmp_path: Path, work_sizes) -> None:
    arguments = _write(tmp_path)
    work_sizes(engine_share=1e-5)
    with pytest.raises(UsageError, match=r"too few.*more memory"):
        partition_tables(**arguments, memory="1GB")
    assert (tmp_path / ".parts.scratch" / "job.json").exists()
    work_sizes(engine_share=0.6)
    partition_tables(**arguments, memory="2GB")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges", "nodes", "parts"]


def test_features_in_fewer_bytes(tmp_path: Path) -> None:
    arguments = _write(tmp_path, {"a": [0.1, 2.0, 3.0, 4.0, 5.0], "b": [1, 2, 3, 4, 5]})
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    cases: list[tuple[Any, Any, list[Any]]] = [
        (["a", "b"], "float32", [np.float32(0.1), 1]),
        (["a", "b"], "float16", [np.float16(0.1), 1]),
        (["a", "b"], "float64", [0.1, 1]),
        (["a", "b"], None, [np.float32(0.1), 1]),  # of Python's floats
        (str(tmp_path / "x.npy"), "float16", [0, 1]),
    ]
    for features, dtype, first in cases:
        arguments |= {
            "nodes": NodeTable(tmp_path / "nodes", features=features, feature_dtype=dtype),
            "edges": EdgeTable(tmp_path / "edges", features="w", feature_dtype=dtype),
        }
        partition_tables(**arguments, overwrite=True)
        view = DistDataset.load(tmp_path / "parts", 0).view()
        for found in (view.node_features, view.edge_features):
            values = next(iter(found.values())).values
            assert str(values.dtype) == f"torch.{dtype or 'float32'}"
        assert next(iter(view.node_features.values())).values[0].tolist() == first


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"features": ["a", "b"], "feature_dtype": "float16"},
            r"'b' of .*nodes/1\.parquet has numbers too large for float16: row 0 .*: 70000\.0",
        ),
        ({"features": "a", "feature_dtype": "int8"}, "float32 or float64, got 'int8'"),
        ({"feature_dtype": "float32"}, "feature_dtype is given, and no features"),
    ],
)
def test_types_of_features_that_cannot_be(tmp_path: Path, given: dict, message: str) -> None:
    arguments = _write(tmp_path, {"a": [1.0] * 5, "b": [1.0, np.inf, 1.0, 70_000.0, 1.0]})
    arguments["nodes"] = NodeTable(tmp_path / "nodes", **given)
    with pytest.raises(ConfigError, match=message):
        partition_tables(**arguments)


@pytest.mark.parametrize("empty", ["nodes", "edges"])
def test_a_csv_with_its_header_alone_is_named(tmp_path: Path, empty: str) -> None:
    rows = {"nodes": ["id,x", "1,2.5", "2,3.5"], "edges": ["src,dst", "1,2"]}
    rows[empty] = rows[empty][:1]
    for name, lines in rows.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    nodes = NodeTable(tmp_path / "nodes.csv", features="x", feature_dtype="float32")
    edges = EdgeTable(tmp_path / "edges.csv")
    with pytest.raises(
        ConfigError, match=rf"^{empty} of .*/{empty}\.csv has no row below its header"
    ):
        partition_tables(nodes, edges, root=tmp_path / "parts", num_partitions=1, progress=False)


def test_a_csv_with_its_header_alone_beside_others_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    for name, lines in (("a", ""), ("b", "1,2.5\n2,3.5\n"), ("c", "")):
        (tmp_path / f"nodes/{name}.csv").write_text(f"id,x\n{lines}")
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n")
    partition_tables(
        NodeTable(tmp_path / "nodes", features="x", feature_dtype="float32"),
        EdgeTable(tmp_path / "edges.csv"),
        root=tmp_path / "parts",
        num_partitions=1,
        progress=False,
    )
    features = DistDataset.load(tmp_path / "parts", 0).get_features(torch.tensor([0, 1]))
    assert features.tolist() == [[2.5], [3.5]]
