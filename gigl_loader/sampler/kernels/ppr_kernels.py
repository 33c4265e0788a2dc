"""Compiled inner loops of forward push. No state, no I/O; they release the GIL.

A slot is one node of one seed; its key is ``seed << 32 | node``, as nodes of a batch and its seeds
are numbered below 2 ** 32. ``table``, ``mask`` and ``keys`` find the slot of a key, as in
`sampling_kernels`.
"""

import numpy as np

from gigl_loader.runtime.compiled import jit
from gigl_loader.sampler.kernels.sampling_kernels import AHEAD, expect, find, group_by_owner

_NODE = 0xFFFFFFFF
SLOT = np.dtype([("residual", np.float64), ("hop", np.int32), ("seen", np.int32)])
"""What a share that comes to a slot changes, side by side: one wait for memory."""


@jit
def take(frontier, alpha, keys, slots, score, nodes, taken, hops):
    """Move the residuals of ``frontier`` to ``taken``; their share ``alpha`` becomes score.

    ``nodes`` receives the node of each slot, and ``hops`` the distance from its seed.
    """
    for i in range(frontier.shape[0]):
        slot = frontier[i]
        nodes[i] = keys[slot] & _NODE
        taken[i] = slots[slot].residual
        hops[i] = slots[slot].hop
        score[slot] += alpha * taken[i]
        # Before anything is spread: shares that return to the node in this turn are not lost.
        slots[slot].residual = 0.0


@jit
def spread(
    frontier,
    nodes,
    taken,
    hops,
    rest,
    starts,
    counts,
    neighbors,
    table,
    mask,
    keys,
    count,
    slots,
    score,
    turn,
    touched,
    num_touched,
):
    """Divide taken residuals evenly among the neighbours by one edge type.

    Args:
        frontier: ``[n]`` int64, slots.
        nodes: ``[n]`` int64, of each slot, as `take` writes it.
        taken: ``[n]`` float64, likewise.
        hops: ``[n]`` int64, likewise.
        rest: ``[n]`` float64: the share of each neighbour in one unit.
        starts: By node: the start of its row in ``neighbors``.
        counts: By node: the length of its row; negative: it is not here.
        neighbors: Nodes.
        table: See the module.
        mask: See the module.
        keys: Keys by slot; there is room for each neighbour to be a new one.
        count: Number of slots.
        slots: ``[n]`` `SLOT`: shares are added to ``residual``; ``hop`` is the fewest steps from
            the seed; ``seen`` the last turn in which it was listed. Those of new slots are written.
        score: By slot; 0 for new ones.
        turn: The number of this turn.
        touched: Receives the slots that got something, each once in a turn.
        num_touched: How many it has.

    Returns:
        The new ``count`` and ``num_touched``.
    """
    last = frontier.shape[0] - 1
    for i in range(frontier.shape[0]):
        later = nodes[min(i + 1, last)]
        _expect_row(
            table, mask, keys[frontier[min(i + 1, last)]] - later, later, starts, counts, neighbors
        )
        node = nodes[i]
        seed = keys[frontier[i]] - node
        share, steps = taken[i] * rest[i], hops[i] + 1
        stop = starts[node] + counts[node]
        for j in range(starts[node], stop):
            if j + AHEAD < stop:
                expect(table, mask, seed | neighbors[j + AHEAD])
            key = seed | neighbors[j]
            position, slot, tag = find(table, mask, keys, key)
            if slot < 0:
                slot = np.int64(count)
                keys[slot] = key
                count += 1
                table[position] = tag | count
                slots[slot].residual, slots[slot].hop, slots[slot].seen = 0.0, steps, 0
                score[slot] = 0.0
            slots[slot].residual += share
            slots[slot].hop = min(slots[slot].hop, steps)
            # A number per turn, instead of marks that would have to be wiped.
            if slots[slot].seen != turn:
                slots[slot].seen = turn
                touched[num_touched] = slot
                num_touched += 1
    return count, num_touched


@jit
def _expect_row(table, mask, seed, node, starts, counts, neighbors):
    """Prefetch the entries of the first neighbours of a node."""
    for j in range(starts[node], starts[node] + min(counts[node], AHEAD)):
        expect(table, mask, seed | neighbors[j])


@jit
def first_met(slots, keys, known, unknown, value, out):
    """Write the nodes of ``slots`` whose ``known`` is ``unknown``, each once; return how many.

    ``known`` of these becomes ``value``.
    """
    count = 0
    for i in range(slots.shape[0]):
        node = keys[slots[i]] & _NODE
        if known[node] == unknown:
            known[node] = value
            out[count] = node
            count += 1
    return count


@jit
def at_least(touched, slots, least, out):
    """Write the slots whose residual is at least ``least``; return how many."""
    count = 0
    for i in range(touched.shape[0]):
        if slots[touched[i]].residual >= least:
            out[count] = touched[i]
            count += 1
    return count


@jit
def due(touched, keys, slots, degrees, eps, out):
    """Write the slots whose residual is at least ``eps`` times the degree; return how many."""
    count = 0
    for i in range(touched.shape[0]):
        slot = touched[i]
        # A node without edges counts as one of degree 1: it is pushed once, without receivers.
        if slots[slot].residual >= eps * max(degrees[keys[slot] & _NODE], 1):
            out[count] = slot
            count += 1
    return count


@jit
def _is_after(by, codes, i, value, code):
    """Return whether item ``i`` comes after another: of equal ones, that with the larger code."""
    return by[i] < value or (by[i] == value and codes[i] > code)


@jit
def _sink(by, codes, slots, at, value, code, slot):
    """Put an item in place ``at`` of a heap, or below it; the last item is at the root."""
    child, size = 2 * at + 1, by.shape[0]
    while child < size:
        if child + 1 < size and _is_after(by, codes, child + 1, by[child], codes[child]):
            child += 1
        if not _is_after(by, codes, child, value, code):
            break
        by[at], codes[at], slots[at] = by[child], codes[child], slots[child]
        at, child = child, 2 * child + 1
    by[at], codes[at], slots[at] = value, code, slot


@jit
def _largest(found, values, keys, codes, type_bits, number, by, codes_of, slots):
    """Write those of the slots ``found`` that have the largest values; return how many.

    Args:
        found: ``[n]`` int64, slots.
        values: Of each, float64.
        keys: See the module.
        codes: By node: ``id << type_bits | type``.
        type_bits: See there.
        number: The type of those that count.
        by: ``[most]`` float64, receives the values.
        codes_of: ``[most]`` int64, receives the codes.
        slots: ``[most]`` int64, receives the slots.
    """
    size, most = 0, by.shape[0]
    for i in range(found.shape[0]):
        if size == most and (most == 0 or values[i] < by[0]):
            continue  # before its code is read
        code = codes[keys[found[i]] & _NODE]
        if code & ((1 << type_bits) - 1) != number:
            continue
        if size < most:
            by[size], codes_of[size], slots[size] = values[i], code, found[i]
            size += 1
            if size == most:  # a heap from here on
                for at in range(most // 2 - 1, -1, -1):
                    _sink(by, codes_of, slots, at, by[at], codes_of[at], slots[at])
        elif _is_after(by, codes_of, 0, values[i], code):
            _sink(by, codes_of, slots, 0, values[i], code, found[i])
    return size


@jit
def _ordered(totals, codes, order):
    """Write the positions of items by descending total, then by ascending code."""
    order[:] = np.argsort(-totals)
    for i in range(1, order.shape[0]):  # equal ones are side by side, in no order
        item, at = order[i], i
        while (
            at > 0 and totals[order[at - 1]] == totals[item] and codes[order[at - 1]] > codes[item]
        ):
            order[at] = order[at - 1]
            at -= 1
        order[at] = item


@jit
def top(by_seed, sizes, keys, codes, type_bits, number, score, slots, alpha, topup, most, out):
    """Write the top of a type for each seed; return how many items.

    Chosen by score, pushed ones first, ordered by total: with ``topup`` a node may come after one
    that was not pushed.

    Args:
        by_seed: ``[n]`` int64, the slots, seed after seed.
        sizes: ``[num_seeds]`` int64, how many each has.
        keys: ``[n]`` int64, see the module.
        codes: By node: ``id << type_bits | type``.
        type_bits: See there.
        number: The type.
        score: By slot; 0: it was not pushed.
        slots: By slot, `SLOT`.
        alpha: Share of the residual that a push would add to the score.
        topup: Whether totals have that share, and slots that were not pushed fill places.
        most: Items of a seed.
        out: Receives of each item the seed, the id, whether it was pushed (int64), and total and
            proximity (``[num_seeds * most, 2]`` float64).
    """
    seeds, ids, pushed, values = out
    widest = sizes.max() if sizes.shape[0] else 0
    found, by = np.empty(widest, np.int64), np.empty(widest, np.float64)
    others, by_more = np.empty(widest, np.int64), np.empty(widest, np.float64)
    best, chosen = np.empty(most, np.float64), np.empty(most, np.int64)
    code, order = np.empty(most, np.int64), np.empty(most, np.int64)
    count = begin = 0
    for seed in range(sizes.shape[0]):
        num_pushed = num_others = 0
        for i in range(begin, begin + sizes[seed]):
            slot = by_seed[i]
            # written always, counted where it holds: a processor would guess wrong at each branch
            found[num_pushed], by[num_pushed] = slot, score[slot]
            num_pushed += score[slot] > 0
            more = alpha * slots[slot].residual
            others[num_others], by_more[num_others] = slot, more
            num_others += topup and score[slot] == 0 and more > 0
        begin += sizes[seed]
        of_type = keys, codes, type_bits, number
        size = _largest(found[:num_pushed], by, *of_type, best, code, chosen)
        free = best[size:], code[size:], chosen[size:]
        size += _largest(others[:num_others], by_more, *of_type, *free)
        for i in range(size):
            best[i] = score[chosen[i]] + alpha * slots[chosen[i]].residual * topup
        _ordered(best[:size], code[:size], order[:size])
        for i in order[:size]:
            seeds[count], ids[count] = seed, code[i] >> type_bits
            pushed[count] = score[chosen[i]] > 0
            values[count, 0], values[count, 1] = best[i], 1.0 / (1.0 + slots[chosen[i]].hop)
            count += 1
    return count


def load() -> None:
    """Call every kernel once on empty arrays: compiles it, or loads it from Numba's cache."""
    ids, real, table = np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(1, np.int64)
    slots = np.zeros(0, SLOT)
    take(ids, 0.5, ids, slots, real.copy(), ids.copy(), real.copy(), ids.copy())
    places = (table, np.uint64(0), ids.copy(), 0)
    spread(ids, ids, real, ids, real, ids, ids, ids, *places, slots, real, 1, ids.copy(), 0)
    first_met(ids, ids, ids.copy(), -1, 0, ids.copy())
    at_least(ids, slots, 1e-4, ids.copy())
    due(ids, ids, slots, ids, 1e-4, ids.copy())
    group_by_owner(ids, ids.copy(), ids.copy())  # slots by seed
    out = ids.copy(), ids.copy(), ids.copy(), np.zeros((0, 2))
    top(ids, ids, ids, ids, 0, 0, real, slots, 0.5, True, 1, out)
