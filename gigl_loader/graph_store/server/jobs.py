"""Members, jobs, and servers' addresses, without sockets, threads or a clock."""

import contextlib
import hashlib
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any

from gigl_loader.errors import ConfigError, JoinRefusedError, PeerError
from gigl_loader.graph_store.wire.membership import Join, News, Role
from gigl_loader.runtime.transport import EndReason

_log = logging.getLogger(__name__)


KILLED_GRACE_S = 1.0
"""Seconds after a connection was cut off without a goodbye: a live process is back within
milliseconds; a killed one is not, and its producers should end at once."""
SILENT_GRACE_S = 2.0
"""Seconds after the silence limit. Both ends of a cut link count from what they last heard, up to
a second apart, and a client must not be given up before it gives up itself."""
# Sessions with which a given-up process may come back, about 1 MB of them. Beyond that it is told
# that this server was restarted, which ends it as well.
_MOST_DEPARTED = 10_000


@dataclass(frozen=True)
class Visitor:
    """A process that has not joined a job: all connections of one session.

    Other clients are a job's, ``(JobId, rank)``, on whichever session they come.
    """

    session: str

    def __str__(self) -> str:
        # not the session, which is this process's only proof that it is the same one
        digest = hashlib.blake2b(self.session.encode(), digest_size=4).hexdigest()
        return f"visitor {digest}"

    __repr__ = __str__


@dataclass(frozen=True)
class JobId:
    """A job: one start of those that have its name, one after another."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} (number {self.number})"

    __repr__ = __str__


def scope_of(client: Hashable) -> Hashable:
    """Return what a client's worker keys and request ids belong to: its job, or a visitor alone.

    None: the server itself asks.
    """
    if isinstance(client, Visitor):
        return client
    return client[0] if isinstance(client, tuple) else None


@dataclass(eq=False)
class Member:
    """A compute process or storage server that is a member, on any connection."""

    session: str
    join: Join
    name: str
    """Description for the log."""
    job: int | None = None
    """Number of a client's job, once known."""
    peer: Any = None
    """The current connection of its watch."""
    gone_at: float | None = None
    """Time at which it is given up unless it comes back; None: it is here."""
    why_gone: str = ""
    news: News = field(default_factory=News)
    _waiting: "Future[News] | None" = None

    @property
    def client(self) -> Hashable:
        """Owner of its producers: (`JobId`, rank), and before its job begins a `Visitor`."""
        if self.job is None:
            return Visitor(self.session)
        return JobId(self.join.job_name, self.job), self.join.rank

    def wait(self, seen: int) -> "Future[News]":
        """Return the news as soon as they differ from those numbered ``seen``."""
        # one per member: its watch sends the next request only after a response
        future: Future[News] = Future()
        former, self._waiting = self._waiting, future
        if former is not None:
            _answer(former, self.news)  # the request of a replaced connection
        if self.news.number != seen:
            self._flush()
        return future

    @property
    def has_heard(self) -> bool:
        """Whether it knows the latest news: it requested the next ones, or is not here."""
        return self._waiting is not None or self.gone_at is not None

    def tell(self, **changes: Any) -> None:
        """Change the news; waiting requests get a response if that makes a difference."""
        fresh = replace(self.news, **changes)
        # number 0 means that no news was sent yet: a client waits for the first news, with any
        # content
        if fresh != self.news or fresh.number == 0:
            self.news = replace(fresh, number=fresh.number + 1)
            self._flush()

    def _flush(self) -> None:
        # removed first, as each request gets one response
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _answer(waiting, self.news)


def _answer(future: "Future[News]", news: News) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled: its connection is over
        future.set_result(news)


class Visits:
    """Connections of each session, for processes that own producers and have not joined.

    ::

        came() -> here --the last connection ends by a goodbye----------------> left
                  here --it is cut off--> missing --``grace_s`` passed--------> left
                  here <--came()--------- missing

    Sessions of members are counted, too: a process may join after it has created a producer.

    Args:
        grace_s: Seconds for which a process may have no connection. It does not know that its
            connection was cut off before its next request, so this is an outage that it survives.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._open: Counter[str] = Counter()
        self._missing_until: dict[str, float] = {}

    def came(self, session: str) -> None:
        """Note a connection."""
        self._open[session] += 1
        self._missing_until.pop(session, None)

    def ended(self, session: str, end: EndReason, now: float) -> bool:
        """Note the end of a connection; return whether its process left with it."""
        self._open[session] -= 1
        if self._open[session] > 0:
            return False
        del self._open[session]
        # a replaced one may end before the connection that replaces it is noted
        if end in (EndReason.GONE, EndReason.SILENT, EndReason.REPLACED):
            self._missing_until[session] = now + self._grace_s
            return False
        return True

    def overdue(self, now: float) -> list[str]:
        """Return, once, the sessions whose time to come back has passed."""
        sessions = [session for session, until in self._missing_until.items() if now >= until]
        for session in sessions:
            del self._missing_until[session]
        return sessions


_GIVEN_UP = (
    "this process was out of reach for too long and was given up: its producers have ended; start "
    "the job again, with a longer network_timeout if the network needs it"
)


class Attendance:
    """Members by session: they come, stay over lost connections, and leave.

    ::

        watch() -> here --goodbye-------------------------------------> left
                   here --killed or silent--> missing --grace passed--> left
                   here <--watch() again----- missing
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._by_role_and_rank: dict[tuple[Role, int], dict[str, Member]] = {}
        self.servers: dict[int, Member] = {}
        """Storage servers by rank, the latest of each."""
        self._departed: dict[str, str] = {}
        """Why each of those that left would be refused, oldest first."""

    def find(self, session: str, seen: int) -> Member | None:
        """Return the member of a session; None: the session is new.

        Raises:
            PeerError: It was here and was given up, or was a member of an earlier server process.
        """
        member = self.members.get(session)
        if member is None and session in self._departed:
            raise PeerError(self._departed[session])
        # it has seen news of the former server
        if member is None and seen > 0:
            raise PeerError(
                "this storage server was restarted and does not know this process: start the "
                "job again"
            )
        return member

    def came(self, member: Member) -> None:
        """Add a new member."""
        self.members[member.session] = member
        join = member.join
        self._by_role_and_rank.setdefault((join.role, join.rank), {})[member.session] = member
        if join.role is Role.SERVER:
            # a later member takes the place at once; `left` of the former checks the place's holder
            self.servers[join.rank] = member

    def at(self, role: Role, rank: int) -> list[Member]:
        """Return the member of that rank, without a search through all members."""
        return list(self._by_role_and_rank.get((role, rank), {}).values())

    def returned(self, member: Member, peer: Any) -> None:
        """Note the current connection of a member's watch."""
        member.peer, member.gone_at = peer, None

    def ended(self, peer: Any, end: EndReason, now: float) -> Member | None:
        """Note the end of a connection; return the member that left with it, if any."""
        member = self.members.get(peer.session)
        # a late report of the end of a connection that was replaced ends no member
        if member is None or member.peer is not peer or end is EndReason.REPLACED:
            return None
        if end not in (EndReason.GONE, EndReason.SILENT):
            member.why_gone = f"left ({end.value})"
            return member
        grace = KILLED_GRACE_S if end is EndReason.GONE else SILENT_GRACE_S
        member.gone_at = now + grace
        member.why_gone = f"is gone without a goodbye ({end.value})"
        return None

    def overdue(self, now: float) -> list[Member]:
        """Return the members whose time to come back has passed."""
        return [m for m in self.members.values() if m.gone_at is not None and now >= m.gone_at]

    def left(self, member: Member) -> bool:
        """Forget a member; return False if that was done before."""
        if self.members.pop(member.session, None) is None:
            return False
        role_and_rank = (member.join.role, member.join.rank)
        self._by_role_and_rank[role_and_rank].pop(member.session)
        if not self._by_role_and_rank[role_and_rank]:
            del self._by_role_and_rank[role_and_rank]
        if self.servers.get(member.join.rank) is member:
            del self.servers[member.join.rank]
        # a dict, which keeps the order of its keys and finds each at once
        self._departed[member.session] = member.news.refused or _GIVEN_UP
        while len(self._departed) > _MOST_DEPARTED:
            del self._departed[next(iter(self._departed))]
        return True


_MOST_NAMES = 5
"""Most names of other jobs in the message for a client that waits."""


@dataclass(eq=False)
class JobBook:
    """Which clients of one job name are here, job after job; on server 0 only.

    The first client of a job tells how many compute processes it has. A job that is started again
    waits until its former self has left.

    ::

        gathering: clients join ---all are here, `begin`---> running: clients leave ---all left--->
    """

    name: str
    job: int | None = None
    """Number of the running job; None: clients gather."""
    world_size: int | None = None
    present: dict[int, Member] = field(default_factory=dict)
    """Clients by compute rank."""
    queued: list[Member] = field(default_factory=list)
    """Clients of the next job of this name, which came while this one runs."""
    unseen: set[int] = field(default_factory=set)
    """Compute ranks of the running job not seen since this server was started."""
    unseen_until: float = 0.0
    """When these count as gone, if nobody of the job is here then (`time.monotonic`)."""
    lapsed: bool = False
    """Whether the last client to leave was given up without a goodbye: its job may still live."""
    arrived: int = 0
    """Position of the gathering job in the order in which jobs arrived."""

    @property
    def running(self) -> bool:
        """Whether a job of this name is served."""
        return self.job is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it has to be remembered."""
        return not (self.running or self.present or self.queued)

    def join(self, member: Member) -> None:
        """Add a client, or put it in the queue.

        Raises:
            ConfigError: It counts other compute processes than the others, or its rank is taken.
        """
        if self.running:
            self.queued.append(member)
            return
        rank, world_size = member.join.rank, member.join.world_size
        if not 0 <= rank < world_size:
            raise ConfigError(f"compute rank {rank} is not in [0, {world_size})")
        # only if the newcomer would be refused otherwise: a client that is away for a moment keeps
        # its place
        if rank in self.present or world_size != self.world_size:
            self._make_room(member.join)
        another = "if it is another job, give it a name of its own: job=, or GIGL_LOADER_JOB"
        if self.present and world_size != self.world_size:
            raise ConfigError(
                f"compute process {rank} says that job {self.name!r} has {world_size} processes, "
                f"the others say {self.world_size}: give all the same GraphStoreInfo; {another}"
            )
        if rank in self.present:
            raise ConfigError(
                f"two processes joined as compute rank {rank} of job {self.name!r}: check RANK and "
                f"local_rank; {another}"
            )
        self.world_size = world_size
        self.present[rank] = member

    def begin(self, job: int) -> None:
        """Let the complete job begin, under a number that no other job has or had."""
        self.job, self.lapsed = job, False
        for member in self.present.values():
            member.job = job

    def _make_room(self, join: Join) -> None:
        """Forget clients that left without a goodbye and are replaced by others.

        Clients of a restarted job come before the killed ones are given up.
        """
        for rank, member in list(self.present.items()):
            differs = member.join.world_size != join.world_size
            if member.gone_at is not None and (differs or rank == join.rank):
                del self.present[rank]

    def go_on(self, join: Join) -> None:
        """Run again the job of a client that has met an earlier server process."""
        # those who gather now are of the next job of this name
        self.queued += self.present.values()
        self.job, self.world_size, self.present = join.job, join.world_size, {}
        # nobody knows which of them have left meanwhile
        self.unseen, self.lapsed = set(range(join.world_size)), False

    def came_back(self, member: Member, others_until: float) -> None:
        """Add a client of the running job; others not seen here may come until ``others_until``."""
        self.unseen.discard(member.join.rank)
        self.unseen_until = others_until
        self.present[member.join.rank] = member

    @property
    def complete(self) -> bool:
        """Whether all clients of the job are here, none of them gone without a goodbye."""
        if len(self.present) != self.world_size:
            return False
        return all(member.gone_at is None for member in self.present.values())

    def leave(self, member: Member) -> None:
        """Remove a client."""
        self.queued = [queued for queued in self.queued if queued is not member]
        if self.present.get(member.join.rank) is member:
            del self.present[member.join.rank]
            self.lapsed = member.gone_at is not None

    def is_over(self, now: float = -math.inf) -> bool:
        """Return whether all members of the running job have left.

        Ranks not seen since this server was started may have left before. They are waited for
        until `unseen_until`, or until all of the next job are here and nobody of this one: then
        the job was restarted, and they are gone.
        """
        awaited = self.unseen and now < self.unseen_until and not self._next_job_is_complete
        return self.running and not self.present and not awaited

    def end(self) -> list[Member]:
        """End the running job; return the clients of the next one, which have to join."""
        self.job, self.world_size, self.unseen = None, None, set()
        queued, self.queued = self.queued, []
        return queued

    @property
    def _next_job_is_complete(self) -> bool:
        """Whether all ranks of the next job wait in the queue."""
        joins = [member.join for member in self.queued if member.gone_at is None]
        # ranks, not clients: one that was killed in the queue and came again is there twice. The
        # last to come tells their number, as it belongs to the latest start of that job.
        return bool(joins) and len({join.rank for join in joins}) >= joins[-1].world_size

    @property
    def num_waiting(self) -> int:
        """Number of clients that wait to be admitted."""
        return len(self.queued if self.running else self.present)


@dataclass(frozen=True)
class EndedJob:
    """A job that is over."""

    name: str
    job: int
    lapsed: bool
    """Whether its last client was given up without a goodbye."""
    refused: tuple[tuple[Member, ConfigError], ...]
    """Clients that waited for the next job of this name and cannot be of it."""


class Jobs:
    """The jobs of a storage cluster by name, each with a `JobBook`; on server 0 only.

    Jobs of different names gather, run and end independently of each other. At most ``max_jobs``
    run at a time: further complete ones begin in the order in which they arrived.

    Args:
        max_jobs: Most jobs that are served at a time.
    """

    def __init__(self, max_jobs: int) -> None:
        self._max_jobs = max_jobs
        self._books: dict[str, JobBook] = {}
        self._arrivals = itertools.count()
        self._over: dict[int, None] = {}
        """Numbers of jobs that are over, the oldest first."""
        self._lapsed: dict[str, int] = {}
        """By name the last job, if its clients were given up: they may still come back."""
        self.latest = -1
        """The latest job number that was heard of: a restarted server 0 has counted none."""
        self.served = 0
        """Number of jobs that are over."""

    def join(self, member: Member) -> None:
        """Add a client that has no job number yet; raises as `JobBook.join`."""
        book = self._book(member.join.job_name)
        if book.is_empty:
            book.arrived = next(self._arrivals)
        try:
            book.join(member)
        finally:
            self._forget_if_empty(book)

    def readmit(self, member: Member, others_until: float) -> None:
        """Add a client of a running job that has met an earlier server process, or was given up.

        Args:
            member: The new member.
            others_until: Until when members of its job that were not seen here may come.

        Raises:
            JoinRefusedError: Its job is over.
            ConfigError: Its job has another name.
        """
        join, book = member.join, self._book(member.join.job_name)
        assert join.job is not None, "it says which job"
        try:
            if book.job != join.job:
                self._go_on(book, join)
            book.came_back(member, others_until)
        finally:
            self._forget_if_empty(book)

    def _go_on(self, book: JobBook, join: Join) -> None:
        assert join.job is not None
        for other in self._books.values():
            if other.job == join.job:
                raise ConfigError(
                    f"job {join.job} has the name {other.name!r}, and compute process {join.rank} "
                    f"says {join.job_name!r}: start the job again"
                )
        # This server may have been suspended for longer than its clients wait: when it continues,
        # all of them have hung up, and come back just after it has given them up.
        has_lapsed = self._lapsed.get(book.name) == join.job and not book.present
        if book.running or (join.job in self._over and not has_lapsed):
            what = "was away for too long"
            if book.running:
                what = f"was away while the job was started again, as number {book.job}"
            raise JoinRefusedError(
                f"job {join.job} ({book.name!r}) of the storage cluster is over: compute process "
                f"{join.rank} {what}; start the job again",
                EndReason.JOB_OVER,
            )
        if has_lapsed:
            del self._lapsed[book.name]
            self._over.pop(join.job, None)
            self.served -= 1  # it was counted too early
        else:  # this server process has counted nothing before it
            self.served = max(self.served, join.jobs_served)
        book.go_on(join)

    def heard_of(self, job: int | None) -> None:
        """Note the number of a job that another process has, or had."""
        self.latest = max(self.latest, -1 if job is None else job)

    def begin(self) -> list[JobBook]:
        """Let complete jobs begin while there is room; return them."""
        begun = self._complete[: max(0, self._max_jobs - self.num_running)]
        for book in begun:
            self.latest += 1
            self._lapsed.pop(book.name, None)  # this one takes its place
            book.begin(self.latest)
        return begun

    @property
    def _complete(self) -> list[JobBook]:
        """Jobs whose clients are all here and that do not run, as they arrived."""
        waiting = [book for book in self._books.values() if not book.running and book.complete]
        return sorted(waiting, key=lambda book: book.arrived)

    @property
    def num_running(self) -> int:
        """Number of jobs that are served."""
        return sum(book.running for book in self._books.values())

    def leave(self, member: Member) -> None:
        """Remove a client; `end_those_over` ends its job if it was the last."""
        book = self._books.get(member.join.job_name)
        if book is not None:
            book.leave(member)
            self._forget_if_empty(book)

    def stop(self, name: str) -> tuple[int | None, list[Member]]:
        """Await nobody of a job; return its number, if it runs, and its clients, which must leave.

        Those that wait under its name are among them.

        Raises:
            ConfigError: There is no such job.
        """
        book = self._books.get(name)
        if book is None:
            jobs = ", ".join(map(repr, self._books)) or "none"
            raise ConfigError(f"there is no job {name!r}; jobs that run or gather: {jobs}")
        clients = [*book.present.values(), *book.queued]
        book.unseen, book.queued = set(), []
        # those that run are its members until they have left
        book.present = book.present if book.running else {}
        self._forget_if_empty(book)
        return book.job, clients

    def end_those_over(self, now: float = -math.inf) -> list[EndedJob]:
        """End the jobs of which all members have left; see `JobBook.is_over`."""
        return [self._end(book) for book in list(self._books.values()) if book.is_over(now)]

    def _end(self, book: JobBook) -> EndedJob:
        assert book.job is not None, "it runs"
        number, refused = book.job, list[tuple[Member, ConfigError]]()
        self._over[number] = None
        if book.lapsed:
            self._lapsed[book.name] = number
        _forget_oldest(self._over)
        _forget_oldest(self._lapsed)
        self.served += 1
        queued, book.arrived = book.end(), next(self._arrivals)
        for member in queued:
            try:
                book.join(member)
            except ConfigError as error:
                refused.append((member, error))
        self._forget_if_empty(book)
        return EndedJob(book.name, number, book.lapsed, tuple(refused))

    def describe(self, missing_servers: Iterable[int]) -> dict[str, str]:
        """Return by job name why clients without a job number wait."""
        missing, ahead = sorted(missing_servers), self._complete
        gathering = [book.name for book in self._books.values() if not book.running]
        texts = {}
        for book in self._books.values():
            where = f" of job {book.name!r}"
            if book.running:
                texts[book.name] = (
                    f"an earlier job {book.name!r} is still served; {len(book.present)} of its "
                    "clients are here. A job of another name need not wait for it"
                )
                continue
            text = f"{len(book.present)} of {book.world_size} compute processes{where} are here"
            if missing:
                text += f"; storage servers {missing} have not loaded their partitions yet"
            elif book not in ahead and (others := [n for n in gathering if n != book.name]):
                # ranks that were given different names wait for each other without end
                text += f"; other jobs wait, too: {', '.join(map(repr, others[:_MOST_NAMES]))}"
            elif book in ahead and self.num_running >= self._max_jobs:
                text += (
                    f"; {self.num_running} jobs are served, the most at a time (--max-jobs), and "
                    f"{ahead.index(book)} wait before it"
                )
            texts[book.name] = text
        return texts

    @property
    def num_waiting(self) -> int:
        """Number of clients that wait to be admitted."""
        return sum(book.num_waiting for book in self._books.values())

    def _book(self, name: str) -> JobBook:
        return self._books.setdefault(name, JobBook(name))

    def _forget_if_empty(self, book: JobBook) -> None:
        # names are as many as jobs, and a server serves them for months
        if book.is_empty:
            self._books.pop(book.name, None)


def _forget_oldest(known: dict[Any, Any]) -> None:
    while len(known) > _MOST_DEPARTED:
        del known[next(iter(known))]


# --- storage servers ------------------------------------------------------------------------------

_UNKNOWN = (("", 0), 0)


@dataclass(frozen=True)
class _Away:
    """A server that is expected back."""

    why: str
    """Why it left, for people."""
    until: float
    """When it is given up, unless it has a replica here (`time.monotonic`)."""


class ServerBook:
    """Addresses of the servers, and which of them are away.

    ::

        unknown --came--> here --left--> away --its time is over, and no replica is here--> given up
                          here <--came-- away

    Server ``i`` serves partition ``i`` modulo ``num_partitions``; those of one
    partition are replicas.

    Args:
        num_servers: Number of servers.
        num_partitions: Number of the graph's partitions.
        address: Address of server 0.
        incarnation: Incarnation of server 0.
    """

    def __init__(
        self, num_servers: int, num_partitions: int, address: tuple[str, int], incarnation: int
    ) -> None:
        self._num_servers, self._num_partitions = num_servers, num_partitions
        # kept when a server leaves, as it may come back at the same address
        self._where = {0: (address, incarnation)}
        self._away: dict[int, _Away] = {}

    def came(self, join: Join) -> None:
        """Note that a server is here, or here again."""
        if join.address is not None:
            self._where[join.rank] = (join.address, join.incarnation)
        self._away.pop(join.rank, None)

    def left(self, rank: int, why: str, until: float) -> None:
        """Note that a server is away."""
        self._away[rank] = _Away(why, until)

    def given_up(self, up: Iterable[int], now: float) -> str | None:
        """Return why the cluster cannot continue, or None; ``up`` are the other servers up.

        A partition may lose its servers one after another; the last one's time counts.
        """
        # this runs on server 0, which is never among those that joined it
        held = self._partitions({0, *up})
        left: dict[int, _Away] = {}
        for rank, away in self._away.items():
            partition = rank % self._num_partitions
            # a partition's first server is compared with itself
            if partition not in held and away.until >= left.get(partition, away).until:
                left[partition] = away
        return next((away.why for away in left.values() if now >= away.until), None)

    def complete(self, up: Iterable[int]) -> bool:
        """Return whether a job may begin: all servers are here, except those with a replica.

        A server that was never here is waited for, replica or not, as it is still loading.
        """
        up = {0, *up}
        held = self._partitions(up)
        return all(
            rank in up or (rank in self._away and rank % self._num_partitions in held)
            for rank in range(self._num_servers)
        )

    def where(
        self, up: Iterable[int]
    ) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]] | None:
        """Return addresses and incarnations of all servers; None: a partition has no server yet."""
        # so nobody begins with addresses that do not cover the whole graph
        if len(self._partitions({0, *up})) < self._num_partitions:
            return None
        known = [self._where.get(rank, _UNKNOWN) for rank in range(self._num_servers)]
        return tuple(address for address, _ in known), tuple(number for _, number in known)

    def _partitions(self, servers: Iterable[int]) -> set[int]:
        return {server % self._num_partitions for server in servers}

    def is_away(self, rank: int) -> bool:
        """Return whether a server is expected back."""
        return rank in self._away

    @property
    def away(self) -> dict[int, str]:
        """Why each server left that is expected back."""
        return {rank: away.why for rank, away in self._away.items()}


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
