"""One thread for all connections of a process that owe an answer: it says that they live.

It also learns at once when a caller is killed, while the connection's own thread is in a handler.
"""

import contextlib
import os
import select
import threading
import time
from typing import Protocol

from gigl_loader.transport.stream import ALIVE_FRAME, TICK_S, Stream


class Debtor(Protocol):
    """A connection, as far as the pulse is concerned."""

    stream: Stream
    owes: bool
    """Whether the caller waits for something."""

    def hung_up(self) -> None:
        """The caller closed the connection, or was killed."""


class _Pulse:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._debtors: dict[int, Debtor] = {}
        threading.Thread(target=self._run, name="gigl_loader alive", daemon=True).start()

    def watch(self, debtor: Debtor) -> None:
        number = debtor.stream.sock.fileno()
        self._debtors[number] = debtor
        # edge-triggered: one event for each connection, with no call of the kernel per question
        self._epoll.register(number, select.EPOLLRDHUP | select.EPOLLET)

    def forget(self, debtor: Debtor) -> None:
        number = debtor.stream.sock.fileno()
        self._debtors.pop(number, None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(number)

    def _run(self) -> None:
        due = time.monotonic() + TICK_S
        while True:
            for number, _ in self._epoll.poll(max(0.0, due - time.monotonic())):
                self._hang_up(self._debtors.get(number))
            if time.monotonic() >= due:
                due = time.monotonic() + TICK_S
                for debtor in list(self._debtors.values()):
                    with contextlib.suppress(OSError):  # the connection's own thread sees it too
                        if debtor.owes:
                            debtor.stream.say(ALIVE_FRAME)

    def _hang_up(self, debtor: Debtor | None) -> None:
        # asked again, because the number may belong to a newer connection by now
        with contextlib.suppress(OSError):
            if debtor and debtor.stream.wait(select.POLLRDHUP, 0):
                debtor.hung_up()

    def release(self) -> None:
        self._epoll.close()


_pulse: _Pulse | None = None
_lock = threading.Lock()


def pulse() -> _Pulse:
    """Return this process's; raises RuntimeError where no thread can be started."""
    global _pulse
    with _lock:
        if _pulse is None:
            _pulse = _Pulse()
        return _pulse


def _forget_in_child() -> None:
    """A fork has no such thread, and shares the set of watched descriptors with its parent."""
    global _pulse, _lock
    if _pulse is not None:
        _pulse.release()
    _pulse, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
