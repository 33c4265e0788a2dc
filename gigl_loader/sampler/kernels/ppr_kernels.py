"""Compiled inner loops of forward push. No state, no I/O; they release the GIL."""

import numpy as np

from gigl_loader.runtime.compiled import jit


@jit
def take(frontier, alpha, residual, score, taken):
    """Move the residuals of ``frontier`` to ``taken``; their share ``alpha`` becomes score."""
    for i in range(frontier.shape[0]):
        slot = frontier[i]
        taken[i] = residual[slot]
        score[slot] += alpha * residual[slot]
        # Before anything is spread: shares that return to the node in this turn are not lost.
        residual[slot] = 0.0


@jit
def spread(
    frontier, taken, seed_of, label_of, hop, starts, counts, neighbors, rest, keys, shares, hops
):
    """Divide taken residuals evenly among the neighbours by one edge type.

    Args:
        frontier: ``[n]`` int64, slots.
        taken: ``[n]`` float64.
        seed_of: By slot: its seed.
        label_of: By slot: the node.
        hop: By slot: its distance from the seed.
        starts: By node: the start of its row in ``neighbors``.
        counts: By node: the length of its row.
        neighbors: Nodes.
        rest: ``[n]`` float64: the share of each neighbour in one unit.
        keys: Receives (seed, neighbour) as ``seed << 32 | neighbour``.
        shares: Receives the shares.
        hops: Receives the distance from the seed by this path.

    Returns:
        The number of entries written.
    """
    at = 0
    for i in range(frontier.shape[0]):
        slot = frontier[i]
        label = label_of[slot]
        # Nodes of a batch and its seeds are numbered below 2 ** 32.
        seed = seed_of[slot] << 32
        for j in range(starts[label], starts[label] + counts[label]):
            keys[at] = seed | neighbors[j]
            shares[at] = taken[i] * rest[i]
            hops[at] = hop[slot] + 1
            at += 1
    return at


@jit
def receive(slots, shares, hops, residual, hop, seen, number, touched, count):
    """Add ``shares`` to the residuals of ``slots``; list each slot once in ``touched``.

    ``seen`` is the number of the last turn in which a slot was listed; this one is ``number``.

    Returns:
        The number of entries in ``touched``, ``count`` of them from before.
    """
    for i in range(slots.shape[0]):
        slot = slots[i]
        residual[slot] += shares[i]
        hop[slot] = min(hop[slot], hops[i])
        # A number per turn, instead of marks that would have to be wiped.
        if seen[slot] != number:
            seen[slot] = number
            touched[count] = slot
            count += 1
    return count


@jit
def due(touched, label_of, residual, degrees, eps, out):
    """Write the slots whose residual is at least ``eps`` times the degree; return how many."""
    count = 0
    for i in range(touched.shape[0]):
        slot = touched[i]
        # A node without edges counts as one of degree 1: it is pushed once, without receivers.
        if residual[slot] >= eps * max(degrees[label_of[slot]], 1):
            out[count] = slot
            count += 1
    return count


def load() -> None:
    """Call every kernel once on empty arrays: compiles it, or loads it from Numba's cache."""
    ids, real = np.zeros(0, np.int64), np.zeros(0, np.float64)
    take(ids, 0.5, real, real.copy(), real.copy())
    spread(ids, real, ids, ids, ids, ids, ids, ids, real, ids.copy(), real.copy(), ids.copy())
    receive(ids, real, ids, real.copy(), ids.copy(), ids.copy(), 1, ids.copy(), 0)
    due(ids, ids, real, ids, 1e-4, ids.copy())
