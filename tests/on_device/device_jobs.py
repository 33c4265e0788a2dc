"""What ranks of `test_device_batches` and `test_partitions` run."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import digest_cases as cases
import pytest
import torch
import torch.distributed as dist
from support.broken_groups import end_at_once, meet_in_store

from gigl_loader import ConfigError, DistNeighborLoader, PeerError, PeerTimeoutError, SamplingError
from gigl_loader.loader import partitioned_graph
from gigl_loader.loader.partitioned_graph import PartitionedGraph
from gigl_loader.on_device.sampler import DeviceSampler
from gigl_loader.testing import TinyGraph, batch_digest, check_same_batches


def of_a_rank(rank: int, size: int, folder: Path, names: list[str]) -> None:
    """Each rank has the whole graph on a device of its own, and takes its batches of the job."""
    for name in names:
        case = cases.CASES[name]
        dataset = case.partition(0, 1).to("cpu", kernels="torch")
        with case.make(dataset, case.seeds(), num_workers=0) as loader:
            cases.write(folder, name, rank, cases.digests(loader, rank, size))


def of_partitions(
    rank: int, size: int, folder: Path, names: list[str], how: dict[str, Any]
) -> None:
    """Each rank has a partition on a device of its own."""
    for name in names:
        case = cases.CASES[name]
        dataset = case.partition(rank, size).to("cpu", **how)
        with case.make(dataset, case.seeds(), num_workers=0, exchange="collective") as loader:
            cases.write(folder, name, rank, cases.digests(loader, rank, size))


def loader_of(rank: int, size: int, nodes: Any = None, **how: Any) -> DistNeighborLoader:
    """Return a loader of a partition on a device; ``size`` 1: of the whole graph on the CPU."""
    dataset = cases.partition(rank, size, typed=False)
    if size > 1:
        dataset, how = dataset.to("cpu", kernels="torch"), {**how, "exchange": "collective"}
    nodes = torch.arange(cases.NODES) if nodes is None else nodes
    given = {"batch_size": 8, "seed": 1, "num_workers": 0, **how}
    return DistNeighborLoader(dataset, [3, 2], nodes, **given)


def ranks_with_fewer_batches(rank: int, size: int) -> None:
    """Ranks with few batches, or none, take part until all are done; any epoch may be left."""
    for nodes in (torch.arange(9), torch.arange(1)):
        with (
            loader_of(0, 1, nodes, batch_size=2) as whole,
            loader_of(rank, size, nodes, batch_size=2) as parts,
        ):
            for _ in range(2):
                check_same_batches(whole, parts)
            for _ in parts:  # one rank leaves after its first batch
                if rank == 0:
                    break
            whole.set_epoch(3)
            parts.set_epoch(3)
            check_same_batches(whole, parts)


def resumed_and_left_by_all(rank: int, size: int) -> None:
    with loader_of(0, 1) as whole, loader_of(rank, size, pad=True) as parts:
        known = [batch_digest(batch) for batch in whole]
        iterator = iter(parts)
        found = [batch_digest(next(iterator)) for _ in range(3)]
        state = parts.state_dict()
    with loader_of(rank, size, worker_concurrency=4) as parts:
        next(iter(parts))
        parts.load_state_dict(state)
        found += [batch_digest(batch) for batch in parts]
        assert found[3:] == known[3:]
        with pytest.raises(Exception, match="would need the other ranks"):
            parts(torch.arange(3))
    # far more batches than any would sample: ranks that leave together wait for nobody
    with loader_of(rank, size, torch.arange(cases.NODES).repeat(2000)) as parts:
        for _ in range(3):
            next(iter(parts))


def degrees_that_differ(rank: int, size: int) -> None:
    """One rank has a node of many neighbours, and all neighbours are taken: all make room."""
    edges = [(source, 0) for source in range(1, 60)] + [(0, node) for node in range(1, 20)]
    graph = TinyGraph.homogeneous(60, edges)
    nodes = torch.arange(30)
    own = nodes[rank::size]
    for fanouts in ([-1, -1], [4, -1]):
        parts = graph.partitions(size)[rank].to("cpu", kernels="torch")
        how: dict[str, Any] = {"batch_size": 4, "seed": 1, "num_workers": 0}
        with (
            DistNeighborLoader(graph.dataset(), fanouts, own, **how) as whole,
            DistNeighborLoader(parts, fanouts, own, exchange="collective", **how) as loader,
        ):
            check_same_batches(whole, loader)


def a_rank_dies(rank: int, size: int) -> None:
    batches = iter(loader_of(rank, size, torch.arange(cases.NODES).repeat(100)))
    next(batches)
    meet_in_store("before rank 1 dies")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerError, match="a rank has ended"):
        list(batches)
    end_at_once()


def a_rank_does_not_come(rank: int, size: int) -> None:
    """Rank 1 takes no batches: the other one waits for its timeout, and no longer."""
    batches = iter(loader_of(rank, size, torch.arange(cases.NODES).repeat(100), timeout=5))
    next(batches)
    if rank == 0:
        with pytest.raises(PeerTimeoutError, match=r"(for|in) 5 s|timed out"):
            list(batches)
    meet_in_store("rank 0 has waited")
    end_at_once()


def a_rank_raises(rank: int, size: int) -> None:
    """Whatever raises on rank 1, and whether it has a batch: all know, and can go on after it."""
    many, few = torch.arange(cases.NODES), torch.arange(16)
    steps: list[tuple[Any, str, int, Any]] = [
        (DeviceSampler, "place", 3, many),
        (partitioned_graph, "drawn_from", 10, many),  # while it responds to others
        (partitioned_graph, "drawn_from", 10, few if rank == 1 else many),  # without a batch
        (PartitionedGraph, "neighbors", 5, many),
        (partitioned_graph, "rows_of", 5, many),
        (DeviceSampler, "_add_edges", 3, many),
    ]
    for owner, name, first, nodes in steps:
        with loader_of(rank, size, nodes, shard="none", timeout=60) as loader:
            with pytest.MonkeyPatch.context() as patch:
                if rank == 1:
                    patch.setattr(owner, name, _failing(getattr(owner, name), first))
                kind, text = (SamplingError, "on purpose") if rank == 1 else (PeerError, "rank 1 ")
                # a rank that has all its batches may be done before it fails
                expected = (
                    contextlib.suppress(SamplingError)
                    if nodes is few
                    else pytest.raises(kind, match=text)
                )
                with expected:
                    list(loader)
                dist.barrier()  # until both have failed
            assert len(list(loader)) == len(loader), name


def _failing(job: Callable[..., Any], first: int) -> Callable[..., Any]:
    """Return ``job``, which raises from its call number ``first`` on."""
    calls = iter(range(10**9))

    def failing(*args: Any, **keywords: Any) -> Any:
        if next(calls) >= first:
            raise ZeroDivisionError("on purpose")
        return job(*args, **keywords)

    return failing


def ranks_that_differ(rank: int, size: int) -> None:
    with loader_of(rank, size) as loader:
        loader.set_epoch(rank)
        with pytest.raises(ConfigError, match=r"they start \[0, 1\]"):
            list(loader)
