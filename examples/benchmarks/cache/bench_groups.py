"""Accuracy with ``shuffle="groups"`` beside a plain shuffle, after the same number of epochs.

Three graphs: Cora's topics and LastFM's ties, in communities by METIS, and a planted graph whose
labels are flipped at a known rate, so that the best accuracy is known. One model, two GraphSAGE
layers; all runs of one seed differ in the order of the seeds alone::

    python examples/benchmarks/cache/bench_groups.py --root DIR [--out groups.md]
"""

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "quantised"))

from _data import cora
from bench_accuracy import lastfm

GROUPS = (4, 16, 64)
DEFAULT = 16
ALLOWED = 0.5
"""Points of accuracy that the default may lose before the page has to begin with it."""
COMMUNITIES = 128
FLIPPED, CLASSES, WIDTH = 0.2, 16, 32
Order = int | None
"""Groups that are mixed at a time; None: a plain shuffle."""
ORDERS: tuple[Order, ...] = (None, *GROUPS)


@dataclass
class Run:
    """A training, and what it is called."""

    name: str
    train: Callable[[Order, int], tuple[float, float]]
    """Takes the order and a seed; returns percent, and the nodes of a batch per seed."""


def communities(data: Data, count: int) -> Tensor:
    """Return ``[num_nodes]`` int64: a cut into about ``count`` groups by METIS."""
    import pymetis

    ends = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    ends = torch.cat([ends, ends.flip(0)], 1).unique(dim=1)
    lists = ends[1].split(torch.bincount(ends[0], minlength=data.num_nodes).tolist())
    _, found = pymetis.part_graph(count, adjacency=[neighbors.numpy() for neighbors in lists])
    return torch.tensor(found)


def planted(count: int, size: int, degree: int) -> tuple[Data, Tensor]:
    """Return ``count`` communities of ``size`` nodes, and the community of each node.

    Of a node's edges, 70% are inside its community. A community has one class; a node's features
    are its class's and much noise, so that the class shows in the mean over neighbours. A fifth of
    the labels are flipped: nobody can be right more often than in the other four fifths.
    """
    draws = torch.Generator().manual_seed(0)
    nodes = torch.arange(count * size)
    community = nodes // size
    source = nodes.repeat_interleave(degree)
    inside = community[source] * size + torch.randint(size, source.shape, generator=draws)
    anywhere = torch.randint(len(nodes), source.shape, generator=draws)
    target = torch.where(torch.rand(source.shape, generator=draws) < 0.7, inside, anywhere)
    kind = torch.randint(CLASSES, (count,), generator=draws)[community]
    centers = torch.randn(CLASSES, WIDTH, generator=draws)
    x = centers[kind] + 3.0 * torch.randn(len(nodes), WIDTH, generator=draws)
    other = (kind + torch.randint(1, CLASSES, kind.shape, generator=draws)) % CLASSES
    y = torch.where(torch.rand(len(nodes), generator=draws) < FLIPPED, other, kind)
    # 50 nodes of each community of 1,000 for training, and 10,000 other nodes for the test
    mask = nodes % 20 == 0
    order = torch.randperm(len(nodes), generator=draws)
    tested = order[~mask[order]][:10_000]
    test_mask = torch.zeros_like(mask).index_fill_(0, tested, value=True)
    data = Data(
        x=x, y=y, edge_index=torch.stack([target, source]), train_mask=mask, test_mask=test_mask
    )
    return data, community


def order_of(groups: Order, community: Tensor) -> dict[str, Any]:
    """Return the keywords of a loader for an order."""
    if groups is None:
        return {"shuffle": True}
    return {"shuffle": "groups", "seed_groups": community, "groups_per_batch": groups}


def classes(
    data: Data,
    dataset: DistDataset,
    community: Tensor,
    order: Order,
    seed: int,
    *,
    epochs: int,
    batch_size: int,
    fanout: list[int],
    rate: float,
    dropout: float,
    decays: bool = False,
) -> tuple[float, float]:
    """Return the percentage of test nodes whose class is found, and nodes a seed."""
    torch.manual_seed(seed)
    model = GraphSAGE(data.num_features, 64, 2, int(data.y.max()) + 1, dropout=dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=5e-4)
    num_nodes = num_seeds = 0
    with DistNeighborLoader(
        dataset,
        fanout,
        data.train_mask,
        batch_size=batch_size,
        num_workers=0,
        seed=seed,
        **order_of(order, community),
    ) as loader:
        last = 0.0 if decays else 1.0
        steps = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, last, epochs * len(loader))
        for _ in range(epochs):
            for batch in loader:
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps.step()
                num_nodes, num_seeds = num_nodes + batch.num_nodes, num_seeds + batch.batch_size
    model.eval()
    right = total = 0
    with DistNeighborLoader(
        dataset, [25, 10], data.test_mask, batch_size=512, num_workers=0, seed=0
    ) as loader:
        for batch in loader:
            with torch.no_grad():
                found = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(1)
            right += int((found == batch.y[: batch.batch_size]).sum())
            total += batch.batch_size
    return 100 * right / total, num_nodes / num_seeds


def ties(
    data: Data,
    held_out: Tensor,
    dataset: DistDataset,
    community: Tensor,
    order: Order,
    seed: int,
    epochs: int,
) -> tuple[float, float]:
    """Return how often, in percent, a held-out tie scores above a random pair, and nodes a tie."""
    torch.manual_seed(seed)
    model = GraphSAGE(data.num_features, 64, 2, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    num_nodes = num_seeds = 0
    with DistLinkNeighborLoader(
        dataset,
        [10, 10],
        data.edge_index[:, : data.edge_index.size(1) // 2],
        neg_sampling="binary",
        batch_size=256,
        num_workers=0,
        seed=seed,
        **order_of(order, community),
    ) as loader:
        for _ in range(epochs):
            for batch in loader:
                out = model(batch.x, batch.edge_index)
                source, target = batch.edge_label_index
                score = (out[source] * out[target]).sum(1)
                loss = F.binary_cross_entropy_with_logits(score, batch.edge_label.float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                num_nodes += batch.num_nodes
                num_seeds += len(batch.input_id)
    model.eval()
    rows = torch.empty((data.num_nodes, 64))
    everyone = torch.arange(data.num_nodes)
    with DistNeighborLoader(
        dataset, [-1, -1], everyone, batch_size=512, num_workers=0, seed=0
    ) as loader:
        for batch in loader:
            with torch.no_grad():
                rows[batch.batch] = model(batch.x, batch.edge_index)[: batch.batch_size]
    pairs = torch.randint(
        data.num_nodes, held_out.shape, generator=torch.Generator().manual_seed(seed)
    )
    near, far = ((rows[a] * rows[b]).sum(1) for a, b in (held_out, pairs))
    return 100 * float((near[:, None] > far[None, :]).float().mean()), num_nodes / num_seeds


# --- the table ------------------------------------------------------------------------------------


def runs_of(args: argparse.Namespace) -> list[Run]:
    """Return the trainings that were asked for."""
    quick, made = args.quick, []
    if "cora" in args.graphs:
        papers = cora(str(args.root / "Planetoid"))
        # the public split has 140 papers to learn from; here all that are not tested have it
        papers.train_mask = ~(papers.val_mask | papers.test_mask)
        dataset, found = DistDataset.from_pyg(papers), communities(papers, COMMUNITIES)
        how: dict[str, Any] = {
            "epochs": 2 if quick else 8,
            "batch_size": 32,
            "fanout": [10, 10],
            "rate": 0.01,
            "dropout": 0.5,
        }
        made.append(
            Run(
                "Cora, accuracy",
                lambda order, seed: classes(papers, dataset, found, order, seed, **how),
            )
        )
    if "lastfm" in args.graphs:
        users, held_out = lastfm(args.root / "lastfm")
        of_users, circles = DistDataset.from_pyg(users), communities(users, COMMUNITIES)
        epochs = 1 if quick else 8
        made.append(
            Run(
                "LastFM, AUC",
                lambda order, seed: ties(users, held_out, of_users, circles, order, seed, epochs),
            )
        )
    if {"planted", "decaying"} & {*args.graphs}:
        many, community = planted(*((100, 100, 8) if quick else (1000, 1000, 8)))
        large = DistDataset.from_pyg(many)
        rest: dict[str, Any] = {
            "epochs": 2,
            "batch_size": 256,
            "fanout": [5, 5],
            "rate": 0.005,
            "dropout": 0.0,
        }
        best = f"(best: {100 - 100 * FLIPPED:.0f})"
        titles = {"planted": f"planted {best}", "decaying": f"planted, the rate falls to 0 {best}"}
        made += [
            Run(title, partial(classes, many, large, community, decays=name == "decaying", **rest))
            for name, title in titles.items()
            if name in args.graphs
        ]
    return made


Results = dict[Order, list[tuple[float, float]]]
"""What `Run.train` returned, for each seed."""


def page_of(results: dict[str, Results]) -> str:
    """Return the page with what was found so far."""
    rows, lost = [], []
    for name, by_order in results.items():
        cells, means = [], {}
        for order, found in by_order.items():
            accuracy, nodes = np.array(found).T
            means[order] = accuracy.mean()
            cells.append(f"{accuracy.mean():.2f} ± {accuracy.std():.2f} ({nodes.mean():.1f})")
        rows.append(f"| {name} | {' | '.join(cells)} |")
        lost.append(means[None] - means[DEFAULT])
    falls, seeds = max(lost) > ALLOWED, len(found)
    return "\n".join(
        [
            f"With `groups_per_batch={DEFAULT}`, the default, accuracy falls by at most "
            f"{max(0.0, *lost):.2f} points beside a plain shuffle"
            + (f": more than the {ALLOWED} that are allowed." if falls else "."),
            "",
            f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, Python "
            f"{platform.python_version()}, torch {torch.__version__}. Seeds: {seeds}. Percent "
            "after the same number of epochs, mean and standard deviation; in brackets, nodes of a "
            "batch per seed.",
            "",
            f"| | random | {' | '.join(f'groups of {groups}' for groups in GROUPS)} |",
            "|---" * (1 + len(ORDERS)) + "|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Print the page, and write it where ``--out`` says, again after each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="has Planetoid/ and lastfm/")
    parser.add_argument("--graphs", nargs="+", default=["cora", "lastfm", "planted", "decaying"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few epochs, a small planted graph")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = runs_of(args)
    results: dict[str, Results] = {run.name: {order: [] for order in ORDERS} for run in runs}
    for seed in range(args.seeds):
        for run in runs:
            for order in ORDERS:
                found = run.train(order, seed)
                results[run.name][order].append(found)
                print(f"seed {seed}, {run.name}, {order or 'random'}: {found}", flush=True)
        if args.out is not None:
            args.out.write_text(page_of(results))
    print(page_of(results))


if __name__ == "__main__":
    main()
