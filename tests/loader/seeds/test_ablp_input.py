"""Anchors with labels, as a graph store's users give them: columns, and what is refused."""

import pytest
import torch

from gigl_loader.dataset.schema import (
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.seeds.ablp_input import link_inputs
from gigl_loader.sources.remote_interface import ABLPInputNodes

BUYS, KNOWS = ("u", "buys", "i"), ("u", "knows", "u")
POSITIVE, NEGATIVE = (
    message_passing_to_positive_label(BUYS),
    message_passing_to_negative_label(BUYS),
)
ONE = torch.zeros(2, 1, dtype=torch.int64)
NUM_NODES = {"u": 5, "i": 4}


def _nodes(
    anchors=(0, 1), positives=((1, -1), (2, 3)), negatives=None, **changes
) -> ABLPInputNodes:
    values = {
        "anchor_node_type": "u",
        "anchor_nodes": torch.tensor(anchors),
        "labels": {
            BUYS: (
                torch.tensor(positives).reshape(len(anchors), -1),
                None if negatives is None else torch.tensor(negatives),
            )
        },
    }
    return ABLPInputNodes(**{**values, **changes})


def test_labels_become_columns_the_same_on_every_server() -> None:
    given = {2: _nodes(), 0: _nodes((4,), ((3,),), ((0, 1),))}
    supervision, inputs = link_inputs(given, NUM_NODES, range(3))
    assert supervision == [BUYS]
    assert [one.node.tolist() for one in inputs] == [[4], [], [0, 1]]
    assert {one.input_type for one in inputs} == {"u"}
    assert {name: column.tolist() for name, column in inputs[0].extra.items()} == {
        "positive:u__buys__i": [[3]],
        "negative:u__buys__i": [[0, 1]],
    }
    assert inputs[2].extra["positive:u__buys__i"].tolist() == [[1, -1], [2, 3]]
    assert inputs[2].extra["negative:u__buys__i"].shape == (2, 0)  # none were given there


def test_several_types_without_negatives() -> None:
    labels = {KNOWS: (torch.tensor([[3], [-1]]), None), BUYS: (torch.tensor([[0], [1]]), None)}
    supervision, inputs = link_inputs({0: _nodes(labels=labels)}, NUM_NODES, range(1))
    assert supervision == [BUYS, KNOWS]
    assert set(inputs[0].extra) == {"positive:u__buys__i", "positive:u__knows__u"}
    assert inputs[0].extra["positive:u__knows__u"].tolist() == [[3], [-1]]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (torch.tensor([0]), "server_rank: ABLPInputNodes.*got Tensor"),
        ({}, "got dict"),
        ({0: torch.tensor([0])}, "got .server_rank: Tensor"),
        ({3: _nodes()}, "storage servers .3."),
        ({0: _nodes(), 1: _nodes(anchor_node_type="i")}, "one anchor type"),
        ({0: _nodes(labels={POSITIVE: (ONE, None)})}, "by supervision edge type, got the label"),
        ({0: _nodes(labels={})}, "must be .supervision edge type"),
        ({0: _nodes(labels=ONE)}, "got Tensor"),
        ({0: _nodes(labels={BUYS: ONE})}, r"must be \(positives, negatives or None\), got Tensor"),
        ({0: _nodes(), 1: _nodes(labels={KNOWS: (ONE, None)})}, "the same labels on all servers"),
        ({0: _nodes(anchor_node_type="i")}, "anchors are sources"),
        ({0: _nodes((5, 1))}, r"anchor_nodes\[0\] = 5 is no node id"),
        ({0: _nodes(positives=((4,), (1,)))}, r"labels\[.*\]\[0\]\[0, 0\] = 4 is no node id"),
        ({0: _nodes(positives=((-2,), (1,)))}, "-1 fills a row up"),
        ({0: _nodes(labels={BUYS: (torch.zeros(3, 1).long(), None)})}, "3 rows for 2 anchors"),
        ({0: _nodes(labels={BUYS: (torch.zeros(2).long(), None)})}, "most labels. int64"),
        ({0: _nodes(negatives=((0,), (9,)))}, r"labels\[.*\]\[1\]\[1, 0\] = 9"),
    ],
)
def test_input_that_cannot_work(given, match) -> None:
    with pytest.raises(ConfigError, match=match):
        link_inputs(given, NUM_NODES, range(3))


def test_labels_by_label_edge_type_are_still_there() -> None:
    nodes = _nodes(negatives=((0,), (3,)))
    assert {t: v.tolist() for t, v in nodes.positive_labels.items()} == {
        POSITIVE: [[1, -1], [2, 3]]
    }
    assert nodes.negative_labels is not None
    assert {t: v.tolist() for t, v in nodes.negative_labels.items()} == {NEGATIVE: [[0], [3]]}
    assert _nodes().negative_labels is None


def test_anchors_of_an_unknown_type() -> None:
    with pytest.raises(ConfigError, match="anchor_node_type is 'u'"):
        link_inputs({0: _nodes()}, {"i": 4}, range(1))
