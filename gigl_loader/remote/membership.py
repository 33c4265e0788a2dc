"""Members of a cluster: messages, waits, refusals, and how a storage server follows server 0."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
)
from gigl_loader.remote.requests import NOBODY, NOWHERE, Addresses, Runs
from gigl_loader.threads import new_thread
from gigl_loader.transport import Caller, End, Security

_log = logging.getLogger(__name__)

MOST_RANKS = 1 << 16
"""The most compute processes of a job, and the most storage servers."""


class Role(Enum):
    """Role of a process towards a storage server."""

    CLIENT = "compute process"
    SERVER = "storage server"


@dataclass(frozen=True, kw_only=True)
class Join:
    """Request of a process to join a cluster."""

    role: Role
    rank: int
    num_servers: int
    """How many storage servers this side counts."""
    world_size: int = 0
    """Compute processes of the job; the first one to come says it for all."""
    job: int | None = None
    """Which job the client belongs to; None: to be told by server 0. Of a storage server: the
    latest that it knows; -1: none."""
    address: tuple[str, int] | None = None
    """Host and port on which a storage server listens."""
    incarnation: int = 0
    """Tells a storage server from the one that had its rank before: its listener's."""
    process: str = ""
    """Random, and sent to storage servers alone: it identifies a process that comes again."""
    cluster: str = ""
    """Which storage cluster the process belongs to; empty: to be told by server 0."""
    graph: GraphIdentity | None = None
    """Contents of a storage server, or data that a client's job reads; None: server 0 tells it."""


def check_figures(join: Join, server: int, num_servers: int) -> None:
    """Refuse a process that counts other servers than ``server``, or connects to the wrong one.

    Raises:
        ConfigError: Says which.
    """
    # first: where the two sides count differently, a rank does not mean the same server on both
    if join.num_servers != num_servers:
        raise ConfigError(
            f"{join.role.value} {join.rank} counts {join.num_servers} storage servers, server "
            f"{server} counts {num_servers}: give all the same GraphStoreInfo"
        )
    is_client = join.role is Role.CLIENT
    lowest, ranks = (0, join.world_size) if is_client else (1, num_servers)
    if not lowest <= join.rank < ranks <= MOST_RANKS:
        raise ConfigError(
            f"{join.role.value} {join.rank} of {ranks} cannot be: ranks count from {lowest}, and "
            f"there are at most {MOST_RANKS}"
        )
    # server 0 alone counts jobs; at the other servers a client already knows the number of its own
    if is_client and join.job is None and server != 0:
        raise ConfigError(
            f"this is storage server {server}; clients join at server 0: check "
            "storage_cluster_master_ip and rpc_master_port"
        )


def check_same(join: Join, server: int, cluster: str, graph: GraphIdentity | None) -> None:
    """Refuse a process of another cluster than that of ``server``, or of another graph.

    Values unknown on either side are not compared.

    Raises:
        ConfigError: Says which.
    """
    who = f"{join.role.value} {join.rank}"
    if join.graph is not None and graph is not None and join.graph != graph:
        runs = join.graph.run, graph.run
        what = "partitions of two runs" if runs[0] != runs[1] else "two graphs"
        raise ConfigError(
            f"{what}: {who} has that of run {runs[0]} ({join.graph.digest or 'no digest'}), "
            f"storage server {server} that of run {runs[1]} ({graph.digest or 'no digest'}). Give "
            "all storage servers the partitions of one run, or, where this one is right by now, "
            f"start {who} again"
        )
    if join.cluster and cluster and join.cluster != cluster:
        raise ConfigError(
            f"{who} belongs to storage cluster {join.cluster}, and storage server {server} to "
            f"another one, {cluster}, which has its port by now: start {who} again"
        )


@dataclass(frozen=True)
class Watch:
    """Requests news, and waits for it. In progress as long as the process is a member.

    It doubles as presence: where it ends, the process has left, was killed, or is out of reach.
    """

    join: Join
    seen: int
    """`News.number` of the last answer; 0: there was none."""


@dataclass(frozen=True, kw_only=True)
class News:
    """The state of the cluster, as far as it concerns one process."""

    number: int = 0
    """Counts the changes."""
    job: int | None = None
    """The job that the process belongs to, once all its members are here."""
    addresses: Addresses = NOWHERE
    """Addresses of all storage servers, once the job runs. Unknown ones have port 0."""
    server: int = 0
    """Rank of the server that sends this message."""
    incarnation: int = 0
    """Incarnation of the server that sends this message."""
    num_partitions: int = 0
    """Partitions of the graph: server ``i`` serves partition ``i`` modulo that number."""
    incarnations: tuple[int, ...] = ()
    """Which process each storage server is, by rank; 0: not known."""
    cluster: str = ""
    """Random identity of the storage cluster, sent with the servers' addresses."""
    graph: GraphIdentity | None = None
    """Identity of the graph that they hold, sent with their addresses. None: it is unknown."""
    away: tuple[int, ...] = ()
    """Storage servers that are lost and expected back."""
    missing: Runs = NOBODY
    """Storage servers that have not come yet: they load, or were not started."""
    status: str = ""
    """Names of the missing members, for people."""
    jobs_served: int = 0
    lost: str | None = None
    """Which storage server was lost, in words; None: all are well."""
    refused: str | None = None
    """Why the process does not become part of the next job."""

    def sharing(self, former: "News") -> "News":
        """Return equal news without a second copy of values in the former ones."""
        # each news is decoded afresh: of thousands of servers, the addresses would be held once
        # more by each connection that hears them, though they are the same
        same = {
            name: value
            for name in ("addresses", "incarnations")
            if getattr(self, name) == (value := getattr(former, name))
        }
        return replace(self, **same)


def hear(caller: Caller, join: Join, on_news: Callable[[News], None]) -> GiglLoaderError:
    """Stay a member, and hand on news, until that ends; return the reason."""
    # no news have number 0, so the first request gets a response without a change
    seen = 0
    try:
        while True:
            # no deadline: nothing new may happen for the whole job. A server that is gone or silent
            # ends this wait anyway, as the caller gives it up
            news = caller.ask("watch", Watch(join, seen), News).wait()
            seen = news.number
            on_news(news)
    except GiglLoaderError as error:
        return error


# --- waiting for others ---------------------------------------------------------------------------

PATIENCE_S = 10.0
"""Default of how long an outage of the network may last."""
# most waits are over by then, and a line for each of them would hide those that are not
_FIRST_REPORT_S = 5.0
_REPORT_EVERY_S = 10.0


def check_patience(patience_s: float) -> None:
    """Raise `ConfigError` unless a ``network_timeout`` can be waited for."""
    # as one chain, so that nan, which compares as false, is refused
    if not (isinstance(patience_s, (int, float)) and 0 < patience_s < math.inf):
        raise ConfigError(
            f"network_timeout must be a finite number of seconds > 0, got {patience_s!r}"
        )


class WaitReport:
    """Logs now and then the members that this process waits for.

    As warnings: these show where no logging was set up, and a process that waits for minutes
    without a word looks like one that hangs.

    Args:
        name: Name of the waiting process.
        deadline: End of the wait (`time.monotonic`).
    """

    def __init__(self, name: str, deadline: float) -> None:
        self._name = name
        self._started = time.monotonic()
        # of the whole wait, as the user set it; the remaining time would be another number in each
        # line
        self._until_s = deadline - self._started
        self._next = self._started + _FIRST_REPORT_S

    @property
    def next_in_s(self) -> float:
        """Seconds until there is something to say again."""
        return max(0.0, self._next - time.monotonic())

    def say(self, what: str) -> None:
        """Log the missing members, unless that was done a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY_S
            _log.warning(
                "%s has waited %.0f s for %s; it gives up after %.0f s",
                *(self._name, now - self._started, what, self._until_s),
            )


# --- refusals -------------------------------------------------------------------------------------

_MAY_CHANGE = (
    End.REFUSED_CERTIFICATE, End.REFUSED_SERVICE, End.REFUSED_BUSY, End.REFUSED_SLOW,
)  # fmt: skip
"""Refusals after which a server may be the same again: certificates are renewed on one machine
after the other, and a proxy or another program may listen while it is restarted."""
_SAY_EVERY_S = 60.0
_MOST_SAID = 1000
"""Processes and reasons that are remembered; beyond that they are counted and not said."""


class RefusedJoins:
    """Processes that were not taken in; safe in threads.

    One that asks again and again is in the log once a minute for each reason, since a job that
    waits for its servers asks for as long as its ``reconnect_timeout``.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        """When it was said last, and how often it was not since; said longest ago first."""

    def add(self, who: str, why: Exception) -> None:
        """Count one; say so unless that was done a moment ago."""
        key, now = (who, str(why)), time.monotonic()
        with self._lock:
            self.count += 1
            said_at, unsaid = self._said.get(key, (-math.inf, 0))
            if now - said_at < _SAY_EVERY_S:
                self._said[key] = (said_at, unsaid + 1)
                return
            self._said.pop(key, None)
            # invented reasons must fill neither memory nor the log
            oldest = next(iter(self._said.values()), (-math.inf, 0))[0]
            if len(self._said) >= _MOST_SAID:
                if now - oldest < _SAY_EVERY_S:
                    return
                del self._said[next(iter(self._said))]
            self._said[key] = (now, 0)
        more = f" ({unsaid} more times since it was said last)" if unsaid else ""
        _log.warning("%s cannot join: %s%s", who, why, more)


@dataclass(frozen=True)
class Refusal:
    """Why the last attempt did not accept the process in place of a lost server."""

    error: GiglLoaderError
    since: float
    """When it was said first; since then nothing else was (`time.monotonic`)."""
    said: float
    """When it was said last."""

    @property
    def is_one(self) -> bool:
        """Whether the server has said so itself."""
        return isinstance(self.error, ConfigError | JoinRefusedError)

    @property
    def cannot_change(self) -> bool:
        """Whether it would say the same again: of another cluster, graph or job, or secret."""
        of_now = isinstance(self.error, JoinRefusedError) and self.error.end in _MAY_CHANGE
        return self.is_one and not of_now

    def copy(self) -> GiglLoaderError:
        """Return the error with a traceback of its own."""
        return type(self.error)(*self.error.args)


# --- a storage server and server 0 ----------------------------------------------------------------

# short: between two attempts it is seen whether this server was told to end
_RENEW_S = 2.0
"""Longest attempt to connect again with server 0."""


class Followed(Protocol):
    """A storage server other than 0, as `Leader` has to know it."""

    over: threading.Event
    """Set when there is nothing left to serve."""

    def join(self) -> Join:
        """Return this server's description of itself, as far as known."""

    def hear(self, news: News) -> None:
        """Take the news of server 0."""

    def lose(self, why: str) -> None:
        """Take note that server 0 is given up."""

    @property
    def is_over(self) -> bool:
        """Whether this server ends anyway."""

    @property
    def can_do_without_0(self) -> bool:
        """Whether a job goes on without server 0, which is then waited for meanwhile."""


_NAME = "storage server 0"


class Leader:
    """Storage server 0, as the other servers see it. They join it again where it is started again.

    ::

        joined --server 0 ends with its jobs--------------------------> over
               --it is gone--> waits --no longer than ``rejoin_s``----> lost
               <--joined again-- waits

    Args:
        host: Address of server 0.
        port: Port of server 0.
        security: The same as that of server 0.
        name: Name of this server.
        patience_s: How long an outage of the network may last.
    """

    def __init__(
        self, host: str, port: int, security: Security, name: str, patience_s: float
    ) -> None:
        self._target, self._security, self._name = (host, port), security, name
        self._patience_s = patience_s
        self.news = News()
        """Its last status."""
        self.addresses = Addresses()
        """Addresses of all servers, as it last announced them."""
        self.why_away: str | None = "it has not let this server in yet"
        """Why it is waited for; None: it is here."""
        self.caller = self.dial()
        """Its connection tells server 0 that this server is here."""

    def dial(self, address: tuple[str, int] | None = None, incarnation: int = 0) -> Caller:
        """Return a fresh caller of server 0, or of the server at ``address``; see `Caller`."""
        host, port = address or self._target
        what = _NAME if address is None else f"the storage server at {host}:{port}"
        return Caller(
            host, port, self._security, self._name, patience_s=self._patience_s, what=what,
            incarnation=incarnation,
        )  # fmt: skip

    def renew(self, deadline: float) -> None:
        """Connect again with server 0, which may have been started again.

        Raises:
            PeerTimeoutError: It did not come up by the deadline (`time.monotonic`).
            JoinRefusedError: It does not let this server in.
        """
        # Fresh for the sake of its session: under the former one a server 0 that never ended would
        # refuse this server, which it has given up.
        self.caller.close(End.JOB_OVER)
        fresh = self.caller = self.dial()
        # given, though it does nothing: without it a refused connection counts as the end of server
        # 0
        fresh.connect(deadline, on_wait=lambda why: None)

    def close(self) -> None:
        """Leave in good order. Idempotent."""
        self.caller.close(End.SHUTDOWN)

    # -- following it ---------------------------------------------------------------------------

    def start(self, server: Followed, rejoin_s: float) -> None:
        """Follow server 0 in a thread; see `follow`."""
        new_thread(
            target=self.follow, args=(server, rejoin_s), name="watch server 0",
            on_death=lambda error: server.lose(
                f"storage server 0 is no longer heard: {type(error).__name__}: {error}"
            ),
        ).start()  # fmt: skip

    def follow(self, server: Followed, rejoin_s: float) -> None:
        """Join, receive news, and join again, until this server or its cluster ends.

        Args:
            server: This server.
            rejoin_s: How long server 0 may be away; 0: its end is this server's.
        """

        def on_news(news: News) -> None:
            self.news, self.why_away = news, None
            # a server 0 that was started again says nothing of them until it knows all
            self.addresses = news.addresses or self.addresses
            server.hear(news)

        while True:
            after = hear(self.caller, server.join(), on_news)
            if not self._is_back(server, rejoin_s, after):
                return

    def _is_back(self, server: Followed, rejoin_s: float, after: Exception) -> bool:
        """Server 0 has ended: with its jobs, told to, or by itself; tell whether it came back."""
        end = after.end if isinstance(after, PeerLostError) else None
        # told to end, perhaps to be started again: expected back, but if it does not come this
        # server ends in good order
        told = end == End.SHUTDOWN
        if end == End.JOB_OVER or (told and rejoin_s <= 0) or server.is_over:
            server.over.set()
            return False
        error: Exception | None = after
        # after LOST_PEER it does not come back by itself: the cluster has to be started again
        if rejoin_s > 0 and end != End.LOST_PEER and not _is_final(after):
            error = self._rejoin(server, rejoin_s, after)
            if error is not None and told:
                server.over.set()
                return False
        if error is not None:
            server.lose(_loss(error))
        return error is None

    def _rejoin(self, server: Followed, rejoin_s: float, error: Exception) -> Exception | None:
        """Wait for server 0 to be started again; return why that is given up."""
        _log.warning("%s. It is expected back", _loss(error))
        self.why_away = str(error)
        deadline = time.monotonic() + rejoin_s
        while not server.is_over and (time.monotonic() < deadline or server.can_do_without_0):
            try:
                self.renew(time.monotonic() + _RENEW_S)
            # ahead of the next clause, of whose class it is, too
            except PeerTimeoutError:
                continue
            except GiglLoaderError as why:
                return why
            return None
        return error


def _loss(error: Exception) -> str:
    """Return why server 0 is lost, in words that name it once."""
    text = str(error)  # a caller's errors begin with its peer's name, a server's own do not
    return text if text.startswith(_NAME) else f"{_NAME} is gone: {text}"


def _is_final(error: Exception) -> bool:
    """Return whether server 0 does not want this server, however often it asks."""
    return isinstance(error, JoinRefusedError) or not isinstance(error, PeerError)
