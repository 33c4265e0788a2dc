"""How long is waited, and how often that is said, by a clock that the tests turn."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.wire.membership import PATIENCE_S, WaitReport, check_patience


@given(st.floats() | st.integers() | st.sampled_from([None, "1", [2.0]]))
def test_patience_is_a_finite_number_of_seconds(value) -> None:
    fits = isinstance(value, (int, float)) and math.isfinite(value) and value > 0
    if fits:
        check_patience(value)
    else:
        with pytest.raises(
            ConfigError, match="network_timeout must be a finite number of seconds > 0"
        ):
            check_patience(value)


def test_the_default_is_one() -> None:
    check_patience(PATIENCE_S)


def test_a_wait_is_told_after_a_while_and_then_now_and_then(clock, caplog) -> None:
    progress = WaitReport("rank 3", deadline=clock.now + 60.0)
    told: list[Any] = []
    for second in range(40):
        clock.now = 1000.0 + second
        due = progress.next_in_s == 0.0
        progress.say(f"server {second}")
        assert due == (len(caplog.messages) > len(told)), "`next_in_s` says when"
        told = list(caplog.messages)
    assert told == [
        f"rank 3 has waited {second} s for server {second}; it gives up after 60 s"
        for second in (5, 15, 25, 35)
    ]
    assert progress.next_in_s == pytest.approx(45 - 39)
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_who_looks_seldom_is_told_once_and_not_for_each_missed_turn(clock, caplog) -> None:
    progress = WaitReport("rank 0", deadline=clock.now + 600.0)
    clock.now += 100.0
    progress.say("all")
    progress.say("all")
    assert len(caplog.messages) == 1
    clock.now += 9.9
    progress.say("all")
    assert len(caplog.messages) == 1
