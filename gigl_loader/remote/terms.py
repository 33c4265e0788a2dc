"""What compute ranks tell rank 0 before and after producers are created, and what it makes of it.

No sockets, no process group: see `gigl_loader.ranks.decide_with_ranks`.
"""

from dataclasses import dataclass, field

from gigl_loader.errors import ConfigError
from gigl_loader.options import EpochOptions
from gigl_loader.ranks import check_same_options
from gigl_loader.remote.compact import ByServer, Runs
from gigl_loader.rowcache.machine import RowsOffer, firsts_of_machines
from gigl_loader.seeds import SeedsTold, check_each_once, check_same_seeds
from gigl_loader.transport.failures import Failure, rebuild


@dataclass(frozen=True)
class Offer:
    """What a compute process tells the others before producers are created."""

    key: str
    digest: str
    options: EpochOptions
    shared: dict[str, str]
    """By name: values that must be equal on all ranks, ``shard`` among them."""
    seeds: SeedsTold
    rows: RowsOffer | None = None
    """Memory for rows that this rank keeps, for the ranks of its machine."""


@dataclass(frozen=True)
class Sharing:
    """The ranks of one worker key, where they are more than one."""

    key: str
    ranks: Runs
    options: EpochOptions
    """Those that count: the leader's."""
    differ: list[int]
    """Ranks with another input or config than the leader."""


@dataclass(frozen=True)
class Terms:
    """Rank 0's conclusions from the offers of all ranks."""

    sharing: list[Sharing]
    first: EpochOptions
    """The options of rank 0."""
    error: str | None = None
    """Values that differ between ranks and must not."""
    rows: list[RowsOffer] = field(default_factory=list)
    """Memory in which ranks of one machine cache rows together."""

    def of(self, rank: int, key: str, own: EpochOptions) -> Sharing:
        """Return the ranks that share a key: one alone, where rank 0 said nothing of it."""
        # most ranks share with nobody, and all have one answer: a group of one is not sent but made
        # here
        found = next((one for one in self.sharing if one.key == key), None)
        return found or Sharing(key, Runs.of([rank]), own, [])

    def place(self, rank: int) -> int:
        """Return which of all leaders a leader is, by rank."""
        before = (one.ranks.before(rank) for one in self.sharing)
        return rank - sum(count - 1 for count in before if count)  # each key's first is a leader


@dataclass(frozen=True)
class Outcome:
    """What came of creating producers, of the process that asked for them."""

    producers: ByServer | None
    """Their ids by server."""
    failure: Failure | None


@dataclass(frozen=True)
class Outcomes:
    """Rank 0's conclusions from the outcomes of all ranks."""

    producers: dict[int, ByServer]
    """By leader, of those that others share theirs with."""
    failed: int | None = None
    """The first rank that failed."""
    failure: Failure | None = None

    def failure_on(self, rank: int, own: object) -> Exception | None:
        """Return the first failure of any rank; that of ``rank`` itself with its own traceback."""
        if self.failure is None or self.failed is None:
            return None
        if self.failed == rank and isinstance(own, Exception):
            return own
        return rebuild(self.failure, f"rank {self.failed}")


def settle(offers: list[Offer]) -> Terms:
    """Return the terms for all ranks. On rank 0, which must not raise here."""
    try:
        # caught and sent: an error that rank 0 alone raised would leave the others waiting for its
        # answer
        _check(offers)
    except ConfigError as error:
        return Terms([], offers[0].options, str(error))
    by_key: dict[str, list[int]] = {}
    for rank, offer in enumerate(offers):
        # ranks ascend, so the first of each key is its leader, on all ranks
        by_key.setdefault(offer.key, []).append(rank)
    sharing = [
        Sharing(
            key, Runs.of(ranks), offers[ranks[0]].options,
            [one for one in ranks if offers[one].digest != offers[ranks[0]].digest],
        )
        for key, ranks in by_key.items()
        if len(ranks) > 1
    ]  # fmt: skip
    rows = firsts_of_machines([one.rows for one in offers])
    return Terms(sharing, offers[0].options, rows=rows)


def _check(offers: list[Offer]) -> None:
    """Raise `ConfigError` where ranks differ in what all share, or seeds would come twice."""
    check_same_options([one.shared for one in offers], "a loader")
    shard = offers[0].shared.get("shard")
    if shard == "world":
        check_same_seeds([one.seeds for one in offers])
    elif shard == "machine":
        # the ranks of one key share its batches
        check_each_once([one.seeds for one in offers], [one.key for one in offers])


def sum_up(leaders: set[int], outcomes: list[Outcome]) -> Outcomes:
    """Return what all ranks are to know. On rank 0."""
    producers = {
        rank: one.producers
        for rank, one in enumerate(outcomes)
        if rank in leaders and one.producers is not None
    }
    # the lowest rank's failure, however many there are: all ranks raise the same one
    for rank, one in enumerate(outcomes):
        if one.failure is not None:
            return Outcomes(producers, rank, one.failure)
    return Outcomes(producers)
