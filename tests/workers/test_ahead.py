"""How far batches are drawn ahead of their rows."""

import numpy as np
import torch

from gigl_loader.options import CacheOptions
from gigl_loader.sampler.row_cache import CacheMemory, RowCache, Table, segment_bytes
from gigl_loader.workers.ahead import LookAhead

OWNER = ("node", "a")


def test_the_look_ahead_follows_from_the_size_and_gives_way_to_lost_batches() -> None:
    table = Table(num_ids=100, capacity=20, matrices={("node_features", "a"): ("float32", (2,))},
                  references=1000)  # fmt: skip
    segment = torch.zeros(segment_bytes({OWNER: table}), dtype=torch.uint8)
    cache = RowCache(CacheMemory(segment.numpy(), {OWNER: table}))
    cache.initialise()
    ahead = LookAhead(CacheMemory(segment, {OWNER: table}), CacheOptions(size=1))
    ahead.begin(3, 50)
    assert ahead.limit(0, 2) > 2, "some are drawn before anything is known"
    assert not cache.may_fill(3, 0)
    for batch in range(12):
        cache.add(3, batch, {OWNER: np.arange(10)})
    assert ahead.limit(0, 2) == 2 + 10 + 1, "10 batches ask for 5 times the 20 rows that it holds"
    assert [cache.may_fill(3, batch) for batch in range(3)] == [True, True, False]
    ahead.limit(2, 2)
    assert not cache.may_fill(3, 2), "batch 12 is not known"
    ahead.give_up()
    assert ahead.limit(2, 2) == 3, "none is drawn ahead"
    assert [cache.may_fill(3, batch) for batch in (2, 3, 4)] == [True, True, False]
    cache.add(3, 12, {OWNER: np.arange(10)})
    assert cache.plan(3, 2, {OWNER: np.arange(10)}) == {}, "all rows are fetched"
    ahead.begin(4, 50)
    assert ahead.limit(0, 2) > 3, "the next epoch has it again"
    assert not cache.may_fill(4, 0)
    cache.add(4, 0, {OWNER: np.arange(10)})
    assert cache.plan(4, 0, {OWNER: np.arange(10)}).keys() == {OWNER}
