"""A fork of this process keeps no connection, whenever it happens."""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gigl_loader.runtime.transport import Caller, sockets
from tests.runtime.transport.network import Network
from tests.runtime.transport.service import Answer, question


def _holds(sock: socket.socket) -> Callable[[], bool]:
    """Return what tells, in a fork, whether it has this socket."""
    number = sock.fileno()
    inode = os.fstat(number).st_ino

    def holds() -> bool:
        try:
            return os.fstat(number).st_ino == inode
        except OSError:
            return False

    return holds


class ForkedMeanwhile:
    """Has another thread fork right after a call that opens a socket, before anybody has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.kept: list[bool] = []
        self._threads: list[threading.Thread] = []
        real = getattr(socket.socket, name)

        def call(sock: socket.socket, *args: Any, **options: Any) -> Any:
            found = real(sock, *args, **options)
            opened = found[0] if isinstance(found, tuple) else sock
            if opened.family != socket.AF_NETLINK and not self._threads:
                self._fork(_holds(opened))
            return found

        monkeypatch.setattr(socket.socket, name, call)

    def _fork(self, holds: Callable[[], bool]) -> None:
        forked = threading.Event()

        def fork() -> None:
            child = os.fork()
            if child == 0:
                os._exit(int(holds()))
            forked.set()
            self.kept.append(bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))

        self._threads.append(threading.Thread(target=fork))
        self._threads[0].start()
        forked.wait(1.0)  # of a fork that does not wait for this thread

    def join(self) -> list[bool]:
        for thread in self._threads:
            thread.join()
        return self.kept


def test_a_fork_keeps_no_connection_that_is_being_accepted(
    plain: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = plain.service()
    forks = ForkedMeanwhile(monkeypatch, "accept")
    caller = plain.caller(service.listener.address)
    assert caller.ask("double", question(1), Answer).wait(60).number == 1
    assert forks.join() == [False]


@pytest.mark.parametrize(
    "opens",
    [
        lambda network: network.caller(network.service().listener.address).connect(1e9),
        lambda network: sockets.listen("127.0.0.1", 0).close(),
    ],
    ids=["connect", "listen"],
)
def test_a_fork_keeps_no_socket_that_is_being_opened(
    plain: Network, monkeypatch: pytest.MonkeyPatch, opens: Callable[[Network], object]
) -> None:
    forks = ForkedMeanwhile(monkeypatch, "__init__")
    opens(plain)
    assert forks.join() == [False]


def test_a_caller_works_on_in_the_parent(plain: Network) -> None:
    service = plain.service()
    caller: Caller = plain.caller(service.listener.address)
    for number in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert caller.ask("double", question(number), Answer).wait(60).number == number
