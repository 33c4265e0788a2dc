"""Loops of forward push, one turn at a time, with numbers that can be followed by hand."""

import numpy as np

from gigl_loader.sampler.kernels import ppr_kernels as kernels

INT = np.int64


def test_a_push_keeps_its_share_and_empties_the_residual() -> None:
    residual, score = np.array([0.5, 0.25, 0.0, 1.0]), np.array([0.0, 0.1, 0.2, 0.0])
    taken = np.empty(2)
    kernels.take(np.array([3, 1]), 0.4, residual, score, taken)
    assert taken.tolist() == [1.0, 0.25]
    assert residual.tolist() == [0.5, 0, 0, 0]
    np.testing.assert_allclose(score, [0.0, 0.1 + 0.4 * 0.25, 0.2, 0.4])


def test_each_neighbour_of_a_row_gets_the_same_keyed_by_seed() -> None:
    # slots 0 and 1: node 2 of seed 0, and of seed 5; slot 2: node 0 of seed 1, without a row
    seed_of, label_of, hop = np.array([0, 5, 1]), np.array([2, 2, 0]), np.array([0, 3, 1])
    starts, counts, neighbors = np.array([9, 0, 1]), np.array([0, 1, 2]), np.array([7, 4, 4])
    keys, shares, hops = np.zeros(9, INT), np.zeros(9), np.zeros(9, INT)
    found = kernels.spread(
        np.array([1, 2, 0]),
        np.array([0.5, 1.0, 0.25]),
        seed_of,
        label_of,
        hop,
        starts,
        counts,
        neighbors,
        np.array([0.1, 1.0, 0.2]),
        keys,
        shares,
        hops,
    )
    assert found == 4, "of parallel edges, each one"
    assert keys[:4].tolist() == [5 << 32 | 4, 5 << 32 | 4, 4, 4]
    np.testing.assert_allclose(shares[:4], [0.05, 0.05, 0.05, 0.05])
    assert hops[:4].tolist() == [4, 4, 1, 1]
    assert not keys[4:].any()


def test_what_comes_to_a_slot_adds_up_and_it_is_listed_once() -> None:
    residual, hop, seen = np.array([0.5, 0.0, 0.0]), np.array([3, 9, 9]), np.array([1, 2, 0])
    touched = np.full(5, -1)
    touched[0] = 77
    slots, shares, hops = np.array([2, 0, 2, 1]), np.array([0.1, 0.2, 0.3, 0.4]), np.arange(4, 8)
    assert kernels.receive(slots, shares, hops, residual, hop, seen, 2, touched, 1) == 3
    assert touched.tolist() == [77, 2, 0, -1, -1], "slot 1 was listed in this turn already"
    np.testing.assert_allclose(residual, [0.7, 0.4, 0.4])
    assert hop.tolist() == [3, 7, 4], "by the shortest way"
    assert seen.tolist() == [2, 2, 2]


def test_a_slot_is_due_by_the_degree_of_its_node() -> None:
    degrees, label_of = np.array([0, 4, 1]), np.array([1, 1, 0, 2])
    residual, out = np.array([0.4, 0.399, 0.1, 0.09]), np.empty(4, INT)
    found = kernels.due(np.array([3, 2, 1, 0]), label_of, residual, degrees, 0.1, out)
    assert out[:found].tolist() == [2, 0], "at the bound too; no edges count as one"


def test_load_compiles_every_kernel() -> None:
    kernels.load()
    names = ("take", "spread", "receive", "due")
    assert all(getattr(kernels, name).signatures for name in names)
