"""The row cache: fetches what an offline optimum does, and changes no batch."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import PeerTimeoutError
from gigl_loader.runtime.memory import mutex
from gigl_loader.sampler.row_cache.cache import RowCache
from tests.sampler.row_cache.cache_cases import (
    MANY,
    NEVER,
    OWNER,
    check_arrays,
    ids_of_many,
    kill_a_holder,
    num_known,
    one_table,
)


def _optimum(batches: list[np.ndarray], capacity: int) -> int:
    """Rows that Belady's rule fetches over the whole trace, in plain Python."""
    after: dict[int, int] = {}
    uses = []
    for number in reversed(range(len(batches))):
        uses.append({i: after.get(i, NEVER) for i in batches[number].tolist()})
        after.update(dict.fromkeys(batches[number].tolist(), number))
    kept: dict[int, int] = {}
    fetched = 0
    for ids in reversed(uses):
        fetched += len(ids.keys() - kept.keys())
        kept = dict(sorted({**kept, **ids}.items(), key=lambda item: item[1])[:capacity])
    return fetched


@st.composite
def _traces(draw: st.DrawFn) -> tuple[int, list[np.ndarray], int]:
    num_ids, seed = draw(st.integers(1, 60)), draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    batches = [
        random.permutation(np.unique((random.random(size) ** 2 * num_ids).astype(np.int64)))
        for size in draw(st.lists(st.integers(0, 25), min_size=1, max_size=40))
    ]
    return num_ids, batches, draw(st.integers(1, num_ids))


@given(trace=_traces())
def test_with_all_batches_known_the_fetches_are_the_optimum(trace: tuple) -> None:
    num_ids, batches, capacity = trace
    cache = one_table(num_ids, capacity)
    user = cache.join()
    for epoch in range(2):  # the second begins with what the first has left
        numbers = [cache.add(user, {OWNER: ids}) for ids in batches]
        assert cache.bytes_of({OWNER: batches[0]}) == 4 * batches[0].size
        fetched, held = 0, 0
        for number, ids in zip(numbers, batches, strict=True):
            plan = cache.plan(number, {OWNER: ids})[OWNER]
            fetched += int((plan < 0).sum())
            held = len(set((-2 - plan[plan < -1]).tolist()) | set(plan[plan >= 0].tolist()))
            assert held <= capacity
        optimum = _optimum(batches, capacity)
        assert fetched == optimum if epoch == 0 else fetched <= optimum
        assert num_known(cache) == 0


class _Reference:
    """What a cache of one table should do, in plain Python: sets, and a look at all that is known.

    Where two rows are equally good to evict, it takes the one that the cache took.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.known: dict[int, list[int]] = {}
        self.kept: set[int] = set()

    def next_use(self, one: int) -> int:
        return min((number for number, ids in self.known.items() if one in ids), default=NEVER)

    def check_plan(self, number: int, ids: list[int], plan: list[int], after: set[int]) -> None:
        """Compare a plan, and what the cache keeps after it, with what is best."""
        is_known = self.known.pop(number, None) is not None
        first = {one: position for position, one in reversed(list(enumerate(ids)))}
        for one, position in first.items():
            assert (plan[position] >= 0) == (one in self.kept), "found where it is kept"
        if not is_known:
            assert after == self.kept
            return
        candidates = self.kept | set(ids)
        assert after <= candidates
        assert len(after) == min(len(candidates), self.capacity)
        uses = sorted(self.next_use(one) for one in candidates)[: self.capacity]
        assert sorted(self.next_use(one) for one in after) == uses, "those that are needed soonest"
        self.kept = after


@given(
    trace=_traces(),
    users=st.integers(1, 3),
    window=st.integers(0, 6),
    seed=st.integers(0, 1000),
    references=st.sampled_from([60, 1 << 10]),
    is_hashed=st.booleans(),
    clock=st.sampled_from([0, (1 << 14) - 4]),
)
def test_what_is_kept_is_needed_soonest_of_all_that_is_known(
    trace: tuple, users: int, window: int, seed: int, references: int, is_hashed: bool, clock: int
) -> None:
    """Over users at different speeds, who leave, filled in another order than known; ids twice.

    The number of a batch is kept modulo 2 ** 14: the second clock passes it.
    """
    num_ids, batches, capacity = trace
    if is_hashed:
        num_ids, batches = MANY, [ids_of_many()[ids] for ids in batches]
    cache, reference = one_table(num_ids, capacity, references), _Reference(capacity)
    assert (cache.tables[OWNER].index.shape[1] == 2) is is_hashed
    random, left = np.random.default_rng(seed), list(batches)
    own: dict[int, list[tuple[int, np.ndarray]]] = {cache.join(): [] for _ in range(users)}
    arrays = cache.tables[OWNER]
    arrays.forget_all(clock)
    while left or any(own.values()):
        user = int(random.integers(users))
        while left and len(own[user]) <= window:
            ids = left.pop()
            ids = np.concatenate([ids, ids[: int(random.integers(3))]])
            number = cache.add(user, {OWNER: ids})
            own[user].append((number, ids))
            reference.known[number] = ids.tolist()
            for old in [one for one in reference.known if arrays.counts[one % (1 << 14)] == -1]:
                del reference.known[old]  # there was no room
        if not own[user]:
            continue
        number, ids = own[user].pop(int(random.integers(min(3, len(own[user])))))
        if random.random() < 0.1:
            cache.forget(number)
            reference.known.pop(number, None)
            continue
        plan = cache.plan(number, {OWNER: ids})[OWNER].tolist()
        reference.check_plan(number, ids.tolist(), plan, check_arrays(arrays))
    assert num_known(cache) == 0


def _optimum_in_turns(traces: list[list[np.ndarray]], capacity: int) -> int:
    return _optimum([ids for both in zip(*traces, strict=True) for ids in both], capacity)


def _fetched(traces: list[list[np.ndarray]], cache: RowCache, window: int, seed: int = 0) -> int:
    """Return what loaders fetch that share a cache and take batches in turns, or nearly so."""
    random, users = np.random.default_rng(seed), [cache.join() for _ in traces]
    known: list[list[int]] = [[] for _ in traces]
    done, fetched, length = [0] * len(traces), 0, len(traces[0])
    while min(done) < length:
        for position in random.permutation(len(traces)).tolist():
            while len(known[position]) < min(length, done[position] + window + 1):
                ids = traces[position][len(known[position])]
                known[position].append(cache.add(users[position], {OWNER: ids}))
            for _ in range(int(random.integers(3))):  # one may be a few batches before the other
                if done[position] < min(length, min(done) + 4, len(known[position])):
                    number, ids = known[position][done[position]], traces[position][done[position]]
                    fetched += int((cache.plan(number, {OWNER: ids})[OWNER] < 0).sum())
                    done[position] += 1
    return fetched


def _power_law_traces(ranks: int, num_ids: int, batches: int, size: int) -> list[list[np.ndarray]]:
    random = np.random.default_rng(5)
    return [
        [np.unique((random.random(size) ** 3 * num_ids).astype(np.int64)) for _ in range(batches)]
        for _ in range(ranks)
    ]


def test_two_ranks_over_one_cache_fetch_what_one_would_and_less_than_over_two_halves() -> None:
    num_ids, capacity, size = 4000, 400, 200
    traces = _power_law_traces(2, num_ids, 120, size)
    window = 5 * capacity // size // 2 + 1
    shared = _fetched(traces, one_table(num_ids, capacity), window)
    halves = sum(_fetched([trace], one_table(num_ids, capacity // 2), window) for trace in traces)
    optimum = _optimum_in_turns(traces, capacity)
    print(f"shared {shared}, halves {halves}, optimum {optimum}")
    assert shared <= 1.03 * optimum
    assert shared < 0.85 * halves


def test_a_loader_that_waits_or_is_gone_costs_the_others_one_window() -> None:
    num_ids, capacity, size = 4000, 400, 200
    one, other = _power_law_traces(2, num_ids, 200, size)
    alone, both = (one_table(num_ids, capacity, 2 * 5 * capacity) for _ in range(2))
    left = both.join()
    for ids in other[:9]:
        both.add(left, {OWNER: ids})  # and never fills them
    more = _fetched([one], both, 10) - _fetched([one], alone, 10)
    print(f"more {more}")
    assert more < 10 * size
    assert num_known(both) == 0, "its batches are forgotten"


@pytest.mark.parametrize("num_ids", [10, MANY])
def test_a_holder_that_was_killed_leaves_an_empty_cache(num_ids: int) -> None:
    cache, ids, random = one_table(num_ids, 4), np.arange(4), np.random.default_rng(0)
    user = cache.join()
    numbers = [cache.add(user, {OWNER: ids}) for _ in range(2)]
    cache.plan(numbers[0], {OWNER: ids})
    kill_a_holder(cache)
    for array in vars(cache.tables[OWNER]).values():  # of a change that was not finished
        if isinstance(array, np.ndarray) and array is not cache.tables[OWNER].state:
            array[:] = random.integers(-4, 4, array.shape)
    plan = cache.plan(numbers[1], {OWNER: ids})[OWNER]
    assert (plan == -1).all(), "nothing is known any more: all is fetched"
    number = cache.add(user, {OWNER: ids})
    assert number > numbers[1]
    assert (cache.plan(number, {OWNER: ids})[OWNER] < -1).all(), "the next batch fills it again"


def test_a_holder_that_is_stopped_is_not_waited_for_for_ever() -> None:
    lock = mutex.Mutex(np.zeros(mutex.Mutex.NBYTES, np.uint8))
    lock.make()
    failed: list[PeerTimeoutError] = []

    def wait() -> None:
        with pytest.raises(PeerTimeoutError, match="is stopped") as found, lock.held(0.01):
            pass
        failed.append(found.value)

    with lock.held(1.0) as was_abandoned:
        assert not was_abandoned
        other = threading.Thread(target=wait)
        other.start()
        other.join()
    assert len(failed) == 1
    with lock.held(1.0) as was_abandoned:
        assert not was_abandoned


def test_only_rows_that_did_not_come_are_given_up() -> None:
    cache = one_table(10, 2)
    stored = cache.tables[OWNER].stored
    ids, others = np.array([4, 7]), np.array([1, 2])
    row = {("node_features", OWNER[1]): np.zeros((1, 1), np.float32)}
    user = cache.join()
    # the last two: rows that are needed again take the place of those that are not
    first, late, _ = (cache.add(user, {OWNER: wanted}) for wanted in (ids, others, others))
    slots = -2 - cache.plan(first, {OWNER: ids})[OWNER]
    assert sorted(slots.tolist()) == [0, 1], "both are to be kept"
    cache.store(OWNER, slots[:1], ids[:1], row, np.zeros(1, np.int64))
    cache.abandon(OWNER, slots, ids)
    assert cache.absent(OWNER, slots, ids).tolist() == [1], "a row that came stays"
    assert [cache.is_held(OWNER, slots[[i]], ids[[i]]) for i in range(2)] == [True, False]
    # the slots now belong to other rows: giving up the first ones changes nothing
    slots_of_others = -2 - cache.plan(late, {OWNER: others})[OWNER]
    assert sorted(slots_of_others.tolist()) == [0, 1]
    cache.store(OWNER, slots_of_others[:1], others[:1], row, np.zeros(1, np.int64))
    before = stored.tolist()
    cache.abandon(OWNER, slots, ids)
    assert stored.tolist() == before
    assert cache.absent(OWNER, slots_of_others, others).tolist() == [1]
    assert cache.is_held(OWNER, slots_of_others[1:], others[1:]), "its row may still come"
