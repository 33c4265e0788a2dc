"""Helpers for scripts: operations over all ranks, and GiGL's ``gigl.distributed.utils``.

`on_all_ranks`, `sum_over_ranks` and `shared_folder` are for scripts in which each rank holds its
own partition. Without a process group, and without ``WORLD_SIZE`` above 1 in the environment, a
script is rank 0 of 1, and they work for one rank.

Addresses, ports and devices are for GiGL scripts that spawn their training processes themselves;
loaders find all of this themselves. All ranks have to call functions that contact other ranks.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader import GraphStoreInfo
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.loader.job_ranks import get_process_group_name, init_neighbor_loader_worker
from gigl_loader.runtime.ranks.collectives import broadcast_value, gather_from_ranks
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

__path__: list[str] = []
"""GiGL has modules below this one, and Python looks for those below packages alone; `_lazy` finds
them."""


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
    _check_num_ports(num_ports)
    return free_ports(num_ports)


def get_free_ports_from_master_node(num_ports: int) -> list[int]:
    """Return ports that are free on rank 0's machine, the same on all ranks.

    Raises:
        UsageError: No process group.
        ConfigError: ``num_ports`` is below 1.
    """
    return get_free_ports_from_node(num_ports, 0)


def get_free_ports_from_node(num_ports: int, node_rank: int) -> list[int]:
    """Return ports that are free on the machine of rank ``node_rank``, the same on all ranks.

    Raises:
        UsageError: No process group.
        ConfigError: ``num_ports`` is below 1, or there is no such rank.
    """
    _check_rank(node_rank)
    # on all ranks, not only on the one that looks for ports: the others would wait for it
    _check_num_ports(num_ports)
    ports = get_free_ports(num_ports) if dist.get_rank() == node_rank else []
    return gather_from_ranks(ports, dist.get_world_size(), list[int])[node_rank]


def get_internal_ip_from_master_node() -> str:
    """Return the address of rank 0's machine, as seen by the other machines of the job.

    Raises:
        UsageError: No process group.
    """
    return get_internal_ip_from_node(0)


def get_internal_ip_from_node(node_rank: int) -> str:
    """Return the address of the machine of rank ``node_rank``.

    Raises:
        UsageError: No process group.
        ConfigError: There is no such rank.
    """
    _check_rank(node_rank)
    return get_internal_ip_from_all_ranks()[node_rank]


def get_internal_ip_from_all_ranks() -> list[str]:
    """Return the address of each rank's machine, by rank.

    Raises:
        UsageError: No process group.
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


def _check_num_ports(num_ports: int) -> None:
    if num_ports < 1:
        raise ConfigError(f"num_ports must be an integer > 0, got {num_ports!r}")


def _check_rank(rank: int) -> None:
    if not dist.is_initialized():
        raise UsageError(
            "ranks agree over torch.distributed: call torch.distributed.init_process_group(...) "
            "first, or start the script with torchrun"
        )
    if not 0 <= rank < dist.get_world_size():
        raise ConfigError(f"node_rank must be in [0, {dist.get_world_size()}), got {rank!r}")


# --- for scripts with a partition on each rank ----------------------------------------------------


def on_all_ranks(values: Tensor) -> Tensor:
    """Return the rows of all ranks, in rank order; all ranks have to call it.

    ::

        seeds = on_all_ranks(dataset.train_node_ids)  # of all partitions, the same on each rank

    Args:
        values: ``[n, ...]``, of one type and width on all ranks; ``n`` may differ.

    Returns:
        ``[sum of n, ...]``, on the device of ``values``.

    Raises:
        ConfigError: Types or widths differ; on all ranks.
        UsageError: There is no process group, although the environment has other ranks.
        PeerError: A rank has ended, or did not come.
    """
    size = _world_size("on_all_ranks")
    if size == 1:
        return values
    rows = values.detach().cpu().contiguous()
    about = str(rows.dtype), tuple(rows.shape)
    everyone = gather_from_ranks(about, size, tuple[str, tuple[int, ...]])
    if len({(dtype, shape[1:], len(shape)) for dtype, shape in everyone}) > 1 or rows.dim() == 0:
        raise ConfigError(
            "on_all_ranks takes [n, ...] of one type and width on all ranks, got "
            + "; ".join(f"{dtype} {list(shape)}" for dtype, shape in everyone)
        )
    # as bytes: numpy, which transports them, does not know all types of torch
    data = rows.reshape(-1).view(torch.uint8).numpy().tobytes()
    parts = gather_from_ranks(data, size, bytes)
    whole = torch.frombuffer(bytearray(b"".join(parts) or bytes(16)), dtype=torch.uint8)
    shape = (sum(shape[0] for _, shape in everyone), *rows.shape[1:])
    flat = whole[: math.prod(shape) * rows.element_size()].view(rows.dtype)
    return flat.reshape(shape).to(values.device)


def sum_over_ranks(*values: float) -> list[float]:
    """Return each value's sum over all ranks; all ranks have to call it, with as many values.

    ::

        right, count = sum_over_ranks(right, count)

    Raises:
        ConfigError: Ranks gave different numbers of values; on all ranks.
        UsageError: There is no process group, although the environment has other ranks.
        PeerError: A rank has ended, or did not come.
    """
    numbers = [float(value) for value in values]
    everyone = gather_from_ranks(numbers, _world_size("sum_over_ranks"), list[float])
    if len({len(row) for row in everyone}) > 1:
        raise ConfigError(
            f"sum_over_ranks takes as many values on all ranks, got {[len(o) for o in everyone]}"
        )
    return [sum(column) for column in zip(*everyone, strict=True)]


@contextmanager
def shared_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """Give a new folder, the same on all ranks; removed once all have left the block.

    ::

        with shared_folder() as folder:
            if rank == 0:
                partition_graph(data, world_size, folder)

    Args:
        parent: Its parent directory; with several machines, one that all of them see. None: this
            machine's directory for temporary files.

    Raises:
        ConfigError: Another rank does not see it; on all ranks.
        UsageError: There is no process group, although the environment has other ranks.
        PeerError: A rank has ended, or did not come.
    """
    size = _world_size("shared_folder")
    is_first = size == 1 or dist.get_rank() == 0
    folder = None
    if is_first:
        folder = tempfile.TemporaryDirectory(prefix="gigl_loader_", dir=parent)
    try:
        name = broadcast_value(folder.name if folder else "", size, str)
        seen = gather_from_ranks(Path(name).is_dir(), size, bool)
        if not all(seen):
            blind = [rank for rank, sees in enumerate(seen) if not sees]
            raise ConfigError(
                f"ranks {blind} do not see {name}, which rank 0 made: give shared_folder a parent "
                "that all machines see"
            )
        yield name
        # the first rank here waits for the others, who may still read
        gather_from_ranks(None, size, None)
    finally:
        if folder is not None:
            folder.cleanup()


def _world_size(who: str) -> int:
    if dist.is_initialized():
        return dist.get_world_size()
    others = os.environ.get("WORLD_SIZE", "1")
    if others != "1":
        raise UsageError(
            f"{who}: WORLD_SIZE={others} and there is no process group: call "
            "torch.distributed.init_process_group() first"
        )
    return 1
