"""Which rows simulated batches need, and how such a batch is laid out."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.batch.message import BATCH, NODE, ROWS
from gigl_loader.runtime.memory.segments import align
from tests.support.simulation import RowLaw
from tests.support.simulation.rows import KEY, are_right, packed


@given(st.integers(0, 2**40), st.integers(1, 500), st.integers(1, 200), st.floats(1.0, 6.0))
def test_a_seed_decides_the_rows(seed: int, rows: int, per_batch: int, exponent: float) -> None:
    law = RowLaw(rows=rows, per_batch=per_batch, exponent=exponent)
    found = law.ids(np.array([seed]))
    assert found.dtype == np.int64
    assert np.array_equal(found, law.ids(np.array([seed])))
    assert (np.diff(found) > 0).all(), "ascending, each once"
    assert 0 < len(found) <= per_batch
    assert 0 <= found[0] <= found[-1] < rows


def test_the_first_rows_are_in_most_batches() -> None:
    law = RowLaw()
    counts = np.zeros(law.rows, int)
    for seed in range(200):
        counts[law.ids(np.array([seed]))] += 1
    assert counts[0] == 200
    assert counts[:20].mean() > 5 * counts[-200:].mean()


def test_tensors_lie_one_after_the_other_at_aligned_positions() -> None:
    law, seeds = RowLaw(per_batch=5), np.array([7])
    layout, payload = packed(seeds, law)
    assert [key for key, *_ in layout] == [BATCH, NODE, ROWS]
    found: dict[str, Any] = {}
    for key, dtype, shape, at in layout:
        assert at == align(at)
        count = int(np.prod(shape))
        found[key] = np.frombuffer(payload, dtype, count, at).reshape(shape)
    assert np.array_equal(found[BATCH], seeds)
    assert np.array_equal(found[NODE], law.ids(seeds))
    assert json.loads(found[ROWS].tobytes())["rows"][0][0] == KEY


@pytest.mark.parametrize(("value", "right"), [(0, True), (1, False)])
def test_rows_of_others_are_seen(value: int, right: bool) -> None:
    ids = np.array([3, 5, 8])
    rows = ids.astype(np.float32).reshape(-1, 1)
    rows[1] += value
    assert are_right({KEY: rows, NODE: ids}) is right
