"""Rows that a layer reads: ranks exchange theirs, storage servers are asked."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.quantised import widened
from gigl_loader.dataset.schema import NodeType
from gigl_loader.exchange import AskedRanks, RankExchange
from gigl_loader.inference.local_graph import position_of
from gigl_loader.memory.leases import OwnMessages
from gigl_loader.memory.segments import Array
from gigl_loader.memory.tensors import as_array, dtype_name
from gigl_loader.message import Field
from gigl_loader.remote.dataset import RemoteDistDataset
from gigl_loader.sampler.reader import Scratch
from gigl_loader.sampler.row_exchange import Part, gather_rows


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

    def take(self, positions: Tensor) -> Tensor:
        """Return the rows of own nodes, as they are stored."""
        return self.values[positions if self._rows is None else self._rows[positions]]

    def part(self, positions: Array, to: Array | None) -> Part:
        """Return the rows of own nodes, for `gather_rows` to write to the positions ``to``."""
        rows = positions if self._rows is None else self._rows.numpy()[positions]
        return as_array(self.values), rows, to

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

    Memory is used again: what is sent and received with the next call, the rows themselves once
    they are gone. Taken afresh for each chunk, it would pile up in the allocator's many heaps.

    Args:
        owners: Who computes which.
        exchange: The ranks.
    """

    def __init__(self, owners: Owners, exchange: RankExchange) -> None:
        self._owners, self._exchange = owners, exchange
        # both are for one thread: a ChunkReader has a RowFetcher, and reads in one thread at a time
        self._scratch, self._memory = Scratch(), OwnMessages()
        self._first = {}
        for name, own in owners.own.items():  # a range of ids needs no search
            is_range = own.numel() > 0 and int(own[-1]) - int(own[0]) == own.numel() - 1
            self._first[name] = int(own[0]) if is_range else None

    def get(self, node_type: NodeType, nodes: Tensor, sources: Sequence[RowSource]) -> list[Tensor]:
        """Return the rows of ``nodes`` (``[n]`` int64, global) of each source. Collective."""
        owned = [source for source in sources if isinstance(source, OwnedRows)]
        exchanged = iter(self._exchanged(node_type, nodes, owned) if owned else [])
        return [
            # in the order of `sources`: next() takes the exchanged ones as they come up
            source.widen(next(exchanged)) if isinstance(source, OwnedRows) else source.get(nodes)
            for source in sources
        ]

    def _exchanged(
        self, node_type: NodeType, nodes: Tensor, sources: Sequence[OwnedRows]
    ) -> list[Tensor]:
        if self._exchange.size == 1:
            here = self._positions(node_type, nodes)
            return [self._gathered(source, [source.part(here, None)], nodes) for source in sources]
        # one exchange of ids serves all sources; each of them then sends its own rows
        asked = AskedRanks(self._exchange, nodes, self._owners.owner(node_type, nodes))
        theirs = self._positions(node_type, asked.theirs)
        here = self._positions(node_type, torch.from_numpy(nodes.numpy()[asked.mine]))
        found = []
        for source in sources:
            came = self._answers(asked, source, theirs)
            # Both parts are written straight to their places among `nodes`. `came` is memory that
            # the next source's exchange writes to: it is read before the loop goes on.
            parts: list[Part] = [
                source.part(here, asked.mine), (came, np.arange(asked.others.size), asked.others),
            ]  # fmt: skip
            found.append(self._gathered(source, parts, nodes))
        return found

    def _answers(self, asked: AskedRanks, source: OwnedRows, theirs: Array) -> Array:
        """Send other ranks their rows; return those that come for this one."""
        sent, came = (
            self._scratch.matrix(
                name, dtype_name(source.values.dtype), (count, *source.values.shape[1:])
            )
            for name, count in (("sent", theirs.size), ("came", asked.others.size))
        )
        # as they are stored, e.g. as int8: what travels is not widened yet
        gather_rows([source.part(theirs, None)], sent)
        asked.answers(torch.from_numpy(sent), torch.from_numpy(came))
        return came

    def _gathered(self, source: OwnedRows, parts: Sequence[Part], nodes: Tensor) -> Tensor:
        shape = (nodes.numel(), *source.values.shape[1:])
        field = Field("x", dtype_name(source.values.dtype), shape, partial(gather_rows, parts))
        return self._memory.write([field])[0]["x"]

    def _positions(self, node_type: NodeType, ids: Tensor) -> Array:
        first = self._first[node_type]
        # no -1 here: only own nodes are looked up
        found = position_of(ids, self._owners.own[node_type]) if first is None else ids - first
        positions: Array = found.numpy()
        return positions
