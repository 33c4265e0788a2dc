"""What the ranks of `test_world.py` do."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import (
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    RemoteDistDataset,
    replay,
)
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.testing import TinyGraph, batch_digest

GRAPH = TinyGraph.random(60, 400, seed=5)
COMMON = {"batch_size": 4, "seed": 3, "shuffle": True, "shard": "world"}
SIZES, STEPS = (4, 2, 3), (2, 2, None)
"""Ranks of the job, and the steps that each takes (None: to the end of the epoch)."""
EPOCH, REPLAYED = 1, 5


def neighbors(dataset: Any = None, seeds: Any = None, **how: Any) -> DistNeighborLoader:
    data = GRAPH.dataset() if dataset is None else dataset
    nodes = torch.arange(57) if seeds is None else seeds
    return DistNeighborLoader(data, [3, 2], nodes, **{**COMMON, **how})


def anchors(**how: Any) -> DistABLPLoader:
    pairs = torch.tensor([[i, (7 * i + 3) % 60] for i in range(60)]).t()
    dataset = DistDataset.from_pyg(GRAPH.to_pyg(), supervision=(pairs, pairs.roll(1, 1)))
    return DistABLPLoader(dataset, [3, 2], torch.arange(57), **{**COMMON, **how})


def edges(**how: Any) -> DistLinkNeighborLoader:
    index = GRAPH.to_pyg().edge_index[:, :57]
    return DistLinkNeighborLoader(
        GRAPH.dataset(), [3, 2], index, neg_sampling="binary", **{**COMMON, **how}
    )


IN_GROUPS = {"shuffle": "groups", "seed_groups": "node_time", "groups_per_batch": 6}
"""A group for each node: a mix is one and a half batches."""
CASES: dict[str, Callable[..., BaseDistLoader]] = {
    "nodes": neighbors,
    "anchors": partial(anchors, num_workers=0),
    "edges": partial(edges, num_workers=0),
    "collective": neighbors,
    "groups": partial(neighbors, **IN_GROUPS),
}


def undisturbed(name: str, **how: Any) -> list[str]:
    """Return the digests of the epoch, taken by a process that is alone."""
    with CASES[name](num_workers=0, shard="machine", exchange="workers", **how) as loader:
        loader.set_epoch(EPOCH)
        return list(map(batch_digest, loader))


def one_stage(rank: int, size: int, folder: Path, stage: int) -> None:
    """Take this stage's steps of every case, from where the stage before was."""
    if stage == 0:
        refusals(rank, size)
        seeds_that_are_drawn(rank, size)
    for name, make in CASES.items():
        how: dict[str, Any] = {"even_ranks": "wrap"} if name == "edges" else {}
        if name in ("collective", "groups"):  # its partitions are as many as the ranks
            how = {"dataset": GRAPH.partitions(size)[rank], "exchange": "collective"}
        with make(**how) as loader:
            go_on(loader, name, rank, size, folder, stage)


def stage_of_a_store(info: Any, rank: int, folder: Path, stage: int) -> None:
    remote = RemoteDistDataset(info, rank)
    size = info.num_processes_per_compute
    if stage == 0:
        for how in ({"seed": rank}, {"shard": "machine" if rank else "world"}):
            with pytest.raises(ConfigError, match=r"takes the same (seed|shard) on all ranks"):
                neighbors(remote, {0: torch.arange(9), 1: torch.arange(9)}, **how)
    seeds = torch.arange(57).tensor_split(2)
    torch.manual_seed(rank)  # rank 0 draws for all, and draws the same again
    with neighbors(remote, dict(enumerate(seeds)), seed=None) as loader:
        check_one_seed(loader, size)
        go_on(loader, "nodes", rank, size, folder, stage, last=1)


def partition(rank: int, servers: int) -> DistDataset:
    return GRAPH.partitions(servers)[rank]


def go_on(
    loader: BaseDistLoader, name: str, rank: int, size: int, folder: Path, stage: int, last: int = 2
) -> None:
    """Take the steps of a stage, write down which batches those were, and leave a state."""
    saved = folder / f"{name}.state"
    taken = 0
    again = batch_digest(replay(loader, EPOCH, REPLAYED))  # before there was an epoch
    (folder / f"{name}.{stage}.{rank}.replayed").write_text(again)
    loader.set_epoch(EPOCH)
    if stage > 0:
        state = torch.load(saved)
        taken = state["yielded"]
        loader.load_state_dict(state)
    steps = None if stage == last else STEPS[stage]
    found = {}
    batches = iter(loader)
    for step, batch in zip(range(steps or 1000), batches, strict=False):
        number = taken + step * size + rank
        if number < loader._epochs.num_batches:
            found[number] = batch_digest(batch)
    (folder / f"{name}.{stage}.{rank}.json").write_text(json.dumps(found))
    dist.barrier()  # all have read the state
    if rank == size - 1:  # whichever rank
        torch.save(loader.state_dict(), saved)
    with pytest.raises(StopIteration) if steps is None else nullcontext():
        next(batches)


def check_replayed(folder: Path, name: str, expected: str) -> None:
    """Check that every rank of every stage got the same batch."""
    files = list(folder.glob(f"{name}.*.replayed"))
    assert files
    assert {file.read_text() for file in files} == {expected}


def read(folder: Path, name: str) -> dict[int, str]:
    """Return the digests of all batches that were taken, by number; each was taken once."""
    found: dict[int, str] = {}
    for file in folder.glob(f"{name}.*.json"):
        part = {int(number): digest for number, digest in json.loads(file.read_text()).items()}
        assert not found.keys() & part.keys(), "a batch was taken twice"
        found.update(part)
    return dict(sorted(found.items()))


def refusals(rank: int, size: int) -> None:
    """Nothing is started, on any rank."""
    mine = torch.arange(57) + (rank == 1)
    with pytest.raises(
        ConfigError, match=r"same input on all ranks.*than rank 0's came on ranks \[1\]"
    ):
        neighbors(seeds=mine, num_workers=0)
    with pytest.raises(ConfigError, match=r"same input on all ranks"):
        neighbors(GRAPH.partitions(size)[rank], GRAPH.partitions(size)[rank].node_ids)
    with pytest.raises(ConfigError, match=r"same shard on all ranks, got world on ranks \[0\]"):
        neighbors(num_workers=0, shard="machine" if rank else "world")
    with pytest.raises(ConfigError, match=r"same seed on all ranks, got 0 on ranks \[0\]"):
        neighbors(num_workers=0, seed=rank)
    with pytest.raises(ConfigError, match=r"same seed on all ranks"):
        neighbors(num_workers=0, seed=None if rank else 5)
    with pytest.raises(ConfigError, match=r"same batch_size on all ranks, got 4 on ranks"):
        neighbors(num_workers=0, batch_size=4 + rank)
    with pytest.raises(ConfigError, match=r"same expansion on all ranks.*induced.* on ranks"):
        neighbors(num_workers=0, subgraph_type="induced" if rank else "directional")
    with pytest.raises(ConfigError, match=r"same groups_per_batch on all ranks, got 16 on ranks"):
        neighbors(num_workers=0, shuffle="groups", groups_per_batch=16 + rank)
    with pytest.raises(ConfigError, match=r"same seed_groups on all ranks"):
        neighbors(num_workers=0, shuffle="groups", seed_groups="node_time" if rank else None)
    with neighbors(num_workers=0) as loader:
        loader.set_epoch(rank)
        with pytest.raises(ConfigError, match=r"rank 1: epoch 1 after 0 batches.*one rank saved"):
            iter(loader)


def seeds_that_are_drawn(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    with neighbors(num_workers=0, seed=None) as loader:
        check_one_seed(loader, size)


def check_one_seed(loader: BaseDistLoader, size: int) -> None:
    seeds = [0] * size
    dist.all_gather_object(seeds, loader.state_dict()["seed"])
    assert len(set(seeds)) == 1
