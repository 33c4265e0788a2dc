"""Expected nodes and edges, against batches that are drawn one by one in plain Python."""

import random

import numpy as np
import pytest

from gigl_loader.errors import ConfigError
from gigl_loader.plan.expect import Degrees, expect


def _draw(neighbors: list[list[int]], fanouts, batch_size: int, rng) -> tuple[int, int]:
    """Return nodes and edges of one batch, by the definition."""
    seen = frontier = set(rng.sample(range(len(neighbors)), batch_size))
    edges = 0
    for fanout in fanouts:
        found = set()
        for node in frontier:
            others = neighbors[node]
            drawn = others if fanout == -1 else rng.sample(others, min(fanout, len(others)))
            edges += len(drawn)
            found |= set(drawn)
        frontier = found - seen
        seen = seen | found
    return len(seen), edges


def _graph(nodes: int, edges: int, skewed: bool, rng) -> list[list[int]]:
    pull = [(i + 1) ** -0.6 if skewed else 1.0 for i in range(nodes)]
    src = rng.choices(range(nodes), pull, k=edges)
    dst = rng.choices(range(nodes), pull if skewed else None, k=edges)
    neighbors = [[] for _ in range(nodes)]
    for a, b in zip(src, dst, strict=True):
        neighbors[b].append(a)
    return neighbors


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("fanouts", [(5,), (10, 5), (-1, 3), (0, 4), (6, 6, 6)])
def test_expected_sizes_are_those_of_drawn_batches(fanouts, skewed: bool) -> None:
    rng = random.Random(7)
    neighbors = _graph(4000, 40_000, skewed, rng)
    pulls = np.bincount([v for row in neighbors for v in row], minlength=4000)
    degrees = Degrees.measured(np.array([len(row) for row in neighbors]), pulls)
    found = expect(degrees, fanouts, 40)
    drawn = np.array([_draw(neighbors, fanouts, 40, rng) for _ in range(30)]).mean(0)
    assert found.nodes == pytest.approx(drawn[0], rel=0.06)
    assert found.edges == pytest.approx(drawn[1], rel=0.08)
    if not skewed:
        law = expect(Degrees.uniform(4000, 40_000), fanouts, 40)
        assert law.nodes == pytest.approx(drawn[0], rel=0.06)


@pytest.mark.parametrize("make", [Degrees.uniform, Degrees.power_law])
def test_a_law_has_the_edges_that_it_is_given(make) -> None:
    degrees = make(1e8, 1.6e9)
    assert degrees.share.sum() == pytest.approx(1)
    assert degrees.nodes * (degrees.share @ degrees.degree) == pytest.approx(1.6e9, rel=1e-3)
    assert degrees.share @ degrees.pull == pytest.approx(1, rel=1e-3)


def test_fanouts_that_reach_more_nodes_than_there_are_reach_all() -> None:
    found = expect(Degrees.uniform(1000, 50_000), (1000, 1000, 1000), 500)
    assert found.nodes == pytest.approx(1000, rel=1e-3)
    assert found.edges == pytest.approx(50_000, rel=1e-3)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="batch_size must be 1 to"):
        expect(Degrees.uniform(10, 20), (2,), 11)
    with pytest.raises(ConfigError, match="fanouts must be -1"):
        expect(Degrees.uniform(10, 20), (2, -2), 1)
