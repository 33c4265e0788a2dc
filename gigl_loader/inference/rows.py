"""Rows that a layer reads: ranks exchange theirs, storage servers are asked."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gigl_loader.dataset.quantised import widened
from gigl_loader.dataset.schema import NodeType
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.plan import place_of
from gigl_loader.remote.dataset import RemoteDistDataset


class Owners(Protocol):
    """Which rank computes which node."""

    own: dict[NodeType, Tensor]
    """Global ids of this rank's nodes, ascending, by type."""

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the rank that computes each of ``ids``: ``[n]`` int64."""
        ...


class OwnedRows:
    """Rows of the nodes that this rank computes, in memory or in a mapped file.

    Args:
        values: ``[num_rows, ...]``.
        rows: ``[num_own]`` int64, the row of each own node; None: in order.
        scales: Of features that are stored in fewer bytes; see `Rows.scales`.
    """

    def __init__(self, values: Tensor, rows: Tensor | None = None, scales: Tensor | None = None):
        self.values, self._rows, self._scales = values, rows, scales

    def take(self, places: Tensor) -> Tensor:
        """Return the rows of own nodes, as they are stored."""
        return self.values[places if self._rows is None else self._rows[places]]

    def widen(self, rows: Tensor) -> Tensor:
        """Return rows as a layer reads them."""
        return widened(rows, self._scales)


class StoredRows:
    """Features of nodes on storage servers.

    Args:
        dataset: The graph.
        node_type: Their type.
    """

    def __init__(self, dataset: RemoteDistDataset, node_type: NodeType) -> None:
        self._dataset, self._node_type = dataset, node_type

    def get(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` (``[n]`` int64, global)."""
        return self._dataset.lookup.rows("node_features", self._node_type, ids)


RowSource = OwnedRows | StoredRows


class RowFetcher:
    """Fetches rows of nodes, whoever computes them.

    Args:
        owners: Who computes which.
        exchange: The ranks.
    """

    def __init__(self, owners: Owners, exchange: RankExchange) -> None:
        self._owners, self._exchange = owners, exchange
        self._first = {}
        for name, own in owners.own.items():  # a range of ids needs no search
            is_range = own.numel() > 0 and int(own[-1]) - int(own[0]) == own.numel() - 1
            self._first[name] = int(own[0]) if is_range else None

    def get(self, node_type: NodeType, nodes: Tensor, sources: Sequence[RowSource]) -> list[Tensor]:
        """Return the rows of ``nodes`` (``[n]`` int64, global) of each source. Collective."""
        owned = [source for source in sources if isinstance(source, OwnedRows)]
        exchanged = iter(self._exchanged(node_type, nodes, owned) if owned else [])
        return [
            source.widen(next(exchanged)) if isinstance(source, OwnedRows) else source.get(nodes)
            for source in sources
        ]

    def _exchanged(
        self, node_type: NodeType, nodes: Tensor, sources: Sequence[OwnedRows]
    ) -> list[Tensor]:
        if self._exchange.size == 1:
            places = self._places(node_type, nodes)
            return [source.take(places) for source in sources]
        rank = self._exchange.rank
        owner = self._owners.owner(node_type, nodes)
        order = torch.argsort(owner, stable=True)
        ask = torch.bincount(owner, minlength=self._exchange.size)
        start, stop = int(ask[:rank].sum()), int(ask[: rank + 1].sum())
        mine, others = order[start:stop], torch.cat([order[:start], order[stop:]])
        ask[rank] = 0  # what is here needs no exchange
        send = ask.tolist()
        receive = self._exchange.swap_counts(send)
        asked = self._exchange.swap_values(nodes[others], send, receive)
        theirs, here = self._places(node_type, asked), self._places(node_type, nodes[mine])
        found = []
        for source in sources:
            out = source.values.new_empty((nodes.numel(), *source.values.shape[1:]))
            out[others] = self._exchange.swap_values(source.take(theirs), receive, send)
            out[mine] = source.take(here)
            found.append(out)
        return found

    def _places(self, node_type: NodeType, ids: Tensor) -> Tensor:
        first = self._first[node_type]
        return place_of(ids, self._owners.own[node_type]) if first is None else ids - first
