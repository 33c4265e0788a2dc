"""Answers the questions of callers: a door that admits them, and a thread for each one inside."""

import contextlib
import logging
import resource
import select
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from gigl_loader.errors import ProtocolError
from gigl_loader.transport import addresses
from gigl_loader.transport.codec import decode
from gigl_loader.transport.door import CLOSE_S, Door
from gigl_loader.transport.ends import End
from gigl_loader.transport.failures import describe
from gigl_loader.transport.handshake import Goodbye, Hello, farewell
from gigl_loader.transport.pulse import pulse
from gigl_loader.transport.security import Security
from gigl_loader.transport.stream import (
    SILENCE_S,
    Frame,
    Kind,
    Stream,
    drive,
    pack,
    read_frame,
)

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Peer:
    """A caller that was admitted, on one connection.

    A caller that comes back on a fresh connection is a new `Peer` of the same ``session``.
    """

    name: str
    """What it calls itself."""
    address: str
    session: str
    """Random; one for each `Caller`, or for several that share one."""
    context: dict[str, Any] = field(default_factory=dict)
    """For the listener's owner."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set once it closed the connection or was killed, also while a handler runs."""


Handler = Callable[[Any, Peer], Any]


@dataclass(frozen=True)
class Method:
    """One row of a listener's table.

    ``handler(request, peer)`` returns the answer, or a `concurrent.futures.Future` of it, which is
    cancelled when the caller goes away; or a `Lent`. It may be called again for the same request
    after a connection was lost, and also while the first call is still under way.
    """

    request: Any
    answer: Any
    handler: Handler


@dataclass(frozen=True)
class Lent:
    """An answer whose arrays lie in memory that is wanted back.

    ``release`` is called once: when the answer was sent, or when the connection is over.
    """

    answer: Any
    release: Callable[[], None]


class Listener:
    """Listens on one address and answers by a fixed table of methods.

    Args:
        address: Address or name of this machine to listen on.
        port: 0 means one that is free.
        security: Who may come in.
        table: Methods by name.
        name: What this side is, for the log.
        on_peer: Called with each `Peer` that was admitted, before its first question.
        on_end: Called once for each of them, with its `End`.
        max_ask_bytes: The most that the arrays of one question may hold.
        silence_s: A caller that leaves a question unfinished, or sent bytes unacknowledged, for
            this long is cut off.
        inherits: Descriptor of a socket that listens already, in place of ``address`` and ``port``;
            owned by this object from here on.

    Raises:
        ConfigError: It would be open to strangers, or cannot listen there.
    """

    def __init__(
        self,
        address: str,
        port: int,
        security: Security,
        table: Mapping[str, Method],
        name: str,
        *,
        on_peer: Callable[[Peer], None] | None = None,
        on_end: Callable[[Peer, End], None] | None = None,
        max_ask_bytes: int = 1 << 30,
        silence_s: float = SILENCE_S,
        inherits: int | None = None,
    ) -> None:
        loopback = addresses.is_loopback(address)
        security.check_listener(address, loopback=loopback)
        if security.mode.encrypted:
            security.context(server=True)  # certificates that cannot be used are refused now
        elif not loopback:
            _log.warning(
                "%s listens on %s without encryption: whoever can read the network reads the data",
                *(name, address),
            )
        self.name, self.security, self.table = name, security, dict(table)
        self.max_ask_bytes, self.silence_s = max_ask_bytes, silence_s
        self._on_peer = on_peer or (lambda peer: None)
        self._on_end = on_end or (lambda peer, end: None)
        self._lock = threading.Lock()
        self._connections: dict[_Connection, threading.Thread] = {}
        self._closed = False
        sock = addresses.listen(address, port) if inherits is None else addresses.adopt(inherits)
        self.address: tuple[str, int] = sock.getsockname()[:2]
        self._door = Door(sock, name, security, max_ask_bytes, self._take_in)

    def start(self) -> "Listener":
        """Begin to admit callers; returns itself."""
        _raise_descriptor_limit()
        pulse()
        self._door.thread.start()
        return self

    def fileno(self) -> int:
        """Return the descriptor that it listens on, for whoever is to go on after this process."""
        return self._door.fileno()

    def stats(self) -> dict[str, Any]:
        """Return how many callers are ``open`` and ``pending``, and ``refused`` by `End`."""
        return {
            "open": len(self._connections),
            "pending": len(self._door.pending),
            "refused": dict(self._door.refused),
        }

    def close(self, end: End = End.SHUTDOWN, words: str = "") -> None:
        """Tell all callers goodbye and stop. Idempotent, from any thread."""
        with self._lock:
            self._closed, connections = True, dict(self._connections)
        self._door.close()
        deadline = time.monotonic() + CLOSE_S
        goodbye = farewell(Kind.BYE, end, words or f"{self.name} shut down")
        for connection in connections:
            connection.dismiss(End.CLOSED, goodbye, deadline - time.monotonic())
        for thread in connections.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _take_in(self, stream: Stream, hello: Hello, address: str) -> None:
        """Serve a caller that was admitted.

        Raises:
            RuntimeError: No thread can be started.
        """
        connection = _Connection(self, stream, Peer(hello.name, address, hello.session), hello.lane)
        thread = threading.Thread(
            target=connection.run, name=f"{self.name} for {hello.name}", daemon=True
        )
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            former = [c for c in self._connections if c.same_lane(connection)]
            thread.start()
            self._connections[connection] = thread
        for old in former:
            old.dismiss(End.REPLACED, farewell(Kind.BYE, End.REPLACED, "a fresh one is there"), 0)

    # --- for the connections ------------------------------------------------------------------

    def began(self, connection: "_Connection") -> None:
        """Tell the owner of a new peer."""
        self._on_peer(connection.peer)

    def over(self, connection: "_Connection", end: End) -> None:
        """Forget a connection and tell the owner."""
        with self._lock:
            self._connections.pop(connection, None)
        try:
            self._on_end(connection.peer, end)
        except Exception:
            _log.exception("%s: the end of %s was not handled", self.name, connection.peer.name)


class _Connection:
    """One admitted caller, served by one thread."""

    def __init__(self, listener: Listener, stream: Stream, peer: Peer, lane: str) -> None:
        self.stream, self.peer, self.owes = stream, peer, False
        self._listener, self._lane = listener, lane
        self._wake = threading.Event()
        self._dismissed: End | None = None

    def same_lane(self, other: "_Connection") -> bool:
        """Tell whether ``other`` is the same caller, on another connection."""
        return (self.peer.session, self._lane) == (other.peer.session, other._lane)

    def hung_up(self) -> None:
        self.peer.gone.set()
        self._wake.set()

    def dismiss(self, end: End, goodbye: bytes, patience_s: float) -> None:
        """End the connection from another thread."""
        self._dismissed = self._dismissed or end
        self.stream.end(goodbye, patience_s)
        self.hung_up()

    def run(self) -> None:
        end = End.GONE
        watch = pulse()
        try:
            watch.watch(self)
            self._listener.began(self)
            end = self._serve()
        except _SilentError:
            end = End.SILENT
        except (EOFError, OSError):
            end = self._last_words()
        except ProtocolError as error:
            end = End.PROTOCOL
            self.stream.end(farewell(Kind.BYE, end, str(error)), 1.0)
        except Exception:
            _log.exception("%s: the connection with %s failed", *self._names())
        finally:
            self.peer.gone.set()
            watch.forget(self)
            self.stream.shutdown()
            self._listener.over(self, self._dismissed or end)
            self.stream.close()

    def _names(self) -> tuple[str, str]:
        return self._listener.name, self.peer.name

    def _serve(self) -> End:
        while True:
            self.owes = False
            frame = self._receive()
            if frame.kind is Kind.BYE:
                return decode(frame.body, [], Goodbye).end
            if frame.kind is not Kind.ASK:
                raise ProtocolError(f"{frame.kind.name} came where a question was due")
            if self._dismissed is None:  # else read on: unread bytes would reset our goodbye
                self._answer(frame)

    def _receive(self) -> Frame:
        steps = read_frame(self.stream, self._listener.max_ask_bytes, on_head=self._begin)
        frame: Frame = drive(steps, self.stream, self._patience)
        self.owes = True
        return frame

    def _begin(self) -> None:
        self.owes = True

    def _patience(self) -> float:
        """Return how long to sleep; a question that was begun must go on."""
        if self.owes and time.monotonic() - self.stream.heard > self._listener.silence_s:
            raise _SilentError
        return 1.0 if self.owes else 60.0

    def _answer(self, frame: Frame) -> None:
        release = None
        try:
            answer = self._call(frame)
            if isinstance(answer, Lent):
                release, answer = answer.release, answer.answer
            views = pack(Kind.ANSWER, answer)
        except EOFError:
            raise
        except Exception as error:
            views = pack(Kind.ERROR, describe(error))
        try:
            self._send(views)
        finally:
            if release is not None:
                release()

    def _call(self, frame: Frame) -> Any:
        method = self._listener.table.get(frame.method)
        if method is None:
            raise ProtocolError(f"{self._listener.name} has no method {frame.method[:100]!r}")
        request = decode(frame.body, frame.arrays, method.request)
        answer = method.handler(request, self.peer)
        return self._await(answer) if isinstance(answer, Future) else answer

    def _await(self, future: "Future[Any]") -> Any:
        future.add_done_callback(lambda _: self._wake.set())
        while not future.done():
            self._wake.wait(1.0)
            self._wake.clear()
            if self.peer.gone.is_set() and not future.done():
                future.cancel()
                raise EOFError("the caller is gone")
        return future.result()

    def _send(self, views: list[memoryview]) -> None:
        with self.stream.send_lock:
            while not self.stream.push(views):
                ready = self.stream.wait(select.POLLOUT, 1.0)
                if not ready and self.stream.vanished(self._listener.silence_s):
                    raise _SilentError

    def _last_words(self) -> End:
        """Return the end that the caller named before it hung up, if it did."""
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            for _ in range(1000):  # questions that nobody waits for any more
                steps = read_frame(self.stream, self._listener.max_ask_bytes)
                try:
                    next(steps)
                except StopIteration as done:
                    if done.value.kind is Kind.BYE:
                        return decode(done.value.body, [], Goodbye).end
                else:
                    return End.GONE
        return End.GONE


class _SilentError(Exception):
    """Nothing was heard from a caller for the limit."""


def _raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
