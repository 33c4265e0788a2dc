"""Two machines, network namespaces, and the link between them, which may be a bad one.

netem is missing in many kernels. So a bad link is a process of its own between two tun devices: it
passes packets on, late, no faster than told, and drops some.
"""

import contextlib
import fcntl
import itertools
import multiprocessing
import os
import random
import select
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ADDRESSES = ("198.18.79.1", "198.18.79.2")
ADDRESSES_6 = ("fd79::1", "fd79::2")
NAMES = ("near.test", "far.test")
FAR = 1  # the machine whose end of the cable is pulled
_TUNSETIFF, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000  # of linux/if_tun.h
_number = itertools.count()
_MOST_WAITING_S = 0.4  # what would wait longer for its turn on a slow link is dropped


@dataclass(frozen=True)
class Link:
    """What is wrong with a link, in each direction."""

    name: str
    lost: float = 0.0
    """Share of the packets."""
    late_s: float = 0.0
    bytes_per_s: float = float("inf")
    addresses: Sequence[str] = ADDRESSES
    """What the machines call each other: addresses of either kind, or names."""

    @property
    def is_bad(self) -> bool:
        """Whether packets have to be touched."""
        return bool(self.lost or self.late_s or self.bytes_per_s < float("inf"))


class Machines:
    """Two namespaces and the link between them; needs root and `ip`."""

    def __init__(self, link: Link) -> None:
        self.link, self._stack = link, contextlib.ExitStack()
        self._names = [f"f{os.getpid()}-{next(_number)}{end}" for end in "ab"]

    def __enter__(self) -> Self:
        with self._stack:  # what was made goes again where a step fails
            for name in self._names:
                _ip("netns", "add", name)
                self._stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
                self._know_names(Path("/etc/netns", name))
            (self._lay_bad_cable if self.link.is_bad else self._lay_cable)()
            for name, *addresses in zip(self._names, ADDRESSES, ADDRESSES_6, strict=True):
                _ip("-n", name, "addr", "add", f"{addresses[0]}/30", "dev", name)
                # without nodad it could not be used for the first second or two
                _ip("-n", name, "addr", "add", f"{addresses[1]}/64", "dev", name, "nodad")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", name, "up")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _know_names(self, folder: Path) -> None:
        """Write what `ip netns exec` shows as /etc/hosts; a machine's own name is loopback."""
        folder.mkdir(parents=True)
        self._stack.callback(folder.rmdir)
        hosts = folder / "hosts"
        lines = (f"{address} {name}\n" for address, name in zip(ADDRESSES, NAMES, strict=True))
        hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
        self._stack.callback(hosts.unlink)

    def _lay_cable(self) -> None:
        one, other = self._names
        _ip("link", "add", one, "netns", one, "type", "veth", "peer", "name", other, "netns", other)

    def _lay_bad_cable(self) -> None:
        ends = []
        for name in self._names:
            ends.append(_tun(name))
            self._stack.callback(os.close, ends[-1])
            _ip("link", "set", name, "netns", name)
        process = multiprocessing.get_context("fork").Process(
            target=carry, args=(ends, self.link), daemon=True
        )
        process.start()
        self._stack.callback(process.join)
        self._stack.callback(process.kill)

    def name(self, machine: int) -> str:
        """Return the name of a machine's namespace, and of its end of the cable."""
        return self._names[machine]

    def on(self, machine: int, command: list[str]) -> list[str]:
        """Return the command that runs ``command`` on a machine."""
        name = self.name(machine)
        return ["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={name}", *command]

    def cut(self, seconds: float) -> None:
        """Cut the link, for that long."""
        self.set_link("down")
        time.sleep(seconds)
        self.set_link("up")

    def set_link(self, state: str) -> None:
        """Set the link ``"up"`` or ``"down"``."""
        _ip("-n", self._names[FAR], "link", "set", self._names[FAR], state)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _tun(name: str) -> int:
    """Return the descriptor of a fresh device: what is written to it comes out of it."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER))
    return descriptor


def carry(ends: list[int], link: Link) -> None:
    """Pass packets between two devices, as ``link`` does; never returns."""
    dice = random.Random(1)
    under_way: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    is_free = dict.fromkeys(ends, 0.0)  # when the link can take the next packet, by where it goes
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    while True:
        due = min((queue[0][0] for queue in under_way.values() if queue), default=float("inf"))
        poll.poll(min(1000.0, max(0.0, (due - time.monotonic()) * 1000)))
        for end, to in zip(ends, reversed(ends), strict=True):
            now = time.monotonic()
            for packet in _read(end):
                starts = max(now, is_free[to])
                if dice.random() < link.lost or starts - now > _MOST_WAITING_S:
                    continue
                is_free[to] = starts + len(packet) / link.bytes_per_s
                under_way[to].append((is_free[to] + link.late_s, packet))
        for end, queue in under_way.items():
            while queue and queue[0][0] <= time.monotonic():
                with contextlib.suppress(OSError):  # that end is down
                    os.write(end, queue.popleft()[1])


def _read(end: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # no more are there, or that end is down
        for _ in range(64):
            yield os.read(end, 1 << 16)
