"""Which modules compute over a distributed graph as they are."""

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.nn.pool import TopKPooling

from gigl_loader.errors import ConfigError
from gigl_loader.inference.full_graph import full_graph
from gigl_loader.inference.modules import (
    CHECKED,
    NORMALIZED,
    Norm,
    check_model,
    is_normalized,
    units,
)
from tests.inference import full_jobs


class _Pools(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.readout = pyg.MeanAggregation()


class _Nested(pyg.MessagePassing):
    def __init__(self) -> None:
        super().__init__()
        self.inner = pyg.SAGEConv(4, 4)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.inner(x, edge_index)


class _Own(pyg.MessagePassing):
    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.propagate(edge_index, x=x)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (pyg.ChebConv(4, 4, K=2), "ChebConv at 'the top' .* Laplacian"),
        (pyg.SGConv(4, 4, cached=True), "SGConv .* cached=True"),
        (pyg.GCNConv(4, 4, cached=True), "GCNConv .* cached=True"),
        (pyg.HGTConv(4, 4, (["a"], [("a", "b", "a")])), "HGTConv .* all types at once"),
        (pyg.GraphNorm(4), "GraphNorm .* statistics over all nodes"),
        (pyg.GraphSAGE(4, 4, 2, norm="LayerNorm"), "LayerNorm at 'norms.0' .* mode='node'"),
        (_Pools(), "MeanAggregation at 'readout' .* pools"),
        (TopKPooling(4), "TopKPooling .* pools"),
        (_Nested(), "SAGEConv at 'inner' .* is part of another"),
        (pyg.GCNConv(4, 4, flow="target_to_source"), "target to source"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(module: torch.nn.Module, text: str) -> None:
    dataset = full_jobs.partition(full_jobs.graph(), 0, 1)
    with pytest.raises(ConfigError, match=text), full_graph(module, dataset):
        pass


def test_a_layer_that_no_test_knows_is_named(caplog: pytest.LogCaptureFixture) -> None:
    data = full_jobs.graph()
    with full_graph(_Own(), full_jobs.partition(data, 0, 1)) as mine:
        pass
    assert "_Own" in caplog.text
    assert mine.num_nodes == 60


def test_modules_that_tests_compare_pass_without_a_word() -> None:
    assert check_model(pyg.GraphSAGE(4, 8, 3, norm="BatchNorm", dropout=0.5)) == []
    assert (
        check_model(pyg.PNA(4, 8, 2, aggregators=["mean"], scalers=["identity"], deg=torch.ones(3)))
        == []
    )
    assert check_model(torch.nn.Sequential(_Own(), _Own())) == ["_Own"], "each class once"
    assert set(NORMALIZED) <= CHECKED


def test_a_class_of_ones_own_is_not_taken_for_one_of_pygs() -> None:
    own = type("GCNConv", (pyg.MessagePassing,), {"forward": _Own.forward})()
    assert check_model(own) == ["GCNConv"]
    assert not is_normalized(own)


@pytest.mark.parametrize(
    ("module", "normalized", "loops"),
    [
        (pyg.GCNConv(2, 2), True, True),
        (pyg.GCNConv(2, 2, add_self_loops=False), True, False),
        (pyg.GCNConv(2, 2, normalize=False, add_self_loops=False), False, False),
        (pyg.SGConv(2, 2), True, True),
        (pyg.TAGConv(2, 2), True, False),
        (pyg.TAGConv(2, 2, normalize=False), False, False),
        (pyg.LGConv(), True, False),
        (pyg.SAGEConv(2, 2), False, None),
    ],
)
def test_which_layers_weigh_edges_by_degrees(
    module: Any, normalized: bool, loops: bool | None
) -> None:
    assert is_normalized(module) is normalized
    if loops is not None:
        assert Norm.of(module, full_jobs.TYPES[0], weighted=False).loops is loops


def test_layers_of_a_dict_by_edge_type_are_one_unit() -> None:
    typed = pyg.HeteroConv({t: pyg.SAGEConv((2, 2), 2) for t in full_jobs.TYPES})
    last = pyg.SAGEConv(2, 2)
    found = units(torch.nn.ModuleList([pyg.GATConv(2, 2), torch.nn.ReLU(), typed, last]))
    assert len(found) == 5
    assert sorted(found.values()) == [0, 1, 1, 1, 2]
    assert found[last] == 2
