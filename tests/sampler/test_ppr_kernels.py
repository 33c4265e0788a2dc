"""Loops of forward push, one turn at a time, with numbers that can be followed by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.sampler.kernels import ppr_kernels as kernels
from gigl_loader.sampler.kernels.sampling_kernels import group_by_owner
from gigl_loader.sampler.nodes import NodeLabels
from tests.support.draws import examples

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
    slots[3:] = (5.0, 0, 7)  # of a former push
    score = np.full(20 + 2 * long, 9.0)
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
        score,
        7,
        touched,
        1,
    )
    labels.count = count
    assert score[3:count].tolist() == [0.0] * (count - 3)
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


@settings(deadline=None, max_examples=examples(200))
@given(st.data(), st.sampled_from([1, 2, 5, 30]), st.booleans())
def test_the_top_of_each_seed_is_that_of_sorted_slots(data: Any, most: int, topup: bool) -> None:
    """Against Python's sort; many values are equal, and slots of seeds and types are mixed."""
    sizes, type_bits, alpha = np.zeros(3, INT), 1, 0.5
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_nodes, size = 40, data.draw(st.integers(0, 90))
    codes = draw.permutation(num_nodes) << type_bits | draw.integers(0, 2, num_nodes)
    pairs = draw.permutation(3 * num_nodes)[:size]  # a node has one slot of a seed
    keys = (pairs // num_nodes) << 32 | pairs % num_nodes
    score = draw.integers(0, 4, size) / 4
    slots = np.zeros(size, kernels.SLOT)
    slots["residual"], slots["hop"] = draw.integers(0, 4, size) / 4, draw.integers(0, 3, size)
    by_seed = np.empty(size, INT)
    group_by_owner(keys >> 32, by_seed, sizes)
    out = *(np.empty(3 * most, INT) for _ in range(3)), np.empty((3 * most, 2))
    how = score, slots, alpha, topup, most
    count = kernels.top(by_seed, sizes, keys, codes, type_bits, 1, *how, out)
    wanted = []
    for seed in range(3):
        mine = [
            (at, int(codes[keys[at] & 0xFFFFFFFF] >> 1), alpha * slots["residual"][at])
            for at in np.flatnonzero(keys >> 32 == seed)
            if codes[keys[at] & 0xFFFFFFFF] & 1 == 1
        ]
        may = [one for one in mine if score[one[0]] > 0 or (topup and one[2] > 0)]
        may.sort(key=lambda o: (score[o[0]] == 0, -(score[o[0]] or o[2]), o[1]))
        chosen = [(score[at] + more * topup, node, at) for at, node, more in may[:most]]
        chosen.sort(key=lambda one: (-one[0], one[1]))
        wanted += [
            (seed, node, bool(score[at] > 0), total, 1 / (1 + slots["hop"][at]))
            for total, node, at in chosen
        ]
    found = zip(
        *(column[:count].tolist() for column in out[:3]), *out[3][:count].T.tolist(), strict=True
    )
    assert [(a, b, bool(c), d, e) for a, b, c, d, e in found] == wanted


def test_load_compiles_every_kernel() -> None:
    kernels.load()
    names = ["take", "spread", "first_met", "at_least", "due", "top"]
    assert all(getattr(kernels, name).signatures for name in names)
