"""A compute process's side of the storage cluster: all servers, and which of them are lost.

::

    up --its process ended, or it was out of reach for too long--> lost, sought in a thread
    up <--reconnected--------------------------------------------- lost

A rank connects to a server other than 0 at its first request: a rank that takes its batches from a
few of hundreds of servers has no connection to the others, and learns of those from server 0.
While server 0 is lost and the job continues with its replica, a rank connects to all servers.

If there are more servers than partitions, server ``i`` serves partition ``i`` modulo the number of
partitions. Servers of one partition are replicas: one serves the requests of another that is lost.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.graph_store.client.connection import ServerConnection, result_of
from gigl_loader.graph_store.client.server_outages import MOST_RETURNS, ServerOutages
from gigl_loader.graph_store.wire.membership import PATIENCE_S, Join, Role, WaitReport
from gigl_loader.runtime.threads import start_aside
from gigl_loader.runtime.transport import EndReason, Security
from gigl_loader.runtime.transport.failures import fresh_copy

_log = logging.getLogger(__name__)

_ATTEMPT_S, _REACH_S, _PAUSE_S = 5.0, 1.0, 0.2
"""Seconds: the longest attempt to reconnect to a lost server; its part for reaching the server,
which may have another address by then; and the pause between two attempts."""
_REFUSED_PAUSE_S = 5.0
"""Seconds between two attempts while the current listener refuses this process."""
_LOOK_S = 0.5
"""Seconds between two checks of the news during a wait for lost servers."""


_MAY_CHANGE = (
    EndReason.REFUSED_CERTIFICATE,
    EndReason.REFUSED_SERVICE,
    EndReason.REFUSED_BUSY,
    EndReason.REFUSED_SLOW,
)
"""Refusals that may end: certificates are renewed on one machine after the other, and a proxy or
another program may listen while a server restarts."""


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


def _is_lost(connection: ServerConnection, error: BaseException) -> bool:
    """Return whether a response is missing because the server is gone, or was reconnected."""
    is_over = (
        isinstance(error, UsageError) and connection.error is not None
    )  # not an error that the server sent
    return is_over or isinstance(error, ServerDiedError)


class Cluster:
    """A compute process's connections to all storage servers.

    Args:
        first: Connection to server 0, which has admitted this process.
        join: The request to join the others.
        security: The same as the servers'.
        patience_s: How long an outage of the network may last, in seconds.
    """

    def __init__(
        self, first: ServerConnection, join: Join, security: Security, patience_s: float
    ) -> None:
        assert join.job is not None, "server 0 said which job"
        self.job, self.rank, self.world_size = join.job, join.rank, join.world_size
        self.job_name = join.job_name
        self.num_partitions = first.news.num_partitions or join.num_servers
        self.incarnations = first.news.incarnations
        """Incarnations of the servers that this process has accepted; 0: not known."""
        self._former: set[int] = set()
        """Former incarnations that this process has replaced, as news may be late."""
        self.renewals: dict[int, int] = {}
        """How often each server was found restarted, or reconnected; no entry means 0 times."""
        self.num_servers = join.num_servers
        self.connections = {0: first}
        """Connections by server, only for servers that were used so far, or will be."""
        # so that a server never gets two connections, each of which would join
        self._making = threading.Lock()
        self.closed = False
        self._join, self._security, self._patience_s = join, security, patience_s
        self._session, self._addresses = first.session, first.news.addresses
        self._moved: dict[int, tuple[str, int]] = {}
        """Current addresses of servers that have moved since this process came."""
        self._changed = threading.Condition()
        self._holders: list[int] = []
        """Result of `holders`; empty before its first call."""
        self._refusals: dict[int, Refusal] = {}
        self._sought: set[int] = set()
        """Servers to which a thread is connecting or reconnecting."""

    @classmethod
    def join(
        cls,
        host: str,
        port: int,
        *,
        job_name: str,
        rank: int,
        world_size: int,
        num_servers: int,
        security: Security,
        timeout_s: float,
        patience_s: float = PATIENCE_S,
    ) -> "Cluster":
        """Join at server 0; return when all compute processes and servers are there.

        Args:
            host: Address of storage server 0.
            port: Port of storage server 0.
            job_name: Name of the job, the same on all its processes.
            rank: Rank of this compute process.
            world_size: Number of compute processes in the job.
            num_servers: Number of storage servers.
            security: The same as the cluster's.
            timeout_s: How long that may take, loading of the graph included, in seconds.
            patience_s: How long an outage of the network may last, in seconds.

        Raises:
            JoinRefusedError: A server refuses this process, or another service listens there.
            PeerTimeoutError: A process, which it names, did not come.
            ConfigError: The servers have other figures.
        """
        deadline = time.monotonic() + timeout_s
        me, session = f"compute process {rank}", secrets.token_hex(16)
        progress = WaitReport(me, deadline)
        join = Join(
            role=Role.CLIENT,
            rank=rank,
            num_servers=num_servers,
            world_size=world_size,
            job_name=job_name,
            process=secrets.token_hex(16),
        )
        first = ServerConnection(0, (host, port), security, me, session, patience_s)
        try:
            first.enter(join, deadline, progress)
            news = first.wait_until_in(
                lambda news: news.job is not None, deadline, timeout_s, progress
            )
        except BaseException:
            first.close()
            raise
        # kept, so that a later process at a server's port with another graph is refused by name
        join = replace(
            join, job=news.job, secret=news.secret, cluster=news.cluster, graph=news.graph
        )
        return cls(first, join, security, patience_s)

    def connection(self, server_rank: int) -> ServerConnection:
        """Return the connection to a server, which is created at the first call.

        Raises:
            ConfigError: There is no such server.
        """
        if not 0 <= server_rank < self.num_servers:
            raise ConfigError(f"server rank must be in [0, {self.num_servers}), got {server_rank}")
        with self._making:
            if server_rank not in self.connections:
                self.connections[server_rank] = self._fresh(server_rank)
            return self.connections[server_rank]

    def _fresh(self, rank: int) -> ServerConnection:
        """Return a new connection that is not up yet."""
        first = self.connections[0]
        connection = ServerConnection(
            rank,
            self._address_of(rank),
            self._security,
            first.own_name,
            self._session,
            self._patience_s,
            self._join,
            lambda: self._is_elsewhere(rank),
        )
        # `close` may have closed the others already, and would miss this one
        if self.closed:
            connection.close()
        elif rank in first.news.away:
            connection.give_up("storage server 0 says that it is away")
        return connection

    def _address_of(self, rank: int) -> tuple[str, int]:
        """Return a server's last address; a restarted server 0 has forgotten the others'."""
        news, first = self.connections[0].news, self._addresses[rank]
        if rank < len(news.incarnations) and news.incarnations[rank] > 0:
            self._moved[rank] = news.addresses[rank]
        address: tuple[str, int] = self._moved.get(rank, first)
        if address == first:
            self._moved.pop(rank, None)
        return address

    # -- lost servers ---------------------------------------------------------------------------

    @property
    def lost(self) -> list[int]:
        """Servers that are gone, or were restarted and not reconnected yet."""
        made = list(self.connections.items())
        # Three sources: this process's connections; news of server 0, unless this process has a
        # connection to that server, which is more reliable; and incarnations, in case both missed
        # the moment.
        broken = {rank for rank, connection in made if connection.error is not None}
        up = {rank for rank, connection in made if connection.is_up}
        away = set(self.connections[0].news.away) - up
        return sorted(broken | away | self._stale())

    def _stale(self) -> set[int]:
        """Return the servers that have a later incarnation than this process has accepted."""
        known, made = self.incarnations, list(self.connections.items())
        over = {0, *self._former}
        stale = {
            rank
            for rank, connection in made
            if connection.news.incarnation not in (known[rank], *over)
        }
        news = self.connections[0].news
        # compare as a whole first, which is quick: this runs often, and servers may be thousands
        if news.incarnations != known:
            pairs = enumerate(zip(known, news.incarnations, strict=False))
            stale |= {rank for rank, (mine, now) in pairs if mine != now and now not in over}
        return stale

    def _is_elsewhere(self, rank: int) -> bool:
        """Return whether server 0 reports a server as gone or as a later incarnation."""
        news = self.connections[0].news
        return rank in news.away or self._address_of(rank) != self.connections[rank].address

    def replica_of(self, server: int, servers: Sequence[int]) -> int | None:
        """Return one of ``servers`` that serves the same partition; None: there is none."""
        partitions = self.num_partitions
        # Replicas differ by multiples of the number of partitions; `server // partitions` numbers
        # them, so that the work of several lost ones goes to different replicas.
        same = [replica for replica in servers if (replica - server) % partitions == 0]
        return same[server // partitions % len(same)] if same else None

    def stand_in(self, server: int, lost: Sequence[int]) -> int:
        """Return the server for its requests: itself, or a replica if it is among the ``lost``."""
        if server not in lost:
            return server
        replica = self.replica_of(server, self._all_but(lost))
        return server if replica is None else replica

    def _all_but(self, lost: Sequence[int]) -> list[int]:
        without = set(lost)
        return [rank for rank in range(self.num_servers) if rank not in without]

    # -- continuing without them, or until they are back ----------------------------------------

    def await_servers(self, outages: ServerOutages, wanted: Sequence[int] = ()) -> list[int]:
        """Return the servers to continue with: at least one of each partition, ascending.

        A thread looks for a lost server. If it has no replica, this waits for it,
        unless it is back and refuses this process for a permanent reason.

        Args:
            outages: How long each may be away.
            wanted: Servers to wait for in any case.

        Raises:
            ServerDiedError: A server did not come back in time, or ends again and again.
            ConfigError: It came back as another cluster's, or with another graph.
            JoinRefusedError: It came back but refuses this process.
        """
        if (restless := outages.restless) is not None:
            raise ServerDiedError(
                f"{self.connection(restless).name} came back {MOST_RETURNS} times and was lost "
                "again each time before a batch or a response came: see its log for the reason"
            )
        began = time.monotonic()
        with self._changed:
            while True:
                lost = self.lost
                unmet = self._unmet(lost)
                self._seek([*lost, *unmet])
                live = self._all_but(lost)
                missing = [
                    server
                    for server in lost
                    if server in wanted or self.replica_of(server, live) is None
                ]
                if self.closed or not (missing or unmet):
                    return live
                for server in missing:
                    self._raise_if_refused(server, began)
                # no deadline for servers to meet: after `_ATTEMPT_S`, `_meet` counts them as lost
                if (overdue := outages.overdue(missing)) is not None:
                    raise self._why_lost(overdue)
                # news of server 0 come on its connection, which does not notify this condition
                self._changed.wait(_LOOK_S)

    def _raise_if_refused(self, rank: int, began: float) -> None:
        """Raise a lost server's refusal, if it came since ``began`` and is final."""
        refusal, first = self._refusals.get(rank), self.connections[0]
        if refusal is None or not refusal.cannot_change or refusal.said < began:
            return
        # Server 0 has a fixed address. If another process has a server's port, server 0 may be
        # about to tell that server's new address.
        is_settled = (
            first.error is None
            and rank not in first.news.away
            and refusal.said - refusal.since > 0.9 * _REFUSED_PAUSE_S
        )
        if rank == 0 or is_settled:
            raise fresh_copy(refusal.error)

    def _why_lost(self, rank: int) -> Exception:
        connection, refusal = self.connection(rank), self._refusals.get(rank)
        if refusal is not None and refusal.is_one:  # another process listens there
            return fresh_copy(refusal.error)
        return connection.error or ServerDiedError(
            f"{connection.name} was started again, and cannot be reached"
        )

    def _unmet(self, lost: Sequence[int]) -> list[int]:
        """Return the servers to meet now, as only server 0 would report that they are lost."""
        if 0 not in lost or self.num_servers == self.num_partitions:  # then this waits for server 0
            return []
        made = self.connections
        return [rank for rank in self._all_but(lost) if rank not in made or not made[rank].is_up]

    def _seek(self, ranks: Iterable[int]) -> None:
        """Connect to lost and unmet servers, each in a thread. Locked."""
        for rank in ranks:
            if rank not in self._sought:
                self._sought.add(rank)
                # the next check looks for it again
                start_aside(f"looks for storage server {rank}", self._look_for, rank)

    def _look_for(self, rank: int) -> None:
        try:
            if rank not in self.lost:
                self._meet(rank)
            # Without a limit: a loader may still find the server back in a later epoch after
            # `await_servers` has given up.
            while rank in self.lost and not self.closed:
                try:
                    self._go_along(rank)
                except GiglLoaderError as error:
                    _log.debug("storage server %d is not back: %s", rank, error)
                    # not logged at a higher level at each attempt, as it would fill users' logs
                    is_refused = self._note_refusal(rank, error).is_one
                    time.sleep(_REFUSED_PAUSE_S if is_refused else _PAUSE_S)
        finally:
            with self._changed:
                self._sought.discard(rank)
                self._changed.notify_all()

    def _note_refusal(self, rank: int, error: GiglLoaderError) -> Refusal:
        now, former = time.monotonic(), self._refusals.get(rank)
        is_same = former is not None and former.error.args == error.args
        noted = Refusal(error, former.since if former is not None and is_same else now, now)
        with self._changed:
            self._refusals[rank] = noted
            self._changed.notify_all()
        return noted

    def _meet(self, rank: int) -> None:
        connection = self.connection(rank)
        try:
            connection.meet(_ATTEMPT_S)
        except GiglLoaderError as error:
            # then it is lost like one whose end was seen, and the next check looks for it
            connection.give_up(str(error))
        with self._changed:
            self._changed.notify_all()

    def _go_along(self, rank: int) -> None:
        """Accept the process in place of a lost server; connect only if this process was connected.

        Raises:
            GiglLoaderError: The server is not back.
        """
        connection, news = self.connections.get(rank), self.connections[0].news
        if connection is None and self.connections[0].error is not None:  # its news are old
            connection = self.connection(rank)
        if connection is None:
            if rank in news.away:
                raise ServerDiedError(f"storage server 0 says that storage server {rank} is away")
            incarnation = news.incarnations[rank]
        elif connection.is_up and connection.news.incarnation == max(
            news.incarnations[rank:][:1], default=0
        ):
            incarnation = connection.news.incarnation  # first met after a restart
        else:
            connection = self._connected_again(connection)
            incarnation = connection.news.incarnation
        with self._changed:
            if self.closed and connection is not None:
                connection.close()
            if connection is not None:
                self.connections[rank] = connection
            # All three in one step for `await_servers`: a server that is back but not counted would
            # be taken for one that never ended.
            known = list(self.incarnations)
            self._former = (self._former | {known[rank]}) - {incarnation}
            known[rank] = incarnation
            self.incarnations = tuple(known)
            # loaders and channels compare these counts: their producers ended with the former
            # process
            self.renewals[rank] = self.renewals.get(rank, 0) + 1
        _log.warning("storage server %d is back", rank)

    def _connected_again(self, former: ServerConnection) -> ServerConnection:
        now, rank = time.monotonic(), former.rank
        fresh = former.reconnected(self._address_of(rank) if rank > 0 else former.address)
        progress = WaitReport(f"compute process {self.rank}", now + _ATTEMPT_S)
        try:
            # a restarted server 0 has counted no jobs
            join = replace(self._join, jobs_served=self.connections[0].news.jobs_served)
            fresh.enter(join, now + _REACH_S, progress)
            said = fresh.wait_until_in(
                # a restarted server 0 must learn of the others first: it sends addresses
                # afterwards
                lambda news: bool(news.addresses) if rank == 0 else news.number > 0,
                now + _ATTEMPT_S,
                _ATTEMPT_S,
                progress,
            )
            if said.server != rank:  # another server has its port now
                raise ServerDiedError(f"{former.name} is now storage server {said.server}")
        except BaseException:
            fresh.close()
            raise
        return fresh

    # -- requests that survive -----------------------------------------------------------------

    def ask_each(
        self,
        name: str,
        requests: Mapping[int, dict[str, Any]],
        timeout_s: float,
        reconnect_s: float,
    ) -> dict[int, Any]:
        """Call a method of several servers at once, as `ask_all` does; return results by server."""
        results = self.ask_all(name, list(requests.items()), timeout_s, reconnect_s)
        return dict(zip(requests, results, strict=True))

    def ask_all(
        self,
        name: str,
        requests: Sequence[tuple[int, dict[str, Any]]],
        timeout_s: float,
        reconnect_s: float,
    ) -> list[Any]:
        """Make several calls of servers at once; replicas respond for lost servers.

        A request is repeated if its server is lost, so the method must allow that.

        Args:
            name: A key of `CALLS`.
            requests: The server of each call, and the arguments.
            timeout_s: How long all of them may take, in seconds.
            reconnect_s: How many seconds a server without a replica may be away each time; 0: a
                lost one is an error.

        Raises:
            ServerDiedError: A server did not come back in time.
            ConfigError, JoinRefusedError: See `await_servers`.
            PeerTimeoutError: A server did not respond.
        """
        results: dict[int, Any] = {}
        outages = ServerOutages(self.renewals, reconnect_s)
        while (error := self._ask_those_up(name, requests, timeout_s, results)) is not None:
            # repeated only for as long as servers may be away, as each request has its own timeout
            if outages.is_over or self.closed:
                raise error
            time.sleep(_PAUSE_S)  # a request may be lost before its server is known to be
            self.await_servers(outages)
        return [results[number] for number in range(len(requests))]

    def holders(self, timeout_s: float, reconnect_s: float = 0.0) -> list[int]:
        """Return for each partition a server that has it, spread over the compute processes.

        The servers are called once; see `ask_each`.

        Raises:
            ServerDiedError, PeerTimeoutError: See `ask_each`.
        """
        if not self._holders:
            servers: dict[int, dict[str, Any]] = {rank: {} for rank in range(self.num_servers)}
            partitions = self.ask_each("get_partition_index", servers, timeout_s, reconnect_s)
            by_part: dict[int, list[int]] = {}
            for server in servers:
                by_part.setdefault(partitions[server], []).append(server)
            # every partition is there, as a lost server's replica has responded
            parts = [by_part[part] for part in range(len(by_part))]
            self._holders = [same[self.rank % len(same)] for same in parts]
        return self._holders

    def _ask_those_up(
        self,
        name: str,
        requests: Sequence[tuple[int, dict[str, Any]]],
        timeout_s: float,
        results: dict[int, Any],
    ) -> GiglLoaderError | None:
        """Put missing responses into ``results``; return an error if some servers are lost."""
        asked: dict[int, tuple[ServerConnection, Future[Any]]] = {}
        lost = self.lost
        for number, (server, arguments) in enumerate(requests):
            # all are called before waiting for the first
            if number not in results:
                connection = self.connection(self.stand_in(server, lost))
                asked[number] = connection, connection.call(name, timeout_s, **arguments)
        deadline = time.monotonic() + timeout_s  # one deadline for all servers
        missing: GiglLoaderError | None = None
        for number, (connection, answer) in asked.items():
            what = f"{name} on storage server {connection.rank}"
            try:
                results[number] = result_of(answer, deadline - time.monotonic(), what, timeout_s)
            except GiglLoaderError as error:
                # a server that raised an error would do so again; other pending requests end at
                # `timeout_s`
                if not _is_lost(connection, error):
                    raise
                missing = error
        return missing

    def close(self) -> None:
        """Leave. Idempotent."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        for connection in list(self.connections.values()):
            connection.close()
