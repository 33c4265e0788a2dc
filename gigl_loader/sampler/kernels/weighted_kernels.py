"""Compiled inner loops of draws by weight, and of LABOR.

They take a logarithm, whose last bit differs between C libraries, and on a GPU. So this is our own
one: separate additions, multiplications and divisions of float64 in a fixed order, each rounded
by IEEE 754. `on_device` computes the same in the same order.

Source:
    Weighted, without replacement: exponential keys, Efraimidis and Spirakis, "Weighted random
    sampling with a reservoir", IPL 97(5), 2006.
"""

from typing import NamedTuple

import numpy as np

from gigl_loader.runtime.compiled import jit
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.kernels.sampling_kernels import count_uniform, row_key, unit


class Logarithm(NamedTuple):
    """The numbers of the logarithm."""

    fraction: int = (1 << 52) - 1
    """The bits of a float64's fraction."""
    exponent_of_one: int = 1023
    """The bias of its exponent."""
    sqrt_2: float = 1.4142135623730951
    ln_2_high: float = 6.93147180369123816490e-01
    """The first of two parts of ln 2, of 33 bits, so that its product with an exponent is exact."""
    ln_2_low: float = 1.90821492927058770002e-10
    series: tuple[float, ...] = (
        6.666666666666735130e-01,
        3.999999999940941908e-01,
        2.857142874366239149e-01,
        2.222219843214978396e-01,
        1.818357216161805012e-01,
        1.531383769920937332e-01,
        1.479819860511658591e-01,
    )
    """Factors of the powers of its series: near 2/3, 2/5... 2/15, with a total error below
    2 ** -58."""


LOGARITHM = Logarithm()
# plain numbers are constants to Numba
_FRACTION, _EXPONENT_OF_ONE, _SQRT_2, _LN_2_HIGH, _LN_2_LOW, _SERIES = LOGARITHM
_S1, _S2, _S3, _S4, _S5, _S6, _S7 = _SERIES


@jit
def exponential(uniform):
    """Return ``-log(1 - uniform)`` of a number in [0, 1) that is a multiple of 2 ** -53.

    Exponentially distributed where the number is uniform. The relative error is below 2 ** -51. The
    compiler must not fuse a product with a sum: `runtime.compiled.jit` allows no such mathematics.

    Source:
        log m = 2 artanh s with s = (m - 1) / (m + 1), as a series of s: fdlibm's e_log.c (Sun
        Microsystems, 1993), whose factors and parts of ln 2 these are.
    """
    # In (0, 1], and exact: its logarithm is finite, and its bits are those of a normal number.
    bits = np.float64(1.0 - uniform).view(np.int64)
    exponent = (bits >> 52) - _EXPONENT_OF_ONE
    scaled = np.int64((bits & _FRACTION) | (_EXPONENT_OF_ONE << 52)).view(np.float64)
    if scaled > _SQRT_2:  # now within [sqrt 1/2, sqrt 2]: near 1, where a logarithm is small
        scaled = scaled * 0.5
        exponent += 1
    ratio = (scaled - 1.0) / (scaled + 1.0)
    square = ratio * ratio
    fourth = square * square
    even = fourth * (_S2 + fourth * (_S4 + fourth * _S6))
    odd = square * (_S1 + fourth * (_S3 + fourth * (_S5 + fourth * _S7)))
    fraction = ratio * 2.0 + ratio * (even + odd)
    return -(exponent * _LN_2_HIGH + (exponent * _LN_2_LOW + fraction))


@jit
def count_weighted(indptr, weights, nodes, fanout, replace, starts, degrees, counts):
    """Like `count_uniform`, but a neighbour of weight 0 is never drawn."""
    total, most = count_uniform(indptr, nodes, fanout, replace, starts, degrees, counts)
    # Positions of weight 0 count for scratch memory (``most``), but are never drawn.
    total = 0
    for i in range(nodes.shape[0]):
        possible = 0
        for offset in range(starts[i], starts[i] + degrees[i]):
            if weights[offset] > 0:
                possible += 1
        take = possible
        if fanout >= 0 and (possible > fanout or (replace and possible > 0)):
            take = fanout
        counts[i] = take
        total += take
    return total, most


@jit
def _comes_later(keys, items, position, other):
    """Return whether the item at ``position`` is chosen after that at ``other``.

    Among equal keys the earlier position is chosen, so that other ways of selection agree.
    """
    if keys[position] == keys[other]:
        return items[position] > items[other]
    return keys[position] > keys[other]


@jit
def _sift_down(keys, items, size):
    """Restore a max-heap of ``size`` whose root was replaced."""
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        if child + 1 < size and _comes_later(keys, items, child + 1, child):
            child += 1
        if not _comes_later(keys, items, child, parent):
            return
        keys[parent], keys[child] = keys[child], keys[parent]
        items[parent], items[child] = items[child], items[parent]
        parent = child


@jit
def _sift_up(keys, items, child):
    """Restore a max-heap whose last item, at ``child``, was added."""
    while child > 0 and _comes_later(keys, items, child, (child - 1) // 2):
        parent = (child - 1) // 2
        keys[parent], keys[child] = keys[child], keys[parent]
        items[parent], items[child] = items[child], items[parent]
        child = parent


@jit
def write_sorted(items, size, out, at):
    """Write the first ``size`` items, ascending, to ``out[at:]``; they are sorted in place.

    A heapsort of our own: Numba takes seconds to compile its sort.
    """
    begin, stop = size // 2, size
    while stop > 1:
        if begin > 0:  # a max-heap first
            begin -= 1
        else:
            stop -= 1
            items[0], items[stop] = items[stop], items[0]
        parent = begin
        while 2 * parent + 1 < stop:
            child = 2 * parent + 1
            if child + 1 < stop and items[child + 1] > items[child]:
                child += 1
            if items[child] <= items[parent]:
                break
            items[parent], items[child] = items[child], items[parent]
            parent = child
    for j in range(size):
        out[at + j] = items[j]


@jit
def first_above(keys, size, goal):
    """Return the position of the first of ``size`` ascending keys above ``goal``; else ``size``."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if goal < keys[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def draw_weighted(weights, nodes, starts, degrees, counts, replace, key, keys, items, positions):
    """Draw by weight.

    ``keys`` (float64) and ``items`` (int64) are scratch as long as the longest row.
    """
    at = 0
    for i in range(nodes.shape[0]):
        take = counts[i]
        if take == 0:
            continue
        start = starts[i]
        end = start + degrees[i]
        row = row_key(key, nodes[i])
        if replace:
            total = 0.0
            for offset in range(start, end):
                total += weights[offset]
                # Sums are float64 though weights are float32: over long rows small ones would
                # vanish.
                keys[offset - start] = total
            for j in range(take):
                goal = unit(row, j) * total
                # This skips positions of weight 0, whose sum equals the previous one.
                position = first_above(keys, end - start, goal)
                # Only weights that are not finite get past the end: a number below 1 times a finite
                # total never reaches the total, rounded or not.
                positions[at + j] = min(start + position, end - 1)
        else:
            size = 0  # the `take` smallest exponential keys, in a max-heap
            for offset in range(start, end):
                weight = weights[offset]
                if weight <= 0:
                    continue
                value = exponential(unit(row, offset - start)) / weight
                if size < take:
                    keys[size] = value
                    items[size] = offset
                    _sift_up(keys, items, size)
                    size += 1
                elif value < keys[0]:
                    keys[0] = value
                    items[0] = offset
                    _sift_down(keys, items, size)
            # A heap leaves them in its own order. In ascending order, memory is read forwards and
            # the result does not depend on the heap.
            write_sorted(items, take, positions, at)
        at += take


@jit
def draw_labor(indices, weights, starts, degrees, counts, key, keys, items, positions):
    """Draw the neighbours with the smallest random numbers, by weight if there are weights.

    A number belongs to the neighbour, and to the copy among parallel edges, not to the row. So rows
    with common neighbours tend to draw the same ones. Within one row it is a uniform draw without
    replacement. ``weights`` is empty without weights.

    Source:
        LABOR-0 with fixed sizes (sequential Poisson sampling): Balin and Catalyurek,
        "Layer-Neighbor Sampling", NeurIPS 2023, sections 3 and A.3.
    """
    at = 0
    for i in range(starts.shape[0]):
        take = counts[i]
        if take == 0:
            continue
        start = starts[i]
        end = start + degrees[i]
        if take == degrees[i]:
            for j in range(take):
                positions[at + j] = start + j
            at += take
            continue
        size = 0  # the `take` smallest numbers, in a max-heap
        copy = 0
        for offset in range(start, end):
            neighbor = indices[offset]
            # Parallel edges lie side by side, as neighbours of a row ascend.
            copy = copy + 1 if offset > start and indices[offset - 1] == neighbor else 0
            value = unit(row_key(key, neighbor), copy)
            if weights.shape[0] > 0:
                if weights[offset] <= 0:
                    continue
                value = exponential(value) / weights[offset]
            if size < take:
                keys[size] = value
                items[size] = offset
                _sift_up(keys, items, size)
                size += 1
            elif value < keys[0]:
                keys[0] = value
                items[0] = offset
                _sift_down(keys, items, size)
        write_sorted(items, take, positions, at)
        at += take


def load() -> None:
    """Call the kernels of draws by weight once on empty arrays; see `sampling_kernels.load`."""
    none, weights, key, rows = _of_no_rows()
    for replace in (False, True):
        count_weighted(np.zeros(1, np.int64), weights, none, -1, replace, *rows)
        draw_weighted(weights, none, *rows, replace, key, np.zeros(0), none, none)


def load_labor() -> None:
    """Call the kernels of LABOR, which may count by weight, once on empty arrays."""
    none, weights, key, rows = _of_no_rows()
    for indices in (none, none.astype(np.int32)):  # mapped files keep ids in 32 bits
        draw_labor(indices, weights, *rows, key, np.zeros(0), none, none)


def _of_no_rows() -> tuple[Array, Array, np.uint64, tuple[Array, Array, Array]]:
    none = np.zeros(0, np.int64)
    return none, np.zeros(0, np.float32), np.uint64(1), (none, none.copy(), none.copy())
