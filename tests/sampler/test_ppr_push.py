"""Forward push against the exact vector, and against the bound of its source."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGES
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODES
from gigl_loader.sampler.ppr_push import ForwardPush, Neighbourhood, Slots
from gigl_loader.sampler.ppr_top import merged, target_counts, top_nodes
from gigl_loader.sampler.questions import Draw, DrawRequest
from gigl_loader.sampler.store import GraphStore
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets


def exact(edges: list[tuple[int, int]], num_nodes: int, seed: int, alpha: float) -> Any:
    """Return the scores of all nodes by solving for them; walks end where there is no edge."""
    counts = np.zeros((num_nodes, num_nodes))
    for src, dst in edges:  # from a destination to its sources
        counts[dst, src] += 1
    step = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    start = np.eye(num_nodes)[seed]
    return alpha * np.linalg.solve(np.eye(num_nodes) - (1 - alpha) * step.T, start)


def push(store: GraphStore, seeds: list[int], alpha: float, eps: float, **how: Any) -> Any:
    fanout = how.pop("fanout", -1)
    around = Neighbourhood(store, {EDGES: (NODES, NODES)}, {EDGES: Draw(EDGES, fanout, 5)}, [NODES])
    return around, ForwardPush(around, [EDGES], alpha, eps, **how).run(NODES, np.array(seeds))


def vector(around: Neighbourhood, slots: Slots, seed: int, num_nodes: int, name: str) -> Any:
    values = np.zeros(num_nodes)
    mine = slots.seed == seed
    _, ids = around.ids(NODES, slots.node[mine])
    assert len(set(ids.tolist())) == ids.size, "a node has two slots"
    values[ids] = getattr(slots, name)[mine]
    return values


PAIRS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40)


@settings(deadline=None, max_examples=60)
@given(PAIRS, st.floats(0.05, 0.95), st.floats(-6, -0.5), st.lists(st.integers(0, 11), max_size=4))
def test_the_bound_of_the_source_holds(pairs, alpha, log_eps, seeds) -> None:
    """On undirected graphs; edges may be repeated, and nodes may have none."""
    pairs = [(a, b) for a, b in pairs if a != b]
    edges = [edge for a, b in pairs for edge in ((a, b), (b, a))]
    store = GraphStore(as_worker_gets(TinyGraph.homogeneous(12, edges).dataset().view()), None)
    eps = 10**log_eps
    around, slots = push(store, seeds, alpha, eps)
    degrees = np.bincount([dst for _, dst in edges], minlength=12)
    for place, seed in enumerate(seeds):
        wanted = exact(edges, 12, seed, alpha)
        missing = wanted - vector(around, slots, place, 12, "score")
        assert (missing >= -1e-12).all()
        assert (missing <= eps * np.maximum(degrees, 1) + 1e-12).all()
        residual = vector(around, slots, place, 12, "residual") / alpha
        assert (residual < eps * np.maximum(degrees, 1)).all()


def test_directed_graphs_converge_too_and_hops_are_counted() -> None:
    edges = [(1, 0), (2, 0), (3, 1), (4, 3), (0, 4), (3, 2)]
    for edge_dir in ("in", "out"):
        walked = edges if edge_dir == "in" else [(b, a) for a, b in edges]
        view = TinyGraph.homogeneous(6, walked).dataset(edge_dir=edge_dir).view()
        around, slots = push(GraphStore(as_worker_gets(view), None), [0, 5, 0], 0.3, 1e-9)
        for place, seed in enumerate([0, 5, 0]):
            found = vector(around, slots, place, 6, "score")
            assert found == pytest.approx(exact(edges, 6, seed, 0.3), abs=1e-8)
        assert vector(around, slots, 0, 6, "hop").tolist() == [0, 1, 1, 2, 3, 0]


def test_any_number_of_partitions_gives_the_same_bits() -> None:
    graph = TinyGraph.random(60, 400)
    alone = GraphStore(as_worker_gets(graph.dataset().view()), None)
    views = [part.view() for part in graph.partitions(3)]
    peers = InProcessPeers(views)
    shared = GraphStore(as_worker_gets(views[1]), peers)
    for how in ({}, {"fanout": 2}, {"max_fetches": 2}):
        _, wanted = push(alone, [3, 50, 3, 7], 0.2, 1e-4, **how)
        asked = len(peers.asked)
        _, found = push(shared, [3, 50, 3, 7], 0.2, 1e-4, **how)
        assert len(peers.asked) > asked
        for name in ("seed", "node", "score", "residual", "hop"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
        if how == {"max_fetches": 2}:
            draws = [one for _, one in peers.asked[asked:] if isinstance(one, DrawRequest)]
            assert 0 < len(draws) <= 4  # of each other partition, twice


def test_a_row_that_is_too_long_is_drawn_from() -> None:
    star = TinyGraph.homogeneous(41, [(i, 0) for i in range(1, 41)])
    store = GraphStore(as_worker_gets(star.dataset().view()), None)
    around, slots = push(store, [0], 0.5, 1e-6, fanout=10)
    score = vector(around, slots, 0, 41, "score")
    assert (score > 0).sum() == 11
    assert score[score > 0][1:] == pytest.approx(np.full(10, 0.5 * 0.5 / 10))


def test_the_top_is_of_the_largest_scores_and_fills_up_with_residuals() -> None:
    path = [edge for i in range(9) for edge in ((i, i + 1), (i + 1, i))]
    store = GraphStore(as_worker_gets(TinyGraph.homogeneous(10, path).dataset().view()), None)
    around, slots = push(store, [4, 0], 0.5, 0.05)
    for topup in (False, True):
        for most in (1, 3, 20):
            top = top_nodes(slots, around, NODES, most, topup=topup)
            for place in (0, 1):
                score = vector(around, slots, place, 10, "score")
                total = score + vector(around, slots, place, 10, "residual") * topup
                pushed = sorted(np.flatnonzero(score), key=lambda i: (-score[i], i))
                others = sorted(
                    set(np.flatnonzero(total)) - set(pushed), key=lambda i: (-total[i], i)
                )
                wanted = sorted((pushed + others)[:most], key=lambda i: (-total[i], i))
                mine = top.seed == place
                assert top.ids[mine].tolist() == wanted
                assert top.values[mine, 0].tolist() == total[wanted].tolist()
                hops = np.abs(np.array(wanted) - [4, 0][place])
                assert (top.values[mine, 1] == 1 / (1 + hops)).all()


def _top(rows: list[tuple[int, int, float, float]]) -> Any:
    from gigl_loader.sampler.ppr_top import Top

    seed, ids, score, near = (np.array([row[i] for row in rows]) for i in range(4))
    return Top(seed.astype(int), ids.astype(int), np.stack([score, near], 1))


def test_channels_fill_their_places_and_then_the_best_do() -> None:
    first = _top([(0, 7, 0.9, 1.0), (0, 8, 0.5, 0.5), (0, 9, 0.4, 0.5), (1, 7, 0.2, 0.5)])
    second = _top([(0, 9, 0.6, 0.25), (0, 5, 0.1, 0.5)])
    found = merged([first, second], [1, 1])
    assert list(zip(found.seed.tolist(), found.ids.tolist(), strict=True)) == [
        (0, 7), (0, 9), (1, 7),
    ]  # fmt: skip
    assert found.values.tolist() == [
        [0.9, 1.0, 0.9, 1.0, 1.0, 0.0, 0.0, 0.0],
        [0.6, 0.5, 0.4, 0.5, 1.0, 0.6, 0.25, 1.0],
        [0.2, 0.5, 0.2, 0.5, 1.0, 0.0, 0.0, 0.0],
    ]
    more = merged([first, second], [1, 3])  # two places of the second are left over
    assert more.ids[more.seed == 0].tolist() == [7, 9, 8, 5]
    assert merged([_top([])] * 2, [1, 1]).values.shape == (0, 8)


def test_targets_add_up() -> None:
    assert target_counts([0.6, 0.4], 200) == [120, 80]
    assert target_counts([1 / 3, 1 / 3, 1 / 3], 5) == [2, 2, 1]
    assert target_counts([0.5, 0.5], 1) == [1, 0]
