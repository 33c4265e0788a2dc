"""Hits of both orders on a trace that one can follow by hand."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = Path(__file__).parents[2] / "examples/benchmarks/cache/bench_next_use.py"


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("bench_next_use", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_that_come_again_are_counted() -> None:
    script, trace = _script(), [np.array([0, 1]), np.array([1, 2]), np.array([1, 3])]
    # 4 rows, each fetched once, of 6 that are needed; only row 1 is needed again
    assert script.reuse_of(trace) == (1, 2 / 6)
    assert script.hits_by_next_use(trace, 4, 1) == 2, "a cache of one row reaches that"


def test_hits_by_next_use_and_by_last_use() -> None:
    """Three rows in turns, room for two: the row that was used longest ago is always the next."""
    script, trace = _script(), [np.array([one]) for one in (0, 1, 2) * 3]
    assert script.hits_by_last_use(trace, 2) == 0
    # each row with its next use: 2 is needed last, so it is never kept, and 0 and 1 stay
    assert script.hits_by_next_use(trace, 3, 2) == 4
    assert script.hits_by_last_use(trace, 3) == script.hits_by_next_use(trace, 3, 3) == 6
