"""The trainer's side of message memory: a queue whose messages are tensors over workers' slots."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader._glt import ChannelBase
from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError
from gigl_loader.memory import segments
from gigl_loader.memory.leases import LeaseTable, Register
from gigl_loader.memory.slots import SlotWriter, Written
from gigl_loader.memory.tensors import as_array, dtype_name
from gigl_loader.message import Field, SampleMessage

_LOCAL = -1
"""The sender's number of messages sent by this process itself."""

TakeNext = Callable[[float | None], SampleMessage]


def field_of(key: str, tensor: Tensor) -> Field:
    """Return a field that copies ``tensor``, of whichever type."""
    array = as_array(tensor)
    return Field(
        key, dtype_name(tensor.dtype), tuple(tensor.shape), lambda out: np.copyto(out, array)
    )


class ShmChannel(ChannelBase):
    """A queue of sample messages in shared memory.

    Args:
        capacity: Messages that may be under way or unread at once, at least 1.
        size: Bytes of shared memory that those messages may take. One message larger than that
            still passes, alone.
        register: Called with address and bytes of each new slot, for example to pin it; returns an
            object whose ``release()`` undoes it.
    """

    def __init__(self, capacity: int, size: int, register: Register | None = None) -> None:
        if capacity < 1 or size < 1:
            raise ConfigError(f"channel capacity and size must be > 0, got {capacity} and {size}")
        self.capacity, self.size = capacity, size
        self.closed = False
        self._leases = LeaseTable(register)
        self._source: TakeNext | None = None
        self._local: SlotWriter | None = None
        self._ready: deque[SampleMessage] = deque()
        self._arrival = threading.Condition()

    # -- receiving ------------------------------------------------------------------------------

    def bind(self, source: TakeNext | None) -> None:
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
        # a producer waits itself: while it does, it has to watch its workers and hand out batches
        if self._source is not None:
            return self._source(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrival:
            while not self._ready:
                # an hour stands for no limit: `send` and `close` notify, and the loop waits again
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
        # one lock around all of it: senders in several threads share the writer, and messages are
        # queued in the order in which their slots were written
        with self._arrival:
            if self._local is None:
                self._local = SlotWriter()
            # first what readers have dropped: else each message would need a slot of its own
            free, retired = self.returned(_LOCAL, self.capacity)
            self._local.give_back(free, retired)
            written = self._local.write([field_of(key, value) for key, value in msg.items()])
            self._ready.append(self.open(_LOCAL, written))
            # the mapping holds the memory from here on, and no descriptor is spent on a kept batch
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
        return self._leases.take(sender, written).tensors()

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of ``sender`` that no tensor uses any more: (to reuse, to give up)."""
        return self._leases.returned(sender, concurrency)

    def forget(self, sender: int) -> None:
        """Release what a worker that is gone had written, once no tensor uses it."""
        self._leases.forget(sender)

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        return self._leases.largest

    def close(self) -> None:
        """Release all memory that no tensor uses; the rest goes with its tensors. Idempotent."""
        if self.closed:
            return
        # set before the waiters are woken, which look at it. Dropping messages takes the table's
        # lock inside this one; nothing takes the two the other way round
        self.closed = True
        with self._arrival:
            self._ready.clear()
            self._arrival.notify_all()
        self._leases.close()
