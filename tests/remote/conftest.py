"""What tests of the graph store share: this process's part in it, and how long it waits."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.remote import client, membership


@pytest.fixture
def take_part(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Let this process be part of a graph store, through the cluster that it is called with.

    `gigl_loader.graph_store.init_compute_process` also starts a process group.
    """
    return partial(monkeypatch.setattr, client, "_cluster")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of `gigl_loader.remote.membership`, which the test turns by its ``now``."""
    found = SimpleNamespace(now=1000.0)
    found.monotonic = lambda: found.now
    monkeypatch.setattr(membership, "time", found)
    return found


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who waits say so five times a second, and not after five seconds."""
    for name in ("_FIRST_REPORT_S", "_REPORT_EVERY_S"):
        monkeypatch.setattr(membership, name, 0.2)
