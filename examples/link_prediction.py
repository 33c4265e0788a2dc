"""Recommend items to users: one process and one partition of the graph per rank, and DDP.

    torchrun --standalone --nproc-per-node 2 examples/link_prediction.py
    torchrun --standalone --nproc-per-node 2 examples/link_prediction.py --dataset lastfm --root DIR
    python examples/link_prediction.py        # one process, one partition

Anchors are users. A batch holds them, the items that they use, and the sampled neighbourhoods of
both; a second loader brings random items. Recall@20 and NDCG@20 rank all items on held-out links,
beside two others: items by popularity, and the same model trained in one process.
"""

import argparse
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _figure import save_curve
from _links_data import USES, load_links
from _links_model import (
    TOP,
    LinkModel,
    Ranking,
    RetrievalLoss,
    embed,
    judge,
    judge_links,
    judge_lists,
)
from _links_nearest import check_faiss, nearest_items
from _links_single import MemorySampler, PygSampler
from _ranks import process_group
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from tqdm import tqdm

from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    on_all_ranks,
    partition_graph,
    shared_folder,
    split_links,
    split_supervision_type,
    sum_over_ranks,
    zip_with_negatives,
)

PRESETS = {
    "planted": {
        "epochs": 10,
        "batch_size": 64,
        "random_items": 128,
        "dim": 32,
        "lr": 0.01,
        "judge_every": 1,
    },
    "lastfm": {
        "epochs": 40,
        "batch_size": 256,
        "random_items": 512,
        "dim": 64,
        "lr": 0.005,
        "judge_every": 5,
    },
}
VAL, TEST = (split_supervision_type(USES, split) for split in ("val", "test"))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predict which items users will use.")
    parser.add_argument("--dataset", choices=PRESETS, default="planted")
    parser.add_argument("--root", help="folder with data1.txt..., for --dataset lastfm")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int, help="users per batch and process")
    parser.add_argument("--dim", type=int, help="length of an embedding")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--judge-every", type=int, help="epochs between rankings")
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--num-neighbors", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--random-items", type=int, help="random negatives per batch")
    parser.add_argument("--workers", type=int, default=1, help="sampling processes per loader")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run per seed")
    parser.add_argument("--exclude-supervision", action="store_true")
    parser.add_argument(
        "--single",
        choices=("memory", "pyg", "none"),
        default="memory",
        help="the one-process run: sampled in memory, by PyG's loaders, or left out",
    )
    parser.add_argument(
        "--nearest",
        choices=("all", "faiss"),
        default="all",
        help="faiss: rank the test links once more, by the items that an index of faiss finds",
    )
    parser.add_argument(
        "--faiss-index", default="HNSW32", help="as faiss.index_factory reads it; Flat: exact"
    )
    parser.add_argument("--figure", type=Path, default=Path("out/link_curve.png"))
    args = parser.parse_args()
    for name, value in PRESETS[args.dataset].items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    if args.nearest == "faiss":
        check_faiss()
    return args


# --- the graph -----------------------------------------------------------------------------------


def split(args: argparse.Namespace) -> tuple[HeteroData, dict[Any, Any]]:
    """Return the graph that passes messages, and the links to learn, to validate and to test."""
    data = load_links(args.dataset, args.root)
    splits = split_links(
        data.graph, USES, num_val=0.1, num_test=0.0 if data.test_links is not None else 0.2
    )
    supervision = dict(splits.supervision)
    if data.test_links is not None:
        supervision[TEST] = (data.test_links, None)
    return splits.data, supervision


def load_partition(args: argparse.Namespace) -> DistDataset:
    """Cut the graph into one partition per rank, and load this rank's."""
    with shared_folder() as folder:
        if dist.get_rank() == 0:
            graph, supervision = split(args)
            sizes = {name[1]: links.size(1) for name, (links, _) in supervision.items()}
            print(f"{args.dataset}: {graph.num_nodes} nodes, links to predict {sizes}", flush=True)
            partition_graph(
                graph,
                dist.get_world_size(),
                f"{folder}/graph",
                supervision=supervision,
                method="random",
                progress=False,
            )
        dist.barrier()
        return DistDataset.load(f"{folder}/graph", dist.get_rank())


# --- training ------------------------------------------------------------------------------------


class Loaders:
    """Batches of links, random items, and everybody's neighbourhood for the ranking."""

    def __init__(self, dataset: DistDataset, args: argparse.Namespace, seed: int) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) // dist.get_world_size())
        how = {"num_workers": args.workers, "seed": seed, "num_cpu_threads": threads}
        everything = [-1] * len(args.num_neighbors)
        sizes = dataset.num_nodes
        with ExitStack() as stack:
            links = DistABLPLoader(
                dataset,
                args.num_neighbors,
                ("user", on_all_ranks(dataset.train_node_ids["user"])),
                USES,
                batch_size=args.batch_size,
                shuffle=True,
                use_label_edge_index_output=True,
                exclude_supervision=args.exclude_supervision,
                even_ranks="wrap",  # as many steps on all ranks: DDP waits for each
                **how,
            )
            self.links = stack.enter_context(links)
            random_items = DistNeighborLoader(
                dataset,
                args.num_neighbors,
                ("item", torch.arange(sizes["item"])),
                batch_size=args.random_items,
                shuffle=True,
                drop_last=True,
                **how,
            )
            self.random_items = stack.enter_context(random_items)
            self.everybody = {}
            for node_type in ("user", "item"):
                nodes = (node_type, torch.arange(sizes[node_type]))
                loader = DistNeighborLoader(dataset, everything, nodes, batch_size=256, **how)
                self.everybody[node_type] = stack.enter_context(loader)
            self._stack = stack.pop_all()

    def __enter__(self) -> "Loaders":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def train_epoch(
    pairs: Iterable[tuple[HeteroData, HeteroData]],
    loss_of: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    bar: Any,
    batches_per_step: int = 1,
) -> float:
    """Return the mean loss."""
    losses = []
    for batch, negatives in pairs:
        loss = loss_of(batch, negatives)
        (loss / batches_per_step).backward()
        losses.append(loss.item())
        bar.update()
        if len(losses) % batches_per_step == 0:
            optimizer.step()
            optimizer.zero_grad()
    return sum(losses) / len(losses)


@torch.no_grad()
def all_embeddings(model: LinkModel, loader: Iterable[Any], node_type: str, total: int) -> Tensor:
    """Return ``[total, dim]``: every node's embedding, of the shares of all ranks."""
    ids, found = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, model.dim)]
    for batch in loader:
        store = batch[node_type]
        ids.append(store.batch)
        found.append(embed(model, batch)[node_type][: store.batch_size])
    table = torch.zeros(total, model.dim)
    table[on_all_ranks(torch.cat(ids))] = on_all_ranks(torch.cat(found))
    return table


def links_of(dataset: DistDataset, edge_type: Any) -> Tensor:
    """Return the links of this partition's users, which `split` gave it."""
    links = dataset.positive_label_edges(edge_type)
    assert links is not None
    return links


def rank_items(scores: Tensor, dataset: DistDataset, held_out: Any) -> tuple[float, float]:
    """Return recall@20 and NDCG@20 over the users of all partitions.

    Each rank judges the users that it owns; links that the model has seen are not ranked.
    """
    known = links_of(dataset, USES)
    if held_out == TEST:
        known = torch.cat([known, links_of(dataset, VAL)], dim=1)
    found: Ranking = judge(scores, known, links_of(dataset, held_out))
    recall, ndcg, users = sum_over_ranks(found.recall, found.ndcg, found.users)
    return recall / users, ndcg / users


def test_links(scores: Tensor, dataset: DistDataset) -> tuple[float, ...]:
    """Return recall@20, NDCG@20, filtered MRR and Hits@10 on the test links of all partitions."""
    seen = [links_of(dataset, links) for links in (USES, VAL)]
    found = judge_links(scores, torch.cat(seen, dim=1), links_of(dataset, TEST))
    rank, hits, links = sum_over_ranks(found.reciprocal_rank, found.hits, found.links)
    return (*rank_items(scores, dataset, TEST), rank / links, hits / links)


def rank_nearest(
    users: Tensor, items: Tensor, dataset: DistDataset, index: str
) -> tuple[float, ...]:
    """Return recall@20 and NDCG@20 of the test links, of the lists that an index finds."""
    known = torch.cat([links_of(dataset, links) for links in (USES, VAL)], dim=1)
    held_out = links_of(dataset, TEST)
    asked, row = torch.cat([known[0], held_out[0]]).unique(return_inverse=True)
    known, held_out = (
        torch.stack([rows, links[1]])
        for rows, links in zip(
            row.split([known.size(1), held_out.size(1)]), (known, held_out), strict=True
        )
    )
    best = nearest_items(users[asked], items, known, TOP, index)
    found = judge_lists(best, items.size(0), known, held_out)
    recall, ndcg, count = sum_over_ranks(found.recall, found.ndcg, found.users)
    return recall / count, ndcg / count


def train(args: argparse.Namespace, dataset: DistDataset, seed: int) -> tuple[float, ...]:
    """Return what `test_links` finds after the last epoch."""
    torch.manual_seed(seed)
    is_first, sizes = dist.get_rank() == 0, dataset.num_nodes
    model = LinkModel(sizes, args.dim, len(args.num_neighbors))
    curve = []
    with Loaders(dataset, args, seed) as loaders:
        parallel = DistributedDataParallel(RetrievalLoss(model, args.temperature))
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

        def embeddings() -> list[Tensor]:
            return [
                all_embeddings(model, loaders.everybody[t], t, sizes[t]) for t in ("user", "item")
            ]

        for epoch in range(1, args.epochs + 1):
            title = f"seed {seed}, epoch {epoch:2d}/{args.epochs}"
            pairs = zip_with_negatives(loaders.links, loaders.random_items)
            with tqdm(
                total=len(loaders.links), desc=title, leave=False, disable=not is_first
            ) as bar:
                loss = train_epoch(pairs, parallel, optimizer, bar)
            if epoch % args.judge_every and epoch < args.epochs:
                continue
            users, items = embeddings()
            recall, ndcg = rank_items(users @ items.T, dataset, VAL)
            curve.append((epoch, loss, recall))
            if is_first:
                print(
                    f"{title}  loss {loss:.4f}  validation recall@20 {recall:.4f}  "
                    f"NDCG@20 {ndcg:.4f}",
                    flush=True,
                )
        users, items = embeddings()
    result = test_links(users @ items.T, dataset)
    if args.nearest == "faiss":
        recall, ndcg = rank_nearest(users, items, dataset, args.faiss_index)
        if is_first:
            how = f"by faiss {args.faiss_index}"
            print(f"{title}  {how}: test recall@20 {recall:.4f}  NDCG@20 {ndcg:.4f}", flush=True)
    if is_first and seed == args.seeds[0]:
        draw_curve(args, curve)
    return result


def draw_curve(args: argparse.Namespace, curve: list[tuple[int, float, float]]) -> None:
    epochs, losses, recalls = map(list, zip(*curve, strict=True))
    save_curve(
        args.figure,
        losses,
        recalls,
        f"Link prediction on {args.dataset}",
        epochs=epochs,
        measure="validation recall@20",
    )
    print(f"training curve: {args.figure}")


# --- what it is compared with --------------------------------------------------------------------


def by_popularity(dataset: DistDataset) -> tuple[float, ...]:
    """Rank items by how many users have them in training."""
    known = links_of(dataset, USES)
    sizes = dataset.num_nodes
    counts = torch.bincount(known[1], minlength=sizes["item"]).double()
    dist.all_reduce(counts)
    return test_links(counts.expand(sizes["user"], -1), dataset)


def train_alone(args: argparse.Namespace, dataset: DistDataset, seed: int) -> tuple[float, ...]:
    """Return the result of one process that holds the whole graph; all ranks judge it."""
    sizes = dataset.num_nodes
    scores = torch.empty(sizes["user"], sizes["item"])
    if dist.get_rank() == 0:
        torch.manual_seed(seed)
        graph, supervision = split(args)
        kind = PygSampler if args.single == "pyg" else MemorySampler
        sampler = kind(graph, args.num_neighbors, seed)
        model = LinkModel(sizes, args.dim, len(args.num_neighbors))
        loss_of = RetrievalLoss(model, args.temperature)
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        items = sampler.items(args.random_items)
        for _ in tqdm(range(args.epochs), desc=f"seed {seed}, one process", leave=False):
            pairs = zip(sampler.links(supervision[USES][0], args.batch_size), items, strict=False)
            train_epoch(
                pairs,
                loss_of,
                optimizer,
                tqdm(disable=True),
                batches_per_step=dist.get_world_size(),  # as DDP: the mean over the ranks' batches
            )
        with torch.no_grad():
            nodes = {t: torch.arange(size) for t, size in sizes.items()}
            found = model(nodes, graph.edge_index_dict)
            scores = found["user"] @ found["item"].T
    dist.broadcast(scores, src=0)
    return test_links(scores, dataset)


def report(title: str, results: list[tuple[float, ...]]) -> None:
    """Print the mean over seeds, and from the lowest to the highest."""
    if dist.get_rank():
        return
    parts = []
    names = ("recall@20", "NDCG@20", "filtered MRR", "Hits@10")
    for name, values in zip(names, zip(*results, strict=True), strict=True):
        span = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
        parts.append(f"{name} {sum(values) / len(values):.4f}{span}")
    print(f"{title:<26} test {'  '.join(parts[:2])}", flush=True)
    print(f"{'':<26} each link: {'  '.join(parts[2:])}", flush=True)


def main() -> None:
    args = parse_args()
    with process_group():
        dataset = load_partition(args)
        results = [train(args, dataset, seed) for seed in args.seeds]
        report(f"{dist.get_world_size()} processes, gigl_loader", results)
        if args.single != "none":
            alone = [train_alone(args, dataset, seed) for seed in args.seeds]
            report(f"one process, {args.single}", alone)
        report("items by popularity", [by_popularity(dataset)])


if __name__ == "__main__":
    main()
