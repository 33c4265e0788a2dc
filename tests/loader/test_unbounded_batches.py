"""Batches that no channel could hold are refused by their numbers, before memory is taken."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.errors import ConfigError, SamplingError
from gigl_loader.sampler.gpu import device_sampler
from gigl_loader.sources import sampled_input

EDGES = torch.tensor([[1, 2, 0], [0, 0, 1]])
ANCHORS = torch.zeros(40, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no machine that runs this be too small for what a channel allows."""
    monkeypatch.setattr(sampled_input, "meminfo", lambda field: 2**40)


@pytest.fixture(scope="module")
def dataset() -> DistDataset:
    """Return three nodes with edges."""
    return DistDataset.from_pyg(Data(x=torch.arange(3.0), edge_index=EDGES))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("options", "limit"),
    [({}, "125,000,000"), ({"channel_size": "64MB"}, "33,554,432"), ({"channel_size": "2GB"}, "")],
)
def test_a_batch_of_more_neighbours_than_the_channel_holds_is_refused(
    dataset: DistDataset, options: dict[str, Any], limit: str, num_workers: int
) -> None:
    """A million neighbours of 1,000 seeds each were 6 GB in a worker, which the system killed."""
    if num_workers == 0 and options:
        return  # no channel: the limit of the default
    loader = DistNeighborLoader(
        dataset,
        num_neighbors=[4 * 10**6],
        input_nodes=ANCHORS,
        batch_size=40,
        replace=True,
        num_workers=num_workers,
        **options,
    )
    words = rf"draws 160,000,000 neighbours of 40 nodes over .* allows {limit}"
    with loader, pytest.raises(SamplingError, match=words):
        next(iter(loader))


def test_negatives_without_bound_are_refused(dataset: DistDataset) -> None:
    loader = DistLinkNeighborLoader(
        dataset,
        num_neighbors=[1],
        edge_label_index=EDGES,
        neg_sampling_ratio=10**8,
        batch_size=3,
        num_workers=0,
    )
    with loader, pytest.raises(SamplingError, match="draws 300,000,000 negatives of 3 edges"):
        next(iter(loader))


def test_an_induced_subgraph_is_bounded_too(dataset: DistDataset, constants: Any) -> None:

    constants(sampled_input, DRAWN_BYTES=2 * 10**9)
    loader = DistNeighborLoader(
        dataset, num_neighbors=[2], num_workers=0, batch_size=1, subgraph_type="induced"
    )
    with loader, pytest.raises(SamplingError, match="draws 3 neighbours of 3 nodes"):
        next(iter(loader))


def test_a_device_refuses_it_when_the_loader_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reserves room for all that may be drawn: without replacement for the edges there are."""
    placed = DistDataset.from_pyg(Data(x=torch.arange(3.0), edge_index=EDGES))
    placed.to("cpu", kernels="torch")
    seeds = torch.zeros(1000, dtype=torch.int64)

    def build(fanout: int, *, replace: bool) -> DistNeighborLoader:
        how: dict[str, Any] = {"batch_size": 1000, "replace": replace, "num_workers": 0}
        return DistNeighborLoader(placed, [fanout], seeds, **how)

    with build(10**6, replace=False) as loader:
        assert next(iter(loader)).num_edges == 1000 * 2
    with pytest.raises(ConfigError, match=r"hop 1 .* may draw 1,000,000,000 neighbours .*a device"):
        build(10**6, replace=True)
    # a tenth of it is no reason for its kernels, but more than this machine may have
    monkeypatch.setattr(device_sampler, "available_memory", lambda: 10**9)
    with pytest.raises(ConfigError, match=r"batches take up to .* of cpu, which has 1 GB free"):
        build(10**5, replace=True)


def test_a_batch_that_a_larger_channel_holds_is_drawn(dataset: DistDataset) -> None:
    loader = DistNeighborLoader(
        dataset, num_neighbors=[10**4], input_nodes=ANCHORS, batch_size=40, replace=True
    )
    with loader:
        assert next(iter(loader)).num_edges >= 10**4
