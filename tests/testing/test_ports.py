import random
import socket
from pathlib import Path

import pytest

from gigl_loader import ResourceError
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.runtime.transport import sockets
from gigl_loader.testing import free_port


def test_a_free_port_can_be_bound_and_is_not_one_that_the_system_hands_out() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in {free_port() for _ in range(20)}:
        assert port < first
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))


def test_a_port_that_is_taken_is_not_given() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert not sockets.is_free("127.0.0.1", port)
    with pytest.raises(ResourceError, match="are taken"):
        free_port("192.0.2.1")  # of no machine: nothing can be bound there


def _is_refused(port: int) -> None:
    """Check that this process does not get ``port``, although it draws no other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random.SystemRandom, "sample", lambda self, given, count: [port] * count)
        with pytest.raises(ResourceError, match="are taken"):
            free_port()


@pytest.mark.multiprocess
def test_a_port_is_returned_once_on_this_machine() -> None:
    """Whoever it was given to may take seconds until it listens there."""
    port = free_port()
    other = ForkedProcess(target=_is_refused, args=(port,))
    other.start()
    other.join()
    assert other.exitcode == 0, "another process does not get it"
    _is_refused(port)
