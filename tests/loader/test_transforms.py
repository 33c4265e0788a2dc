"""What users do to batches and samples, and the attribute that edges are drawn by."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, NumNeighbors, SamplerOutput

from gigl_loader import ConfigError, DistABLPLoader, DistDataset, DistNeighborLoader
from gigl_loader.testing import TinyGraph, check_same_batches

pytestmark = pytest.mark.multiprocess

GRAPH = TinyGraph.random(60, 400, seed=3)
USERS = TinyGraph.random(30, 200, heterogeneous=True)
HERE: dict[str, Any] = {"num_workers": 0, "batch_size": 8, "seed": 4}


def test_a_batch_is_transformed_as_the_loop_gets_it() -> None:
    def count(batch: Any) -> tuple[int, Any]:
        return batch.num_nodes, batch

    links = torch.arange(12).view(2, 6)
    data = DistDataset.from_pyg(GRAPH.to_pyg(), supervision=(links, None))
    anchors = links[0]
    with (
        DistNeighborLoader(GRAPH.dataset(), [3, 2], transform=count, **HERE) as loader,
        DistNeighborLoader(GRAPH.dataset(), [3, 2], **HERE) as plain,
        DistABLPLoader(
            data, [2], anchors, transform=lambda batch: batch.y_positive, **HERE
        ) as labels,
    ):
        found, wanted = list(loader), list(plain)
        assert [size for size, _ in found] == [batch.num_nodes for batch in wanted]
        check_same_batches([batch for _, batch in found], wanted)
        assert loader([3])[0] == plain([3]).num_nodes
        assert [sorted(one) for one in labels] == [list(range(6))]  # labels are in it by then
    with pytest.raises(ConfigError, match="transform must be a function"):
        DistNeighborLoader(GRAPH.dataset(), [3], transform="x", **HERE)  # type: ignore[arg-type]  # wrong on purpose


def _reversed(out: Any) -> Any:
    """Reverse the nodes but for the seeds, and drop every other edge."""
    assert isinstance(out, SamplerOutput)
    first = out.num_sampled_nodes[0]
    order = torch.cat([torch.arange(first), torch.arange(out.node.numel() - 1, first - 1, -1)])
    position = order.argsort()
    out.row, out.col, out.edge = position[out.row[::2]], position[out.col[::2]], out.edge[::2]
    out.node, out.num_sampled_edges = out.node[order], None
    return out


def test_a_sample_may_be_cut_and_reordered() -> None:
    with (
        DistNeighborLoader(
            GRAPH.dataset(), [3, 2], transform_sampler_output=_reversed, **HERE
        ) as loader,
        DistNeighborLoader(GRAPH.dataset(), [3, 2], **HERE) as plain,
    ):
        for batch, before in zip(loader, plain, strict=True):
            assert batch.x[:, 0].tolist() == batch.n_id.tolist()
            assert batch.node_time.tolist() == (3 * batch.n_id).tolist()
            first = before.batch_size
            assert batch.n_id[first:].tolist() == before.n_id[first:].flip(0).tolist()
            assert batch.e_id.tolist() == before.e_id[::2].tolist()
            assert batch.edge_attr[:, 0].tolist() == batch.e_id.tolist()
            assert batch.edge_age[:, 1].tolist() == batch.e_id.tolist()
            ends = batch.n_id[batch.edge_index].t().tolist()
            edges = next(iter(GRAPH.edges.values()))
            assert [tuple(pair) for pair in ends] == [edges[i] for i in batch.e_id.tolist()]
            assert "num_sampled_edges" not in batch


def test_a_heterogeneous_sample_too() -> None:
    def only_users(out: Any) -> Any:
        assert isinstance(out, HeteroSamplerOutput)
        for edge_type in out.row:
            if edge_type[1] != "knows":
                out.row[edge_type] = out.col[edge_type] = out.row[edge_type][:0]
                out.edge[edge_type] = out.edge[edge_type][:0]
        out.node["item"] = out.node["item"][:0]
        return out

    with DistNeighborLoader(
        USERS.dataset(), [2, 2], "user", transform_sampler_output=only_users, **HERE
    ) as loader:
        for batch in loader:
            assert isinstance(batch, HeteroData)
            assert batch["item"].x.shape == (0, 2)
            assert batch["user", "buys", "item"].edge_attr.shape == (0, 2)
            knows = batch["user", "knows", "user"]
            assert knows.edge_attr[:, 0].tolist() == knows.e_id.tolist()
            assert knows.edge_index.numel() > 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda out: None, "returned None, but must return the S.*: add `return`"),
        (lambda out: _set(out, node=torch.cat([out.node, torch.tensor([10**6])])), "1000000, a n"),
        (lambda out: _set(out, row=out.row[1:], col=out.col[1:]), "in step"),
        (lambda out: _set(out, edge=None), "no ids"),
    ],
)
def test_what_a_sample_cannot_become_is_refused(change: Any, text: str) -> None:
    with (
        DistNeighborLoader(GRAPH.dataset(), [3], transform_sampler_output=change, **HERE) as loader,
        pytest.raises(ConfigError, match=text),
    ):
        next(iter(loader))


def _set(out: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(out, name, value)
    return out


def test_fanouts_as_pyg_names_them() -> None:
    buys, rev, knows = sorted(USERS.edges, key=lambda name: name[1])[:3]
    by_type = {buys: [3, 1], rev: [2, 2], knows: [1, 2]}
    given = NumNeighbors({buys: [3, 1], rev: [2, 2]}, default=[1, 2])
    with (
        DistNeighborLoader(USERS.dataset(), given, "user", **HERE) as loader,
        DistNeighborLoader(USERS.dataset(), by_type, "user", **HERE) as plain,
        DistNeighborLoader(GRAPH.dataset(), NumNeighbors([3, 2]), **HERE) as one,
        DistNeighborLoader(GRAPH.dataset(), [3, 2], **HERE) as other,
    ):
        check_same_batches(loader, plain)
        check_same_batches(one, other)
    with pytest.raises(ConfigError, match="Missing number of neighbors"):
        DistNeighborLoader(USERS.dataset(), NumNeighbors({buys: [1]}), "user", **HERE)


def test_an_attribute_of_the_edges_is_drawn_by() -> None:
    """As the same values under the name of weights are, however the graph is cut."""
    graph = GRAPH.to_pyg()
    strength = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(1))
    strength[::3] = 0
    named, plain = graph.clone(), graph.clone()
    named.strength, plain.edge_weight = strength, strength
    how: dict[str, Any] = {"num_neighbors": [3, 2], **HERE, "with_edge": True}
    with DistNeighborLoader(DistDataset.from_pyg(plain), with_weight=True, **how) as loader:
        wanted = [batch.e_id.tolist() for batch in loader]
    for workers in (0, 1):
        data = DistDataset.from_pyg(named)
        with DistNeighborLoader(
            data, weight_attr="strength", **{**how, "num_workers": workers}
        ) as loader:
            found = list(loader)
        assert [batch.e_id.tolist() for batch in found] == wanted
        assert all((batch.strength > 0).all() for batch in found)
        assert all((batch.edge_weight == batch.e_id % 4).all() for batch in found)
    part = DistDataset.from_pyg(named, partition_book=torch.arange(60) % 2, partition_idx=1)
    view = part.weighted_by("strength").view()
    (adjacency,) = view.adjacency.values()
    ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel()))
    assert adjacency.weights is not None
    assert torch.equal(adjacency.weights, strength[ids])
    for name, text in (("x", "no attribute"), ("edge_age", "a number for each edge")):
        with pytest.raises(ConfigError, match=text):
            DistNeighborLoader(DistDataset.from_pyg(named), weight_attr=name, **how)
    below = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, worth=torch.tensor([-1.0]))
    with pytest.raises(ConfigError, match=r"negative"):
        DistNeighborLoader(DistDataset.from_pyg(below), [1], weight_attr="worth")
