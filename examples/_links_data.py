"""The graphs of the link-prediction example: users, items that they use, users they trust."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

USES = ("user", "uses", "item")
USED_BY = ("item", "rev_uses", "user")
TRUSTS = ("user", "trusts", "user")

LASTFM_FILES = ("data1", "test1", "trustnetwork")


@dataclass
class LinkData:
    """A graph, and links that are held out for testing."""

    graph: HeteroData
    test_links: Tensor | None
    """``[2, n]``, users and items; None: the graph holds all links, none is put aside yet."""


def load_links(name: str, root: str | None) -> LinkData:
    """Return ``planted`` or ``lastfm``."""
    if name == "planted":
        return LinkData(planted(), None)
    if root is None:
        raise SystemExit("--dataset lastfm needs --root DIR, the folder that holds data1.txt")
    return lastfm(Path(root))


def planted(
    communities: int = 40, users: int = 25, items: int = 25, links: int = 12, ties: int = 5
) -> HeteroData:
    """Return communities of users who use, nine times in ten, the items of their own community.

    The other links go anywhere, and so do a fifth of the ties among users. Who knows a user's
    community ranks the held-out items of it before nearly all others.
    """
    draws = torch.Generator().manual_seed(0)
    num_users, num_items = communities * users, communities * items
    user = torch.arange(num_users).repeat_interleave(links)
    item = _planted_ends(user // users, items, num_items, 0.1, draws)
    uses = torch.stack([user, item]).unique(dim=1)
    source = torch.arange(num_users).repeat_interleave(ties)
    trusts = torch.stack([source, _planted_ends(source // users, users, num_users, 0.2, draws)])
    return _graph(num_users, num_items, uses, trusts.unique(dim=1))


def _planted_ends(
    community: Tensor, size: int, total: int, share_anywhere: float, draws: torch.Generator
) -> Tensor:
    """Return an end for each link: of its community, or, for a share of the links, of any."""
    inside = community * size + torch.randint(size, community.shape, generator=draws)
    outside = torch.randint(total, community.shape, generator=draws)
    is_outside = torch.rand(community.shape, generator=draws) < share_anywhere
    return torch.where(is_outside, outside, inside)


def lastfm(root: Path) -> LinkData:
    """Return who listened to which artist, and whom they know, with the test links of the files."""
    train, test, trusts = map(_read, (root / f"{name}.txt" for name in LASTFM_FILES))
    links = torch.cat([train, test], dim=1)
    num_users = int(torch.cat([links[0], trusts.view(-1)]).max()) + 1
    num_items = int(links[1].max()) + 1
    return LinkData(_graph(num_users, num_items, train, trusts), test)


def _read(path: Path) -> Tensor:
    """Return the first two columns of a file: ids. The third, how often, is not used."""
    if not path.is_file():
        raise SystemExit(f"no file {path}: --root must hold {', '.join(LASTFM_FILES)} (.txt)")
    lines = (line.split() for line in path.read_text().splitlines())
    return torch.tensor([[int(line[0]), int(line[1])] for line in lines]).t().contiguous()


def _graph(num_users: int, num_items: int, uses: Tensor, trusts: Tensor) -> HeteroData:
    graph = HeteroData()
    graph["user"].num_nodes, graph["item"].num_nodes = num_users, num_items
    graph[USES].edge_index, graph[USED_BY].edge_index = uses, uses.flip(0)
    graph[TRUSTS].edge_index = trusts
    return graph
