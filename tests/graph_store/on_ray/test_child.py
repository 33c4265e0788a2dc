"""A server that is a child: it ends with its parent, and does not begin without it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gigl_loader.graph_store.ray.actor import main


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, libc_is: Callable[..., None]) -> list[Any]:
    """What is done; the real call would end this process with its own parent."""
    found: list[Any] = []
    libc_is(prctl=lambda *words: found.append(words))

    def serve(argv: Any) -> int:
        found.append(argv)
        return 7

    monkeypatch.setattr("gigl_loader.graph_store.serve.serve_main", serve)
    return found


def test_it_ends_with_its_parent_and_serves_for_it(calls: list[Any]) -> None:
    assert main([str(os.getppid()), "--root=x", "--rank=1"]) == 7
    set_death_signal = 1  # <linux/prctl.h>
    assert calls == [(set_death_signal, signal.SIGKILL), ["--root=x", "--rank=1"]]


def test_it_does_not_serve_for_a_parent_that_has_gone(calls: list[Any]) -> None:
    """That one ended before the signal was asked for: it will never come."""
    assert main([str(os.getpid()), "--root=x"]) == 1
    assert len(calls) == 1, "asked for first, looked at then: the other way round leaves a gap"


@pytest.mark.multiprocess
def test_a_parent_that_has_gone_is_known_before_anything_is_loaded() -> None:
    nobody = str(os.getpid() + 1)
    words = "-X", "importtime", "-m", "gigl_loader.graph_store.ray.actor", nobody
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr[-2000:]
    assert " torch" not in done.stderr
