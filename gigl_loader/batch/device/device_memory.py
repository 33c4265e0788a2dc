"""Memory of a device that is written on a stream of its own, and the waits for that stream.

This file needs torch, and from this package the function that finds a device.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from gigl_loader.batch.device.copy_stream import capture_stream, full_device, side_stream

T = TypeVar("T")

# Seconds between two checks of the device, and so the most added to a wait; meanwhile other threads
# have the interpreter.
_POLL_S = 0.0002

# Each capture waits for the whole device first, which breaks off another one that is under way.
_one_capture = threading.Lock()

_broken_off: list[Any] = []
"""Graphs whose captures torch did not end: for good, as pinned memory's allocator asks them at each
allocation which streams they capture."""


@contextmanager
def _no_garbage_is_collected() -> Iterator[None]:
    """Let the end of no object release pinned memory, which would break off a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _until_end(graph: Any, job: Callable[[], T]) -> T:
    """Return the result of ``job``, with the end of the capture that it is launched in."""
    try:
        result = job()
    except BaseException:
        with suppress(RuntimeError):  # the end of a capture that broke off says less of why
            graph.capture_end()
        raise
    graph.capture_end()
    return result


class LentTensors:
    """Tensors of one batch on the device, by key; a `gigl_loader.batch.message.OnDevice`.

    Args:
        tensors: The tensors.
        memory: Their memory.
        event: From `DeviceMemory.mark`, behind the work that writes them; None: it is done.
    """

    def __init__(
        self, tensors: dict[str, Tensor], memory: "DeviceMemory", event: Any = None
    ) -> None:
        self._tensors, self._memory, self._event = tensors, memory, event

    @property
    def nbytes(self) -> int:
        """Total bytes."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def lent(self) -> dict[str, Tensor]:
        """Return them, for use on the stream that is current in the calling thread."""
        self._memory.follow(self._event)
        self._memory.lend(self._tensors.values())
        return self._tensors


class DeviceMemory:
    """Memory of one device, and host memory to copy from.

    On CUDA all work is launched on a stream of its own: it waits for no step of the
    model, and no step for it. Other devices have no streams here, and the host waits for each copy.

    Args:
        device: The device; without an index, the current one of its type.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = full_device(device)  # lanes are threads: their current one is the first
        self._on_cuda = device.type == "cuda"
        self._stream: Any = side_stream(self.device)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Launch on this memory's stream inside the block, in this thread."""
        if self._stream is None:
            yield
            return
        # a thread starts with device 0, and NCCL asks for the current one
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def free_bytes(self) -> int | None:
        """Return its free memory, with what torch keeps to use again; None: it is the host's."""
        if not self._on_cuda:
            return None
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + kept

    def on_host(self, nbytes: int) -> Tensor:
        """Return ``[nbytes]`` uint8 of the host to copy from.

        Pinned for CUDA, by torch's allocator: it gives the memory to nobody else before the copy
        from it is done.
        """
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._on_cuda, device="cpu")

    def empty(self, nbytes: int) -> Tensor:
        """Return ``[nbytes]`` uint8 of the device."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def uploaded(self, host: Tensor) -> Tensor:
        """Return a copy of the memory from `on_host`, on the device."""
        return host.to(self.device, non_blocking=self._on_cuda)

    def uploaded_array(self, array: Any) -> Tensor:
        """Return a numpy array, flat, as a tensor on the device."""
        host = self.on_host(array.nbytes)
        host.numpy().view(array.dtype)[:] = array.reshape(-1)
        return self.uploaded(host).view(getattr(torch, array.dtype.name))

    def downloaded(self, tensor: Tensor) -> Tensor:
        """Return a copy of ``tensor`` on the host, complete once `mark` has passed."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._on_cuda, device="cpu")
        return host.copy_(tensor, non_blocking=self._on_cuda)

    @property
    def can_capture(self) -> bool:
        """Whether the device replays what was launched on it; see `captured`.

        Before torch 2.7 (pytorch/pytorch#143777) each replay writes where the default generator
        begins, on the replay's stream: a graph of the user's, with dropout, may be reading that.
        """
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        return self._on_cuda and version >= (2, 7)

    def captured(self, job: Callable[[], T], nbytes: int) -> tuple[T, Callable[[], None]]:
        """Capture what ``job`` launches; return its result, and what launches all of it again.

        Nothing is launched before that. The host waits for the device, once. Memory that ``job``
        was given and memory of its result have to be kept as long as it may be launched. Meanwhile
        torch refuses other threads its random numbers.

        Args:
            job: Launches on the current stream, which is another one than in `in_use`.
            nbytes: Bytes that it takes at most. While it is captured, torch gives back no memory
                that it keeps to use again: where less is free, it does before.

        Raises:
            RuntimeError: ``job`` does what cannot be captured.
        """
        with _one_capture, _no_garbage_is_collected():
            graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
            torch.cuda.synchronize(self.device)
            if torch.cuda.mem_get_info(self.device)[0] < nbytes:
                torch.cuda.empty_cache()
            try:
                with torch.cuda.stream(capture_stream(self.device)):
                    # Threads of other loaders, and NCCL's, ask for events meanwhile.
                    graph.capture_begin(pool, capture_error_mode="thread_local")
                    result = _until_end(graph, job)
            except BaseException:
                self._clean_up(graph, pool)
                raise
        return result, graph.replay

    def _clean_up(self, graph: Any, pool: Any) -> None:
        """Make up for what torch leaves undone if a capture was broken off."""
        with suppress(RuntimeError, AttributeError):  # torch has done it (pytorch/pytorch#180395)
            # or it would go on to take memory for the graph, and give none back
            torch._C._cuda_endAllocateToPool(self.device.index, pool)
            _broken_off.append(graph)
        # torch 2.11 would ask for offsets of the capture at each dropout of the model
        generator = torch.cuda.default_generators[self.device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())

    def mark(self) -> Any:
        """Return an event behind all that was launched so far; None: the host has waited for it."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def lend(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of ``tensors``, once dropped, for the calling thread's current stream.

        It belongs to this memory's stream, which would write to it again at once.
        """
        if self._on_cuda:
            current = torch.cuda.current_stream(self.device)
            for tensor in tensors:
                tensor.record_stream(current)

    def borrow(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of ``tensors``, once dropped, until this memory's stream is through.

        It belongs to another stream, which may get it again while work here is under way.
        """
        if self._on_cuda:
            for tensor in tensors:
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)

    def has_passed(self, event: Any) -> bool:
        """Return whether the device has passed ``event``, of `mark`."""
        return event is None or event.query()

    def wait(self, event: Any, timeout_s: float) -> bool:
        """Wait until the device has passed ``event``, of `mark`; return whether it has in time."""
        # Not `event.synchronize()`, which has no deadline: if a rank is gone, NCCL's kernel never
        # ends.
        deadline = time.monotonic() + timeout_s
        while not self.has_passed(event):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def follow(self, event: Any) -> None:
        """Let the calling thread's current stream wait for ``event``, of `mark`."""
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)
