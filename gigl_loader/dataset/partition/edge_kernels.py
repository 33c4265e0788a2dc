"""Compiled inner loops that group edges by row. No state, no I/O; they release the GIL."""

import numpy as np

from gigl_loader.runtime.compiled import at_address, jit, prefetch

_AHEAD = 16
"""Edges whose places are prefetched before they are written."""
_SHORT = 32
"""Entries of a row up to which it is sorted by insertion."""


@jit
def place_edges(rows, cols, numbers, ends, indices, order):
    """Write each edge to the next free place of its row, in the order of the input.

    Args:
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
        prefetch(at_address(ends.ctypes.data + later * ends.itemsize))
        place = ends[rows[min(edge + _AHEAD, last)]]
        prefetch(at_address(indices.ctypes.data + place * indices.itemsize))
        prefetch(at_address(order.ctypes.data + place * order.itemsize))
        place = ends[rows[edge]]
        ends[rows[edge]] = place + 1
        indices[place] = cols[edge]
        order[place] = numbers[edge] if numbers.shape[0] else edge


@jit
def sort_rows(indptr, indices, order):
    """Sort each row by column; equal ones keep their order."""
    for row in range(indptr.shape[0] - 1):
        begin, end = indptr[row], indptr[row + 1]
        if end - begin > _SHORT:
            by_column = np.argsort(indices[begin:end], kind="mergesort")
            indices[begin:end] = indices[begin:end][by_column]
            order[begin:end] = order[begin:end][by_column]
            continue
        for i in range(begin + 1, end):
            column, edge, at = indices[i], order[i], i
            while at > begin and indices[at - 1] > column:
                indices[at], order[at] = indices[at - 1], order[at - 1]
                at -= 1
            indices[at], order[at] = column, edge
