"""How long servers may be away, and how often: no sockets, and a clock that the test turns."""

from collections.abc import Callable

import pytest

from gigl_loader.graph_store.client import server_outages as module
from gigl_loader.graph_store.client.server_outages import MOST_RETURNS, ServerOutages
from tests.support.conditions import Clock


@pytest.fixture
def clock(clock_of: Callable[..., Clock]) -> Clock:
    """The time of `gigl_loader.graph_store.client.server_outages`."""
    return clock_of(module)


def test_each_absence_has_a_clock_of_its_own(clock: Clock) -> None:
    renewals: dict[int, int] = {}
    outages = ServerOutages(renewals, 100.0)
    for away, seconds in (([1], 90.0), ([1, 2], 9.0)):
        assert outages.overdue(away) is None
        clock.now += seconds
    renewals[1] = 1
    assert outages.overdue([2]) is None
    clock.now += 50.0
    # seen: one clock for all of them, so that 120 s in sum ended a job
    assert not outages.is_over, "149 s after the first loss, and 50 after a return"
    assert outages.overdue([1, 2]) is None, "server 1 was lost again just now"
    clock.now += 41.0
    assert outages.overdue([1, 2]) == 2
    renewals[2] = 1
    clock.now += 59.0
    assert outages.overdue([1]) == 1
    assert not outages.is_over
    clock.now += 100.0
    assert outages.is_over, "nothing came back for 100 s"


def test_a_return_between_two_looks_begins_a_new_absence(clock: Clock) -> None:
    renewals: dict[int, int] = {}
    outages = ServerOutages(renewals, 100.0)
    assert outages.overdue([1]) is None
    clock.now += 99.0
    renewals[1] = 1
    assert outages.overdue([1]) is None
    clock.now += 99.0
    assert outages.overdue([1]) is None


def test_nothing_is_waited_for_within_a_limit_of_0(clock: Clock) -> None:
    outages = ServerOutages({}, 0.0)
    assert outages.is_over
    assert outages.overdue([]) is None
    assert outages.overdue([3]) == 3


def test_a_server_that_comes_back_again_and_again_is_given_up(clock: Clock) -> None:
    renewals = {1: 7}
    outages = ServerOutages(renewals, 100.0)
    for _ in range(MOST_RETURNS):
        assert outages.restless is None, "earlier returns do not count, nor do those of others"
        renewals[1] += 1
        renewals[2] = renewals.get(2, 0) + (renewals[1] % 2)
        clock.now += 1000.0
        outages.go_on()
        assert not outages.is_over, "its clocks began anew"
    assert outages.restless == 1
