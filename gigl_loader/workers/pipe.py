"""Messages between a trainer, its supervisor and its workers: tuples that begin with a name.

::

    trainer -> supervisor  FORK (with the worker's socket), KILL
    supervisor -> trainer  FORKED, EXITED per worker
    trainer -> worker      the set-up and PLACE (once); PEERS, ATTEMPT, TASK, STOP,
                           SLOTS that are free, where no TASK is left to go along with
    worker -> trainer      READY or FAILED (once), BATCH, ERROR or STALE per task, LINGERING,
                           UNHEARD before an ERROR: a worker of another rank did not answer;
                           DRAWN before a BATCH where rows are cached

`DIED` is what the trainer's end of the sockets makes of the end of a worker.

Each is one datagram, with descriptors beside it.

The socket is a Unix ``SOCK_SEQPACKET`` pair: a message arrives whole or not at all, and the end of
either process is an end of file for the other. Only a parent and the children that it started share
such a pair, so pickle is safe here.
"""

import array
import contextlib
import pickle
import select
import socket
from collections.abc import Sequence
from typing import Any

from gigl_loader.errors import ProtocolError
from gigl_loader.memory import segments

FORK, KILL, FORKED, EXITED = "fork", "kill", "forked", "exited"
PLACE, PEERS, ATTEMPT, TASK, STOP = "place", "peers", "attempt", "task", "stop"
SLOTS = "slots"
READY, FAILED, BATCH, ERROR, STALE = "ready", "failed", "batch", "error", "stale"
LINGERING, UNHEARD, DRAWN, DIED = "lingering", "unheard", "drawn", "died"

MAX_BYTES = 160 * 1024
"""Bytes in one datagram; Linux allows about 208 KiB by default."""
_MAX_FDS = 200
"""Descriptors in one datagram; Linux allows 253."""
_CONTROL_BYTES = socket.CMSG_SPACE(_MAX_FDS * 4)


Socket = socket.socket
"""One end; other modules need no more of sockets than this name."""


def pair() -> tuple[Socket, Socket]:
    """Return the two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def is_readable(sock: socket.socket) -> bool:
    """Return whether `receive` would not wait."""
    poller = select.poll()  # `select.select` takes no descriptor above 1023
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def end(sock: socket.socket) -> None:
    """Let both sides read an end of file, also where other processes have a copy of the socket."""
    with contextlib.suppress(OSError):  # it has ended
        sock.shutdown(socket.SHUT_RDWR)


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one small message, with descriptors.

    Raises:
        OSError: The other end is gone, or did not read for the socket's timeout.
    """
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"a control message of {len(data)} bytes exceeds {MAX_BYTES}")
    if fds:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sock.sendmsg([data], rights)
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """Return the next message and its descriptors, or None: the other end is gone.

    Raises:
        BlockingIOError, TimeoutError: Nothing came within the socket's timeout.
    """
    try:
        try:
            found = sock.recvmsg(MAX_BYTES, _CONTROL_BYTES)
        except ConnectionResetError:
            # it ended with something unread, of which the kernel tells once: what it had sent
            # before is behind that
            found = sock.recvmsg(MAX_BYTES, _CONTROL_BYTES)
    except ConnectionError:
        return None
    data, ancillary, flags, _ = found
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # what does not fit is cut off anywhere, also in the middle of a number
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if not data:  # the end: no message is empty
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        segments.close_fds(list(fds))
        raise ProtocolError("a control message arrived cut off")
    return pickle.loads(data), list(fds)


def send_object(sock: socket.socket, obj: Any) -> None:
    """Send an object of any size whose tensors are shared, not copied, and arrive as arrays."""
    from gigl_loader.memory import tensors  # workers only receive, and do without torch

    data, fds = tensors.dumps(obj)
    try:
        # half of what fits: the tuple around a piece is pickled, too. Pieces and descriptors go
        # side by side, each message with the number of those that follow
        pieces = [data[i : i + MAX_BYTES // 2] for i in range(0, len(data), MAX_BYTES // 2)]
        groups = [fds[i : i + _MAX_FDS] for i in range(0, len(fds), _MAX_FDS)]
        count = max(len(pieces), len(groups), 1)
        for i in range(count):
            piece = pieces[i] if i < len(pieces) else b""
            send(sock, (count - i - 1, piece), groups[i] if i < len(groups) else ())
    finally:
        segments.close_fds(fds)


def receive_object(sock: socket.socket) -> Any:
    """Undo `send_object`.

    Raises:
        ConnectionError: The other end is gone.
    """
    data, fds = b"", []
    try:
        left = 1
        while left:
            got = receive(sock)
            if got is None:
                raise ConnectionError("the process that sends the set-up is gone")
            (left, piece), more = got
            data += piece
            fds += more
        return segments.loads(data, fds)
    finally:  # the mappings keep the memory
        segments.close_fds(fds)
