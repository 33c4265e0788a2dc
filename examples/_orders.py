"""A graph with a planted rule at two hops, a GNN that can only guess, and a plan that knows."""

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

USERS, ORDERS, ITEMS, WIDTH = 800, 8, 100, 8
"""Users, orders of each, items, and the width of all rows."""
ITEM_OF, ORDER_OF = ("item", "of", "order"), ("order", "by", "user")


def make_orders() -> tuple[HeteroData, Tensor]:
    """Return the graph, and ``[3 * USERS, 3]`` int64 of what is asked: user, time, kind.

    An item is of kind 0 or 1, which its row has. The answer is the kind of the user's latest order
    at a time. The orders up to that time are of both kinds, half and half, so that who does not
    know which order is the latest, and which item hangs on it, can only guess.
    """
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(2, (USERS, ORDERS // 2), generator=draw)
    kind = torch.stack([first, 1 - first], -1).view(USERS, ORDERS)  # of orders, as time goes on
    item = 2 * torch.randint(ITEMS // 2, (USERS, ORDERS), generator=draw) + kind
    time = torch.randint(1, 100, (USERS, ORDERS), generator=draw).cumsum(1)
    order = torch.randperm(USERS * ORDERS, generator=draw)  # ids say nothing of time
    user = torch.arange(USERS)
    graph = HeteroData()
    for name, size in (("user", USERS), ("order", USERS * ORDERS), ("item", ITEMS)):
        graph[name].x = torch.randn(size, WIDTH, generator=draw)
    graph["item"].x[:, 0] = torch.arange(ITEMS) % 2 * 2.0 - 1
    graph["order"].time = torch.empty_like(order).index_copy_(0, order, time.view(-1))
    graph[ITEM_OF].edge_index = torch.stack([item.view(-1), order])
    graph[ORDER_OF].edge_index = torch.stack([order, user.repeat_interleave(ORDERS)])
    asked = [torch.stack([user, time[:, n], kind[:, n]], 1) for n in (1, 3, 5)]
    return graph, torch.stack(asked, 1).view(-1, 3)


class Gnn(nn.Module):
    """Two layers of means over the same batch; it does not see which order is the latest."""

    def __init__(self) -> None:
        super().__init__()
        self.orders, self.users = SAGEConv(WIDTH, 32), SAGEConv((32, WIDTH), 32)
        self.out = nn.Linear(32, 2)

    def forward(self, batch: HeteroData) -> Tensor:
        x, edges = batch.x_dict, batch.edge_index_dict
        orders = self.orders((x["item"], x["order"]), edges[ITEM_OF]).relu()
        users = self.users((orders, x["user"]), edges[ORDER_OF]).relu()
        return self.out(users[batch.tokens.row[:, 0].long()])


def rule(batch: HeteroData) -> Tensor:
    """Read the answer from the tokens: the kind of the item whose order is at place 1."""
    tokens = batch.tokens
    sequence, item = tokens.pair[tokens.pair[:, 1] == 1][:, [0, 2]].T.long()
    kind = tokens.gather(batch.x_dict)[sequence, item, 0]
    return torch.stack([-kind, kind], 1)[sequence.argsort()]
