"""What is told of each node that is asked, and whether it can be."""

import numpy as np
import pytest

from gigl_loader.sampler.plan import TreesAndTimes


def test_a_part_of_the_nodes_takes_what_is_told_of_them() -> None:
    asked = TreesAndTimes(np.array([5, 6, 7]), np.array([1, 2, 3]), np.array([-1, -2, -3]))
    some = asked.take(np.array([2, 0, 2]))
    assert some.tree.tolist() == [7, 5, 7]
    assert some.until is not None
    assert some.since is not None
    assert some.until.tolist() == [3, 1, 3]
    assert some.since.tolist() == [-3, -1, -3]
    bare = TreesAndTimes(asked.tree).take(np.array([1]))
    assert (bare.tree.tolist(), bare.until, bare.since) == ([6], None, None)


GOOD = np.arange(3)


@pytest.mark.parametrize(
    ("told", "timed", "fits"),
    [
        ((GOOD,), False, True),
        ((GOOD,), True, False),
        ((GOOD, GOOD), True, True),
        ((GOOD, GOOD, GOOD), True, True),
        ((GOOD, None, GOOD), True, False),
        ((GOOD[:2],), False, False),
        ((GOOD[:, None],), False, False),
        ((GOOD.astype(np.int32),), False, False),
        ((GOOD, GOOD.astype(np.float64)), True, False),
        ((GOOD, GOOD, GOOD[:2]), True, False),
    ],
)
def test_each_node_needs_each_value(told: tuple, timed: bool, fits: bool) -> None:
    """They come from another machine, and kernels read as many as there are nodes."""
    assert TreesAndTimes(*told).fits(3, timed) is fits
