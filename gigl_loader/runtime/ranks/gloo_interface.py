"""The interface that gloo listens on.

gloo listens on the address of the host's own name. If the system maps that name to 127.0.1.1 in
``/etc/hosts``, as Debian does, gloo tells the other machines to connect to themselves: one of them
fails at once, the others after minutes. ``GLOO_SOCKET_IFNAME`` names the interface instead; torch
reads it when a process group is created.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.transport import sockets

VARIABLE = "GLOO_SOCKET_IFNAME"
_ANYWHERE = "192.0.2.1"  # a documentation address (RFC 5737): the default route leads there

_log = logging.getLogger(__name__)


@contextmanager
def interface_towards(master: str) -> Iterator[None]:
    """Let gloo listen on the interface that reaches ``master``, in process groups created inside.

    Changes nothing if the host's name works, if all ranks are on one machine, or if the user named
    an interface.
    """
    name = interface_needed(master)
    if name is None:
        yield
        return
    _log.info(
        "this host's name resolves to a loopback address: the process group uses %s=%s, the way "
        "to %s",
        VARIABLE,
        name,
        master,
    )
    # the only setting of gloo outside init_process_group(), which has no such option
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        # read when the group is created: later child processes decide for themselves
        os.environ.pop(VARIABLE, None)


def interface_needed(master: str) -> str | None:
    """Return the interface for ``GLOO_SOCKET_IFNAME``; None: gloo needs none."""
    # a name without an address is left to gloo: it uses the loopback itself, and says so
    if VARIABLE in os.environ or not sockets.own_name()[1].startswith("127."):
        return None
    # all ranks are on this machine, where the loopback address is right
    if master in ("", "localhost") or master.startswith("127."):
        return None
    for host in (master, _ANYWHERE):  # rank 0 may know its own name as loopback only
        address = _address_towards(host)
        if address and not address.startswith("127."):
            return sockets.interface_of(address)
    return None


def _address_towards(host: str) -> str:
    """Return the source address of packets to ``host``; "" if it is unreachable."""
    try:
        return sockets.address_towards(host)
    except ConfigError:
        return ""
