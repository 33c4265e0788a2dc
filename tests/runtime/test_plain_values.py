"""Checks of plain values: what they refuse, and the words."""

from typing import Any

import pytest

from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.runtime.plain_values import check_count, check_flag


@pytest.mark.parametrize(
    ("value", "limits", "words"),
    [
        (0, (), "n must be an integer > 0, got 0"),
        (True, (), "n must be an integer > 0, got True"),
        (1.0, (), "got 1.0"),
        ("2", (), "got '2'"),
        (-1, (0,), "n must be an integer >= 0, got -1"),
        (0, (1, 4), r"n must be an integer in \[1, 4\], got 0"),
        (5, (1, 4), r"n must be an integer in \[1, 4\], got 5"),
    ],
)
def test_counts_that_cannot_be_are_refused(value: Any, limits: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_count(value, "n", *limits)


def test_counts_and_flags_that_can_be() -> None:
    check_count(1, "n")
    check_count(0, "n", 0)
    check_count(4, "n", 1, 4)
    check_flag(False, "f")


@pytest.mark.parametrize("value", ["False", 0, None])
def test_a_flag_is_a_bool(value: Any) -> None:
    with pytest.raises(WrongTypeError, match="f must be True or False, got"):
        check_flag(value, "f")
