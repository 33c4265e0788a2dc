"""A service at low limits, and thousands of strangers who stop in the middle of a handshake."""

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.runtime.transport.stream import KNOCK_FRAME
from gigl_loader.testing import wait_until
from tests.runtime.transport.service import SECURITIES, Answer, question


class Flooded:
    """A service in a process of its own, at low limits."""

    def __init__(self, mode: str, files: int, threads: int) -> None:
        script = str(Path(__file__).parent / "flooded.py")
        self.process = subprocess.Popen(
            [sys.executable, script, mode, str(files), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = ("127.0.0.1", int(self._line()))

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def state(self) -> tuple[int, int, int]:
        """Return resident bytes, pending handshakes and open descriptors."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        rss, pending, files = map(int, self._line().split())
        return rss, pending, files

    def end(self) -> str:
        """End it; return what it logged."""
        self.process.kill()
        return self.process.communicate()[1]


@dataclass(frozen=True)
class Outcome:
    """What a flood cost."""

    entered_s: float
    """The longer of the times in which two real callers got in and had an answer."""
    grown_bytes: int
    gone_s: float
    """From the last stranger until all of them and their descriptors were gone."""
    logged: str


def flood(mode: str, patience_s: float) -> Outcome:
    """Open 1,200 connections and stall 1,200 handshakes, at 1,024 descriptors and 64 threads."""
    security = SECURITIES[mode]()
    flooded = Flooded(mode, files=1024, threads=64)
    strangers: list[socket.socket] = []
    try:
        _entered_s(flooded, security, "warm", patience_s)
        rss, _, files = flooded.state()
        opening = client_hello(security) if security.mode.encrypted else KNOCK_FRAME
        for number in range(2400):
            strangers.append(socket.create_connection(flooded.address))
            if number % 2:
                with contextlib.suppress(OSError):  # it was shed already
                    strangers[-1].sendall(opening)
        last = time.monotonic()
        entered_s = max(_entered_s(flooded, security, name, patience_s) for name in ("one", "two"))
        grown = flooded.state()[0] - rss
        wait_until(lambda: flooded.state()[1] == 0, "all of them are gone")
        wait_until(lambda: flooded.state()[2] <= files + 2, "their descriptors too")
        gone_s = time.monotonic() - last
    finally:
        for stranger in strangers:
            stranger.close()
        logged = flooded.end()
    return Outcome(entered_s, grown, gone_s, logged)


_STRANGER = """
import collections, contextlib, socket, sys, time

held = collections.deque()
print("begins", flush=True)
while True:
    if time.monotonic() % 2 > 1:
        time.sleep(0.01)
        continue
    held.append(socket.socket())
    held[-1].setblocking(False)
    with contextlib.suppress(OSError):
        held[-1].connect(("127.0.0.1", int(sys.argv[1])))
    if len(held) > 300:
        held.popleft().close()
"""


def enter_during_a_flood(mode: str, patience_s: float) -> list[int]:
    """Return what callers are answered while one opens connections without end at their address.

    Each connection lets the one end that has been silent for longest. It pauses every other second:
    on a machine whose cores are all busy, nobody gets through a handshake meanwhile.
    """
    security, flooded = SECURITIES[mode](), Flooded(mode, files=1024, threads=300)
    command = [sys.executable, "-c", _STRANGER, str(flooded.address[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == b"begins\n"
            answers = []
            for name in ("one", "two", "three"):
                with Caller(*flooded.address, security, name, patience_s=patience_s) as caller:
                    answer = caller.ask("double", question(3), Answer).wait(patience_s)
                    answers.append(answer.number)
            assert stranger.poll() is None
            return answers
        finally:
            stranger.kill()
            flooded.end()


def _entered_s(flooded: Flooded, security: Security, name: str, patience_s: float) -> float:
    started = time.monotonic()
    with Caller(*flooded.address, security, name, patience_s=patience_s) as caller:
        assert caller.ask("double", question(3), Answer).wait(60).number == 3
    return time.monotonic() - started


def client_hello(security: Security) -> bytes:
    """Return the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    tls = security.context(server=False).wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
