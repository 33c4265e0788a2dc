"""Models that take padding pass; others are refused by the name of the layer that does not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GCNConv,
    GraphNorm,
    HGTConv,
    SAGEConv,
    global_mean_pool,
)

from gigl_loader import ConfigError, DistDataset, DistNeighborLoader, check_padding

RELATIONS = [("user", "buys", "item"), ("item", "rev_buys", "user")]


def _batch(typed: bool = False, **how: Any) -> Any:
    draw = torch.Generator().manual_seed(1)
    graph: Any = HeteroData() if typed else Data(x=torch.randn(60, 6, generator=draw))
    if typed:
        for name in ("user", "item"):
            graph[name].x = torch.randn(60, 6, generator=draw)
        for relation in RELATIONS:
            graph[relation].edge_index = torch.randint(60, (2, 300), generator=draw)
    else:
        graph.edge_index = torch.randint(60, (2, 300), generator=draw)
        graph.edge_attr = torch.randn(300, 2, generator=draw)
    seeds: Any = ("user", torch.arange(9)) if typed else torch.arange(9)
    given = {"batch_size": 9, "num_workers": 0, "seed": 1, "with_edge": True, "pad": True, **how}
    with DistNeighborLoader(DistDataset.from_pyg(graph), [3, 3], seeds, **given) as loader:
        return next(iter(loader))


@pytest.fixture(scope="module")
def plain() -> Data:
    found: Data = _batch()
    return found


@pytest.fixture(scope="module")
def typed() -> HeteroData:
    found: HeteroData = _batch(typed=True)
    return found


class Model(nn.Module):
    """A convolution, a layer over all nodes, another convolution."""

    def __init__(self, conv: Callable[[int, int], nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second = conv(6, 8), norm, conv(8, 3)

    def forward(self, batch: Any) -> Tensor:
        hidden = nn.functional.dropout(self.first(batch.x, batch.edge_index), 0.5, self.training)
        found: Tensor = self.second(self.norm(hidden), batch.edge_index)
        return found


class DrawsWhenCopied(nn.Linear):
    """As linear layers of PyG 2.5, which initialise the copy before they fill it in."""

    def __deepcopy__(self, memo: Any) -> nn.Linear:
        torch.rand(3)
        found = nn.Linear(self.in_features, self.out_features)
        found.load_state_dict(self.state_dict())
        return found


class Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = HGTConv(6, 8, (["item", "user"], RELATIONS))

    def forward(self, batch: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.conv(batch.x_dict, batch.edge_index_dict)
        return found


def test_a_layer_may_draw_numbers_when_it_is_copied(plain: Data) -> None:
    model = Model(SAGEConv, DrawsWhenCopied(8, 8))
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    check_padding(model, plain)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("conv", [SAGEConv, GCNConv, GATConv])
@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(8), BatchNorm(8).eval()])
def test_models_that_take_it_pass_and_stay_as_they_are(
    conv: Any, norm: nn.Module, plain: Data
) -> None:
    model, batch = Model(conv, norm), plain.clone()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    check_padding(model, plain)
    assert torch.equal(torch.rand(3), wanted), "random numbers are those of the program"
    check_padding(lambda batch: model(batch)[batch.seed_mask], plain)
    assert not any(one._forward_hooks for one in model.modules())
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(
        torch.equal(value, batch[name])
        for name, value in plain.items()
        if isinstance(value, Tensor)
    )


def test_types_pass(typed: HeteroData) -> None:
    check_padding(Typed(), typed)


@pytest.mark.parametrize(
    ("norm", "named"),
    [
        (BatchNorm(8), "'norm.module' (BatchNorm1d)"),
        (nn.BatchNorm1d(8), "'norm' (BatchNorm1d)"),
        (GraphNorm(8), "'norm"),
    ],
)
def test_a_layer_that_sees_all_nodes_is_named(norm: nn.Module, named: str, plain: Data) -> None:
    model = Model(SAGEConv, norm)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigError, match="this model cannot take padding") as caught:
        check_padding(model, plain)
    assert f"what the layer {named}" in str(caught.value)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items()), "statistics"


@pytest.mark.parametrize(
    "reads",
    [
        lambda batch: global_mean_pool(batch.x, None),
        lambda batch: batch.x.mean(),
        lambda batch: batch.x - batch.x.mean(0),
        lambda batch: batch.edge_attr.sum(0),
        lambda batch: batch.n_id.float().mean(),
        lambda batch: batch.e_id.float().mean(),
    ],
)
def test_what_a_function_reads_of_dead_places_is_seen(
    reads: Callable[[Any], Tensor], plain: Data
) -> None:
    with pytest.raises(ConfigError, match="change what the model gives"):
        check_padding(reads, plain)


def test_a_type_of_several(typed: HeteroData) -> None:
    def forward(batch: Any) -> dict[str, Tensor]:
        items = batch["item"].x
        return {"user": batch["user"].x, "item": items / items.norm()}

    with pytest.raises(ConfigError, match="cannot take padding"):
        check_padding(forward, typed)


def test_a_batch_without_padding() -> None:
    with pytest.raises(ConfigError, match="takes a batch of a loader with pad="):
        check_padding(nn.Identity(), _batch(pad=False))
