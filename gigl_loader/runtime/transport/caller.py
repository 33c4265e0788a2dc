"""Calls a listener's methods, on one connection that is replaced when it is lost.

Requests may be sent while earlier ones are pending; responses come in order. There is no thread:
a thread that waits for a response reads for all. A lost connection is replaced, and pending
requests are sent again in order, so every method must tolerate a repeated request. The cases:

===================================  ===========================================================
the peer                             the caller
===================================  ===========================================================
closes, or resets the connection     connects again at once
refuses the connection               gives up: its process has ended
is another process than before       gives up: no request is repeated to a stranger
says goodbye                         gives up: it will not answer
is silent for two seconds            counts the connection as lost, and connects again
is silent for ``patience_s``         gives up
===================================  ===========================================================

Silence counts only while the peer owes a response, since it then reports each second that it is
alive, and only while this side reads: a job that is suspended and resumed loses no healthy peer.
"""

import contextlib
import math
import os
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
)
from gigl_loader.runtime.transport import sockets
from gigl_loader.runtime.transport.codec import (
    MAX_HEADER_BYTES,
    Array,
    IncomingArray,
    decode,
    empty_arrays,
)
from gigl_loader.runtime.transport.failures import EndReason, fresh_copy, one_line
from gigl_loader.runtime.transport.handshake import Admitted, Goodbye, farewell, join
from gigl_loader.runtime.transport.reply import Into, Reply
from gigl_loader.runtime.transport.security import Security
from gigl_loader.runtime.transport.sockets import open_closed_in_forks
from gigl_loader.runtime.transport.stream import (
    SILENCE_S,
    TICK_S,
    Frame,
    FrameKind,
    Steps,
    Stream,
    drive,
    pack,
    read_frame,
)

T = TypeVar("T")

MAX_ANSWER_BYTES = 64 << 30
"""Most bytes of arrays in one response. The kernel provides pages as bytes arrive, not before."""
_SUSPECT_S = 2.0  # of silence: the connection counts as lost; a peer that owes speaks each second
_DIAL_S = 0.5  # for one attempt at a silent peer: TCP would repeat a lost first packet after 1 s
_HANDSHAKE_S = 3.0  # for a listener that has begun the handshake
_GRACE_S = 0.75  # added for the last attempt: the peer was last heard up to 1 s before the cut
_SLICE_S = 0.25  # longest sleep between two looks at the state
_STOOD_STILL_S = 1.0  # a longer gap between two looks: this process was suspended, or none waited
_COUNTED_S = 0.5  # what of such a gap counts as silence: this side ran briefly and heard nothing


class _Connection:
    """A connection that the listener has admitted."""

    def __init__(self, stream: Stream, max_ask_bytes: int) -> None:
        self.stream, self.max_ask_bytes = stream, max_ask_bytes
        self.steps: Steps | None = None
        """Generator that reads the next frame, paused in its middle; None: it has not begun."""
        self.broken, self.since = False, time.monotonic()

    def lose(self) -> None:
        """Give the connection up, and wake all threads that wait on it."""
        self.broken = True
        self.stream.shutdown()


class Caller(AbstractContextManager["Caller"]):
    """Sends requests to the listener at one address; safe in any thread.

    Nothing is sent before the first request or `connect`. Do not change the arrays of a request
    before its response has come: it may have to be sent again.

    Args:
        address: Address or name of the listener.
        port: Port of the listener.
        security: Authentication and encryption; has to match the listener's.
        name: Name of this side, for the listener's log.
        patience_s: How long an outage of the network may last, in seconds, and with it the silence
            of a peer that owes a response.
        what: Description of the other end, for errors.
        session: Identity of this side for the listener's owner, on all connections; callers of one
            process may share one. None: random.
        incarnation: Identity of the process to call, from ``incarnation`` of another caller; 0: the
            process that admits this caller first. No other process ever gets a request.
    """

    def __init__(
        self,
        address: str,
        port: int,
        security: Security,
        name: str,
        *,
        patience_s: float = SILENCE_S,
        what: str = "peer",
        session: str | None = None,
        incarnation: int = 0,
    ) -> None:
        self.incarnation = incarnation
        """Identity of the listener's process; 0: not known yet."""
        self._target, self._security, self._name = (address, port), security, name
        self._patience_s = patience_s
        self._addresses: list[tuple[int, sockets.Address]] = []
        self.what = f"{what} at {address}:{port}"
        self.session = session or secrets.token_hex(16)
        self._reset()

    def _reset(self) -> None:
        """Start without a connection: in the constructor, and in a fork, as the parent owns it."""
        self._pid, self._lane = os.getpid(), secrets.token_hex(8)
        self._connection: _Connection | None = None
        self._unanswered: deque[Reply[Any]] = deque()
        self._heard = self._looked = time.monotonic()
        self._fruitless = 0  # connections in a row on which nothing was heard
        self._closed: GiglLoaderError | None = None
        # Order of locks: the role, then _sending, then _state. A sender takes _sending
        # first, and therefore takes the role only if no thread has it.
        self._state = threading.Condition()
        # held for a whole request, and while a connection is replaced
        self._sending = threading.RLock()
        self._reader: int | None = None  # the thread with the role: it alone reads and connects

    # --- sending ------------------------------------------------------------------------------

    def ask(
        self,
        method: str,
        request: object,
        answer_type: type[T],
        *,
        into: Into | None = None,
        timeout_s: float = math.inf,
    ) -> Reply[T]:
        """Send a request; does not wait for the response.

        Waits while the peer takes no bytes. `Reply.wait` deals with a connection that is lost.

        Args:
            method: Name in the listener's table.
            request: The handler's argument.
            answer_type: Type of the handler's result.
            into: Given types and shapes of the response's arrays, returns the memory to receive
                them into: arrays, contiguous, each with exactly that type and shape. Called by
                the thread that reads, and again if the connection is lost meanwhile.
            timeout_s: How long a live peer may take no bytes, in seconds; then the connection
                counts as lost, and `Reply.wait` sends the request again on a fresh one.

        Raises:
            ProtocolError: The request cannot travel, or is larger than the listener takes.
            PeerLostError: This side has closed the caller.
        """
        if os.getpid() != self._pid:
            self._reset()
        # outside of all locks: encoding may take long, or raise
        views = pack(FrameKind.ASK, request, method)
        reply: Reply[T] = Reply(self._wait_for, method, views, answer_type, into)
        # one lock for appending and sending: responses are matched to requests by their order
        with self._sending:
            connection = self._connection
            if connection is not None:
                self._check_request_size(reply, connection.max_ask_bytes)
            with self._state:
                if self._closed is not None:
                    raise fresh_copy(self._closed)
                if not self._unanswered:
                    self._heard = time.monotonic()  # until now the peer owed nothing
                self._unanswered.append(reply)
            if connection is not None and not connection.broken:
                self._send(connection, reply, time.monotonic() + timeout_s)
            else:
                with self._reading_turn() as mine:
                    if mine:  # else the thread that reads connects, and sends all that is pending
                        now = time.monotonic()
                        self._redial_or_give_up(now + _DIAL_S, now + timeout_s)
        self._release_if_closed()
        return reply

    def _check_request_size(self, reply: Reply[Any], most: int) -> None:
        """Raise `ProtocolError` if a request has more bytes than the listener takes."""
        size = sum(view.nbytes for view in reply.views)
        # `most` limits the arrays; headers have a limit of their own
        if size > most + 2 * MAX_HEADER_BYTES:
            raise ProtocolError(
                f"a request to {self.what} ({reply.method}) has {size} bytes; it takes {most}: "
                "split the input, or raise the listener's max_ask_bytes"
            )

    def _send(self, connection: _Connection, reply: Reply[Any], until: float) -> None:
        """Send one request; reads meanwhile, since the peer may be blocked sending us a response.

        The connection is given up if the request is not sent by ``until``.
        """
        views = list(reply.views)  # `push` empties this list; the reply keeps its own for a repeat
        try:
            with connection.stream.send_lock:
                while not connection.stream.push(views):
                    self._wait_to_send(connection)
                    if time.monotonic() > until:
                        raise TimeoutError("the peer takes no bytes, though it lives")
        except (EOFError, OSError):
            connection.lose()  # the thread that waits for the response replaces it

    def _wait_to_send(self, connection: _Connection) -> None:
        with self._reading_turn() as mine:
            ready = connection.stream.wait(
                select.POLLOUT | (select.POLLIN if mine else 0), _SLICE_S
            )
            if mine and ready & ~select.POLLOUT:
                self._read(connection)
        if not ready and self._silent_s(connection) > self._patience_s:
            raise OSError("the peer takes no bytes and is silent")

    # --- waiting ------------------------------------------------------------------------------

    def _wait_for(self, reply: Reply[Any], timeout_s: float | None) -> None:
        """Return once ``reply`` is done.

        Raises:
            PeerTimeoutError: It was not done within ``timeout_s``.
        """
        deadline = time.monotonic() + (timeout_s if timeout_s is not None else 1e9)
        while not reply.done:
            if os.getpid() != self._pid:
                raise PeerLostError(f"{self.what} was asked before a fork", EndReason.CLOSED)
            with self._reading_turn(deadline) as mine:
                while mine and not reply.done:
                    self._do_next_step(deadline)
                    if time.monotonic() >= deadline:
                        break  # leaving the role lets another waiting thread read on
            self._release_if_closed()
            if not reply.done and time.monotonic() >= deadline:
                raise PeerTimeoutError(
                    f"{self.what} did not answer {reply.method!r} within {timeout_s:.1f} s; it is "
                    "alive, so it is busy: see its log, or raise the timeout"
                )

    @contextlib.contextmanager
    def _reading_turn(self, until: float = 0.0) -> Iterator[bool]:
        """Try to become the reader; waits until ``until`` for the role or for any response."""
        me = threading.get_ident()
        with self._state:
            if self._reader not in (None, me) and until:
                # woken by each response and each time the role becomes free
                self._state.wait(max(0.0, min(until - time.monotonic(), 60.0)))
            former = self._reader
            if former is None:
                self._reader = me
        try:
            yield self._reader == me
        finally:
            if former is None:  # else this thread had the role before, and keeps it
                with self._state:
                    self._reader = None
                    self._state.notify_all()

    def _do_next_step(self, deadline: float) -> None:
        """Do the next step towards a response. The caller has the role."""
        connection = self._connection
        if self._closed is not None:
            self._fail_all(self._closed)
        elif connection is None or connection.broken:
            self._redial_or_give_up(deadline, deadline)
        elif not self._read(connection) and not connection.broken:
            self._wait_to_read(connection, deadline)

    def _read(self, connection: _Connection) -> bool:
        """Read arrived bytes; True if they complete a frame. The caller has the role."""
        connection.steps = connection.steps or read_frame(
            connection.stream, MAX_ANSWER_BYTES, self._room
        )
        try:
            try:
                next(connection.steps)  # a later call continues where this one stops
            except StopIteration as whole:
                connection.steps = None
                self._take(connection, whole.value)
                return True
        except (EOFError, OSError):
            connection.lose()
        except ProtocolError as error:
            self._break_off(connection, error)
        return False

    def _room(self, specs: list[IncomingArray]) -> list[Array]:
        """Return the memory for the arrays of the next response."""
        with self._state:
            reply = self._unanswered[0] if self._unanswered else None
        return empty_arrays(specs) if reply is None else reply.room(specs)

    def _take(self, connection: _Connection, frame: Frame) -> None:
        if frame.kind is FrameKind.ALIVE:
            return
        if frame.kind is FrameKind.BYE:
            self._dismissed(connection, decode(frame.body, [], Goodbye))
            return
        with self._state:
            reply = self._unanswered.popleft() if self._unanswered else None
        if reply is None or frame.kind not in (FrameKind.ANSWER, FrameKind.ERROR):
            raise ProtocolError(f"{frame.kind.name} came unasked")
        reply.take(frame, self.what)
        with self._state:
            self._state.notify_all()

    def _dismissed(self, connection: _Connection, goodbye: Goodbye) -> None:
        connection.lose()
        words = one_line(goodbye.words)
        if goodbye.end is EndReason.PROTOCOL:
            self._fail_all(ProtocolError(f"{self.what} did not understand: {words}"))
        elif goodbye.end is not EndReason.REPLACED:
            text = f"{self.what} ended the connection ({goodbye.end.value}): {words}"
            self._fail_all(PeerLostError(text, goodbye.end))

    def _break_off(self, connection: _Connection, error: ProtocolError) -> None:
        # so that the other side's log says why, too
        connection.stream.end(farewell(EndReason.PROTOCOL, str(error)))
        connection.lose()
        self._fail_all(ProtocolError(f"{self.what}: {error}"))

    def _wait_to_read(self, connection: _Connection, deadline: float) -> None:
        if connection.stream.wait(select.POLLIN, min(_SLICE_S, deadline - time.monotonic())):
            return
        # not before one sign of life is missing, and with short patience in time for two attempts
        limit = max(1.5 * TICK_S, min(_SUSPECT_S, self._patience_s / 2))
        if self._silent_s(connection) > min(limit, self._patience_s):
            # After a cut this connection would recover late, as its retransmission timer has
            # doubled. It is closed once the next one is up, so the listener sees a replacement.
            connection.broken = True

    def _silent_s(self, connection: _Connection | None) -> float:
        """Return how long nothing was heard; a fresh connection gets time for its first response.

        Once a connection has been lost without a word, bytes of the next handshake no longer count:
        a listener may admit this side and drop it, again and again.
        """
        if connection is not None and connection.stream.heard > connection.since:
            self._heard = max(self._heard, connection.stream.heard)
        self._note_standstill()
        since = 0.0 if connection is None or connection.broken else connection.since
        return time.monotonic() - max(self._heard, since)

    def _note_standstill(self) -> None:
        """Count little of the time since the last look as silence if this side stood still.

        Not none of it: a starved process stands still again and again, and must give up a dead peer
        as well, though later.
        """
        now = time.monotonic()
        gap = now - self._looked
        if gap > _STOOD_STILL_S:
            self._heard = min(now, self._heard + gap - _COUNTED_S)
        self._looked = now

    # --- connections --------------------------------------------------------------------------

    def connect(self, deadline: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Connect now, so that the listener knows this caller.

        Args:
            deadline: When to stop trying a silent network (`time.monotonic`).
            on_wait: If given, waits for a listener that has not been started yet too, or whose
                name has no address yet, and is called before each pause with the last error.

        Raises:
            PeerLostError: Nothing listens there and ``on_wait`` was not given, or another process
                than the intended one listens there.
            PeerTimeoutError: The listener did not come up by the deadline.
            JoinRefusedError: One side refused the other; ``end`` tells why.
            ConfigError: The address is invalid; without ``on_wait`` also if it has none now.
        """
        if os.getpid() != self._pid:
            self._reset()
        # pauses grow from 50 ms (a listener may be about to come up) to 1 s (hundreds may call)
        nap, started = 0.05, time.monotonic()
        while self._connection is None or self._connection.broken:
            try:
                with self._reading_turn(deadline) as mine, self._sending:
                    if not mine:
                        raise TimeoutError("another thread has tried all the time")
                    fresh = self._dial(min(deadline, time.monotonic() + _HANDSHAKE_S))
                    self._adopt(fresh, deadline)
            except (OSError, EOFError) as error:
                why = str(error) or "it closed the connection"
                # the name of a pod has no address while the pod is started somewhere else
                if isinstance(error, socket.gaierror) and on_wait is None:
                    raise ConfigError(why) from error
                if isinstance(error, ConnectionRefusedError) and on_wait is None:
                    raise PeerLostError(
                        f"{self.what}: nothing listens there", EndReason.GONE
                    ) from error
                if time.monotonic() + nap > deadline:
                    raise PeerTimeoutError(
                        f"{self.what} did not come up within {time.monotonic() - started:.0f} s "
                        f"(last: {why}): see its log, check address, port and firewall"
                    ) from error
                if on_wait is not None:
                    on_wait(why)
                time.sleep(nap)
                nap = min(nap * 1.5, 1.0)

    def _dial(self, deadline: float) -> _Connection:
        """Return a fresh connection to the first address that admits this caller.

        Raises:
            OSError, EOFError: No address admits it now.
            GiglLoaderError: The listener refused, or this side was closed.
        """
        # resolved once: in an outage the name server is out of reach too
        self._addresses = self._addresses or sockets.resolve_now(*self._target)
        failure: Exception = OSError("it has no address")
        for family, address in self._addresses:
            stream = Stream(
                open_closed_in_forks(partial(socket.socket, family, socket.SOCK_STREAM))
            )
            try:
                return self._join(stream, address, deadline)
            except BaseException as error:
                stream.shutdown()
                stream.close()
                if isinstance(error, GiglLoaderError) or not isinstance(error, OSError | EOFError):
                    raise
                failure = error
        raise failure

    def _join(self, stream: Stream, address: sockets.Address, deadline: float) -> _Connection:
        latest = max(deadline, time.monotonic() + _HANDSHAKE_S)

        def next_wait_s() -> float:
            """Return how long to wait next; raises if the time is over."""
            self._note_standstill()
            # a listener that has begun its greeting is alive but busy: it gets the whole time
            left = (latest if stream.first_bytes else deadline) - time.monotonic()
            if self._closed is not None:
                raise fresh_copy(self._closed)
            if left <= 0:
                raise TimeoutError("it did not answer the handshake")
            return min(left, _SLICE_S)

        stream.connect(address, next_wait_s)
        try:
            steps = join(stream, self._security, self._name, self.session, self._lane)
            admitted: Admitted = drive(steps, stream, next_wait_s)
        except JoinRefusedError as error:
            text = f"{self.what} and {self._name} do not let each other in: {error}"
            raise JoinRefusedError(text, error.end) from error
        # A freed port may go to another process, for which the pending requests are not meant. The
        # owner of this caller decides whether to begin again.
        if self.incarnation not in (0, admitted.incarnation):
            text = (
                f"{self.what} is lost ({EndReason.GONE.value}): another process listens there now"
            )
            raise PeerLostError(text, EndReason.GONE)
        self.incarnation = admitted.incarnation
        return _Connection(stream, admitted.max_ask_bytes)

    def _adopt(self, connection: _Connection, until: float) -> None:
        """Use ``connection`` from here on and repeat pending requests, under ``_sending``."""
        former, self._connection = self._connection, connection
        if former is not None:
            was_heard = former.stream.heard > former.since
            self._fruitless = 0 if was_heard else self._fruitless + 1
            former.lose()
            former.stream.close()
        with self._state:
            pending = list(self._unanswered)  # nobody can append meanwhile: that needs `_sending`
        for reply in pending:
            if not reply.done and not connection.broken:
                self._send(connection, reply, until)

    def _redial_or_give_up(self, deadline: float, until: float) -> None:
        """Dial once, or fail all pending requests if the peer seems lost.

        Only the thread whose reading turn it is calls this.

        Args:
            deadline: When to stop trying to connect.
            until: When to stop sending pending requests again.
        """
        silent_s = self._silent_s(connection := self._connection)
        if silent_s <= self._patience_s + _GRACE_S:
            # a pause, so that a listener that drops connections is not dialled in a busy loop
            if connection is not None:
                time.sleep(max(0.0, connection.since + 0.1 - time.monotonic()))
            self._dial_once(deadline, until)
        elif self._fruitless > 1:
            self._give_up(EndReason.GONE, "it lets this side in and then drops the connection")
        else:
            self._give_up(EndReason.SILENT, f"nothing was heard for {silent_s:.1f} s")

    def _dial_once(self, deadline: float, until: float) -> None:
        """Dial once, for a short time."""
        started = time.monotonic()
        given_up = self._heard + self._patience_s + _GRACE_S
        until = max(started + 0.05, min(deadline, started + _DIAL_S, given_up))
        try:
            # without `_sending`: a thread that is stuck in a send to a silent peer may hold it
            fresh = self._dial(until)
        except ConnectionRefusedError:  # the machine lives and says that nothing listens there
            self._give_up(EndReason.GONE, "its process is gone: nothing listens there")
        except (OSError, EOFError):
            # an error that comes at once (no route) must not turn this into a busy loop
            time.sleep(max(0.0, min(until, started + 0.1) - time.monotonic()))
        except GiglLoaderError as error:
            self._fail_all(error)
        else:
            if self._connection is not None:
                self._connection.lose()  # stops a thread that sends into it
            with self._sending:
                self._adopt(fresh, until)

    def _give_up(self, end: EndReason, why: str) -> None:
        self._fail_all(PeerLostError(f"{self.what} is lost ({end.value}): {why}", end))

    def _fail_all(self, error: GiglLoaderError) -> None:
        with self._state:
            failed, self._unanswered = list(self._unanswered), deque()
            if self._connection is not None:
                self._connection.lose()  # its responses would be taken for those to later requests
            for reply in failed:
                reply.end(fresh_copy(error))
            self._state.notify_all()

    # --- the end ------------------------------------------------------------------------------

    def close(self, end: EndReason = EndReason.SHUTDOWN, words: str = "") -> None:
        """Say goodbye and wake all waiting threads. Idempotent, from any thread."""
        if os.getpid() != self._pid:
            self._reset()
        with self._state:
            if self._closed is None:
                self._closed = PeerLostError(f"{self.what}: closed on this side", EndReason.CLOSED)
            connection = self._connection
        if connection is not None:
            connection.stream.end(farewell(end, words or f"{self._name} is done"))
            connection.broken = True
        self._fail_all(self._closed)
        self._release_if_closed()

    def _release_if_closed(self) -> None:
        """Release the descriptor once no thread is in a call on it; the last one to leave does."""
        if self._closed is None:
            return
        with self._reading_turn() as mine:
            if mine and self._connection is not None and self._sending.acquire(blocking=False):
                self._connection.stream.close()
                self._sending.release()

    def __exit__(self, *error: object) -> None:
        self.close()
