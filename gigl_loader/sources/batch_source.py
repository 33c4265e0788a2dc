"""The seam between a loader and its source of batches, of which there are four kinds.

::

    this process            InProcessSource        sources/in_process/in_process_source.py
      and its GPU           DeviceSource           sources/in_process/device_source.py
      GPUs of all ranks     PartitionedSource      the same
    a pool of workers       DistSamplingProducer   sources/workers/producer.py
    a graph store           RemoteSource           graph_store/client/remote_source.py
    a producer of others    ProducerSource         sources/other_producer.py
      on servers, by a hook HookedSource           graph_store/client/hooked_source.py

A loader, its iterator, `replay` and the state depend only on this interface of a source.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from gigl_loader.batch.message import Attempt, Received
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.staggered_start import WorkerTurns

LINGER_S = 30.0
"""After their loader is shut down, workers go on serving other partitions until those are done or
have sent no request for this many seconds."""


class BatchSource(Protocol):
    """Samples one input for one loader.

    `open` comes first, once. Then, for each epoch, `start_epoch`, and `next` until it returns None
    or `cancel_epoch` ends the epoch early. `shutdown` may come at any time, also while `open` runs
    or after it failed.

    Two threads may make calls at a time: one those for epochs, another one `sample`. Each of the
    two gets its own batches, and its own error objects. `shutdown` may come from any thread.
    """

    @property
    def source_options(self) -> SourceOptions:
        """Seed, order and deadline; from `open` on, as the ranks agreed on them."""

    @property
    def num_workers(self) -> int:
        """Sampling processes, per storage server with a graph store; 0: this process samples."""

    @property
    def channel(self) -> Any:
        """The channel of messages, as GLT's loaders show it; None if there is none."""

    @property
    def input_len(self) -> int:
        """Seeds of the whole input."""

    @property
    def num_batches(self) -> int:
        """Batches of an epoch over the whole input; known once `open` has returned."""

    @property
    def remote_bytes(self) -> int:
        """Bytes of all rows that only other machines have; 0 if unknown, or if there are none."""

    def open(self, turns: WorkerTurns) -> None:
        """Start sampling processes; return when they are ready.

        Args:
            turns: When this process starts workers of its own, if it has any.

        Raises:
            ConfigError: The arguments of the ranks do not fit together.
            PeerError: A worker, server or rank failed, or was not ready in time; none is left.
        """

    def start_epoch(
        self, attempt: Attempt, batches: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Begin to sample batches of an epoch; batches under way are dropped.

        Args:
            attempt: The attempt at the epoch.
            batches: Batches of the source, in the order in which they are handed out. One may come
                twice.
            positions: Position of each in the loader's epoch, ascending; its ticket has it when it
                comes back.
        """

    def cancel_epoch(self) -> None:
        """Stop sampling for the epoch under way."""

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None at the end of the epoch."""

    def ready(self) -> bool:
        """Return whether `next` would return at once."""

    def count_waiting(self) -> int:
        """Return how many batches `next` could return without waiting."""

    def sample(self, index: Tensor, seed: int | None = None) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch.

        ``seed`` takes the place of the source's own, as in an `Attempt`.
        """

    def shutdown(self, linger_s: float | None = None) -> None:
        """Stop sampling and release all resources. Idempotent.

        Args:
            linger_s: Seconds to respond to others that still request rows; None: the source's own
                default.
        """
