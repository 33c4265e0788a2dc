"""Compiled inner loops of tokens: trees in order, and the edges between tokens of one seed.

Nodes of all types are numbered together: node ``slot`` of type ``kind`` is ``base[kind] + slot``.
Edges are rows of these numbers: the row of a node by relation ``r`` is
``neighbors[pointers[first[r] + slot] : pointers[first[r] + slot + 1]]``. The relations that expand
a kind are ``by_kind[kind_start[kind] : kind_start[kind + 1]]``, ascending.
"""

import numpy as np

from gigl_loader.runtime.compiled import jit


@jit
def order_trees(
    roots, kind, base, kind_start, by_kind, first, pointers, neighbors, order, starts, hop, seen
):
    """Write the nodes of each tree in its order: breadth first, by relation, edges as drawn.

    Args:
        roots: ``[num_trees]`` int64, the root of each tree; trees share no node.
        kind: ``[num_nodes]``, of each node.
        base: See above, as the following four.
        kind_start: As above.
        by_kind: As above.
        first: As above.
        pointers: As above.
        neighbors: As above.
        order: Receives the nodes, tree after tree.
        starts: ``[num_trees + 1]``, receives where each tree begins in ``order``.
        hop: Receives the hop of each node.
        seen: ``[num_nodes]`` bool, False.
    """
    at = 0
    for tree in range(roots.shape[0]):
        starts[tree] = at
        order[at], hop[roots[tree]], seen[roots[tree]] = roots[tree], 0, True
        i = at
        at += 1
        while i < at:
            node = order[i]
            i += 1
            of = kind[node]
            for j in range(kind_start[of], kind_start[of + 1]):
                row = first[by_kind[j]] + node - base[of]
                for edge in range(pointers[row], pointers[row + 1]):
                    neighbor = neighbors[edge]
                    if not seen[neighbor]:
                        seen[neighbor] = True
                        hop[neighbor] = min(hop[node] + 1, 127)
                        order[at] = neighbor
                        at += 1
    starts[roots.shape[0]] = at


@jit
def _places_of(nodes, place, after, marks, mark, out):
    """Write all places of ``nodes`` in a sequence, each once; return how many there are."""
    count = 0
    for i in range(nodes.shape[0]):
        k = place[nodes[i]]
        while k >= 0:
            if marks[k] != mark:  # an edge drawn twice is one
                marks[k] = mark
                out[count] = k
                count += 1
            k = after[k]
    return count


@jit
def _sort(keys, count):
    """Sort the first ``count`` keys; most ascend already, and to see that costs little."""
    for i in range(1, count):
        if keys[i] < keys[i - 1]:
            keys[:count].sort()
            return


@jit
def pair_tokens(
    starts,
    tokens,
    kind,
    base,
    kind_start,
    by_kind,
    first,
    pointers,
    neighbors,
    place,
    after,
    ends,
    out,
):
    """Write the edges between tokens of one sequence, each once, by relation.

    Args:
        starts: ``[num_sequences + 1]``, where each sequence begins in ``tokens``.
        tokens: ``[num_tokens]``, nodes; a node may be several tokens of a sequence.
        kind: As in `order_trees`, as the following six.
        base: As above.
        kind_start: As above.
        by_kind: As above.
        first: As above.
        pointers: As above.
        neighbors: As above.
        place: ``[num_nodes]``, -1: the first place of a node in the current sequence; left at -1.
        after: ``[num_tokens]``, scratch: the next place of the same node.
        ends: ``[num_relations]``, where the rows of each relation begin in ``out``; left where they
            end.
        out: ``[num_pairs, 4]`` (sequence, query, key, relation); of no rows: only ``ends`` count.
    """
    writes = out.shape[0] > 0
    longest = 0
    for s in range(starts.shape[0] - 1):
        longest = max(longest, starts[s + 1] - starts[s])
    marks, keys = np.full(longest, -1, np.int64), np.empty(longest, np.int64)
    mark = 0
    for s in range(starts.shape[0] - 1):
        begin, size = starts[s], starts[s + 1] - starts[s]
        for q in range(size - 1, -1, -1):  # descending, so that the places of a node ascend
            after[begin + q] = place[tokens[begin + q]]
            place[tokens[begin + q]] = q
        for q in range(size):
            node = tokens[begin + q]
            of = kind[node]
            for j in range(kind_start[of], kind_start[of + 1]):
                relation = by_kind[j]
                row = first[relation] + node - base[of]
                found = neighbors[pointers[row] : pointers[row + 1]]
                count = _places_of(found, place, after[begin:], marks, mark, keys)
                mark += 1
                if writes:
                    _sort(keys, count)
                    for i in range(count):
                        at = ends[relation] + i
                        out[at, 0], out[at, 1], out[at, 2], out[at, 3] = s, q, keys[i], relation
                ends[relation] += count
        for q in range(size):
            place[tokens[begin + q]] = -1


@jit
def walk_tokens(starts, codes, code_starts, longest, degree, landing):
    """Write how many tokens each is joined to, and where walks from the seed land.

    Args:
        starts: ``[num_sequences + 1]``, where each sequence begins in ``degree``.
        codes: ``[n]`` int64, ``from * longest + to`` for both directions of each edge of a
            sequence, ascending within it, each once.
        code_starts: ``[num_sequences + 1]``, where each sequence begins in ``codes``.
        longest: More than any place in a sequence.
        degree: ``[num_tokens]`` int32, receives the tokens that each is joined to.
        landing: ``[num_tokens, k]`` float32, receives the probability to be there after 1 to k
            steps.
    """
    now, then = np.zeros(longest, np.float64), np.zeros(longest, np.float64)
    for s in range(starts.shape[0] - 1):
        begin, size = starts[s], starts[s + 1] - starts[s]
        degree[begin : begin + size] = 0
        for i in range(code_starts[s], code_starts[s + 1]):
            degree[begin + codes[i] // longest] += 1
        now[:size] = 0.0
        now[0] = 1.0
        for step in range(landing.shape[1]):
            then[:size] = 0.0
            if degree[begin] == 0:  # nowhere to go: the walk stays
                then[0] = 1.0
            for i in range(code_starts[s], code_starts[s + 1]):
                here, there = codes[i] // longest, codes[i] % longest
                then[there] += now[here] / degree[begin + here]
            for q in range(size):
                landing[begin + q, step] = then[q]
            now, then = then, now


def load() -> None:
    """Call every kernel once on empty arrays; see `sampling_kernels.load`."""
    none, start = np.empty(0, np.int64), np.zeros(1, np.int64)
    kind, rows = np.empty(0, np.int16), (start, start, none, none, start, none)
    order_trees(none, kind, *rows, none, start.copy(), np.empty(0, np.int8), np.empty(0, np.bool_))
    pairs = np.empty((0, 4), np.int32)
    pair_tokens(start, none, kind, *rows, none, none, none, pairs)
    walk_tokens(start, none, start, 1, np.empty(0, np.int32), np.empty((0, 0), np.float32))
