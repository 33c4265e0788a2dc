"""`StorageService`: data and methods of a storage server; its endpoint has the connections."""

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from gigl_loader.batch.leases import Packed, ServerMemory
from gigl_loader.batch.message import SampleMessage
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
)
from gigl_loader.graph_store.server.client_ids import JobId, scope_of
from gigl_loader.graph_store.server.glt_answers import reader_of
from gigl_loader.graph_store.server.latest import Latest
from gigl_loader.graph_store.server.metrics import ServerCounts
from gigl_loader.graph_store.server.partition_answers import PartitionAnswers
from gigl_loader.graph_store.server.producer_table import (
    ProducerEntry,
    ProducerTable,
    allowed_function,
    check_leave,
    check_request,
)
from gigl_loader.graph_store.server.shared_producer import THIS_PROCESS, Clients, SharedProducer
from gigl_loader.graph_store.wire.functions import PackedValue, packed, unpacked
from gigl_loader.graph_store.wire.producer_terms import terms_of
from gigl_loader.graph_store.wire.requests import EpochRequest, FetchRequest, ProducerRequest, Runs
from gigl_loader.graph_store.wire.signatures import MOST_PORTS, DistServer
from gigl_loader.runtime.glt_classes import (
    Dataset,
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
)
from gigl_loader.runtime.memory.same_host import OwnHostProof, SameHostProof
from gigl_loader.runtime.sizes import parse_size, size_in_words
from gigl_loader.runtime.system import usable_cpus
from gigl_loader.runtime.threads import new_thread, start_aside
from gigl_loader.runtime.transport import Security, free_ports
from gigl_loader.runtime.transport.failures import describe, fresh_copy, rebuild
from gigl_loader.sampler.options import SamplerOptions, SourceOptions
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.sources.held_seeds import HeldSeeds
from gigl_loader.sources.sampled_input import OWN_KINDS, check_columns, seed_or_drawn
from gigl_loader.sources.sampling_checks import check_sampling
from gigl_loader.sources.workers.job_turns import JobTurns
from gigl_loader.sources.workers.producer import DistSamplingProducer
from gigl_loader.sources.workers.rendezvous import Rendezvous

_log = logging.getLogger(__name__)

# Not an argument: the methods of `CALLS` have a field of the request for each parameter, and a
# client must not choose its own identity.
caller: ContextVar[Hashable] = ContextVar("caller", default=THIS_PROCESS)
"""The client whose request is being served: ``(JobId, rank)``, or a `Visitor`."""

_OVER, _SEEDS = "over", "seeds"
"""Keys of rendezvous."""
_LOOK_S, _AFTER_FAILURE_S = 30.0, 1.0
"""Seconds that one request for the end of the host's producer waits; and a pause after failures."""
_MOST_GONE = 1 << 12
"""Most clients to remember as gone: more than leave while a producer of theirs starts."""
_END_S = 60.0
"""Longest wait of a closing server for a producer's workers to end, in seconds."""


class StorageService(PartitionAnswers, DistServer):
    """One storage server: a partition, and the producers that sample it for compute processes.

    Methods are thread-safe. Clients call those in ``CALLS`` through
    `request_server`.

    Args:
        dataset: The partition.
        server_rank: Rank of this server among the storage servers.
        num_servers: Number of storage servers.
        host: Address of this machine, on which free ports are searched.
        security: Authentication of processes that call the sampling workers.
        allow_samplers: Packages, modules or classes that clients may name as samplers.
        allow_functions: Packages, modules or functions that clients may run.
        allow_seed_files: Whether clients may name files of this machine that hold seeds.
        channel_memory: Most bytes of batches of all producers; None: no limit.
        meet: Returns a rendezvous with other servers, given a name for it, a timeout in seconds
            and the servers that meet. None: this server is alone.
    """

    def __init__(
        self,
        dataset: Dataset,
        server_rank: int = 0,
        num_servers: int = 1,
        host: str = "127.0.0.1",
        *,
        security: Security | None = None,
        allow_samplers: Sequence[str] = (),
        allow_functions: Sequence[str] = (),
        allow_seed_files: bool = False,
        channel_memory: int | None = None,
        meet: Callable[[str, float, Sequence[int]], Rendezvous] | None = None,
    ) -> None:
        super().__init__(dataset, server_rank, num_servers)
        self._security, self.meet = security or Security.local(), meet
        self._allowed = tuple(allow_samplers)
        self._functions = tuple(allow_functions)
        self._host, self.allow_seed_files = host, allow_seed_files
        self._started = time.monotonic()
        self._entries = ProducerTable(server_rank, channel_memory)
        # for producers that are starting while one of their clients leaves, or has left: `_adopt`
        self._gone = Latest[Hashable, None](_MOST_GONE)
        """Clients that left."""
        self._ends: dict[int, Rendezvous] = {}
        """Rendezvous that learn of a producer's end, by producer id."""
        self._mark = OwnHostProof()
        self._counts = ServerCounts()
        # twice as many as run at a time: the others wait for rows of other servers
        self._sampling = JobTurns(2 * usable_cpus())
        self.answering = JobTurns(usable_cpus())
        """Turns of jobs whose requests for rows are answered."""
        self.connections: Callable[[], dict[str, Any]] = dict
        """Returns the connected processes; the endpoint sets it."""
        self.on_end: Callable[[int], None] = lambda producer_id: None
        """Called with each producer that is over; the endpoint sets it."""
        self.stops: Callable[[str], int] | None = None
        """Stops a job by name; the endpoint sets it."""

    # -- producers ------------------------------------------------------------------------------

    @override
    def create_sampling_producer(
        self,
        sampler_input: NodeSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: RemoteDistSamplingWorkerOptions,
        sampler_options: SamplerOptions | None = None,
        *,
        request: ProducerRequest | None = None,
    ) -> int:
        if request is None:
            drawn = SourceOptions(seed=seed_or_drawn(sampling_config.seed))
            request = ProducerRequest(source_options=drawn)
        client = caller.get()
        check_request(request, self.num_servers, client)
        # before a slot is taken, so that a refused request leaves nothing to wait for. Of the
        # package samplers alone, as its other functions are not made for a client's keywords
        check_leave(sampler_options, (*OWN_KINDS, *self._allowed), self.server_rank)
        check_leave(request.source_options.feature_store, self._allowed, self.server_rank)
        # worker keys belong to a job: two jobs at a time may use the same one
        entry, is_first = self._entries.take(
            scope_of(client),
            worker_options.worker_key,
            _name_of(request),
            self._taking_part(request),
            terms_of(sampler_input, sampling_config, sampler_options, request),
        )
        if not is_first:
            # to join the others, to start the workers and to connect them: each usually takes at
            # most `timeout_s`
            entry.ready.wait(3 * request.source_options.timeout_s)
            if entry.error is not None:
                raise fresh_copy(entry.error)
            # one that is over is remembered by its number alone
            if entry.shared is None and not self._entries.is_over(entry.id):
                raise PeerTimeoutError(
                    f"storage server {self.server_rank}: the producer of worker key "
                    f"{worker_options.worker_key!r}, which another process requested, is not up"
                )
            return entry.id
        try:
            shared = self._start(
                entry, sampler_input, sampling_config, worker_options, sampler_options, request
            )
            self._adopt(entry, shared, client)
        except BaseException as error:
            # before the slot is forgotten and `ready` is set, as waiting threads then read it
            entry.error = rebuild(describe(error), f"storage server {self.server_rank}")
            self._forget(entry.id)
            raise
        finally:
            entry.ready.set()  # last, as waiting threads then read the slot
        return entry.id

    def _start(
        self,
        entry: ProducerEntry,
        sampler_input: NodeSamplerInput,
        config: SamplingConfig,
        options: Any,
        sampler_options: SamplerOptions | None,
        request: ProducerRequest,
    ) -> SharedProducer:
        rendezvous, client = self._rendezvous(request, options.worker_key), caller.get()
        clients: Sequence[Hashable] = [client]
        if request.client_ranks:
            clients = Clients(scope_of(client), request.client_ranks)
        try:
            view = self.dataset.view()
            check_sampling(sampler_input, config, self.dataset.schema, view.num_nodes)
            size = parse_size(options.buffer_size, "buffer_size")
            what = f"channel_size={size_in_words(size)} for each of {len(clients)} processes"
            self._entries.reserve(entry, len(clients) * size, what)
            check_columns(view, with_weight=config.with_weight, with_edge=config.with_edge)
            sampler_input = self._whole_input(sampler_input, rendezvous, request)
            # enough for all that a client prefetches, and for a task for every thread of every
            # worker
            capacity = max(options.prefetch_size, options.num_workers * options.worker_concurrency)
            memory = ServerMemory(capacity, size)
            producer = DistSamplingProducer(
                self.dataset.weighted_by(request.source_options.weight_attr),
                sampler_input,
                config,
                options,
                memory,
                sampler_options,
                source_options=request.source_options,
                turns=(self._sampling, scope_of(client)),
            )
        except BaseException as error:  # told, as the other servers wait for this one
            if rendezvous is not None:
                rendezvous.fail(f"{type(error).__name__}: {error}")
            raise
        # outside the block above, as it reports its own failures to the others
        producer.init(rendezvous, self._security)
        key = options.worker_key or f"producer {entry.id}"
        return SharedProducer(
            key,
            producer,
            memory,
            request,
            clients,
            size,
            count=partial(self._counts.add, job=_job_of(client), producer=entry.id),
        )

    def _whole_input(
        self,
        sampler_input: NodeSamplerInput,
        rendezvous: Rendezvous | None,
        request: ProducerRequest,
    ) -> NodeSamplerInput:
        """Return the input with the ids that the servers read, which they tell each other."""
        if not isinstance(sampler_input, HeldSeeds):
            return sampler_input
        servers = self._taking_part(request)
        parts = self.read_own(sampler_input, servers)
        if rendezvous is not None:
            own = b"".join(parts[number].numpy().tobytes() for number in sorted(parts))
            rendezvous.publish(_SEEDS, own)
            told = rendezvous.gather(_SEEDS, range(len(servers)))
            # each server's parts follow each other, in the order of their numbers
            read = dict.fromkeys(range(len(servers)), 0)
            for number, part in enumerate(sampler_input.parts):
                reader = servers.index(reader_of(part.server, servers, self.num_partitions))
                start, read[reader] = read[reader], read[reader] + part.count
                ids = np.frombuffer(told[reader], np.int64)[start : read[reader]]
                parts[number] = torch.from_numpy(ids.copy())
        nodes = torch.cat([parts[number] for number in sorted(parts)])
        whole = NodeSamplerInput(nodes, sampler_input.input_type)
        whole.extra = sampler_input.extra
        return whole

    def _rendezvous(self, request: ProducerRequest, worker_key: str | None) -> Rendezvous | None:
        """Return the rendezvous of this server's workers with those of other servers."""
        if self.meet is None:
            return None
        # of a request without an id, workers of one key meet; without either no other server comes
        name = _name_of(request, worker_key or "") or secrets.token_hex(16)
        return self.meet(name, request.source_options.timeout_s, self._taking_part(request))

    def _taking_part(self, request: ProducerRequest) -> Runs:
        return request.servers or Runs.of(range(self.num_servers))

    def _adopt(self, entry: ProducerEntry, shared: SharedProducer, client: Hashable) -> None:
        # Before reading `_gone`, while `client_gone` writes there before it reads the slots: so
        # whichever is second sees the change of the first.
        entry.shared = shared
        _log.info(
            "server %d: producer %d (%r) started for %s, workers %s",
            *(self.server_rank, entry.id, shared.key, client, shared.producer.pids),
        )
        for user in shared.clients:  # not all that ever left, as a server serves job after job
            if user in self._gone:
                self.client_gone(user)
        # no other server knows a producer without a name; on the first server, consumers end it
        if entry.name and self.meet is not None and self.server_rank != entry.servers[0]:
            new_thread(
                target=self._end_with_host,
                args=(entry,),
                name=f"end of {entry.id}",
                on_death=lambda _: self._end(entry.id),
            ).start()
        # `close` ends the producers that are up, but this one came up after that
        if self._entries.closed:
            shared.close(0.0)

    def _end_with_host(self, entry: ProducerEntry) -> None:
        """End a producer when the host's producer has ended, or the host is gone.

        The host is the first server that takes part: server 0 unless it is lost. A consumer
        releases its producer there and on the servers that sent it batches, but on no others.
        """
        try:
            self._await_end(entry)
        except GiglLoaderError as error:
            _log.debug("the end of producer %d: %s", entry.id, error)
        self._end(entry.id)

    def _await_end(self, entry: ProducerEntry) -> None:
        assert self.meet is not None
        rendezvous = self.meet(f"{entry.name}: end", _LOOK_S, entry.servers)
        # for `close`, which ends this wait by closing it
        self._ends[entry.id] = rendezvous
        try:
            # waits in steps of `_LOOK_S`, so that this thread ends within one of them after the
            # producer has ended here
            while self._entries.has(entry):
                try:
                    rendezvous.wait_for(_OVER)
                    return
                except PeerTimeoutError:
                    continue
                except PeerLostError:
                    return
                except PeerError:
                    time.sleep(_AFTER_FAILURE_S)  # another server failed: the host decides
        finally:
            self._ends.pop(entry.id, None)
            rendezvous.close()

    def _tell_of_end(self, entry: ProducerEntry) -> None:
        """Make the other servers end their producers; after a failure, only leave."""
        if not entry.name or self.meet is None:
            return
        is_host = self.server_rank == entry.servers[0]
        if not is_host and entry.shared is not None:
            return  # `_end_with_host` waits there, and leaves
        with contextlib.suppress(GiglLoaderError):  # the host is gone, with all that it knew
            rendezvous = self.meet(f"{entry.name}: end", _LOOK_S, entry.servers)
            if is_host:
                rendezvous.publish(_OVER, b"")
            rendezvous.close()

    def _forget(self, producer_id: int) -> SharedProducer | None:
        entry = self._entries.forget(producer_id)
        if entry is None:
            return None
        # here, since a producer that failed to start is forgotten too, and others may wait for its
        # end
        self._tell_of_end(entry)
        return entry.shared

    def producer(self, producer_id: int, consumer: int | None = None) -> SharedProducer:
        """Return a producer that is up, for one of its consumers; None: for any of them.

        Raises:
            UsageError: There is no such producer, or the client is not that consumer.
        """
        shared = self._entries.producer(producer_id)
        shared.check_client(caller.get(), consumer)
        return shared

    @override
    def destroy_sampling_producer(self, producer_id: int, *, linger_s: float = LINGER_S) -> None:
        self.producer(producer_id)
        self._end(producer_id, linger_s)

    @override
    def release_sampling_producer(
        self, producer_id: int, consumer: int = 0, *, linger_s: float = LINGER_S
    ) -> None:
        # repeated after a lost connection, or the client is gone: there is nothing left to do
        if self._entries.is_over(producer_id):
            return
        if self.producer(producer_id, consumer).release(consumer):
            self._end(producer_id, linger_s)

    def _end(self, producer_id: int, linger_s: float = LINGER_S) -> None:
        shared = self._forget(producer_id)
        if shared is not None:
            # first, as batches are counted until then, and would enter the producer's sums again
            shared.close(linger_s)
            # a closed loader gives nothing back, and its process may stay for days
            self.on_end(producer_id)
            self._counts.forget(_job_of(shared.clients[0]), producer_id)
            _log.info(
                "server %d: producer %d (%r) ended", self.server_rank, producer_id, shared.key
            )

    @override
    def start_new_epoch_sampling(
        self, producer_id: int, epoch: int, *, request: EpochRequest | None = None
    ) -> bool:
        request = request or EpochRequest()
        return self.producer(producer_id, request.consumer).start_epoch(epoch, request)

    @override
    def cancel_epoch_sampling(self, producer_id: int, request: EpochRequest) -> None:
        if not self._entries.is_over(producer_id):
            self.producer(producer_id, request.consumer).cancel_epoch(request)

    @override
    def fetch_one_sampled_message(
        self, producer_id: int, *, consumer: int = 0
    ) -> tuple[SampleMessage | None, bool]:
        shared = self.producer(producer_id, consumer)
        limit = shared.producer.source_options.timeout_s
        try:
            request = FetchRequest(producer_id=producer_id, consumer=consumer)
            received, finished = shared.fetch(request).result(limit)
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"storage server {self.server_rank}: no batch within {limit:.0f} s: "
                f"{shared.producer.describe_workers()}"
            ) from error
        if received is None:
            return None, finished
        assert isinstance(received.message, Packed)
        return received.message.lease.tensors(), finished

    @override
    def sample_seeds(
        self, producer_id: int, index: Tensor, seed: int | None = None
    ) -> SampleMessage:
        shared = self.producer(producer_id)
        # it came over the network, and a negative index would count from the end of the input
        if index.dtype != torch.int64 or index.dim() != 1 or not shared.has_seeds(index):
            raise ProtocolError(
                f"producer {producer_id} was asked for seeds at {index.dtype} "
                f"{list(index.shape)}, of which some are not in its input"
            )
        message = shared.sample(index, seed).message
        assert isinstance(message, Packed)
        return message.lease.tensors()

    @override
    def memory_mark(self) -> SameHostProof:
        return self._mark.mark

    @override
    def describe_workers(self, producer_id: int) -> str:
        return self.producer(producer_id).producer.describe_workers()

    def client_gone(self, client: Hashable) -> None:
        """Release everything of a client that ended or cannot be reached any more."""
        # before reading the slots, as `_adopt` checks again for producers that are starting
        self._gone[client] = None
        _at_once(
            self._release_of_gone,
            [
                (number, consumer, client)
                for number, shared in self._entries.started().items()
                for consumer in shared.consumers_of(client)
            ],
        )

    def client_back(self, client: Hashable) -> None:
        """Allow producers again for a client that was given up and came back."""
        self._gone.pop(client, None)

    def _release_of_gone(self, producer_id: int, consumer: int, client: Hashable) -> None:
        _log.info("server %d: client %s left producer %d", self.server_rank, client, producer_id)
        try:  # no lingering, as all callers of the workers belong to this client
            self.release_sampling_producer(producer_id, consumer, linger_s=0.0)
        except GiglLoaderError as error:  # released or destroyed meanwhile
            _log.debug("%s", error)

    def close(self) -> None:
        """End all producers. Idempotent."""
        # first, so that a producer that comes up from here on ends itself
        ids = self._entries.close()
        # wakes the threads of `_end_with_host`, which would wait for hosts that may be gone
        for rendezvous in list(self._ends.values()):
            rendezvous.close()
        _at_once(self._end, [(number, 0.0) for number in ids])
        self._mark.close()

    @override
    def run_function(self, path: str, data: bytes, tensors: tuple[Tensor, ...]) -> PackedValue:
        function = allowed_function(path, self._functions, self.server_rank)
        args, kwargs = unpacked(data, tensors)
        result = function(*args, **kwargs)
        return packed((isinstance(result, tuple), result))

    # -- contents -------------------------------------------------------------------------------

    @override
    def status(self) -> dict[str, Any]:
        view = self.dataset.view()
        shared, starting = self._entries.started(), self._entries.starting()
        # its lock is released before the producers' locks are taken
        connections = self.connections()
        producers = {number: producer.status() for number, producer in shared.items()}
        failed = sorted(
            number for number, state in producers.items() if state["failed"] is not None
        )
        health = "serving" if not failed else f"serving, but producers {failed} failed"
        if away := sorted(connections.get("away", {})):
            health = f"storage servers {away} are away: see `away`"
        return {
            "health": connections.get("lost") or health,
            "server_rank": self.server_rank,
            "num_servers": self.num_servers,
            "pid": os.getpid(),
            "uptime_s": time.monotonic() - self._started,
            "partition_idx": view.partition_idx,
            "num_partitions": view.num_partitions,
            "num_nodes": dict(view.num_nodes),
            "create_calls": self._entries.asked,
            "producers": producers,
            "totals": self._counts.totals(),
            "starting_producers": starting,
            **connections,
            "jobs": self._jobs(connections.get("jobs", {}), shared, producers),
        }

    def _jobs(
        self,
        ranks: dict[str, list[int]],
        shared: dict[int, SharedProducer],
        states: dict[int, dict[str, Any]],
    ) -> dict[str, dict[str, Any]]:
        """Return the state of each job by name; under an empty one that of producers of none."""
        numbers: dict[str, list[int]] = {name: [] for name in ranks}
        for number, producer in shared.items():
            numbers.setdefault(_job_of(producer.clients[0]), []).append(number)
        return {
            name: {
                "ranks": ranks.get(name, []),
                "producers": mine,
                "seeds_per_s": self._counts.seeds_per_s(name),
                "queued_batches": sum(states[number]["queued_batches"] for number in mine),
                "queued_bytes": sum(states[number]["queued_bytes"] for number in mine),
            }
            for name, mine in numbers.items()
        }

    @override
    def stop_job(self, name: str) -> int:
        if self.stops is None:
            raise ConfigError(f"storage server {self.server_rank} serves no jobs")
        return self.stops(name)

    @override
    def get_free_ports(self, num_ports: int) -> list[int]:
        if not 0 <= num_ports <= MOST_PORTS:
            raise ConfigError(
                f"{num_ports} ports were requested of storage server {self.server_rank}, which "
                f"tells a number in [0, {MOST_PORTS}] at a time: ask for more in several requests"
            )
        return free_ports(num_ports, self._host)

    @override
    def ping(self) -> int:
        return os.getpid()


def _job_of(client: Hashable) -> str:
    """Return the name of a client's job; empty: it belongs to none."""
    scope = scope_of(client)
    return scope.name if isinstance(scope, JobId) else ""


def _name_of(request: ProducerRequest, otherwise: str = "") -> str:
    """Return the name of a request among those of all jobs, the same on all servers; or none."""
    scope = scope_of(caller.get())
    # a visitor's session may differ from server to server
    job = scope if isinstance(scope, JobId) else ""
    name = request.request_id or otherwise
    return f"{job}/{name}" if name else ""


def _at_once(function: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Make all ``calls``, each in a thread, as a producer's end may wait for other servers."""
    threads = [start_aside(f"{function.__name__} {args}", function, *args) for args in calls]
    for thread in threads:
        # daemons, so that the process can end even if some producer's workers do not
        thread.join(_END_S)
