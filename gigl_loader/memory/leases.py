"""Message memory on a storage server: workers' slots, sent from where they lie, then given back.

To a client on the same machine only the place of a batch is sent: it maps the slot, as a trainer
maps the slots of its own workers in colocated mode, and says when it has dropped the batch.
"""

import itertools
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gigl_loader.memory import segments
from gigl_loader.memory.slots import Layout, Written
from gigl_loader.memory.tensors import tensor_in
from gigl_loader.message import SampleMessage

_MARK = "gigl_loader.mark"
_KEEP_FREE = 2
"""Free slots that a worker keeps beyond its concurrency."""


@dataclass(frozen=True)
class Place:
    """Memory of this machine, as another process can find it."""

    pid: int
    fd: int
    nbytes: int
    serial: int = -1
    """Tells it from memory that had the same descriptor before."""


class MemoryMark:
    """Tells whether another process sees this one's memory: on this machine, with the right to it.

    A secret in anonymous memory; who can read it there can also map what lies beside it.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._fd = segments.create_memfd(len(self._secret), _MARK)
        os.pwrite(self._fd, self._secret, 0)

    def show(self) -> tuple[Place, bytes]:
        """Return where the secret lies, and the secret."""
        return Place(os.getpid(), self._fd, len(self._secret)), self._secret

    def close(self) -> None:
        """Release the memory. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def sees(shown: tuple[Place, bytes]) -> bool:
    """Return whether this process can map the memory of the one whose `MemoryMark` it was shown."""
    place, secret = shown
    return segments.peek(place.pid, place.fd, place.nbytes, _MARK) == secret


class Mappings:
    """Memory of other processes that this one has mapped, kept for the next batch that lies there.

    Args:
        most_idle: Mappings to keep beyond those in use.
    """

    def __init__(self, most_idle: int = 16) -> None:
        self._most_idle = most_idle
        self._lock = threading.RLock()  # a batch may be dropped in the middle of anything
        self._idle: dict[Place, int] = {}  # the address; longest idle first
        self._closed = False

    def lease(self, place: Place, on_drop: Callable[[], None]) -> Any:
        """Return an object with the buffer protocol over memory of another process.

        Args:
            place: The memory; its owner keeps it until ``on_drop``.
            on_drop: Called once nothing uses the object any more, by whichever thread drops it.

        Raises:
            OSError: It is not there any more, or cannot be mapped.
        """
        with self._lock:
            address = self._idle.pop(place, None)
        if address is None:
            fd = segments.open_fd_of(place.pid, place.fd)
            try:
                address = segments.map_fd(fd, place.nbytes)
            finally:
                os.close(fd)
        buffer = segments.buffer_at(address, place.nbytes)
        weakref.finalize(buffer, self._drop, place, address, on_drop).atexit = False
        return buffer

    def _drop(self, place: Place, address: int, on_drop: Callable[[], None]) -> None:
        with self._lock:
            self._idle[place] = address
            self._trim()
        on_drop()

    def _trim(self) -> None:
        while len(self._idle) > (0 if self._closed else self._most_idle):
            place = next(iter(self._idle))
            segments.unmap(self._idle.pop(place), place.nbytes)

    def close(self) -> None:
        """Release what no tensor uses; the rest goes with its tensors. Idempotent."""
        with self._lock:
            self._closed = True
            self._trim()


class Packed(dict[str, Tensor]):
    """A message that lies in one piece of memory; empty as a dict, until `tensors` is asked.

    The slot goes back to its worker when ``payload``, and every tensor made of it, is gone.
    """

    def __init__(self, lease: Any, layout: Layout, loan: "Loan") -> None:
        super().__init__()
        self.layout, self.loan = layout, loan
        self._lease = lease

    @property
    def payload(self) -> memoryview:
        """The bytes that the tensors take, without the slot's spare end."""
        return memoryview(self._lease).cast("B")[: payload_bytes(self.layout)]

    def tensors(self) -> SampleMessage:
        """Return the message as tensors over the slot."""
        return tensors_over(self._lease, self.layout)


def payload_bytes(layout: Layout) -> int:
    """Return how many bytes the tensors of a message take, gaps included."""
    end = 0
    for _, dtype, shape, offset in layout:
        end = max(end, offset + segments.nbytes_of(dtype, shape))
    return end


def tensors_over(buffer: Any, layout: Layout) -> SampleMessage:
    """Return the tensors of a message over ``buffer``, which they keep alive."""
    return {key: tensor_in(buffer, dtype, shape, offset) for key, dtype, shape, offset in layout}


@dataclass(frozen=True)
class _Slot:
    address: int
    nbytes: int
    fd: int
    serial: int = field(default_factory=itertools.count().__next__)

    def release(self) -> None:
        segments.unmap(self.address, self.nbytes)
        os.close(self.fd)


@dataclass
class _Sender:
    slots: dict[int, _Slot] = field(default_factory=dict)
    leased: set[int] = field(default_factory=set)
    lent: set[int] = field(default_factory=set)
    """Those leased ones that a client reads where they lie."""
    spoiled: set[int] = field(default_factory=set)
    """Those that a client may read for ever: never written again."""
    dropped: list[int] = field(default_factory=list)


class Loan:
    """The slot of one message, handed to another process to be read there."""

    def __init__(self, lock: Any, state: _Sender, number: int) -> None:
        self._lock, self._state, self._number = lock, state, number

    def begin(self) -> Place:
        """Say where the message lies; until it is dropped it counts as with the client."""
        with self._lock:
            self._state.lent.add(self._number)
            slot = self._state.slots[self._number]
        return Place(os.getpid(), slot.fd, slot.nbytes, slot.serial)

    def lose(self) -> None:
        """The client left without giving it back: it may go on reading, so nobody may write."""
        with self._lock:
            self._state.spoiled.add(self._number)


class ServerMemory:
    """The slots of one producer's workers: `gigl_loader.workers.producer.MessageMemory`.

    Bytes are limited by consumer (see `SharedProducer`), so that none can take another's.

    Args:
        capacity: Batches that one consumer may have started and not fetched.
    """

    size = 1 << 62

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.RLock()  # leases end in whichever thread sends last
        self._senders: dict[int, _Sender] = {}
        self._closed = False

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote, as a `Packed`."""
        with self._lock:
            state = self._senders.setdefault(sender, _Sender())
            for number in written.retired:
                state.slots.pop(number).release()
            if written.fd is not None:
                fd = os.dup(written.fd)
                try:
                    address = segments.map_fd(fd, written.nbytes)
                except BaseException:
                    os.close(fd)
                    raise
                state.slots[written.slot] = _Slot(address, written.nbytes, fd)
            slot = state.slots[written.slot]
            lease = segments.buffer_at(slot.address, slot.nbytes)
            state.leased.add(written.slot)
        weakref.finalize(lease, self._drop, state, written.slot).atexit = False
        return Packed(lease, written.layout, Loan(self._lock, state, written.slot))

    def _drop(self, state: _Sender, number: int) -> None:
        with self._lock:
            if self._closed:
                state.slots.pop(number).release()
            else:
                state.leased.discard(number)
                state.lent.discard(number)
                state.dropped.append(number)

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of ``sender`` that are free again: (to reuse, to give up)."""
        free: list[int] = []
        retired: list[int] = []
        with self._lock:
            state = self._senders.get(sender)
            if state is None:
                return free, retired
            dropped, state.dropped = state.dropped, []
            for number in dropped:
                spare = len(state.slots) - len(state.leased)
                if number in state.spoiled or spare > concurrency + _KEEP_FREE:
                    state.spoiled.discard(number)
                    retired.append(number)
                    state.slots.pop(number).release()
                else:
                    free.append(number)
        return free, retired

    def bind(self, source: Callable[[float | None], SampleMessage] | None) -> None:
        """Do nothing: nobody receives from this memory, see `SharedProducer.fetch`."""

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        sizes = [slot.nbytes for state in self._senders.values() for slot in state.slots.values()]
        return max(sizes, default=0)

    @property
    def leased_bytes(self) -> int:
        """Bytes of messages that wait or are being sent."""
        with self._lock:
            return sum(
                state.slots[number].nbytes
                for state in self._senders.values()
                for number in state.leased - state.lent
            )

    def close(self) -> None:
        """Release all memory that is not being sent; the rest goes when it was. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for state in self._senders.values():
                for number in set(state.slots) - state.leased:
                    state.slots.pop(number).release()
