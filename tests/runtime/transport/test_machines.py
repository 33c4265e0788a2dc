"""Two machines: namespaces of the network where they can be made, else a relay on this one."""

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gigl_loader.errors import PeerLostError
from gigl_loader.runtime.transport import Caller, EndReason
from tests.runtime.transport.network import AT_ONCE_S
from tests.runtime.transport.relay import Relay
from tests.runtime.transport.service import SECURITIES, Answer, Service, question

ROOT = Path(__file__).parents[3]
SERVER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.runtime.transport.service import SECURITIES, Service
service = Service(SECURITIES["tls"](), sys.argv[1])
print(service.listener.address[1], flush=True)
sys.stdin.read()
"""


@dataclass
class Link:
    """The way to a service on another machine."""

    address: tuple[str, int]
    cut: Callable[[], object]
    heal: Callable[[], object]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def _namespace() -> Iterator[Link]:
    name = f"gl{os.getpid()}"
    far, near = f"{name}f", f"{name}n"
    # of a range for tests of networks; another run of the tests beside this one has another subnet
    subnet = ipaddress.ip_address("198.18.0.0") + 4 * (os.getpid() % 2**15)
    _ip("netns", "add", name)
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _ip("addr", "add", f"{subnet + 1}/30", "dev", near)
        _ip("link", "set", near, "up")
        _ip("-n", name, "addr", "add", f"{subnet + 2}/30", "dev", far)
        _ip("-n", name, "link", "set", far, "up")
        with subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", SERVER, f"{subnet + 2}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server:
            assert server.stdout is not None
            try:
                yield Link(
                    (f"{subnet + 2}", int(server.stdout.readline())),
                    lambda: _ip("-n", name, "link", "set", far, "down"),
                    lambda: _ip("-n", name, "link", "set", far, "up"),
                )
            finally:
                server.send_signal(signal.SIGKILL)
    finally:
        _ip("netns", "del", name)


@contextlib.contextmanager
def _relay() -> Iterator[Link]:
    service = Service(SECURITIES["tls"]())
    with Relay(service.listener.address) as relay:
        yield Link(relay.address, relay.cut.set, relay.cut.clear)
    service.listener.close()


@pytest.fixture
def link() -> Iterator[Link]:
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(_namespace())
        except (OSError, subprocess.CalledProcessError):
            found = stack.enter_context(_relay())
        yield found


@pytest.mark.longest
def test_a_cable_that_is_pulled_and_put_back(link: Link) -> None:
    security = SECURITIES["tls"]()
    with Caller(*link.address, security, "far", patience_s=5.0) as caller:
        caller.ask("double", question(1), Answer).wait(60)
        for idle in (False, True):
            replies = [] if idle else [caller.ask("zeros", question(1 << 25), Answer)]
            link.cut()
            started = time.monotonic()
            healing = threading.Timer(1.5, link.heal)
            healing.start()
            replies.append(caller.ask("double", question(7), Answer))
            assert replies[-1].wait(60).rows.tolist() == [14, 16, 18]
            assert time.monotonic() - started < 1.5 + AT_ONCE_S
            healing.join()
        link.cut()
        started = time.monotonic()
        with pytest.raises(PeerLostError) as caught:
            caller.ask("double", question(8), Answer).wait(60)
        assert caught.value.end is EndReason.SILENT
        assert 4.9 < time.monotonic() - started < 5.0 + AT_ONCE_S
        link.heal()
        assert caller.ask("double", question(9), Answer).wait(60).number == 9
