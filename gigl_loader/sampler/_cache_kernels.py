"""Compiled loops of the row cache: which rows to keep, by when each is needed next.

Batches have numbers, in the order in which they became known, whoever asks for them: the clock.
They are filled in about that order. One table is a handful of arrays::

    ring                a place per row asked for ("reference"): its id, the batch that asks, and
                        the places + 1 of the references to the same id before and after it, of
                        those whose batches are still to be filled; 0: none
    starts, counts      by batch, modulo their length: its references
    known               by id: place of the last of these references + 1, slot + 1; 0: none
    slots               by slot: the id that it is for, its next use, the next slot with the same
                        next use (-1: none), its place in the queue + 1
    held, top           by next use: number of slots that have it, and one of these; -1: none
    queue               slots whose next use is not known, in the order of their last use, some of
                        them left over

A next use is a batch modulo the length of ``starts``, or `never`, that length: not known. Nothing
is ever taken out of the middle: who has the next use of a batch has it until that batch, or goes
from the top of that stack; who has none is only noted to be left over in the queue. So a row that
stays costs a few reads and writes. Of those without a next use the one goes first that has not been
used for longest.

What takes time is memory: each row is somewhere else. So what belongs to a slot lies together, and
what the next rows of a batch need is asked for `_ROWS_AHEAD` rows before.

Source:
    Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): what is
    needed last goes first.
"""

import numpy as np

from gigl_loader.sampler._kernels import _at, _jit, _prefetch

OLDEST, NEWEST, HEAD, TAIL, USED, HITS, MISSES, UNKNOWN, FIRST, LAST = range(10)
STATE_SIZE = 10
"""Places of ``state``: the first batch that is still to be filled, and the end of those that are
known; references added and freed; slots in use; references that were found and not found; rows that
the last decision kept without knowing when they are needed; where the queue begins and ends."""
ID, BATCH, BEFORE, AFTER = range(4)
"""Columns of ``ring``."""
HOLDER, UNTIL, BELOW, QUEUED = range(4)
"""Columns of ``slots``."""
ABSENT = -1
"""In ``counts``: the batch was filled, or forgotten."""
TWICE = -1
"""Batch of a reference: the batch has the same id before."""
MISSING = -1
"""In a plan: fetched, and not kept. Above it: the slot; below: fetched, and kept in -2 - slot."""
_ROWS_AHEAD = 16


@_jit
def _touch(table, row):  # type: ignore[no-untyped-def]
    """Ask memory for a row of a table, which need not be one, and do not wait for it."""
    _prefetch(_at(table.ctypes.data + row * table.shape[1] * table.itemsize))


@_jit
def _enqueue(state, slot, never, slots, queue):  # type: ignore[no-untyped-def]
    """Append a slot whose next use is not known; of a full queue, drop what is left over."""
    slots[slot, UNTIL] = never
    if state[LAST] == queue.shape[0]:
        end = 0
        for place in range(state[FIRST], state[LAST]):
            one = queue[place]
            if slots[one, QUEUED] == place + 1 and slots[one, UNTIL] == never:
                queue[end] = one
                end += 1
                slots[one, QUEUED] = end
        state[FIRST], state[LAST] = 0, end
    queue[state[LAST]] = slot
    state[LAST] += 1
    slots[slot, QUEUED] = state[LAST]


@_jit
def _dequeue(state, never, slots, queue):  # type: ignore[no-untyped-def]
    """Return the slot without a next use that was not used for longest; there is one."""
    while True:
        place = state[FIRST]
        slot = queue[place]
        state[FIRST] += 1
        if slots[slot, QUEUED] == place + 1 and slots[slot, UNTIL] == never:
            return slot


@_jit
def _push(slot, use, slots, top):  # type: ignore[no-untyped-def]
    """Note the next use, a batch, of a slot that is on no stack."""
    slots[slot, UNTIL] = use
    slots[slot, BELOW] = top[use]
    top[use] = slot


@_jit
def _move_on(state, starts, counts):  # type: ignore[no-untyped-def]
    """Make room of the references of batches that are filled or forgotten."""
    never = starts.shape[0]
    while state[OLDEST] < state[NEWEST] and counts[state[OLDEST] % never] == ABSENT:
        state[OLDEST] += 1
    is_empty = state[OLDEST] == state[NEWEST]
    state[TAIL] = state[HEAD] if is_empty else starts[state[OLDEST] % never]


@_jit
def add(state, ring, starts, counts, known, slots, held, top, queue, ids):  # type: ignore[no-untyped-def]
    """Add the references of the next batch; where there is no room, forget the oldest batches."""
    size, never, count = ring.shape[0], starts.shape[0], ids.shape[0]
    while state[OLDEST] < state[NEWEST] and (
        state[NEWEST] - state[OLDEST] >= never - 1 or state[HEAD] - state[TAIL] + count > size
    ):
        forget(state, ring, starts, counts, known, slots, held, top, queue, state[OLDEST])
    batch = state[NEWEST] % never
    state[NEWEST] += 1
    starts[batch] = state[HEAD]
    if count > size:
        counts[batch] = ABSENT
        _move_on(state, starts, counts)
        return
    counts[batch] = count
    at = state[HEAD] % size
    for i in range(count):
        if i + 2 * _ROWS_AHEAD < count:
            _touch(known, ids[i + 2 * _ROWS_AHEAD])
        if i + _ROWS_AHEAD < count:
            _touch(ring, known[ids[i + _ROWS_AHEAD], 0] - 1)
        one = ids[i]
        before = known[one, 0]
        ring[at, ID] = one
        ring[at, BEFORE] = before
        ring[at, AFTER] = 0
        if before > 0 and ring[before - 1, BATCH] == batch:
            ring[at, BATCH] = TWICE
        else:
            ring[at, BATCH] = batch
            known[one, 0] = at + 1
            if before > 0:
                ring[before - 1, AFTER] = at + 1  # and its slot, if any, has an earlier next use
            elif known[one, 1] > 0:
                held[never] -= 1
                held[batch] += 1
                _push(known[one, 1] - 1, batch, slots, top)
        at += 1
        if at == size:
            at = 0
    state[HEAD] += count


@_jit
def forget(state, ring, starts, counts, known, slots, held, top, queue, batch):  # type: ignore[no-untyped-def]
    """Forget that a batch was to be filled."""
    size, never = ring.shape[0], starts.shape[0]
    own = batch % never
    if batch < state[OLDEST] or batch >= state[NEWEST] or counts[own] == ABSENT:
        return
    top[own] = -1
    at = starts[own] % size
    for _ in range(counts[own]):
        if ring[at, BATCH] != TWICE:
            before, after = ring[at, BEFORE], ring[at, AFTER]
            if before > 0:
                ring[before - 1, AFTER] = after
            if after > 0:
                ring[after - 1, BEFORE] = before
            else:
                known[ring[at, ID], 0] = before
            slot = known[ring[at, ID], 1] - 1
            if slot >= 0 and slots[slot, UNTIL] == own:
                use = ring[after - 1, BATCH] if after > 0 else never
                held[own] -= 1
                held[use] += 1
                if use == never:
                    _enqueue(state, slot, never, slots, queue)
                else:
                    _push(slot, use, slots, top)
        at += 1
        if at == size:
            at = 0
    counts[own] = ABSENT
    _move_on(state, starts, counts)


@_jit
def look_up(state, known, ids, out):  # type: ignore[no-untyped-def]
    """Write the slots of ids, `MISSING` for those without one: the plan of an unknown batch."""
    for i in range(ids.shape[0]):
        out[i] = known[ids[i], 1] - 1
        if out[i] < 0:
            state[MISSES] += 1
        else:
            state[HITS] += 1


@_jit
def decide(  # type: ignore[no-untyped-def] # noqa: C901
    state, ring, starts, counts, known, slots, held, top, queue, batch, ids, out
):
    """Plan a batch that is filled now: of what is kept and what comes, keep what is needed soonest.

    Batches with smaller numbers may be filled later.
    """
    size, never = ring.shape[0], starts.shape[0]
    own, count = batch % never, ids.shape[0]
    if batch < state[OLDEST] or batch >= state[NEWEST] or counts[own] != count:
        look_up(state, known, ids, out)
        return
    begin = starts[own] % size
    repeated = missing = 0
    places = np.empty(count, np.int32)  # of what is missing
    top[own] = -1  # all that are on this stack are used now
    at = begin
    for i in range(count):
        if i + 2 * _ROWS_AHEAD < count:
            _touch(known, ids[i + 2 * _ROWS_AHEAD])
            later = at + 2 * _ROWS_AHEAD
            _touch(ring, ring[later if later < size else later - size, AFTER] - 1)
        if i + _ROWS_AHEAD < count:
            _touch(slots, known[ids[i + _ROWS_AHEAD], 1] - 1)
        out[i] = MISSING
        if ring[at, BATCH] == TWICE:
            repeated += 1
        else:
            # these lines stand in `forget`, too: as a call, deciding takes twice as long
            before, after = ring[at, BEFORE], ring[at, AFTER]
            if before > 0:
                ring[before - 1, AFTER] = after
            if after > 0:
                ring[after - 1, BEFORE] = before
            else:
                known[ids[i], 0] = before
            slot = known[ids[i], 1] - 1
            if slot < 0:
                places[missing] = i
                missing += 1
            else:
                out[i] = slot
                if slots[slot, UNTIL] == own:
                    use = ring[after - 1, BATCH] if after > 0 else never
                    held[own] -= 1
                    held[use] += 1
                    if use == never:
                        _enqueue(state, slot, never, slots, queue)
                    else:
                        _push(slot, use, slots, top)
        at += 1
        if at == size:
            at = 0
    counts[own] = ABSENT
    state[MISSES] += missing
    state[HITS] += count - repeated - missing
    oldest = state[OLDEST]
    furthest, last = state[NEWEST], never  # the next use to take from, and as it is noted
    for i in places[:missing]:
        at = begin + i if begin + i < size else begin + i - size
        use, one = never, ring[at, AFTER]
        if ring[at, BEFORE] > 0:  # a batch before this one, that is filled later
            one = ring[at, BEFORE]
            while ring[one - 1, BEFORE] > 0:
                one = ring[one - 1, BEFORE]
        if one > 0:
            use = ring[one - 1, BATCH]
        slot = -1
        if state[USED] < slots.shape[0]:
            slot = state[USED]
            state[USED] += 1
        else:
            while held[last] == 0 and furthest > oldest:
                furthest -= 1
                last = furthest % never
            if use != never and oldest + (use - oldest) % never < furthest:
                if last == never:
                    slot = _dequeue(state, never, slots, queue)
                else:
                    slot = top[last]
                    top[last] = slots[slot, BELOW]
                    _touch(slots, top[last])
                held[last] -= 1
                known[slots[slot, HOLDER], 1] = 0
        if slot >= 0:
            slots[slot, HOLDER] = ids[i]
            known[ids[i], 1] = slot + 1
            out[i] = -2 - slot
            held[use] += 1
            if use == never:
                _enqueue(state, slot, never, slots, queue)
            else:
                _push(slot, use, slots, top)
    at = begin
    for i in range(count if repeated else 0):
        if ring[at, BATCH] == TWICE:
            out[i] = known[ids[i], 1] - 1
            if out[i] < 0:
                state[MISSES] += 1
            else:
                state[HITS] += 1
        at += 1
        if at == size:
            at = 0
    state[UNKNOWN] = held[never]
    _move_on(state, starts, counts)


@_jit
def claim(places, ids, slots, stored, kept):  # type: ignore[no-untyped-def]
    """Mark slots that are about to be written as empty; return how many still are for these ids."""
    found = 0
    for i in range(places.shape[0]):
        if slots[places[i], HOLDER] == ids[i] and stored[places[i]] != ids[i]:
            stored[places[i]] = -1
            kept[found] = i
            found += 1
    return found


@_jit
def store_rows(values, rows, slots, out):  # type: ignore[no-untyped-def]
    """Write ``values[rows]`` to ``out[slots]``; both are bytes or words of rows."""
    for i in range(rows.shape[0]):
        for j in range(out.shape[1]):
            out[slots[i], j] = values[rows[i], j]


@_jit
def publish(slots, ids, stored):  # type: ignore[no-untyped-def]
    """Say what the slots have."""
    for i in range(slots.shape[0]):
        stored[slots[i]] = ids[i]


@_jit
def find_absent(slots, ids, stored, out):  # type: ignore[no-untyped-def]
    """Write the places of ids that their slots do not have; return how many."""
    found = 0
    for i in range(slots.shape[0]):
        if stored[slots[i]] != ids[i]:
            out[found] = i
            found += 1
    return found


def load() -> None:
    """Compile every kernel, or load it from Numba's cache on disk: one table of one batch."""
    from gigl_loader.sampler.row_cache import warm_up

    warm_up()
