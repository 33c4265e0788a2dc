"""Edges of a batch, hop after hop."""

import numpy as np

from gigl_loader.sampler.sampled import EdgeCollector


def test_edges_are_those_of_the_hops_one_after_the_other() -> None:
    edges = EdgeCollector()
    hops: list[list[list[int]]] = [[[3, 1], [0, 0], [10, 11]], [[], [], []], [[5], [3], [12]]]
    for hop in hops:
        edges.add(*(np.array(column, np.int64) for column in hop))
    assert (edges.count, edges.per_hop) == (3, [2, 0, 1])
    assert edges.as_index().tolist() == [[3, 1, 5], [0, 0, 3]]
    assert edges.ids().tolist() == [10, 11, 12]
    out = np.full((2, 3), -1)
    edges.write_edge_index(out)
    assert out.tolist() == edges.as_index().tolist()


def test_no_edges_have_their_shapes_and_types() -> None:
    edges = EdgeCollector()
    assert edges.as_index().shape == (2, 0)
    assert edges.ids().shape == (0,)
    assert edges.as_index().dtype == edges.ids().dtype == np.int64
    edges.add(np.array([1]), np.array([2]), None)
    assert edges.ids().size == 0, "of edges that were drawn without ids"
    assert edges.count == 1
