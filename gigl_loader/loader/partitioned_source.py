"""Sampling on the devices of all ranks, each of which holds a partition of the graph.

One thread of each rank samples ahead of the step, in step with the threads of the other ranks::

    place    roots of this rank's batch, on the host     rounds, until all ranks have theirs
    launch   hops                                        an exchange each
    cut      nodes and edges at their exact sizes
    finish   rows                                        one exchange

There is one such thread and not several lanes: exchanges between devices have to start in the same
order on all ranks.
"""

import time

import numpy as np

from gigl_loader.device.memory import DeviceMemory
from gigl_loader.loader.collective import BROKEN_OFF, COMPLETE, CollectivePeers
from gigl_loader.loader.device_rows import wait_for_ranks
from gigl_loader.loader.device_source import PlacedSource, whole_batch
from gigl_loader.loader.in_process import EpochBatches, named_errors
from gigl_loader.loader.partitioned_graph import PartitionedGraph, words_of
from gigl_loader.memory.leases import own_messages
from gigl_loader.message import BatchTicket, Received
from gigl_loader.on_device.device_kernels import kernels_for
from gigl_loader.on_device.sampler import DeviceSampler, checked
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.workers.agreement import StartTurns
from gigl_loader.workers.sampled_input import view_of
from gigl_loader.workers.worker import load_sampler


class PartitionedSource(PlacedSource):
    """Samples one input on the devices of all ranks; a `loader.batch_source.BatchSource`.

    The dataset is this rank's partition; ``concurrency`` batches are sampled ahead. The rest is as
    `PlacedSource` says.
    """

    _graph: PartitionedGraph | None = None

    def open(self, turns: StartTurns) -> None:
        """Copy missing data to the device, and meet the other ranks. No process is started."""
        view, place = view_of(self.data, self.epoch_options.expansion.time_attr), self._placement
        timeout_s = self.epoch_options.timeout_s
        placed, memory = place.place(view), DeviceMemory(place.device)
        peers = CollectivePeers(self._view, timeout_s, words_of(view, self._plan))
        self._peers, self._memory = [peers], [own_messages()]
        kernels = kernels_for(place.device, place.kernels)
        with memory.in_use():
            self._graph = PartitionedGraph(placed, self._plan, kernels, memory, peers, timeout_s)
        roots = checked(load_sampler(self._view, self._plan, peers, self._custom))
        self._device_memory = memory
        self._sampler = DeviceSampler(roots, self._plan, self._graph, kernels, memory, timeout_s)
        # seeds alone: links and labels add roots, which are counted when they are there
        self._sampler.check(self.sampling_config.batch_size)

    def _room(self) -> int:
        return max(super()._room(), self._concurrency)

    def _take_step(self, epoch: EpochBatches, step: int, lane: int) -> bool:
        """Sample a batch with the other ranks, or only theirs; return whether the epoch goes on."""
        # Looked at once: the trainer may break the epoch off at any time.
        has_batch = step < len(epoch.batches) and not epoch.is_broken_off
        request = self._request_of(epoch, step) if has_batch else _no_request(epoch, step)
        where = None if has_batch else f"what other ranks asked for in step {step}"
        with self._told_to_others(epoch, lane), named_errors(request.ticket, where):
            found = self._sampled(epoch, request, has_batch)
        if found is not None and has_batch:
            epoch.hand_over(step, found)
        return found is not None

    def _sampled(
        self, epoch: EpochBatches, request: SampleRequest, has_batch: bool
    ) -> Received | None:
        """Return a batch, empty without a batch of this rank; None if all broke the epoch off."""
        peers, sampler = self._peers[0], self._sampler
        started = time.perf_counter()
        roots, start = sampler.place(request) if has_batch else sampler.no_roots(request)
        # now: responses that fields may read are overwritten by later rounds
        roots.write(self._memory[0])
        if peers.finish(BROKEN_OFF if epoch.is_broken_off else COMPLETE):
            return None
        drawn = sampler.cut(sampler.launch(roots, start))
        cut_at = time.perf_counter()
        host, rows = sampler.finish(drawn)
        # All of it, so that no trainer waits for the device of a dead rank; then for all ranks: one
        # that raised would find nobody to tell after the last step.
        wait_for_ranks(
            self._device_memory, self._device_memory.mark(), self.epoch_options.timeout_s
        )
        peers.meet()
        roots.seconds = cut_at - started
        return whole_batch(roots, host, rows, time.perf_counter() - cut_at, peers.size - 1)

    def shutdown(self, linger_s: float | None = None) -> None:
        """End, but take part with the other ranks until they end their epoch."""
        super().shutdown(linger_s)
        if self._graph is not None and self._peers[0].group is None:
            self._graph.close()


def _no_request(epoch: EpochBatches, step: int) -> SampleRequest:
    """Return a request without seeds, for a step in which only other ranks have a batch."""
    none = np.empty(0, np.int64)
    ticket = BatchTicket(0, epoch.attempt.serial, epoch.attempt.epoch, 0, step)
    return SampleRequest(ticket, none, none)
