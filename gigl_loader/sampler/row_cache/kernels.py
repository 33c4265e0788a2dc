"""Compiled loops of the row cache: which rows to keep, by the next use of each.

Batches have numbers, in the order in which they became known to the cache: the clock. They are
filled in about that order. A row that a batch requests is a "reference". A "code" says where a row
is known: the position + 1 of a reference (> 0), -1 - slot (< 0), or 0: nowhere. One table is a
handful of arrays; all but ``state``, ``starts``, ``counts`` and ``holders`` are int32::

    array   a row for each   column  bits of a word
                                     31    30 ... 15            14 ... 0
    ring    reference        LOW     [ id, bits 31 to 0                ]
                             REST    [ 0 | id, bits 47 to 32 | batch   ]  batch modulo never; TWICE
                             LINK    [ code: the reference before      ]  of the first one, the slot
                             AFTER   [ code: the reference after       ]  of the last one, 0
    index   id, or hash      CODE    [ code: the last reference        ]  if none, the slot; 0: free
                             TAG     [ 0 | hash, bits 63 to 33         ]  of a hash table alone
    slots   slot             BELOW   [ the next slot on its stack      ]  -1: none
                             PLACE   [ code: the first reference       ]  < 0: -1 - place in queue
    holders slot                     id (int64)
    top     batch                    [ the first slot on its stack     ]  -1: none
    queue   place                    [ slot                            ]  left over: not its PLACE
    starts  batch                    number of its first reference, modulo the ring its position
    counts  batch                    references; ABSENT: filled or forgotten
    state                            counters; see below

    one id that batches 3, 5 and 8 request, and that has slot 2, which is on the stack top[3]:

    index[id] --CODE--> batch 8 --LINK--> batch 5 --LINK--> batch 3 --LINK--> slot 2
                        batch 8 <-AFTER-- batch 5 <-AFTER-- batch 3 <-PLACE-- slot 2

A reference whose batch requests the id before has the batch `TWICE` and is in no chain. Each slot
in use is on the stack of the batch of its first reference, or, if there is none, in the queue once.
The queue is in the order of last use.

A next use is a batch modulo the length of ``starts``, or `never`, that length: not known. Nothing
is ever taken out of the middle. A slot with a known next use keeps it until that batch, or goes
from the top of that stack; one without is only marked as left over in the queue. So a row that
stays costs a few reads and writes. Among rows without a next use, the least recently used goes
first.

The index has an entry for each id that has a reference or a slot, and for no other id, so it need
not grow with the graph. With one column it is a table by id. With two it is a hash table that keeps
enough of the hash to tell where an entry belongs. So a removed entry leaves no mark, but those
after it move up. Both find the same, so the choice does not change which rows are kept.

The time goes into memory accesses: each row is somewhere else. So the data of a row lie together,
the data of the next rows of a batch are prefetched `_ROWS_AHEAD` rows before, and while a batch is
planned the index is only read for rows that no other known batch requests.

Source:
    Belady, "A study of replacement algorithms for a virtual-storage computer" (1966): the entry
    needed last goes first. Knuth, "The Art of Computer Programming", volume 3, section 6.4,
    algorithm R: linear probing, with deletion.
"""

import numpy as np

from gigl_loader.runtime.compiled import F, at_address, compile_kernel, jit, mix, prefetch
from gigl_loader.sampler.row_cache.tables import STATE_SIZE

OLDEST, NEWEST, HEAD, TAIL, USED, HITS, MISSES, UNKNOWN, IDLE, FIRST, LAST = range(STATE_SIZE)
"""Positions of ``state``: the first batch that is still to be filled, and the end of the known
ones; references added and freed; slots in use; references found and not found; rows that the last
decision kept without a known next use, and those without one now; begin and end of the queue."""
LOW, REST, LINK, AFTER = range(4)
"""Columns of ``ring``: 32 bits of the id; its other bits, and the batch; see the module."""
BATCH_BITS = 15
"""Bits of `REST` that have the batch: `never` is at most 2 ** 14."""
TWICE = (1 << BATCH_BITS) - 1
"""Batch of a reference whose batch has the same id before."""
BELOW, PLACE = range(2)
"""Columns of ``slots``. A position in the queue is negative: -1 - position."""
CODE, TAG = range(2)
"""Columns of ``index``."""
TAG_BITS = 31
ABSENT = -1
"""In ``counts``: the batch was filled, or forgotten."""
MISSING = -1
"""In a plan: fetched, and not kept. Above it: the slot; below: fetched, and kept in -2 - slot."""
_ROWS_AHEAD = 16
TURNS = 2 * _ROWS_AHEAD
"""Tags that `add` keeps: of this row and of the rows that it prefetches."""


def _kernel(function: F) -> F:
    """Compile without counting references to arrays, which no kernel makes.

    The work on a row takes a few nanoseconds. Counting each array that is passed on, as Numba does
    otherwise, takes five times as long as all of that work.
    """
    return jit(function, _nrt=False)


def _inlined(function: F) -> F:
    """Compile into each kernel that calls it: arrays are many words to pass."""
    return compile_kernel(function, cache=False, forceinline=True, _nrt=False)


@_inlined
def _touch(table, row):
    """Prefetch a row of a table, which need not exist, without waiting for it."""
    prefetch(at_address(table.ctypes.data + row * table.strides[0]))


@_inlined
def _next(at, size):
    """Return the position after ``at`` in a circle of ``size``."""
    return at + 1 if at + 1 < size else 0


# --- references -----------------------------------------------------------------------------------


@_inlined
def _write_reference(ring, at, row_id, batch, link):
    """Write the last reference to an id."""
    # Columns are int32: 32 bits of the id here and 16 beside the batch, so ids are below 2 ** 48.
    ring[at, LOW] = row_id & 0xFFFFFFFF
    ring[at, REST] = row_id >> 32 << BATCH_BITS | batch
    ring[at, LINK] = link
    ring[at, AFTER] = 0


@_inlined
def id_at(ring, at):
    """Return the id of a reference."""
    # The low half was stored as a signed number: the mask undoes the sign that widening repeats.
    return np.int64(ring[at, REST]) >> BATCH_BITS << 32 | np.int64(ring[at, LOW]) & 0xFFFFFFFF


@_inlined
def batch_at(ring, at):
    """Return the batch of a reference, modulo the number of batches; or `TWICE`."""
    return ring[at, REST] & TWICE


@_inlined
def _use_at(ring, code, never):
    """Return the batch of the first reference to a row that is still to be filled."""
    return batch_at(ring, code - 1) if code > 0 else never


@_inlined
def _slot_of(ring, code):
    """Return the slot of a row, -1 for none, given the code of a reference or the slot."""
    # From the last reference back to the first one, which has the slot. A code of 0 becomes -1.
    while code > 0:
        code = ring[code - 1, LINK]
    return -code - 1


# --- the index ------------------------------------------------------------------------------------


@_inlined
def tag_of(index, row_id):
    """Return the id, or a hash of it: it tells where the id belongs."""
    if index.shape[1] == 1:
        return row_id
    return np.int64(mix(np.uint64(row_id)) >> np.uint64(64 - TAG_BITS))


@_inlined
def _home(index, tag):
    """Return where an id belongs."""
    # From the tag alone: `_remove`, which moves other entries, need not read their ids. It
    # multiplies instead of taking a remainder: the size need not be a power of two, and a
    # division is avoided.
    return tag if index.shape[1] == 1 else tag * index.shape[0] >> TAG_BITS


@_inlined
def find_id(index, ring, holders, row_id, tag):
    """Return the position of an id, or the one where it would be entered."""
    at = _home(index, tag)
    if index.shape[1] == 1:
        return at
    # Ends: at most `partitioning._FULL` of the entries are in use. A tag is not an id: two ids may
    # have one.
    while index[at, CODE] != 0:
        if index[at, TAG] == tag:
            code = index[at, CODE]
            if (id_at(ring, code - 1) if code > 0 else holders[-code - 1]) == row_id:
                break
        at = _next(at, index.shape[0])
    return at


@_inlined
def _find_code(index, tag, code):
    """Return the position of a code; of code 0, where an id without a code would be entered."""
    # By code, so that neither ids nor holders are read; each code but 0 is in the index once.
    at = _home(index, tag)
    while index[at, CODE] != code:
        at = _next(at, index.shape[0])
    return at


@_inlined
def _replace(index, tag, old, new):
    """Give an id another code; 0: none."""
    at = _find_code(index, tag, old)
    if new != 0:
        _enter(index, at, tag, new)
    else:
        _remove(index, at)


@_inlined
def _enter(index, at, tag, code):
    index[at, CODE] = code
    if index.shape[1] > 1:
        index[at, TAG] = tag


@_inlined
def _steps(start, stop, size):
    """Return the number of entries from one position to another."""
    return stop - start if stop >= start else stop - start + size


@_inlined
def _remove(index, hole):
    """Remove an entry; of the entries after it, move up those that would be lost."""
    index[hole, CODE] = 0
    size, at = index.shape[0], hole
    while index.shape[1] > 1:
        at = _next(at, size)
        if index[at, CODE] == 0:
            break
        home = _home(index, np.int64(index[at, TAG]))
        # It may move to the hole if that lies between its home and its position.
        if _steps(home, at, size) >= _steps(hole, at, size):
            index[hole, CODE], index[hole, TAG] = index[at, CODE], index[at, TAG]
            index[at, CODE] = 0
            hole = at


# --- next uses ------------------------------------------------------------------------------------


@_inlined
def _enqueue(state, slot, slots, queue):
    """Append a slot without a known next use; from a full queue, drop left-over entries."""
    # Two positions a slot, and one more: at least half of a full queue is left over, so that a
    # pass over it costs a few steps for each slot that was appended since.
    if state[LAST] == queue.shape[0]:
        end = 0
        for position in range(state[FIRST], state[LAST]):
            queued = queue[position]
            # An entry counts if its slot points to it; the mark of ``slot`` itself is from its last
            # wait.
            if slots[queued, PLACE] == -1 - position and queued != slot:
                queue[end] = queued
                slots[queued, PLACE] = -1 - end
                end += 1
        state[FIRST], state[LAST] = 0, end
    queue[state[LAST]] = slot
    slots[slot, PLACE] = -1 - state[LAST]
    state[LAST] += 1


@_inlined
def _dequeue(state, slots, queue):
    """Return the least recently used slot without a next use; there is one."""
    while True:
        position = state[FIRST]
        slot = queue[position]
        state[FIRST] += 1
        if slots[slot, PLACE] == -1 - position:
            return slot


@_inlined
def _push(slot, use, code, slots, top):
    """Note the next use of a slot that is on no stack: a batch, and the reference."""
    slots[slot, PLACE] = code
    slots[slot, BELOW] = top[use]
    top[use] = slot


@_inlined
def _wait_for(state, slot, code, ring, slots, top, queue):
    """Note the next use of a slot's row: a reference, or 0: not known."""
    if code > 0:
        _push(slot, batch_at(ring, code - 1), code, slots, top)
    else:
        state[IDLE] += 1
        _enqueue(state, slot, slots, queue)


@_inlined
def _unlink(state, ring, index, slots, top, queue, at):
    """Remove a reference; if the slot of its row waits for it, the slot waits for the next one."""
    link, after = ring[at, LINK], ring[at, AFTER]
    # Three kinds of predecessor: a reference, the slot (which then belongs to the reference after
    # it), or nothing. The successor is a reference, or the index.
    if link > 0:
        ring[link - 1, AFTER] = after
    if after > 0:
        ring[after - 1, LINK] = link
    else:
        _replace(index, tag_of(index, id_at(ring, at)), at + 1, link)
    if link < 0:
        # The stack that the slot was on belongs to this batch: the caller has emptied it.
        _wait_for(state, -link - 1, after, ring, slots, top, queue)


@_kernel
def _move_on(state, starts, counts):
    """Free the references of batches that are filled or forgotten."""
    never = starts.shape[0]
    while state[OLDEST] < state[NEWEST] and counts[state[OLDEST] % never] == ABSENT:
        state[OLDEST] += 1
    # `HEAD` and `TAIL` count references and are no positions: their difference is the number in
    # use.
    is_empty = state[OLDEST] == state[NEWEST]
    state[TAIL] = state[HEAD] if is_empty else starts[state[OLDEST] % never]


# --- for callers ----------------------------------------------------------------------------------


@_inlined
def _ask_before_adding(ring, index, slots, ids, tags, i):
    """Prefetch the data of the next rows; note their tags."""
    # Two steps, as the index has the position of a row: the index is prefetched first, and read
    # here `_ROWS_AHEAD` rows later.
    if i + TURNS < ids.shape[0]:
        tag = tag_of(index, ids[i + TURNS])
        tags[i & TURNS - 1] = tag
        _touch(index, _home(index, tag))
    if i >= -_ROWS_AHEAD and i + _ROWS_AHEAD < ids.shape[0]:
        code = index[_home(index, tags[i + _ROWS_AHEAD & TURNS - 1]), CODE]  # most likely its own
        if code > 0:
            _touch(ring, code - 1)
        else:
            _touch(slots, -code - 1)


@_kernel
def add(state, ring, starts, counts, index, holders, slots, top, queue, ids, tags):
    """Add the references of the next batch; if there is no room, forget the oldest batches.

    ``tags`` is work memory, ``[TURNS]`` int64.
    """
    size, never, count = ring.shape[0], starts.shape[0], ids.shape[0]
    # Fewer batches than there are numbers: batches differ modulo ``never``, and `decide` finds out
    # which of two is later.
    while state[OLDEST] < state[NEWEST] and (
        state[NEWEST] - state[OLDEST] >= never - 1 or state[HEAD] - state[TAIL] + count > size
    ):
        forget(state, ring, starts, counts, index, holders, slots, top, queue, state[OLDEST])
    batch = state[NEWEST] % never
    state[NEWEST] += 1
    starts[batch] = state[HEAD]
    # A batch that requests more rows than the ring holds is forgotten at once: nothing is kept.
    counts[batch] = count if count <= size else ABSENT
    if count > size:
        _move_on(state, starts, counts)
        return
    at = state[HEAD] % size
    for i in range(-TURNS, 0):
        _ask_before_adding(ring, index, slots, ids, tags, i)
    for i in range(count):
        row_id, tag = ids[i], tags[i & TURNS - 1]
        _ask_before_adding(ring, index, slots, ids, tags, i)
        position = find_id(index, ring, holders, row_id, tag)
        code = index[position, CODE]
        # The batch has the id before: it takes a position, so that positions and ids of a batch
        # match, but it is in no chain.
        if code > 0 and batch_at(ring, code - 1) == batch:
            _write_reference(ring, at, row_id, TWICE, 0)
        else:
            _write_reference(ring, at, row_id, batch, code)
            _enter(index, position, tag, at + 1)
            if code > 0:
                ring[code - 1, AFTER] = at + 1  # and its slot, if any, has an earlier next use
            elif code < 0:
                # No known batch needed the row until now: its entry in the queue is left over.
                state[IDLE] -= 1
                _push(-code - 1, batch, at + 1, slots, top)
        at = _next(at, size)
    state[HEAD] += count


@_kernel
def forget(state, ring, starts, counts, index, holders, slots, top, queue, batch):
    """Forget that a batch was to be filled."""
    size, never = ring.shape[0], starts.shape[0]
    own = batch % never
    if batch < state[OLDEST] or batch >= state[NEWEST] or counts[own] == ABSENT:
        return
    # The slots that waited for this batch: `_unlink` gives each its next use.
    top[own] = -1
    at = starts[own] % size
    for _ in range(counts[own]):
        if batch_at(ring, at) != TWICE:
            _unlink(state, ring, index, slots, top, queue, at)
        at = _next(at, size)
    counts[own] = ABSENT
    _move_on(state, starts, counts)


@_inlined
def _look_up(state, ring, index, holders, row_id):
    """Return the slot of an id, `MISSING` for none."""
    position = find_id(index, ring, holders, row_id, tag_of(index, row_id))
    slot = _slot_of(ring, index[position, CODE])
    state[HITS if slot >= 0 else MISSES] += 1
    return slot


@_inlined
def _use(state, ring, index, slots, top, queue, begin, out, missing):
    """Remove the references of a batch, and write the slots of its rows.

    Returns:
        The number of rows that are missing, and of references to rows that the batch has before.
    """
    size, count, at = ring.shape[0], out.shape[0], begin
    num_missing = repeated = 0
    for i in range(count):
        if i + TURNS < count:  # prefetch its data
            later = at + TURNS if at + TURNS < size else at + TURNS - size
            if ring[later, AFTER] > 0:
                _touch(ring, ring[later, AFTER] - 1)
            else:
                _touch(index, _home(index, tag_of(index, id_at(ring, later))))
            if ring[later, LINK] < 0:
                _touch(slots, -ring[later, LINK] - 1)
        out[i] = MISSING
        if batch_at(ring, at) == TWICE:
            repeated += 1
        else:
            code, soon = ring[at, LINK], ring[at, AFTER]
            while code > 0:  # of an earlier batch, which is filled later
                soon = code
                code = ring[code - 1, LINK]
            if code < 0:
                out[i] = -code - 1
            else:
                missing[num_missing, 0], missing[num_missing, 1] = i, soon
                num_missing += 1
            _unlink(state, ring, index, slots, top, queue, at)
        at = _next(at, size)
    return num_missing, repeated


@_inlined
def _keep(state, ring, index, holders, slots, top, queue, never, begin, out, missing):
    """Find slots for those missing rows that are needed sooner than cached rows."""
    # ``furthest`` only decreases: a new row is needed sooner than the one that goes, so that no
    # slot gets a next use above it. All searches of a batch together look at each known batch once.
    oldest = state[OLDEST]
    furthest, last = state[NEWEST], never  # the next use to take from, and its stored form
    for i in range(missing.shape[0]):
        if i + _ROWS_AHEAD < missing.shape[0]:
            _touch(ring, missing[i + _ROWS_AHEAD, 1] - 1)
            if last == never and state[FIRST] + _ROWS_AHEAD < state[LAST]:
                later = queue[state[FIRST] + _ROWS_AHEAD]
                _touch(slots, later)
                _touch(holders, later)
        position, code = missing[i, 0], missing[i, 1]
        use = _use_at(ring, code, never)
        slot = -1
        # Slots that were never used come first, also for rows without a known next use.
        if state[USED] < holders.shape[0]:
            slot = state[USED]
            state[USED] += 1
        else:
            while furthest > oldest and (state[IDLE] == 0 if last == never else top[last] < 0):
                furthest -= 1
                last = furthest % never
            # A row needed no sooner than the worst cached row is not kept: it is used now and gone.
            if use != never and oldest + (use - oldest) % never < furthest:
                # Slots without a known next use go before all others.
                if last == never:
                    slot = _dequeue(state, slots, queue)
                    state[IDLE] -= 1
                    _replace(index, tag_of(index, holders[slot]), -1 - slot, 0)
                else:
                    slot = top[last]
                    top[last] = slots[slot, BELOW]
                    _touch(slots, top[last])
                    # The evicted row is still requested: its references stay, without a slot.
                    ring[slots[slot, PLACE] - 1, LINK] = 0
        if slot >= 0:
            at = (
                begin + position
                if begin + position < ring.shape[0]
                else begin + position - ring.shape[0]
            )
            row_id = id_at(ring, at)
            holders[slot] = row_id
            out[position] = -2 - slot
            # The index points to the last reference of an id, but only the first stores the slot.
            if code > 0:
                ring[code - 1, LINK] = -1 - slot
            else:
                _replace(index, tag_of(index, row_id), 0, -1 - slot)
            _wait_for(state, slot, code, ring, slots, top, queue)


@_kernel
def decide(
    state, ring, starts, counts, index, holders, slots, top, queue, batch, ids, out, missing
):
    """Plan a batch that is filled now: of cached and new rows, keep those that are needed soonest.

    Batches with smaller numbers may be filled later. For an unknown batch, only cached rows are
    found. For a known one, ``ids`` adds nothing but their number: its references have the ids.
    ``missing`` is work memory, ``[n, 2]`` int32: for each missing row, its position, and the first
    remaining reference to it.
    """
    size, never = ring.shape[0], starts.shape[0]
    own, count = batch % never, ids.shape[0]
    # Forgotten, planned before, or of another size than was added: no slot changes.
    if batch < state[OLDEST] or batch >= state[NEWEST] or counts[own] != count:
        for i in range(count):
            out[i] = _look_up(state, ring, index, holders, ids[i])
        return
    top[own] = -1  # all slots on this stack are used now
    begin = starts[own] % size
    num_missing, repeated = _use(state, ring, index, slots, top, queue, begin, out, missing)
    counts[own] = ABSENT
    state[MISSES] += num_missing
    state[HITS] += count - repeated - num_missing
    _keep(state, ring, index, holders, slots, top, queue, never, begin, out, missing[:num_missing])
    at = begin
    # After all slots are assigned: a repeated id has the slot that its first reference got or lost.
    for i in range(count if repeated else 0):
        if batch_at(ring, at) == TWICE:
            out[i] = _look_up(state, ring, index, holders, ids[i])
        at = _next(at, size)
    state[UNKNOWN] = state[IDLE]
    _move_on(state, starts, counts)


@_kernel
def claim(positions, ids, holders, stored, kept):
    """Mark slots as empty before they are written; return how many still belong to these ids."""
    num_kept = 0
    for i in range(positions.shape[0]):
        # Neither where a later plan gave the slot to another row, nor where the row is already:
        # others may be copying it. -1 is no id: a reader that copies during the write notices
        # afterwards.
        if holders[positions[i]] == ids[i] and stored[positions[i]] != ids[i]:
            stored[positions[i]] = -1
            kept[num_kept] = i
            num_kept += 1
    return num_kept


@_kernel
def store_rows(values, rows, slots, out):
    """Write ``values[rows]`` to ``out[slots]``; both are bytes or words of rows."""
    for i in range(rows.shape[0]):
        for j in range(out.shape[1]):
            out[slots[i], j] = values[rows[i], j]


@_kernel
def publish(slots, ids, stored):
    """Note the ids of the slots' rows."""
    for i in range(slots.shape[0]):
        stored[slots[i]] = ids[i]


@_kernel
def find_absent(slots, ids, stored, out):
    """Write the positions of ids that are not in their slots; return how many."""
    num_absent = 0
    for i in range(slots.shape[0]):
        if stored[slots[i]] != ids[i]:
            out[num_absent] = i
            num_absent += 1
    return num_absent
