"""`DistSubGraphLoader`: all edges between the nodes of a batch; not what is drawn."""

import pytest
import torch

from gigl_loader import DistSubGraphLoader
from gigl_loader.testing import TinyGraph

GRAPH = TinyGraph.random(40, 300, seed=7)
EDGES = next(iter(GRAPH.edges.values()))


def test_a_subgraph_of_the_seeds_alone() -> None:
    with DistSubGraphLoader(
        GRAPH.dataset(), torch.arange(40), batch_size=40, num_workers=0, with_edge=True
    ) as loader:
        batch = next(iter(loader))
    assert sorted(batch.e_id.tolist()) == list(range(300))
    assert batch.mapping.tolist() == list(range(40))


@pytest.mark.parametrize(
    ("how", "edges"),
    [
        ({}, lambda nodes: [(a, b) for a, b in EDGES if {a, b} <= nodes]),
        # what is kept of "directional" are the edges that were drawn: of the seeds, and of no hop
        ({"subgraph_type": "directional"}, lambda nodes: []),
    ],
)
def test_induced_unless_something_else_is_given(how: dict, edges) -> None:
    seeds = torch.tensor([4, 9, 4, 17, 30, 2])
    with DistSubGraphLoader(
        GRAPH.dataset(), seeds, batch_size=6, num_workers=0, seed=1, **how
    ) as loader:
        (batch,) = loader
    assert batch.n_id[batch.mapping].tolist() == seeds.tolist()
    assert batch.n_id.unique().numel() == batch.n_id.numel(), "each node once"
    found = [tuple(pair) for pair in batch.n_id[batch.edge_index].t().tolist()]
    assert sorted(found) == sorted(edges(set(seeds.tolist())))
