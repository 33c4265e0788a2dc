"""`start_graph_store`: a storage cluster as actors of a Ray cluster."""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from gigl_loader.errors import ConfigError, PeerError, PeerTimeoutError, UsageError, needed
from gigl_loader.graph_store.ray.actor import (
    Actor,
    ServerOptions,
    StorageServer,
    Watchdog,
    free_address,
)
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo, info_of_servers
from gigl_loader.graph_store.wire.membership import (
    MAX_JOBS,
    PATIENCE_S,
    check_max_jobs,
    check_patience,
)
from gigl_loader.runtime.sizes import parse_size
from gigl_loader.runtime.transport import Security

_log = logging.getLogger(__name__)

# seconds between two requests to an actor; the silence of a stopped one is known this much later
_INTERVAL_S = 2.0
# more than the 20 s after which an actor kills its server (`gigl_loader.graph_store.ray.actor`)
_STOP_S = 30.0


class GraphStore(AbstractContextManager["GraphStore"]):
    """A storage cluster on Ray; from `start_graph_store`. Use it with ``with``.

    It ends with `shutdown`, or with the driver that started it.
    """

    def __init__(
        self,
        servers: Sequence[Actor],
        group: Any,
        watchdog: Watchdog,
        cluster_info: GraphStoreInfo,
        environment: Mapping[str, str],
    ) -> None:
        self._servers, self._group, self._watchdog = servers, group, watchdog
        self.cluster_info = cluster_info
        """Addresses of the servers, for ``init_compute_process`` and ``RemoteDistDataset``.

        Its figures of the compute cluster are those of one process. With a process group, as in
        Ray Train, they are not used; otherwise set them with ``dataclasses.replace``."""
        self.environment = dict(environment)
        """Variables with which a process may join: set them for training. They hold the token."""
        self._lock = threading.Lock()
        self._closed = False

    def status(self) -> list[dict[str, Any]]:
        """Return the last reported state of each server, by rank; never waits.

        ``state`` (``starting``, ``loading``, ``serving``, ``restarting``, ``failed``, ``stopped``),
        ``node``, ``pid``, ``generation`` (which start of the server it is), ``restarts`` (of its
        process within the current actor), ``why`` it was last restarted and the ``last_log`` of the
        previous process, ``silent_s`` (seconds since its last response), and ``status``, which
        ``gigl-loader status`` prints.
        """
        return self._watchdog.health()

    def check(self) -> None:
        """Raise if the cluster cannot go on.

        Raises:
            ServerDiedError: All servers of a partition are lost for good: their restarts are used
                up, or no node had room for them for ``reconnect_timeout``.
        """
        if self._watchdog.error is not None:
            raise self._watchdog.error

    def shutdown(self) -> None:
        """End the servers and release the nodes. Idempotent."""
        with self._lock:
            if self._closed:
                return
            # under the lock; the rest is outside it, so that a second call returns while the first
            # is still at work
            self._closed = True
        # first, as it would take ending servers for lost ones, and kill or report them
        self._watchdog.close()
        import ray

        if ray.is_initialized():
            # silent servers will not respond to `stop` either: they are killed at once
            silent = [server["silent_s"] > _STOP_S for server in self._watchdog.health()]
            _end_servers(self._servers, self._group, silent)

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def start_graph_store(
    root: str | Path,
    *,
    num_servers: int,
    replicas: int = 1,
    cpus_per_server: float = 1.0,
    tls_dir: str | None = None,
    token: str | None = None,
    insecure: bool | None = None,
    allow_samplers: Sequence[str] = (),
    allow_functions: Sequence[str] = (),
    strategy: Literal["SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"] = "SPREAD",
    max_restarts: int = -1,
    health_timeout: float = 30.0,
    reconnect_timeout: float = 300.0,
    start_timeout: float = 1800.0,
    network_timeout: float = PATIENCE_S,
    edges: Literal["own", "all"] = "own",
    max_jobs: int = MAX_JOBS,
    channel_memory: int | str | None = None,
) -> GraphStore:
    """Start a storage cluster on the Ray cluster that this process is connected to.

    ::

        ray.init()
        with start_graph_store("/data/graph", num_servers=4, cpus_per_server=16) as store:
            ...

    One actor per server starts ``gigl-loader serve`` as a child, watches it and restarts it; Ray
    restarts an actor that is lost, with its node or alone. A server or an actor that is stopped is
    killed after ``health_timeout``. Batches do not go through Ray.

    Authentication is set as in ``init_storage_process``; if none is set, a fresh token is drawn.
    Training processes need `GraphStore.environment`.

    Args:
        root: Folder that ``partition_graph`` wrote, under the same path on all nodes, or its URL.
        num_servers: Number of servers, which is the graph's number of partitions.
        replicas: Servers of each partition; ``num_servers * replicas`` are started. The others of
            its partition take over a lost server's work at once.
        cpus_per_server: CPUs that Ray reserves for each server. Its sampling workers share them.
        tls_dir: Folder with ``ca.pem``, ``cert.pem`` and ``key.pem``, on all nodes. None: the
            environment's ``GIGL_LOADER_TLS_DIR``.
        token: The cluster's secret. None: the environment's ``GIGL_LOADER_CLUSTER_TOKEN``.
        insecure: Plain sockets, for closed networks. None: the environment's
            ``GIGL_LOADER_INSECURE``.
        allow_samplers: Packages, modules or classes that clients may name as samplers.
        allow_functions: Packages, modules or functions that clients may run on servers.
        strategy: How the placement group spreads servers over nodes: ``"SPREAD"``,
            ``"STRICT_SPREAD"``, ``"PACK"`` or ``"STRICT_PACK"``. With replicas, take
            ``"STRICT_SPREAD"``, so that no node has two of one partition.
        max_restarts: How often Ray may restart an actor, and an actor its server; -1: no limit.
        health_timeout: Seconds without a response after which a process counts as stopped.
        reconnect_timeout: Seconds without a response after which this handle and the other servers
            give a server up, unless another one of its partition is up. Ray would wait for ever for
            a node with room.
        start_timeout: Seconds for placing the servers and loading the graph.
        network_timeout: Seconds that an outage of the network may last; see
            ``init_storage_process``.
        edges: As for ``DistDataset.load``: ``"all"`` if each server has the edges of all
            partitions.
        max_jobs: Most jobs at a time; see ``init_storage_process``.
        channel_memory: Most bytes of batches on a server; see there.

    Raises:
        ConfigError: Ray is not installed, or a value is invalid.
        UsageError: This process is not connected to a Ray cluster.
        PeerError: A server could not start; the message has the last lines of its log.
        PeerTimeoutError: Ray found no room for the servers, or they did not load in time.
    """
    _check(num_servers, replicas, cpus_per_server, max_restarts)
    if edges not in ("own", "all"):  # before the servers, which would be restarted
        raise ConfigError(f'edges must be "own" or "all", got {edges!r}')
    _check_times(health_timeout, reconnect_timeout, start_timeout)
    check_patience(network_timeout)
    check_max_jobs(max_jobs)
    most = [] if channel_memory is None else [parse_size(channel_memory, "channel_memory")]
    # checks everything that can be refused before the first call to Ray
    environment = Security.resolve(tls_dir, token, insecure).or_token().environment
    ray = _connected_ray()
    # one deadline for all steps: time spent on placement is lost for loading
    deadline = time.monotonic() + start_timeout
    total = num_servers * replicas  # server i serves partition i modulo num_servers
    group = _place(total, cpus_per_server, strategy, start_timeout)
    servers: list[Actor] = []
    watchdog = None
    try:
        # addresses before actors, as each server must know where server 0 will listen
        addresses = _find_addresses(group, total, deadline)
        for rank in range(total):
            options = ServerOptions(
                rank=rank,
                num_servers=total,
                root=str(root),
                master=addresses[0],
                port=addresses[rank][1],
                environment=environment,
                max_restarts=max_restarts,
                arguments=(
                    f"--network-timeout={network_timeout}",
                    f"--timeout={start_timeout}",
                    f"--reconnect-timeout={reconnect_timeout}",
                    f"--edges={edges}",
                    f"--max-jobs={max_jobs}",
                    *(f"--channel-memory={size}" for size in most),
                    *(f"--allow-samplers={prefix}" for prefix in allow_samplers),
                    *(f"--allow-functions={prefix}" for prefix in allow_functions),
                ),
                health_timeout_s=health_timeout,
                load_timeout_s=start_timeout,
            )
            how = _scheduled(group, rank, num_cpus=cpus_per_server)
            # Retries send a request again to the actor that Ray starts for a lost one. Several
            # calls at once, so that `health` responds while `stop` waits for the server to end.
            actor = (
                ray.remote(StorageServer)
                .options(max_restarts=max_restarts, max_task_retries=-1, max_concurrency=4, **how)
                .remote(options)
            )
            servers.append(Actor(actor, group))
        watchdog = Watchdog(
            servers,
            interval_s=_INTERVAL_S,
            timeout_s=health_timeout,
            lost_after_s=reconnect_timeout,
            num_partitions=num_servers,
        )
        watchdog.start()
        watchdog.wait_until_all_serve(deadline, start_timeout)
    # on Ctrl-C too, as actors and their places outlast this call
    except BaseException:
        if watchdog is not None:
            watchdog.close()
        _end_servers(servers, group)
        raise
    return GraphStore(servers, group, watchdog, info_of_servers(total, *addresses[0]), environment)


# -- before anything starts -----------------------------------------------------------------------


def _check(num_servers: int, replicas: int, cpus: float, max_restarts: int) -> None:
    if num_servers < 1:
        raise ConfigError(f"num_servers must be at least 1, got {num_servers}")
    if replicas < 1:
        raise ConfigError(f"replicas must be at least 1, got {replicas}")
    if not 0 <= cpus < math.inf:
        raise ConfigError(f"cpus_per_server must be at least 0, got {cpus}")
    if max_restarts < -1:
        raise ConfigError(f"max_restarts must be at least 0, or -1: no limit, got {max_restarts}")


def _check_times(health_timeout: float, reconnect_timeout: float, start_timeout: float) -> None:
    given = {
        "health_timeout": health_timeout,
        "reconnect_timeout": reconnect_timeout,
        "start_timeout": start_timeout,
    }
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a finite number of seconds > 0, got {value}")
    if reconnect_timeout <= health_timeout:
        raise ConfigError(
            f"reconnect_timeout={reconnect_timeout} must be more than "
            f"health_timeout={health_timeout}: a server that was killed for its "
            "silence needs time to start again"
        )


def _connected_ray() -> Any:
    """Return Ray's module; this process must be connected to a cluster."""
    with needed('start_graph_store needs Ray: run pip install "gigl_loader[ray]"'):
        import ray
    if not ray.is_initialized():
        raise UsageError(
            'connect to a Ray cluster first: ray.init(), or ray.init("local") for one of this '
            "machine alone"
        )
    return ray


# -- on the Ray cluster ---------------------------------------------------------------------------


def _place(num_servers: int, cpus: float, strategy: str, timeout_s: float) -> Any:
    """Return a placement group with a bundle for each server.

    Raises:
        ConfigError: There is no such strategy.
        PeerTimeoutError: The nodes have no room.
    """
    import ray
    from ray.util import placement_group, remove_placement_group

    # Ray refuses an empty bundle: one without CPUs requests a bit of memory instead
    bundle = {"CPU": cpus} if cpus else {"memory": 1}
    try:
        # One group instead of a request for each actor: Ray reserves all places or none, and keeps
        # them for actors that restart.
        group = placement_group([bundle] * num_servers, strategy=strategy)
    except ValueError as error:
        raise ConfigError(f"Ray refuses the placement of the storage servers: {error}") from error
    if not group.wait(timeout_s):
        remove_placement_group(group)
        raise PeerTimeoutError(
            f"Ray found no room for {num_servers} storage servers of {cpus:g} CPUs ({strategy}) in "
            f"{timeout_s:.0f} s; free now: {ray.available_resources()}. Add nodes, or lower "
            "num_servers or cpus_per_server"
        )
    return group


def _scheduled(group: Any, rank: int, **resources: Any) -> dict[str, Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
    return {"scheduling_strategy": where, **resources}


def _find_addresses(group: Any, num_servers: int, deadline: float) -> list[tuple[str, int]]:
    """Return address and port of each server, known before its start and kept at restarts."""
    import ray

    # Tasks in the places of the future actors. They need no CPU, as the places' CPUs are the
    # actors'.
    refs = [
        ray.remote(_free_address)
        .options(**_scheduled(group, rank, num_cpus=0))
        .remote(rank, num_servers)
        for rank in range(num_servers)
    ]
    try:
        addresses: list[tuple[str, int]] = ray.get(
            refs, timeout=max(1.0, deadline - time.monotonic())
        )
    except ray.exceptions.GetTimeoutError as error:
        raise PeerTimeoutError(
            "Ray did not run a task on each of the nodes for storage servers in time"
        ) from error
    except ray.exceptions.RayError as error:
        raise PeerError(
            "cannot run gigl_loader on the nodes for storage servers; is it installed there? "
            f"{error}"
        ) from error
    return addresses


def _free_address(rank: int, num_servers: int) -> tuple[str, int]:
    import ray

    return free_address(rank, num_servers, ray.util.get_node_ip_address())


def _end_servers(servers: Sequence[Actor], group: Any, silent: Sequence[bool] = ()) -> None:
    """Ask servers that respond to stop, all at once; kill all, then release the nodes."""
    import ray
    from ray.util import remove_placement_group

    with contextlib.suppress(ray.exceptions.RayError):
        answering = [server for server, lost in zip_longest(servers, silent) if not lost]
        # all at once, then waited for, as their limits would add up one after another
        stopped = [server.actor.stop.remote() for server in answering]
        if stopped:
            ray.wait(stopped, num_returns=len(stopped), timeout=_STOP_S)
    for server in servers:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(server.actor)
    with contextlib.suppress(ray.exceptions.RayError):
        remove_placement_group(group)
