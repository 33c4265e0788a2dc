"""Row caches of one table, and a look at all that their arrays say."""

import ctypes
import threading
from functools import cache as once
from typing import Any

import numpy as np

from gigl_loader.dataset.partition.partition_view import Owner
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.runtime.memory.segments import array_in, nbytes_of
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.sampler.row_cache import kernels
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.tables import RowTable
from gigl_loader.testing import TinyGraph

OWNER: Owner = ("node", NODE)


NEVER = 1 << 60


def cache_of(tables: dict) -> RowCache:
    return RowCache.private(tables)


def one_table(num_ids: int, capacity: int, references: int = 1 << 14) -> RowCache:
    matrices: Any = {("node_features", NODE): ("float32", (1,))}
    return cache_of(
        {
            OWNER: RowTable(
                num_ids=num_ids, capacity=capacity, matrices=matrices, references=references
            )
        }
    )


MANY = 1 << 45
"""So many ids that the index of a cache is a hash table."""


@once
def ids_of_many() -> np.ndarray:
    """Return 100 ids of `MANY`; each of the first 20 has the tag of the next one or before it."""
    ids = np.random.default_rng(0).integers(0, MANY, 400_000)
    tags = np.array([kernels.tag_of(np.zeros((1, 2), np.int32), one) for one in ids.tolist()])
    order = np.argsort(tags)
    first = order[:-1][np.diff(tags[order]) == 0][:10]
    second = order[np.searchsorted(tags[order], tags[first], side="right") - 1]
    return np.concatenate([np.stack([ids[first], ids[second]], 1).ravel(), ids[:80]])


def check_arrays(arrays: Any) -> set[int]:
    """Return the ids that are kept, once all arrays say the same of them."""
    size, ring = arrays.ring.shape[0], arrays.ring
    references: dict[int, list[int]] = {}
    for batch in range(int(arrays.state[kernels.OLDEST]), arrays.newest):
        own = batch % arrays.counts.size
        for at in range(int(arrays.starts[own]), int(arrays.starts[own] + arrays.counts[own])):
            if kernels.batch_at(ring, at % size) != kernels.TWICE:
                assert kernels.batch_at(ring, at % size) == own
                references.setdefault(kernels.id_at(ring, at % size), []).append(at % size + 1)
    kept = {one: slot for slot, one in enumerate(arrays.holders[: arrays.state[kernels.USED]])}
    codes = {}
    for one in references.keys() | kept.keys():
        codes[one] = [-1 - kept[one] if one in kept else 0, *references.get(one, []), 0]
        for before, code, after in zip(codes[one], codes[one][1:], codes[one][2:], strict=False):
            assert tuple(ring[code - 1, [kernels.LINK, kernels.AFTER]]) == (before, after)
        position = kernels.find_id(
            arrays.index, ring, arrays.holders, one, kernels.tag_of(arrays.index, one)
        )
        assert arrays.index[position, kernels.CODE] == codes[one][-2]
        if one in kept and one in references:
            assert arrays.slots[kept[one], kernels.PLACE] == references[one][0]
    assert np.count_nonzero(arrays.index[:, kernels.CODE]) == len(codes), "of no other id"
    return set(kept)


def read_fields(fields: list) -> dict[str, np.ndarray]:
    found = {}
    for field in fields:
        buffer = np.zeros(nbytes_of(field.dtype, field.shape) + 1, np.uint8)
        field.write(out := array_in(buffer, field.dtype, field.shape, 0))
        found[field.key] = out
    return found


def plan_of(graph: TinyGraph, hetero: bool, **changes: Any) -> SamplingPlan:
    fanouts: Any = {name: (3, 2) for name in sorted(graph.edges)}
    return SamplingPlan(
        input_type="user" if hetero else NODE, fanouts=fanouts, seed=3, with_edge=True, **changes
    )


def kill_a_holder(cache: RowCache) -> None:
    memory = ctypes.c_void_p(
        cache.mutex.memory.ctypes.data
    )  # threads that end are as processes are
    holder = threading.Thread(target=ctypes.CDLL(None).pthread_mutex_lock, args=(memory,))
    holder.start()
    holder.join()
