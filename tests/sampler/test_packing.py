"""Packed integers: given back exactly, and refused where they cannot be what was packed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ProtocolError
from gigl_loader.sampler.rows.packing import PackedInts, PackedRuns

INT64 = st.integers(-(2**63), 2**63 - 1)


def _arrays(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    return st.lists(numbers, max_size=200).map(lambda some: np.array(some, np.int64))


@given(
    values=st.one_of(_arrays(INT64), *(_arrays(st.integers(0, 2**n - 1)) for n in (1, 7, 32, 33))),
    ascending=st.booleans(),
)
def test_what_is_packed_comes_back(values: np.ndarray, ascending: bool) -> None:
    if ascending:
        values = np.sort(values)
    packed = PackedInts.of(values)
    assert np.array_equal(packed.unpack(), values)
    runs, out = PackedRuns.of(values), np.empty_like(values)
    runs.unpack(out)
    assert np.array_equal(out, values)
    if values.size:
        span = int(values.max()) - int(values.min())
        assert packed.words.nbytes <= 8 * -(-values.size * max(1, span.bit_length()) // 64)


def test_sizes_are_those_of_the_information() -> None:
    ids = np.random.default_rng(0).permutation(1 << 20)[:90_000]
    assert PackedInts.of(ids).words.nbytes == 90_000 * 20 // 8, "20 bits each"
    assert PackedInts.of(np.sort(ids)).words.nbytes <= 90_000, "8 where order is free"
    targets = np.repeat(np.arange(9_000), 10)
    assert PackedRuns.of(targets).nbytes <= 9_000 // 4 + 16, (
        "a bit for the value, one for the count"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"size": 2**40},
        {"size": -1},
        {"bits": 0},
        {"bits": 65},
        {"first": 2**63},
        {"words": np.zeros(3, np.int64)},
        {"words": np.zeros((1, 2), np.uint64)},
    ],
)
def test_no_memory_is_taken_for_what_cannot_be(change: dict) -> None:
    packed = dataclasses.replace(PackedInts.of(np.arange(0, 40, 2)), **change)
    with pytest.raises(ProtocolError, match="integers of"):
        packed.unpack()


@pytest.mark.parametrize("counts", [[2, 2], [5], [1, 4], [-1, 6], [2**62, 2**62], [3]])
def test_runs_that_do_not_fill_what_they_should(counts: list[int]) -> None:
    runs = PackedRuns(PackedInts.of(np.array([7, 8])), PackedInts.of(np.array(counts)))
    if counts == [1, 4]:
        return runs.unpack(np.empty(5, np.int64))
    with pytest.raises(ProtocolError, match="do not make up 5 integers"):
        runs.unpack(np.empty(5, np.int64))


def test_another_number_of_integers_than_expected() -> None:
    with pytest.raises(ProtocolError, match="3 integers came for 4"):
        PackedInts.of(np.arange(3)).unpack(np.empty(4, np.int64))
