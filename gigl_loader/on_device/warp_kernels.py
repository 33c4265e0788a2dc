"""The operations of `Kernels` in NVIDIA Warp: one source, compiled for CUDA and, in tests, the CPU.

A kernel has a thread for each row, or for each key, and no thread's result depends on the timing of
another one. Nothing waits for the device: launches go to torch's current stream, and their results
have sizes that the host knows. The folder of compiled kernels is Warp's own setting
(``WARP_CACHE_PATH``).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gigl_loader.errors import ConfigError
from gigl_loader.on_device.device_kernels import DeviceDraw, DeviceDrawn
from gigl_loader.on_device.torch_kernels import TorchKernels
from gigl_loader.sampler.weighted_kernels import (
    EXPONENT_OF_ONE,
    FRACTION,
    LN_2_HIGH,
    LN_2_LOW,
    SERIES,
    SQRT_2,
)

try:
    import warp as wp
except ImportError as error:
    raise ConfigError(
        "compiled kernels for GPUs need NVIDIA Warp: pip install 'gigl_loader[gpu]'"
    ) from error

wp.config.log_level = wp.LOG_WARNING  # it would print a greeting on standard output
# Products must not be fused with sums: each step is rounded, as on the CPU.
wp.set_module_options({"fuse_fp": False, "enable_backward": False})

# Constants are wrapped: a plain number in a kernel has 32 bits.
_GAMMA = wp.constant(wp.uint64(0x9E3779B97F4A7C15))
_MIX_1 = wp.constant(wp.uint64(0xBF58476D1CE4E5B9))
_MIX_2 = wp.constant(wp.uint64(0x94D049BB133111EB))
_NODE = wp.constant(wp.uint64(0xD6E8FEB86659FD93))
_TO_UNIT = wp.constant(wp.float64(2.0**-53))
_FRACTION = wp.constant(wp.int64(FRACTION))
_BIAS = wp.constant(wp.int64(EXPONENT_OF_ONE))
_ONE_BITS = wp.constant(wp.int64(EXPONENT_OF_ONE << 52))
_SQRT_2 = wp.constant(wp.float64(SQRT_2))
_LN_2_HIGH = wp.constant(wp.float64(LN_2_HIGH))
_LN_2_LOW = wp.constant(wp.float64(LN_2_LOW))
_S1, _S2, _S3, _S4, _S5, _S6, _S7 = (wp.constant(wp.float64(factor)) for factor in SERIES)
_LOWEST = wp.constant(wp.int64(torch.iinfo(torch.int64).min))
_PAGE_BITS = 20
"""Array items are found by two numbers, page and place there: Warp's indices have 32 bits, and a
graph may have more edges."""
_PAGE_SHIFT = wp.constant(wp.int64(_PAGE_BITS))
_PLACE = wp.constant(wp.int64((1 << _PAGE_BITS) - 1))


@wp.func
def _page(position: wp.int64) -> wp.int32:
    return wp.int32(position >> _PAGE_SHIFT)


@wp.func
def _place(position: wp.int64) -> wp.int32:
    return wp.int32(position & _PLACE)


# -- numbers: step for step those of `gigl_loader.sampler.compiled` and `weighted_kernels` ---------


@wp.func
def _mix(value: wp.uint64) -> wp.uint64:
    first = (value ^ (value >> wp.uint64(30))) * _MIX_1
    second = (first ^ (first >> wp.uint64(27))) * _MIX_2
    return second ^ (second >> wp.uint64(31))


@wp.func
def _row_key(key: wp.uint64, node: wp.int64) -> wp.uint64:
    return _mix(_mix(wp.uint64(node) * _NODE + _GAMMA) ^ key)


@wp.func
def _unit(row: wp.uint64, counter: wp.int64) -> wp.float64:
    bits = _mix(row + wp.uint64(counter + wp.int64(1)) * _GAMMA)
    return wp.float64(bits >> wp.uint64(11)) * _TO_UNIT


@wp.func
def _exponential(uniform: wp.float64) -> wp.float64:
    one = wp.float64(1.0)
    bits = wp.cast(one - uniform, wp.int64)
    exponent = wp.float64((bits >> wp.int64(52)) - _BIAS)
    scaled = wp.cast((bits & _FRACTION) | _ONE_BITS, wp.float64)
    if scaled > _SQRT_2:
        scaled = scaled * wp.float64(0.5)
        exponent = exponent + one
    ratio = (scaled - one) / (scaled + one)
    square = ratio * ratio
    fourth = square * square
    even = fourth * (_S2 + fourth * (_S4 + fourth * _S6))
    odd = square * (_S1 + fourth * (_S3 + fourth * (_S5 + fourth * _S7)))
    fraction = ratio * wp.float64(2.0) + ratio * (even + odd)
    return -(exponent * _LN_2_HIGH + (exponent * _LN_2_LOW + fraction))


# -- rows ------------------------------------------------------------------------------------------


@wp.func
def _bound(indptr: wp.array[wp.int64], row: wp.int64) -> wp.int64:
    """Return the start of a row; a row that does not exist starts after the last one."""
    last = wp.int64(indptr.shape[0] - 1)
    return indptr[wp.int32(wp.clamp(row, wp.int64(0), last))]


@wp.func
def _first_after(
    times: wp.array2d[wp.int64], start: wp.int64, stop: wp.int64, time: wp.int64
) -> wp.int64:
    """Return the first place from ``start`` whose time is above ``time``; ``stop`` if none."""
    low = start
    high = stop
    while low < high:
        middle = (low + high) >> wp.int64(1)
        if times[_page(middle), _place(middle)] <= time:
            low = middle + wp.int64(1)
        else:
            high = middle
    return low


@wp.func
def _cut(
    start: wp.int64,
    stop: wp.int64,
    i: wp.int32,
    fanout: wp.int32,
    last: wp.int32,
    times: wp.array2d[wp.int64],
    until: wp.array[wp.int64],
    since: wp.array[wp.int64],
) -> tuple[wp.int64, wp.int64]:
    """Return start and stop of the row of place ``i``, cut to its time limits."""
    if until.shape[0] > 0:
        stop = _first_after(times, start, stop, until[i])
    # Times are integers: times after ``since - 1`` are not before ``since``. The lowest integer has
    # none below it.
    if since.shape[0] > 0 and since[i] > _LOWEST:
        start = _first_after(times, start, stop, since[i] - wp.int64(1))
    if last != 0 and fanout >= 0:
        start = wp.max(start, stop - wp.int64(fanout))
    return start, stop


@wp.func
def _count(degree: wp.int64, fanout: wp.int32, replace: wp.int32) -> wp.int64:
    """Return the number of neighbours drawn from a row."""
    bound = wp.int64(fanout)
    if fanout >= 0 and (degree > bound or (replace != 0 and degree > wp.int64(0))):
        return bound
    return degree


@wp.func
def _draw_next(
    offsets: wp.array2d[wp.int64],
    i: wp.int32,
    j: wp.int32,
    row: wp.uint64,
    start: wp.int64,
    degree: wp.int64,
    take: wp.int64,
) -> wp.int64:
    """Return draw ``j`` by Floyd's method; see `compiled.draw_uniform`."""
    place = wp.int64(j)
    last = degree - take + place
    drawn = wp.int64(_unit(row, place) * wp.float64(last + wp.int64(1)))
    for k in range(j):  # earlier draws are in the row's own places
        if offsets[i, k] == start + drawn:
            return start + last
    return start + drawn


@wp.kernel
def _draw_uniform(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    key: wp.uint64,
    fanout: wp.int32,
    replace: wp.int32,
    last: wp.int32,
    by_time: wp.int32,
    times: wp.array2d[wp.int64],
    order: wp.array2d[wp.int64],
    until: wp.array[wp.int64],
    since: wp.array[wp.int64],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
) -> None:
    i = wp.tid()
    start = _bound(indptr, rows[i])
    stop = _bound(indptr, rows[i] + wp.int64(1))
    start, stop = _cut(start, stop, i, fanout, last, times, until, since)
    degree = stop - start
    take = _count(degree, fanout, replace)
    counts[i] = take
    row = _row_key(key, ids[i])
    for j in range(offsets.shape[1]):
        place = wp.int64(j)
        position = start + place  # the whole row, in stored order
        if place >= take:
            position = wp.int64(0)
        elif replace != 0:
            position = start + wp.int64(_unit(row, place) * wp.float64(degree))
        elif take < degree:
            position = _draw_next(offsets, i, j, row, start, degree, take)
        offsets[i, j] = position
    if by_time != 0:
        for j in range(wp.int32(take)):
            at = offsets[i, j]
            offsets[i, j] = order[_page(at), _place(at)]


# -- whole rows ------------------------------------------------------------------------------------


@wp.func
def _comes_later(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    one: wp.int32,
    other: wp.int32,
) -> wp.bool:
    """Return whether an item is chosen after another; among equal values the earlier position."""
    if values[i, one] == values[i, other]:
        return items[i, one] > items[i, other]
    return values[i, one] > values[i, other]


@wp.func
def _swap(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    one: wp.int32,
    other: wp.int32,
) -> None:
    value = values[i, one]
    values[i, one] = values[i, other]
    values[i, other] = value
    item = items[i, one]
    items[i, one] = items[i, other]
    items[i, other] = item


@wp.func
def _sift_down(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    top: wp.int32,
    size: wp.int32,
) -> None:
    """Restore the max-heap of row ``i``, of ``size``, after its item at ``top`` was replaced."""
    parent = wp.int32(top)
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        if child + 1 < size and _comes_later(values, items, i, child + 1, child):
            child = child + 1
        if not _comes_later(values, items, i, child, parent):
            break
        _swap(values, items, i, child, parent)
        parent = child


@wp.func
def _make_heap(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    size: wp.int32,
) -> None:
    for j in range(size / 2):
        _sift_down(values, items, i, size / 2 - 1 - j, size)


@wp.func
def _offer(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    size: wp.int32,
    value: wp.float64,
    item: wp.int64,
) -> None:
    """Replace the last choice by an item after all others, if the item comes before that choice."""
    if value < values[i, 0]:
        values[i, 0] = value
        items[i, 0] = item
        _sift_down(values, items, i, 0, size)


@wp.func
def _sort_by_position(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    size: wp.int32,
) -> None:
    """Sort the items of row ``i``; their values are lost."""
    for j in range(size):
        values[i, j] = wp.float64(items[i, j])  # exact: positions are below 2 ** 53
    _make_heap(values, items, i, size)
    for j in range(size - 1):
        _swap(values, items, i, 0, size - 1 - j)
        _sift_down(values, items, i, 0, size - 1 - j)


@wp.func
def _weight_at(weights: wp.array2d[wp.float32], position: wp.int64) -> wp.float32:
    """Return the weight of an edge, 1 without weights."""
    if weights.shape[0] == 0:
        return wp.float32(1.0)
    return weights[_page(position), _place(position)]


@wp.func
def _neighbor_at(
    narrow: wp.array2d[wp.int32], wide: wp.array2d[wp.int64], position: wp.int64
) -> wp.int64:
    """Return the neighbour of an edge, from the array that exists."""
    if narrow.shape[0] > 0:
        return wp.int64(narrow[_page(position), _place(position)])
    return wide[_page(position), _place(position)]


@wp.kernel
def _draw_whole_rows(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    key: wp.uint64,
    labor: wp.int32,
    weights: wp.array2d[wp.float32],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    values: wp.array2d[wp.float64],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
) -> None:
    i = wp.tid()
    start = _bound(indptr, rows[i])
    stop = _bound(indptr, rows[i] + wp.int64(1))
    width = offsets.shape[1]
    row = _row_key(key, ids[i])
    size = wp.int32(0)
    heaped = wp.int32(0)
    copy = wp.int64(0)
    before = wp.int64(-1)
    position = start
    while position < stop:
        counter = position - start
        if labor != 0:
            # the copy among parallel edges: they lie side by side
            neighbor = _neighbor_at(narrow, wide, position)
            copy = copy + wp.int64(1) if neighbor == before else wp.int64(0)
            before = neighbor
            counter = copy
            row = _row_key(key, neighbor)
        weight = _weight_at(weights, position)
        if weight > wp.float32(0.0):
            value = _unit(row, counter)
            if weights.shape[0] > 0:
                value = _exponential(value) / wp.float64(weight)
            if size < width:
                values[i, size] = value
                offsets[i, size] = position
                size = size + 1
            else:
                # Rows that are drawn whole stay in stored order.
                if heaped == 0:
                    _make_heap(values, offsets, i, size)
                    heaped = wp.int32(1)
                _offer(values, offsets, i, size, value, position)
        position = position + wp.int64(1)
    counts[i] = wp.int64(size)
    if heaped != 0:
        _sort_by_position(values, offsets, i, size)
    for j in range(size, width):
        offsets[i, j] = wp.int64(0)


@wp.kernel
def _draw_with_replacement(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    key: wp.uint64,
    weights: wp.array2d[wp.float32],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
) -> None:
    i = wp.tid()
    start = _bound(indptr, rows[i])
    stop = _bound(indptr, rows[i] + wp.int64(1))
    width = offsets.shape[1]
    total = wp.float64(0.0)
    position = start
    while position < stop:
        total = total + wp.float64(_weight_at(weights, position))
        position = position + wp.int64(1)
    taken = wp.int32(0)
    if total > wp.float64(0.0):
        taken = width
    counts[i] = wp.int64(taken)
    row = _row_key(key, ids[i])
    for j in range(width):
        found = wp.int64(0)
        if taken > 0:
            goal = _unit(row, wp.int64(j)) * total
            # In the same order as above: sums depend on it.
            running = wp.float64(_weight_at(weights, start))
            found = start
            while running <= goal and found + wp.int64(1) < stop:
                found = found + wp.int64(1)
                running = running + wp.float64(_weight_at(weights, found))
        offsets[i, j] = found


# -- labels ----------------------------------------------------------------------------------------


@wp.kernel
def _enter(
    keys: wp.array[wp.int64],
    table: wp.array[wp.uint64],
    firsts: wp.array[wp.int32],
    found: wp.array[wp.int32],
) -> None:
    """Note the smallest place of each key. ``table`` holds key + 1, or 0 if free."""
    i = wp.tid()
    found[i] = wp.int32(-1)
    if keys[i] >= wp.int64(0):
        entry = wp.uint64(keys[i]) + wp.uint64(1)
        mask = wp.uint64(table.shape[0] - 1)
        position = wp.int32(_mix(entry) & mask)
        while True:
            before = wp.atomic_cas(table, position, wp.uint64(0), entry)
            if before == wp.uint64(0) or before == entry:
                break
            position = wp.int32(wp.uint64(position + 1) & mask)
        # The place of a key in the table depends on timing; its smallest place does not.
        wp.atomic_min(firsts, position, i)
        found[i] = position


@wp.kernel
def _look_up(
    firsts: wp.array[wp.int32],
    found: wp.array[wp.int32],
    out: wp.array[wp.int64],
) -> None:
    i = wp.tid()
    out[i] = wp.int64(0)
    if found[i] >= 0:
        out[i] = wp.int64(firsts[found[i]])


# -- rows of features ------------------------------------------------------------------------------


@wp.kernel
def _gather(
    values: wp.array2d[Any],
    rows: wp.array[wp.int64],
    out: wp.array2d[Any],
) -> None:
    i, j = wp.tid()  # type: ignore[misc]
    position = rows[i] * wp.int64(out.shape[1]) + wp.int64(j)
    out[i, j] = values[_page(position), _place(position)]


_WORDS: dict[int, tuple[torch.dtype, Any]] = {
    8: (torch.int64, wp.int64),
    4: (torch.int32, wp.int32),
    1: (torch.uint8, wp.uint8),
}
"""Types of the words that rows are copied by, by size in bytes."""
for _, _word in _WORDS.values():  # named: kernels are compiled ahead of time, too
    wp.overload(_gather, {"values": wp.array2d[_word], "out": wp.array2d[_word]})


class WarpKernels(TorchKernels):
    """`Kernels` in Warp: draws, and the first place of each key; the rest is torch's.

    Args:
        device: A CUDA device, or the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:  # Warp knows no current device of torch
            device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(device)
        wp.init()
        self._on = wp.device_from_torch(device)

    def draw(self, asked: DeviceDraw) -> DeviceDrawn:
        """Draw neighbours; the same ones, in the same order, as `LocalReader.draw`."""
        draw, adjacency, num_rows = asked.draw, asked.adjacency, asked.rows.numel()
        offsets = torch.empty((num_rows, asked.width), dtype=torch.int64, device=self.device)
        counts = torch.empty_like(asked.rows)
        drawn = DeviceDrawn(offsets, counts)
        if not adjacency.indices.numel() or not asked.width:
            offsets.zero_()
            counts.zero_()
            return drawn
        replace = draw.replace and draw.fanout >= 0
        weights = adjacency.weights if draw.with_weight else None
        question = (*map(self._array, (adjacency.indptr, asked.rows, asked.ids)), draw.key)
        result = wp.from_torch(offsets), self._array(counts)
        if draw.labor or (weights is not None and not replace):
            values = torch.empty_like(offsets, dtype=torch.float64)
            narrow = adjacency.indices if adjacency.indices.dtype == torch.int32 else None
            wide = adjacency.indices if narrow is None else None
            self._launch(
                _draw_whole_rows, num_rows, *question, int(draw.labor),
                self._pages(weights, wp.float32), self._pages(narrow, wp.int32),
                self._pages(wide, wp.int64), wp.from_torch(values), *result,
            )  # fmt: skip
        elif weights is not None:
            self._launch(
                _draw_with_replacement, num_rows, *question, self._pages(weights, wp.float32),
                *result,
            )  # fmt: skip
        else:
            times = asked.times
            self._launch(
                _draw_uniform, num_rows, *question, draw.fanout, int(replace), int(draw.last),
                int(times is not None),
                self._pages(None if times is None else times.times, wp.int64),
                self._pages(None if times is None else times.order, wp.int64),
                self._array(None if times is None else asked.until),
                self._array(None if times is None else asked.since), *result,
            )  # fmt: skip
        return drawn

    def gather(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``values[rows]``; a GPU reads values in pinned memory of the host in place.

        Source:
            Unified virtual addressing: an address of pinned memory is one of the device, too (CUDA
            C++ Programming Guide, "Unified Virtual Address Space").
        """
        out = torch.empty((rows.numel(), *values.shape[1:]), dtype=values.dtype, device=self.device)
        if not out.numel():
            return out
        if values.is_cuda:
            return torch.index_select(values, 0, rows, out=out)
        row_bytes = out.nbytes // rows.numel()
        word = next(size for size in _WORDS if row_bytes % size == 0)
        as_words, dtype = _WORDS[word]
        words = out.view(rows.numel(), -1).view(as_words)
        self._launch(
            _gather, words.shape, self._pages(values, dtype, values.nbytes // word),
            self._array(rows), wp.from_torch(words),
        )  # fmt: skip
        return out

    def _first_places(self, keys: Tensor) -> Tensor:
        """Return the first place of each of ``keys``; 0 for those below 0."""
        found = torch.empty_like(keys, dtype=torch.int32)
        # At most half full, so that a search reads few positions, and always reaches a free one.
        size = 1 << (2 * max(1, keys.numel()) - 1).bit_length()
        table = torch.zeros(size, dtype=torch.int64, device=self.device)
        firsts = torch.full((size,), keys.numel(), dtype=torch.int32, device=self.device)
        places = torch.empty_like(keys)
        num_keys, at = keys.numel(), wp.from_torch(found)
        self._launch(
            _enter, num_keys, self._array(keys), wp.from_torch(table, wp.uint64),
            wp.from_torch(firsts), at,
        )  # fmt: skip
        self._launch(_look_up, num_keys, wp.from_torch(firsts), at, self._array(places))
        return places

    def _launch(self, kernel: Any, threads: int | Sequence[int], *inputs: Any) -> None:
        stream = wp.stream_from_torch(self.device) if self.device.type == "cuda" else None
        wp.launch(kernel, dim=threads, inputs=inputs, device=self._on, stream=stream)

    def _array(self, values: Tensor | None) -> Any:
        """Return int64 values as Warp's array over the same memory; an empty one for None."""
        if values is None:
            return wp.empty(0, dtype=wp.int64, device=self._on)
        return wp.from_torch(values.contiguous())

    def _pages(self, values: Tensor | None, dtype: Any, count: int | None = None) -> Any:
        """Return an array as pages; the last one may go past the end, unread.

        Args:
            values: Contiguous; None: an empty array.
            dtype: Type of the items.
            count: Number of items; None: as many as ``values`` has.
        """
        if values is None:
            return wp.empty((0, 0), dtype=dtype, device=self._on)
        count = values.numel() if count is None else count
        return wp.array(
            ptr=values.data_ptr(), shape=(-(-count // (1 << _PAGE_BITS)), 1 << _PAGE_BITS),
            dtype=dtype, device=self._on, copy=False,
        )  # fmt: skip
