"""A storage server's process: load, meet the others, serve, end.

Its `Endpoint` is its side of the network: it listens, hands on requests, and ends.
"""

import atexit
import contextlib
import gc
import logging
import signal
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.identity import check_enough, check_position
from gigl_loader.errors import ConfigError, PeerError, PeerLostError
from gigl_loader.graph_store.server.client_ids import Visitor, scope_of
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.server.metrics import MetricsListener
from gigl_loader.graph_store.server.presence import Presence
from gigl_loader.graph_store.server.rendezvous_host import ServerRendezvous
from gigl_loader.graph_store.server.service import StorageService, caller
from gigl_loader.graph_store.server.settings import (
    JOIN_TIMEOUT_S,
    check_settings,
    listening_address,
)
from gigl_loader.graph_store.wire.calls import Call
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo
from gigl_loader.graph_store.wire.membership import (
    MAX_JOBS,
    PATIENCE_S,
    News,
    Role,
    WaitReport,
    Watch,
)
from gigl_loader.graph_store.wire.requests import FetchAnswer, FetchRequest, GiveBack, Nothing
from gigl_loader.graph_store.wire.signatures import CALLS, PartitionSignatures
from gigl_loader.runtime.glt_classes import Dataset, _set_server_context
from gigl_loader.runtime.logs import answering, know
from gigl_loader.runtime.system import told_to_end
from gigl_loader.runtime.threads import new_thread
from gigl_loader.runtime.transport import EndReason, Listener, Method, Peer, Security
from gigl_loader.runtime.transport.failures import one_line
from gigl_loader.sampler.kernels.kernel_loaders import LOADERS
from gigl_loader.sampler.options import DEFAULT_RECONNECT_S

_log = logging.getLogger(__name__)

_LOOK_S = 0.25
"""Seconds between two checks whether a waiting server was told to end."""
# a quarter of the shortest grace that depends on it (`KILLED_GRACE_S`)
_TICK_S = 0.25
_HEALTH_EVERY_S = 60.0
_MOST_INPUT_BYTES = 16 << 30
"""Largest input of one producer: 2 billion seeds. Memory is taken as its bytes arrive."""


# --- the network ----------------------------------------------------------------------------------


class Endpoint(Presence):
    """Listens for clients and, on server 0, for the other servers; knows when to end.

    Args:
        server: The served object.
        host: Address of this machine to listen on.
        port: Port to listen on; 0: any free one.
        security: Authentication and encryption.
        num_jobs, leader, patience_s, rejoin_s, max_jobs: As for `Presence`.
    """

    def __init__(
        self,
        server: StorageService,
        host: str,
        port: int,
        security: Security,
        num_jobs: int | None = None,
        leader: LeaderLink | None = None,
        patience_s: float = 10.0,
        rejoin_s: float = 0.0,
        max_jobs: int = MAX_JOBS,
    ) -> None:
        super().__init__(server, security, num_jobs, max_jobs, leader, patience_s, rejoin_s)
        server.connections, server.stops = self.status, self.stop_job
        server.on_end = self._sender.end_producer
        if server.num_servers > 1:
            server.meet = self._meet
        self._listener = Listener(
            host,
            port,
            security,
            self._table(),
            f"storage server {server.server_rank}",
            on_peer=self._came,
            on_end=self._ended,
            max_ask_bytes=_MOST_INPUT_BYTES,
            silence_s=patience_s,
            party_of=lambda peer: scope_of(self._client_of(peer)),
        )
        self._listens(self._listener.address, self._listener.incarnation)

    def start(self) -> None:
        """Begin to serve."""
        self._listener.start()
        new_thread(target=self._tick_all, name="health", on_death=self._cannot_tick).start()
        # after the listener, as clients come once server 0 has told them this address
        if self._leader is not None:
            self._leader.start(self, self._rejoin_s)

    def _table(self) -> dict[str, Method]:
        return {
            "watch": Method(Watch, News, self._watch),
            "fetch": Method(FetchRequest, FetchAnswer, self._fetch),
            "give_back": Method(GiveBack, Nothing, self._sender.give_back),
            **self._rendezvous.methods(self._server_of),
            **{
                name: Method(call.request, call.response, partial(self._call, call))
                for name, call in CALLS.items()
            },
        }

    def _meet(self, name: str, timeout_s: float, servers: Sequence[int]) -> ServerRendezvous:
        """Return the rendezvous of this server with others for one producer.

        The first of them is the host: server 0 unless it is lost.

        Raises:
            PeerError: Server 0 did not give the host's address.
        """
        # all participants name the same servers, so they find the same host without a request
        rank, host = self.server.server_rank, servers[0]
        if rank == host:
            return ServerRendezvous(name, rank, servers, timeout_s, table=self._rendezvous)
        assert self._leader is not None, "server 0 is always the first"
        known = self._leader.addresses
        address = known[host] if host > 0 and known else None
        if host > 0 and (address is None or not address[1]):
            raise PeerError(f"storage server {rank} does not know where storage server {host} is")
        # by this session the host knows this server: see `_server_of`
        dial = partial(self._leader.dial, address, session=self._process)
        return ServerRendezvous(name, rank, servers, timeout_s, dial=dial)

    # -- requests ---------------------------------------------------------------------------------

    def _member_of(self, peer: Peer) -> Member | None:
        member = self._attendance.find(peer.session, 0)
        return member if member is not None and member.join.role is Role.CLIENT else None

    def _client_of(self, peer: Peer) -> Hashable:
        member = self._attendance.members.get(peer.session)
        return Visitor(peer.session) if member is None else member.client

    def _fetch(self, request: FetchRequest, peer: Peer) -> "Future[FetchAnswer]":
        token = caller.set(self._client_of(peer))
        try:
            return self._sender.fetch(request, peer)
        finally:
            caller.reset(token)

    def _call(self, call: Call, request: Any, peer: Peer) -> Any:
        member = self._member_of(peer)
        # a peer that has not joined, like `gigl-loader status`, is a visitor
        token = caller.set(Visitor(peer.session) if member is None else member.client)
        who = {} if member is None else {"job": member.join.job_name, "rank": member.join.rank}
        try:
            with answering(**who):
                return self._answer(call, request, peer)
        finally:
            caller.reset(token)

    def _answer(self, call: Call, request: Any, peer: Peer) -> Any:
        # those that only read the partition wait for nobody, so a turn is soon over
        reads = call.name in vars(PartitionSignatures)
        try:
            with (
                self.server.answering.taking(scope_of(caller.get()))
                if reads
                else contextlib.nullcontext()
            ):
                return call.respond(getattr(self.server, call.name)(**call.arguments(request)))
        except PeerLostError as error:  # the loss of another server
            raise PeerError(str(error)) from error
        except Exception as error:
            if not self._stopping:  # else stopping is the reason
                # cut, as it may quote a megabyte of what the process sent
                words = f"{type(error).__name__}: {one_line(str(error))}"
                _log.warning("%s: %s failed: %s", peer.name, call.name, words)
            raise

    # -- health -----------------------------------------------------------------------------------

    def _tick_all(self) -> None:
        report = time.monotonic() + _HEALTH_EVERY_S
        while not self.over.wait(_TICK_S):
            now = time.monotonic()
            try:
                self._tick(now)
                if now >= report:
                    # not from `now`, so that reports stay a minute apart even if this thread runs
                    # late
                    report += _HEALTH_EVERY_S
                    self._log_health()
            except Exception:  # this thread must continue, as it frees lost clients' producers
                _log.exception("cannot tell the state of this server")

    def _cannot_tick(self, error: BaseException) -> None:
        """End this server, as lost clients' producers would never be freed."""
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
        """Return the connected members, as plain values."""
        refused = self._refused.count + sum(self._listener.stats()["refused"].values())
        with self._lock:
            members = self._attendance.members.values()
            clients = sorted(
                member.join.rank for member in members if member.join.role is Role.CLIENT
            )
            return {
                "clients": clients,
                "servers": sorted(self._attendance.servers),
                "cluster": self.cluster,
                "jobs": self._ranks_by_job(),
                "jobs_served": self.jobs_served,
                "refused": refused,
                "lost": None if self.error is None else str(self.error),
                "away": self._away(),
            }

    def _ranks_by_job(self) -> dict[str, list[int]]:
        """Return which ranks of each job are here, by name."""
        jobs: dict[str, list[int]] = {}
        for member in self._attendance.members.values():
            if member.job is not None and member.join.role is Role.CLIENT:
                jobs.setdefault(member.join.job_name, []).append(member.join.rank)
        return {name: sorted(ranks) for name, ranks in jobs.items()}

    # -- end --------------------------------------------------------------------------------------

    def close(self, end: EndReason = EndReason.SHUTDOWN, words: str = "it was shut down") -> None:
        """Say goodbye to all, then end the producers. Idempotent.

        Goodbyes come first, so that clients learn the reason, not that their producer is gone.

        Args:
            end: Reason for the other side, which ends in good order after ``SHUTDOWN``.
            words: Reason for people.
        """
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            # before the listener ends, so that members that leave from here on are not freed one by
            # one (`_note_departure`)
            sessions = list(self._attendance.members)
            self._asked_again.notify_all()
        self.over.set()
        if end is EndReason.JOB_OVER:
            self._let_servers_hear()
        self._listener.close(end, words)
        self.server.close()
        for session in sessions:
            self._sender.lose(session)
        if self._leader is not None:
            # last, as server 0 reports this end to others, and workers may have served until now
            self._leader.close()


# --- the process ----------------------------------------------------------------------------------


class StorageProcess(AbstractContextManager["StorageProcess"]):
    """A storage server that serves in threads of its own; from `init_storage_process`."""

    def __init__(
        self, server: StorageService, endpoint: Endpoint, metrics: MetricsListener | None = None
    ) -> None:
        self.server, self._endpoint, self._metrics = server, endpoint, metrics
        # plain values, as a signal handler must not take a lock that its thread may hold
        self._told, self._signal = False, 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which clients reach this server."""
        return self._endpoint.address

    @property
    def metrics_port(self) -> int | None:
        """Port on which Prometheus reads this server's figures; None: no metrics."""
        return None if self._metrics is None else self._metrics.port

    def wait(self, timeout: float | None = None) -> int:
        """Serve until all jobs are done or a signal comes; return how many jobs were served.

        SIGTERM and SIGINT end it where this is the main thread: clients are told, then producers
        end, then connections. A second signal changes nothing; torchrun sends one after Ctrl-C.

        Args:
            timeout: Seconds after which it returns, still serving; None: never.

        Raises:
            ServerDiedError: Another storage server ended before the jobs were done.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # kept until the end of `close`, so that a second signal does not cut it short
        with told_to_end(self._on_signal):
            # a wait without a limit would never check `_told`, which no lock or event announces
            while not self._endpoint.over.wait(_LOOK_S):
                if self._told:
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return self._endpoint.jobs_served
            if self._signal:
                _log.info("%s: ending", signal.Signals(self._signal).name)
            error = self._endpoint.error
            # a server that was told to end does so in good order, even if another one was lost
            failed = error is not None and not self._told
            if failed:
                self.close("it lost another storage server", EndReason.LOST_PEER)
            else:  # a server that ends because the jobs are done ends the others too
                self.close(end=EndReason.SHUTDOWN if self._told else EndReason.JOB_OVER)
        if failed and error is not None:
            raise error
        return self._endpoint.jobs_served

    def stop(self) -> None:
        """Make `wait` return; safe in a signal handler."""
        self._told = True

    def close(self, reason: str = "it was shut down", end: EndReason = EndReason.SHUTDOWN) -> None:
        """End now. Idempotent.

        Args:
            reason: Reason for people.
            end: Reason for the other servers, which end in good order after ``SHUTDOWN``.
        """
        self._endpoint.close(end, reason)
        if self._metrics is not None:
            self._metrics.close()
        know(server=None)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_signal(self, number: int) -> None:
        self._signal = number  # logged later, as a handler must not write to the log
        self.stop()


def init_storage_process(
    storage_rank: int,
    cluster_info: GraphStoreInfo,
    dataset: Dataset,
    *,
    num_jobs: int | None = None,
    max_jobs: int = MAX_JOBS,
    tls_dir: str | None = None,
    token: str | None = None,
    insecure: bool | None = None,
    allow_samplers: Sequence[str] = (),
    allow_functions: Sequence[str] = (),
    allow_seed_files: bool = False,
    channel_memory: int | str | None = None,
    host: str | None = None,
    port: int | None = None,
    timeout: float = JOIN_TIMEOUT_S,
    network_timeout: float = PATIENCE_S,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    reconnect_timeout: float = DEFAULT_RECONNECT_S,
) -> StorageProcess:
    """Serve a partition to compute processes; returns once this server is known to the others.

    ::

        with init_storage_process(rank, info, DistDataset.load(root, rank)) as server:
            server.wait()

    ``tls_dir``, ``token`` or ``insecure``, or the environment, set the authentication; beyond
    loopback one of them is needed. It holds for this server's sampling workers as well.

    Args:
        storage_rank: This server, in ``[0, num_storage_nodes)``.
        cluster_info: The cluster. Server 0 listens on ``rpc_master_port``. The number of compute
            processes is not read from it: the first process of a job has it.
        dataset: The partition: ``DistDataset``, ours or GLT's. With more servers than partitions,
            server ``i`` has partition ``i`` modulo their number.
        num_jobs: Compute jobs after whose end this ends, too; None: until told to stop.
        max_jobs: Most compute jobs to serve at a time. Further ones wait, in the order in which
            they arrived. Server 0's counts.
        tls_dir: Folder with ``ca.pem``, ``cert.pem`` and ``key.pem``. None: the environment's
            ``GIGL_LOADER_TLS_DIR``.
        token: The cluster's secret. None: the environment's ``GIGL_LOADER_CLUSTER_TOKEN``.
        insecure: Plain sockets, for closed networks. None: the environment's
            ``GIGL_LOADER_INSECURE``.
        allow_samplers: Packages, modules or classes that clients may name as samplers, besides
            those of gigl_loader.
        allow_functions: Packages, modules or functions that clients may run in this process, by
            ``request_server``.
        allow_seed_files: Whether clients may name files of this machine that hold seeds, as
            ``RemoteNodePathSamplerInput`` does.
        channel_memory: Most bytes of batches that this server keeps for all jobs, or a string such
            as ``"8GB"``: a loader beyond it is refused, with the figures. Each counts its
            ``channel_size``. None: no limit.
        host: Address of this machine to listen on. None: on server 0 the storage master's, on
            others that of the interface that leads there.
        port: Port of the other servers; None: any that is free.
        timeout: Seconds to wait for server 0.
        network_timeout: Longest outage of the network in seconds; the same on all processes.
        metrics_port: Port for Prometheus; 0: any that is free, None: no metrics. Needs
            ``gigl_loader[metrics]``.
        metrics_host: Address of this machine for that. Beyond loopback it needs certificates, or
            ``insecure``.
        reconnect_timeout: Longest absence in seconds of another server without a replica before
            this one ends. 0: this one ends at once.

    Raises:
        ConfigError: A figure is out of range, the address cannot be listened on, the servers are
            fewer than the partitions, or are more and this one has not partition ``storage_rank``
            modulo their number, or no authentication is set.
        JoinRefusedError: Server 0 does not let this one in, or is another service.
        PeerTimeoutError: Server 0 did not come up.
    """
    # refuse whatever can be refused before anything listens or starts
    num_servers = cluster_info.num_storage_nodes
    most_bytes = check_settings(
        storage_rank,
        num_servers,
        num_jobs=num_jobs,
        max_jobs=max_jobs,
        channel_memory=channel_memory,
        network_timeout=network_timeout,
        reconnect_timeout=reconnect_timeout,
    )
    security = Security.resolve(tls_dir, token, insecure)
    held = DistDataset.wrap(dataset)
    check_enough(held.num_partitions, held.partition_idx, num_servers, who="storage server")
    check_position(held.num_partitions, held.partition_idx, storage_rank, num_servers)
    master, master_port = cluster_info.storage_cluster_master_ip, cluster_info.rpc_master_port
    address = listening_address(storage_rank, master, host)
    # `for_workers`, as each of them would make its own certificate otherwise
    server = StorageService(
        held,
        storage_rank,
        num_servers,
        address,
        security=security.for_workers(),
        allow_samplers=allow_samplers,
        allow_functions=allow_functions,
        allow_seed_files=allow_seed_files,
        channel_memory=most_bytes,
    )
    name = f"storage server {storage_rank}"
    leader = None
    if storage_rank > 0:
        leader = LeaderLink(master, master_port, security, name, network_timeout)
    # It takes its port now but admits nobody before `start`: a taken address is known at
    # once, and an early client waits where it will be served.
    endpoint = Endpoint(
        server,
        address,
        master_port if storage_rank == 0 else port or 0,
        security,
        num_jobs,
        leader,
        network_timeout,
        reconnect_timeout,
        max_jobs,
    )
    know(server=storage_rank)
    metrics = None
    try:
        if metrics_port is not None:
            metrics = MetricsListener(server.status, metrics_host, metrics_port, security)
        # before any client is admitted: with an empty cache Numba compiles for seconds, which
        # would count as part of a client's wait for its first batch
        for name in ("uniform", "merged", "owners"):
            LOADERS[name]()
        # for GLT's classes, which need it. One client stands for all, as jobs differ in their
        # number
        _set_server_context(num_servers, storage_rank, "gigl_loader_servers", 1)
        if leader is not None:
            # Server 0 may still be loading. This wait logs progress; the thread that
            # joins would take a closed port for the loss of server 0.
            progress = WaitReport(name, deadline := time.monotonic() + timeout)
            leader.caller.connect(
                deadline,
                lambda why: progress.say(
                    f"storage server 0 at {master}:{master_port}"
                    + (f" ({why})" if "has no address" in why else "")
                ),
            )
    except BaseException:
        # a caller that catches the error may retry in this process, so the port must be free
        StorageProcess(server, endpoint, metrics).close()
        raise
    endpoint.start()
    atexit.unregister(_leave_garbage)  # once, however often this process serves
    atexit.register(_leave_garbage)
    _log.info(
        "storage server %d of %d serves partition %d on %s:%d",
        *(storage_rank, num_servers, server.dataset.partition_idx, *endpoint.address),
    )
    return StorageProcess(server, endpoint, metrics)


def _leave_garbage() -> None:
    """Keep the end of the interpreter from looking for garbage among all objects.

    It does so several times, which takes over a second of CPU time with torch and the compiled
    kernels loaded: on a busy machine longer than an orchestrator lets a server take to end.
    """
    gc.disable()
    gc.freeze()


def run_storage_server(
    storage_rank: int,
    cluster_info: GraphStoreInfo,
    dataset: Dataset,
    num_server_sessions: int | None = None,
    timeout_seconds: float | None = None,
    num_rpc_threads: int | None = None,
    rpc_timeout: float | None = None,
    **how: Any,
) -> int:
    """Serve a partition until the jobs are done or a signal comes; GiGL's function of this name.

    ::

        run_storage_server(rank, info, DistDataset.load(root, rank), num_server_sessions=2)

    Args:
        storage_rank: As for `init_storage_process`.
        cluster_info: The same.
        dataset: The same.
        num_server_sessions: Its ``num_jobs``, by GiGL's name: one for each time that the compute
            processes join, so for each node type of an inference. None: until told to stop.
        timeout_seconds: How long to serve at most; None: as long as that takes.
        num_rpc_threads: Requests that have to be served at a time: any number is, at least 1.
        rpc_timeout: None: clients have the limits.
        how: Other arguments of `init_storage_process`.

    Returns:
        How many jobs were served.

    Raises:
        ConfigError: As `init_storage_process`, which lists its other errors; or one of the last
            two has a value that would have no effect.
        ServerDiedError: Another storage server ended before the jobs were done.
    """
    if num_rpc_threads is not None and num_rpc_threads < 1:
        raise ConfigError(f"num_rpc_threads must be at least 1, got {num_rpc_threads}")
    if rpc_timeout is not None:
        raise ConfigError(
            f"rpc_timeout={rpc_timeout} has no use on a storage server: give it to "
            "init_compute_process, or timeout= to a loader"
        )
    jobs = num_server_sessions
    with init_storage_process(storage_rank, cluster_info, dataset, num_jobs=jobs, **how) as server:
        return server.wait(timeout_seconds)
