"""Memory that batches are received into: kept, since fresh memory and pinning it are slow."""

import itertools
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.memory import segments
from gigl_loader.transport import ArraySpec

_GRAIN = 1 << 16
_MOST_SPARE = 8
"""Buffers kept for the next batch beyond those in use."""


class BufferPool:
    """Memory for batches: lent to the tensors of one, taken back when the last of them is gone.

    Fresh memory costs a page fault per page, and pinning it costs more; so it is kept.
    """

    def __init__(self, pin_memory: bool) -> None:
        self._pin = pin_memory
        self._free: list[Tensor] = []
        self._lock = threading.RLock()  # a batch may be dropped in the middle of `take`

    def take(self, nbytes: int) -> Tensor:
        """Return at least ``nbytes`` bytes."""
        with self._lock:
            fitting = [one for one in self._free if one.numel() >= nbytes]
            if fitting:
                best = min(fitting, key=Tensor.numel)
                self._free = [one for one in self._free if one is not best]
                return best
            self._free = self._free[-_MOST_SPARE:]
        size = -(-nbytes * 5 // 4 // _GRAIN) * _GRAIN
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)

    def lease(self, buffer: Tensor) -> Any:
        """Return an object with the buffer protocol; ``buffer`` comes back when it is gone."""
        lease = segments.buffer_at(buffer.data_ptr(), buffer.numel())
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return lease

    def _give_back(self, buffer: Tensor) -> None:
        with self._lock:
            if len(self._free) < _MOST_SPARE:
                self._free.append(buffer)

    def take_leased(self, nbytes: int) -> Any:
        """Return memory of at least ``nbytes`` bytes, which comes back when nothing uses it."""
        return self.lease(self.take(max(nbytes, 1)))

    def room(self, specs: list[ArraySpec]) -> list[Any]:
        """Return arrays to receive an answer into: ``into`` of `gigl_loader.transport.Caller`.

        All arrays of an answer, which are those of a batch, come to lie in one buffer of the pool.
        """
        ends = list(itertools.accumulate(segments.align(spec.nbytes) for spec in specs))
        lease = self.take_leased(ends[-1] if ends else 0)
        return [
            np.ndarray(spec.shape, spec.dtype, lease, start)
            for spec, start in zip(specs, [0, *ends], strict=False)
        ]


class PoolRoom:
    """Memory of a pool for the rows of one batch: `gigl_loader.sampler.ahead.Room`."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> segments.Array:
        """Return a contiguous array, which comes back to the pool when nothing uses it."""
        nbytes = segments.nbytes_of(dtype, shape)
        return segments.array_in(self._pool.take_leased(nbytes), dtype, shape, 0)
