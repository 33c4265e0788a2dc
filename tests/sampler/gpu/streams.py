"""Pretended streams of a GPU, on the CPU: who may use which memory, by what was waited for.

Each operator runs at once, but counts as launched on the calling thread's current stream. `Streams`
knows what each stream, and the host, have waited for. A storage belongs to the stream that
allocated it: torch's allocator gives freed memory to the next tensor of that stream at once,
whatever other streams still do with it. So it is an error

* to use memory before the stream has waited for its allocation and for what last wrote to it,
* to write to it while another stream may still read it, and
* to free it while a stream that was not recorded may still use it, if neither the memory's own
  stream nor the host has waited for that.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gigl_loader.batch.device.device_memory import DeviceMemory

Clock = dict[str, int]
"""By stream, how much of its work is known to be done."""


@dataclass
class Memory:
    """What is known of one storage."""

    stream: str
    written: tuple[str, int]
    """Stream and position of the last write; of the allocation at first."""
    used: Clock = field(default_factory=dict)
    """By stream, the position of its last use."""
    recorded: set[str] = field(default_factory=set)


class Streams:
    """All streams of a pretended GPU, and the memory that was allocated on them."""

    DEFAULT = "default"

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.num_checked = 0
        """Uses of memory across streams that were in order."""
        self._seen: dict[str, Clock] = {self.DEFAULT: {}}
        self._positions: Clock = {self.DEFAULT: 0}
        self._memory: dict[int, Memory] = {}
        self._of_thread = threading.local()

    # -- streams and waits -------------------------------------------------------------------------

    def new(self) -> str:
        """Return a new stream."""
        name = f"side {len(self._positions)}"
        self._positions[name], self._seen[name] = 0, {}
        return name

    @property
    def current(self) -> str:
        """The current stream of the calling thread."""
        stack = getattr(self._of_thread, "stack", ())
        return stack[-1] if stack else self.DEFAULT

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        """Launch on ``stream`` inside the block."""
        self._of_thread.stack = [*getattr(self._of_thread, "stack", ()), stream]
        try:
            yield
        finally:
            self._of_thread.stack.pop()

    def event(self, stream: str) -> Clock:
        """Return an event behind all work of a stream so far."""
        return {**self._seen[stream], stream: self._positions[stream]}

    def follow(self, stream: str, event: Clock) -> None:
        """Let a stream wait for an event."""
        _merge(self._seen[stream], event)

    def host_waits(self, event: Clock | None = None) -> None:
        """Let the calling thread wait for an event; None: for its current stream."""
        _merge(self._host, self.event(self.current) if event is None else event)

    def is_known(self, event: Clock) -> bool:
        """Return whether the calling thread has waited for an event."""
        return all(self._host.get(stream, 0) >= at for stream, at in event.items())

    @property
    def _host(self) -> Clock:
        if not hasattr(self._of_thread, "clock"):
            self._of_thread.clock = {}
        clock: Clock = self._of_thread.clock
        return clock

    def launch(self) -> str:
        """Return the current stream, for one more operator."""
        stream = self.current
        _merge(self._seen[stream], self._host)  # what the host has waited for is over
        self._positions[stream] += 1
        return stream

    # -- memory ------------------------------------------------------------------------------------

    def record(self, tensor: Tensor, stream: str) -> None:
        """Keep the memory of a tensor, once freed, until ``stream`` is through with it."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is not None:
            memory.recorded.add(stream)

    def allocated(self, tensor: Tensor, stream: str) -> None:
        """Note new memory, of a stream."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._memory[key] = Memory(stream, (stream, self._positions[stream]))
        weakref.finalize(storage, self._freed, key).atexit = False

    def uses(self, tensor: Tensor, stream: str, what: str, *, writes: bool) -> None:
        """Check a use of memory."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is None:  # of the host, or older than all this
            return
        where = f"{what} on {stream}, {tuple(tensor.shape)} {tensor.dtype} of {memory.stream}"
        writer, position = memory.written
        if not self._is_over(stream, writer, position):
            self.errors.append(f"{where}: does not wait for what {writer} does with it")
        if writes:
            for reader, last in memory.used.items():
                if not self._is_over(stream, reader, last):
                    self.errors.append(f"{where}: is written while {reader} reads it")
            memory.written = stream, self._positions[stream]
        self.num_checked += stream != memory.stream
        memory.used[stream] = self._positions[stream]

    def _is_over(self, stream: str, other: str, position: int) -> bool:
        return stream == other or self._seen[stream].get(other, 0) >= position

    def _freed(self, key: int) -> None:
        memory = self._memory.pop(key)
        for stream, last in memory.used.items():
            waited = max(self._seen[memory.stream].get(stream, 0), self._host.get(stream, 0))
            if stream not in (memory.stream, *memory.recorded) and waited < last:
                self.errors.append(f"memory of {memory.stream} is freed while {stream} uses it")


class Watch(TorchDispatchMode):
    """Counts the calling thread's operators as launched on pretended streams, and checks them."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self.streams = streams

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        streams, name = self.streams, str(func)
        before = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if func.is_view:
            return func(*args, **kwargs)
        stream = streams.launch()
        if not name.startswith(_READS_NO_VALUES):
            written = _written(func, args, kwargs)
            for tensor in before:
                writes = any(tensor is one for one in written)
                streams.uses(tensor, stream, name, writes=writes)
        result = func(*args, **kwargs)
        if name in _READ_BY_THE_HOST:
            streams.host_waits()
        known = {tensor.untyped_storage()._cdata for tensor in before}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in known:
                streams.allocated(tensor, stream)
        return result


_READS_NO_VALUES = ("aten.new_", "aten.empty_like", "aten.zeros_like", "aten.ones_like")
_READ_BY_THE_HOST = ("aten._local_scalar_dense.default", "aten.equal.default")


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the arguments that an operator writes to."""
    written = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = kwargs.get(argument.name, args[at] if at < len(args) else None)
        written += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return written


def _merge(clock: Clock, other: Clock) -> None:
    for stream, position in other.items():
        clock[stream] = max(clock.get(stream, 0), position)


class StreamedMemory(DeviceMemory):
    """Memory of a device with pretended streams; those of the test that made this class."""

    streams: Streams

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._side = self.streams.new()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.streams.use(self._side):
            yield

    def uploaded(self, host: Tensor) -> Tensor:
        return host.clone()  # on the CPU `to` would return the same memory

    def mark(self) -> Clock:
        return self.streams.event(self._side)

    def lend(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.streams.record(tensor, self.streams.current)

    def borrow(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.streams.record(tensor, self._side)

    def has_passed(self, event: Clock | None) -> bool:
        """Late as a device can be: passed is what the host has waited for."""
        return event is None or self.streams.is_known(event)

    def wait(self, event: Clock | None, timeout_s: float) -> bool:
        if event is not None:
            self.streams.host_waits(event)
        return True

    def follow(self, event: Clock | None) -> None:
        if event is not None:
            self.streams.follow(self.streams.current, event)
