"""Sockets that a fork of this process does not keep.

Otherwise a child that outlives its parent keeps the connection open, or the port taken, and the
peer never learns that the parent is gone.
"""

import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
# A fork waits while a socket is being opened: the child of another thread would have its
# descriptor, and know of no socket to close.
_opening = threading.Lock()


def close_in_children(sock: socket.socket) -> None:
    """Have forks of this process close their copy of ``sock``, which exists already."""
    _sockets.add(sock)


def opened(make: Callable[[], socket.socket]) -> socket.socket:
    """Return the socket that ``make`` opens at once; forks close their copy."""
    with _opening:
        sock = make()
        _sockets.add(sock)
    return sock


def accepted(listening: socket.socket) -> tuple[socket.socket, Any]:
    """Accept a connection of a socket that does not wait; forks close their copy.

    Raises:
        OSError: As ``accept``.
    """
    with _opening:
        sock, source = listening.accept()
        _sockets.add(sock)
    return sock, source


def _close_all() -> None:
    _opening.release()
    for sock in list(_sockets):
        sock.close()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_all
)
