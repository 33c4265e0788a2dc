"""What tests of the graph store share: this process's part in it, and how long it waits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.conditions import Clock, SetConstants

from gigl_loader.client import client
from gigl_loader.wire import membership


@pytest.fixture
def take_part(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let this process be part of a graph store, through the cluster that it is called with.

    `gigl_loader.graph_store.init_compute_process` also starts a process group.
    """
    return partial(monkeypatch.setattr, client, "_cluster")


@pytest.fixture
def clock(clock_of: Callable[..., Clock]) -> Clock:
    """The time of `gigl_loader.wire.membership`, which the test turns by its ``now``."""
    return clock_of(membership)


@pytest.fixture
def talkative(constants: SetConstants) -> None:
    """Let who waits say so five times a second, and not after five seconds."""
    constants(membership, _FIRST_REPORT_S=0.2, _REPORT_EVERY_S=0.2)
