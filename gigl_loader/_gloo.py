"""Which interface gloo listens on.

gloo listens on the address that the host's own name stands for. Where the system writes 127.0.1.1
for it into ``/etc/hosts``, as Debian does, gloo tells the other machines to connect to themselves:
one of them fails at once, the others after minutes. ``GLOO_SOCKET_IFNAME`` names the interface
instead; torch reads it when a process group is made.
"""

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

VARIABLE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915  # of linux/sockios.h: the IPv4 address of an interface
_ANYWHERE = "192.0.2.1"  # a documentation address (RFC 5737): the default route leads there

_log = logging.getLogger(__name__)


@contextmanager
def interface_towards(master: str) -> Iterator[None]:
    """Let gloo listen where ``master`` is reached from, in process groups that are made inside.

    Changes nothing where the host's name serves, where all is on one machine, or where the user
    named an interface.
    """
    name = interface_needed(master)
    if name is None:
        yield
        return
    _log.info(
        "this host's name resolves to a loopback address: the process group uses %s=%s, the way "
        "to %s", VARIABLE, name, master,
    )  # fmt: skip
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)


def interface_needed(master: str) -> str | None:
    """Return the interface to name in ``GLOO_SOCKET_IFNAME``; None: gloo finds its way without."""
    if VARIABLE in os.environ or not _is_loopback(socket.gethostname()) or _is_local(master):
        return None
    for host in (master, _ANYWHERE):  # rank 0 may know its own name as loopback only
        address = _address_towards(host)
        if address is not None and not address.startswith("127."):
            return _interface_of(address)
    return None


def _is_local(master: str) -> bool:
    return master in ("", "localhost") or master.startswith("127.")


def _is_loopback(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False  # gloo then takes the loopback itself, and says so


def _address_towards(host: str) -> str | None:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent
        return str(probe.getsockname()[0])
    return None


def _interface_of(address: str) -> str | None:
    """Return the name of the interface that has ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None
