"""The functions of GiGL's ``gigl.types.graph``."""

import pytest
import torch

from gigl_loader import ConfigError
from gigl_loader.compat.gigl_types import (
    label_edge_type_to_message_passing_edge_type,
    reverse_edge_type,
    select_label_edge_types,
    to_heterogeneous_edge,
    to_heterogeneous_node,
    to_homogeneous,
)

NODE = "default_homogeneous_node_type"
EDGE = (NODE, "to", NODE)
BUYS = ("user", "buys", "item")
POSITIVE = ("user", "buys_gigl_positive", "item")
NEGATIVE = ("user", "buys_gigl_negative", "item")


def test_one_value_and_the_dict_of_it() -> None:
    ids = torch.arange(3)
    assert to_homogeneous({NODE: ids}) is ids
    assert to_homogeneous(ids) is ids
    assert to_homogeneous(None) is None
    for wrong in ({}, {"user": 1, "item": 2}):
        with pytest.raises(ConfigError, match="takes a dict of one type"):
            to_homogeneous(wrong)
    for function, default in ((to_heterogeneous_node, NODE), (to_heterogeneous_edge, EDGE)):
        assert function(None) is None
        assert function(ids) == {default: ids}
        given = {"any": ids}
        assert function(given) is given


def test_names_of_edge_types() -> None:
    assert reverse_edge_type(BUYS) == ("item", "buys", "user")
    for label in (POSITIVE, NEGATIVE):
        assert label_edge_type_to_message_passing_edge_type(label) == BUYS
    with pytest.raises(ConfigError, match="no label edge type"):
        label_edge_type_to_message_passing_edge_type(BUYS)


def test_labels_of_an_edge_type_among_others() -> None:
    other = ("user", "knows_gigl_positive", "user")
    assert select_label_edge_types(BUYS, iter([other, NEGATIVE, POSITIVE])) == (POSITIVE, NEGATIVE)
    assert select_label_edge_types(BUYS, {POSITIVE: 1}.keys()) == (POSITIVE, None)
    with pytest.raises(ConfigError, match="has no labels"):
        select_label_edge_types(BUYS, [other, NEGATIVE])
