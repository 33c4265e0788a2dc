"""Train GraphSAGE where the features lie in a database, and only the edges in memory.

    python examples/train_from_sqlite.py

Each sampling thread opens the database, asks it for the rows of a batch at once, and keeps those
that it used last. With a graph store, start the servers with ``--allow-samplers sqlite_features``.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from _data import load_graph
from sqlite_features import write_features
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, FeatureStoreOptions


def accuracy(model: GraphSAGE, loader: DistNeighborLoader) -> float:
    """Return the share of the loader's seeds that are told right."""
    right = total = 0
    with torch.no_grad():
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            right += int((out.argmax(1) == batch.y[: batch.batch_size]).sum())
            total += batch.batch_size
    return right / total


def main() -> None:
    """Write the database, train, and print how well it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--cache-bytes", type=int, default=64 * 1024)
    args = parser.parse_args()
    graph = load_graph("digits", None)
    width, classes = graph.num_features, int(graph.y.max()) + 1
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "features.db")
        write_features(path, graph.x)
        del graph.x
        dataset = DistDataset.from_pyg(graph)
        store = FeatureStoreOptions(
            "sqlite_features.SqliteFeatures", {"path": path}, cache_bytes=args.cache_bytes
        )
        how: dict[str, Any] = {
            "num_neighbors": [10, 5],
            "batch_size": 64,
            "seed": 0,
            "feature_store": store,
        }
        torch.manual_seed(0)
        model = GraphSAGE(width, 64, 2, classes)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with (
            DistNeighborLoader(
                dataset,
                input_nodes=cast("torch.Tensor", dataset.train_node_ids),
                shuffle=True,
                **how,
            ) as train,
            DistNeighborLoader(
                dataset, input_nodes=cast("torch.Tensor", dataset.test_node_ids), **how
            ) as test,
        ):
            for _ in range(args.epochs):
                for batch in train:
                    optimizer.zero_grad()
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
                    optimizer.step()
            print(f"test accuracy: {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
