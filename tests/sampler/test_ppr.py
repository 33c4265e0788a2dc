"""Batches of top nodes, by the sampler alone: what is a root, an edge, and a hop."""

from typing import Any

import numpy as np
import pytest

from gigl_loader.batch.message import (
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGE_TARGETS,
    EDGES_PER_HOP,
    NODES_PER_HOP,
    BatchTicket,
    key,
)
from gigl_loader.batch.message import NODE as IDS
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.sampler.options import PPRSamplerOptions
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.ppr.ppr_push import TopNodes
from gigl_loader.sampler.ppr.ppr_sampler import (
    merged,
    ppr_keywords,
    ppr_sampler,
    target_counts,
    top_nodes,
)
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets, sample_message
from tests.sampler.push_cases import push, vector

STAR = TinyGraph.homogeneous(6, [(1, 0), (2, 0), (3, 0), (0, 4)])
"""Walks go from 0 to 1, 2 and 3, evenly, and from 4 to 0; 5 is alone."""


def _sample(graph, seeds, *, parts=1, options=None, batch=0, extra=None, **how):
    views = (
        [part.view() for part in graph.partitions(parts)] if parts > 1 else [graph.dataset().view()]
    )
    input_type = how.pop("input_type", NODE)
    plan = SamplingPlan(
        input_type=input_type,
        fanouts={name: () for name in sorted(graph.edges)},
        seed=3,
        with_edge=True,
    )
    keywords = ppr_keywords(PPRSamplerOptions(**{"eps": 1e-9, "alpha": 0.5, **(options or {})}))
    peers = InProcessPeers(views) if parts > 1 else None
    seed_types = how.pop("seed_types", [input_type])
    sampler = ppr_sampler(
        as_worker_gets(views[0]), plan, peers, **keywords, seed_types=seed_types, **how
    )
    seeds = np.array(seeds)
    request = SampleRequest(BatchTicket(0, 1, 0, batch), seeds, np.arange(seeds.size), extra or {})
    return {name: value.numpy() for name, value in sample_message(sampler, request).items()}


@pytest.mark.parametrize("parts", [1, 2])
def test_scores_that_can_be_followed_by_hand(parts: int) -> None:
    found = _sample(STAR, [4, 5, 4], parts=parts)
    ids, (seed, position) = found[IDS], found[EDGE_INDEX]
    assert ids[:3].tolist() == [4, 5, 4], "seeds keep their places, repeats too"
    by_seed = [
        dict(
            zip(
                ids[position[seed == one]].tolist(),
                found[EDGE_FEATURES][seed == one].tolist(),
                strict=True,
            )
        )
        for one in range(3)
    ]
    expected: dict[int, Any] = {4: [1 / 2, 1.0], 0: [1 / 4, 1 / 2]}
    # a leaf has nowhere to go: what is not its score is gone; so is half of node 5's
    expected |= {leaf: [pytest.approx(1 / 24), pytest.approx(1 / 3)] for leaf in (1, 2, 3)}
    assert by_seed[0] == by_seed[2] == expected
    assert by_seed[1] == {5: [1 / 2, 1.0]}
    assert found[NODES_PER_HOP].tolist() == [3, 4]
    assert found[EDGES_PER_HOP].size == 0


def test_a_node_takes_no_more_than_its_positions() -> None:
    found = _sample(STAR, [4], options={"max_ppr_nodes": 2})
    assert found[IDS].tolist() == [4, 0]
    found = _sample(STAR, [0, 4], options={"max_ppr_nodes": 1})
    assert found[IDS][found[EDGE_INDEX][1]].tolist() == [0, 4]


def test_long_rows_are_drawn_from_by_key_and_the_batch_is_part_of_it() -> None:
    wide = TinyGraph.homogeneous(61, [(i, 0) for i in range(1, 61)])
    options = {"num_neighbors_per_hop": 5}
    drawn = [
        _sample(wide, [0], options=options, batch=batch, parts=parts)[IDS].tolist()
        for batch, parts in ((0, 1), (0, 2), (1, 1))
    ]
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) != set(drawn[2])
    assert len(drawn[0]) == len(drawn[2]) == 6


def test_edges_that_were_followed_are_those_among_the_nodes_of_the_batch() -> None:
    users = TinyGraph(
        {"item": 3, "user": 2},
        {
            ("item", "rev", "user"): [(0, 0), (1, 0), (2, 1), (0, 1)],
            ("user", "buys", "item"): [(1, 0)],
        },
    )
    found = _sample(
        users, [0], input_type="user", options={"include_sampled_edges": True, "max_ppr_nodes": 1}
    )
    item, user = found[key(IDS, "item")], found[key(IDS, "user")]
    assert user.tolist() == [0], "itself; user 1 is two steps away"
    assert item.tolist() == [0], "it gets what comes back from user 1, too"
    edges = {name: found[key(EDGE_INDEX, name)].tolist() for name in users.edges}
    assert edges == {
        ("item", "rev", "user"): [[0], [0]],  # not from item 1, nor to user 1
        ("user", "buys", "item"): [[], []],
    }
    assert found[key("e_id", ("item", "rev", "user"))].tolist() == [0]


def test_seeds_of_a_subgraph_push_once() -> None:
    found = _sample(STAR, [4, 5, 4], around="subgraph_sampler", roots={})
    assert found[IDS][:2].tolist() == [4, 5]
    seed, position = found[EDGE_INDEX]
    assert set(seed.tolist()) == {0, 1}, "4 is one root, though it is two seeds"
    assert set(found[IDS][position[seed == 0]].tolist()) == {4, 0, 1, 2, 3}


def test_seed_edges_push_from_both_ends() -> None:
    found = _sample(
        STAR,
        [4],
        around="edge_sampler",
        roots={"edge_type": EDGE, "negatives": None},
        extra={EDGE_TARGETS: np.array([5])},
    )
    seed, position = found[EDGE_INDEX]
    assert found[IDS][:2].tolist() == [4, 5]
    assert set(found[IDS][position[seed == 0]].tolist()) == {4, 0, 1, 2, 3}
    assert found[IDS][position[seed == 1]].tolist() == [5]


def test_the_top_is_of_the_largest_scores_and_fills_up_with_residuals() -> None:
    path = [edge for i in range(9) for edge in ((i, i + 1), (i + 1, i))]
    store = GraphReader(as_worker_gets(TinyGraph.homogeneous(10, path).dataset().view()), None)
    around, slots = push(store, [4, 0], 0.5, 0.05)
    for topup in (False, True):
        for most in (1, 3, 20):
            top = top_nodes(slots, around, NODE, most, topup=topup)
            for position in (0, 1):
                score = vector(around, slots, position, 10, "score")
                total = score + vector(around, slots, position, 10, "residual") * topup
                pushed = sorted(np.flatnonzero(score), key=lambda i: (-score[i], i))
                others = sorted(
                    set(np.flatnonzero(total)) - set(pushed), key=lambda i: (-total[i], i)
                )
                wanted = sorted((pushed + others)[:most], key=lambda i: (-total[i], i))
                mine = top.seed == position
                assert top.ids[mine].tolist() == wanted
                assert top.values[mine, 0].tolist() == total[wanted].tolist()
                hops = np.abs(np.array(wanted) - [4, 0][position])
                assert (top.values[mine, 1] == 1 / (1 + hops)).all()


def _top(rows: list[tuple[int, int, float, float]]) -> Any:
    seed, ids, score, near = (np.array([row[i] for row in rows]) for i in range(4))
    return TopNodes(
        seed.astype(int), ids.astype(int), np.stack([score, near], 1), 0 * seed.astype(int)
    )


def test_channels_fill_their_positions_and_then_the_best_do() -> None:
    first = _top([(0, 7, 0.9, 1.0), (0, 8, 0.5, 0.5), (0, 9, 0.4, 0.5), (1, 7, 0.2, 0.5)])
    second = _top([(0, 9, 0.6, 0.25), (0, 5, 0.1, 0.5)])
    found = merged([first, second], [1, 1])
    assert list(zip(found.seed.tolist(), found.ids.tolist(), strict=True)) == [
        (0, 7),
        (0, 9),
        (1, 7),
    ]
    assert found.values.tolist() == [
        [0.9, 1.0, 0.9, 1.0, 1.0, 0.0, 0.0, 0.0],
        [0.6, 0.5, 0.4, 0.5, 1.0, 0.6, 0.25, 1.0],
        [0.2, 0.5, 0.2, 0.5, 1.0, 0.0, 0.0, 0.0],
    ]
    more = merged([first, second], [1, 3])  # two positions of the second are left over
    assert more.ids[more.seed == 0].tolist() == [7, 9, 8, 5]
    assert merged([_top([])] * 2, [1, 1]).values.shape == (0, 8)


def test_targets_add_up() -> None:
    assert target_counts([0.6, 0.4], 200) == [120, 80]
    assert target_counts([1 / 3, 1 / 3, 1 / 3], 5) == [2, 2, 1]
    assert target_counts([0.5, 0.5], 1) == [1, 0]
