"""The logarithm of draws by weight: how exact it is, and that nothing in it is fused."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.runtime.compiled import jit
from gigl_loader.sampler.gpu.torch_numbers import exponentials
from gigl_loader.sampler.kernels.weighted_kernels import (
    draw_labor,
    draw_weighted,
    exponential,
    first_above,
    write_sorted,
)

NUMBERS = st.integers(0, 2**53 - 1) | st.sampled_from([0, 1, 2, 2**52, 2**53 - 2, 2**53 - 1])


@jit
def _all(uniform, out):
    for i in range(uniform.shape[0]):
        out[i] = exponential(uniform[i])


def _exponentials(uniform: np.ndarray) -> np.ndarray:
    out = np.empty_like(uniform)
    _all(uniform, out)
    return out


def _cases() -> np.ndarray:
    """Return whole numbers below 2 ** 53: any, near both ends, powers of two, near sqrt 1/2."""
    rng = np.random.default_rng(1)
    found = [
        rng.integers(0, 2**53, 200_000),
        rng.integers(0, 2**20, 20_000),
        2**53 - rng.integers(1, 2**20, 20_000),
        2**53 - 2 ** np.arange(53),
        2**53 - (2**53 * 0.5**0.5 * (1 + np.arange(-50, 50) * 1e-15)).astype(np.int64),
    ]
    return np.concatenate(found)


def test_the_error_is_as_small_as_said() -> None:
    """Beside the logarithm of longer floats, 64 bits of fraction where the machine has them."""
    numbers = _cases()
    numbers = numbers[numbers > 0]
    found = _exponentials(numbers * 2.0**-53)
    exact = -np.log((2**53 - numbers) * np.longdouble(2) ** -53)
    assert (np.abs(found - exact) <= exact * 2.0**-51).all()
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_of_nothing_it_is_nothing() -> None:
    assert _exponentials(np.zeros(1)).tolist() == [0.0]


def test_torch_gives_the_same_bits() -> None:
    uniform = _cases() * 2.0**-53
    found = exponentials(torch.from_numpy(uniform)).numpy()
    assert (found.view(np.int64) == _exponentials(uniform).view(np.int64)).all()


def _rounded(value: Fraction) -> Fraction:
    return Fraction(float(value))  # to the nearest float64, as Python rounds fractions


def _step_by_step(number: int) -> float:
    """Return the same by exact fractions, each sum, product and quotient rounded once."""
    scaled, exponent = Fraction(2**53 - number, 2**53), 0
    while scaled < 1:
        scaled, exponent = scaled * 2, exponent - 1
    if float(scaled) > 1.4142135623730951:
        scaled, exponent = scaled / 2, exponent + 1
    ratio = _rounded((scaled - 1) / _rounded(scaled + 1))
    square = _rounded(ratio * ratio)
    fourth = _rounded(square * square)
    one = [
        Fraction(value)
        for value in (
            6.666666666666735130e-01,
            3.999999999940941908e-01,
            2.857142874366239149e-01,
            2.222219843214978396e-01,
            1.818357216161805012e-01,
            1.531383769920937332e-01,
            1.479819860511658591e-01,
        )
    ]

    def series(start: Fraction, *factors: Fraction) -> Fraction:
        found = factors[-1]
        for factor in reversed(factors[:-1]):
            found = _rounded(factor + _rounded(fourth * found))
        return _rounded(start * found)

    series_of_ratio = _rounded(series(fourth, *one[1::2]) + series(square, *one[0::2]))
    fraction = _rounded(ratio * 2 + _rounded(ratio * series_of_ratio))
    high, low = Fraction(6.93147180369123816490e-01), Fraction(1.90821492927058770002e-10)
    return float(
        -_rounded(_rounded(exponent * high) + _rounded(_rounded(exponent * low) + fraction))
    )


@given(number=NUMBERS)
def test_each_step_is_rounded_once(number: int) -> None:
    """A product that a compiler fused with a sum would give another last bit to some."""
    assert _exponentials(np.array([number * 2.0**-53])).tolist() == [_step_by_step(number)]


def test_no_step_is_fused_on_this_machine() -> None:
    numbers = np.random.default_rng(2).integers(0, 2**53, 2000)
    assert _exponentials(numbers * 2.0**-53).tolist() == [_step_by_step(int(n)) for n in numbers]


@given(st.lists(st.integers(-50, 50), max_size=80), st.integers(0, 80))
def test_items_are_written_in_ascending_order(numbers: list[int], size: int) -> None:
    items, size = np.array(numbers, np.int64), min(size, len(numbers))
    out = np.full(len(numbers) + 2, 99)
    write_sorted(items, size, out, 1)
    assert out[1 : 1 + size].tolist() == sorted(numbers[:size])
    assert (np.delete(out, range(1, 1 + size)) == 99).all(), "and nothing else"


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, np.inf]), max_size=40), st.integers(-1, 8))
def test_the_first_sum_above_a_goal_is_found(keys: list[float], goal: int) -> None:
    ascending = np.sort(np.array(keys, np.float64))
    found = first_above(ascending, ascending.size, goal / 2)
    assert found == np.searchsorted(ascending, goal / 2, side="right")


def _drawn(kernel: Any, of_edges: Sequence[np.ndarray], count: int, scratch: float) -> list[int]:
    """Return what is drawn of three rows of one length, without replacement."""
    degree = of_edges[-1].size // 3
    rows = np.arange(3) * degree, np.full(3, degree), np.full(3, count)
    # each kernel has as many numbers as the longest row
    keys, items, found = np.full(degree, scratch), np.full(degree, -1), np.full(3 * count, -1)
    of_neighbours = kernel is draw_labor
    if of_neighbours:
        kernel(*of_edges, *rows, np.uint64(7), keys, items, found)
    else:
        kernel(of_edges[-1], np.arange(3), *rows, False, np.uint64(7), keys, items, found)
    return found.tolist()


@pytest.mark.parametrize("kernel", [draw_weighted, draw_labor])
def test_what_the_scratch_memory_held_is_not_drawn(kernel: Any) -> None:
    """It holds sums and numbers of earlier draws; a heap ends before them."""
    neighbours = np.arange(36) * 7 % 36
    weights = np.random.default_rng(3).random(36).astype(np.float32)
    for count in range(1, 12):
        clean, used = (
            _drawn(kernel, (neighbours, weights), count, scratch) for scratch in (0.0, np.inf)
        )
        assert used == clean, count
        assert all(len(set(used[i::count])) == 3 for i in range(count))


@pytest.mark.parametrize("kernel", [draw_weighted, draw_labor])
def test_of_equal_numbers_the_earlier_positions_are_drawn(kernel: Any) -> None:
    """As they are where weights are infinite: each number is 0."""
    weights = np.full(15, np.inf, np.float32)
    weights[::5] = 1.0
    found = _drawn(kernel, (np.arange(15), weights), 2, 0.0)
    assert found == [1, 2, 6, 7, 11, 12]
