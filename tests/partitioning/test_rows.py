"""Features, labels and splits: their types, and what they cannot be."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gigl_loader import DistDataset, EdgeTable, NodeTable, UsageError, partition_tables
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.stages import pipeline


def _partition(folder: Path, columns: dict[str, Any], owners: list[int], **spec: Any) -> list[Any]:
    """Partition nodes in two parts, by owner; return their datasets."""
    ids = list(range(len(owners)))
    nodes = pa.table({"id": ids, "owner": owners, **columns})
    edges = EdgeTable(pa.table({"src": [0], "dst": [1]}))
    partition_tables(
        NodeTable(nodes, partition="owner", **spec),
        edges,
        2,
        folder / "out",
        method="column",
        progress=False,
        threads=1,
    )
    return [DistDataset.load(folder / "out", k) for k in range(2)]


def _values(dataset: Any, kind: str, name: Any = N) -> Any:
    return getattr(dataset.view(), kind)[name].values


def test_rows_go_to_the_partitions_that_own_them(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([[i, -i] for i in range(5)], pa.list_(pa.float32())),
        "y": pa.array([3, 1, 4, 1, 5], pa.int8()),
        "price": [0.5, 1.5, 2.5, 3.5, 4.5],
        "s": ["train", None, "validation", "test", "train"],
    }
    spec = {"features": "x", "label": "y", "attributes": "price", "split": "s"}
    first, second = _partition(tmp_path, columns, [1, 0, 1, 0, 1], **spec)
    assert first.num_classes == second.num_classes == 6
    assert _values(first, "node_features").tolist() == [[1, -1], [3, -3]]
    assert _values(second, "node_features").tolist() == [[0, 0], [2, -2], [4, -4]]
    labels = _values(second, "node_labels")
    assert (labels.tolist(), labels.dtype) == ([3, 4, 5], torch.int64), "what losses take"
    assert _values(first, "node_attributes", (N, "price")).tolist() == [1.5, 3.5]
    splits = [
        [part.split_node_ids(name).tolist() for name in ("train", "val", "test")]
        for part in (first, second)
    ]
    assert splits == [[[], [], [1]], [[2, 4], [3], []]]
    assert second.view().node_labels[N].first == 2


@pytest.mark.parametrize(
    ("labels", "columns", "classes"),
    [
        ([0, 2, -1], "y", 3),
        ([-1, -1, -1], "y", 0),
        ([True, False, True], "y", 2),
        ([[1, 0], [0, 0], [1, 1]], "y", 2),
        ([0, 1, 2], ["y", "z"], 2),
    ],
)
def test_classes_are_counted(tmp_path: Path, labels, columns, classes: int) -> None:
    found = _partition(tmp_path, {"y": labels, "z": [0, 0, 0]}, [0, 0, 1], label=columns)
    assert [one.num_classes for one in found] == [classes] * 2


def test_fractions_are_no_classes(tmp_path: Path) -> None:
    found, _ = _partition(tmp_path, {"y": [0.5, 1.5, 2.5]}, [0, 0, 1], label="y")
    with pytest.raises(UsageError, match="does not know those of the others"):
        _ = found.num_classes


def test_the_number_of_classes_is_known_of_a_run_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **more: Any) -> str:
        raise UsageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "seal", full)
        with pytest.raises(UsageError, match="full"):
            _partition(tmp_path, {"y": [0, 4, 2]}, [0, 0, 1], label="y")
    found, _ = _partition(tmp_path, {"y": [0, 4, 2]}, [0, 0, 1], label="y")
    assert found.num_classes == 5


def test_features_beside_the_table(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float64))
    spec = {"features": f"{tmp_path}/x.npy", "feature_dtype": "float16"}
    _, second = _partition(tmp_path, {}, [1, 0, 1], **spec)
    values = _values(second, "node_features")
    assert (values.tolist(), values.dtype) == ([[0], [2]], torch.float16)
    for array, text in (
        (np.zeros((2, 3)), r"shape \(2, 3\), the table has 3 rows"),
        (np.zeros((3, 1, 1)), "one row of features for each"),
        (np.array([{}], object), "Python objects in dtype"),
    ):
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(ConfigError, match=text):
            _partition(tmp_path / "other", {}, [1, 0, 1], **spec)


@pytest.mark.parametrize(
    ("values", "spec", "text"),
    [
        ([1, 2, 3], {"attributes": "_c"}, "attribute '_c' is no public Python name"),
        ([1, 2, 3], {"attributes": "two words"}, "attribute 'two words' is no public"),
        (["a", "b", "c"], {"label": "c"}, "labels must be numbers"),
        ([1, 2, 3], {"split": "gone"}, "has no column 'gone'"),
        ([0.5, 1.5, 2.5], {"time": "c"}, "times must be integers or timestamps"),
        ([0, None, 1], {"label": "c"}, r"has nulls \(give nodes without a label -1\): row 1"),
        (pa.array([0, 1, 2**63], pa.uint64()), {"label": "c"}, "too large for int64: row 2"),
        (pa.array([0, 1, 2**63], pa.uint64()), {"time": "c"}, "too large for int64: row 2"),
        (
            ["train", "dev", None],
            {"split": "c"},
            r'must hold "train", .* or nothing: row 1: \'dev\'',
        ),
    ],
)
def test_columns_and_rows_that_cannot_be(tmp_path: Path, values, spec, text: str) -> None:
    columns = {"c": values, "_c": values, "two words": values}
    with pytest.raises(ConfigError, match=text):
        _partition(tmp_path, columns, [0, 0, 1], **spec)
    assert list(tmp_path.iterdir()) == []


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
    partition_tables(
        chosen,
        replace(edges, features=None),
        1,
        tmp_path / "g",
        progress=False,
        memory="300MB",
        overwrite=True,
    )
    (wide,) = DistDataset.load(tmp_path / "g", 0).view().node_features.values()
    assert wide.values.dtype == torch.float64
    assert not caplog.records
