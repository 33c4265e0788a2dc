"""How far batches are drawn ahead of their rows."""

import numpy as np

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import Owner
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import DrawnAhead, LookAhead
from gigl_loader.sampler.row_cache.tables import RowTable

OWNER: Owner = ("node", "a")


def _cache() -> RowCache:
    table = RowTable(
        num_ids=100,
        capacity=20,
        matrices={("node_features", "a"): ("float32", (2,))},
        references=1000,
    )
    return RowCache.private({OWNER: table})


def _drawn() -> DrawnAhead:
    return DrawnAhead(np.zeros(DrawnAhead.NUM_WORDS, np.int64))


def test_the_look_ahead_follows_from_the_size_and_gives_way_to_lost_batches() -> None:
    cache, drawn, wanted = _cache(), _drawn(), {OWNER: np.arange(10)}
    user = cache.join()
    ahead = LookAhead(cache, drawn, CacheOptions(size=1))
    ahead.begin(3, 50)
    assert ahead.limit(0, 2) > 2, "some are drawn before anything is known"
    assert not drawn.may_fill(3, 0)
    for batch in range(12):
        cache.add(user, wanted)
        drawn.note(3, batch)
        ahead.count(3, cache.bytes_of(wanted), 0)
        ahead.count(2, 1 << 40, 0)  # of an epoch that was broken off
    assert ahead.limit(0, 2) == 2 + 10 + 1, "10 batches ask for 5 times the 20 rows that it holds"
    assert [drawn.may_fill(3, batch) for batch in range(3)] == [True, True, False]
    ahead.limit(2, 2)
    assert not drawn.may_fill(3, 2), "batch 12 is not known"
    cache.add(other := cache.join(), wanted)
    assert ahead.limit(2, 2) == 2 + 5 + 1, "what two loaders know counts together"
    assert drawn.may_fill(3, 2)
    for _ in range(64):
        cache.add(user, wanted)
    assert cache.num_users == 1, "the other one has left, or waits"
    cache.add(other, wanted)
    assert cache.num_users == 2
    ahead.give_up()
    assert ahead.limit(7, 2) == 3, "none is drawn ahead"
    assert [drawn.may_fill(3, batch) for batch in (7, 8, 9)] == [True, True, False]
    ahead.limit(12, 2)
    assert drawn.may_fill(3, 12), "though batch 13 is not known"
    ahead.begin(4, 50)
    assert ahead.limit(0, 2) > 3, "the next epoch does it again"
    drawn.note(4, 0)
    assert not drawn.may_fill(4, 0)


def test_a_batch_is_filled_when_those_after_it_are_drawn() -> None:
    drawn = _drawn()
    assert not drawn.may_fill(7, 0)
    drawn.begin(7, 3)
    drawn.note(7, 1)
    drawn.allow(2, 1)
    assert not drawn.may_fill(7, 1), "batch 0 is not known"
    drawn.note(7, 0)
    assert [drawn.may_fill(7, batch) for batch in range(3)] == [True, False, False]
    drawn.note(7, 2)
    assert [drawn.may_fill(7, batch) for batch in range(3)] == [True, True, False], "not allowed"
    drawn.allow(3, 99)
    assert drawn.may_fill(7, 2), "all that there are are known"
    assert not any(drawn.may_fill(sequence, 0) for sequence in (6, 8))
    drawn.begin(8, 3)
    drawn.allow(3, 0)
    assert not drawn.may_fill(8, 0), "what is drawn of one epoch is not of another"
