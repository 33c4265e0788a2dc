"""A caller's connection: how it comes about, and where reading stands in it."""

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from gigl_loader.errors import GiglLoaderError, JoinRefusedError
from gigl_loader.transport.addresses import Address
from gigl_loader.transport.handshake import Admitted, join
from gigl_loader.transport.security import Security
from gigl_loader.transport.stream import Steps, Stream, drive

HANDSHAKE_S = 3.0
"""How long a listener that has begun to answer may take to admit a caller."""
SLICE_S = 0.25
"""Longest sleep before what may have changed is looked at again."""


class Link:
    """A connection that was admitted."""

    def __init__(self, stream: Stream, admitted: Admitted) -> None:
        self.stream, self.max_ask_bytes = stream, admitted.max_ask_bytes
        self.steps: Steps | None = None
        """What reads the next frame, begun and left in its middle; None: not begun."""
        self.broken = False
        self.heard_anything = False

    def lose(self) -> None:
        """Give it up, and wake whoever waits on it."""
        self.broken = True
        self.stream.shutdown()


def dial(
    addresses: Sequence[tuple[int, Address]], security: Security, who: tuple[str, str, str],
    what: str, deadline: float, check: Callable[[], None],
) -> Link:  # fmt: skip
    """Return a fresh connection to the first of ``addresses`` that admits this caller.

    Args:
        addresses: Ways to one listener, each with its family.
        security: Has to match the listener's.
        who: The caller's name, session and lane.
        what: The listener, for errors.
        deadline: Until when to try each (`time.monotonic`).
        check: Called before each wait; raises where the connection is not wanted any more.

    Raises:
        OSError, EOFError: Not now.
        GiglLoaderError: Never: it refused, or ``check`` raised.
    """
    failure: Exception | None = None
    for family, address in addresses:
        stream = Stream(socket.socket(family, socket.SOCK_STREAM))
        try:
            return _connect(stream, address, security, who, what, deadline, check)
        except BaseException as reason:
            stream.shutdown()
            stream.close()
            if not isinstance(reason, OSError) or isinstance(reason, GiglLoaderError):
                raise
            failure = reason
    raise failure or OSError("no address")


def _connect(
    stream: Stream, address: Address, security: Security, who: tuple[str, str, str], what: str,
    deadline: float, check: Callable[[], None],
) -> Link:  # fmt: skip
    latest = max(deadline, time.monotonic() + HANDSHAKE_S)

    def patience() -> float:
        # one that has begun to greet is alive, so the machine is busy: it gets the whole time
        left = (latest if stream.first_bytes else deadline) - time.monotonic()
        check()
        if left <= 0:
            raise TimeoutError("it did not answer the handshake")
        return min(left, SLICE_S)

    number = stream.sock.connect_ex(address)
    while number == errno.EINPROGRESS:
        if stream.wait(select.POLLOUT, patience()):
            number = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))
    try:
        return Link(stream, drive(join(stream, security, *who), stream, patience))
    except JoinRefusedError as error:
        text = f"{what} and {who[0]} do not let each other in: {error}"
        raise JoinRefusedError(text, error.end) from error
