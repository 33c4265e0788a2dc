"""One pass over a loader's batches: receive, copy ahead, collate, count."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch.profiler import record_function
from torch_geometric.data import Data, HeteroData

from gigl_loader.device.prefetch import NOT_READY, CopyAhead, CopyEngine, NotReady
from gigl_loader.errors import NoEarlyEnd, UsageError
from gigl_loader.loader.epoch import BatchSource, EpochProgress, LoaderStats
from gigl_loader.message import Received, SampleMessage


class EpochOwner(Protocol):
    """Members of a loader that its iterator uses."""

    _source: BatchSource
    _engine: CopyEngine | None
    _device_prefetch: int
    _num_expected: int
    _num_recv: int
    _stats: LoaderStats
    _recorders: list[Callable[[dict[str, Any]], None]]

    def _collate_fn(self, msg: SampleMessage) -> Data | HeteroData:
        """Turn a message that is on the device into a batch."""
        ...


class EpochIterator:
    """One pass. Its loader refers to it weakly: dropping it, as `break` does, ends it."""

    def __init__(self, loader: EpochOwner, positions: list[int], progress: EpochProgress) -> None:
        self._loader = loader
        self._progress = progress
        self._left = len(positions)
        self._batch_positions: dict[int, list[int]] = {}
        # See `BaseDistLoader.__iter__`: several positions may be of one batch, which then comes as
        # often. The first of its places that is left is the one that it is handed out for.
        own = max(int(loader._num_expected), 1)
        for position in positions:
            self._batch_positions.setdefault(position % own, []).append(position)
        self._ended: str | None = None
        self._ahead: CopyAhead[Any] | None = None
        if loader._engine is not None:
            # The source's and not a method: what held this iterator in turn would keep it, and its
            # epoch, after a `break` until the garbage collector comes by.
            pull = partial(_pull, loader._source)
            self._ahead = CopyAhead(pull, loader._engine, depth=loader._device_prefetch)

    def __iter__(self) -> "EpochIterator":
        return self

    def __len__(self) -> int:
        return self._left

    def __next__(self) -> Data | HeteroData:
        if self._ended is not None:
            raise UsageError(f"this iterator is over: {self._ended}")
        with NoEarlyEnd("getting a batch"):
            batch = None if self._progress.finished else self._next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def _next_batch(self) -> Data | HeteroData | None:
        started = time.perf_counter()
        try:
            with record_function("gigl_loader.wait"):
                received = self._next_received()
        # KeyboardInterrupt, too: a batch that was pulled half-way is lost, and going on would leave
        # it out without a word.
        except BaseException:
            self.end("an error broke it off")
            raise
        if received is None:
            self._progress.finished = True
            return None
        waited = time.perf_counter()
        ticket, message, stats = received
        with record_function("gigl_loader.collate"):
            batch = self._loader._collate_fn(message)
        self._count(ticket, stats, waited - started, time.perf_counter() - waited, batch)
        return batch

    def _next_received(self) -> tuple[Any, SampleMessage, dict[str, Any]] | None:
        if self._ahead is not None:
            found = next(self._ahead, None)
            if found is None:
                return None
            # A ticket rode through the copy engine, which passes on what is no tensor: only in that
            # way does each batch that comes out have the ticket of the one that went in.
            message = dict(found)
            received = replace(message.pop("ticket"), message=message)
            return received.ticket, received.whole(), received.stats
        received = self._loader._source.next()
        if received is None:
            return None
        return received.ticket, received.whole(), received.stats

    def _count(
        self, ticket: Any, stats: dict[str, Any], wait_s: float, collate_s: float, batch: Any
    ) -> None:
        # Counted last, when nothing can fail any more but in the user's hands: a batch whose
        # collating raised is not in the state, and comes again after a resume.
        self._left -= 1
        self._loader._num_recv += 1
        self._progress.note(self._batch_positions[ticket.batch].pop(0))
        total = self._loader._stats
        total.add(Received(ticket, {}, stats), wait_s, self._num_waiting())
        total.collate_s += collate_s
        for record in self._loader._recorders:
            record(stats)

    def _num_waiting(self) -> int:
        """Return how many batches could be handed out without waiting."""
        source: Any = self._loader._source
        ahead = 0 if self._ahead is None else self._ahead.num_ahead
        if hasattr(source, "count_waiting"):
            return ahead + int(source.count_waiting())
        return ahead + int(getattr(source, "queue_depth", 0))

    @property
    def is_over(self) -> bool:
        """Whether it has no more batches to give."""
        return self._ended is not None or self._progress.finished

    def end(self, why: str) -> None:
        """Drop what is under way."""
        if self._ended is not None:
            return
        self._ended = why
        if self._ahead is not None:
            self._ahead.close()
        # A source whose epoch is over may be in the next one by now, of another iterator.
        if not self._progress.finished:
            with contextlib.suppress(Exception):  # the error that broke it off is what counts
                self._loader._source.cancel_epoch()

    def __del__(self) -> None:
        # `__init__` may have raised before.
        if hasattr(self, "_ahead"):
            self.end("it was dropped")


def _pull(source: BatchSource, wait: bool) -> dict[str, Any] | NotReady:
    """Return the next message with its ticket, for `CopyAhead`."""
    with NoEarlyEnd("getting a batch"):
        if not wait and not source.ready():
            return NOT_READY
        received = source.next()
    if received is None:
        raise StopIteration
    return {**received.message, "ticket": replace(received, message={})}
