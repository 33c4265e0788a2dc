"""Datasets that stand in for GLT's; the contract of both is `test_glt_classes`."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.errors import NativeLibraryError
from gigl_loader.runtime.glt_classes.datasets import Dataset, DistDataset


@given(st.integers(2, 30), st.data())
def test_splits_are_all_nodes_once(count: int, data: st.DataObject) -> None:
    num_val = data.draw(st.integers(0, count))
    num_test = data.draw(st.integers(0, count - num_val))
    dataset = Dataset(node_labels=torch.zeros(count, 1))
    dataset.random_node_split(num_val, num_test)
    splits = [dataset.train_idx, dataset.val_idx, dataset.test_idx]
    sizes = [ids.numel() for ids in splits]
    assert sizes == [count - num_val - num_test, num_val, num_test]
    assert torch.cat([ids.view(-1) for ids in splits]).sort().values.tolist() == list(range(count))
    assert all(ids.untyped_storage().nbytes() == ids.nbytes for ids in splits), "no views"


def test_a_share_is_a_float_and_a_count_an_int() -> None:
    dataset = Dataset(node_labels={"a": torch.zeros(40), "b": torch.zeros(8)})
    dataset.random_node_split(0.25, 1)
    assert {name: len(ids) for name, ids in dataset.val_idx.items()} == {"a": 10, "b": 2}
    assert {name: ids.numel() for name, ids in dataset.test_idx.items()} == {"a": 1, "b": 1}
    assert {name: len(ids) for name, ids in dataset.train_idx.items()} == {"a": 29, "b": 5}


def test_a_partition_splits_the_nodes_that_it_owns() -> None:
    book = {"a": torch.tensor([1, 0, 1, 1])}
    dataset = DistDataset(2, 1)
    dataset.node_labels, dataset.node_pb = {"a": torch.zeros(4)}, book
    dataset.random_node_split(1, 1)
    parts = [dataset.train_idx["a"], dataset.val_idx["a"], dataset.test_idx["a"]]
    assert sorted(int(ids) for ids in parts) == [0, 2, 3]


@pytest.mark.parametrize(("edge_dir", "offsets"), [("out", [0, 2, 3]), ("in", [0, 0, 1, 3])])
def test_edges_are_grouped_by_the_end_that_is_expanded(
    edge_dir: EdgeDir, offsets: list[int]
) -> None:
    dataset = Dataset(edge_dir=edge_dir)
    edges = np.array([[0, 0, 1], [1, 2, 2]])
    dataset.init_graph(
        {("a", "to", "a"): edges}, layout={("a", "to", "a"): "COO"}, graph_mode="CPU"
    )
    assert dataset.get_graph(("a", "to", "a")).topo.indptr.tolist() == offsets


def test_owners_of_features_are_those_of_nodes_unless_they_are_named() -> None:
    book, other = torch.tensor([0, 1]), torch.tensor([1, 1])
    dataset = DistDataset()
    dataset.node_pb = dataset.edge_pb = book
    dataset._node_feat_pb = other
    assert dataset.node_feat_pb is other
    assert dataset.edge_feat_pb is book, "also where the book was set afterwards"


@pytest.mark.parametrize("given_labels", [[[4], [5]], [[4, 5]]])
def test_labels_lose_their_dimensions_of_one(given_labels: Any) -> None:
    dataset = Dataset(node_labels=np.array(given_labels))
    assert dataset.get_node_label().tolist() == [4, 5]


def test_what_orders_rows_for_gpus_is_refused() -> None:
    with pytest.raises(NativeLibraryError, match="sort_func"):
        Dataset().init_node_features(torch.ones(1, 1), sort_func=sorted)
    with pytest.raises(NativeLibraryError, match="with_gpu=False"):
        Dataset().init_edge_features({("a", "to", "a"): torch.ones(1, 1)})
