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
is never written again. So is one that was leased while this process forked, as the child has it.
"""

import ctypes
import itertools
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
import torch
from torch import Tensor

from gigl_loader.batch.message import Field, SampleMessage
from gigl_loader.batch.slots import SlotWriter, Written, layout_of, write_fields
from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError
from gigl_loader.runtime.glt_classes import ChannelBase
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.same_host import Region
from gigl_loader.runtime.memory.segments import Layout
from gigl_loader.runtime.memory.tensors import as_array, dtype_name, tensors_in
from gigl_loader.runtime.transport import IncomingArray

_KEEP_FREE = 2
"""Free slots that a worker keeps beyond its concurrency: batches differ in size, and a large one
needs another slot than the small ones around it. Further slots are given up, so that a consumer
that held many batches for a while does not bind their memory for ever."""


class Registration(Protocol):
    """Handle of a memory registration, such as pinning."""

    def release(self) -> None:
        """Undo it."""


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
    leased: "dict[int, _EndOfLease]" = field(default_factory=dict)
    """Slots that are leased, with what notes the end of each lease."""
    lent: set[int] = field(default_factory=set)
    """Leased slots that another process reads in place."""
    poisoned: set[int] = field(default_factory=set)
    """Slots that another process may read for ever."""
    dropped: list[int] = field(default_factory=list)
    """Slots that are no longer leased, and not handed back yet."""
    is_gone: bool = False
    """Whether the worker that slots are handed back to is gone."""


class _EndOfLease(weakref.ref[Any]):
    """Refers to the memory of a lease; what it is made with is called with it when that is freed.

    That is the method of a deque: Python runs handlers of signals between its own instructions, and
    drops what they raise in a finalizer, so Ctrl-C would be lost there.
    """

    sender: _Sender
    number: int
    num_forks: int
    """When the lease began: if there are more at its end, a child may read the memory."""


class Lease:
    """One message's slot; it is not written while this, or a tensor made of it, is held."""

    def __init__(self, table: "LeaseTable", sender: _Sender, number: int, layout: Layout) -> None:
        self._table, self._sender, self._number = table, sender, number
        self.layout = layout
        slot = sender.slots[number]
        self._buffer = segments.buffer_at(slot.address, slot.nbytes)
        # tied to the buffer, not to this object: tensors keep only the buffer
        end = _EndOfLease(self._buffer, table.ended.append)
        end.sender, end.number, end.num_forks = sender, number, segments.num_forks()
        sender.leased[number] = end

    @property
    def payload(self) -> memoryview:
        """The bytes of the tensors, without the slot's spare end; they keep the slot."""
        return memoryview(self._buffer).cast("B")[: payload_bytes(self.layout)]

    def tensors(self) -> SampleMessage:
        """Return the message as tensors over the slot."""
        return tensors_in(self._buffer, self.layout)

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
        self._lock = threading.Lock()
        self._senders: dict[int, _Sender] = {}
        # A lease ends in the thread that drops the last tensor: at any step of any call, also of
        # this table, when the garbage collector runs. So its end is only noted, and the next call
        # does the work.
        self.ended: deque[_EndOfLease] = deque()
        """Leases that have ended; `_end_leases` does what is left."""
        self._largest = self._leased_bytes = 0
        self.closed = False

    def take(self, sender: int, written: Written) -> Lease:
        """Return the message that worker ``sender`` wrote.

        Raises:
            SharedMemoryError: The slot cannot be mapped.
        """
        with self._lock:
            self._end_leases()
            state = self._senders.setdefault(sender, _Sender())
            # the worker has unmapped these: the mapping here keeps their pages
            for number in written.retired:
                self._release(state, number)
            if written.fd is not None:
                slot = state.slots[written.slot] = self._map(written.fd, written.nbytes)
                self._largest = max(self._largest, slot.nbytes)
            self._leased_bytes += state.slots[written.slot].nbytes
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
            self._end_leases()
            # unknown before its first message, and after `forget`
            state = self._senders.get(sender)
            if state is None:
                return free, retired
            for number in state.dropped:
                # free at the worker already, or further on in this list
                spare = len(state.slots) - len(state.leased)
                if number in state.poisoned or spare > concurrency + _KEEP_FREE:
                    # the worker never gives a number again, so it need not be remembered
                    state.poisoned.discard(number)
                    retired.append(number)
                    self._release(state, number)
                else:
                    free.append(number)
            state.dropped = []
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
                self._release_unused(state)
                self._largest = self._largest_now()
        self._end_noted()

    @property
    def largest(self) -> int:
        """Bytes of the largest slot."""
        return self._largest

    @property
    def leased_bytes(self) -> int:
        """Bytes of the slots that are leased and not lent."""
        with self._lock:
            self._end_leases()
            return self._leased_bytes

    def close(self) -> None:
        """Release all memory that is not leased; the rest goes with its leases. Idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            for state in self._senders.values():
                self._release_unused(state)
        self._end_noted()

    def _release_unused(self, state: _Sender) -> None:
        self._end_leases()
        for number in state.slots.keys() - state.leased.keys():
            self._release(state, number)
        for number, end in [*state.leased.items()]:
            # no call will come after its end, which a Python function has to release then. Not at
            # exit: the memory goes with the process, and the table may be gone by then
            buffer = end()
            if buffer is not None:
                state.leased[number] = end = _EndOfLease(buffer)
                end.sender, end.number, end.num_forks = state, number, segments.num_forks()
                weakref.finalize(buffer, self._note_end, end).atexit = False

    def _release(self, state: _Sender, number: int) -> None:
        """Unmap a slot that nobody uses."""
        slot = state.slots.pop(number)
        slot.release()
        if slot.nbytes == self._largest:
            self._largest = self._largest_now()

    def _largest_now(self) -> int:
        """Look through all slots of workers that are there."""
        senders = self._senders.values()
        return max((slot.nbytes for one in senders for slot in one.slots.values()), default=0)

    def _end_leases(self) -> None:
        """Do what is left of leases that have ended; the caller holds the lock."""
        while self.ended:
            end = self.ended.popleft()
            state, number = end.sender, end.number
            if number not in state.lent:
                self._leased_bytes -= state.slots[number].nbytes
            del state.leased[number]
            if end.num_forks != segments.num_forks():
                state.poisoned.add(number)
            state.lent.discard(number)
            if self.closed or state.is_gone:
                self._release(state, number)
            else:
                state.dropped.append(number)  # its worker is told with its next batch

    def _end_noted(self) -> None:
        """End leases without a call that does so; never waits."""
        # a lock that is taken is another thread's, or this one's, which the collector stopped in
        # the middle of a call: both come here, or to `_end_leases`, when they are through
        while self.ended and self._lock.acquire(blocking=False):
            try:
                self._end_leases()
            finally:
                self._lock.release()

    def _note_end(self, end: _EndOfLease) -> None:
        """End a lease at once: runs in any thread, at any step of its work."""
        self.ended.append(end)
        self._end_noted()

    # --- for leases ---------------------------------------------------------------------------

    def lend(self, state: _Sender, number: int) -> Region:
        """Return where a leased slot lies."""
        with self._lock:
            slot = state.slots[number]
            assert slot.fd is not None, "a table that lends keeps descriptors"
            if number not in state.lent:
                state.lent.add(number)
                self._leased_bytes -= slot.nbytes
            return Region.of(slot.fd, slot.nbytes)

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


class Packed(dict[str, Tensor]):
    """A message on a storage server, which sends its bytes unchanged: empty as a dict."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self.lease = lease


TakeNext = Callable[[float | None], SampleMessage]


class MessageMemory(LeaseTable):
    """The messages of one producer: slots, how many may be under way, and who reads them.

    Args:
        capacity: Messages that may be under way or unread at once.
        size: Bytes of shared memory for those messages. One message that is larger still passes,
            alone.
        register: As in `LeaseTable`.
        lends: As in `LeaseTable`.
    """

    def __init__(
        self, capacity: int, size: int, register: Register | None = None, *, lends: bool = False
    ) -> None:
        super().__init__(register, lends=lends)
        self.capacity, self.size = capacity, size
        self.size_of_one = size
        """``channel_size`` of one reader, from which the largest batch follows."""
        self._source: TakeNext | None = None

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote, as tensors over its slot.

        Raises:
            SharedMemoryError: The slot cannot be mapped.
        """
        return self.take(sender, written).tensors()

    def bind(self, source: TakeNext | None) -> None:
        """Let readers call ``source(timeout_s)``, a producer, which also watches its workers."""
        self._source = source


class ServerMemory(MessageMemory):
    """The messages of a producer on a storage server; read by `SharedProducer.fetch` alone.

    Bytes are limited by consumer (see `SharedProducer`), so that none can take another's.

    Args:
        capacity: Batches that one consumer may have started and not fetched.
        size_of_one: See `MessageMemory`.
    """

    def __init__(self, capacity: int, size_of_one: int = 2**30) -> None:
        super().__init__(capacity, 1 << 62, lends=True)  # no limit of its own
        self.size_of_one = size_of_one

    def open(self, sender: int, written: Written) -> SampleMessage:
        """Return the message that worker ``sender`` wrote, as a `Packed`."""
        return Packed(self.take(sender, written))


_GRAIN = 1 << 16
"""Sizes of buffers are multiples of this number, in bytes: 16 pages."""
_LARGE = 1 << 18
"""Smallest buffer with a mapping of its own: a process may have few of them."""


class BufferPool:
    """Memory for batches: lent to a batch's tensors, returned once the last of them is gone.

    New memory costs a page fault every 4 KiB, which takes longer than to write the page, and
    pinning it costs more; so it is kept.

    Args:
        pin_memory: Pin the memory.
        most_spare: Most unused buffers that are kept for the next batch.
        drops_small: Drop unused buffers that are too small for a batch. Sizes soon grow to the
            largest of a run, and then all fit.
    """

    def __init__(
        self, *, pin_memory: bool = False, most_spare: int = 8, drops_small: bool = False
    ) -> None:
        self._pin, self._most_spare, self._drops_small = pin_memory, most_spare, drops_small
        self._free: list[Tensor] = []
        self._lock = threading.RLock()  # re-entrant: a batch may be dropped during `take`

    def take(self, nbytes: int) -> Tensor:
        """Return a buffer of at least ``nbytes`` bytes."""
        with self._lock:
            fitting = [buffer for buffer in self._free if buffer.numel() >= nbytes]
            if self._drops_small:
                self._free = fitting
            if fitting:
                # the smallest that fits, so that a large one is left for a batch that needs it
                best = min(fitting, key=Tensor.numel)
                # Not `remove`, which compares tensors element by element. A buffer that is returned
                # during this line may be lost to the pool, but is never lent twice.
                self._free = [buffer for buffer in self._free if buffer is not best]
                return best
        # Rounded up (the floor of the negative), with a quarter more than requested: batches of one
        # loader differ in size, and the next one should fit too.
        size = -(-nbytes * 5 // 4 // _GRAIN) * _GRAIN
        if self._pin or size < _LARGE:
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._pin, device="cpu")
        # Unmapped at once when it is dropped, which malloc need not do. Python's anonymous mappings
        # are shared by default, and a forked child would write to them.
        block = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(block, dtype=torch.uint8)

    def lease(self, buffer: Tensor) -> Any:
        """Return an object with the buffer protocol; ``buffer`` is returned when it is gone."""
        lease = segments.buffer_at(buffer.data_ptr(), buffer.numel())
        # The finalizer holds `buffer`; the lease is an address and a length, and owns nothing. Not
        # at exit, when the pool may be gone and the memory goes with the process.
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return lease

    def _give_back(self, buffer: Tensor) -> None:
        with self._lock:
            self._free.append(buffer)
            if len(self._free) > self._most_spare:
                # Drops the smallest: if it dropped the latest, a pool full of small buffers would
                # make a new one for each larger batch.
                del self._free[min(range(len(self._free)), key=lambda at: self._free[at].numel())]

    def take_leased(self, nbytes: int) -> Any:
        """Return memory of at least ``nbytes`` bytes, which is returned when nothing uses it."""
        # at least one byte, for a batch without tensors: an empty tensor has no address
        return self.lease(self.take(max(nbytes, 1)))

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> segments.Array:
        """Return a contiguous array, whose memory returns to the pool when nothing uses it."""
        nbytes = segments.nbytes_of(dtype, shape)
        return segments.array_in(self.take_leased(nbytes), dtype, shape, 0)

    def room(self, specs: list[IncomingArray]) -> list[Any]:
        """Return arrays to receive a response into: ``into`` of `runtime.transport.Caller`.

        All arrays of a response, which are a batch's, share one buffer of the pool.
        """
        ends = list(itertools.accumulate(segments.align(spec.nbytes) for spec in specs))
        # One buffer, since the tensors of a batch are usually dropped together; a single tensor
        # that is kept keeps all of it.
        lease = self.take_leased(ends[-1] if ends else 0)
        return [
            np.ndarray(spec.shape, spec.dtype, lease, start)
            for spec, start in zip(specs, [0, *ends], strict=False)
        ]

    def write(self, fields: Sequence[Field]) -> tuple[SampleMessage, int]:
        """Let ``fields`` write themselves; return their tensors, and the tensors' bytes."""
        layout, nbytes = layout_of(fields)
        # a loop may keep many small messages: these take no more memory than they need
        if nbytes < _LARGE and not self._pin:
            buffer: Any = (ctypes.c_char * nbytes)()
        else:
            buffer = self.take_leased(nbytes)
        write_fields(fields, layout, buffer)
        return tensors_in(buffer, layout), nbytes


def own_messages(*, pin_memory: bool = False) -> BufferPool:
    """Return the memory of one thread's messages in this process.

    Args:
        pin_memory: Pin it, for messages that go to a GPU: other copies do not overlap.
    """
    return BufferPool(pin_memory=pin_memory, most_spare=2, drops_small=True)


_LOCAL = -1
"""Sender number of messages that this process itself sends."""


def field_of(key: str, tensor: Tensor) -> Field:
    """Return a field that copies ``tensor``, of any type."""
    array = as_array(tensor)
    return Field(
        key, dtype_name(tensor.dtype), tuple(tensor.shape), lambda out: np.copyto(out, array)
    )


class ShmChannel(MessageMemory, ChannelBase):
    """A queue of sample messages in shared memory.

    Args:
        capacity: Messages that may be under way or unread at once, at least 1.
        size: Bytes of shared memory for those messages. One message that is larger still passes,
            alone.
        register: Called with address and bytes of each new slot, for example to pin it; returns an
            object whose ``release()`` undoes it.
        name: For `repr` and errors.
    """

    def __init__(
        self, capacity: int, size: int, register: Register | None = None, name: str | None = None
    ) -> None:
        if capacity < 1 or size < 1:
            raise ConfigError(f"channel capacity and size must be > 0, got {capacity} and {size}")
        super().__init__(capacity, size, register)
        self._local: SlotWriter | None = None
        self._ready: deque[SampleMessage] = deque()
        self._arrival = threading.Condition()
        self._name = "channel" if name is None else f"channel {name}"

    def __repr__(self) -> str:
        return f"ShmChannel({self._name})"

    # -- receiving ------------------------------------------------------------------------------

    def recv(self, timeout_s: float | None = None, **_: Any) -> SampleMessage:
        """Return the next message.

        Raises:
            PeerError: A worker died, stalled or raised.
            UsageError: The channel is closed.
        """
        if self.closed:
            raise UsageError(f"recv on a closed {self._name}: the loader was shut down")
        # a producer waits itself: meanwhile it has to watch its workers and hand out batches
        if self._source is not None:
            return self._source(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrival:
            while not self._ready:
                # an hour stands for no limit: `send` and `close` notify, and the loop waits again
                left = 3600.0 if deadline is None else deadline - time.monotonic()
                if self.closed:
                    raise UsageError(f"the {self._name} was closed while a message was waited for")
                if left <= 0:
                    raise PeerTimeoutError(f"no message was sent within {timeout_s} s")
                self._arrival.wait(left)
            return self._ready.popleft()

    def send(self, msg: SampleMessage, **_: Any) -> None:
        """Copy ``msg`` into a slot of its own and queue it, for a producer in this process."""
        if self.closed:
            raise UsageError(f"send on a closed {self._name}")
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

    def close(self) -> None:
        """Release all memory that no tensor uses; the rest goes with its tensors. Idempotent."""
        super().close()  # first, as the waiters that are woken below look whether it is closed
        # dropping messages takes the table's lock inside this one; nothing takes the two in the
        # other order
        with self._arrival:
            self._ready.clear()
            self._arrival.notify_all()
