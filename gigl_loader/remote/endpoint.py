"""The server's side of the network: it listens, hands on what is asked, and ends."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from gigl_loader.errors import PeerError, PeerLostError
from gigl_loader.logs import answering
from gigl_loader.remote.calls import Call
from gigl_loader.remote.jobs import Member
from gigl_loader.remote.membership import Leader, News, Role, Watch
from gigl_loader.remote.presence import Presence
from gigl_loader.remote.requests import FetchAnswer, FetchRequest, GiveBack, Nothing
from gigl_loader.remote.server_rendezvous import ServerRendezvous
from gigl_loader.remote.service import CALLS, OBSERVER, DistServer, caller
from gigl_loader.threads import new_thread
from gigl_loader.transport import End, Listener, Method, Peer, Security

_log = logging.getLogger(__name__)

# a quarter of the shortest grace that it looks after (`KILLED_GRACE_S`)
_TICK_S = 0.25
_HEALTH_EVERY_S = 60.0
_MOST_INPUT_BYTES = 16 << 30
"""The largest input of one producer: 2 billion seeds. Memory is taken as its bytes arrive."""


class Endpoint(Presence):
    """Listens for clients and, on server 0, for the other servers; knows when to end.

    Args:
        server: What is served.
        host: Address of this machine to listen on.
        port: 0: any that is free.
        security: Authentication and encryption.
        num_jobs, leader, patience_s, rejoin_s: As of `Presence`.
    """

    def __init__(
        self,
        server: DistServer,
        host: str,
        port: int,
        security: Security,
        num_jobs: int | None = None,
        leader: Leader | None = None,
        patience_s: float = 10.0,
        rejoin_s: float = 0.0,
    ) -> None:
        super().__init__(server, security, num_jobs, leader, patience_s, rejoin_s)
        server.connections = self.status
        if server.num_servers > 1:
            server.meet = self._meet
        self._listener = Listener(
            host, port, security, self._table(), f"storage server {server.server_rank}",
            on_end=self._ended, max_ask_bytes=_MOST_INPUT_BYTES,
            silence_s=patience_s,
        )  # fmt: skip
        self._listens(self._listener.address, self._listener.incarnation)

    def start(self) -> None:
        """Serve from now on."""
        self._listener.start()
        new_thread(target=self._tick_all, name="health", on_death=self._cannot_tick).start()
        # after the listener: clients come as soon as server 0 has told them of this address
        if self._leader is not None:
            self._leader.start(self, self._rejoin_s)

    def _table(self) -> dict[str, Method]:
        return {
            "watch": Method(Watch, News, self._watch),
            "fetch": Method(FetchRequest, FetchAnswer, self._fetch),
            "give_back": Method(GiveBack, Nothing, self._sender.give_back),
            **self._rendezvous.methods(),
            **{
                name: Method(call.request, call.response, partial(self._call, call))
                for name, call in CALLS.items()
            },
        }

    def _meet(self, name: str, timeout_s: float, servers: Sequence[int]) -> ServerRendezvous:
        """Return where this server agrees with others about one producer: at the first of them.

        That is server 0 unless it is lost, and the others go on without it.

        Raises:
            PeerError: Server 0 did not say where that one is.
        """
        # all who meet name the same servers, so they come to the same host without asking anybody
        own, host = self.server.server_rank, servers[0]
        if own == host:
            return ServerRendezvous(name, own, servers, timeout_s, table=self._rendezvous)
        assert self._leader is not None, "server 0 is always the first"
        known = self._leader.addresses
        address = known[host] if host > 0 and known else None
        if host > 0 and (address is None or not address[1]):
            raise PeerError(f"storage server {own} does not know where storage server {host} is")
        dial = partial(self._leader.dial, address)
        return ServerRendezvous(name, own, servers, timeout_s, dial=dial)

    # -- what they ask ----------------------------------------------------------------------------

    def _client_of(self, peer: Peer) -> Member | None:
        member = self._attendance.find(peer.session, 0)
        return member if member is not None and member.join.role is Role.CLIENT else None

    def _fetch(self, request: FetchRequest, peer: Peer) -> "Future[FetchAnswer]":
        member = self._attendance.members.get(peer.session)
        token = caller.set(OBSERVER if member is None else member.client)
        try:
            return self._sender.fetch(request, peer)
        finally:
            caller.reset(token)

    def _call(self, call: Call, request: Any, peer: Peer) -> Any:
        member = self._client_of(peer)
        # without having joined, as `gigl-loader status` asks: its end releases nothing
        token = caller.set(OBSERVER if member is None else member.client)
        who = {} if member is None else {"job": member.job, "rank": member.join.rank}
        try:
            with answering(**who):
                return self._answer(call, request, peer)
        finally:
            caller.reset(token)

    def _answer(self, call: Call, request: Any, peer: Peer) -> Any:
        try:
            return call.respond(getattr(self.server, call.name)(**call.arguments(request)))
        except PeerLostError as error:  # of another one than this server
            raise PeerError(str(error)) from error
        except Exception as error:
            if not self._stopping:  # else they fail for that reason
                _log.warning(
                    "%s: %s failed: %s: %s", peer.name, call.name, type(error).__name__, error
                )
            raise

    # -- health -----------------------------------------------------------------------------------

    def _tick_all(self) -> None:
        report = time.monotonic() + _HEALTH_EVERY_S
        while not self.over.wait(_TICK_S):
            now = time.monotonic()
            try:
                self._tick(now)
                if now >= report:
                    # not from `now`: reports stay a minute apart, however late this thread gets the
                    # processor
                    report += _HEALTH_EVERY_S
                    self._log_health()
            except Exception:  # this thread also frees what lost clients had
                _log.exception("cannot tell the state of this server")

    def _cannot_tick(self, error: BaseException) -> None:
        """End this server: nobody would free what lost clients had."""
        rank = self.server.server_rank
        self.lose(f"storage server {rank} cannot look after its clients: {error!r}")
        self.over.set()

    def _log_health(self) -> None:
        status = self.server.status()
        producers = status["producers"].values()
        _log.info(
            "storage server %d is %s: partition %d of %d, %d clients, %d producers, "
            "%d bytes queued",
            *(status["server_rank"], status["health"]),
            *(status["partition_idx"], status["num_partitions"]),
            *(len(status["clients"]), len(producers), sum(p["queued_bytes"] for p in producers)),
        )

    def status(self) -> dict[str, Any]:
        """Return who is connected, as plain values."""
        refused = self._refused.count + sum(self._listener.stats()["refused"].values())
        with self._lock:
            members = self._attendance.members.values()
            clients = sorted(one.join.rank for one in members if one.join.role is Role.CLIENT)
            return {
                "clients": clients,
                "servers": sorted(self._servers),
                "cluster": self.cluster,
                "job": self._book.job,
                "jobs_served": self.jobs_served,
                "refused": refused,
                "lost": None if self._error is None else str(self._error),
                "away": self._away(),
            }

    # -- end --------------------------------------------------------------------------------------

    def close(self, end: End = End.SHUTDOWN, words: str = "it was shut down") -> None:
        """End: say so to all, then end the producers. Idempotent.

        Goodbyes come first, so that clients hear why, and not that their producer is gone.

        Args:
            end: What decides on the other side: it ends in good order after ``SHUTDOWN``.
            words: For people.
        """
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            # before the listener ends: members that leave from here on are not freed one by one
            # (`_left`)
            sessions = list(self._attendance.members)
        self.over.set()
        if end is End.JOB_OVER:
            self._let_servers_hear()
        self._listener.close(end, words)
        self.server.close()
        for session in sessions:
            self._sender.lose(session)
        if self._leader is not None:
            # last: server 0 tells others of this end, and until now its workers may have answered
            self._leader.close()
