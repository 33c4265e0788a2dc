"""What ranks of ``tests/runtime/ranks`` do; a module, so that spawned processes can import it."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pickle
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistributedContext,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    WorkerDiedError,
    replay,
)
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.runtime.ranks import collectives as ranks
from gigl_loader.runtime.ranks.collectives import (
    broadcast_value,
    decide_with_ranks,
    gather_from_ranks,
)
from gigl_loader.runtime.transport import Security
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE, EvenRanks, SourceOptions
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.sources.workers import producer
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.sources.workers.producer import DistSamplingProducer
from gigl_loader.sources.workers.rendezvous import Rendezvous, meet_ranks
from gigl_loader.testing import (
    Footprint,
    TinyGraph,
    batch_digest,
    batch_tensors,
    check_batch,
    check_same_batches,
    open_files,
    wait_until,
    worker_pid,
)
from tests.support.broken_groups import end_at_once, meet_in_store
from tests.support.glt import NodeSamplerInput
from tests.support.sources import source_of

GRAPH = TinyGraph.random(60, 500)
TYPED = TinyGraph.random(40, 300, heterogeneous=True)
CASES: dict[str, tuple[TinyGraph, EdgeDir, Any, dict[str, Any]]] = {
    "plain": (GRAPH, "in", torch.arange(60), {"num_neighbors": [3, -1]}),
    "typed": (TYPED, "out", ("user", torch.arange(39, -1, -1)), {"num_neighbors": [2, 2]}),
}
AT_ONCE = [3, 0, 3]
COMMON: dict[str, Any] = {
    "batch_size": 4,
    "seed": 5,
    "with_edge": True,
    "shuffle": True,
    "with_weight": True,
}


def _set(owner: object, name: str, value: object) -> None:
    """Set an attribute for the rest of this process, which is a rank of one test."""
    pytest.MonkeyPatch().setattr(owner, name, value)


def share(given, rank: int, size: int):
    """Return the block of ``given`` that a loader on this machine gives to ``rank``."""
    seeds = given[1] if isinstance(given, tuple) else given
    block = seeds.tensor_split(size)[rank]
    return (given[0], block) if isinstance(given, tuple) else block


def _with_a_cache(
    dataset: Any, given: Any, how: dict[str, Any], at_once: str
) -> list[dict[str, Any]]:
    """Return batches that were drawn ahead, of epochs broken off and gone on with.

    ``at_once`` is the digest of `AT_ONCE` without a cache.
    """
    with DistNeighborLoader(
        dataset,
        input_nodes=given,
        num_workers=2,
        worker_concurrency=2,
        remote_cache="30%",
        **COMMON,
        **how,
    ) as loader:
        found = []
        for epoch in (0, 3):
            loader.set_epoch(epoch)
            found += [batch_tensors(batch) for _, batch in zip(range(2), loader, strict=False)]
            assert batch_digest(loader(AT_ONCE)) == at_once, "beside an epoch that is under way"
            loader.load_state_dict(loader.state_dict())
            found += [batch_tensors(batch) for batch in loader]
        again = batch_tensors(replay(loader, 3, 2))
        assert again.keys() == found[-len(loader) + 2].keys()
        for name, value in again.items():
            assert not isinstance(value, torch.Tensor) or torch.equal(
                value, found[-len(loader) + 2][name]
            )
        stats = loader.stats()
        if stats["partitions_over_tcp"]:
            assert 0 < stats["hit_rate"] < 1
            assert stats["network_bytes"]["rows"] > 0
        else:
            assert stats["hit_rate"] is None, "what is read in memory needs no cache"
        return found


def _whole_job_with_a_cache(dataset: Any, given: Any, how: dict[str, Any]) -> None:
    """Compare the batches of ``shard="world"`` with and without a cache."""
    digests = []
    for cache in (None, "30%"):
        with DistNeighborLoader(
            dataset,
            input_nodes=given,
            num_workers=1,
            shard="world",
            remote_cache=cache,
            **COMMON,
            **how,
        ) as loader:
            digests.append([batch_digest(batch) for batch in loader])
    assert digests[0] == digests[1]


def same_batches_as_one_partition(rank: int, size: int, folder: Path, same_memory: str) -> None:
    """Sample over ``size`` partitions; leave the batches for the test to compare.

    Others' partitions are asked for over TCP, as on two machines, or read in the same memory.
    """
    os.environ[SAME_MEMORY_VARIABLE] = same_memory
    asked = size - 1 if same_memory == "0" else 0
    for name, (graph, edge_dir, given, how) in CASES.items():
        dataset = graph.partitions(size, edge_dir=edge_dir)[rank]
        with DistNeighborLoader(
            dataset,
            input_nodes=given,
            num_workers=1 + (name == "plain"),
            worker_concurrency=3,
            process_start_gap_seconds=None if name == "plain" else 0.05,
            **COMMON,
            **how,
        ) as loader:
            found = []
            for epoch in (0, 3):
                loader.set_epoch(epoch)
                found += [batch_tensors(batch) for batch in loader]
                for batch in loader if epoch else ():
                    check(graph, edge_dir, how, batch)
            assert loader.stats()["partitions_over_tcp"] == asked
            torch.save(found, folder / f"{name}{rank}{same_memory}.pt")
            at_once = batch_digest(loader(AT_ONCE))
            found = _with_a_cache(dataset, given, how, at_once)
            if same_memory == "0" and name == "plain":
                _whole_job_with_a_cache(dataset, given, how)
            torch.save(found, folder / f"{name}{rank}{same_memory} cached.pt")
            if rank == 0:
                continue  # leaves at once; its workers still answer the other rank's
            for _ in range(3):
                assert len(list(loader)) == len(loader)


def check(graph: TinyGraph, edge_dir: EdgeDir, how: dict[str, Any], batch) -> None:
    typed: dict[str, Any] = {"input_type": "user"} if graph.is_heterogeneous else {}
    store = batch["user"] if typed else batch
    seeds = store.batch
    assert "train_mask" in store
    assert all("edge_age" in store for store in batch.edge_stores)
    check_batch(batch, graph, seeds=seeds, edge_dir=edge_dir, with_weight=True, **how, **typed)


def even_steps(rank: int, size: int) -> None:
    """9 seeds: 3 batches on rank 0 and 2 on rank 1, but for ``even_ranks``."""
    dataset = GRAPH.dataset()
    cases: tuple[tuple[EvenRanks | None, int], ...] = (("drop", 2), ("wrap", 3), (None, 3 - rank))
    for even, steps in cases:
        with DistNeighborLoader(
            dataset, [2], torch.arange(9), batch_size=2, even_ranks=even, seed=1, num_workers=0
        ) as loader:
            for _ in range(2):
                found = [batch.batch.tolist() for batch in loader]
                assert len(found) == len(loader) == steps
                own = share(torch.arange(9), rank, size).tolist()
                assert sorted({seed for part in found for seed in part}) == own[: 2 * steps]
            counts = [0] * size
            dist.all_gather_object(counts, len(loader))
            assert even is None or len(set(counts)) == 1


def an_input_that_is_empty_on_one_rank(rank: int, size: int) -> None:
    for same in (0, 1):  # before anything is started, on all ranks alike
        with pytest.raises(ConfigError, match=rf"no process loaded partitions \[{1 - same}\] of 2"):
            DistNeighborLoader(GRAPH.partitions(2)[same], [2], torch.arange(4))
    uneven = GRAPH.dataset() if rank else GRAPH.partitions(2)[0]
    with pytest.raises(ConfigError, match=r"different numbers of partitions: \{0: 2, 1: 1"):
        DistNeighborLoader(uneven, [2], torch.arange(4))
    with DistNeighborLoader(GRAPH.partitions(size)[rank], [2], torch.arange(1), seed=1) as loader:
        assert len(loader) == 1 - rank
        assert [batch.batch.tolist() for batch in loader] == [[0]] * (1 - rank)
    with pytest.raises(ConfigError, match=r"even_ranks='wrap'.*ranks \[1\] have.*\[1, 0\]"):
        _one_seed("wrap")


def seeds_of_its_own(rank: int, size: int) -> None:
    """Every seed once, whether the ranks are given the same, or each what its partition owns."""
    dataset = GRAPH.partitions(size)[rank]
    given: Any
    for given in (None, dataset.node_ids, torch.arange(60)):
        with DistNeighborLoader(dataset, [2], given, batch_size=7, seed=1) as loader:
            found = [batch.batch for batch in loader]
        everyone: list = [None] * size
        dist.all_gather_object(everyone, torch.cat(found).tolist())
        assert sorted(seed for part in everyone for seed in part) == list(range(60))


def _once(rank: int, size: int, **how: Any) -> list[int]:
    """Return the seeds of all ranks in an epoch."""
    with DistNeighborLoader(GRAPH.dataset(), [2], batch_size=7, seed=1, **how) as loader:
        found = [seed for batch in loader for seed in batch.batch.tolist()]
    everyone: list = [None] * size
    dist.all_gather_object(everyone, found)
    return sorted(seed for part in everyone for seed in part)


def seeds_that_would_come_twice(rank: int, size: int) -> None:
    """An error on all ranks alike that says what to do, before anything is started."""
    how: dict[str, Any] = {"batch_size": 7, "seed": 1, "num_workers": 0}
    everyone = torch.arange(60)
    for given, words in {
        "another order": (everyone.flip(0) if rank else everyone, "the same 60 seeds, in another"),
        "some of them": (everyone[: 40 + rank], "seeds in common, such as "),
    }.values():
        with pytest.raises(ConfigError, match=words) as caught:
            DistNeighborLoader(GRAPH.dataset(), [2], given, **how)
        assert 'shard="world"' in str(caught.value)
        assert 'shard="none"' in str(caught.value)
        own = given.tolist()
        both: list[Any] = [None] * size
        dist.all_gather_object(both, own)
        found = _once(rank, size, input_nodes=given, num_workers=0, shard="none")
        assert found == sorted(seed for part in both for seed in part), "asked for by name"
    seeds = [everyone[:40], everyone[40:]]
    with (
        DistNeighborLoader(GRAPH.dataset(), [2], seeds[rank], **how),
        pytest.raises(ConfigError, match=r"ranks . and . build their loaders in another order"),
    ):
        DistNeighborLoader(GRAPH.dataset(), [2], seeds[1 - rank], **how)
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # two machines: each finds another address of its own
        patch.setenv("MASTER_ADDR", ADDRESSES[rank])
        with pytest.raises(ConfigError, match="ranks 0 and 1 were given the same 60 seeds: each"):
            DistNeighborLoader(GRAPH.dataset(), [2], everyone, **how)
        found = _once(rank, size, input_nodes=everyone, num_workers=0, shard="world")
        assert found == everyone.tolist()
        index = torch.stack([everyone, everyone.flip(0)])
        with pytest.raises(ConfigError, match=r"such as \(0, 59\), \(1, 58\)"):
            DistLinkNeighborLoader(GRAPH.dataset(), [2], index[:, : 9 + rank], **how)


def options_that_differ(rank: int, size: int) -> None:
    """Values and ranks are named, whatever the shard."""
    half = torch.arange(60).tensor_split(size)[rank]
    for name, values in {
        "batch_size": (4, 5),
        "seed": (1, None),
        "shuffle": (False, True),
        "replace": (False, True),
        "shard": ("machine", "none"),
        "num_neighbors": ([2], [2, 2]),
        "even_ranks": (None, "drop"),
        "with_edge": (None, True),
    }.items():
        for shard in ("machine", "none"):
            how: dict[str, Any] = {
                "num_neighbors": [2],
                "input_nodes": half,
                "num_workers": 0,
                "shard": shard,
                name: values[rank],
            }
            make = partial(DistNeighborLoader, GRAPH.dataset(), **how)
            words = rf"same {name} on all ranks, got .* on ranks \[0\]; .* on ranks \[1\]"
            with pytest.raises(ConfigError, match=words):
                make()


def an_input_that_is_refused_on_one_rank(rank: int, size: int) -> None:
    """Both ranks hear of it at once, and neither waits for the other."""
    given = torch.tensor([5 if rank == 0 else 60])
    with pytest.raises(PeerError if rank == 0 else ConfigError, match="60 is no node id") as caught:
        DistNeighborLoader(GRAPH.dataset(), [2], given)
    assert rank == 1 or "rank 1 could not build its loader" in str(caught.value)
    index = torch.stack([given, given])
    with pytest.raises(PeerError if rank == 0 else ConfigError, match="60 is no node id"):
        DistLinkNeighborLoader(GRAPH.dataset(), [2], index)


def _one_seed(even_ranks: EvenRanks) -> DistNeighborLoader:
    return DistNeighborLoader(GRAPH.dataset(), [2], torch.arange(1), seed=1, even_ranks=even_ranks)


def _spoilt(member: Any) -> Any:
    """Return what a rank says of itself, with an offer of memory that nobody can open."""
    if member.offer is None:
        return member
    mark = member.offer.mark
    mark = dataclasses.replace(mark, region=dataclasses.replace(mark.region, fd=0))
    return dataclasses.replace(member, offer=dataclasses.replace(member.offer, mark=mark))


def partitions_here_and_there(rank: int, size: int) -> None:
    """Rank 1 cannot read (as in another container), rank 2 neither shows nor reads.

    So rank 0 reads one partition in memory and asks for one, in the same batch.
    """
    rank_0_decides(rank, size)
    agree = Rendezvous.agree

    def agree_and_spoil(self: Rendezvous, key: str, *told: Any) -> list[Any]:
        found = agree(self, key, *told)
        return [_spoilt(one) for one in found] if key == "workers" else found

    os.environ[SAME_MEMORY_VARIABLE] = "0" if rank == 2 else "1"
    one_cache_for_a_machine(rank, size)
    if rank == 1:
        _set(Rendezvous, "agree", agree_and_spoil)
    graph, edge_dir, given, how = CASES["typed"]
    found = []
    for dataset in (
        graph.partitions(size, edge_dir=edge_dir)[rank],
        graph.dataset(edge_dir=edge_dir),
    ):
        with DistNeighborLoader(
            dataset, input_nodes=given, num_workers=2, **COMMON, **how
        ) as loader:
            found.append(list(loader))
            asked = loader.stats()["partitions_over_tcp"]
            assert asked == ((1, 2, 2)[rank] if dataset.num_partitions > 1 else 0)
            dist.barrier()  # none is still asked
            start = time.monotonic()
        assert time.monotonic() - start < LINGER_S / 2, "all said goodbye"
    check_same_batches(*found)
    dist.barrier()


def one_cache_for_a_machine(rank: int, size: int) -> None:
    """Ranks 0 and 1 share a machine: their loaders have one cache, and rank 2's another.

    All batches are those of a loader without one, though one waits in the middle of an epoch, and
    the one that made the memory leaves. The memory goes with the last loader.
    """
    graph, edge_dir, given, how = CASES["typed"]
    dataset = graph.partitions(size, edge_dir=edge_dir)[rank]

    def make(**more: Any) -> DistNeighborLoader:
        return DistNeighborLoader(dataset, input_nodes=given, **COMMON, **how, **more)

    with make() as loader:
        expected = [batch_digest(batch) for batch in loader]
    first, second = (make(remote_cache="40%") for _ in range(2))
    assert _caches(first) == _caches(second)
    together = _caches(first)
    assert together[0] == together[1] != together[2]
    waiting = iter(first)
    found = [batch_digest(next(waiting))]
    assert [batch_digest(batch) for batch in second] == expected
    assert found + [batch_digest(batch) for batch in waiting] == expected
    assert first.stats()["hit_rate"] > 0
    first.shutdown()
    third = make(remote_cache="40%")
    assert _caches(third) == together, "the second one keeps it"
    assert [batch_digest(batch) for batch in third] == expected
    other = make(remote_cache="41%")
    assert not set(_caches(other)) & set(together)
    for loader in (second, third):
        assert loader.stats()["hit_rate"] > 0
    for loader in (second, third, other):
        loader.shutdown()
    assert "gigl_loader.rows" not in Path("/proc/self/maps").read_text()
    assert not [name for name in open_files() if "gigl_loader.rows" in name]


def _caches(loader: DistNeighborLoader) -> list[int]:
    """Return the inode of the memory of each rank's cache, as its worker has it mapped."""
    maps = Path(f"/proc/{worker_pid(loader)}/maps")

    def inodes() -> set[int]:
        lines = maps.read_text().splitlines()
        return {int(line.split()[4]) for line in lines if "gigl_loader.rows" in line}

    wait_until(inodes, "the worker has mapped the cache")  # it is ready a little before
    (inode,) = inodes()
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, inode)
    return found


def a_partition_in_the_same_memory_outlives_its_workers(rank: int, size: int) -> None:
    """No worker is asked for what lies in this machine's memory, and none is waited for."""
    with DistNeighborLoader(
        GRAPH.partitions(size)[rank], [3, 2], torch.arange(60), batch_size=4, seed=1
    ) as loader:
        assert len(list(loader)) == len(loader)
        dist.barrier()
        if rank == 1:
            os.kill(worker_pid(loader), signal.SIGKILL)
        dist.barrier()
        if rank == 0:
            for batch in loader:
                check_batch(batch, GRAPH, seeds=batch.batch, num_neighbors=[3, 2])
            start = time.monotonic()
            loader.shutdown()
            assert time.monotonic() - start < LINGER_S / 2
    dist.barrier()


def values_of_ranks(rank: int, size: int) -> None:
    """Typed bytes in place of torch's object collectives, which unpickle what arrives."""
    kind = tuple[bytes, str | None, dict[tuple[str, str, str], bool]]
    for length in (0, 1, 1000):
        told = [(b"x" * r * length, None if r else "é", {("a", "b", "c"): True}) for r in range(2)]
        assert gather_from_ranks(told[rank], size, kind) == told
        assert broadcast_value([rank] * length, size, list[int]) == [0] * length
    assert broadcast_value("" if rank == 0 else "longer", size, str) == ""


def rank_0_decides(rank: int, size: int) -> None:
    """Only rank 0 has the values of all, by rank, as they were; all have what it makes of them."""
    for length in (0, 1, 70_000):
        # of another length on each rank, the longest is the last: data are padded on their way
        told = [(one, b"\0x" * (one * length), None) for one in range(size)]
        came: list[Any] = []

        def decide(found: list[tuple[int, bytes, None]], came: list = came) -> dict[int, str]:
            came.append(found)
            return {one: "y" * len(data) for one, data, _ in found}

        kind = tuple[int, bytes, None]
        found = decide_with_ranks(told[rank], size, kind, decide, dict[int, str])
        assert found == {one: "y" * (2 * one * length) for one in range(size)}
        assert came == ([told] if rank == 0 else [])
    assert decide_with_ranks(rank, 1, int, lambda alone: alone * 2, list[int]) == [rank, rank]


def cases_without_faults(rank: int, size: int, folder: Path) -> None:
    values_of_ranks(rank, size)
    rank_0_decides(rank, size)
    for same_memory in ("0", "1"):
        same_batches_as_one_partition(rank, size, folder, same_memory)
    a_partition_in_the_same_memory_outlives_its_workers(rank, size)
    even_steps(rank, size)
    an_input_that_is_empty_on_one_rank(rank, size)
    seeds_of_its_own(rank, size)
    seeds_that_would_come_twice(rank, size)
    options_that_differ(rank, size)
    an_input_that_is_refused_on_one_rank(rank, size)


@functools.cache
def _big_partition(rank: int, size: int) -> DistDataset:
    return TinyGraph.random(600, 9000).partitions(size)[rank]


def _big_loader(rank: int, size: int, **how) -> DistNeighborLoader:
    """Return a loader whose workers ask each other, as those of two machines do."""
    os.environ[SAME_MEMORY_VARIABLE] = "0"
    return DistNeighborLoader(
        _big_partition(rank, size),
        [5, 5],
        torch.arange(600).repeat(20),
        batch_size=2,
        seed=2,
        **how,
    )


def _note_processes(folder: Path, rank: int) -> None:
    seen = Footprint.below(os.getpid())
    (folder / f"seen{rank}.pkl").write_bytes(pickle.dumps(seen))


def a_peer_worker_dies(rank: int, size: int, folder: Path) -> None:
    """Rank 1's worker is killed, and not replaced: both ranks hear of it, each in its words."""
    with _big_loader(rank, size, max_restarts=0) as loader:
        iterator = iter(loader)
        next(iterator)
        _note_processes(folder, rank)
        dist.barrier()
        if rank == 1:
            pid = worker_pid(loader)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match=f"pid {pid}"):
                list(iterator)
        else:
            with pytest.raises(SamplingError, match=r"rank 1 worker 0.*partition 1") as caught:
                list(iterator)
            assert "see its log" in str(caught.value)
        loader.shutdown(idle_timeout=0.0)


def peer_workers_are_replaced(rank: int, size: int) -> None:
    """Rank 1's worker is killed while its trainer is busy, then rank 0's: the same batches.

    Rank 0 needs answers of the new worker to go on, and rank 1 waits for rank 0: the worker is
    replaced all the same, and rank 0's questions find it. So it is where the worker is stopped:
    rank 1 notices it well before rank 0 gives it up.
    """
    with _big_loader(rank, size, max_restarts=0) as loader:
        expected = [batch_tensors(batch) for batch in itertools.islice(loader, 100)]
    dist.barrier()
    # rank 1 replaces a worker that is stopped for 10 s, and rank 0 waits 32 s for its answers
    with _big_loader(rank, size, timeout=40) as loader:
        iterator = iter(loader)
        found = [batch_tensors(next(iterator)) for _ in range(10)]
        dist.barrier()
        if rank == 1:
            killed = worker_pid(loader)
            os.kill(killed, signal.SIGKILL)
        else:
            found += [batch_tensors(next(iterator)) for _ in range(40)]
            os.kill(worker_pid(loader), signal.SIGKILL)
        dist.barrier()  # rank 1 has not asked for a batch since its worker died
        if rank == 1:
            stopped = worker_pid(loader, former=killed)
            wait_until(lambda: _has_made_up(loader), "the new worker has sent what was lost")
            os.kill(stopped, signal.SIGSTOP)
        else:
            found += [batch_tensors(next(iterator)) for _ in range(40)]
        dist.barrier()  # nor here
        found += [batch_tensors(next(iterator)) for _ in range(100 - len(found))]
        assert loader.stats()["restarts"] == 1 + rank
        start = time.monotonic()
    assert time.monotonic() - start < LINGER_S * 1.5
    _check_same_tensors(found, expected)
    with _big_loader(rank, size, num_workers=2, remote_cache="30%") as loader:
        found = []
        for number, batch in enumerate(itertools.islice(loader, 60)):
            found.append(batch_tensors(batch))
            if number in (20, 40):  # one of the two, then the other
                os.kill(worker_pid(loader, number // 40), signal.SIGKILL)
        assert loader.stats()["restarts"] == 2
        _check_same_tensors(found, expected[:60])
        loader.set_epoch(1)
        loader.stats(reset=True)
        list(itertools.islice(loader, 60))
        assert loader.stats()["hit_rate"] > 0, "the next epoch has the cache again"


def _has_made_up(loader: DistNeighborLoader) -> bool:
    """Return whether what a worker may have died of is here: a batch lost twice is an error."""
    producer = source_of(loader)
    producer.pump(0.0)
    return not producer.recovery.under_way.suspected


def _check_same_tensors(found: list, expected: list) -> None:
    for one, other in zip(found, expected, strict=True):
        assert all(
            torch.equal(value, other[name])
            for name, value in one.items()
            if isinstance(value, torch.Tensor)
        )


def a_peer_worker_is_stopped(rank: int, size: int) -> None:
    """Rank 1's worker is stopped: both ranks name it, not those that wait for it."""
    # rank 1 waits 12 s for its worker, and rank 0's worker 12 of its 15 s for an answer
    with _big_loader(rank, size, max_restarts=0, timeout=12 if rank else 15) as loader:
        iterator = iter(loader)
        next(iterator)
        dist.barrier()
        if rank == 1:
            pid = worker_pid(loader)
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: process_state(pid).startswith("stopped"), "the worker is stopped")
            with pytest.raises(PeerTimeoutError, match=f"pid {pid}, stopped by a signal"):
                list(iterator)
        else:
            with pytest.raises(SamplingError, match=r"rank 1 worker 0.*partition 1.*is stopped"):
                list(iterator)
        dist.barrier()  # rank 1 ends its worker: to rank 0 it would be one that was killed
        loader.shutdown(idle_timeout=0.0)


def a_peer_rank_dies(rank: int, size: int, folder: Path) -> None:
    """Rank 1 is killed with all that it has; rank 0's loader names it."""
    loader = _big_loader(rank, size)
    iterator = iter(loader)
    next(iterator)
    _note_processes(folder, rank)
    meet_in_store("before rank 1 dies")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(SamplingError, match=r"rank 1 worker 0.*partition 1"):
        list(iterator)
    loader.shutdown(idle_timeout=0.0)
    with pytest.raises(PeerError, match="the process group broke"):
        _big_loader(rank, size)
    end_at_once()


def a_rank_is_cut_off(rank: int, size: int, folder: Path) -> None:
    """All of rank 1 is silent, as behind a cut link: the next loader does not wait for the group.

    Its process and workers are stopped, which rank 0 cannot tell from a link that is cut.
    """
    loader = _big_loader(rank, size, timeout=10)  # a worker waits 8 s for an answer
    iterator = iter(loader)
    next(iterator)
    _note_processes(folder, rank)
    own = [*Footprint.below(os.getpid()).pids, os.getpid()]  # who notices the others' end is last
    cut_off = gather_from_ranks(own, size, list[int])[1]
    if rank == 1:
        for pid in own:
            os.kill(pid, signal.SIGSTOP)
    with pytest.raises(SamplingError, match=r"rank 1 worker 0.*did not answer"):
        list(iterator)
    loader.shutdown(idle_timeout=0.0)
    ranks.SUSPECTED_S = 1.0  # so that the test is short
    started = time.monotonic()
    with pytest.raises(PeerTimeoutError, match=r"within 1 s.*not heard: rank 1 worker 0"):
        _big_loader(rank, size)
    assert time.monotonic() - started < 30, "the group's own timeout is 400 s"
    for pid in cut_off:  # what is stopped does not notice that its parent is gone
        with contextlib.suppress(ProcessLookupError):  # the kernel ended it with its supervisor
            os.kill(pid, signal.SIGKILL)
    end_at_once()


def a_rank_that_cannot_start(rank: int, size: int) -> None:
    """The worker of rank 1 raises when it starts: rank 0, which waits for it, says so."""
    options = {"worker_init_fn": raise_at_start} if rank == 1 else {}
    with pytest.raises(PeerError, match=r"PermissionError: not on this machine"):
        _big_loader(rank, size, **options)


def raise_at_start(number: int) -> None:
    raise PermissionError("not on this machine")


ADDRESSES = "127.0.0.1", "::1"
"""Where the workers of each rank listen: two addresses of any machine."""


def _at_an_address_of_its_own(rank: int, size: int) -> dict[str, Any]:
    """Return keywords by which a rank's workers listen on one of `ADDRESSES`."""
    context = DistributedContext(ADDRESSES[rank], global_rank=0, global_world_size=1)
    return {"context": context, "local_process_rank": rank, "local_process_world_size": size}


def ranks_of_two_machines(rank: int, size: int, folder: Path) -> None:
    """Each rank has an address of its own: refused while open to strangers; then token and TLS."""
    here = _at_an_address_of_its_own(rank, size)
    set_security()
    with pytest.raises(ConfigError, match=r"gigl-loader certs.*gigl-loader token.*INSECURE") as at:
        _big_loader(rank, size, **here)
    assert ADDRESSES[rank] in str(at.value)
    assert not Footprint.below(os.getpid()).pids, "nothing was started"
    dist.barrier()
    set_security(token="too short")
    with pytest.raises(ConfigError, match="can be guessed"):
        _big_loader(rank, size, **here)
    dist.barrier()
    graph, edge_dir, given, how = CASES["plain"]
    for name, security in {
        "insecure": {"insecure": "1"},
        "token": {"token": "k9Jr4nQ2-sTgV7wXzB5cYd"},
        "certificates": {"tls_dir": str(folder / "tls")},
    }.items():
        set_security(**security)
        with DistNeighborLoader(
            graph.partitions(size, edge_dir=edge_dir)[rank],
            input_nodes=given,
            num_workers=1,
            process_start_gap_seconds=None,
            **here,
            **COMMON,
            **how,
        ) as loader:
            found = [batch_tensors(batch) for batch in loader]
            assert loader.stats()["partitions_over_tcp"] == size - 1
        torch.save(found, folder / f"{name}{rank}.pt")
    set_security()


def set_security(**settings: str) -> None:
    """Set the environment's security to these and nothing else."""
    names = {
        "token": "GIGL_LOADER_CLUSTER_TOKEN",
        "tls_dir": "GIGL_LOADER_TLS_DIR",
        "insecure": "GIGL_LOADER_INSECURE",
    }
    for setting, name in names.items():
        os.environ.pop(name, None)
        if setting in settings:
            os.environ[name] = settings[setting]


def a_bind_that_fails(rank: int, size: int) -> None:
    """No interface of this machine has the address that workers are to answer on."""
    _set(producer, "address_towards", lambda host: f"192.0.2.{rank + 1}")
    own = _producer(GRAPH.partitions(size)[rank])
    with pytest.raises(PeerError, match=r"192\.0\.2\."):
        own.init(meet_ranks(60.0), Security.resolve("", "", True))
    own.shutdown()


def _producer(dataset: Any) -> DistSamplingProducer:
    rank, size = dist.get_rank(), dist.get_world_size()
    BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=rank,
        local_world_size=size,
        node_rank=0,
        node_world_size=1,
        master_ip_address="127.0.0.1",
        device=torch.device("cpu"),
        num_cpu_threads=None,
    )
    options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=size,
        num_workers=1,
        worker_concurrency=1,
        master_ip_address="127.0.0.1",
        master_port=1,
        channel_size="1MB",
        pin_memory=False,
    )
    config = BaseDistLoader.create_sampling_config([2], dataset.schema, 4, seed=1)
    return DistSamplingProducer(
        dataset,
        NodeSamplerInput(torch.arange(8)),
        config,
        options,
        BaseDistLoader.create_colocated_channel(options),
        source_options=SourceOptions(seed=1, timeout_s=60.0),
    )


def faults_that_leave_the_ranks_alive(rank: int, size: int, folder: Path) -> None:
    a_peer_worker_dies(rank, size, folder)
    dist.barrier()
    peer_workers_are_replaced(rank, size)
    dist.barrier()
    a_peer_worker_is_stopped(rank, size)
    dist.barrier()
    a_rank_that_cannot_start(rank, size)
    dist.barrier()
    a_bind_that_fails(rank, size)
