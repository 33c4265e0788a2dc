"""Addresses and ports of this machine. Sockets live in this folder only, so these do too."""

import ipaddress
import socket
from typing import Any

from gigl_loader.errors import ConfigError

Address = tuple[Any, ...]
"""As `socket` takes it: host and port, for IPv6 also flow and scope."""


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
    return all(
        ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
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
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"cannot reach {host!r} from this machine: {error}") from error


def free_port(host: str = "") -> int:
    """Return a TCP port that is free on ``host`` at this moment; "" means all addresses."""
    with listen(host or "0.0.0.0", 0) as sock:
        return int(sock.getsockname()[1])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host``; port 0 means one that is free.

    Raises:
        ConfigError: The address is not of this machine, or the port is taken.
    """
    family, address = resolve(host, port)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
    except (OSError, OverflowError) as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}; give an address of this machine and a port "
            "that no other program uses"
        ) from error
    return sock


def adopt(fd: int) -> socket.socket:
    """Return the socket that a descriptor stands for; it is closed with it."""
    return socket.socket(fileno=fd)
