"""Rendezvous of the storage servers that start a producer, hosted by the first of them.

See `gigl_loader.sources.workers.rendezvous.Rendezvous`. Each producer has its own, named after the
request that creates it. Every call may be repeated.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from gigl_loader.errors import (
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    UsageError,
)
from gigl_loader.graph_store.wire.requests import NOBODY, Nothing, Runs
from gigl_loader.runtime.transport import Caller, Method, Peer
from gigl_loader.sources.workers.rendezvous import Rendezvous

T = TypeVar("T")

_LEAVE_S = 5.0
"""Longest wait for the host when leaving. An ended host is known at once; an overloaded one
should still learn of a failure, for which the other servers wait."""
_ANSWER_S = 10.0
"""Longest wait for the host to store a value, which it does at once."""
_MOST_BYTES, _MOST_MEETINGS = 1 << 30, 1 << 14
"""Most bytes of values that one server may have here, and most rendezvous at a time."""


@dataclass(frozen=True)
class Publish:
    """One server's value of a key, at a rendezvous of the servers."""

    name: str
    rank: int
    key: str
    value: bytes
    servers: Runs
    """All who meet there; ranks are positions among them."""


@dataclass(frozen=True)
class Gather:
    """Requests the values of a key; the response comes once all are there."""

    name: str
    key: str
    ranks: Runs
    servers: Runs
    """All who meet there; ranks are positions among them."""


@dataclass(frozen=True)
class Gathered:
    """Values that the ranks published, in their order; or the failure of one of them."""

    values: tuple[bytes, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class Leave:
    """A server leaves a rendezvous: all is agreed on or, with ``failure``, it cannot continue."""

    name: str
    rank: int
    servers: Runs
    """All who meet there; ranks are positions among them."""
    failure: str | None = None


@dataclass
class _Rendezvous:
    servers: Runs = NOBODY
    """The servers that take part; known once one of them has named them."""
    values: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """By key and rank."""
    waiting: "dict[str, list[tuple[Gather, Future[Gathered]]]]" = field(default_factory=dict)
    """By key."""
    failure: str | None = None
    left: set[int] = field(default_factory=set)


class RendezvousTable:
    """All rendezvous that this server hosts. Thread-safe; no method waits.

    Args:
        num_servers: Number of servers in the cluster.
    """

    def __init__(self, num_servers: int) -> None:
        self._num_servers = num_servers
        # guards all below. Futures get results while it is held, which only wakes their waiters:
        # threads of a connection or of a producer
        self._lock = threading.Lock()
        self._by_name: dict[str, _Rendezvous] = {}
        self._nbytes: Counter[int] = Counter()
        """Bytes of values by server."""

    def methods(self, server_of: Callable[[Peer], int | None]) -> dict[str, Method]:
        """Return the methods for other servers, for a listener's table.

        Args:
            server_of: Returns the rank of the storage server that a peer is; None: it is none.
        """

        def of_servers(handle: Callable[[Any], Any]) -> Callable[[Any, Peer], Any]:
            def checked(request: Any, peer: Peer) -> Any:
                # before it is looked through: a range of 2**40 servers would take for ever
                request.servers.check(self._num_servers, "storage servers that meet")
                server, named = server_of(peer), getattr(request, "rank", None)
                at = request.servers.index(server) if server in request.servers else None
                if at is None or named not in (at, None):
                    raise ProtocolError(
                        f"{peer.name} came to a rendezvous of storage servers "
                        f"{request.servers.ranges}, and is none of them, or another one"
                    )
                return handle(request)

            return checked

        return {
            "publish": Method(Publish, Nothing, of_servers(self.publish)),
            "gather": Method(Gather, Gathered, of_servers(self.gather)),
            "leave": Method(Leave, Nothing, of_servers(self.leave)),
        }

    def publish(self, request: Publish) -> Nothing:
        """Store a server's value of a key."""
        with self._lock:
            rendezvous = self._meeting(request.name)
            # for `fail_all`; each request has it, since any of them may come first
            rendezvous.servers = request.servers
            # the value is the same if the request is repeated after a lost connection
            values = rendezvous.values.setdefault(request.key, {})
            more = len(request.value) - len(values.get(request.rank, b""))
            server = request.servers[request.rank]
            if self._nbytes[server] + more > _MOST_BYTES:
                raise ProtocolError(
                    f"storage server {server} may keep {_MOST_BYTES} bytes at rendezvous here, and "
                    f"has {self._nbytes[server]} and came with {more} more"
                )
            self._nbytes[server] += more
            values[request.rank] = request.value
            self._serve(rendezvous, request.key)
        return Nothing()

    def gather(self, request: Gather) -> "Future[Gathered]":
        """Return the values of a key once all named ranks have published theirs."""
        request.ranks.check(len(request.servers), "those who are waited for")
        future: Future[Gathered] = Future()
        with self._lock:
            rendezvous = self._meeting(request.name)
            rendezvous.servers = request.servers
            rendezvous.waiting.setdefault(request.key, []).append((request, future))
            self._serve(rendezvous, request.key)
        return future

    def missing(self, request: Gather) -> list[int]:
        """Return the servers that have not published."""
        with self._lock:
            rendezvous = self._by_name.get(request.name, _Rendezvous())
            values = rendezvous.values.get(request.key, {})
            missing = [rank for rank in request.ranks if rank not in values]
        return [request.servers[rank] for rank in missing]

    def leave(self, request: Leave) -> Nothing:
        """Remove a server; its failure, if any, ends the waits of all."""
        with self._lock:
            rendezvous = self._meeting(request.name)
            # a set, since a rank may leave twice
            rendezvous.left.add(request.rank)
            if request.failure is not None and rendezvous.failure is None:
                server = request.servers[request.rank]
                rendezvous.failure = f"storage server {server} failed: {request.failure}"
            self._serve_all(rendezvous)
            # no more requests come, and a server of many jobs must not keep each producer's
            # values
            if len(rendezvous.left) >= len(request.servers):
                self._forget(request.name)
        return Nothing()

    def _meeting(self, name: str) -> _Rendezvous:
        if name not in self._by_name and len(self._by_name) >= _MOST_MEETINGS:
            raise ProtocolError(f"{_MOST_MEETINGS} rendezvous are under way here, the most")
        return self._by_name.setdefault(name, _Rendezvous())

    def _forget(self, name: str) -> None:
        rendezvous = self._by_name.pop(name)
        for values in rendezvous.values.values():
            for rank, value in values.items():
                self._nbytes[rendezvous.servers[rank]] -= len(value)

    def fail_all(self, why: str, server: int | None = None) -> None:
        """End all waits for a lost server; None: all waits."""
        with self._lock:
            for name, rendezvous in list(self._by_name.items()):
                # others may be starting a producer without the lost server
                if server is None or server in rendezvous.servers:
                    rendezvous.failure = rendezvous.failure or why
                    self._serve_all(rendezvous)
                # it does not leave by itself, and the others' rendezvous would be kept for it
                if server is not None and server in rendezvous.servers:
                    rendezvous.left.add(rendezvous.servers.index(server))
                    if len(rendezvous.left) >= len(rendezvous.servers):
                        self._forget(name)

    def _serve_all(self, rendezvous: _Rendezvous) -> None:
        for key in list(rendezvous.waiting):
            self._serve(rendezvous, key)

    @staticmethod
    def _serve(rendezvous: _Rendezvous, key: str) -> None:
        # complete values are handed out even after a server failed: it may have failed
        # at a later step, of which this one learns when it gets there
        unanswered, values = [], rendezvous.values.get(key, {})
        for request, future in rendezvous.waiting.pop(key, []):
            # all wait for all, so an arrival must not check each value that each of them wants
            if len(values) >= len(request.ranks) and all(rank in values for rank in request.ranks):
                _answer(future, Gathered(tuple(values[rank] for rank in request.ranks)))
            elif rendezvous.failure is not None:
                _answer(future, Gathered(failure=rendezvous.failure))
            else:
                unanswered.append((request, future))
        if unanswered:
            rendezvous.waiting[key] = unanswered


def _answer(future: "Future[Gathered]", answer: Gathered) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled: the caller is gone, or retries
        future.set_result(answer)


class ServerRendezvous(Rendezvous):
    """One storage server at one rendezvous: a `gigl_loader.sources.workers.rendezvous.Rendezvous`.

    Args:
        name: Name of the rendezvous, the same on all servers.
        server: Number of this server.
        servers: All participants; the first one is the host. A rank is a position among them.
        timeout_s: Longest wait of each `gather` and `wait_for`, in seconds.
        table: The table, on the host only.
        dial: On the others, returns a new caller of the host; see ``incarnation`` of `Caller`.
    """

    def __init__(
        self,
        name: str,
        server: int,
        servers: Sequence[int],
        timeout_s: float,
        *,
        table: RendezvousTable | None = None,
        dial: Callable[[int], Caller] | None = None,
    ) -> None:
        super().__init__(servers.index(server), len(servers), timeout_s)
        self._server, self._servers = server, Runs.of(servers)
        self._name, self._table, self._dial = name, table, dial
        # a separate connection: responses come in the order of the requests, and a `gather` may
        # wait long for its response
        self._caller = dial(0) if dial is not None else None
        # guards `_closed`: one thread may fail while another closes, and only one `leave` is
        # sent
        self._lock = threading.Lock()
        self._closed = False

    def publish(self, key: str, value: bytes) -> None:
        """Make ``value`` this server's value of ``key``; see `Rendezvous.publish`."""
        request = Publish(self._name, self.rank, key, value, self._servers)
        self._ask("publish", request, Nothing, _ANSWER_S)

    def gather(self, key: str, ranks: Iterable[int], more_s: float = 0.0) -> list[bytes]:
        """Return the values that ``ranks`` published under ``key``; see `Rendezvous.gather`."""
        request = Gather(self._name, key, Runs.of(ranks), self._servers)
        limit_s = self._timeout_s + more_s
        try:
            gathered: Gathered = self._ask("gather", request, Gathered, limit_s)
        except TimeoutError as error:
            missing = [self._servers[rank] for rank in request.ranks]
            if self._table is not None:
                missing = self._table.missing(request)
            raise PeerTimeoutError(
                f"storage server {self._server} waited {limit_s:g} s for {key!r} of "
                f"storage servers {missing}: one of them is slow to start its workers, or stopped; "
                "see their logs, or raise the timeout"
            ) from error
        if gathered.failure is not None:
            raise PeerError(f"{gathered.failure} (while server {self._server} waited for {key!r})")
        return list(gathered.values)

    def _ask(self, method: str, request: Any, answer: type[T], limit_s: float) -> T:
        if self._closed:
            raise UsageError(f"the rendezvous {self._name} of server {self._server} is closed")
        if self._caller is not None:
            return self._caller.ask(method, request, answer).wait(limit_s)
        result: Any = getattr(self._table, method)(request)
        if answer is Nothing:  # done at once; otherwise the table returns a future
            return cast("T", result)
        try:
            return cast("T", result.result(limit_s))
        finally:
            # after a timeout the table need not serve the request
            result.cancel()

    def fail(self, words: str) -> None:
        """Tell all servers that this one cannot continue; then leave. Never raises."""
        self._leave(words)

    def close(self) -> None:
        """Leave. Idempotent; never raises."""
        self._leave(None)

    def _leave(self, failure: str | None) -> None:
        with self._lock:
            if self._closed:
                return
            # before telling the host, which may take seconds: no request is sent meanwhile
            self._closed = True
        request = Leave(self._name, self.rank, self._servers, failure)
        if self._table is not None:
            self._table.leave(request)
        if self._caller is not None and self._dial is not None:
            self._caller.close()  # else `leave` would wait for the response to a pending request
            # a restarted host knows nothing of this rendezvous
            with (
                contextlib.suppress(GiglLoaderError),
                self._dial(self._caller.incarnation) as caller,
            ):
                caller.ask("leave", request, Nothing).wait(_LEAVE_S)  # unless the host is gone
