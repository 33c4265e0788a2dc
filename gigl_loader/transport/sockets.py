"""What a connection takes of its process: descriptors, copies in forks; and whose peer it has.

A fork keeps no socket of this process: a child that outlives its parent would keep the connection
open, or the port taken, and the peer would never learn that the parent is gone.

A listener on the loopback address is reached by every user of the machine. The kernel knows who
opened each socket, so nothing has to be drawn, kept in a file or told to a process that is started
later: it holds for ranks of torchrun, actors of Ray and servers that are started again alike, and
for containers that share a network as far as they share users.
"""

import contextlib
import errno
import os
import resource
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# --- forks ----------------------------------------------------------------------------------------

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


# --- descriptors ----------------------------------------------------------------------------------

_COUNT_EVERY_S = 0.1
_SHARE = 4
"""Strangers hold at most one in so many of those that are free: the rest is for the job's work."""


def raise_limit() -> None:
    """Let this process have as many descriptors as it may: the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Spare:
    """Counts the free descriptors for connections of unknown peers; used by one thread."""

    def __init__(self) -> None:
        self._counted_at, self._used = -_COUNT_EVERY_S, 0

    def for_strangers(self, held: int) -> int:
        """Return how many descriptors strangers may hold, who hold ``held`` now; at least one."""
        now = time.monotonic()
        # not for each stranger: to count thousands takes a millisecond
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._counted_at, self._used = now, max(0, _num_open() - held)
        return max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._used) // _SHARE)


def _num_open() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # none is left to look with
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# --- users ----------------------------------------------------------------------------------------

_NETLINK_SOCK_DIAG = 4  # of linux/netlink.h
_SOCK_DIAG_BY_FAMILY = 20  # of linux/sock_diag.h
_NLM_F_REQUEST = 1
_HEAD = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ASKED = struct.Struct("=BBBxI")  # of struct inet_diag_req_v2: family, protocol, extensions, states
_ERROR = struct.Struct("=i")  # the first field of struct nlmsgerr
_PORTS = struct.Struct("!HH")
_REST_OF_ID = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
# of struct inet_diag_msg: 4 bytes, the identity of the socket (48), then expires, two queues, user,
# inode
_ID_AT, _OWNER = _HEAD.size + 4, struct.Struct("=12xII")
_OWNER_AT = _ID_AT + 48
_ANSWERS_S = 1.0
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


class _Row(NamedTuple):
    """One socket of the machine, by the ports of its own end and of the other one."""

    user: int
    inode: int
    """0: no process has it any more, so that its user is not known, and given as 0."""


def user_of_peer(sock: socket.socket) -> int | None:
    """Return the user id of whoever opened the other end of ``sock``.

    None: no process of this machine has it open, so that nobody is known to be there: it is another
    machine's, or was closed.
    """
    rows = _asked(sock)
    if rows is None:
        rows = _looked_up(sock)
    # one that was closed counts as root's to the kernel
    users = {row.user if row.inode else None for row in rows}
    return users.pop() if len(users) == 1 else None


def _asked(sock: socket.socket) -> list[_Row] | None:
    """Ask the kernel for the one socket; None: it answers no such questions."""
    own, peer = sock.getsockname(), sock.getpeername()
    ends = b"".join(socket.inet_pton(sock.family, end[0]).ljust(16, b"\0") for end in (peer, own))
    ports = _PORTS.pack(peer[1], own[1])
    question = _ASKED.pack(sock.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    question += ports + ends + _REST_OF_ID
    size = _HEAD.size + len(question)
    head = _HEAD.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWERS_S)
            kernel.send(head + question)
            answer = kernel.recv(8192)
    except OSError:
        return None
    _, kind, *_ = _HEAD.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        (error,) = _ERROR.unpack_from(answer, _HEAD.size)
        return [] if error == -errno.ENOENT else None  # else no kernel module for it, mostly
    # where the connection is gone, the kernel gives the socket that listens there
    if answer[_ID_AT : _ID_AT + len(ports)] != ports:
        return []
    return [_Row(*_OWNER.unpack_from(answer, _OWNER_AT))]


def _looked_up(sock: socket.socket) -> list[_Row]:
    """Read the machine's tables: where the kernel is an imitation, or questions are forbidden.

    By ports alone, since an address is written in two ways: whoever has the same two ports between
    other addresses makes the answer ambiguous, and ambiguous is nobody.
    """
    ends = f":{sock.getpeername()[1]:04X}", f":{sock.getsockname()[1]:04X}"
    rows = []
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:  # no IPv6 here, mostly
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                rows.append(_Row(int(fields[7]), int(fields[9])))
    return rows
