"""Weights to draw by from an attribute of the edges."""

import pickle
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import ConfigError, DistDataset, partition_graph
from gigl_loader.dataset.partition.adjacency import weighted_view
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E


def _ring(**changes) -> Data:
    ids = torch.arange(6)
    ends = torch.stack([ids.repeat(2), torch.cat([ids.roll(-1), ids.roll(-2)])])
    data = Data(edge_index=ends, num_nodes=6, when=ids * 10, edge_weight=torch.arange(12) / 4)
    data.strong, data.long = torch.arange(12) + 1, torch.arange(12) * 2.0
    for name, value in changes.items():
        data[name] = value
    return data


def _weights(dataset: DistDataset, time_attr: str | None = None) -> dict[int, float]:
    """Return the weight of each edge by its id."""
    view = dataset.view() if time_attr is None else dataset.view_by_time(time_attr)
    edges = view.adjacency[E]
    assert edges.edge_ids is not None
    assert edges.weights is not None
    return dict(zip(edges.edge_ids.tolist(), edges.weights.tolist(), strict=True))


def test_an_attribute_in_place_of_the_weights() -> None:
    dataset = DistDataset.from_pyg(_ring())
    assert _weights(dataset.weighted_by("strong")) == {i: i + 1 for i in range(12)}
    assert _weights(dataset) == {i: i / 4 for i in range(12)}, "the other one stays"
    assert dataset.weighted_by(None) is dataset
    by_name = dataset.weighted_by("edge_weight")
    assert _weights(by_name) == _weights(dataset)


def test_each_attribute_has_its_own_edges_by_time() -> None:
    dataset = DistDataset.from_pyg(_ring())
    assert _weights(dataset.weighted_by("strong"), "when") == {i: i + 1 for i in range(12)}
    assert _weights(dataset.weighted_by("long"), "when") == {i: i * 2 for i in range(12)}
    assert _weights(dataset, "when") == {i: i / 4 for i in range(12)}


@pytest.mark.parametrize("mmap", [False, True])
def test_another_process_draws_by_the_same(tmp_path: Path, mmap: bool) -> None:
    partition_graph(_ring(), 2, tmp_path, progress=False)
    dataset = DistDataset.load(tmp_path, 1, mmap=mmap).weighted_by("strong")
    copy = pickle.loads(pickle.dumps(dataset))
    assert _weights(copy) == _weights(dataset)
    assert all(weight == i + 1 for i, weight in _weights(copy).items())


def test_types_without_the_attribute_lose_their_weights() -> None:
    view = DistDataset.from_pyg(_ring()).view()
    other = (E[0], "knows", E[2])
    view.adjacency[other] = view.adjacency[E]
    found = weighted_view(view, "strong")
    assert found.adjacency[other].weights is None
    assert found.adjacency[E].weights is not None


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({}, "age", r"no attribute of the edges: they have \['edge_weight', 'long', 'strong'\]"),
        ({"strong": torch.ones(12, 2)}, "strong", r"a number for each edge, got \[12, 2\]"),
        ({"strong": torch.ones(12, dtype=torch.complex64)}, "strong", "complex64"),
        ({"strong": -torch.ones(12)}, "strong", "negative value -1"),
        ({"strong": torch.full((12,), torch.inf)}, "strong", "must be finite"),
    ],
)
def test_what_cannot_be_weights(changes: dict, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistDataset.from_pyg(_ring(**changes)).weighted_by(name)
