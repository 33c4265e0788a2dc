"""The two roles of graphlearn-torch's server-client mode: a server and a client of a graph store.

::

    init_server(...)              init_client(...)
    wait_and_shutdown_server()    loaders, request_server(...)
                                  shutdown_client()

One job is served: a server ends when all of its clients have left. Authentication comes from the
environment, as for a graph store; on one machine none is needed.
"""

from collections.abc import Sequence

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.graph_store.client import compute_process as own
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import StorageProcess, init_storage_process
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo, info_of_servers
from gigl_loader.loader.deployment.process_role import open_loaders
from gigl_loader.runtime.glt_classes import Dataset, _set_server_context, get_context
from gigl_loader.runtime.plain_values import check_count
from gigl_loader.runtime.transport import Security

# one of each per process, as in graphlearn-torch
_server: StorageProcess | None = None
_servers: GraphStoreInfo | None = None
"""The servers that this client has joined."""


def init_server(
    num_servers: int,
    server_rank: int,
    dataset: Dataset,
    master_addr: str,
    master_port: int,
    num_clients: int = 0,
    num_rpc_threads: int = 16,
    request_timeout: int = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    allow_functions: Sequence[str] = (),
) -> None:
    """Serve a partition from threads of this process; returns once server 0 knows of it.

    Args:
        num_servers: Number of servers.
        server_rank: This server, in ``[0, num_servers)``.
        dataset: Its partition: ours, or graphlearn-torch's.
        master_addr: Address of server 0; the same on all processes.
        master_port: Port on which server 0 listens.
        num_clients: Number of clients, for ``get_context``; clients tell how many they are.
        num_rpc_threads: Not looked at: there is no RPC.
        request_timeout: Not looked at: clients have the limits.
        server_group_name: Name of the servers in ``get_context``.
        is_dynamic: Not looked at: any number of clients may come.
        allow_functions: Packages, modules or functions that clients may run here, by
            `request_server`. graphlearn-torch's servers run any.

    Raises:
        UsageError: This process is a server already.
        ConfigError: A value cannot work, or no authentication is set and one is needed.
        JoinRefusedError: Server 0 does not let this one in.
        PeerTimeoutError: Server 0 did not come up.
    """
    global _server
    if _server is not None:
        raise UsageError("this process is a server: call wait_and_shutdown_server() first")
    check_count(num_servers, "num_servers")
    info = info_of_servers(num_servers, master_addr, int(master_port))
    _server = init_storage_process(
        server_rank,
        info,
        dataset,
        num_jobs=1,
        allow_seed_files=True,
        allow_functions=allow_functions,
    )
    # after it, which names one client
    _set_server_context(num_servers, server_rank, _group_name(server_group_name), num_clients)


def get_server() -> StorageService | None:
    """Return this process's server, whose ``dataset`` is its partition; None: it is none."""
    return None if _server is None else _server.server


def wait_and_shutdown_server() -> None:
    """Serve until all clients have called ``shutdown_client`` or ended; then end the server.

    Raises:
        UsageError: This process is not a server.
        ServerDiedError: Another server ended before that.
    """
    global _server
    if _server is None:
        raise UsageError("this process is not a server: call init_server(...) first")
    process, _server = _server, None
    with process:
        process.wait()


def init_client(
    num_servers: int,
    num_clients: int,
    client_rank: int,
    master_addr: str,
    master_port: int,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
) -> None:
    """Join the servers; returns when all servers and all clients are there.

    It starts no process group. Loaders of several clients agree over ``torch.distributed``, so a
    script calls ``init_process_group`` before it builds one, with the ranks of its clients.

    Args:
        num_servers: Number of servers.
        num_clients: Number of clients.
        client_rank: This client, in ``[0, num_clients)``.
        master_addr: Address of server 0.
        master_port: Port on which server 0 listens.
        num_rpc_threads: Not looked at.
        client_group_name: Name of the clients in ``get_context``.
        is_dynamic: Not looked at.

    Raises:
        UsageError: This process is a client already.
        ConfigError: A value cannot work.
        JoinRefusedError: The servers do not let this process in.
        PeerTimeoutError: A server or another client did not come.
    """
    global _servers
    check_count(num_servers, "num_servers")
    check_count(num_clients, "num_clients")
    if not 0 <= client_rank < num_clients:
        raise ConfigError(f"client_rank must be in [0, {num_clients}), got {client_rank}")
    info = info_of_servers(num_servers, master_addr, int(master_port))
    own.join_cluster(
        info,
        client_rank,
        num_clients,
        security=Security.resolve(),
        group_name=_group_name(client_group_name) or "_default_client",
    )
    _servers = info


def shutdown_client() -> None:
    """Shut down this client's loaders on the servers, and leave. Idempotent.

    Raises:
        UsageError: This process has another role.
    """
    global _servers
    context = get_context()
    if context is None or not context.is_client():
        raise UsageError("this process is not a client: call init_client(...) first")
    for loader in list(open_loaders):
        loader.shutdown()
    _servers = None
    own.shutdown_compute_process()


def joined_dataset() -> RemoteDistDataset:
    """Return the graph of the servers that this client has joined.

    Raises:
        UsageError: It has not joined.
    """
    if _servers is None:
        raise UsageError("this process is not a client: call init_client(...) first")
    return RemoteDistDataset(_servers, 0)


def _group_name(given: str | None) -> str | None:
    # as graphlearn-torch does, whose scripts read it from the context
    return given and given.replace("-", "_")
