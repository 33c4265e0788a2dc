"""A simulated job: storage servers and ranks, running the package's own coordination code.

What runs as it is: joining and leaving (`remote.storage_process`, `jobs`, `storage_cluster`), the
rendezvous of the servers, producers and who leads their creation (`remote_source`, `service`), what
servers agree on before their workers talk (`sources.workers.agreement`), the schedule of batches
(`sources.workers.producer` and what it is made of, `shared_producer`), the channel, the epoch over
all ranks (`loader.seeds.world`, `loader.epochs`), the saving of states, and how all of them
go on after a server was lost; where a rank keeps rows, drawing ahead, what is kept by next use, and
filling (`graph_store.client.filling_channel`, `sampler.row_cache`). What is modelled: the network,
the answers with rows, the process group's collectives, workers (their time; a batch is its seeds),
the model's step.
"""

import hashlib
import math
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from gigl_loader.batch.message import BATCH, Attempt
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import DatasetSchema
from gigl_loader.errors import GiglLoaderError
from gigl_loader.graph_store.client import (
    batch_fetcher,
    compute_process,
    connection,
    filling_channel,
    producers,
    receiving_channel,
    remote_source,
    row_requests,
    server_outages,
    storage_cluster,
)
from gigl_loader.graph_store.client.remote_source import RemoteSource
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server import (
    batch_sender,
    leader,
    presence,
    producer_table,
    rendezvous_host,
    service,
    shared_producer,
    storage_process,
)
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.graph_store.wire import membership
from gigl_loader.graph_store.wire.signatures import DistServer
from gigl_loader.loader.epochs import iterator
from gigl_loader.loader.epochs.epoch import EpochProgress, LoaderStats
from gigl_loader.loader.options import glt_config
from gigl_loader.loader.seeds import world as loader_world
from gigl_loader.loader.seeds.world import WorldShare, check_same_start
from gigl_loader.runtime.transport import Security
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sampler.row_cache import tables
from gigl_loader.sources import sampled_input, staggered_start
from gigl_loader.sources.staggered_start import WorkerTurns
from gigl_loader.sources.workers import agreement, producer, recovery, tasks
from gigl_loader.testing import TinyGraph
from tests.support.glt import NodeSamplerInput, RemoteDistSamplingWorkerOptions, SamplingConfig
from tests.support.simulation.group import SimulatedGroup
from tests.support.simulation.memory import held_by, own_bytes
from tests.support.simulation.network import SimulatedNetwork
from tests.support.simulation.rows import TABLES, SimulatedRows, are_right
from tests.support.simulation.size import Held, Size
from tests.support.simulation.workers import SimulatedMemory, SimulatedPool
from tests.support.simulation.world import Process, World

_MODULES = (
    server_outages,
    agreement,
    batch_fetcher,
    batch_sender,
    compute_process,
    connection,
    filling_channel,
    iterator,
    leader,
    loader_world,
    membership,
    presence,
    producer,
    producer_table,
    producers,
    receiving_channel,
    recovery,
    row_requests,
    sampled_input,
    rendezvous_host,
    service,
    shared_producer,
    remote_source,
    staggered_start,
    storage_cluster,
    storage_process,
    tables,
    tasks,
)
"""Whose threads, locks, futures, time, callers and listeners are simulated."""
# of simulated time: longer than the longest outage that faults draw, so that joining is never what
# fails
_JOIN_S = 600.0
_PORT = 5000
# a job that fails again and again ends, and its error is seen
_MOST_RESTARTS = 10
_AGENT_S = 30.0
"""How long the others of a job may go on after a rank has ended, before they are ended, too. Those
that are told by a collective or a server end by themselves before it."""


class Fault(Protocol):
    """Something that goes wrong."""

    @property
    def at_s(self) -> float:
        """When, in seconds of simulated time."""
        ...

    def happen(self, job: "SimulatedJob") -> None:
        """Let it happen."""
        ...


class _Partition(DistDataset):
    """One part of a graph that is not there: its structure is a few nodes, shared by all."""

    def __init__(self, view: PartitionView[Any], schema: DatasetSchema) -> None:
        # not DistDataset's own constructor: a thousand servers share one view
        self._one, self.num_partitions, self._schema = view, view.num_partitions, schema
        self._mapped = None

    def view(self) -> PartitionView[Any]:
        """Return what workers are given."""
        return self._one

    def weighted_by(self, name: str | None) -> "DistDataset":
        """Return this one."""
        return self


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
    positions: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, position in the job's sequence) of each batch, as they came."""
    seeds: list[tuple[int, ...]] = field(default_factory=list)
    """Of each batch."""
    state: dict[str, Any] = field(default_factory=dict)
    """The last that was saved."""
    error: BaseException | None = None
    lost: bool = False
    """Whether a fault killed it."""
    wrong_rows: int = 0
    """Batches that came with rows other than theirs."""
    hit_rate: float = 0.0
    """Share of the rows that were kept."""
    connections: int = 0
    """Storage servers that it was connected with."""


class SimulatedJob:
    """Servers and ranks of one job; `run` lets it happen.

    Args:
        size: How many of what.
        keep: Remember seeds and positions of every batch.
    """

    def __init__(self, size: Size, *, keep: bool = True) -> None:
        self.size, self.keep = size, keep
        self.world = World(size.seed)
        self.network = SimulatedNetwork(
            self.world,
            latency_s=size.latency_s,
            bytes_per_s=size.gbit * 1e9 / 8,
            batch_bytes=size.batch_bytes,
        )
        self.group = SimulatedGroup(self.world, self.network, size.ranks)
        self.ranks: list[Rank] = []
        self.servers: dict[int, tuple[Process, Endpoint]] = {}
        self._clusters: dict[Process, Cluster] = {}
        self._security = Security.resolve(insecure=True)
        total = size.ranks * size.batches
        # a seed is its number, and a batch has one: what came is told by it
        seeds = torch.arange(total, dtype=torch.int64)
        self._inputs = [NodeSamplerInput(one, None) for one in seeds.tensor_split(size.servers)]
        self._whole = NodeSamplerInput(seeds, None)
        self._whole.extra = {}
        # worked out once: each rank would do it for the same seeds
        self._whole_digest = hashlib.blake2b(seeds.numpy().data).hexdigest()
        # of its nodes there are as many as seeds; no edge is read: workers do not sample
        graph = TinyGraph.homogeneous(4, [(0, 1), (1, 2), (2, 3), (3, 0)]).dataset()
        self._schema = graph.schema
        self._view = replace(graph.view(), num_nodes=dict.fromkeys(graph.view().num_nodes, total))
        self._config = _config(graph.schema, size)
        self.memory_before, self.memory_at_start = _resident_bytes(), 0
        """Bytes of this process, and when the last rank had its loader."""
        self.memory_at_end = 0
        """When the last rank had all its batches."""
        self.held = Held()
        """At the same time."""
        self._loaded: dict[int, RemoteSource] = {}
        self._state: dict[str, Any] | None = None
        self._of_attempt: list[Rank] = []
        self._num_running = self._num_started = 0
        self._resumed_by = 0
        self.restarts = 0
        """How often the ranks were started again."""
        self._trace = hashlib.sha256()

    # -- running --------------------------------------------------------------------------------

    def run(self, faults: Sequence["Fault"] = (), limit_s: float = 36_000.0) -> "SimulatedJob":
        """Let all of it happen.

        Where ranks are lost or raise, the others are ended soon, and all are started again from the
        last state, as torchrun does it.

        Args:
            faults: What goes wrong.
            limit_s: Of simulated time.

        Raises:
            Deadlock: Somebody waits for ever.
            RuntimeError: A thread raised.
        """
        # modules of the package are changed for the time of the run: one at a time in a process
        with self._installed():
            for server in range(self.size.servers):
                self.start_server(server)
            self._start_ranks(self.size.ranks)
            for fault in faults:
                self.world.clock.call_later(fault.at_s, partial(fault.happen, self))
            try:
                self.world.run(lambda: self._num_running == 0, limit_s)
                while self._has_failed and self.restarts < _MOST_RESTARTS:
                    self._resume()
                    self.world.run(lambda: self._num_running == 0, limit_s)
            finally:
                # also after an error: greenlets that were left would hold all that their frames
                # hold
                self.world.close()
        return self

    @property
    def _has_failed(self) -> bool:
        return any(one.error is not None or not one.process.alive for one in self._of_attempt)

    def lose_rank(self, number: int, resumed_by: int = 0) -> None:
        """Kill a rank. The others notice when they next wait for it.

        Args:
            number: Which.
            resumed_by: How many ranks go on with the job; 0: those that are left.
        """
        rank = self._of_attempt[number % len(self._of_attempt)]
        # of a single rank nobody would be left to resume the job
        if rank.process.alive and rank.ended is None and len(self._of_attempt) > 1:
            self._resumed_by, rank.lost = resumed_by, True
            self.world.kill(rank.process)
            self._num_running -= 1
            self._ended_early(f"{rank.process.name} was killed")

    def _ended_early(self, why: str) -> None:
        self.group.lose(why)
        # held by the callback: by then another attempt may run, whose ranks are not to be ended
        attempt = self._of_attempt
        self.world.clock.call_later(_AGENT_S, lambda: self._end(attempt))

    def _end(self, attempt: list[Rank]) -> None:
        """Kill the ranks of an attempt that are still there, as the agent of torchrun does."""
        for rank in attempt:
            if rank.process.alive and rank.ended is None:
                self.world.kill(rank.process)
                self._num_running -= 1

    def slow_rank(self, number: int, factor: float) -> None:
        """Let a rank take longer for its steps."""
        self._of_attempt[number % len(self._of_attempt)].process.slowness = factor

    def lose_server(self, number: int, down_s: float) -> None:
        """Kill a storage server, if it is up; it is started again after ``down_s``, if ever."""
        process, _ = self.servers[number]
        if not process.alive:
            return
        self.world.kill(process)
        if down_s < math.inf:
            self.world.clock.call_later(down_s, lambda: self.start_server(number))

    def _resume(self) -> None:
        """Go on without the ranks that are gone, from what the others saved last."""
        self.restarts += 1
        left = [rank for rank in self._of_attempt if not rank.lost]
        states = [rank.state for rank in left if rank.state]
        # each rank saves after the same steps; one that was quicker may be a save ahead
        self._state = min(states, key=_progress_of, default=self._state)
        epoch, yielded = _progress_of(self._state) if self._state else (0, 0)
        for rank in self.ranks:  # what came after the state was saved is trained on again
            kept = [n for n, position in enumerate(rank.positions) if position < (epoch, yielded)]
            rank.positions = [rank.positions[n] for n in kept]
            rank.seeds = [rank.seeds[n] for n in kept]
        count, self._resumed_by = self._resumed_by or len(left), 0
        self._start_ranks(count)

    def _start_ranks(self, count: int) -> None:
        self.group = SimulatedGroup(self.world, self.network, count)
        self._of_attempt = [self._rank(number) for number in range(count)]
        self._num_running = count
        self.ranks += self._of_attempt
        for rank in self._of_attempt:
            self._soon(partial(self._train, rank, count), rank.process)

    def _soon(self, main: Callable[[], None], process: Process) -> None:
        # processes of a real job do not start at one moment, nor in order
        delay_s = self.world.random.random() * self.size.start_spread_s
        self.world.clock.call_later(delay_s, lambda: self.world.spawn(main, process, "main"))

    @contextmanager
    def _installed(self) -> Iterator[None]:
        simulated = {"world": self.world, "costs": self.size.costs}
        # classes of this job: the package makes instances by its own calls, which cannot pass a
        # world
        pool = type("SimulatedPool", (SimulatedPool,), simulated)
        law = {"law": self.size.rows if self.size.cache else None}
        memory = type("SimulatedMemory", (SimulatedMemory,), law)
        with ExitStack() as stack:
            stack.enter_context(
                self.world.installed(
                    _MODULES,
                    Caller=self.network.caller,
                    Listener=self.network.listener,
                    WorkerPool=pool,
                    ServerMemory=memory,
                    reads_same_memory=lambda: False,
                    **TABLES,
                    RowRequests=type("SimulatedRows", (SimulatedRows,), {"job": self}),
                    address_towards=lambda _: self.world.process.host,
                    gather_from_ranks=lambda *args: self.group.gather_from_ranks(*args),
                    decide_with_ranks=lambda *args: self.group.decide_with_ranks(*args),
                    current_cluster=lambda: self._clusters[self.world.process],
                    record_function=lambda _: nullcontext(),
                    # what all ranks have, or all servers, is held once
                    concatenated=lambda _: self._whole,
                    digest_of=lambda *_: self._whole_digest,
                    epoch_order=cache(sampled_input.epoch_order),
                    tensors=SimpleNamespace(share_tensor=lambda tensor: tensor, dumps=None),
                )
            )
            yield

    # -- servers --------------------------------------------------------------------------------

    def start_server(self, number: int) -> None:
        """Start a storage server, for the first time or again."""
        host = f"10.1.{number // 256}.{number % 256}"
        process = Process(f"storage server {number}", host)
        former = self.servers.get(number)
        if former is not None:
            # it is the machine that is slow, not the process
            process.slowness = former[0].slowness
        self._soon(partial(self._serve, number, process), process)

    def _serve(self, number: int, process: Process) -> None:
        parts = self.size.partitions or self.size.servers
        view = replace(self._view, num_partitions=parts, partition_idx=number % parts)
        server = StorageService(
            _Partition(view, self._schema),
            number,
            self.size.servers,
            process.host,
            security=self._security,
        )
        master = ("10.1.0.0", _PORT)
        chief = None
        if number > 0:
            # server 0 leads the others; it has none above it
            chief = LeaderLink(*master, self._security, process.name, 10.0)
        one = Endpoint(
            # the port that all know is server 0's; the others tell theirs
            server,
            process.host,
            _PORT if number == 0 else 0,
            self._security,
            None,
            chief,
            rejoin_s=self.size.timeout_s,
        )
        self.servers[number] = (process, one)
        if chief is not None:
            chief.caller.connect(self.world.clock.now + _JOIN_S, lambda why: None)
        one.start()
        # until the job has ended, or this thread's process is killed
        one.over.wait()
        one.close()

    # -- ranks ----------------------------------------------------------------------------------

    def _rank(self, number: int) -> Rank:
        machine = number // self.size.ranks_per_machine
        process = Process(f"rank {number}", f"10.2.{machine // 256}.{machine % 256}")
        self.group.ranks[process] = number
        return Rank(number, process)

    def _train(self, rank: Rank, world_size: int) -> None:
        try:
            self._load(rank, world_size)
        except GiglLoaderError as error:
            rank.error = error
            self._ended_early(f"{rank.process.name} ended: {error}")
        finally:
            rank.ended = self.world.clock.now
            self._num_running -= 1

    def _load(self, rank: Rank, world_size: int) -> None:
        size = self.size
        joined = Cluster.join(
            "10.1.0.0",
            _PORT,
            job_name="train",
            rank=rank.number,
            world_size=world_size,
            num_servers=size.servers,
            security=self._security,
            timeout_s=_JOIN_S,
        )
        self._clusters[rank.process] = joined
        try:
            loaded = RemoteSource(
                DistServer.create_sampling_producer,
                None,
                self._inputs,
                self._config,
                self._options(),
                None,
                SourceOptions(
                    seed=size.seed,
                    timeout_s=size.timeout_s,
                    cache=CacheOptions(size=size.cache) if size.cache else None,
                ),
                shard="world",
            )
            loaded.open(WorkerTurns())
            self._note_start(rank, loaded)
            total = size.ranks * size.batches
            share = WorldShare(rank=rank.number, world_size=world_size, total=total)
            progress = EpochProgress(share=share)
            if self._state is not None:
                progress = EpochProgress.from_dict(self._state, _identity(size), in_step=True)
                progress.share = share
            for epoch in range(progress.epoch, size.epochs):
                if epoch != progress.epoch:
                    progress = EpochProgress(epoch, share=share)
                self._epoch(rank, loaded, progress, world_size)
            rank.connections = len(joined.connections)
            self.memory_at_end = _resident_bytes()
            loaded.shutdown()
        finally:
            joined.close()

    def _note_start(self, rank: Rank, loaded: RemoteSource) -> None:
        rank.started = self.world.clock.now
        self._loaded[rank.number] = loaded
        rank.messages_at_start, rank.bytes_at_start = rank.process.messages, rank.process.bytes
        # measured when the last one has its loader: before, tables still grow
        self._num_started += 1
        if self._num_started == self.size.ranks:
            self.memory_at_start = _resident_bytes()
            self.held = self._held()

    def _held(self) -> "Held":
        last = self.size.ranks - 1
        # another rank than the one that is measured: what both have is shared by the simulation,
        # and in a real job is there in each
        ranks = [self._held_by_rank(number) for number in (1 % (last + 1), last, 0)]
        last = self.size.servers - 1
        servers = [held_by(self.servers[number][1]) for number in (min(1, last), last, 0)]
        return Held(
            rank=own_bytes(ranks[1], ranks[:1]),
            server=own_bytes(servers[1], servers[:1]),
            first_rank=own_bytes(ranks[2], ranks[:1]),
            first_server=own_bytes(servers[2], servers[:1]),
        )

    def _held_by_rank(self, number: int) -> dict[int, int]:
        process = self._of_attempt[number].process
        return held_by(self._loaded[number], self._clusters[process])

    def _epoch(
        self, rank: Rank, loaded: RemoteSource, progress: EpochProgress, world_size: int
    ) -> None:
        check_same_start(progress.epoch, progress.yielded, 0, world_size)
        positions = progress.positions_left(0)
        left = self.size.ranks * self.size.batches - progress.yielded
        common = left // world_size  # steps that all ranks make: the last may be one of a few
        loaded.start_epoch(Attempt(progress.epoch, progress.epoch + 1), positions, positions)
        stats = LoaderStats()
        batches = iterator.EpochIterator(
            loaded, len(positions), progress, collate=lambda message: message, stats=stats
        )
        for step, message in enumerate(batches):
            if self.size.cache:
                rank.wrong_rows += not are_right(message)
                rank.hit_rate = stats.cached_rows / max(
                    1, stats.cached_rows + stats.rows_from.total()
                )
            self._note_batch(rank, (progress.epoch, positions[step]), message[BATCH].tolist())
            self.world.sleep(self.size.costs.step_s * rank.process.slowness)
            if self.size.in_step and step < common:
                self.group.step()
            if self.size.save_every and (step + 1) % self.size.save_every == 0:
                # after the step, as a training loop saves: the batch that was trained on counts as
                # yielded
                rank.state = progress.to_dict(_identity(self.size))

    def _note_batch(self, rank: Rank, position: tuple[int, int], seeds: list[int]) -> None:
        self._trace.update(f"{self.world.clock.now:.9f} {rank.number} {position} {seeds}".encode())
        if self.keep:
            rank.positions.append(position)
            rank.seeds.append(tuple(seeds))

    @property
    def trace(self) -> str:
        """The sha256 of what was handed out, to whom and when."""
        return self._trace.hexdigest()

    def _options(self) -> Any:
        size = self.size
        options = RemoteDistSamplingWorkerOptions(
            server_rank=list(range(size.servers)),
            num_workers=size.workers,
            worker_devices=[torch.device("cpu")] * size.workers,
            worker_concurrency=size.concurrency,
            master_addr="10.1.0.0",
            master_port=_PORT,
            prefetch_size=min(size.prefetch, size.workers * size.concurrency),
            worker_key="all",
            buffer_size="1GB",
        )
        return options


def _config(schema: DatasetSchema, size: Size) -> SamplingConfig:
    return glt_config.create_sampling_config(
        [10, 5],
        schema,
        batch_size=1,
        shuffle=True,
        drop_last=False,
        with_weight=False,
        with_edge=False,
        seed=size.seed,
    )


def _identity(size: Size) -> dict[str, Any]:
    """Return what a state has to have in common with the loader that goes on with it."""
    return {"shard": "world", "num_seeds": size.ranks * size.batches, "seed": size.seed}


def _progress_of(state: dict[str, Any]) -> tuple[int, int]:
    return state["epoch"], state["yielded"]


def _resident_bytes() -> int:
    """Return what this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def digest(job: SimulatedJob) -> str:
    """Return the sha256 of all batches of a job: (epoch, position, seeds), in that order."""
    # by position, not by rank or time: the same for any number of ranks
    found = sorted(
        (position, seeds)
        for rank in job.ranks
        for position, seeds in zip(rank.positions, rank.seeds, strict=True)
    )
    return hashlib.sha256(repr(found).encode()).hexdigest()
