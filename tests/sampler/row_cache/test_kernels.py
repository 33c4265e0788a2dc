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
)


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
