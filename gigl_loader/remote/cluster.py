"""A compute process's connections to the storage servers.

::

    watch     one per server: tells that this process is here, and hears of the end
    calls     a few per server: each has one question under way; a free one is taken, or one opened
    batches   one per loader and server: see `gigl_loader.remote.channel`

All but server 0 are met when they are first asked for something: a rank that takes its batches from
a few of hundreds of servers has no connection with the others, and hears of those from server 0.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, TypeVar

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    RemoteError,
    SamplingError,
    ServerDiedError,
    UsageError,
    WorkerDiedError,
)
from gigl_loader.remote.membership import Join, News, Role, Watch
from gigl_loader.remote.messages import CALLS
from gigl_loader.remote.patience import PATIENCE_S, Progress
from gigl_loader.transport import Caller, End, Security

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 600.0
"""Seconds that a call without a deadline of its own may take."""
_ENTER_S = 30.0
"""Longest wait for a server that is asked for the first time."""
_RENEW_S, _RENEW_EVERY_S = 5.0, 0.2
"""Longest attempt to connect again with a server that is gone, and the pause between two."""
_MOST_FREE = 2
"""Connections for calls that are kept when nothing is under way."""
_WHY = {
    End.SHUTDOWN: "it was shut down",
    End.JOB_OVER: "it was shut down",
    End.LOST_PEER: "it lost another storage server",
    End.GONE: "its process ended or was killed; see its log",
    End.SILENT: "nothing was heard from it: its machine or the network is gone, or it is stopped",
}

T = TypeVar("T")


class _RemoteWorkerDied(WorkerDiedError):
    """A sampling process of a storage server exited early."""

    def __init__(
        self, server: str, worker: int, pid: int, exitcode: int | None, note: str = ""
    ) -> None:
        super().__init__(worker, pid, exitcode, note)
        self.args = (server, worker, pid, exitcode, note)
        self.server = server

    def __str__(self) -> str:
        return f"{self.server}: {super().__str__()}"


class ServerLink:
    """The connections to one storage server.

    Args:
        rank: The server's.
        address: Where it listens.
        security: The same as the server's.
        name: What this process calls itself.
        session: Who this process is, on all connections.
        patience_s: How long an outage of the network may last.
        join: To be said with the first question; None: by `enter`.
    """

    def __init__(
        self, rank: int, address: tuple[str, int], security: Security, name: str, session: str,
        patience_s: float, join: Join | None = None,
    ) -> None:  # fmt: skip
        self.rank, self._join = rank, join
        self._entering, self._is_watched = threading.Lock(), False
        self.name = f"storage server {rank} at {address[0]}:{address[1]}"
        self.address = address
        self._security, self.own_name = security, name
        self.session, self._patience_s = session, patience_s
        self._changed = threading.Condition()
        self._error: ServerDiedError | UsageError | None = None
        self._refusal: Exception | None = None
        self._free: list[Caller] = []
        self._callers: dict[Caller, None] = {}
        self._watch = self._dial()
        self.news = News()
        """What the server said last."""

    # -- connections ----------------------------------------------------------------------------

    def dial(self) -> Caller:
        """Return a caller of the server; it is closed with this link, or by `hang_up`.

        The first one says who this process is, before anything else is asked.

        Raises:
            ServerDiedError, UsageError: The link is over.
            PeerTimeoutError: The server did not come up, or does not answer.
        """
        with self._entering:
            if self._join is not None:
                deadline = time.monotonic() + _ENTER_S
                progress = Progress(self.own_name, deadline)
                self.enter(self._join, deadline, progress)
                self.wait_until_in(lambda news: news.number > 0, deadline, _ENTER_S, progress)
                self._join = None
        return self._dial()

    def _dial(self) -> Caller:
        fresh = Caller(
            *self.address, self._security, self.own_name, patience_s=self._patience_s,
            what=f"storage server {self.rank}",
            session=self.session,
        )  # fmt: skip
        with self._changed:
            if self._error is not None:
                raise self._copy_of_error()
            self._callers[fresh] = None
        return fresh

    def hang_up(self, caller: Caller) -> None:
        """Close a caller. Idempotent."""
        with self._changed:
            self._callers.pop(caller, None)
        caller.close(End.JOB_OVER)

    @property
    def error(self) -> Exception | None:
        """Why the link is over; a fresh exception each time. None: it is up."""
        return None if self._error is None else self._copy_of_error()

    def _copy_of_error(self) -> Exception:
        assert self._error is not None
        return type(self._error)(*self._error.args)

    def close(self, reason: str = "this process left the cluster") -> None:
        """Say goodbye and end. Idempotent."""
        self._end(UsageError(f"{self.name}: {reason}"))

    def _end(self, error: ServerDiedError | UsageError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            callers, self._callers, self._free = self._callers, {}, []
            self._changed.notify_all()
        for caller in callers:
            caller.close(End.JOB_OVER)

    def _gone(self, end: str) -> ServerDiedError:
        why = _WHY.get(End(end), f"the connection is over ({end})")
        return ServerDiedError(
            f"{self.name} is gone: {why}. The loaders of this job cannot go on: start the job "
            "again once the storage cluster is up"
        )

    def again(self, address: tuple[str, int]) -> "ServerLink":
        """Return a link to the same server, started again or out of reach for too long."""
        self.close("it was started again")
        return ServerLink(
            self.rank, address, self._security, self.own_name, secrets.token_hex(16),
            self._patience_s,
        )  # fmt: skip

    # -- presence -------------------------------------------------------------------------------

    def enter(self, join: Join, deadline: float, progress: Progress) -> None:
        """Connect, patiently, and tell who this process is; then hear what is new, in a thread.

        Raises:
            PeerTimeoutError: The server did not come up before ``deadline``.
            JoinRefusedError: It does not let this process in, or is another service.
            ConfigError: There is no such host.
        """
        self._watch.connect(deadline, lambda why: progress.say(self.name))
        if self._is_watched:  # a first attempt took too long
            return
        self._is_watched = True
        thread = threading.Thread(
            target=self._watch_all, args=(join,), name=f"watch {self.name}", daemon=True
        )
        thread.start()

    def _watch_all(self, join: Join) -> None:
        seen = 0
        try:
            while True:
                news = self._watch.ask("watch", Watch(join, seen), News).wait()
                seen = news.number
                if news.status and news.status != self.news.status:
                    _log.info("%s: %s", self.name, news.status)
                with self._changed:
                    self.news = news
                    self._changed.notify_all()
        except PeerLostError as error:
            self._end(self._gone(error.end))
        except GiglLoaderError as error:  # it does not take this process in
            with self._changed:
                self._refusal = self.named(error)
            self._end(UsageError(str(error)))

    def wait_until_in(
        self, is_in: Callable[[News], bool], deadline: float, timeout_s: float, progress: Progress
    ) -> News:
        """Wait until the news say that this process may begin; return them.

        Raises:
            PeerTimeoutError: It did not before ``deadline``; says for whom the server waits.
            ServerDiedError: The server, or another one, is gone.
            ConfigError: The server has other figures.
        """
        with self._changed:
            while not is_in(self.news):
                if self._refusal is not None:
                    raise self._refusal
                if self._error is not None:
                    raise self._copy_of_error()
                if self.news.refused is not None:
                    raise ConfigError(f"{self.name}: {self.news.refused}")
                if self.news.lost is not None:
                    raise ServerDiedError(self.news.lost)
                last = self.news.status or "it said nothing"
                now = time.monotonic()
                if now >= deadline:
                    raise PeerTimeoutError(
                        f"{self.name} did not let this process in within {timeout_s:.0f} s: {last}"
                    )
                if progress.next_in_s == 0.0:
                    progress.say(f"{self.name} to let it in ({last})")
                self._changed.wait(min(deadline - now, progress.next_in_s + 0.01))
            return self.news

    # -- calls ----------------------------------------------------------------------------------

    def call(self, name: str, timeout_s: float = CALL_TIMEOUT_S, /, **arguments: Any) -> Any:
        """Ask for a method of `DistServer`; return a future of what it returns, at once.

        Args:
            name: A key of `CALLS`.
            timeout_s: After that long the future fails, whoever waits for it.
            arguments: For the method, all of them.

        Raises:
            ConfigError: An argument cannot be sent.
        """
        request = CALLS[name].request.of(arguments)
        future: Future[Any] = Future()
        args = (name, request, timeout_s, future)
        threading.Thread(
            target=self._run_call, args=args, name=f"{name} on {self.name}", daemon=True
        ).start()
        return future

    def _run_call(self, name: str, request: Any, timeout_s: float, future: "Future[Any]") -> None:
        try:
            with self._borrowed() as caller:
                answer = caller.ask(name, request, CALLS[name].answer).wait(timeout_s)
            result = answer.result
        except BaseException as error:
            future.set_exception(self.named(error))
        else:
            future.set_result(result)

    @contextlib.contextmanager
    def _borrowed(self) -> Any:
        """Have a connection for one call; after a failure it is closed, which ends the call."""
        with self._changed:
            caller = self._free.pop() if self._free else None
        if caller is None:
            caller = self.dial()
        try:
            yield caller
        except (PeerTimeoutError, PeerLostError, ProtocolError):
            self.hang_up(caller)
            raise
        except BaseException:
            self._put_back(caller)
            raise
        self._put_back(caller)

    def _put_back(self, caller: Caller) -> None:
        with self._changed:
            keep = self._error is None and len(self._free) < _MOST_FREE
            if keep:
                self._free.append(caller)
        if not keep:
            self.hang_up(caller)

    def named(self, error: BaseException) -> Exception:
        """Return the error to raise on this side: of the same class, and naming the server."""
        if isinstance(error, PeerLostError) and not isinstance(error, JoinRefusedError):
            return self.error or self._gone(error.end)
        if isinstance(error, SamplingError):
            where = f"{self.name}, {error.where}"
            return SamplingError(where, error.cause, error.remote_traceback)
        if isinstance(error, RemoteError):
            return RemoteError(self.name, error.cause, error.remote_traceback)
        if isinstance(error, WorkerDiedError):
            return _RemoteWorkerDied(self.name, error.worker, error.pid, error.exitcode, error.note)
        if isinstance(error, PeerTimeoutError | ProtocolError | JoinRefusedError):
            return error  # they name it
        if isinstance(error, ConfigError | UsageError | PeerError):
            with contextlib.suppress(TypeError):  # its arguments are not one text
                return type(error)(f"{self.name}: {error}")
        return error if isinstance(error, Exception) else PeerError(f"{self.name}: {error!r}")


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


class Links(Sequence[ServerLink]):
    """A compute process's links by server; each is made when it is first looked at.

    Args:
        first: To server 0.
        make: Returns a fresh link to a server.
        count: Number of servers.
    """

    def __init__(self, first: ServerLink, make: Callable[[int], ServerLink], count: int) -> None:
        self.made: dict[int, ServerLink] = {0: first}
        """Those that were looked at."""
        self._make, self._count = make, count
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < self._count:
            raise IndexError(rank)
        with self._lock:
            if rank not in self.made:
                self.made[rank] = self._make(rank)
            return self.made[rank]


class Cluster:
    """A compute process's links to all storage servers.

    Args:
        first: To server 0, which has let this process in.
        join: What to say to the others.
        security: As theirs.
        patience_s: How long an outage of the network may last.
    """

    def __init__(
        self, first: ServerLink, join: Join, security: Security, patience_s: float
    ) -> None:
        assert join.job is not None, "server 0 said which job"
        self.job, self.rank, self.world_size = join.job, join.rank, join.world_size
        self.generations: tuple[int, ...] = first.news.generations
        """Of the servers, as far as this process has gone along with them."""
        self.renewals: dict[int, int] = {}
        """How often a server was found started again; none is 0 times."""
        self.links = Links(first, self._fresh, join.num_servers)
        self.closed = False
        self._join, self._security, self._patience_s = join, security, patience_s
        self._session = first.session
        self._renewing = threading.Lock()

    @classmethod
    def join(
        cls, host: str, port: int, *, rank: int, world_size: int, num_servers: int,
        security: Security, timeout_s: float, patience_s: float = PATIENCE_S,
    ) -> "Cluster":  # fmt: skip
        """Meet server 0 and the other compute processes; returns when all, servers too, are there.

        Args:
            host: Address of storage server 0.
            port: Port of storage server 0.
            rank: This compute process.
            world_size: How many of them the job has.
            num_servers: How many storage servers there are.
            security: The same as the cluster's.
            timeout_s: How long that may take, loading of the graph included.
            patience_s: How long an outage of the network may last.

        Raises:
            JoinRefusedError: A server does not let this process in, or is another service.
            PeerTimeoutError: Somebody did not come; says who.
            ConfigError: The servers have other figures.
        """
        deadline = time.monotonic() + timeout_s
        me, session = f"compute process {rank}", secrets.token_hex(16)
        progress = Progress(me, deadline)
        join = Join(role=Role.CLIENT, rank=rank, num_servers=num_servers, world_size=world_size)
        first = ServerLink(0, (host, port), security, me, session, patience_s)
        try:
            first.enter(join, deadline, progress)
            news = first.wait_until_in(
                lambda news: news.job is not None, deadline, timeout_s, progress
            )
        except BaseException:
            first.close()
            raise
        return cls(first, replace(join, job=news.job), security, patience_s)

    def link(self, server_rank: int) -> ServerLink:
        """Return the link to a server.

        Raises:
            ConfigError: There is no such server.
        """
        if not 0 <= server_rank < len(self.links):
            raise ConfigError(f"server rank must be in [0, {len(self.links)}), got {server_rank}")
        found: ServerLink = self.links[server_rank]
        return found

    def _fresh(self, rank: int) -> ServerLink:
        """Return a link that is not up yet."""
        first = self.links.made[0]
        link = ServerLink(
            rank, first.news.addresses[rank], self._security, first.own_name, self._session,
            self._patience_s, self._join,
        )  # fmt: skip
        if self.closed:
            link.close()
        return link

    # -- servers that were away -----------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether all servers are those that this process knows."""
        news = self.links.made[0].news
        return not (news.away or self._stale(news) or self._broken())

    def _broken(self) -> list[int]:
        return [rank for rank, link in list(self.links.made.items()) if link.error is not None]

    def _stale(self, news: News) -> list[int]:
        if news.generations is self.generations:
            return []
        pairs = enumerate(zip(self.generations, news.generations, strict=False))
        return [rank for rank, (known, now) in pairs if known != now]

    def renew(self, deadline: float) -> None:
        """Connect again with the servers that are gone or were started again.

        Args:
            deadline: Until when they are waited for (`time.monotonic`).

        Raises:
            ServerDiedError: One did not come back in time.
        """
        with self._renewing:
            while not self.is_whole and not self.closed:
                errors = [self.links.made[rank].error for rank in self._broken()]
                try:
                    self._renew_lowest()
                except GiglLoaderError as error:
                    if time.monotonic() > deadline:
                        raise next((one for one in errors if one is not None), error) from error
                    time.sleep(_RENEW_EVERY_S)

    def _renew_lowest(self) -> None:
        """Go along with one server that is another now: the lowest, as server 0 knows the others.

        Raises:
            GiglLoaderError: It is not back.
        """
        news = self.links.made[0].news
        changed = {*self._broken(), *self._stale(news)}
        if not changed:
            raise ServerDiedError(
                f"storage servers {list(news.away)} are gone, says storage server 0: see their logs"
            )
        rank = min(changed)
        if rank in self.links.made:
            self._renew_link(rank)
        self.renewals[rank] = self.renewals.get(rank, 0) + 1
        known = list(self.generations)
        fresh = self.links.made[0].news
        known[rank] = fresh.generations[rank] if rank < len(fresh.generations) else 0
        if rank in self.links.made:
            known[rank] = self.links.made[rank].news.generation
        self.generations = tuple(known)

    def _renew_link(self, rank: int) -> None:
        now, former = time.monotonic(), self.links.made[rank]
        news = self.links.made[0].news
        known = rank > 0 and len(news.addresses) > rank
        fresh = former.again(news.addresses[rank] if known else former.address)
        progress = Progress(f"compute process {self.rank}", now + _RENEW_S)
        try:
            fresh.enter(
                self._join, now + _RENEW_S / 5, progress
            )  # its address may be another by then
            fresh.wait_until_in(
                lambda news: bool(news.addresses) if rank == 0 else news.number > 0,
                now + _RENEW_S, _RENEW_S, progress,
            )  # fmt: skip
        except BaseException:
            fresh.close()
            raise
        self.links.made[rank] = fresh
        _log.warning("%s is back", fresh.name)

    def raise_if_broken(self) -> None:
        """Raise `ServerDiedError` where a server is gone that this process is connected with."""
        for link in list(self.links.made.values()):
            error = link.error
            if error is not None:
                raise error

    def close(self) -> None:
        """Leave. Idempotent."""
        self.closed = True
        for link in list(self.links.made.values()):
            link.close()
