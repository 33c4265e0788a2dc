"""Features, labels and splits: their types, and what they cannot be."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gigl_loader import DistDataset, EdgeTable, partition_tables
from gigl_loader.dataset.mapped import Part, array_path
from gigl_loader.errors import ConfigError
from gigl_loader.tables._job import Job
from gigl_loader.tables._nodes import Numbering
from gigl_loader.tables._rows import NodeRows
from gigl_loader.tables._source import Table
from gigl_loader.tables.spec import NodeTable


def _rows(folder: Path, columns: dict[str, Any], **spec: Any) -> tuple[NodeRows, Table]:
    job = Job(folder / "scratch", {}, memory=10**9, threads=1, progress=False)
    table = Table(job, f"t{len(list(folder.iterdir()))}", pa.table(columns), "nodes of 'n'")
    return NodeRows(job, table, NodeTable("t", **spec), "n"), table


def _write(folder: Path, rows: NodeRows, table: Table, owners: list[int]) -> tuple[Any, list[Part]]:
    numbering = Numbering.of(table, np.array(owners, np.uint16), 2)
    parts = [Part(), Part()]
    return rows.write(folder / "out", numbering, parts, None), parts


def _read(folder: Path, part: Part, k: int, name: str) -> Any:
    spec = part.arrays[name]
    path = array_path(folder / f"out/part{k}", name)
    return np.fromfile(path, spec.dtype).reshape(spec.shape).tolist()


def test_rows_go_to_the_partitions_that_own_them(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([[i, -i] for i in range(5)], pa.list_(pa.float32())),
        "y": pa.array([3, 1, 4, 1, 5], pa.int8()), "price": [0.5, 1.5, 2.5, 3.5, 4.5],
        "s": ["train", None, "validation", "test", "train"],
    }  # fmt: skip
    rows, table = _rows(tmp_path, columns, features="x", label="y", attributes="price", split="s")
    assert rows.has_rows
    assert rows.attributes == {"price": 1}
    classes, parts = _write(tmp_path, rows, table, [1, 0, 1, 0, 1])
    assert classes == 6
    assert _read(tmp_path, parts[0], 0, "node_features/n/values") == [[1, -1], [3, -3]]
    assert _read(tmp_path, parts[1], 1, "node_features/n/values") == [[0, 0], [2, -2], [4, -4]]
    assert _read(tmp_path, parts[1], 1, "node_labels/n/values") == [3, 4, 5]
    assert parts[0].arrays["node_labels/n/values"].dtype == "int64", "what losses take"
    assert _read(tmp_path, parts[0], 0, "node_attributes/n/price/values") == [1.5, 3.5]
    splits = [[_read(tmp_path, part, k, f"splits/{name}/n") for name in ("train", "val", "test")]
              for k, part in enumerate(parts)]  # fmt: skip
    assert splits == [[[], [], [1]], [[2, 4], [3], []]]
    assert parts[1].ranges["node_labels/n"] == {"first": 2}


@pytest.mark.parametrize(
    ("labels", "columns", "classes"),
    [([0, 2, -1], "y", 3), ([-1, -1, -1], "y", 0), ([True, False, True], "y", 2),
     ([0.5, 1.5, 2.5], "y", None), ([[1, 0], [0, 0], [1, 1]], "y", 2), ([0, 1, 2], ["y", "z"], 2)],
)  # fmt: skip
def test_classes_are_counted(tmp_path: Path, labels, columns, classes: int | None) -> None:
    rows, table = _rows(tmp_path, {"y": labels, "z": [0, 0, 0]}, label=columns)
    assert _write(tmp_path, rows, table, [0, 0, 1])[0] == classes


def test_the_number_of_classes_is_known_of_a_run_that_was_done(tmp_path: Path) -> None:
    rows, table = _rows(tmp_path, {"y": [0, 4, 2]}, label="y")
    assert [_write(tmp_path, rows, table, [0, 0, 1])[0] for _ in range(2)] == [5, 5]


def test_features_beside_the_table(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float64))
    rows, table = _rows(
        tmp_path, {"id": [1, 2, 3]}, features=f"{tmp_path}/x.npy", feature_dtype="float16"
    )
    _, parts = _write(tmp_path, rows, table, [1, 0, 1])
    assert parts[1].arrays["node_features/n/values"].dtype == "float16"
    assert _read(tmp_path, parts[1], 1, "node_features/n/values") == [[0], [2]]
    for array, text in ((np.zeros((2, 3)), r"shape \(2, 3\), the table has 3 rows"),
                        (np.zeros((3, 1, 1)), "one row of features for each"),
                        (np.array([{}], object), "Python objects in dtype")):  # fmt: skip
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(ConfigError, match=text):
            _rows(tmp_path, {"id": [1, 2, 3]}, features=f"{tmp_path}/x.npy")


@pytest.mark.parametrize(
    ("values", "spec", "text"),
    [([1, 2, 3], {"attributes": "_c"}, "attribute '_c' is no public Python name"),
     ([1, 2, 3], {"attributes": "two words"}, "attribute 'two words' is no public"),
     (["a", "b", "c"], {"label": "c"}, "labels must be numbers"),
     ([1, 2, 3], {"split": "gone"}, "has no column 'gone'"),
     ([0.5, 1.5, 2.5], {"time": "c"}, "times must be integers or timestamps")],
)  # fmt: skip
def test_columns_that_cannot_be(tmp_path: Path, values, spec, text: str) -> None:
    columns = {"c": values, "_c": values, "two words": values}
    with pytest.raises(ConfigError, match=text):
        _rows(tmp_path, columns, **spec)


@pytest.mark.parametrize(
    ("values", "spec", "text"),
    [([0, None, 1], {"label": "c"}, r"has nulls \(give nodes without a label -1\): row 1"),
     (pa.array([0, 1, 2**63], pa.uint64()), {"label": "c"}, "too large for int64: row 2"),
     (pa.array([0, 1, 2**63], pa.uint64()), {"time": "c"}, "too large for int64: row 2"),
     (["train", "dev", None], {"split": "c"}, r'must hold "train", .* or nothing: row 1: \'dev\'')],
)  # fmt: skip
def test_rows_that_cannot_be(tmp_path: Path, values, spec, text: str) -> None:
    rows, table = _rows(tmp_path, {"c": values}, **spec)
    with pytest.raises(ConfigError, match=text):
        _write(tmp_path, rows, table, [0, 0, 1])


def test_float64_columns_train_as_float32_and_the_log_says_so(tmp_path: Path, caplog) -> None:
    nodes = NodeTable(pa.table({"id": [0, 1], "x": [0.5, 0.25], "z": [1, 2]}), features=["x", "z"])
    edges = EdgeTable(pa.table({"src": [0], "dst": [1], "w": [[0.5, 2.0]]}), features="w")
    with caplog.at_level(logging.WARNING, "gigl_loader"):
        partition_tables(nodes, edges, 1, tmp_path / "g", progress=False, memory="300MB")
    said = [record.getMessage() for record in caplog.records]
    assert [text[:17] for text in said] == ["features of nodes", "features of edges"]
    assert all('float32: give feature_dtype="float64"' in text for text in said)
    dataset = DistDataset.load(tmp_path / "g", 0)
    for rows in (dataset.view().node_features, dataset.view().edge_features):
        (values,) = (one.values for one in rows.values())
        torch.nn.Linear(2, 1)(values)  # float64 rows raise: the layer's numbers are float32
    caplog.clear()
    chosen = replace(nodes, feature_dtype="float64")
    partition_tables(chosen, replace(edges, features=None), 1, tmp_path / "g", progress=False,
                     memory="300MB", overwrite=True)  # fmt: skip
    (wide,) = DistDataset.load(tmp_path / "g", 0).view().node_features.values()
    assert wide.values.dtype == torch.float64
    assert not caplog.records
