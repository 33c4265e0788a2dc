"""What ranks of `test_device_batches` and `test_partitions` run."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistNeighborLoader,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    partition_graph,
)
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.runtime.ranks.collectives import RankExchange
from gigl_loader.sampler.gpu.device_sampler import DeviceSampler
from gigl_loader.sources.in_process import device_rows, partitioned_graph
from gigl_loader.testing import TinyGraph, batch_digest, check_same_batches
from tests.loader import digest_cases as cases
from tests.support.broken_groups import end_at_once, meet_in_store
from tests.support.sources import wait_for_batches


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


@contextlib.contextmanager
def swaps_noted() -> Iterator[list[torch.dtype]]:
    """Note the types of what is sent from device to device inside the block."""
    swaps: list[torch.dtype] = []
    swap = RankExchange.all_to_all_values

    def noted(self: Any, rows: torch.Tensor, *args: Any) -> torch.Tensor:
        swaps.append(rows.dtype)
        return swap(self, rows, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankExchange, "all_to_all_values", noted)
        yield swaps


def quantised_rows(rank: int, size: int, folder: Path) -> None:
    """Rows travel between devices as they are stored, and batches have float32."""
    rows = torch.linspace(-1, 1, 120).reshape(40, 3)
    if rank == 0:
        data = Data(x=rows, edge_index=cases.edges(2)[:, :200] % 40)
        partition_graph(data, size, folder / "parts", feature_dtype="int8")
    dist.barrier()
    how: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "input_nodes": torch.arange(rank, 40, size),
        "batch_size": 5,
        "seed": 1,
        "exchange": "collective",
    }
    dataset = DistDataset.load(folder / "parts", rank)
    with DistNeighborLoader(dataset, **how) as loader:
        known = [batch_digest(batch) for batch in loader]
    for features in ("device", "host"):
        placed = dataset.to("cpu", kernels="torch", features=features)
        with DistNeighborLoader(placed, num_workers=0, **how) as loader, swaps_noted() as swaps:
            batches = list(loader)
        assert [batch_digest(batch) for batch in batches] == known
        assert batches[0].x.dtype == torch.float32
        assert set(swaps) == {torch.int64, torch.int8}, "ids, and rows that are not widened yet"


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
    """Rank 1 dies between devices: once the ranks have met, in the exchange of neighbours."""
    batches = iter(loader_of(rank, size, torch.arange(cases.NODES).repeat(100)))
    next(batches)
    meet_in_store("before rank 1 dies")
    if rank == 1:
        RankExchange.all_to_all_values = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]  # put in a method's place
    with pytest.raises(PeerError, match=r"sampling together broke: rank 1 \(pid \d+\) has ended"):
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
        (partitioned_graph, "_place", 5, many),
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


def hops_over_all_edges_ask_nobody(rank: int, size: int) -> None:
    """Only rows are exchanged; edges are gathered once, for all loaders of a dataset."""
    dataset = cases.partition(rank, size, typed=False).to("cpu", kernels="torch", edges="all")
    how: dict[str, Any] = {"batch_size": 8, "seed": 1, "num_workers": 0}
    own, of_a_batch = torch.arange(rank, cases.NODES, size), set()
    with pytest.MonkeyPatch.context() as patch, swaps_noted() as swaps:
        patch.setattr(partitioned_graph, "_SLICE", 50)  # edges come in several slices
        for fanouts in ([3], [3, 2, 2]):
            with DistNeighborLoader(dataset, fanouts, own, exchange="collective", **how) as loader:
                assert (len(swaps) > 10) == (fanouts == [3]), "by the first loader alone"
                swaps.clear()
                found = [batch_digest(batch) for batch in loader]
            of_a_batch.add(len(swaps) / len(found))
            swaps.clear()
    assert len(of_a_batch) == 1, "as many with three hops as with one: those of rows"
    with DistNeighborLoader(cases.partition(0, 1, typed=False), [3, 2, 2], own, **how) as whole:
        assert found == [batch_digest(batch) for batch in whole]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceMemory, "free_bytes", lambda memory: 1000 if rank else 10**9)
        texts: dict[Any, str] = {
            "all": r"all edges of a type take .* some rank has 1000",
            "own": r"batches take up to .*, which has 1000",  # on the rank with room, too
        }
        for edges, text in texts.items():
            placed = dataset.to("cpu", kernels="torch", edges=edges)
            with pytest.raises(ConfigError, match=text):
                DistNeighborLoader(placed, [3], own, exchange="collective", **how)
    one_way = dataset.to("cpu", kernels="torch", edges="all" if rank else "own")
    with pytest.raises(ConfigError, match="the same edges= on all"):
        DistNeighborLoader(one_way, [3], own, exchange="collective", **how)


class ModelWithLog(torch.nn.Module):
    """A model whose gradients `DistributedDataParallel` averages, noting each exchange."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self.parallel = DistributedDataParallel(torch.nn.Linear(3, 1))

        # torch wants this very type, which its stubs lack
        def averaged(
            group: Any,
            bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch does not declare it
        ) -> torch.futures.Future[torch.Tensor]:
            note("model's", "all_reduce")
            return allreduce_hook(group, bucket)

        self.parallel.register_comm_hook(None, averaged)

    def step(self, rows: torch.Tensor) -> None:
        self.parallel(rows).sum().backward()


def launches_in_one_order(rank: int, size: int) -> None:
    """All ranks launch exchanges of both communicators, the loader's and the model's, in one order.

    The loader's are launched while the trainer waits for a batch: those of the first batch and of
    all that are ready ahead of it, then those of one more for each batch. Rank 1 trains slowly, so
    that its loader could run ahead as far as it may: as far as that of rank 0.
    """
    log: list[tuple[str, str, str]] = []
    swap, ahead = RankExchange.all_to_all_values, 3

    def note(communicator: str, operation: str) -> None:
        is_loader = "gigl_loader" in threading.current_thread().name
        log.append((communicator, "loader" if is_loader else "training", operation))

    def swapped(self: Any, rows: torch.Tensor, *args: Any) -> torch.Tensor:
        note("loader's", f"all_to_all of {rows.dtype}")
        return swap(self, rows, *args)

    model, nodes = ModelWithLog(note), torch.arange(rank, cases.NODES, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankExchange, "all_to_all_values", swapped)
        concurrency = ahead + 1 + rank  # the least counts
        with loader_of(
            rank, size, nodes, batch_size=4, worker_concurrency=concurrency, timeout=60
        ) as loader:
            opened = list(log)
            for at, batch in enumerate(loader):
                if rank == 1:
                    wait_for_batches(loader, min(ahead, len(loader) - at - 1))
                model.step(batch.x)
            epoch, num_batches = log[len(opened) :], len(loader)
    of_a_batch = len(opened)
    assert of_a_batch >= 2 * 2 + 2, "a batch of two hops, and its rows, before the epoch"
    assert {thread for _, thread, _ in opened} == {"training"}, "no other thread uses it by then"
    threads = {(communicator, thread) for communicator, thread, _ in epoch}
    assert threads == {("loader's", "loader"), ("model's", "training")}
    owners = [communicator for communicator, _, _ in epoch]
    steps = "/".join(owners).split("model's")[:-1]
    launched = list(accumulate(step.count("loader's") for step in steps))
    wanted = [min(step + ahead, num_batches) for step in range(1, num_batches + 1)]
    assert launched == [batches * of_a_batch for batches in wanted], "none in the middle of a step"
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, (opened, epoch))
    assert everyone == [everyone[0]] * size


def training_on_gpus(rank: int, size: int) -> None:
    """The loader's exchanges and the model's, of two communicators of NCCL, stop nothing."""
    own = torch.device("cuda", rank)
    torch.cuda.set_device(own)
    model = DistributedDataParallel(
        torch.nn.Linear(3, 1).to(own), process_group=dist.new_group(backend="nccl")
    )
    nodes = torch.arange(rank, cases.NODES, size)
    how: dict[str, Any] = {"batch_size": 2, "seed": 1}
    with loader_of(0, 1, nodes, **how) as whole:
        known = [batch_digest(batch) for batch in whole]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_rows, "backend_for", lambda device: "nccl")
        placed = cases.partition(rank, size, typed=False).to(own)
        with DistNeighborLoader(
            placed, [3, 2], nodes, num_workers=0, exchange="collective", **how
        ) as loader:
            for epoch in range(20):
                for at, batch in enumerate(loader):
                    model(batch.x).sum().backward()
                    assert epoch or batch_digest(batch) == known[at]
    torch.cuda.synchronize()
