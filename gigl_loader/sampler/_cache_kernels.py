"""Compiled loops of the row cache: which rows to keep, by when each is needed next.

One table is a handful of arrays::

    ring                a place per row asked for ("reference"): its id, and its next use
    plan                of each reference, what was decided
    starts, counts      by batch, modulo their length: its references
    known               by id: place of its last reference + 1, slot + 1; 0: none
    holder, until       by slot: id that it is for, next use
    held, top, below    by next use: number of slots that have it, and one of these; by slot: the
                        next of them; -1: none
    queue, queued       slots whose next use is not known, in the order of their last use, some of
                        them left over; by slot: its place there + 1

A next use is a batch modulo the length of ``starts``, or `never`, that length: not known. Nothing
is ever taken out of the middle: who has the next use of a batch has it until that batch, or goes
from the top of that stack; who has none is only noted to be left over in the queue. So a row that
stays costs a few reads and writes. Of those without a next use the one goes first that has not been
used for longest. ``slots`` are until, held, top, below, queue, queued.

Source:
    Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): what is
    needed last goes first.
"""

from gigl_loader.sampler._kernels import _jit

LINKED, DECIDED, OLDEST, NEWEST, HEAD, TAIL, USED, HITS, MISSES, UNKNOWN, FIRST, LAST = range(12)
STATE_SIZE = 12
"""Places of ``state``: batches linked and decided, the oldest whose plan was not taken, and the end
of those that were added; references added and freed; slots in use; references that were found and
not found; rows that the last decision kept without knowing when they are needed; where the queue
begins and ends."""
ABSENT, UNPLANNED = -1, -2
"""In ``counts``: nothing is known of the batch; there was no room for its references."""
TWICE, DONE = -1, -2
"""Next use of a reference: the batch has the same id before; the batch was decided."""
MISSING = -1
"""In ``plan``: fetched, and not kept. Above it: the slot; below: fetched, and kept in -2 - slot."""


@_jit
def _enqueue(state, slot, never, until, queue, queued):  # type: ignore[no-untyped-def]
    """Append a slot whose next use is not known; of a full queue, drop what is left over."""
    until[slot] = never
    if state[LAST] == queue.shape[0]:
        end = 0
        for place in range(state[FIRST], state[LAST]):
            one = queue[place]
            if queued[one] == place + 1 and until[one] == never:
                queue[end] = one
                end += 1
                queued[one] = end
        state[FIRST], state[LAST] = 0, end
    queue[state[LAST]] = slot
    state[LAST] += 1
    queued[slot] = state[LAST]


@_jit
def _dequeue(state, never, until, queue, queued):  # type: ignore[no-untyped-def]
    """Return the slot without a next use that was not used for longest; there is one."""
    while True:
        place = state[FIRST]
        slot = queue[place]
        state[FIRST] += 1
        if queued[slot] == place + 1 and until[slot] == never:
            return slot


@_jit
def _push(slot, use, until, top, below):  # type: ignore[no-untyped-def]
    """Note the next use, a batch, of a slot that is on no stack."""
    until[slot] = use
    below[slot] = top[use]
    top[use] = slot


@_jit
def forget_future(state, ring, starts, counts, taken, slots):  # type: ignore[no-untyped-def]
    """Begin another sequence of batches: keep the rows, and nothing of what was to come."""
    until, held, top, _, queue, queued = slots
    never = starts.shape[0]
    ring[:, 0] = -1
    counts[:] = ABSENT
    taken[:] = 0
    held[:] = 0
    top[:] = -1
    state[FIRST] = state[LAST] = 0
    for slot in range(state[USED]):
        _enqueue(state, slot, never, until, queue, queued)
    held[never] = state[USED]
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
        ring[at, 0] = ids[i]
        at += 1
        if at == ring.shape[0]:
            at = 0
    state[HEAD] += ids.shape[0]


@_jit
def link(state, ring, starts, counts, known, slots):  # type: ignore[no-untyped-def]
    """Tell references, and slots, of their next use, as far as batches have come in order."""
    size, never = ring.shape[0], starts.shape[0]
    until, held, top, below, _, _ = slots
    while counts[state[LINKED] % never] != ABSENT and state[LINKED] - state[OLDEST] < never:
        batch = state[LINKED] % never
        begin = starts[batch] % size
        at = begin
        for i in range(max(0, counts[batch])):
            ring[at, 1] = never
            one = ring[at, 0]
            previous = known[one, 0] - 1
            is_awaited = False
            if previous >= 0 and previous != at and ring[previous, 0] == one:
                distance = previous - begin
                if distance < 0:
                    distance += size
                if distance < i:
                    ring[at, 1] = TWICE
                elif ring[previous, 1] == never:
                    ring[previous, 1] = batch
                    is_awaited = True  # of a batch to come: its slot has an earlier next use
            if ring[at, 1] != TWICE:
                known[one, 0] = at + 1
                slot = -1 if is_awaited else known[one, 1] - 1
                if slot >= 0 and until[slot] == never:
                    held[never] -= 1
                    held[batch] += 1
                    _push(slot, batch, until, top, below)
            at += 1
            if at == size:
                at = 0
        state[LINKED] += 1


@_jit
def decide(state, ring, plan, starts, counts, known, holder, slots):  # type: ignore[no-untyped-def] # noqa: C901
    """Plan the next batch: of what is kept and what it fetches, keep what is needed soonest."""
    # unpacked once: each time, Numba counts references to six arrays, which takes longer than all
    until, held, top, below, queue, queued = slots
    size, never = ring.shape[0], starts.shape[0]
    batch = state[DECIDED] % never
    begin, count = starts[batch] % size, max(0, counts[batch])
    repeated = missing = 0
    top[batch] = -1  # all that are on this stack are used now
    at = begin
    for _ in range(count):
        use = ring[at, 1]
        if use == TWICE:
            repeated += 1
        else:
            slot = known[ring[at, 0], 1] - 1
            if slot < 0:
                plan[at] = MISSING
                missing += 1
            else:
                plan[at] = slot
                ring[at, 1] = DONE
                held[until[slot]] -= 1
                # these lines stand again below: as a call, deciding takes twice as long
                held[use] += 1
                if use == never:
                    _enqueue(state, slot, never, until, queue, queued)
                else:
                    _push(slot, use, until, top, below)
        at += 1
        if at == size:
            at = 0
    state[MISSES] += missing
    state[HITS] += count - repeated - missing
    ahead = state[LINKED] - state[DECIDED]
    furthest, last = ahead, never  # the next use to take from, how far ahead, and as it is noted
    at = begin
    for _ in range(count if missing else 0):
        use = ring[at, 1]
        if use != TWICE and use != DONE:
            ring[at, 1] = DONE
            slot = -1
            if state[USED] < holder.shape[0]:
                slot = state[USED]
                state[USED] += 1
            else:
                while held[last] == 0 and furthest > 1:
                    furthest -= 1
                    last = (batch + furthest) % never
                own = ahead if use == never else use - batch
                if own < 0:
                    own += never
                if own < furthest:
                    if last == never:
                        slot = _dequeue(state, never, until, queue, queued)
                    else:
                        slot = top[last]
                        top[last] = below[slot]
                    held[last] -= 1
                    known[holder[slot], 1] = 0
            if slot >= 0:
                holder[slot] = ring[at, 0]
                known[ring[at, 0], 1] = slot + 1
                plan[at] = -2 - slot
                held[use] += 1
                if use == never:
                    _enqueue(state, slot, never, until, queue, queued)
                else:
                    _push(slot, use, until, top, below)
        at += 1
        if at == size:
            at = 0
    at = begin
    for _ in range(count if repeated else 0):
        if ring[at, 1] == TWICE:
            plan[at] = known[ring[at, 0], 1] - 1
            if plan[at] < 0:
                state[MISSES] += 1
            else:
                state[HITS] += 1
        at += 1
        if at == size:
            at = 0
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
