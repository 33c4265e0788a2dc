"""A batch that is split: any graph, any sizes that one seed fits."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import DistNeighborLoader
from gigl_loader.testing import TinyGraph
from tests.loader.pad_cases import check_dead, one_shape, real, seeds_of
from tests.support.draws import examples

pytestmark = [pytest.mark.usefixtures("group")]

Tree = tuple[int, tuple[Any, ...]]


def _trees(batch: Any, hops: int) -> list[Tree]:
    """Return what a model of so many layers sees of each seed: the walks that end there, as ids."""
    sources = defaultdict(list)
    edge_ids = batch.e_id.tolist()
    for edge_id, (source, target) in zip(edge_ids, batch.edge_index.t().tolist(), strict=True):
        sources[target].append((edge_id, source))
    ids = batch.n_id.tolist()

    def tree(node: int, depth: int) -> Tree:
        found = sources[node] if depth else []
        return ids[node], tuple(sorted((edge, tree(one, depth - 1)) for edge, one in found))

    return [tree(seed, hops) for seed in range(batch.input_id.numel())]


@settings(max_examples=examples(40), deadline=None)
@given(
    graph=st.builds(
        TinyGraph.random, st.integers(5, 60), st.integers(0, 300), seed=st.integers(0, 99)
    ),
    fanouts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    batch_size=st.integers(1, 20),
    room=st.floats(0, 1),
    disjoint=st.booleans(),
    data=st.data(),
)
def test_each_seed_of_a_part_sees_what_it_saw_in_the_whole_batch(
    graph: TinyGraph, fanouts: list[int], batch_size: int, room: float, disjoint: bool, data: Any
) -> None:
    (num_nodes,) = graph.num_nodes.values()
    drawn = data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=40))
    how: dict[str, Any] = {
        "num_neighbors": fanouts,
        "batch_size": batch_size,
        "seed": 3,
        "num_workers": 0,
        "disjoint": disjoint,
        "with_edge": True,
        "input_nodes": torch.tensor(drawn),
    }
    dataset = graph.dataset()
    with DistNeighborLoader(dataset, **how) as loader:
        whole = list(loader)
    # Enough for one seed: in a part, each hop may draw as many as the widest hop before it.
    edges, width = 0, 1
    for hop in range(len(fanouts)):
        width *= max(fanouts[: hop + 1])
        edges += width
    most = max(one.num_edges for one in whole), max(one.num_nodes for one in whole)
    pad = {
        "edges": edges + int(room * most[0]),
        "nodes": edges + 4 + int(room * most[1]),  # the seed, maybe twice, and two dead ones
    }
    pad["nodes"] += pad["nodes"] == pad["edges"]  # `real` tells them apart by their numbers
    with DistNeighborLoader(dataset, **how, pad=pad) as loader:
        parts = one_shape(loader)
    assert seeds_of(parts) == seeds_of(whole)
    trees = []
    for part in parts:
        assert (part.num_nodes, part.num_edges) == (pad["nodes"], pad["edges"])
        check_dead(part)
        trees += _trees(real(part), len(fanouts))
    assert trees == [tree for batch in whole for tree in _trees(batch, len(fanouts))]
