"""A loader's side of the graph store: agrees with the other ranks, creates producers, receives."""

import contextlib
import copy
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from gigl_loader.batch.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    ROWS,
    Attempt,
    BatchTicket,
    Received,
    SampleMessage,
    columns_of,
)
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    SamplingError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.client.connection import CALL_TIMEOUT_S, result_of
from gigl_loader.graph_store.client.filling_channel import FillingChannel
from gigl_loader.graph_store.client.hooked_source import HookedSource
from gigl_loader.graph_store.client.producers import (
    AgreedSettings,
    Outcome,
    Outcomes,
    Proposal,
    RemoteProducers,
    agree_on_terms,
    concatenated,
    merge_outcomes,
)
from gigl_loader.graph_store.client.receiving_channel import RemoteReceivingChannel
from gigl_loader.graph_store.client.server_outages import ServerOutages
from gigl_loader.graph_store.wire.batch_shares import OwnBatches
from gigl_loader.graph_store.wire.producer_terms import digest_of
from gigl_loader.graph_store.wire.requests import NOBODY, ByServer, Runs, compacted, select_servers
from gigl_loader.graph_store.wire.signatures import DistServer
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.runtime.ranks.collectives import decide_with_ranks
from gigl_loader.runtime.transport.failures import describe, fresh_copy
from gigl_loader.sampler.options import Shard, SourceOptions, options_of_batches
from gigl_loader.sampler.row_cache.machine_cache import MachineRows, RowsClaim
from gigl_loader.sources.sampled_input import num_batches
from gigl_loader.sources.seed_checks import SeedSummary
from gigl_loader.sources.staggered_start import LeaderTurns, WorkerTurns

_log = logging.getLogger(__name__)

_AGAIN_S = 0.2
"""Seconds between two attempts to continue after a server was lost."""


class RemoteSource:
    """A loader's batches from a graph store: creates the producers, then receives from them.

    A `gigl_loader.sources.batch_source.BatchSource`.

    Its producers and the channel over them are a generation. If a server is lost, both the thread
    of the epoch and one in `sample` may find it out. The first one creates the next generation; the
    other one, whatever it met in the former generation, goes on in that one.

    Args:
        create: The servers' method that creates a producer.
        dataset: A ``RemoteDistDataset``.
        inputs: One ``NodeSamplerInput`` per server, empty where a server has none. The loader's
            seeds are their concatenation, in server order.
        config: Sampling configuration.
        options: GLT's ``RemoteDistSamplingWorkerOptions``.
        sampler_options: Options of another sampler.
        source_options: Seed, order and deadline.
        pin_memory: Receive into page-locked memory.
        shard: ``"world"``: the input is the same on all ranks, and this one may ask for any batch.
        turns: When the leaders call the servers; None: all at once.
    """

    create_producer = staticmethod(DistServer.create_sampling_producer)
    """The argument ``create`` of our own loaders."""
    of_hook = HookedSource
    """The source of a subclass's hook that creates producers itself."""

    @staticmethod
    def check_joined(rank: int, world_size: int) -> None:
        """Check that the processes of the process group joined the graph store, as these ranks.

        Raises:
            UsageError: Others joined it, so ranks would not meet.
        """
        cluster = current_cluster()
        if (cluster.rank, cluster.world_size) != (rank, world_size):
            raise UsageError(
                f"this process joined the graph store as {cluster.rank} of {cluster.world_size}, "
                f"and is {rank} of {world_size} in torch.distributed: keep the process group that "
                "was up when init_compute_process returned, or after init_client call "
                "init_process_group with the ranks of the clients"
            )

    def __init__(
        self,
        create: Callable[..., int],
        dataset: Any,
        inputs: Sequence[NodeSamplerInput],
        config: Any,
        options: Any,
        sampler_options: Any,
        source_options: SourceOptions,
        *,
        pin_memory: bool = False,
        shard: Shard = "machine",
        turns: LeaderTurns | None = None,
    ) -> None:
        servers = options.server_rank
        self._servers = compacted(servers if isinstance(servers, (list, tuple)) else [servers])
        if len(inputs) != len(self._servers):
            raise ConfigError(
                f"sampler_input must be a list with one input per storage server: got "
                f"{len(inputs)} for servers {self._servers}"
            )
        self._cluster = current_cluster()
        # any server may have to sample for a lost one, so all must be named
        if sorted(self._servers) != list(range(self._cluster.num_servers)):
            raise ConfigError(
                f"worker_options.server_rank must name all {self._cluster.num_servers} "
                f"storage servers, got {self._servers}"
            )
        self._config, self._sampler_options = config, sampler_options
        # a copy, as the caller may use its object for another loader with other servers
        self._options = copy.copy(options)
        self._options.server_rank = self._servers
        self.source_options = replace(source_options, asks_for_rows=True)
        self._pin_memory, self._shard = pin_memory, shard
        self._turns = turns or LeaderTurns()
        # each server gets the whole input, so that it can sample any batch, also for a lost
        # server
        self._input = concatenated(inputs)
        self._active = select_servers(
            self._servers,
            {server for server, seeds in zip(self._servers, inputs, strict=True) if len(seeds)},
        )
        self.input_len = len(self._input)
        self.num_workers: int = getattr(options, "num_workers", 1)
        self._share = OwnBatches(0, 1)
        self._producers = RemoteProducers(
            self._cluster, self._input, config, sampler_options, self._active
        )
        self._consumer = 0
        self._outages: ServerOutages | None = None
        """ServerOutages of servers since the last batch; None: no epoch was recovered since."""
        self._broken = False
        """Whether a server or worker failed this process."""
        self.channel: RemoteReceivingChannel | None = None
        self._live: Sequence[int] = self._servers
        """Servers that take part: all but those that are lost and have replicas."""
        self._sampling = self._active
        """Servers among them that have batches."""
        self._ranks = NOBODY
        self._create = create
        self._attempt: Attempt | None = None
        self._to_come: dict[int, int] = {}
        """Batches that were not handed out, by their positions, as given to `start_epoch`."""
        self._rows: FillingChannel | None = None
        """Fills batches that come without rows; None: so far they came with rows."""
        # Held while a generation is created and begins the epoch, and while its parts are looked
        # up; not while a batch is waited for. It can be taken again by the thread that has it, as
        # `sample` recovers with it.
        self._changing = threading.RLock()
        self._generation = 0
        """Number of the generation; a recovery that failed counts, too."""
        self._failure: GiglLoaderError | None = None
        """Why this generation could not be created; None: it was."""
        self._is_shut_down = False
        self._machine_rows: MachineRows | None = None

    # -- start ----------------------------------------------------------------------------------

    def open(self, turns: WorkerTurns) -> None:
        """Create the producers, one per worker key and server, and open the channel.

        All compute processes must call it. The lowest rank of each key calls all servers at once.

        Args:
            turns: Not looked at: the workers are the servers'.

        Raises:
            PeerError: A producer could not be started for some rank.
            ConfigError: Ranks share a key but differ in their input.
        """
        rank, world_size = self._cluster.rank, self._cluster.world_size
        key = self._options.worker_key or f"rank {rank}"
        how = (self._config, self.source_options.expansion)
        # a digest instead of the input, as rank 0 compares those of all ranks
        digest = digest_of(self._input, how, self._active)
        batches = options_of_batches(self._config, self._sampler_options, self.source_options)
        shared = {"shard": self._shard, **batches}
        cache = self.source_options.cache
        rows = RowsClaim.of_store(self._cluster, cache, self._config) if cache is not None else None
        of_rows = rows.offer if rows is not None else None
        proposal = Proposal(key, digest, self.source_options, shared, self._seeds_told(), of_rows)
        terms = decide_with_ranks(proposal, world_size, Proposal, agree_on_terms, AgreedSettings)
        # raised on all ranks alike, so that no rank is left waiting for producers
        if terms.error is not None:
            raise ConfigError(terms.error)
        self._machine_rows = rows.agreed(terms.rows) if rows is not None else None
        group = terms.of(rank, key, self.source_options)
        ranks, leader = group.ranks, group.ranks[0]
        # if all ranks share an epoch, one seed and order apply; else those of the ranks that share
        # producers
        options = terms.first if self._shard == "world" else group.options
        if self._config.seed is None:  # one for all, so that a rank can load the state of another
            options = replace(options, seed=terms.first.seed)
        # None: another rank creates the producers and sends their ids
        outcome: Any = None
        if group.differ:
            outcome = ConfigError(
                f"compute ranks {ranks} share the worker key {key!r}, but {group.differ} have "
                f"another input or sampling config than rank {leader}: give them the same, or keys "
                "of their own"
            )
        elif rank == leader:
            self._turns.wait(terms.position_of(rank))
            outcome = self._create_all(ranks, options)
        # sent and not raised, as the other ranks wait in the next exchange, and have to fail with
        # this error
        failure = describe(outcome) if isinstance(outcome, Exception) else None
        made = ByServer.of(outcome) if isinstance(outcome, Mapping) else None
        made_here = Outcome(made, failure)
        leaders = {sharing.ranks[0] for sharing in terms.sharing}
        outcomes = decide_with_ranks(
            made_here, world_size, Outcome, partial(merge_outcomes, leaders), Outcomes
        )
        if outcome is None:
            outcome = outcomes.producers.get(leader)
        self._adopt(outcome, outcomes.failure_on(self._cluster.rank, outcome), ranks, options)

    def _seeds_told(self) -> SeedSummary:
        if self._shard == "world":  # batches are assigned by number: seeds must be equal
            same = digest_of(self._input, None, self._active)
            return SeedSummary(digest=same.encode())
        return SeedSummary.of(self._input.node, columns_of(self._input), self._cluster.world_size)

    def _create_all(
        self, ranks: Runs, source_options: SourceOptions
    ) -> Mapping[int, int] | Exception:
        """Return the ids of new producers by server, or the reason for a failure.

        If servers are lost meanwhile, replicas take their place, or it waits for them.
        """
        outages, options = self._new_outages(), self._options
        while True:
            request_id = secrets.token_hex(16)
            try:
                self._choose_servers(outages)
            except Exception as error:  # final: waiting any longer would not help
                return error
            try:
                self._producers.create(
                    self._create, options, ranks, source_options, request_id, self._live
                )
                return self._producers.ids
            except GiglLoaderError as error:
                if outages.is_over or not self._producers.caused_by_lost_server(error):
                    return error
                _log.warning("%s; the producers are created again", error)
                options = copy.copy(self._options)
                options.worker_key = request_id  # a new name, as the old one has former attempts
                time.sleep(_AGAIN_S)
            # any error, as the other ranks would wait for this one
            except Exception as error:
                return error

    def _adopt(
        self, own: Any, failure: Exception | None, ranks: Runs, source_options: SourceOptions
    ) -> None:
        # before a failure is raised, so that this rank's share of the known producers is
        # released
        if isinstance(own, Mapping) and self._cluster.rank != ranks[0]:
            self._adopt_from_leader(own)
        self._consumer = ranks.index(self._cluster.rank)
        # if one rank failed, all release their producers: a loader on only some ranks is
        # useless
        if failure is not None:
            self._broken = True
            self._producers.release(self._consumer, is_broken=True)
            raise failure
        self.source_options, self._ranks = source_options, ranks
        self._share = self._own_share()
        self._open_channel()

    def _adopt_from_leader(self, ids: Mapping[int, int]) -> None:
        """Use the producers of the leader, which may have noticed a server's return earlier."""
        self._live = Runs.of(sorted(ids))
        with contextlib.suppress(GiglLoaderError):  # the epoch will find it out
            self._cluster.await_servers(self._new_outages(), self._live)
        self._producers.adopt(ids)

    def _open_channel(self) -> None:
        # if all servers with input are lost, others sample for them
        self._sampling = select_servers(self._active, set(self._live)) or self._live
        self.channel = RemoteReceivingChannel(
            self._sampling,
            self._producers.ids,
            self._options.prefetch_size,
            consumer=self._consumer,
            in_order=self.source_options.in_order,
            timeout=self.source_options.timeout_s,
            pin_memory=self._pin_memory,
            cluster=self._cluster,
            watched=self._live,
        )

    def _filling_channel(self) -> FillingChannel:
        with self._changing:
            if self._rows is None:
                options = self.source_options
                # as many as the channel may have on its way from all servers; at least two, so that
                # one can be filled while one is taken
                room = max(2, self._options.prefetch_size * max(1, len(self._active)))
                self._rows = FillingChannel(
                    self._cluster,
                    options.cache,
                    room,
                    options.timeout_s,
                    self._pin_memory,
                    self._machine_rows,
                )
            return self._rows

    def _own_share(self) -> OwnBatches:
        total = num_batches(self.input_len, self._config.batch_size, self._config.drop_last)
        num_shards = max(1, len(self._active))
        if self._shard == "world":  # the loader decides which batches are this process's
            return OwnBatches(total, num_shards)
        return OwnBatches(total, num_shards, len(self._ranks), self._consumer)

    @property
    def producer_ids(self) -> Mapping[int, int]:
        """Ids of the producers by server, of the servers that take part."""
        return self._producers.ids

    @property
    def num_batches(self) -> int:
        """Number of this process's batches in an epoch."""
        return len(self._share)

    # -- epochs ---------------------------------------------------------------------------------

    def start_epoch(
        self, attempt: Attempt, batches: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Begin an epoch on the servers; ``batches`` count within this process's share."""
        with self._noting_failures(), self._changing:
            self._attempt, self._to_come = attempt, dict(zip(positions, batches, strict=True))
            if self._failure is not None:
                self._create_next(fresh_copy(self._failure))
                return
            try:
                # between two epochs, as taking a server in again costs the current epoch its
                # producers
                self._take_in()
                self._begin()
            except GiglLoaderError as error:
                self._recover(error, self._generation)

    def _begin(self) -> None:
        attempt = self._attempt
        if attempt is None:  # for a batch at once, and no epoch is under way
            return
        if self._rows is not None:
            self._rows.stop()
        numbers = {server: number for number, server in enumerate(self._sampling)}
        batches = [self._server_and_batch(index, numbers) for index in self._to_come.values()]
        # the same attempt even after a recovery: the new producers know no other one
        self._channel.start_epoch(attempt, batches, list(self._to_come))
        # only the servers' responses to the start of an epoch tell whether batches have rows
        if self._rows is not None or self._channel.rows_apart:
            self._filling_channel().begin(self._channel, attempt, len(batches))

    def _server_and_batch(self, index: int, numbers: Mapping[int, int]) -> tuple[int, int]:
        """Return the server of a batch, by its number of those that sample, and the batch."""
        shard, batch = self._share[index]
        server = self._active[shard]
        # A sampling replica has the same rows in its memory. Without one, the batch's
        # number, which is the same at each attempt, chooses the server.
        if server not in numbers:
            replica = self._cluster.replica_of(server, self._sampling)
            server = self._sampling[batch % len(self._sampling)] if replica is None else replica
        return numbers[server], batch

    def cancel_epoch(self) -> None:
        """Stop sampling for the current epoch."""
        # without the lock: the end of a loop waits for no recovery of another thread
        self._attempt = None
        if self._rows is not None:
            self._rows.stop()
        if self.channel is not None:
            self.channel.cancel()

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None at the end of the epoch; see the channel's `next`."""
        with self._noting_failures():
            while True:
                with self._changing:
                    if self._failure is not None:
                        raise fresh_copy(self._failure)
                    generation, receiver = self._generation, self._receiver
                try:
                    received = receiver.next(timeout_s)
                except GiglLoaderError as error:
                    self._recover(error, generation)
                    continue
                with self._changing:
                    if received is None:
                        # the end of the epoch, or of a generation that was replaced meanwhile
                        if generation == self._generation:
                            return None
                    # else of a former generation, and handed out: the next one began before that
                    elif received.ticket.position in self._to_come:
                        del self._to_come[received.ticket.position]
                        self._outages = None
                        return received

    # -- servers that are lost and come back ----------------------------------------------------

    def _take_in(self) -> None:
        """Let servers take part again that came back since the producers were created.

        Raises:
            ServerDiedError: A server was restarted and has lost its producer.
        """
        if replaced := self._producers.replaced:
            raise ServerDiedError(f"storage servers {replaced} were started again")
        back = set(self._servers) - set(self._live) - set(self._cluster.lost)
        # at 0 nothing is recreated: the loader keeps the servers that it began with
        if back and self.source_options.reconnect_timeout_s > 0:
            _log.warning("storage servers %s are back, and sample again", sorted(back))
            self._choose_servers(ServerOutages(self._cluster.renewals, 0.0))
            self._make_anew()

    def _recover(self, error: GiglLoaderError, generation: int) -> None:
        """Return once there is another generation, created here or by another thread.

        Args:
            error: What this thread met.
            generation: The generation in which it met that.

        Raises:
            PeerError: ``error``, if no server was lost; or see `_create_next`.
        """
        with self._changing:
            if generation != self._generation:
                if self._failure is not None:
                    raise fresh_copy(self._failure)
                return
            is_final = self._is_shut_down or self.source_options.reconnect_timeout_s <= 0
            if is_final or not self._producers.caused_by_lost_server(error):
                raise error
            self._create_next(error)

    def _create_next(self, error: GiglLoaderError) -> None:
        """Recreate the producers because a server was lost, and continue the epoch.

        This process knows all that is needed: input, config, and the batches handed out. Batches
        are functions of seed, epoch and index, so the same ones come.

        Raises:
            PeerError: ``error``, if a server without a replica did not come back in time; or a
                server ends again and again.
            ConfigError, JoinRefusedError: It came back but refuses this process.
            UsageError: The loader was shut down meanwhile.
        """
        _log.warning(
            "%s (the epoch continues with a replica, or if it is back within %.0f s)",
            error,
            self.source_options.reconnect_timeout_s,
        )
        self._generation += 1
        self._failure = fresh_copy(error)  # also if this is interrupted
        try:
            self._try_until_over(error)
            self._failure = None
        except GiglLoaderError as failure:
            # a copy: the traceback of the other one will hold the caller's frames
            self._failure = fresh_copy(failure)
            raise
        finally:
            if self._is_shut_down:  # by another thread, which did not find what was created since
                self._release()

    def _try_until_over(self, error: GiglLoaderError) -> None:
        # the limit holds for each absence, as further servers may be lost during the attempts
        outages = self._outages = self._outages or self._new_outages()
        outages.go_on()
        while True:
            # The first error tells the cause, the last one why nothing helped. A refusal by the
            # process in place of the server says more than the server's loss.
            try:
                self._choose_servers(outages)
            except GiglLoaderError as again:
                is_reason = isinstance(again, ConfigError | JoinRefusedError)
                is_reason = is_reason or outages.restless is not None
                raise (again if is_reason else error) from again
            self._check_open()
            try:
                self._make_anew()
                self._begin()
                break
            except GiglLoaderError as again:
                if outages.is_over or self._cluster.closed:
                    raise (again if isinstance(again, ConfigError) else error) from again
                time.sleep(_AGAIN_S)
        self._check_open()

    def _check_open(self) -> None:
        if self._is_shut_down:
            raise UsageError("the loader was shut down while it waited for a storage server")

    def _new_outages(self) -> ServerOutages:
        return ServerOutages(self._cluster.renewals, self.source_options.reconnect_timeout_s)

    def _choose_servers(self, outages: ServerOutages) -> None:
        """Continue without the lost servers that have replicas; wait for the others.

        Raises:
            ServerDiedError: They did not come back in time, or one ends again and again.
            ConfigError, JoinRefusedError: One came back but refuses this process.
        """
        self._live = Runs.of(self._cluster.await_servers(outages))
        if missing := sorted(set(self._servers) - set(self._live)):
            _log.warning("storage servers %s are lost; their replicas sample for them", missing)

    def _make_anew(self) -> None:
        """Recreate the producers on the chosen servers, and release the former ones."""
        self._generation += 1
        # first, as its thread reads the channel and would take its end for a failure
        if self._rows is not None:
            self._rows.stop()
        if self.channel is not None:
            self.channel.cancel()
            self.channel.close()
        # without waiting, as the epoch pauses until the new ones are up
        self._producers.release(self._consumer, is_broken=True, waits=False)
        options = copy.copy(self._options)
        name = options.worker_key = self._producers.fresh_name(options.worker_key, self._live)
        self._producers.create(
            self._create, options, self._ranks, self.source_options, name, self._live
        )
        self._open_channel()

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except SamplingError:  # a batch failed; servers and workers are well
            raise
        except PeerError:
            self._broken = True
            raise

    def ready(self) -> bool:
        """Return whether `next` would return at once."""
        return self._receiver.ready()

    def sample(self, index: Tensor, seed: int | None = None) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch under way.

        This is one request to one server and copies the whole batch, so it is slower than a batch
        of an epoch, which is requested ahead and read in place.

        Raises:
            PeerError: A server is gone, or a worker failed.
        """
        ticket = BatchTicket(AT_ONCE_STREAM, 0, AT_ONCE_EPOCH, 0)
        outages = self._new_outages()
        with self._noting_failures():
            with self._changing:
                if self._failure is not None:
                    self._create_next(fresh_copy(self._failure))
            while True:
                generation = self._generation
                try:
                    return self._with_rows(Received(ticket, self._ask_at_once(index, seed), {}))
                except GiglLoaderError as error:
                    if outages.restless is not None:
                        raise
                    self._recover(error, generation)

    def _with_rows(self, received: Received) -> Received:
        apart = ROWS in received.message
        return self._filling_channel().fill_at_once(received) if apart else received

    def _ask_at_once(self, index: Tensor, seed: int | None) -> SampleMessage:
        with self._changing:
            if self._failure is not None:
                raise fresh_copy(self._failure)
            if self._producers.replaced:
                raise ServerDiedError("a storage server was started again")
            # each has the whole input
            server = self._sampling[self._consumer % len(self._sampling)]
            producer_id = self._producers.ids[server]
        limit = self.source_options.timeout_s + CALL_TIMEOUT_S  # and the transfer
        answer = self._cluster.connection(server).call(
            "sample_seeds", limit, producer_id=producer_id, index=index, seed=seed
        )
        what = f"a batch of {index.numel()} seeds of storage server {server}"
        return result_of(answer, limit, what, limit)

    @property
    def _channel(self) -> RemoteReceivingChannel:
        if self.channel is None:
            raise UsageError("the loader has no channel: its producers were not created")
        return self.channel

    @property
    def _receiver(self) -> "RemoteReceivingChannel | FillingChannel":
        return self._channel if self._rows is None else self._rows

    @property
    def remote_bytes(self) -> int:
        """Bytes of other machines' rows: here that would be all rows, so it is not computed."""
        return 0

    def count_waiting(self) -> int:
        """Return how many batches have arrived and wait to be taken."""
        return 0 if self.channel is None else self._receiver.queue_depth

    # -- end ------------------------------------------------------------------------------------

    def shutdown(self, linger_s: float | None = None) -> None:
        """Release the producers on all servers, all at once. Idempotent, never raises.

        Args:
            linger_s: Seconds that workers may go on serving those of other servers. None: the
                servers' default; after a failure always 0.
        """
        # a caller that cannot wait counts as a failure: workers end at once, despite requests
        self._broken = self._broken or linger_s == 0.0
        # without the lock: another thread may have it for as long as it waits for a server, and
        # releases what it has created when it sees this
        self._is_shut_down, self._failure = True, None
        self._release()

    def _release(self) -> None:
        # rows before the channel that they read, and both before the producers that they use
        if self._rows is not None:
            self._rows.close()
        self._machine_rows = None  # the memory goes with its last user
        if self.channel is not None:
            self.channel.cancel()
            self.channel.close()
        self._producers.release(self._consumer, is_broken=self._broken)
