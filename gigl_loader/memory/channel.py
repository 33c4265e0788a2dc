"""The trainer's side of message memory: tensors that are views of a worker's slot, on lease.

::

    worker: SlotWriter --fd, layout--> trainer: ShmChannel.open() -> tensors over the slot
                       <--slot number-- all tensors dropped

A slot is one anonymous shared segment. The batch's tensors all hold one lease object; when the last
of them is gone, the slot's number is handed back to its worker, which writes the next batch there:
no copy, no page faults. A batch that is kept keeps its slot, and the worker makes another.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader._glt import ChannelBase
from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError
from gigl_loader.memory import segments
from gigl_loader.memory.slots import Layout, SlotWriter, Written
from gigl_loader.memory.tensors import as_array, dtype_name, tensor_in
from gigl_loader.message import Field, SampleMessage

_KEEP_FREE = 2
"""Free slots that a worker keeps beyond its concurrency; more are given up."""

_LOCAL = -1
"""The sender's number of messages sent by this process itself."""

Source = Callable[[float | None], SampleMessage]


def field_of(key: str, tensor: Tensor) -> Field:
    """Return a field that copies ``tensor``, of whichever type."""
    array = as_array(tensor)
    return Field(
        key, dtype_name(tensor.dtype), tuple(tensor.shape), lambda out: np.copyto(out, array)
    )


@dataclass
class _Mapped:
    address: int
    nbytes: int
    pinned: Any = None


@dataclass
class _Sender:
    """Slots of one worker, as the trainer sees them."""

    slots: dict[int, _Mapped] = field(default_factory=dict)
    dropped: deque[int] = field(default_factory=deque)
    """Filled by whichever thread drops the last tensor; appending is atomic."""
    leased: set[int] = field(default_factory=set)


class ShmChannel(ChannelBase):
    """A queue of sample messages in shared memory.

    Args:
        capacity: Messages that may be under way or unread at once, at least 1.
        size: Bytes of shared memory that those messages may take. One message larger than that
            still passes, alone.
        register: Called with address and bytes of each new slot, for example to pin it; returns an
            object whose ``release()`` undoes it.
    """

    def __init__(
        self, capacity: int, size: int, register: Callable[[int, int], Any] | None = None
    ) -> None:
        if capacity < 1 or size < 1:
            raise ConfigError(f"channel capacity and size must be > 0, got {capacity} and {size}")
        self.capacity, self.size, self._register = capacity, size, register
        self.closed = False
        self._senders: dict[int, _Sender] = {}
        self._source: Source | None = None
        self._local: SlotWriter | None = None
        self._ready: deque[SampleMessage] = deque()
        self._arrival = threading.Condition()

    # -- receiving ------------------------------------------------------------------------------

    def bind(self, source: Source | None) -> None:
        """Let ``recv`` ask ``source(timeout_s)``, a producer, which also watches its workers."""
        self._source = source

    def recv(self, timeout_s: float | None = None, **_: Any) -> SampleMessage:
        """Return the next message.

        Raises:
            PeerError: A worker died, stalled or raised.
            UsageError: The channel is closed.
        """
        if self.closed:
            raise UsageError("recv on a closed channel: the loader was shut down")
        if self._source is not None:
            return self._source(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrival:
            while not self._ready:
                left = 3600.0 if deadline is None else deadline - time.monotonic()
                if self.closed:
                    raise UsageError("the channel was closed while a message was waited for")
                if left <= 0:
                    raise PeerTimeoutError(f"no message was sent within {timeout_s} s")
                self._arrival.wait(left)
            return self._ready.popleft()

    def send(self, msg: SampleMessage, **_: Any) -> None:
        """Copy ``msg`` into a slot of its own and queue it, for a producer in this process."""
        if self.closed:
            raise UsageError("send on a closed channel")
        with self._arrival:
            if self._local is None:
                self._local = SlotWriter()
            free, retired = self.returned(_LOCAL, self.capacity)
            self._local.give_back(free, retired)
            written = self._local.write([field_of(key, value) for key, value in msg.items()])
            self._ready.append(self.open(_LOCAL, written))
            if written.fd is not None:
                segments.close_fds([written.fd])
            self._arrival.notify()

    def empty(self) -> bool:
        """Return whether no message sent by this process waits."""
        return not self._ready

    # -- memory ---------------------------------------------------------------------------------

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that ``sender`` wrote, as tensors over its slot.

        Raises:
            SharedMemoryError: The slot cannot be mapped.
        """
        state = self._senders.setdefault(sender, _Sender())
        for number in written.retired:
            self._unmap(state.slots.pop(number))
        if written.fd is not None:
            address = segments.map_fd(written.fd, written.nbytes)
            state.slots[written.slot] = _Mapped(
                address, written.nbytes, self._pin(address, written)
            )
        slot = state.slots[written.slot]
        return self._lease(state, written.slot, slot, written.layout)

    def _lease(self, state: _Sender, number: int, slot: _Mapped, layout: Layout) -> SampleMessage:
        lease = segments.buffer_at(slot.address, slot.nbytes)
        state.leased.add(number)
        weakref.finalize(lease, self._drop, state, number).atexit = False
        return {key: tensor_in(lease, dtype, shape, offset) for key, dtype, shape, offset in layout}

    def _drop(self, state: _Sender, number: int) -> None:
        if not self.closed:
            state.dropped.append(number)
        elif number in state.slots:
            self._unmap(state.slots.pop(number))

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of ``sender`` that no tensor uses any more: (to reuse, to give up)."""
        state = self._senders.get(sender)
        if state is None:
            return [], []
        free: list[int] = []
        retired: list[int] = []
        while state.dropped:
            number = state.dropped.popleft()
            state.leased.discard(number)
            spare = len(state.slots) - len(state.leased)
            if spare > concurrency + _KEEP_FREE:
                retired.append(number)
                self._unmap(state.slots.pop(number))
            else:
                free.append(number)
        return free, retired

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        sizes = [slot.nbytes for sender in self._senders.values() for slot in sender.slots.values()]
        return max(sizes, default=0)

    def _pin(self, address: int, written: Written) -> Any:
        return None if self._register is None else self._register(address, written.nbytes)

    def _unmap(self, slot: _Mapped) -> None:
        if slot.pinned is not None:
            slot.pinned.release()
        segments.unmap(slot.address, slot.nbytes)

    def close(self) -> None:
        """Release all memory that no tensor uses; the rest goes with its tensors. Idempotent."""
        if self.closed:
            return
        self.closed = True
        with self._arrival:
            self._ready.clear()
            self._arrival.notify_all()
        for state in self._senders.values():
            self._close_sender(state)

    def _close_sender(self, state: _Sender) -> None:
        # a lease that ends in another thread at this very moment may be missed: its mapping then
        # stays until the process ends
        for number in list(state.slots):
            if number not in state.leased or number in state.dropped:
                self._unmap(state.slots.pop(number))
