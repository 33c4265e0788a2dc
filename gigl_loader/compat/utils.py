"""GiGL's ``gigl.distributed.utils``: addresses, ports and devices.

For GiGL scripts that spawn their training processes themselves; loaders find all of this
themselves. All ranks have to call functions that contact other ranks.
"""

import torch
import torch.distributed as dist

from gigl_loader import GraphStoreInfo
from gigl_loader.errors import ConfigError, NotReadyError
from gigl_loader.loader.deployment.job_ranks import (
    get_process_group_name,
    init_neighbor_loader_worker,
)
from gigl_loader.runtime.plain_values import check_count
from gigl_loader.runtime.ranks.collectives import gather_from_ranks
from gigl_loader.runtime.transport import free_ports, own_address

__all__ = [
    "GraphStoreInfo",
    "get_available_device",
    "get_free_port",
    "get_free_ports",
    "get_free_ports_from_master_node",
    "get_free_ports_from_node",
    "get_graph_store_info",
    "get_internal_ip_from_all_ranks",
    "get_internal_ip_from_master_node",
    "get_internal_ip_from_node",
    "get_process_group_name",
    "init_neighbor_loader_worker",
]


def get_available_device(local_process_rank: int) -> torch.device:
    """Return this process's CUDA device, in turn if processes outnumber devices, or the CPU.

    Args:
        local_process_rank: The rank of this process on its machine.
    """
    count = torch.cuda.device_count()
    return torch.device("cuda", local_process_rank % count) if count else torch.device("cpu")


def get_free_port() -> int:
    """Return a port that is free on this machine right now."""
    return get_free_ports(1)[0]


def get_free_ports(num_ports: int) -> list[int]:
    """Return ``num_ports`` different ports that are free on this machine right now.

    Raises:
        ConfigError: ``num_ports`` is below 1.
    """
    check_count(num_ports, "num_ports")
    return free_ports(num_ports)


def get_free_ports_from_master_node(num_ports: int) -> list[int]:
    """Return ports that are free on rank 0's machine, the same on all ranks.

    Raises:
        NotReadyError: No process group.
        ConfigError: ``num_ports`` is below 1.
    """
    return get_free_ports_from_node(num_ports, 0)


def get_free_ports_from_node(num_ports: int, node_rank: int) -> list[int]:
    """Return ports that are free on the machine of rank ``node_rank``, the same on all ranks.

    Raises:
        NotReadyError: No process group.
        ConfigError: ``num_ports`` is below 1, or there is no such rank.
    """
    _check_rank(node_rank)
    # on all ranks, not only on the one that looks for ports: the others would wait for it
    check_count(num_ports, "num_ports")
    ports = get_free_ports(num_ports) if dist.get_rank() == node_rank else []
    return gather_from_ranks(ports, dist.get_world_size(), list[int])[node_rank]


def get_internal_ip_from_master_node() -> str:
    """Return the address of rank 0's machine, as seen by the other machines of the job.

    Raises:
        NotReadyError: No process group.
    """
    return get_internal_ip_from_node(0)


def get_internal_ip_from_node(node_rank: int) -> str:
    """Return the address of the machine of rank ``node_rank``.

    Raises:
        NotReadyError: No process group.
        ConfigError: There is no such rank.
    """
    _check_rank(node_rank)
    return get_internal_ip_from_all_ranks()[node_rank]


def get_internal_ip_from_all_ranks() -> list[str]:
    """Return the address of each rank's machine, by rank.

    Raises:
        NotReadyError: No process group.
    """
    _check_rank(0)
    # each rank finds its own: only its machine knows the interface that reaches the others
    return gather_from_ranks(own_address(), dist.get_world_size(), str)


def get_graph_store_info() -> GraphStoreInfo:
    """Return the clusters that GiGL's environment variables name.

    All processes of a process group over both clusters call it: see `GraphStoreInfo.from_env`,
    which also takes what the environment does not have.

    Raises:
        ConfigError: A variable is missing, or there is no such process group.
    """
    return GraphStoreInfo.from_env()


def _check_rank(rank: int) -> None:
    if not dist.is_initialized():
        raise NotReadyError(
            "ranks agree over torch.distributed: call torch.distributed.init_process_group(...) "
            "first, or start the script with torchrun"
        )
    if not 0 <= rank < dist.get_world_size():
        raise ConfigError(f"node_rank must be in [0, {dist.get_world_size()}), got {rank!r}")
