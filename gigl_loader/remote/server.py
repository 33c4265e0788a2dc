"""A storage server's process: load, meet the others, serve, end."""

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

from gigl_loader._glt import Dataset, _set_server_context
from gigl_loader.dataset.held import check_enough
from gigl_loader.dataset.local import DistDataset
from gigl_loader.errors import ConfigError
from gigl_loader.remote import wire
from gigl_loader.remote.dataset import GraphStoreInfo
from gigl_loader.remote.endpoint import Endpoint
from gigl_loader.remote.service import DistServer, warm_up

_log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 600.0


class StorageProcess:
    """A storage server that serves in threads of its own; from `init_storage_process`."""

    def __init__(self, server: DistServer, endpoint: Endpoint) -> None:
        self.server, self._endpoint = server, endpoint
        self._told = False

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach this server."""
        return self._endpoint.address

    def wait(self, timeout_s: float | None = None) -> int:
        """Serve until all jobs are done or a signal comes; return how many jobs were served.

        SIGTERM and SIGINT end it where this is the main thread: clients are told, then producers
        end, then connections. A second signal changes nothing; torchrun sends one after Ctrl-C.

        Args:
            timeout_s: Return after this long, still serving; None: never.

        Raises:
            ServerDiedError: Another storage server ended before the jobs were done.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._listening_to_signals():
            while not self._endpoint.over.wait(0.5):
                if deadline is not None and time.monotonic() >= deadline:
                    return self._endpoint.jobs_served
            error = self._endpoint.error
            failed = error is not None and not self._told
            self.close("another storage server was lost" if failed else "it was shut down")
        if failed and error is not None:
            raise error
        return self._endpoint.jobs_served

    def stop(self) -> None:
        """Let `wait` return; safe in a signal handler."""
        self._told = True
        self._endpoint.over.set()

    def close(self, reason: str = "it was shut down") -> None:
        """End now. Idempotent."""
        self._endpoint.close(reason)

    def __enter__(self) -> "StorageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, _: FrameType | None) -> None:
            _log.info("%s: ending", signal.Signals(number).name)
            self.stop()

        before = {one: signal.signal(one, on_signal) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def init_storage_process(
    storage_rank: int,
    cluster_info: GraphStoreInfo,
    dataset: Dataset,
    *,
    num_jobs: int | None = 1,
    token: str | None = None,
    host: str | None = None,
    port: int | None = None,
    timeout_s: float = JOIN_TIMEOUT_S,
) -> StorageProcess:
    """Serve a partition to compute processes; returns once this server is known to the others.

    ::

        with init_storage_process(rank, info, DistDataset.load(root, rank)) as server:
            server.wait()

    Args:
        storage_rank: This server, in ``[0, num_storage_nodes)``.
        cluster_info: The cluster. Server 0 listens on ``rpc_master_port``.
        dataset: The partition: ``DistDataset``, ours or GLT's.
        num_jobs: Compute jobs to serve, one after another; None: until told to stop.
        token: The cluster's secret. None: the environment's ``GIGL_LOADER_CLUSTER_TOKEN``.
        host: Address of this machine to listen on. None: on server 0 the storage master's, on
            others that of the interface which leads there.
        port: Port of the other servers; None: any that is free.
        timeout_s: How long to wait for server 0.

    Raises:
        ConfigError: A figure is out of range, the address cannot be listened on, or the servers
            are fewer than the partitions.
        JoinRefusedError: The tokens differ.
        PeerTimeoutError: Server 0 did not come up.
    """
    num_servers = cluster_info.num_storage_nodes
    if not 0 <= storage_rank < num_servers:
        raise ConfigError(f"storage_rank must be in [0, {num_servers}), got {storage_rank}")
    if num_jobs is not None and num_jobs < 1:
        raise ConfigError(f"num_jobs must be at least 1, or None: until told, got {num_jobs}")
    held = DistDataset.wrap(dataset)
    check_enough(held.num_partitions, held.partition_idx, num_servers, who="storage server")
    secret = wire.cluster_token(token)
    master, master_port = cluster_info.storage_cluster_master_ip, cluster_info.rpc_master_port
    own = host or (_resolved(master) if storage_rank == 0 else wire.address_towards(master))
    if not own.startswith("127.") and secret == wire.cluster_token(""):
        _log.warning(
            "storage server %d listens on %s without a cluster token: whoever reaches it can run "
            "code here; set GIGL_LOADER_CLUSTER_TOKEN on all processes",
            *(storage_rank, own),
        )
    sock = wire.listen(own, master_port if storage_rank == 0 else port or 0)
    leader = None
    try:
        warm_up()
        _set_server_context(num_servers, storage_rank, "gigl_loader_servers", 1)
        server = DistServer(held, storage_rank, num_servers, host=own)
        if storage_rank > 0:
            leader = wire.connect_patiently(
                master, master_port, secret, f"storage server {storage_rank}",
                deadline=time.monotonic() + timeout_s, what="storage server 0",
            )  # fmt: skip
    except BaseException:
        sock.close()
        raise
    endpoint = Endpoint(server, sock, secret, num_jobs, leader)
    _log.info(
        "storage server %d of %d serves partition %d on %s:%d",
        *(storage_rank, num_servers, server.dataset.partition_idx, *endpoint.address),
    )
    return StorageProcess(server, endpoint)


def _resolved(host: str) -> str:
    """Return the address that ``host`` stands for.

    Raises:
        ConfigError: It stands for none.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"the storage master {host!r} has no address: {error}") from error
