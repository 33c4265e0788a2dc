"""Compiled inner loops of forward push. No state, no I/O; they release the GIL.

A slot is one node of one seed; its key is ``seed << 32 | node``, as nodes of a batch and its seeds
are numbered below 2 ** 32. ``table``, ``mask`` and ``keys`` find the slot of a key, as in
`sampling_kernels`.
"""

import numpy as np

from gigl_loader.runtime.compiled import jit
from gigl_loader.sampler.kernels.sampling_kernels import AHEAD, expect, find

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
            the seed; ``seen`` the last turn in which it was listed.
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
def candidates(
    keys, codes, num_types, number, score, slots, alpha, topup, seeds, ids, found, pushed, by
):
    """Write what is known of the slots that may be in the top of a type; return how many there are.

    Args:
        keys: ``[n]`` int64, see the module.
        codes: By node: ``id * num_types + type``.
        num_types: Number of node types.
        number: The type.
        score: By slot.
        slots: By slot, `SLOT`.
        alpha: Share of the residual that a push would add to the score.
        topup: Whether slots that were not pushed may be in it.
        seeds: Receives the seed of each, int64.
        ids: Receives the id of each, int64.
        found: Receives the slots, int64.
        pushed: Receives whether each was pushed, bool.
        by: Receives the score of each, or if it was not pushed what a push would add, float64.
    """
    count = 0
    for slot in range(keys.shape[0]):
        was_pushed = score[slot] > 0
        if not was_pushed and not (topup and slots[slot].residual > 0):
            continue
        code = codes[keys[slot] & _NODE]
        if code % num_types == number:
            seeds[count], ids[count] = keys[slot] >> 32, code // num_types
            found[count], pushed[count] = slot, was_pushed
            by[count] = score[slot] if was_pushed else alpha * slots[slot].residual
            count += 1
    return count


@jit
def _is_after(i, j, pushed, by, ids):
    """Return whether item ``i`` ranks below ``j``: pushed ones come first, ids decide at last."""
    if pushed[i] != pushed[j]:
        return pushed[j]
    if by[i] != by[j]:
        return by[i] < by[j]
    return ids[i] > ids[j]


@jit
def _rise(heap, at, i, pushed, by, ids):
    """Put item ``i`` at the free place ``at`` or above it; the root of the heap is the last."""
    while at > 0:
        above = (at - 1) // 2
        if not _is_after(i, heap[above], pushed, by, ids):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = i


@jit
def _sink(heap, i, pushed, by, ids):
    """Put item ``i`` in the place of the root, or below it."""
    at, child = 0, 1
    while child < heap.shape[0]:
        if child + 1 < heap.shape[0] and _is_after(heap[child + 1], heap[child], pushed, by, ids):
            child += 1
        if not _is_after(heap[child], i, pushed, by, ids):
            break
        heap[at] = heap[child]
        at, child = child, 2 * child + 1
    heap[at] = i


@jit
def largest(seeds, ids, pushed, by, sizes, chosen):
    """Choose the first items of each seed: pushed ones first, then the largest, then by id.

    Args:
        seeds: ``[n]`` int64, the seed of each item.
        ids: ``[n]`` int64; those of a seed differ.
        pushed: ``[n]`` bool.
        by: ``[n]`` float64.
        sizes: ``[num_seeds]`` int64, zeros: receives how many each has.
        chosen: ``[num_seeds, most]`` int64: receives the items, in no order.
    """
    for i in range(seeds.shape[0]):
        seed = seeds[i]
        heap = chosen[seed]
        if sizes[seed] < heap.shape[0]:
            _rise(heap, sizes[seed], i, pushed, by, ids)
            sizes[seed] += 1
        elif _is_after(heap[0], i, pushed, by, ids):
            _sink(heap, i, pushed, by, ids)


@jit
def ordered(starts, totals, ids, out):
    """Write the items of each seed by descending total, then by ascending id.

    Args:
        starts: ``[num_seeds + 1]`` int64: where the items of each seed begin.
        totals: ``[n]`` float64.
        ids: ``[n]`` int64.
        out: ``[n]`` int64, receives the items.
    """
    for seed in range(starts.shape[0] - 1):
        begin, end = starts[seed], starts[seed + 1]
        by_id = np.argsort(ids[begin:end])
        by_total = np.argsort(-totals[begin:end][by_id], kind="mergesort")  # stable
        out[begin:end] = begin + by_id[by_total]


def load() -> None:
    """Call every kernel once on empty arrays: compiles it, or loads it from Numba's cache."""
    ids, real, table = np.zeros(0, np.int64), np.zeros(0, np.float64), np.zeros(1, np.int64)
    flags, slots = np.zeros(0, np.bool_), np.zeros(0, SLOT)
    take(ids, 0.5, ids, slots, real.copy(), ids.copy(), real.copy(), ids.copy())
    places = (table, np.uint64(0), ids.copy(), 0)
    spread(ids, ids, real, ids, real, ids, ids, ids, *places, slots, 1, ids.copy(), 0)
    first_met(ids, ids, ids.copy(), -1, 0, ids.copy())
    at_least(ids, slots, 1e-4, ids.copy())
    due(ids, ids, slots, ids, 1e-4, ids.copy())
    of_type = (ids, ids, 1, 0, real, slots, 0.5, True, ids.copy(), ids.copy(), ids.copy())
    candidates(*of_type, flags.copy(), real.copy())
    largest(ids, ids, flags, real, ids.copy(), np.zeros((0, 1), np.int64))
    ordered(table, real, ids, ids.copy())
