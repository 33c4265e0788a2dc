"""Loops over packed bits, beside Python's integers, which have as many bits as are needed."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.sampler.kernels import packing_kernels as kernels

LEAST, MOST = -(2**63), 2**63 - 1


@given(
    values=st.lists(st.integers(LEAST, MOST) | st.integers(-3, 3), min_size=1, max_size=30),
    ascending=st.booleans(),
)
def test_the_survey_is_that_of_exact_integers(values: list[int], ascending: bool) -> None:
    values = sorted(values) if ascending else values
    least, most, ascends, widest = kernels.survey(np.array(values, np.int64))
    assert (least, most) == (min(values), max(values))
    assert ascends == (values == sorted(values))
    steps = [after - before for before, after in pairwise(values)]
    assert int(widest) == max([step for step in steps if step >= 0], default=0)


@given(
    bits=st.integers(1, 64),
    first=st.integers(LEAST, MOST),
    steps=st.booleans(),
    size=st.integers(1, 70),
    data=st.data(),
)
def test_numbers_of_any_width_lie_side_by_side(bits, first, steps, size, data) -> None:
    """As one integer: the first number in the lowest bits, whatever word it ends in."""
    most = (1 << bits) - 1
    numbers = data.draw(
        st.lists(st.sampled_from([0, 1, most, most // 3]), min_size=size, max_size=size)
    )
    values, last = [], first
    for number in numbers:  # modulo 2 ** 64, as int64 wraps
        wrapped = (last + number) % 2**64
        values.append(wrapped - 2**64 if wrapped > MOST else wrapped)
        last = values[-1] if steps else first
    words = np.full(-(-size * bits // 64), 0xAB, np.uint64)
    kernels.pack(np.array(values, np.int64), first, bits, steps, words)
    whole = sum(number << position * bits for position, number in enumerate(numbers))
    assert sum(int(word) << 64 * position for position, word in enumerate(words)) == whole
    out = np.empty(size, np.int64)
    kernels.unpack(words, first, bits, steps, out)
    assert out.tolist() == values


@pytest.mark.parametrize(
    ("values", "room", "starts"),
    [
        ([], 0, []),
        ([5], 1, [0]),
        ([5], 0, None),
        ([1, 1, 1], 1, [0]),
        ([1, 1, 2, 1], 3, [0, 2, 3]),
        ([1, 1, 2, 1], 2, None),
    ],
)
def test_runs_start_where_values_change(values, room: int, starts) -> None:
    out = np.full(room, -7, np.int64)
    found = kernels.find_runs(np.array(values, np.int64), out)
    assert found == (-1 if starts is None else len(starts))
    assert starts is None or out[:found].tolist() == starts


@pytest.mark.parametrize(
    ("counts", "fills"),
    [
        ([2, 1], True),
        ([0, 3], True),
        ([3, 0], True),
        ([2, 2], False),
        ([2, 0], False),
        ([-1, 4], False),
        ([2**63 - 1, 2**63 - 1], False),
        ([1, 2**63 - 1, 2**63 - 1], False),
        ([4, -1], False),
    ],
)
def test_repeats_stay_inside(counts: list[int], fills: bool) -> None:
    memory = np.full(9, -7, np.int64)
    out = memory[3:6]
    assert kernels.repeat(np.arange(8, 8 + len(counts)), np.array(counts), out) == fills
    assert memory[:3].tolist() == memory[6:].tolist() == [-7] * 3
    if fills:
        assert out.tolist() == [8] * counts[0] + [9] * counts[1]


def test_load_compiles_every_kernel() -> None:
    kernels.load()
    names = ("survey", "pack", "unpack", "find_runs", "repeat")
    assert all(getattr(kernels, name).signatures for name in names)
