"""The seam between a loader and its source of batches, of which there are three kinds.

::

    this process            InProcessSource        loader/in_process.py
      and its GPU           DeviceSource           loader/device_source.py
    a pool of workers       DistSamplingProducer   workers/producer.py
    a graph store           RemoteSource           remote/source.py

A loader, its iterator, `replay` and the state know of a source what stands here, and no more.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from gigl_loader.message import Attempt, Received
from gigl_loader.options import EpochOptions
from gigl_loader.workers.agreement import StartTurns


class BatchSource(Protocol):
    """Samples one input for one loader.

    `open` comes first, once. Then, for each epoch, `start_epoch`, and `next` until it returns None
    or `cancel_epoch` breaks the epoch off. `shutdown` may come at any time, also while `open` runs
    or after it failed. One thread calls all of them.
    """

    @property
    def epoch_options(self) -> EpochOptions:
        """Seed, order and deadline; from `open` on they are those that ranks agreed on."""
        ...

    @property
    def num_workers(self) -> int:
        """Sampling processes, on each storage server where they are on servers; 0: this process."""
        ...

    @property
    def channel(self) -> Any:
        """The channel of messages, as GLT's loaders show it; None: there is none."""
        ...

    @property
    def input_len(self) -> int:
        """Seeds of the whole input."""
        ...

    @property
    def num_batches(self) -> int:
        """Batches of an epoch over the whole input; known once `open` has returned."""
        ...

    @property
    def remote_bytes(self) -> int:
        """Bytes of all rows that only other machines have; 0: unknown, or there are none."""
        ...

    def open(self, turns: StartTurns) -> None:
        """Start what samples, in this process's turn; returns when it is ready.

        Raises:
            ConfigError: What ranks were given does not fit together.
            PeerError: A worker, server or rank failed, or was not ready in time; none is left.
        """
        ...

    def start_epoch(self, attempt: Attempt, batches: Sequence[int]) -> None:
        """Begin to sample these batches of an epoch; what was under way is dropped.

        The ticket of each batch that comes tells its position in ``batches``.
        """
        ...

    def cancel_epoch(self) -> None:
        """Stop sampling for the epoch under way."""
        ...

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None at the end of the epoch."""
        ...

    def ready(self) -> bool:
        """Return whether `next` would not wait."""
        ...

    def count_waiting(self) -> int:
        """Return how many batches `next` could return without waiting."""
        ...

    def sample(self, index: Tensor) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside the epoch."""
        ...

    def shutdown(self, linger_s: float | None = None) -> None:
        """Stop sampling and release what is held. Idempotent.

        Args:
            linger_s: Seconds that others, which still ask for rows, are answered; None: the
                source's own default.
        """
        ...
