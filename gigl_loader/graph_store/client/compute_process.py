"""Lets a compute process join the graph store, call servers and leave."""

import inspect
import ipaddress
import logging
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError, first_line
from gigl_loader.graph_store.client.connection import CALL_TIMEOUT_S, result_of
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.wire.functions import (
    PackedValue,
    is_of_users_module,
    packed,
    path_of,
    unpacked,
)
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo
from gigl_loader.graph_store.wire.membership import PATIENCE_S, check_job_name, check_patience
from gigl_loader.graph_store.wire.signatures import CALLS, DistServer
from gigl_loader.runtime.glt_classes import _set_client_context
from gigl_loader.runtime.logs import know
from gigl_loader.runtime.ranks.collectives import end_group
from gigl_loader.runtime.ranks.gloo_interface import interface_towards
from gigl_loader.runtime.threads import fulfil
from gigl_loader.runtime.transport import Security

_log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 1800.0
"""Long, as storage servers may need that to load a large graph."""
JOB_VARIABLE = "GIGL_LOADER_JOB"
"""Names the job, if ``job`` does not."""
_GROUP_TIMEOUT = timedelta(minutes=30)

T = TypeVar("T")

# one per process, like GLT's client context and torch's default group
_cluster: Cluster | None = None
_of_parent: Cluster | None = None
"""In a forked child: the cluster that its parent has joined."""
_owns_group = False
_rpc_timeout_s = CALL_TIMEOUT_S
"""Seconds for a call of `request_server`."""


def init_compute_process(
    local_rank: int,
    cluster_info: GraphStoreInfo,
    compute_world_backend: str | None = None,
    rpc_timeout: float | None = None,
    *,
    job: str | None = None,
    tls_dir: str | None = None,
    token: str | None = None,
    insecure: bool | None = None,
    timeout: float = JOIN_TIMEOUT_S,
    network_timeout: float = PATIENCE_S,
) -> None:
    """Join the storage cluster, then the process group of the compute processes.

    If a process group is up, it uses that, with its rank and world size, and
    `shutdown_compute_process` leaves it up. It waits for servers that still load, and names them in
    the log. Call it once per process. A job of one process, such as a notebook, needs no launcher
    and no environment; give it a ``job``.

    Args:
        local_rank: This process on its machine; ignored if a process group is up.
        cluster_info: A ``GraphStoreInfo``.
        compute_world_backend: Backend of ``torch.distributed``; None: torch's default.
        rpc_timeout: Seconds for a call of `request_server` and `async_request_server`; None: ten
            minutes. Loaders have limits of their own.
        job: Name of the job, the same on all its processes: up to 100 printable characters. Jobs of
            different names are served at once; one of a name that is in use waits until the other
            has left. None: the environment's ``GIGL_LOADER_JOB``, else torchrun's run id, else
            address and port of the first compute machine.
        tls_dir: Folder with ``ca.pem``, ``cert.pem`` and ``key.pem``. None: the environment's
            ``GIGL_LOADER_TLS_DIR``.
        token: The cluster's secret. None: the environment's ``GIGL_LOADER_CLUSTER_TOKEN``.
        insecure: Plain sockets, as on the servers. None: the environment's
            ``GIGL_LOADER_INSECURE``.
        timeout: Seconds for all of that.
        network_timeout: Longest outage of the network in seconds; the same as on the servers.

    Raises:
        UsageError: This process has joined already; or several processes have no launcher.
        JoinRefusedError: The servers do not let this process in; or another service is there.
        PeerTimeoutError: A server or another compute process did not come in time.
        ConfigError: A value cannot work.
    """
    global _owns_group, _rpc_timeout_s
    if rpc_timeout is not None:
        check_patience(rpc_timeout, "rpc_timeout")
    has_group = dist.is_initialized()
    # the group's figures, not the environment's: Ray Train, for one, sets those differently
    if has_group:
        rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        rank = compute_rank(local_rank, cluster_info)
        world_size = cluster_info.compute_cluster_world_size
    deadline = time.monotonic() + timeout
    # Before the group: this waits for servers that may load for half an hour, and names missing
    # processes. It returns when all compute processes are here, so that the group forms within
    # seconds.
    join_cluster(
        cluster_info,
        rank,
        world_size,
        job=job,
        security=Security.resolve(tls_dir, token, insecure),
        timeout=timeout,
        network_timeout=network_timeout,
    )
    _rpc_timeout_s = CALL_TIMEOUT_S if rpc_timeout is None else rpc_timeout
    try:
        if not has_group:
            # if a host's name means its loopback address, gloo makes the others connect to
            # themselves
            with interface_towards(cluster_info.compute_cluster_master_ip):
                _start_group(rank, world_size, cluster_info, compute_world_backend, deadline)
    # else server 0 would count this process as a member for as long as it lives
    except BaseException:
        shutdown_compute_process()
        raise
    _owns_group = not has_group


def join_cluster(
    cluster_info: GraphStoreInfo,
    rank: int,
    world_size: int,
    *,
    job: str | None = None,
    security: Security,
    timeout: float = JOIN_TIMEOUT_S,
    network_timeout: float = PATIENCE_S,
    group_name: str = "gigl_loader_clients",
) -> None:
    """Join the storage cluster alone, without a process group; `shutdown_compute_process` leaves.

    Args:
        cluster_info: The storage cluster; of its compute cluster, only the address that may name
            the job is read.
        rank: This process among the compute processes.
        world_size: Number of compute processes.
        job: As for `init_compute_process`.
        security: The same as the servers'.
        timeout: Seconds until all processes and servers are there.
        network_timeout: As for `init_compute_process`.
        group_name: Name of the compute processes in GLT's context.

    Raises:
        UsageError: This process has joined already.
        ConfigError: A value cannot work.
        JoinRefusedError: The servers do not let this process in.
        PeerTimeoutError: A server or another compute process did not come in time.
    """
    global _cluster
    if _cluster is not None:
        raise UsageError("this process has joined a graph store: call shutdown_compute_process()")
    check_patience(network_timeout)
    num_servers = cluster_info.num_storage_nodes
    cluster = Cluster.join(
        cluster_info.storage_cluster_master_ip,
        cluster_info.rpc_master_port,
        job_name=job_name_of(job, cluster_info),
        rank=rank,
        world_size=world_size,
        num_servers=num_servers,
        security=security,
        timeout_s=timeout,
        patience_s=network_timeout,
    )
    _set_client_context(num_servers, world_size, rank, group_name)
    _cluster = cluster
    know(job=cluster.job_name, rank=rank)


def job_name_of(job: str | None, cluster_info: GraphStoreInfo) -> str:
    """Return the name of this process's job; see ``job`` of `init_compute_process`.

    Raises:
        ConfigError: It cannot be a name.
    """
    name = os.environ.get(JOB_VARIABLE, "") if job is None else job
    if job is None and not name:
        name = os.environ.get("TORCHELASTIC_RUN_ID", "")
        # torchrun's default, which is the same for all jobs
        if name in ("", "none"):
            host = cluster_info.compute_cluster_master_ip
            port: int | str = cluster_info.compute_cluster_master_port
            if not port:  # it describes the servers alone, as of Ray
                host = os.environ.get("MASTER_ADDR", host)
                port = os.environ.get("MASTER_PORT", port)
            host = platform.node() if _means_own_machine(host) else host
            name = f"{host}:{port}"
    check_job_name(name)
    return name


def _means_own_machine(host: str) -> bool:
    """Return whether ``host`` names another machine in each job, whose processes are all on it."""
    # by its text: a machine's own name may be a loopback address on that machine alone, and all
    # ranks must get the same result
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def compute_rank(local_rank: int, cluster_info: GraphStoreInfo) -> int:
    """Return the rank of this process among all compute processes.

    ``RANK`` is the machine's rank if one process per machine was started, which starts the others;
    if torchrun started them all, it is ``GROUP_RANK``. A job of one process needs neither.

    Raises:
        ConfigError: ``local_rank`` is out of range.
    """
    per_node = cluster_info.num_processes_per_compute
    if not 0 <= local_rank < per_node:
        raise ConfigError(f"local_rank must be in [0, {per_node}), got {local_rank}")
    if cluster_info.compute_cluster_world_size == 1 and "RANK" not in os.environ:
        return 0
    # torchrun may also have started one process per machine, which starts the others: then its
    # LOCAL_WORLD_SIZE is 1, and its RANK is the machine's
    by_torchrun = "GROUP_RANK" in os.environ and os.environ.get("LOCAL_WORLD_SIZE") == str(per_node)
    node = int(os.environ["GROUP_RANK"]) if by_torchrun else cluster_info.compute_node_rank
    return int(node) * int(per_node) + local_rank


def _start_group(
    rank: int, world_size: int, info: Any, backend: str | None, deadline: float
) -> None:
    host, port = info.compute_cluster_master_ip, info.compute_cluster_master_port
    # then torchrun's agent listens on MASTER_PORT, so rank 0 cannot, and ranks meet at the agent's
    # store
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if has_agent and os.environ.get("MASTER_PORT") == str(port):
        dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=_GROUP_TIMEOUT)
        return
    # a port would be one that another notebook of this machine has
    if world_size == 1:
        alone = dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=_GROUP_TIMEOUT)
        return
    # torch's own tcp:// would look for the store of torchrun's agent on this port
    # all have joined the cluster by now, but the last one may be slightly behind
    left = timedelta(seconds=max(1.0, deadline - time.monotonic()))
    try:
        store = dist.TCPStore(host, port, world_size, rank == 0, left)  # type: ignore[attr-defined]  # torch does not declare it
    except RuntimeError as error:
        raise _no_meeting(rank, host, port, left, error) from error
    # the time left for meeting must not limit later calls of the group
    store.set_timeout(_GROUP_TIMEOUT)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=_GROUP_TIMEOUT
    )


def _no_meeting(
    rank: int, host: str, port: int, waited: timedelta, error: RuntimeError
) -> Exception:
    """Return the error for compute processes that did not find each other."""
    # torch's error has no errno, only this text
    if rank == 0 and "EADDRINUSE" in str(error):
        return ConfigError(
            f"compute process 0 cannot listen on {host}:{port}, where the compute processes meet: "
            "another program does; give another compute_cluster_master_port"
        )
    return PeerTimeoutError(
        f"compute process {rank} did not meet the others at {host}:{port} within "
        f"{waited.total_seconds():.0f} s, after all had joined the storage cluster: one of them "
        "died, or compute_cluster_master_ip or a firewall is in the way "
        f"({first_line(error)})"
    )


def shutdown_compute_process() -> None:
    """Leave the storage cluster and end the process group; first shut down loaders. Idempotent."""
    global _cluster, _owns_group
    # before the group, whose end may wait: the servers free this process's producers at once
    cluster, _cluster = _cluster, None
    if cluster is not None:
        cluster.close()
        know(job=None, rank=None)
    owned, _owns_group = _owns_group, False
    if owned and dist.is_initialized():
        end_group()


def _leave_to_parent() -> None:
    """Forget the cluster in a forked child, whose end must not end the parent's job."""
    global _cluster, _owns_group, _of_parent
    # kept: nothing of it is to be released here, not even by a finaliser
    _of_parent, _cluster, _owns_group = _cluster or _of_parent, None, False


os.register_at_fork(after_in_child=_leave_to_parent)


def current_cluster() -> Cluster:
    """Return the cluster that this process has joined.

    Raises:
        UsageError: The process has not joined, or has left.
    """
    if _cluster is None:
        raise UsageError(
            "this process is not part of a graph store: call "
            "gigl_loader.graph_store.init_compute_process(...) first"
        )
    return _cluster


def call_server(
    server_rank: int,
    func: Callable[..., T],
    *args: Any,
    timeout_s: float = CALL_TIMEOUT_S,
    **kwargs: Any,
) -> "Future[T]":
    """Let a server call a method of `DistServer`; return a future at once.

    Args:
        server_rank: Rank of the server.
        func: The method.
        args: Positional arguments of the method.
        timeout_s: Seconds after which the future fails.
        kwargs: Keyword arguments of the method.

    Raises:
        ConfigError: Servers do not call ``func``, the arguments do not fit it, or there is no such
            server.
    """
    connection = current_cluster().connection(server_rank)
    if func is torch.cuda.device_count:  # what graphlearn-torch's scripts ask of servers
        func = cast("Callable[..., T]", DistServer.get_device_count)
    name = getattr(func, "__name__", str(func))
    method = getattr(DistServer, name, None)
    # `is`, as a function of the same name elsewhere does something else
    if name not in CALLS or method is not func:
        if inspect.isfunction(func) and is_of_users_module(func):
            return _run_function(connection, func, args, kwargs, timeout_s)
        raise ConfigError(
            f"storage servers do not call {getattr(func, '__qualname__', name)}: a client may ask "
            f"for these methods of DistServer: {', '.join(CALLS)}; or for a function of a module "
            "that the servers have leave for"
        )
    try:
        bound = inspect.signature(func).bind(None, *args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"DistServer.{name}: {error}") from error
    # a request has a field for each parameter, and no defaults
    bound.apply_defaults()
    arguments = dict(list(bound.arguments.items())[1:])  # without self
    return cast("Future[T]", connection.call(name, timeout_s, **arguments))


def _run_function(
    connection: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], timeout_s: float
) -> "Future[Any]":
    """Let a server run a function that is no method of its; it refuses those without leave."""

    def read(result: PackedValue) -> Any:
        is_tuple, value = unpacked(*result)
        return tuple(value) if is_tuple else value

    data, tensors = packed((args, kwargs))
    answer: Future[Any] = Future()
    call = connection.call(
        "run_function", timeout_s, path=path_of(func), data=data, tensors=tensors
    )
    call.add_done_callback(lambda done: fulfil(answer, lambda: read(done.result())))
    return answer


def async_request_server(
    server_rank: int, func: Callable[..., T], *args: Any, **kwargs: Any
) -> "torch.futures.Future[T]":
    """Let a storage server call a method of `DistServer`; returns at once.

    Args:
        server_rank: Rank of the server.
        func: A method of `DistServer`, out of a fixed table, or ``torch.cuda.device_count``, as
            graphlearn-torch's scripts ask. Or a function of a module that the servers can import,
            if they were started with leave for it (``--allow-functions``): it is imported and run
            there. It takes and returns None, numbers, strings, bytes, tensors, and lists and dicts
            of these; tuples inside of these arrive as lists.
        args: Positional arguments of it.
        kwargs: Its keyword arguments.

    Raises:
        UsageError: This process has not joined.
        ConfigError: There is no such server, or servers do not call ``func``; or it has no leave,
            which the future tells.
    """
    answer: torch.futures.Future[T] = torch.futures.Future()
    call = call_server(server_rank, func, *args, timeout_s=_rpc_timeout_s, **kwargs)
    call.add_done_callback(lambda done: fulfil(answer, done.result))
    return answer


def request_server(server_rank: int, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Let a storage server call ``func``, and return its result; see `async_request_server`.

    Raises:
        PeerTimeoutError: It took longer than ``rpc_timeout`` of `init_compute_process`.
        ServerDiedError: The server is gone.
        PeerError: ``func`` raised there; errors of gigl_loader keep their class.
    """
    what = f"{getattr(func, '__name__', func)} on storage server {server_rank}"
    answer = call_server(server_rank, func, *args, timeout_s=_rpc_timeout_s, **kwargs)
    return result_of(answer, _rpc_timeout_s, what)
