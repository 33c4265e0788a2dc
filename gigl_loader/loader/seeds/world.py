"""``shard="world"``: batches numbered over the whole job, whichever rank takes them.

::

    batches of the epoch    0  1  2  3 | 4  5  6  7 | 8  9 10 11 12
    taken by 4 ranks        0  1  2  3 | 0  1  2  3 |               the job has taken 8: the state
    then by 2 ranks                                   0  1  0  1  0

After every step the job has consumed a prefix of the sequence, so its position is one number, and
any number of ranks can continue from it.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gigl_loader.errors import ConfigError, NotReadyError
from gigl_loader.runtime.ranks.collectives import (
    check_same_options,
    decide_with_ranks,
    gather_from_ranks,
)
from gigl_loader.sources.seed_checks import SHARDS, SeedSummary, check_same_seeds

logger = logging.getLogger(__name__)

has_warned = threading.Event()
"""Set once this process has warned of ranks with different numbers of batches."""


@dataclass(frozen=True, kw_only=True)
class WorldShare:
    """The positions of one rank in the job's sequence; beyond the last it starts again."""

    rank: int
    world_size: int
    total: int
    """Batches of an epoch, over all ranks."""
    even_ranks: str | None = None

    def positions(self, taken: int = 0) -> range:
        """Return this rank's positions, in order, once the job has taken the first ``taken``."""
        left = max(self.total - taken, 0)
        stop = taken + left
        if self.even_ranks == "drop":  # an incomplete step is left out
            stop = taken + left // self.world_size * self.world_size
        elif self.even_ranks == "wrap":  # the last step is filled up from the epoch's start
            stop = taken + -(-left // self.world_size) * self.world_size
        return range(taken + self.rank, stop, self.world_size)

    def taken_with(self, position: int) -> int:
        """Return the number that the job has taken once each rank has done its step there."""
        # Position minus rank is the start of the step. The last step of the epoch may be short, and
        # with "wrap" it extends beyond the end.
        return min(position - self.rank + self.world_size, self.total)


@dataclass(frozen=True)
class Steps:
    """Batches of an epoch on this rank."""

    own: int
    by_rank: tuple[int, ...] = ()
    """On rank 0, the number of each rank, if they differ; else empty."""

    def warn_if_uneven(self) -> None:
        """Warn once per process, when an epoch begins in which gradients may be exchanged."""
        # a loop without gradients, as of a validation, waits for no other rank
        if self.by_rank and torch.is_grad_enabled() and not has_warned.is_set():
            has_warned.set()
            logger.warning("%s", uneven_text(self.by_rank))


def even_steps(
    own: int, even_ranks: str | None, world_size: int, share: WorldShare | None = None
) -> Steps:
    """Return the steps of this rank, which has ``own`` batches. All ranks call it.

    Ranks compare their steps here.

    Args:
        own: Batches of this rank's input.
        even_ranks: The loader's keyword.
        world_size: Number of ranks.
        share: This rank's part, if ``own`` are the batches of the whole job.

    Raises:
        ConfigError: A rank would have to repeat an empty input; raised on all of them.
        RankGaveUpError: A rank could not build its loader.
        UsageError: Ranks cannot communicate.
    """
    steps = own if share is None else len(share.positions())
    if world_size == 1:
        return Steps(steps)
    if not dist.is_initialized():
        if even_ranks is None:
            return Steps(steps)
        raise NotReadyError("even_ranks needs torch.distributed to be up")
    counts = gather_from_ranks(steps, dist.get_world_size(), int)
    if share is not None or even_ranks is None:
        is_said_here = dist.get_rank() == 0 and len(set(counts)) > 1
        return Steps(steps, tuple(counts) if is_said_here else ())
    if even_ranks == "drop":
        return Steps(min(counts))
    # Here, after the exchange, so that all ranks raise it.
    if empty := [rank for rank, count in enumerate(counts) if count == 0 < max(counts)]:
        raise ConfigError(
            f"even_ranks='wrap' cannot repeat an empty input, which ranks {_some(empty)} have: "
            f"batches by rank {_some(counts)}; give each rank seeds, or even_ranks='drop'"
        )
    return Steps(max(counts))


def uneven_text(counts: Sequence[int]) -> str:
    """Return the warning that ranks take different numbers of steps."""
    least, most = min(counts), max(counts)
    return (
        f"ranks have different numbers of batches: {most} on rank {counts.index(most)} and {least} "
        f"on rank {counts.index(least)}. Training with DDP fails when the first one ends its "
        "epoch: give the loaders even_ranks='drop' to leave out what is over, or 'wrap' to fill up"
        ". Loops in torch.no_grad() or in torch's Join need neither"
    )


def _some(numbers: list[int]) -> str:
    """Return the first of ``numbers``: a job may have thousands of ranks."""
    return f"{numbers[:20]}" + (f" and {len(numbers) - 20} more" if len(numbers) > 20 else "")


def check_shard(shard: str, *, in_order: bool) -> None:
    """Raise `ConfigError` if a loader cannot split its seeds that way."""
    if shard not in SHARDS:
        raise ConfigError(f'shard must be "machine", "world" or "none", got {shard!r}')
    if shard == "world" and not in_order:
        raise ConfigError(
            'shard="world" with in_order=False: one number says which batches the job has taken, '
            "so they have to be taken in order; leave in_order out"
        )


def check_same_input(
    options: dict[str, str], seed: int, seeds_digest: str, world_size: int
) -> None:
    """Check that all ranks were given the same. All ranks call it, before workers start.

    Args:
        options: Everything that decides the contents of a batch. Two ranks that differ would mix
            batches of two sequences, with some seeds twice and others never.
        seed: Decides the batches of all ranks; it may have been drawn.
        seeds_digest: Digest of the input.
        world_size: Number of ranks.

    Raises:
        ConfigError: They were not.
    """
    same = {**options, "seed": str(seed)}
    seeds = SeedSummary(digest=seeds_digest.encode())
    everyone = gather_from_ranks((same, seeds), world_size, tuple[dict[str, str], SeedSummary])
    check_same_options([one for one, _ in everyone], 'shard="world"')
    check_same_seeds([one for _, one in everyone])


def check_same_start(epoch: int, taken: int, seed: int, world_size: int) -> None:
    """Check that all ranks continue at the same position. All ranks call it, before an epoch.

    ``seed`` is that of the draws: a rank may have loaded a state with another one.

    Raises:
        ConfigError: They do not: batches would be taken twice, or never.
    """
    start = (epoch, taken, seed)
    differ = decide_with_ranks(start, world_size, tuple[int, int, int], _other_starts, str)
    if differ:
        raise ConfigError(
            f'shard="world" needs all ranks at one place, they start at {differ}: load '
            "the state that one rank saved on all of them, and call set_epoch() with one number"
        )


def _other_starts(starts: list[tuple[int, int, int]]) -> str:
    """Describe where ranks start; empty if all start at one position."""
    if len(set(starts)) == 1:
        return ""
    of_one_seed = len({seed for _, _, seed in starts}) == 1
    texts = [
        f"rank {rank}: epoch {epoch} after {taken} batches"
        + ("" if of_one_seed else f", seed {seed}")
        for rank, (epoch, taken, seed) in enumerate(starts)
    ]
    # Thousands of ranks would make a message that nobody reads, sent to each of them.
    return "; ".join(texts)[:2000]
