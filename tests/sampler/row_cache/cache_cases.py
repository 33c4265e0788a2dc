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


def num_known(cache: Any) -> int:
    """Return the number of batches from the first one known and not filled, to the last one."""
    return max(
        int(arrays.state[kernels.NEWEST] - arrays.state[kernels.OLDEST])
        for arrays in cache.tables.values()
    )


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
    """Return the ids that are kept, once all arrays say the same, as the kernels' picture does."""
    references = _check_references(arrays)
    kept = {one: slot for slot, one in enumerate(arrays.holders[: arrays.state[kernels.USED]])}
    assert len(kept) == arrays.state[kernels.USED] <= arrays.table.capacity, "one slot an id"
    _check_chains(arrays, references, kept)
    _check_lists(arrays, references, kept)
    return set(kept)


def _check_references(arrays: Any) -> dict[int, list[int]]:
    """Return the codes of the references of each id, those that are needed soonest first."""
    ring, state = arrays.ring, arrays.state
    size, never = ring.shape[0], arrays.counts.size
    oldest, newest = int(state[kernels.OLDEST]), arrays.newest
    assert 0 <= newest - oldest < never
    assert 0 <= state[kernels.HEAD] - state[kernels.TAIL] <= size, "those in use fit"
    known = range(oldest, newest)
    absent = np.delete(np.arange(never), [batch % never for batch in known])
    assert (arrays.top[absent] == -1).all(), "no slot waits for a batch that is not known"
    references: dict[int, list[int]] = {}
    begin = state[kernels.TAIL]
    for batch in known:
        own = batch % never
        assert arrays.starts[own] >= begin, "one batch after the other"
        begin = arrays.starts[own] + max(0, arrays.counts[own])
        for number in range(int(arrays.starts[own]), int(begin)):
            at = number % size
            low, rest = (int(word) for word in ring[at, :2])
            one, its_batch = low & 0xFFFFFFFF | rest >> 15 << 32, rest & 0x7FFF
            if its_batch == kernels.TWICE:
                assert one in references, "the batch has it before"
                assert ring[references[one][-1] - 1, kernels.REST] & 0x7FFF == own
            else:
                assert its_batch == own
                references.setdefault(one, []).append(at + 1)
    assert begin <= state[kernels.HEAD]
    assert oldest == newest or arrays.counts[oldest % never] != kernels.ABSENT
    return references


def _check_chains(arrays: Any, references: dict[int, list[int]], kept: dict[int, int]) -> None:
    """Follow each id from its slot to its last reference, and find it by the index."""
    codes = {}
    for one in references.keys() | kept.keys():
        codes[one] = [-1 - kept[one] if one in kept else 0, *references.get(one, []), 0]
        for before, code, after in zip(codes[one], codes[one][1:], codes[one][2:], strict=False):
            links = arrays.ring[code - 1, [kernels.LINK, kernels.AFTER]]
            assert tuple(links) == (before, after)
        tag = kernels.tag_of(arrays.index, one)
        position = kernels.find_id(arrays.index, arrays.ring, arrays.holders, one, tag)
        assert arrays.index[position, kernels.CODE] == codes[one][-2]
        assert arrays.index[position, -1] == tag or arrays.index.shape[1] == 1
    assert np.count_nonzero(arrays.index[:, kernels.CODE]) == len(codes), "of no other id"


def _check_lists(arrays: Any, references: dict[int, list[int]], kept: dict[int, int]) -> None:
    """Find each slot in exactly one list: the stack of its next use, or the queue."""
    never = arrays.counts.size
    ids = {slot: one for one, slot in kept.items()}
    found = queue_of(arrays)
    assert len(found) == arrays.state[kernels.IDLE]
    assert all(ids[slot] not in references for slot in found), "its next use is not known"
    for batch in range(int(arrays.state[kernels.OLDEST]), arrays.newest):
        slot = int(arrays.top[batch % never])
        while slot >= 0:
            assert slot not in found, "in one list, and once"
            found.append(slot)
            code = references[ids[slot]][0]
            assert arrays.slots[slot, kernels.PLACE] == code
            assert arrays.ring[code - 1, kernels.REST] & 0x7FFF == batch % never
            slot = int(arrays.slots[slot, kernels.BELOW])
    assert sorted(found) == sorted(ids), "no slot is lost"


def queue_of(arrays: Any) -> list[int]:
    """Return the slots without a known next use, the least recently used one first."""
    first, last = (int(arrays.state[name]) for name in (kernels.FIRST, kernels.LAST))
    assert 0 <= first <= last <= arrays.queue.size
    queue = enumerate(arrays.queue[first:last].tolist(), first)
    return [slot for place, slot in queue if arrays.slots[slot, kernels.PLACE] == -1 - place]


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
