"""A compute process's connections to one storage server.

::

    watch     one per server: shows that this process is alive, and learns of the server's end
    calls     a few per server, each with one request at a time; a free one is taken, or one opened
    batches   one per loader and server: see `gigl_loader.graph_store.client.receiving_channel`
"""

import contextlib
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, TypeVar

from gigl_loader.errors import (
    ConfigError,
    JobStoppedError,
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
from gigl_loader.graph_store.wire.membership import Join, News, WaitReport, hear, stopped_text
from gigl_loader.graph_store.wire.signatures import CALLS
from gigl_loader.runtime.threads import new_thread
from gigl_loader.runtime.transport import Caller, EndReason, Security
from gigl_loader.runtime.transport.failures import fresh_copy

_log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 600.0
"""Seconds that a call without a deadline of its own may take."""
_ENTER_S = 30.0
"""Longest wait for a server when this process first contacts it, in seconds."""
_MOST_FREE = 2
"""Most idle connections for calls to keep."""
_WHY = {
    EndReason.SHUTDOWN: "it was shut down",
    EndReason.JOB_OVER: "it has served as many jobs as it was to (num_jobs) and ended",
    EndReason.LOST_PEER: "it lost another storage server",
    EndReason.GONE: "its process ended or was killed; see its log",
    EndReason.SILENT: "nothing was heard from it: its machine or the network is gone, or it is "
    "stopped",
}

T = TypeVar("T")


class ServerConnection:
    """The connections to one storage server.

    Args:
        rank: Rank of the server.
        address: Host and port on which the server listens.
        security: The same as the server's.
        name: Name of this process.
        session: Identity of this process, on all connections.
        patience_s: How long an outage of the network may last, in seconds.
        join: Request to join, sent before the first request; None: `enter` gets it.
        is_away: Returns whether the server is known to be gone or elsewhere; then nothing waits.
    """

    def __init__(
        self,
        rank: int,
        address: tuple[str, int],
        security: Security,
        name: str,
        session: str,
        patience_s: float,
        join: Join | None = None,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank, self._join, self._is_away = rank, join, is_away
        # `_entering`: one thread introduces this process while others wait for that. Taken before
        # `_changed`, which guards everything else.
        self._entering, self._is_watched = threading.Lock(), False
        self.name = f"storage server {rank} at {address[0]}:{address[1]}"
        self.address = address
        self._security, self.own_name = security, name
        self.session, self._patience_s = session, patience_s
        self._changed = threading.Condition()
        self._error: ServerDiedError | UsageError | JobStoppedError | None = None
        self._job_name = ""
        self._refusal: Exception | None = None
        self._free: list[Caller] = []
        self._callers: dict[Caller, None] = {}
        # no connection yet: a caller connects at its first request
        self._watch = self._dial()
        self.news = News()
        """The server's latest status message."""

    # -- connections ----------------------------------------------------------------------------

    def dial(self) -> Caller:
        """Return a caller of the server; it is closed with this connection, or by `hang_up`.

        The first one introduces this process, before any other request.

        Raises:
            ServerDiedError, UsageError: The connection is over.
            PeerTimeoutError: The server did not come up, or does not respond.
        """
        self.meet(_ENTER_S)
        # the process that admitted this one, not a later one at the same port
        return self._dial(self._watch.incarnation)

    def meet(self, timeout_s: float) -> None:
        """Introduce this process unless that was done; raises as `dial`."""
        with self._entering:
            if self._join is None or self._error is not None:
                return
            deadline = time.monotonic() + timeout_s
            progress = WaitReport(self.own_name, deadline)
            self.enter(self._join, deadline, progress)
            self.wait_until_in(lambda news: news.number > 0, deadline, timeout_s, progress)
            # last, so that the next caller repeats a failed attempt
            self._join = None

    def _dial(self, incarnation: int = 0) -> Caller:
        fresh = Caller(
            *self.address,
            self._security,
            self.own_name,
            patience_s=self._patience_s,
            what=f"storage server {self.rank}",
            session=self.session,
            incarnation=incarnation,
        )
        with self._changed:
            if self._error is not None:
                raise fresh_copy(self._error)
            self._callers[fresh] = None
        return fresh

    def hang_up(self, caller: Caller) -> None:
        """Close a caller. Idempotent."""
        with self._changed:
            self._callers.pop(caller, None)
        caller.close(EndReason.JOB_OVER)

    @property
    def is_up(self) -> bool:
        """Whether the server has admitted this process and is not gone."""
        return self.news.number > 0 and self._error is None

    @property
    def error(self) -> Exception | None:
        """Why the connection is over, as a new exception each time; None: it is up."""
        return None if self._error is None else fresh_copy(self._error)

    def close(self, reason: str = "this process left the cluster") -> None:
        """Say goodbye and end. Idempotent."""
        self._end(UsageError(f"{self.name}: {reason}"))

    def _end(self, error: ServerDiedError | UsageError | JobStoppedError) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            callers, self._callers, self._free = self._callers, {}, []
            self._changed.notify_all()
        # outside the lock, which threads that wait on these callers need to release them
        for caller in callers:
            caller.close(EndReason.JOB_OVER)

    def _gone(self, end: str) -> ServerDiedError:
        why = _WHY.get(EndReason(end), f"the connection is over ({end})")
        return ServerDiedError(
            f"{self.name} is gone: {why}. Start it again with the same arguments; if that took too "
            "long for the loaders of this job, start the job again, too"
        )

    def give_up(self, why: str) -> None:
        """End as if the server were gone, because another server reports that it is."""
        self._end(ServerDiedError(f"{self.name} is gone: {why}"))

    def reconnected(self, address: tuple[str, int]) -> "ServerConnection":
        """Return a connection to the same server, restarted or out of reach for too long."""
        self.close("it was started again")
        # a new session: under the former one the server has given this process up, or may still
        return ServerConnection(
            self.rank,
            address,
            self._security,
            self.own_name,
            secrets.token_hex(16),
            self._patience_s,
        )

    # -- presence -------------------------------------------------------------------------------

    def enter(self, join: Join, deadline: float, progress: WaitReport) -> None:
        """Connect with patience and introduce this process; then receive the news in a thread.

        Raises:
            PeerTimeoutError: The server did not come up before ``deadline``.
            ServerDiedError: Another server reports that this one is away.
            JoinRefusedError: The server refuses this process, or another service listens there.
            ConfigError: The address is invalid.
        """
        self._job_name = join.job_name
        self._watch.connect(deadline, partial(self._wait_on, progress))
        if self._is_watched:  # a first attempt took too long
            return
        self._is_watched = True
        new_thread(
            target=self._watch_all,
            args=(join,),
            name=f"watch {self.name}",
            on_death=lambda error: self.give_up(
                f"the thread that hears of it ended by {type(error).__name__}: {error}"
            ),
        ).start()

    def _wait_on(self, progress: WaitReport, why: str) -> None:
        if self._is_away():
            self.give_up(f"it does not answer ({why}), and storage server 0 says that it is away")
            raise_if_broken([self])
        hint = ""
        if "refused" in why:
            hint = " (nothing listens there: it loads, was not started, or has served its jobs)"
        elif "has no address" in why:
            hint = f" ({why}: it was not started yet, or this is not its name)"
        progress.say(self.name + hint)

    def _watch_all(self, join: Join) -> None:
        error = hear(self._watch, join, self._take_news)
        if isinstance(error, PeerLostError) and not isinstance(error, JoinRefusedError):
            self._end(self._gone(error.end))
            return
        with self._changed:  # the server refuses this process
            # before `_end`, as a waiting thread looks for a refusal first, and learns its class
            self._refusal = self.note_failure(error)
        # a server that has admitted this process before was restarted, and may admit it again
        is_lost = isinstance(error, JoinRefusedError) and self.news.number > 0
        self._end(ServerDiedError(str(error)) if is_lost else UsageError(str(error)))

    def _take_news(self, news: News) -> None:
        if news.status and news.status != self.news.status:
            _log.info("%s: %s", self.name, news.status)
        with self._changed:
            self.news = news.sharing(self.news)
            self._changed.notify_all()
        if self._job_name and news.stopped:
            self._end(JobStoppedError(stopped_text(self._job_name)))

    def wait_until_in(
        self, is_in: Callable[[News], bool], deadline: float, timeout_s: float, progress: WaitReport
    ) -> News:
        """Wait until the news say that this process may begin; return them.

        Raises:
            PeerTimeoutError: That did not happen before ``deadline``; names the missing members.
            ServerDiedError: This server or another one is gone.
            ConfigError: The server has other figures.
        """
        with self._changed:
            while not is_in(self.news):
                # the most specific error first: a refusal also ends the connection, and the loss of
                # a server its news
                if self._refusal is not None:
                    raise self._refusal
                if self._error is not None:
                    raise fresh_copy(self._error)
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
                # just after the next report is due; just before it, this would be a busy loop
                self._changed.wait(min(deadline - now, progress.next_in_s + 0.01))
            return self.news

    # -- calls ----------------------------------------------------------------------------------

    def call(self, name: str, timeout_s: float = CALL_TIMEOUT_S, /, **arguments: Any) -> Any:
        """Call a method of `DistServer`; return a future of its result at once.

        Args:
            name: A key of `CALLS`.
            timeout_s: Seconds after which the future fails.
            arguments: All arguments of the method.

        Raises:
            ConfigError: An argument cannot be sent.
        """
        request = CALLS[name].ask(arguments)
        future: Future[Any] = Future()
        args = (name, request, timeout_s, future)
        new_thread(
            target=self._run_call,
            args=args,
            name=f"{name} on {self.name}",
            on_death=future.set_exception,
        ).start()
        return future

    def _run_call(self, name: str, request: Any, timeout_s: float, future: "Future[Any]") -> None:
        try:
            with self._borrowed() as caller:
                call = CALLS[name]
                reply = caller.ask(name, request, call.response, timeout_s=timeout_s)
                result = call.result(reply.wait(timeout_s))
        except BaseException as error:
            future.set_exception(self.note_failure(error))
        else:
            future.set_result(result)

    @contextlib.contextmanager
    def _borrowed(self) -> Any:
        """Yield a connection for one call; a failure closes it, which ends the call."""
        with self._changed:
            # the latest, whose connection is most likely up
            caller = self._free.pop() if self._free else None
        # outside the lock, as it may wait for the server to admit this process
        caller, is_good = caller or self.dial(), True
        try:
            yield caller
        except (PeerTimeoutError, PeerLostError, ProtocolError):
            # The response may still come, and the next request would wait behind it. Closing also
            # tells the server that nobody waits. Other errors are responses.
            is_good = False
            raise
        finally:
            with self._changed:
                keep = is_good and self._error is None and len(self._free) < _MOST_FREE
                if keep:
                    self._free.append(caller)
            if not keep:
                self.hang_up(caller)

    def note_failure(self, error: BaseException) -> Exception:
        """Take note of a failed call, which may end the connection; return the error to raise.

        It is of the same class, and names the server.
        """
        if isinstance(error, PeerLostError) and not isinstance(error, JoinRefusedError):
            if error.end == EndReason.GONE:  # a call may learn this before the watch does
                self._end(self._gone(error.end))
            return self.error or self._gone(error.end)
        if isinstance(error, SamplingError):
            where = f"{self.name}, {error.where}"
            return SamplingError(where, error.cause, error.remote_traceback)
        if isinstance(error, RemoteError):
            return RemoteError(self.name, error.cause, error.remote_traceback)
        if isinstance(error, WorkerDiedError):
            return WorkerDiedError(
                error.worker, error.pid, error.exitcode, error.note, where=self.name
            )
        if isinstance(error, PeerTimeoutError | ProtocolError | JoinRefusedError):
            return error  # these name the server
        if isinstance(error, ConfigError | UsageError | PeerError):
            if re.match(rf"storage server {self.rank}\b", str(error)):
                return error  # it names the server already
            with contextlib.suppress(TypeError):  # the class takes other arguments than one string
                return type(error)(f"{self.name}: {error}")
        return error if isinstance(error, Exception) else PeerError(f"{self.name}: {error!r}")


def raise_if_broken(connections: Iterable[ServerConnection]) -> None:
    """Raise `ServerDiedError` if a server is gone, whether or not it has work to do."""
    for connection in connections:
        error = connection.error
        if error is not None:
            raise error


def result_of(future: "Future[T]", timeout_s: float, what: str, limit_s: float | None = None) -> T:
    """Return the result of ``future``.

    Args:
        future: Future of a call.
        timeout_s: How many seconds to wait; below zero: not at all.
        what: Subject of the error's sentence.
        limit_s: Limit to name in the error, after waits for other futures; None: ``timeout_s``.

    Raises:
        PeerTimeoutError: The call took longer than ``timeout_s``.
        Exception: The server's error, or the reason of its end.
    """
    try:
        return future.result(max(0.0, timeout_s))
    except FutureTimeoutError as error:
        if future.done():  # it has just ended, or a timeout on the server ended it
            return future.result()
        raise PeerTimeoutError(
            f"{what} took longer than {limit_s or timeout_s:.0f} s: the storage server is stopped "
            "or overloaded; look at its log"
        ) from error
