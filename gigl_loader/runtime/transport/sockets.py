"""Addresses and ports of this machine, and the user of a socket's process.

A fork keeps no socket of this process: a child that outlives its parent would keep the connection
open, or the port taken, and the peer would never learn that the parent is gone.

Every user of the machine can reach a listener on the loopback address. The kernel knows who opened
each socket, so no secret has to be drawn, stored, or told to a process that starts later. This
works for ranks of torchrun, actors of Ray and restarted servers alike, and for containers that
share a network if they share users as well.
"""

import errno
import fcntl
import ipaddress
import os
import random
import resource
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gigl_loader.errors import ConfigError, explained_limits

# --- addresses and ports --------------------------------------------------------------------------

Address = tuple[Any, ...]
"""An address as `socket` takes it: host and port, for IPv6 also flow and scope."""
_AUTOMATIC = "/proc/sys/net/ipv4/ip_local_port_range"
_USUAL_AUTOMATIC = 32_768
"""First port of the range that Linux gives by itself."""
_FIRST_PORT, _LEAST_PORTS = 15_000, 1000
_TAKEN_PORTS = 99
"""So many taken ones in a row mean another problem, such as a wrong address."""
_LAST_PORT = 65_535
PROBED_S, _AGAIN_S = 1.0, 0.05
"""How long a port may be taken by one that looks for a free one; the pause between two tries."""
_SIOCGIFADDR = 0x8915  # of linux/sockios.h: the IPv4 address of an interface


def resolve(host: str, port: int) -> list[tuple[int, Address]]:
    """Return the family and address of each route to ``host``, in the system's order.

    Raises:
        ConfigError: ``host`` has no address, or ``port`` is none.
    """
    try:
        return resolve_now(host, port)
    except OSError as error:
        raise ConfigError(str(error)) from error


def resolve_now(host: str, port: int) -> list[tuple[int, Address]]:
    """Do as `resolve`, for those who can wait until ``host`` has an address.

    Raises:
        OSError: ``host`` has no address so far.
        ConfigError: It can have none, or ``port`` is none.
    """
    if not 0 <= port <= _LAST_PORT:  # the system's function takes the lowest 16 bits
        raise ConfigError(f"port {port} of {host} is not between 0 and {_LAST_PORT}")
    try:
        routes = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise ConfigError(f"host {host!r} has no address: {error}") from error
    except OSError as error:
        raise socket.gaierror(f"host {host!r} has no address: {error}") from error
    return [(int(family), address) for family, *_, address in routes]


def split_address(text: str) -> tuple[str, int]:
    """Return what ``HOST:PORT`` names; an IPv6 address is in brackets.

    Raises:
        ConfigError: It is something else.
    """
    host, _, port = text.rpartition(":")
    # `isdigit` alone accepts digits of other scripts and superscripts, which `int` may not
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _LAST_PORT:
        raise ConfigError(f"takes HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether ``host``, a name or an address, can be reached from its own machine only."""
    # all of them: a name with one address on the network can be reached from there
    return all(address.is_loopback for address in _ip_addresses(host))


def _ip_addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Return the addresses of ``host``, without IPv6's scope; raises as `resolve` does."""
    return [ipaddress.ip_address(found[0].partition("%")[0]) for _, found in resolve(host, 0)]


def refuse_loopback_name(host: str) -> None:
    """Refuse a ``host`` that other machines must reach but that means this machine only.

    Many distributions map a machine's own name to 127.0.1.1; nobody could reach a listener there.

    Raises:
        ConfigError: ``host`` is a loopback address, which the message names.
    """
    if is_loopback(host):
        raise ConfigError(
            f"{host!r} resolves to {resolve(host, 0)[0][1][0]} on this machine, which no other "
            "machine can reach: give its address on the network, or correct /etc/hosts"
        )


def refuse_unspecified(host: str) -> None:
    """Refuse a ``host`` that others are told, but that means any address of the machine it is on.

    Raises:
        ConfigError: ``host`` is such an address, as 0.0.0.0 is.
    """
    if any(address.is_unspecified for address in _ip_addresses(host)):
        raise ConfigError(
            f"{host!r} means all addresses of a machine, and others would look for this one on "
            "their own: give the address by which they reach it"
        )


def address_towards(host: str) -> str:
    """Return the address of the interface that leads to ``host``; sends nothing.

    Raises:
        ConfigError: ``host`` has no address, or cannot be reached.
    """
    family, address = resolve(host, 9)[0]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # on a datagram socket this only looks up the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"cannot reach {host!r} from this machine: {error}") from error


def own_address(towards: Callable[[str], str] = address_towards) -> str:
    """Return this machine's address as the other machines of the job see it.

    That is the address of the interface that leads to ``MASTER_ADDR``; if that name is a loopback
    address in this machine's own hosts file only, the interface of the default route.

    Args:
        towards: Returns the address of the interface that leads to a host.
    """
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    address = towards(master)
    # Debian maps a machine's own name to 127.0.1.1: all machines would seem to be one.
    if address.startswith("127.") and master != "localhost" and not master.startswith("127."):
        with suppress(ConfigError):  # no default route: most likely a single machine
            address = towards("192.0.2.1")  # a documentation address; nothing is sent
    return address


def own_name() -> tuple[str, str]:
    """Return this machine's name and its IPv4 address; "" if the name has none."""
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
            with suppress(OSError):  # the interface has no address
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(reply[20:24]) == address:
                    return name
    return None


def free_port(host: str = "") -> int:
    """Return a TCP port that is free on ``host`` at this moment; "" means all addresses."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "") -> list[int]:
    """Return ``count`` different TCP ports that are free on ``host`` at this moment.

    They are from `ports_to_give`, as far as so many are free there.

    Raises:
        ConfigError: ``host`` is no address of this machine.
    """
    host = host or "0.0.0.0"
    resolve(host, 0)  # a name without an address is looked up once, and not for each port
    with ExitStack() as held:  # holds each port until the last is found, so that none comes twice
        listeners: list[socket.socket] = []
        for port in drawn_ports(count):
            if len(listeners) == count:
                break
            with suppress(ConfigError):  # it is taken
                listeners.append(held.enter_context(listen(host, port)))
        while len(listeners) < count:
            listeners.append(held.enter_context(listen(host, 0)))
        return [int(sock.getsockname()[1]) for sock in listeners]


def drawn_ports(count: int) -> list[int]:
    """Return some of `ports_to_give` to try where ``count`` are wanted: as many, and 99 more."""
    given = ports_to_give()
    draw = random.SystemRandom()  # other processes draw too, and may share a seed
    return draw.sample(given, min(len(given), count + _TAKEN_PORTS))


def ports_to_give() -> range:
    """Return ports to choose one from that another process is to bind.

    They are below those that the system gives by itself: any socket that connects may get one of
    those between the choice and the use.
    """
    told = Path(_AUTOMATIC)
    below = int(told.read_text().split()[0]) if told.exists() else _USUAL_AUTOMATIC
    if below < _LEAST_PORTS + 1024:  # the system gives nearly all of them
        below = _USUAL_AUTOMATIC
    return range(min(_FIRST_PORT, below - _LEAST_PORTS), below)


def is_free(host: str, port: int) -> bool:
    """Return whether ``port`` of ``host`` can be bound, even without sharing it."""
    family, address = resolve(host, port)[0]
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(address)
        except OSError:
            return False
    return True


def try_to_connect(host: str, port: int, timeout_s: float) -> None:
    """Connect and hang up.

    Raises:
        OSError: Nothing listens there, or the host cannot be reached.
    """
    socket.create_connection((host, port), timeout_s).close()


def try_to_listen(host: str, timeout_s: float) -> None:
    """Listen on any port of ``host`` and connect to it.

    Raises:
        OSError: Listening or connecting failed.
    """
    with socket.create_server((host, 0)) as server:
        try_to_connect(host, server.getsockname()[1], timeout_s)


def listen(host: str, port: int, patience_s: float = 0.0) -> socket.socket:
    """Return a socket that listens on ``host``; port 0 means any free one.

    Args:
        host: An address of this machine.
        port: The port.
        patience_s: How long it may be taken: whoever looks for a free one holds it for a moment.

    Raises:
        ConfigError: The address is not this machine's, or the port is taken.
    """
    family, address = resolve(host, port)[0]
    sock = open_closed_in_forks(lambda: socket.socket(family, socket.SOCK_STREAM))
    try:
        # a restarted server gets its port although old connections are in TIME_WAIT
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)  # hundreds of workers may connect at once; net.core.somaxconn is a limit
    except (OSError, OverflowError) as error:
        sock.close()
        if patience_s > 0 and getattr(error, "errno", None) == errno.EADDRINUSE:
            time.sleep(_AGAIN_S)
            return listen(host, port, patience_s - _AGAIN_S)
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}; give an address of this machine and a port "
            "that no other program uses"
        ) from error
    return sock


# --- forks ----------------------------------------------------------------------------------------

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
# A fork waits while another thread opens a socket: else the child would have its descriptor, and
# not know of a socket to close.
_opening = threading.Lock()


def close_in_children(sock: socket.socket) -> None:
    """Make forks of this process close their copy of ``sock``, which is open already."""
    _sockets.add(sock)


def open_closed_in_forks(make: Callable[[], socket.socket]) -> socket.socket:
    """Return the socket that ``make`` opens without waiting; forks close their copy."""
    with _opening:
        sock = make()
        _sockets.add(sock)
    return sock


def accepted(listening: socket.socket) -> tuple[socket.socket, Any]:
    """Accept a connection on a non-blocking socket; forks close their copy.

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
"""Strangers hold at most one in this many free descriptors: the rest is for the job."""


def raise_limit() -> None:
    """Raise the soft limit of descriptors, often 1,024, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Spare:
    """Counts the free descriptors for connections of unknown peers; used by one thread."""

    def __init__(self) -> None:
        self._counted_at, self._used = -_COUNT_EVERY_S, 0

    def for_strangers(self, held: int) -> int:
        """Return how many descriptors strangers may hold, at least one; they hold ``held`` now."""
        now = time.monotonic()
        # not counted for each stranger: counting thousands takes a millisecond
        if now - self._counted_at >= _COUNT_EVERY_S:
            self._counted_at, self._used = now, max(0, _num_open() - held)
        return max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._used) // _SHARE)


def _num_open() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # no descriptor is left to look with
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
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Errors that say nothing about the other end: the question could not be asked."""


class _Row(NamedTuple):
    """One socket of the machine, named by its own port and the other end's port."""

    user: int
    inode: int
    """0: no process has the socket any more; its user is unknown, and given as 0."""


def user_of_peer(sock: socket.socket) -> int | None:
    """Return the id of the user who opened the other end of ``sock``.

    None: no process of this machine has that end open, as it is on another machine or was closed,
    so its user is unknown.

    Raises:
        ResourceError: This process or machine has no descriptor left to ask the kernel with.
    """
    try:
        local, peer = sock.getsockname(), sock.getpeername()
    except OSError:  # the connection was reset: the kernel no longer knows the other end
        return None
    with explained_limits("looking up the user of a connection"):
        rows = _ask_kernel(sock.family, local, peer)
        if rows is None:
            rows = _read_tables(local, peer)
    # to the kernel, a closed socket is root's
    users = {row.user if row.inode else None for row in rows}
    return users.pop() if len(users) == 1 else None


def is_over(sock: socket.socket) -> bool:
    """Return whether the other end has ended a plain connection, with nothing left to read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # the connection was reset
        return True


def _ask_kernel(family: int, local: Address, peer: Address) -> list[_Row] | None:
    """Look up the one socket in the kernel; None: it supports no such requests."""
    ends = b"".join(socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in (peer, local))
    ports = _PORTS.pack(peer[1], local[1])
    question = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    question += ports + ends + _REST_OF_ID
    size = _HEAD.size + len(question)
    head = _HEAD.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_ANSWERS_S)
            kernel.send(head + question)
            answer = kernel.recv(8192)
    except OSError as reason:
        if reason.errno in _NO_DESCRIPTOR:
            raise
        return None
    _, kind, *_ = _HEAD.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        (error,) = _ERROR.unpack_from(answer, _HEAD.size)
        return [] if error == -errno.ENOENT else None  # mostly the kernel module is missing
    # if the connection is gone, the kernel gives the socket that listens there
    if answer[_ID_AT : _ID_AT + len(ports)] != ports:
        return []
    return [_Row(*_OWNER.unpack_from(answer, _OWNER_AT))]


def _read_tables(local: Address, peer: Address) -> list[_Row]:
    """Read the machine's tables, for a kernel that is emulated or forbids such requests.

    Only ports are compared, as an address may be written in two ways. Another socket with the same
    two ports between other addresses makes the result ambiguous, and then no user is returned.
    """
    ends = f":{peer[1]:04X}", f":{local[1]:04X}"
    rows = []
    for table in _TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                raise
            continue  # no IPv6 here, mostly
        for line in lines:
            fields = line.split()
            if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                rows.append(_Row(int(fields[7]), int(fields[9])))
    return rows
