"""Sampling in the training process: in the thread that asks, or ahead of it, in step with others.

With one partition the batch is sampled when it is asked for: a breakpoint in the sampler stops
there, and nothing has to be started. With several partitions a thread samples the next batches,
because the other ranks need its answers while this one computes.
"""

import ctypes
import importlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigl_loader._glt import NodeSamplerInput, SamplingConfig
from gigl_loader.dataset.local import DistDataset
from gigl_loader.errors import (
    ConfigError,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    UsageError,
)
from gigl_loader.loader.collective import BROKEN_OFF, COMPLETE, FAILED, CollectivePeers
from gigl_loader.memory import segments, tensors
from gigl_loader.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    BatchTicket,
    Received,
    SampleMessage,
)
from gigl_loader.options import CustomSamplerOptions, EpochOptions, SamplerOptions
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import Field, Sampler, SampleRequest, scale_fields
from gigl_loader.workers.producer import epoch_order, make_plan, view_of
from gigl_loader.workers.schedule import num_batches

logger = logging.getLogger(__name__)

_AHEAD = 2
"""Batches sampled and not taken."""
_LINGER_S = 30.0
_WAKE_S = 1.0


@dataclass
class _Epoch:
    """One epoch of a rank; shared by the thread that samples and the one that takes."""

    number: int
    batches: Sequence[int]
    order: Any
    changed: threading.Condition = field(default_factory=threading.Condition)
    ready: deque[Received] = field(default_factory=deque)
    taken: int = 0
    broken_off: bool = False
    error: BaseException | None = None


class InProcessSource:
    """Samples one input in this process; a `Source`, and what a loader asks of its producer.

    Args:
        data: The dataset; with several partitions, all ranks build theirs together.
        sampler_input: Seeds; further columns in the attribute ``extra``.
        config: What to sample.
        epoch_options: Seed, order, deadline.
        sampler_options: Another sampler than the k-hop neighbour sampler.
        default_sampler: Sampler class path and keywords where ``sampler_options`` names none.
    """

    def __init__(
        self,
        data: DistDataset,
        sampler_input: NodeSamplerInput,
        config: SamplingConfig,
        epoch_options: EpochOptions,
        sampler_options: SamplerOptions | None = None,
        default_sampler: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self.data, self.sampling_config, self.epoch_options = data, config, epoch_options
        self.channel = None
        self.num_workers = 0
        view = view_of(data, epoch_options.expansion.time_attr)
        self._plan = make_plan(view, sampler_input, config, epoch_options)
        self._view = _as_arrays(view)
        extra = getattr(sampler_input, "extra", None) or {}
        self._seeds = sampler_input.node.numpy()
        self._extra = {name: tensors.as_array(column) for name, column in extra.items()}
        self._sampler_class = default_sampler
        if isinstance(sampler_options, CustomSamplerOptions):
            self._sampler_class = (sampler_options.class_path, sampler_options.keywords)
        self._peers: CollectivePeers | None = None
        self._sampler: Sampler | None = None
        self._epoch: _Epoch | None = None
        self._thread: threading.Thread | None = None
        self._shut_down = False

    # -- as a producer -----------------------------------------------------------------------------

    def join(self, extra_s: float = 0.0) -> None:
        """Do nothing: there is nobody to meet but in the process group."""

    def wait_for_rank_before(self, what: str) -> None:
        """Do nothing: no process is started."""

    def announce(self, what: str) -> None:
        """Do nothing: nobody waits."""

    def start(self) -> None:
        """Build the sampler; with several partitions, together with the other ranks."""
        if self._view.num_partitions > 1:
            self._peers = CollectivePeers(self._view, self.epoch_options.timeout_s)
        if self._sampler_class is None:
            self._sampler = NeighborSampler(self._view, self._plan, self._peers)
            return
        path, keywords = self._sampler_class
        module, _, name = path.rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        self._sampler = kind(self._view, self._plan, self._peers, **keywords)

    def connect(self) -> None:
        """Do nothing: `start` met the others."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch over the whole input."""
        config = self.sampling_config
        return num_batches(len(self._seeds), config.batch_size, config.drop_last)

    @property
    def pids(self) -> list[int]:
        """No process was started."""
        return []

    @property
    def queue_depth(self) -> int:
        """Batches that were sampled ahead and wait to be taken."""
        return len(self._epoch.ready) if self._epoch is not None else 0

    # -- as a source -------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, batches: Sequence[int] | None = None) -> None:
        """Begin an epoch; what is left of the one before is dropped."""
        if self._shut_down:
            raise UsageError("this loader was shut down: build a new one")
        self.cancel_epoch()
        self._wait_for_former()
        order = None
        if self.sampling_config.shuffle:
            order = epoch_order(len(self._seeds), self.epoch_options.seed, epoch).numpy()
        chosen = range(self.num_batches) if batches is None else batches
        self._epoch = _Epoch(epoch, chosen, order)
        if self._peers is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._epoch, self._peers),
                name=f"gigl_loader samples epoch {epoch}", daemon=True,
            )  # fmt: skip
            self._thread.start()

    def _wait_for_former(self) -> None:
        """Wait for the thread of the epoch before: it answers the others until they end it, too.

        They may take long, but not between two rounds: then one has stopped.

        Raises:
            PeerTimeoutError: The ranks had no round for the loader's timeout.
        """
        if self._thread is None or self._peers is None:
            return
        limit, rounds = self.epoch_options.timeout_s, self._peers.rounds
        deadline = time.monotonic() + limit
        while self._thread.is_alive():
            self._thread.join(min(_WAKE_S, limit))
            if self._peers.rounds != rounds:
                rounds, deadline = self._peers.rounds, time.monotonic() + limit
            elif self._thread.is_alive() and time.monotonic() >= deadline:
                raise PeerTimeoutError(
                    f"the epoch before cannot end: the {self._peers.size} ranks that sample "
                    f"together exchanged nothing for {limit:g} s. One has stopped, or computes for "
                    "longer than that between batches: then raise `timeout`"
                )

    def cancel_epoch(self) -> None:
        """Break the epoch off: no further batch of it is sampled here."""
        epoch = self._epoch
        if epoch is not None:
            with epoch.changed:
                epoch.broken_off = True
                epoch.ready.clear()
                epoch.changed.notify_all()

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None at the end of the epoch.

        Raises:
            SamplingError: The sampler raised.
            PeerError: Another rank raised, or ended.
        """
        epoch = self._epoch
        if epoch is None or epoch.broken_off:
            raise UsageError("no epoch is under way: start one first")
        if epoch.taken == len(epoch.batches):
            if self._thread is not None and epoch.error is not None:
                raise epoch.error
            return None
        if self._peers is None:
            found = self._sample(self._request_of(epoch, epoch.taken))
        else:
            limit = self.epoch_options.timeout_s if timeout_s is None else timeout_s
            found = self._take(epoch, limit)
        epoch.taken += 1
        return found

    def sample(self, index: Any) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch under way.

        Raises:
            SamplingError: The sampler raised.
            UsageError: Other ranks would have to sample at the same time.
        """
        if self._shut_down:
            raise UsageError("this loader was shut down: build a new one")
        if self._peers is not None:
            raise UsageError(
                'a batch at once would need the other ranks, which with exchange="collective" '
                'answer in step: build the loader with exchange="workers"'
            )
        ticket = BatchTicket(AT_ONCE_STREAM, 0, AT_ONCE_EPOCH, 0)
        return self._sample(self._request(ticket, index.numpy()))

    def ready(self) -> bool:
        """Return whether `next` would not wait."""
        epoch = self._epoch
        if epoch is None or self._peers is None:
            return False
        return bool(epoch.ready) or epoch.error is not None or epoch.taken == len(epoch.batches)

    def _take(self, epoch: _Epoch, limit_s: float) -> Received:
        deadline = time.monotonic() + limit_s
        with epoch.changed:
            while not epoch.ready:
                if epoch.error is not None:
                    raise epoch.error
                if time.monotonic() >= deadline:
                    raise PeerTimeoutError(
                        f"batch {epoch.batches[epoch.taken]} of epoch {epoch.number} was not "
                        f"sampled in {limit_s:.0f} s: the ranks sample together, so each has to "
                        "take its batches; if a step really takes that long, raise `timeout`"
                    )
                epoch.changed.wait(_WAKE_S)
            found = epoch.ready.popleft()
            epoch.changed.notify_all()
            return found

    # -- sampling ----------------------------------------------------------------------------------

    def _run(self, epoch: _Epoch, peers: CollectivePeers) -> None:
        """Sample an epoch in step with the other ranks; the life of a thread."""
        try:
            steps = peers.agree(epoch.number, len(epoch.batches))
            for step in range(steps):
                found = None
                if step < len(epoch.batches) and not epoch.broken_off:
                    found = self._sample_or_tell(epoch, step, peers)
                if peers.finish(BROKEN_OFF if epoch.broken_off else COMPLETE):
                    return
                if found is not None:
                    self._hand_over(epoch, found)
        except BaseException as error:
            with epoch.changed:
                epoch.error = error
                epoch.changed.notify_all()

    def _sample_or_tell(self, epoch: _Epoch, step: int, peers: CollectivePeers) -> Received:
        try:
            return self._sample(self._request_of(epoch, step))
        except SamplingError:
            peers.round(FAILED)
            raise

    def _hand_over(self, epoch: _Epoch, found: Received) -> None:
        with epoch.changed:
            while len(epoch.ready) >= _AHEAD and not epoch.broken_off:
                epoch.changed.wait(_WAKE_S)
            if not epoch.broken_off:
                epoch.ready.append(found)
                epoch.changed.notify_all()

    def _sample(self, request: SampleRequest) -> Received:
        assert self._sampler is not None
        ticket = request.ticket
        started = time.perf_counter()
        try:
            fields = [
                f if isinstance(f, Field) else Field.of(*f) for f in self._sampler.sample(request)
            ]
            fields += scale_fields(self._view, fields)
            sampled = time.perf_counter()
            message, nbytes = _write(fields)
        except PeerError:  # of the exchange: the others know
            raise
        except Exception as error:
            where = f"the sampler in this process, epoch {ticket.epoch}, batch {ticket.batch},"
            cause = f"{type(error).__name__}: {error}"
            raise SamplingError(where, cause, traceback.format_exc()) from error
        stats = {
            "seeds": request.seeds.size, "idle_s": 0.0, "sample_s": sampled - started,
            "gather_s": time.perf_counter() - sampled, "ended_ns": time.time_ns(),
            "asked": 0 if self._peers is None else self._peers.size - 1, "worker": 0,
            "nbytes": nbytes,
        }  # fmt: skip
        return Received(ticket, message, stats)

    def _request_of(self, epoch: _Epoch, step: int) -> SampleRequest:
        ticket = BatchTicket(0, 0, epoch.number, epoch.batches[step])
        size = self.sampling_config.batch_size
        start, stop = ticket.batch * size, min((ticket.batch + 1) * size, len(self._seeds))
        order = epoch.order
        chosen = np.arange(start, stop) if order is None else order[start:stop].copy()
        return self._request(ticket, chosen)

    def _request(self, ticket: BatchTicket, input_id: Any) -> SampleRequest:
        extra = {name: column[input_id] for name, column in self._extra.items()}
        return SampleRequest(ticket, self._seeds[input_id], input_id, extra)

    # -- stop --------------------------------------------------------------------------------------

    def shutdown(self, linger_s: float = _LINGER_S) -> None:
        """End; but answer the other ranks until they end their epoch, for at most ``linger_s``."""
        if self._shut_down:
            return
        self._shut_down = True
        self.cancel_epoch()
        if self._thread is not None:
            self._thread.join(linger_s)
            if self._thread.is_alive():
                logger.warning("other ranks are in an epoch that this one has left: they will fail")
        if self._peers is not None and (self._thread is None or not self._thread.is_alive()):
            self._peers.close()


def check_in_process(data: DistDataset, exchange: str) -> None:
    """Raise `ConfigError` where this process alone does not have the whole graph."""
    if exchange != "collective" and data.num_partitions > 1:
        raise ConfigError(
            f"num_workers=0 samples in this process, which holds partition {data.partition_idx} of "
            f'{data.num_partitions}: add exchange="collective", by which the ranks ask each other, '
            "or give the loader workers"
        )


def _as_arrays(view: Any) -> Any:
    data, fds = tensors.dumps(view)
    try:
        return segments.loads(data, fds)
    finally:
        segments.close_fds(fds)


def _write(fields: Sequence[Field]) -> tuple[SampleMessage, int]:
    message, total = {}, 0
    for one in fields:
        nbytes = segments.nbytes_of(one.dtype, one.shape)
        buffer = (ctypes.c_char * nbytes)()
        one.write(segments.array_in(buffer, one.dtype, one.shape, 0))
        message[one.key] = tensors.tensor_in(buffer, one.dtype, one.shape, 0)
        total += nbytes
    return message, total
