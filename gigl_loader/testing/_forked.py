"""Processes that start in milliseconds, since what they need has been imported already."""

import contextlib
import os
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any

from gigl_loader.testing import _zygote
from gigl_loader.workers import pipe

PRELOADED = ("gigl_loader.testing._warm",)
"""What a process has imported when it starts."""


class ForkedProcess(ForkServerProcess):
    """A process forked from multiprocessing's fork server, which has imported this package.

    It is a process as any other: with a pid, signals, an exit code, an environment as it is here
    when it starts. Nothing of this process's memory is in it, so its function and arguments are
    pickled. The fork server starts with the first such process and ends with this process.
    """

    def start(self) -> None:
        """Start the process; the first one waits for the fork server's imports."""
        start_fork_server()
        super().start()

    def __reduce__(self) -> tuple[Any, ...]:
        # the environment comes first: modules that the function needs may read it
        how = type(self), dict(os.environ), _zygote.uses_zygote()
        # unpickled by the fork server's child: this function runs before the state is set, which
        # names the test's function
        return _with_environment, how, self.__dict__


def start_fork_server(*more: str) -> None:
    """Start the fork server where it does not run; return while it still imports.

    Where this process has a zygote, that forks it: it has imported nearly all already.

    Args:
        more: Modules to import beside ``PRELOADED``.
    """
    resource_tracker.ensure_running()  # which the first process would start, and leave behind
    forkserver.set_forkserver_preload([*PRELOADED, *more])
    forkserver.ensure_running()


@contextlib.contextmanager
def fast_supervisors() -> Iterator[None]:
    """Let sampling workers start in milliseconds, here and in each `ForkedProcess`.

    See `gigl_loader.testing._zygote` for what differs from a start in a new interpreter.
    """
    if _zygote.uses_zygote():  # this process was forked by one
        yield
        return
    ours, theirs = pipe.pair()
    process = ForkedProcess(target=_zygote.serve, args=(theirs,))
    process.start()
    theirs.close()
    with ours, _zygote.use_zygote(_zygote.Zygote(ours)):
        yield
    # the zygote ends when its socket is closed, above
    process.join()


@contextlib.contextmanager
def slow_supervisors() -> Iterator[None]:
    """Let sampling workers start as users' do, in a new interpreter: where the start is tested."""
    with _zygote.use_zygote(None):
        yield


def _with_environment(
    kind: type[ForkedProcess], environment: dict[str, str], with_zygote: bool
) -> ForkedProcess:
    os.environ.clear()
    os.environ.update(environment)
    if with_zygote:
        _zygote.fork_zygote()
    return kind.__new__(kind)
