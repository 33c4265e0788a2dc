"""What a dataset says of itself."""

import pickle
from typing import Any

import pytest
import torch

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import EdgeDir, FeatureInfo, message_passing_to_positive_label
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import (
    BUYS,
    KNOWS,
    REV_BUYS,
    SMALL,
    E,
    Graph,
    N,
    as_index,
    ring,
)


def test_the_schema_of_each_kind_of_graph() -> None:
    plain = DistDataset.from_pyg(Graph({N: 3}, {E: [(0, 1)]}, {}, False).to_pyg())
    assert plain.schema.edge_types is None
    assert plain.node_feature_info == FeatureInfo(3, torch.float32)
    assert plain.edge_feature_info == FeatureInfo(2, torch.float32)
    labeled = DistDataset.from_pyg(
        Graph({N: 3}, {E: [(0, 1)]}, {}, False).to_pyg(), supervision=as_index([(0, 2)])
    )
    positive = message_passing_to_positive_label(E)
    assert labeled.schema.is_homogeneous_with_labeled_edge_type
    assert labeled.schema.edge_types == [E, positive]
    assert labeled.node_feature_info == {N: FeatureInfo(3, torch.float32)}
    assert not labeled.view().is_heterogeneous
    assert labeled.num_nodes == {N: 3}
    hetero = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    assert not hetero.schema.is_homogeneous_with_labeled_edge_type
    edge_features: Any = hetero.edge_feature_info
    assert set(edge_features) == {BUYS, REV_BUYS, KNOWS}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_label_edges_are_anchor_first_in_both_directions(edge_dir: EdgeDir) -> None:
    dataset = DistDataset.from_pyg(
        SMALL.to_pyg(), edge_dir=edge_dir, supervision=SMALL.supervision()
    )
    positives, negatives = dataset.positive_label_edges(BUYS), dataset.negative_label_edges(BUYS)
    assert positives is not None
    assert negatives is not None
    assert positives.tolist() == [[0, 2], [3, 1]]
    assert negatives.tolist() == [[0], [0]]
    assert dataset.positive_label_edges(KNOWS) is None
    # GLT's own name is that of the stored edges, which edge_dir="in" groups by destination
    positive = message_passing_to_positive_label(BUYS)
    name = ("item", positive[1], "user") if edge_dir == "in" else positive
    assert dataset.graph[name].topo.indptr.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (torch.tensor([0, 5, -1, 2, 0, 0, 0, 0]), 6),
        (torch.zeros(8, 7), 7),
        (torch.tensor([0.0, 1, 0, 1, 1, 1, 0, 0]), 2),
        (None, 0),
    ],
)
def test_num_classes_is_as_pyg_counts(labels, expected: int) -> None:
    data = ring()
    data.y = labels
    assert DistDataset.from_pyg(data).num_classes == expected


def test_classes_and_splits_of_a_typed_dataset() -> None:
    dataset: Any = DistDataset.from_pyg(SMALL.to_pyg())
    assert dataset.num_classes == {"user": 2, "item": 2}, "y has two columns"
    assert dataset.num_nodes == {"user": 3, "item": 4}
    assert {t: ids.tolist() for t, ids in dataset.node_ids.items()} == {
        "user": [0, 1, 2],
        "item": [0, 1, 2, 3],
    }
    assert dataset.split_node_ids("val")["item"].tolist() == [1]
    with pytest.raises(ConfigError, match='split must be "train", "val" or "test", got \'all\''):
        dataset.split_node_ids("all")


def test_the_most_labels_of_an_anchor() -> None:
    dataset = DistDataset.from_pyg(SMALL.to_pyg())
    assert dataset.max_labels_per_anchor_node is None
    assert DistDataset(max_labels_per_anchor_node=2).max_labels_per_anchor_node == 2, "as GiGL"
    dataset.max_labels_per_anchor_node = 3
    assert pickle.loads(pickle.dumps(dataset)).max_labels_per_anchor_node == 3
    value: Any
    for value in (0, True, 1.5):
        with pytest.raises(ConfigError, match="max_labels_per_anchor_node must be an integer > 0"):
            dataset.max_labels_per_anchor_node = value
    assert dataset.max_labels_per_anchor_node == 3, "as it was"
