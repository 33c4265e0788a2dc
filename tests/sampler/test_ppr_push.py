"""Forward push against the exact vector, and against the bound of its source."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.sampler.plan import DrawRequest
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets
from tests.sampler.push_cases import push, vector
from tests.support.draws import examples


def exact(edges: list[tuple[int, int]], num_nodes: int, seed: int, alpha: float) -> Any:
    """Return the scores of all nodes by solving for them; walks end where there is no edge."""
    counts = np.zeros((num_nodes, num_nodes))
    for src, dst in edges:  # from a destination to its sources
        counts[dst, src] += 1
    step = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    start = np.eye(num_nodes)[seed]
    return alpha * np.linalg.solve(np.eye(num_nodes) - (1 - alpha) * step.T, start)


PAIRS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40)


@settings(deadline=None, max_examples=examples(60))
@given(PAIRS, st.floats(0.05, 0.95), st.floats(-6, -0.5), st.lists(st.integers(0, 11), max_size=4))
def test_the_bound_of_the_source_holds(pairs, alpha, log_eps, seeds) -> None:
    """On undirected graphs; edges may be repeated, and nodes may have none."""
    pairs = [(a, b) for a, b in pairs if a != b]
    edges = [edge for a, b in pairs for edge in ((a, b), (b, a))]
    store = GraphReader(as_worker_gets(TinyGraph.homogeneous(12, edges).dataset().view()), None)
    eps = 10**log_eps
    around, scores = push(store, seeds, alpha, eps)
    degrees = np.bincount([dst for _, dst in edges], minlength=12)
    for position, seed in enumerate(seeds):
        wanted = exact(edges, 12, seed, alpha)
        score = vector(around, scores, position, 12, "score")
        missing = wanted - score
        assert (missing >= -1e-12).all()
        assert (missing <= eps * np.maximum(degrees, 1) + 1e-12).all()
        residual = vector(around, scores, position, 12, "residual") / alpha
        assert (residual < eps * np.maximum(degrees, 1)).all()
        # and from the other side: no node but the seed was pushed before it was due
        least = alpha * np.minimum(eps * np.maximum(degrees, 1), 1)
        assert (score[score > 0] >= least[score > 0] * (1 - 1e-9)).all()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("eps", "is_due"), [(0.16, True), (0.17, False)])
def test_a_node_is_pushed_from_its_share_of_eps_on(eps: float, is_due: bool, count: int) -> None:
    """Node 1 has three edges, and gets a half of the seed's: due up to an eps of a sixth.

    On several partitions its degree is told by another one.
    """
    pairs = [(0, 1), (1, 2), (1, 3)]
    graph = TinyGraph.homogeneous(4, [edge for a, b in pairs for edge in ((a, b), (b, a))])
    views = [part.view() for part in graph.partitions(count)]
    for view in views:
        reader = GraphReader(as_worker_gets(view), InProcessPeers(views) if count > 1 else None)
        around, scores = push(reader, [0], 0.5, eps)
        found = vector(around, scores, 0, 4, "score"), vector(around, scores, 0, 4, "residual")
        assert (found[0] > 0).tolist() == [True, is_due, False, False]
        assert found[1][1] == (0 if is_due else 0.25)


def test_directed_graphs_converge_too_and_hops_are_counted() -> None:
    edges = [(1, 0), (2, 0), (3, 1), (4, 3), (0, 4), (3, 2)]
    for edge_dir in ("in", "out"):
        walked = edges if edge_dir == "in" else [(b, a) for a, b in edges]
        view = TinyGraph.homogeneous(6, walked).dataset(edge_dir=edge_dir).view()
        around, scores = push(GraphReader(as_worker_gets(view), None), [0, 5, 0], 0.3, 1e-9)
        for position, seed in enumerate([0, 5, 0]):
            found = vector(around, scores, position, 6, "score")
            assert found == pytest.approx(exact(edges, 6, seed, 0.3), abs=1e-8)
        assert vector(around, scores, 0, 6, "hop").tolist() == [0, 1, 1, 2, 3, 0]


def test_any_number_of_partitions_gives_the_same_bits() -> None:
    graph = TinyGraph.random(60, 400)
    alone = GraphReader(as_worker_gets(graph.dataset().view()), None)
    views = [part.view() for part in graph.partitions(3)]
    peers = InProcessPeers(views)
    shared = GraphReader(as_worker_gets(views[1]), peers)
    for how in ({}, {"fanout": 2}, {"max_fetches": 2}):
        _, wanted = push(alone, [3, 50, 3, 7], 0.2, 1e-4, **how)
        asked = len(peers.asked)
        _, found = push(shared, [3, 50, 3, 7], 0.2, 1e-4, **how)
        assert len(peers.asked) > asked
        for name in ("keys", "score", "slots"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
        if how == {"max_fetches": 2}:
            draws = [one for _, one in peers.asked[asked:] if isinstance(one, DrawRequest)]
            assert len(draws) == 3  # of the partition of a seed, then of both


def test_a_row_that_is_too_long_is_drawn_from() -> None:
    star = TinyGraph.homogeneous(41, [(i, 0) for i in range(1, 41)])
    store = GraphReader(as_worker_gets(star.dataset().view()), None)
    around, scores = push(store, [0], 0.5, 1e-6, fanout=10)
    score = vector(around, scores, 0, 41, "score")
    assert (score > 0).sum() == 11
    assert score[score > 0][1:] == pytest.approx(np.full(10, 0.5 * 0.5 / 10))
