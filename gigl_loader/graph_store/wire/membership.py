"""Members of a cluster: how they join, what they hear, and how long they wait for each other."""

import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

import msgspec

from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.graph_store.wire.requests import NOBODY, NOWHERE, Addresses, Runs
from gigl_loader.runtime.decoding import Name
from gigl_loader.runtime.transport import Caller

_log = logging.getLogger(__name__)

MOST_RANKS = 1 << 16
"""Most compute processes of a job, and most storage servers."""
_LONGEST_NAME = 100
"""Most characters of a job's name."""
MAX_JOBS = 16
"""Default number of jobs that a storage cluster serves at a time."""


MOST_COUNTED = 1 << 40
"""Largest number or count of jobs that a server takes from another process. Messages carry twice
that: jobs that begin after it still have numbers that travel."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2 * MOST_COUNTED)]
_Number = Annotated[int, msgspec.Meta(ge=-1, le=2 * MOST_COUNTED)]


def check_max_jobs(max_jobs: int) -> None:
    """Raise `ConfigError` unless ``max_jobs`` is an integer of at least 1."""
    if not isinstance(max_jobs, int) or max_jobs < 1:
        raise ConfigError(f"max_jobs must be an integer >= 1, got {max_jobs!r}")


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
    job_name: str = ""
    """Name of the client's job, the same on all its processes; see `check_job_name`."""
    job: _Number | None = None
    """Number of the client's job; None: server 0 will tell it. For a storage server: the latest job
    that it knows; -1: none."""
    jobs_served: _Count = 0
    """Number of jobs that are over, as far as this process knows."""
    address: tuple[Name, int] | None = None
    """Host and port on which a storage server listens."""
    incarnation: int = 0
    """Its listener's incarnation, which differs from that of an earlier server of its rank."""
    process: Name = ""
    """Random, and sent to storage servers only: identifies a process that comes again."""
    secret: Annotated[bytes, msgspec.Meta(max_length=64)] = field(default=b"", repr=False)
    """Secret of the client's job, from server 0's news: shows that it was there at the start."""
    cluster: Name = ""
    """Identity of the process's storage cluster; empty: server 0 will tell it."""
    graph: GraphIdentity | None = None
    """Graph of a storage server, or the one that a client's job reads; None: server 0 tells it."""


@dataclass(frozen=True)
class BookedJob:
    """A job as it began, as servers tell each other."""

    number: int
    name: str
    world_size: int
    """Number of its compute processes."""
    proof: bytes
    """`proof_of` its secret: who is told this cannot act as one of its processes."""


def proof_of(secret: bytes) -> bytes:
    """Return what a server compares with, in place of a job's secret."""
    return hashlib.sha256(secret).digest()


def check_job_name(name: str) -> None:
    """Raise `ConfigError` unless ``name`` is the name of a job: printable, up to 100 characters."""
    # it is shown in logs, metrics and status, each of which has one line for it
    is_shown = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not (is_shown and 0 < len(name) <= _LONGEST_NAME):
        raise ConfigError(
            f"the name of a job has 1 to {_LONGEST_NAME} printable characters, and no space at its "
            f"ends, got {name!r}"
        )


def stopped_text(name: str) -> str:
    """Return the text of `JobStoppedError` for the clients of a job."""
    return f"job {name!r} was stopped on the storage cluster, by `gigl-loader stop-job`"


def check_join(join: Join, server: int, num_servers: int) -> None:
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
    if is_client:
        check_job_name(join.job_name)
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
    secret: bytes = field(default=b"", repr=False)
    """Secret of the process's job."""
    jobs: tuple[BookedJob, ...] = ()
    """The jobs that run; told to storage servers only."""
    servers: dict[int, bytes] = field(default_factory=dict)
    """`proof_of` the ``Join.process`` of the other storage servers; told to these only."""
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
    stopped: tuple[int, ...] = ()
    """Numbers of jobs that were stopped, the latest last; for a client, of its own alone."""

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


def check_patience(patience_s: float, name: str = "network_timeout") -> None:
    """Raise `ConfigError` unless a number of seconds is finite and above 0."""
    # one chain, so that nan, which compares as false, is refused
    if not (isinstance(patience_s, (int, float)) and 0 < patience_s < math.inf):
        raise ConfigError(f"{name} must be a finite number of seconds > 0, got {patience_s!r}")


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
