"""Memory that batches are received into: kept, since fresh memory and pinning it are slow."""

import itertools
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.memory import segments
from gigl_loader.transport import IncomingArray

_GRAIN = 1 << 16
"""Sizes of buffers are multiples of it, in bytes: 16 pages."""
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
                # the smallest that fits: a large one stays for the batch that needs it
                best = min(fitting, key=Tensor.numel)
                # not `remove`, which compares tensors element by element. A buffer that comes back
                # in the middle of this line may be lost to the pool, and is never lent twice.
                self._free = [one for one in self._free if one is not best]
                return best
        # Rounded up (the floor of the negative). A quarter more than was asked for: batches of one
        # loader differ in size, and the next one should fit in here.
        size = -(-nbytes * 5 // 4 // _GRAIN) * _GRAIN
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)

    def lease(self, buffer: Tensor) -> Any:
        """Return an object with the buffer protocol; ``buffer`` comes back when it is gone."""
        lease = segments.buffer_at(buffer.data_ptr(), buffer.numel())
        # The finalizer holds `buffer`: the lease is an address and a length, and owns nothing. Not
        # at exit: the pool may be gone by then, and the memory goes with the process.
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return lease

    def _give_back(self, buffer: Tensor) -> None:
        with self._lock:
            self._free.append(buffer)
            if len(self._free) > _MOST_SPARE:
                # The smallest goes: were it the one that came last, a pool full of small buffers
                # would make a fresh one for each batch that is larger.
                del self._free[min(range(len(self._free)), key=lambda at: self._free[at].numel())]

    def take_leased(self, nbytes: int) -> Any:
        """Return memory of at least ``nbytes`` bytes, which comes back when nothing uses it."""
        # a batch without tensors, too: an empty tensor has no address
        return self.lease(self.take(max(nbytes, 1)))

    def room(self, specs: list[IncomingArray]) -> list[Any]:
        """Return arrays to receive an answer into: ``into`` of `gigl_loader.transport.Caller`.

        All arrays of an answer, which are those of a batch, come to lie in one buffer of the pool.
        """
        ends = list(itertools.accumulate(segments.align(spec.nbytes) for spec in specs))
        # One buffer, since the tensors of a batch are dropped together, as a rule; one tensor that
        # is kept keeps all of it.
        lease = self.take_leased(ends[-1] if ends else 0)
        return [
            np.ndarray(spec.shape, spec.dtype, lease, start)
            for spec, start in zip(specs, [0, *ends], strict=False)
        ]


class PoolRoom:
    """Memory of a pool for the rows of one batch: `gigl_loader.rowcache.pipeline.Room`."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> segments.Array:
        """Return a contiguous array, which comes back to the pool when nothing uses it."""
        nbytes = segments.nbytes_of(dtype, shape)
        return segments.array_in(self._pool.take_leased(nbytes), dtype, shape, 0)
