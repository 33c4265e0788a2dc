"""Unchanged models of PyG over padded batches: the outputs and gradients of real nodes stay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    GraphSAGE,
    HGTConv,
    RGCNConv,
    SAGEConv,
    global_mean_pool,
    to_hetero,
)
from torch_geometric.utils import trim_to_layer

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.loader.base import BaseDistLoader
from tests.loader.pad_cases import Batch, one_shape, real, same

pytestmark = [pytest.mark.usefixtures("group")]

RELATIONS = (("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user"))
NODES, CLASSES, RELATED = 300, 5, 3


def _plain() -> DistDataset:
    draw = torch.Generator().manual_seed(1)
    graph = Data(
        x=torch.randn(NODES, 6, generator=draw),
        y=torch.randint(CLASSES, (NODES,), generator=draw),
        edge_index=torch.randint(NODES, (2, 2000), generator=draw),
        edge_attr=torch.randn(2000, 2, generator=draw),
    )
    graph.relation = torch.randint(RELATED, (2000,), generator=draw)
    return DistDataset.from_pyg(graph)


def _typed() -> DistDataset:
    draw, graph = torch.Generator().manual_seed(2), HeteroData()
    for name in ("user", "item"):
        graph[name].x = torch.randn(NODES, 6, generator=draw)
        graph[name].y = torch.randint(CLASSES, (NODES,), generator=draw)
    for relation in RELATIONS:
        graph[relation].edge_index = torch.randint(NODES, (2, 1500), generator=draw)
    return DistDataset.from_pyg(graph)


PLAIN, TYPED = _plain(), _typed()


def _loader(typed: bool = False, pad: Any = True, **how: Any) -> BaseDistLoader:
    nodes = torch.arange(70)
    given = {"batch_size": 16, "seed": 5, "num_workers": 0, "with_edge": True, **how}
    dataset, seeds = (TYPED, ("user", nodes)) if typed else (PLAIN, nodes)
    hops = given.pop("num_neighbors", [4, 4])
    return DistNeighborLoader(dataset, hops, seeds, pad=pad, **given)


class Layers(nn.Module):
    """Two convolutions of one kind; ``last`` names what they take besides the edges."""

    def __init__(self, make: Callable[[int, int], nn.Module], last: str | None = None) -> None:
        super().__init__()
        self.first, self.second, self.last = make(6, 8), make(8, CLASSES), last

    def forward(self, batch: Any) -> Tensor:
        more = () if self.last is None else (batch[self.last],)
        hidden = self.first(batch.x, batch.edge_index, *more).relu()
        found: Tensor = self.second(hidden, batch.edge_index, *more)
        return found


class Typed(nn.Module):
    """Two convolutions over all types."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(6, 8), make(8, CLASSES)

    def forward(self, batch: Any) -> Tensor:
        hidden = self.first(batch.x_dict, batch.edge_index_dict)
        hidden = {name: one.relu() for name, one in hidden.items() if one is not None}
        found: Tensor = self.second(hidden, batch.edge_index_dict)["user"]
        return found


class _Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(6, 8), SAGEConv(8, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return found


class _Hetero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = to_hetero(_Sage(), (["item", "user"], list(RELATIONS)))

    def forward(self, batch: Any) -> Tensor:
        found: Tensor = self.layers(batch.x_dict, batch.edge_index_dict)["user"]
        return found


METADATA = (["item", "user"], list(RELATIONS))
MODELS: dict[str, tuple[bool, Callable[[], nn.Module]]] = {
    "SAGE": (False, lambda: Layers(SAGEConv)),
    "SAGE by maximum": (False, lambda: Layers(lambda a, b: SAGEConv(a, b, aggr="max"))),
    "GCN": (False, lambda: Layers(GCNConv)),
    "GAT": (False, lambda: Layers(GATConv)),
    "GAT with edge features": (
        False,
        lambda: Layers(lambda a, b: GATConv(a, b, edge_dim=2), "edge_attr"),
    ),
    "RGCN": (False, lambda: Layers(lambda a, b: RGCNConv(a, b, RELATED), "relation")),
    "HGT": (True, lambda: Typed(lambda a, b: HGTConv(a, b, METADATA))),
    "SAGE by type": (True, _Hetero),
}


def _step(model: nn.Module, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs and, of a loss over the seeds, the gradients."""
    model.zero_grad()
    found, store = model(batch), batch["user"] if isinstance(batch, HeteroData) else batch
    size = store.batch_size
    nn.functional.cross_entropy(found[:size], store.y[:size]).backward()
    return found.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", MODELS)
def test_real_nodes_have_the_same_outputs_and_gradients(name: str) -> None:
    typed, make = MODELS[name]
    torch.manual_seed(0)
    model = make()
    with _loader(typed, False) as plain, _loader(typed) as padding:
        for whole, padded in zip(plain, one_shape(padding), strict=True):
            outputs, gradients = _step(model, whole)
            found, same_gradients = _step(model, padded)
            assert found.size(0) > outputs.size(0)
            same(found[: outputs.size(0)], outputs)
            for one, other in zip(gradients, same_gradients, strict=True):
                same(one, other)


def test_a_static_loss_over_the_mask_of_the_seeds_is_the_loss_over_the_seeds() -> None:
    torch.manual_seed(0)
    model = Layers(SAGEConv)
    with _loader() as loader:
        for batch in loader:
            found, size = model(batch), batch.batch_size
            each = nn.functional.cross_entropy(found, batch.y, reduction="none")
            static = (each * batch.seed_mask).sum() / batch.seed_mask.sum()
            same(static, nn.functional.cross_entropy(found[:size], batch.y[:size]))


# GCN is not among them: it divides by degrees of nodes that only the other part expands.
@pytest.mark.parametrize("name", ["SAGE", "SAGE by maximum", "GAT", "RGCN", "HGT", "SAGE by type"])
def test_a_seed_of_a_split_batch_has_the_output_it_had_in_the_whole(name: str) -> None:
    typed, make = MODELS[name]
    torch.manual_seed(0)
    model = make()
    pad: Any = {"nodes": 110, "edges": 150}
    if typed:
        pad = {"nodes": {"item": 75, "user": 110}, "edges": dict.fromkeys(RELATIONS, 90)}
    wanted: dict[int, Tensor] = {}
    found: dict[int, Tensor] = {}
    with _loader(typed, False) as plain, _loader(typed, pad) as padding:
        whole, parts = list(plain), one_shape(padding)
    for batches, outputs in ((whole, wanted), (parts, found)):
        for batch in batches:
            store = batch["user"] if typed else batch
            seeds = model(batch)[: store.batch_size].detach()
            outputs.update(zip(store.input_id.tolist(), seeds, strict=True))
    assert len(parts) > len(whole)
    assert wanted.keys() == found.keys()
    for number, output in wanted.items():
        same(found[number], output)


def test_without_draws_a_part_is_the_batch_that_would_have_been_sampled() -> None:
    """With all neighbours nothing is drawn: bit for bit, in the same order."""
    pad = {"nodes": 230, "edges": 500}
    with _loader(False, pad, num_neighbors=[-1, -1], batch_size=8) as loader:
        parts = one_shape(loader)
    assert any(part.batch_size < 6 for part in parts[:-1]), "otherwise nothing was split"
    with _loader(False, False, num_neighbors=[-1, -1], batch_size=8) as loader:
        for part in map(real, parts):
            alone = loader.collate(part.input_id)
            for name in ("n_id", "edge_index", "e_id", "x", "y", "edge_attr", "batch"):
                assert torch.equal(part[name], alone[name]), name
            assert part.num_sampled_nodes == alone.num_sampled_nodes
            assert part.num_sampled_edges == alone.num_sampled_edges


@pytest.mark.parametrize("typed", [False, True])
def test_trim_to_layer_takes_dead_nodes_out_first(typed: bool) -> None:
    with _loader(typed, False) as plain, _loader(typed) as padding:
        for whole, padded in zip(plain, padding, strict=True):
            for layer in (0, 1):
                x, edge_index = _trimmed(layer, whole, typed)
                found, links = _trimmed(layer, padded, typed)
                for name, rows in x.items():
                    assert found[name].size(0) == rows.size(0) or layer == 0
                    assert torch.equal(found[name][: rows.size(0)], rows)
                for name, edges in edge_index.items():
                    assert links[name].size(1) == edges.size(1) or layer == 0
                    assert torch.equal(links[name][:, : edges.size(1)], edges)


def _trimmed(layer: int, batch: Any, typed: bool) -> Any:
    counts = batch.num_sampled_nodes, batch.num_sampled_edges
    if typed:
        return trim_to_layer(layer, *counts, batch.x_dict, batch.edge_index_dict)[:2]
    x, edge_index, _ = trim_to_layer(layer, *counts, batch.x, batch.edge_index)
    return {None: x}, {None: edge_index}


def test_pooling_over_trees_has_one_more_row_for_dead_nodes() -> None:
    with _loader(disjoint=True, pad=False) as plain, _loader(disjoint=True) as padding:
        for whole, padded in zip(plain, padding, strict=True):
            pooled = global_mean_pool(padded.x, padded.batch)
            assert pooled.size(0) == 16 + 1
            assert not pooled[16].any()
            same(pooled[: whole.batch_size], global_mean_pool(whole.x, whole.batch))


@pytest.mark.parametrize(("pad", "compiled"), [(True, 1), (False, 5)])
def test_torch_compiles_once_where_all_batches_have_one_shape(pad: bool, compiled: int) -> None:
    compilations = []

    def count(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compilations.append(module)
        return module.forward

    torch.compiler.reset()
    torch.manual_seed(0)
    sage = GraphSAGE(6, 8, num_layers=2, out_channels=CLASSES)
    model = torch.compile(sage, dynamic=False, backend=count, fullgraph=True)
    with _loader(pad=pad) as loader:
        for _ in range(2 if pad else 1):
            for batch in loader:
                same(model(batch.x, batch.edge_index), sage(batch.x, batch.edge_index))
            assert len(compilations) == compiled
    torch.compiler.reset()
