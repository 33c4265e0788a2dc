"""The server's side of the wire: who is connected, which job is served, and what they ask."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from gigl_loader.errors import ConfigError, ServerDiedError, UsageError
from gigl_loader.memory.leases import Packed, Place
from gigl_loader.remote import wire
from gigl_loader.remote.rpc import CLIENT, SERVER, Hello, RemoteFailure, ServerLink, Welcome
from gigl_loader.remote.service import DistServer, call_on_server, caller
from gigl_loader.remote.shared import Fetched
from gigl_loader.remote.wire import Connection, Frame

_log = logging.getLogger(__name__)

_TICK_S = 5.0
_HEALTH_EVERY_S = 60.0
_GRACE_S = 30.0
"""How long clients may take to leave after a server was lost."""


@dataclass
class JobBook:
    """Which clients are here, job after job; on server 0 only. No sockets, no clock.

    ::

        gathering: clients join ---all are here---> running: clients leave ---all left---> next job
    """

    job: int = 0
    world_size: int | None = None
    running: bool = False
    present: dict[int, Any] = field(default_factory=dict)
    """By rank, whatever stands for the client."""
    queued: list[tuple[Hello, Any]] = field(default_factory=list)
    """Clients of the next job, come while this one runs."""

    def join(self, hello: Hello, client: Any) -> None:
        """Take a client in, or put it in the queue.

        Raises:
            ConfigError: It counts other compute processes than the others do, or its rank is taken.
        """
        if self.running:
            self.queued.append((hello, client))
            return
        if not 0 <= hello.rank < hello.world_size:
            raise ConfigError(f"compute rank {hello.rank} is not in [0, {hello.world_size})")
        if self.present and hello.world_size != self.world_size:
            raise ConfigError(
                f"compute process {hello.rank} says that the job has {hello.world_size} processes, "
                f"the others say {self.world_size}: give all the same GraphStoreInfo"
            )
        if hello.rank in self.present:
            raise ConfigError(
                f"two processes joined as compute rank {hello.rank}: check RANK and local_rank"
            )
        self.world_size = hello.world_size
        self.present[hello.rank] = client

    @property
    def complete(self) -> bool:
        """Whether all clients of the job are here."""
        return len(self.present) == self.world_size

    def leave(self, client: Any) -> bool:
        """Let a client go; return whether the job is over."""
        self.queued = [(hello, one) for hello, one in self.queued if one is not client]
        self.present = {rank: one for rank, one in self.present.items() if one is not client}
        if not self.running or self.present:
            return False
        self.job, self.running, self.world_size = self.job + 1, False, None
        return True

    def take_queued(self) -> list[tuple[Hello, Any]]:
        """Return the clients that came while the last job ran."""
        queued, self.queued = self.queued, []
        return queued


class Session:
    """One connection to this server."""

    def __init__(self, endpoint: "Endpoint", connection: Connection, name: str) -> None:
        self._endpoint, self._connection, self.name = endpoint, connection, name
        self.hello: Hello | None = None
        self.hello_request = 0
        self.job: int | None = None
        self.said_bye = False
        self._lending = threading.Lock()
        self._lent: dict[int, Packed] | None = {}
        """Batches that the client reads where they lie, by request; None: the client is gone."""
        connection.start(self)

    @property
    def client(self) -> tuple[int | None, int]:
        """(job, compute rank), which owns producers."""
        assert self.hello is not None
        return self.job, self.hello.rank

    def welcome(self, welcome: Welcome) -> None:
        """Let the other side begin."""
        self.job = welcome.job
        self._connection.send(wire.REPLY, self.hello_request, welcome)

    def refuse(self, error: Exception) -> None:
        """Tell the other side why it cannot begin."""
        self._connection.send(wire.ERROR, self.hello_request, RemoteFailure.of(error))

    def note(self, text: Any) -> None:
        """Say something that is no answer."""
        self._connection.send(wire.NOTE, 0, text)

    def say_goodbye(self, reason: str) -> None:
        """Tell the other side that this server ends; never waits."""
        self._connection.send(wire.BYE, 0, reason)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    # -- called by the connection ---------------------------------------------------------------

    def allocate(self, request: int, nbytes: int) -> tuple[memoryview, Any]:
        """Refuse: clients send no batches."""
        raise ValueError(f"{self.name} sent a batch to a server")

    def on_frame(self, frame: Frame) -> None:
        """Serve a request; never waits."""
        if frame.kind == wire.FETCH:
            self._fetch(frame)
        elif frame.kind == wire.CALL:
            context = copy_context()
            args = (context, frame)
            threading.Thread(target=self._call, args=args, name=self.name, daemon=True).start()
        elif frame.kind == wire.HELLO:
            self.hello, self.hello_request = frame.body, frame.request
            self._endpoint.joined(self)
        elif frame.kind == wire.GIVE_BACK:
            with self._lending:
                given_back = None if self._lent is None else self._lent.pop(frame.request, None)
            del given_back  # not under the lock: the slot is free from here on
        elif frame.kind == wire.BYE:
            self.said_bye = True

    def on_close(self, error: BaseException | None) -> None:
        """Let the endpoint know, from a thread that may wait."""
        with self._lending:
            lost, self._lent = self._lent, None
        for message in (lost or {}).values():
            message.loan.lose()
        args = (self, error)
        threading.Thread(target=self._endpoint.left, args=args, daemon=True).start()

    def _fetch(self, frame: Frame) -> None:
        try:
            future = self._endpoint.server.fetch(frame.body)
        except Exception as error:
            self._fail(frame, error)
            return
        future.add_done_callback(lambda done: self._send_fetched(frame, done))

    def _send_fetched(self, frame: Frame, future: "Future[Fetched]") -> None:
        error = future.exception()
        if error is not None:
            self._fail(frame, error)
            return
        received, finished = future.result()
        number = frame.request
        if received is None:
            self._connection.send(wire.REPLY, number, (frame.body.round, None, finished))
            return
        message = received.message
        assert isinstance(message, Packed)
        place = payload = None
        if not frame.body.same_memory:
            payload = message.payload
        elif (place := self._lend(number, message)) is None:
            return
        about = (received.ticket, message.layout, received.stats, place)
        self._connection.send(wire.BATCH, number, (frame.body.round, about, finished), payload)

    def _lend(self, number: int, message: Packed) -> Place | None:
        with self._lending:
            if self._lent is None:
                return None  # nobody is there to read it
            self._lent[number] = message
        return message.loan.begin()

    def _call(self, context: Any, frame: Frame) -> None:
        try:
            answer = context.run(self._called, frame.body)
            self._connection.send(wire.REPLY, frame.request, answer)
        except BaseException as error:
            self._fail(frame, error)

    def _called(self, body: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> Any:
        if self.hello is not None and self.hello.role == CLIENT:
            caller.set(self.client)
        function, args, keywords = body
        return call_on_server(self._endpoint.server, function, args, keywords)

    def _fail(self, frame: Frame, error: BaseException) -> None:
        if not self._endpoint.is_closing:  # else they fail for that reason
            _log.warning("%s: a request failed: %s: %s", self.name, type(error).__name__, error)
        self._connection.send(wire.ERROR, frame.request, RemoteFailure.of(error))


class Endpoint:
    """Listens for clients and, on server 0, for the other servers; knows when to end.

    Args:
        server: What is served.
        sock: A listening socket.
        token: The cluster's.
        num_jobs: Jobs to serve; None: until told to stop. Server 0's is what counts.
        leader: On the other servers: the connection to server 0.
    """

    def __init__(
        self, server: DistServer, sock: Any, token: bytes, num_jobs: int | None,
        leader: Connection | None = None,
    ) -> None:  # fmt: skip
        self.server = server
        self._num_jobs = num_jobs
        self._lock = threading.RLock()
        self._sessions: set[Session] = set()
        self._servers: dict[int, Session] = {}
        self._book = JobBook()
        self._error: ServerDiedError | None = None
        self._error_time = 0.0
        self._stopping = False
        self.jobs_served = 0
        self.over = threading.Event()
        """Set when there is nothing left to serve."""
        server.connections = self.status
        self.address: tuple[str, int] = sock.getsockname()[:2]
        self._leader: ServerLink | None = None
        self._listener = wire.Listener(sock, token, self._admit)  # from here on, clients come in
        if leader is not None:
            self._leader = _LeaderLink(self, leader)
            hello = Hello(
                role=SERVER, rank=server.server_rank, num_servers=server.num_servers,
                address=self.address,
            )  # fmt: skip
            self._leader.hello(hello).add_done_callback(self._on_leader_answer)
        threading.Thread(target=self._tick_all, name="health", daemon=True).start()

    def _on_leader_answer(self, answer: "Future[Welcome]") -> None:
        error = answer.exception()
        if error is not None and not self._stopping:
            self.lose(str(error))

    # -- sessions -------------------------------------------------------------------------------

    def _admit(self, connection: Connection, name: str) -> None:
        with self._lock:
            if self._stopping:
                connection.close()
                return
            self._sessions.add(Session(self, connection, f"{name} at {connection.name}"))

    def joined(self, session: Session) -> None:
        """A connection said what it is."""
        hello = session.hello
        assert hello is not None
        with self._lock:
            try:
                self._check(hello)
                if hello.role == SERVER:
                    self._servers[hello.rank] = session
                    session.welcome(Welcome(job=self._book.job, addresses=()))
                    _log.info("storage server %d joined from %s", hello.rank, hello.address)
                elif hello.role == CLIENT and hello.job is None:
                    self._book.join(hello, session)
                else:
                    session.welcome(Welcome(job=hello.job or 0, addresses=()))
            except Exception as error:
                _log.warning("%s cannot join: %s", session.name, error)
                session.refuse(error)
                return
            self._begin_if_complete()
            self._tell_waiting()

    def _check(self, hello: Hello) -> None:
        if self._error is not None:
            raise self._error
        servers = self.server.num_servers
        if hello.num_servers not in (0, servers):
            raise ConfigError(
                f"{hello.role} {hello.rank} counts {hello.num_servers} storage servers, server "
                f"{self.server.server_rank} counts {servers}: give all the same GraphStoreInfo"
            )
        if hello.role == SERVER and hello.rank in self._servers:
            raise ConfigError(f"two processes joined as storage server {hello.rank}: check RANK")
        if hello.role == CLIENT and hello.job is None and self.server.server_rank != 0:
            raise ConfigError(
                f"this is storage server {self.server.server_rank}; clients join at server 0: "
                "check storage_cluster_master_ip and rpc_master_port"
            )

    @property
    def _all_servers_here(self) -> bool:
        return len(self._servers) == self.server.num_servers - 1

    def _begin_if_complete(self) -> None:
        book = self._book
        if book.running or not book.complete or not self._all_servers_here:
            return
        book.running = True
        addresses = [self.address]
        for rank in sorted(self._servers):
            hello = self._servers[rank].hello
            assert hello is not None
            assert hello.address is not None
            addresses.append(hello.address)
        _log.info("job %d begins with %d compute processes", book.job, len(book.present))
        for session in book.present.values():
            session.welcome(Welcome(job=book.job, addresses=tuple(addresses)))

    def left(self, session: Session, error: BaseException | None) -> None:
        """A connection is over: free what it held."""
        with self._lock:
            self._sessions.discard(session)
            hello = session.hello
            if hello is None or self._stopping:
                return
            if hello.role == SERVER and self._servers.get(hello.rank) is session:
                self.lose(f"storage server {hello.rank} at {hello.address} is gone ({error})")
        if hello.role == CLIENT:
            how = "left" if session.said_bye else f"is gone without goodbye ({error})"
            _log.info("%s of job %s %s", session.name, session.job, how)
            if session.job is not None:
                self.server.client_gone(session.client)
            if hello.job is None:
                self._leave_job(session)

    def _leave_job(self, session: Session) -> None:
        with self._lock:
            if not self._book.leave(session):
                return
            self.jobs_served += 1
            _log.info("job %d is over", self._book.job - 1)
            for server in self._servers.values():
                server.note(f"over: job {self._book.job - 1}")
            if self._num_jobs is not None and self.jobs_served >= self._num_jobs:
                self.over.set()
                return
            for hello, client in self._book.take_queued():
                try:
                    self._book.join(hello, client)
                except ConfigError as error:
                    client.refuse(error)
            self._begin_if_complete()

    # -- health ---------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """Another server is gone: nobody may join any more, and this one ends soon."""
        with self._lock:
            if self._error is not None or self._stopping:
                return
            self._error = ServerDiedError(
                f"{why}: the graph is incomplete without it; start the storage cluster again"
            )
            self._error_time = time.monotonic()
            others = list(self._servers.values())
        _log.error("%s", self._error)
        for session in others:
            session.note(f"lost: {why}")

    def _tick_all(self) -> None:
        report = time.monotonic() + _HEALTH_EVERY_S
        while not self.over.wait(_TICK_S if self._error is None else 0.5):
            with self._lock:
                self._tell_waiting()
                clients = [s for s in self._sessions if s.hello and s.hello.role == CLIENT]
                if self._error is not None and (
                    not clients or time.monotonic() - self._error_time > _GRACE_S
                ):
                    self.over.set()
            if time.monotonic() >= report:
                report += _HEALTH_EVERY_S
                try:
                    self._log_health()
                except Exception:  # this thread also ends a server that has lost another
                    _log.exception("cannot tell the state of this server")

    def _tell_waiting(self) -> None:
        book = self._book
        if book.running:
            text = f"job {book.job} is still served; {len(book.present)} of its clients are here"
            waiting = [client for _, client in book.queued]
        else:
            missing = sorted(set(range(1, self.server.num_servers)) - set(self._servers))
            text = f"{len(book.present)} of {book.world_size} compute processes are here"
            if missing:
                text += f"; storage servers {missing} have not loaded their partitions yet"
            waiting = list(book.present.values())
        for session in waiting:
            session.note(text)

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
        with self._lock:
            hellos = [session.hello for session in self._sessions if session.hello is not None]
            return {
                "clients": sorted(hello.rank for hello in hellos if hello.role == CLIENT),
                "servers": sorted(self._servers),
                "job": self._book.job,
                "jobs_served": self.jobs_served,
                "lost": None if self._error is None else str(self._error),
            }

    # -- end ------------------------------------------------------------------------------------

    def leader_says(self, text: str) -> None:
        """Hear from server 0."""
        if text.startswith("over: "):
            self.jobs_served += 1
        if text.startswith("lost: "):
            self.lose(text[len("lost: ") :])

    def leader_left(self, error: Exception) -> None:
        """Hear that server 0 has ended: as told, or not."""
        if "shut down" in str(error):
            self.over.set()
        else:
            self.lose(str(error))

    def close(self, reason: str = "it was shut down") -> None:
        """End: say so to all, then end producers, then connections. Idempotent.

        Goodbyes come first, so that clients hear why, and not that their producer is gone.
        """
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            sessions = list(self._sessions)
        self.over.set()
        self._listener.close()
        for session in sessions:
            session.say_goodbye(reason)
        self.server.close()
        threads = [threading.Thread(target=session.close, daemon=True) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5.0)
        if self._leader is not None:
            self._leader.close()

    @property
    def is_closing(self) -> bool:
        """Whether this server ends."""
        return self._stopping

    @property
    def error(self) -> ServerDiedError | None:
        """Why serving ended early."""
        return self._error


class _LeaderLink(ServerLink):
    """A storage server's link to server 0."""

    def __init__(self, endpoint: Endpoint, connection: Connection) -> None:
        self._endpoint = endpoint
        super().__init__(0, connection)

    def on_frame(self, frame: Frame) -> None:
        super().on_frame(frame)
        if frame.kind == wire.NOTE:
            self._endpoint.leader_says(str(frame.body))

    def on_close(self, error: BaseException | None) -> None:
        super().on_close(error)
        self._endpoint.leader_left(self.error or UsageError("closed"))
