"""Heterogeneous graphs with weights and features of edges, and models of layers over them."""

import copy
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.data import HeteroData

from gigl_loader.dataset.dist_dataset import DistDataset

WIDTH, HIDDEN, EDGE_WIDTH = 5, 6, 3
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
KNOWS = ("user", "knows", "user")
TYPES = (BUYS, BOUGHT, KNOWS)


def graph(seed: int = 0, users: int = 40, items: int = 25, edges: int = 150) -> HeteroData:
    """Return a random graph with repeated edges and loops; some nodes have no edge."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    name: Any
    for name, count in (("user", users), ("item", items)):
        data[name].x = torch.randn(count, WIDTH, generator=generator)
    for name in TYPES:
        n, m = data[name[0]].num_nodes, data[name[2]].num_nodes
        pairs = torch.stack([torch.randint(k, (edges,), generator=generator) for k in (n, m)])
        store = data[name]
        store.edge_index = pairs[:, torch.argsort(pairs[1] * n + pairs[0], stable=True)]
        if name == BOUGHT:
            store.edge_attr = torch.randn(edges, EDGE_WIDTH, generator=generator)
        if name == KNOWS:
            store.edge_weight = torch.rand(edges, generator=generator)
    return data


def partition(data: HeteroData, rank: int, world: int, seed: int = 0) -> DistDataset:
    generator = torch.Generator().manual_seed(seed + world)
    books = {
        name: torch.randint(world, (data[name].num_nodes,), generator=generator)
        for name in data.node_types
    }
    return DistDataset.from_pyg(
        data, partition_book=books, partition_idx=rank, num_partitions=world
    )


def conv(width: int) -> pyg.HeteroConv:
    return pyg.HeteroConv(
        {
            BUYS: pyg.SAGEConv((width, width), HIDDEN),
            BOUGHT: pyg.GATConv((width, width), HIDDEN, edge_dim=EDGE_WIDTH, add_self_loops=False),
            KNOWS: pyg.GCNConv(width, HIDDEN, improved=True),
        }
    )


class Block(torch.nn.Module):
    """A layer as users write them: convolutions by type, activation, a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = conv(HIDDEN), torch.nn.Linear(HIDDEN, 4)

    def forward(
        self, x: dict[str, Tensor], edge_index: Any, num_dst: Any, edge_weight: Any, edge_attr: Any
    ) -> dict[str, Tensor]:
        rows = self.conv(x, edge_index, edge_weight_dict=edge_weight, edge_attr_dict=edge_attr)
        return {name: self.out(one.tanh()) for name, one in rows.items()}


def relu(x: dict[str, Tensor], edge_index: Any, num_dst: dict[str, int]) -> dict[str, Tensor]:
    return {name: x[name][:count].relu() for name, count in num_dst.items()}


def layers() -> list[Any]:
    torch.manual_seed(3)
    return [conv(WIDTH).eval(), relu, Block().eval()]


def copied(model: list[Any]) -> list[Any]:
    return [copy.deepcopy(one) for one in model]


@torch.no_grad()
def in_one_process(model: list[Any], data: HeteroData) -> dict[str, Tensor]:
    weights = {KNOWS: data[KNOWS].edge_weight}
    attr = {BOUGHT: data[BOUGHT].edge_attr}
    first, _, last = model
    x = first(data.x_dict, data.edge_index_dict, edge_weight_dict=weights, edge_attr_dict=attr)
    x = {name: rows.relu() for name, rows in x.items()}
    found: dict[str, Tensor] = last(x, data.edge_index_dict, None, weights, attr)
    return found
