"""The seed edges of graphlearn-torch's link loader, against its rule and the edges given."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset
from gigl_loader import DistLinkNeighborLoader as OwnLoader
from gigl_loader.compat.glt import distributed as gltd
from gigl_loader.compat.glt.sampler import NegativeSampling

LINKS = torch.tensor([[0, 1, 4], [2, 3, 0]])
TYPE = ("u", "to", "v")


def _graph(*, typed: bool) -> Any:
    edges = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    if not typed:
        return Data(x=torch.arange(5.0).view(5, 1), edge_index=edges)
    graph = HeteroData()
    graph["u"].x = graph["v"].x = torch.arange(5.0).view(5, 1)
    graph[TYPE].edge_index = edges
    graph["v", "back", "u"].edge_index = edges
    return graph


def _batch(edge_dir: Any, sampling: Any = None, *, typed: bool) -> Any:
    gltd.init_worker_group(1, 0, "trainers")
    links = (TYPE, LINKS) if typed else LINKS
    dataset = DistDataset.from_pyg(_graph(typed=typed), edge_dir=edge_dir)
    labels = torch.tensor([5, 6, 7])
    with gltd.DistLinkNeighborLoader(
        dataset, [2], 3, links, None if sampling else labels, sampling, edge_dir=edge_dir
    ) as loader:
        (batch,) = loader
    return batch


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_rows_of_one_type_are_turned(edge_dir: str) -> None:
    batch = _batch(edge_dir, typed=False)
    dst, src = batch.edge_label_index
    assert torch.equal(batch.node[torch.stack([src, dst])], LINKS)
    assert batch.edge_label.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("edge_dir", "at"), [("in", TYPE), ("out", ("v", "rev_to", "u"))], ids=["in", "out"]
)
def test_rows_with_types_are_turned_for_out_alone(edge_dir: str, at: Any) -> None:
    batch = _batch(edge_dir, typed=True)
    assert [store._key for store in batch.edge_stores if "edge_label_index" in store] == [at]
    rows = batch[at].edge_label_index
    src, dst = rows if edge_dir == "in" else rows.flip(0)
    assert torch.equal(batch["u"].node[src], LINKS[0])
    assert torch.equal(batch["v"].node[dst], LINKS[1])
    assert batch[at].edge_label.tolist() == [5, 6, 7]


@pytest.mark.parametrize("typed", [False, True])
def test_triplets_have_no_rows(typed: bool) -> None:
    batch = _batch("out", NegativeSampling("triplet", 1), typed=typed)
    stores = batch.edge_stores if typed else [batch]
    assert not any("edge_label_index" in store for store in stores)


def test_our_own_loader_keeps_sources_above() -> None:
    dataset = DistDataset.from_pyg(_graph(typed=False), edge_dir="out")
    with OwnLoader(dataset, [2], LINKS, batch_size=3, num_workers=0) as loader:
        (batch,) = loader
    assert torch.equal(batch.n_id[batch.edge_label_index], LINKS)
