"""What the ranks of a job tell each other of their inputs, before any of them starts anything.

Each rank takes part in one exchange for each loader that it builds: with its input, or with why it
gives up. So no rank waits for one that has failed, and all see the same list, and raise alike.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch

from gigl_loader._glt import (
    NodeSamplerInput,
)
from gigl_loader.dataset.holders import check_held
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import EdgeType, is_label_edge_type
from gigl_loader.errors import ConfigError, GiglLoaderError, PeerError
from gigl_loader.loader.deployment import open_inputs
from gigl_loader.loader.runtime import DistributedRuntimeInfo
from gigl_loader.loader.seed_input import local_share
from gigl_loader.memory.tensors import bytes_of
from gigl_loader.ranks import check_same_options, gather_from_ranks
from gigl_loader.seeds import SeedsTold, check_each_once, check_same_seeds

Weighted = dict[EdgeType, bool] | None


@contextmanager
def told_to_others(runtime: DistributedRuntimeInfo) -> Iterator[None]:
    """Tell the other ranks why this one gives up; `colocated_arguments` has them wait for it."""
    try:
        yield
    except GiglLoaderError as error:
        next(_exchanges)
        tell_ranks_of_input(runtime, RankInput(why=str(error)))
        raise


@dataclass(frozen=True, kw_only=True)
class RankInput:
    """The word of one rank on its input, told to the others before any of them starts anything."""

    why: str | None = None
    """Why it gives up; the others then do so too, instead of waiting for it."""
    weighted: Weighted = None
    """From `weighted_types`; None: weights are not asked for."""
    partition: tuple[int, int] | None = None
    """How many partitions there are, and which one it has."""
    options: dict[str, str] = field(default_factory=lambda: {"shard": "machine"})
    """Texts that have to be the same on all ranks, by name; among them ``shard``."""
    seeds: SeedsTold = field(default_factory=SeedsTold)


def share_input(sampler_input: Any, runtime: DistributedRuntimeInfo, told: RankInput) -> Any:
    """Return this process's share of a machine's input; further columns are cut with the seeds.

    The processes of a machine that were given the same input share it. One that was given an input
    of its own, such as the nodes of a partition that no other process of the machine holds, keeps
    it whole: cutting it would lose the rest. With another ``shard`` than ``"machine"`` each keeps
    its input whole.

    Args:
        sampler_input: What this process was given.
        runtime: Where this process stands.
        told: All that is told to the others, but of the seeds.

    Raises:
        ConfigError: What ranks were given does not fit together; the same on all of them.
        PeerError: Another rank gave up, or is gone.
    """
    # A user's `NodeSamplerInput` is GLT's class, which has no such attribute.
    extra = getattr(sampler_input, "extra", None) or {}
    number, shard = next(_exchanges), told.options["shard"]
    if runtime.world_size == 1 or shard == "none":
        seeds = SeedsTold()
    elif shard == "world":
        seeds = SeedsTold(digest=digest([sampler_input.node, *extra.values()]))
    else:
        seeds = SeedsTold.of(
            sampler_input.node, extra, runtime.world_size,
            digest=digest([sampler_input.node, *extra.values()]), opened=_opened(),
        )  # fmt: skip
    everyone = tell_ranks_of_input(runtime, replace(told, seeds=seeds))
    if shard != "machine":
        return sampler_input
    # Ranks of a machine are neighbours in rank order; `from_addresses` sees to that.
    groups = [(rank // runtime.local_world_size, one.digest) for rank, one in enumerate(everyone)]
    check_each_once(everyone, groups)
    # Ranks ascend, so all processes with this input count themselves in the same order: their
    # blocks neither overlap nor leave a gap.
    same = [rank for rank, group in enumerate(groups) if group == groups[runtime.rank]]
    rank, size = same.index(runtime.rank), len(same)
    share = NodeSamplerInput(local_share(sampler_input.node, rank, size), sampler_input.input_type)
    share.extra = {name: local_share(column, rank, size) for name, column in extra.items()}
    share.shared_as = (number, seeds.digest)
    return share


_exchanges = count()
"""Numbers this process's loaders as those of all ranks: each takes part in each exchange."""


def _opened() -> dict[int, bytes]:
    """Return the digests of what the open loaders of this process share with other ranks."""
    return dict(
        one.shared_as for one in open_inputs() if getattr(one, "shared_as", (0, b""))[1]
    )  # fmt: skip


def tell_ranks_of_input(runtime: DistributedRuntimeInfo, told: RankInput) -> list[SeedsTold]:
    """Tell the other ranks this one's input, or why it has none; return all of them, by rank.

    Raises:
        ConfigError: Ranks do not have weights for the same edge types, or no rank has some
            partition, or options or (``shard="world"``) inputs differ.
        PeerError: Another rank gave up, or is gone.
    """
    everyone = gather_from_ranks(told, runtime.world_size, RankInput)
    # A rank's own error is the one to raise there; it says more than that of another rank.
    for rank, one in enumerate(everyone):
        if told.why is None and one.why is not None:
            raise PeerError(f"rank {rank} could not build its loader: {one.why}")
    if told.why is not None:
        return []
    # From here on all ranks look at the same list, so they raise alike and none is left waiting.
    _check_all_held([one.partition for one in everyone])
    _check_same_weights([one.weighted for one in everyone])
    check_same_options([one.options for one in everyone], "a loader")
    if told.options["shard"] == "world":
        check_same_seeds([one.seeds for one in everyone])
    return [one.seeds for one in everyone]


def _check_all_held(everyone: list[tuple[int, int] | None]) -> None:
    """Check that ranks have partitions of one graph, and all of them."""
    counts = {rank: theirs[0] for rank, theirs in enumerate(everyone) if theirs is not None}
    if not counts:
        return
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"the ranks loaded graphs of different numbers of partitions: {counts} by rank; load "
            "the same directory on all of them"
        )
    held = [theirs[1] for theirs in everyone if theirs is not None]
    check_held(next(iter(counts.values())), held, who="process")


def digest(tensors: list[torch.Tensor]) -> bytes:
    """Return a fingerprint of the values of ``tensors``."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        # Without the shape, values that are cut into columns in another way would look the same.
        found.update(str(tuple(tensor.shape)).encode())
        found.update(bytes_of(tensor.contiguous()))
    return found.digest()


def weighted_types(data: DistDataset) -> dict[EdgeType, bool]:
    """Return by walked edge type, of those with edges here, whether it has weights."""
    return {
        name: adjacency.weights is not None
        # A partition without an edge of some type has no weights of it either, and says nothing.
        for name, adjacency in data.view().adjacency.items()
        if adjacency.indices.numel() and not is_label_edge_type(name)
    }


def _check_same_weights(by_rank: list[Weighted]) -> None:
    """Raise `ConfigError` where partitions differ: a type would be drawn in two ways."""
    for edge_type in sorted({name for types in by_rank for name in types or ()}):
        has = {rank: types[edge_type] for rank, types in enumerate(by_rank)
               if types and edge_type in types}  # fmt: skip
        if len(set(has.values())) > 1:
            raise ConfigError(
                f"with_weight=True, but edge type {edge_type} has weights on ranks "
                f"{[rank for rank, there in has.items() if there]} and none on ranks "
                f"{[rank for rank, there in has.items() if not there]}: give all partitions "
                "weights, or none"
            )
