"""Accuracy with features stored in fewer bytes: Cora's topics, LastFM's ties.

Cora: two GraphSAGE layers on PyG's normalised bags of words. LastFM has no features: a user's row
is the 64 leading components of the listening counts; a tie between users is predicted by the inner
product of two GraphSAGE layers, and scored against as many pairs drawn at random. Everything but
the stored type is the same in all runs of one seed::

    python examples/benchmarks/quantised/bench_accuracy.py --root DIR [--out results.md]
"""

import argparse
import datetime
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from _data import cora

DTYPES = ("float32", "float16", "bfloat16", "int8", "uint8")
COMPONENTS = 64
HOW: dict[str, Any] = {"batch_size": 512, "num_workers": 0}


def lastfm(root: Path) -> tuple[Data, torch.Tensor]:
    """Return users with features and nine of ten ties, and ``[2, n]``, the other ties."""
    listened = np.loadtxt(root / "data1.txt")
    plays = listened.astype(np.int64)
    ties = np.loadtxt(root / "trustnetwork.txt")[:, :2].astype(np.int64)
    num_users = int(max(plays[:, 0].max(), ties.max())) + 1
    counts = np.zeros((num_users, int(plays[:, 1].max()) + 1), np.float32)
    counts[plays[:, 0], plays[:, 1]] = np.log1p(listened[:, 2])
    torch.manual_seed(0)
    left, values, _ = torch.svd_lowrank(torch.from_numpy(counts), COMPONENTS)
    pairs = torch.from_numpy(np.unique(np.sort(ties, axis=1), axis=0)).t()
    pairs = pairs[:, pairs[0] != pairs[1]]
    order = torch.randperm(pairs.size(1), generator=torch.Generator().manual_seed(0))
    held_out, kept = pairs[:, order[: order.numel() // 10]], pairs[:, order[order.numel() // 10 :]]
    x = (left * values).contiguous()
    return Data(x=x, edge_index=torch.cat([kept, kept.flip(0)], 1), num_nodes=num_users), held_out


def stored_as(data: Data, dtype: str, folder: Path) -> DistDataset:
    """Return the graph as one partition whose features are stored so."""
    feature_dtype = None if dtype == "float32" else dtype
    partition_graph(data, 1, folder / dtype, feature_dtype=feature_dtype, progress=False)
    return DistDataset.load(folder / dtype, 0)


def topics(data: Data, dataset: DistDataset, seed: int) -> float:
    """Return the share of Cora's test papers whose topic is found."""
    torch.manual_seed(seed)
    model = GraphSAGE(data.num_features, 64, 2, int(data.y.max()) + 1, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    with DistNeighborLoader(
        dataset, [10, 10], data.train_mask, seed=seed, shuffle=True, **HOW
    ) as loader:
        for epoch in range(60):
            loader.set_epoch(epoch)
            for batch in loader:
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    model.eval()
    with DistNeighborLoader(dataset, [-1, -1], data.test_mask, seed=0, **HOW) as loader:
        right = total = 0
        for batch in loader:
            with torch.no_grad():
                found = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(1)
            right += int((found == batch.y[: batch.batch_size]).sum())
            total += batch.batch_size
    return right / total


def ties_found(data: Data, held_out: torch.Tensor, dataset: DistDataset, seed: int) -> float:
    """Return how often a tie that was held out scores above a pair drawn at random (AUC)."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = GraphSAGE(data.num_features, 64, 2, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    everyone = torch.arange(data.num_nodes)
    with DistNeighborLoader(dataset, [10, 10], everyone, seed=seed, shuffle=True, **HOW) as loader:
        for epoch in range(15):
            loader.set_epoch(epoch)
            for batch in loader:  # ties within the batch, against pairs of its nodes
                out = model(batch.x, batch.edge_index)
                ends = batch.edge_index
                others = torch.randint(batch.num_nodes, ends.shape, generator=generator)
                score = [(out[a] * out[b]).sum(1) for a, b in (ends, others)]
                loss = -F.logsigmoid(score[0]).mean() - F.logsigmoid(-score[1]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    model.eval()
    rows = torch.empty((data.num_nodes, 64))
    with DistNeighborLoader(dataset, [-1, -1], everyone, seed=0, **HOW) as loader:
        for batch in loader:
            with torch.no_grad():
                found = model(batch.x, batch.edge_index)[: batch.batch_size]
            rows[batch.batch] = found
    pairs = torch.randint(data.num_nodes, held_out.shape, generator=generator)
    near, far = ((rows[a] * rows[b]).sum(1) for a, b in (held_out, pairs))
    return float((near[:, None] > far[None, :]).float().mean())


def row_of(name: str, run: Callable[[DistDataset, int], float], data: Data, seeds: int) -> str:
    """Return a row of the table: mean and spread of each stored type."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            dataset = stored_as(data, dtype, Path(folder))
            found = np.array([run(dataset, seed) for seed in range(seeds)])
            cells.append(f"{found.mean():.4f} ± {found.std():.4f}")
            print(name, dtype, cells[-1], flush=True)
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="has Planetoid/ and lastfm/")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    papers = cora(str(args.root / "Planetoid"))
    users, held_out = lastfm(args.root / "lastfm")
    lines = [
        f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}, "
        f"{args.seeds} seeds: mean and standard deviation.",
        "",
        f"| | {' | '.join(DTYPES)} |",
        "|---" * (1 + len(DTYPES)) + "|",
        row_of("Cora, accuracy", lambda d, seed: topics(papers, d, seed), papers, args.seeds),
        row_of(
            "LastFM, AUC", lambda d, seed: ties_found(users, held_out, d, seed), users, args.seeds
        ),
    ]
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
