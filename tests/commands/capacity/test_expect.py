"""Expected nodes and edges, against batches that are drawn one by one in plain Python."""

import random

import numpy as np
import pytest

from gigl_loader.commands.capacity.expect import (
    DegreeDistribution,
    expect,
    kept_share,
    reuse_horizon,
)
from gigl_loader.errors import ConfigError


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
    neighbors: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in zip(src, dst, strict=True):
        neighbors[b].append(a)
    return neighbors


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("fanouts", [(5,), (10, 5), (-1, 3), (0, 4), (6, 6, 6)])
def test_expected_sizes_are_those_of_drawn_batches(fanouts, skewed: bool) -> None:
    rng = random.Random(7)
    neighbors = _graph(4000, 40_000, skewed, rng)
    pulls = np.bincount([v for row in neighbors for v in row], minlength=4000)
    degrees = DegreeDistribution.measured(np.array([len(row) for row in neighbors]), pulls)
    found = expect(degrees, fanouts, 40)
    drawn = np.array([_draw(neighbors, fanouts, 40, rng) for _ in range(30)]).mean(0)
    assert found.nodes == pytest.approx(drawn[0], rel=0.06)
    assert found.edges == pytest.approx(drawn[1], rel=0.08)
    if not skewed:
        law = expect(DegreeDistribution.uniform(4000, 40_000), fanouts, 40)
        assert law.nodes == pytest.approx(drawn[0], rel=0.06)


@pytest.mark.parametrize("make", [DegreeDistribution.uniform, DegreeDistribution.power_law])
def test_a_law_has_the_edges_that_it_is_given(make) -> None:
    degrees = make(1e8, 1.6e9)
    assert degrees.share.sum() == pytest.approx(1)
    assert degrees.nodes * (degrees.share @ degrees.degree) == pytest.approx(1.6e9, rel=1e-3)
    assert degrees.share @ degrees.pull == pytest.approx(1, rel=1e-3)


def test_fanouts_that_reach_more_nodes_than_there_are_reach_all() -> None:
    found = expect(DegreeDistribution.uniform(1000, 50_000), (1000, 1000, 1000), 500)
    assert found.nodes == pytest.approx(1000, rel=1e-3)
    assert found.edges == pytest.approx(50_000, rel=1e-3)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="batch_size must be 1 to"):
        expect(DegreeDistribution.uniform(10, 20), (2,), 11)
    with pytest.raises(ConfigError, match="num_neighbors must be -1"):
        expect(DegreeDistribution.uniform(10, 20), (2, -2), 1)


def _hits_of_the_best(batches: list[np.ndarray], capacity: int) -> float:
    """Return the share of hits where those rows are kept that are used again soonest."""
    never = len(batches)
    next_use: dict[int, int] = {}
    uses = []
    for number in range(never - 1, -1, -1):
        uses.append({row: next_use.get(row, never) for row in batches[number].tolist()})
        next_use |= dict.fromkeys(batches[number].tolist(), number)
    kept: dict[int, int] = {}
    hits = asked = 0
    for number, after in enumerate(reversed(uses)):
        if number > never // 3:  # the cache is full by then
            hits, asked = hits + len(after.keys() & kept.keys()), asked + len(after)
        kept |= after
        kept = dict(sorted(kept.items(), key=lambda item: item[1])[:capacity])
    return hits / asked


def _kept(share: np.ndarray, log_missed: np.ndarray, cache: float) -> float:
    return kept_share(share, log_missed, reuse_horizon(share, log_missed, cache))


@pytest.mark.parametrize("cache", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("skewed", [False, True])
def test_a_cache_that_knows_the_future_has_the_expected_share(skewed: bool, cache: float) -> None:
    rng = np.random.default_rng(3)
    chance = 0.3 * (1 + np.arange(800)) ** -0.4 if skewed else np.full(800, 0.08)
    batches = [np.flatnonzero(rng.random(800) < chance) for _ in range(240)]
    found = _kept(np.full(800, 1 / 800), np.log1p(-chance), cache)
    assert found == pytest.approx(_hits_of_the_best(batches, round(cache * 800)), abs=0.03)


def test_a_cache_of_everything_has_everything_and_none_has_nothing() -> None:
    share, missed = np.array([0.5, 0.3, 0.2]), np.log1p(-np.array([0.9, 0.01, 0.0]))
    assert _kept(share, missed, 1.0) == pytest.approx(1.0)
    assert _kept(share, missed, 0.0) == 0.0
    assert _kept(share, np.zeros(3), 0.5) == 0.0


def test_batches_of_seeds_that_have_neighbours_are_larger() -> None:
    degrees = np.repeat([0, 40], 2000)
    graph = DegreeDistribution.measured(degrees, np.ones(4000), degrees > 0)
    assert expect(graph, (5,), 100).edges == pytest.approx(500)
    assert expect(
        DegreeDistribution.measured(degrees, np.ones(4000)), (5,), 100
    ).edges == pytest.approx(250)
