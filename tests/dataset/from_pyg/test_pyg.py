"""What is read of a PyG graph, and what is wrong with one."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistNeighborLoader, partition_graph
from gigl_loader.commands import diagnose
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import (
    FeatureInfo,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.testing import batch_digest
from tests.dataset.dataset_reference import KNOWS, SMALL, E, N, as_index


def test_label_edge_types_of_a_heterodata_are_labels() -> None:
    data = SMALL.to_pyg()
    data[message_passing_to_negative_label(KNOWS)].edge_index = as_index([(1, 2)])
    dataset = DistDataset.from_pyg(data)
    found = dataset.negative_label_edges(KNOWS)
    assert found is not None
    assert found.tolist() == [[1], [2]]
    none = torch.empty((2, 0), dtype=torch.int64)
    with pytest.raises(ConfigError, match="give them once"):
        DistDataset.from_pyg(data, supervision={KNOWS: (none, as_index([(1, 2)]))})


def test_attributes_that_may_be_absent() -> None:
    dataset = DistDataset.from_pyg(Data(edge_index=as_index([(0, 4)])))
    view = dataset.view()
    assert view.num_nodes == {N: 5}
    assert [view.node_features, view.node_labels, view.edge_features] == [{}, {}, {}]
    assert view.adjacency[E].weights is None
    assert dataset.known_split("train") is None
    assert dataset.node_feature_info is None
    one_column = Data(edge_index=as_index([(0, 1)]), edge_attr=torch.tensor([3.0]), num_nodes=2)
    assert DistDataset.from_pyg(one_column).edge_feature_info == FeatureInfo(1, torch.float32)


def test_integer_and_half_features_keep_their_type() -> None:
    data = Data(x=torch.ones(2, 1, dtype=torch.uint8), edge_index=as_index([(0, 1)]))
    assert DistDataset.from_pyg(data).node_feature_info == FeatureInfo(1, torch.uint8)
    data.x = data.x.half()
    assert DistDataset.from_pyg(data).node_features[torch.tensor([1])].dtype == torch.float16


def _data(**changes):
    return Data(**({"edge_index": as_index([(0, 1), (1, 2)]), "num_nodes": 3} | changes))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_data(edge_index=as_index([(0, 3)])), r"edge_index, row 1.*id 3.*3 nodes"),
        (_data(edge_index=as_index([(-1, 0)])), "negative id -1"),
        (_data(edge_index=torch.tensor([[0.0], [1.0]])), "must be int64"),
        (_data(edge_index=torch.tensor([[0.0], [1.0]])), r"pass it as .long\(\)"),
        (_data(edge_index=torch.zeros((3, 2), dtype=torch.int64)), r"shape \[2, num_edges\]"),
        (Data(train_pos=torch.ones(3, 1)), "no edge_index"),
        (_data(x=torch.ones(2, 1)), r"data.x.*3 expected, got shape \(2, 1\)"),
        (_data(x=torch.eye(3).to_sparse()), "sparse"),
        (_data(y=torch.ones(4)), "data.y"),
        (_data(edge_attr=torch.ones(3, 1)), "edge_attr.*2 expected"),
        (_data(edge_weight=torch.tensor([1.0, -2.0])), "edge_weight has the negative value -2"),
        (_data(edge_weight=torch.tensor([1.0, float("nan")])), "NaN"),
        (_data(weights=torch.ones(3)), "weights must have one value per edge"),
        (_data(train_mask=torch.tensor([True])), "train_mask has 1 entries for 3"),
        (_data(val_mask=torch.tensor([0, 1, 0])), "val_mask must be bool"),
        (_data(test_mask=torch.ones(3, 2, dtype=torch.bool)), "pick one column"),
        (_data(train_idx=torch.tensor([0, 3])), r"train_idx has id 3.*3 nodes"),
        (_data(train_idx=torch.tensor([0.5])), "train_idx must be bool, or int64 ids"),
        (_data(train_idx=[0, 1]), "train_idx must be a torch.Tensor"),
        (
            _data(train_idx=torch.tensor([0]), train_mask=torch.tensor([False, True, True])),
            "data.train_mask and data.train_idx name different nodes",
        ),
        (_data(num_nodes=-1), "num_nodes"),
    ],
)
def test_malformed_data_is_named(data, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DistDataset.from_pyg(data)


@pytest.mark.parametrize(
    "given",
    [
        {"train_mask": torch.tensor([2, 0]), "val_mask": torch.tensor([1])},
        {"train_idx": torch.tensor([2, 0], dtype=torch.int32), "valid_idx": torch.tensor([1])},
        {"train_idx": torch.tensor([2, 0]).numpy(), "val_idx": torch.tensor([1])},
        {"split_idx": {"train": torch.tensor([0, 2]), "valid": torch.tensor([1])}},
        {
            "train_idx": torch.tensor([0, 2]),
            "train_mask": torch.tensor([True, False, True, False]),
            "val_mask": torch.tensor([False, True, False, False]),
        },
    ],
)
def test_splits_are_masks_or_ids(given: dict[str, Any], tmp_path) -> None:
    data = Data(edge_index=as_index([(0, 1), (1, 3)]), **given)
    whole = DistDataset.from_pyg(data)  # no warning: each of them reaches the dataset
    assert whole.num_nodes == 4
    assert [whole.train_node_ids.tolist(), whole.val_node_ids.tolist()] == [[0, 2], [1]]
    partition_graph(data, 2, tmp_path / "parts", progress=False)
    parts = [DistDataset.load(tmp_path / "parts", part) for part in (0, 1)]
    assert [part.train_node_ids.tolist() for part in parts] == [[0], [2]]
    typed = HeteroData()
    typed["a"].num_nodes = 4
    typed["b"].num_nodes = 1
    typed["a", "to", "b"].edge_index = as_index([(0, 0)])
    if "split_idx" in given:
        typed.split_idx = {name: {"a": ids} for name, ids in given["split_idx"].items()}
    else:
        typed["a"].update(given)
    assert DistDataset.from_pyg(typed).train_node_ids["a"].tolist() == [0, 2]


def test_a_split_dict_of_wrong_types_is_named() -> None:
    data = HeteroData()
    data["a"].num_nodes = 2
    data["a", "to", "a"].edge_index = as_index([(0, 1)])
    data.split_idx = {"train": torch.tensor([0])}
    with pytest.raises(ConfigError, match=r"data.split_idx\['train'\] must be ids by node type"):
        DistDataset.from_pyg(data)
    data.split_idx = {"train": {"a": torch.tensor([0])}}
    data["a"].split_idx = {"train": torch.tensor([1])}
    with pytest.raises(ConfigError, match="give one of them"):
        DistDataset.from_pyg(data)


def test_reading_a_split_that_is_not_there_warns_once() -> None:
    dataset = DistDataset.from_pyg(_data(val_mask=torch.tensor([True, False, False])))
    words = "no train split.*no train_mask, train_idx or split_idx.*refuses input_nodes=None"
    with pytest.warns(UserWarning, match=words) as caught:
        assert dataset.train_node_ids is None
    assert caught[0].filename == __file__
    assert dataset.split_node_ids("train") is None  # warnings are errors here: there is no second
    assert dataset.val_node_ids.tolist() == [0]
    with pytest.warns(UserWarning, match="no test split"):
        assert dataset.split_node_ids("test") is None


def test_features_that_are_no_numbers_are_counted_once(tmp_path) -> None:
    x = torch.zeros(3, 2)
    DistDataset.from_pyg(_data(x=x))  # no warning
    x[1, 0] = x[2, 1] = torch.nan
    with pytest.warns(UserWarning, match=r"2 of 6 features of \(the only type\) are NaN") as caught:
        DistDataset.from_pyg(_data(x=x))
    assert [one.filename for one in caught] == [__file__]
    with pytest.warns(UserWarning, match="2 of 6 features"):
        partition_graph(_data(x=x), 1, tmp_path / "parts", progress=False)
    DistDataset.load(tmp_path / "parts", 0)  # files are not read for it
    assert "2 of 6 features of (the only type) of partition 0 are NaN" in str(
        next(one for one in diagnose.graph(tmp_path / "parts") if one.bad)
    )


def test_malformed_heterodata_is_named() -> None:
    data = HeteroData()
    data["user"].x = torch.ones(2, 1)
    data["user", "buys", "item"].edge_index = as_index([(0, 0)])
    with pytest.raises(ConfigError, match="node type 'item', which has no nodes"):
        DistDataset.from_pyg(data)
    data["item"].name = "without a count"
    with pytest.raises(ConfigError, match="does not say how many nodes"):
        DistDataset.from_pyg(data)
    with pytest.raises(WrongTypeError, match="must be a torch_geometric"):
        DistDataset.from_pyg({"edge_index": None})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"partition_idx": 1}, "partition_idx must be in"),
        ({"num_partitions": 2}, "needs a partition_book"),
        ({"partition_book": torch.tensor([0, 1])}, "covers 2 nodes, the graph has 3"),
        ({"partition_book": torch.tensor([0.5, 1, 1])}, "1-D integer"),
        ({"partition_book": torch.tensor([0, -1, 1])}, "partition -1"),
        ({"partition_book": {"a": torch.tensor([0])}}, "not a dict"),
        ({"partition_book": [0, 0, 1]}, "list"),
        ({"edge_dir": "IN"}, "edge_dir"),
        ({"supervision": as_index([(0, 5)])}, "id 5"),
        ({"supervision": {"to": as_index([(0, 1)])}}, "tuple"),
        ({"supervision": {message_passing_to_positive_label(E): as_index([(0, 1)])}}, "suffix"),
        ({"supervision": {("a", "to", "b"): as_index([(0, 1)])}}, "node type 'a'"),
    ],
)
def test_from_pyg_refuses(keywords, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DistDataset.from_pyg(_data(), **keywords)


def test_what_pyg_takes_is_taken() -> None:
    """Ids in fewer bytes, and nodes without edges: the batches are those of int64."""
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    batches = []
    for dtype in (torch.int64, torch.int32):
        dataset = DistDataset.from_pyg(Data(edge_index=edges.to(dtype), num_nodes=4))
        with DistNeighborLoader(dataset, [-1], num_workers=0, batch_size=4) as loader:
            batches.append(batch_digest(next(iter(loader))))
    assert batches[0] == batches[1]
    for alone in (Data(num_nodes=5), Data(x=torch.ones(5, 2), edge_index=None)):
        dataset = DistDataset.from_pyg(alone)
        with DistNeighborLoader(dataset, [3], num_workers=0, batch_size=5) as loader:
            (batch,) = loader
        assert batch.n_id.tolist() == [0, 1, 2, 3, 4]
        assert batch.edge_index.shape == (2, 0)


def test_a_book_of_whole_floats() -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    parts: list[Any] = [
        DistDataset.from_pyg(data, partition_book=torch.tensor([0.0, 1.0, 1.0]), partition_idx=one)
        for one in range(2)
    ]
    assert [part.node_ids.tolist() for part in parts] == [[0], [1, 2]]
    for wrong in ([0.0, 0.5, 1.0], [0.0, float("nan"), 1.0], [0.0, float("inf"), 1.0]):
        with pytest.raises(ConfigError, match="1-D integer tensor"):
            DistDataset.from_pyg(data, partition_book=torch.tensor(wrong), num_partitions=2)
