"""Programs in NVIDIA Warp for the operations of a device; `warp_kernels` launches them.

One source is compiled for CUDA and, in tests, for the CPU.

A program has a thread for each row, part of a row, draw or key, and no result depends on the timing
of threads. The folder of compiled programs is Warp's own setting (``WARP_CACHE_PATH``).
"""

from typing import Any

import torch
import warp as wp

from gigl_loader.sampler.kernels.weighted_kernels import LOGARITHM

wp.config.log_level = wp.LOG_WARNING  # it would print a greeting on standard output
# Products must not be fused with sums: each step is rounded, as on the CPU.
wp.set_module_options({"fuse_fp": False, "enable_backward": False})

# Constants are wrapped: a plain number in a kernel has 32 bits.
_GAMMA = wp.constant(wp.uint64(0x9E3779B97F4A7C15))
_MIX_1 = wp.constant(wp.uint64(0xBF58476D1CE4E5B9))
_MIX_2 = wp.constant(wp.uint64(0x94D049BB133111EB))
_NODE = wp.constant(wp.uint64(0xD6E8FEB86659FD93))
_TO_UNIT = wp.constant(wp.float64(2.0**-53))
_FRACTION = wp.constant(wp.int64(LOGARITHM.fraction))
_BIAS = wp.constant(wp.int64(LOGARITHM.exponent_of_one))
_ONE_BITS = wp.constant(wp.int64(LOGARITHM.exponent_of_one << 52))
_SQRT_2 = wp.constant(wp.float64(LOGARITHM.sqrt_2))
_LN_2_HIGH = wp.constant(wp.float64(LOGARITHM.ln_2_high))
_LN_2_LOW = wp.constant(wp.float64(LOGARITHM.ln_2_low))
_S1, _S2, _S3, _S4, _S5, _S6, _S7 = (wp.constant(wp.float64(factor)) for factor in LOGARITHM.series)
_LOWEST = wp.constant(wp.int64(torch.iinfo(torch.int64).min))
PAGE_BITS = 20
"""Array items are found by two numbers, page and place there: Warp's indices have 32 bits, and a
graph may have more edges."""
_PAGE_SHIFT = wp.constant(wp.int64(PAGE_BITS))
_PLACE = wp.constant(wp.int64((1 << PAGE_BITS) - 1))


@wp.func
def _page(position: wp.int64) -> wp.int32:
    return wp.int32(position >> _PAGE_SHIFT)


@wp.func
def _place(position: wp.int64) -> wp.int32:
    return wp.int32(position & _PLACE)


# -- numbers: step for step those of `sampler.kernels.sampling_kernels` and `weighted_kernels`
# ---------


@wp.func
def _mix(value: wp.uint64) -> wp.uint64:
    first = (value ^ (value >> wp.uint64(30))) * _MIX_1
    second = (first ^ (first >> wp.uint64(27))) * _MIX_2
    return second ^ (second >> wp.uint64(31))


@wp.func
def row_key_of(key: wp.uint64, node: wp.int64) -> wp.uint64:
    """Return the key of a node's draws; see `torch_numbers.row_keys`."""
    return _mix(_mix(wp.uint64(node) * _NODE + _GAMMA) ^ key)


@wp.func
def _key_at(keys: wp.array[wp.uint64], i: wp.int32) -> wp.uint64:
    """Return the key of row ``i``'s draw, which may be the only one of all rows."""
    if keys.shape[0] == 1:
        return keys[0]
    return keys[i]


@wp.func
def unit_of(row: wp.uint64, counter: wp.int64) -> wp.float64:
    """Return draw ``counter`` of a row, in [0, 1); see `torch_numbers.units`."""
    bits = _mix(row + wp.uint64(counter + wp.int64(1)) * _GAMMA)
    return wp.float64(bits >> wp.uint64(11)) * _TO_UNIT


@wp.func
def exponential_of(uniform: wp.float64) -> wp.float64:
    """Return ``-log(1 - uniform)``, in the order of `torch_numbers.exponentials`."""
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
    """Return draw ``j`` by Floyd's method; see `sampling_kernels.draw_uniform`."""
    place = wp.int64(j)
    last = degree - take + place
    drawn = wp.int64(unit_of(row, place) * wp.float64(last + wp.int64(1)))
    for k in range(j):  # earlier draws are in the row's own places
        if offsets[i, k] == start + drawn:
            return start + last
    return start + drawn


@wp.func
def _neighbor_at(
    narrow: wp.array2d[wp.int32], wide: wp.array2d[wp.int64], position: wp.int64
) -> wp.int64:
    """Return the neighbour of an edge, from the array that exists."""
    if narrow.shape[0] > 0:
        return wp.int64(narrow[_page(position), _place(position)])
    return wide[_page(position), _place(position)]


@wp.func
def _write_neighbors(
    offsets: wp.array2d[wp.int64],
    count: wp.int32,
    i: wp.int32,
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    neighbors: wp.array2d[wp.int64],
) -> None:
    """Write the neighbours of row ``i``, of which the first ``count`` were drawn; -1 behind."""
    for j in range(neighbors.shape[1]):
        neighbor = wp.int64(-1)
        if j < count:
            neighbor = _neighbor_at(narrow, wide, offsets[i, j])
        neighbors[i, j] = neighbor


@wp.kernel
def draw_uniform(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    keys: wp.array[wp.uint64],
    fanout: wp.int32,
    replace: wp.int32,
    last: wp.int32,
    by_time: wp.int32,
    times: wp.array2d[wp.int64],
    order: wp.array2d[wp.int64],
    until: wp.array[wp.int64],
    since: wp.array[wp.int64],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
    neighbors: wp.array2d[wp.int64],
) -> None:
    """Draw neighbours of a row uniformly, or its last ones by time; a thread for each row.

    Its arguments are `DeviceDraw`'s fields; positions go to ``offsets``, numbers to ``counts``.
    The graph's neighbours are in ``narrow`` (32 bits) or in ``wide``.
    """
    i = wp.tid()
    start = _bound(indptr, rows[i])
    stop = _bound(indptr, rows[i] + wp.int64(1))
    start, stop = _cut(start, stop, i, fanout, last, times, until, since)
    degree = stop - start
    take = _count(degree, fanout, replace)
    counts[i] = take
    key = _key_at(keys, i)
    row = row_key_of(key, ids[i])
    for j in range(offsets.shape[1]):
        place = wp.int64(j)
        position = start + place  # the whole row, in stored order
        if place >= take:
            position = wp.int64(0)
        elif replace != 0:
            position = start + wp.int64(unit_of(row, place) * wp.float64(degree))
        elif take < degree:
            position = _draw_next(offsets, i, j, row, start, degree, take)
        offsets[i, j] = position
    if by_time != 0:
        for j in range(wp.int32(take)):
            at = offsets[i, j]
            offsets[i, j] = order[_page(at), _place(at)]
    _write_neighbors(offsets, wp.int32(take), i, narrow, wide, neighbors)


# -- whole rows ------------------------------------------------------------------------------------


@wp.func
def _comes_later(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    position: wp.int32,
    other: wp.int32,
) -> wp.bool:
    """Return whether an item is chosen after another; among equal values the earlier position."""
    if values[i, position] == values[i, other]:
        return items[i, position] > items[i, other]
    return values[i, position] > values[i, other]


@wp.func
def _swap(
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    i: wp.int32,
    position: wp.int32,
    other: wp.int32,
) -> None:
    value = values[i, position]
    values[i, position] = values[i, other]
    values[i, other] = value
    item = items[i, position]
    items[i, position] = items[i, other]
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
    values: wp.array2d[wp.float64], items: wp.array2d[wp.int64], i: wp.int32, size: wp.int32
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
    """Replace the last choice by an item that comes before it: of equal values the earlier one.

    Items in stored order never win by that; those of the parts of a row are in no order.
    """
    last = values[i, 0]
    if value < last or (value == last and item < items[i, 0]):
        values[i, 0] = value
        items[i, 0] = item
        _sift_down(values, items, i, 0, size)


@wp.func
def _sort_by_position(
    values: wp.array2d[wp.float64], items: wp.array2d[wp.int64], i: wp.int32, size: wp.int32
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
def _copies_before(
    narrow: wp.array2d[wp.int32], wide: wp.array2d[wp.int64], start: wp.int64, position: wp.int64
) -> wp.int64:
    """Return how many edges before ``position`` lead to the neighbour of the one before it."""
    copies = wp.int64(0)
    if position > start:
        neighbor = _neighbor_at(narrow, wide, position - wp.int64(1))
        first = position - wp.int64(1)
        while first >= start:
            if _neighbor_at(narrow, wide, first) != neighbor:
                break
            first = first - wp.int64(1)
            copies = copies + wp.int64(1)
    return copies


@wp.func
def _choose(
    start: wp.int64,
    begin: wp.int64,
    stop: wp.int64,
    key: wp.uint64,
    node: wp.int64,
    labor: wp.int32,
    weights: wp.array2d[wp.float32],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    values: wp.array2d[wp.float64],
    items: wp.array2d[wp.int64],
    place: wp.int32,
) -> wp.int32:
    """Choose the least values of the edges from ``begin`` to ``stop`` of a row from ``start``.

    They go to row ``place`` of ``values`` and ``items``, in stored order if all are chosen.

    Returns:
        Their number; -1 - it if they are a heap.
    """
    width = items.shape[1]
    row = row_key_of(key, node)
    size = wp.int32(0)
    heaped = wp.int32(0)
    copy = wp.int64(0)
    before = wp.int64(-1)
    if labor != 0 and begin > start:
        copy = _copies_before(narrow, wide, start, begin) - wp.int64(1)
        before = _neighbor_at(narrow, wide, begin - wp.int64(1))
    position = begin
    while position < stop:
        counter = position - start
        if labor != 0:
            # the copy among parallel edges: they lie side by side
            neighbor = _neighbor_at(narrow, wide, position)
            copy = copy + wp.int64(1) if neighbor == before else wp.int64(0)
            before = neighbor
            counter = copy
            row = row_key_of(key, neighbor)
        weight = _weight_at(weights, position)
        if weight > wp.float32(0.0):
            value = unit_of(row, counter)
            if weights.shape[0] > 0:
                value = exponential_of(value) / wp.float64(weight)
            if size < width:
                values[place, size] = value
                items[place, size] = position
                size = size + 1
            else:
                # Rows that are drawn whole stay in stored order.
                if heaped == 0:
                    _make_heap(values, items, place, size)
                    heaped = wp.int32(1)
                _offer(values, items, place, size, value, position)
        position = position + wp.int64(1)
    if heaped != 0:
        return wp.int32(-1) - size
    return size


@wp.kernel
def draw_whole_rows(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    keys: wp.array[wp.uint64],
    labor: wp.int32,
    weights: wp.array2d[wp.float32],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    values: wp.array2d[wp.float64],
    longest: wp.int32,
    long_rows: wp.array[wp.int32],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
    neighbors: wp.array2d[wp.int64],
) -> None:
    """Draw by weight without replacement, or by LABOR: the least values of the whole row.

    ``values`` is scratch memory of the shape of ``offsets``. Rows of more than ``longest`` edges
    are left to `draw_long_rows`: their number goes to ``long_rows[0]``, and they behind it. Rows
    that find no room there, in whatever order threads come, are drawn here: the draw is the same.
    """
    i = wp.tid()
    start = _bound(indptr, rows[i])
    stop = _bound(indptr, rows[i] + wp.int64(1))
    if stop - start > wp.int64(longest):
        place = wp.atomic_add(long_rows, 0, wp.int32(1)) + wp.int32(1)
        if place < long_rows.shape[0]:
            long_rows[place] = i
            return
    key = _key_at(keys, i)
    size = _choose(
        start, start, stop, key, ids[i], labor, weights, narrow, wide, values, offsets, i
    )
    if size < 0:
        size = wp.int32(-1) - size
        _sort_by_position(values, offsets, i, size)
    counts[i] = wp.int64(size)
    for j in range(size, offsets.shape[1]):
        offsets[i, j] = wp.int64(0)
    _write_neighbors(offsets, size, i, narrow, wide, neighbors)


@wp.kernel
def draw_long_rows(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    keys: wp.array[wp.uint64],
    labor: wp.int32,
    weights: wp.array2d[wp.float32],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    long_rows: wp.array[wp.int32],
    part_values: wp.array2d[wp.float64],
    part_items: wp.array2d[wp.int64],
    part_sizes: wp.array2d[wp.int32],
) -> None:
    """Choose the least values of a part of a long row; a thread for each part.

    Part ``p`` of the k-th row goes to row ``k * parts + p`` of the scratch memory.
    """
    k, p = wp.tid()  # type: ignore[misc]  # the number of variables decides
    if k < long_rows[0]:
        i = long_rows[k + 1]
        start = _bound(indptr, rows[i])
        stop = _bound(indptr, rows[i] + wp.int64(1))
        parts = wp.int64(part_sizes.shape[1])
        step = (stop - start + parts - wp.int64(1)) / parts
        begin = wp.min(start + wp.int64(p) * step, stop)
        end = wp.min(begin + step, stop)
        size = _choose(
            start,
            begin,
            end,
            _key_at(keys, i),
            ids[i],
            labor,
            weights,
            narrow,
            wide,
            part_values,
            part_items,
            k * part_sizes.shape[1] + p,
        )
        if size < 0:
            size = wp.int32(-1) - size
        part_sizes[k, p] = size


@wp.kernel
def join_long_rows(
    long_rows: wp.array[wp.int32],
    part_values: wp.array2d[wp.float64],
    part_items: wp.array2d[wp.int64],
    part_sizes: wp.array2d[wp.int32],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    values: wp.array2d[wp.float64],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
    neighbors: wp.array2d[wp.int64],
) -> None:
    """Choose the least values of all parts of a long row; a thread for each of these rows."""
    k = wp.tid()
    if k < long_rows[0]:
        i = long_rows[k + 1]  # type: ignore[operator]  # one variable: an index
        width = offsets.shape[1]
        size = wp.int32(0)
        heaped = wp.int32(0)
        for p in range(part_sizes.shape[1]):
            place = k * part_sizes.shape[1] + p
            for j in range(part_sizes[k, p]):
                value = part_values[place, j]
                item = part_items[place, j]
                if size < width:
                    values[i, size] = value
                    offsets[i, size] = item
                    size = size + 1
                else:
                    if heaped == 0:
                        _make_heap(values, offsets, i, size)
                        heaped = wp.int32(1)
                    _offer(values, offsets, i, size, value, item)
        _sort_by_position(values, offsets, i, size)
        counts[i] = wp.int64(size)
        for j in range(size, width):
            offsets[i, j] = wp.int64(0)
        _write_neighbors(offsets, size, i, narrow, wide, neighbors)


@wp.kernel
def draw_with_replacement(
    indptr: wp.array[wp.int64],
    rows: wp.array[wp.int64],
    ids: wp.array[wp.int64],
    keys: wp.array[wp.uint64],
    weights: wp.array2d[wp.float32],
    narrow: wp.array2d[wp.int32],
    wide: wp.array2d[wp.int64],
    offsets: wp.array2d[wp.int64],
    counts: wp.array[wp.int64],
    neighbors: wp.array2d[wp.int64],
) -> None:
    """Draw a neighbour of a row by weight with replacement; a thread for each draw.

    Sums depend on the order of additions, so no part of a row can be added apart. The draws of a
    row are neighbouring threads, which read the same weights at the same time.
    """
    i, j = wp.tid()  # type: ignore[misc]  # the number of variables decides
    start = _bound(indptr, rows[i])
    stop = _bound(indptr, rows[i] + wp.int64(1))
    total = wp.float64(0.0)
    position = start
    while position < stop:
        total = total + wp.float64(_weight_at(weights, position))
        position = position + wp.int64(1)
    chosen = wp.int64(0)
    neighbor = wp.int64(-1)
    if total > wp.float64(0.0):
        goal = unit_of(row_key_of(_key_at(keys, i), ids[i]), wp.int64(j)) * total
        # In the same order as above: sums depend on it.
        running = wp.float64(_weight_at(weights, start))
        chosen = start
        while running <= goal and chosen + wp.int64(1) < stop:
            chosen = chosen + wp.int64(1)
            running = running + wp.float64(_weight_at(weights, chosen))
        neighbor = _neighbor_at(narrow, wide, chosen)
    offsets[i, j] = chosen
    neighbors[i, j] = neighbor
    if j == 0:
        counts[i] = wp.where(total > wp.float64(0.0), wp.int64(offsets.shape[1]), wp.int64(0))


# -- labels ----------------------------------------------------------------------------------------


@wp.func
def _type_at(ends: wp.array[wp.int64], place: wp.int64) -> wp.int32:
    """Return the type of a place, of places that lie type after type."""
    name = wp.int32(0)
    while place >= ends[name]:
        name = name + wp.int32(1)
    return name


@wp.func
def _end_of(ends: wp.array[wp.int64], name: wp.int32) -> wp.int64:
    """Return where a type ends; type -1, before the first one, at 0."""
    if name < 0:
        return wp.int64(0)
    return ends[name]


@wp.kernel
def enter_keys(
    known: wp.array[wp.int64],
    keys: wp.array[wp.int64],
    begins: wp.array[wp.int64],
    ends: wp.array[wp.int64],
    table: wp.array[wp.uint64],
    firsts: wp.array[wp.int32],
    positions: wp.array[wp.int32],
) -> None:
    """Note the smallest place of each key in its type; a thread for each place.

    Places are those of ``known`` (keys with a label), then those of ``keys``. Each type has a part
    of the table, twice as large as it has places: so a search reads few positions, and always
    reaches a free one. ``table`` holds key + 1, or 0 if free. Positions of ``keys`` go to
    ``positions``, -1 for unused places.
    """
    i = wp.tid()
    capacity = known.shape[0]
    key = wp.int64(-1)
    name = wp.int32(0)
    if i < capacity:
        key = known[i]
        name = _type_at(begins, wp.int64(i)) - wp.int32(1)
    else:
        key = keys[i - capacity]
        name = _type_at(ends, wp.int64(i - capacity))
    position = wp.int64(-1)
    if key >= wp.int64(0):
        start = wp.int64(2) * (begins[name] + _end_of(ends, name - wp.int32(1)))
        stop = wp.int64(2) * (begins[name + wp.int32(1)] + ends[name])
        entry = wp.uint64(key) + wp.uint64(1)
        # the upper half of a product, as a remainder would take longer
        share = (_mix(entry) >> wp.uint64(32)) * wp.uint64(stop - start)
        position = start + wp.int64(share >> wp.uint64(32))
        while True:
            before = wp.atomic_cas(table, wp.int32(position), wp.uint64(0), entry)
            if before == wp.uint64(0) or before == entry:
                break
            position = position + wp.int64(1)
            if position == stop:
                position = start
        # The place of a key in the table depends on timing; its smallest place does not.
        wp.atomic_min(firsts, wp.int32(position), i)
    if i >= capacity:
        positions[i - capacity] = wp.int32(position)


@wp.kernel
def mark_new(
    capacity: wp.int32,
    firsts: wp.array[wp.int32],
    positions: wp.array[wp.int32],
    is_new: wp.array[wp.int32],
) -> None:
    """Write 1 where a key is at its first place, 0 elsewhere; see `enter_keys`."""
    i = wp.tid()
    is_first = wp.int32(0)
    if positions[i] >= 0:
        is_first = wp.where(firsts[positions[i]] == capacity + i, wp.int32(1), wp.int32(0))
    is_new[i] = is_first


@wp.func
def _through(ranks: wp.array[wp.int32], end: wp.int64) -> wp.int64:
    """Return the number of new keys in the places before ``end``."""
    if end == wp.int64(0):
        return wp.int64(0)
    return wp.int64(ranks[wp.int32(end - wp.int64(1))])


@wp.kernel
def give_labels(
    keys: wp.array[wp.int64],
    begins: wp.array[wp.int64],
    ends: wp.array[wp.int64],
    counts: wp.array[wp.int64],
    firsts: wp.array[wp.int32],
    positions: wp.array[wp.int32],
    ranks: wp.array[wp.int32],
    known: wp.array[wp.int64],
    labels: wp.array[wp.int64],
    new_counts: wp.array[wp.int64],
) -> None:
    """Write the label of each key, new keys to ``known``, and the new number of each type.

    A thread for each place of ``keys``, then one for each type. ``ranks`` counts new keys up to
    each place.
    """
    i = wp.tid()
    num_keys = keys.shape[0]
    if i >= num_keys:
        name = i - num_keys
        before = _through(ranks, _end_of(ends, name - wp.int32(1)))
        new_counts[name] = counts[name] + _through(ranks, ends[name]) - before
    elif positions[i] < 0:
        labels[i] = wp.int64(-1)
    else:
        capacity = known.shape[0]
        name = _type_at(ends, wp.int64(i))
        first = firsts[positions[i]]
        label = wp.int64(first) - begins[name]
        if first >= capacity:
            before = _through(ranks, _end_of(ends, name - wp.int32(1)))
            rank = wp.int64(ranks[first - capacity]) - before - wp.int64(1)
            label = counts[name] + rank
            if first == capacity + i:
                known[wp.int32(begins[name] + label)] = keys[i]
        labels[i] = label


# -- rows of features ------------------------------------------------------------------------------


@wp.kernel
def gather_rows(values: wp.array2d[Any], rows: wp.array[wp.int64], out: wp.array2d[Any]) -> None:
    """Copy a word of a row; a thread for each word of each row in ``out``."""
    i, j = wp.tid()  # type: ignore[misc]  # the number of variables decides
    position = rows[i] * wp.int64(out.shape[1]) + wp.int64(j)
    out[i, j] = values[_page(position), _place(position)]


def _gather_of(word: Any) -> Any:
    return wp.overload(gather_rows, {"values": wp.array2d[word], "out": wp.array2d[word]})


# named, as kernels are compiled ahead of time, too
WORDS: dict[int, tuple[torch.dtype, Any, Any]] = {
    8: (torch.int64, wp.int64, _gather_of(wp.int64)),
    4: (torch.int32, wp.int32, _gather_of(wp.int32)),
    1: (torch.uint8, wp.uint8, _gather_of(wp.uint8)),
}
"""The words that rows are copied by, by size in bytes: their type in torch, in Warp, `gather_rows`.
"""
