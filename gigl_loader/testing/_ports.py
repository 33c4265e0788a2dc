"""Ports for tests."""

import random
from pathlib import Path

from gigl_loader.transport import addresses

_FIRST = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of ``host`` that nothing listens on.

    It lies below the range from which the system takes ports by itself: one from that range may be
    given to any other socket before the caller binds it.

    Args:
        host: An address of this machine.

    Raises:
        OSError: All ports that were tried are taken.
    """
    below = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32_768
    first = _FIRST if below > _FIRST + 1000 else 1024
    draw = random.SystemRandom()  # tests in other processes draw too, and may share a seed
    for _ in range(99):
        port = draw.randrange(first, below)
        if addresses.is_free(host, port):
            return port
    raise OSError(f"99 ports of {host} between {first} and {below} are taken")
