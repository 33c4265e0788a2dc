"""What compute ranks tell rank 0 before and after producers are created, and what it makes of it.

No sockets, no process group: see `gigl_loader.ranks.decide_with_ranks`.
"""

from dataclasses import dataclass

from gigl_loader.errors import ConfigError
from gigl_loader.options import EpochOptions
from gigl_loader.ranks import check_same_options
from gigl_loader.transport.failures import Failure


@dataclass(frozen=True)
class Offer:
    """What a compute process tells the others before producers are created."""

    key: str
    digest: str
    options: EpochOptions
    shared: dict[str, str]
    """What has to be the same on all ranks, by name."""


@dataclass(frozen=True)
class Sharing:
    """The ranks of one worker key, where they are more than one."""

    key: str
    ranks: list[tuple[int, int]]
    """``[first, end)`` of each run of ranks."""
    options: EpochOptions
    """Those that count: the leader's."""
    differ: list[int]
    """Ranks with another input or config than the leader."""

    @property
    def all_ranks(self) -> list[int]:
        """The ranks, ascending."""
        return [rank for first, end in self.ranks for rank in range(first, end)]


@dataclass(frozen=True)
class Terms:
    """What rank 0 makes of the offers of all."""

    sharing: list[Sharing]
    first: EpochOptions
    """Of rank 0."""
    error: str | None = None
    """What is not the same on all ranks, and has to be."""

    def of(self, rank: int, key: str, own: EpochOptions) -> Sharing:
        """Return the ranks that share a key: one alone, where rank 0 said nothing of it."""
        found = next((one for one in self.sharing if one.key == key), None)
        return found or Sharing(key, [(rank, rank + 1)], own, [])

    def place(self, rank: int) -> int:
        """Return which of all leaders a leader is, by rank."""
        followers = (one for shared in self.sharing for one in shared.all_ranks[1:])
        return rank - sum(one < rank for one in followers)


@dataclass(frozen=True)
class Outcome:
    """What came of creating producers, of the process that asked for them."""

    producers: dict[int, int] | None
    """Their ids by server."""
    failure: Failure | None


@dataclass(frozen=True)
class Outcomes:
    """What rank 0 makes of those of all."""

    producers: dict[int, dict[int, int]]
    """By leader, of those that others share theirs with."""
    failed: int | None = None
    """The first rank that failed."""
    failure: Failure | None = None


def settle(why: str, offers: list[Offer]) -> Terms:
    """Return the terms for all ranks. On rank 0, which must not raise here."""
    try:
        check_same_options([one.shared for one in offers], why)
    except ConfigError as error:
        return Terms([], offers[0].options, str(error))
    by_key: dict[str, list[int]] = {}
    for rank, offer in enumerate(offers):
        by_key.setdefault(offer.key, []).append(rank)
    sharing = [
        Sharing(
            key, _runs(ranks), offers[ranks[0]].options,
            [one for one in ranks if offers[one].digest != offers[ranks[0]].digest],
        )
        for key, ranks in by_key.items()
        if len(ranks) > 1
    ]  # fmt: skip
    return Terms(sharing, offers[0].options)


def _runs(ranks: list[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as runs ``[first, end)``."""
    found: list[tuple[int, int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank:
            found[-1] = (found[-1][0], rank + 1)
        else:
            found.append((rank, rank + 1))
    return found


def sum_up(leaders: set[int], outcomes: list[Outcome]) -> Outcomes:
    """Return what all ranks are to know. On rank 0."""
    producers = {
        rank: one.producers
        for rank, one in enumerate(outcomes)
        if rank in leaders and one.producers is not None
    }
    for rank, one in enumerate(outcomes):
        if one.failure is not None:
            return Outcomes(producers, rank, one.failure)
    return Outcomes(producers)
