"""The arrays of a cache: both indexes say the same, whatever is done to them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.sampler.row_cache import kernels
from tests.sampler.row_cache.cache_cases import (
    MANY,
    OWNER,
    check_arrays,
    ids_of_many,
    kill_a_holder,
    one_table,
    queue_of,
)


@given(
    data=st.data(),
    capacity=st.integers(1, 30),
    references=st.sampled_from([20, 60, 1 << 10]),
    is_hashed=st.booleans(),
    clock=st.sampled_from([0, (1 << 14) - 4]),
)
def test_arrays_say_the_same_after_each_step(
    data: st.DataObject, capacity: int, references: int, is_hashed: bool, clock: int
) -> None:
    """Each slot in one list, next uses ascending, the index and slots agree; see `check_arrays`.

    The number of a batch is kept modulo 2 ** 14: the second clock passes it.
    """
    cache = one_table(MANY if is_hashed else 100, capacity, references)
    arrays, user, rows = cache.tables[OWNER], cache.join(), 0
    arrays.forget_all(clock)
    known: dict[int, np.ndarray] = {}
    for what in data.draw(st.lists(st.sampled_from("aaaappppf"), max_size=50)):
        waiting = [(slot, int(arrays.holders[slot])) for slot in queue_of(arrays)]
        if is_added := what == "a" or not known:
            seed, size = data.draw(st.integers(0, 1000)), data.draw(st.integers(0, 30))
            drawn = (np.random.default_rng(seed).random(size) ** 2 * 100).astype(np.int64)
            ids = ids_of_many()[drawn] if is_hashed else drawn
            known[cache.add(user, {OWNER: ids})] = ids
        else:
            number = data.draw(st.sampled_from([*known][-8:]))
            ids = known.pop(number)
            if what == "f":
                cache.forget(number)
            else:
                plan = cache.plan(number, {OWNER: ids})[OWNER]
                rows += ids.size
                slots = np.where(plan < kernels.MISSING, -2 - plan, plan)
                assert ((slots >= kernels.MISSING) & (slots < capacity)).all()
                assert arrays.state[[kernels.HITS, kernels.MISSES]].sum() == rows
        check_arrays(arrays)
        after = [(slot, int(arrays.holders[slot])) for slot in queue_of(arrays)]
        stayed = [one for one in waiting if one in after]
        assert after[: len(stayed)] == stayed, "the queue is in the order of last use"
        if not is_added:
            gone = [one for one in waiting if one not in after]
            assert gone == waiting[: len(gone)], "the least recently used rows go first"


@given(data=st.data(), capacity=st.integers(1, 30), references=st.sampled_from([20, 60, 1 << 10]))
def test_both_indexes_plan_the_same(data: st.DataObject, capacity: int, references: int) -> None:
    """Whatever is added, planned in any order and twice, forgotten, or lost with its owner."""
    many, direct = ids_of_many(), one_table(100, capacity, references)
    hashed, numbers = one_table(MANY, capacity, references), []
    seen: list[np.ndarray] = []
    user = direct.join()
    for what in data.draw(st.lists(st.sampled_from("aaaaappppfk"), max_size=60)):
        if what == "a":
            seed, size = data.draw(st.integers(0, 1000)), data.draw(st.integers(0, 30))
            seen.append((np.random.default_rng(seed).random(size) ** 2 * 100).astype(np.int64))
            numbers.append(direct.add(user, {OWNER: seen[-1]}))
            assert hashed.add(user, {OWNER: many[seen[-1]]}) == numbers[-1]
        elif what == "k":
            for cache in (direct, hashed):
                kill_a_holder(cache)
        elif numbers:
            which = data.draw(st.integers(max(0, len(numbers) - 8), len(numbers) - 1))
            if what == "f":
                direct.forget(numbers[which])
                hashed.forget(numbers[which])
            else:
                expected = direct.plan(numbers[which], {OWNER: seen[which]})[OWNER]
                found = hashed.plan(numbers[which], {OWNER: many[seen[which]]})[OWNER]
                assert found.tolist() == expected.tolist()
                kept = check_arrays(direct.tables[OWNER])
                assert check_arrays(hashed.tables[OWNER]) == set(many[list(kept)].tolist())
    for name in ("state", "top", "queue"):
        found, expected = (getattr(one.tables[OWNER], name) for one in (hashed, direct))
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("num_ids", [100, MANY])
def test_a_plan_for_other_ids_than_were_added_harms_nothing(num_ids: int) -> None:
    cache, ids = one_table(num_ids, 4), np.arange(6)
    for _ in range(3):
        numbers = [cache.add(0, {OWNER: ids}) for _ in range(2)]
        cache.plan(numbers[0], {OWNER: ids + 50})
        assert check_arrays(cache.tables[OWNER]) <= set(ids.tolist())


def test_an_index_stays_as_it_is_however_many_ids_pass() -> None:
    """Full, and with others each time: nothing is left of those that went."""
    cache, user = one_table(MANY, 8, 64), 0
    arrays = cache.tables[OWNER]
    for batch in range(2000):
        ids = np.random.default_rng(batch).integers(0, MANY, 16)
        number = cache.add(user, {OWNER: ids})
        if batch % 5:
            cache.plan(number, {OWNER: ids})
        if batch % 100 == 0:
            check_arrays(arrays)
    assert np.count_nonzero(arrays.index[:, kernels.CODE]) <= 8 + 64 < arrays.index.shape[0]
