"""Layer by layer over a graph store: servers send structure and rows, compute processes compute."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_geometric.nn as pyg

from gigl_loader import DistFeature, GraphStoreInfo, RemoteDistDataset
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.testing import run_cluster
from tests.inference import full_jobs, typed_layers

pytestmark = pytest.mark.usefixtures("starts_no_workers")

GRAPH, DATA = full_jobs.graph(), typed_layers.graph()


def _plain(rank: int, servers: int) -> Any:
    return full_jobs.partition(GRAPH, rank, servers, "out")


def _typed(rank: int, servers: int) -> Any:
    return typed_layers.partition(DATA, rank, servers)


def _against_the_edges(info: GraphStoreInfo, rank: int, folder: Path) -> None:
    """Two ranks, two servers; edges have weights, and messages go against them."""
    dataset = RemoteDistDataset(info, rank)
    torch.manual_seed(1)
    model = pyg.GCN(full_jobs.WIDTH, 8, 2, full_jobs.OUT).eval()
    turned = GRAPH.edge_index.flip(0)
    with torch.no_grad():
        wanted = model(GRAPH.x, turned, edge_weight=GRAPH.edge_weight)
    found: Any = full_graph_inference(
        model, dataset, out=folder, batch_size=11, edge_weight=True, format="npy"
    )
    assert torch.equal(found.ids, torch.arange(60).tensor_split(2)[rank])
    torch.testing.assert_close(found.values, wanted[found.ids], rtol=1e-5, atol=1e-5)
    again: Any = full_graph_inference(
        model, dataset, out=folder, batch_size=11, edge_weight=True, format="npy"
    )
    assert torch.equal(again.values, found.values)
    if rank == 0:  # each for itself, not together
        assert torch.equal(dataset.get_features(turned[0]), GRAPH.x[turned[0]])
        edges = DistFeature(dataset, "edge_features")
        ids = torch.randperm(420)
        assert torch.equal(edges.async_get(ids).wait(), GRAPH.edge_attr[ids])
    dist.barrier()


def _note_questions(dataset: RemoteDistDataset) -> Counter[Any]:
    """Return how many nodes' edges are asked for, by edge type; it counts on."""
    lookup, asked = dataset.lookup, Counter[Any]()
    edges = lookup.edges

    def count(name: Any, ids: torch.Tensor, **how: Any) -> Any:
        asked[name] += ids.numel()
        return edges(name, ids, **how)

    lookup.edges = count  # type: ignore[assignment]  # put in a method's place
    return asked


def _by_type(info: GraphStoreInfo, rank: int, folder: Path) -> None:
    model = typed_layers.layers()
    wanted = typed_layers.in_one_process(model, DATA)
    for out in (None, folder):
        dataset = RemoteDistDataset(info, rank)
        asked = _note_questions(dataset)
        found: Any = full_graph_inference(
            model, dataset, out=out, batch_size=9, edge_weight=True, edge_attr=True
        )
        for name, rows in wanted.items():
            mine = found[name]
            torch.testing.assert_close(mine.values, rows[mine.ids], rtol=1e-5, atol=1e-5)
        # the digest reads all of so few nodes, and three layers
        for edge_type in typed_layers.TYPES:
            count = found[edge_type[2]].ids.numel()
            assert asked[edge_type] == 2 * count, "edges are fetched once for all layers"
    counts = torch.tensor([found[name].ids.numel() for name in sorted(wanted)])
    dist.all_reduce(counts)
    assert counts.tolist() == [25, 40]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("job", "dataset", "servers"), [(_against_the_edges, _plain, 2), (_by_type, _typed, 3)]
)
def test_same_as_one_process(job: Any, dataset: Any, servers: int, tmp_path: Path) -> None:
    notes, out = tmp_path / "notes", tmp_path / "out"
    notes.mkdir()
    run_cluster(job, out, dataset=dataset, tmp_path=notes, servers=servers, clients=2)
