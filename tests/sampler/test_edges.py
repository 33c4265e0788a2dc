"""Batches seeded by edges, against a reference."""

import math

import torch
from edge_cases import cases, sample_edges
from hypothesis import given, settings
from hypothesis import strategies as st
from link_reference import edge_pairs, edge_stores

from gigl_loader.testing import (
    check_batch,
    check_same_batches,
)


@settings(max_examples=120)
@given(case=cases(), count=st.sampled_from([1, 2, 3]), cut=st.integers(0, 10**6))
def test_any_batch_of_edges(case, count: int, cut: int) -> None:
    """What PyG says of a batch, whatever was drawn; and the same bits over any partitions."""
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {**how, "edge_dir": edge_dir, "batch": 3}
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    batch = sample_edges(whole, graph, edge_type, plan, edges, **how)
    seeds, negatives = edge_pairs(batch, graph, edge_type, how["kind"])
    ends: dict[str, list[int]] = {edge_type[0]: [], edge_type[2]: []}
    ends[edge_type[0]] += [s for s, _ in edges]
    ends[edge_type[2]] += [d for _, d in edges]
    if how["kind"] != "triplet":
        ends[edge_type[0]] += [s for s, _ in negatives]
    ends[edge_type[2]] += [d for _, d in negatives]
    roots = {name: torch.tensor(list(dict.fromkeys(ids))) for name, ids in ends.items()}
    check_batch(batch, graph, seeds=roots, num_neighbors=dict(plan.fanouts), edge_dir=edge_dir)
    assert seeds == edges
    assert len(negatives) == math.ceil(len(edges) * how.get("amount", 0))
    if how["kind"] == "triplet":
        assert [s for s, _ in negatives] == [s for s, _ in edges for _ in range(how["amount"])]
    else:
        zeros = [0] * len(negatives)
        links = edge_stores(batch, graph, edge_type)[0]
        assert links.edge_label.tolist() == [*range(5, 5 + len(edges)), *zeros]
    parts = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    for where in range(count):
        found = sample_edges(parts, graph, edge_type, plan, edges, where=where, **how)
        check_same_batches([found], [batch])
