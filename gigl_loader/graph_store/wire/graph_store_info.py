"""Addresses, ports and sizes of a storage cluster and its compute cluster."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.ranks.collectives import gather_from_ranks
from gigl_loader.runtime.transport import free_ports, own_address, split_address

# GiGL's names: launchers that start its graph stores set them
_STORAGE_NODES = "GIGL_GRAPH_STORE_NUM_STORAGE_NODES"
_COMPUTE_NODES = "GIGL_GRAPH_STORE_NUM_COMPUTE_NODES"
_PER_COMPUTE = "COMPUTE_CLUSTER_LOCAL_WORLD_SIZE"
_STORAGE_ADDR = "GIGL_LOADER_STORAGE_ADDR"


@dataclass(frozen=True)
class GraphStoreInfo:
    """A storage cluster and the compute cluster that trains from it."""

    num_storage_nodes: int
    """Number of machines with the graph; each has one storage server."""
    num_compute_nodes: int
    """Number of machines that train."""
    num_processes_per_compute: int
    """Number of compute processes on each compute machine."""
    cluster_master_ip: str
    """Address of the master of all machines, usually the first compute machine."""
    storage_cluster_master_ip: str
    """Address of storage server 0."""
    compute_cluster_master_ip: str
    """Address of the first compute machine."""
    cluster_master_port: int
    """torchrun's port for all machines; gigl_loader itself does not use it."""
    storage_cluster_master_port: int
    """For a process group of the storage servers; not used by gigl_loader itself."""
    compute_cluster_master_port: int
    """Port of the process group of the compute processes."""
    rpc_master_port: int
    """Port on which storage server 0 listens."""
    rpc_wait_port: int
    """Kept for scripts that name it; not used: clients wait at ``rpc_master_port``."""

    @classmethod
    def from_env(
        cls,
        storage_addr: str | None = None,
        *,
        num_storage_nodes: int | None = None,
        num_compute_nodes: int | None = None,
        num_processes_per_compute: int | None = None,
        rpc_port: int = 29600,
        compute_addr: str | None = None,
        compute_port: int | None = None,
    ) -> "GraphStoreInfo":
        """Return the clusters that the environment and these arguments describe.

        ::

            GraphStoreInfo.from_env("storage0:29600", num_storage_nodes=2)

        Missing arguments are read from GiGL's variables and from torchrun's, in this order. With
        GiGL's variables and a process group over the machines of both clusters, as GiGL's scripts
        start it, addresses and ports are agreed on there: all of these processes have to call it.

        Args:
            storage_addr: Address of storage server 0, or ``"address:port"``. None: of that process
                group, where there is one; or ``GIGL_LOADER_STORAGE_ADDR``.
            num_storage_nodes: None: ``GIGL_GRAPH_STORE_NUM_STORAGE_NODES``.
            num_compute_nodes: None: ``GIGL_GRAPH_STORE_NUM_COMPUTE_NODES``, or ``GROUP_WORLD_SIZE``
                of torchrun, or 1.
            num_processes_per_compute: None: ``COMPUTE_CLUSTER_LOCAL_WORLD_SIZE``, or
                ``LOCAL_WORLD_SIZE`` of torchrun, or 1.
            rpc_port: Where storage server 0 listens, unless its address says so.
            compute_addr: Address of the first compute machine. None: ``MASTER_ADDR``.
            compute_port: Of the process group of the compute processes. None: ``MASTER_PORT``.

        Raises:
            ConfigError: A figure or an address is missing, or is none; says which variable.
        """
        given = (num_storage_nodes, num_compute_nodes, num_processes_per_compute)
        figures = (
            _figure("num_storage_nodes", given[0], _STORAGE_NODES),
            _figure("num_compute_nodes", given[1], _COMPUTE_NODES, "GROUP_WORLD_SIZE", least="1"),
            _figure(
                "num_processes_per_compute", given[2], _PER_COMPUTE, "LOCAL_WORLD_SIZE", least="1"
            ),
        )
        address = storage_addr or os.environ.get(_STORAGE_ADDR, "")
        if not address:
            return cls._agreed(*figures)
        host, port = address.strip("[]"), rpc_port
        if address.count(":") == 1 or "]:" in address:  # an IPv6 address without a port has more
            host, port = split_address(address)
        compute = compute_addr or os.environ.get("MASTER_ADDR", "127.0.0.1")
        group_port = _figure("compute_port", compute_port, "MASTER_PORT", least="29501")
        return cls(*figures, compute, host, compute, 0, 0, group_port, _figure("rpc_port", port), 0)

    @classmethod
    def _agreed(cls, storage: int, compute: int, per_compute: int) -> "GraphStoreInfo":
        """Ask the process group of all machines: compute machines come first in it."""
        machines = storage + compute
        size = dist.get_world_size() if dist.is_initialized() else 0
        if size != machines:
            raise ConfigError(
                "GraphStoreInfo.from_env does not know where storage server 0 is: give "
                f'storage_addr="ADDRESS:PORT" or set {_STORAGE_ADDR}; or call it in a process '
                f"group over the {machines} machines of both clusters (this one has {size})"
            )
        address = own_address()
        everyone = gather_from_ranks((address, free_ports(3, address)), size, tuple[str, list[int]])
        (master, ports), (first, others) = everyone[0], everyone[compute]
        return cls(
            storage,
            compute,
            per_compute,
            master,
            first,
            master,
            ports[0],
            others[0],
            ports[1],
            others[1],
            others[2],
        )

    @property
    def num_cluster_nodes(self) -> int:
        """Number of machines in both clusters."""
        return self.num_storage_nodes + self.num_compute_nodes

    @property
    def compute_cluster_world_size(self) -> int:
        """Number of compute processes on all machines."""
        return self.num_compute_nodes * self.num_processes_per_compute

    @property
    def storage_node_rank(self) -> int:
        """Rank of this machine among the storage machines, by ``RANK``: compute machines are first.

        Raises:
            ConfigError: This is a compute machine.
        """
        return _node_rank(self.num_compute_nodes, self.num_cluster_nodes, "storage")

    @property
    def compute_node_rank(self) -> int:
        """Rank of this machine among the compute machines, from ``RANK``.

        Raises:
            ConfigError: This is a storage machine.
        """
        return _node_rank(0, self.num_compute_nodes, "compute")


def info_of_servers(num_servers: int, host: str, port: int) -> GraphStoreInfo:
    """Return a storage cluster by its server 0; its compute cluster counts as one process.

    A server ignores the size of the compute cluster: the first client of a job sends it.
    """
    return GraphStoreInfo(num_servers, 1, 1, host, host, host, 0, 0, 0, port, 0)


def _figure(name: str, given: int | None, *variables: str, least: str = "") -> int:
    """Return the given value, else the first variable that is set, else ``least``."""
    where, text = name, "" if given is None else str(given)
    for variable in variables:
        if not text and os.environ.get(variable):
            where, text = variable, os.environ[variable]
    text = text or least
    if not text:
        raise ConfigError(f"{name} is not known: give it, or set {' or '.join(variables)}")
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{where} must be an integer > 0, got {text!r}")
    return int(text)


def _node_rank(start: int, end: int, kind: str) -> int:
    if "RANK" not in os.environ:
        raise UsageError(f"RANK is not set: start the {kind} processes with torchrun")
    rank = int(os.environ["RANK"])
    if not start <= rank < end:
        raise ConfigError(f"RANK={rank} is no {kind} machine: those are [{start}, {end})")
    return rank - start
