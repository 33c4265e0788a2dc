"""One rank's part of the graph as PyG's `Data`, and whose output is wanted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import COMMUNITY, EdgeDir
from gigl_loader.errors import ConfigError
from gigl_loader.inference.local_graph import LocalGraph, local_graph, message_types
from tests.inference import full_jobs, typed_layers
from tests.inference.exchange_in_threads import ThreadExchange, run_threads

CPU = torch.device("cpu")


def _graphs(partition: Any, world: int, nodes: Any = None, layers: int = 0) -> list[LocalGraph]:
    def job(exchange: ThreadExchange) -> LocalGraph:
        some = nodes(exchange.rank) if callable(nodes) else nodes
        return local_graph(partition(exchange.rank), exchange, CPU, some, layers)

    return run_threads(world, job)


def test_messages_go_along_edges_or_against_them() -> None:
    data = typed_layers.graph()
    cases: tuple[tuple[EdgeDir, bool], ...] = (("in", False), ("out", True))
    for edge_dir, turned in cases:
        view = DistDataset.from_pyg(data, edge_dir=edge_dir).view()
        found = message_types(view.adjacency, view.edge_dir)
        assert set(found.values()) == set(typed_layers.TYPES)
        for edge_type, name in found.items():
            assert (edge_type[0], edge_type[2]) == (name[::-2] if turned else name[::2])


def test_ranks_have_all_rows_edges_and_attributes_of_their_nodes() -> None:
    data = full_jobs.graph()
    data.y = torch.arange(60) % 5
    data.train_mask, data.val_mask = torch.arange(60) % 3 == 0, torch.arange(60) % 3 == 1
    graphs = _graphs(lambda rank: full_jobs.partition(data, rank, 3), 3)
    assert torch.cat([one.data.n_id for one in graphs]).sort().values.tolist() == list(range(60))
    edge_ids = []
    for graph in graphs:
        mine = graph.data
        assert isinstance(mine, Data)
        for name in ("x", "y", "train_mask", "val_mask"):
            assert torch.equal(mine[name], data[name][mine.n_id]), name
        assert torch.equal(mine.edge_weight, data.edge_weight[mine.e_id])
        assert torch.equal(mine.edge_attr, data.edge_attr[mine.e_id])
        assert torch.equal(mine.n_id[mine.edge_index[1]], data.edge_index[1, mine.e_id])
        assert "out_index" not in mine
        edge_ids.append(mine.e_id)
    assert torch.cat(edge_ids).sort().values.tolist() == list(range(420))


def test_a_typed_graph_is_a_hetero_data() -> None:
    data = typed_layers.graph()
    graphs = _graphs(lambda rank: typed_layers.partition(data, rank, 2), 2)
    for graph in graphs:
        assert isinstance(graph.data, HeteroData)
        assert set(graph.data.edge_types) == set(typed_layers.TYPES)
        for name in ("user", "item"):
            assert torch.equal(graph.data[name].x, data[name].x[graph.data[name].n_id])
        knows = graph.data[typed_layers.KNOWS]
        assert torch.equal(knows.edge_weight, data[typed_layers.KNOWS].edge_weight[knows.e_id])


def test_nodes_have_the_attributes_of_their_type_that_batches_have() -> None:
    data = typed_layers.graph()
    data["user"].age, data["item"].age = torch.arange(40) * 3, torch.arange(25) * -2
    data["user"].joined = torch.arange(40) + 100  # of one type alone
    data["item"].found = torch.arange(25) // 4

    def partition(rank: int) -> DistDataset:
        """Return a part whose items have communities, as partitioning writes them."""
        part = typed_layers.partition(data, rank, 2)
        view, made = part.view(), DistDataset(rank, 2)
        found = view.node_attributes["item", "found"]
        attributes = {**view.node_attributes, ("item", COMMUNITY): found}
        made._fill(replace(view, node_attributes=attributes), {})
        return made

    for graph in _graphs(partition, 2):
        users, items = graph.data["user"], graph.data["item"]
        assert torch.equal(users.age, data["user"].age[users.n_id])
        assert torch.equal(items.age, data["item"].age[items.n_id])
        assert torch.equal(users.joined, data["user"].joined[users.n_id])
        assert torch.equal(items.found, data["item"].found[items.n_id])
        assert "joined" not in items
        assert "found" not in users
        assert COMMUNITY not in items, "it has a name that batches do not show"


def test_nodes_of_any_owner_are_wanted_as_the_union_over_ranks() -> None:
    asked = [torch.tensor([5, 59, 5]), torch.tensor([5, 0]), torch.empty(0, dtype=torch.int64)]
    data = full_jobs.graph()
    graphs = _graphs(lambda rank: full_jobs.partition(data, rank, 3), 3, lambda rank: asked[rank])
    found = [graph.data.n_id[graph.data.out_index] for graph in graphs]
    assert torch.cat(found).sort().values.tolist() == [0, 5, 59]
    for graph in graphs:
        assert torch.equal(graph.data.out_index, graph.data.out_index.sort().values)
        assert not graph.plans[next(iter(graph.plans))].narrow, "without layers all are computed"


def test_layers_are_narrowed_to_what_is_wanted() -> None:
    data = full_jobs.graph()
    (graph,) = _graphs(lambda rank: full_jobs.partition(data, 0, 1), 1, torch.tensor([3]), 2)
    (plan,) = graph.plans.values()
    assert set(plan.narrow) == {0, 1}
    assert plan.level(0).num_targets == 1
    assert plan.level(0).num_sources == plan.level(1).num_targets


@pytest.mark.parametrize(
    ("typed", "nodes", "text"),
    [
        (True, torch.tensor([0]), "must be a dict"),
        (True, {"shop": torch.tensor([0])}, r"unknown node types \['shop'\]"),
        (True, {"item": torch.tensor([25])}, r"nodes of 'item' must be in \[0, 25\)"),
        (False, torch.tensor([-1]), r"must be in \[0, 60\)"),
    ],
)
def test_nodes_that_are_not_there_are_refused(typed: bool, nodes: Any, text: str) -> None:
    def partition(rank: int) -> DistDataset:
        if typed:
            return typed_layers.partition(typed_layers.graph(), 0, 1)
        return full_jobs.partition(full_jobs.graph(), 0, 1)

    with pytest.raises(ConfigError, match=text):
        _graphs(partition, 1, nodes)


def test_types_that_are_not_named_are_not_wanted() -> None:
    wanted: dict[str, Tensor] = {"item": torch.tensor([3, 1])}
    (graph,) = _graphs(lambda rank: typed_layers.partition(typed_layers.graph(), 0, 1), 1, wanted)
    assert graph.data["user"].out_index.tolist() == []
    assert graph.data["item"].out_index.tolist() == [1, 3]
