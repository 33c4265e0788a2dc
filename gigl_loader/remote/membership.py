"""Members of a cluster: messages, waits and refusals, and how a storage server follows server 0."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # it imports this module
    from gigl_loader.remote.presence import Presence

_log = logging.getLogger(__name__)

MOST_RANKS = 1 << 16
"""Most compute processes of a job, and most storage servers."""


class Role(Enum):
    """Kind of a process, as a storage server sees it."""

    CLIENT = "compute process"
    SERVER = "storage server"


@dataclass(frozen=True, kw_only=True)
class Join:
    """Request of a process to join a cluster."""

    role: Role
    rank: int
    num_servers: int
    """Number of storage servers that this side expects."""
    world_size: int = 0
    """Number of compute processes in the job; the first one to come sets it for all."""
    job: int | None = None
    """Number of the client's job; None: server 0 will tell it. For a storage server: the latest job
    that it knows; -1: none."""
    address: tuple[str, int] | None = None
    """Host and port on which a storage server listens."""
    incarnation: int = 0
    """Its listener's incarnation, which differs from that of an earlier server of its rank."""
    process: str = ""
    """Random, and sent to storage servers only: identifies a process that comes again."""
    cluster: str = ""
    """Identity of the process's storage cluster; empty: server 0 will tell it."""
    graph: GraphIdentity | None = None
    """Graph of a storage server, or the one that a client's job reads; None: server 0 tells it."""


def check_figures(join: Join, server: int, num_servers: int) -> None:
    """Refuse a process that expects other servers than ``server``, or connects to the wrong one.

    Raises:
        ConfigError: Names what differs.
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
        ConfigError: Names what differs.
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
    """Requests news and waits for them; pending as long as the process is a member.

    It also shows presence: when it ends, the process has left, was killed, or is out of reach.
    """

    join: Join
    seen: int
    """`News.number` of the last response; 0: there was none."""


@dataclass(frozen=True, kw_only=True)
class News:
    """The state of the cluster for one process."""

    number: int = 0
    """Number of changes so far."""
    job: int | None = None
    """The process's job, once all its members are here."""
    addresses: Addresses = NOWHERE
    """Addresses of all storage servers, once the job runs; unknown ones have port 0."""
    server: int = 0
    """Rank of the server that sends this message."""
    incarnation: int = 0
    """Incarnation of the server that sends this message."""
    num_partitions: int = 0
    """Partitions of the graph: server ``i`` serves partition ``i`` modulo that number."""
    incarnations: tuple[int, ...] = ()
    """Incarnation of each storage server by rank; 0: not known."""
    cluster: str = ""
    """Random identity of the storage cluster, sent with the servers' addresses."""
    graph: GraphIdentity | None = None
    """Identity of the graph that they hold, sent with their addresses. None: it is unknown."""
    away: tuple[int, ...] = ()
    """Storage servers that are lost and expected back."""
    missing: Runs = NOBODY
    """Storage servers that have not come yet: they are loading, or were not started."""
    status: str = ""
    """Description of the missing members, for people."""
    jobs_served: int = 0
    lost: str | None = None
    """Which storage server was lost, as text; None: none was."""
    refused: str | None = None
    """Why the process is refused for the next job."""

    def sharing(self, former: "News") -> "News":
        """Return equal news that share equal values with the former ones."""
        # Each news is decoded into new objects: each connection would hold another copy of the
        # same addresses, of which there may be thousands.
        same = {
            name: value
            for name in ("addresses", "incarnations")
            if getattr(self, name) == (value := getattr(former, name))
        }
        return replace(self, **same)


def hear(caller: Caller, join: Join, on_news: Callable[[News], None]) -> GiglLoaderError:
    """Stay a member and hand on news until membership ends; return the reason."""
    # no news has number 0, so the first request gets a response without a change
    seen = 0
    try:
        while True:
            # no deadline, as nothing new may happen for the whole job. If a server is gone or
            # silent, the caller gives it up, which ends this wait
            news = caller.ask("watch", Watch(join, seen), News).wait()
            seen = news.number
            on_news(news)
    except GiglLoaderError as error:
        return error


# --- waiting for others ---------------------------------------------------------------------------

PATIENCE_S = 10.0
"""Default length of an outage of the network that is survived, in seconds."""
# most waits are over by then, and a line for each of them would hide the long ones
_FIRST_REPORT_S = 5.0
_REPORT_EVERY_S = 10.0


def check_patience(patience_s: float) -> None:
    """Raise `ConfigError` unless a ``network_timeout`` is finite and above 0."""
    # one chain, so that nan, which compares as false, is refused
    if not (isinstance(patience_s, (int, float)) and 0 < patience_s < math.inf):
        raise ConfigError(
            f"network_timeout must be a finite number of seconds > 0, got {patience_s!r}"
        )


class WaitReport:
    """Logs now and then which members this process waits for.

    It logs warnings: these show even if logging is not set up, and a process that waits silently
    for minutes looks as if it hangs.

    Args:
        name: Name of the waiting process.
        deadline: End of the wait (`time.monotonic`).
    """

    def __init__(self, name: str, deadline: float) -> None:
        self._name = name
        self._started = time.monotonic()
        # the limit of the whole wait, as the user set it; the remaining time would differ in each
        # line
        self._until_s = deadline - self._started
        self._next = self._started + _FIRST_REPORT_S

    @property
    def next_in_s(self) -> float:
        """Seconds until the next report is due."""
        return max(0.0, self._next - time.monotonic())

    def say(self, what: str) -> None:
        """Log the missing members unless that was done a moment ago."""
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
"""Refusals that may end: certificates are renewed on one machine after the other, and a proxy or
another program may listen while a server restarts."""
_SAY_EVERY_S = 60.0
_MOST_SAID = 1000
"""Most processes and reasons to remember; beyond that refusals are counted and not logged."""


class RefusedJoins:
    """Processes that were refused; thread-safe.

    A process that tries again and again is logged once a minute for each reason, since a job that
    waits for its servers tries for as long as its ``reconnect_timeout``.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        """Time of the last log line and refusals since, by process and reason; oldest first."""

    def add(self, who: str, why: Exception) -> None:
        """Count a refusal; log it unless that was done a moment ago."""
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
    """When this reason was first given; no other one was given since (`time.monotonic`)."""
    said: float
    """When this reason was last given."""

    @property
    def is_one(self) -> bool:
        """Whether the listening server itself gave the reason."""
        return isinstance(self.error, ConfigError | JoinRefusedError)

    @property
    def cannot_change(self) -> bool:
        """Whether the reason is permanent: another cluster, graph, job or secret."""
        of_now = isinstance(self.error, JoinRefusedError) and self.error.end in _MAY_CHANGE
        return self.is_one and not of_now


# --- a storage server and server 0 ----------------------------------------------------------------

# short, as between two attempts this server checks whether it was told to end
_RENEW_S = 2.0
"""Longest attempt to reconnect to server 0, in seconds."""
_NAME = "storage server 0"


class Leader:
    """Storage server 0, as the other servers see it. They join it again after it restarts.

    ::

        joined --server 0 ends with its jobs--------------------------> over
               --it is gone--> waits --no longer than ``rejoin_s``----> lost
               <--joined again-- waits

    Args:
        host: Address of server 0.
        port: Port of server 0.
        security: The same as that of server 0.
        name: Name of this server.
        patience_s: How long an outage of the network may last, in seconds.
    """

    def __init__(
        self, host: str, port: int, security: Security, name: str, patience_s: float
    ) -> None:
        self._target, self._security, self._name = (host, port), security, name
        self._patience_s = patience_s
        self.news = News()
        """Server 0's last status."""
        self.addresses = Addresses()
        """Addresses of all servers, as server 0 last announced them."""
        self.why_away: str | None = "it has not let this server in yet"
        """Why this server waits for server 0; None: it is here."""
        self.caller = self.dial()
        """Caller whose connection shows server 0 that this server is here."""

    def dial(self, address: tuple[str, int] | None = None, incarnation: int = 0) -> Caller:
        """Return a new caller of server 0, or of the server at ``address``; see `Caller`."""
        host, port = address or self._target
        what = _NAME if address is None else f"the storage server at {host}:{port}"
        return Caller(
            host, port, self._security, self._name, patience_s=self._patience_s, what=what,
            incarnation=incarnation,
        )  # fmt: skip

    def renew(self, deadline: float) -> None:
        """Reconnect to server 0, which may have been restarted.

        Raises:
            PeerTimeoutError: Server 0 did not come up by the deadline (`time.monotonic`).
            JoinRefusedError: Server 0 refuses this server.
        """
        # A new session: under the former one, a server 0 that never ended would refuse this server,
        # as it has given it up.
        self.caller.close(End.JOB_OVER)
        fresh = self.caller = self.dial()
        # a function that does nothing is needed: without one a refused connection counts as the end
        # of server 0
        fresh.connect(deadline, on_wait=lambda why: None)

    def close(self) -> None:
        """Leave in good order. Idempotent."""
        self.caller.close(End.SHUTDOWN)

    # -- following it ---------------------------------------------------------------------------

    def start(self, server: "Presence", rejoin_s: float) -> None:
        """Follow server 0 in a thread; see `follow`."""
        new_thread(
            target=self.follow, args=(server, rejoin_s), name="watch server 0",
            on_death=lambda error: server.lose(
                f"storage server 0 is no longer heard: {type(error).__name__}: {error}"
            ),
        ).start()  # fmt: skip

    def follow(self, server: "Presence", rejoin_s: float) -> None:
        """Join, receive news, and join again, until this server or its cluster ends.

        Args:
            server: This server.
            rejoin_s: How many seconds server 0 may be away; 0: this server ends with it.
        """

        def on_news(news: News) -> None:
            self.news, self.why_away = news, None
            # a restarted server 0 sends no addresses until it knows all
            self.addresses = news.addresses or self.addresses
            server.hear(news)

        while True:
            after = hear(self.caller, server.join(), on_news)
            if not self._is_back(server, rejoin_s, after):
                return

    def _is_back(self, server: "Presence", rejoin_s: float, after: Exception) -> bool:
        """Handle the end of server 0; return whether it came back."""
        end = after.end if isinstance(after, PeerLostError) else None
        # it was told to end, perhaps to be restarted: it is expected back, but if it does not come
        # this server ends in good order
        told = end == End.SHUTDOWN
        if end == End.JOB_OVER or (told and rejoin_s <= 0) or server.is_over:
            server.over.set()
            return False
        error: Exception | None = after
        # after LOST_PEER it does not come back by itself: the cluster has to be restarted
        if rejoin_s > 0 and end != End.LOST_PEER and not _is_final(after):
            error = self._rejoin(server, rejoin_s, after)
            if error is not None and told:
                server.over.set()
                return False
        if error is not None:
            server.lose(_loss(error))
        return error is None

    def _rejoin(self, server: "Presence", rejoin_s: float, error: Exception) -> Exception | None:
        """Wait for server 0 to restart; return the reason to give up, or None."""
        _log.warning("%s. It is expected back", _loss(error))
        self.why_away = str(error)
        deadline = time.monotonic() + rejoin_s
        while not server.is_over and (time.monotonic() < deadline or server.can_do_without_0):
            try:
                self.renew(time.monotonic() + _RENEW_S)
            # before the next clause, whose class includes this one
            except PeerTimeoutError:
                continue
            except GiglLoaderError as why:
                return why
            return None
        return error


def _loss(error: Exception) -> str:
    """Return why server 0 is lost, as text that names it once."""
    text = str(error)  # a caller's errors begin with its peer's name, a server's own do not
    return text if text.startswith(_NAME) else f"{_NAME} is gone: {text}"


def _is_final(error: Exception) -> bool:
    """Return whether server 0 refuses this server for good."""
    return isinstance(error, JoinRefusedError) or not isinstance(error, PeerError)
