"""What is likely a mistake in a graph: one rule for every way in."""

import warnings
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    ConfigError,
    DistDataset,
    EdgeTable,
    FeaturePartitionData,
    GraphPartitionData,
    GraphWarning,
    NodeTable,
    PartitionOutput,
    partition_graph,
    partition_tables,
    split_links,
)

NAN = float("nan")
EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def _data(**attributes: Any) -> Data:
    return Data(**{"x": torch.zeros(4, 2), "edge_index": EDGES, **attributes})


def _from_pyg(data: Data, root: Path) -> None:
    DistDataset.from_pyg(data)


def _partition_graph(data: Data, root: Path) -> None:
    partition_graph(data, 2, root / "parts", progress=False)


def _build(data: Data, root: Path) -> None:
    def rows(values: Any) -> Any:
        return None if values is None else FeaturePartitionData(values, torch.arange(4))

    DistDataset(0, 1).build(
        partition_output=PartitionOutput(
            node_partition_book=torch.zeros(4, dtype=torch.int64),
            edge_partition_book=torch.zeros(4, dtype=torch.int64),
            partitioned_edge_index=GraphPartitionData(data.edge_index, torch.arange(4)),
            partitioned_node_features=rows(data.x),
            partitioned_edge_features=rows(data.edge_attr),
            partitioned_node_labels=rows(data.y),
        )
    )


def _tables(data: Data, root: Path, kind: str) -> None:
    nodes = {"id": range(4), **{f"x{i}": data.x[:, i].tolist() for i in range(2)}}
    edges = dict(zip(("src", "dst"), data.edge_index.tolist(), strict=True))
    if data.y is not None:
        nodes["y"] = data.y.tolist()
    if data.edge_attr is not None:
        edges["a"] = data.edge_attr.view(-1).tolist()
    for name, columns in (("nodes", nodes), ("edges", edges)):
        # two files: a table is told once
        (root / name).mkdir()
        for i in range(2):
            part = pa.table({key: [*values][2 * i : 2 * i + 2] for key, values in columns.items()})
            if kind == "parquet":
                pyarrow.parquet.write_table(part, root / name / f"{i}.parquet")
            else:
                pyarrow.csv.write_csv(part, root / name / f"{i}.csv")
    partition_tables(
        nodes=NodeTable(
            root / "nodes",
            features=["x0", "x1"],
            label="y" if "y" in nodes else None,
            feature_dtype="float32",
        ),
        edges=EdgeTable(root / "edges", features="a" if "a" in edges else None),
        num_partitions=2,
        root=root / "parts",
        progress=False,
    )


def _parquet(data: Data, root: Path) -> None:
    _tables(data, root, "parquet")


def _csv(data: Data, root: Path) -> None:
    _tables(data, root, "csv")


WAYS = [_from_pyg, _partition_graph, _build, _parquet, _csv]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (
            {"x": torch.tensor([[0.5, NAN], [0.5, 0.5], [0.5, NAN], [NAN, 0.5]])},
            r"^3 of 8 features of .* are NaN \(no number\): 2 in column '?x?1'?, 1 in column '?x?0",
        ),
        ({"y": torch.tensor([0.5, NAN, 1, NAN])}, r"^2 of 4 labels of .* are NaN .*: 2 in column"),
        (
            {"edge_attr": torch.tensor([[0.5], [1], [NAN], [1]])},
            r"^1 of 4 features of .* are NaN .*: 1 in column",
        ),
        (
            {"y": torch.tensor([0, -7, -1, -2])},
            r"^2 labels of .* are below -1, the lowest -7: -1 and -100 mean no label",
        ),
    ],
    ids=["features", "labels", "edges", "low"],
)
def test_what_may_be_meant_is_told_once(tmp_path, way, attributes, words) -> None:
    with pytest.warns(GraphWarning, match=words) as caught:
        way(_data(**attributes), tmp_path)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("way", WAYS)
def test_what_is_usual_is_not_told(tmp_path, way) -> None:
    # warnings are errors here
    way(_data(y=torch.tensor([0, -1, -100, 2])), tmp_path)


@pytest.mark.parametrize("way", [_from_pyg, _partition_graph])
def test_nodes_in_two_splits_are_counted(tmp_path, way) -> None:
    masks = {"train_mask": [1, 1, 1, 0], "val_mask": [0, 1, 1, 0], "test_mask": [0, 0, 0, 1]}
    data = _data(**{name: torch.tensor(mask).bool() for name, mask in masks.items()})
    words = r"^2 nodes of \(the only type\) are in both the train and the val split$"
    with pytest.warns(GraphWarning, match=words) as caught:
        way(data, tmp_path)
    assert len(caught) == 1
    typed = HeteroData()
    typed["a"].x, typed["b"].x = torch.zeros(3, 1), torch.full((2, 5), NAN)
    typed["a", "to", "b"].edge_index = torch.tensor([[0, 2], [1, 0]])
    typed["a"].train_idx, typed["a"].test_idx = torch.tensor([2, 0]), torch.tensor([2])
    with pytest.warns(GraphWarning) as caught:
        way(typed, tmp_path / "typed")
    assert str(caught[0].message) == (
        "10 of 10 features of 'b' are NaN (no number): 2 in column 0, 2 in column 1, "
        "2 in column 2, others in 2 more columns; "
        "1 nodes of 'a' are in both the train and the test split"
    )


def test_an_anchor_may_have_links_in_each_split() -> None:
    links = split_links(Data(x=torch.ones(9, 1), edge_index=torch.randint(9, (2, 60))))
    both = links.data.train_mask & links.data.test_mask
    assert both.any()
    DistDataset.from_pyg(links.data, supervision=links.supervision)  # warnings are errors here


def test_a_missing_value_is_an_error_also_in_csv(tmp_path) -> None:
    for kind, words in (
        ("csv", r"'x' of .*n\.csv has nulls: row 1"),
        ("parquet", r"has nulls: row 1"),
    ):
        nodes = pa.table({"id": [0, 1], "x": [0.5, None]})
        edges = pa.table({"src": [0], "dst": [1]})
        for name, table in (("n", nodes), ("e", edges)):
            path = tmp_path / f"{name}.{kind}"
            if kind == "csv":
                pyarrow.csv.write_csv(table, path)
            else:
                pyarrow.parquet.write_table(table, path)
        with pytest.raises(ConfigError, match=words):
            partition_tables(
                nodes=NodeTable(tmp_path / f"n.{kind}", features="x", feature_dtype="float32"),
                edges=EdgeTable(tmp_path / f"e.{kind}"),
                num_partitions=1,
                root=tmp_path / "parts",
                progress=False,
            )


def test_more_partitions_than_nodes_are_told_and_more_communities_refused(tmp_path) -> None:
    words = "^num_partitions=5 is more than the 4 nodes of the graph, so some partitions have none$"
    again: dict[str, Any] = {"progress": False, "overwrite": True}
    for method in ("contiguous", "random", "metis"):
        with pytest.warns(GraphWarning, match=words):
            partition_graph(_data(), 5, tmp_path / "a", method=method, **again)
    for index in range(5):  # those that were told of work
        assert DistDataset.load(tmp_path / "a", index).num_partitions == 5
    with pytest.raises(ConfigError, match="communities=5 is more than the 4 nodes"):
        partition_graph(
            _data(), 2, tmp_path / "parts", method="metis", communities=5, progress=False
        )
    pyarrow.parquet.write_table(pa.table({"id": range(4)}), tmp_path / "nodes.parquet")
    pyarrow.parquet.write_table(
        pa.table({"src": EDGES[0].tolist(), "dst": EDGES[1].tolist()}), tmp_path / "edges.parquet"
    )
    arguments: dict[str, Any] = {
        "nodes": NodeTable(tmp_path / "nodes.parquet"),
        "edges": EdgeTable(tmp_path / "edges.parquet"),
        "root": tmp_path / "parts",
        "progress": False,
    }
    methods: tuple[Literal["contiguous", "random", "ldg", "metis"], ...]
    methods = ("contiguous", "random", "ldg", "metis")
    for method in methods:
        with pytest.warns(GraphWarning, match=words):
            partition_tables(**arguments, num_partitions=5, method=method, overwrite=True)
    with pytest.raises(ConfigError, match="communities=5 is more than the 4 nodes"):
        partition_tables(**arguments, num_partitions=2, method="ldg", communities=5, overwrite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition_graph(
            Data(edge_index=EDGES[:, :0], num_nodes=0), 1, tmp_path / "empty", progress=False
        )
