"""One input sampled for one loader: feeds the workers, files their messages, watches them.

::

    loader --start_epoch--> Tasks --ticket--> worker
    loader <--next-- stream <--file-- pump <--batch, error, death-- worker

The input is in `sampled_input`, agreements with other ranks are in `agreement`, the assignment
of batches to workers and the handling of results in `tasks`, and the replacement of lost
workers in `recovery`.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from gigl_loader.batch.leases import MessageMemory
from gigl_loader.batch.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    Attempt,
    Received,
    SampleMessage,
    columns_of,
)
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError, WorkerDiedError
from gigl_loader.runtime.glt_classes import (
    Dataset,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    SamplingConfig,
    get_context,
)
from gigl_loader.runtime.interrupts import UninterruptedLock, uninterrupted
from gigl_loader.runtime.memory import tensors
from gigl_loader.runtime.system import usable_cpus
from gigl_loader.runtime.transport import Security, address_towards
from gigl_loader.runtime.user_functions import check_overrides
from gigl_loader.sampler.options import SamplerOptions, SourceOptions
from gigl_loader.sampler.plan import SeedInput
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.sources.sampled_input import (
    SeedOrders,
    check_files,
    kernels_of,
    make_plan,
    sampler_kind,
    sampling_view,
    seed_or_drawn,
)
from gigl_loader.sources.staggered_start import WorkerTurns
from gigl_loader.sources.workers.agreement import Agreement
from gigl_loader.sources.workers.job_turns import JobTurns
from gigl_loader.sources.workers.pipe import Plugins, WorkerSetup, main_path_of, pickled
from gigl_loader.sources.workers.pool import WorkerPool
from gigl_loader.sources.workers.recovery import LOOK_EVERY_S, Recovery, RestartThread, changed_file
from gigl_loader.sources.workers.rendezvous import Rendezvous, meet_ranks
from gigl_loader.sources.workers.schedule import BatchStream
from gigl_loader.sources.workers.tasks import Tasks

_PEER_SHARE = 0.8
"""Share of a worker's own deadline for waiting for another partition, so that the error names the
worker that does not respond, not the one that waits for it."""
_STOPPED_SHARE = 0.25
"""Share of the deadline for which a worker that serves others may be suspended before it is
replaced: well before they give up."""
_FILES_EVERY_S = 1.0
"""Seconds between two looks at the mapped files of a dataset within an epoch."""


_Epoch = tuple[int, Attempt | int, Sequence[int] | None, Sequence[int] | None]
"""A consumer, its attempt, and batches with their positions, as `start_epoch` takes them."""


class _OfThread(threading.local):
    asked: _Epoch | None = None
    """The epoch that `produce_all` is to begin."""


DEALING = dict.fromkeys(
    ("_get_worker_seeds_ranges", "_get_seeds_indexes"),
    "give the producer its seeds in their order; any worker samples any batch",
)
"""Steps of graphlearn-torch's producer that nothing here calls, and what to do instead."""


class DistSamplingProducer:
    """Samples ``sampler_input`` in subprocesses and fills a channel with the messages.

    The constructor checks its arguments and starts nothing; `init` starts the workers.

    Args:
        data: The dataset (ours, or a plain GLT one).
        sampler_input: Seeds. Further columns, such as the labels of anchors, are in an attribute
            ``extra``, a dict of tensors with one row per seed.
        sampling_config: The sampling to do.
        worker_options: GLT's options: ``num_workers``, ``worker_concurrency``, ``master_addr``,
            ``rpc_timeout``. Workers that serve other machines listen on the interface that leads to
            ``master_addr``; ``master_port`` is not used.
        channel: Receives the messages; from ``BaseDistLoader.create_colocated_channel``.
        sampler_options: Options of another sampler than the k-hop neighbour sampler.
        degree_tensors: GiGL's; it has to be None, as samplers read the degrees of ``data``.
        source_options: Seed, order and deadline; without a seed, torch's generator draws one.
        worker_init_fn: Called with the worker's number in each worker before it samples.
        cache: Options of the cache of other machines' rows; batches are then drawn ahead. None:
            those of ``source_options``.
        turns: What shares this machine's sampling threads between jobs, and this producer's job.
            None: this producer shares with nobody.
    """

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        check_overrides(cls, DistSamplingProducer, DEALING)

    def __init__(
        self,
        data: Dataset,
        sampler_input: NodeSamplerInput,
        sampling_config: SamplingConfig,
        worker_options: MpDistSamplingWorkerOptions,
        channel: MessageMemory,
        sampler_options: SamplerOptions | None = None,
        degree_tensors: object = None,
        *,
        source_options: SourceOptions | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        cache: CacheOptions | None = None,
        turns: tuple[JobTurns, Hashable] | None = None,
    ) -> None:
        if degree_tensors is not None:
            raise ConfigError(
                "degree_tensors has no use here: samplers read the degrees of the dataset, so "
                "leave it out"
            )
        self.data, self.sampler_input = data, sampler_input
        self.sampling_config, self.worker_options = sampling_config, worker_options
        self.channel = self.output_channel = channel
        """Where messages arrive; the second name is GLT's."""
        self.num_workers: int = worker_options.num_workers
        how = source_options or SourceOptions(seed=seed_or_drawn(sampling_config.seed))
        self.source_options = how if cache is None else replace(how, cache=cache)
        view = sampling_view(data, self.source_options.expansion.time_attr)
        self._seed_input = SeedInput(sampler_input.node, dict(columns_of(sampler_input)))
        self._view = view
        self._plan = make_plan(
            view, sampler_input, sampling_config, self.source_options, channel.size_of_one
        )
        self._ranks = Agreement(view, self._plan, self.source_options)
        self._sampler = sampler_kind(sampler_options)
        self._plugins = pickled(Plugins(self._sampler, worker_init_fn))
        self._users_code = worker_init_fn is not None or not self._sampler.is_own
        self._main_path = main_path_of(worker_init_fn)
        self._pool = WorkerPool(self.num_workers, tensors.dumps)
        self._orders = SeedOrders(
            self._seed_input,
            sampling_config,
            self.source_options.seed,
            self.source_options.groups_per_batch,
        )
        self.recovery = Recovery(
            self._pool,
            worker_options.worker_concurrency,
            self.source_options.max_restarts,
            self._orders.seeds_of,
            partial(check_files, data),  # of no producer: it would keep this one, and its seeds
        )
        self._looked_at_files = 0.0
        """Time of the last look at the dataset's files (`time.monotonic`)."""
        self._restart_thread: RestartThread | None = None
        # one lock for all attributes above: consumers, `RestartThread` and status use them at once
        self._lock = UninterruptedLock()
        self._tasks = Tasks(
            self.recovery,
            channel,
            self._orders,
            worker_options.worker_concurrency,
            self._ranks,
            self._lock,
            None if turns is None else turns[0].place(turns[1], self._pool.wake),
        )
        self._turns: WorkerTurns | None = None
        """When `init` starts workers, beside those of other ranks; None: this process is alone."""
        self._is_started = self._shut_down = False
        # of the thread: consumers of a server begin their epochs at once
        self._next_epoch = _OfThread()
        self.add_stream(0, channel.capacity)

    # -- start ----------------------------------------------------------------------------------

    def open(self, turns: WorkerTurns) -> None:
        """Start the workers in this process's turn, with those of the other ranks, by `init`.

        Raises:
            ConfigError: As for `join`.
            PeerError: A worker or another rank failed, or was not ready in time; none is left.
            UsageError: A subclass's `init` does not call this class's.
        """
        self._turns = turns
        self.init()
        if not self._is_started:
            raise UsageError(
                f"{type(self).__name__}.init has to call super().init(), which starts the workers"
            )

    def init(self, rendezvous: Rendezvous | None = None, security: Security | None = None) -> None:
        """Start the workers and connect them with those of the other partitions; see ``join``.

        GLT's name; the loader calls it once. A subclass may do more, around ``super()``.
        """
        turns, options = self._turns, self.source_options
        if turns is None:
            self.join(rendezvous, security)
            self.start()
        else:
            # a rank whose turn is last may come this much later
            limit_s = options.timeout_s + turns.total_s
            self.join(meet_ranks(limit_s, options.reconnect_timeout_s), security)
            # Waits after `join` and before `start`: by then all ranks have seen a rank whose turn
            # comes late, so its absence means that it failed, not that it waits.
            with self._ending_on_failure():
                turns.wait(self._ranks.wait_for_rank_before)
            # Each rank announces its start before it waits for the others in `connect`, because the
            # next rank's turn depends on it.
            self.start()
            self._ranks.announce("started")
        self.connect()
        self._is_started = True

    def join(self, rendezvous: Rendezvous | None = None, security: Security | None = None) -> None:
        """Meet the ranks that sample the same, and agree on how their workers connect.

        Args:
            rendezvous: The rendezvous, which this producer closes. None: this process is alone.
            security: Authentication of this producer's workers; None: the environment's.

        Raises:
            ConfigError: The dataset is one of several partitions and this process is alone, or
                workers would be open to strangers on other machines.
            PeerError: Another rank failed, or did not arrive in time.
        """
        with self._ending_on_failure():
            # rank 0's machine is one that all ranks can reach
            own_host = partial(address_towards, self.worker_options.master_addr)
            self._ranks.join(rendezvous, security or Security.resolve(), own_host)

    def start(self) -> None:
        """Start this producer's workers; return when each is ready.

        Raises:
            PeerError: A worker raised, died, or was not ready in time; none is left.
        """
        with self._ending_on_failure():
            try:
                self._pool.start(
                    self._worker_setup(),
                    self.source_options.timeout_s,
                    self.source_options.max_restarts,
                )
            except WorkerDiedError as error:
                if (changed := changed_file(error, self._check_files)) is not None:
                    raise changed from error
                raise
        self.channel.bind(self._receive)  # only now, as `recv` would wait in vain without workers

    def connect(self) -> None:
        """Tell the workers where the other partitions' workers are, and let them sample.

        Raises:
            PeerError: Another rank failed, or did not come up in time.
        """
        with self._ending_on_failure():
            self._ranks.connect(self._pool.addresses)
            self._tasks.look_ahead = self._ranks.look_ahead
            assignments = self._ranks.assignments()
            for worker in range(self.num_workers):
                self._pool.send(worker, *self._ranks.introduction(worker, assignments))
        self._ranks.leave_rendezvous()
        # without peers, the thread that waits for a batch notices the loss of its worker
        if self._ranks.has_peers and self.source_options.max_restarts:
            self._restart_thread = RestartThread(self._end_stopped_and_replace_lost)

    @property
    def rows_apart(self) -> bool:
        """Whether batches come without rows; see ``Agreement.rows_apart``."""
        return self._ranks.rows_apart

    @property
    def remote_bytes(self) -> int:
        """Bytes of all rows that only other machines have."""
        return self._ranks.remote_bytes

    @contextlib.contextmanager
    def _ending_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._ranks.fail(error)
            self.shutdown(linger_s=0.0)
            raise

    def _worker_setup(self) -> WorkerSetup:
        return WorkerSetup(
            view=self._view,
            plan=self._plan,
            seed_input=self._seed_input,
            batch_size=self.sampling_config.batch_size,
            concurrency=self.worker_options.worker_concurrency,
            cpus=self._cpus_of_a_worker(),
            access=self._ranks.access,
            rpc_timeout_s=min(
                self.worker_options.rpc_timeout, _PEER_SHARE * self.source_options.timeout_s
            ),
            replaceable=self.source_options.max_restarts > 0,
            plugins=self._plugins,
            users_code=self._users_code,
            main_path=self._main_path,
            kernels=kernels_of(
                self._plan,
                self._sampler,
                has_peers=self._ranks.access is not None,
                caches=self.source_options.producers_cache is not None,
            ),
        )

    def _cpus_of_a_worker(self) -> int:
        context = get_context()
        world_size = 1 if context is None else context.world_size
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))  # torchrun sets it
        return max(1, usable_cpus() // (self.num_workers * processes))

    # -- epochs ---------------------------------------------------------------------------------

    @property
    def num_batches(self) -> int:
        """Number of batches in an epoch over the whole input."""
        return self._orders.num_batches

    @property
    def input_len(self) -> int:
        """Number of seeds in the whole input."""
        return len(self._seed_input)

    def add_stream(self, number: int, limit: int) -> None:
        """Add a consumer with at most ``limit`` batches that are started and not taken."""
        with self._lock:
            self._tasks.add(BatchStream(number, limit, self.source_options.in_order))

    def remove_stream(self, number: int) -> None:
        """Forget a consumer and its batches in progress."""
        with self._lock:
            self._tasks.remove(number)

    def start_epoch(
        self,
        epoch: Attempt | int,
        batches: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
        *,
        stream: int = 0,
    ) -> None:
        """Begin an epoch; the rest of the previous one is dropped.

        Args:
            epoch: The attempt; a plain number means the epoch's next attempt after the last one
                started.
            batches: Indices of the batches to sample, in this order (None: all).
            positions: Position of each in the loader's epoch; None: they count from 0.
            stream: Number of the consumer.

        Raises:
            UsageError: The producer was shut down, or has not been started.
            FileChangedError: A mapped file of the dataset was changed.
            WorkerDiedError: A worker is gone and was not replaced.
        """
        self._next_epoch.asked = (stream, epoch, batches, positions)
        self.produce_all()
        if self._next_epoch.asked is not None:
            raise UsageError(
                f"{type(self).__name__}.produce_all has to call super().produce_all(), which "
                "begins the epoch"
            )

    def produce_all(self) -> None:
        """Begin the epoch that `start_epoch` was asked for; without it, the next whole one.

        GLT's name; the loader calls it once for each epoch. A subclass may do more, around
        ``super()``.
        """
        asked, self._next_epoch.asked = self._next_epoch.asked, None
        with self._lock:
            self._check_usable()
            self._check_files()
            self._tasks.raise_if_fatal()
            self.recovery.restarts.start_epoch()
            stream, epoch, batches, positions = asked or (0, self._number_after_last(), None, None)
            chosen = range(self.num_batches) if batches is None else batches
            self._tasks.begin(stream, epoch, chosen, positions)
            self.recovery.note_progress()
            self._tasks.dispatch()

    def _number_after_last(self) -> int:
        last = self._tasks.streams[0].attempt
        return 0 if last is None else last.epoch + 1

    def is_all_sampling_completed(self) -> bool:
        """Return whether all batches of the epoch have arrived; GLT's name."""
        with self._lock:
            state = self._tasks.streams[0]
            return state.left == state.waiting

    def is_all_sampling_completed_and_consumed(self) -> bool:
        """Return whether all batches of the epoch were taken; GLT's name."""
        with self._lock:
            return self._tasks.streams[0].finished

    def cancel_epoch(self, stream: int = 0) -> None:
        """Cancel the epoch of a consumer."""
        self._tasks.note_cancel(stream)
        # else the collector has ended an iterator within a call of this thread, which does the rest
        if not self._lock.is_held_here():
            with self._lock:
                if not self._shut_down:
                    self._tasks.cancel_noted()

    def leave_turns(self) -> None:
        """Begin no batch any more, since no thread pumps; other producers get the turns."""
        with self._lock:
            self._tasks.leave_turns()

    def put_back(self, stream: int, taken: int) -> None:
        """Return once more the batches that a consumer took after the first ``taken``."""
        with self._lock:
            self._tasks.streams[stream].put_back(taken)
            self._tasks.dispatch()

    # -- messages -------------------------------------------------------------------------------

    def next(self, timeout_s: float | None = None, stream: int = 0) -> Received | None:
        """Return the next batch of a consumer, or None at the end of its epoch.

        Raises:
            PeerTimeoutError: No worker made progress for ``timeout_s`` (None: the option's value).
            FileChangedError: A mapped file of the dataset was changed.
            WorkerDiedError, SamplingError: A worker ended and was not replaced, or raised.
        """
        with uninterrupted:
            return self._next(timeout_s, stream)

    def _next(self, timeout_s: float | None, stream: int) -> Received | None:
        limit = self.source_options.timeout_s if timeout_s is None else timeout_s
        # the trainer used the time since the last call: it does not count against workers
        self.recovery.note_progress()
        while True:
            with self._lock:
                self._check_usable()
                state = self._tasks.streams[stream]
                received = state.take()
                if received is not None:
                    self._tasks.dispatch()
                    return received
                if state.finished:
                    # the last chance of the last epoch to be found wrong
                    self._check_files()
                    return None
            # in steps of a second: another thread may file the batch or shut the producer down
            self.pump(min(1.0, limit))
            if self.recovery.is_stalled(limit) and not (
                timeout_s is None and self.replace_stalled(limit)
            ):
                self._raise_stalled(state, limit)

    def sample(self, index: Tensor, seed: int | None = None) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the current epoch.

        Raises:
            PeerTimeoutError: No worker sent anything for the option's timeout.
            WorkerDiedError, SamplingError: A worker ended, or raised.
        """
        self.start_at_once(index, seed)
        received = self.next(stream=AT_ONCE_STREAM)
        assert received is not None, "its epoch has one batch"
        return received

    def start_at_once(self, index: Tensor, seed: int | None = None) -> None:
        """Let a worker sample the batch of the seeds at ``index``, which `sample` describes.

        The consumer is ``AT_ONCE_STREAM``, with one such batch at a time.
        """
        with self._lock:
            self._check_usable()
            self._check_files()
            if AT_ONCE_STREAM not in self._tasks.streams:
                self.add_stream(AT_ONCE_STREAM, 1)
            # before its epoch of one batch begins, which sends this order to the workers
            self._orders.at_once = tensors.share_tensor(index)
            before = self._tasks.streams[AT_ONCE_STREAM].attempt
            serial = 1 if before is None else before.serial + 1
            self._tasks.begin(AT_ONCE_STREAM, Attempt(AT_ONCE_EPOCH, serial, seed), (0,))
            self.recovery.note_progress()
            self._tasks.dispatch()

    def _receive(self, timeout_s: float | None) -> SampleMessage:
        received = self.next(timeout_s)
        if received is None:
            raise UsageError("recv past the end of the epoch: start the next one first")
        return received.message

    def ready(self) -> bool:
        """Return whether `next` would return at once."""
        self.pump(0.0)
        with self._lock:
            state = self._tasks.streams[0]
            return state.finished or state.can_take

    def stream(self, number: int) -> BatchStream[Received]:
        """Return the state of a consumer's epoch; callers must not change it."""
        return self._tasks.streams[number]

    def take(self, stream: int) -> tuple[Received | None, bool]:
        """Return (the next batch if it has arrived, whether the epoch is over); never waits.

        Raises:
            SamplingError: A batch failed.
        """
        with self._lock:
            state = self._tasks.streams[stream]
            received = state.take()
            if received is not None:  # taking it made room for another one
                self._tasks.dispatch()
            return received, state.finished

    def pump(self, timeout_s: float) -> bool:
        """File messages of workers, waiting up to ``timeout_s`` for the first; return if any came.

        A failed batch ends the epoch of its consumer, which gets the error at its next `take`.

        Raises:
            FileChangedError: A mapped file of the dataset was changed.
            WorkerDiedError: A worker ended and was not replaced.
        """
        # not at each batch: the system takes some microseconds for the files of a graph
        if time.monotonic() - self._looked_at_files >= _FILES_EVERY_S:
            self._check_files()
        return self._tasks.pump(timeout_s)

    def _end_stopped_and_replace_lost(self) -> None:
        """Replace lost workers, as the training loop may be busy elsewhere."""
        # reads each worker's state in /proc four times a second, at a few microseconds each
        with self._lock:
            longest_s = _STOPPED_SHARE * self.source_options.timeout_s
            self.recovery.end_stopped(max(1, int(longest_s / LOOK_EVERY_S)))
        self._tasks.pump_if_lost()

    def replace_stalled(self, limit_s: float) -> bool:
        """End workers that made no progress for ``limit_s`` seconds, so that they are replaced.

        Returns:
            False if that is of no use: ``max_restarts`` are used up, or it was done before.
        """
        with self._lock:
            return self.recovery.replace_stalled(limit_s)

    def _raise_stalled(self, state: BatchStream[Received], limit: float) -> None:
        assert state.attempt is not None, "an epoch that is waited for was started"
        epoch = state.attempt.epoch
        busy = self.recovery.under_way.busy
        raise PeerTimeoutError(
            f"no sampling worker made progress for {limit:.1f} s; waiting for batch "
            f"{state.awaited} of epoch {epoch} from {self._pool.describe(busy)}; if a batch "
            "really takes that long, raise `timeout`"
        )

    def _check_files(self) -> None:
        self._looked_at_files = time.monotonic()
        check_files(self.data)

    def _check_usable(self) -> None:
        if self._shut_down:
            raise UsageError("the producer was shut down: build a new loader")

    def limit_stream(self, number: int, limit: int) -> None:
        """Let a consumer have at most ``limit`` batches started and not taken."""
        with self._lock:
            self._tasks.streams[number].limit = limit
            self._tasks.dispatch()

    def describe_workers(self) -> str:
        """Describe the activity of the workers as the system reports it."""
        return self._pool.describe(list(range(self.num_workers)))

    @property
    def queue_depth(self) -> int:
        """Batches that have arrived and wait to be taken."""
        with self._lock:
            return self._tasks.num_waiting

    def count_waiting(self) -> int:
        """Return how many batches wait to be taken, including those not read yet.

        They are read but not filed: a failure among them must not cost the batches before it. Call
        it in the thread that takes batches.
        """
        with uninterrupted:
            unread = self._tasks.count_batches()
            return self.queue_depth + unread

    @property
    def num_restarts(self) -> int:
        """Number of workers replaced so far."""
        return self.recovery.restarts.total

    @property
    def pids(self) -> list[int | None]:
        """Process id of each worker; None: it is being started, or replaced."""
        return self._pool.pids

    # -- stop -----------------------------------------------------------------------------------

    def shutdown(self, linger_s: float | None = None) -> None:
        """Stop the workers and release their memory. Idempotent.

        Args:
            linger_s: Workers go on serving other partitions whose loaders are still at work, until
                those are done or have sent no request for this many seconds. 0: workers end at
                once; None: ``LINGER_S``.
        """
        linger_s = LINGER_S if linger_s is None else linger_s
        with self._lock:
            if self._shut_down:
                return
            self._shut_down = True  # first, so that the producer is unusable after a failure below
            self.channel.bind(None)
            for stream in self._tasks.streams.values():
                stream.cancel()
        # outside the lock, for which `RestartThread`, and another thread that reads from the pool
        # while this one stops it, may wait
        if self._restart_thread is not None:
            self._restart_thread.close()
        self._tasks.close()
        self._pool.stop(linger_s if self._ranks.has_peers else 0.0)
        # after the workers, which read the cache and write to the channel's slots
        with self._lock:
            self._ranks.release_cache()
            self._tasks.look_ahead = None
        self._ranks.close()
        self.channel.close()
