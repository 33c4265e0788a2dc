"""Serves the requests of callers: one thread accepts, and one thread serves each connection.

The accepting thread waits for no caller. Each second it reports on every connection that owes a
response that this side is alive; it learns at once when a caller hangs up while a handler works.

A connection's thread does the handshake within three seconds and then serves requests. At most 128
handshakes are under way, at most half of them from one address; the one that has been silent for
longest makes room for a new one. So half-open connections neither keep real callers out nor take
memory without bound, nor more than a quarter of the free descriptors.
"""

import contextlib
import itertools
import logging
import secrets
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from gigl_loader.errors import ConfigError, JoinRefusedError, ProtocolError
from gigl_loader.runtime.decoding import MOST_OF_NAME
from gigl_loader.runtime.threads import new_thread, nothing_hangs_on_it
from gigl_loader.runtime.transport import sockets
from gigl_loader.runtime.transport.codec import decode
from gigl_loader.runtime.transport.failures import EndReason, describe, one_line
from gigl_loader.runtime.transport.handshake import Goodbye, Hello, admit, farewell
from gigl_loader.runtime.transport.security import Security
from gigl_loader.runtime.transport.shares import LOOK_S, SMALL_BYTES, ByteShares
from gigl_loader.runtime.transport.sockets import Spare, accepted, close_in_children, raise_limit
from gigl_loader.runtime.transport.stream import (
    ALIVE_FRAME,
    SILENCE_S,
    TICK_S,
    Frame,
    FrameKind,
    Stream,
    cut_front,
    drive,
    pack,
    read_frame,
)

_log = logging.getLogger(__name__)

# A handshake is two round trips and about 5 ms of CPU time, which take a second or two on a slow
# link or at a load of 15. A caller that needs longer is refused as slow, and may retry.
_HANDSHAKE_S = 3.0
# Each handshake takes a thread and a descriptor, and limits of 1,024 on these are common. One
# address gets half of them, so that one faulty machine does not keep out the others.
_MAX_PENDING = 128
_CLOSE_S = 2.0  # how long closing a listener waits for calls in progress
_DRAIN_S = 0.5  # time for a refused caller to read the reason
_REPORT_EVERY_S = 60.0


@dataclass(eq=False)
class Peer:
    """An admitted caller on one connection.

    A caller that comes back on a fresh connection is a new `Peer` of the same ``session``.
    """

    name: str
    """Name by which the peer introduced itself."""
    address: str
    session: str
    """Random; one for each `Caller`, or for several that share one."""
    number: int = field(default_factory=itertools.count(1).__next__)
    """Larger than that of every earlier peer."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set once the caller closed the connection or was killed, also while a handler runs."""


Handler = Callable[[Any, Peer], Any]


def random_incarnation() -> int:
    """Return a random number of 63 bits, above 0, that no other process has."""
    return int(secrets.token_hex(8), 16) % (2**63 - 1) + 1


@dataclass(frozen=True)
class Method:
    """One row of a listener's table.

    ``handler(request, peer)`` returns the response, or a `concurrent.futures.Future` of it,
    which is cancelled when the caller goes away. The handler may be called again for the same
    request after a connection was lost, even while the first call is still under way.
    """

    request: Any
    answer: Any
    handler: Handler


class Listener:
    """Listens on one address and serves a fixed table of methods.

    Args:
        address: Address or name of this machine to listen on.
        port: Port to listen on; 0: any free one.
        security: Authentication and encryption.
        table: Methods by name.
        name: Description of this side, for the log.
        on_peer: Called with each admitted `Peer`, before its first request.
        on_end: Called once for each admitted `Peer`, with its `EndReason`.
        max_ask_bytes: Most bytes of arrays in one request.
        silence_s: A caller that leaves a request unfinished, or bytes unacknowledged, for this many
            seconds is cut off.
        admit: Replaces this protocol's handshake, or handles the whole connection. It gets the
            connection and the patience of `drive`, and returns the caller's description of itself,
            or None if the connection is over.
        handshake_s: How long the whole handshake may take, in seconds.
        inherits: Descriptor of a socket that listens already, in place of ``address`` and ``port``;
            this object owns it from here on.
        incarnation: Identity of this process, above 0: callers repeat no request to another
            process. None: random. A process that continues another one's work gives the same.
        party_of: Returns the party that a caller belongs to. Responses to several parties share a
            full link by parties and not by connections; see `ByteShares`. None: all are one.

    Raises:
        ConfigError: The listener would be open to strangers, or cannot listen there.
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
        on_end: Callable[[Peer, EndReason], None] | None = None,
        max_ask_bytes: int = 1 << 30,
        silence_s: float = SILENCE_S,
        admit: Callable[[Stream, Callable[[], float]], Hello | None] | None = None,
        handshake_s: float | None = None,
        inherits: int | None = None,
        incarnation: int | None = None,
        party_of: Callable[[Peer], Hashable] | None = None,
    ) -> None:
        security.check_listener(address)  # before there is anything to close
        self.name, self.security, self.table = name, security, dict(table)
        self.max_ask_bytes, self.silence_s = max_ask_bytes, silence_s
        self.admit = admit or self._admit
        self.says_goodbye = admit is None  # another protocol has no goodbye
        self.handshake_s = _HANDSHAKE_S if handshake_s is None else handshake_s
        self.incarnation = incarnation or random_incarnation()
        self.on_peer = on_peer or (lambda peer: None)
        self.on_end = on_end or (lambda peer, end: None)
        self.party_of, self.shares = party_of or (lambda peer: None), ByteShares()
        self._lock = threading.Lock()  # guards the connections and the counters
        self._connections: dict[int, _PeerConnection] = {}  # by descriptor, in order of acceptance
        self._refused: Counter[str] = Counter()
        self._reported, self._unreported = -_REPORT_EVERY_S, 0  # the first refusal is reported
        self._spare = Spare()
        self.closed = False  # that, or about to be
        self._sock = (
            sockets.listen(address, port, sockets.PROBED_S)
            if inherits is None
            else socket.socket(fileno=inherits)
        )
        self._sock.setblocking(False)
        close_in_children(self._sock)  # an inherited socket too
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        # epoll: a server may have thousands of connections, and few of them change at a time
        self._epoll = select.epoll()
        self._epoll.register(self._sock, select.EPOLLIN)
        # without this thread nobody is admitted, and admitted callers would not hear of the end
        self._thread = new_thread(
            target=self._run, name=f"{name} door", on_death=lambda _: self.close()
        )

    def start(self) -> "Listener":
        """Begin to admit callers; returns the listener."""
        raise_limit()
        self._thread.start()  # not in the constructor: its owner must be ready for callers first
        return self

    def fileno(self) -> int:
        """Return the descriptor that it listens on, for the successor of this process."""
        return self._sock.fileno()

    def stats(self) -> dict[str, Any]:
        """Return the numbers of ``open``, ``pending`` and, by `EndReason`, ``refused`` callers."""
        pending = len(self._pending())
        opened = len(self._connections) - pending
        return {"open": opened, "pending": pending, "refused": dict(self._refused)}

    def close(self, end: EndReason = EndReason.SHUTDOWN, words: str = "") -> None:
        """Say goodbye to all callers and stop. Idempotent, from any thread."""
        # set first: handlers that fail from here on fail because of it (see `_serve_request`)
        self.closed, deadline = True, time.monotonic() + _CLOSE_S
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.ident is None:
            self._release()
        elif self._thread is not threading.current_thread():  # its own death may have called this
            self._thread.join(_CLOSE_S)
        with self._lock:  # no connection is added any more
            connections = list(self._connections.values())
        goodbye = farewell(end, words or f"{self.name} shut down")
        # all are told before any is waited for: a handler may wait for another caller's request
        for connection in connections:
            connection.dismiss(EndReason.CLOSED, goodbye, deadline - time.monotonic())
        for connection in connections:
            # a handler may close its own listener
            if connection.thread is not threading.current_thread():
                connection.thread.join(max(0.0, deadline - time.monotonic()))

    # --- the accepting thread -----------------------------------------------------------------

    def _run(self) -> None:
        due = time.monotonic() + TICK_S
        while not self.closed:
            try:
                self._accept_or_hang_up(max(0.0, due - time.monotonic()))
                if time.monotonic() >= due:
                    due = time.monotonic() + TICK_S
                    self._say_alive()
            except Exception:  # no caller's fault may end this thread
                if not self.closed:
                    _log.exception(
                        "%s: could not accept a connection; the listener continues", self.name
                    )
                    time.sleep(0.1)
        self._release()

    def _release(self) -> None:
        self._sock.close()
        self._epoll.close()

    def _accept_or_hang_up(self, timeout_s: float) -> None:
        for number, _ in self._epoll.poll(timeout_s):
            if number == self._sock.fileno():
                self._accept()
                continue
            connection = self._connections.get(number)
            # looked up again, because the number may belong to a newer connection by now
            with contextlib.suppress(OSError):
                if connection is not None and connection.stream.wait(select.POLLRDHUP, 0):
                    connection.hang_up()

    def _say_alive(self) -> None:
        # from this thread, as the connections' threads are busy in handlers
        with self._lock:
            debtors = [connection for connection in self._connections.values() if connection.owes]
        for connection in debtors:
            with contextlib.suppress(OSError):  # the connection's own thread sees the error too
                connection.stream.say(ALIVE_FRAME)

    def _accept(self) -> None:
        try:
            sock, source = accepted(self._sock)
        except BlockingIOError:  # the caller hung up since the event
            return
        except OSError as error:  # no descriptor is left (EMFILE, ENFILE), mostly
            if not self.closed:
                self._busy("a caller", error)
            return
        try:
            connection = _PeerConnection(self, Stream(sock), str(source[0]))
        except OSError:  # the caller is gone already
            sock.close()
            return
        # before this one is among them: the newest must not be the one that is ended
        if not self._make_room(connection.address):
            self.refused(EndReason.REFUSED_BUSY, connection.address, "too many others are let in")
            connection.stream.close()
            return
        with self._lock:
            self._connections[sock.fileno()] = connection
        try:
            # edge-triggered: one event for each connection, no system call for each request
            self._epoll.register(sock, select.EPOLLRDHUP | select.EPOLLET)
            self._start(connection.thread, connection.address)
        except (OSError, RuntimeError):
            self.forget(connection)

    def _start(self, thread: threading.Thread, address: str) -> None:
        try:
            thread.start()
        except RuntimeError as error:  # the limit on threads
            self._busy(address, error)
            thread.start()  # try once more; after a second failure the caller is dropped, may retry

    def _busy(self, who: str, error: Exception) -> None:
        """Count a caller that got no descriptor or thread, and free one of each."""
        self.refused(EndReason.REFUSED_BUSY, who, str(error))
        pending = self._pending()
        if pending:
            _end_slowest(pending, 1)
        else:
            time.sleep(0.05)  # other code holds the descriptors: avoid a busy loop

    def _make_room(self, address: str) -> bool:
        """End handshakes to leave room for one more; return False if they do not end."""
        pending = self._pending()
        most = min(_MAX_PENDING, self._spare.for_strangers(len(pending) + 1))
        same = [connection for connection in pending if connection.address == address]
        if len(same) >= max(1, most // 2):
            _end_slowest(same, len(same) - most // 2 + 1)
        elif len(pending) >= most:
            _end_slowest(pending, len(pending) - most + 1)
        else:
            return True
        # they end at once, except where a thread waits for this process and not for its caller
        return len(self._pending()) < 2 * most

    def _pending(self) -> "list[_PeerConnection]":
        with self._lock:
            every = list(self._connections.values())
        # a connection without a thread is the newest one, which `_accept` still works on
        return [conn for conn in every if conn.peer is None and conn.thread.ident is not None]

    def _admit(self, stream: Stream, patience: Callable[[], float]) -> Hello:
        steps = admit(stream, self.security, self.max_ask_bytes, self.incarnation)
        hello: Hello = drive(steps, stream, patience)
        return hello

    # --- for the connections ------------------------------------------------------------------

    def refused(self, end: EndReason, who: str, why: str) -> None:
        """Count a refusal; log it at most once a minute."""
        with self._lock:
            self._refused[end.value] += 1
            self._unreported += 1
            if time.monotonic() - self._reported < _REPORT_EVERY_S:
                return
            self._reported, count, self._unreported = time.monotonic(), self._unreported, 0
        _log.warning(
            "%s refused %d connection(s), the last one from %s: %s", self.name, count, who, why
        )

    def admitted(self, connection: "_PeerConnection", peer: Peer) -> None:
        """Admit a caller; its requests on a former connection are over."""
        with self._lock:
            # under one lock: of two that come on a lane at the same time, one sees the other
            connection.peer = peer
            on_lane = [
                other
                for other in self._connections.values()
                if other.peer is not None and other.lane == connection.lane
            ]
        # All but the one accepted last, which may be another one: a thread can be late.
        for old in on_lane[:-1]:  # outside the lock, since a goodbye may have to wait
            old.dismiss(EndReason.REPLACED, farewell(EndReason.REPLACED, "a fresh one is there"))

    def forget(self, connection: "_PeerConnection") -> None:
        """Release a connection that is over."""
        connection.stream.shutdown()
        # out of the table before the descriptor is freed: `_accept` may get the same number at once
        with self._lock:
            self._connections.pop(connection.stream.sock.fileno(), None)
        connection.stream.close()


class _PeerConnection:
    """One caller's connection from its first byte to its last, in a thread of its own."""

    def __init__(self, listener: Listener, stream: Stream, address: str) -> None:
        self.stream, self.address, self.lane = stream, address, ""
        self.peer: Peer | None = None
        """None: it has not been admitted."""
        self.owes = False
        """Whether the caller waits for a response."""
        self.thread = new_thread(
            target=self._run,
            name=f"{listener.name} for {address}",
            on_death=nothing_hangs_on_it,  # its end closes the connection, which the caller sees
        )
        self._listener = listener
        self._wake = threading.Event()
        self._dismissed: EndReason | None = None

    # --- called by other threads --------------------------------------------------------------

    def hang_up(self) -> None:
        """Note that the caller closed the connection, or was killed."""
        if self.peer is not None:
            self.peer.gone.set()
        self._wake.set()

    def dismiss(self, end: EndReason, goodbye: bytes = b"", patience_s: float = 0.0) -> None:
        """End the connection."""
        self._dismissed = self._dismissed or end  # the first end given is the reason
        # a caller that is not admitted yet gets no goodbye: before TLS it would travel unencrypted
        self.stream.end(goodbye if self.peer else b"", patience_s)
        self.hang_up()

    # --- the handshake ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            hello = self._admit()
            if hello is not None:
                peer = Peer(one_line(hello.name, MOST_OF_NAME), self.address, hello.session)
                self.lane = hello.lane
                self._listener.admitted(self, peer)
                self._serve(peer)
        except Exception:
            _log.exception("%s: the connection with %s failed", self._listener.name, self.address)
        finally:
            self._listener.forget(self)

    def _admit(self) -> Hello | None:
        """Return the caller's description of itself; None: it was refused, or is gone."""
        deadline = time.monotonic() + self._listener.handshake_s
        try:
            return self._listener.admit(self.stream, lambda: _seconds_left(deadline))
        except JoinRefusedError as error:
            self._refuse(EndReason(error.end), str(error))
        except ConfigError as error:  # renewed certificates cannot be read
            self._refuse(EndReason.REFUSED_CERTIFICATE, str(error))
        except (EOFError, OSError) as error:
            if isinstance(error, _SilentError) or self._dismissed is EndReason.GONE:
                why = "it did not finish the handshake"
                self._listener.refused(EndReason.REFUSED_SLOW, self.address, why)
        return None

    def _refuse(self, end: EndReason, words: str) -> None:
        """Send the reason, then read to the end: else a reset would overtake the reason."""
        self._listener.refused(end, self.address, words)
        deadline = time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError):
            # if a certificate is the reason, TLS has sent its own alert
            if self._listener.says_goodbye and end is not EndReason.REFUSED_CERTIFICATE:
                self.stream.say(farewell(end, words))
            self.stream.sock.shutdown(socket.SHUT_WR)
            while self.stream.wait(select.POLLIN, _seconds_left(deadline)) & select.POLLIN:
                if not self.stream.sock.recv(1 << 16):
                    break

    # --- requests -----------------------------------------------------------------------------

    def _serve(self, peer: Peer) -> None:
        end = EndReason.GONE
        try:
            self._listener.on_peer(peer)
            end = self._serve_requests(peer)
        except _SilentError:
            end = EndReason.SILENT
        except (EOFError, OSError):
            end = self._last_words()
        except ProtocolError as error:
            end = EndReason.PROTOCOL
            self.stream.end(farewell(end, str(error)), 1.0)
        finally:
            peer.gone.set()
            self._listener.on_end(peer, self._dismissed or end)

    def _serve_requests(self, peer: Peer) -> EndReason:
        while True:
            # between two requests a caller may be silent for any time
            self.owes = False
            steps = read_frame(self.stream, self._listener.max_ask_bytes, on_head=self._begin)
            frame: Frame = drive(steps, self.stream, self._patience)
            if frame.kind is FrameKind.BYE:
                return decode(frame.body, [], Goodbye).end
            if frame.kind is not FrameKind.ASK:
                raise ProtocolError(f"{frame.kind.name} came where a request was due")
            if self._dismissed is None:  # else only read: unread bytes would reset our goodbye
                self._serve_request(frame, peer)

    def _begin(self) -> None:
        self.owes = True

    def _patience(self) -> float:
        """Return how long to sleep; a request that has begun must make progress."""
        if self.owes and time.monotonic() - self.stream.heard > self._listener.silence_s:
            raise _SilentError
        # without a pending response only events matter; 60 s bounds the cost of a missed one
        return 1.0 if self.owes else 60.0

    def _serve_request(self, frame: Frame, peer: Peer) -> None:
        try:
            views = pack(FrameKind.ANSWER, self._call(frame, peer))
        except EOFError:
            raise
        except Exception as error:
            if self._listener.closed:  # perhaps the reason, which the goodbye tells
                return
            views = pack(FrameKind.ERROR, describe(error))
        with self.stream.send_lock:
            nbytes = sum(view.nbytes for view in views)
            if nbytes < SMALL_BYTES:
                self._push(views, lambda: 1.0)
            else:
                self._push_in_turns(views, nbytes, peer)

    def _push_in_turns(self, views: list[memoryview], nbytes: int, peer: Peer) -> None:
        party = self._listener.party_of(peer)
        with self._listener.shares.sending(
            party, nbytes, self.stream.newly_acknowledged
        ) as sending:

            def look() -> float:
                sending.look()
                return LOOK_S if sending.turn_bytes else 1.0

            while views:
                may_send = sending.take()
                if may_send:
                    self.stream.keep_unsent(sending.turn_bytes)
                    self._push(cut_front(views, may_send), look)
                    sending.look()
                elif peer.gone.is_set():
                    raise EOFError("the caller is gone")

    def _push(self, views: list[memoryview], patience: Callable[[], float]) -> None:
        """Send all of ``views``; ``patience`` is called before each wait and returns its limit."""
        while not self.stream.push(views):
            # a caller may take any time to read while its machine acknowledges
            ready = self.stream.wait(select.POLLOUT, patience())
            if not ready and self.stream.vanished(self._listener.silence_s):
                raise _SilentError

    def _call(self, frame: Frame, peer: Peer) -> Any:
        method = self._listener.table.get(frame.method)
        if method is None:
            raise ProtocolError(f"{self._listener.name} has no method {frame.method[:100]!r}")
        request = decode(frame.body, frame.arrays, method.request)
        answer = method.handler(request, peer)
        return self._await(answer, peer) if isinstance(answer, Future) else answer

    def _await(self, future: "Future[Any]", peer: Peer) -> Any:
        # one event for two causes: the response is there, or the accepting thread saw a hang-up
        future.add_done_callback(lambda _: self._wake.set())
        while not future.done():
            self._wake.wait(60.0)
            self._wake.clear()  # before looking at both: a cause that comes later sets it again
            if peer.gone.is_set() and not future.done():
                future.cancel()
                raise EOFError("the caller is gone")
        return future.result()

    def _last_words(self) -> EndReason:
        """Return the end that the caller named before it hung up, if any."""
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            for _ in range(1000):  # skips requests that nobody waits for any more
                steps = read_frame(self.stream, self._listener.max_ask_bytes)
                frame: Frame = drive(steps, self.stream, lambda: _seconds_left(0.0))
                if frame.kind is FrameKind.BYE:
                    return decode(frame.body, [], Goodbye).end
        return EndReason.GONE


def _end_slowest(pending: list[_PeerConnection], count: int) -> None:
    """End the handshakes that have made no progress for the longest time."""
    slowest = sorted(pending, key=lambda connection: connection.stream.heard)[:count]
    deadline = time.monotonic() + 0.1
    for connection in slowest:
        connection.dismiss(
            EndReason.GONE
        )  # not a refusal: if it was admitted just now, it comes back
    for connection in slowest:  # mostly their descriptors and threads are free at once
        connection.thread.join(max(0.0, deadline - time.monotonic()))


class _SilentError(TimeoutError):
    """Nothing was heard from a caller for longer than the limit."""


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _SilentError
    return left
