"""One partition as loose tensors: rows for ids that there are, weights and classes."""

import pytest
import torch

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.partition_output import (
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
)
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import E, N, ring


def _output(**fields) -> PartitionOutput:
    ids = torch.arange(4)
    edges = GraphPartitionData(torch.stack([ids, ids.roll(-1)]), ids, torch.tensor([1.0, 2, 3, 4]))
    values = {
        "node_partition_book": torch.zeros(4, dtype=torch.int64),
        "edge_partition_book": torch.zeros(4, dtype=torch.int64),
        "partitioned_edge_index": edges,
        **fields,
    }
    return PartitionOutput(**values)


def _built(**fields) -> DistDataset:
    dataset = DistDataset()
    dataset.build(partition_output=_output(**fields))
    return dataset


def test_labels_of_one_column_are_flat_as_in_gigl_and_stay_in_from_pyg() -> None:
    labels = FeaturePartitionData(torch.tensor([[2], [0], [1], [1]]), torch.arange(4))
    dataset = _built(partitioned_node_labels=labels)
    assert dataset.view().node_labels[N].values.shape == (4,)
    assert dataset.num_classes == 3
    wide = FeaturePartitionData(torch.zeros(4, 5), torch.arange(4))
    assert _built(partitioned_node_labels=wide).view().node_labels[N].values.shape == (4, 5)
    data = ring()
    data.y = data.y.unsqueeze(1)
    assert DistDataset.from_pyg(data).view().node_labels[N].values.shape == (8, 1)


def test_weights_of_a_partition_output_are_carried() -> None:
    rows = _built().view().edge_attributes[E, "edge_weight"]
    assert rows.values.tolist() == [1, 2, 3, 4]
    assert _built().schema.edge_attributes == {E: ("edge_weight",)}


def test_weights_without_an_edge_book_are_named_as_not_carried() -> None:
    dataset = DistDataset(0, 2)
    book = torch.tensor([0, 0, 0, 0, 1])
    with pytest.warns(UserWarning, match="weights of .*no edge partition book"):
        dataset.build(partition_output=_output(node_partition_book=book, edge_partition_book=None))
    assert not dataset.view().edge_attributes


@pytest.mark.parametrize("name", ["partitioned_node_features", "partitioned_node_labels"])
def test_rows_for_ids_that_there_are_not(name: str) -> None:
    beyond = FeaturePartitionData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 3, 9]))
    with pytest.raises(ConfigError, match=r"\[9\].*partition book has 4 nodes"):
        _built(**{name: beyond})
    twice = FeaturePartitionData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 3, 1]))
    with pytest.raises(ConfigError, match="several rows"):
        _built(**{name: twice})


def test_edge_rows_for_ids_that_there_are_not() -> None:
    beyond = FeaturePartitionData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 3, 7]))
    with pytest.raises(ConfigError, match=r"\[7\].*partition book has 4 edges"):
        _built(partitioned_edge_features=beyond)
