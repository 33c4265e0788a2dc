"""Times as integers of the same order."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.partition.partition_view import earlier, keys_of

FLOATS = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324])
TIMES = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(FLOATS, max_size=12))
def test_floats_sort_by_their_keys(times: list[float]) -> None:
    keys = keys_of(np.array(times, np.float64), is_float=True)
    assert keys.dtype == np.int64
    assert [times[i] for i in np.argsort(keys, kind="stable")] == sorted(times)
    assert len(set(keys.tolist())) == len(set(times)), "-0.0 is 0.0, and nothing else is alike"


def test_keys_of_positive_numbers_are_their_bits() -> None:
    (bits,) = struct.unpack("q", struct.pack("d", 1.5))
    assert keys_of(np.array([1.5]), is_float=True).tolist() == [bits]
    assert keys_of(np.array([7], np.int32), is_float=False).tolist() == [7]


def test_integers_are_keys_as_they_are() -> None:
    times = np.array([3, -1])
    assert keys_of(times, is_float=False) is times, "no copy"


@given(st.lists(TIMES, max_size=6), st.floats(0, 1e30))
def test_a_window_of_integers_ends_at_the_lowest(times: list[int], window: float) -> None:
    found = earlier(np.array(times, np.int64), window, is_float=False)
    lowest, whole = -(2**63), min(int(window), 2**63 - 1)
    assert found.tolist() == [max(time - whole, lowest) for time in times]


def test_a_window_of_floats() -> None:
    found = earlier(np.array([1.5, -2.0], np.float32), 0.25, is_float=True)
    assert found.tolist() == keys_of(np.array([1.25, -2.25]), is_float=True).tolist()
