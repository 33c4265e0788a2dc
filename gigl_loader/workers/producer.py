"""One input sampled for one loader: feeds the workers, files what they send, watches them."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from gigl_loader._glt import (
    Dataset,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    SamplingConfig,
    get_context,
)
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerTimeoutError,
    SamplingError,
    UsageError,
)
from gigl_loader.memory import segments, tensors
from gigl_loader.memory.slots import Written
from gigl_loader.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    SEED_TIME,
    BatchTicket,
    Received,
    SampleMessage,
)
from gigl_loader.options import (
    CacheOptions,
    CustomSamplerOptions,
    EpochOptions,
    SamplerOptions,
    usable_cpus,
)
from gigl_loader.ranks import suspect_ranks
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.transport import Security
from gigl_loader.workers import messages
from gigl_loader.workers.agreement import Agreement, Plan
from gigl_loader.workers.ahead import AheadMemory, DrawnAhead, LookAhead
from gigl_loader.workers.machine_cache import (
    MachineCache,
    cache_of_machine,
    name_of_rows,
    remote_bytes,
    tables_for,
)
from gigl_loader.workers.peers import Access, Assignment, worker_name
from gigl_loader.workers.plugins import main_path_of, pickled
from gigl_loader.workers.pool import Event, WorkerPool
from gigl_loader.workers.recovery import LOOK_EVERY_S, Attendant, Recovery
from gigl_loader.workers.rendezvous import Rendezvous
from gigl_loader.workers.restarts import Task
from gigl_loader.workers.schedule import FairQueue, Stream, num_batches
from gigl_loader.workers.setup import Plugins, SeedInput, WorkerSetup

logger = logging.getLogger(__name__)

LINGER_S = 30.0
"""Workers go on answering other partitions after their loader was shut down, until those are done
or have asked nothing for this many seconds."""
_PEER_SHARE = 0.8
"""Of its own deadline, how long a worker waits for another partition: so that the error names the
worker that does not answer, and not the one that waits for it."""
_MANY_MESSAGES = 1 << 20
"""More than are ever under way: a channel with room for them is not limited by its bytes."""
_STOPPED_SHARE = 0.25
"""Of the deadline, how long a worker that others ask may be stopped before it is replaced: well
before they give up."""


class MessageMemory(Protocol):
    """Where messages come to lie in this process; ``channel.shm.ShmChannel`` is one."""

    capacity: int
    size: int

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote."""
        ...

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of a worker that are free again: (to reuse, to give up)."""
        ...

    def forget(self, sender: int) -> None:
        """Release what a worker that is gone had written, once nobody uses it."""
        ...

    def bind(self, source: Callable[[float | None], SampleMessage] | None) -> None:
        """Let ``recv`` ask ``source``."""
        ...

    def close(self) -> None:
        """Release the memory."""
        ...

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        ...


def epoch_order(num_seeds: int, seed: int, epoch: int) -> Tensor:
    """Return the shuffle of an epoch: ``[num_seeds]`` int64, a function of ``(seed, epoch)``."""
    generator = torch.Generator()
    generator.manual_seed((seed * 0x9E3779B1 + epoch * 0x85EBCA77 + 1) % 2**63)
    return torch.randperm(num_seeds, generator=generator)


class DistSamplingProducer:
    """Samples ``sampler_input`` in subprocesses and fills a channel with the messages.

    Built, it has checked its arguments and started nothing; `init` starts the workers.

    Args:
        data: The dataset (ours, or a plain GLT one).
        sampler_input: Seeds. Further columns (labels of anchors) ride along as an attribute
            ``extra``, a dict of tensors with one row per seed.
        sampling_config: What to sample.
        worker_options: GLT's options: ``num_workers``, ``worker_concurrency``, ``master_addr``,
            ``rpc_timeout``. Workers that others ask listen on the interface that leads to
            ``master_addr``; ``master_port`` is not used.
        channel: Takes the messages; from ``BaseDistLoader.create_colocated_channel``.
        sampler_options: Another sampler than the k-hop neighbour sampler.
        epoch_options: Seed, order, deadline; by default the seed is drawn from torch's generator.
        worker_init_fn: Called with the worker's number in each worker before it samples.
        default_sampler: Sampler class path and keywords where ``sampler_options`` names none.
        cache: Keep rows of other machines; batches are then drawn ahead.
    """

    def __init__(
        self,
        data: Dataset,
        sampler_input: NodeSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: MpDistSamplingWorkerOptions,
        channel: MessageMemory,
        sampler_options: SamplerOptions | None = None,
        *,
        epoch_options: EpochOptions | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        default_sampler: tuple[str, dict[str, Any]] | None = None,
        cache: CacheOptions | None = None,
    ) -> None:
        self.data, self.sampling_config = data, sampling_config
        self.worker_options, self.channel = worker_options, channel
        self.num_workers: int = worker_options.num_workers
        self.epoch_options = epoch_options or EpochOptions(seed=seed_or_drawn(sampling_config.seed))
        view = view_of(data, self.epoch_options.expansion.time_attr)
        self._seed_input = SeedInput(
            sampler_input.node, dict(getattr(sampler_input, "extra", None) or {})
        )
        self._plan = make_plan(view, sampler_input, sampling_config, self.epoch_options)
        sampler = default_sampler
        if isinstance(sampler_options, CustomSamplerOptions):
            sampler = (sampler_options.class_path, sampler_options.keywords)
        self._plugins = pickled(Plugins(sampler, worker_init_fn))
        self._main_path = main_path_of(worker_init_fn)
        self._view = view
        self._pool = WorkerPool(self.num_workers)
        self._queue: FairQueue[Received] = FairQueue()
        self._max_restarts = self.epoch_options.max_restarts
        self._recovery = Recovery(
            self._pool, worker_options.worker_concurrency, self._max_restarts,
            self._seeds_of,
        )  # fmt: skip
        self._attendant: Attendant | None = None
        self._fatal: GiglLoaderError | None = None
        # one thread at a time polls and files: what a worker sent is filed before its death
        self._pumping = threading.RLock()
        self._lock = threading.RLock()
        self._agreement: Agreement | None = None
        self._access: Access | None = None
        self._shut_down = False
        self._order: tuple[int, Tensor | None] = (-1, None)
        self._unfiled: list[Event] = []
        self._failed: list[tuple[int, SamplingError]] = []
        self._peer_plan = Plan()
        self._last_progress = time.monotonic()
        self._cache_options = cache
        self._look_ahead: LookAhead | None = None
        self._remote_bytes = 0
        self._rows_apart = False
        self._cache: MachineCache | None = None
        self._ahead: AheadMemory[Tensor] | None = None
        self._at_once: Tensor | None = None
        self.add_stream(0, channel.capacity)

    # -- start ----------------------------------------------------------------------------------

    def init(self, rendezvous: Rendezvous | None = None, security: Security | None = None) -> None:
        """Start the workers and connect them with those of the other partitions; see `join`."""
        self.join(rendezvous, security)
        self.start()
        self.connect()

    def join(self, rendezvous: Rendezvous | None = None, security: Security | None = None) -> None:
        """Meet the others that sample the same, and agree on how their workers will talk.

        Args:
            rendezvous: Closed by this producer. None: this process is alone.
            security: Who may ask this producer's workers; None: as the environment says.

        Raises:
            ConfigError: The dataset is one of several partitions and this process is alone, or
                workers would be open to strangers on other machines.
            PeerError: Another rank failed, or did not come in time.
        """
        self._agreement = Agreement(
            self._view, rendezvous, security or Security.resolve(), self.worker_options.master_addr
        )
        try:
            self._access = self._agreement.access()
        except BaseException as error:
            self._fail(error)
            raise

    def announce(self, what: str) -> None:
        """Tell the other ranks that this one got so far."""
        self._joined().announce(what)

    def wait_for_rank_before(self, what: str) -> None:
        """Wait until the rank before this one announced ``what``.

        Raises:
            PeerError: A rank failed, or did not come so far in time.
        """
        try:
            self._joined().wait_for_rank_before(what)
        except BaseException as error:
            self._fail(error)
            raise

    def start(self) -> None:
        """Start this producer's own workers; returns when each is ready.

        Raises:
            PeerError: A worker raised, died, or was not ready in time; none is left.
        """
        try:
            self._pool.start(self._worker_setup(), self.epoch_options.timeout_s)
        except BaseException as error:
            self._fail(error)
            raise
        self.channel.bind(self._receive)

    def connect(self) -> None:
        """Tell the workers where the other partitions' workers are, and let them sample.

        Raises:
            PeerError: Another rank failed, or did not come up in time.
        """
        agreement = self._joined()
        try:
            options = self._cache_options
            kept = ("", "") if options is None else (str(options.size), name_of_rows(self._view))
            self._peer_plan = agreement.exchange(self._pool.addresses, *kept)
            self._rows_apart = self._leaves_rows_out(agreement, self._peer_plan.offers)
            self._join_cache(agreement, self._peer_plan.offers)
            assignments = self._peer_plan.assignments()
            for worker in range(self.num_workers):
                self._introduce(worker, assignments)
        except BaseException as error:
            self._fail(error)
            raise
        agreement.settle()
        if agreement.has_peers and self._max_restarts:
            self._attendant = Attendant(self._attend)

    def _introduce(self, worker: int, assignments: Mapping[str, Assignment]) -> None:
        """Tell a worker where the other partitions' workers are: it can sample from then on."""
        name = worker_name(self._joined().rank, worker)
        whom, offers = assignments.get(name), self._peer_plan.offers
        how = (self._ahead is not None, self._rows_apart)
        message = (messages.PEERS, name, whom, offers, *how)
        self._send(worker, message, self._ahead)

    @property
    def rows_apart(self) -> bool:
        """Whether batches come without rows, which who takes them asks their owners for."""
        return self._rows_apart

    def _leaves_rows_out(self, agreement: Agreement, nearby: Mapping[int, Any]) -> bool:
        """Return whether rows would leave two machines on their way, or are kept where they go."""
        far = set(range(self._view.num_partitions)) - {self._view.partition_idx} - set(nearby)
        options = self.epoch_options
        would_ask = agreement.has_peers and bool(far)
        return options.cache is not None or (options.asks_for_rows and would_ask)

    @property
    def remote_bytes(self) -> int:
        """Bytes of all rows that only other machines have."""
        return self._remote_bytes

    def _join_cache(self, agreement: Agreement, nearby: Mapping[int, Any]) -> None:
        """Get the machine's memory for rows of others, where it is wanted and there are some."""
        if not agreement.has_peers:
            return
        self._remote_bytes = remote_bytes(self._view, self._plan, nearby)
        options = self._cache_options
        tables = {}
        if options is not None:
            tables = tables_for(self._view, self._plan, nearby, options.size)
        if options is None or not tables:
            agreement.share_cache(bytes)  # nothing, and nobody waits for it in vain
            return
        self._cache = cache_of_machine(tables, agreement.name_of_cache, agreement.share_cache)
        drawn = tensors.share_tensor(torch.zeros(DrawnAhead.NUM_WORDS, dtype=torch.int64))
        rows = self._cache.rows
        self._look_ahead = LookAhead(rows, DrawnAhead(drawn.numpy()), options)
        self._ahead = AheadMemory(self._cache.memory, drawn, rows.join())

    def _joined(self) -> Agreement:
        if self._agreement is None:
            raise UsageError("a producer has to `join` before it starts")
        return self._agreement

    def _fail(self, error: BaseException) -> None:
        self._joined().fail(error)
        self.shutdown(linger_s=0.0)

    def _worker_setup(self) -> WorkerSetup:
        return WorkerSetup(
            view=self._view,
            plan=self._plan,
            seed_input=self._seed_input,
            batch_size=self.sampling_config.batch_size,
            concurrency=self.worker_options.worker_concurrency,
            cpus=self._cpus_of_a_worker(),
            access=self._access,
            rpc_timeout_s=min(
                self.worker_options.rpc_timeout, _PEER_SHARE * self.epoch_options.timeout_s
            ),
            replaceable=self._max_restarts > 0,
            plugins=self._plugins,
            main_path=self._main_path,
        )

    def _cpus_of_a_worker(self) -> int:
        context = get_context()
        world_size = 1 if context is None else context.world_size
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))  # torchrun sets it
        return max(1, usable_cpus() // (self.num_workers * processes))

    # -- epochs ---------------------------------------------------------------------------------

    @property
    def num_batches(self) -> int:
        """Batches of an epoch over the whole input."""
        config = self.sampling_config
        return num_batches(len(self._seed_input), config.batch_size, config.drop_last)

    @property
    def input_len(self) -> int:
        """Seeds of the whole input."""
        return len(self._seed_input)

    def add_stream(self, number: int, limit: int) -> None:
        """Add a consumer that may have ``limit`` batches started and not taken."""
        with self._lock:
            self._queue.add(Stream(number, limit, self.epoch_options.in_order))

    def remove_stream(self, number: int) -> None:
        """Forget a consumer and what is under way for it."""
        with self._lock:
            self._queue.remove(number)

    def start_epoch(
        self, epoch: int, batches: Sequence[int] | None = None, stream: int = 0
    ) -> None:
        """Begin an epoch; whatever is left of the one before is dropped, and never sampled.

        Args:
            epoch: With the seed it decides the shuffle and every draw.
            batches: Indices of the batches to sample, in this order (None: all).
            stream: The consumer.

        Raises:
            UsageError: The producer was shut down, or has not been started.
            WorkerDiedError: A worker is gone, and was not replaced.
        """
        with self._lock:
            self._check_usable()
            self._raise_if_fatal()
            self._recovery.restarts.start_epoch()
            chosen = range(self.num_batches) if batches is None else batches
            state = self._queue.streams[stream]
            generation = state.start(epoch, chosen)
            if self._look_ahead is not None:
                self._look_ahead.begin(generation, len(chosen))
            order = self._order_of(epoch)
            for worker in sorted(self._recovery.at_work):
                message = (messages.GENERATION, stream, generation, order is not None)
                self._send(worker, message, order)
            self._last_progress = time.monotonic()
            self._dispatch()

    def cancel_epoch(self, stream: int = 0) -> None:
        """Break the epoch of a consumer off."""
        with self._lock:
            if stream not in self._queue.streams or self._shut_down:
                return
            state = self._queue.streams[stream]
            if not state.finished:
                state.cancel()
                for worker in sorted(self._recovery.at_work):
                    self._send(worker, (messages.GENERATION, stream, state.generation, False))

    def _send(self, worker: int, message: tuple[Any, ...], obj: Any = None) -> None:
        """Send, and end a worker that does not read where another can take its place."""
        try:
            self._pool.send(worker, message, obj)
        except PeerTimeoutError:
            if not self._recovery.kill([worker]):
                raise

    def _order_of(self, epoch: int) -> Tensor | None:
        if not self.sampling_config.shuffle:
            return None
        if self._order[0] != epoch:
            order = epoch_order(len(self._seed_input), self.epoch_options.seed, epoch)
            self._order = (epoch, tensors.share_tensor(order))
        return self._order[1]

    def _dispatch(self) -> None:
        if self._look_ahead is not None:
            state, largest = self._queue.streams[0], self.channel.largest
            room = self.channel.size // largest if largest else self.num_workers
            room = max(1, min(self.channel.capacity, room))
            state.limit = self._look_ahead.limit(state.taken, room)
        under_way = self._recovery.under_way
        if not (under_way.has_lost or self._queue.has_turns):
            return
        while (worker := self._recovery.free_worker()) is not None:
            # what was lost comes first, and had its room before
            task = under_way.next_lost(self._is_wanted, idle=not under_way.loads[worker])
            if task is None and not under_way.has_lost:
                task = self._next_task()
            if task is None:
                return
            if not any(under_way.loads):
                self._last_progress = time.monotonic()
            under_way.give(worker, task)
            free, retired = self.channel.returned(worker, self.worker_options.worker_concurrency)
            self._send(worker, (messages.TASK, task.ticket, task.position, free, retired))

    def _next_task(self) -> Task | None:
        at_once = self._queue.streams.get(AT_ONCE_STREAM)
        found = None if at_once is None else at_once.next_ticket()  # though the channel be full
        if found is None and self._has_room():
            found = self._queue.next_ticket()
        return None if found is None else Task(*found)

    def _is_wanted(self, ticket: BatchTicket) -> bool:
        stream = self._queue.streams.get(ticket.stream)
        return stream is not None and stream.generation == ticket.generation

    def _has_room(self) -> bool:
        """Whether one more message of the largest size seen fits into the channel's bytes."""
        if self._look_ahead is not None:  # which decides what is filled; to be drawn takes no room
            return True
        largest = self.channel.largest
        if 0 < largest * _MANY_MESSAGES <= self.channel.size:
            return True  # without a look at each stream: a server has one per compute process
        under_way = sum(stream.waiting for stream in self._queue.streams.values())
        under_way += sum(self._recovery.under_way.loads)
        if largest == 0:  # nothing is known of their size yet: one per worker
            return under_way < self.num_workers
        return under_way == 0 or (under_way + 1) * largest <= self.channel.size

    # -- messages -------------------------------------------------------------------------------

    def next(self, timeout_s: float | None = None, stream: int = 0) -> Received | None:
        """Return the next batch of a consumer, or None at the end of its epoch.

        Raises:
            PeerTimeoutError: No worker made progress for ``timeout_s`` (default: the option's).
            WorkerDiedError, SamplingError: A worker ended and was not replaced, or raised.
        """
        limit = self.epoch_options.timeout_s if timeout_s is None else timeout_s
        self._last_progress = time.monotonic()
        while True:
            with self._lock:
                self._check_usable()
                state = self._queue.streams[stream]
                received = state.take()
                if received is not None:
                    self._dispatch()
                    return received
                self._raise_failed(stream)
                if state.finished:
                    return None
            self.pump(min(1.0, limit))
            if time.monotonic() - self._last_progress >= limit and not (
                timeout_s is None and self.replace_stalled(limit)
            ):
                self._raise_stalled(state, limit)

    def sample(self, index: Tensor) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch under way.

        Raises:
            PeerTimeoutError: No worker sent anything for the option's time.
            WorkerDiedError, SamplingError: A worker ended, or raised.
        """
        return self._wait_for(self.start_at_once(index))

    def start_at_once(self, index: Tensor) -> Stream[Received]:
        """Let a worker sample the batch of the seeds at ``index``; it comes as `sample` says.

        Returns:
            The stream `AT_ONCE_STREAM`, which has one such batch at a time.
        """
        with self._lock:
            self._check_usable()
            if AT_ONCE_STREAM not in self._queue.streams:
                self.add_stream(AT_ONCE_STREAM, 1)
            state = self._queue.streams[AT_ONCE_STREAM]
            generation = state.start(AT_ONCE_EPOCH, (0,))
            message = (messages.GENERATION, AT_ONCE_STREAM, generation, True)
            shared = tensors.share_tensor(index)
            self._at_once = shared
            for worker in sorted(self._recovery.at_work):
                self._send(worker, message, shared)
            self._last_progress = time.monotonic()
            self._dispatch()
        return state

    def _wait_for(self, state: Stream[Received]) -> Received:
        """Return the one batch of ``state``; what fails of others is told to who takes those."""
        limit = self.epoch_options.timeout_s
        while True:
            with self._lock:
                received = state.take()
            if received is not None:
                return received
            failures: list[tuple[int, SamplingError]] = []
            self.pump(min(1.0, limit), failures)
            own = [error for stream, error in failures if stream == state.number]
            with self._lock:
                self._failed += [one for one in failures if one[0] != state.number]
            if own:
                raise own[0]
            stalled = time.monotonic() - self._last_progress >= limit
            if stalled and not self.replace_stalled(limit):
                self._raise_stalled(state, limit)

    def _raise_failed(self, stream: int) -> None:
        """Raise what failed while somebody else filed it: the epoch is broken off, not over."""
        for place, (number, error) in enumerate(self._failed):
            if number == stream:
                del self._failed[place]
                raise error

    def _receive(self, timeout_s: float | None) -> SampleMessage:
        received = self.next(timeout_s)
        if received is None:
            raise UsageError("recv past the end of the epoch: start the next one first")
        return received.message

    def ready(self, stream: int = 0) -> bool:
        """Return whether `next` would not wait."""
        self.pump(0.0)
        with self._lock:
            state = self._queue.streams[stream]
            return state.finished or state.can_take

    def take(self, stream: int) -> tuple[Received | None, bool]:
        """Return (the next batch if it has arrived, whether the epoch is over); never waits."""
        with self._lock:
            state = self._queue.streams[stream]
            received = state.take()
            if received is not None:  # there is room for another one
                self._dispatch()
            return received, state.finished

    def pump(
        self, timeout_s: float, failures: list[tuple[int, SamplingError]] | None = None
    ) -> bool:
        """File what workers sent, waiting up to ``timeout_s`` for the first; return whether any.

        Args:
            timeout_s: Seconds.
            failures: Takes (consumer, error) for each batch that failed; None: the first is raised.

        Raises:
            WorkerDiedError: A worker ended, and was not replaced.
        """
        with self._pumping:
            with self._lock:
                self._recovery.replace_due()
                events, self._unfiled = self._unfiled, []
            events = events or self._pool.poll(self._recovery.next_step_in(timeout_s))
            with self._lock:
                failed, self._failed = self._failed, []
                for event in events:  # all of them: the failure of one costs no other its batch
                    self._file(event, failed)
                self._dispatch()
        if failures is not None:
            failures += failed
        elif failed:
            raise failed[0][1]
        self._raise_if_fatal()
        return bool(events)

    def _attend(self) -> None:
        """Replace workers that are gone, in place of a training loop that is busy elsewhere."""
        with self._lock:
            longest_s = _STOPPED_SHARE * self.epoch_options.timeout_s
            self._recovery.end_stopped(max(1, int(longest_s / LOOK_EVERY_S)))
        unfiled = any(event.message[0] == messages.DIED for event in self._unfiled)
        if not (unfiled or self._recovery.is_pending or self._pool.has_news()):
            return
        failures: list[tuple[int, SamplingError]] = []
        try:
            self.pump(0.0, failures)
        finally:
            with self._lock:
                self._failed += failures

    def replace_stalled(self, limit_s: float) -> bool:
        """End workers that made no progress for ``limit_s`` seconds, to be replaced.

        Returns:
            False where that is of no use: `max_restarts` are used up, or it was done before.
        """
        with self._lock:
            if time.monotonic() - self._last_progress < limit_s:
                return True
            self._last_progress = time.monotonic()
            return self._recovery.kill_stalled()

    def _file(self, event: Event, failed: list[tuple[int, SamplingError]]) -> None:
        kind, *rest = event.message
        self._last_progress = time.monotonic()
        if kind == messages.BATCH:
            self._file_batch(event, *rest)
        elif kind == messages.UNHEARD:
            suspect_ranks(*rest)
        elif kind == messages.ERROR:
            ticket, cause, text = rest
            self._recovery.under_way.done(event.worker, ticket)
            if self._is_wanted(ticket):
                self._queue.streams[ticket.stream].cancel()
                error = SamplingError(self._name_of(event.worker, ticket), cause, text)
                failed.append((ticket.stream, error))
        elif kind == messages.DRAWN:
            self._count_drawn(*rest)
        elif kind == messages.STALE:
            self._recovery.under_way.done(event.worker, rest[0])
        elif kind == messages.DIED:
            self._lose(event.worker, *rest)
        elif kind == messages.READY:
            self._welcome(event.worker)
        elif kind == messages.FAILED:
            self._fatal = SamplingError(f"start of sampling worker {event.worker}", *rest)

    def _count_drawn(self, ticket: BatchTicket, asked: int, kept: int) -> None:
        if self._look_ahead is not None:
            self._look_ahead.count(ticket.generation, asked, kept)

    def _lose(self, worker: int, pid: int, exitcode: int | None) -> None:
        self.channel.forget(worker)
        if self._look_ahead is not None:
            self._look_ahead.give_up()
        self._fatal = self._recovery.died(worker, pid, exitcode) or self._fatal

    def _file_batch(
        self, event: Event, ticket: BatchTicket, position: int, slot: int, nbytes: int,
        retired: tuple[int, ...], layout: Any, stats: dict[str, Any],
    ) -> None:  # fmt: skip
        self._recovery.under_way.done(event.worker, ticket)
        fd = event.fds[0] if event.fds else None
        try:
            message = self.channel.open(event.worker, Written(slot, nbytes, fd, retired, layout))
        finally:
            segments.close_fds(list(event.fds))
        stream = self._queue.streams.get(ticket.stream)
        if stream is not None:
            stats.update(worker=event.worker, nbytes=nbytes, restarts=self.num_restarts)
            stream.arrived(ticket, position, Received(ticket, message, stats))

    def _welcome(self, worker: int) -> None:
        """Tell a worker that took another's place what that one knew."""
        for number, stream in self._queue.streams.items():
            if not stream.finished:
                at_once = number == AT_ONCE_STREAM
                order = self._at_once if at_once else self._order_of(stream.epoch)
                message = (messages.GENERATION, number, stream.generation, order is not None)
                self._send(worker, message, order)
        self._introduce(worker, self._peer_plan.assignments())
        self._recovery.is_ready(worker)

    def _seeds_of(self, task: Task) -> list[int]:
        epoch, batch = task.content
        if task.ticket.stream == AT_ONCE_STREAM:
            found: list[int] = self._seed_input.seeds[self._at_once].tolist()
            return found
        size, order = self.sampling_config.batch_size, self._order_of(epoch)
        places = torch.arange(len(self._seed_input)) if order is None else order
        seeds: list[int] = self._seed_input.seeds[
            places[batch * size : (batch + 1) * size]
        ].tolist()
        return seeds

    def _raise_if_fatal(self) -> None:
        if self._fatal is not None:
            raise type(self._fatal)(*self._fatal.args)

    def _name_of(self, worker: int, ticket: BatchTicket) -> str:
        pid = self._pool.pids[worker]
        return f"sampling worker {worker} (pid {pid}), epoch {ticket.epoch}, batch {ticket.batch},"

    def _raise_stalled(self, state: Stream[Received], limit: float) -> None:
        busy = [number for number, load in enumerate(self._recovery.under_way.loads) if load]
        raise PeerTimeoutError(
            f"no sampling worker made progress for {limit:.1f} s; waiting for batch "
            f"{state.awaited} of epoch {state.epoch} from {self._pool.describe(busy)}; if a batch "
            "really takes that long, raise `timeout`"
        )

    def _check_usable(self) -> None:
        if self._shut_down:
            raise UsageError("the producer was shut down: build a new loader")

    def limit_stream(self, number: int, limit: int) -> None:
        """Let a consumer have at most ``limit`` batches started and not taken."""
        with self._lock:
            self._queue.streams[number].limit = limit
            self._dispatch()

    def describe_workers(self) -> str:
        """Say what the system says that the workers are doing."""
        return self._pool.describe(list(range(self.num_workers)))

    @property
    def queue_depth(self) -> int:
        """Batches that have arrived and wait to be taken."""
        with self._lock:
            return sum(stream.waiting for stream in self._queue.streams.values())

    def count_waiting(self) -> int:
        """Return how many batches wait to be taken, those that nobody has read yet included.

        They are read and not filed: a failure among them must not cost the batches before it. For
        the thread that takes batches.
        """
        with self._pumping:
            self._unfiled += self._pool.poll(0.0)
        batches = [event for event in self._unfiled if event.message[0] == messages.BATCH]
        return self.queue_depth + len(batches)

    @property
    def num_restarts(self) -> int:
        """Workers that were replaced so far."""
        return self._recovery.restarts.total

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    # -- stop -----------------------------------------------------------------------------------

    def shutdown(self, linger_s: float = LINGER_S) -> None:
        """Stop the workers and release their memory. Idempotent.

        Args:
            linger_s: They go on answering other partitions whose loaders are still at work, until
                those are done or have asked nothing for this long. 0: they end at once.
        """
        with self._lock:
            if self._shut_down:
                return
            self._shut_down = True
            self.channel.bind(None)
            for stream in self._queue.streams.values():
                stream.cancel()
        if self._attendant is not None:
            self._attendant.close()
        unfiled, self._unfiled = self._unfiled, []
        for event in unfiled:
            segments.close_fds(list(event.fds))
        has_peers = self._agreement is not None and self._agreement.has_peers
        self._pool.stop(linger_s if has_peers else 0.0)
        with self._lock:  # the memory goes, where nobody else has it
            self._cache = self._ahead = self._look_ahead = None
        if self._agreement is not None:
            self._agreement.close()
        self.channel.close()


def _is_of(stream: int, event: Event) -> bool:
    """Return whether ``event`` says what came of a task of ``stream``."""
    kind, *rest = event.message
    of_a_task = kind in (messages.BATCH, messages.ERROR, messages.STALE)
    return of_a_task and rest[0].stream == stream


def seed_or_drawn(seed: int | None) -> int:
    """Return ``seed``, or one drawn from torch's global generator, which is logged."""
    if seed is None:
        seed = int(torch.randint(2**62, ()))
        logger.info("no seed was given: using seed=%d", seed)
    return seed


def make_plan(
    view: PartitionView, sampler_input: Any, config: SamplingConfig, options: EpochOptions
) -> SamplingPlan:
    """Return what the workers are to do for a GLT ``SamplingConfig``."""
    check_seed_times(view, sampler_input, options.expansion.time_attr)
    if config.with_weight and options.expansion.time_attr is not None:
        raise ConfigError("with_weight and time_attr cannot be combined: leave one of them out")
    fanouts = config.num_neighbors
    if not isinstance(fanouts, dict):
        fanouts = {DEFAULT_HOMOGENEOUS_EDGE_TYPE: fanouts}
    return SamplingPlan(
        input_type=sampler_input.input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE,
        fanouts={name: tuple(fanouts[name]) for name in sorted(fanouts)},
        seed=options.seed,
        with_edge=config.with_edge,
        with_weight=config.with_weight,
        replace=options.replace,
        feature_store=options.feature_store,
        collect_features=config.collect_features,
        expansion=options.expansion,
    )


def view_of(data: Any, time_attr: str | None) -> PartitionView:
    """Return what workers read of a dataset, with its edges by time where ``time_attr`` says so."""
    if not hasattr(data, "view"):
        from gigl_loader.dataset.local import DistDataset

        data = DistDataset.wrap(data)
    view: PartitionView = data.view() if time_attr is None else data.view_by_time(time_attr)
    return view


def check_seed_times(view: PartitionView, sampler_input: Any, time_attr: str | None) -> None:
    """Check that each seed of a timed loader has a time that can be compared.

    Raises:
        ConfigError: Seeds have no time, or one with a fraction where the graph's have none.
    """
    if time_attr is None:
        return
    node_type = sampler_input.input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
    given = (getattr(sampler_input, "extra", None) or {}).get(SEED_TIME)
    if given is None:
        if (node_type, time_attr) not in view.node_attributes:
            raise ConfigError(
                f"time_attr={time_attr!r} is no attribute of the seeds (nodes {node_type!r}): say "
                "their times with input_time"
            )
        return
    rows = [*view.node_attributes.items(), *view.edge_attributes.items()]
    floats = [one.values.is_floating_point() for (_, name), one in rows if name == time_attr]
    if given.is_floating_point() and not any(floats):
        raise ConfigError(
            f"the seeds' times are {given.dtype}, those of {time_attr!r} integers: give integers"
        )
