"""A simulated job: storage servers and ranks, running the package's own coordination code.

What runs as it is: joining and leaving (`remote.endpoint`, `jobs`, `cluster`), the rendezvous of
the servers, producers and who leads their creation (`remote.source`, `service`), what servers agree
on before their workers talk (`workers.agreement`), the schedule of batches (`workers.producer`,
`remote.shared`), the channel, the epoch over all ranks (`loader.world`, `loader.epoch`), the saving
of states, and how all of them go on after a server was lost. What is modelled: the network, the
process group's collectives, workers (their time; a batch is its seeds), the model's step.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gigl_loader._glt import NodeSamplerInput, RemoteDistSamplingWorkerOptions, SamplingConfig
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import GiglLoaderError
from gigl_loader.loader import config as loader_config
from gigl_loader.loader import iterator, world as loader_world
from gigl_loader.loader.epoch import LoaderStats, Progress
from gigl_loader.loader.world import WorldShare, check_same_start
from gigl_loader.message import BATCH
from gigl_loader.options import EpochOptions
from gigl_loader.remote import (
    channel, client, cluster, endpoint, leader, patience, rendezvous, service, shared, source,
)  # fmt: skip
from gigl_loader.remote.cluster import Cluster
from gigl_loader.remote.endpoint import Endpoint
from gigl_loader.remote.leader import Leader
from gigl_loader.remote.service import DistServer
from gigl_loader.remote.source import RemoteSource
from gigl_loader.testing._graphs import TinyGraph
from gigl_loader.testing.simulation._group import SimulatedGroup
from gigl_loader.testing.simulation._network import SimulatedNetwork
from gigl_loader.testing.simulation._workers import SimulatedMemory, SimulatedPool, WorkCosts
from gigl_loader.testing.simulation._world import Process, World
from gigl_loader.transport import Security
from gigl_loader.workers import agreement, producer, recovery

_MODULES = (
    agreement, channel, client, cluster, endpoint, iterator, leader, loader_world, patience,
    producer, recovery, rendezvous, service, shared, source,
)  # fmt: skip
"""Whose threads, locks, futures, time, callers and listeners are simulated."""
_JOIN_S = 600.0
_PORT = 5000
_FAR_S = 1e6


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is simulated."""

    ranks: int
    servers: int
    batches: int = 100
    """Per rank and epoch."""
    epochs: int = 1
    seed: int = 0
    ranks_per_machine: int = 8
    workers: int = 4
    """Sampling processes of each server."""
    concurrency: int = 4
    prefetch: int = 4
    latency_s: float = 100e-6
    gbit: float = 25.0
    """Of each machine's link."""
    batch_bytes: int = 2_000_000
    costs: WorkCosts = field(default_factory=WorkCosts)
    timeout_s: float = 120.0
    save_every: int = 0
    """Steps after which ranks save their states; 0: never."""


class _Partition(DistDataset):
    """One part of a graph that is not there: its structure is a few nodes, shared by all."""

    def __init__(self, view: PartitionView) -> None:
        self._one = view

    def view(self) -> PartitionView:
        """Return what workers are given."""
        return self._one

    def weighted_by(self, name: str | None) -> "DistDataset":
        """Return this one."""
        return self


class _Loader:
    """What an `EpochIterator` needs of its loader."""

    _engine = None
    _device_prefetch = 0
    _num_recv = 0

    def __init__(self, remote: RemoteSource) -> None:
        self._source: Any = remote
        self._num_expected = remote.num_batches
        self._stats = LoaderStats()
        self._recorders: list[Callable[[dict[str, Any]], None]] = []

    def _collate_fn(self, msg: Any) -> Any:
        return msg


@dataclass
class Rank:
    """One training process, and what came of it."""

    number: int
    process: Process
    started: float | None = None
    """When its loader was there, in seconds of simulated time."""
    ended: float | None = None
    messages_at_start: int = 0
    bytes_at_start: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, place in the job's sequence) of each batch, as they came."""
    seeds: list[tuple[int, ...]] = field(default_factory=list)
    """Of each batch."""
    state: dict[str, Any] = field(default_factory=dict)
    """The last that was saved."""
    error: BaseException | None = None
    links: int = 0
    """Storage servers that it was connected with."""


class SimulatedJob:
    """Servers and ranks of one job; `run` lets it happen.

    Args:
        size: How many of what.
        keep: Remember seeds and places of every batch.
    """

    def __init__(self, size: Size, *, keep: bool = True) -> None:
        self.size, self.keep = size, keep
        self.world = World(size.seed)
        self.network = SimulatedNetwork(
            self.world, latency_s=size.latency_s, bytes_per_s=size.gbit * 1e9 / 8,
            batch_bytes=size.batch_bytes,
        )  # fmt: skip
        self.group = SimulatedGroup(self.world, self.network, size.ranks)
        self.ranks: list[Rank] = []
        self.servers: dict[int, tuple[Process, Endpoint]] = {}
        self._clusters: dict[Process, Cluster] = {}
        self._security = Security.resolve(insecure=True)
        total = size.ranks * size.batches
        seeds = torch.arange(total, dtype=torch.int64)
        self._inputs = [
            NodeSamplerInput(one, None) for one in seeds.tensor_split(size.servers)
        ]  # fmt: skip
        self._whole = NodeSamplerInput(seeds, None)
        self._whole.extra = {}
        self._whole_digest = hashlib.blake2b(seeds.numpy().data).hexdigest()
        graph = TinyGraph.homogeneous(4, [(0, 1), (1, 2), (2, 3), (3, 0)]).dataset()
        self._view, self._config = graph.view(), _config(graph, size)
        self.saved: dict[str, Any] | None = None
        """The state that rank 0 saved last."""

    # -- running --------------------------------------------------------------------------------

    def run(self, limit_s: float = 36_000.0) -> "SimulatedJob":
        """Let all of it happen.

        Args:
            limit_s: Of simulated time.

        Raises:
            Deadlock: Somebody waits for ever.
            RuntimeError: A thread raised.
        """
        with self._installed():
            for server in range(self.size.servers):
                self.start_server(server)
            for number in range(self.size.ranks):
                self._start_rank(number)
            try:
                self.world.run(lambda: self._num_running == 0, limit_s)
            finally:
                self.world.close()
        return self

    @contextmanager
    def _installed(self) -> Iterator[None]:
        simulated = {"world": self.world, "costs": self.size.costs}
        pool = type("SimulatedPool", (SimulatedPool,), simulated)
        with ExitStack() as stack:
            stack.enter_context(
                self.world.installed(
                    _MODULES,
                    Caller=self.network.caller, Listener=self.network.listener, WorkerPool=pool,
                    ServerMemory=SimulatedMemory, reads_same_memory=lambda: False,
                    address_towards=lambda _: self.world.process.host,
                    gather_from_ranks=self.group.gather_from_ranks,
                    decide_with_ranks=self.group.decide_with_ranks,
                    current_cluster=lambda: self._clusters[self.world.process],
                    # what all ranks have is held once
                    concatenated=lambda _: self._whole, _digest=lambda *_: self._whole_digest,
                )
            )  # fmt: skip
            yield

    # -- servers --------------------------------------------------------------------------------

    def start_server(self, number: int) -> None:
        """Start a storage server, for the first time or again."""
        host = f"10.1.{number // 256}.{number % 256}"
        process = Process(f"storage server {number}", host)
        former = self.servers.get(number)
        if former is not None:
            process.slowness = former[0].slowness
        self.world.spawn(lambda: self._serve(number, process), process, "main")

    def _serve(self, number: int, process: Process) -> None:
        view = replace(self._view, num_partitions=self.size.servers, partition_idx=number)
        server = DistServer(
            _Partition(view), number, self.size.servers, process.host, security=self._security
        )
        master = ("10.1.0.0", _PORT)
        chief = None
        if number > 0:
            chief = Leader(*master, self._security, process.name, 10.0)
        one = Endpoint(
            server, process.host, _PORT if number == 0 else 0, self._security, 1, chief,
            rejoin_s=self.size.timeout_s,
        )  # fmt: skip
        self.servers[number] = (process, one)
        if chief is not None:
            chief.caller.connect(self.world.clock.now + _JOIN_S, lambda why: None)
        one.start()
        one.over.wait()
        one.close()

    # -- ranks ----------------------------------------------------------------------------------

    def _start_rank(self, number: int) -> None:
        machine = number // self.size.ranks_per_machine
        process = Process(f"rank {number}", f"10.2.{machine // 256}.{machine % 256}")
        rank = Rank(number, process)
        self.ranks.append(rank)
        self.group.ranks[process] = number
        self._num_running = len(self.ranks)
        self.world.spawn(lambda: self._train(rank), process, "main")

    def _train(self, rank: Rank) -> None:
        try:
            self._load(rank)
        except GiglLoaderError as error:
            rank.error = error
            self.group.lose(f"{rank.process.name} ended: {error}")
        finally:
            rank.ended = self.world.clock.now
            self._num_running -= 1

    def _load(self, rank: Rank) -> None:
        size = self.size
        joined = Cluster.join(
            "10.1.0.0", _PORT, rank=rank.number, world_size=size.ranks, num_servers=size.servers,
            security=self._security, timeout_s=_JOIN_S,
        )  # fmt: skip
        self._clusters[rank.process] = joined
        try:
            loaded = RemoteSource(
                None, self._inputs, self._config, self._options(), None,
                EpochOptions(seed=size.seed, timeout_s=size.timeout_s), shard="world",
            )  # fmt: skip
            loaded.create(DistServer.create_sampling_producer, gap_s=None, max_concurrent=None)
            rank.started = self.world.clock.now
            rank.messages_at_start = rank.process.messages
            rank.bytes_at_start = rank.process.bytes
            share = WorldShare(
                rank=rank.number, world_size=size.ranks, total=size.ranks * size.batches
            )
            for epoch in range(size.epochs):
                self._epoch(rank, loaded, Progress(epoch, share=share))
            loaded.shutdown()
        finally:
            joined.close()

    def _epoch(self, rank: Rank, loaded: RemoteSource, progress: Progress) -> None:
        check_same_start(progress.epoch, progress.yielded, self.size.ranks)
        places = progress.places_left(0)
        loaded.start_epoch(progress.epoch, places)
        batches = iterator.EpochIterator(_Loader(loaded), places, progress)
        for step, message in enumerate(batches):
            if self.keep:
                rank.places.append((progress.epoch, places[step]))
                rank.seeds.append(tuple(message[BATCH].tolist()))
            self.world.sleep(self.size.costs.step_s * rank.process.slowness)
            if self.size.save_every and (step + 1) % self.size.save_every == 0:
                rank.state = progress.to_dict({"shard": "world", "world_size": self.size.ranks})

    def _options(self) -> Any:
        size = self.size
        options = RemoteDistSamplingWorkerOptions(
            server_rank=list(range(size.servers)), num_workers=size.workers,
            worker_devices=[torch.device("cpu")] * size.workers,
            worker_concurrency=size.concurrency, master_addr="10.1.0.0", master_port=_PORT,
            prefetch_size=min(size.prefetch, size.workers * size.concurrency), worker_key="all",
            buffer_size="1GB",
        )  # fmt: skip
        return options


def _config(graph: DistDataset, size: Size) -> SamplingConfig:
    return loader_config.sampling_config(
        [10, 5], graph.schema, batch_size=1, shuffle=True, drop_last=False, with_weight=False,
        with_edge=False, seed=size.seed,
    )  # fmt: skip


def digest(job: SimulatedJob) -> str:
    """Return the sha256 of all batches of a job: (epoch, place, seeds), in that order."""
    found = sorted(
        (place, seeds)
        for rank in job.ranks
        for place, seeds in zip(rank.places, rank.seeds, strict=True)
    )
    return hashlib.sha256(repr(found).encode()).hexdigest()
