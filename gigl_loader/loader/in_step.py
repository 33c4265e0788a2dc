"""The batches of one epoch, between the threads that sample them and the one that takes them."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from gigl_loader.errors import PeerTimeoutError, UsageError
from gigl_loader.message import Attempt, Received

# Seconds: how late `take` may notice its deadline. The other waits end by a notification.
_WAKE_S = 1.0


class Turns:
    """Lets the lanes of an epoch do something one after another, in the order of its steps."""

    def __init__(self) -> None:
        self._next = 0
        self._ended_at: int | None = None
        self._changed = threading.Condition()

    def wait(self, step: int) -> bool:
        """Return whether it is this step's turn; False: an earlier one was the last.

        A lane that ends says so (`end`), so this waits for lanes that live.
        """
        with self._changed:
            while self._next < step and (self._ended_at is None or step < self._ended_at):
                self._changed.wait(_WAKE_S)
            return self._next == step

    def passed(self, step: int) -> None:
        """Let the next step have its turn."""
        with self._changed:
            self._next = step + 1
            self._changed.notify_all()

    def end(self, step: int) -> None:
        """Say that ``step`` does not have its turn, so that none after it has.

        Those before it still have theirs: lanes of other ranks may have had them already, and all
        ranks have to stop at the same turn.
        """
        with self._changed:
            # Several lanes may end, each at a step of its own: the first of these counts.
            self._ended_at = step if self._ended_at is None else min(step, self._ended_at)
            self._changed.notify_all()


class EpochBatches:
    """The batches that one rank samples in an epoch, taken in order.

    Args:
        attempt: Which epoch, and which try at it.
        batches: Indices of its batches.
        order: Positions of the seeds in the input; None: as they stand there.
        room: Batches that may have been sampled and not taken.
    """

    def __init__(self, attempt: Attempt, batches: Sequence[int], order: Any, room: int) -> None:
        self.attempt, self.batches, self.order = attempt, batches, order
        self.taken = 0
        """Batches that the trainer has; also the position of its next one."""
        self.is_broken_off = False
        self.error: BaseException | None = None
        """The first one; it ends the epoch."""
        self.turns = Turns()
        """Order of the epoch's steps, for work that must follow it."""
        self._room = room
        self._ready: dict[int, Received] = {}
        self._changed = threading.Condition()

    @property
    def num_ready(self) -> int:
        """Batches that wait to be taken."""
        return len(self._ready)

    def would_not_wait(self) -> bool:
        """Return whether `take` has something to return or to raise."""
        is_over = self.error is not None or self.taken == len(self.batches)
        return is_over or self.taken in self._ready

    def break_off(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self.is_broken_off = True
            # Nobody takes them any more, and each keeps a block of memory.
            self._ready.clear()
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End the epoch with ``error``, unless another one has."""
        with self._changed:
            # The first one: what follows are its consequences, told by ranks or lanes that it
            # reached.
            self.error = self.error or error
            self._changed.notify_all()

    def hand_over(self, step: int, found: Received) -> None:
        """Give batch number ``step`` to the trainer; waits while there is no room for it."""
        with self._changed:
            # Counted from what the trainer took, not by how many are ready: with one batch missing,
            # later ones must not take the room that it needs.
            while step >= self.taken + self._room and not self._is_over():
                self._changed.wait(_WAKE_S)
            # After an error a batch is still filed: `take` hands out what is there before it
            # raises.
            if not self.is_broken_off:
                self._ready[step] = found
                self._changed.notify_all()

    def take(self, limit_s: float) -> Received:
        """Return the next batch.

        Raises:
            UsageError: The epoch was broken off meanwhile, as by a signal's handler.
            PeerTimeoutError: There was none in ``limit_s`` seconds.
            PeerError: What ended the epoch.
        """
        deadline = time.monotonic() + limit_s
        with self._changed:
            # A batch that is there comes before the error of a later one: nothing is wrong with it.
            while self.taken not in self._ready:
                if self.error is not None:
                    raise self.error
                if self.is_broken_off:  # no lane samples for it any more
                    raise UsageError(f"epoch {self.attempt.epoch} was broken off: start one first")
                if time.monotonic() >= deadline:
                    raise PeerTimeoutError(
                        f"batch {self.batches[self.taken]} of epoch {self.attempt.epoch} was not "
                        f"sampled in {limit_s:.0f} s: the ranks sample together, so each has to "
                        "take its batches; if a step really takes that long, raise `timeout`"
                    )
                self._changed.wait(_WAKE_S)
            found = self._ready.pop(self.taken)
            self.taken += 1
            self._changed.notify_all()
            return found

    def _is_over(self) -> bool:
        return self.is_broken_off or self.error is not None
