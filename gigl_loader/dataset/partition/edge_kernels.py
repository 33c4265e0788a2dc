"""Compiled inner loops that group edges by row. No state, no I/O; they release the GIL."""

import numpy as np

from gigl_loader.runtime.compiled import at_address, jit, prefetch

_AHEAD = 16
"""Edges whose places are prefetched before they are written."""
_SHORT = 32
"""Entries of a row up to which it is sorted by insertion."""


@jit
def place_edges(begin, end, rows, cols, numbers, ends, indices, order):
    """Write each edge of some rows to the next free place of its row, in the order of the input.

    Args:
        begin: The first of these rows.
        end: The row after the last.
        rows: ``[num_edges]`` int64.
        cols: ``[num_edges]`` int64.
        numbers: ``[num_edges]`` int64, or ``[0]``: the positions in the input.
        ends: ``[num_rows]`` int64: where each row starts; receives where it ends.
        indices: ``[num_edges]`` int64, receives the columns.
        order: ``[num_edges]`` int64, receives the numbers.
    """
    last = rows.shape[0] - 1
    for edge in range(rows.shape[0]):
        # the wait is for memory: first for the row's end, then for its next place
        later = rows[min(edge + 2 * _AHEAD, last)]
        if begin <= later and later < end:
            prefetch(at_address(ends.ctypes.data + later * ends.itemsize))
        soon = rows[min(edge + _AHEAD, last)]
        if begin <= soon and soon < end:
            place = ends[soon]
            prefetch(at_address(indices.ctypes.data + place * indices.itemsize))
            prefetch(at_address(order.ctypes.data + place * order.itemsize))
        row = rows[edge]
        if begin <= row and row < end:
            place = ends[row]
            ends[row] = place + 1
            indices[place] = cols[edge]
            order[place] = numbers[edge] if numbers.shape[0] else edge


@jit
def sort_rows(begin, end, indptr, indices, order):
    """Sort the rows from ``begin`` to ``end`` by column; equal ones keep their order."""
    for row in range(begin, end):
        first, last = indptr[row], indptr[row + 1]
        if last - first > _SHORT:
            by_column = np.argsort(indices[first:last], kind="mergesort")
            indices[first:last] = indices[first:last][by_column]
            order[first:last] = order[first:last][by_column]
            continue
        for i in range(first + 1, last):
            column, edge, at = indices[i], order[i], i
            while at > first and indices[at - 1] > column:
                indices[at], order[at] = indices[at - 1], order[at - 1]
                at -= 1
            indices[at], order[at] = column, edge
