"""The worker's side of message memory: slots are written, read by the trainer, and returned."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gigl_loader.batch.message import Field
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.segments import Layout

_SPARE = 1.2
"""A new slot is this much larger than its first message: batches vary a little, and a batch that
does not fit costs a new slot with all its page faults."""
_PAGE = 64 * 1024
"""Sizes of slots are multiples of this many bytes."""


@dataclass
class Slot:
    """One mapped segment."""

    number: int
    address: int
    nbytes: int


@dataclass(frozen=True)
class Written:
    """A finished message."""

    slot: int
    nbytes: int
    """Size of the slot."""
    fd: int | None
    """Descriptor of a new slot: to be sent along, then closed."""
    retired: tuple[int, ...]
    """Slots that this worker gave up."""
    layout: Layout


def layout_of(fields: Sequence[Field]) -> tuple[Layout, int]:
    """Return the place of each field, and the total bytes."""
    return segments.layout_of([(field.key, field.dtype, field.shape) for field in fields])


def write_fields(fields: Sequence[Field], layout: Layout, buffer: Any) -> None:
    """Let each field write itself to its place."""
    for field, out in zip(fields, segments.arrays_in(buffer, layout), strict=True):
        field.write(out)


class SlotWriter:
    """Slots of one worker. A large enough free slot is reused; else a new one is made.

    Used by several sampling threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several sampling threads write
        self._free: dict[int, Slot] = {}
        self._leased: dict[int, Slot] = {}  # written, and not handed back yet
        # given up here, and still mapped by the trainer; no message has told it yet
        self._untold: list[int] = []
        self._next = 0  # no number is given twice: the trainer's of one always means the same slot

    def write(self, fields: Sequence[Field]) -> Written:
        """Write a message.

        Raises:
            SharedMemoryError: The machine is out of shared memory.
        """
        layout, nbytes = layout_of(fields)
        slot, fd = self._acquire(nbytes)
        # outside the lock: the slot is among the leased ones, so nobody else takes it, and other
        # threads write theirs meanwhile
        try:
            write_fields(fields, layout, segments.buffer_at(slot.address, slot.nbytes))
        except BaseException:
            if fd is not None:
                os.close(fd)
            with self._lock:
                del self._leased[slot.number]
                if fd is None:  # the trainer knows it; a new one is just dropped
                    self._free[slot.number] = slot
                else:
                    segments.unmap(slot.address, slot.nbytes)
            raise
        # only now that a message can carry them: a failed one would lose them
        with self._lock:
            retired, self._untold = tuple(self._untold), []
        return Written(slot.number, slot.nbytes, fd, retired, layout)

    def _acquire(self, nbytes: int) -> tuple[Slot, int | None]:
        with self._lock:
            fitting = [slot for slot in self._free.values() if slot.nbytes >= nbytes]
            if fitting:
                slot = min(fitting, key=lambda slot: slot.nbytes)
                del self._free[slot.number]
                self._leased[slot.number] = slot
                return slot, None
            # all free ones are too small, and would stay so: batches of one loader differ little,
            # so the next batches resemble this one
            self._untold.extend(self._free)
            self.retire(tuple(self._free))
            # one byte more, so that a message without bytes has a slot, too
            size = -(-int(nbytes * _SPARE + 1) // _PAGE) * _PAGE
            fd = segments.create_memfd(size, "gigl_loader.slot")
            try:
                slot = Slot(self._next, segments.map_fd(fd, size), size)
            except BaseException:
                os.close(fd)
                raise
            self._next += 1
            self._leased[slot.number] = slot
            return slot, fd

    def give_back(self, free: Sequence[int], retired: Sequence[int]) -> None:
        """Take slots back from the trainer, for reuse or to be given up."""
        with self._lock:
            # slots to give up first join the free ones, where `retire` finds them; the trainer has
            # released them itself, so it need not be told
            for number in (*free, *retired):
                self._free[number] = self._leased.pop(number)
            self.retire(retired)

    def retire(self, numbers: Sequence[int]) -> None:
        """Unmap free slots. The caller holds the lock, or is the only thread."""
        for number in numbers:
            slot = self._free.pop(number)
            segments.unmap(slot.address, slot.nbytes)
