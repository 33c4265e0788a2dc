"""Compiled loops of the row cache: which rows to keep, by when each is needed next.

One table is a handful of arrays::

    ring, uses, plan    a place per row asked for ("reference"): id, next use, what was decided
    starts, counts      by batch, modulo their length: its references
    seen, slot_of       by id: place of its last reference + 1, slot + 1; 0: none
    holder, until       by slot: id that it is for, next use
    before, after       by slot, and first, last, held (length) by next use: lists of slots of the
                        same next use; as ``lists``: until, before, after, first, last, held

A next use is a batch modulo the length of ``starts``, or `never`, that length: not known. Within a
list slots stand in the order in which they were last used, so that of those whose next use is not
known the one goes first that has not been used for longest.

Source:
    Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): what is
    needed last goes first.
"""

from gigl_loader.sampler._kernels import _jit

LINKED, DECIDED, OLDEST, NEWEST, HEAD, TAIL, USED, HITS, MISSES, UNKNOWN = range(10)
STATE_SIZE = 10
"""Places of ``state``: batches linked and decided, the oldest whose plan was not taken, and the end
of those that were added; references added and freed; slots in use; references that were found and
not found; rows that the last decision kept without knowing when they are needed."""
ABSENT, UNPLANNED = -1, -2
"""In ``counts``: nothing is known of the batch; there was no room for its references."""
TWICE = -1
"""In ``uses``: the batch has the same id before."""
MISSING = -1
"""In ``plan``: fetched, and not kept. Above it: the slot; below: fetched, and kept in -2 - slot."""


@_jit
def _detach(slot, lists):  # type: ignore[no-untyped-def]
    until, before, after, first, last, held = lists
    use, left, right = until[slot], before[slot], after[slot]
    held[use] -= 1
    if left >= 0:
        after[left] = right
    else:
        first[use] = right
    if right >= 0:
        before[right] = left
    else:
        last[use] = left


@_jit
def _attach(slot, use, lists):  # type: ignore[no-untyped-def]
    until, before, after, first, last, held = lists
    tail = last[use]
    held[use] += 1
    until[slot] = use
    before[slot] = tail
    after[slot] = -1
    if tail >= 0:
        after[tail] = slot
    else:
        first[use] = slot
    last[use] = slot


@_jit
def forget_future(state, ring, starts, counts, taken, lists):  # type: ignore[no-untyped-def]
    """Begin another sequence of batches: keep the rows, and nothing of what was to come."""
    never = starts.shape[0]
    _, _, _, first, last, held = lists
    ring[:] = -1
    counts[:] = ABSENT
    taken[:] = 0
    first[:] = -1
    last[:] = -1
    held[:] = 0
    for slot in range(state[USED]):
        _attach(slot, never, lists)
    state[LINKED] = state[DECIDED] = state[OLDEST] = state[NEWEST] = 0
    state[HEAD] = state[TAIL] = 0


@_jit
def add(state, ring, starts, counts, batch, ids):  # type: ignore[no-untyped-def]
    """Add the references of a batch; a second time, or where there is no room, they are not."""
    place = batch % starts.shape[0]
    if batch < state[LINKED] or batch - state[OLDEST] >= starts.shape[0]:
        return
    if counts[place] != ABSENT:
        return
    starts[place] = state[HEAD]
    state[NEWEST] = max(state[NEWEST], batch + 1)
    if state[HEAD] - state[TAIL] + ids.shape[0] > ring.shape[0]:
        counts[place] = UNPLANNED
        return
    counts[place] = ids.shape[0]
    at = state[HEAD] % ring.shape[0]
    for i in range(ids.shape[0]):
        ring[at] = ids[i]
        at += 1
        if at == ring.shape[0]:
            at = 0
    state[HEAD] += ids.shape[0]


@_jit
def link(state, ring, uses, starts, counts, seen, slot_of, lists):  # type: ignore[no-untyped-def]
    """Tell references, and slots, of their next use, as far as batches have come in order."""
    size, never, until = ring.shape[0], starts.shape[0], lists[0]
    while counts[state[LINKED] % never] != ABSENT and state[LINKED] - state[OLDEST] < never:
        batch = state[LINKED] % never
        begin = starts[batch] % size
        for i in range(max(0, counts[batch])):
            at = (begin + i) % size
            uses[at] = never
            known = ring[at]
            previous = seen[known] - 1
            if previous >= 0 and previous != at and ring[previous] == known:
                if (previous - begin) % size < i:
                    uses[at] = TWICE
                    continue
                uses[previous] = batch
            seen[known] = at + 1
            slot = slot_of[known] - 1
            if slot >= 0 and until[slot] == never:
                _detach(slot, lists)
                _attach(slot, batch, lists)
        state[LINKED] += 1


@_jit
def decide(state, ring, uses, plan, starts, counts, slot_of, holder, lists):  # type: ignore[no-untyped-def] # noqa: C901
    """Plan the next batch: of what is kept and what it fetches, keep what is needed soonest."""
    size, never, first, held = ring.shape[0], starts.shape[0], lists[3], lists[5]
    batch = state[DECIDED] % never
    begin, count = starts[batch] % size, max(0, counts[batch])
    repeated = 0
    for i in range(count):
        at = (begin + i) % size
        if uses[at] == TWICE:
            repeated += 1
            continue
        slot = slot_of[ring[at]] - 1
        plan[at] = MISSING
        if slot >= 0:
            plan[at] = slot
            _detach(slot, lists)
            _attach(slot, uses[at], lists)
            state[HITS] += 1
    ahead = state[LINKED] - state[DECIDED]
    furthest, distance = (
        never,
        ahead,
    )  # the list to take from, and how far ahead
    for i in range(count):
        at = (begin + i) % size
        if uses[at] == TWICE or plan[at] != MISSING:
            continue
        state[MISSES] += 1
        if state[USED] < holder.shape[0]:
            slot = state[USED]
            state[USED] += 1
        else:
            while first[furthest] < 0 and distance > 1:
                distance -= 1
                furthest = (batch + distance) % never
            own = ahead if uses[at] == never else (uses[at] - batch) % never
            slot = first[furthest]
            if slot < 0 or own >= distance:
                continue
            slot_of[holder[slot]] = 0
            _detach(slot, lists)
        holder[slot] = ring[at]
        slot_of[ring[at]] = slot + 1
        _attach(slot, uses[at], lists)
        plan[at] = -2 - slot
    if repeated:
        for i in range(count):
            at = (begin + i) % size
            if uses[at] == TWICE:
                plan[at] = slot_of[ring[at]] - 1
                if plan[at] < 0:
                    state[MISSES] += 1
                else:
                    state[HITS] += 1
    state[UNKNOWN] = held[never]
    state[DECIDED] += 1


@_jit
def take_plan(state, plan, starts, counts, taken, batch, out):  # type: ignore[no-untyped-def]
    """Copy the plan of a batch to ``out``, whose references then make room; return whether."""
    size, never = plan.shape[0], starts.shape[0]
    place = batch % never
    if batch < state[OLDEST] or batch >= state[DECIDED] or taken[place]:
        return False
    taken[place] = 1
    known = counts[place] == out.shape[0]
    if known:
        at = starts[place] % size
        for i in range(out.shape[0]):
            out[i] = plan[at]
            at += 1
            if at == size:
                at = 0
    while state[OLDEST] < state[DECIDED] and taken[state[OLDEST] % never]:
        place = state[OLDEST] % never
        taken[place] = 0
        counts[place] = ABSENT
        state[OLDEST] += 1
    tail = state[HEAD]  # batches come in any order, so the first one left need not be the oldest
    for one in range(state[OLDEST], state[NEWEST]):
        if counts[one % never] != ABSENT:
            tail = min(tail, starts[one % never])
    state[TAIL] = tail
    return known


@_jit
def claim(slots, ids, holder, stored, kept):  # type: ignore[no-untyped-def]
    """Mark slots that are about to be written as empty; return how many still are for these ids."""
    found = 0
    for i in range(slots.shape[0]):
        if holder[slots[i]] == ids[i] and stored[slots[i]] != ids[i]:
            stored[slots[i]] = -1
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
