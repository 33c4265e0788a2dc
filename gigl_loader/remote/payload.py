"""A batch between machines: ids and local labels packed, rows as they are stored.

::

    slot of the server    n_id | x, y | edge_index | counts      offsets of the layout
    on the wire           packed | x, y as they lie | packed | counts as they lie
    here                  two buffers: what came, and what was unpacked
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

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
from gigl_loader.sampler.packing import (
    PackedRuns,
    pack_ints,
    pack_runs,
    unpack_runs,
)

_LEAST = 256
"""Integers in a tensor that is packed, at least: below that the way of packing takes more."""

Columns = dict[str, list[PackedRuns]]
"""By key: of ``[n]`` one, of ``[2, n]`` one of each row."""


def pack_batch(layout: Layout, payload: memoryview) -> tuple[Columns, list[np.ndarray]]:
    """Return what is packed, and the bytes of all else, which are views of ``payload``."""
    data = np.frombuffer(payload, np.uint8)
    # ids and labels of edges in 10 to 30 of their 64 bits: these are most of what is not rows
    columns = {
        key: _pack(array_in(data, dtype, shape, offset))
        for key, dtype, shape, offset in layout
        if _is_packed(dtype, shape)
    }
    # no copies: the views keep the slot, which its worker writes again once they were sent
    return columns, [data[start:stop] for start, stop, _ in _stretches(layout)]


def unpack_batch(
    layout: Layout, columns: Columns, parts: list[np.ndarray], take: Callable[[int], Any]
) -> SampleMessage:
    """Undo `pack_batch`.

    Args:
        layout: Of the tensors, as on the server.
        columns: What is packed.
        parts: The rest; the tensors made of them keep them.
        take: Returns memory of so many bytes. It is not asked for more than 64 times what came.

    Raises:
        ProtocolError: They are not what `pack_batch` makes for this layout.
    """
    # what comes from another process is checked in full before memory is taken for it
    message = _in_place(layout, parts)
    wanted = {key: shape for key, dtype, shape, _ in layout if _is_packed(dtype, shape)}
    for key, shape in wanted.items():
        _check(key, shape, columns.get(key, []))
    # one buffer for all: it goes back to the pool as a whole, when the last tensor of it is gone
    buffer = take(sum(segments.align(8 * math.prod(shape)) for shape in wanted.values()))
    at = 0
    for key, shape in wanted.items():
        out = array_in(buffer, "int64", shape, at)
        for row, column in zip(out.reshape(-1, shape[-1]), columns[key], strict=True):
            unpack_runs(column, row)
        message[key] = tensor_in(buffer, "int64", shape, at)
        at += segments.align(out.nbytes)
    # in the order of the sampler's fields, as a batch has it that did not travel
    return {key: message[key] for key, *_ in layout}


def _is_packed(dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is one of ids or labels; both ends come to the same answer."""
    in_rows = len(shape) == 1 or (len(shape) == 2 and shape[0] == 2)
    return dtype == "int64" and in_rows and math.prod(shape) >= _LEAST


def _pack(values: Array) -> list[PackedRuns]:
    # of `[2, n]`, the neighbours differ from one to the next, and targets come in runs. Without
    # runs, the number of words bounds the number of values, which `_check` relies on
    first, *rest = values.reshape(-1, values.shape[-1])
    return [PackedRuns(pack_ints(first), None), *map(pack_runs, rest)]


def _stretches(layout: Layout) -> list[tuple[int, int, Layout]]:
    """Return (first byte, end, tensors) of each stretch of tensors that are not packed."""
    found: list[tuple[int, int, Layout]] = []
    # neighbours in the slot travel as one array, with the gaps for alignment between them: each
    # array costs an entry in the header and a read of its own
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
    """Return the tensors that are not packed, over what came."""
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
        # the layout is the other process's word: what reaches beyond its part is not read
        for key, dtype, shape, offset in entries
        if _lies_within(offset, segments.nbytes_of(dtype, shape), start, stop)
    }


def _lies_within(offset: int, nbytes: int, start: int, stop: int) -> bool:
    """Return True.

    Raises:
        ProtocolError: A tensor does not lie within its part.
    """
    if offset < start or offset + nbytes > stop:
        raise ProtocolError(f"{nbytes} bytes at {offset} were announced in {start} to {stop}")
    return True


def _check(key: str, shape: tuple[int, ...], columns: list[PackedRuns]) -> None:
    """Make sure that what is unpacked has that shape; its first row, without runs, bounds it.

    Raises:
        ProtocolError: It is not.
    """
    rows = shape[0] if len(shape) == 2 else 1
    fits = len(columns) == rows and columns[0].counts is None
    if not fits or columns[0].values.size != shape[-1]:
        raise ProtocolError(f"{key!r} of shape {shape} came as {len(columns)} rows of other sizes")
    # further rows may have runs, and become as long as they say; `unpack_runs` stops them at the
    # length of this one
    columns[0].values.check()


def wire_bytes(columns: Columns, parts: list[np.ndarray], layout: Layout) -> dict[str, int]:
    """Return the bytes of a batch by kind: ``"rows"`` of nodes and edges, and ``"structure"``."""
    packed = sum(column.nbytes for some in columns.values() for column in some)
    # by the layout, since a part has rows and other tensors side by side; the rest is structure
    rows = sum(
        segments.nbytes_of(dtype, shape)
        for key, dtype, shape, _ in layout
        if not _is_packed(dtype, shape) and _is_of_rows(key.rpartition(".")[2])
    )
    return {"structure": packed + sum(part.nbytes for part in parts) - rows, "rows": rows}


def _is_of_rows(name: str) -> bool:
    return name in (NODE_FEATURES, NODE_LABELS, EDGE_FEATURES) or name.startswith(ATTRIBUTE)
