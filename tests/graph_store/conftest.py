"""What tests of the graph store share: how often a wait is reported, and by which clock."""

from collections.abc import Callable

import pytest

from gigl_loader.graph_store.wire import membership
from tests.support.conditions import Clock, SetConstants


@pytest.fixture
def clock(clock_of: Callable[..., Clock]) -> Clock:
    """The time of `graph_store.wire.membership`, which the test turns by its ``now``."""
    return clock_of(membership)


@pytest.fixture
def talkative(constants: SetConstants) -> None:
    """Let who waits say so five times a second, and not after five seconds."""
    constants(membership, _FIRST_REPORT_S=0.2, _REPORT_EVERY_S=0.2)
