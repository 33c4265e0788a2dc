"""Model code as PyG's documentation has it runs unchanged on the batches of a loader."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, HeteroConv, SAGEConv, to_hetero
from torch_geometric.utils import trim_to_layer

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.dataset.schema import EdgeDir

pytestmark = pytest.mark.multiprocess

HOPS = [4, 3]
NUM_NODES = 60


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store: Path = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _batches(data: Data | HeteroData, seeds: Any, edge_dir: EdgeDir = "in") -> list:
    dataset = DistDataset.from_pyg(data, edge_dir=edge_dir)
    with DistNeighborLoader(dataset, HOPS, seeds, batch_size=16, seed=1) as loader:
        return [batch.clone() for batch in loader]


@pytest.fixture(scope="module")
def plain(process_group: None) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(NUM_NODES, 8, generator=generator),
        y=torch.randint(3, (NUM_NODES,), generator=generator),
        edge_index=torch.randint(NUM_NODES, (2, 400), generator=generator),
        edge_attr=torch.randn(400, 5, generator=generator),
    )
    return _batches(data, None)


@pytest.fixture(scope="module")
def typed(process_group: None) -> list[HeteroData]:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.randn(NUM_NODES, 8, generator=generator)
    data["paper"].y = torch.randint(3, (NUM_NODES,), generator=generator)
    data["author"].x = torch.randn(40, 6, generator=generator)
    for name in (
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "rev_writes", "author"),
    ):
        rows = torch.randint(data[name[0]].num_nodes, (300,), generator=generator)
        cols = torch.randint(data[name[2]].num_nodes, (300,), generator=generator)
        data[name].edge_index = torch.stack([rows, cols])
    return _batches(data, ("paper", torch.arange(NUM_NODES)))


def _trains(model: torch.nn.Module, loss: Tensor) -> None:
    loss.backward()
    assert torch.isfinite(loss)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN, GAT])
def test_basic_gnn_learns_the_same_trimmed_and_not(
    kind: type[torch.nn.Module], plain: list[Data]
) -> None:
    torch.manual_seed(0)
    model = kind(8, 16, num_layers=2, out_channels=3).eval()
    for batch in plain:
        whole = model(batch.x, batch.edge_index)[: batch.batch_size]
        trimmed = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )[: batch.batch_size]
        if kind is not GCN:  # GCN's norm counts the edges that trimming takes away
            torch.testing.assert_close(trimmed, whole)
    _trains(model, F.cross_entropy(trimmed, batch.y[: batch.batch_size]))


def test_trim_to_layer_keeps_what_the_seeds_need(plain: list[Data]) -> None:
    torch.manual_seed(0)
    convs = torch.nn.ModuleList([SAGEConv(8, 16), SAGEConv(16, 3)])
    for batch in plain:
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        x, edge_index, edge_attr = batch.x, batch.edge_index, batch.edge_attr
        full = convs[1](convs[0](batch.x, batch.edge_index).relu(), batch.edge_index)
        for layer, conv in enumerate(convs):
            x, edge_index, edge_attr = trim_to_layer(
                layer=layer,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
                x=x,
                edge_index=edge_index,
                edge_attr=edge_attr,
            )
            x = conv(x, edge_index)
            x = x.relu() if layer == 0 else x
        torch.testing.assert_close(x[: batch.batch_size], full[: batch.batch_size])


class _TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = SAGEConv((-1, -1), 16)
        self.second = SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_to_hetero(typed: list[HeteroData]) -> None:
    model = to_hetero(_TwoLayers(), typed[0].metadata(), aggr="sum")
    for batch in typed:
        out = model(batch.x_dict, batch.edge_index_dict)["paper"][: batch["paper"].batch_size]
    _trains(model, F.cross_entropy(out, batch["paper"].y[: batch["paper"].batch_size]))


class _Hetero(torch.nn.Module):
    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({name: SAGEConv((-1, -1), 16) for name in edge_types}) for _ in HOPS
        )
        self.lin = torch.nn.Linear(16, 3)

    def forward(self, x: dict, edge_index: dict, nodes: dict, edges: dict) -> Tensor:
        for layer, conv in enumerate(self.convs):
            x, edge_index, _ = trim_to_layer(layer, nodes, edges, x, edge_index)
            x = {key: value.relu() for key, value in conv(x, edge_index).items()}
        return self.lin(x["paper"])


def test_hetero_conv_with_trimming(typed: list[HeteroData]) -> None:
    model = _Hetero(typed[0].edge_types)
    for batch in typed:
        size = batch["paper"].batch_size
        out = model(
            batch.x_dict,
            batch.edge_index_dict,
            batch.num_sampled_nodes_dict,
            batch.num_sampled_edges_dict,
        )[:size]
        nowhere = [0] * len(HOPS)
        full = model(
            batch.x_dict,
            batch.edge_index_dict,
            {t: [batch[t].num_nodes, *nowhere] for t in batch.node_types},
            {t: [batch[t].num_edges, 0] for t in batch.edge_types},
        )[:size]
        torch.testing.assert_close(out, full)
    _trains(model, F.cross_entropy(out, batch["paper"].y[:size]))


def test_batches_do_what_pyg_batches_do(plain: list[Data], typed: list[HeteroData]) -> None:
    for batch in plain:
        assert batch.validate()
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])  # the input is arange
        assert batch.to("cpu").x is not None
        assert batch.subgraph(torch.arange(batch.batch_size)).num_nodes == batch.batch_size
    for batch in typed:
        assert batch.validate()
        assert batch.metadata() == typed[0].metadata()
        homogeneous = batch.to_homogeneous(node_attrs=["n_id"], add_node_type=True)
        assert homogeneous.num_edges == batch.num_edges
