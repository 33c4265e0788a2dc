"""Lets callers in: one thread that never waits for a single one of them.

It accepts, and takes each pending handshake one step on when bytes come. A handshake has three
seconds. There are at most 128 of them, and 64 from one address; the one that made no progress for
the longest time makes room for a new one, so that thousands of half-open connections neither keep
real callers out nor take memory. No thread is started before a caller is admitted.
"""

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gigl_loader.errors import ConfigError, JoinRefusedError
from gigl_loader.transport.ends import End
from gigl_loader.transport.handshake import Hello, admit, drain_refused, farewell
from gigl_loader.transport.security import Security
from gigl_loader.transport.stream import Kind, Steps, Stream, close_in_children

_log = logging.getLogger(__name__)

HANDSHAKE_S = 3.0
MAX_PENDING = 128
MAX_PENDING_PER_ADDRESS = 64
CLOSE_S = 2.0
"""How long whoever closes a listener waits for what is under way."""
_DRAIN_S = 0.5  # for a refused caller to read why
_REPORT_EVERY_S = 60.0


@dataclass(eq=False)
class Pending:
    """One handshake under way."""

    stream: Stream
    steps: Steps
    address: str
    deadline: float
    refused: bool = False


class Door:
    """Accepts connections and takes their handshakes on, all in one thread.

    Args:
        sock: Listens; owned by this object from here on.
        name: For the log.
        security: Who may come in.
        max_ask_bytes: Told to callers.
        take_in: Called with the connection, the hello and the address of each caller that was
            admitted; raises RuntimeError where no thread can be started for it.
    """

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        security: Security,
        max_ask_bytes: int,
        take_in: Callable[[Stream, Hello, str], None],
    ) -> None:
        sock.setblocking(False)
        close_in_children(sock)
        self._sock, self._name = sock, name
        self._security, self._max_ask_bytes, self._take_in = security, max_ask_bytes, take_in
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)
        self.pending: dict[int, Pending] = {}  # by descriptor; who made progress is last
        self.refused: Counter[str] = Counter()
        self._reported, self._unreported = -_REPORT_EVERY_S, 0
        self._closed = False
        self.thread = threading.Thread(target=self._run, name=f"{name} door", daemon=True)

    def fileno(self) -> int:
        """Return the descriptor that it listens on."""
        return self._sock.fileno()

    def close(self) -> None:
        """Stop; idempotent."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self.thread.ident is None:
            self._release()
        elif self.thread is not threading.current_thread():
            self.thread.join(CLOSE_S)

    def _release(self) -> None:
        for pending in list(self.pending.values()):
            self._drop(pending)
        self._sock.close()
        self._epoll.close()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        finally:
            self._release()

    def _turn(self) -> None:
        """Do what there is to do; nothing that one caller does may end this thread."""
        try:
            for number, _ in self._epoll.poll(0.1 if self.pending else 60.0):
                if number == self._sock.fileno():
                    self._accept()
                elif number in self.pending:
                    self._step(number)
            self._expire()
        except Exception:
            if not self._closed:
                _log.exception("%s: the door failed; it goes on", self._name)
                time.sleep(0.1)

    def _accept(self) -> None:
        for _ in range(64):  # then look at the handshakes again
            try:
                sock, source = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not self._closed:
                    self._no_descriptor(error)
                return
            try:
                self._open(sock, str(source[0]))
            except OSError:  # it is gone already
                sock.close()

    def _no_descriptor(self, error: OSError) -> None:
        self._count(End.REFUSED_BUSY, "a caller", str(error))
        if self.pending:
            self._shed(next(iter(self.pending.values())))
        else:
            time.sleep(0.05)  # whoever else holds the descriptors

    def _open(self, sock: socket.socket, address: str) -> None:
        same = [p for p in self.pending.values() if p.address == address]
        if len(same) >= MAX_PENDING_PER_ADDRESS:
            self._shed(same[0])
        elif len(self.pending) >= MAX_PENDING:
            self._shed(next(iter(self.pending.values())))
        stream = Stream(sock)
        steps = admit(stream, self._security, self._max_ask_bytes)
        number = sock.fileno()
        self.pending[number] = Pending(stream, steps, address, time.monotonic() + HANDSHAKE_S)
        self._epoll.register(number, select.EPOLLIN)
        self._step(number)

    def _shed(self, pending: Pending) -> None:
        if not pending.refused:
            self._count(End.REFUSED_SLOW, pending.address, "it did not finish the handshake")
        self._drop(pending)

    def _drop(self, pending: Pending) -> None:
        self._take_out(pending)
        pending.stream.shutdown()
        pending.stream.close()

    def _take_out(self, pending: Pending) -> None:
        number = pending.stream.sock.fileno()
        del self.pending[number]
        self._epoll.unregister(number)

    def _step(self, number: int) -> None:
        pending = self.pending[number]
        try:
            next(pending.steps)
        except StopIteration as done:
            self._admitted(pending, done.value)
        except JoinRefusedError as error:
            self._refuse(pending, End(error.end), str(error))
        except (EOFError, OSError):
            self._drop(pending)
        except ConfigError as error:  # certificates that were renewed and cannot be read
            self._refuse(pending, End.REFUSED_CERTIFICATE, str(error))
        else:
            self.pending[number] = self.pending.pop(number)

    def _admitted(self, pending: Pending, hello: Hello | None) -> None:
        if hello is None:  # a refused one that has read why
            self._drop(pending)
            return
        self._take_out(pending)
        try:
            self._take_in(pending.stream, hello, pending.address)
        except RuntimeError as error:
            self._count(End.REFUSED_BUSY, pending.address, str(error))
            words = "the listener has no thread left"
            pending.stream.end(farewell(Kind.BYE, End.REFUSED_BUSY, words))
            pending.stream.close()

    def _refuse(self, pending: Pending, end: End, words: str) -> None:
        self._count(end, pending.address, words)
        try:
            if end is not End.REFUSED_CERTIFICATE:  # TLS has sent its own alert
                pending.stream.say(farewell(Kind.REFUSED, end, words))
            pending.steps, pending.refused = drain_refused(pending.stream), True
            pending.deadline = min(pending.deadline, time.monotonic() + _DRAIN_S)
            self._step(pending.stream.sock.fileno())
        except (OSError, ssl.SSLError):
            self._drop(pending)

    def _expire(self) -> None:
        now = time.monotonic()
        for pending in [p for p in self.pending.values() if p.deadline <= now]:
            self._shed(pending)

    def _count(self, end: End, who: str, why: str) -> None:
        """Count a refusal; say so in the log at most once a minute."""
        self.refused[end.value] += 1
        self._unreported += 1
        if time.monotonic() - self._reported >= _REPORT_EVERY_S:
            _log.warning(
                "%s refused %d connection(s), the last one from %s: %s",
                *(self._name, self._unreported, who, why),
            )
            self._reported, self._unreported = time.monotonic(), 0
