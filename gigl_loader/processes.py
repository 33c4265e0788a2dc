"""Processes that start in milliseconds, since what they need has been imported already."""

import os
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any

PRELOADED = (
    "gigl_loader.loader.ablp",
    "gigl_loader.remote.storage_process",
    "gigl_loader.remote.source",
    "gigl_loader.workers.supervisor",
)
"""Modules that a process has imported when it starts. Importing them starts no thread."""


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
        # unpickled by the fork server's child: this function runs before the state is set, which
        # names the process's function, whose module may read the environment
        return with_environment, (type(self), dict(os.environ)), self.__dict__


def start_fork_server(*more: str) -> None:
    """Start the fork server where it does not run; return while it still imports.

    Args:
        more: Modules to import beside ``PRELOADED``.
    """
    resource_tracker.ensure_running()  # which the first process would start, and leave behind
    forkserver.set_forkserver_preload([*PRELOADED, *more])
    forkserver.ensure_running()


def with_environment(kind: type[ForkedProcess], environment: dict[str, str]) -> ForkedProcess:
    """Return a process that is yet to be filled, in an environment that is set already."""
    os.environ.clear()
    os.environ.update(environment)
    return kind.__new__(kind)
