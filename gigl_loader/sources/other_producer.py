"""`ProducerSource`: a producer of another family as a source of batches.

graphlearn-torch's protocol is a producer with four names, and a channel with one::

    loader --init()--------> producer       once; starts what it needs
    loader --produce_all()-> producer       each epoch; it sends ceil(seeds / batch_size) messages
    loader <--recv()-------- output_channel
    loader --shutdown()----> producer       once

Messages have graphlearn-torch's keys, or ours. A batch comes as the producer sends it: nobody knows
which one it is. So such a loader has no state to resume from, and no ``seed``.

Source:
    graphlearn-torch 0.2.4, ``distributed/dist_sampling_producer.py`` and ``channel/base.py``; GiGL
    at fee4ba50, ``distributed/utils/sampling_errors.py``, for a message that is an error.
"""

import contextlib
import inspect
import logging
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gigl_loader.batch.message import Attempt, BatchTicket, Received
from gigl_loader.errors import (
    PeerError,
    PeerTimeoutError,
    SamplingError,
    UsageError,
    WorkerDiedError,
)
from gigl_loader.runtime.glt_classes import SamplingConfig
from gigl_loader.runtime.threads import fulfil, start_aside
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.staggered_start import WorkerTurns

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Seconds between two looks at the processes of a producer that sends nothing."""
SAMPLING_ERROR = "#SAMPLING_ERROR"
"""GiGL's key of a message that is an error: its text in UTF-8."""
_NOTHING = object()


@runtime_checkable
class SamplesForLoader(Protocol):
    """What graphlearn-torch's loaders ask of a producer; a class of one's own has it, too."""

    output_channel: Any
    """Has ``recv()``, which waits for a message; with ``timeout_ms``, raises when that is over."""

    def init(self) -> None:
        """Start sampling processes, once."""

    def produce_all(self) -> None:
        """Begin to send the messages of an epoch."""

    def shutdown(self) -> None:
        """Release everything. May be called again."""


def is_producer(value: Any) -> bool:
    """Return whether ``value`` is a producer by its names, not a class of producers."""
    return isinstance(value, SamplesForLoader) and not isinstance(value, type)


def raise_sampling_error(message: Mapping[str, Any], who: str) -> None:
    """Raise `SamplingError` if a message of ``who`` is an error, sent in place of a batch."""
    if SAMPLING_ERROR in message:
        content = torch.as_tensor(message[SAMPLING_ERROR], device="cpu")
        text = bytes(content.tolist()).decode(errors="replace")
        raise SamplingError(who, text.strip().rpartition("\n")[2], text)


class ProducerSource:
    """A `BatchSource` over a producer of another family; see the module.

    Args:
        producer: Not started yet, unless ``is_started``.
        num_seeds: Seeds of each input that is cut into batches.
        config: Its ``batch_size`` and ``drop_last`` say how many messages an epoch has.
        options: Seconds without a message before a wait is an error; nothing else.
        channel: Receives the messages; None: the producer's ``output_channel``.
        is_started: A subclass of the loader has called ``init``.
    """

    remote_bytes = 0

    def __init__(
        self,
        producer: Any,
        num_seeds: Sequence[int],
        config: SamplingConfig,
        options: SourceOptions | None = None,
        *,
        channel: Any = None,
        is_started: bool = False,
    ) -> None:
        self._producer, self._is_started = producer, is_started
        self.name = type(producer).__name__
        """Name of the producer's class, for errors."""
        self.source_options = options or SourceOptions(seed=0)
        self.channel = producer.output_channel if channel is None else channel
        self.input_len = sum(num_seeds)
        whole = math.floor if config.drop_last else math.ceil
        self._batches = [whole(count / config.batch_size) for count in num_seeds]
        """Of each input."""
        self.num_batches = sum(self._batches)
        self._takes_timeout = False
        with contextlib.suppress(ValueError):  # of a compiled function, which tells no parameters
            self._takes_timeout = "timeout_ms" in inspect.signature(self.channel.recv).parameters
        self._awaited: Future[Any] | None = None
        """What a call in a thread will return or raise; None: nobody waits in one."""
        self._tickets: list[BatchTicket] = []
        """Of the batches of the epoch that were not handed out, the next one last."""
        self._num_sent = 0
        """Messages that the producer is still to send, or that are in the channel."""
        self._shut_down = False

    @property
    def num_workers(self) -> int:
        """Sampling processes, if the producer says so."""
        return getattr(self._producer, "num_workers", 0)

    def open(self, turns: WorkerTurns) -> None:
        """Start the producer in this process's turn.

        Raises:
            ConfigError: Turns follow each other by messages of ranks, which such producers lack.
        """
        if self._is_started:
            return
        logger.warning(
            "batches come as a %s sends them: the loader promises no order, no resume and no seed",
            self.name,
        )
        turns.wait(lambda _: None)
        if not hasattr(self._producer, "_workers"):
            self._producer.init()
            return
        # in a thread: graphlearn-torch's waits for ever for a process that ended
        start = partial(self._in_thread, "start", self._producer.init)
        timeout_s = self.source_options.timeout_s
        self._watched(start, timeout_s, f".init() took more than {timeout_s:.1f} s")

    # -- epochs ---------------------------------------------------------------------------------

    def start_epoch(
        self, attempt: Attempt, batches: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Begin an epoch, once the messages of one that was broken off are out of the channel.

        Raises:
            UsageError: The producer was shut down, or does not send those messages.
        """
        self._check_usable()
        self._drain()
        tickets = [
            BatchTicket(0, attempt.serial, attempt.epoch, batch, position, attempt.seed)
            for batch, position in zip(batches, positions, strict=True)
        ]
        self._begin(attempt)
        self._tickets, self._num_sent = tickets[::-1], self.num_batches

    def _begin(self, attempt: Attempt) -> None:
        self._producer.produce_all()

    def _drain(self) -> None:
        left = self._num_sent
        try:
            while self._num_sent:
                self._next_message(self.source_options.timeout_s)
        except PeerError as error:
            raise UsageError(
                f"an epoch was broken off, and {self._num_sent} of the {left} messages that it "
                f"left are not there to be taken out ({error}): end epochs, or build a new loader"
            ) from error

    def cancel_epoch(self) -> None:
        """Hand out no more batches of the epoch; its messages go before the next one."""
        self._tickets = []

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next message, or None at the end of the epoch.

        Raises:
            PeerTimeoutError: None came in time.
            PeerError, WorkerDiedError: The producer ended, or one of its processes.
            SamplingError: The message is an error.
        """
        self._check_usable()
        if not self._tickets:
            return None
        timeout = self.source_options.timeout_s if timeout_s is None else timeout_s
        message = self._next_message(timeout)
        return Received(self._tickets.pop(), message, {})

    def _next_message(self, timeout_s: float) -> Any:
        overdue = (
            f" sent no message for {timeout_s:.1f} s; {self._counted()}. If a batch really takes "
            "that long, raise `timeout`"
        )
        message = self._watched(self._recv, timeout_s, overdue)
        self._num_sent -= 1
        raise_sampling_error(message, f"a sampler of {self.name}")
        return message

    def _watched(self, take: Callable[[float], Any], timeout_s: float, overdue: str) -> Any:
        """Return what ``take`` returns, which is given seconds, and look at the producer."""
        deadline = time.monotonic() + timeout_s
        while True:
            # Before a last look at the channel: what was sent before the end is there by then.
            lost = self._loss()
            left_s = max(0.0, deadline - time.monotonic())
            taken = take(min(_LOOK_S, left_s))
            if taken is not _NOTHING:
                return taken
            if lost is not None:
                raise lost
            if left_s == 0.0:
                raise PeerTimeoutError(f"{self.name}{overdue}")

    def _counted(self) -> str:
        if not self._num_sent:
            return "no epoch is under way"
        return f"{self.num_batches - self._num_sent} of the epoch's {self.num_batches} have come"

    def _loss(self) -> PeerError | None:
        """Return the error of a producer that will send no more, as far as it tells."""
        workers = list(getattr(self._producer, "_workers", None) or ())
        for number, worker in enumerate(workers):
            code = getattr(worker, "exitcode", None)
            if code not in (None, 0):
                return WorkerDiedError(number, worker.pid, code, self._counted(), self.name)
        is_over = getattr(self._producer, "is_all_sampling_completed_and_consumed", lambda: None)
        if is_over() is True or (workers and not any(worker.is_alive() for worker in workers)):
            return PeerError(f"{self.name} ended before its epoch did: {self._counted()}")
        return None

    def _recv(self, timeout_s: float) -> Any:
        """Return a message, or `_NOTHING` if none came in time."""
        try:
            if self._takes_timeout:
                # 0 would be for ever in graphlearn-torch
                return self.channel.recv(timeout_ms=max(1, int(timeout_s * 1000)))
            return self._in_thread("messages", self.channel.recv, timeout_s)
        except StopIteration:
            raise PeerError(
                f"the channel of {self.name} ended before its epoch did: {self._counted()}"
            ) from None
        except (TimeoutError, queue.Empty):
            return _NOTHING
        except Exception as error:
            # graphlearn-torch's own class of a timeout, which is in its native library alone
            if type(error).__name__ == "QueueTimeoutError":
                return _NOTHING
            raise

    def _in_thread(self, what: str, function: Callable[[], Any], timeout_s: float) -> Any:
        """Return what a function returns, or `_NOTHING` if it still waits, in a thread.

        The next call looks at that thread again.
        """
        if self._awaited is None:
            self._awaited = Future()
            start_aside(f"{what} of {self.name}", fulfil, self._awaited, function)
        if not wait([self._awaited], timeout_s).done:
            return _NOTHING
        awaited, self._awaited = self._awaited, None
        return awaited.result()

    def ready(self) -> bool:
        """Return whether the epoch is over: a channel does not say whether it has a message."""
        return not self._tickets

    def count_waiting(self) -> int:
        """Return 0: a channel does not say how many messages it has."""
        return 0

    def sample(self, index: Tensor, seed: int | None = None) -> Received:
        """Raise: a producer of another family samples whole epochs."""
        raise UsageError(f"loader(index) and collate(index): a {self.name} samples whole epochs")

    def _check_usable(self) -> None:
        if self._shut_down:
            raise UsageError("the producer was shut down: build a new loader")

    def shutdown(self, linger_s: float | None = None) -> None:
        """Shut the producer down. Idempotent."""
        if not self._shut_down:
            self._shut_down, self._tickets = True, []
            self._producer.shutdown()
