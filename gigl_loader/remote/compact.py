"""Sequences over all ranks of a job, or all its storage servers, in little room. They travel.

Each rank and each server keeps some of these and looks at a few of their values, or at none. As
tuples of Python's numbers and strings they would be most of what a rank holds where there are
thousands.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, pairwise
from typing import Any

from gigl_loader.errors import ProtocolError


@dataclass(frozen=True)
class Runs(Sequence[int]):
    """Ascending numbers as ranges.

    ::

        Runs.of([0, 1, 2, 3, 8, 10, 12])  ->  0 to 3 one by one, 8 to 12 two by two
    """

    ranges: tuple[tuple[int, int, int], ...] = ()
    """First, end and step of each, as of Python's `range`."""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Runs":
        """Return ``numbers``, which ascend, none twice."""
        if isinstance(numbers, cls):
            return numbers
        # Greedy, in one pass. Ranks of a job, and those of one place on their machines, have equal
        # steps and make one range; the worst are numbers without any pattern: a range for each two.
        found: list[tuple[int, int, int]] = []
        for number in numbers:
            first, end, step = found[-1] if found else (number, number, 0)
            if end - first == 1:  # the second one decides the step
                found[-1] = (first, number + 1, number - first)
            elif found and number == end - 1 + step:
                found[-1] = (first, number + 1, step)
            else:
                found.append((number, number + 1, 1))
        return cls(tuple(found))

    @property
    def _all(self) -> list[range]:
        # not kept: ranges of Python do not travel, and most of these are never looked at
        return [range(*one) for one in self.ranges]

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._all)

    def __contains__(self, number: object) -> bool:
        # a division for each range, where `number` is an int; ranges compare other types one by one
        return any(number in one for one in self._all)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return list(self)[position]
        left = position if position >= 0 else position + len(self)
        for one in self._all:
            if 0 <= left < len(one):
                return one[left]
            left -= len(one)
        raise IndexError(position)

    def index(self, number: int, *_: Any) -> int:
        """Return where ``number`` stands; raises ValueError."""
        # not by `Sequence.index`, which looks at each number
        if number not in self:
            raise ValueError(f"{number} is not among {self}")
        return self.before(number)

    def before(self, number: int) -> int:
        """Return how many are smaller than ``number``."""
        # each range up to `number`: its length is counted, not walked
        return sum(len(range(first, min(end, number), step)) for first, end, step in self.ranges)

    def check(self, end: int, what: str) -> None:
        """Refuse what came over the network and is not ascending, from 0 on and below ``end``.

        Raises:
            ProtocolError: Says so of ``what``.
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
    """``host:port`` of each, with a space between."""

    @classmethod
    def of(cls, addresses: Iterable[tuple[str, int]]) -> "Addresses":
        """Return ``addresses``, of which no host has a space in it."""
        return cls(" ".join(f"{host}:{port}" for host, port in addresses))

    def __len__(self) -> int:
        return self.text.count(" ") + 1 if self.text else 0

    def __getitem__(self, position: Any) -> Any:
        # linear, each time: an address is looked at once per connection
        texts = self.text.split(" ") if self.text else []
        if isinstance(position, slice):
            return [_address(one) for one in texts[position]]
        return _address(texts[position])


def _address(text: str) -> tuple[str, int]:
    # the last colon: IPv6 addresses have more
    host, _, port = text.rpartition(":")
    return host, int(port)


NOWHERE = Addresses()


@dataclass(frozen=True)
class ByServer(Mapping[int, int]):
    """A number of each server, where most have the same one."""

    parts: tuple[tuple[int, Runs], ...] = ()
    """Each number that there is, and whose it is."""

    @classmethod
    def of(cls, numbers: Mapping[int, int]) -> "ByServer":
        """Return ``numbers``."""
        if isinstance(numbers, cls):
            return numbers
        servers: dict[int, list[int]] = {}
        # `Runs` want them ascending
        for server in sorted(numbers):
            servers.setdefault(numbers[server], []).append(server)
        return cls(tuple((number, Runs.of(some)) for number, some in servers.items()))

    def __len__(self) -> int:
        return sum(len(some) for _, some in self.parts)

    def __iter__(self) -> Iterator[int]:
        return merge(*(some for _, some in self.parts))

    def __getitem__(self, server: int) -> int:
        for number, some in self.parts:
            if server in some:
                return number
        raise KeyError(server)


def compacted(servers: Sequence[int]) -> Sequence[int]:
    """Return the same in little room, where they ascend, as those of all loaders do."""
    ascending = all(one < other for one, other in pairwise(servers))
    return Runs.of(servers) if ascending else servers


def those_of(servers: Sequence[int], wanted: set[int]) -> Sequence[int]:
    """Return those that are wanted, in their order; all of them are no second list."""
    if wanted.issuperset(servers):
        return servers
    return compacted([server for server in servers if server in wanted])
