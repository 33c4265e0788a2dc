"""A compute process's side of the storage cluster: all servers, and which of them are lost.

::

    up --its process ended, or it was out of reach for too long--> lost, looked for in a thread
    up <--connected again----------------------------------------- lost

All but server 0 are met when they are first asked for something: a rank that takes its batches from
a few of hundreds of servers has no connection with the others, and hears of those from server 0.
While that one is lost, and the job goes on with its replica, a rank connects with all.

Where more servers than partitions are up, server ``i`` serves partition ``i`` modulo the number of
partitions. Servers of one partition are replicas: one serves the requests to another that is lost.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.remote.connection import ServerConnection, result_of
from gigl_loader.remote.membership import PATIENCE_S, Join, Refusal, Role, WaitReport
from gigl_loader.threads import new_thread, nothing_hangs_on_it
from gigl_loader.transport import Security

_log = logging.getLogger(__name__)

_ATTEMPT_S, _REACH_S, _PAUSE_S = 5.0, 1.0, 0.2
"""Longest attempt to connect again with a lost server; of that, to reach it, which may have
another address by then; and the pause between two attempts."""
_REFUSED_PAUSE_S = 5.0
"""The same pause where the present listener does not admit this process."""
_LOOK_S = 0.5
"""How often a wait for lost servers looks whether the news name other ones."""


def raise_if_broken(connections: Iterable[ServerConnection]) -> None:
    """Raise `ServerDiedError` where a server is gone, whether or not it has work to do."""
    for connection in connections:
        error = connection.error
        if error is not None:
            raise error


def _is_lost(connection: ServerConnection, error: BaseException) -> bool:
    """Return whether there is no answer because the server is gone, or its connection replaced."""
    is_over = (
        isinstance(error, UsageError) and connection.error is not None
    )  # not the server's words
    return is_over or isinstance(error, ServerDiedError)


class Cluster:
    """A compute process's connections to all storage servers.

    Args:
        first: To server 0, which has admitted this process.
        join: The request to join the others.
        security: As theirs.
        patience_s: How long an outage of the network may last.
    """

    def __init__(
        self, first: ServerConnection, join: Join, security: Security, patience_s: float
    ) -> None:
        assert join.job is not None, "server 0 said which job"
        self.job, self.rank, self.world_size = join.job, join.rank, join.world_size
        self.num_partitions = first.news.num_partitions or join.num_servers
        self.incarnations = first.news.incarnations
        """Incarnations of the servers that this process has accepted; 0: not known."""
        self._former: set[int] = set()
        """Incarnations that this process has gone along from: news may be late."""
        self.renewals: dict[int, int] = {}
        """How often a server was found started again, or connected with again; none is 0 times."""
        self.num_servers = join.num_servers
        self.connections = {0: first}
        """By server, those that were asked for something so far, or were to be."""
        # a server never has two connections, of which each would join
        self._making = threading.Lock()
        self.closed = False
        self._join, self._security, self._patience_s = join, security, patience_s
        self._session, self._addresses = first.session, first.news.addresses
        self._moved: dict[int, tuple[str, int]] = {}
        """Where servers are by now that were elsewhere when this process came."""
        self._changed = threading.Condition()
        self._holders: list[int] = []
        """See `holders`; empty until somebody asks."""
        self._refusals: dict[int, Refusal] = {}
        self._sought: set[int] = set()
        """Lost servers that a thread tries to connect with again, or meets."""

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
            JoinRefusedError: A server does not admit this process, or is another service.
            PeerTimeoutError: A process did not come; names it.
            ConfigError: The servers have other figures.
        """
        deadline = time.monotonic() + timeout_s
        me, session = f"compute process {rank}", secrets.token_hex(16)
        progress = WaitReport(me, deadline)
        join = Join(
            role=Role.CLIENT, rank=rank, num_servers=num_servers, world_size=world_size,
            process=secrets.token_hex(16),
        )  # fmt: skip
        first = ServerConnection(0, (host, port), security, me, session, patience_s)
        try:
            first.enter(join, deadline, progress)
            news = first.wait_until_in(
                lambda news: news.job is not None, deadline, timeout_s, progress
            )
        except BaseException:
            first.close()
            raise
        # kept: a later process at a server's port, with another graph, is refused by name
        join = replace(join, job=news.job, cluster=news.cluster, graph=news.graph)
        return cls(first, join, security, patience_s)

    def connection(self, server_rank: int) -> ServerConnection:
        """Return the connection to a server, which is made when it is first looked at.

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
        """Return a connection that is not up yet."""
        first = self.connections[0]
        connection = ServerConnection(
            rank, self._address_of(rank), self._security, first.own_name, self._session,
            self._patience_s, self._join, lambda: self._is_elsewhere(rank),
        )  # fmt: skip
        # `close` may have walked over the connections already: this one would stay
        if self.closed:
            connection.close()
        elif rank in first.news.away:
            connection.give_up("storage server 0 says that it is away")
        return connection

    def _address_of(self, rank: int) -> tuple[str, int]:
        """Return where a server was last; server 0, started again, has forgotten the others."""
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
        """Servers that are gone, or were started again and are not connected with yet."""
        made = list(self.connections.items())
        # Three sources: this process's connections; news of server 0, unless this process is
        # connected with that server and knows better; and incarnations, where both missed the
        # moment.
        broken = {rank for rank, connection in made if connection.error is not None}
        up = {rank for rank, connection in made if connection.is_up}
        away = set(self.connections[0].news.away) - up
        return sorted(broken | away | self._stale())

    def _stale(self) -> set[int]:
        """Return the servers of which a later one is known than this process goes along with."""
        known, made = self.incarnations, list(self.connections.items())
        over = {0, *self._former}
        found = {
            rank
            for rank, connection in made
            if connection.news.incarnation not in (known[rank], *over)
        }
        news = self.connections[0].news
        # whole first, which is quick: this runs on each look, and servers may be thousands
        if news.incarnations != known:
            pairs = enumerate(zip(known, news.incarnations, strict=False))
            found |= {rank for rank, (mine, now) in pairs if mine != now and now not in over}
        return found

    def _is_elsewhere(self, rank: int) -> bool:
        """Return whether server 0 says that a server is gone, or is a later one by now."""
        news = self.connections[0].news
        return rank in news.away or self._address_of(rank) != self.connections[rank].address

    def replica_of(self, server: int, servers: Sequence[int]) -> int | None:
        """Return one of ``servers`` that serves the same partition; None: there is none."""
        partitions = self.num_partitions
        # Replicas differ by multiples of the number of partitions; `server // partitions` numbers
        # them, so that the work of several lost ones goes to different replicas.
        same = [one for one in servers if (one - server) % partitions == 0]
        return same[server // partitions % len(same)] if same else None

    def stand_in(self, server: int) -> int:
        """Return the server that serves its requests: itself, or a replica where it is lost."""
        return self._stand_in(server, self.lost)

    def _stand_in(self, server: int, lost: Sequence[int]) -> int:
        if server not in lost:
            return server
        replica = self.replica_of(server, self._all_but(lost))
        return server if replica is None else replica

    def _all_but(self, lost: Sequence[int]) -> list[int]:
        without = set(lost)
        return [rank for rank in range(self.num_servers) if rank not in without]

    # -- going on without them, or until they are back ------------------------------------------

    def await_servers(self, deadline: float, wanted: Sequence[int] = ()) -> list[int]:
        """Return the servers to go on with: at least one of each partition, ascending.

        A lost server is looked for in the background. It is waited for where it has no replica,
        unless it is back and does not take this process in, for a reason that stays.

        Args:
            deadline: Until when servers are waited for (`time.monotonic`).
            wanted: Servers that are waited for in any case.

        Raises:
            ServerDiedError: A server did not come back in time.
            ConfigError: It came back as another cluster's, or with another graph.
            JoinRefusedError: It came back and does not let this process in.
        """
        began = time.monotonic()
        with self._changed:
            while True:
                lost = self.lost
                unmet = self._unmet(lost)
                self._seek([*lost, *unmet])
                live = self._all_but(lost)
                missing = [
                    one for one in lost if one in wanted or self.replica_of(one, live) is None
                ]
                if self.closed or not (missing or unmet):
                    return live
                for one in missing:
                    self._raise_if_refused(one, began)
                # those to meet need no deadline: `_meet` takes `_ATTEMPT_S`, and then they are lost
                if missing and time.monotonic() > deadline:
                    raise self._why_lost(missing[0])
                # news of server 0 come on its connection, which does not notify this condition
                self._changed.wait(_LOOK_S)

    def _raise_if_refused(self, rank: int, began: float) -> None:
        """Raise a lost server's refusal, if it came since ``began`` and is final."""
        refusal, first = self._refusals.get(rank), self.connections[0]
        if refusal is None or not refusal.cannot_change or refusal.said < began:
            return
        # Server 0 has one address. Of another one's port, given to somebody else, it may be about
        # to say that the server is elsewhere by now.
        is_settled = (
            first.error is None
            and rank not in first.news.away
            and refusal.said - refusal.since > 0.9 * _REFUSED_PAUSE_S
        )
        if rank == 0 or is_settled:
            raise refusal.copy()

    def _why_lost(self, rank: int) -> Exception:
        connection, refusal = self.connection(rank), self._refusals.get(rank)
        if refusal is not None and refusal.is_one:  # another process is there
            return refusal.copy()
        return connection.error or ServerDiedError(
            f"{connection.name} was started again, and cannot be reached"
        )

    def _unmet(self, lost: Sequence[int]) -> list[int]:
        """Return the servers to meet now: nobody but server 0 would tell that they are lost."""
        if 0 not in lost or self.num_servers == self.num_partitions:  # 0 is waited for
            return []
        made = self.connections
        return [rank for rank in self._all_but(lost) if rank not in made or not made[rank].is_up]

    def _seek(self, ranks: Iterable[int]) -> None:
        """Connect again with lost servers, and with unmet ones, each in a thread. Locked."""
        for rank in ranks:
            if rank not in self._sought:
                self._sought.add(rank)
                name = f"looks for storage server {rank}"
                # the next look seeks it again
                new_thread(
                    target=self._look_for, args=(rank,), name=name, on_death=nothing_hangs_on_it
                ).start()

    def _look_for(self, rank: int) -> None:
        try:
            if rank not in self.lost:
                self._meet(rank)
            # Without a limit: after `await_servers` has given up, a loader may still find the
            # server back in a later epoch.
            while rank in self.lost and not self.closed:
                try:
                    self._go_along(rank)
                except GiglLoaderError as error:
                    _log.debug("storage server %d is not back: %s", rank, error)
                    # a log of others is not ours to fill
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
            # then it is lost, like one whose end was seen, and the next look searches for it
            connection.give_up(str(error))
        with self._changed:
            self._changed.notify_all()

    def _go_along(self, rank: int) -> None:
        """Accept the process in place of a lost server; connect only where this process was.

        Raises:
            GiglLoaderError: It is not back.
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
            incarnation = connection.news.incarnation  # first met when it had been started again
        else:
            connection = self._connected_again(connection)
            incarnation = connection.news.incarnation
        with self._changed:
            if self.closed and connection is not None:
                connection.close()
            if connection is not None:
                self.connections[rank] = connection
            # All three in one step for `await_servers`: a server that is back, counted as before,
            # would be taken for one that never ended.
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
        fresh = former.again(self._address_of(rank) if rank > 0 else former.address)
        progress = WaitReport(f"compute process {self.rank}", now + _ATTEMPT_S)
        try:
            fresh.enter(self._join, now + _REACH_S, progress)
            said = fresh.wait_until_in(
                # server 0, started again, has to hear of the others first: addresses are told once
                # it has
                lambda news: bool(news.addresses) if rank == 0 else news.number > 0,
                now + _ATTEMPT_S, _ATTEMPT_S, progress,
            )  # fmt: skip
            if said.server != rank:  # its port was given to another one
                raise ServerDiedError(f"{former.name} is now storage server {said.server}")
        except BaseException:
            fresh.close()
            raise
        return fresh

    # -- requests that survive -----------------------------------------------------------------

    def ask_each(
        self, name: str, requests: Mapping[int, dict[str, Any]], timeout_s: float,
        reconnect_s: float,
    ) -> dict[int, Any]:  # fmt: skip
        """Ask several servers at once for a method of `DistServer`; replicas answer for lost ones.

        A request is asked again where its server is lost, so the method must be one that may be.

        Args:
            name: A key of `CALLS`.
            requests: The arguments by server.
            timeout_s: How long all of them may take to answer.
            reconnect_s: How long servers without a replica may be away; 0: a lost one is an
                error.

        Raises:
            ServerDiedError: A server did not come back in time.
            ConfigError, JoinRefusedError: See `await_servers`.
            PeerTimeoutError: One did not answer.
        """
        found: dict[int, Any] = {}
        away_until = time.monotonic() + reconnect_s
        error = self._ask_those_up(name, requests, timeout_s, found)
        while error is not None:
            self._await_answerer(error, away_until)
            left = {server: args for server, args in requests.items() if server not in found}
            error = self._ask_those_up(name, left, timeout_s, found)
        return found

    def _await_answerer(self, error: GiglLoaderError, away_until: float) -> None:
        """Return when a request that was lost with its server can be asked again.

        Raises:
            GiglLoaderError: ``error``, or see `await_servers`.
        """
        # asked for as long as servers may be away, and no longer: each request has its own timeout
        if time.monotonic() >= away_until or self.closed:
            raise error
        time.sleep(_PAUSE_S)  # a request may be lost before its server is known to be
        self.await_servers(away_until)

    def ask_later(
        self, server: int, name: str, arguments: dict[str, Any], timeout_s: float,
        reconnect_s: float,
    ) -> "Future[Any]":  # fmt: skip
        """Call one server as `ask_each` does, and return at once: a future of its result."""
        answer: Future[Any] = Future()
        away_until = time.monotonic() + reconnect_s
        connection = self.connection(self.stand_in(server))

        def again(error: GiglLoaderError) -> None:
            try:
                self._await_answerer(error, away_until)
                left_s = away_until - time.monotonic()
                found = self.ask_each(name, {server: arguments}, timeout_s, left_s)
            except BaseException as last:  # somebody waits for it
                answer.set_exception(last)
            else:
                answer.set_result(found[server])

        def came(first: "Future[Any]") -> None:
            error = first.exception()
            if error is None:
                answer.set_result(first.result())
            elif isinstance(error, GiglLoaderError) and _is_lost(connection, error):
                # a thread only for lost requests: this one may be the caller's
                what = f"{name} of storage server {server}"
                new_thread(
                    target=again, args=(error,), name=what, on_death=answer.set_exception
                ).start()
            else:
                answer.set_exception(error)

        connection.call(name, timeout_s, **arguments).add_done_callback(came)
        return answer

    def holders(self, timeout_s: float, reconnect_s: float = 0.0) -> list[int]:
        """Return for each partition a server that has it: another one for each compute process.

        The servers are asked once; see `ask_each`.

        Raises:
            ServerDiedError, PeerTimeoutError: See `ask_each`.
        """
        if not self._holders:
            servers: dict[int, dict[str, Any]] = {rank: {} for rank in range(self.num_servers)}
            told = self.ask_each("get_partition_index", servers, timeout_s, reconnect_s)
            by_part: dict[int, list[int]] = {}
            for server in servers:
                by_part.setdefault(told[server], []).append(server)
            # every partition is there: a lost server's replica answered for it
            parts = [by_part[part] for part in range(len(by_part))]
            self._holders = [same[self.rank % len(same)] for same in parts]
        return self._holders

    def _ask_those_up(
        self, name: str, requests: Mapping[int, dict[str, Any]], timeout_s: float,
        found: dict[int, Any],
    ) -> GiglLoaderError | None:  # fmt: skip
        """Put answers into ``found``; return why some are missing, if their servers are lost."""
        asked: dict[int, tuple[ServerConnection, Future[Any]]] = {}
        lost = self.lost
        for server, arguments in requests.items():
            # all are asked before the first is awaited
            connection = self.connection(self._stand_in(server, lost))
            asked[server] = connection, connection.call(name, timeout_s, **arguments)
        deadline = time.monotonic() + timeout_s  # of all servers together
        missing: GiglLoaderError | None = None
        for server, (connection, answer) in asked.items():
            what = f"{name} on storage server {connection.rank}"
            try:
                found[server] = result_of(answer, deadline - time.monotonic(), what, timeout_s)
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
