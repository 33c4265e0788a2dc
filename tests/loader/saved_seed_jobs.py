"""What the ranks of `test_saved_seed.py` do."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import ConfigError, DistNeighborLoader, RemoteDistDataset
from gigl_loader.testing import batch_digest
from tests.loader import world_jobs

GRAPH = world_jobs.GRAPH


def ranks(rank: int, size: int) -> None:
    torch.manual_seed(rank)  # so that each would draw another seed
    for how in (
        {"num_workers": 0, "dataset": GRAPH.dataset()},
        {"num_workers": 1, "dataset": GRAPH.dataset(), "shard": "world"},
        {"exchange": "collective", "dataset": GRAPH.partitions(size)[rank]},
    ):
        goes_on(
            rank,
            lambda how=how, **more: DistNeighborLoader(
                num_neighbors=[3, 2],
                input_nodes=torch.arange(57),
                batch_size=4,
                shuffle=True,
                even_ranks="wrap",
                **how,
                **more,
            ),
        )


def goes_on(rank: int, make: Callable[..., DistNeighborLoader]) -> None:
    """All ranks continue from rank 0's state, in loaders that had drawn another seed."""
    with ExitStack() as stack:
        first, second = stack.enter_context(make()), stack.enter_context(make())
        batches = iter(first)
        next(batches)
        next(batches)
        told: list[Any] = [first.state_dict()]
        dist.broadcast_object_list(told)
        rest, following = list(map(batch_digest, batches)), list(map(batch_digest, first))
        assert second.state_dict()["seed"] != told[0]["seed"]
        second.load_state_dict(told[0])
        assert list(map(batch_digest, second)) == rest
        assert list(map(batch_digest, second)) == following
        if first._shard == "world":
            if rank == 1:
                second.load_state_dict({**second.state_dict(), "seed": 5})
            with pytest.raises(ConfigError, match=r"one place.*rank 1: epoch . .*seed 5"):
                iter(second)


def store(info: Any, rank: int) -> None:
    torch.manual_seed(rank)
    remote = RemoteDistDataset(info, rank)
    seeds = {0: torch.arange(9) + 20 * rank, 1: torch.arange(9) + 20 * rank + 9}

    def make(**how: Any) -> DistNeighborLoader:
        return DistNeighborLoader(
            remote, [3, 2], seeds, batch_size=4, shuffle=True, even_ranks="wrap", **how
        )

    goes_on(rank, make)
    with make() as first, make() as second:
        state = first.state_dict()
        second.load_state_dict(state)
        assert batch_digest(first([5, 1])) == batch_digest(second([5, 1]))
