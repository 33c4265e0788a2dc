"""Compiled inner loops: draw neighbours, relabel nodes. No state, no I/O; they release the GIL.

Random numbers are *keyed*: a draw is a hash of a key and a counter, never the next value of a
generator. The key of a row mixes (seed, epoch, batch, hop, edge type) with the node's id. So a
node's draw does not depend on its place in the frontier, nor on the partition.

Source:
    Keyed generation: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    Drawing without replacement: R. Floyd in Bentley, "Programming pearls: a sample of brilliance",
    CACM 30(9), 1987.
"""

import numba
import numpy as np

from gigl_loader.runtime.compiled import at_address, jit, mix, prefetch

# The step of SplitMix64's counter: 2 ** 64 by the golden ratio.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# Another odd number: multiplying by it loses no bit, and consecutive ids end up far apart.
_NODE = np.uint64(0xD6E8FEB86659FD93)
WORDS = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.int8}
"""Integer dtype in which rows are copied, by size in bytes."""
# Rows are prefetched about one page ahead, and only a few if they are small: a prefetched row must
# be in the cache when its turn comes, and stay there until then.
_LINE_BYTES, _BYTES_AHEAD, _MOST_ROWS_AHEAD = 64, 4096, 16
AHEAD = 16
"""Entries of a table that are prefetched before they are read."""
_LARGE_TABLE = 1 << 16
"""Entries from which on a table does not fit into a core's own cache; below, it is near anyway."""
# 53 bits: the precision of a float64, so each result is exact and below 1.
_TO_UNIT = 1.0 / 9007199254740992.0  # 2**-53


@jit
def row_key(key, node):
    """Return the key of a node's row: a hash of the draw's key and the node's id."""
    # Mixed twice: with ``node ^ key`` alone, two nodes and two keys that differ in the same bits
    # would draw the same.
    return mix(mix(np.uint64(node) * _NODE + _GAMMA) ^ key)


@jit
def unit(row_key, counter):
    """Return the ``counter``-th number of a row, uniform in [0, 1)."""
    bits = mix(row_key + np.uint64(counter + 1) * _GAMMA)
    return float(bits >> np.uint64(11)) * _TO_UNIT


@jit
def count_uniform(indptr, nodes, fanout, replace, starts, degrees, counts):
    """Look up the row of each node: its start, its degree, and the number of draws.

    Returns:
        (draws over all rows, the largest degree).
    """
    num_rows, last = indptr.shape[0] - 1, nodes.shape[0] - 1
    total = 0
    most = 0
    for i in range(nodes.shape[0]):
        later = min(nodes[min(i + AHEAD, last)], num_rows)
        prefetch(at_address(indptr.ctypes.data + later * indptr.itemsize))
        node = nodes[i]
        start = 0
        degree = 0
        # A partition has no rows for nodes after the last one with an edge.
        if node < num_rows:
            start = indptr[node]
            degree = indptr[node + 1] - start
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
def draw_uniform(nodes, starts, degrees, counts, replace, key, taken, positions):
    """Draw ``counts[i]`` positions of each row, row after row, into ``positions``.

    ``taken`` is a byte per position of the longest row, all zero on entry and on return.
    """
    at = 0
    for i in range(nodes.shape[0]):
        take = counts[i]
        start = starts[i]
        degree = degrees[i]
        # All of them, in stored order: no number is drawn.
        if take == degree and not replace:
            for j in range(take):
                positions[at + j] = start + j
        elif replace:
            row = row_key(key, nodes[i])
            for j in range(take):
                # The product is below the degree: the number is at most 1 - 2 ** -53, degrees are
                # far below 2 ** 53.
                positions[at + j] = start + int(unit(row, j) * degree)
        else:
            row = row_key(key, nodes[i])
            for j in range(take):
                # Floyd: the j-th draw is from the first ``last + 1`` positions. A position that is
                # taken is replaced by ``last``, which no earlier draw could reach. Each set is
                # equally likely, in ``take`` steps.
                last = degree - take + j
                choice = int(unit(row, j) * (last + 1))
                if taken[choice]:
                    choice = last
                taken[choice] = 1
                positions[at + j] = start + choice
            # Only marked bytes are wiped: filling the whole array would cost its length each row.
            for j in range(take):
                taken[positions[at + j] - start] = 0
        at += take


@jit
def gather(values, positions, out):
    """Write ``values[positions]`` into ``out``."""
    for i in range(positions.shape[0]):
        out[i] = values[positions[i]]


@jit
def find(table, mask, nodes, node):
    """Return (position, label) of ``node``; label -1 if it has none, and the position is free.

    ``table`` is an open-addressing table of ``mask + 1`` int64 positions, at most half full. A
    position holds 32 bits of the node's hash above ``label + 1``, or 0 where it is free: most
    probes end without reading ``nodes``.
    """
    hashed = mix(np.uint64(node))
    tag = np.int64(hashed >> np.uint64(33)) << 32
    # The low bits choose the position, and the high ones are the tag: they are independent.
    position = np.int64(hashed & mask)
    while True:
        entry = table[position]
        if entry == 0:
            return position, np.int64(-1), tag
        if (entry >> 32) << 32 == tag:
            # The tag is 31 bits of the hash, not the id: only the id decides.
            label = (entry & 0xFFFFFFFF) - 1
            if nodes[label] == node:
                return position, label, tag
        position = np.int64(np.uint64(position + 1) & mask)


@jit
def expect(table, mask, node):
    """Prefetch the entry of ``node``, which `find` will read soon."""
    position = np.int64(mix(np.uint64(node)) & mask)
    prefetch(at_address(table.ctypes.data + position * table.itemsize))


@jit
def insert_nodes(table, mask, nodes, start, stop):
    """Enter ``nodes[start:stop]`` into the table; a repeated node keeps its first label."""
    for i in range(start, stop):
        expect(table, mask, nodes[min(i + AHEAD, stop - 1)])
        position, label, tag = find(table, mask, nodes, nodes[i])
        if label < 0:
            table[position] = tag | (i + 1)


@jit
def relabel(table, mask, nodes, num_nodes, ids, out):
    """Write the local label of each id into ``out``; new ids are appended to ``nodes``.

    Returns:
        The new number of nodes. Labels are given in order of first appearance.
    """
    last, is_large = ids.shape[0] - 1, mask > _LARGE_TABLE
    for i in range(ids.shape[0]):
        if is_large:
            expect(table, mask, ids[min(i + AHEAD, last)])
        position, label, tag = find(table, mask, nodes, ids[i])
        if label < 0:
            label = np.int64(num_nodes)
            # Appended at once: a repeat later in ``ids`` finds it.
            nodes[num_nodes] = ids[i]
            num_nodes += 1
            table[position] = tag | num_nodes
        out[i] = label
    return num_nodes


@jit
def look_up(table, mask, nodes, ids, out):
    """Write the local label of each id into ``out``; -1 for one without a label, or negative."""
    for i in range(ids.shape[0]):
        out[i] = -1
        if ids[i] >= 0:
            out[i] = find(table, mask, nodes, ids[i])[1]


@jit
def repeat_rows(counts, first, out):
    """Write ``first + i`` ``counts[i]`` times, for each ``i``, into ``out``."""
    at = 0
    for i in range(counts.shape[0]):
        for _ in range(counts[i]):
            out[at] = first + i
            at += 1


@jit
def scatter_segments(starts, rows, counts, values, out):
    """Copy segments of ``values``, one per row in ``rows``, to ``out[starts[row]:]``."""
    at = 0
    for i in range(rows.shape[0]):
        to = starts[rows[i]]
        for j in range(counts[i]):
            out[to + j] = values[at + j]
        at += counts[i]


@jit
def group_by_owner(owners, order, sizes):
    """Write the positions of ``owners`` into ``order``, grouped by owner, ascending within a group.

    ``sizes`` receives how many positions each owner has.
    """
    num_owners = sizes.shape[0]
    for owner in range(num_owners):
        sizes[owner] = 0
    for i in range(owners.shape[0]):
        sizes[owners[i]] += 1
    # A counting sort: linear, and stable, so that positions ascend within a group. ``sizes`` holds
    # where each group begins, and at last ends: other memory, and Numba's own kernels for it, would
    # take longer to compile than all of this.
    begin = 0
    for owner in range(num_owners):
        size = sizes[owner]
        sizes[owner] = begin
        begin += size
    for i in range(owners.shape[0]):
        owner = owners[i]
        order[sizes[owner]] = i
        sizes[owner] += 1
    for owner in range(num_owners - 1, 0, -1):
        sizes[owner] -= sizes[owner - 1]


@jit
def row_addresses(rows, row_bytes, start, num_rows, positions, addresses):
    """Write the address of each of ``rows`` to its position of ``addresses``, or ``positions``.

    ``start`` is the address of row 0; ``positions`` is empty for all positions in order.

    Returns:
        The first position of a row that is not in ``[0, num_rows)``; -1 if there is none.
    """
    in_order = positions.shape[0] == 0
    wrong = -1
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0 or row >= num_rows:
            wrong = i if wrong < 0 else wrong
        addresses[i if in_order else positions[i]] = row * row_bytes + start
    return wrong


@jit
def copy_rows(addresses, out):
    """Copy the row at ``addresses[i]`` to ``out[i]``, a matrix of one of `WORDS`.

    Rows lie anywhere, in several matrices. The cost of a copy is the wait for memory, so later rows
    are prefetched. There is one pass, since a second pass over ``out`` would cost as much.
    """
    width, last = out.shape[1], addresses.shape[0] - 1
    row_bytes = width * out.itemsize
    ahead = min(_MOST_ROWS_AHEAD, 1 + _BYTES_AHEAD // max(1, row_bytes))
    for i in range(addresses.shape[0]):
        # At the end the last row is prefetched repeatedly: cheaper than a branch.
        later = addresses[min(i + ahead, last)]
        for byte in range(0, row_bytes, _LINE_BYTES):
            prefetch(at_address(later + byte))
        # The address is aligned to the word, or the word is a byte: `gather_rows` chooses it.
        row = numba.carray(at_address(addresses[i]), (width,), out.dtype)
        for j in range(width):
            out[i, j] = row[j]


def load() -> None:
    """Call the kernels of all loaders once on empty arrays: compiles or loads them.

    Numba's cache on disk has those that an earlier process compiled.
    """
    none = np.zeros(0, np.int64)
    rows = none, none.copy(), none.copy()
    key, indptr = np.uint64(1), np.zeros(1, np.int64)
    for replace in (False, True):
        count_uniform(indptr, none, -1, replace, *rows)
        draw_uniform(none, *rows, replace, key, np.zeros(0, np.uint8), none)
    for ids_read in (none, none.astype(np.int32)):  # mapped files keep ids in 32 bits
        gather(ids_read, none, none)
    repeat_rows(none, 0, none)
    row_addresses(none, 1, 0, 0, none, none)
    for word in WORDS.values():
        copy_rows(none, np.zeros((0, 1), word))


def load_merged() -> None:
    """Call the kernels that label nodes once on empty arrays; disjoint trees have others."""
    ids, none = np.zeros(1024, np.int64), np.zeros(0, np.int64)
    insert_nodes(ids, np.uint64(1023), none, 0, 0)
    relabel(ids, np.uint64(1023), none, 0, none, none)
    look_up(ids, np.uint64(1023), none, none, none)


def load_owners() -> None:
    """Call the kernels of rows and neighbours that several machines own once on empty arrays."""
    none = np.zeros(0, np.int64)
    scatter_segments(none, none, none, none, none)
    group_by_owner(none, none, none)
