"""The client's side of the wire: calls to storage servers, and the batches that they send back.

A compute process has one connection to each server. Requests go out at any time, from any thread,
and are answered in whatever order the server finishes them; nobody waits in a thread of its own, so
a thousand calls may be under way. torch's own RPC is not used: its worlds cannot be joined twice by
one process, and the loss of one member is noticed late.
"""

import itertools
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
    ServerDiedError,
    UsageError,
    WorkerDiedError,
)
from gigl_loader.remote import wire
from gigl_loader.remote.wire import Connection, Frame

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 600.0
"""Seconds that a call without a deadline of its own may take."""

CLIENT, SERVER, OBSERVER = "client", "server", "observer"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a connection says first."""

    role: str
    rank: int
    num_servers: int
    """0: unknown to this side."""
    world_size: int = 0
    """Compute processes of the job."""
    job: int | None = None
    """Which job the client belongs to; None: to be told by server 0."""
    address: tuple[str, int] | None = None
    """Where a server listens."""


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The answer, once everybody is there."""

    job: int
    addresses: tuple[tuple[str, int], ...]
    """Of all servers."""


@dataclass(frozen=True)
class RemoteFailure:
    """An exception on a server, as it travels."""

    error: Exception | None
    """The exception itself, where it is one of gigl_loader's."""
    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> "RemoteFailure":
        """Return ``error`` as it travels."""
        known = error if isinstance(error, GiglLoaderError) else None
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(known, f"{type(error).__name__}: {error}", trace[-60_000:])


class _RemoteWorkerDied(WorkerDiedError):
    """A sampling process of a storage server exited early."""

    def __init__(self, server: str, worker: int, pid: int, exitcode: int | None) -> None:
        super().__init__(worker, pid, exitcode)
        self.args = (server, worker, pid, exitcode)
        self.server = server

    def __str__(self) -> str:
        return f"{self.server}: {super().__str__()}"


def rebuilt(server: str, failure: RemoteFailure) -> Exception:
    """Return the error to raise on this side: of the same type, and naming the server."""
    error, text = failure.error, str(failure.error)
    if isinstance(error, SamplingError):
        trace = error.remote_traceback or failure.trace
        return SamplingError(f"{server}, {error.where}", error.cause, trace)
    if isinstance(error, WorkerDiedError):
        return _RemoteWorkerDied(server, error.worker, error.pid, error.exitcode)
    if isinstance(error, (ConfigError, UsageError, PeerError, ProtocolError)):
        try:
            return type(error)(f"{server}: {text}")
        except TypeError:  # its arguments are not one text
            pass
    return PeerError(f"{server} failed: {failure.text}\n--- traceback there ---\n{failure.trace}")


class Pending(Protocol):
    """A request under way; called in the link's reading thread."""

    def allocate(self, nbytes: int) -> tuple[memoryview, Any]:
        """Return memory for the payload, and what to call it in the frame."""
        ...

    def done(self, frame: Frame) -> None:
        """Take the answer."""
        ...

    def fail(self, error: Exception) -> None:
        """Take what went wrong instead."""
        ...


class _PendingCall:
    """A call: its answer goes to a future."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def allocate(self, nbytes: int) -> tuple[memoryview, Any]:
        raise ProtocolError("a batch came in answer to a call")

    def done(self, frame: Frame) -> None:
        self.future.set_result(frame.body)

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)


class ServerLink:
    """The connection to one storage server.

    Args:
        rank: The server's.
        connection: Authenticated, not yet started.
    """

    def __init__(self, rank: int, connection: Connection) -> None:
        self.rank = rank
        self.name = f"storage server {rank} ({connection.name})"
        self.notes: deque[str] = deque(maxlen=8)
        """What the server said last about itself, newest last."""
        self._connection = connection
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._numbers = itertools.count(1)
        self._error: ServerDiedError | UsageError | None = None
        connection.start(self)

    @property
    def error(self) -> Exception | None:
        """Why the link is over; a fresh exception each time. None: it is up."""
        return None if self._error is None else type(self._error)(*self._error.args)

    def request(self, kind: int, body: Any, pending: Pending) -> None:
        """Send a request. Never waits; where the link is over, ``pending`` fails at once."""
        with self._lock:
            number = next(self._numbers)
            if self._error is None:
                self._pending[number] = pending
        if self._error is not None:
            self._pending.pop(number, None)
            pending.fail(self.error or ServerDiedError(self.name))
            return
        self._connection.send(kind, number, body)

    def call(self, function: Callable[..., T], *args: Any, **keywords: Any) -> "Future[T]":
        """Let the server call ``function``; its `DistServer` is ``self`` where it is a method."""
        pending = _PendingCall()
        self.request(wire.CALL, (function, args, keywords), pending)
        return pending.future

    def give_back(self, request: int) -> None:
        """Tell the server that nothing here reads the batch of ``request`` any more."""
        self._connection.send(wire.GIVE_BACK, request)

    def hello(self, hello: Hello) -> "Future[Welcome]":
        """Introduce this process."""
        pending = _PendingCall()
        self.request(wire.HELLO, hello, pending)
        return pending.future

    def close(self, reason: str = "this process left the cluster") -> None:
        """Say goodbye and end. Idempotent."""
        self._connection.send(wire.BYE, 0)
        self._end(UsageError(f"{self.name}: {reason}"))
        self._connection.close()

    # -- called by the connection ---------------------------------------------------------------

    def allocate(self, request: int, nbytes: int) -> tuple[memoryview, Any]:
        """Ask whoever waits for this batch."""
        with self._lock:
            pending = self._pending.get(request)
        if pending is None and self._error is not None:
            raise EOFError("the link is over: nobody waits for its batches")
        if pending is None:
            raise ProtocolError(f"{self.name} answered request {request}: there is none")
        return pending.allocate(nbytes)

    def on_frame(self, frame: Frame) -> None:
        """Hand an answer to whoever waits for it."""
        if frame.kind == wire.NOTE:
            self.notes.append(str(frame.body))
            _log.info("%s: %s", self.name, frame.body)
        elif frame.kind == wire.BYE:
            self._end(self._gone(str(frame.body)))
        else:
            with self._lock:
                pending = self._pending.pop(frame.request, None)
            if pending is None:
                if self._error is not None:
                    return  # the link is over: all that was under way has failed
                raise ProtocolError(f"{self.name} answered request {frame.request}: there is none")
            if frame.kind == wire.ERROR:
                pending.fail(rebuilt(self.name, frame.body))
            else:
                pending.done(frame)

    def on_close(self, error: BaseException | None) -> None:
        """Fail all that is under way."""
        if isinstance(error, EOFError):
            why = "its process ended or was killed; see its log"
        else:
            why = f"the connection broke ({type(error).__name__}: {error}); see its log"
        self._end(self._gone(why))

    def _gone(self, why: str) -> ServerDiedError:
        return ServerDiedError(
            f"{self.name} is gone: {why}. The loaders of this job cannot go on: start the job "
            "again once the storage cluster is up"
        )

    def _end(self, error: ServerDiedError | UsageError) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
            pending = list(self._pending.values())
            self._pending.clear()
        for one in pending:
            one.fail(self.error or error)


def result_of(future: "Future[T]", timeout_s: float, what: str, limit_s: float | None = None) -> T:
    """Return what ``future`` holds.

    Args:
        future: Of a call.
        timeout_s: How long to wait for it; below zero: not at all.
        what: Named in the error.
        limit_s: The limit to name there, where others were awaited before; None: ``timeout_s``.

    Raises:
        PeerTimeoutError: It took longer than ``timeout_s``.
        Exception: What the server raised, or why it is gone.
    """
    try:
        return future.result(max(0.0, timeout_s))
    except FutureTimeoutError as error:
        if future.done():  # just now, or with a timeout of the server's own
            return future.result()
        raise PeerTimeoutError(
            f"{what} took longer than {limit_s or timeout_s:.0f} s: the storage server is stopped "
            "or overloaded; look at its log"
        ) from error


class Cluster:
    """A compute process's links to all storage servers."""

    def __init__(self, links: list[ServerLink], job: int, rank: int, world_size: int) -> None:
        self.links, self.job, self.rank, self.world_size = links, job, rank, world_size
        self.closed = False

    @classmethod
    def join(
        cls, host: str, port: int, *, rank: int, world_size: int, num_servers: int,
        token: bytes, timeout_s: float,
    ) -> "Cluster":  # fmt: skip
        """Meet the servers and the other compute processes; returns when all are there.

        Args:
            host: Of storage server 0.
            port: Its.
            rank: This compute process.
            world_size: How many of them the job has.
            num_servers: How many storage servers there are.
            token: The cluster's.
            timeout_s: How long that may take, loading of the graph included.

        Raises:
            JoinRefusedError: The token is wrong.
            PeerTimeoutError: Somebody did not come; says who.
            ConfigError: The servers have other figures.
        """
        deadline = time.monotonic() + timeout_s
        me = f"compute process {rank}"
        first = ServerLink(
            0,
            wire.connect_patiently(
                host, port, token, me, deadline=deadline, what="storage server 0"
            ),
        )
        links = [first]
        try:
            hello = Hello(role=CLIENT, rank=rank, num_servers=num_servers, world_size=world_size)
            progress = wire.Progress(me, deadline)
            welcome = cls._await(first, first.hello(hello), progress, deadline, timeout_s)
            for server, (address, its_port) in enumerate(welcome.addresses[1:], start=1):
                what = f"storage server {server}"
                connection = wire.connect_patiently(
                    address, its_port, token, me, deadline=deadline, what=what
                )
                links.append(ServerLink(server, connection))
            known = Hello(
                role=CLIENT, rank=rank, num_servers=num_servers, world_size=world_size,
                job=welcome.job,
            )  # fmt: skip
            for link, answer in [(link, link.hello(known)) for link in links[1:]]:
                cls._await(link, answer, progress, deadline, timeout_s)
        except BaseException:
            for link in links:
                link.close()
            raise
        return cls(links, welcome.job, rank, world_size)

    @staticmethod
    def _await(
        link: ServerLink, answer: "Future[Welcome]", progress: wire.Progress, deadline: float,
        timeout_s: float,
    ) -> Welcome:  # fmt: skip
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return answer.result(min(left, progress.next_in_s + 0.01))
            except FutureTimeoutError as error:
                if answer.done():  # just now, or with a timeout of the server's own
                    return answer.result()
                last = link.notes[-1] if link.notes else "it said nothing"
                if time.monotonic() >= deadline:
                    raise PeerTimeoutError(
                        f"{link.name} did not let this process in within {timeout_s:.0f} s: {last}"
                    ) from error
                progress.say(f"{link.name} to let it in ({last})")

    def link(self, server_rank: int) -> ServerLink:
        """Return the link to a server.

        Raises:
            ConfigError: There is no such server.
        """
        if not 0 <= server_rank < len(self.links):
            raise ConfigError(f"server rank must be in [0, {len(self.links)}), got {server_rank}")
        return self.links[server_rank]

    def raise_if_broken(self) -> None:
        """Raise `ServerDiedError` where a server is gone, whether or not it has work to do."""
        for link in self.links:
            error = link.error
            if error is not None:
                raise error

    def close(self) -> None:
        """Leave. Idempotent."""
        self.closed = True
        for link in self.links:
            link.close()
