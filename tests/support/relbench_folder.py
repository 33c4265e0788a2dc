"""A database in RelBench's layout with planted rules: customers, articles, transactions.

Each month a customer buys ``SHOWN`` times. What it buys dearly in one month is told by the channel
of its purchases of the month before; which articles, by its segment.
"""

import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

START = datetime(2020, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)
MONTHS = 9
SEGMENTS, ARTICLES = 4, 20
CUSTOMERS = 60
VAL, TEST = 5, 7
"""Months after which validation and the test begin."""

SPENDS = """
SELECT timestamp, customer_id, CAST(bool_or(price > 50) AS INTEGER) AS spends
FROM timestamps, transactions
WHERE t_dat > timestamp AND t_dat <= timestamp + INTERVAL '{timedelta}'
GROUP BY timestamp, customer_id
"""
BUYS = """
SELECT t.timestamp, customer_id, list(DISTINCT article_id) AS article_id
FROM timestamps t, transactions
WHERE t_dat > t.timestamp AND t_dat <= t.timestamp + INTERVAL '{timedelta}'
GROUP BY t.timestamp, customer_id
"""


def rows(customers: int = CUSTOMERS, *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Return the columns of each table; transactions are sorted by time."""
    draw = np.random.default_rng(seed)
    segment = np.arange(customers) % SEGMENTS
    dear = draw.integers(0, 2, (MONTHS + 1, customers))
    bought: list[tuple[int, int, int, float, str]] = []
    for month in range(MONTHS):
        for customer in range(customers):
            for _ in range(3):
                second = int(draw.integers(1, int(MONTH.total_seconds())))
                article = int(segment[customer] + SEGMENTS * draw.integers(0, ARTICLES // SEGMENTS))
                price = float(
                    draw.uniform(60, 90) if dear[month, customer] else draw.uniform(1, 40)
                )
                channel = ("web", "shop")[dear[month + 1, customer]]
                at = month * int(MONTH.total_seconds()) + second
                bought.append((at, customer, article, price, channel))
    bought.sort()
    columns: list[Any] = [list(column) for column in zip(*bought, strict=True)]
    return {
        "customers": {
            "customer_id": np.arange(customers),
            "segment": [f"s{number}" for number in segment],
            "age": draw.integers(18, 80, customers).astype(np.float64),
        },
        "articles": {
            "article_id": np.arange(ARTICLES),
            "group": [f"g{number % SEGMENTS}" for number in range(ARTICLES)],
            "weight": draw.uniform(0, 1, ARTICLES),
        },
        "transactions": {
            "customer_id": np.array(columns[1]),
            "article_id": np.array(columns[2]),
            "t_dat": int(START.timestamp()) + np.array(columns[0]),
            "price": np.array(columns[3]),
            "channel": columns[4],
        },
    }


KEYS: dict[str, dict[str, Any]] = {
    "customers": {"pkey": "customer_id", "time_col": None, "fkeys": {}},
    "articles": {"pkey": "article_id", "time_col": None, "fkeys": {}},
    "transactions": {
        "pkey": None,
        "time_col": "t_dat",
        "fkeys": {"customer_id": "customers", "article_id": "articles"},
    },
}
TASKS: dict[str, dict[str, Any]] = {
    "user-spends": {
        "kind": "forecast",
        "task_type": "binary_classification",
        "entity_table": "customers",
        "entity_col": "customer_id",
        "target_col": "spends",
        "time_col": "timestamp",
        "timedelta": "30 days",
        "num_eval_timestamps": 2,
        "sql": textwrap.dedent(SPENDS),
    },
    "user-article": {
        "kind": "forecast",
        "task_type": "recommendation",
        "src_entity_table": "customers",
        "src_entity_col": "customer_id",
        "dst_entity_table": "articles",
        "dst_entity_col": "article_id",
        "time_col": "timestamp",
        "timedelta": "30 days",
        "eval_k": 5,
        "sql": textwrap.dedent(BUYS),
    },
    "transaction-price": {
        "kind": "autocomplete",
        "task_type": "regression",
        "entity_table": "transactions",
        "target_col": "price",
        "remove_columns": [["transactions", "channel"]],
    },
}


def month(number: int) -> datetime:
    """Return the beginning of a month."""
    return START + number * MONTH


def write(
    folder: Path,
    *,
    unit: str = "ns",
    tables: dict[str, dict[str, Any]] | None = None,
    keys: dict[str, dict[str, Any]] | None = None,
    tasks: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Write the folder; times are ``timestamp[unit]`` in columns called by `KEYS`."""
    (folder / "db").mkdir(parents=True)
    keys = KEYS if keys is None else keys
    for name, columns in (rows() if tables is None else tables).items():
        arrays = {column: pa.array(values) for column, values in columns.items()}
        if time := keys[name]["time_col"]:
            seconds = arrays[time].cast(pa.int64()).cast(pa.timestamp("s"))
            arrays[time] = seconds.cast(pa.timestamp(unit))
        pq.write_table(pa.table(arrays), folder / "db" / f"{name}.parquet")
    manifest = {
        "name": "shop",
        "manifest_version": 1,
        "val_timestamp": f"{month(VAL):%Y-%m-%d}",
        "test_timestamp": f"{month(TEST):%Y-%m-%d}",
        "tables": keys,
    }
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    for name, task in (TASKS if tasks is None else tasks).items():
        (folder / "tasks" / name).mkdir(parents=True)
        text = yaml.safe_dump({"name": name, **task}, sort_keys=False)
        (folder / "tasks" / name / "manifest.yaml").write_text(text)
    return folder


def timed_rows() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return tables that all have a time, and their keys.

    Half of the customers and articles came at the beginning, the others at any time, most of them
    after the purchases that name them: they are planted rows from the future. Column ``day`` of
    each table is the time of its row.
    """
    tables, draw = rows(), np.random.default_rng(3)
    start, end = int(START.timestamp()), int(month(MONTHS).timestamp())
    for name in ("customers", "articles"):
        count = len(next(iter(tables[name].values())))
        came = draw.integers(start, end, count)
        tables[name]["came"] = np.sort(np.where(np.arange(count) < count // 2, start, came))
    keys = {name: {**of, "time_col": of["time_col"] or "came"} for name, of in KEYS.items()}
    for name, columns in tables.items():
        columns["day"] = (columns[keys[name]["time_col"]] - start) / 86_400.0
    return tables, keys
