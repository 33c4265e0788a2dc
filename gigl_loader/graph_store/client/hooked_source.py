"""`HookedSource`: producers that a subclass's hook created on the servers, by calls of its own."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gigl_loader.batch.message import Attempt
from gigl_loader.errors import GiglLoaderError, PeerError
from gigl_loader.graph_store.client.compute_process import call_server
from gigl_loader.graph_store.client.connection import CALL_TIMEOUT_S, result_of
from gigl_loader.graph_store.client.receiving_channel import RemoteReceivingChannel
from gigl_loader.graph_store.wire.signatures import DistServer
from gigl_loader.runtime.glt_classes import SamplingConfig
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.other_producer import ProducerSource


class HookedSource(ProducerSource):
    """A `BatchSource` over such producers, with the calls of the seed's class to servers.

    ::

        loader --start_new_epoch_sampling--> each server     for each epoch; then channel.reset()
        loader <--recv()-------------------- channel         which asks the servers
        loader --destroy_sampling_producer-> each server     once

    Args:
        producer_ids: Ids of the producers by server.
        num_seeds: Seeds of each server.
        config: Sampling configuration.
        options: Seconds without a message before a wait is an error; nothing else.
        channel: `RemoteReceivingChannel`, or an object with ``recv()``, which ends an epoch by
            `StopIteration`, and ``reset()``.
    """

    def __init__(
        self,
        producer_ids: Mapping[int, int],
        num_seeds: Sequence[int],
        config: SamplingConfig,
        options: SourceOptions | None,
        channel: Any,
    ) -> None:
        super().__init__(channel, num_seeds, config, options, channel=channel, is_started=True)
        self.producer_ids = producer_ids

    def _begin(self, attempt: Attempt) -> None:
        if isinstance(self.channel, RemoteReceivingChannel):  # which tells the servers itself
            batches = [(at, k) for at, most in enumerate(self._batches) for k in range(most)]
            batches.sort(key=lambda batch: batch[1])  # all servers begin
            self.channel.start_epoch(attempt, batches, range(self.num_batches))
            return
        if attempt.serial > 1:
            # the end of the epoch before: answers under way would end this one
            with contextlib.suppress(PeerError):
                self._recv(self.source_options.timeout_s)
        self._ask_all(DistServer.start_new_epoch_sampling, attempt.epoch)
        self.channel.reset()

    def _ask_all(self, method: Callable[..., Any], *arguments: Any) -> None:
        answers = {
            server: call_server(server, method, producer, *arguments)
            for server, producer in self.producer_ids.items()
        }
        for server, answer in answers.items():
            what = f"{method.__name__} on storage server {server}"
            result_of(answer, self.source_options.timeout_s, what, CALL_TIMEOUT_S)

    def shutdown(self, linger_s: float | None = None) -> None:
        """End the producers. Idempotent, never raises."""
        if not self._shut_down:
            self._shut_down, self._tickets = True, []
            with contextlib.suppress(GiglLoaderError):  # a server, or this process, has left
                self._ask_all(DistServer.destroy_sampling_producer)
            if isinstance(self.channel, RemoteReceivingChannel):
                self.channel.close()
