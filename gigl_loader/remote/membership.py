"""Messages about who is here: compute processes and storage servers; and waits for them."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.remote.compact import NOBODY, NOWHERE, Addresses, Runs
from gigl_loader.transport import Caller

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
    """Random, and told to storage servers alone: who comes again with it is the same process."""
    cluster: str = ""
    """Which storage cluster the process belongs to; empty: to be told by server 0."""
    graph: GraphIdentity | None = None
    """What a storage server holds, or what a client's job reads; None: to be told."""


def check_figures(join: Join, server: int, num_servers: int) -> None:
    """Refuse who counts other servers than ``server`` does, or came to the wrong one.

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
    """Refuse who belongs to another cluster than ``server``, or to another graph.

    What is not known on either side is not compared.

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
    """Asks what there is to know, once it is something new. Under way as long as a process is here.

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
    """The job that the process belongs to, once all of it are here."""
    addresses: Addresses = NOWHERE
    """Of all storage servers, once the job runs. Unknown ones have port 0."""
    server: int = 0
    """Rank of the server that sends this message."""
    incarnation: int = 0
    """Incarnation of the server that sends this message."""
    num_partitions: int = 0
    """Of the graph: server ``i`` serves partition ``i`` modulo that number."""
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
    """For people: who is waited for."""
    jobs_served: int = 0
    lost: str | None = None
    """Which storage server was lost, in words; None: all are well."""
    refused: str | None = None
    """Why the process does not become part of the next job."""

    def sharing(self, former: "News") -> "News":
        """Return the same, which holds no second copy of what the former ones said, too."""
        # each news is decoded afresh: of thousands of servers, the addresses would be held once
        # more by each connection that hears them, though they are the same
        same = {
            name: value
            for name in ("addresses", "incarnations")
            if getattr(self, name) == (value := getattr(former, name))
        }
        return replace(self, **same)


def hear(caller: Caller, join: Join, on_news: Callable[[News], None]) -> GiglLoaderError:
    """Be here, and hand on what is new, until that ends; return why it did."""
    # no news have number 0, so the first question is answered without a change
    seen = 0
    try:
        while True:
            # no deadline: nothing new may happen for the whole job. A server that is gone or silent
            # ends this wait all the same, as the caller gives it up
            news = caller.ask("watch", Watch(join, seen), News).wait()
            seen = news.number
            on_news(news)
    except GiglLoaderError as error:
        return error


# --- waiting for others ---------------------------------------------------------------------------

_log = logging.getLogger(__name__)

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
    """Says in the log, now and then, what this process waits for.

    As warnings: these show where no logging was set up, and a process that waits for minutes
    without a word looks like one that hangs.

    Args:
        name: Who waits.
        deadline: Until when (`time.monotonic`).
    """

    def __init__(self, name: str, deadline: float) -> None:
        self._name = name
        self._started = time.monotonic()
        # of the whole wait, as the user set it; what is left of it would be another number in each
        # line
        self._until_s = deadline - self._started
        self._next = self._started + _FIRST_REPORT_S

    @property
    def next_in_s(self) -> float:
        """Seconds until there is something to say again."""
        return max(0.0, self._next - time.monotonic())

    def say(self, what: str) -> None:
        """Say what is waited for, unless that was said a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY_S
            _log.warning(
                "%s has waited %.0f s for %s; it gives up after %.0f s",
                *(self._name, now - self._started, what, self._until_s),
            )
