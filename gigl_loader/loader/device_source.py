"""Sampling on the device of the model, ahead of the step, by the thread that takes the batches.

::

    next()   launch batch 3 | finish batch 0: counts are there, rows are gathered | hand it over
    next()   launch batch 4 | finish batch 1 ...

Launching waits for nothing on the device. When a batch is finished, its counts were launched some
steps ago, so the host can usually read them without a wait.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from gigl_loader._glt import NodeSamplerInput, SamplingConfig
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.placement import Placement
from gigl_loader.device.memory import DeviceMemory, LentTensors
from gigl_loader.errors import ConfigError, SamplingError, UsageError
from gigl_loader.loader.in_process import EpochBatches, InProcessSource, named_errors
from gigl_loader.memory.leases import own_messages
from gigl_loader.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    Attempt,
    BatchTicket,
    Received,
    SampleMessage,
)
from gigl_loader.on_device.device_graph import DeviceGraph
from gigl_loader.on_device.device_kernels import kernels_for
from gigl_loader.on_device.sampler import (
    CutBatch,
    DeviceSampler,
    Launched,
    PlacedRoots,
    check_plan,
    checked,
)
from gigl_loader.options import EpochOptions, SamplerOptions
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.workers.agreement import StartTurns
from gigl_loader.workers.sampled_input import view_of
from gigl_loader.workers.worker import load_sampler

_MOST_AHEAD = 256
"""Most batches that are drawn before the cache knows enough; each keeps its edges."""


class PlacedSource(InProcessSource):
    """What sources on devices have in common: a placement, and a plan that devices can sample.

    Args:
        data: The dataset, with a placement.
        sampler_input: Seeds; further columns in the attribute ``extra``.
        config: How to sample.
        epoch_options: Seed, order, deadline.
        sampler_options: Another sampler than the k-hop neighbour sampler: the roots of links.
        concurrency: Batches that are under way at once.
        device: Device of the batches: that of the placement.

    Raises:
        ConfigError: The device lacks a requested feature, or memory.
    """

    def __init__(
        self,
        data: DistDataset,
        sampler_input: NodeSamplerInput,
        config: SamplingConfig,
        epoch_options: EpochOptions,
        sampler_options: SamplerOptions | None = None,
        concurrency: int = 1,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(
            data, sampler_input, config, epoch_options, sampler_options, concurrency, device
        )
        assert data.placement is not None, "only placed datasets are sampled on a device"
        self._placement: Placement = data.placement
        # Before there is a sampler, which may open resources of a refused plan; and before ranks
        # meet, so that all of them refuse it.
        check_plan(self._plan)
        self._roots = checked(load_sampler(self._view, self._plan, None, self._custom))


class DeviceSource(PlacedSource):
    """Samples one input on one device; a `gigl_loader.loader.batch_source.BatchSource`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._launched: deque[Launched] = deque()
        self._drawn: deque[CutBatch] = deque()
        self._num_launched = 0

    def open(self, turns: StartTurns) -> None:
        """Copy missing data to the device. No process is started."""
        view = view_of(self.data, self.epoch_options.expansion.time_attr)
        place = self._placement
        self._memory = [own_messages()]
        memory, kernels = DeviceMemory(place.device), kernels_for(place.device, place.kernels)
        graph = DeviceGraph(place.place(view), list(self._plan.fanouts), kernels)
        self._sampler = DeviceSampler(
            self._roots, self._plan, graph, kernels, memory, self.epoch_options.timeout_s,
            None if place.cache is None else place.cache.size,
        )  # fmt: skip
        # seeds alone: links and labels add roots, which are counted when they are there
        self._sampler.check(self.sampling_config.batch_size)

    def start_epoch(self, attempt: Attempt, batches: Sequence[int]) -> None:
        """Begin an epoch; the rest of the previous one is dropped."""
        super().start_epoch(attempt, batches)
        self._num_launched = 0

    def cancel_epoch(self) -> None:
        """Break the epoch off: no further batch of it is sampled."""
        super().cancel_epoch()
        for drawn in self._drawn:
            self._sampler.forget(drawn)
        # work on the device ends by itself; its memory is reused after that
        self._launched.clear()
        self._drawn.clear()

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None at the end of the epoch.

        Raises:
            SamplingError: The sampler raised.
            PeerTimeoutError: The device did not get so far in time.
        """
        epoch = self._epoch
        if epoch is None or epoch.is_broken_off:
            raise UsageError("no epoch is under way: start one first")
        if epoch.taken == len(epoch.batches):
            return None
        self._launch_ahead(epoch)
        # Those whose counts, or ids, have come: the more the cache knows, the better it keeps.
        while self._launched and (not self._drawn or self._sampler.has_come(self._launched[0])):
            self._drawn.append(self._cut(self._launched.popleft()))
        for one in self._drawn:
            if one is not self._drawn[0] and not self._sampler.has_come(one):
                break
            with named_errors(one.roots.request.ticket):
                self._sampler.tell(one)
        found = self._finish(self._drawn.popleft())
        epoch.taken += 1
        return found

    def _launch_ahead(self, epoch: EpochBatches) -> None:
        while self._num_launched < len(epoch.batches) and self._may_launch(epoch):
            try:
                under_way = self._launch(self._request_of(epoch, self._num_launched))
            except SamplingError:
                # Batches before it are good: it is launched again, and raises, when they are taken.
                if self._launched or self._drawn:
                    return
                raise
            self._launched.append(under_way)
            self._num_launched += 1

    def _may_launch(self, epoch: EpochBatches) -> bool:
        """Return whether another batch is to be under way."""
        ahead = self._num_launched - epoch.taken
        # one more than are under way while the model computes: the one that is handed over now
        if ahead <= self._concurrency:
            return True
        return ahead < _MOST_AHEAD and self._sampler.wants_more(ahead)

    def sample(self, index: Any) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch under way.

        Raises:
            SamplingError: The sampler raised.
        """
        if self._shut_down:
            raise UsageError("this loader was shut down: build a new one")
        ticket = BatchTicket(AT_ONCE_STREAM, 0, AT_ONCE_EPOCH, 0)
        size = self.sampling_config.batch_size
        return self._finish(
            self._cut(self._launch(self._input.request(ticket, index.numpy(), size)))
        )

    def ready(self) -> bool:
        """Return whether `next` would return at once."""
        return bool(self._drawn or (self._launched and self._sampler.has_come(self._launched[0])))

    def count_waiting(self) -> int:
        """Return how many batches were launched and not taken."""
        return len(self._launched) + len(self._drawn)

    def _launch(self, request: SampleRequest) -> Launched:
        started = time.perf_counter()
        with named_errors(request.ticket):
            launched = self._sampler.launch(*self._sampler.place(request))
            launched.roots.write(self._memory[0])  # the next launch may write to what fields read
        launched.roots.seconds = time.perf_counter() - started
        return launched

    def _cut(self, launched: Launched) -> CutBatch:
        started = time.perf_counter()
        with named_errors(launched.roots.request.ticket):
            drawn = self._sampler.cut(launched)
        drawn.roots.seconds += time.perf_counter() - started
        return drawn

    def _finish(self, drawn: CutBatch) -> Received:
        started = time.perf_counter()
        with named_errors(drawn.roots.request.ticket):
            host, rows = self._sampler.finish(drawn)
        return whole_batch(drawn.roots, host, rows, time.perf_counter() - started)


def whole_batch(
    roots: PlacedRoots, host: SampleMessage, rows: LentTensors, gather_s: float, asked: int = 0
) -> Received:
    """Return a batch with its measurements.

    Args:
        roots: Its roots, written.
        host: Its tensors that stay on the host, besides those of the roots.
        rows: Its tensors on the device.
        gather_s: Seconds that its rows took.
        asked: Other ranks that took part.
    """
    stats = {
        "seeds": roots.request.seeds.size, "idle_s": 0.0, "sample_s": roots.seconds,
        "gather_s": gather_s, "ended_ns": time.time_ns(), "asked": asked, "worker": 0,
        "nbytes": roots.nbytes + rows.nbytes,
    }  # fmt: skip
    return Received(roots.request.ticket, {**roots.message, **host}, stats, rows)


def check_on_device(data: DistDataset, device: torch.device, *, in_process: bool) -> None:
    """Check that a loader can sample where its dataset was placed.

    Raises:
        ConfigError: It cannot; the message says what to change.
    """
    placement = data.placement
    if placement is None:
        return
    if not in_process:
        raise ConfigError(
            f"the dataset was moved to {placement.device}, where this process samples: add "
            "num_workers=0, or take it back with dataset.to('cpu') and sample with workers"
        )
    if placement.device != device:
        raise ConfigError(
            f"the dataset was moved to {placement.device}, and batches go to {device}: move it "
            "there, or name its device in pin_memory_device"
        )
    if data.num_partitions > 1 and placement.cache is not None:
        raise ConfigError(
            f"partition {data.partition_idx} of {data.num_partitions} was moved to "
            f"{placement.device} with a cache: that is for a graph in one partition; "
            " leave cache= out of dataset.to()"
        )
