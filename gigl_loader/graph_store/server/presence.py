"""Members, jobs, and the news for each process. Opens no listener itself."""

import logging
import math
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JobStoppedError,
    PeerError,
    ServerDiedError,
)
from gigl_loader.graph_store.server.attendance import Attendance
from gigl_loader.graph_store.server.batch_sender import BatchSender
from gigl_loader.graph_store.server.client_ids import Visitor
from gigl_loader.graph_store.server.job_numbers import JobNumbers
from gigl_loader.graph_store.server.job_rules import EndedJob, JobRules, Settled
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.server.refused_joins import RefusedJoins
from gigl_loader.graph_store.server.rendezvous_host import RendezvousTable
from gigl_loader.graph_store.server.server_book import ServerBook
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.visits import Visits
from gigl_loader.graph_store.wire.membership import (
    Join,
    News,
    Role,
    Watch,
    check_join,
    check_same,
    proof_of,
    stopped_text,
)
from gigl_loader.graph_store.wire.requests import Addresses, Runs
from gigl_loader.runtime.threads import start_aside
from gigl_loader.runtime.transport import Caller, EndReason, Peer, Security

_log = logging.getLogger(__name__)

_ANSWERS_S = 5.0
"""Seconds that a storage server may take for a handshake before it counts as gone, if another
process claims its rank."""
_GRACE_S = 30.0
"""Seconds that clients may take to leave after a server was lost."""
_LEARN_S = 20.0
"""Longest wait of another server for server 0's news of a job, whose clients may be faster."""
_HEAR_S = 1.0
"""Longest wait for servers to learn that the jobs are over; a stopped one never does."""
_STATUS_S_PER_MEMBER = 0.005
"""Seconds between two messages about missing members, for each waiting one; with 200 of them there
is one every second."""


class Presence:
    """The processes around one storage server: on server 0, the whole cluster and its jobs.

    Args:
        server: The served object.
        security: Authentication and encryption.
        num_jobs: Number of jobs to serve; None: until told to stop. Only server 0's value counts.
        max_jobs: Most jobs that run at a time. Only server 0's value counts.
        leader: Server 0, as the other servers reach it.
        patience_s: Seconds that an outage of the network may last before a process is given up.
        rejoin_s: Seconds that another server may be away before this one ends; 0: ends at once.
    """

    def __init__(
        self,
        server: StorageService,
        security: Security,
        num_jobs: int | None,
        max_jobs: int,
        leader: LeaderLink | None,
        patience_s: float,
        rejoin_s: float,
    ) -> None:
        self.server, self._rejoin_s = server, rejoin_s
        # a client reconnects as soon as it knows that the former server process has ended; if the
        # network is silent, it knows that after its patience
        self._unseen_s = max(rejoin_s, 2 * patience_s)
        self._security = security
        self.cluster = ""
        """Identity of this server's storage cluster; empty: not known yet.

        As server 0 may have been restarted, it takes the identity from the first process that names
        one; if none does, it draws one with the first job. The others get it from server 0.
        """
        self.graph = server.dataset.view().identity
        self._process = secrets.token_hex(16)
        # Guards the members, the jobs and the reason of this server's end; re-entrant, as
        # methods call others. Not held while a producer ends, which takes as long as its workers.
        self._lock = threading.RLock()
        self._asked_again = threading.Condition(self._lock)
        self._attendance = Attendance()
        self._visits = Visits(patience_s)
        self._numbers = JobNumbers(num_jobs)
        self._jobs = JobRules(self._numbers, max_jobs)
        self._refused = RefusedJoins()
        self._sender = BatchSender(server)
        self._rendezvous = RendezvousTable(server.num_servers)
        self._servers_told: dict[int, bytes] = {}
        """What server 0 told of the other servers; see `News.servers`."""
        self.error: ServerDiedError | None = None
        """Why serving ended early."""
        self._error_time = 0.0
        self._stopping = False
        self._status_is_old, self._told_at = False, 0.0
        self._leader = leader
        self.over = threading.Event()
        """Set when there is nothing left to serve."""
        self.address, self.incarnation = ("", 0), 0
        """Address and incarnation of this server's listener; set by `_listens`."""

    def _listens(self, address: tuple[str, int], incarnation: int) -> None:
        """Note this server's own address, before any process comes."""
        self.address, self.incarnation = address, incarnation
        self._servers_known = ServerBook(
            self.server.num_servers, self.server.num_partitions, address, incarnation
        )

    @property
    def jobs_served(self) -> int:
        """Number of jobs that are over."""
        return self._numbers.served

    # -- members ----------------------------------------------------------------------------------

    def join(self) -> Join:
        """Return this server's description for server 0."""
        return Join(
            role=Role.SERVER,
            rank=self.server.server_rank,
            num_servers=self.server.num_servers,
            address=self.address,
            incarnation=self.incarnation,
            process=self._process,
            cluster=self.cluster,
            graph=self.graph,
            job=self._numbers.latest,
            jobs_served=self.jobs_served,
        )

    def _watch(self, request: Watch, peer: Peer) -> "Future[News]":
        self._await_job(request.join)
        self._free_former(request, peer)
        rival = self._rival(request.join)
        # without the lock, as it sends a request to that server
        lives = rival is not None and (self._rejoin_s <= 0 or self._lives(rival.join))
        with self._lock:
            member = self._attendance.find(peer.session, request.seen)
            if member is None:
                if lives and self._rival(request.join) is rival:
                    rank = request.join.rank
                    raise ConfigError(f"two processes joined as storage server {rank}: check RANK")
                member = self._enter(request.join, peer)
            # before `note_connection`, which forgets it
            was_gone = member.give_up_at is not None
            self._attendance.note_connection(member, peer)
            if was_gone and member.job is None:  # only this member may have been missing
                self._settle()
                self._tell_where()
            news = member.wait(request.seen)
            self._asked_again.notify_all()
            return news

    def _await_job(self, join: Join) -> None:
        """Wait until server 0 has told of a client's job; `_check` refuses one it did not tell."""
        with self._asked_again:
            self._asked_again.wait_for(lambda: self.is_over or not self._is_untold(join), _LEARN_S)

    def _is_untold(self, join: Join) -> bool:
        """Return whether this server cannot know how a client's job began."""
        known = join.role is not Role.CLIENT or join.job is None or self._numbers.booked(join.job)
        return self.server.server_rank != 0 and not known

    def _server_of(self, peer: Peer) -> int | None:
        """Return which storage server meets others here; None: the peer is none.

        Its session there is its ``Join.process``, which only storage servers are told.
        """
        proof = proof_of(peer.session.encode())
        with self._lock:
            known = self._servers_told or self._proofs_of_servers()
        return next((rank for rank, one in known.items() if one == proof), None)

    def _proofs_of_servers(self) -> dict[int, bytes]:
        here = self._attendance.servers.items()
        return {rank: proof_of(server.join.process.encode()) for rank, server in here}

    def _let_servers_hear(self) -> None:
        """Wait until the other servers know the last news, as a goodbye may overtake them."""
        with self._asked_again:
            self._asked_again.wait_for(
                lambda: all(server.has_heard for server in self._attendance.servers.values()),
                _HEAR_S,
            )

    def _rival(self, join: Join) -> Member | None:
        """Return another member that is here under the storage rank that ``join`` claims."""
        rival = self._attendance.servers.get(join.rank) if join.role is Role.SERVER else None
        return rival if rival is not None and rival.join.process != join.process else None

    def _lives(self, server: Join) -> bool:
        """Return whether a storage server responds at the address that it gave.

        Silence shows only after a while that a machine has vanished, and the server that takes its
        place must not wait that long.
        """
        if server.address is None:
            return False
        name = f"storage server {self.server.server_rank}"
        with Caller(
            *server.address, self._security, name, incarnation=server.incarnation
        ) as caller:
            try:
                caller.connect(time.monotonic() + _ANSWERS_S)
            except GiglLoaderError:
                return False
            return True

    def _enter(self, join: Join, peer: Peer) -> Member:
        name = f"{peer.name} at {peer.address}"
        member = Member(peer.session, join, name, job=join.job, secret=join.secret)
        known = [*self._numbers.running]
        try:
            self._check(join)
            self._replace_former(member)
            if join.role is Role.CLIENT and join.job is None:
                self._jobs.join(member)
            elif join.role is Role.CLIENT and self.server.server_rank == 0:
                self._jobs.readmit(member, time.monotonic() + self._unseen_s)
        except Exception as error:
            self._refused.add(name, error)
            raise
        # only now, as a process that was refused above is not here
        self._attendance.add(member)
        self._numbers.mark_used(join.job)
        if self.server.server_rank == 0:
            self.cluster = self.cluster or join.cluster
        was_away = False
        if join.role is Role.SERVER:
            self._numbers.learn_served(join.jobs_served)
            was_away = self._servers_known.is_away(join.rank)
            self._servers_known.note_arrival(join)
            _log.info("storage server %d joined from %s", join.rank, join.address)
        # also ends a job with ranks that were never seen, once all of the next one are here
        self._settle()
        # the others already know all servers' addresses: messages to all at each arrival would grow
        # with the square
        is_one_more = join.role is Role.CLIENT and known == [*self._numbers.running]
        self._tell_where([member] if is_one_more else None)
        if was_away:
            self._tell_all()
        else:
            self._tell([member])
            self._status_is_old = True
        return member

    def _free_former(self, request: Watch, peer: Peer) -> None:
        """Free the producers that a client of a running job had in a former session.

        Waits for that, so that its next producers are not released as well; without the lock, as
        its workers may take a minute to end.
        """
        join = request.join
        if join.role is not Role.CLIENT or join.job is None:
            return
        with self._lock:
            if self._attendance.find(peer.session, request.seen) is not None:
                return
            try:
                self._check(join)
            except GiglLoaderError:  # `_enter` reports it, and the former client stays
                return
            holders = self._attendance.at(join.role, join.rank)
            former = [member for member in holders if member.job == join.job]
            for member in former:
                self._attendance.remove(member)
        for member in former:
            self._sender.lose(member.session)
            self.server.client_gone(member.client)

    def _replace_former(self, member: Member) -> None:
        """Remove a server that a later one replaces; a client's former session is free by now."""
        join = member.join
        for former in self._attendance.at(join.role, join.rank):
            if join.role is Role.SERVER:
                if former.join.process != join.process:
                    words = f"a later storage server {join.rank} took its place: check RANK"
                    former.tell(refused=words)
                self._attendance.remove(former)
        if join.role is Role.CLIENT and join.job is not None:
            self.server.client_back(member.client)

    def _check(self, join: Join) -> None:
        if self.error is not None:
            raise self.error
        check_join(join, self.server.server_rank, self.server.num_servers)
        check_same(join, self.server.server_rank, self.cluster, self.graph)
        if join.role is not Role.CLIENT:
            return
        if join.job in self._numbers.stopped:
            raise JobStoppedError(stopped_text(join.job_name))
        for member in self._attendance.at(Role.CLIENT, join.rank):
            if member.job == join.job is not None and member.join.process != join.process:
                raise ConfigError(
                    f"another process is compute rank {join.rank} of job {join.job} "
                    f"({join.job_name!r}) here: end it, or check RANK and local_rank"
                )
        if self._is_untold(join):
            raise PeerError(
                f"storage server {self.server.server_rank} has not heard of job {join.job} "
                f"({join.job_name!r}) from storage server 0"
            )
        self._numbers.check(join)

    @property
    def _missing(self) -> Runs:
        """The servers that were never here; on server 0."""
        seen = {0, *self._attendance.servers, *self._servers_known.away}
        return Runs.of([rank for rank in range(self.server.num_servers) if rank not in seen])

    # -- news -------------------------------------------------------------------------------------

    def _tell_where(self, members: Sequence[Member] | None = None) -> None:
        """Tell clients of jobs and servers (None: all of them) the addresses of all servers."""
        if self.server.server_rank != 0:
            return
        where = self._servers_known.addresses(self._attendance.servers)
        # a partition has no server yet, so the addresses are of no use
        if where is None:
            return
        about = {
            "addresses": Addresses.of(where[0]),
            "incarnations": where[1],
            "away": tuple(self._servers_known.away),
            "cluster": self.cluster,
            "graph": self.graph,
        }
        jobs = tuple(self._numbers.running.values())
        servers = self._proofs_of_servers()
        for member in members or self._attendance.members.values():
            if member.join.role is Role.SERVER:
                member.tell(jobs=jobs, servers=servers, **about)
            elif member.job is not None:
                member.tell(job=member.job, secret=member.secret, **about)

    def _tell_all(self) -> None:
        """Send each member the news that concern it."""
        self._status_is_old, self._told_at = False, time.monotonic()
        self._tell(self._attendance.members.values())

    def _tell_status(self, now: float) -> None:
        """Send waiting members the names of missing ones, now and then.

        Each arrival and departure changes that text for all others: sent at once, the messages
        would grow with the square of their number.
        """
        waiting_s = (self._jobs.num_waiting + len(self._attendance.servers)) * _STATUS_S_PER_MEMBER
        if self._status_is_old and now - self._told_at >= waiting_s:
            self._tell_all()

    def _tell(self, members: Iterable[Member]) -> None:
        lost = None if self.error is None else str(self.error)
        never_came = self._missing
        texts = self._jobs.why_waiting({*never_came, *self._servers_known.away})
        away = tuple(self._servers_known.away)
        for member in members:
            more = {"stopped": self._numbers.stopped} if member.join.role is Role.SERVER else {}
            status = texts.get(member.join.job_name, "") if member.job is None else ""
            member.tell(
                status=status,
                jobs_served=self.jobs_served,
                lost=lost,
                away=away,
                server=self.server.server_rank,
                incarnation=self.incarnation,
                num_partitions=self.server.num_partitions,
                missing=never_came,
                **more,
            )

    # -- leaving ----------------------------------------------------------------------------------

    def _came(self, peer: Peer) -> None:
        with self._lock:
            self._visits.note_connection(peer.session)
        self.server.client_back(Visitor(peer.session))

    def _ended(self, peer: Peer, end: EndReason) -> None:
        with self._lock:
            left = self._attendance.note_end(peer, end, time.monotonic())
            visit_is_over = self._visits.note_end(peer.session, end, time.monotonic())
        if left is not None:
            self._note_departure(left)
        with self._asked_again:
            self._asked_again.notify_all()
        if visit_is_over:
            self._end_visit(peer.session)

    def _end_visit(self, session: str) -> None:
        """Free the producers that a process created before it joined a job, or without that."""
        if self._stopping:  # all producers end
            return
        self.server.client_gone(Visitor(session))
        # last: it may come back, so nothing keeps a batch of these producers from being lent
        self._sender.lose_all(session)

    def _note_departure(self, member: Member) -> None:
        """Note that a server is lost; free a client's producers and its place in its job."""
        with self._lock:
            # a goodbye and the end of its grace may both bring a member here: only the first
            # counts
            if not self._attendance.remove(member) or self._stopping:
                return
            if member.join.role is Role.SERVER:
                self._miss(
                    member.join.rank,
                    f"storage server {member.join.rank} at {member.join.address} {member.why_gone}",
                )
        try:
            self._sender.lose(member.session)
            if member.join.role is Role.CLIENT:
                _log.info("%s of job %r %s", member.name, member.join.job_name, member.why_gone)
                if member.job is not None:
                    self.server.client_gone(member.client)
        finally:  # even after an error above, as its job and the later ones wait for this
            is_of_a_job = member.join.job is None or self.server.server_rank == 0
            if member.join.role is Role.CLIENT and is_of_a_job:
                self._leave_job(member)

    def _declare_gone_servers_lost(self) -> None:
        """Tell a job that is done from one that ends by a lost server not yet given up."""
        for member in self._attendance.members.values():
            is_gone = member.join.role is Role.SERVER and member.give_up_at is not None
            if is_gone and self._rejoin_s <= 0:
                self.lose(f"storage server {member.join.rank} {member.why_gone}")

    def _miss(self, rank: int, why: str) -> None:
        """Expect another server that is away to come back, as long as that may take."""
        if self._rejoin_s <= 0:
            self.lose(why)
            return
        with self._lock:
            self._servers_known.note_loss(rank, why, time.monotonic() + self._rejoin_s)
            self._settle()
            self._tell_where()
            self._tell_all()
        self._rendezvous.fail_all(why, rank)
        _log.warning("%s; it is expected back", why)

    def _leave_job(self, member: Member) -> None:
        with self._lock:
            self._jobs.leave(member)
            self._status_is_old = True
            self._settle()

    def _settle(self, now: float = -math.inf) -> Settled:
        """End the jobs that all clients have left, and let complete ones begin. Locked."""
        # on servers other than 0 there are none
        may_begin = self._servers_known.may_jobs_begin(self._attendance.servers)
        settled = self._jobs.settle(now, may_begin=may_begin)
        for job in settled.ended:
            self._note_end(job)
        for begun in settled.begun:
            self.cluster = self.cluster or secrets.token_hex(8)
            _log.info(
                "job %r (number %d) begins with %d compute processes",
                *(begun.name, begun.number, len(begun.ranks)),
            )
        if settled.was_last:
            # all members learn it before `over`, after which the listener closes
            self._declare_gone_servers_lost()
            self._tell_all()
            self.over.set()
        elif settled.ended:
            self._tell_where()
            self._tell_all()
        return settled

    def _note_end(self, job: EndedJob) -> None:
        if job.given_up:
            words = "job %r is given up: its compute processes ended without a goodbye"
            _log.warning(words, job.name)
        else:
            _log.info("job %r is over", job.name)
        for member, error in job.refused:
            self._refused.add(member.name, error)

    # -- stopped jobs -----------------------------------------------------------------------------

    def stop_job(self, name: str) -> int:
        """End a job on all servers; see `DistServer.stop_job`."""
        if self.server.server_rank != 0:
            raise ConfigError(
                f"this is storage server {self.server.server_rank}: server 0 stops jobs"
            )
        with self._lock:
            members = self._jobs.stop(name)
            _log.warning("job %r is stopped: it has %d compute processes", name, len(members))
            # servers that are told end the job's producers there
            self._tell_all()
        self._dismiss(members)
        with self._lock:  # it may have ranks that were not seen yet, and none that is here
            self._settle()
        return len(members)

    def _dismiss(self, members: Sequence[Member]) -> None:
        """Tell clients that their job was stopped, and free what they have here."""
        with self._asked_again:
            for member in members:
                member.why_gone = "was stopped"
                if member.job is None:
                    member.tell(refused=stopped_text(member.join.job_name))
                else:
                    member.tell(stopped=(member.job,))
            # those that hear leave by themselves, and know why when their producers end
            here = self._attendance.members
            self._asked_again.wait_for(
                lambda: not any(m.session in here and m.give_up_at is None for m in members),
                _HEAR_S,
            )
        for member in members:
            self._note_departure(member)

    # -- losses -----------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """Handle the loss of another server: no process may join, and this server ends soon."""
        with self._lock:
            if self.error is not None or self._stopping:
                return
            self.error = ServerDiedError(
                f"{why}: the graph is incomplete without it; start the storage cluster again"
            )
            # from here on `_tick` counts `_GRACE_S`
            self._error_time = time.monotonic()
            self._tell_all()
        self._rendezvous.fail_all(str(self.error))
        _log.error("%s", self.error)

    def _tick(self, now: float) -> None:
        with self._lock:
            self._tell_status(now)
            self._settle(now)
            overdue = self._attendance.overdue(now)
            visits = self._visits.overdue(now)
            clients = [
                present
                for present in self._attendance.members.values()
                if present.join.role is Role.CLIENT
            ]
            given_up = self._servers_known.why_given_up(self._attendance.servers, now)
            lost = self.error is not None
            # clients read the reason on their watch and leave; the wait for a stopped one is
            # short
            if lost and (not clients or now - self._error_time > _GRACE_S):
                self.over.set()
        if given_up is not None:
            self.lose(given_up)
        for member in overdue:  # in threads, as their workers may take long to end
            start_aside(f"end of {member.name}", self._note_departure, member)
        for session in visits:
            start_aside(f"end of {Visitor(session)}", self._end_visit, session)

    # -- towards server 0 -------------------------------------------------------------------------

    def hear(self, news: News) -> None:
        """Handle the news of server 0."""
        self._numbers.served = news.jobs_served
        if news.cluster and not self.cluster:
            self._belong(news.cluster)
        with self._asked_again:
            self._numbers.learn_running(news.jobs)
            # a restarted server 0 sends none until it knows all
            self._servers_told = news.servers or self._servers_told
            self._asked_again.notify_all()
            fresh = self._numbers.learn_stopped(news.stopped)
            members = [m for m in self._attendance.members.values() if m.job in fresh]
        if members:  # in a thread: the next news must not wait for them
            start_aside("end of a stopped job", self._dismiss, members)
        if news.lost is not None or news.refused is not None:
            self.lose(news.lost or news.refused or "")

    def _away(self) -> dict[int, str]:
        """Return the reason for each server that is not here, as far as this one knows."""
        if self._leader is None:
            missing, away = self._missing, self._servers_known.away
        else:
            missing = self._leader.news.missing
            away = dict.fromkeys(self._leader.news.away, "storage server 0 says so")
            if self._leader.why_away is not None:
                away[0] = self._leader.why_away
        return {**dict.fromkeys(missing, "it has not come yet"), **away}

    def _belong(self, cluster: str) -> None:
        """Join the cluster that server 0 names; earlier clients of another one leave."""
        with self._lock:
            self.cluster, strangers = cluster, []
            for member in self._attendance.members.values():
                if member.join.cluster not in ("", cluster):
                    member.why_gone = "belongs to another storage cluster"
                    member.tell(refused=f"this is storage cluster {cluster} by now")
                    strangers.append(member)
        for member in strangers:
            self._note_departure(member)

    @property
    def is_over(self) -> bool:
        """Whether this server is ending or has ended."""
        return self._stopping or self.over.is_set()

    @property
    def can_do_without_0(self) -> bool:
        """Whether server 0 has replicas with which a job continues."""
        has_replicas = self.server.num_servers > self.server.num_partitions
        with self._lock:
            members = self._attendance.members.values()
            return has_replicas and any(member.join.role is Role.CLIENT for member in members)
