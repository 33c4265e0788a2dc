"""Rows by id over all partitions."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistFeature,
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
)
from gigl_loader.testing import TinyGraph, run_ranks
from tests.dataset import lookup_jobs

pytestmark = pytest.mark.usefixtures("starts_no_workers")


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("job", "world"), [("rows_of_all_partitions", 3), ("after_another_group", 2)]
)
def test_ranks(job: str, world: int, tmp_path: Path) -> None:
    run_ranks(getattr(lookup_jobs, job), world_size=world, tmp_path=tmp_path)


def test_one_process_needs_no_group() -> None:
    lookup_jobs.rows_of_all_partitions(0, 1)
    features = DistFeature(lookup_jobs.PLAIN.dataset())
    assert features[torch.tensor([7, 7, 2])].tolist() == [[7, 0], [7, 0], [2, 0]]


@pytest.mark.parametrize(
    ("ids", "node_type", "text"),
    [
        (torch.tensor([40]), "user", r"\[0, 40\), got 40 to 40"),
        (torch.tensor([-1]), "user", "got -1"),
        (torch.tensor([1.0]), "user", "1-D int64"),
        (torch.tensor([1]), None, "name the type"),
        (torch.tensor([1]), "shop", "no node features of 'shop'"),
    ],
)
def test_what_cannot_be_found(ids: Any, node_type: Any, text: str) -> None:
    dataset: DistDataset = lookup_jobs.TYPED.dataset()
    with pytest.raises(ConfigError, match=text):
        dataset.get_features(ids, node_type)


def test_partitions_that_no_rank_holds_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no rank loaded partitions \[0\] of 2"):
        TinyGraph.random().partitions(2)[1].get_features(torch.tensor([1]))
    with pytest.raises(ConfigError, match="kind must be one of"):
        DistFeature(TinyGraph.random().dataset(), "edges")  # type: ignore[arg-type]  # wrong on purpose


def test_edges_of_one_partition_that_there_are_not() -> None:
    ids = torch.tensor([0, 2, 5])
    dataset = DistDataset()
    dataset.build(
        partition_output=PartitionOutput(
            partitioned_edge_index=GraphPartitionData(torch.tensor([[0, 1, 2], [1, 2, 0]]), ids),
            partitioned_edge_features=FeaturePartitionData(ids.float().unsqueeze(1), ids),
        )
    )
    features = DistFeature(dataset, "edge_features")
    assert features[torch.tensor([5, 0, 5])].tolist() == [[5], [0], [5]]
    with pytest.raises(ConfigError, match=r"must be in \[0, 6\), got 0 to 6"):
        features[torch.tensor([0, 6])]
    with pytest.raises(ConfigError, match=r"2 of the ids of .* have no row: 3"):
        features[torch.tensor([5, 3, 4])]
