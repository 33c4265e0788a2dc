"""A batch between machines: ids and local labels packed, rows as they are stored.

Received batches reuse memory, because new memory, and pinning it, are slow.

::

    slot of the server    n_id | x, y | edge_index | counts      offsets of the layout
    on the wire           packed | x, y as they lie | packed | counts as they lie
    here                  two buffers: received bytes, and unpacked ones
"""

import itertools
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.errors import ProtocolError
from gigl_loader.memory import segments
from gigl_loader.memory.segments import Array, array_in
from gigl_loader.memory.slots import Layout
from gigl_loader.memory.tensors import tensor_in
from gigl_loader.message import (
    ATTRIBUTE,
    EDGE_FEATURES,
    NODE_FEATURES,
    NODE_LABELS,
    SampleMessage,
)
from gigl_loader.sampler.packing import PackedRuns, pack_ints, pack_runs, unpack_runs
from gigl_loader.transport import IncomingArray

_LEAST = 256
"""Fewest integers in a packed tensor: below that, packing takes more bytes."""

_GRAIN = 1 << 16
"""Sizes of buffers are multiples of this number, in bytes: 16 pages."""
_MOST_SPARE = 8
"""Most unused buffers that are kept for the next batch."""

Columns = dict[str, list[PackedRuns]]
"""Packed columns by key: one for ``[n]``, one for each row of ``[2, n]``."""


def pack_batch(layout: Layout, payload: memoryview) -> tuple[Columns, list[np.ndarray]]:
    """Return the packed columns, and all other bytes as views of ``payload``."""
    data = np.frombuffer(payload, np.uint8)
    # ids and labels of edges take 10 to 30 of their 64 bits; they are most of the bytes beside rows
    columns = {
        key: _pack(array_in(data, dtype, shape, offset))
        for key, dtype, shape, offset in layout
        if _is_packed(dtype, shape)
    }
    # no copies: the views keep the slot, which its worker writes again once they are sent
    return columns, [data[start:stop] for start, stop, _ in _stretches(layout)]


def unpack_batch(
    layout: Layout, columns: Columns, parts: list[np.ndarray], take: Callable[[int], Any]
) -> SampleMessage:
    """Undo `pack_batch`.

    Args:
        layout: Layout of the tensors on the server.
        columns: The packed columns.
        parts: All other bytes; the tensors made of them keep them alive.
        take: Returns memory of that many bytes; in total at most 64 times the received bytes.

    Raises:
        ProtocolError: `pack_batch` would not make such bytes for this layout.
    """
    # another process's bytes are checked in full before memory is taken for them
    message = _in_place(layout, parts)
    wanted = {key: shape for key, dtype, shape, _ in layout if _is_packed(dtype, shape)}
    for key, shape in wanted.items():
        _check(key, shape, columns.get(key, []))
    # one buffer for all, which returns to the pool as a whole once its last tensor is gone
    buffer = take(sum(segments.align(8 * math.prod(shape)) for shape in wanted.values()))
    at = 0
    for key, shape in wanted.items():
        out = array_in(buffer, "int64", shape, at)
        for row, column in zip(out.reshape(-1, shape[-1]), columns[key], strict=True):
            unpack_runs(column, row)
        message[key] = tensor_in(buffer, "int64", shape, at)
        at += segments.align(out.nbytes)
    # in the order of the sampler's fields, like a batch that did not travel
    return {key: message[key] for key, *_ in layout}


def _is_packed(dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor has ids or labels; both ends decide alike."""
    in_rows = len(shape) == 1 or (len(shape) == 2 and shape[0] == 2)
    return dtype == "int64" and in_rows and math.prod(shape) >= _LEAST


def _pack(values: Array) -> list[PackedRuns]:
    # In `[2, n]`, each neighbour differs from the next, while targets come in runs. Without
    # runs, the number of words limits the number of values, which `_check` relies on.
    first, *rest = values.reshape(-1, values.shape[-1])
    return [PackedRuns(pack_ints(first), None), *map(pack_runs, rest)]


def _stretches(layout: Layout) -> list[tuple[int, int, Layout]]:
    """Return (first byte, end, tensors) of each stretch of tensors that are not packed."""
    found: list[tuple[int, int, Layout]] = []
    # Tensors that are adjacent in the slot travel as one array, alignment gaps included: each array
    # costs an entry in the header and a separate read.
    is_open = False
    for entry in layout:
        _, dtype, shape, offset = entry
        if _is_packed(dtype, shape):
            is_open = False
            continue
        stop = offset + segments.nbytes_of(dtype, shape)
        if is_open:
            start, _, entries = found.pop()
            found.append((start, stop, [*entries, entry]))
        else:
            found.append((offset, stop, [entry]))
        is_open = True
    return found


def _in_place(layout: Layout, parts: list[np.ndarray]) -> SampleMessage:
    """Return the tensors that are not packed, over the received bytes."""
    stretches = _stretches(layout)
    # an end before the start is a forged layout, which `_lies_within` refuses
    sizes = [(stop - start) if stop > start else 0 for start, stop, _ in stretches]
    if [part.nbytes for part in parts] != sizes:
        raise ProtocolError(
            f"a batch of parts of {sizes} bytes came as {[part.nbytes for part in parts]}"
        )
    return {
        key: tensor_in(part, dtype, shape, offset - start)
        for part, (start, stop, entries) in zip(parts, stretches, strict=True)
        # the layout comes from the other process: nothing beyond its part is read
        for key, dtype, shape, offset in entries
        if _lies_within(offset, segments.nbytes_of(dtype, shape), start, stop)
    }


def _lies_within(offset: int, nbytes: int, start: int, stop: int) -> bool:
    """Return True if a tensor lies within its part.

    Raises:
        ProtocolError: A tensor does not lie within its part.
    """
    if offset < start or offset + nbytes > stop:
        raise ProtocolError(f"{nbytes} bytes at {offset} were announced in {start} to {stop}")
    return True


def _check(key: str, shape: tuple[int, ...], columns: list[PackedRuns]) -> None:
    """Check that the unpacked values have that shape; the first row, without runs, limits it.

    Raises:
        ProtocolError: They have another shape.
    """
    rows = shape[0] if len(shape) == 2 else 1
    fits = len(columns) == rows and columns[0].counts is None
    if not fits or columns[0].values.size != shape[-1]:
        raise ProtocolError(f"{key!r} of shape {shape} came as {len(columns)} rows of other sizes")
    # further rows may have runs of any length; `unpack_runs` stops them at the length of the first
    # row
    columns[0].values.check()


def wire_bytes(columns: Columns, parts: list[np.ndarray], layout: Layout) -> dict[str, int]:
    """Return the bytes of a batch by kind: ``"rows"`` of nodes and edges, and ``"structure"``."""
    packed = sum(column.nbytes for some in columns.values() for column in some)
    # by the layout, since a part may have rows beside other tensors; the rest is structure
    rows = sum(
        segments.nbytes_of(dtype, shape)
        for key, dtype, shape, _ in layout
        if not _is_packed(dtype, shape) and _is_of_rows(key.rpartition(".")[2])
    )
    return {"structure": packed + sum(part.nbytes for part in parts) - rows, "rows": rows}


def _is_of_rows(name: str) -> bool:
    return name in (NODE_FEATURES, NODE_LABELS, EDGE_FEATURES) or name.startswith(ATTRIBUTE)


class BufferPool:
    """Memory for batches: lent to a batch's tensors, returned once the last of them is gone.

    New memory costs a page fault per page, and pinning it costs more; so it is kept. A
    `gigl_loader.rowcache.pipeline.Room` for rows of batches, too.
    """

    def __init__(self, pin_memory: bool) -> None:
        self._pin = pin_memory
        self._free: list[Tensor] = []
        self._lock = threading.RLock()  # re-entrant: a batch may be dropped during `take`

    def take(self, nbytes: int) -> Tensor:
        """Return a buffer of at least ``nbytes`` bytes."""
        with self._lock:
            fitting = [one for one in self._free if one.numel() >= nbytes]
            if fitting:
                # the smallest that fits, so that a large one is left for a batch that needs it
                best = min(fitting, key=Tensor.numel)
                # Not `remove`, which compares tensors element by element. A buffer that is returned
                # during this line may be lost to the pool, but is never lent twice.
                self._free = [one for one in self._free if one is not best]
                return best
        # Rounded up (the floor of the negative), with a quarter more than requested: batches of one
        # loader differ in size, and the next one should fit too.
        size = -(-nbytes * 5 // 4 // _GRAIN) * _GRAIN
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)

    def take_leased(self, nbytes: int) -> Any:
        """Return memory of at least ``nbytes`` bytes, which is returned when nothing uses it."""
        # at least one byte, for a batch without tensors: an empty tensor has no address
        buffer = self.take(max(nbytes, 1))
        lease = segments.buffer_at(buffer.data_ptr(), buffer.numel())
        # The finalizer holds `buffer`; the lease is an address and a length, and owns nothing. Not
        # at exit, when the pool may be gone and the memory goes with the process.
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return lease

    def _give_back(self, buffer: Tensor) -> None:
        with self._lock:
            self._free.append(buffer)
            if len(self._free) > _MOST_SPARE:
                # Drops the smallest: if it dropped the latest, a pool full of small buffers would
                # make a new one for each larger batch.
                del self._free[min(range(len(self._free)), key=lambda at: self._free[at].numel())]

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a contiguous array, whose memory returns to the pool when nothing uses it."""
        return array_in(self.take_leased(segments.nbytes_of(dtype, shape)), dtype, shape, 0)

    def room(self, specs: list[IncomingArray]) -> list[Any]:
        """Return arrays to receive a response into: ``into`` of `gigl_loader.transport.Caller`.

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
