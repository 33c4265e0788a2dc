"""Layers over chunks, against PyG over the whole graph."""

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.inference.graph_sources import PartitionGraph
from gigl_loader.inference.layers import (
    Chunk,
    ChunkReader,
    LayerInputs,
    check_conv,
    convolution_input,
    extra_of,
    layers_of,
)
from gigl_loader.inference.rank_rows import OwnedRows
from gigl_loader.runtime.ranks.collectives import RankExchange
from tests.inference import full_jobs, typed_layers

DATA = full_jobs.graph()
ALONE = RankExchange()
GRAPH = PartitionGraph(full_jobs.partition(DATA, 0, 1), ALONE)
WIDTH, OUT = full_jobs.WIDTH, full_jobs.OUT
NOTHING = (False, False)


def _over_chunks(layer: Any, options: tuple[bool, bool]) -> Tensor:
    """Return what the only layer of ``layer`` computes, in chunks of 13 nodes."""
    (one,) = layers_of(layer, GRAPH, options)
    reader = ChunkReader(GRAPH, NODE, ALONE, 13)
    degrees = {
        norm: OwnedRows(norm.degrees(DATA.edge_index, DATA.edge_weight, 60, 60))
        for norm in one.norms.values()
    }
    reads = LayerInputs(GRAPH.features(), one.weight, one.attr, degrees)
    with torch.no_grad():
        return torch.cat([one(chunk) for chunk in reader.read(reads, set())])


@pytest.mark.parametrize(
    ("conv", "options"),
    [
        (pyg.SAGEConv(WIDTH, OUT), NOTHING),
        (pyg.SAGEConv(WIDTH, OUT, aggr="max"), NOTHING),
        (pyg.GINConv(torch.nn.Linear(WIDTH, OUT)), NOTHING),
        (pyg.GCNConv(WIDTH, OUT), NOTHING),
        (pyg.GCNConv(WIDTH, OUT, improved=True), (True, False)),
        (pyg.GraphConv(WIDTH, OUT), (True, False)),
        (pyg.LGConv(), (True, False)),
        (pyg.GATConv(WIDTH, OUT, edge_dim=full_jobs.EDGE_WIDTH), (False, True)),
        (pyg.TransformerConv(WIDTH, OUT), NOTHING),
    ],
    ids=str,
)
def test_a_layer_of_pyg_in_chunks(conv: Any, options: tuple[bool, bool]) -> None:
    conv.eval()
    extra = {"edge_weight": DATA.edge_weight} if options[0] else {}
    extra |= {"edge_attr": DATA.edge_attr} if options[1] else {}
    wanted = conv(DATA.x, DATA.edge_index, **extra).detach()
    torch.testing.assert_close(_over_chunks([conv], options), wanted, rtol=1e-5, atol=1e-5)
    assert not _hooks(conv), "the model is as it was"


def test_hooks_are_gone_after_an_error_too() -> None:
    conv = pyg.GCNConv(WIDTH, OUT).eval()
    (one,) = layers_of([conv], GRAPH, NOTHING)
    with pytest.raises(KeyError):
        one(_chunk())  # it has no degrees
    assert not _hooks(conv)


def _hooks(conv: Any) -> list[Any]:
    return [*conv._propagate_forward_pre_hooks, *conv._forward_pre_hooks]


def _chunk() -> Chunk:
    (chunk, *_) = ChunkReader(GRAPH, NODE, ALONE, 60).read(LayerInputs(GRAPH.features()), set())
    return chunk


def test_functions_are_given_what_their_parameters_name() -> None:
    seen: dict[str, Any] = {}

    def takes_all(x: Any, edge_index: Any, num_dst: int, n_id: Any, edge_weight: Any) -> Any:
        seen.update(n_id=n_id, edge_weight=edge_weight)
        return x[:num_dst]

    (one,) = layers_of([takes_all], GRAPH, NOTHING)
    assert (one.weight, one.attr, one.ids) == (True, False, True)
    found = _over_chunks([takes_all], NOTHING)
    assert torch.equal(found, DATA.x)
    assert seen["edge_weight"] is not None
    assert seen["n_id"][: 60 - 13 * 4].tolist() == list(range(52, 60))
    (plain,) = layers_of([max], GRAPH, NOTHING)  # a builtin's parameters are not known
    assert (plain.weight, plain.attr, plain.ids) == (False, False, False)


@pytest.mark.parametrize("name", ["SAGEConv", "GATConv", "GCNConv"])
def test_pairs_leave_sources_alone(name: str) -> None:
    conv = getattr(pyg, name)(WIDTH, OUT)
    chunk = _chunk()
    x, edges = convolution_input(conv, chunk, EDGE, sparse=True)
    assert isinstance(x, tuple) == (name != "GCNConv")
    assert (edges.layout == torch.sparse_csr) == (name == "SAGEConv"), "sums only"
    if name == "SAGEConv":
        dense = torch.zeros(60, len(chunk.x[NODE]))
        ones = torch.ones(chunk.edges[EDGE].edge_index.size(1))
        dense.index_put_(tuple(chunk.edges[EDGE].edge_index.flip(0)), ones, accumulate=True)
        assert torch.equal(edges @ torch.eye(len(dense[0])), dense)


def test_extras_are_those_that_were_read_and_are_taken() -> None:
    edges = _chunk().edges[EDGE]
    assert extra_of(pyg.GCNConv(2, 2), edges) == {}, "not read"
    reads = LayerInputs(GRAPH.features(), weight=True, attr=True)
    (chunk, *_) = ChunkReader(GRAPH, NODE, ALONE, 60).read(reads, set())
    assert set(extra_of(pyg.GCNConv(2, 2), chunk.edges[EDGE])) == {"edge_weight"}
    assert set(extra_of(pyg.GATConv(2, 2), chunk.edges[EDGE])) == {"edge_attr"}
    assert extra_of(pyg.SAGEConv(2, 2), chunk.edges[EDGE]) == {}


@pytest.mark.parametrize(
    ("model", "options", "error", "text"),
    [
        ([], NOTHING, ConfigError, "a list of callables"),
        ([3], NOTHING, ConfigError, "a list of"),
        (pyg.GCN(4, 4, 2, jk="max").eval(), NOTHING, ConfigError, "jk='max'"),
        (pyg.GCN(4, 4, 2), NOTHING, UsageError, r"call model\.eval"),
        (torch.nn.Identity(), NOTHING, ConfigError, "Identity is no BasicGNN"),
        (pyg.GIN(4, 4, 2).eval(), (True, False), ConfigError, "GIN takes no edge_weight"),
        (pyg.GCN(4, 4, 2).eval(), (False, True), ConfigError, "GCN takes no edge_attr"),
        ([pyg.GATConv(4, 4)], NOTHING, UsageError, "layer 0 is in training mode"),
        ([pyg.ChebConv(4, 4, K=2).eval()], NOTHING, ConfigError, "ChebConv"),
    ],
)
def test_what_has_no_layers_is_refused(model: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        layers_of(model, GRAPH, options)


def test_a_typed_graph_wants_layers_by_type() -> None:
    dataset = typed_layers.partition(typed_layers.graph(), 0, 1)
    graph = PartitionGraph(dataset, ALONE)
    with pytest.raises(ConfigError, match="GCN computes homogeneous graphs"):
        layers_of(pyg.GCN(4, 4, 2).eval(), graph, NOTHING)
    with pytest.raises(ConfigError, match="GCNConv has no degrees for"):
        check_conv(pyg.GCNConv(4, 4), typed_layers.BUYS, attr=False)
    with pytest.raises(ConfigError, match=r"edge_dim=3: give edge_attr=True"):
        check_conv(pyg.GATConv(4, 4, edge_dim=3), typed_layers.KNOWS, attr=False)
    check_conv(pyg.GATConv(4, 4, edge_dim=3), typed_layers.KNOWS, attr=True)
