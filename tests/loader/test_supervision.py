"""What is predicted, and which edges could give it away; no process is started."""

from typing import Any

import pytest

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.loader.seeds.ablp_input import (
    check_anchor_type,
    excluded_types,
    labeled_types,
    supervision_types,
)

BUYS, REV, KNOWS = ("u", "buys", "i"), ("i", "rev_buys", "u"), ("u", "knows", "u")
MADE = ("i", "made_by", "maker")
POSITIVE, NEGATIVE = (
    message_passing_to_positive_label(BUYS),
    message_passing_to_negative_label(BUYS),
)
TYPES = [BUYS, REV, KNOWS, MADE, POSITIVE, NEGATIVE, message_passing_to_positive_label(KNOWS)]


def _schema(edge_types, *, labeled_homogeneous=False):
    return DatasetSchema(labeled_homogeneous, edge_types, None, None, "in")


def test_one_type_several_types_and_the_default() -> None:
    assert labeled_types(TYPES) == [BUYS, KNOWS]
    assert supervision_types(_schema(TYPES), BUYS) == [BUYS]
    assert supervision_types(_schema(TYPES), [KNOWS, BUYS]) == [KNOWS, BUYS]
    plain = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    schema = _schema([plain, message_passing_to_positive_label(plain)], labeled_homogeneous=True)
    assert supervision_types(schema, None) == [plain]
    assert plain[0] == DEFAULT_HOMOGENEOUS_NODE_TYPE


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (None, ConfigError, "supervision_edge_type must be given"),
        ([], ConfigError, "empty list"),
        (REV, ConfigError, "no positive label edges"),
        (POSITIVE, ConfigError, "without the suffix"),
        # the anchors come last there, and not only the name: what is said leads to the right ones
        (BUYS[::-1], ConfigError, "if 'i' are the anchors, turn them"),
        ([BUYS, BUYS], ConfigError, "twice"),
        ("buys", WrongTypeError, "must be .anchor type"),
        (["u", "buys", "i"], WrongTypeError, "must be .anchor type"),
    ],
)
def test_what_cannot_be_predicted(given, error, match) -> None:
    with pytest.raises(error, match=match):
        supervision_types(_schema(TYPES), given)


def test_a_dataset_without_labels() -> None:
    for edge_types in ([BUYS, NEGATIVE], None):
        with pytest.raises(ConfigError, match="no positive label edges"):
            supervision_types(_schema(edge_types), BUYS)


def test_anchors_are_the_sources() -> None:
    check_anchor_type([BUYS, KNOWS], "u")
    with pytest.raises(ConfigError, match="anchors are sources"):
        check_anchor_type([BUYS], "i")
    with pytest.raises(ConfigError, match="starts at 'u'"):
        check_anchor_type([BUYS], "maker")


def test_copies_are_looked_for_between_the_same_two_types() -> None:
    assert excluded_types(TYPES, [BUYS], False) == ()
    assert excluded_types(TYPES, [BUYS], True) == (BUYS, REV)
    assert excluded_types(TYPES, [KNOWS], True) == (KNOWS,)
    assert excluded_types(TYPES, [BUYS], [REV]) == (REV,)
    for wrong in (KNOWS, MADE, POSITIVE):
        with pytest.raises(ConfigError, match="cannot hold copies"):
            excluded_types(TYPES, [BUYS], [wrong])
    no_type: Any
    for no_type in (None, "buys", 1):
        with pytest.raises(WrongTypeError, match="True, False or a list of edge types, got"):
            excluded_types(TYPES, [BUYS], no_type)
