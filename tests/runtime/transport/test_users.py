"""Where nothing is set: processes of this user, and of no other user of the machine."""

import os
import socket
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gigl_loader.errors import JoinRefusedError
from gigl_loader.runtime.transport import EndReason, Security, sockets
from gigl_loader.runtime.transport.handshake import Greeting, admit, join
from gigl_loader.runtime.transport.stream import KNOCK_FRAME, FrameKind, Stream, drive, pack
from gigl_loader.testing import wait_until
from tests.runtime.transport.network import Network, refusals
from tests.runtime.transport.service import Answer, question
from tests.support.conditions import SetConstants, no_descriptors_but

ROOT = Path(__file__).parents[3]
NOBODY = 65534
OPENING = f"""
import os, sys, socket, encodings.idna
sys.path.insert(0, {str(ROOT)!r})
from gigl_loader.runtime.transport import Caller, Listener, Security
from gigl_loader.errors import JoinRefusedError
from tests.runtime.transport.service import Answer, Service, question
service = None
os.setuid({NOBODY})
"""
"""Of a process that is started by root, imports what it needs and becomes another user's."""


def as_nobody(code: str) -> "subprocess.Popen[str]":
    script = OPENING + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_another_user_is_refused_by_name(plain: Network, caplog: pytest.LogCaptureFixture) -> None:
    """On the loopback address, without a token: it reads nothing, and is told why, and how."""
    service = plain.service()
    asker = as_nobody(f"""
        with Caller(*{service.listener.address}, Security.local(), "nobody") as caller:
            try:
                print(caller.ask("double", question(1), Answer).wait(60).rows)
            except JoinRefusedError as error:
                print(error.end, error)
    """)
    with asker:
        told = asker.communicate(timeout=60)[0]
    assert told.startswith("refused: user"), told
    for words in (f"user {NOBODY}", f"user {os.geteuid()}", "GIGL_LOADER_CLUSTER_TOKEN"):
        assert words in told
    wait_until(lambda: refusals(caplog), "it is in the log")
    assert f"a process of user {NOBODY}" in refusals(caplog)[-1]
    assert service.listener.stats()["refused"] == {EndReason.REFUSED_USER.value: 1}
    assert (service.asked, service.peers) == ([], [])
    caller = plain.caller(service.listener.address)
    assert caller.ask("double", question(2), Answer).wait(60).number == 2, "this user is let in"


def test_who_asks_first_and_is_gone_when_he_is_looked_at(plain: Network) -> None:
    """The kernel counts a closed socket as root's: what it leaves behind is not taken."""
    service = plain.service()
    asker = as_nobody(f"""
        import socket
        from gigl_loader.runtime.transport.handshake import Hello
        from gigl_loader.runtime.transport.stream import KNOCK_FRAME, FrameKind, pack
        hello = Hello("root", "s", "l", bytes(32), b"")
        frames = [*pack(FrameKind.HELLO, hello), *pack(FrameKind.ASK, question(7), "double")]
        for _ in range(200):
            with socket.create_connection({service.listener.address}) as sock:
                sock.sendall(KNOCK_FRAME + b"".join(bytes(frame) for frame in frames))
    """)
    with asker:
        assert asker.wait(60) == 0
    wait_until(lambda: service.listener.stats()["pending"] == 0, "all were looked at")
    assert (service.asked, service.peers) == ([], [])


def test_a_listener_of_another_user_is_not_asked(plain: Network) -> None:
    """It took the port of a server that ended: it learns nothing, and its answers count nothing."""
    listening = as_nobody("""
        service = Service(Security.resolve("", "", True))
        print(service.listener.address[1], flush=True)
        sys.stdin.read()
        print([peer.name for peer in service.peers])
    """)
    assert listening.stdout is not None
    address = ("127.0.0.1", int(listening.stdout.readline()))
    with pytest.raises(JoinRefusedError, match=f"the listener is a process of user {NOBODY}") as no:
        plain.caller(address).connect(time.monotonic() + 60)
    assert no.value.end is EndReason.REFUSED_USER
    open_to_all = plain.caller(address, security=Security.resolve("", "", True))
    assert open_to_all.ask("double", question(1), Answer).wait(60).number == 1, "--insecure"
    with listening:
        told = listening.communicate(timeout=60)[0]
    assert told == "['tester']\n", "who he was he had not said"


@pytest.mark.parametrize("linger", [None, struct.pack("ii", 1, 0)], ids=["closed", "reset"])
def test_a_listener_that_ends_as_its_user_is_looked_up_is_an_outage(linger: bytes | None) -> None:
    """Nobody's connection was refused for good, and a job of one user ended by a reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = Stream(socket.create_connection(server.getsockname()))
        listener, _ = server.accept()
        with stream.sock, listener:
            steps = join(stream, Security.local(), "caller", "session", "lane")
            next(steps)
            assert listener.recv(100) == KNOCK_FRAME
            listener.sendall(b"".join(pack(FrameKind.GREETING, Greeting(bytes(32)))))
            if linger is not None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            listener.close()
            with pytest.raises(ConnectionResetError, match="ended the connection as it began"):
                drive(steps, stream, lambda: 60.0)


_NO_PROTOCOL = 31
"""A netlink protocol that the kernel has not."""


@pytest.mark.parametrize("is_asked", [True, False], ids=["kernel is asked", "tables are read"])
@pytest.mark.parametrize(
    ("host", "there"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_both_ends_know_whose_the_other_is(
    constants: SetConstants, is_asked: bool, host: str, there: str
) -> None:
    if not is_asked:
        constants(sockets, _NETLINK_SOCK_DIAG=_NO_PROTOCOL)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server:
        client = socket.create_connection((there, server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:
            assert sockets.user_of_peer(client) == sockets.user_of_peer(accepted) == os.geteuid()
            client.close()
            assert sockets.user_of_peer(accepted) is None


def test_a_listener_without_descriptors_says_so(constants: SetConstants) -> None:
    """It said that the caller was on another machine, or gone, and asked for certificates."""
    for is_asked in (True, False):
        if not is_asked:
            constants(sockets, _NETLINK_SOCK_DIAG=_NO_PROTOCOL)
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            stream = Stream(accepted)
            steps = admit(stream, Security.local(), 1 << 20, 0)
            client.sendall(KNOCK_FRAME)
            with client, stream.sock:
                # the tables are two files, the kernel one socket: neither can be opened
                with no_descriptors_but(0), pytest.raises(JoinRefusedError) as caught:
                    drive(steps, stream, lambda: 60.0)
                assert caught.value.end == EndReason.REFUSED_BUSY
                assert "may open no more files: raise the limit" in str(caught.value)
