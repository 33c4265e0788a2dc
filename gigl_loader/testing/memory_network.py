"""Requests and responses without sockets, threads or real time: for tests and simulation.

All of it runs in one thread. `Reply.wait` moves a clock of its own from event to event, so an
outage of an hour takes no time and is always the same. Messages pass the same codec, so values that
cannot be sent are refused here too. A slow handler returns a future that it completes by
`Clock.call_later`.
"""

import heapq
import itertools
import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from gigl_loader.errors import (
    GiglLoaderError,
    JoinRefusedError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
)
from gigl_loader.runtime.transport import EndReason, Method, Peer, Security
from gigl_loader.runtime.transport.codec import Array, decode, encode, read_header
from gigl_loader.runtime.transport.failures import Failure, describe, rebuild
from gigl_loader.runtime.transport.listener import random_incarnation
from gigl_loader.runtime.transport.reply import Into

T = TypeVar("T")
_AGAIN_S = 0.5  # longest time from a cut to the new connection


class Clock:
    """Time that only moves while a caller waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._soon: deque[tuple[int, Callable[[], None]]] = deque()
        """Calls without delay, before time passes: most of a simulation."""
        # one count for both queues: the first scheduled is called first, also among equal times
        self._order = itertools.count()

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Schedule ``function`` after ``delay_s`` seconds."""
        if delay_s > 0.0:
            # the number decides between equal times: functions do not compare
            heapq.heappush(self._events, (self.now + delay_s, next(self._order), function))
        else:
            self._soon.append((next(self._order), function))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until ``done()``, or until the clock shows ``until``."""
        events, soon = self._events, self._soon
        while not done():
            # an event that is due now and was scheduled before the first of `soon` comes first
            if soon and not (events and events[0][0] <= self.now and events[0][1] < soon[0][0]):
                soon.popleft()[1]()
            elif events and events[0][0] <= until:
                self.now, _, function = heapq.heappop(events)
                function()
            else:
                break
        # no events are left: time passes anyway, as in a wait with a timeout
        if not done() and until < math.inf:
            self.now = max(self.now, until)


@dataclass
class _Path:
    """The network path from all other processes to one listener."""

    latency_s: float
    bytes_per_s: float
    cuts: list[tuple[float, float]]
    # Arrival time of the last data: the next has to wait behind it.
    free_at: float = 0.0


class MemoryNetwork:
    """Builds listeners and callers that meet in memory, with the interfaces of the real ones.

    Args:
        clock: None: a new one.
        latency_s: One way, in seconds.
        bytes_per_s: Of each path, for both directions together.
    """

    def __init__(
        self, clock: Clock | None = None, *, latency_s: float = 0.0, bytes_per_s: float = math.inf
    ) -> None:
        self.clock = clock or Clock()
        self._default = (latency_s, bytes_per_s)
        self._paths: dict[tuple[str, int], _Path] = {}
        self.listeners: dict[tuple[str, int], MemoryListener] = {}
        self._ports = itertools.count(20_000)

    def path(self, address: tuple[str, int]) -> _Path:
        """Return the path to ``address``."""
        # a path exists before its listener: cuts and limits are set before a test begins
        return self._paths.setdefault(address, _Path(*self._default, cuts=[]))

    def limit(self, address: tuple[str, int], latency_s: float, bytes_per_s: float) -> None:
        """Set the latency and bandwidth of the path to ``address``."""
        path = self.path(address)
        path.latency_s, path.bytes_per_s = latency_s, bytes_per_s

    def cut(self, address: tuple[str, int], start_s: float, length_s: float) -> None:
        """Block all data to and from ``address`` for ``length_s``, from ``start_s`` on."""
        self.path(address).cuts.append((start_s, start_s + length_s))

    def listener(
        self,
        address: str,
        port: int,
        security: Security,
        table: Mapping[str, Method],
        name: str,
        **options: Any,
    ) -> "MemoryListener":
        """Return the counterpart of ``Listener`` with the same arguments."""
        # free ports are never reused; a named port is taken over from a process that is gone
        where = (address, port or next(self._ports))
        return MemoryListener(self, where, security, table, name, **options)

    def caller(
        self, address: str, port: int, security: Security, name: str, **options: Any
    ) -> "MemoryCaller":
        """Return the counterpart of ``Caller`` with the same arguments."""
        return MemoryCaller(self, (address, port), security, name, **options)


class MemoryListener:
    """See `gigl_loader.runtime.transport.Listener`."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: tuple[str, int],
        security: Security,
        table: Mapping[str, Method],
        name: str,
        *,
        on_peer: Callable[[Peer], None] | None = None,
        on_end: Callable[[Peer, EndReason], None] | None = None,
        max_ask_bytes: int = 1 << 30,
        silence_s: float = 10.0,
        incarnation: int | None = None,
        party_of: Callable[[Peer], Hashable] | None = None,
    ) -> None:
        self.incarnation = incarnation or random_incarnation()
        self.address, self.security, self.name = address, security, name
        self.table, self.max_ask_bytes, self.silence_s = dict(table), max_ask_bytes, silence_s
        self._network = network
        self._on_peer, self._on_end = on_peer, on_end
        self.callers: list[MemoryCaller] = []
        self.refused: Counter[str] = Counter()

    def start(self) -> "MemoryListener":
        """Begin to admit callers."""
        self._network.listeners[self.address] = self
        return self

    def stats(self) -> dict[str, Any]:
        """Return the numbers of ``open``, ``pending`` and, by `EndReason`, ``refused`` callers."""
        return {"open": len(self.callers), "pending": 0, "refused": dict(self.refused)}

    def close(self, end: EndReason = EndReason.SHUTDOWN, words: str = "") -> None:
        """Tell all callers goodbye and stop."""
        self._leave()
        for caller in list(self.callers):
            text = f"{caller.what} ended the connection ({end.value}): {words or self.name}"
            caller.lose(PeerLostError(text, end))
            self.forget(caller, EndReason.CLOSED)

    def kill(self) -> None:
        """End like a killed process; its callers connect again to the next listener there."""
        self._leave()
        for caller in list(self.callers):
            self.forget(caller, EndReason.GONE)
            caller.reconnect()

    def _leave(self) -> None:
        # another process may already listen there
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]

    def admit(self, caller: "MemoryCaller", security: Security) -> Peer:
        """Return the caller as a peer; raises JoinRefusedError."""
        end = None
        # the mode first: without a common one, tokens would not be compared
        if security.mode is not self.security.mode:
            end = EndReason.REFUSED_MODE
        elif security.token != self.security.token:
            end = EndReason.REFUSED_TOKEN
        if end is not None:
            self.refused[end.value] += 1
            raise JoinRefusedError(f"{caller.what} refused {caller.name}: {end.value}", end)
        peer = Peer(caller.name, "memory", caller.session)
        self.callers.append(caller)
        if self._on_peer is not None:
            self._on_peer(peer)
        return peer

    def forget(self, caller: "MemoryCaller", end: EndReason) -> None:
        """End the connection of ``caller``."""
        if caller in self.callers and caller.peer is not None:
            self.callers.remove(caller)
            # before the callbacks: a caller that connects again is a new peer
            peer, caller.peer = caller.peer, None
            peer.gone.set()
            if self._on_end is not None:
                self._on_end(peer, end)

    def call(self, method_name: str, header: bytes, arrays: list[Array], peer: Peer) -> Any:
        """Return the result of the handler."""
        method = self.table.get(method_name)
        if method is None:
            raise ProtocolError(f"{self.name} has no method {method_name[:100]!r}")
        if sum(array.nbytes for array in arrays) > self.max_ask_bytes:
            raise ProtocolError(f"{self.name} takes requests of {self.max_ask_bytes} bytes")
        # decoded here too, so that a handler never sees the caller's own objects
        return method.handler(decode(read_header(header)[1], arrays, method.request), peer)


class MemoryReply(Generic[T]):
    """See `gigl_loader.runtime.transport.Reply`."""

    def __init__(
        self, caller: "MemoryCaller", method: str, request: object, expected: Any, into: Any
    ) -> None:
        self.method, self.done = method, False
        # now: an invalid value is an error of ask(), as with the real caller
        self.header, self.arrays = encode(request, method)
        self.size = len(self.header) + sum(array.nbytes for array in self.arrays)
        self._caller, self._expected, self._into = caller, expected, into
        self._value: Any = None
        self._error: BaseException | None = None

    def wait(self, timeout_s: float | None = None) -> T:
        """Return the response; lets time pass."""
        clock = self._caller.network.clock
        # there is one thread: while it waits, it runs the work of the others
        clock.run(clock.now + (math.inf if timeout_s is None else timeout_s), lambda: self.done)
        if not self.done:
            raise PeerTimeoutError(f"{self._caller.what} did not answer {self.method!r} in time")
        return self.result()

    def finish(self, header: bytes, arrays: list[Array], failed: bool) -> None:
        """Store the response."""
        self._finish(header, arrays, failed)
        self.ended()

    def _finish(self, header: bytes, arrays: list[Array], failed: bool) -> None:
        try:
            _, body, specs = read_header(header)
            if failed:
                self._error = rebuild(decode(body, arrays, Failure), self._caller.what)
                self.done = True
                return
            if self._into is not None and specs:
                # `into` provides the memory before the response is read, as with a socket
                targets = self._into(specs)
                for target, array in zip(targets, arrays, strict=True):
                    target[...] = array
                arrays = targets
            self._value, self.done = decode(body, arrays, self._expected), True
        except Exception as error:
            self._error, self.done = error, True

    def fail(self, error: BaseException) -> None:
        """End with ``error``."""
        self._error, self.done = error, True
        self.ended()

    def ended(self) -> None:
        """Register a callback for the response, or an error."""

    def result(self) -> T:
        """Return the response, which has arrived."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


class MemoryCaller(AbstractContextManager["MemoryCaller"]):
    """See `gigl_loader.runtime.transport.Caller`."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: tuple[str, int],
        security: Security,
        name: str,
        *,
        patience_s: float = 10.0,
        what: str = "peer",
        session: str | None = None,
        incarnation: int = 0,
    ) -> None:
        self.network, self.name, self.incarnation = network, name, incarnation
        self.peer: Peer | None = None
        self.what = f"{what} at {address[0]}:{address[1]}"
        self.session = session or secrets.token_hex(16)
        self._address, self._security, self._patience_s = address, security, patience_s
        self._unanswered: deque[MemoryReply[Any]] = deque()
        self._reply: type[MemoryReply[Any]] = MemoryReply
        self._round = 0  # number of the retry: callbacks of earlier ones are dropped
        self._closed = False

    def ask(
        self,
        method: str,
        request: object,
        answer_type: type[T],
        *,
        into: Into | None = None,
        timeout_s: float = math.inf,
    ) -> MemoryReply[T]:
        """Send a request; a peer in memory takes all bytes at once, for any ``timeout_s``."""
        if self._closed:
            raise PeerLostError(f"{self.what}: closed on this side", EndReason.CLOSED)
        reply: MemoryReply[T] = self._reply(self, method, request, answer_type, into)
        self._unanswered.append(reply)
        # one at a time: the next one begins when this one's response is stored
        if len(self._unanswered) == 1:
            self._ask_first()
        return reply

    def connect(self, deadline: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Connect now, or as soon as the listener is up; ``deadline`` is on the network's clock."""
        while True:
            try:
                self._listener()
                return
            except JoinRefusedError:
                raise
            except PeerLostError as error:
                if on_wait is None:
                    raise
                clock = self.network.clock
                if clock.now >= deadline:
                    raise PeerTimeoutError(f"{self.what} did not come up") from error
                on_wait(str(error))
                # as often as the real caller tries
                clock.run(min(deadline, clock.now + 0.5))

    def close(self, end: EndReason = EndReason.SHUTDOWN, words: str = "") -> None:
        """Say goodbye; fail all pending requests."""
        self._closed = True
        self.lose(PeerLostError(f"{self.what}: closed on this side", EndReason.CLOSED))
        listener = self.network.listeners.get(self._address)
        if listener is not None:
            # the other side learns of a goodbye; after lose(), which fails pending requests here
            listener.forget(self, end)

    def __exit__(self, *_: object) -> None:
        self.close()

    def lose(self, error: GiglLoaderError) -> None:
        """Fail all pending requests."""
        self._round += 1
        # removed first: fail() may send a new request
        failed, self._unanswered = self._unanswered, deque()
        for reply in failed:
            # an instance for each: raising one sets its traceback
            reply.fail(type(error)(*error.args))

    def reconnect(self) -> None:
        """Lose data in transfer; pending requests are repeated a little later."""
        self._round += 1
        self.network.clock.call_later(_AGAIN_S, self._ask_first)

    # --- one request at a time; the next one starts when the listener has finished it -------------

    def _listener(self) -> MemoryListener:
        listener = self.network.listeners.get(self._address)
        if listener is None:
            raise PeerLostError(f"{self.what}: nothing listens there", EndReason.GONE)
        if self.incarnation not in (0, listener.incarnation):
            raise PeerLostError(f"{self.what}: another process listens there now", EndReason.GONE)
        if self.peer is None:
            self.peer = listener.admit(self, self._security)
        self.incarnation = listener.incarnation
        return listener

    def _ask_first(self) -> None:
        if self._unanswered:
            self._carry(self._unanswered[0].size, self._arrive)

    def _carry(self, size: int, then: Callable[[], None]) -> None:
        """Call ``then`` when ``size`` bytes have crossed the path, or retry after a cut."""
        clock, path, this_round = self.network.clock, self.network.path(self._address), self._round
        # store and forward, in order: latency is added, but does not block the path for the next
        # one
        start = max(clock.now, path.free_at)
        path.free_at = start + size / path.bytes_per_s
        arrival = path.free_at + path.latency_s
        # a cut matters if any part of it is between now and the arrival
        cut = next(((a, b) for a, b in path.cuts if a < arrival and clock.now < b), None)
        if cut is None:
            fresh = lambda: self._round == this_round  # noqa: E731
            clock.call_later(arrival - clock.now, lambda: then() if fresh() else None)
            return
        # data in transfer is lost: the new round cancels its callbacks
        self._round += 1
        begin, end = max(cut[0], clock.now), cut[1]
        if end - begin > self._patience_s:
            clock.call_later(begin + self._patience_s - clock.now, self._give_up)
        else:
            # the request is repeated, as after a reconnect; handlers may see it twice
            clock.call_later(end + _AGAIN_S - clock.now, self._ask_first)

    def _give_up(self) -> None:
        why = f"nothing was heard for {self._patience_s:.1f} s"
        self.lose(PeerLostError(f"{self.what} is lost (silent): {why}", EndReason.SILENT))

    def _arrive(self) -> None:
        try:
            listener, reply = self._listener(), self._unanswered[0]
        except PeerLostError as error:
            self.lose(error)
            return
        assert self.peer is not None
        this_round = self._round
        try:
            answer = listener.call(reply.method, reply.header, reply.arrays, self.peer)
        except Exception as error:
            self._answer(this_round, error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(
                lambda future: self._answer(this_round, future.exception() or future.result())
            )
        else:
            self._answer(this_round, answer)

    def _answer(self, this_round: int, answer: Any) -> None:
        if this_round == self._round:
            failed = isinstance(answer, BaseException)
            try:
                header, arrays = encode(describe(answer) if failed else answer)
            # a response that cannot be sent is the handler's error, not this network's
            except ProtocolError as error:
                failed, (header, arrays) = True, encode(describe(error))
            # the handler may change its memory before the response arrives
            arrays = [array.copy() for array in arrays]
            size = len(header) + sum(array.nbytes for array in arrays)
            size += self._beside(answer)
            self._carry(size, lambda: self._file(header, arrays, failed))

    def _beside(self, answer: Any) -> int:
        """Return the bytes that a response stands for beyond its own: none."""
        return 0

    def _file(self, header: bytes, arrays: list[Array], failed: bool) -> None:
        self._unanswered.popleft().finish(header, arrays, failed)
        self._ask_first()
