"""A pretend GPU: streams run late and in any order that CUDA allows, memory is reused at once.

Work is queued with raw addresses, as on a GPU: neither the source nor the result of a queued copy
is kept alive by it. So code that lets go of memory too early, or reads too early, gets wrong bytes.
"""

import contextlib
import ctypes
import random
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gigl_loader.batch.device.copy_stream import TorchBackend
from gigl_loader.batch.device.prefetch import CopyEngine

ON_THE_FAKE_GPU = "is_on_the_fake_gpu"  # set on a tensor that lies there

POISON = 0xAB


def tensor_at(owner: Any, dtype: torch.dtype, shape: Iterable[int], offset: int = 0) -> Tensor:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(owner, dtype=dtype, count=count, offset=offset).view(tuple(shape))


def borrow(memory: ctypes.Array, on_free: Callable[[], object]) -> ctypes.Array:
    """Return a buffer over ``memory``; ``on_free`` runs once no tensor over it is left."""
    handle = (ctypes.c_char * len(memory)).from_address(ctypes.addressof(memory))
    weakref.finalize(handle, on_free).atexit = False
    return handle


@dataclass
class Stream:
    name: str
    queue: deque[Any] = field(default_factory=deque)  # callables, or events to wait for
    issued: int = 0
    done: int = 0

    def push(self, work: Any) -> None:
        self.queue.append(work)
        self.issued += 1


@dataclass
class FakeEvent:
    gpu: "FakeGpu"
    stream: Stream
    position: int

    def passed(self) -> bool:
        return self.stream.done >= self.position

    def query(self) -> bool:
        self.gpu.tick()
        return self.passed()

    def synchronize(self) -> None:
        self.gpu.log.append("host waits")
        self.gpu.finish(self)


class FakeGpu(TorchBackend):
    """A device. ``schedule`` says how far each stream gets when nobody makes it go on.

    ``lazy``: nowhere. ``eager``: everything is done at once. ``compute_first``/``copy_first``: that
    stream goes as far as it can, the other nowhere. ``random``: any interleaving, from ``seed``.
    """

    def __init__(self, schedule: str, seed: int = 0) -> None:
        self.compute, self.copy_stream = Stream("compute"), Stream("copy")
        self.schedule, self.random = schedule, random.Random(seed)
        self.log: list[str] = []
        self.results: list[list[bytes]] = []
        self._current = self.compute
        self._memory: list[ctypes.Array] = []
        self._free: dict[tuple[str, int], list] = defaultdict(list)  # (block, events to pass)
        self._users: dict[int, list[Stream]] = defaultdict(list)  # streams recorded, by address

    # what the engine asks of it

    def holds(self, tensor: Tensor) -> bool:
        return getattr(tensor, ON_THE_FAKE_GPU, False)

    def current_stream(self) -> Stream:
        return self._current

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def copy(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        out, nbytes = self._allocate(tensor.dtype, tensor.shape), tensor.nbytes
        target, source = out.data_ptr(), tensor.data_ptr()
        keep = None if tensor.is_contiguous() else tensor.contiguous()  # pageable: staged at once
        source = source if keep is None else keep.data_ptr()

        def run(keep: Tensor | None = keep) -> None:
            if nbytes:
                ctypes.memmove(target, source, nbytes)

        self._push(run, f"copy on {self._current.name}")
        if not non_blocking:
            self.finish(self.record_event(self._current))
        return out

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        out, shape = self._allocate(dtype, tensor.shape), tensor.shape
        source, target, old = tensor.data_ptr(), out.data_ptr(), tensor.dtype

        def run() -> None:
            if shape.numel():
                _view(target, dtype, shape).copy_(_view(source, old, shape))

        self._push(run, f"cast on {self._current.name}")
        return out

    def record_event(self, stream: Stream) -> FakeEvent:
        return FakeEvent(self, stream, stream.issued)

    def wait_event(self, stream: Stream, event: FakeEvent) -> None:
        stream.push(event)

    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        self._users[tensor.data_ptr()].append(stream)

    # what a training loop asks of it

    def read(self, tensors: Iterable[Tensor]) -> None:
        """Queue a kernel that reads ``tensors``; `results` gets what it saw."""
        where = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]
        seen: list[bytes] = []
        self.results.append(seen)
        self._push(lambda: seen.extend(ctypes.string_at(a, n) if n else b"" for a, n in where), "")

    # how it runs

    def tick(self) -> None:
        steps = {"lazy": 0, "random": self.random.randrange(4)}.get(self.schedule, 1 << 30)
        for _ in range(steps):
            allowed = {"compute_first": [self.compute], "copy_first": [self.copy_stream]}
            ready = [
                stream
                for stream in allowed.get(self.schedule, [self.compute, self.copy_stream])
                if stream.queue and self._can_run(stream)
            ]
            if not ready:
                return
            self._step(self.random.choice(ready))

    def finish(self, event: FakeEvent) -> None:
        while not event.passed():
            if not self._can_run(event.stream):
                self.finish(event.stream.queue[0])
            self._step(event.stream)

    def finish_all(self) -> None:
        for stream in (self.compute, self.copy_stream):
            self.finish(self.record_event(stream))

    def _can_run(self, stream: Stream) -> bool:
        head = stream.queue[0]
        return not isinstance(head, FakeEvent) or head.passed()

    def _step(self, stream: Stream) -> None:
        work = stream.queue.popleft()
        if not isinstance(work, FakeEvent):
            work()
        stream.done += 1

    def _push(self, work: Callable[[], None], note: str) -> None:
        self._current.push(work)
        self.log.append(note)
        self.tick()

    def _allocate(self, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """Allocate as torch's caching allocator does: a freed block is its stream's at once."""
        nbytes = shape.numel() * dtype.itemsize
        pool, memory = self._free[self._current.name, nbytes], None
        for index in reversed(range(len(pool))):
            if all(event.passed() for event in pool[index][1]):
                memory = pool.pop(index)[0]
                break
        if memory is None:
            memory = (ctypes.c_char * max(nbytes, 1))()
            self._memory.append(memory)
        handle = borrow(memory, lambda: self._release(memory, pool))
        out = tensor_at(handle, dtype, shape)
        setattr(out, ON_THE_FAKE_GPU, True)
        return out

    def _release(self, memory: ctypes.Array, pool: list) -> None:
        users = self._users.pop(ctypes.addressof(memory), [])
        pool.append((memory, [self.record_event(stream) for stream in users]))


def _view(address: int, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    nbytes = shape.numel() * dtype.itemsize
    return tensor_at((ctypes.c_char * nbytes).from_address(address), dtype, shape)


class SlotLoader:
    """Batches in a few slots of memory; a slot is overwritten once its tensors are dropped."""

    def __init__(self, num_batches: int, num_slots: int) -> None:
        self.num_batches = num_batches
        self._slots = [(ctypes.c_char * 64)() for _ in range(num_slots)]
        self.free = list(self._slots)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for index in range(self.num_batches):
            yield self._batch(index)

    def _batch(self, index: int) -> dict[str, Tensor]:
        assert self.free, "starved: every slot waits for its copy"
        slot = self.free.pop(0)
        handle = borrow(slot, lambda: self._recycle(slot))
        batch = {
            "ids": tensor_at(handle, torch.int64, (3,)),
            "x": tensor_at(handle, torch.float16, (2, 4), offset=24),
            "mask": tensor_at(handle, torch.uint8, (5,), offset=40),
            "empty": torch.empty(0, 4),
        }
        for tensor in batch.values():
            tensor.fill_(index + 1)
        return batch

    def _recycle(self, slot: ctypes.Array) -> None:
        ctypes.memset(slot, POISON, len(slot))
        self.free.append(slot)


# engines with one safeguard left out each


class DropsSources(CopyEngine):
    def _hold(self, event: Any, source: Any) -> None:
        super()._hold(event, None)


class DropsSourcesAtHandOver(CopyEngine):
    def hand_over(self, pending: Any) -> Any:
        batch = super().hand_over(pending)
        self._held.popleft()
        return batch

    def reap(self) -> int:
        return len(self._held)


class DoesNotWait(CopyEngine):
    def _wait(self, consumer: Any, event: Any) -> None:
        pass


class DoesNotRecord(CopyEngine):
    def _record(self, consumer: Any, tensors: list[Tensor]) -> None:
        pass


class RecordsTheEventTooEarly(CopyEngine):
    def _launch_on_copy_stream(self, source: Any, transfer: Any) -> Any:
        early = self._backend.record_event(self._backend.copy_stream)
        pending = super()._launch_on_copy_stream(source, transfer)
        self._held[-1] = (early, source)
        pending.event = early
        return pending


WRONG_ENGINES = [
    DropsSources,
    DropsSourcesAtHandOver,
    DoesNotWait,
    DoesNotRecord,
    RecordsTheEventTooEarly,
]
