"""The distribution of seeds over the ranks of a job: each comes once, or it is an error.

Ranks cannot exchange all their seeds, which may be billions. Each sends a digest of them, and some
of them: those with the lowest hashes. Two ranks with common seeds choose the same ones, so a few
thousand suffice; and as the seeds themselves are compared, not their hashes, no false match is
possible.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gigl_loader.batch.message import is_identity
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.options import Shard

SHARDS = get_args(Shard)
_MOST_SENT, _LEAST_SENT, _SENT_BY_ALL = 4096, 64, 2**15
"""Number of seeds that a rank sends: the last, over all ranks, within the first two."""
_BLOCK = 2**20
"""Seeds to hash at once, which limits the memory for hashes."""


@dataclass(frozen=True)
class SeedSummary:
    """A summary of one rank's seeds, which it sends to the other ranks."""

    digest: bytes = b""
    """Hash of all seeds in their order, with their columns; empty: not needed."""
    count: int = 0
    width: int = 1
    """Numbers per seed: an edge has two, and a time is one more."""
    some: bytes = b""
    """int64 ``[n, width]``, each seed once: those of lowest hash; of few seeds all."""
    opened: dict[int, bytes] = field(default_factory=dict)
    """Digests of the inputs of this rank's open loaders, in the order of creation."""

    @classmethod
    def of(
        cls, seeds: Tensor, extra: Mapping[str, Tensor], world_size: int, **more: Any
    ) -> "SeedSummary":
        """Return the summary of ``seeds``.

        Args:
            seeds: ``[n]`` ids.
            extra: Their other columns, by name. Labels by anchor, ``[n, most]``, do not count: an
                anchor is one seed with any labels.
            world_size: Ranks of the job.
            **more: Other fields.
        """
        columns = [seeds, *(extra[name] for name in sorted(extra) if is_identity(name))]
        numbers = [_as_integers(column) for column in columns if column.dim() == 1]
        most = min(_MOST_SENT, max(_LEAST_SENT, _SENT_BY_ALL // world_size))
        some = _lowest(numbers, most)
        return cls(count=len(seeds), width=len(numbers), some=some.tobytes(), **more)

    def rows(self) -> NDArray[np.int64]:
        """Return the seeds of the summary, ``[n, width]``."""
        return np.frombuffer(self.some, np.int64).reshape(-1, self.width)


def check_each_once(everyone: Sequence[SeedSummary], groups: Sequence[Hashable]) -> None:
    """Check that no seed comes twice in an epoch of the job.

    If two ranks have a share ``p`` of the larger input in common, it is missed with a probability
    of ``(1 - p) ** n``, for the ``n`` seeds that each sends: 4,096 in jobs of up to 8 ranks, 32,768
    over all ranks in larger ones, 64 at least. There are no false alarms.

    Args:
        everyone: The summary of each rank.
        groups: By rank; the ranks of one group share one and the same input.

    Raises:
        ConfigError: Some come twice; the message names them and a remedy. The same on all ranks.
    """
    _check_order(everyone, groups)
    firsts = {group: rank for rank, group in reversed(list(enumerate(groups)))}
    for width in {everyone[rank].width for rank in firsts.values()}:
        by_rank = {
            rank: everyone[rank].rows()
            for rank in sorted(firsts.values())
            if everyone[rank].width == width
        }
        rows = np.concatenate(list(by_rank.values()))
        ranks = np.repeat(list(by_rank), [len(of_rank) for of_rank in by_rank.values()])
        order = np.lexsort((ranks, *rows.T[::-1]))
        rows, ranks = rows[order], ranks[order]
        # Within a rank each seed is there once: equal neighbours come from two ranks.
        twice = np.flatnonzero((rows[1:] == rows[:-1]).all(axis=1))
        if not len(twice):
            continue
        rank, other = int(ranks[twice[0]]), int(ranks[twice[0] + 1])
        common = twice[(ranks[twice] == rank) & (ranks[twice + 1] == other)]
        raise ConfigError(_in_common(everyone, rank, other, rows[common].tolist()))


def check_same_seeds(everyone: Sequence[SeedSummary]) -> None:
    """Check that all ranks were given the same seeds, as ``shard="world"`` requires.

    Raises:
        ConfigError: They differ; names the ranks.
    """
    others = [rank for rank, of_rank in enumerate(everyone) if of_rank.digest != everyone[0].digest]
    if others:
        raise ConfigError(
            'shard="world" splits batches over all ranks and takes the same input on all ranks: '
            f"the seeds of the whole job, in one order (the default is those of one partition); "
            f"other seeds than rank 0's came on ranks {others}"[:2000]
        )


def _check_order(everyone: Sequence[SeedSummary], groups: Sequence[Hashable]) -> None:
    """Raise `ConfigError` if a rank's input is an earlier input of another rank."""
    # Per-partition seeds also give each rank its own input: only the next loader shows that ranks
    # took turns.
    now: dict[bytes, int] = {}
    for rank, summary in enumerate(everyone):
        if summary.count and summary.digest:
            now.setdefault(summary.digest, rank)
    for other, summary in enumerate(everyone):
        for number, digest in summary.opened.items():
            if digest not in now or groups[now[digest]] == groups[other]:
                continue
            rank = now[digest]
            if everyone[rank].opened.get(number, digest) != digest:
                raise ConfigError(
                    f"ranks {rank} and {other} build their loaders in another order: rank {rank} "
                    f"is given now the seeds that rank {other} was given for an earlier loader, "
                    "which is still open. Ranks share seeds loader by loader, so build them in "
                    'the same order on all ranks; shard="none" lets each rank use all its '
                    "seeds"
                )


def _in_common(everyone: Sequence[SeedSummary], rank: int, other: int, common: list[Any]) -> str:
    first, second = everyone[rank], everyone[other]
    some = [row[0] if len(row) == 1 else tuple(row) for row in common[:3]]
    what = f"seeds in common, such as {', '.join(map(str, some))}"
    if first.count == second.count and first.some == second.some:
        what = f"the same {first.count} seeds"
        if first.digest and first.digest != second.digest:
            what += ", in another order or with other columns"
    return (
        f"ranks {rank} and {other} were given {what}: each rank would use them, so they would come "
        'twice in an epoch. Give all ranks the same seeds in one order, with shard="world"; or '
        "each rank seeds of its own: those of its partition, as dataset.train_node_ids are, or "
        "from a graph store fetch_node_ids(rank, world_size) and fetch_ablp_input(split, rank, "
        'world_size), with the figures of torch.distributed; or say shard="none": each rank '
        "uses all the seeds that it is given"
    )


def _as_integers(column: Tensor) -> NDArray[np.int64]:
    """Return a column as int64 numbers; of floats, their bits."""
    if column.is_floating_point():
        return column.double().cpu().numpy().view(np.int64)
    return cast("NDArray[np.int64]", column.long().cpu().numpy())


def _lowest(columns: Sequence[NDArray[np.int64]], most: int) -> NDArray[np.int64]:
    """Return about ``most`` rows of lowest hash, each once, sorted; or all, if there are fewer."""
    total = len(columns[0])
    # A bound and not a number of rows: also with repeats, or with more seeds, a rank keeps the same
    # ones below the bounds of both.
    bound = np.uint64(2**64 - 1 if total <= most else 2**64 * most // total)
    kept = []
    for start in range(0, total, _BLOCK):
        rows = np.stack([column[start : start + _BLOCK] for column in columns], axis=1)
        kept.append(rows[_hashes(rows) <= bound])
    kept_rows = np.concatenate(kept) if kept else np.empty((0, len(columns)), np.int64)
    return np.unique(kept_rows, axis=0)


def _hashes(rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a hash of each row.

    Source:
        The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), over one column after the other.
    """
    hashes = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        hashes ^= column.astype(np.uint64)
        hashes += np.uint64(0x9E3779B97F4A7C15)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes ^= hashes >> np.uint64(31)
    return hashes
