"""Compiled inner loops of disjoint trees, with or without times: a label is for a node of a tree.

A *key* is a number that holds the tree above the bits of the node's id. Neighbours come tree after
tree, so the positions of a tree in the hash table lie near each other: the current part stays in
the processor's cache, however large the table is.
"""

import numpy as np

from gigl_loader.runtime.compiled import at_address, jit, mix, prefetch

_NEAR = 16
"""Positions near a tree's that are tried before any other position: trees differ in size."""
_NEAREST = 1024
_AHEAD = 16
"""Rows that are prefetched before they are read."""
_ONE, _TAG = np.uint64(1), np.uint64(33)


@jit
def _find(table, mask, window, shift, tree, keys, key):
    """Return (position, label, tag) of ``key``; see `sampling_kernels._find`."""
    hashed = mix(np.uint64(key))
    tag = np.int64(hashed >> _TAG) << 32
    # ``tree << shift`` is the start of its share of the table, ``window`` the spread of its nodes.
    position = ((np.uint64(tree) << shift) + (hashed & window)) & mask
    tried = 0
    while True:
        entry = table[position]
        if entry == 0:
            return position, np.int64(-1), tag
        if (entry >> 32) << 32 == tag:
            label = (entry & 0xFFFFFFFF) - 1
            if keys[label] == key:
                return position, label, tag
        tried += 1
        # A tree with more nodes than the window would probe through its neighbours' shares. So
        # after a few positions an arbitrary one is taken, and the next ones from there on. Each
        # probe of a key goes the same way, so that entries are found.
        position = (hashed if tried == _NEAR else position + _ONE) & mask


@jit
def enter(table, mask, window, shift, bits, keys, start, stop):
    """Enter ``keys[start:stop]`` into the table; a repeated key keeps its first label."""
    for i in range(start, stop):
        position, label, tag = _find(table, mask, window, shift, keys[i] >> bits, keys, keys[i])
        if label < 0:
            table[position] = tag | (i + 1)


@jit
def label_ids(table, mask, window, shift, bits, keys, num_keys, ids, origins, from_bits, at, out):
    """Write the label of each id in its tree into ``out``; new ones get the next label.

    ``origins[at[i]]`` is the key from which ``ids[i]`` was reached, of a type with ``from_bits``.
    New keys are appended to ``keys``.

    Returns:
        The new number of keys. Labels are given in order of first appearance.
    """
    for i in range(ids.shape[0]):
        tree = origins[at[i]] >> from_bits
        # Its own bits: types have different numbers of nodes, so trees have another place in keys.
        key = (tree << bits) | ids[i]
        position, label, tag = _find(table, mask, window, shift, tree, keys, key)
        if label < 0:
            label = np.int64(num_keys)
            keys[num_keys] = key
            num_keys += 1
            table[position] = tag | num_keys
        out[i] = label
    return num_keys


@jit
def _first_after(times, start, stop, time):
    """Return the first position from ``start`` whose time is above ``time``; ``stop`` if none."""
    if start >= stop or times[stop - 1] <= time:  # seeds are often later than a whole row
        return stop
    size = stop - start
    while size > 1:  # without an unpredictable branch
        half = size >> 1
        start += half * np.int64(times[start + half - 1] <= time)
        size -= half
    return start + np.int64(times[start] <= time)


@jit
def _look_up_rows(indptr, nodes, starts, stops):
    """Write start and stop of each node's row; a node without a row has an empty one."""
    num_rows, last = indptr.shape[0] - 1, nodes.shape[0] - 1
    for i in range(nodes.shape[0]):
        later = min(nodes[min(i + _AHEAD, last)], num_rows)
        prefetch(at_address(indptr.ctypes.data + later * indptr.itemsize))
        node = nodes[i]
        starts[i] = indptr[node] if node < num_rows else 0
        stops[i] = indptr[node + 1] if node < num_rows else 0


@jit
def count_timed(indptr, times, nodes, since, until, fanout, replace, last, starts, degrees, counts):
    """Like `count_uniform`, over rows by time, cut to the time limits of each node.

    ``since`` is empty if no time is too early. With ``last`` a row is cut to its latest
    ``fanout`` positions.

    Two passes, as the cost is waiting for memory: the place of a row's times must be known before
    they can be prefetched.
    """
    _look_up_rows(indptr, nodes, starts, degrees)  # degrees: stops of rows, until they are cut
    lowest, end = np.iinfo(np.int64).min, nodes.shape[0] - 1
    total = 0
    most = 0
    for i in range(nodes.shape[0]):
        later = min(i + _AHEAD, end)
        prefetch(at_address(times.ctypes.data + max(0, degrees[later] - 1) * times.itemsize))
        # The search of a row reads its last time first and, if that is too late, one in the middle.
        middle = (starts[later] + degrees[later]) >> 1
        prefetch(at_address(times.ctypes.data + middle * times.itemsize))
        start = starts[i]
        stop = _first_after(times, start, degrees[i], until[i])
        if since.shape[0] > 0 and since[i] > lowest:
            # Times are integers: times after ``since - 1`` are not before ``since``; the lowest
            # integer has none below it.
            start = _first_after(times, start, stop, since[i] - 1)
        if last and fanout >= 0:
            start = max(start, stop - fanout)
        degree = stop - start
        take = degree
        if fanout >= 0 and (degree > fanout or (replace and degree > 0)):
            take = fanout
        starts[i] = start
        degrees[i] = degree
        counts[i] = take
        total += take
        most = max(most, degree)
    return total, most


@jit
def seeds_of(keys, bits, seeds, out):
    """Write the seed of each key's tree into ``out``."""
    for i in range(keys.shape[0]):
        out[i] = seeds[keys[i] >> bits]


def layout(size: int, num_trees: int) -> tuple[np.uint64, np.uint64]:
    """Return (window, shift) of a table of ``size`` positions: the places of trees in it.

    Trees begin evenly over the table; the nodes of one lie within four times its share.
    """
    # A power of two, as the table is, so that a shift finds the start of a tree.
    share = max(1, size // (1 << max(0, num_trees - 1).bit_length()))
    window = min(size, max(_NEAREST, 4 * share))
    return np.uint64(window - 1), np.uint64(share.bit_length() - 1)


def load() -> None:
    """Call every kernel once on empty arrays; see `sampling_kernels.load`."""
    table, none = np.zeros(1024, np.int64), np.zeros(0, np.int64)
    where = (table, np.uint64(1023), *layout(1024, 1), 1, none)
    enter(*where, 0, 0)
    label_ids(*where, 0, none, none, 1, none, none)
    seeds_of(none, 1, none, none)


def load_times() -> None:
    """Call the kernel that looks at times once on empty arrays; see `sampling_kernels.load`."""
    none = np.zeros(0, np.int64)
    rows = none, none.copy(), none.copy()
    for replace in (False, True):
        count_timed(np.zeros(1, np.int64), *(none,) * 4, -1, replace, replace, *rows)
