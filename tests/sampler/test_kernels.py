"""Labels of nodes, and the table behind them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.runtime.compiled import mix
from gigl_loader.sampler.kernels import sampling_kernels as kernels
from gigl_loader.sampler.kernels import tree_kernels, weighted_kernels


def test_the_mixing_function_is_a_permutation_with_known_values() -> None:
    """Known answers: SplitMix64's finalizer of 1, 2 and 2**63, worked out with Python integers."""

    def slow(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
        return value ^ (value >> 31)

    values = [0, 1, 2, 2**31, 2**63, 2**64 - 1]
    assert [int(mix(np.uint64(v))) for v in values] == [slow(v) for v in values]
    assert len({int(mix(np.uint64(v))) for v in range(10_000)}) == 10_000


@given(counts=st.lists(st.integers(0, 4), max_size=20), first=st.integers(0, 5))
def test_repeat_rows(counts: list[int], first: int) -> None:
    out = np.zeros(sum(counts), np.int64)
    kernels.repeat_rows(np.array(counts, np.int64), first, out)
    assert out.tolist() == [first + i for i, count in enumerate(counts) for _ in range(count)]


@given(counts=st.lists(st.integers(0, 4), max_size=12), data=st.data())
def test_scatter_segments(counts: list[int], data: st.DataObject) -> None:
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(counts), max_size=len(counts)))
    wanted = [[10 * row + j for j in range(count)] for row, count in enumerate(counts)]
    starts = np.cumsum([0, *counts])[:-1].astype(np.int64)
    out = np.full(sum(counts), -1, np.int64)
    for part in range(3):
        rows = [row for row, own in enumerate(owner) if own == part]
        values = np.array([v for row in rows for v in wanted[row]], np.int64)
        sizes = np.array([counts[row] for row in rows], np.int64)
        kernels.scatter_segments(starts, np.array(rows, np.int64), sizes, values, out)
    assert out.tolist() == [value for row in wanted for value in row]


def test_scratch_of_uniform_draws_is_left_clean() -> None:
    """The byte per neighbour that marks what is taken must be zero for the next row and call."""
    nodes, degree = np.arange(500), np.full(500, 20, np.int64)
    taken, positions = np.zeros(20, np.uint8), np.zeros(500 * 9, np.int64)
    kernels.draw_uniform(
        nodes, nodes * 20, degree, np.full(500, 9, np.int64), False, np.uint64(3), taken, positions
    )
    assert not taken.any()


def test_load_compiles_every_kernel() -> None:
    kernels.load()
    kernels.load_merged()
    kernels.load_owners()
    names = (
        "count_uniform",
        "draw_uniform",
        "gather",
        "insert_nodes",
        "relabel",
        "look_up",
        "repeat_rows",
        "scatter_segments",
        "group_by_owner",
    )
    assert all(getattr(kernels, name).signatures for name in names)
    weighted_kernels.load()
    weighted_kernels.load_labor()
    by_weight = ("count_weighted", "draw_weighted", "draw_labor")
    assert all(getattr(weighted_kernels, name).signatures for name in by_weight)
    tree_kernels.load()
    tree_kernels.load_times()
    of_trees = ("enter", "label_ids", "count_timed", "seeds_of")
    assert all(getattr(tree_kernels, name).signatures for name in of_trees)


_COMPILES = """
import numpy as np
from gigl_loader.sampler.kernels import sampling_kernels
sampling_kernels.repeat_rows(np.ones(2, np.int64), 0, np.zeros(2, np.int64))
sampling_kernels.gather(np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64))
"""


_COMPILES_MORE = """
from gigl_loader.sampler.kernels import packing_kernels
packing_kernels.find_runs(np.zeros(2, np.int64), np.zeros(2, np.int64))
"""


def test_that_kernels_are_compiled_is_said_once_and_only_where_it_is_so(tmp_path: Path) -> None:
    """It takes seconds in the first loader of a machine, which looks like one that hangs.

    Another kind of loader compiles what it needs besides, and says so.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(script: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return done.stderr

    first = run(_COMPILES)
    assert first.count("compiling the sampling kernels: a few seconds of one core") == 1
    assert first.count("compiling") == 1
    assert str(tmp_path) in first
    more = run(_COMPILES + _COMPILES_MORE)
    assert len(more.splitlines()) == more.count("compiling") == 1, "the former are there now"
    assert more.count("compiling kernels that pack ids") == 1


_LOADS = """
import sys
import torch
from gigl_loader import DistNeighborLoader
from gigl_loader.testing import TinyGraph
dataset = TinyGraph.random(60, 500).dataset()
how = {"disjoint": sys.argv[2] == "disjoint", "num_workers": int(sys.argv[1])}
for _ in DistNeighborLoader(dataset, [3, 2], torch.arange(60), batch_size=8, **how):
    pass
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "more"), [("merged", {"look_up"}), ("disjoint", set())])
def test_workers_compile_what_the_training_process_uses(
    kind: str, more: set[str], tmp_path: Path
) -> None:
    """The training process compiles a kernel when it calls it; workers get theirs beforehand.

    ``more``: of induced subgraphs, whose loaders are not told apart.
    """
    compiled = []
    for workers in ("0", "1"):
        folder = tmp_path / workers
        subprocess.run(
            [sys.executable, "-c", _LOADS, workers, kind],
            env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
            timeout=300,
            check=True,
        )
        # "sampling_kernels.gather-12.py311.nbi"
        names = {file.name.split("-")[0].split(".")[1] for file in folder.rglob("*.nbi")}
        compiled.append(names)
    in_process, by_workers = compiled
    assert in_process
    assert by_workers - in_process == more


_WITHOUT_A_CACHE = """
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = []  # no folder can be written to
"""


def test_kernels_are_compiled_where_no_cache_can_be_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_A_CACHE + _COMPILES],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "no place for Numba's cache: compiling anew; set NUMBA_CACHE_DIR" in done.stderr
    assert "kept for later loaders in memory" in done.stderr
