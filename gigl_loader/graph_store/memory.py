"""Message memory on a storage server: workers' slots, sent from where they lie, then given back."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gigl_loader import _memory
from gigl_loader._tensors import tensor_in
from gigl_loader.message import SampleMessage
from gigl_loader.producer.slots import Layout, Written

_KEEP_FREE = 2
"""Free slots that a worker keeps beyond its concurrency."""


class Packed(dict[str, Tensor]):
    """A message that lies in one piece of memory; empty as a dict, until `tensors` is asked.

    The slot goes back to its worker when ``payload``, and every tensor made of it, is gone.
    """

    def __init__(self, lease: Any, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
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
        end = max(end, offset + _memory.nbytes_of(dtype, shape))
    return end


def tensors_over(buffer: Any, layout: Layout) -> SampleMessage:
    """Return the tensors of a message over ``buffer``, which they keep alive."""
    return {key: tensor_in(buffer, dtype, shape, offset) for key, dtype, shape, offset in layout}


@dataclass
class _Sender:
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> address, bytes
    leased: set[int] = field(default_factory=set)
    dropped: list[int] = field(default_factory=list)


class ServerMemory:
    """The slots of one producer's workers: `gigl_loader.producer.producer.MessageMemory`.

    Bytes are limited by consumer (see `SharedProducer`), so that none can take another's.

    Args:
        capacity: Batches that one consumer may have started and not fetched.
    """

    size = 1 << 62

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()  # leases end in whichever thread sends last
        self._senders: dict[int, _Sender] = {}
        self._closed = False

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote, as a `Packed`."""
        with self._lock:
            state = self._senders.setdefault(sender, _Sender())
            for number in written.retired:
                _memory.unmap(*state.slots.pop(number))
            if written.fd is not None:
                address = _memory.map_fd(written.fd, written.nbytes)
                state.slots[written.slot] = (address, written.nbytes)
            lease = _memory.buffer_at(*state.slots[written.slot])
            state.leased.add(written.slot)
        weakref.finalize(lease, self._drop, state, written.slot).atexit = False
        return Packed(lease, written.layout)

    def _drop(self, state: _Sender, number: int) -> None:
        with self._lock:
            if self._closed:
                _memory.unmap(*state.slots.pop(number))
            else:
                state.leased.discard(number)
                state.dropped.append(number)

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of ``sender`` that are free again: (to reuse, to give up)."""
        free: list[int] = []
        retired: list[int] = []
        with self._lock:
            state = self._senders.get(sender)
            if state is None:
                return free, retired
            for number in state.dropped:
                if len(state.slots) - len(state.leased) > concurrency + _KEEP_FREE:
                    retired.append(number)
                    _memory.unmap(*state.slots.pop(number))
                else:
                    free.append(number)
            state.dropped.clear()
        return free, retired

    def bind(self, source: Callable[[float | None], SampleMessage] | None) -> None:
        """Do nothing: nobody receives from this memory, see `SharedProducer.fetch`."""

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        sizes = [nbytes for state in self._senders.values() for _, nbytes in state.slots.values()]
        return max(sizes, default=0)

    @property
    def leased_bytes(self) -> int:
        """Bytes of messages that wait or are being sent."""
        with self._lock:
            return sum(
                state.slots[number][1]
                for state in self._senders.values()
                for number in state.leased
            )

    def close(self) -> None:
        """Release all memory that is not being sent; the rest goes when it was. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for state in self._senders.values():
                for number in set(state.slots) - state.leased:
                    _memory.unmap(*state.slots.pop(number))
