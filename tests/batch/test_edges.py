"""Seed edges in the places where PyG's ``LinkNeighborLoader`` has them."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import ConfigError
from gigl_loader.batch.collate import add_edge_labels
from gigl_loader.batch.message import EDGE_INPUT_ID, EDGE_LABEL, EDGE_LABEL_INDEX, EDGE_TIME

TYPE = ("user", "buys", "item")
TIMES = torch.tensor([7, 9])


def _message(links: list[Any], **more: torch.Tensor) -> dict[str, torch.Tensor]:
    named = {"label": EDGE_LABEL, "time": EDGE_TIME}
    message = {EDGE_LABEL_INDEX: torch.tensor(links), EDGE_INPUT_ID: torch.tensor([4, 2])}
    return message | {named[name]: value for name, value in more.items()}


def test_binary_negatives_come_last_with_zeros() -> None:
    links = [[0, 1, 1], [2, 3, 4]]
    data = Data()
    add_edge_labels(data, _message(links), None, kind="binary")
    assert data.edge_label_index.tolist() == links
    assert data.edge_label.tolist() == [1.0, 1.0, 0.0]
    assert data.input_id.tolist() == [4, 2]
    label = torch.tensor([[3, 1], [5, 2]])
    add_edge_labels(data, _message(links, label=label), None, kind="binary")
    assert data.edge_label.tolist() == [[3, 1], [5, 2], [0, 0]]
    assert data.edge_label.dtype == torch.int64


def test_without_negatives_labels_stay_as_they_were_given() -> None:
    data = Data()
    add_edge_labels(data, _message([[0, 1], [2, 3]]), None, kind=None)
    assert "edge_label" not in data
    add_edge_labels(
        data, _message([[0, 1], [2, 3]], label=torch.tensor([0, 1]), time=TIMES), None, kind=None
    )
    assert data.edge_label.tolist() == [0, 1]
    assert data.edge_label_time.tolist() == [7, 9]


@pytest.mark.parametrize(("amount", "negatives"), [(1, [6, 7]), (2, [[6, 7], [8, 9]])])
def test_triplets_are_in_the_stores_of_their_ends(amount: int, negatives: list[Any]) -> None:
    links = [0, 1, 2, 3, *range(6, 6 + 2 * amount)]
    data = HeteroData()
    add_edge_labels(data, _message(links, time=TIMES), TYPE, kind="triplet")
    assert data["user"].src_index.tolist() == [0, 1]
    assert data["item"].dst_pos_index.tolist() == [2, 3]
    assert data["item"].dst_neg_index.tolist() == negatives
    assert data["user"].seed_time.tolist() == data["item"].seed_time.tolist() == [7, 9]
    assert data[TYPE].input_id.tolist() == [4, 2]
    assert "edge_label_index" not in data[TYPE]


def test_what_a_split_left_on_the_graph_is_not_the_batchs() -> None:
    whole = {"edge_label_index": torch.zeros(2, 50), "edge_label": torch.ones(50)}
    data = HeteroData({TYPE: {**whole, "edge_label_time": torch.ones(50)}})
    add_edge_labels(data, _message([[0, 1], [2, 3]]), TYPE, kind=None)
    assert data[TYPE].edge_label_index.tolist() == [[0, 1], [2, 3]]
    assert set(data[TYPE].keys()) == {"edge_label_index", "input_id"}


def test_a_sampler_without_seed_edges_is_named() -> None:
    with pytest.raises(ConfigError, match="EdgeRoots"):
        add_edge_labels(Data(), {}, None, kind=None)
