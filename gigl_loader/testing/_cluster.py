"""A storage and a compute cluster on this machine, for one function of a test."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gigl_loader.dataset.local import DistDataset
from gigl_loader.remote.client import init_compute_process, shutdown_compute_process
from gigl_loader.remote.info import GraphStoreInfo
from gigl_loader.remote.storage_process import init_storage_process
from gigl_loader.testing._machine import free_port
from gigl_loader.testing._processes import running_processes

_HOST = "127.0.0.1"
# below the 200 s after which processes are killed: the one that waits says what it waits for
_JOIN_TIMEOUT_S = 150.0

MakePartition = Callable[[int, int], DistDataset]


def store_info(servers: int, clients: int, **changes: Any) -> GraphStoreInfo:
    """Return the description of a cluster on this machine: one compute machine, free ports.

    Args:
        servers: Storage servers.
        clients: Compute processes.
        changes: Fields of `GraphStoreInfo` that differ.
    """
    # fields that GiGL has and nothing here reads
    unused = ("cluster_master_port", "storage_cluster_master_port", "rpc_wait_port")
    hosts = ("cluster_master_ip", "storage_cluster_master_ip", "compute_cluster_master_ip")
    used = ("compute_cluster_master_port", "rpc_master_port")
    values: dict[str, Any] = {
        "num_storage_nodes": servers,
        "num_compute_nodes": 1,
        "num_processes_per_compute": clients,
        **dict.fromkeys(hosts, _HOST),
        **dict.fromkeys(unused, 0),
        **{name: free_port() for name in used if name not in changes},
    }
    return GraphStoreInfo(**{**values, **changes})


def run_cluster(
    client: Callable[..., None],
    *args: Any,
    dataset: MakePartition,
    tmp_path: Path,
    servers: int = 2,
    clients: int = 2,
    timeout: float = 200.0,
    allow_samplers: Sequence[str] = (),
) -> None:
    """Call ``client(info, rank, *args)`` on each compute process of a cluster on this machine.

    Args:
        client: A function of a module, called with the `GraphStoreInfo` and the compute rank.
        args: More for ``client``; picklable.
        dataset: A function of a module: ``dataset(rank, servers)`` is what that server holds.
        tmp_path: An empty folder, for tracebacks.
        servers: Storage servers.
        clients: Compute processes.
        timeout: Longest seconds without the end of a process.
        allow_samplers: Packages, modules or classes of samplers that clients may name.

    Raises:
        AssertionError: A process failed, or does not end. None is left.
    """
    info = store_info(servers, clients)
    with running_processes(tmp_path) as started:
        roles = [
            # servers first: clients wait for them, and would only try again and again
            started.start(_serve_one_job, info, rank, dataset, tuple(allow_samplers))
            for rank in range(servers)
        ]
        roles += [started.start(compute, info, rank, client, *args) for rank in range(clients)]
        started.join(roles, timeout)


def _serve_one_job(
    info: GraphStoreInfo, rank: int, dataset: MakePartition, allow_samplers: tuple[str, ...]
) -> None:
    serve(info, rank, dataset, allow_samplers=allow_samplers)


def serve(
    info: GraphStoreInfo,
    rank: int,
    dataset: MakePartition,
    num_jobs: int | None = 1,
    **how: Any,
) -> None:
    """Be a storage server until its jobs have ended; ``how`` is for `init_storage_process`."""
    partition = dataset(rank, info.num_storage_nodes)
    with init_storage_process(rank, info, partition, num_jobs=num_jobs, **how) as server:
        server.wait()


def compute(
    info: GraphStoreInfo, rank: int, client: Callable[..., None], *args: Any, **how: Any
) -> None:
    """Be a compute process for the time of ``client(info, rank, *args)``.

    ``how`` is for `init_compute_process`.
    """
    os.environ["RANK"] = "0"  # of the only compute machine
    init_compute_process(rank, info, "gloo", **{"timeout": _JOIN_TIMEOUT_S, **how})
    try:
        client(info, rank, *args)
    finally:
        shutdown_compute_process()
        shutdown_compute_process()  # again: nothing is left to do
