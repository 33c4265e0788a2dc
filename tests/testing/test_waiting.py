"""Waiting until something holds, on a clock of its own."""

from collections.abc import Callable

import pytest

from gigl_loader.testing import this_machine, wait_until
from tests.support.conditions import Clock


class _NotedClock(Clock):
    """A clock that notes how long each sleep is."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.pauses.append(seconds)


@pytest.fixture
def pauses(clock_of: Callable[..., _NotedClock]) -> list[float]:
    return clock_of(this_machine, _NotedClock()).pauses


def test_it_is_asked_more_and_more_rarely(pauses: list[float]) -> None:
    wait_until(lambda: sum(pauses) >= 10.0, "ten seconds are over")
    assert pauses[0] == 0.005
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.1
    assert sum(pauses) < 10.2


@pytest.mark.parametrize("timeout_s", [0.0, 3.0])
def test_what_did_not_come_is_named(timeout_s: float, pauses: list[float]) -> None:
    asked: list[int] = []
    with pytest.raises(AssertionError, match=rf"not within {timeout_s:g} s: the cows come home"):
        wait_until(lambda: asked.append(1), "the cows come home", timeout_s)
    assert len(asked) == len(pauses) + 1, "once more after the last pause"


def test_what_holds_needs_no_time(pauses: list[float]) -> None:
    wait_until(lambda: "yes", "it holds", 0.0)
    assert pauses == []
