"""Bounds of a batch: no batch is larger, and some batch is as large."""

import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.sampler.batch_bounds import BatchBounds, batch_bounds
from tests.support.draws import examples

USER, ITEM = "user", "item"
RATES, RATED, KNOWS = (USER, "rates", ITEM), (ITEM, "rated", USER), (USER, "knows", USER)


def _grow(
    fanouts: dict,
    roots: dict,
    num_nodes: dict,
    *,
    edge_dir: str,
    disjoint: bool,
    repeat: bool,
    rng: random.Random,
    edges_of: dict | None = None,
) -> BatchBounds:
    """Return the counts of one batch that is grown as the sampler grows it, of drawn neighbours.

    With ``edges_of``, by type the (expanded node, neighbour) of each edge, they are drawn without
    replacement; else any node may be any other's neighbour.
    """
    expanded, neighbor = (2, 0) if edge_dir == "in" else (0, 2)
    trees = 0
    known: dict = {name: [] for name in num_nodes}
    for name, count in roots.items():
        for _ in range(count):
            node = (trees if disjoint else 0, rng.randrange(num_nodes[name]))
            trees += 1
            if repeat or disjoint or node not in known[name]:
                known[name].append(node)
    start = {name: 0 for name in num_nodes}
    per_hop = {name: [len(nodes)] for name, nodes in known.items()}
    edges: dict = {name: [] for name in fanouts}
    for hop in range(len(next(iter(fanouts.values())))):
        stop = {name: len(nodes) for name, nodes in known.items()}
        for name, fanout in fanouts.items():
            drawn = 0
            for tree, origin in known[name[expanded]][start[name[expanded]] : stop[name[expanded]]]:
                edges_here = None if edges_of is None else edges_of[name]
                count = num_nodes[name[neighbor]]
                for other in _draw(edges_here, origin, fanout[hop], count, rng):
                    node = (tree, other)
                    drawn += 1
                    if node not in known[name[neighbor]]:
                        known[name[neighbor]].append(node)
            edges[name].append(drawn)
        for name, nodes in known.items():
            per_hop[name].append(len(nodes) - stop[name])
        start = stop
    return BatchBounds(
        {name: tuple(counts) for name, counts in per_hop.items()},
        {name: tuple(counts) for name, counts in edges.items()},
        {name: len(nodes) for name, nodes in known.items()},
        {name: sum(counts) for name, counts in edges.items()},
    )


def _draw(
    edges: list | None, origin: int, fanout: int, num_nodes: int, rng: random.Random
) -> list[int]:
    """Return the neighbours that are drawn for a node."""
    if edges is None:
        return [rng.randrange(num_nodes) for _ in range(fanout)]
    others = [other for one, other in edges if one == origin]
    return rng.sample(others, min(fanout, len(others)))


def _fits(found: BatchBounds, bound: BatchBounds) -> bool:
    pairs = [
        *((counts, bound.nodes_per_hop[name]) for name, counts in found.nodes_per_hop.items()),
        *((counts, bound.edges_per_hop[name]) for name, counts in found.edges_per_hop.items()),
    ]
    per_hop = [all(a <= b for a, b in zip(*pair, strict=True)) for pair in pairs]
    return (
        all(per_hop)
        and all(count <= bound.nodes[name] for name, count in found.nodes.items())
        and all(count <= bound.edges[name] for name, count in found.edges.items())
    )


@settings(max_examples=examples(300), deadline=None)
@given(
    hops=st.integers(0, 3),
    data=st.data(),
    edge_dir=st.sampled_from(["in", "out"]),
    disjoint=st.booleans(),
    repeat=st.booleans(),
    number=st.integers(0, 2**32),
)
def test_no_batch_is_larger(
    hops: int, data: st.DataObject, edge_dir: str, disjoint: bool, repeat: bool, number: int
) -> None:
    fanouts = {
        name: tuple(data.draw(st.lists(st.integers(0, 3), min_size=hops, max_size=hops)))
        for name in (RATES, RATED, KNOWS)
    }
    num_nodes = {USER: data.draw(st.integers(1, 12)), ITEM: data.draw(st.integers(1, 30))}
    roots = {USER: data.draw(st.integers(0, 4)), ITEM: data.draw(st.integers(0, 2))}
    bound = batch_bounds(
        fanouts, roots, num_nodes, edge_dir=edge_dir, disjoint=disjoint, roots_repeat=repeat
    )
    found = _grow(
        fanouts,
        roots,
        num_nodes,
        edge_dir=edge_dir,
        disjoint=disjoint,
        repeat=repeat,
        rng=random.Random(number),
    )
    assert _fits(found, bound), (found, bound)
    if repeat is False and not disjoint:
        assert all(bound.nodes[name] <= count for name, count in num_nodes.items())


@settings(max_examples=examples(300), deadline=None)
@given(
    hops=st.integers(0, 3),
    data=st.data(),
    edge_dir=st.sampled_from(["in", "out"]),
    disjoint=st.booleans(),
    repeat=st.booleans(),
    rng=st.randoms(use_true_random=False),
)
def test_no_batch_has_more_edges_than_the_graph_gives(
    hops: int, data: st.DataObject, edge_dir: str, disjoint: bool, repeat: bool, rng: random.Random
) -> None:
    types = (RATES, RATED, KNOWS)
    fanouts = {
        name: tuple(data.draw(st.lists(st.integers(0, 9), min_size=hops, max_size=hops)))
        for name in types
    }
    num_nodes = {USER: data.draw(st.integers(1, 5)), ITEM: data.draw(st.integers(1, 5))}
    roots = {USER: data.draw(st.integers(0, 4)), ITEM: data.draw(st.integers(0, 2))}
    expanded, neighbor = (2, 0) if edge_dir == "in" else (0, 2)
    edges_of = {
        name: [
            (rng.randrange(num_nodes[name[expanded]]), rng.randrange(num_nodes[name[neighbor]]))
            for _ in range(data.draw(st.integers(0, 8)))
        ]
        for name in types
    }
    num_edges = {name: len(edges) for name, edges in edges_of.items()}
    if data.draw(st.booleans()):
        del num_edges[data.draw(st.sampled_from(types))]  # one that is not known
    how: dict = {"edge_dir": edge_dir, "disjoint": disjoint}
    bound = batch_bounds(fanouts, roots, num_nodes, roots_repeat=repeat, num_edges=num_edges, **how)
    found = _grow(fanouts, roots, num_nodes, repeat=repeat, rng=rng, edges_of=edges_of, **how)
    assert _fits(found, bound), (found, bound)
    before = batch_bounds(fanouts, roots, num_nodes, roots_repeat=repeat, **how)
    assert _fits(bound, before), "the graph's edges make no bound larger"
    if not (repeat or disjoint):
        assert all(bound.edges[name] <= count for name, count in num_edges.items())


def test_edges_of_the_graph_limit_huge_fan_outs() -> None:
    """3 seeds, 59 other nodes: 62 places with 20 neighbours each were 1,240 edges, of 400."""

    def most(**how: Any) -> int:
        bound = batch_bounds({KNOWS: (20, 20)}, {USER: 3}, {USER: 60}, edge_dir="in", **how)
        return bound.edges[KNOWS]

    edges = {KNOWS: 400}
    assert most() == 1240
    assert most(num_edges=edges, roots_repeat=False) == 400
    assert most(num_edges=edges) == 400 + 2 * 20, "a seed that comes again draws again"
    assert most(num_edges=edges, disjoint=True) == 3 * 400, "each tree has the graph's edges"


def test_a_node_is_found_by_an_edge() -> None:
    bound = batch_bounds(
        {KNOWS: (10, 10)}, {USER: 1}, {USER: 10**6}, edge_dir="in", num_edges={KNOWS: 7}
    )
    assert bound == BatchBounds({USER: (1, 7, 7)}, {KNOWS: (7, 7)}, {USER: 1 + 7}, {KNOWS: 7})


def test_a_graph_without_a_common_neighbour_reaches_the_bound() -> None:
    bound = batch_bounds({KNOWS: (3, 2)}, {USER: 4}, {USER: 10**9}, edge_dir="in")
    assert bound == BatchBounds(
        {USER: (4, 12, 24)}, {KNOWS: (12, 24)}, {USER: 4 + 12 + 24}, {KNOWS: 12 + 24}
    )


def test_a_small_graph_limits_nodes_and_with_them_edges() -> None:
    # 12 others at most, and the root that comes four times: 16 places. Of these 12 are expanded in
    # the first hop that can expand them, which draws 10 each; none is left for the last.
    bound = batch_bounds({KNOWS: (10, 10, 2)}, {USER: 4}, {USER: 13}, edge_dir="in")
    assert bound.nodes == {USER: 16}
    assert bound.edges == {KNOWS: 4 * 10 + 12 * 10}


def test_types_are_bounded_each_by_what_leads_to_it() -> None:
    fanouts = {RATES: (2, 2), RATED: (3, 3)}
    bound = batch_bounds(fanouts, {ITEM: 5}, {USER: 10**6, ITEM: 10**6}, edge_dir="in")
    assert bound.nodes_per_hop == {ITEM: (5, 0, 30), USER: (0, 10, 0)}
    assert bound.edges_per_hop == {RATES: (10, 0), RATED: (0, 30)}
    turned = batch_bounds(fanouts, {ITEM: 5}, {USER: 10**6, ITEM: 10**6}, edge_dir="out")
    assert turned.nodes_per_hop == {ITEM: (5, 0, 30), USER: (0, 15, 0)}


def test_all_neighbours_are_bounded_by_the_largest_degree_alone() -> None:
    given = ({KNOWS: (-1, 2)}, {USER: 4}, {USER: 10**6})
    with pytest.raises(ConfigError, match=r"num_neighbors of \('user', 'knows', 'user'\)"):
        batch_bounds(*given, edge_dir="in")
    bound = batch_bounds(*given, edge_dir="in", degrees={KNOWS: 7})
    assert bound.edges == {KNOWS: 4 * 7 + 28 * 2}


def test_bounds_are_computed_without_torch() -> None:
    code = "import sys, gigl_loader.sampler.batch_bounds; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
