"""Labels of nodes, merged or in trees, and the tables behind them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.sampler.nodes import BatchNodes, NodeLabels, TreeLabels
from tests.support.draws import examples

IDS = st.lists(st.integers(0, 40) | st.integers(2**40, 2**40 + 3), max_size=60)


def _array(ids: list[int]) -> np.ndarray:
    return np.array(ids, np.int64)


@settings(max_examples=examples(200))
@given(seeds=IDS, more=st.lists(IDS, max_size=4), asked=IDS)
def test_labels_count_up_in_order_of_first_appearance(
    seeds: list[int], more: list[list[int]], asked: list[int]
) -> None:
    labels = NodeLabels()
    for _ in range(2):  # used again for the next batch
        labels.reset()
        labels.append(_array(seeds))
        nodes = list(seeds)  # a repeated seed keeps its place
        for ids in more:
            found = labels.label(_array(ids))
            for one in ids:
                if one not in nodes:
                    nodes.append(one)
            assert found.tolist() == [nodes.index(one) for one in ids]
        assert labels.nodes.tolist() == nodes
        known = [nodes.index(one) if one in nodes else -1 for one in asked]
        assert labels.find(_array([*asked, -1])).tolist() == [*known, -1]
        assert labels.count == len(nodes), "find() adds nothing"


def test_labels_grow_past_every_size() -> None:
    labels = NodeLabels()
    ids = np.random.default_rng(0).permutation(200_000) * 10_007
    for part in np.split(ids, range(30_000, 200_000, 30_000)):
        start = labels.count
        assert np.array_equal(labels.label(part), np.arange(start, start + part.size))
    assert np.array_equal(labels.label(ids), np.arange(200_000))
    assert np.array_equal(labels.nodes, ids)


def test_a_batch_is_labelled_in_memory_of_the_batch() -> None:
    """Ids of a graph of 2**60 nodes: whatever held a position per node could not even be asked
    for."""
    labels = NodeLabels()
    ids = np.arange(5000) * 2**47 + 2**58
    labels.label(ids)  # compiles, and reserves
    labels.reset()
    tracemalloc.start()
    try:
        assert np.array_equal(labels.label(ids), np.arange(5000))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert labels._table.nbytes + labels._nodes.nbytes < 1_000_000


TREE_IDS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), min_size=1, max_size=40)


@settings(max_examples=examples(150))
@given(
    roots=st.lists(st.integers(0, 30), min_size=6, max_size=6),
    more=st.lists(TREE_IDS, max_size=4),
    num_trees=st.sampled_from([6, 7, 5000]),
)
def test_labels_of_trees_count_up_too(roots, more, num_trees: int) -> None:
    labels, others = TreeLabels(bits=5), TreeLabels(bits=9)
    for _ in range(2):
        labels.reset()
        others.reset()
        labels.append(np.arange(6) << 5 | _array(roots))
        nodes = list(enumerate(roots))
        known: list[tuple[int, int]] = []
        for found in more:
            trees, ids = (_array(list(column)) for column in zip(*found, strict=True))
            for target, known_there in ((labels, nodes), (others, known)):
                known_there += list(dict.fromkeys(o for o in found if o not in known_there))
                reached = target.label_ids(ids, labels, trees, num_trees)  # root k is of tree k
                assert reached.tolist() == [known_there.index(one) for one in found]
        assert labels.nodes.tolist() == [tree << 5 | node for tree, node in nodes]
        assert others.nodes.tolist() == [tree << 9 | node for tree, node in known]


def test_one_large_tree_among_small_ones() -> None:
    """It leaves the positions that trees have near each other, and is found all the same."""
    labels = TreeLabels(bits=20)
    labels.append(np.arange(1000) << 20 | 2**19)
    ids = np.random.default_rng(0).permutation(2**19)
    for part in np.split(ids, 4):  # the table grows, and what it held is entered anew
        start = labels.count
        found = labels.label_ids(part, labels, np.full(part.size, 500), 1000)
        assert np.array_equal(found, np.arange(start, start + part.size))
    assert np.array_equal(
        labels.label_ids(ids, labels, np.full(ids.size, 500), 1000) - 1000, np.arange(ids.size)
    )
    assert labels.label_ids(ids[:3], labels, _array([1, 1, 500]), 1000).tolist()[2] == 1002


@pytest.mark.parametrize("ids", [[0, 4096, 8192, 12288], [2**62, 2**62 - 1, 0, 1]])
def test_ids_that_may_collide(ids: list[int]) -> None:
    labels = NodeLabels()
    assert labels.label(_array(ids * 2)).tolist() == [0, 1, 2, 3] * 2


# --- all nodes of a batch -------------------------------------------------------------------------


def test_merged_roots_and_what_is_reached_from_them() -> None:
    nodes = BatchNodes({"item": 9, "user": 9})
    for _ in range(2):
        nodes.reset()
        assert nodes.place("user", _array([5, 5, 3])).tolist() == [0, 1, 2]
        assert nodes.label("user", _array([3, 7, 5])).tolist() == [2, 3, 0]
        items = nodes.label_ids("item", _array([1, 1, 0]), "user", _array([0, 1, 2]))
        assert items.tolist() == [0, 0, 1]
        assert nodes.find("user", _array([7, 8])).tolist() == [3, -1]
        assert (nodes.count("user"), nodes.count("item")) == (4, 2)
        assert nodes.ids("user", 1, 3).tolist() == [5, 3]
    assert nodes.types == ["item", "user"]


def test_each_root_starts_a_tree_and_a_node_is_in_several() -> None:
    nodes = BatchNodes({"item": 9, "user": 300}, disjoint=True)
    for _ in range(2):
        nodes.reset()
        nodes.place("user", _array([299, 4]))
        assert nodes.label("item", _array([8, 8]), _array([1, 0])).tolist() == [0, 1], "no merging"
        assert nodes.seeds.tolist() == [0, 1, 1, 0], "trees 2 and 3 are of seeds 1 and 0"
        assert nodes.trees("item").tolist() == [2, 3]
        reached = nodes.label_ids("user", _array([4, 4, 299, 4]), "item", _array([0, 1, 0, 0]))
        assert reached.tolist() == [2, 3, 4, 2]
        assert nodes.ids("user").tolist() == [299, 4, 4, 4, 299]
        assert nodes.trees("user", 2).tolist() == [2, 3, 2]
        nodes.write_seeds("user", out := np.empty(5, np.int64))
        assert out.tolist() == [0, 1, 1, 0, 1]


def test_seeds_of_one_time_share_a_tree() -> None:
    nodes = BatchNodes({"user": 30}, disjoint=True, by_time=True)
    nodes.reset(np.array([9.0, 4.0, 9.0]))
    assert nodes.seeds.tolist() == [1, 0], "trees by time, each named by its first seed"
    assert nodes.place("user", _array([7, 7, 7])).tolist() == [0, 1, 2], "positions are kept"
    assert nodes.trees("user").tolist() == [1, 0, 1]
    more = nodes.label("user", _array([7, 8, 8]), _array([2, 0, 2]))
    assert more.tolist() == [0, 3, 3], "found in the tree of its seed, by the first that is there"
    nodes.reset(np.array([1.0]))
    assert nodes.seeds.tolist() == [0]
    nodes.reset()
    assert nodes.seeds.size == 0
