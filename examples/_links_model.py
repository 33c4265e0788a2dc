"""The model of the link-prediction example, its loss, and how its ranking is judged."""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.metrics import LinkPredMRR, LinkPredRecall
from torch_geometric.utils import scatter

from gigl_loader import in_batch_negative_mask

TOP = 20
_LINKS_AT_A_TIME = 512


class LinkModel(nn.Module):
    """An embedding per node, and the mean of it with what neighbours hand on, hop after hop.

    Propagation has no weights, as in LightGCN (He et al., SIGIR 2020); each edge type counts alike.
    """

    def __init__(self, num_nodes: dict[str, int], dim: int, hops: int) -> None:
        super().__init__()
        self.hops, self.dim = hops, dim
        self.tables = nn.ModuleDict({t: nn.Embedding(n, dim) for t, n in num_nodes.items()})
        for table in self.tables.values():
            nn.init.normal_(cast("Tensor", table.weight), std=0.1)

    def forward(
        self, n_id: dict[str, Tensor], edge_index: dict[tuple[str, str, str], Tensor]
    ) -> dict[str, Tensor]:
        """Return ``[num_nodes, dim]`` of unit length by node type."""
        hidden = {t: self.tables[t](ids) for t, ids in n_id.items()}
        total = dict(hidden)
        for _ in range(self.hops):
            found: dict[str, list[Tensor]] = {t: [] for t in hidden}
            for (src, _, dst), index in edge_index.items():
                size = hidden[dst].size(0)
                found[dst].append(scatter(hidden[src][index[0]], index[1], 0, size, "mean"))
            hidden = {t: sum(parts) / len(parts) for t, parts in found.items()}
            total = {t: total[t] + hidden[t] for t in total}
        return {t: F.normalize(value, dim=-1) for t, value in total.items()}


class RetrievalLoss(nn.Module):
    """Pick each link's item out of the batch's items and of random ones.

    Candidates are the positives of all anchors and the random items; those that are a positive of
    an anchor are no negatives of it.
    """

    def __init__(self, model: LinkModel, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, batch: HeteroData, negatives: HeteroData) -> Tensor:
        """Return the mean cross entropy of the links of ``batch``."""
        out, drawn = embed(self.model, batch), embed(self.model, negatives)
        anchors = batch.anchors if "anchors" in batch else slice(batch["user"].batch_size)
        users, random_items = out["user"][anchors], slice(negatives["item"].batch_size)
        anchor, label = batch.y_positive
        items = label.unique()
        candidates = torch.cat([out["item"][items], drawn["item"][random_items]])
        ids = torch.cat([batch["item"].n_id[items], negatives["item"].n_id[random_items]])
        scores = users @ candidates.T / self.temperature
        known = torch.stack([anchor, batch["item"].n_id[label]])
        allowed = in_batch_negative_mask(known, ids, users.size(0))
        own = scores[anchor, torch.searchsorted(items, label.contiguous())]
        others = scores.masked_fill(~allowed, float("-inf")).logsumexp(dim=1)
        return F.softplus(others[anchor] - own).mean()  # -log(own / (own + others))


def embed(model: LinkModel, batch: HeteroData) -> dict[str, Tensor]:
    """Return the model's output for the nodes of a batch, by type."""
    return model({t: batch[t].n_id for t in batch.node_types}, batch.edge_index_dict)


@dataclass
class Ranking:
    """Sums over users, so that shares of them add up."""

    recall: float = 0.0
    ndcg: float = 0.0
    users: float = 0.0


def judge(scores: Tensor, known: Tensor, held_out: Tensor) -> Ranking:
    """Rank all items for each user by ``scores``, but for those that are known.

    Args:
        scores: ``[num_users, num_items]``.
        known: ``[2, n]`` links that the model has seen.
        held_out: ``[2, n]`` links to find; users without any do not count.
    """
    scores = scores.clone()
    scores[known[0], known[1]] = float("-inf")
    return judge_lists(scores.topk(TOP).indices, scores.size(1), known, held_out)


def judge_lists(best: Tensor, num_items: int, known: Tensor, held_out: Tensor) -> Ranking:
    """Judge lists of items, however they were found.

    Args:
        best: ``[num_users, TOP]`` int64, without known items, best first; -1: no item.
        num_items: Items that there are.
        known: As for `judge`.
        held_out: The same.
    """
    hidden = torch.zeros((len(best), num_items), dtype=torch.bool)
    hidden[held_out[0], held_out[1]] = True
    hidden[known[0], known[1]] = False
    total = hidden.sum(1)
    hits = (hidden.gather(1, best.clamp(min=0)) & (best >= 0)).double()
    discount = 1 / torch.arange(2, TOP + 2).double().log2()
    best = discount.cumsum(0)[total.clamp(1, TOP) - 1]
    users = total > 0
    return Ranking(
        float((hits.sum(1) / total.clamp(min=1))[users].sum()),
        float(((hits * discount).sum(1) / best)[users].sum()),
        float(users.sum()),
    )


@dataclass
class LinkRanking:
    """Sums over links, so that shares of them add up."""

    reciprocal_rank: float = 0.0
    hits: float = 0.0
    links: int = 0


def judge_links(scores: Tensor, known: Tensor, held_out: Tensor, top: int = 10) -> LinkRanking:
    """Rank the item of each held-out link among all items that are no other link of its user.

    This is the filtered setting (Bordes et al., NIPS 2013): an item that is right too, known or
    held out, takes no place before the one that is asked for.

    Args:
        scores: ``[num_users, num_items]``.
        known: ``[2, n]`` links that the model has seen.
        held_out: ``[2, n]`` links to find.
        top: Positions that count as a hit.
    """
    held_out = held_out.unique(dim=1)
    right = torch.zeros(scores.shape, dtype=torch.bool)
    right[known[0], known[1]] = True
    held_out = held_out[:, ~right[held_out[0], held_out[1]]]
    right[held_out[0], held_out[1]] = True
    found = LinkRanking(links=held_out.size(1))
    for users, items in zip(*(ends.split(_LINKS_AT_A_TIME) for ends in held_out), strict=True):
        link = torch.arange(users.numel())
        others = right[users]
        others[link, items] = False
        order = scores[users].masked_fill(others, float("-inf")).argsort(dim=1, descending=True)
        # the metrics of PyG take queries with several answers: here each link is one, with one
        for name, metric in (
            ("reciprocal_rank", LinkPredMRR(order.size(1))),
            ("hits", LinkPredRecall(top)),
        ):
            metric.sync_on_compute = False  # the ranks add their sums up themselves
            metric.update(order[:, : metric.k], torch.stack([link, items]))
            setattr(found, name, getattr(found, name) + float(metric.compute()) * users.numel())
    return found
