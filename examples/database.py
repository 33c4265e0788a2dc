"""Train a GNN on a database: a DuckDB file with keys, and a task that is a query.

    python examples/database.py

The channel of a customer's purchases, and nothing else, tells whether it buys dearly next month. A
customer is a seed at the end of each month, and sees no row that came later.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_frame import nn as frame_nn
from torch_frame import stype
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from gigl_loader import DistDataset, DistNeighborLoader, Task

SHOP = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, age DOUBLE);
CREATE TABLE purchases (
    customer INTEGER REFERENCES customers (id), bought TIMESTAMP, price DOUBLE, channel VARCHAR);
INSERT INTO customers SELECT i, 20 + hash(i) % 50 FROM range(200) t(i);
INSERT INTO purchases
SELECT c, TIMESTAMP '2024-01-01' + INTERVAL (30 * m + 7 * k + 1) DAYS,
    if(hash(c, m) % 2 = 1, 70, 20) + hash(c, m, k) % 9, if(hash(c, m + 1) % 2 = 1, 'shop', 'web')
FROM range(200) a(c), range(10) b(m), range(4) d(k) ORDER BY 2, 1;
"""
DEARLY = Task(
    entity=("customers", "customer"),
    time="timestamp",
    target="dearly",
    timedelta="30 days",
    task_type="binary_classification",
    val_timestamp="2024-06-29",  # six months after the first day
    test_timestamp="2024-08-28",
    sql="""
        SELECT timestamp, customer, CAST(max(price) > 50 AS INTEGER) AS dearly
        FROM timestamps, purchases
        WHERE bought > timestamp AND bought <= timestamp + INTERVAL '{timedelta}'
        GROUP BY ALL
    """,
)
ENCODERS: dict[stype, Any] = {
    stype.numerical: frame_nn.LinearEncoder,
    stype.categorical: frame_nn.EmbeddingEncoder,
    stype.timestamp: frame_nn.TimestampEncoder,
}


class Model(nn.Module):
    """Encodes the rows of each table, adds how long ago they came, and passes messages twice."""

    def __init__(self, dataset: DistDataset, batch: HeteroData, width: int = 32) -> None:
        super().__init__()
        self.rows = nn.ModuleDict()
        for table, stats in dataset.col_stats.items():
            names = batch[table].tf.col_names_dict
            encoders = {kind: ENCODERS[kind]() for kind in names}
            self.rows[table] = frame_nn.StypeWiseFeatureEncoder(width, stats, names, encoders)
        self.age = nn.Linear(1, width)
        convs = [{k: SAGEConv(width, width) for k in batch.edge_types} for _ in range(2)]
        self.layers = nn.ModuleList(map(HeteroConv, convs))
        self.out = nn.Linear(width, 1)

    def forward(self, batch: HeteroData) -> Tensor:
        """Return ``[seeds]``, the logits of the customers that are seeds."""
        x = {table: rows(batch[table].tf)[0].sum(1) for table, rows in self.rows.items()}
        seed_time = batch["customers"].seed_time
        for table, time in batch.time_dict.items():
            days = (seed_time[batch[table].batch] - time) / 86_400
            x[table] = x[table] + self.age(days[:, None] / 30)
        for layer in self.layers:
            x = {table: h.relu() for table, h in {**x, **layer(x, batch.edge_index_dict)}.items()}
        out: Tensor = self.out(x["customers"][: seed_time.numel()]).squeeze(1)
        return out


def main() -> None:
    """Write the database, train, and print how many labels of validation are told right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        with duckdb.connect(f"{folder}/shop.duckdb") as connection:
            connection.execute(SHOP)
        dataset = DistDataset.from_database(
            f"{folder}/shop.duckdb",
            upto=DEARLY.test_timestamp,
            stats_upto=DEARLY.val_timestamp,
            keys={"purchases": {"time_col": "bought"}},
            root=Path(folder) / "parts",
        )
        task = dataset.task(DEARLY)
        how: dict[str, Any] = {"batch_size": 64, "temporal_strategy": "last", "num_workers": 0}
        train = DistNeighborLoader(dataset, [4, 2], task.split("train"), shuffle=True, **how)
        val = DistNeighborLoader(dataset, [4, 2], task.split("val"), **how)
        model = Model(dataset, next(iter(val)))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(args.epochs):
            for batch in train:
                optimizer.zero_grad()
                y = batch["customers"].y.float()
                F.binary_cross_entropy_with_logits(model(batch), y).backward()
                optimizer.step()
            with torch.no_grad():
                right = torch.cat([(model(b) > 0) == (b["customers"].y > 0) for b in val])
            print(f"epoch {epoch}: validation accuracy: {right.float().mean():.3f}")


if __name__ == "__main__":
    main()
