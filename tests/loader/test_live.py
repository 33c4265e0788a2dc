"""Loaders that nobody shut down: at the end of the interpreter, and in a forked child."""

import gc
import os
import weakref

import pytest

from gigl_loader.loader.deployment import process_role


class Loader:
    """Counts how often it is shut down, and how."""

    def __init__(self, error: Exception | None = None) -> None:
        self._shutdowned, self._is_forked = False, False
        self.lingered, self._error = list[float | None](), error

    @property
    def state(self) -> tuple[bool, bool]:
        """Whether it was shut down, and whether it is a forked process's copy."""
        return self._shutdowned, self._is_forked

    def shutdown(self, idle_timeout: float | None = None) -> None:
        self._shutdowned = True
        self.lingered.append(idle_timeout)
        if self._error is not None:
            raise self._error


@pytest.fixture(autouse=True)
def _no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of other tests of this process stay as they are."""
    monkeypatch.setattr(process_role, "open_loaders", weakref.WeakSet())


def test_open_loaders_are_shut_down_at_exit_whatever_one_of_them_raises() -> None:
    loaders = [Loader(), Loader(OSError("too late")), Loader()]
    closed = Loader()
    for loader in (*loaders, closed):
        process_role.open_loaders.add(loader)
    process_role.open_loaders.discard(closed)
    process_role.open_loaders.discard(closed)
    process_role._shut_all_down()
    assert [loader.lingered for loader in loaders] == [[0.0]] * 3
    assert closed.lingered == []


def test_a_forked_child_owns_none_and_ends_none() -> None:
    loader = Loader()
    process_role.open_loaders.add(loader)
    child = os.fork()
    if child == 0:
        os._exit(0 if (loader.state, loader.lingered) == ((True, True), []) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.state == (False, False), "its workers are the parent's"


def test_a_loader_that_is_dropped_is_forgotten() -> None:
    loader = Loader()
    process_role.open_loaders.add(loader)
    del loader
    gc.collect()
    assert list(process_role.open_loaders) == []
