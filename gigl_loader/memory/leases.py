"""Slots of workers, as seen by the process that receives their messages: one table for all uses.

::

    worker: SlotWriter --descriptor, layout--> LeaseTable.take() -> Lease: the slot's bytes
                       <-- slot number ------- the lease and every tensor made of it are dropped

A slot is one anonymous shared segment. A message is read where its worker wrote it. When its last
user is gone, the slot's number is handed back to its worker, which writes the next message there:
no copy, no page faults. A message that is kept keeps its slot, and the worker makes another.
A loader takes such messages from the queue `ShmChannel`.

A storage server may lend a slot to a client of the same machine, which maps it. If that client
leaves without giving the slot back, the slot is poisoned: the client may read it for ever, so it
is never written again.
"""

import ctypes
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gigl_loader._glt import ChannelBase
from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError
from gigl_loader.memory import segments
from gigl_loader.memory.same_host import Region, region_of
from gigl_loader.memory.slots import Layout, SlotWriter, Written, layout_of, write_fields
from gigl_loader.memory.tensors import as_array, dtype_name, tensor_in
from gigl_loader.message import Field, SampleMessage

_KEEP_FREE = 2
"""Free slots that a worker keeps beyond its concurrency: batches differ in size, and a large one
needs another slot than the small ones around it. Further slots are given up, so that a consumer
that held many batches for a while does not bind their memory for ever."""


class Registration(Protocol):
    """Handle of a memory registration, such as pinning."""

    def release(self) -> None:
        """Undo it."""
        ...


Register = Callable[[int, int], Registration | None]
"""Called with address and bytes of each new slot."""


@dataclass
class _MappedSlot:
    address: int
    nbytes: int
    fd: int | None
    """Descriptor; kept if slots are lent."""
    registration: Registration | None

    def release(self) -> None:
        # first: once the slot is unmapped, other memory may lie at that address, still registered
        if self.registration is not None:
            self.registration.release()
        segments.unmap(self.address, self.nbytes)
        if self.fd is not None:
            os.close(self.fd)


@dataclass
class _Sender:
    """Slots of one worker by number, with their states."""

    slots: dict[int, _MappedSlot] = field(default_factory=dict)
    leased: set[int] = field(default_factory=set)
    lent: set[int] = field(default_factory=set)
    """Leased slots that another process reads in place."""
    poisoned: set[int] = field(default_factory=set)
    """Slots that another process may read for ever."""
    dropped: list[int] = field(default_factory=list)
    """Slots that are no longer leased, and not handed back yet."""
    is_gone: bool = False
    """Whether the worker that slots are handed back to is gone."""


class Lease:
    """One message's slot; it is not written while this, or a tensor made of it, is held."""

    def __init__(self, table: "LeaseTable", sender: _Sender, number: int, layout: Layout) -> None:
        self._table, self._sender, self._number = table, sender, number
        self.layout = layout
        slot = sender.slots[number]
        self._buffer = segments.buffer_at(slot.address, slot.nbytes)
        # tied to the buffer, not to this object: tensors keep only the buffer. Not at exit: the
        # memory goes with the process, and the table may be gone by then
        weakref.finalize(self._buffer, table.drop, sender, number).atexit = False

    @property
    def payload(self) -> memoryview:
        """The bytes of the tensors, without the slot's spare end."""
        return memoryview(self._buffer).cast("B")[: payload_bytes(self.layout)]

    def tensors(self) -> SampleMessage:
        """Return the message as tensors over the slot."""
        return tensors_over(self._buffer, self.layout)

    def lend(self) -> Region:
        """Return the message's place, for another process to read it while this is held."""
        return self._table.lend(self._sender, self._number)

    def poison(self) -> None:
        """Never write the slot again: its borrower is gone, or may go on reading."""
        self._table.poison(self._sender, self._number)


class LeaseTable:
    """The slots of some workers.

    Args:
        register: Called for each new slot, for example to pin it.
        lends: Keep the slots' descriptors, so that leases can be lent.
    """

    def __init__(self, register: Register | None = None, *, lends: bool = False) -> None:
        self._register, self._lends = register, lends
        # a lease ends in the thread that drops the last tensor, even in the middle of a call here
        # when the garbage collector runs. So the lock is reentrant, and each call leaves the sets
        # consistent before it makes objects
        self._lock = threading.RLock()
        self._senders: dict[int, _Sender] = {}
        self._closed = False

    def take(self, sender: int, written: Written) -> Lease:
        """Return the message that worker ``sender`` wrote.

        Raises:
            SharedMemoryError: The slot cannot be mapped.
        """
        with self._lock:
            state = self._senders.setdefault(sender, _Sender())
            # the worker has unmapped these: the mapping here keeps their pages
            for number in written.retired:
                state.slots.pop(number).release()
            if written.fd is not None:
                state.slots[written.slot] = self._map(written.fd, written.nbytes)
            state.leased.add(written.slot)
            return Lease(self, state, written.slot, written.layout)

    def _map(self, fd: int, nbytes: int) -> _MappedSlot:
        # the caller closes its own once the message is open. A later borrower of the slot uses this
        # one, which keeps its number, so that the borrower recognises the region
        kept = os.dup(fd) if self._lends else None
        try:
            address = segments.map_fd(fd, nbytes)
        except BaseException:
            if kept is not None:
                os.close(kept)
            raise
        registration = None if self._register is None else self._register(address, nbytes)
        return _MappedSlot(address, nbytes, kept, registration)

    def returned(self, sender: int, concurrency: int) -> tuple[list[int], list[int]]:
        """Return the slots of ``sender`` that nobody uses any more: (to reuse, to give up)."""
        free: list[int] = []
        retired: list[int] = []
        with self._lock:
            # unknown before its first message, and after `forget`
            state = self._senders.get(sender, _Sender())
            # taken out first: an object made below may run the garbage collector, which may end a
            # lease, which adds to the list
            dropped, state.dropped = state.dropped, []
            for number in dropped:
                # free at the worker already, or further on in this list
                spare = len(state.slots) - len(state.leased)
                if number in state.poisoned or spare > concurrency + _KEEP_FREE:
                    # the worker never gives a number again, so it need not be remembered
                    state.poisoned.discard(number)
                    retired.append(number)
                    state.slots.pop(number).release()
                else:
                    free.append(number)
        return free, retired

    def forget(self, sender: int) -> None:
        """Release the slots of a worker that is gone; leased slots go with their leases.

        Another worker may take its number.
        """
        with self._lock:
            # leases keep the state, and end in it: a new worker of the same number, which counts
            # its slots from 0 again, gets a new state
            state = self._senders.pop(sender, None)
            if state is not None:
                state.is_gone = True
                for number in set(state.slots) - state.leased:
                    state.slots.pop(number).release()

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        with self._lock:
            return max(
                (slot.nbytes for one in self._senders.values() for slot in one.slots.values()),
                default=0,
            )

    @property
    def leased_bytes(self) -> int:
        """Bytes of the slots that are leased and not lent."""
        with self._lock:
            return sum(
                state.slots[number].nbytes
                for state in self._senders.values()
                for number in state.leased - state.lent
            )

    def close(self) -> None:
        """Release all memory that is not leased; the rest goes with its leases. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for state in self._senders.values():
                for number in set(state.slots) - state.leased:
                    state.slots.pop(number).release()

    # --- for leases ---------------------------------------------------------------------------

    def drop(self, state: _Sender, number: int) -> None:
        """End a lease."""
        with self._lock:
            state.leased.discard(number)
            state.lent.discard(number)
            if self._closed or state.is_gone:
                state.slots.pop(number).release()
            else:
                # the worker is told with its next batch, see `returned`: this code runs in any
                # thread, at any point of its work, and may not send
                state.dropped.append(number)

    def lend(self, state: _Sender, number: int) -> Region:
        """Return where a leased slot lies."""
        with self._lock:
            slot = state.slots[number]
            assert slot.fd is not None, "a table that lends keeps descriptors"
            state.lent.add(number)
            return region_of(slot.fd, slot.nbytes)

    def poison(self, state: _Sender, number: int) -> None:
        """Give a leased slot up once its lease ends."""
        with self._lock:
            state.poisoned.add(number)


def payload_bytes(layout: Layout) -> int:
    """Return the bytes of a message's tensors, gaps included."""
    end = 0
    for _, dtype, shape, offset in layout:  # the last tensor may be empty, or have a gap behind it
        end = max(end, offset + segments.nbytes_of(dtype, shape))
    return end


def tensors_over(buffer: Any, layout: Layout) -> SampleMessage:
    """Return the tensors of a message over ``buffer``, which they keep alive."""
    return {key: tensor_in(buffer, dtype, shape, offset) for key, dtype, shape, offset in layout}


class Packed(dict[str, Tensor]):
    """A message on a storage server, which sends its bytes unchanged: empty as a dict."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self.lease = lease

    @property
    def layout(self) -> Layout:
        """Offset, dtype and shape of each tensor."""
        return self.lease.layout

    @property
    def payload(self) -> memoryview:
        """The bytes of all tensors; they keep the slot."""
        return self.lease.payload

    def tensors(self) -> SampleMessage:
        """Return the message as tensors over the slot."""
        return self.lease.tensors()


class ServerMemory(LeaseTable):
    """The slots of one producer on a storage server: a `MessageMemory` of that producer.

    Bytes are limited by consumer (see `SharedProducer`), so that none can take another's.

    Args:
        capacity: Batches that one consumer may have started and not fetched.
    """

    size = 1 << 62  # no limit of its own

    def __init__(self, capacity: int) -> None:
        super().__init__(lends=True)
        self.capacity = capacity

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote, as a `Packed`."""
        return Packed(self.take(sender, written))

    def bind(self, source: Callable[[float | None], SampleMessage] | None) -> None:
        """Do nothing: nobody receives from this memory, see `SharedProducer.fetch`."""


_LARGE = 1 << 18
"""Smallest message that gets a block: a loop may keep many small ones, and mappings are few."""
_SPARE = 1.2
"""A new block is this much larger than its first message: batches vary a little."""
_KEEP = 2
"""Free blocks that are kept."""


class OwnMessages:
    """The memory of one thread's messages: blocks that are used again once their tensors are gone.

    Fresh memory costs a page fault every 4 KiB, which takes longer than to write the page.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        # tensors end in whichever thread drops the last one; appending to a deque is atomic
        self._returned: deque[mmap.mmap] = deque()

    def write(self, fields: Sequence[Field]) -> tuple[SampleMessage, int]:
        """Let ``fields`` write themselves; return their tensors, and the tensors' bytes."""
        layout, nbytes = layout_of(fields)
        if nbytes < _LARGE:
            buffer: Any = (ctypes.c_char * nbytes)()
            write_fields(fields, layout, buffer)
            return tensors_over(buffer, layout), nbytes
        block = self._take(nbytes)
        buffer = (ctypes.c_char * len(block)).from_buffer(block)
        # tied to the buffer, which every tensor and view keeps; a finalizer holds its arguments, so
        # the block stays mapped until then. Not at exit: it goes with the process
        weakref.finalize(buffer, self._returned.append, block).atexit = False
        write_fields(fields, layout, buffer)
        return tensors_over(buffer, layout), nbytes

    def _take(self, nbytes: int) -> mmap.mmap:
        while self._returned:
            self._free.append(self._returned.popleft())
        # takes the smallest block that fits, and keeps the next ones. Blocks that are too small are
        # dropped, which unmaps them: sizes soon grow to the largest of a run, and then all fit
        fitting = sorted((one for one in self._free if len(one) >= nbytes), key=len)
        self._free = fitting[1 : 1 + _KEEP]
        if fitting:
            return fitting[0]
        # Python's anonymous mappings are shared by default, and a forked child would write to them
        return mmap.mmap(-1, int(nbytes * _SPARE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_LOCAL = -1
"""Sender number of messages that this process itself sends."""

TakeNext = Callable[[float | None], SampleMessage]


def field_of(key: str, tensor: Tensor) -> Field:
    """Return a field that copies ``tensor``, of any type."""
    array = as_array(tensor)
    return Field(
        key, dtype_name(tensor.dtype), tuple(tensor.shape), lambda out: np.copyto(out, array)
    )


class ShmChannel(ChannelBase):
    """A queue of sample messages in shared memory.

    Args:
        capacity: Messages that may be under way or unread at once, at least 1.
        size: Bytes of shared memory for those messages. One message that is larger still passes,
            alone.
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
        """Let ``recv`` call ``source(timeout_s)``, a producer, which also watches its workers."""
        self._source = source

    def recv(self, timeout_s: float | None = None, **_: Any) -> SampleMessage:
        """Return the next message.

        Raises:
            PeerError: A worker died, stalled or raised.
            UsageError: The channel is closed.
        """
        if self.closed:
            raise UsageError("recv on a closed channel: the loader was shut down")
        # a producer waits itself: meanwhile it has to watch its workers and hand out batches
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
        # one lock around the whole call: senders in several threads share the writer, and messages
        # are queued in the order in which their slots were written
        with self._arrival:
            if self._local is None:
                self._local = SlotWriter()
            # first the slots that readers have dropped: else each message would need a slot of its
            # own
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
        """Release the messages of a worker that is gone, once no tensor uses them."""
        self._leases.forget(sender)

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        return self._leases.largest

    def close(self) -> None:
        """Release all memory that no tensor uses; the rest goes with its tensors. Idempotent."""
        if self.closed:
            return
        # set before the waiters are woken, since they check it. Dropping messages takes the table's
        # lock inside this one; nothing takes the two in the other order
        self.closed = True
        with self._arrival:
            self._ready.clear()
            self._arrival.notify_all()
        self._leases.close()
