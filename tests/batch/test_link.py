"""Labels of anchors: as a dict by anchor, as one tensor, and by supervision edge type."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import ConfigError
from gigl_loader.batch.collate import add_labels, by_anchor
from gigl_loader.batch.message import LABEL_COUNTS, LABEL_LINKS, label_column
from gigl_loader.dataset.schema import NEGATIVE, POSITIVE

BUYS, LIKES = ("user", "buys", "item"), ("user", "likes", "item")
LINKS = torch.tensor([[0, 0, 2], [5, 6, 5]])


def _labels(sign: str, edge_type: tuple[str, str, str], links: torch.Tensor) -> dict:
    name = label_column(sign, edge_type)
    counts = torch.bincount(links[0], minlength=3)
    return {LABEL_LINKS + name: links, LABEL_COUNTS + name: counts}


def test_an_anchor_without_labels_has_an_empty_tensor() -> None:
    found = by_anchor(LINKS, torch.tensor([2, 0, 1]))
    assert {anchor: nodes.tolist() for anchor, nodes in found.items()} == {0: [5, 6], 1: [], 2: [5]}
    assert found[2].data_ptr() == LINKS[1, 2:].data_ptr()  # a view
    assert (
        by_anchor(torch.empty(2, 0, dtype=torch.int64), torch.tensor([], dtype=torch.int64)) == {}
    )


def test_one_type_is_its_labels_and_negatives_come_where_there_are_any() -> None:
    message = _labels(POSITIVE, BUYS, LINKS)
    data = Data()
    add_labels(data, message, [BUYS], as_edge_index=True)
    assert data.y_positive is message[LABEL_LINKS + label_column(POSITIVE, BUYS)]
    assert "y_negative" not in data
    message |= _labels(NEGATIVE, BUYS, LINKS.flip(1)[:, :1])
    add_labels(data, message, [BUYS], as_edge_index=False)
    assert [nodes.tolist() for nodes in data.y_positive.values()] == [[5, 6], [], [5]]
    assert [nodes.tolist() for nodes in data.y_negative.values()] == [[], [], [5]]


def test_several_types_are_a_dict_by_type() -> None:
    message = _labels(POSITIVE, BUYS, LINKS) | _labels(POSITIVE, LIKES, LINKS[:, :1])
    message |= _labels(NEGATIVE, LIKES, LINKS[:, 1:2])
    data = HeteroData()
    add_labels(data, message, [BUYS, LIKES], as_edge_index=True)
    assert {name: links.tolist() for name, links in data.y_positive.items()} == {
        BUYS: LINKS.tolist(),
        LIKES: [[0], [5]],
    }
    assert {name: links.tolist() for name, links in data.y_negative.items()} == {LIKES: [[0], [6]]}


def test_a_sampler_without_positives_is_named() -> None:
    message = _labels(NEGATIVE, BUYS, LINKS)
    with pytest.raises(ConfigError, match=r"no positives of .*buys.*AnchorRoots"):
        add_labels(Data(), message, [BUYS], as_edge_index=True)
