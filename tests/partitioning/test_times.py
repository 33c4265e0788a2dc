"""Times of neighbours beside the edges that lead to them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.dataset.format.directory import RowOrder
from gigl_loader.dataset.schema import NEIGHBOR_TIME
from gigl_loader.errors import ConfigError

BUYS = ("user", "buys", "item")
USERS, ITEMS, EDGES = 10, 5, 40


def _tables(**columns: Any) -> dict[str, Any]:
    """Return users in partitions 0 and 2, with a time for each, and items in all; and edges."""
    random = np.random.default_rng(4)
    users = pa.table(
        {
            "id": list(range(USERS)),
            "owner": [0] * 4 + [2] * 6,
            "joined": random.integers(-50, 50, USERS),
            "wide": [[1, 2, 3]] * USERS,
        }
    )
    items = pa.table({"id": list(range(ITEMS)), "owner": [0, 0, 1, 2, 2]})
    edges = pa.table(
        {
            "src": random.integers(0, USERS, EDGES),
            "dst": random.integers(0, ITEMS, EDGES),
            "when": list(range(EDGES)),
        }
    )
    nodes = {
        "user": NodeTable(users, partition="owner", attributes=["joined", "wide"]),
        "item": NodeTable(items, partition="owner"),
    }
    return {
        "nodes": nodes,
        "edges": {BUYS: EdgeTable(edges, **columns)},
        "num_partitions": 3,
        "method": "column",
        "progress": False,
        "threads": 1,
        "overwrite": True,
    }


@pytest.mark.parametrize("order", ["ids", "degree"])
def test_each_edge_has_the_time_of_its_neighbour(
    tmp_path: Path, work_sizes, order: RowOrder
) -> None:
    work_sizes(table_rows=7)
    given = _tables()
    partition_tables(**given, root=tmp_path, time_attr="joined", order=order)
    times = given["nodes"]["user"].source.column("joined").to_pylist()
    for k in range(3):
        view = DistDataset.load(tmp_path, k).view()
        rows, edges = view.edge_attributes[BUYS, NEIGHBOR_TIME + "joined"], view.adjacency[BUYS]
        assert rows.values.tolist() == [times[user] for user in edges.indices.tolist()]
        assert rows.first == edges.first_edge


def test_items_have_no_time(tmp_path: Path) -> None:
    partition_tables(**_tables(), root=tmp_path, time_attr="joined", edge_dir="out")
    assert not DistDataset.load(tmp_path, 0).view().edge_attributes


def test_a_time_is_one_number_of_nodes_or_edges(tmp_path: Path) -> None:
    partition_tables(**_tables(time="when"), root=tmp_path / "edges", time_attr="time")
    for given, time_attr, text in (
        (_tables(), "wide", "'wide' of nodes 'user' has 3 numbers each"),
        (_tables(time="when"), "age", r"no attribute of nodes \(there are \['joined', 'wide'\]\)"),
        (_tables(), "time", 'whose name would be "time"'),
    ):
        with pytest.raises(ConfigError, match=text):
            partition_tables(**given, root=tmp_path / "none", time_attr=time_attr)
    assert not (tmp_path / "none").exists()
