"""One pass over a loader's batches, and the epochs of a loader."""

import contextlib
import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from torch.profiler import record_function
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.device.prefetch import NOT_READY, CopyAhead, CopyEngine, NotReady
from gigl_loader.batch.message import AT_ONCE_EPOCH, Attempt, Received, SampleMessage
from gigl_loader.errors import ConfigError, NoEarlyEnd, PeerError, UsageError
from gigl_loader.loader.epochs.epoch import EpochProgress, LoaderStats
from gigl_loader.loader.seeds.world import Steps, WorldShare, even_steps
from gigl_loader.sources.batch_source import BatchSource

logger = logging.getLogger(__name__)


class _EpochEnd:
    """The end of an epoch: an object of ours, which nothing of a user's can equal."""


_END: Final = _EpochEnd()


class EpochIterator:
    """One pass: receives, copies ahead, collates, counts.

    Its loader refers to it weakly: dropping it, as `break` does, ends it.

    Args:
        source: In the epoch already.
        num_left: Batches that are still to come in the epoch.
        progress: Notes the batches handed out.
        collate: Turns a message on the device into a batch.
        stats: Counts the batches handed out.
        engine: Copies messages to the device ahead of use; None: `collate` takes them directly.
        depth: Messages that are copied ahead.
        split: Returns the messages that a message is handed out as; None: each is one batch.
    """

    def __init__(
        self,
        source: BatchSource,
        num_left: int,
        progress: EpochProgress,
        *,
        collate: Callable[[SampleMessage], Any],
        stats: LoaderStats,
        engine: CopyEngine | None = None,
        depth: int = 2,
        split: Callable[[SampleMessage], list[SampleMessage]] | None = None,
    ) -> None:
        self._source, self._progress = source, progress
        self._collate, self._stats = collate, stats
        self._left, self._split = num_left, split
        self._ended: str | None = None
        self._parts: _Parts | None = None
        self._ahead: CopyAhead[tuple[SampleMessage, Received]] | None = None
        if engine is not None:
            # The source's and not a method: a reference back to this iterator would keep it, and
            # its epoch, after a `break` until the garbage collector runs.
            self._ahead = CopyAhead(partial(_pull, source), engine, depth=depth)

    def __iter__(self) -> "EpochIterator":
        return self

    def __len__(self) -> int:
        check_length(known=self._split is None)
        return self._left

    def __next__(self) -> Data | HeteroData:
        if self._ended is not None:
            raise UsageError(f"this iterator is over: {self._ended}")
        with NoEarlyEnd("getting a batch"):
            batch = _END if self._progress.finished else self._next_batch()
        if isinstance(batch, _EpochEnd):
            raise StopIteration
        return batch

    def _next_batch(self) -> Data | HeteroData | _EpochEnd:
        started = time.perf_counter()
        if self._parts is not None:
            return self._hand_out(self._parts)
        try:
            with record_function("gigl_loader.wait"):
                received = self._next_received()
        # KeyboardInterrupt, too: a batch that was half received is lost, and going on would
        # silently leave it out.
        except BaseException:
            self.end("an error broke it off")
            raise
        if received is None:
            self._progress.finished = True
            return _END
        parts = _Parts(received, [received.message], time.perf_counter() - started)
        if self._split is not None:
            with record_function("gigl_loader.split"):
                done = self._progress.parts.get(received.ticket.position, 0)
                parts.left = self._split(received.message)[done:]
        return self._hand_out(parts)

    def _hand_out(self, parts: "_Parts") -> Data | HeteroData:
        """Return the next part of a batch; most have one."""
        began = time.perf_counter()
        with record_function("gigl_loader.collate"):
            batch = self._collate(parts.left[0])
        parts.collate_s += time.perf_counter() - began
        # Counted last, when only the user's code can still fail: a batch whose collating raised is
        # not in the state, and comes again after a resume.
        del parts.left[0]
        received, position = parts.received, parts.received.ticket.position
        if parts.left:
            self._parts = parts
            self._progress.note_part(position)
            return batch
        self._parts = None
        self._left -= 1
        self._progress.note(position)
        self._stats.add(received, parts.wait_s, self._num_waiting(), parts.collate_s)
        return batch

    def _next_received(self) -> Received | None:
        """Return the next batch, all rows in its message."""
        if self._ahead is None:
            received = self._source.next()
        else:
            copied = next(self._ahead, _END)
            if isinstance(copied, _EpochEnd):
                return None
            message, received = copied
            received = replace(received, message=message)
        if received is None or received.rows is None:
            return received
        return replace(received, message=received.whole(), rows=None)

    def _num_waiting(self) -> int:
        """Return how many batches could be handed out without waiting."""
        ahead = 0 if self._ahead is None else self._ahead.num_ahead
        return ahead + self._source.count_waiting()

    @property
    def is_over(self) -> bool:
        """Whether it has no more batches."""
        return self._ended is not None or self._progress.finished

    def end(self, why: str) -> None:
        """Drop the batches under way."""
        if self._ended is not None:
            return
        self._ended = why
        if self._ahead is not None:
            self._ahead.close()
        # A source whose epoch is over may be in the next one by now, of another iterator.
        if not self._progress.finished:
            with contextlib.suppress(Exception):  # the error that ended the epoch counts
                self._source.cancel_epoch()

    def disown(self) -> None:
        """Count as ended; the epoch goes on in the process that this one is a fork of."""
        self._ended = "it belongs to the process that this one is a fork of; build a loader here"

    def __del__(self) -> None:
        # `__init__` may have raised before.
        if hasattr(self, "_ahead"):
            self.end("it was dropped")


@dataclass
class _Parts:
    """A batch of the source, and its parts that are still to be handed out."""

    received: Received
    left: list[SampleMessage]
    wait_s: float
    collate_s: float = 0.0


class NoLengthError(UsageError, TypeError):
    """The batches of an epoch cannot be counted ahead; `operator.length_hint` and tqdm take it."""


def check_length(*, known: bool) -> None:
    """Raise `NoLengthError` unless the number of batches of an epoch is known."""
    if not known:
        raise NoLengthError(
            "how many batches an epoch has is not known: those that are larger than pad= says are "
            'split; with "larger": "bound" in it none is'
        )


def _pull(source: BatchSource, wait: bool) -> tuple[SampleMessage, Received] | NotReady:
    """Return the next message beside the rest of what was received, for `CopyAhead`."""
    with NoEarlyEnd("getting a batch"):
        if not wait and not source.ready():
            return NOT_READY
        received = source.next()
    if received is None:
        raise StopIteration
    # The engine copies tensors and passes on all else, so each batch comes out with its own ticket.
    # Beside the message and not in it, where a sampler's own key could be the same.
    return received.message, replace(received, message={})


class Epochs:
    """The epochs of one loader: the one under way, its progress, and the next one.

    Args:
        source: Samples the batches.
    """

    num_batches = 0
    """Batches of the source's input."""
    _steps = Steps(0)
    share: WorldShare | None = None
    """This rank's part of the job's batches; None: the input is this rank's alone."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self.next_epoch = 0
        """The epoch that the next `begin` starts."""
        self.seed: int | None = None
        """The seed of a loaded state, in place of one that was drawn; None: the source's own."""
        self._progress = EpochProgress()
        self._num_attempts = 0
        self._started = False  # whether self._progress is of the epoch that the user is in
        self._resumed = False
        # An iterator holds its loader; were it held in turn, dropping it (as `break` does) would
        # not end the epoch before the garbage collector comes by.
        self._last: Callable[[], EpochIterator | None] = lambda: None  # a weak reference

    @property
    def iterator(self) -> EpochIterator | None:
        """The iterator that `begin` returned last, while somebody holds it."""
        return self._last()

    def agree_on_steps(
        self, own: int, rank: int, world_size: int, even_ranks: str | None, *, is_shared: bool
    ) -> None:
        """Set the steps of an epoch on this rank. All ranks call it.

        Args:
            own: Batches of the source's input.
            rank: This rank.
            world_size: Number of ranks.
            even_ranks: The loader's keyword.
            is_shared: All ranks have the same input, and each takes a part of its batches.

        Raises:
            ConfigError, UsageError: As `even_steps`.
        """
        self.num_batches = own
        if is_shared:
            self.share = WorldShare(
                rank=rank, world_size=world_size, total=own, even_ranks=even_ranks
            )
        self._steps = even_steps(own, even_ranks, world_size, self.share)

    @property
    def num_steps(self) -> int:
        """Batches of an epoch on this rank."""
        return self._steps.own

    def set_next(self, epoch: int) -> None:
        """Say which epoch the next `begin` starts."""
        _check_epoch(epoch)
        resumes_at = self._progress.epoch if self._resumed else None
        if resumes_at is not None and epoch != resumes_at:
            logger.warning(
                "set_epoch(%d) drops the position of load_state_dict(), after %d batches of "
                "epoch %d: begin the loop with loader.epoch",
                epoch,
                self._progress.yielded,
                resumes_at,
            )
        if epoch != resumes_at:
            self._resumed = self._started = False
        self.next_epoch = epoch

    def begin(
        self,
        check_start: Callable[[int, int], None],
        make: Callable[[int, EpochProgress], EpochIterator],
    ) -> EpochIterator:
        """Start an epoch; an iterator of an earlier one is ended, and raises when it is used.

        Args:
            check_start: Called with the epoch and the number of its yielded batches, before
                anything is started; may raise.
            make: Returns an iterator over so many batches, which notes them in the progress.
        """
        # Before the source starts: the end of the old iterator cancels its batches under way, and
        # would cancel the new epoch if it came later.
        self.end("a newer iter() of the same loader ended it")
        if not self._resumed:
            self._progress = EpochProgress(epoch=self.next_epoch, share=self.share)
        # Before a resume counts as used up: if this raises, the next iter() still continues there.
        check_start(self._progress.epoch, self._progress.yielded)
        self._resumed, self._started = False, True
        self._steps.warn_if_uneven()
        # A position is a step of the epoch, a batch is one of the input: with even_ranks="wrap"
        # positions go on beyond the last batch, and count from the first one again. An empty input
        # has no positions, but 0 would divide.
        positions = self._progress.positions_left(self.num_steps)
        own = max(self.num_batches, 1)
        batches = [position % own for position in positions]
        self._source.start_epoch(self._next_attempt(self._progress.epoch), batches, positions)
        self.next_epoch = self._progress.epoch + 1
        iterator = make(len(positions), self._progress)
        self._last = weakref.ref(iterator)
        return iterator

    def _next_attempt(self, epoch: int) -> Attempt:
        self._num_attempts += 1
        return Attempt(epoch, self._num_attempts, self.seed)

    def end(self, why: str) -> None:
        """End the iterator of the epoch under way."""
        if (iterator := self.iterator) is not None:
            iterator.end(why)
        self._last = lambda: None

    def disown(self) -> None:
        """Make the iterator unusable in a forked child, without a word to the source."""
        if (iterator := self.iterator) is not None:
            iterator.disown()

    def sample_again(self, epoch: int, batch: int) -> Received:
        """Return one batch of any epoch, sampled now; progress and counts do not change.

        Raises:
            ConfigError: There is no such epoch or batch.
            UsageError: An epoch is under way.
        """
        _check_epoch(epoch)
        _check_number("batch", batch, self.num_batches)
        # One stream has one epoch: starting this one would end the other's.
        if (iterator := self.iterator) is not None and not iterator.is_over:
            raise UsageError(
                "replay cannot run during an epoch: end its loop first; to continue "
                "with that epoch later, keep loader.state_dict() and give it to load_state_dict()"
            )
        source = self._source
        try:
            source.start_epoch(self._next_attempt(epoch), [batch], [batch])
            received = source.next()
            if received is None:
                raise PeerError(f"batch {batch} of epoch {epoch} did not come: the epoch was empty")
            source.next()  # past the end, so that the source is at rest as after any epoch
        except BaseException:
            source.cancel_epoch()
            raise
        return received

    def state(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return the loader's position, for `load`; ``identity`` tells the loader from others."""
        # After set_next() to another epoch the old progress is no longer the loader's position.
        if not (self._started or self._resumed):
            return EpochProgress(epoch=self.next_epoch).to_dict(identity)
        return self._progress.to_dict(identity)

    def load(self, state: dict[str, Any], identity: dict[str, Any], **how: Any) -> None:
        """Let the next `begin` continue from ``state``; see `EpochProgress.from_dict`."""
        # Read first: a refused state does not change the epoch under way.
        progress = EpochProgress.from_dict(state, identity, **how)
        self.end("load_state_dict() ended it")
        progress.share = self.share
        self._progress = progress
        self._resumed, self._started = not progress.finished, True
        self.next_epoch = progress.epoch + 1 if progress.finished else progress.epoch


def _check_epoch(epoch: int) -> None:
    # Batches requested by their seeds are of an epoch of that number, and of no user's.
    if isinstance(epoch, int) and epoch >= AT_ONCE_EPOCH:
        raise ConfigError(f"epoch must be below 2**62, got {epoch}")
    _check_number("epoch", epoch, None)


def _check_number(name: str, value: int, stop: int | None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < 0 or (stop is not None and value >= stop):
        limit = ">= 0" if stop is None else f"in [0, {stop}), as many batches as an epoch has"
        raise ConfigError(f"{name} must be an integer {limit}, got {value!r}")
