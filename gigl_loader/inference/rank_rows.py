"""Rows of nodes from the ranks that compute them: read in place, or exchanged.

::

    one machine:  each rank offers its rows before a layer       --> the others map and read them
    several:      each chunk's ids go to their owners, by rank   --> the rows come back

Ranks of one machine read each other's memory, as workers do. An exchange copies each row several
times, and every rank waits in it for the slowest one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gigl_loader.batch.leases import own_messages
from gigl_loader.batch.message import Field
from gigl_loader.dataset.lookup import widened
from gigl_loader.dataset.schema import NodeType
from gigl_loader.runtime.memory.same_host import Offer, read_offers
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.memory.tensors import Offered, as_array, can_be_offered, dtype_name
from gigl_loader.runtime.ranks.collectives import RankExchange, RowsFromRanks, order_by_rank
from gigl_loader.sampler.options import reads_same_memory
from gigl_loader.sampler.rows.reader import Scratch
from gigl_loader.sampler.rows.row_exchange import Part, gather_rows

T = TypeVar("T")


class Owners(Protocol):
    """The rank that computes each node."""

    own_ids: dict[NodeType, Tensor]
    """Global ids of this rank's nodes, ascending, by type."""

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the rank that computes each of ``ids``: ``[n]`` int64."""


@dataclass(frozen=True)
class RankNodes:
    """The nodes of one rank of one type, to find a node's position among them."""

    first: int | None
    """The first id of a range of ids, which needs no search; None: see ``ids``."""
    ids: Array
    """``[num_own]`` int64, ascending; ``[0]`` of a range."""

    @classmethod
    def of(cls, ids: Tensor) -> "RankNodes":
        """Return the nodes ``ids``: ``[num_own]`` int64, ascending."""
        is_range = ids.numel() > 0 and int(ids[-1]) - int(ids[0]) == ids.numel() - 1
        return cls(int(ids[0]), ids[:0].numpy()) if is_range else cls(None, ids.numpy())

    def positions(self, ids: Array) -> Array:
        """Return the position of each of ``ids``, all of them the rank's."""
        return np.searchsorted(self.ids, ids) if self.first is None else ids - self.first


@dataclass(frozen=True)
class MappedRows:
    """The rows of one rank, read in place."""

    values: Array
    """``[num_rows, ...]``."""
    rows: Array | None
    """``[num_own]`` int64, the row of each of the rank's nodes; None: in order."""
    nodes: RankNodes

    def part(self, ids: Array, to: Array) -> Part:
        """Return the rows of the rank's nodes ``ids``, for the positions ``to``."""
        positions = self.nodes.positions(ids)
        return self.values, positions if self.rows is None else self.rows[positions], to


class OwnedRows:
    """Rows of the nodes that this rank computes, in memory or in a mapped file.

    Args:
        values: ``[num_rows, ...]``.
        rows: ``[num_own]`` int64, the row of each own node; None: in order.
        scales: Scales of quantized features; see `Rows.scales`.
        of_ranks: These rows of every rank, by rank; None: other ranks have to be asked.
    """

    def __init__(
        self,
        values: Tensor,
        rows: Tensor | None = None,
        scales: Tensor | None = None,
        of_ranks: Sequence[MappedRows] | None = None,
    ) -> None:
        self.values, self.rows, self.scales, self.of_ranks = values, rows, scales, of_ranks

    def part(self, positions: Array, to: Array | None) -> Part:
        """Return the rows of own nodes, for `gather_rows` to write to the positions ``to``."""
        rows = positions if self.rows is None else self.rows.numpy()[positions]
        return as_array(self.values), rows, to

    def widen(self, rows: Tensor) -> Tensor:
        """Return rows in the form for a layer."""
        return widened(rows, self.scales)


RowSource = OwnedRows | Callable[[Tensor], Tensor]
"""Rows of own nodes, or a function that fetches the rows of ids (``[n]`` int64, global)."""


@dataclass(frozen=True)
class _Nodes:
    """What a rank offers once; tensors, which become arrays."""

    first: dict[NodeType, int | None]
    ids: dict[NodeType, Any]


@dataclass(frozen=True)
class _Rows:
    """What a rank offers for a layer; tensors, which become arrays."""

    values: dict[NodeType, Any]
    rows: dict[NodeType, Any]
    """Without an entry: in order."""


class MappedRanks:
    """Maps the rows of all ranks, if all of them are on this machine. Collective.

    Args:
        owners: The rank of each node.
        exchange: The ranks.
    """

    def __init__(self, owners: Owners, exchange: RankExchange) -> None:
        self._exchange = exchange
        self._nodes: list[dict[NodeType, RankNodes]] | None = None
        if exchange.size > 1:
            own = {name: RankNodes.of(ids) for name, ids in owners.own_ids.items()}
            first = {name: nodes.first for name, nodes in own.items()}
            ids = {name: torch.from_numpy(nodes.ids) for name, nodes in own.items()}
            if (everyone := self._of_all(_Nodes(first, ids), _Nodes)) is not None:
                self._nodes = [
                    {name: RankNodes(rank.first[name], rank.ids[name]) for name in own}
                    for rank in everyone
                ]

    def map(self, sources: Mapping[NodeType, RowSource]) -> Mapping[NodeType, RowSource]:
        """Return ``sources``, those with the rows of every rank that can have them. Collective.

        Rows in memory of this process alone stay as they are: a copy would take as much again.
        """
        if self._nodes is None:
            return sources
        own = {
            name: source
            for name, source in sources.items()
            if isinstance(source, OwnedRows) and can_be_offered(source.values)
        }
        rows = {name: source.rows for name, source in own.items() if source.rows is not None}
        values = {name: source.values for name, source in own.items()}
        everyone = self._of_all(_Rows(values, rows), _Rows) or []
        mapped = dict(sources)
        for name, source in own.items():
            of_ranks = [
                MappedRows(rank.values[name], rank.rows.get(name), nodes[name])
                for rank, nodes in zip(everyone, self._nodes, strict=False)
                if name in rank.values
            ]
            if len(of_ranks) == self._exchange.size:
                mapped[name] = OwnedRows(source.values, source.rows, source.scales, of_ranks)
        return mapped

    def _of_all(self, value: T, kind: type[T]) -> list[T] | None:
        """Return the ``value`` of each rank with arrays for tensors; None: not all can be read."""
        offered = Offered(value) if reads_same_memory() else None
        try:
            offer = None if offered is None else offered.offer
            offers = self._exchange.gather(offer, Offer | None)
            # its own, too: the same form as the others'
            known = {rank: [one] for rank, one in enumerate(offers) if one is not None}
            found = {} if offered is None else read_offers(known, kind)
            # nobody stops offering before all have mapped it
            everyone = self._exchange.gather(len(found) == self._exchange.size, bool)
        finally:
            if offered is not None:
                offered.close()
        return [found[rank] for rank in range(len(found))] if all(everyone) else None


class RowFetcher:
    """Fetches rows of nodes, from any rank.

    Memory is reused: for sent and received data by the next call, for the rows themselves once they
    are freed. New memory for each chunk would pile up in the allocator's many heaps.

    Args:
        owners: The rank of each node.
        exchange: The ranks.
    """

    def __init__(self, owners: Owners, exchange: RankExchange) -> None:
        self._owners, self._exchange = owners, exchange
        # both are for one thread: a ChunkReader has a RowFetcher, and reads in one thread at a time
        self._scratch, self._memory = Scratch(), own_messages()
        self._nodes = {name: RankNodes.of(ids) for name, ids in owners.own_ids.items()}

    def get(self, node_type: NodeType, nodes: Tensor, sources: Sequence[RowSource]) -> list[Tensor]:
        """Return the rows of ``nodes`` (``[n]`` int64, global) of each source. Collective."""
        owned = [source for source in sources if isinstance(source, OwnedRows)]
        exchanged = iter(self._exchanged(node_type, nodes, owned) if owned else [])
        return [
            # in the order of `sources`: next() takes the exchanged ones as they come up
            source.widen(next(exchanged)) if isinstance(source, OwnedRows) else source(nodes)
            for source in sources
        ]

    def _exchanged(
        self, node_type: NodeType, nodes: Tensor, sources: Sequence[OwnedRows]
    ) -> list[Tensor]:
        if self._exchange.size == 1:
            rows = self._positions(node_type, nodes)
            return [self._gathered(source, [source.part(rows, None)], nodes) for source in sources]
        mapped = [source.of_ranks for source in sources if source.of_ranks is not None]
        if len(mapped) == len(sources):  # as on all ranks: `MappedRanks.map` is collective
            order, counts = order_by_rank(self._owners.owner(node_type, nodes), self._exchange.size)
            places, ids = np.split(order, np.cumsum(counts)[:-1]), nodes.numpy()
            return [
                self._gathered(
                    source,
                    [rows.part(ids[to], to) for rows, to in zip(of_ranks, places, strict=True)],
                    nodes,
                )
                for source, of_ranks in zip(sources, mapped, strict=True)
            ]
        # one exchange of ids serves all sources; each of them then sends its own rows
        asked = RowsFromRanks(self._exchange, nodes, self._owners.owner(node_type, nodes))
        theirs = self._positions(node_type, asked.theirs)
        rows = self._positions(node_type, torch.from_numpy(nodes.numpy()[asked.mine]))
        gathered = []
        for source in sources:
            came = self._answers(asked, source, theirs)
            # Both parts are written directly to their places among `nodes`. `came` is memory of the
            # next source's exchange: it is read before the loop goes on.
            parts: list[Part] = [
                source.part(rows, asked.mine),
                (came, np.arange(asked.others.size), asked.others),
            ]
            gathered.append(self._gathered(source, parts, nodes))
        return gathered

    def _answers(self, asked: RowsFromRanks, source: OwnedRows, theirs: Array) -> Array:
        """Send other ranks their rows; return the rows for this one."""
        sent, came = (
            self._scratch.matrix(
                name, dtype_name(source.values.dtype), (count, *source.values.shape[1:])
            )
            for name, count in (("sent", theirs.size), ("came", asked.others.size))
        )
        # in stored form, e.g. as int8: they are widened after the exchange
        gather_rows([source.part(theirs, None)], sent)
        asked.answers(torch.from_numpy(sent), torch.from_numpy(came))
        return came

    def _gathered(self, source: OwnedRows, parts: Sequence[Part], nodes: Tensor) -> Tensor:
        shape = (nodes.numel(), *source.values.shape[1:])
        field = Field("x", dtype_name(source.values.dtype), shape, partial(gather_rows, parts))
        return self._memory.write([field])[0]["x"]

    def _positions(self, node_type: NodeType, ids: Tensor) -> Array:
        return self._nodes[node_type].positions(ids.numpy())
