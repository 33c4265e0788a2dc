"""Sampling in the training process: in the calling thread, or ahead of it, in step with others.

With one partition the batch is sampled on request: a breakpoint in the sampler stops there, and
nothing has to be started. With several partitions threads sample the next batches, because the
other ranks need their responses while this one computes::

    lane 0   batch 0 | batch 4 | ...        lane 0 of the other ranks
    lane 1   batch 1 | batch 5 | ...        lane 1
    ...                                     each lane exchanges over a process group of its own

A lane waits for the same lane of the other ranks; meanwhile the other lanes sample. `EpochBatches`
stands between the lanes and the thread that takes the batches.
"""

import logging
import math
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader.batch.device.device_memory import LentTensors
from gigl_loader.batch.leases import BufferPool, own_messages
from gigl_loader.batch.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    Attempt,
    BatchTicket,
    Field,
    Received,
    SampleMessage,
    columns_of,
)
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    UsageError,
)
from gigl_loader.runtime.glt_classes import NodeSamplerInput, SamplingConfig
from gigl_loader.runtime.memory import tensors
from gigl_loader.runtime.ranks.collectives import gather_from_ranks
from gigl_loader.runtime.threads import new_thread
from gigl_loader.runtime.transport.failures import fresh_copy
from gigl_loader.sampler.options import SamplerOptions, SourceOptions
from gigl_loader.sampler.plan import Sampler, SampleRequest, SeedInput
from gigl_loader.sampler.rows.row_exchange import LaterPeers, LaterRows
from gigl_loader.sampler.sampler_kinds import sampled_fields
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.sources.in_process.collective import (
    BROKEN_OFF,
    COMPLETE,
    AnswerFailedError,
    CollectivePeers,
    RankFailedError,
)
from gigl_loader.sources.in_process.device_rows import DeviceRows, device_rows
from gigl_loader.sources.in_process.lost_ranks import LOOK_S
from gigl_loader.sources.sampled_input import (
    SeedOrders,
    check_files,
    make_plan,
    sampler_kind,
    sampling_view,
)
from gigl_loader.sources.staggered_start import WorkerTurns

logger = logging.getLogger(__name__)

_AHEAD = 2
"""Batches sampled and not taken, at least; a lane keeps one."""
# Seconds: the largest delay with which `take` notices its deadline, and the time between two checks
# that the ranks still exchange. The other waits end by a notification.
_WAKE_S = 1.0


class ExchangeTurns:
    """Lets the lanes of an epoch act one after another, in the order of its steps.

    Args:
        num_allowed: Steps that may have their turn before `allow` is called.
    """

    def __init__(self, num_allowed: float = math.inf) -> None:
        self._next, self._num_allowed = 0, num_allowed
        self._ended_at: float = math.inf
        self._is_awaited = True
        self._changed = threading.Condition()

    def wait(self, step: int) -> bool:
        """Return whether it is this step's turn; False if an earlier one was the last.

        A lane that ends calls `end`, and a trainer that leaves calls `release`: so this waits only
        for living lanes, and for a trainer in the epoch.
        """
        with self._changed:
            while step < self._ended_at and not self._next == step < self._num_allowed:
                self._changed.wait(_WAKE_S)
            return step < self._ended_at

    def allow(self, num_steps: float) -> None:
        """Let the first ``num_steps`` steps have their turns."""
        with self._changed:
            self._num_allowed = max(self._num_allowed, num_steps)
            self._changed.notify_all()

    def wait_until_passed(self, step: int, deadline: float) -> None:
        """Return once a step has had its turn, or will have none, or ``deadline`` has passed.

        Args:
            step: Number of the step.
            deadline: By `time.monotonic`.
        """
        with self._changed:
            while self._next <= step < self._ended_at and self._is_awaited:
                if time.monotonic() >= deadline:
                    return
                self._changed.wait(_WAKE_S)

    def release(self) -> None:
        """Let all steps have their turns, and nobody wait until they have."""
        with self._changed:
            self._num_allowed, self._is_awaited = math.inf, False
            self._changed.notify_all()

    def passed(self, step: int) -> None:
        """Let the next step have its turn."""
        with self._changed:
            self._next = step + 1
            self._changed.notify_all()

    def end(self, step: int) -> None:
        """Note that ``step`` does not have its turn, so that none after it has.

        Those before it still have theirs: lanes of other ranks may have had them already, and all
        ranks have to stop at the same turn.
        """
        with self._changed:
            # Several lanes may end, each at its own step: the earliest one counts.
            self._ended_at = min(step, self._ended_at)
            self._changed.notify_all()


class EpochBatches:
    """The batches that one rank samples in an epoch, taken in order.

    Ranks whose devices exchange may also train with collectives of their own. Each device needs
    one order of all of them, so exchanges are launched only while the trainer waits in `take`::

        take batch 0    launch the exchanges of steps 0, 1, ... num_ahead
        train           the model's collectives
        take batch 1    launch those of step num_ahead + 1
        ...

    Args:
        attempt: The epoch, and the attempt at it.
        batches: Indices of its batches.
        positions: Position of each in the loader's epoch.
        order: Positions of the seeds in the input; None: in the input's order.
        room: Batches that may have been sampled and not taken.
        num_ahead: Steps behind the one that is taken whose exchanges have been launched, the same
            on all ranks; None: nothing is exchanged between devices, and `turns` are for nobody.
    """

    def __init__(
        self,
        attempt: Attempt,
        batches: Sequence[int],
        positions: Sequence[int],
        order: Any,
        room: int,
        num_ahead: int | None = None,
    ) -> None:
        self.attempt, self.batches, self.positions = attempt, batches, positions
        self.order = order
        self.taken = 0
        """Batches that the trainer has; also the step of its next one."""
        self.is_broken_off = False
        self.error: GiglLoaderError | None = None
        """The first one; it ends the epoch, and is raised as copies."""
        # one without batches takes none, and only serves the others
        waits_for_trainer = num_ahead is not None and len(batches) > 0
        self.turns = ExchangeTurns(0 if waits_for_trainer else math.inf)
        """Order of the epoch's steps, for exchanges between devices."""
        self._room, self._num_ahead = room, num_ahead
        self._ready: dict[int, Received] = {}
        self._changed = threading.Condition()

    @property
    def num_ready(self) -> int:
        """Batches that wait to be taken."""
        return len(self._ready)

    def would_not_wait(self) -> bool:
        """Return whether `take` would return or raise at once.

        With exchanges between devices: whether an earlier `take` has launched those of the batch.
        """
        if self._num_ahead is not None:
            # not what has come, which differs from rank to rank: the order of launches would, too
            return self.taken > 0
        is_over = self.error is not None or self.taken == len(self.batches)
        return is_over or self.taken in self._ready

    def break_off(self) -> None:
        """End all waits."""
        with self._changed:
            self.is_broken_off = True
            # No batch is taken any more, and each keeps a block of memory.
            self._ready.clear()
            self._changed.notify_all()
        self.turns.release()

    def fail(self, error: BaseException) -> None:
        """End the epoch with ``error``, unless another one has; one of others becomes ours."""
        if not isinstance(error, GiglLoaderError):  # its class may not be copied
            ours = SamplingError(
                f"sampling for epoch {self.attempt.epoch}",
                f"{type(error).__name__}: {error}",
                "".join(traceback.format_exception(error)),
            )
            ours.__cause__ = error
            error = ours
        with self._changed:
            # The first one: later errors are its consequences, from ranks or lanes that it reached.
            self.error = self.error or error
            self._changed.notify_all()

    def hand_over(self, step: int, received: Received) -> None:
        """Give batch number ``step`` to the trainer; waits while there is no room for it."""
        with self._changed:
            # Counted from the batches taken, not from those ready: with one batch missing, later
            # ones must not take its room.
            while step >= self.taken + self._room and not self._is_over():
                self._changed.wait(_WAKE_S)
            # After an error a batch is still filed: `take` hands out available ones before it
            # raises.
            if not self.is_broken_off:
                self._ready[step] = received
                self._changed.notify_all()

    def take(self, limit_s: float) -> Received:
        """Return the next batch.

        Raises:
            UsageError: The epoch was broken off meanwhile, for example by a signal handler.
            PeerTimeoutError: There was none in ``limit_s`` seconds.
            PeerError: The error that ended the epoch.
        """
        # A lane that waits as long needs a moment more, to find out which rank is missing.
        deadline = time.monotonic() + limit_s + LOOK_S
        if self._num_ahead is not None:
            self._launch_ahead(self._num_ahead, deadline)
        with self._changed:
            # An available batch comes before the error of a later one: it is valid.
            while self.taken not in self._ready:
                if self.error is not None:
                    raise fresh_copy(self.error)
                if self.is_broken_off:  # no lane samples for it any more
                    raise UsageError(f"epoch {self.attempt.epoch} was broken off: start one first")
                if time.monotonic() >= deadline:
                    raise PeerTimeoutError(
                        f"batch {self.batches[self.taken]} of epoch {self.attempt.epoch} was not "
                        f"sampled in {limit_s:.0f} s: the ranks sample together, so each has to "
                        "take its batches; if a step really takes that long, raise `timeout`"
                    )
                self._changed.wait(_WAKE_S)
            received = self._ready.pop(self.taken)
            self.taken += 1
            self._changed.notify_all()
            return received

    def _launch_ahead(self, num_ahead: int, deadline: float) -> None:
        """Let the lanes launch their exchanges, in this thread's time; return once they have."""
        last = len(self.batches) - 1
        step = self.taken + num_ahead
        # with the last batch also all that is left of ranks with more: this one may not come again
        self.turns.allow(step + 1 if self.taken < last else math.inf)
        self.turns.wait_until_passed(min(step, last), deadline)

    def _is_over(self) -> bool:
        return self.is_broken_off or self.error is not None


class InProcessSource:
    """Samples one input in this process; a `gigl_loader.sources.batch_source.BatchSource`.

    Args:
        data: The dataset; with several partitions, all ranks build theirs together.
        sampler_input: Seeds; further columns in the attribute ``extra``.
        config: How to sample.
        source_options: Seed, order, deadline.
        sampler_options: Another sampler than the k-hop neighbour sampler.
        concurrency: With several partitions: batches that are under way at once. If ranks differ,
            all take the least number.
        device: Device of the batches. If the process group has a backend for it on all ranks, rows
            go from device to device, and arrive on it.
    """

    def __init__(
        self,
        data: DistDataset,
        sampler_input: NodeSamplerInput,
        config: SamplingConfig,
        source_options: SourceOptions,
        sampler_options: SamplerOptions | None = None,
        concurrency: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self.data, self.sampling_config, self.source_options = data, config, source_options
        self.channel = None
        self.num_workers = self.remote_bytes = 0
        view = sampling_view(data, source_options.expansion.time_attr)
        self._plan = make_plan(view, sampler_input, config, source_options)
        # Samplers are written for workers, which have arrays; kernels do not take torch's tensors.
        self._view = tensors.as_received(view)
        extra = columns_of(sampler_input)
        columns = {name: tensors.as_array(column) for name, column in extra.items()}
        self._input = SeedInput(sampler_input.node.numpy(), columns)
        self._orders = SeedOrders(
            SeedInput(sampler_input.node, dict(extra)),
            config,
            source_options.seed,
            source_options.groups_per_batch,
        )
        self._sampler_kind = sampler_kind(sampler_options)
        self._concurrency, self._device = concurrency, device or torch.device("cpu")
        self._rows: DeviceRows | None = None
        # one of each per lane; with one partition no peers, and one sampler
        self._peers: list[CollectivePeers] = []
        self._samplers: list[Sampler] = []
        self._memory: list[BufferPool] = []
        self._threads: list[threading.Thread] = []
        self._epoch: EpochBatches | None = None
        self._shut_down = False
        self._sampling = threading.Lock()
        """A sampler is for one thread at a time; whoever takes batches may be several."""

    # -- start -------------------------------------------------------------------------------------

    def open(self, turns: WorkerTurns) -> None:
        """Build the samplers; with several partitions, together with the other ranks.

        No process is started whose memory would need a turn.
        """
        if self._view.num_partitions > 1:
            # Lanes of all ranks are built in one order, since each makes a process group. Ranks
            # with fewer lanes would be missing in the last ones, so ranks first agree on the
            # number; or learn that one of them failed, before they wait for its groups.
            lanes_by_rank = gather_from_ranks(self._concurrency, dist.get_world_size(), int)
            for _ in range(min(lanes_by_rank)):
                self._peers.append(CollectivePeers(self._view, self.source_options.timeout_s))
            self._rows = device_rows(self._peers[0], self._view, self._device)
        # A sampler owns scratch memory and a lane runs in its own thread, so nothing is shared.
        lanes: Sequence[CollectivePeers | None] = self._peers or [None]
        self._samplers = [
            # rows that go from device to device are exchanged after the batch was sampled
            self._sampler_kind.build(
                self._view,
                self._plan,
                lane if lane is None or self._rows is None else LaterPeers(lane),
            )
            for lane in lanes
        ]
        self._memory = [own_messages(pin_memory=self._device.type == "cuda") for _ in lanes]

    @property
    def input_len(self) -> int:
        """Seeds of the whole input."""
        return len(self._input)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch over the whole input."""
        return self._orders.num_batches

    def count_waiting(self) -> int:
        """Return how many sampled batches wait to be taken."""
        return self._epoch.num_ready if self._epoch is not None else 0

    # -- epochs ------------------------------------------------------------------------------------

    def start_epoch(
        self, attempt: Attempt, batches: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Begin an epoch; the rest of the previous one is dropped."""
        if self._shut_down:
            raise UsageError("this loader was shut down: build a new one")
        # With several ranks each batch does: an error here would leave the others waiting.
        if not self._peers:
            check_files(self.data)
        self.cancel_epoch()
        # The lanes' groups are those of the previous epoch: its last rounds must be over.
        wait_for_lanes(self._threads, self._peers, self.source_options.timeout_s)
        shuffled = self._orders.of(0, attempt.epoch, attempt.seed)
        order = None if shuffled is None else shuffled.numpy()
        # Threads get the epoch as an argument: they work on this one, even after the next has
        # begun.
        room = self._room()
        begun = self._epoch = EpochBatches(
            attempt, batches, positions, order, room, room - 1 if self._devices_exchange else None
        )
        self._threads = [
            # Daemons: the interpreter does not wait at its end for lanes whose other ranks are
            # gone.
            new_thread(
                target=self._run,
                args=(begun, lane),
                name=f"gigl_loader samples epoch {attempt.epoch}, lane {lane}",
                on_death=begun.fail,
            )
            for lane in range(len(self._peers))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def _devices_exchange(self) -> bool:
        """Whether the devices of ranks exchange, perhaps beside the collectives of the model."""
        return self._rows is not None

    def _room(self) -> int:
        """Return how many batches may have been sampled and not taken; the same on all ranks."""
        # one per lane at least: else a lane would keep its batch while the others wait for it
        return max(_AHEAD, len(self._peers))

    def cancel_epoch(self) -> None:
        """Break the epoch off: no further batch of it is sampled here."""
        if self._epoch is not None:
            self._epoch.break_off()

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None at the end of the epoch.

        Raises:
            FileChangedError: A mapped file of the dataset was changed.
            SamplingError: The sampler raised.
            PeerError: Another rank raised, or ended.
        """
        epoch = self._epoch
        if epoch is None or epoch.is_broken_off:
            raise UsageError("no epoch is under way: start one first")
        # An error of the last steps, in which this rank only responded, must not pass for a normal
        # end.
        if epoch.taken == len(epoch.batches):
            if epoch.error is not None:
                raise fresh_copy(epoch.error)
            check_files(self.data)
            return None
        if self._peers:
            return epoch.take(self.source_options.timeout_s if timeout_s is None else timeout_s)
        with self._sampling:
            if epoch.taken == len(epoch.batches):  # another thread has taken the last one
                return None
            received = self._next_here(epoch)
            epoch.taken += 1
            return received

    def _next_here(self, epoch: EpochBatches) -> Received:
        """Return the next batch of an epoch that this thread samples."""
        return self._sample_now(self._request_of(epoch, epoch.taken))

    def sample(self, index: Any, seed: int | None = None) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch under way.

        Raises:
            SamplingError: The sampler raised.
            UsageError: Other ranks would have to sample at the same time.
        """
        if self._shut_down:
            raise UsageError("this loader was shut down: build a new one")
        if self._peers:
            raise UsageError(
                'a batch at once would need the other ranks, which with exchange="collective" '
                'answer in step: build the loader with exchange="workers"'
            )
        # Draws are keyed by epoch and batch: the same ones for the same seeds, in no real epoch.
        ticket = BatchTicket(AT_ONCE_STREAM, 0, AT_ONCE_EPOCH, 0, seed=seed)
        size = self.sampling_config.batch_size
        with self._sampling:
            return self._sample_now(self._input.request(ticket, index.numpy(), size))

    def _sample_now(self, request: SampleRequest) -> Received:
        return self._sample(request, 0)[0]

    def ready(self) -> bool:
        """Return whether `next` would return at once."""
        return self._epoch is not None and bool(self._peers) and self._epoch.would_not_wait()

    # -- sampling ----------------------------------------------------------------------------------

    def _run(self, epoch: EpochBatches, lane: int) -> None:
        """Sample this lane's batches of an epoch in step with the other ranks' lane."""
        # If `agree` raises, the lane's first step is the one that does not have its turn.
        step, peers = lane, self._peers[lane]
        peers.on_failure = epoch.fail
        try:
            steps = peers.agree(epoch.attempt.epoch, len(epoch.batches))
            # Up to the steps of the rank with most batches: the others respond to it until then.
            for step in range(lane, steps, len(self._peers)):
                if not self._take_step(epoch, step, lane):
                    epoch.turns.end(step)
                    return
        except BaseException as error:
            epoch.fail(error)
            epoch.turns.end(step)

    def _take_step(self, epoch: EpochBatches, step: int, lane: int) -> bool:
        """Sample one batch, or only respond to the others; return whether the epoch goes on."""
        peers = self._peers[lane]
        # Another lane failed. The other ranks' lanes of this number wait in a round, and are told.
        if epoch.error is not None:
            self._tell_others(epoch.error, peers)
            return False
        sampled: tuple[Received, list[Field]] | None = None
        if step < len(epoch.batches) and not epoch.is_broken_off:
            with self._error_sent_to_ranks(epoch, lane):
                sampled = self._sample(self._request_of(epoch, step), lane)
        # With or without a batch: ranks that still sample theirs need responses. The epoch ends
        # before its last step only if all ranks have broken it off.
        if peers.finish(BROKEN_OFF if epoch.is_broken_off else COMPLETE):
            return False
        if self._rows is not None:
            rows = self._rows.fetch(
                peers,
                sampled[1] if sampled else [],
                partial(epoch.turns.wait, step),
                partial(epoch.turns.passed, step),
            )
            # An earlier step was the last one, on all ranks.
            if rows is None:
                return False
            if sampled:
                sampled = with_rows(sampled[0], rows), []
        if sampled:
            epoch.hand_over(step, sampled[0])
        return True

    @contextmanager
    def _error_sent_to_ranks(self, epoch: EpochBatches, lane: int) -> Iterator[None]:
        """End the epoch with an error of the block's sampler, and report it to the other ranks."""
        try:
            yield
        except AnswerFailedError:  # the others know
            raise
        except (SamplingError, ConfigError) as error:
            epoch.fail(error)  # before others know: their errors are then not the first one
            self._tell_others(error, self._peers[lane])
            raise

    def _tell_others(self, error: BaseException, peers: CollectivePeers) -> None:
        """Report the rank that raised; if a group broke, the others have their own error."""
        if not any(group.is_broken for group in self._peers):
            peers.fail(error.rank if isinstance(error, RankFailedError) else peers.rank)

    def _sample(self, request: SampleRequest, lane: int) -> tuple[Received, list[Field]]:
        """Return a batch, and the fields whose rows are to be exchanged between devices."""
        # This process itself reads the files: past the end of one that has become shorter it would
        # end by SIGBUS, which nothing in Python can catch.
        check_files(self.data)
        started = time.perf_counter()
        with named_errors(request.ticket):
            fields = sampled_fields(self._samplers[lane], request, self._view)
            # Rows that go from device to device stay out of the message, and are read for the
            # exchange.
            later = [field for field in fields if isinstance(field.write, LaterRows)]
            fields = [field for field in fields if not isinstance(field.write, LaterRows)]
            sampled = time.perf_counter()
            message, nbytes = self._memory[lane].write(fields)
        seconds = sampled - started, time.perf_counter() - sampled
        return self._received(request, message, nbytes, *seconds, lane), later

    def _received(
        self,
        request: SampleRequest,
        message: SampleMessage,
        nbytes: int,
        sample_s: float,
        gather_s: float,
        lane: int = 0,
    ) -> Received:
        """Return a batch with its measurements, which are those that workers send."""
        stats = {
            "seeds": request.seeds.size,
            "idle_s": 0.0,
            "sample_s": sample_s,
            "gather_s": gather_s,
            "ended_ns": time.time_ns(),
            "asked": self._peers[0].size - 1 if self._peers else 0,
            "worker": lane,
            "nbytes": nbytes,
        }
        return Received(request.ticket, message, stats)

    def _request_of(self, epoch: EpochBatches, step: int) -> SampleRequest:
        attempt = epoch.attempt
        ticket = BatchTicket(
            0,
            attempt.serial,
            attempt.epoch,
            epoch.batches[step],
            epoch.positions[step],
            attempt.seed,
            step,
        )
        return self._input.request(ticket, epoch.order, self.sampling_config.batch_size)

    # -- stop --------------------------------------------------------------------------------------

    def shutdown(self, linger_s: float | None = None) -> None:
        """End, but respond to the other ranks until they end their epoch.

        Args:
            linger_s: Most seconds for that; None: as long as workers would.
        """
        if self._shut_down:
            return
        linger_s = LINGER_S if linger_s is None else linger_s
        self._shut_down = True
        self.cancel_epoch()
        deadline = time.monotonic() + linger_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        # Their groups stay, as a thread still exchanges over one of them.
        if any(thread.is_alive() for thread in self._threads):
            logger.warning("other ranks are in an epoch that this one has left: they will fail")
            return
        for peers in self._peers:
            peers.close()


def wait_for_lanes(
    threads: Sequence[threading.Thread], lanes: Sequence[CollectivePeers], limit_s: float
) -> None:
    """Wait for the previous epoch's lanes: they respond to others until these end it, too.

    They may take long, but not between two rounds: then one has stopped.

    Args:
        threads: The threads of the lanes.
        lanes: What the lanes exchange with the other ranks.
        limit_s: Most seconds between two rounds.

    Raises:
        PeerTimeoutError: The ranks had no round for ``limit_s`` seconds.
    """
    rounds = sum(peers.rounds for peers in lanes)
    deadline = time.monotonic() + limit_s
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(min(_WAKE_S, limit_s))
        # Ranks in their epoch may take any time; the deadline is for the next round.
        if (now := sum(peers.rounds for peers in lanes)) != rounds:
            rounds, deadline = now, time.monotonic() + limit_s
        elif alive[0].is_alive() and time.monotonic() >= deadline:
            raise PeerTimeoutError(
                f"the epoch before cannot end: the {lanes[0].size} ranks that sample together "
                f"exchanged nothing for {limit_s:g} s. One has stopped, or computes for longer "
                "than that between batches: then raise `timeout`"
            )


@contextmanager
def named_errors(ticket: BatchTicket, where: str | None = None) -> Iterator[None]:
    """Raise a sampler's error inside the block as a `SamplingError` of this batch, or ``where``."""
    try:
        yield
    except PeerError:  # from the exchange: the others know
        raise
    except Exception as error:
        what = f"the sampler in this process, epoch {ticket.epoch}, batch {ticket.batch},"
        cause = f"{type(error).__name__}: {error}"
        raise SamplingError(where or what, cause, traceback.format_exc()) from error


def with_rows(received: Received, rows: LentTensors) -> Received:
    """Return a batch with its tensors on the device."""
    stats = {**received.stats, "nbytes": received.stats["nbytes"] + rows.nbytes}
    return replace(received, stats=stats, rows=rows)
