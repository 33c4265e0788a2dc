"""Tiny graphs: every value can be told from an id."""

import pytest
import torch

from gigl_loader.testing import TinyGraph


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_values_are_told_from_ids(heterogeneous: bool) -> None:
    graph = TinyGraph.random(20, 50, heterogeneous=heterogeneous, seed=3)
    data = graph.to_pyg()
    assert graph.is_heterogeneous is heterogeneous
    for number, (name, count) in enumerate(sorted(graph.num_nodes.items())):
        store = data[name] if heterogeneous else data
        assert store.x.tolist() == [[i, number] for i in range(count)]
        assert store.y.tolist() == [[i, 100 + i, number] for i in range(count)]
        assert store.node_time.tolist() == [3 * i for i in range(count)]
        assert store.train_mask.tolist() == [i % 2 == 0 for i in range(count)]
    for number, (edge_type, pairs) in enumerate(sorted(graph.edges.items())):
        store = data[edge_type] if heterogeneous else data
        assert store.edge_index.t().tolist() == [list(pair) for pair in pairs]
        assert store.edge_attr.tolist() == [[i, number] for i in range(len(pairs))]
        assert store.edge_weight.tolist() == [i % 4 for i in range(len(pairs))]
        assert store.edge_age.dtype == torch.int16
        assert store.edge_age.tolist() == [[-i, i] for i in range(len(pairs))]


def test_a_seed_decides_the_edges() -> None:
    first, same, other = (TinyGraph.random(seed=seed) for seed in (1, 1, 2))
    assert first == same
    assert first != other
    (pairs,) = first.edges.values()
    degrees = torch.bincount(torch.tensor([target for _, target in pairs]), minlength=60)
    assert degrees[:10].sum() > 2 * degrees[-10:].sum(), "low ids have more edges"
    assert len({*pairs}) < len(pairs), "edges repeat"


def test_nothing_at_all() -> None:
    data = TinyGraph.homogeneous(0, []).to_pyg()
    assert (data.x.shape, data.y.shape, data.edge_index.shape) == ((0, 2), (0, 3), (2, 0))


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_partitions_have_every_node_once(heterogeneous: bool) -> None:
    graph = TinyGraph.random(20, 50, heterogeneous=heterogeneous)
    parts = graph.partitions(3)
    for name, count in graph.num_nodes.items():
        owners = [part.view().node_books[name].owner(torch.arange(count)) for part in parts]
        assert all(torch.equal(one, owners[0]) for one in owners), "all say the same"
        assert set(owners[0].tolist()) <= {0, 1, 2}
    sizes = [sum(a.indices.numel() for a in part.view().adjacency.values()) for part in parts]
    assert sum(sizes) == sum(map(len, graph.edges.values()))
