"""Ports of this machine, and waiting for its other processes and threads; without torch."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gigl_loader.errors import ResourceError
from gigl_loader.runtime.transport import sockets

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1
_given: set[int] = set()
_locks: tuple[int, int] = (-1, -1)
"""This process, and its descriptor of the file in which it has locked a byte for each port."""


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of ``host`` on which nothing listens.

    It is below the system's range of automatic ports: any other socket may get one from that range
    before the caller binds it. No other call on this machine returns it while this process lives.

    Args:
        host: An address of this machine.

    Raises:
        ResourceError: All ports that were tried are taken.
    """
    tried, given = sockets.drawn_ports(0), sockets.ports_to_give()
    for port in tried:
        if _reserve(port) and sockets.is_free(host, port):
            return port
    raise ResourceError(
        f"{len(tried)} ports of {host} between {given.start} and {given.stop} are taken: is it an "
        "address of this machine?"
    )


def _reserve(port: int) -> bool:
    """Keep ``port`` for this process until it ends; False: it is already taken."""
    global _locks
    if _locks[0] != os.getpid():  # a fork has no locks of its parent
        path = Path(tempfile.gettempdir(), f"gigl_loader-ports-{os.getuid()}")
        # never closed: closing any descriptor of a file releases all locks of the process on it
        _locks = os.getpid(), os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        # one byte per port, at its number: the file stays empty, locks reach beyond its end
        fcntl.lockf(_locks[1], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:  # the kernel releases it when that process ends
        return False
    # a process gets its own lock again: earlier ports have to be remembered
    is_new = port not in _given
    _given.add(port)
    return is_new


def wait_until(condition: Callable[[], object], what: str, timeout: float = 240.0) -> None:
    """Check ``condition`` until it is true: every few milliseconds, later ten times a second.

    Args:
        condition: Checked at least once.
        what: Its name in the error.
        timeout: Upper bound in seconds; generous, since a success ends the wait early.

    Raises:
        AssertionError: It was not true in time.
    """
    deadline = time.monotonic() + timeout
    pause_s = _FIRST_PAUSE_S
    while not condition():
        # after the check: at least one, even without time
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, _LONGEST_PAUSE_S)  # leaves time to other processes
