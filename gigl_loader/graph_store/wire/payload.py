"""A batch between machines: ids and local labels packed, rows as they are stored.

Received batches reuse memory, because new memory, and pinning it, are slow.

::

    slot of the server    n_id | x, y | edge_index | counts      offsets of the layout
    on the wire           packed | x, y as they lie | packed | counts as they lie
    here                  two buffers: received bytes, and unpacked ones
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gigl_loader.batch.message import SampleMessage, spec_of
from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.segments import Array, Layout, array_in
from gigl_loader.runtime.memory.tensors import tensor_in
from gigl_loader.sampler.rows.packing import PackedInts, PackedRuns

_LEAST = 256
"""Fewest integers in a packed tensor: below that, packing takes more bytes."""

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
            column.unpack(row)
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
    return [PackedRuns(PackedInts.of(first), None), *map(PackedRuns.of, rest)]


def _stretches(layout: Layout) -> list[tuple[int, int, Layout]]:
    """Return (first byte, end, tensors) of each stretch of tensors that are not packed."""
    stretches: list[tuple[int, int, Layout]] = []
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
            start, _, entries = stretches.pop()
            stretches.append((start, stop, [*entries, entry]))
        else:
            stretches.append((offset, stop, [entry]))
        is_open = True
    return stretches


def _in_place(layout: Layout, parts: list[np.ndarray]) -> SampleMessage:
    """Return the tensors that are not packed, over the received bytes."""
    stretches = _stretches(layout)
    # an end before the start is a forged layout, which `_check_lies_within` refuses
    sizes = [(stop - start) if stop > start else 0 for start, stop, _ in stretches]
    if [part.nbytes for part in parts] != sizes:
        raise ProtocolError(
            f"a batch of parts of {sizes} bytes came as {[part.nbytes for part in parts]}"
        )
    message = {}
    for part, (start, stop, entries) in zip(parts, stretches, strict=True):
        for key, dtype, shape, offset in entries:
            # the layout comes from the other process: nothing beyond its part is read
            _check_lies_within(offset, segments.nbytes_of(dtype, shape), start, stop)
            message[key] = tensor_in(part, dtype, shape, offset - start)
    return message


def _check_lies_within(offset: int, nbytes: int, start: int, stop: int) -> None:
    """Refuse a tensor that is announced outside of its part.

    Raises:
        ProtocolError: It is.
    """
    if offset < start or offset + nbytes > stop:
        raise ProtocolError(f"{nbytes} bytes at {offset} were announced in {start} to {stop}")


def _check(key: str, shape: tuple[int, ...], columns: list[PackedRuns]) -> None:
    """Check that the unpacked values have that shape; the first row, without runs, limits it.

    Raises:
        ProtocolError: They have another shape.
    """
    rows = shape[0] if len(shape) == 2 else 1
    fits = len(columns) == rows and columns[0].counts is None
    if not fits or columns[0].values.size != shape[-1]:
        raise ProtocolError(f"{key!r} of shape {shape} came as {len(columns)} rows of other sizes")
    # further rows may have runs of any length; `PackedRuns.unpack` stops them at the length of the
    # first row
    columns[0].values.check()


def wire_bytes(columns: Columns, parts: list[np.ndarray], layout: Layout) -> dict[str, int]:
    """Return the bytes of a batch by kind: ``"rows"`` of nodes and edges, and ``"structure"``."""
    packed = sum(column.nbytes for packed_columns in columns.values() for column in packed_columns)
    # by the layout, since a part may have rows beside other tensors; the rest is structure
    rows = sum(
        segments.nbytes_of(dtype, shape)
        for key, dtype, shape, _ in layout
        if not _is_packed(dtype, shape) and spec_of(key)[1].has_rows
    )
    return {"structure": packed + sum(part.nbytes for part in parts) - rows, "rows": rows}
