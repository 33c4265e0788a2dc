"""The bytes of directories that `partition_tables` writes never change."""

from pathlib import Path
from typing import Any

import pytest

from gigl_loader import partition_tables
from tests.partitioning.table_graphs import BUYS, KNOWS, Tables
from tests.support.format_digest import format_digest

GRAPH = Tables(
    [f"u{i}é" for i in (7, 3, 9, 1, 4, 8, 2)],
    [5, -3, 2**62, 40],
    {
        BUYS: [("u7é", -3), ("u1é", 40), ("u9é", 5), ("u7é", -3), ("u2é", 2**62), ("u4é", 40)],
        KNOWS: [("u3é", "u9é"), ("u9é", "u3é"), ("u1é", "u1é"), ("u8é", "u7é"), ("u2é", "u7é")],
    },
    [("u3é", 5), ("u2é", 40)],
)
CASES: dict[str, dict[str, Any]] = {
    "contiguous": {"num_partitions": 2},
    "one": {"num_partitions": 1, "edge_dir": "out"},
    "random": {"num_partitions": 3, "method": "random", "seed": 4, "edge_rows": True},
    "degree": {"num_partitions": 2, "order": "degree", "time_attr": "time"},
    "ldg": {"num_partitions": 2, "method": "ldg", "time_attr": "time"},
    "ldg-out": {"num_partitions": 3, "method": "ldg", "edge_dir": "out", "edge_rows": True},
    "glt": {"num_partitions": 2, "format": "glt", "method": "random"},
}
WRITTEN = {
    "contiguous": "96998ad1f5be7406",
    "one": "dd912db263fd59e3",
    "random": "2012923b6e5ea16f",
    "degree": "f752f803efa01b2d",
    "ldg": "f1bf07eff2990e64",
    "ldg-out": "f00007dfcd2c36c1",
    "glt": "66c4f639d6a0ced7",
}


@pytest.mark.parametrize("name", CASES)
def test_a_directory_of_tables_has_the_bytes_that_it_always_had(tmp_path: Path, name: str) -> None:
    nodes, edges = GRAPH.write(tmp_path / "tables", 2)
    partition_tables(
        nodes, edges, root=tmp_path / "graph", threads=1, progress=False, **CASES[name]
    )
    assert format_digest(tmp_path / "graph") == WRITTEN[name]
