"""Rows by global id over all partitions, asked for by ``all_to_all``."""

from typing import Any, Literal

import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.inference.exchange import RankExchange

Kind = Literal["node_features", "node_labels", "edge_features"]


class RowLookup:
    """Reads matrices of which every partition has some rows. All ranks have to ask together.

    Args:
        view: This rank's partition.
        exchange: The ranks that hold all partitions.
    """

    def __init__(self, view: PartitionView, exchange: RankExchange) -> None:
        self._view, self._exchange = view, exchange
        held = exchange.gather(view.partition_idx)
        # ranks that hold one partition share the questions to it
        holders = [[r for r, p in enumerate(held) if p == q] for q in range(view.num_partitions)]
        missing = [part for part, ranks in enumerate(holders) if not ranks]
        if missing:
            raise ConfigError(
                f"no rank holds partitions {missing} of {view.num_partitions}: start as many ranks "
                "as there are partitions, each with one"
            )
        self._rank_of = torch.tensor([r[exchange.rank % len(r)] for r in holders])

    def rows(self, kind: Kind, name: NodeType | EdgeType, ids: Tensor) -> Tensor:
        """Return the rows of ``ids``, in their order. Collective.

        Args:
            kind: Which matrices.
            name: The type.
            ids: ``[n]`` int64, global; repeats allowed.

        Raises:
            ConfigError: There is no such matrix, or an id is out of range.
            PeerError: The process group broke.
        """
        rows: Any = getattr(self._view, kind).get(name)
        if rows is None:
            raise ConfigError(f"the dataset has no {kind.replace('_', ' ')} of {name!r}")
        books: Any = self._view.edge_books if kind == "edge_features" else self._view.node_books
        book = books.get(name)
        self._check(ids, name, book)
        if book is None or rows.whole or self._exchange.size == 1:
            return _take(rows, ids)
        owner = self._rank_of[book.owner(ids)]
        order = torch.argsort(owner, stable=True)
        ask = torch.bincount(owner, minlength=self._exchange.size).tolist()
        asked = self._exchange.swap_counts(ask)
        theirs = self._exchange.swap_values(ids[order], ask, asked)
        found = self._exchange.swap_values(_take(rows, theirs), asked, ask)
        out = torch.empty_like(found)
        out[order] = found
        return out

    def _check(self, ids: Tensor, name: Any, book: Any) -> None:
        count = self._view.num_nodes.get(name) if book is None else book.num_ids
        if ids.dim() != 1 or ids.dtype != torch.int64:
            raise ConfigError(f"ids must be 1-D int64, got {tuple(ids.shape)} {ids.dtype}")
        if count is not None and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
            raise ConfigError(
                f"ids of {name!r} must be in [0, {count}), got {int(ids.min())} to {int(ids.max())}"
            )


def _take(rows: Any, ids: Tensor) -> Tensor:
    taken: Tensor = rows.values[rows.locate(ids)]
    return taken
