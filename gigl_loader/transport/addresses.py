"""Addresses and ports of this machine. Sockets live in this folder only, so these do too."""

import fcntl
import ipaddress
import os
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Any

from gigl_loader.errors import ConfigError
from gigl_loader.transport.sockets import opened

Address = tuple[Any, ...]
"""As `socket` takes it: host and port, for IPv6 also flow and scope."""
_SIOCGIFADDR = 0x8915  # of linux/sockios.h: the IPv4 address of an interface


def resolve(host: str, port: int) -> list[tuple[int, Address]]:
    """Return the family and address of each way to ``host``, in the system's order.

    Raises:
        ConfigError: It has no address.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} has no address: {error}") from error
    return [(int(family), address) for family, *_, address in found]


def is_loopback(host: str) -> bool:
    """Tell whether ``host``, a name or an address, is reached from its own machine only."""
    # all: a name with one address on the network can be reached from there
    return all(
        ipaddress.ip_address(address[0].partition("%")[0]).is_loopback  # without IPv6's scope
        for _, address in resolve(host, 0)
    )


def refuse_loopback_name(host: str) -> None:
    """Refuse a ``host`` that others shall reach but that means this machine alone.

    Many distributions map a machine's own name to 127.0.1.1; a listener there waits for ever.

    Raises:
        ConfigError: It does; the address is named.
    """
    if is_loopback(host):
        raise ConfigError(
            f"{host!r} resolves to {resolve(host, 0)[0][1][0]} on this machine, which no other "
            "machine can reach: give its address on the network, or correct /etc/hosts"
        )


def address_towards(host: str) -> str:
    """Return the address of the interface that leads to ``host``; sends nothing.

    Raises:
        ConfigError: ``host`` has no address, or cannot be reached.
    """
    family, address = resolve(host, 9)[0]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # of a datagram socket: only looks up the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"cannot reach {host!r} from this machine: {error}") from error


def own_address() -> str:
    """Return this machine's address as the other machines of the job see it.

    It is the address of the interface that leads to ``MASTER_ADDR``. Where that name stands for a
    loopback address in this machine's own hosts file only, the interface of the default route.
    """
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    address = address_towards(master)
    # Debian writes the own name as 127.0.1.1: each machine would be 127.0.1.1, and all of them one.
    if address.startswith("127.") and master != "localhost" and not master.startswith("127."):
        with suppress(ConfigError):  # no default route: one machine, most likely
            address = address_towards("192.0.2.1")  # a documentation address; nothing is sent
    return address


def own_name() -> tuple[str, str]:
    """Return this machine's name and the IPv4 address that it stands for; "" where it has none."""
    name = socket.gethostname()
    try:
        return name, socket.gethostbyname(name)
    except OSError:
        return name, ""


def interface_of(address: str) -> str | None:
    """Return the name of the interface of this machine that has the IPv4 ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


def free_port(host: str = "") -> int:
    """Return a TCP port that is free on ``host`` at this moment; "" means all addresses."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "") -> list[int]:
    """Return ``count`` different TCP ports that are free on ``host`` at this moment."""
    with ExitStack() as held:  # until the last is found: no port comes twice
        found = [held.enter_context(listen(host or "0.0.0.0", 0)) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in found]


def is_free(host: str, port: int) -> bool:
    """Tell whether ``port`` of ``host`` can be bound, also by who does not ask to share it."""
    with socket.socket() as sock:
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def try_to_connect(host: str, port: int, timeout_s: float) -> None:
    """Connect and hang up.

    Raises:
        OSError: Nothing listens there, or it cannot be reached.
    """
    socket.create_connection((host, port), timeout_s).close()


def try_to_listen(host: str, timeout_s: float) -> None:
    """Listen on any port of ``host`` and connect to it.

    Raises:
        OSError: One of these does not work.
    """
    with socket.create_server((host, 0)) as server:
        try_to_connect(host, server.getsockname()[1], timeout_s)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host``; port 0 means one that is free.

    Raises:
        ConfigError: The address is not of this machine, or the port is taken.
    """
    family, address = resolve(host, port)[0]
    sock = opened(lambda: socket.socket(family, socket.SOCK_STREAM))
    try:
        # a server that is started again gets its port although old connections are in TIME_WAIT
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)  # hundreds of workers connect at once; net.core.somaxconn bounds it, too
    except (OSError, OverflowError) as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}; give an address of this machine and a port "
            "that no other program uses"
        ) from error
    return sock
