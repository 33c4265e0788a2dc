"""Loops of forward push, one turn at a time, with numbers that can be followed by hand."""

import numpy as np
import pytest

from gigl_loader.sampler.kernels import ppr_kernels as kernels
from gigl_loader.sampler.nodes import NodeLabels

INT = np.int64
FAR = np.iinfo(np.int32).max


def _slots(*rows: tuple[float, int, int]) -> np.ndarray:
    return np.array(list(rows), kernels.SLOT)


def test_a_push_keeps_its_share_and_empties_the_residual() -> None:
    slots = _slots((0.5, 9, 0), (0.25, 2, 0), (0.0, 0, 0), (1.0, 1, 0))
    score, keys = np.array([0.0, 0.1, 0.2, 0.0]), np.array([0, 3 << 32 | 7, 1, 5 << 32 | 6])
    nodes, taken, hops = np.empty(2, INT), np.empty(2), np.empty(2, INT)
    kernels.take(np.array([3, 1]), 0.4, keys, slots, score, nodes, taken, hops)
    assert nodes.tolist() == [6, 7]
    assert taken.tolist() == [1.0, 0.25]
    assert hops.tolist() == [1, 2]
    assert slots["residual"].tolist() == [0.5, 0, 0, 0]
    np.testing.assert_allclose(score, [0.0, 0.1 + 0.4 * 0.25, 0.2, 0.4])


@pytest.mark.parametrize("long", [0, 40])  # a row that is longer than what is prefetched
def test_each_neighbour_of_a_row_gets_the_same_in_a_slot_of_its_seed(long: int) -> None:
    # slots 0 and 1: node 2 of seed 0, and of seed 5; slot 2: node 0 of seed 1, without a row
    labels = NodeLabels()
    labels.label(np.array([2, 5 << 32 | 2, 1 << 32]))
    slots = np.full(20 + 2 * long, np.array((0.0, FAR, 0), kernels.SLOT))
    slots[:3] = _slots((0.0, 4, 0), (0.0, 0, 7), (0.0, 1, 0))
    starts, counts = np.array([9, 0, 1]), np.array([-1, 1, 4 + long])
    neighbors = np.array([7, 4, 4, 2, 9, *range(20, 20 + long)])
    touched = np.full(20 + 2 * long, -1)
    touched[0] = 77
    count, num_touched = kernels.spread(
        np.array([1, 2, 0]),
        np.array([2, 0, 2]),
        np.array([0.5, 1.0, 0.25]),
        np.array([3, 1, 0]),
        np.array([0.1, 1.0, 0.2]),
        starts,
        counts,
        neighbors,
        *labels.with_room(20 + 2 * long),
        labels.count,
        slots,
        7,
        touched,
        1,
    )
    labels.count = count
    # of parallel edges, each one; a node may be its own neighbour
    found = {int(key): slots[at] for at, key in enumerate(labels.nodes)}
    assert len(found) == count == 7 + 2 * long
    for seed, hop in ((5, 4), (0, 1)):
        assert found[seed << 32 | 4]["residual"] == pytest.approx(0.1)
        assert found[seed << 32 | 4]["hop"] == hop
        for node in (9, *range(20, 20 + long)):
            assert found[seed << 32 | node]["residual"] == pytest.approx(0.05)
    assert found[5 << 32 | 2]["residual"] == pytest.approx(0.05)
    assert [found[5 << 32 | 2]["hop"], found[2]["hop"]] == [0, 1], "by the shortest way"
    # slot 1 was listed in this turn already; a slot without a share is not listed
    listed = [int(labels.nodes[slot]) for slot in touched[1:num_touched]]
    assert listed[:2] == [5 << 32 | 4, 5 << 32 | 9]
    assert len(set(listed)) == len(listed) == 5 + 2 * long
    assert 1 << 32 not in listed
    assert 5 << 32 | 2 not in listed


def test_nodes_are_listed_when_they_are_first_met() -> None:
    known, out = np.array([-1, 3, -1, -1]), np.full(5, -9)
    keys = np.array([2, 1, 4 << 32 | 2, 1 << 32])
    found = kernels.first_met(np.array([2, 1, 0, 3]), keys, known, -1, 0, out)
    assert out[:found].tolist() == [2, 0]
    assert known.tolist() == [0, 3, 0, -1]


def test_a_slot_is_due_by_the_degree_of_its_node() -> None:
    degrees, keys = np.array([0, 4, 1]), np.array([1, 3 << 32 | 1, 0, 2])
    slots, out = _slots((0.4, 0, 0), (0.399, 0, 0), (0.1, 0, 0), (0.09, 0, 0)), np.empty(4, INT)
    found = kernels.due(np.array([3, 2, 1, 0]), keys, slots, degrees, 0.1, out)
    assert out[:found].tolist() == [2, 0], "at the bound too; no edges count as one"
    found = kernels.at_least(np.array([3, 2, 1, 0]), slots, 0.1, out)
    assert out[:found].tolist() == [2, 1, 0]


@pytest.mark.parametrize("most", [1, 2, 5, 30])
def test_the_first_of_each_seed_are_chosen_and_put_in_order(most: int) -> None:
    draw = np.random.default_rng(most)
    seeds = draw.integers(0, 3, 60)
    ids, pushed = draw.permutation(60), draw.random(60) < 0.5
    by = draw.integers(0, 4, 60) / 4  # many are equal
    sizes, chosen = np.zeros(4, INT), np.full((4, most), -1)
    kernels.largest(seeds, ids, pushed, by, sizes, chosen)
    for seed in range(4):
        mine = np.flatnonzero(seeds == seed)
        wanted = sorted(mine, key=lambda i: (not pushed[i], -by[i], ids[i]))[:most]
        assert set(chosen[seed, : sizes[seed]]) == set(wanted)
    kept = chosen[np.arange(most) < sizes[:, None]]
    order = np.empty(kept.size, INT)
    starts = np.concatenate([[0], sizes.cumsum()])
    kernels.ordered(starts, by[kept], ids[kept], order)
    found = kept[order]
    wanted = sorted(found, key=lambda i: (seeds[i], -by[i], ids[i]))
    assert found.tolist() == wanted


def test_load_compiles_every_kernel() -> None:
    kernels.load()
    names = ["take", "spread", "first_met", "at_least", "due", "candidates", "largest", "ordered"]
    assert all(getattr(kernels, name).signatures for name in names)
