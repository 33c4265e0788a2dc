"""Memory of a device for rows that ranks exchange, and the stream on which all of that happens."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gigl_loader.device._engine import full_device


class RowMemory:
    """Bytes of one device, and of the host for what is copied there.

    On CUDA all work is launched on a stream of its own: exchanges wait for no step of the model,
    and no step for them. Other devices have no streams here, and the host waits for each copy.

    Args:
        device: The device; without an index, the current one of its type.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = full_device(device)  # lanes are threads: their current one is the first
        self._on_cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(self.device) if self._on_cuda else None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Launch on this memory's stream inside the block, in this thread."""
        if self._stream is None:
            yield
            return
        # a thread starts with device 0, and NCCL asks for the current one
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def on_host(self, nbytes: int) -> Tensor:
        """Return ``[nbytes]`` uint8 of the host to copy from.

        Pinned for CUDA, by torch's allocator: it gives the memory to nobody else before the copy
        from it is done.
        """
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._on_cuda)

    def empty(self, nbytes: int) -> Tensor:
        """Return ``[nbytes]`` uint8 of the device."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def uploaded(self, host: Tensor) -> Tensor:
        """Return a copy of what `on_host` returned, on the device."""
        return host.to(self.device, non_blocking=self._on_cuda)

    def mark(self) -> Any:
        """Return an event behind all that was launched so far; None: the host has waited for it."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def lend(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of ``tensors``, once dropped, for the calling thread's current stream.

        It belongs to the stream of the exchange, which would write to it again at once.
        """
        if self._on_cuda:
            current = torch.cuda.current_stream(self.device)
            for tensor in tensors:
                tensor.record_stream(current)
