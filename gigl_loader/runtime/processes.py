"""Processes that start in milliseconds, since all imports are already done."""

import os
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from typing import Any

PRELOADED = (
    "gigl_loader.loader.ablp",
    "gigl_loader.graph_store.server.storage_process",
    "gigl_loader.graph_store.client.remote_source",
    "gigl_loader.sources.workers.supervisor",
)
"""Modules that are imported before a process starts. Importing them starts no thread."""


class ForkedProcess(ForkServerProcess):
    """A process forked from multiprocessing's fork server, which has imported this package.

    It is an ordinary process: with a pid, signals, an exit code, and this process's environment at
    its start. It has none of this process's memory, so its function and arguments are pickled. The
    fork server starts with the first such process and ends with this process.
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
    """Start the fork server if it does not run; return while it still imports.

    Args:
        more: Modules to import beside ``PRELOADED``.
    """
    resource_tracker.ensure_running()  # else the first process would start it, and leave it behind
    forkserver.set_forkserver_preload([*PRELOADED, *more])
    forkserver.ensure_running()


def with_environment(kind: type[ForkedProcess], environment: dict[str, str]) -> ForkedProcess:
    """Return a process without state, in an environment that is already set."""
    os.environ.clear()
    os.environ.update(environment)
    return kind.__new__(kind)
