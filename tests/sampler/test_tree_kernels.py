"""Rows by time, cut to what each tree may have, and how trees lie in their table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.sampler.kernels import tree_kernels as kernels

LOWEST = np.iinfo(np.int64).min
TIMES = st.integers(-4, 4) | st.sampled_from([LOWEST, np.iinfo(np.int64).max])


@given(
    rows=st.lists(st.lists(TIMES, max_size=9).map(sorted), min_size=1, max_size=40),
    fanout=st.integers(-1, 4),
    replace=st.booleans(),
    last=st.booleans(),
    window=st.booleans(),
    data=st.data(),
)
def test_rows_are_cut_to_the_times_of_each_node(rows, fanout, replace, last, window, data) -> None:
    asked = data.draw(
        st.lists(st.tuples(st.integers(0, len(rows) + 2), TIMES, TIMES), min_size=1, max_size=40)
    )
    nodes, until, since = (np.array(column) for column in zip(*asked, strict=True))
    indptr = np.cumsum([0, *map(len, rows)])
    times = np.array([time for row in rows for time in row], np.int64)
    if not window:
        since = np.empty(0, np.int64)
    starts, degrees, counts = (np.full(nodes.size, -9) for _ in range(3))
    total, most = kernels.count_timed(
        indptr, times, nodes, since, until, fanout, replace, last, starts, degrees, counts
    )
    for position, node in enumerate(nodes.tolist()):
        row = range(indptr[node], indptr[node + 1]) if node < len(rows) else range(0)
        fit = [at for at in row if times[at] <= until[position]]
        fit = [at for at in fit if not window or times[at] >= since[position]]
        if last and fanout >= 0:
            fit = fit[len(fit) - min(fanout, len(fit)) :]
        assert degrees[position] == len(fit)
        assert not fit or list(range(starts[position], starts[position] + len(fit))) == fit
        few = fanout < 0 or (len(fit) <= fanout and not replace) or not fit
        assert counts[position] == (len(fit) if few else fanout)
    assert (total, most) == (counts.sum(), degrees.max())


@pytest.mark.parametrize("num_trees", [0, 1, 2, 3, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("size", [1024, 4096, 1 << 16])
def test_trees_lie_evenly_over_the_table(size: int, num_trees: int) -> None:
    window, shift = (int(one) for one in kernels.layout(size, num_trees))
    assert (window + 1).bit_count() == 1, "it is a mask"
    assert 1023 <= window < size
    share = 1 << shift
    assert share * max(1, num_trees) <= max(size, num_trees), "all begin within the table"
    assert window + 1 >= min(size, 4 * share), "a tree has room for four times its share"
    assert share == size if num_trees <= 1 else share * 2 * num_trees >= min(size, 2 * num_trees)


def test_labels_are_by_tree_and_found_again_in_each_layout() -> None:
    bits, random = 7, np.random.default_rng(0)
    for num_trees in (1, 6, 300):
        trees, ids = random.integers(num_trees, size=400), random.integers(100, size=400)
        roots = np.arange(num_trees) << bits | 5
        keys = np.zeros(num_trees + 400, np.int64)
        keys[:num_trees] = roots
        table = np.zeros(2048, np.int64)
        where = (table, np.uint64(2047), *kernels.layout(2048, num_trees), bits, keys)
        kernels.enter(*where, 0, num_trees)
        labels = np.empty(400, np.int64)
        count = kernels.label_ids(*where, num_trees, ids, roots, bits, trees, labels)
        assert keys[labels].tolist() == (trees << bits | ids).tolist()
        assert len(set(keys[:count].tolist())) == count, "each key has one label"
        again = np.empty(400, np.int64)
        assert kernels.label_ids(*where, count, ids, roots, bits, trees, again) == count
        assert again.tolist() == labels.tolist()
        seeds = np.empty(count, np.int64)
        kernels.seeds_of(keys[:count], bits, np.arange(num_trees) * 3, seeds)
        assert seeds.tolist() == (3 * (keys[:count] >> bits)).tolist()


def test_load_compiles_every_kernel() -> None:
    kernels.load()
    names = ("enter", "label_ids", "count_timed", "seeds_of")
    assert all(getattr(kernels, name).signatures for name in names)
