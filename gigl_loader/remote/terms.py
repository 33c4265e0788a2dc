"""What a loader samples over all servers, and what compute ranks tell rank 0 of it.

Rank 0 concludes for all, before and after producers are created. No sockets, no process group: see
`gigl_loader.ranks.decide_with_ranks`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gigl_loader._glt import NodeSamplerInput
from gigl_loader.errors import ConfigError
from gigl_loader.options import EpochOptions
from gigl_loader.ranks import check_same_options
from gigl_loader.remote.compact import ByServer, Runs
from gigl_loader.rowcache.machine import RowsOffer, firsts_of_machines
from gigl_loader.seeds import SeedsTold, check_each_once, check_same_seeds
from gigl_loader.transport.failures import Failure, rebuild


@dataclass(frozen=True)
class Proposal:
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
    """Rank 0's conclusions from the proposals of all ranks."""

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


def settle(proposals: list[Proposal]) -> Terms:
    """Return the terms for all ranks. On rank 0, which must not raise here."""
    try:
        # caught and sent: an error that rank 0 alone raised would leave the others waiting for its
        # answer
        _check(proposals)
    except ConfigError as error:
        return Terms([], proposals[0].options, str(error))
    by_key: dict[str, list[int]] = {}
    for rank, proposal in enumerate(proposals):
        # ranks ascend, so the first of each key is its leader, on all ranks
        by_key.setdefault(proposal.key, []).append(rank)
    sharing = [
        Sharing(
            key, Runs.of(ranks), proposals[ranks[0]].options,
            [one for one in ranks if proposals[one].digest != proposals[ranks[0]].digest],
        )
        for key, ranks in by_key.items()
        if len(ranks) > 1
    ]  # fmt: skip
    rows = firsts_of_machines([one.rows for one in proposals])
    return Terms(sharing, proposals[0].options, rows=rows)


def _check(proposals: list[Proposal]) -> None:
    """Raise `ConfigError` where ranks differ in what all share, or seeds would come twice."""
    check_same_options([one.shared for one in proposals], "a loader")
    shard = proposals[0].shared.get("shard")
    if shard == "world":
        check_same_seeds([one.seeds for one in proposals])
    elif shard == "machine":
        # the ranks of one key share its batches
        check_each_once([one.seeds for one in proposals], [one.key for one in proposals])


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


# --- the inputs of all servers as one -------------------------------------------------------------


def concatenated(inputs: Sequence[NodeSamplerInput]) -> NodeSamplerInput:
    """Return the inputs of all servers as one, on the CPU; further columns go with the seeds.

    Columns of labels may differ in width: they are padded with -1.

    Raises:
        ConfigError: There is none, or they are of several types.
    """
    if not inputs:
        raise ConfigError("sampler_input is an empty list: give one input per storage server")
    # a loader's seeds are of one type: positions in the whole input say nothing of a type
    types = {one.input_type for one in inputs}
    if len(types) > 1:
        raise ConfigError(f"the inputs of the storage servers are of several types: {types}")
    whole = NodeSamplerInput(torch.cat([one.node.cpu() for one in inputs]), types.pop())
    # GLT's own class has no such attribute
    extras = [getattr(one, "extra", None) or {} for one in inputs]
    # sorted below: all ranks that share a producer have to come to the same digest
    names = {name for extra in extras for name in extra}
    whole.extra = {
        name: _stacked([extra[name].cpu() for extra in extras if name in extra])
        for name in sorted(names)
    }
    for name, column in whole.extra.items():
        # Counted in rows: a server without seeds of this rank may leave its empty columns out.
        if column.size(0) != len(whole):
            raise ConfigError(f"column {name!r} of the input is missing for some servers' seeds")
    return whole


def _stacked(columns: list[Tensor]) -> Tensor:
    if columns[0].dim() < 2:
        return torch.cat(columns)
    width = max(column.size(1) for column in columns)
    # -1 is no node: what is padded so already within a server's table has the same meaning
    padded = [torch.nn.functional.pad(c, (0, width - c.size(1)), value=-1) for c in columns]
    return torch.cat(padded)


def digest_of(sampler_input: NodeSamplerInput, config: Any, active: Sequence[int]) -> str:
    """Return what has to be equal where producers are shared."""
    # fast, as input may be GBs; nothing secret depends on it
    digest = hashlib.blake2b(repr((config, list(active), sampler_input.input_type)).encode())
    # no copy; columns need one, as hashlib takes a matrix as bytes only
    digest.update(sampler_input.node.contiguous().numpy().data)
    for name, column in sampler_input.extra.items():
        digest.update(name.encode() + column.contiguous().numpy().tobytes())
    return digest.hexdigest()
