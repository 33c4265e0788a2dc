"""Memory of batches: lent to tensors, taken back when the last of them is gone."""

import gc

import numpy as np
import torch

from gigl_loader.batch import leases
from gigl_loader.batch.leases import BufferPool
from gigl_loader.runtime.memory.segments import ALIGNMENT
from gigl_loader.runtime.transport import IncomingArray


def _address(lease: object) -> int:
    return int(np.frombuffer(lease, np.uint8).ctypes.data)  # type: ignore[call-overload]  # has a buffer


def _sizes(pool: BufferPool) -> list[int]:
    return sorted(one.numel() for one in pool._free)


def test_memory_comes_back_with_the_last_view_and_is_lent_again() -> None:
    pool = BufferPool(pin_memory=False)
    lease = pool.take_leased(1000)
    first, view = _address(lease), np.frombuffer(lease, np.uint8)[10:20]
    view[:] = 7
    del lease
    other = pool.take_leased(1000)
    assert _address(other) != first, "a view of it is still there"
    assert view.tolist() == [7] * 10
    del view
    gc.collect()
    assert _address(pool.take_leased(1000)) == first


def test_the_smallest_that_fits_is_lent() -> None:
    pool = BufferPool(pin_memory=False)
    leases = [pool.take_leased(nbytes) for nbytes in (1_000_000, 100_000, 3_000_000)]
    addresses = [_address(lease) for lease in leases]
    del leases
    assert _address(pool.take_leased(500_000)) == addresses[0]
    kept = pool.take_leased(3_000_000)
    assert _address(kept) == addresses[2]
    fresh = pool.take_leased(2_000_000)
    assert _address(fresh) not in addresses, "the large one is lent, and the others are too small"


def test_a_batch_that_is_a_quarter_larger_fits() -> None:
    pool = BufferPool(pin_memory=False)
    for nbytes in (1, 65_536, 1_000_003):
        size = pool.take(nbytes).numel()
        assert size >= nbytes * 5 / 4
        assert size % leases._GRAIN == 0
        assert size < nbytes * 5 / 4 + leases._GRAIN


def test_a_pool_that_is_full_of_small_buffers_makes_room_for_large_ones() -> None:
    """Else each larger batch would be received into fresh memory, which is then dropped."""
    pool, most = BufferPool(pin_memory=False), 8
    small = [pool.take_leased(1000) for _ in range(most + 3)]
    del small
    assert len(_sizes(pool)) == most, "no more are kept"
    large = [pool.take_leased(1_000_000) for _ in range(2)]
    addresses = {_address(lease) for lease in large}
    del large
    assert len(_sizes(pool)) == most
    assert {_address(pool.take_leased(1_000_000)) for _ in range(2)} <= addresses
    assert _sizes(pool)[-2:] == [pool.take(1_000_000).numel()] * 2


def test_the_arrays_of_an_answer_lie_in_one_buffer_and_not_in_each_other() -> None:
    pool = BufferPool(pin_memory=False)
    specs = [
        IncomingArray(np.dtype("int64"), (3, 5)),
        IncomingArray(np.dtype("uint8"), (1,)),
        IncomingArray(np.dtype("float32"), (0, 7)),
        IncomingArray(np.dtype("float16"), (33,)),
    ]
    arrays = pool.room(specs)
    assert [(one.dtype, one.shape) for one in arrays] == [(s.dtype, s.shape) for s in specs]
    for number, one in enumerate(arrays):
        one[...] = number
    assert [set(one.ravel().tolist()) for one in arrays] == [{0}, {1}, set(), {3}]
    starts = [one.ctypes.data for one in arrays]
    assert all((start - starts[0]) % ALIGNMENT == 0 for start in starts)
    del one
    kept = arrays.pop(1)
    del arrays
    assert _sizes(pool) == [], "one array keeps the buffer of all"
    del kept
    gc.collect()
    assert len(_sizes(pool)) == 1
    assert pool.room([]) == []


def test_rows_of_a_batch_come_back_to_the_pool() -> None:
    pool = BufferPool(pin_memory=False)
    rows = pool.matrix("x", "float32", (100, 8))
    assert rows.dtype == np.float32
    assert (rows.shape, rows.flags.c_contiguous) == ((100, 8), True)
    tensor = torch.from_numpy(rows)
    del rows
    assert _sizes(pool) == []
    del tensor
    gc.collect()
    assert len(_sizes(pool)) == 1
