"""Sampling on the device of the model, ahead of the step.

With the whole graph on one device, the thread that takes the batches samples them::

    next()   launch batch 3 | finish batch 0: counts are there, rows are gathered | hand it over
    next()   launch batch 4 | finish batch 1 ...

Launching waits for nothing on the device. When a batch is finished, its counts were launched some
steps ago, so the host can usually read them without a wait.

With a partition of the graph on the device of each rank, one thread of each rank samples ahead of
the step, in step with the threads of the other ranks::

    place    roots of this rank's batch, on the host     rounds, until all ranks have theirs
    turn     the trainer waits for its next batch
    launch   hops                                        an exchange each
    cut      nodes and edges at their exact sizes
    finish   rows                                        one exchange

There is one such thread and not several lanes: exchanges between devices have to start in the same
order on all ranks. For the same reason the trainer waits while they are launched (`EpochBatches`):
its own exchanges come before or after those of a batch, and so on all ranks alike.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from gigl_loader.batch.device.device_memory import DeviceMemory, LentTensors
from gigl_loader.batch.leases import own_messages
from gigl_loader.batch.message import AT_ONCE_EPOCH, Attempt, BatchTicket, Received, SampleMessage
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.placement import Placement
from gigl_loader.errors import ConfigError, SamplingError
from gigl_loader.runtime.memory.tensors import each_tensor
from gigl_loader.runtime.ranks.collectives import gather_from_ranks
from gigl_loader.sampler.gpu.device_graph import DeviceGraph, LocalDeviceGraph
from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sampler.gpu.device_sampler import (
    CutBatch,
    DeviceSampler,
    Launched,
    PlacedRoots,
    check_plan,
    require_neighbor_sampler,
)
from gigl_loader.sampler.gpu.kernel_choice import kernels_for
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.sources.in_process.all_edges import AllEdgesGraph
from gigl_loader.sources.in_process.collective import BROKEN_OFF, COMPLETE, CollectivePeers
from gigl_loader.sources.in_process.device_rows import wait_for_ranks
from gigl_loader.sources.in_process.in_process_source import (
    EpochBatches,
    InProcessSource,
    named_errors,
    with_rows,
)
from gigl_loader.sources.in_process.partitioned_graph import PartitionedGraph, words_of
from gigl_loader.sources.sampled_input import sampling_view
from gigl_loader.sources.staggered_start import WorkerTurns

logger = logging.getLogger(__name__)

_LOADING = "CUDA_MODULE_LOADING"
"""CUDA's variable: when kernels are loaded."""
_MOST_AHEAD = 256
"""Most batches that are drawn before the cache knows enough; each keeps its edges."""


class PlacedSource(InProcessSource):
    """What sources on devices have in common: a placement, and a plan that devices can sample.

    Arguments as for `InProcessSource`: a dataset with a placement; as sampler options only the
    roots of links; and its device.

    Raises:
        ConfigError: The device lacks a requested feature, or memory.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        assert self.data.placement is not None, "only placed datasets are sampled on a device"
        self._placement = self.data.placement
        # Before there is a sampler, which may open resources of a refused plan; and before ranks
        # meet, so that all of them refuse it.
        check_plan(self._plan)
        self._roots = require_neighbor_sampler(
            self._sampler_kind.build(self._view, self._plan, None)
        )

    def open(self, turns: WorkerTurns) -> None:
        """Copy missing data to the device, and meet other ranks. No process is started."""
        place = self._placement
        self._memory = [own_messages(pin_memory=self._device.type == "cuda")]
        self._device_memory = DeviceMemory(place.device)
        kernels = kernels_for(place.device, place.kernels)
        placed = place.copy_view(sampling_view(self.data, self.source_options.expansion.time_attr))
        graph = self._graph_of(placed, kernels)
        # copies that loaders share, and that go with the last one
        shared: list[Tensor] = []
        each_tensor(graph.view, shared.append)
        self._device_memory.borrow(shared)
        self.sampler = DeviceSampler(
            self._roots,
            self._plan,
            graph,
            kernels,
            self._device_memory,
            self.source_options.timeout_s,
            None if place.cache is None else place.cache.size,
        )
        """The steps of a batch, from its roots to its rows."""
        # seeds alone: links and labels add roots, which are counted when they are there
        self.sampler.check(self.sampling_config.batch_size, *self._under_way_and_free())

    def _graph_of(self, placed: PartitionView[Tensor], kernels: TorchKernels) -> DeviceGraph:
        """Return the whole graph, for draws and rows."""
        raise NotImplementedError

    def _under_way_and_free(self) -> tuple[int, int | None]:
        """Return how many batches are under way at once, and the free bytes of the device."""
        return self._concurrency, self._device_memory.free_bytes()

    def _whole(
        self, roots: PlacedRoots, host: SampleMessage, rows: LentTensors, gather_s: float
    ) -> Received:
        """Return a batch of written roots, of further tensors on the host, and of its rows."""
        message = {**roots.message, **host}
        received = self._received(roots.request, message, roots.nbytes, roots.seconds, gather_s)
        return with_rows(received, rows)


class DeviceSource(PlacedSource):
    """Samples one input on one device; a `gigl_loader.sources.batch_source.BatchSource`."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._launched: deque[Launched] = deque()
        self._drawn: deque[CutBatch] = deque()
        self._num_launched = 0

    def _graph_of(self, placed: PartitionView[Tensor], kernels: TorchKernels) -> DeviceGraph:
        return LocalDeviceGraph(placed, list(self._plan.fanouts), kernels)

    def start_epoch(
        self, attempt: Attempt, batches: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Begin an epoch; the rest of the previous one is dropped."""
        super().start_epoch(attempt, batches, positions)
        self._num_launched = 0

    def cancel_epoch(self) -> None:
        """Break the epoch off: no further batch of it is sampled."""
        super().cancel_epoch()
        for drawn in self._drawn:
            self.sampler.forget(drawn)
        # work on the device ends by itself; its memory is reused after that
        self._launched.clear()
        self._drawn.clear()

    def _next_here(self, epoch: EpochBatches) -> Received:
        self._launch_ahead(epoch)
        # Those whose counts, or ids, have come: the more the cache knows, the better it keeps.
        while self._launched and (not self._drawn or self.sampler.has_come(self._launched[0])):
            self._drawn.append(self._cut(self._launched.popleft()))
        for batch in self._drawn:
            if batch is not self._drawn[0] and not self.sampler.has_come(batch):
                break
            with named_errors(batch.roots.request.ticket):
                self.sampler.tell(batch)
        return self._finish(self._drawn.popleft())

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
        return ahead < _MOST_AHEAD and self.sampler.wants_more(ahead)

    def _sample_now(self, request: SampleRequest) -> Received:
        return self._finish(self._cut(self._launch(request)))

    def ready(self) -> bool:
        """Return whether `next` would return at once."""
        return bool(self._drawn or (self._launched and self.sampler.has_come(self._launched[0])))

    def count_waiting(self) -> int:
        """Return how many batches were launched and not taken."""
        return len(self._launched) + len(self._drawn)

    def _launch(self, request: SampleRequest) -> Launched:
        started = time.perf_counter()
        with named_errors(request.ticket):
            launched = self.sampler.launch(*self.sampler.place(request))
            launched.roots.write(self._memory[0])  # the next launch may write to what fields read
        launched.roots.seconds = time.perf_counter() - started
        return launched

    def _cut(self, launched: Launched) -> CutBatch:
        started = time.perf_counter()
        with named_errors(launched.roots.request.ticket):
            drawn = self.sampler.cut(launched)
        drawn.roots.seconds += time.perf_counter() - started
        return drawn

    def _finish(self, drawn: CutBatch) -> Received:
        started, roots = time.perf_counter(), drawn.roots
        with named_errors(roots.request.ticket):
            host, rows = self.sampler.finish(drawn)
        return self._whole(roots, host, rows, time.perf_counter() - started)


class PartitionedSource(PlacedSource):
    """Samples one input on the devices of all ranks; a `sources.batch_source.BatchSource`.

    The dataset is this rank's partition; ``concurrency`` batches are sampled ahead. The rest is as
    `PlacedSource` says.
    """

    def open(self, turns: WorkerTurns) -> None:
        """Copy missing data to the device, meet other ranks, and sample a batch with them."""
        super().open(turns)
        if self._placement.device.type == "cuda" and os.environ.get(_LOADING) != "EAGER":
            logger.warning(
                "%s=EAGER is not set: CUDA loads a kernel when it is first launched, and may wait "
                "for an exchange of partitions that itself waits for another rank; set it before "
                "the processes start",
                _LOADING,
            )
        self._try_one_batch()

    def _try_one_batch(self) -> None:
        """Sample a batch with the other ranks, and drop it.

        Afterwards all kernels are loaded, and all devices connected: in an epoch, a kernel that is
        loaded while another rank's exchange waits for this one could stand still. Collective.
        """
        trial = EpochBatches(Attempt(AT_ONCE_EPOCH, 0), [], [], None, 1)
        request = _no_request(trial, 0)
        with (
            self._error_sent_to_ranks(trial, 0),
            named_errors(request.ticket, "a batch for trial, before the first epoch"),
        ):
            drawn = self.sampler.cut(self.sampler.launch(*self.sampler.first_nodes(request)))
            self.sampler.finish(drawn)
            wait_for_ranks(
                self._device_memory, self._device_memory.mark(), self.source_options.timeout_s
            )
            self._peers[0].meet()

    def _graph_of(self, placed: PartitionView[Tensor], kernels: TorchKernels) -> DeviceGraph:
        num_words = words_of(placed, self._plan)
        # A rank whose device has no room for its partition is named, before others wait for it.
        gather_from_ranks(None, dist.get_world_size(), None)
        peers = CollectivePeers(self._view, self.source_options.timeout_s, num_words)
        self._peers = [peers]
        self._concurrency = peers.least(self._concurrency)  # all launch equally far ahead
        self._roots = require_neighbor_sampler(
            self._sampler_kind.build(self._view, self._plan, peers)
        )
        with self._device_memory.in_use():
            partitions = PartitionedGraph(placed, self._plan, kernels, self._device_memory, peers)
            if _wants_all_edges(self._placement, partitions):
                names = list(self._plan.fanouts)
                return AllEdgesGraph(partitions, self._placement, names, kernels)
            return partitions

    def _under_way_and_free(self) -> tuple[int, int | None]:
        # By numbers of all ranks, so that all of them refuse it.
        under_way, free = super()._under_way_and_free()
        least = self._peers[0].least(-1 if free is None else free)
        return under_way, None if least < 0 else least

    @property
    def _devices_exchange(self) -> bool:
        return True

    def _room(self) -> int:
        return max(super()._room(), self._concurrency)

    def _take_step(self, epoch: EpochBatches, step: int, lane: int) -> bool:
        """Sample a batch with the other ranks, or only theirs; return whether the epoch goes on."""
        # Looked at once: the trainer may break the epoch off at any time.
        has_batch = step < len(epoch.batches) and not epoch.is_broken_off
        request = self._request_of(epoch, step) if has_batch else _no_request(epoch, step)
        where = None if has_batch else f"what other ranks asked for in step {step}"
        with self._error_sent_to_ranks(epoch, lane), named_errors(request.ticket, where):
            received = self._sampled(epoch, request, has_batch)
        if received is not None and has_batch:
            epoch.hand_over(step, received)
        return received is not None

    def _sampled(
        self, epoch: EpochBatches, request: SampleRequest, has_batch: bool
    ) -> Received | None:
        """Return a batch, empty without a batch of this rank; None if all broke the epoch off."""
        peers, sampler = self._peers[0], self.sampler
        started = time.perf_counter()
        roots, start = sampler.place(request) if has_batch else sampler.no_roots(request)
        # now: responses that fields may read are overwritten by later rounds
        roots.write(self._memory[0])
        if peers.finish(BROKEN_OFF if epoch.is_broken_off else COMPLETE):
            return None
        epoch.turns.wait(request.ticket.turn)
        drawn = sampler.cut(sampler.launch(roots, start))
        cut_at = time.perf_counter()
        host, rows = sampler.finish(drawn)
        epoch.turns.passed(request.ticket.turn)
        # All of it, so that no trainer waits for the device of a dead rank; then for all ranks: one
        # that raised would find nobody to tell after the last step.
        wait_for_ranks(self._device_memory, self._device_memory.mark(), peers.timeout_s)
        peers.meet()
        roots.seconds = cut_at - started
        return self._whole(roots, host, rows, time.perf_counter() - cut_at)


def _wants_all_edges(place: Placement, partitions: PartitionedGraph) -> bool:
    """Return whether each device gets all edges, which all ranks have to want."""
    wants = place.edges == "all"
    all_want, none_wants = partitions.all_ranks(wants), partitions.all_ranks(not wants)
    if all_want or none_wants:
        return wants
    raise ConfigError(
        "ranks moved their partitions in different ways: give dataset.to() the same edges= on all"
    )


def _no_request(epoch: EpochBatches, step: int) -> SampleRequest:
    """Return a request without seeds, for a step in which only other ranks have a batch."""
    none = np.empty(0, np.int64)
    ticket = BatchTicket(0, epoch.attempt.serial, epoch.attempt.epoch, 0, turn=step)
    return SampleRequest(ticket, none, none)
