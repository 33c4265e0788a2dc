"""Train a graph transformer on sequences of tokens; the answer is planted two hops away.

    torchrun --standalone --nproc-per-node 2 examples/transformer.py
    python examples/transformer.py            # one process, one partition
    python examples/transformer.py --store    # two storage servers, two trainers

The model tells the kind of a user's latest order, see `_orders.py`. A GNN that trains on the same
batches can only guess, and a plan that knows the rule shows that the tokens have the answer.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from _figure import save_lines
from _orders import ORDERS, USERS, WIDTH, Gnn, make_orders, rule
from _ranks import process_group
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_mask
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData

import gigl_loader as gl
from gigl_loader.testing import run_cluster

HIDDEN, HEADS, L = 32, 4, 2 * ORDERS + 1
TOKENS = gl.TokenOptions(L, order="time", pairs=True)


class Transformer(nn.Module):
    """Each token attends to the neighbours that were drawn for it; its place tells its age."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleDict({t: nn.Linear(WIDTH, HIDDEN) for t in ("item", "order", "user")})
        self.place, self.out = nn.Embedding(L, HIDDEN), nn.Linear(HIDDEN, 2)
        layer = partial(nn.TransformerEncoderLayer, HIDDEN, HEADS, 2 * HIDDEN, dropout=0.0)
        self.layers = nn.ModuleList([layer(batch_first=True) for _ in range(2)])

    def forward(self, batch: HeteroData) -> Tensor:
        tokens = batch.tokens
        state = tokens.gather({name: to(batch[name].x) for name, to in self.rows.items()})
        state, near = state + self.place.weight, tokens.mask_mod("neighbour")
        mask = create_mask(near, tokens.num_sequences, HEADS, L, L, device=str(state.device))
        for layer in self.layers:
            state = layer(state, ~mask.flatten(0, 1))
        return self.out(state[:, 0])  # the seed's


def make_loader(dataset: Any, asked: Tensor, **how: Any) -> tuple[gl.DistNeighborLoader, Tensor]:
    """Return a loader of this rank's share of what is asked, and the answers."""
    rank = dist.get_rank()
    user, time, kind = asked[rank :: dist.get_world_size()].T.contiguous()
    is_store = isinstance(dataset, gl.RemoteDistDataset)  # any server samples for any node
    seeds, times = ({rank: column} if is_store else column for column in (user, time))
    how |= {"tokens": TOKENS, "time_attr": "time", "input_time": times, "seed": 0}
    return gl.DistNeighborLoader(dataset, [-1, -1], ("user", seeds), batch_size=64, **how), kind


def train(dataset: gl.DistDataset | gl.RemoteDistDataset, args: argparse.Namespace) -> None:
    """Train on three quarters of the users; print the accuracies on the others."""
    torch.manual_seed(0)
    asked, curve = make_orders()[1], []
    is_test = asked[:, 0] >= USERS * 3 // 4
    loader, kinds = make_loader(dataset, asked[~is_test], shuffle=True, even_ranks="wrap")
    test_loader, test_kinds = make_loader(dataset, asked[is_test])
    models = nn.ModuleList([Transformer(), Gnn()])
    parallel = [DistributedDataParallel(model) for model in models]
    optimizer = torch.optim.Adam(models.parameters(), lr=1e-3)
    with loader, test_loader:
        for epoch in range(1, args.epochs + 1):
            for batch in loader:
                optimizer.zero_grad()
                for model in parallel:
                    F.cross_entropy(model(batch), kinds[batch["user"].input_id]).backward()
                optimizer.step()
            right = torch.zeros(3)
            with torch.no_grad():
                for batch in test_loader:
                    told = torch.stack([way(batch).argmax(1) for way in (*models, rule)])
                    right += (told == test_kinds[batch["user"].input_id]).sum(1)
            curve.append([n / int(is_test.sum()) for n in gl.sum_over_ranks(*right.tolist())])
            if dist.get_rank() == 0:
                line = "epoch {:2}  transformer {:.3f}  GNN {:.3f}  plan that knows the rule {:.3f}"
                print(line.format(epoch, *curve[-1]), flush=True)
                save_lines(args.figure, ("transformer", "GNN", "plan that knows the rule"), curve)


def load(folder: str, rank: int, _: int) -> gl.DistDataset:
    return gl.DistDataset.load(f"{folder}/graph", rank)


def from_store(info: gl.GraphStoreInfo, rank: int, args: argparse.Namespace) -> None:
    train(gl.RemoteDistDataset(info, rank), args)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a graph transformer.")
    parser.add_argument("--store", action="store_true", help="from a graph store")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--figure", type=Path, default=Path("out/transformer.png"))
    args = parser.parse_args()
    with process_group(), gl.shared_folder() as folder:
        if dist.get_rank() == 0:
            parts = 2 if args.store else dist.get_world_size()
            gl.partition_graph(make_orders()[0], parts, f"{folder}/graph", time_attr="time")
        dist.barrier()
        if args.store:
            run_cluster(from_store, args, dataset=partial(load, folder), tmp_path=Path(folder))
        else:
            train(load(folder, dist.get_rank(), 0), args)


if __name__ == "__main__":
    main()
