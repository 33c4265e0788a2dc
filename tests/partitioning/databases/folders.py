"""Small databases in RelBench's layout, and what is read of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from gigl_loader import DistDataset
from gigl_loader.dataset.partition.frames import attributes_of, to_frame

DAY = 86_400
START = 1_577_836_800
"""The first second of 2020."""
VAL, TEST = START + 60 * DAY, START + 80 * DAY


def stamps(seconds: Any, unit: str = "ns") -> Any:
    """Return seconds, or None, as an Arrow array of timestamps."""
    of_unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [None if s is None else int(s * of_unit) for s in seconds]
    return pa.array(values, pa.timestamp(unit))


def shop(orders: int = 400, seed: int = 0, unit: str = "ns") -> dict[str, Any]:
    """Return Arrow tables: customers, articles, and orders of both with times and some nulls."""
    draw = np.random.default_rng(seed)
    customers, articles = orders // 8, orders // 20
    some = [int(c) if c % 7 else None for c in draw.integers(0, customers, orders)]
    times = np.sort(draw.integers(START, START + 100 * DAY, orders))
    names = [["red", "green", "blue", None][i] for i in draw.integers(0, 4, articles * 10)]
    return {
        "customers": pa.table(
            {
                "id": np.arange(customers),
                "age": pa.array(
                    [float(a) if a > 20 else None for a in draw.integers(18, 90, customers)]
                ),
                "joined": stamps(draw.integers(START, TEST, customers), unit),
            }
        ),
        "articles": pa.table(
            {
                "id": np.arange(articles),
                "price": draw.random(articles),
                "vector": pa.array(list(draw.random((articles, 3)).astype("f4"))),
            }
        ),
        "orders": pa.table(
            {
                "customer": pa.array(some, pa.int64()),
                "article": pa.array(draw.integers(0, articles, orders)),
                "at": stamps(times.tolist(), unit),
                "amount": draw.normal(size=orders),
                "channel": pa.array([names[i % len(names)] for i in range(orders)]),
                "paid": pa.array([bool(i % 3) if i % 5 else None for i in range(orders)]),
                "count": pa.array(draw.integers(1, 4, orders), pa.int32()),
            }
        ),
    }


KEYS: dict[str, dict[str, Any]] = {
    "customers": {"pkey": "id"},
    "articles": {"pkey": "id"},
    "orders": {"time_col": "at", "fkeys": {"customer": "customers", "article": "articles"}},
}


def write_folder(
    folder: Path, rows: Mapping[str, Any], keys: Mapping[str, Any] = KEYS, **more: Any
) -> Path:
    """Write a database in RelBench's layout; return its path."""
    (folder / "db").mkdir(parents=True)
    for name, table in rows.items():
        pq.write_table(table, folder / "db" / f"{name}.parquet")
    manifest = {
        "name": "shop",
        "manifest_version": 1,
        "val_timestamp": "2020-03-01",
        "test_timestamp": "2020-03-21",
        "tables": {n: {"pkey": None, "time_col": None, "fkeys": {}} | keys[n] for n in keys},
        **more,
    }
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder


def two_tables(child: Mapping[str, Any], parent: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return tables ``child``, whose column ``to`` is a key, and ``parent`` of three rows."""
    rows = max(len(values) for values in child.values())
    parent = parent or {"id": [0, 1, 2]}
    to = {"to": [i % 3 for i in range(rows)]} if "to" not in child else {}
    return {
        "parent": parent if isinstance(parent, pa.Table) else pa.table(dict(parent)),
        "child": pa.table({**to, **child}),
    }


TWO: dict[str, dict[str, Any]] = {"parent": {"pkey": "id"}, "child": {"fkeys": {"to": "parent"}}}


def frame_of(dataset: DistDataset, table: str) -> Any:
    """Return the rows of a table in a partition as a ``TensorFrame``."""
    view = dataset.view()
    columns = view.frames[table]
    arrays = {n: view.node_attributes[table, n].values for n in attributes_of(columns)}
    return to_frame(columns, arrays, len(next(iter(arrays.values()))))


def edges_of(dataset: DistDataset, edge_type: Any) -> list[tuple[int, int]]:
    """Return the edges of a type as sorted pairs (source, destination)."""
    adjacency = dataset.view().adjacency[edge_type]  # by destination
    rows = torch.repeat_interleave(
        torch.arange(len(adjacency.indptr) - 1), adjacency.indptr.diff().to(torch.int64)
    )
    return sorted(zip(adjacency.indices.tolist(), rows.tolist(), strict=True))


def described(root: Path) -> dict[str, Any]:
    """Return the contents of ``database.json``."""
    found: dict[str, Any] = json.loads((root / "database.json").read_text())
    return found
