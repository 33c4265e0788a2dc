"""A small cluster on this machine: the costs of a batch in its processes, for `calibrate`.

::

    parent --pipe-- 2 ranks, with workers --- 2 storage servers, with workers (or none)
    "at work" -->   batches, batches        } CPU seconds of all these processes
    "done"    <--   how large they were     } are counted in between

Processes of one machine would read each other's memory; this is turned off here, so everything uses
the transport, as between machines. They are forked from a process with all imports done: the
measured values do not depend on imports, which took half of the time.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader import DistNeighborLoader
from gigl_loader.commands.capacity.measure import Child, cpu_s_below, say
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.graph_store.client.compute_process import (
    init_compute_process,
    shutdown_compute_process,
)
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.graph_store.server.storage_process import init_storage_process
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo
from gigl_loader.runtime.transport import free_port

RANKS = 2
_WARM_UP, _COUNTED, _AFTER = 8, 24, 6
"""Batches of a rank: until all prefetched ones are under way, those that count, and those after
them, so that as many are prefetched at the end as at the beginning."""
_CACHE_WARM_UP, _CACHE_AFTER = 10, 48
"""Batches before and after with a cache: until it is full, and as many as are drawn ahead."""
_SMALL, _MORE = 256, 4
"""Smaller batches take less time, so this factor increases their number."""
_Ports = dict[str, tuple[int, int]]
"""By graph, of the storage servers that have it."""


@dataclass(frozen=True)
class BatchKind:
    """Batches of one kind."""

    root: str
    """A directory with one partition per rank."""
    fanouts: tuple[int, ...]
    batch_size: int
    cache: float = 0.0
    from_store: bool = False

    @property
    def counted(self) -> int:
        """Batches of a rank that count."""
        return _COUNTED * self._times

    @property
    def warm_up(self) -> int:
        """Batches of a rank before those."""
        return _CACHE_WARM_UP * self._times if self.cache else _WARM_UP

    @property
    def taken(self) -> int:
        """Batches of a rank's epoch."""
        return self.warm_up + self.counted + (_CACHE_AFTER * self._times if self.cache else _AFTER)

    @property
    def _times(self) -> int:
        return _MORE if self.batch_size < _SMALL else 1


@dataclass(frozen=True)
class MeasuredBatch:
    """Size of a batch and its costs: means over all ranks."""

    nodes: float
    edges: float
    hit_rate: float
    training_s: float
    """CPU seconds of ranks and their workers."""
    storage_s: float
    """CPU seconds of storage servers and their workers."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes."""
        return self.training_s + self.storage_s


def measure(kinds: Sequence[BatchKind]) -> list[MeasuredBatch]:
    """Take batches of each kind; return their sizes and costs.

    Args:
        kinds: All from a graph store or none; there, those of one graph are consecutive.

    Raises:
        PeerError: A process ended, or stopped.
    """
    # A port per kind for each graph, chosen here: ranks and servers must know the same ones.
    ports = {kind.root: (free_port(), free_port()) for kind in kinds if kind.from_store}
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory())

        def start(function: Callable[..., None], *args: Any) -> Child:
            return ends.enter_context(Child(_enter, function, *args))

        servers = [start(_serve, number, ports) for number in range(RANKS if ports else 0)]
        ranks = [start(_train, rank, list(kinds), ports, folder) for rank in range(RANKS)]
        return [measure_one(ranks, servers, kind.counted) for kind in kinds]


def measure_one(
    ranks: Sequence[Child],
    servers: Sequence[Child],
    counted: int,
    cpu_s: Callable[[int], float] = cpu_s_below,
) -> MeasuredBatch:
    """Return the costs of batches of one kind; each rank counts ``counted`` of them.

    ``cpu_s`` returns the processor time of a process and those that it started.
    """
    # Processor time is counted while all ranks are stopped: workers are as far ahead then as at the
    # end, so the work under way cancels out.
    _hear(ranks)  # each has had its warm-up
    before = [cpu_s(child.pid) for child in (*ranks, *servers)]
    for rank in ranks:
        rank.go_on()
    reports = _hear(ranks)
    after = [cpu_s(child.pid) for child in (*ranks, *servers)]
    for rank in ranks:
        rank.go_on()
    spent = [now - was for now, was in zip(after, before, strict=True)]
    nodes, edges, hits = (sum(column) / len(reports) for column in zip(*reports, strict=True))
    batches = len(ranks) * counted
    training, storage = sum(spent[: len(ranks)]) / batches, sum(spent[len(ranks) :]) / batches
    return MeasuredBatch(nodes / counted, edges / counted, hits, training, storage)


def _hear(ranks: Sequence[Child]) -> list[Any]:
    return [rank.hear() for rank in ranks]


def _enter(pipe: Connection, function: Callable[..., None], *args: Any) -> None:
    # Over sockets, as between machines; without TLS, since encryption is counted separately.
    os.environ.update(GIGL_LOADER_SAME_MACHINE="0", GIGL_LOADER_INSECURE="1")
    function(pipe, *args)


# --- their work -----------------------------------------------------------------------------------


def _train(pipe: Connection, rank: int, kinds: list[BatchKind], ports: _Ports, folder: str) -> None:
    if ports:
        _train_from_store(pipe, rank, kinds, ports)
        return
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    for kind in kinds:
        dataset = DistDataset.load(kind.root, rank, verify="off")
        _take(pipe, dataset, dataset.node_ids, kind, rank)
        dist.barrier()
    dist.destroy_process_group()


def _info(ports: tuple[int, ...]) -> Any:
    host, (compute_port, rpc_port) = "127.0.0.1", ports
    return GraphStoreInfo(RANKS, RANKS, 1, host, host, host, 0, 0, compute_port, rpc_port, 0)


def _serve(pipe: Connection, number: int, ports: _Ports) -> None:
    """Serve one graph after the other: a process's imports take longer than its batches."""
    for root, where in ports.items():
        dataset = DistDataset.load(root, number, verify="off")
        with init_storage_process(
            number, _info(where), dataset, num_jobs=1, host="127.0.0.1"
        ) as process:
            process.wait()


def _train_from_store(pipe: Connection, rank: int, kinds: list[BatchKind], ports: _Ports) -> None:
    os.environ["RANK"] = str(rank)
    for root, where in ports.items():
        info = _info(where)
        init_compute_process(0, info, "gloo")
        for kind in kinds:
            if kind.root == root:
                remote = RemoteDistDataset(info, 0)
                _take(pipe, remote, remote.fetch_node_ids(rank, RANKS), kind, rank)
        shutdown_compute_process()


def _take(pipe: Connection, dataset: Any, ids: Any, kind: BatchKind, rank: int) -> None:
    """Take batches of a kind; report the sizes of those that count."""
    # Each rank takes its share of the given ids, as all are on one machine. Drawn with replacement:
    # the length of an epoch depends on the measurement, not on the graph.
    wanted = RANKS * kind.taken * kind.batch_size
    generator = torch.Generator().manual_seed(rank)

    def some(given: Any) -> Any:
        drawn = torch.randint(0, max(1, len(given)), (wanted,), generator=generator, device="cpu")
        return given[drawn] if len(given) else given

    seeds = {k: some(of_type) for k, of_type in ids.items()} if isinstance(ids, dict) else some(ids)
    with DistNeighborLoader(
        dataset,
        list(kind.fanouts),
        seeds,
        batch_size=kind.batch_size,
        seed=0,
        num_workers=1,
        remote_cache=f"{kind.cache:.0%}" if kind.cache else None,
    ) as loader:
        batches = iter(loader)
        for _ in range(kind.warm_up):
            next(batches)
        # Hits are of the batches that count; while the cache fills there are fewer.
        say(pipe, "at work")
        loader.stats(reset=True)
        nodes = edges = 0
        for _ in range(kind.counted):
            batch = next(batches)
            nodes, edges = nodes + batch.num_nodes, edges + batch.num_edges
        hits = loader.stats()["hit_rate"] or 0.0
        say(pipe, (nodes, edges, hits))
