"""The way from `e_id` back to the row of the table."""

import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, EdgeTable, NodeTable, partition_tables
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.schema import EdgeDir, EdgeType
from gigl_loader.errors import ConfigError, UsageError, WrongTypeError
from gigl_loader.partitioning.tables.spec import Method

BUYS, LIKES = ("user", "buys", "item"), ("user", "likes", "item")


def _edges(folder: Path, name: str, count: int, weight: bool) -> tuple[str, list[tuple]]:
    """Write edges as two files, some of them alike or dangling; return them in order."""
    draw = random.Random(name)
    rows = [(f"u{draw.randrange(6)}", draw.randrange(5), i / 4) for i in range(count)]
    (folder / name).mkdir(parents=True)
    for number, part in enumerate((rows[: count // 3], rows[count // 3 :])):
        columns = {"src": [one[0] for one in part], "dst": [one[1] for one in part]}
        columns |= {"w": [one[2] for one in part]} if weight else {}
        pq.write_table(pa.table(columns), folder / name / f"{number}.parquet")
    return str(folder / name), rows


@pytest.mark.parametrize(  # any two of them together
    ("edge_dir", "method", "join"),
    [("in", "random", False), ("in", "ldg", True), ("out", "random", True), ("out", "ldg", False)],
)
def test_each_edge_leads_back_to_its_row(
    tmp_path: Path, work_sizes, edge_dir: EdgeDir, method: Method, join: bool
) -> None:
    if join:  # as where the ids of nodes do not fit into memory
        work_sizes(index_share=0.0)
    # user u5 is not there, so some edges are dropped: rows count them all the same
    nodes = {
        "user": NodeTable(pa.table({"id": [f"u{i}" for i in range(5)]})),
        "item": NodeTable(pa.table({"id": list(range(5))})),
    }
    tables = {
        BUYS: _edges(tmp_path, "buys", 40, weight=True),
        LIKES: _edges(tmp_path, "likes", 30, weight=False),
    }
    edges: dict[EdgeType, Any] = {
        BUYS: EdgeTable(tables[BUYS][0], weight="w"),
        LIKES: [
            EdgeTable(tables[LIKES][0]),
            EdgeTable(pa.table({"src": ["u1"], "dst": [2]}), supervision="positive"),
        ],
    }
    partition_tables(
        nodes,
        edges,
        3,
        tmp_path / "graph",
        method=method,
        edge_dir=edge_dir,
        edge_rows=True,
        drop_dangling=True,
        progress=False,
        memory="400MB",
        threads=2,
    )
    datasets = [DistDataset.load(tmp_path / "graph", k, verify="now") for k in range(3)]
    for edge_type, (_, rows) in tables.items():
        seen = []
        for dataset in datasets:
            adjacency = dataset.view().adjacency[edge_type]
            ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel()))
            # of any partition, in any process: a pickle and a mapped dataset give the same
            other = pickle.loads(pickle.dumps(datasets[0]))
            found = datasets[0].to_table_rows(ids, edge_type)
            assert other.to_table_rows(ids, edge_type).tolist() == found.tolist()
            sources, targets = edges_of(adjacency, dataset.edge_dir)
            ends = zip(
                dataset.to_original(sources, "user"),
                dataset.to_original(targets, "item"),
                strict=True,
            )
            assert list(ends) == [rows[row][:2] for row in found.tolist()]
            if edge_type == BUYS:
                assert adjacency.weights is not None
                assert adjacency.weights.tolist() == [rows[row][2] for row in found.tolist()]
            seen += found.tolist()
        assert sorted(seen) == [i for i, one in enumerate(rows) if one[0] != "u5"]
    with pytest.raises(ConfigError, match=r"edge_type must be one of .*buys.*got None"):
        datasets[0].to_table_rows(torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"must be in \[0, \d+\), got 0 to 1000"):
        datasets[0].to_table_rows(torch.tensor([0, 1000]), BUYS)


def test_batches_lead_back_to_the_table(tmp_path: Path) -> None:
    table = pa.table({"src": [0, 1, 2, 0, 1], "dst": [1, 2, 0, 2, 0], "w": [1.0, 2, 3, 4, 5]})
    nodes = NodeTable(
        pa.table({"id": [0, 1, 2], "x": [[0.0], [1.0], [2.0]]}),
        features="x",
        feature_dtype="float32",
    )
    edges = EdgeTable(table, features="w", feature_dtype="float32")
    partition_tables(
        nodes, edges, 1, tmp_path / "graph", edge_rows=True, progress=False, memory="300MB"
    )
    dataset = DistDataset.load(tmp_path / "graph", 0, mmap=True)
    with DistNeighborLoader(dataset, [-1], num_workers=0, batch_size=3) as loader:
        (batch,) = loader
    rows = dataset.to_table_rows(batch.e_id)
    assert table.take(rows)["w"].to_pylist() == batch.edge_attr.view(-1).tolist()
    assert len(rows) == 5


def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    nodes, edges = NodeTable(pa.table({"id": [0]})), EdgeTable(pa.table({"src": [0], "dst": [0]}))
    partition_tables(nodes, edges, 1, tmp_path / "graph", progress=False, memory="300MB")
    dataset = DistDataset.load(tmp_path / "graph", 0)
    assert dataset.to_original(torch.tensor([0])).tolist() == [0]
    with pytest.raises(UsageError, match="edge_rows=True"):
        dataset.to_table_rows(torch.tensor([0]))
    assert not (tmp_path / "graph" / "edge_rows").exists()
    with pytest.raises(ConfigError, match='edge_rows=True needs format="mapped"'):
        partition_tables(nodes, edges, 1, tmp_path / "g", edge_rows=True, format="glt")
    with pytest.raises(WrongTypeError, match="edge_rows must be True or False"):
        partition_tables(nodes, edges, 1, tmp_path / "g", edge_rows=1)  # type: ignore[arg-type]  # wrong on purpose
