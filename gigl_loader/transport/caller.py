"""Asks a listener's methods, on one connection that is replaced when it is lost.

Questions may be asked while earlier ones are unanswered; answers come in order. There is no thread:
whoever waits for an answer reads, for all. A connection that was lost is replaced, and what is
unanswered is asked again, in order, so every method must bear being asked twice. What happens when:

===================================  ===========================================================
the peer                             the caller
===================================  ===========================================================
closes, or resets the connection     connects again at once
refuses the connection               gives up: its process is gone
says goodbye                         gives up: it will not answer
is silent for two seconds            connects afresh, again and again; the first to get in counts
is silent for ``patience_s``         gives up
===================================  ===========================================================

Only the silence of a peer that owes an answer counts: it would say each second that it lives.
"""

import os
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from gigl_loader.errors import (
    GiglLoaderError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
)
from gigl_loader.transport import addresses
from gigl_loader.transport.codec import Array, ArraySpec, decode, empty_arrays
from gigl_loader.transport.ends import End
from gigl_loader.transport.handshake import Goodbye, farewell
from gigl_loader.transport.link import HANDSHAKE_S, SLICE_S, Link, dial
from gigl_loader.transport.reply import Into, Reply
from gigl_loader.transport.security import Security
from gigl_loader.transport.stream import (
    SILENCE_S,
    TICK_S,
    Frame,
    Kind,
    pack,
    read_frame,
)

T = TypeVar("T")

SUSPECT_S = 2.0
"""Silence after which fresh connections are tried; who owes an answer speaks each second."""
MAX_ANSWER_BYTES = 64 << 30
"""The most that the arrays of one answer may hold."""
_DIAL_S = 0.5  # one attempt while the peer is silent: a lost first packet is sent again after 1 s
_GRACE_S = 0.75  # of patience, for the last attempt: a peer was last heard up to 1 s before a cut
_FRUITLESS = 5
# Connections in a row that were admitted and then lost before anything was heard. A bad network
# does that for a while; where it lasts longer than the patience, the listener ends each time.


class Caller:
    """Asks the listener at one address; safe in any thread.

    Nothing is sent before the first question or `connect`. Arrays in a question must not be changed
    before it is answered: it may have to be asked again.

    Args:
        address: Address or name of the listener.
        port: Port of the listener.
        security: Has to match the listener's.
        name: What this side calls itself.
        patience_s: How long an outage of the network may last, in seconds, and with it the silence
            of a peer that owes an answer.
        what: What is at the other end, for errors.
        session: Who this side is to the listener's owner, beyond one connection; callers of one
            process may share one. None: random.
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
    ) -> None:
        self._target, self._security, self._name = (address, port), security, name
        self._patience_s = patience_s
        self._addresses: list[tuple[int, addresses.Address]] = []
        self.what = f"{what} at {address}:{port}"
        self.session = session or secrets.token_hex(16)
        self._reset()

    def _reset(self) -> None:
        """Start with no connection: at first, and in a fork, where all of it is the parent's."""
        self._pid, self._lane = os.getpid(), secrets.token_hex(8)
        self._link: Link | None = None
        self._unanswered: deque[Reply[Any]] = deque()
        self._heard = time.monotonic()
        self._fruitless, self._fruitless_since = 0, 0.0
        self._closed: GiglLoaderError | None = None
        # order of locks: the reader's role, then _sending, then _state
        self._state = threading.Condition()
        self._sending = (
            threading.Lock()
        )  # held for a whole question, and while one link replaces another
        self._reading = False  # the role of who reads; handed on under _state

    # --- asking -------------------------------------------------------------------------------

    def ask(
        self, method: str, request: object, answer_type: type[T], *, into: Into | None = None
    ) -> Reply[T]:
        """Send a question; does not wait for the answer.

        Waits while the peer takes no bytes. A lost connection shows in `Reply.wait`.

        Args:
            method: Name in the listener's table.
            request: What its handler gets.
            answer_type: What it returns.
            into: Given what the arrays of the answer look like, returns the memory to receive
                them into: arrays, contiguous, each with exactly that type and shape. Called by
                the thread that reads, and again if the connection is lost meanwhile.

        Raises:
            ProtocolError: The request cannot travel, or is larger than the listener takes.
            PeerLostError: This side has closed the caller.
        """
        if os.getpid() != self._pid:
            self._reset()
        reply: Reply[T] = Reply(self, method, pack(Kind.ASK, request, method), answer_type, into)
        with self._sending:
            with self._state:
                if self._closed is not None:
                    raise _again(self._closed)
                if not self._unanswered:
                    self._heard = time.monotonic()  # before, the peer had nothing to say
                self._unanswered.append(reply)
            link = self._link
            if link is None or link.broken:
                self._try_to_connect()  # sends all that is unanswered
            else:
                self._check_size(link, reply)
                self._send(link, reply)
        self._release_if_closed()
        return reply

    def _try_to_connect(self) -> None:
        """Connect for a question, if that works at once; else whoever waits sees to it."""
        role = self._take_role()
        if role:
            try:
                self._adopt(self._dial(time.monotonic() + _DIAL_S))
            except (OSError, EOFError):
                pass
            except GiglLoaderError as error:
                self._fail_all(error)
            finally:
                self._leave_role()

    def _check_size(self, link: Link, reply: Reply[Any]) -> None:
        size = sum(view.nbytes for view in reply.views)
        if size > link.max_ask_bytes + (2 << 20):
            with self._state:
                self._unanswered.remove(reply)
            raise ProtocolError(
                f"a question to {self.what} ({reply.method}) has {size} bytes; it takes "
                f"{link.max_ask_bytes}: split the input, or raise the listener's max_ask_bytes"
            )

    def _send(self, link: Link, reply: Reply[Any], *, role: bool = False) -> None:
        """Send one question; reads meanwhile, since the peer may be blocked by an answer to us."""
        views = list(reply.views)
        try:
            with link.stream.send_lock:
                while not link.stream.push(views):
                    self._wait_to_send(link, role)
        except (EOFError, OSError):
            link.lose()  # whoever waits for the answer replaces it

    def _wait_to_send(self, link: Link, role: bool) -> None:
        mine = role or self._take_role()
        try:
            events = select.POLLOUT | (select.POLLIN if mine else 0)
            ready = link.stream.wait(events, SLICE_S)
            if mine and ready & ~select.POLLOUT:
                self._read(link)
        finally:
            if mine and not role:
                self._leave_role()
        if not ready and self._silent_s(link) > self._patience_s:
            raise OSError("the peer takes no bytes and is silent")

    # --- waiting ------------------------------------------------------------------------------

    def wait_for(self, reply: Reply[Any], timeout_s: float | None) -> None:
        """Return once ``reply`` is done; for `Reply`.

        Raises:
            PeerTimeoutError: It was not, in time.
        """
        deadline = time.monotonic() + (timeout_s if timeout_s is not None else 1e9)
        while not reply.done:
            if os.getpid() != self._pid:
                raise PeerLostError(f"{self.what} was asked before a fork", End.CLOSED)
            if self._take_role(deadline):
                try:
                    self._read_until(reply, deadline)
                finally:
                    self._leave_role()
                    self._release_if_closed()
            if not reply.done and time.monotonic() >= deadline:
                raise PeerTimeoutError(
                    f"{self.what} did not answer {reply.method!r} within {timeout_s:.1f} s; it is "
                    "alive, so it is busy: see its log, or raise the timeout"
                )

    def _take_role(self, until: float = 0.0) -> bool:
        """Become the one that reads; waits for that, or any answer, no longer than ``until``."""
        with self._state:
            if self._reading and until:
                self._state.wait(max(0.0, min(until - time.monotonic(), 60.0)))
            if self._reading:
                return False
            self._reading = True
            return True

    def _leave_role(self) -> None:
        with self._state:
            self._reading = False
            self._state.notify_all()

    def _read_until(self, reply: Reply[Any], deadline: float) -> None:
        """Read, and keep a connection up, until ``reply`` is done or time is up. Has the role."""
        while not reply.done:
            if self._closed is not None:
                self._fail_all(self._closed)
            elif self._link is None or self._link.broken:
                self._replace(deadline)
            elif not self._read(self._link):
                self._wait_to_read(self._link, deadline)
            if time.monotonic() >= deadline:
                return

    def _read(self, link: Link) -> bool:
        """Take what came; True if that was a whole frame. Has the role."""
        try:
            frame = self._next_frame(link)
            if frame is not None:
                self._take(link, frame)
            return frame is not None
        except (EOFError, OSError):
            link.lose()
        except ProtocolError as error:
            self._break_off(link, error)
        return False

    def _next_frame(self, link: Link) -> Frame | None:
        """Return a frame, or None where more bytes have to come; a later call goes on."""
        if link.steps is None:
            link.steps = read_frame(link.stream, MAX_ANSWER_BYTES, self._room)
        try:
            next(link.steps)
        except StopIteration as done:
            link.steps = None
            frame: Frame = done.value
            return frame
        return None

    def _room(self, specs: list[ArraySpec]) -> list[Array]:
        """Return the memory for the arrays of the next answer."""
        with self._state:
            reply = self._unanswered[0] if self._unanswered else None
        return empty_arrays(specs) if reply is None else reply.room(specs)

    def _take(self, link: Link, frame: Frame) -> None:
        link.heard_anything, self._fruitless = True, 0
        if frame.kind is Kind.ALIVE:
            return
        if frame.kind is Kind.BYE:
            self._dismissed(link, decode(frame.body, [], Goodbye))
            return
        with self._state:
            reply = self._unanswered.popleft() if self._unanswered else None
        if reply is None or frame.kind not in (Kind.ANSWER, Kind.ERROR):
            self._break_off(link, ProtocolError(f"{frame.kind.name} came from {self.what} unasked"))
            return
        reply.take(frame, self.what)
        with self._state:
            self._state.notify_all()

    def _dismissed(self, link: Link, goodbye: Goodbye) -> None:
        link.lose()
        if goodbye.end is End.PROTOCOL:
            self._fail_all(ProtocolError(f"{self.what} did not understand: {goodbye.words}"))
        elif goodbye.end not in (End.REFUSED_BUSY, End.REPLACED):
            text = f"{self.what} ended the connection ({goodbye.end.value}): {goodbye.words}"
            self._fail_all(PeerLostError(text, goodbye.end))

    def _break_off(self, link: Link, error: ProtocolError) -> None:
        link.stream.end(farewell(Kind.BYE, End.PROTOCOL, str(error)))
        link.lose()
        self._fail_all(ProtocolError(f"{self.what}: {error}"))

    def _wait_to_read(self, link: Link, deadline: float) -> None:
        if link.broken:
            return
        try:
            if link.stream.wait(select.POLLIN, min(SLICE_S, deadline - time.monotonic())):
                return
        except OSError:
            link.lose()
            return
        silent_s = self._silent_s(link)
        if silent_s > self._patience_s + _GRACE_S:
            self._give_up(End.SILENT, f"nothing was heard for {silent_s:.1f} s")
        elif silent_s > self._patience_s:
            link.lose()
        elif silent_s > max(1.5 * TICK_S, min(SUSPECT_S, self._patience_s / 2)):
            self._try(self._attempt_until(deadline))

    def _silent_s(self, link: Link | None) -> float:
        if link is not None:
            self._heard = max(self._heard, link.stream.heard)
        return time.monotonic() - self._heard

    # --- connections --------------------------------------------------------------------------

    def connect(self, deadline: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Connect now, so that the listener knows this caller.

        Args:
            deadline: Until when a silent network is tried again (`time.monotonic`).
            on_wait: Also wait for a listener that has not been started yet; called before each
                pause with what went wrong last.

        Raises:
            PeerLostError: Nothing listens there, and ``on_wait`` was not given.
            PeerTimeoutError: It did not come up by the deadline.
            JoinRefusedError: One side does not want the other; ``end`` tells why.
            ConfigError: The address is not one.
        """
        if os.getpid() != self._pid:
            self._reset()
        nap, started = 0.05, time.monotonic()
        while self._link is None or self._link.broken:
            try:
                with self._sending:
                    self._adopt(self._dial(min(deadline, time.monotonic() + HANDSHAKE_S)))
            except (OSError, EOFError) as error:
                why = str(error) or "it closed the connection"
                if isinstance(error, ConnectionRefusedError) and on_wait is None:
                    raise PeerLostError(f"{self.what}: nothing listens there", End.GONE) from error
                if time.monotonic() + nap > deadline:
                    waited = time.monotonic() - started
                    text = f"{self.what} did not come up within {waited:.0f} s (last: {why})"
                    raise PeerTimeoutError(
                        f"{text}: see its log, check address, port and firewall"
                    ) from error
                if on_wait is not None:
                    on_wait(why)
                time.sleep(nap)
                nap = min(nap * 1.5, 1.0)

    def _dial(self, deadline: float) -> Link:
        """Return a fresh connection that was admitted; see `dial`."""
        # once: in an outage the name server is out of reach too
        self._addresses = self._addresses or addresses.resolve(*self._target)

        def refuse_if_closed() -> None:
            if self._closed is not None:
                raise _again(self._closed)

        who = (self._name, self.session, self._lane)
        return dial(self._addresses, self._security, who, self.what, deadline, refuse_if_closed)

    def _adopt(self, link: Link) -> None:
        """Use ``link`` from here on and ask again what is unanswered. Has ``_sending``."""
        former, self._link, self._heard = self._link, link, time.monotonic()
        if former is not None:
            former.lose()
            former.stream.close()
        with self._state:
            again = list(self._unanswered)
        for reply in again:
            if not reply.done and not link.broken:
                self._send(link, reply, role=True)

    def _attempt_until(self, deadline: float) -> float:
        """Return when one attempt to connect has to be over."""
        given_up = self._heard + self._patience_s + _GRACE_S
        return max(time.monotonic() + 0.05, min(deadline, time.monotonic() + _DIAL_S, given_up))

    def _try(self, until: float) -> None:
        started = time.monotonic()
        try:
            fresh = self._dial(until)
        except ConnectionRefusedError:
            self._give_up(End.GONE, "its process is gone: nothing listens there any more")
        except (OSError, EOFError):
            time.sleep(max(0.0, min(until, started + 0.1) - time.monotonic()))
        except GiglLoaderError as error:
            self._fail_all(error)
        else:
            if self._link is not None:
                self._link.lose()  # whoever sends into it lets go
            with self._sending:
                self._adopt(fresh)

    def _replace(self, deadline: float) -> None:
        """Connect again after a connection was lost. Has the role."""
        former = self._link
        if former is not None and not former.heard_anything:
            self._fruitless_since = self._fruitless_since if self._fruitless else time.monotonic()
            self._fruitless += 1
        if former is not None:
            former.heard_anything = True  # counted once
        silent_s = self._silent_s(former)
        fruitless_s = time.monotonic() - self._fruitless_since
        if self._fruitless > _FRUITLESS and fruitless_s > self._patience_s:
            self._give_up(End.GONE, "it lets this side in and then drops the connection")
        elif silent_s > self._patience_s + _GRACE_S:
            self._give_up(End.SILENT, f"it could not be reached for {silent_s:.1f} s")
        else:
            if self._fruitless > _FRUITLESS:
                time.sleep(0.1)  # it would be dialled as fast as it drops
            self._try(self._attempt_until(deadline))

    def _give_up(self, end: End, why: str) -> None:
        self._fail_all(PeerLostError(f"{self.what} is lost ({end.value}): {why}", end))

    def _fail_all(self, error: GiglLoaderError) -> None:
        with self._state:
            failed, self._unanswered = list(self._unanswered), deque()
            self._fruitless = 0
            if self._link is not None:
                self._link.lose()  # its answers would be taken for those to later questions
            for reply in failed:
                reply.fail(_again(error))
            self._state.notify_all()

    # --- the end ------------------------------------------------------------------------------

    def close(self, end: End = End.SHUTDOWN, words: str = "") -> None:
        """Say goodbye and wake all who wait. Idempotent, from any thread."""
        if os.getpid() != self._pid:
            self._reset()
        with self._state:
            if self._closed is None:
                self._closed = PeerLostError(f"{self.what}: closed on this side", End.CLOSED)
            link = self._link
        if link is not None:
            link.stream.end(farewell(Kind.BYE, end, words or f"{self._name} is done"))
            link.broken = True
        self._fail_all(self._closed)
        self._release_if_closed()

    def _release_if_closed(self) -> None:
        """Release the descriptor, once nobody is in a call on it: the last one to leave does."""
        if self._closed is None or not self._take_role():
            return
        try:
            if self._link is not None and self._sending.acquire(blocking=False):
                self._link.stream.close()
                self._sending.release()
        finally:
            self._leave_role()

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _again(error: GiglLoaderError) -> GiglLoaderError:
    """Return a copy, so that each thread that raises it has a traceback of its own."""
    return type(error)(*error.args)
