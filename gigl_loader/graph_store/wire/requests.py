"""Messages between compute processes and storage servers, a dataclass each.

How a method of `DistServer` is called is in `gigl_loader.graph_store.wire.calls`; these are the
values that it takes and returns, and the messages that batches travel in.

Sequences over all ranks of a job or all storage servers are compact: each rank and each server
keeps some of them and reads few of their values, or none. With thousands of ranks, tuples of
Python's numbers and strings would be most of a rank's memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain, pairwise
from typing import Any

import numpy as np

from gigl_loader.batch.message import Attempt, BatchTicket
from gigl_loader.dataset.identity import WHOLE, Share
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.decoding import Name
from gigl_loader.runtime.memory import same_host
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sampler.rows.packing import PackedRuns

# --- ranks and addresses --------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs(Sequence[int]):
    """Ascending numbers as ranges.

    ::

        Runs.of([0, 1, 2, 3, 8, 10, 12])  ->  0 to 3 one by one, 8 to 12 two by two
    """

    ranges: tuple[tuple[int, int, int], ...] = ()
    """First, end and step of each range, as in Python's `range`."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Runs":
        """Return ``numbers``, which must ascend without repeats."""
        if isinstance(numbers, cls):
            return numbers
        # Greedy, in one pass. All ranks of a job, or those with one position on their machines,
        # have equal steps and make one range; numbers without a pattern make a range for each two.
        ranges: list[tuple[int, int, int]] = []
        for number in numbers:
            first, end, step = ranges[-1] if ranges else (number, number, 0)
            if end - first == 1:  # the second one decides the step
                ranges[-1] = (first, number + 1, number - first)
            elif ranges and number == end - 1 + step:
                ranges[-1] = (first, number + 1, step)
            else:
                ranges.append((number, number + 1, 1))
        return cls(tuple(ranges))

    @property
    def _all(self) -> list[range]:
        # not kept: Python's ranges do not travel, and most of these are never read
        return [range(*bounds) for bounds in self.ranges]

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._all)

    def __contains__(self, number: object) -> bool:
        # for an int this is a division per range; for other types ranges compare one by one
        return any(number in run for run in self._all)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return list(self)[position]
        left = position if position >= 0 else position + len(self)
        for run in self._all:
            if 0 <= left < len(run):
                return run[left]
            left -= len(run)
        raise IndexError(position)

    def index(self, number: int, *_: Any) -> int:
        """Return the position of ``number``; raises ValueError."""
        # not `Sequence.index`, which looks at each number
        if number not in self:
            raise ValueError(f"{number} is not among {self}")
        return self.before(number)

    def before(self, number: int) -> int:
        """Return how many of the numbers are smaller than ``number``."""
        # the length of each range up to `number` is computed, not counted
        return sum(len(range(first, min(end, number), step)) for first, end, step in self.ranges)

    def check(self, end: int, what: str) -> None:
        """Refuse received values that do not ascend from 0 or more to below ``end``.

        Raises:
            ProtocolError: The values are wrong; names ``what``.
        """
        last = -1
        for first, stop, step in self.ranges:
            if not last < first < stop <= end or step < 1:
                raise ProtocolError(f"{what} must ascend in [0, {end}), got {self.ranges[:9]}")
            last = range(first, stop, step)[-1]

    def __str__(self) -> str:
        return str(list(self))


NOBODY = Runs()


@dataclass(frozen=True)
class Addresses(Sequence[tuple[str, int]]):
    """Hosts and ports."""

    text: str = ""
    """``host:port`` of each address, separated by spaces."""

    @classmethod
    def of(cls, addresses: Iterable[tuple[str, int]]) -> "Addresses":
        """Return ``addresses``; no host may contain a space."""
        return cls(" ".join(f"{host}:{port}" for host, port in addresses))

    def __len__(self) -> int:
        return self.text.count(" ") + 1 if self.text else 0

    def __getitem__(self, position: Any) -> Any:
        # linear each time, but an address is read once per connection
        texts = self.text.split(" ") if self.text else []
        if isinstance(position, slice):
            return [_address(text) for text in texts[position]]
        return _address(texts[position])


def _address(text: str) -> tuple[str, int]:
    # the last colon, as IPv6 addresses have more
    host, _, port = text.rpartition(":")
    return host, int(port)


NOWHERE = Addresses()


@dataclass(frozen=True)
class ByServer(Mapping[int, int]):
    """A number for each server; most servers have the same one."""

    parts: tuple[tuple[int, Runs], ...] = ()
    """Each number with the servers that have it."""

    @classmethod
    def of(cls, numbers: Mapping[int, int]) -> "ByServer":
        """Return ``numbers``."""
        if isinstance(numbers, cls):
            return numbers
        servers: dict[int, list[int]] = {}
        # `Runs` needs ascending numbers
        for server in sorted(numbers):
            servers.setdefault(numbers[server], []).append(server)
        return cls(tuple((number, Runs.of(ranks)) for number, ranks in servers.items()))

    def __len__(self) -> int:
        return sum(len(servers) for _, servers in self.parts)

    def __iter__(self) -> Iterator[int]:
        return merge(*(servers for _, servers in self.parts))

    def __getitem__(self, server: int) -> int:
        for number, servers in self.parts:
            if server in servers:
                return number
        raise KeyError(server)


def compacted(servers: Sequence[int]) -> Sequence[int]:
    """Return ``servers`` in a compact form if they ascend, as those of all loaders do."""
    ascending = all(server < other for server, other in pairwise(servers))
    return Runs.of(servers) if ascending else servers


def select_servers(servers: Sequence[int], wanted: set[int]) -> Sequence[int]:
    """Return the wanted servers in their order; if that is all, the sequence itself."""
    if wanted.issuperset(servers):
        return servers
    return compacted([server for server in servers if server in wanted])


# --- responses ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nothing:
    """A response without content: the request was carried out."""

    value: None = None


# --- producers ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProducerRequest:
    """The part of the batches that a server samples, and their consumers.

    ::

        batches of the whole input   0  1  2  3  4  5  6  7      2 active servers, 2 consumers
        sampled by active server     0  1  0  1  0  1  0  1      batch % num_shards
        taken by consumer            0  0  1  1  0  0  1  1      position in the shard % consumers
    """

    source_options: SourceOptions
    shard: int | None = 0
    """Number of this server among those with input of their own; None: it samples no batch."""
    num_shards: int = 1
    """Number of servers with input of their own."""
    client_ranks: Runs = NOBODY
    """Compute ranks that share the producer, by consumer number; empty: only the caller."""
    request_id: Name = ""
    """Name of the request, the same at each repeat and on all servers; empty: it has none."""
    servers: Runs = NOBODY
    """Servers that take part, ascending; empty: all. The others are lost, and have replicas that
    serve the same partition."""

    @property
    def num_consumers(self) -> int:
        """Number of streams of batches."""
        return max(1, len(self.client_ranks))


@dataclass(frozen=True, kw_only=True)
class EpochRequest:
    """An epoch of one consumer."""

    consumer: int = 0
    attempt: Attempt | None = None
    """Attempt of the consumer's loader, which its fetches carry; None: it does not count them."""
    batches: np.ndarray | None = None
    """``[n]`` int64, indices over the whole input, in the wanted order; None: the whole share."""
    positions: np.ndarray | None = None
    """``[n]`` int64, the position of each in the loader's epoch; None: they count from 0."""


@dataclass(frozen=True, kw_only=True)
class FetchRequest:
    """Requests one batch; the same request when it is repeated after a lost connection."""

    producer_id: int
    consumer: int = 0
    attempt: Attempt | None = None
    """The attempt that the batch belongs to; None only if fetches are not counted."""
    fetches_before: int | None = None
    """Fetches of the attempt that the consumer sent to this server before; None: not counted."""
    same_host: bool = False
    """Whether the client can map the server's memory, and only needs the location of the batch."""


@dataclass(frozen=True)
class BatchMessage:
    """One batch: in ``columns`` and ``parts``, or in a ``region`` of the server's memory."""

    ticket: BatchTicket
    stats: dict[str, Any]
    layout: list[tuple[str, str, tuple[int, ...], int]]
    """(key, dtype, shape, offset in bytes) of each tensor."""
    columns: dict[str, list[PackedRuns]] = field(default_factory=dict)
    """Ids and labels of edges, by key; see `gigl_loader.graph_store.wire.payload`."""
    parts: list[np.ndarray] = field(default_factory=list)
    """uint8 arrays with the memory of all other tensors."""
    region: same_host.Region | None = None
    lease: int = -1
    """Number by which the batch in ``region`` is returned."""


@dataclass(frozen=True)
class FetchAnswer:
    """A batch; or none, if the epoch was cancelled."""

    batch: BatchMessage | None
    finished: bool
    """Whether the server has no more for this consumer in this epoch."""


@dataclass(frozen=True)
class GiveBack:
    """Returns leases of batches that the client no longer reads."""

    leases: tuple[int, ...]
    shared: tuple[int, ...] = ()
    """Further ones, which a process that the client forked may read: never written again."""


# --- contents of a server -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeIdsRequest:
    """Ids of the nodes that a server owns."""

    split: str | None = None
    """``"train"``, ``"val"``, ``"test"``; None: all nodes."""
    node_type: NodeType | None = None
    share: Share = WHOLE
    """Share of the ids to return."""
    server: int | None = None
    """Server of the rows; None: the called one. A replica may serve the request in its place."""


@dataclass(frozen=True)
class RowBook:
    """Partition book of the rows of one type."""

    group: str
    """``"node"`` or ``"edge"``."""
    name: NodeType | EdgeType
    num_ids: int
    bounds: np.ndarray | None = None
    """``[num_partitions]`` int64, where each partition's range of ids ends."""
    table: np.ndarray | None = None
    """``[num_ids]``, the owner of each id. Neither field is set: one partition has all."""
