"""Names of edge types: labels, reverse types, files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.schema import (
    edge_type_str,
    is_label_edge_type,
    label_to_message_passing,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    plain_edge_type,
    reverse_edge_type,
)

EDGE_TYPES = st.tuples(*[st.text("abrev_", min_size=1, max_size=6)] * 3)


def test_names_of_labels_are_gigls() -> None:
    assert message_passing_to_positive_label(("u", "to", "i")) == ("u", "to_gigl_positive", "i")
    assert message_passing_to_negative_label(("u", "to", "i")) == ("u", "to_gigl_negative", "i")


@given(EDGE_TYPES)
def test_labels_are_told_from_other_types(edge_type: tuple[str, str, str]) -> None:
    positive = message_passing_to_positive_label(edge_type)
    assert is_label_edge_type(positive)
    assert is_label_edge_type(message_passing_to_negative_label(edge_type))
    assert not is_label_edge_type(edge_type)
    assert label_to_message_passing(positive) == edge_type
    assert plain_edge_type(edge_type) == edge_type


@pytest.mark.parametrize(
    ("edge_type", "expected"),
    [
        (("user", "buys", "item"), ("item", "rev_buys", "user")),
        (("item", "rev_buys", "user"), ("user", "buys", "item")),
        (("user", "knows", "user"), ("user", "knows", "user")),
        (("user", "rev_knows", "user"), ("user", "rev_knows", "user")),
    ],
)
def test_reverse_types_are_named_as_glt_does(edge_type: tuple, expected: tuple) -> None:
    assert reverse_edge_type(edge_type) == expected
    assert reverse_edge_type(expected) == edge_type


def test_types_as_glt_names_files() -> None:
    assert edge_type_str(("user", "buys", "item")) == "user__buys__item"
