"""Ranks and addresses of this process and the others of its job."""

import os
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from gigl_loader.errors import ConfigError, NotReadyError
from gigl_loader.runtime.glt_classes import get_context, init_worker_group
from gigl_loader.runtime.ranks.collectives import broadcast_value, gather_from_ranks
from gigl_loader.runtime.ranks.gloo_interface import interface_towards
from gigl_loader.runtime.transport import free_port, is_loopback, own_address

_CONTEXT_PORT = 29_591
"""Port of the process group that is started for a `DistributedContext`, on its main worker."""
# Machines come up minutes apart; torch's default for gloo is 30 minutes.
_GROUP_TIMEOUT = timedelta(minutes=10)
DEFAULT_NUM_CPU_THREADS = 2
"""GiGL's default. torch's own is all cores, which workers need for sampling."""


@dataclass(frozen=True)
class DistributedContext:
    """Deprecated: names this machine and its rank, which ``torch.distributed`` knows by itself."""

    main_worker_ip_address: str
    global_rank: int
    """Rank of this machine."""
    global_world_size: int
    """Machines."""


@dataclass(frozen=True)
class DistributedRuntimeInfo:
    """Rank of this process, and the size of its job."""

    node_world_size: int
    """Machines."""
    node_rank: int
    """This machine."""
    rank: int
    """This process, over all machines."""
    world_size: int
    """Processes over all machines."""
    local_rank: int
    """This process, on its machine."""
    local_world_size: int
    """Processes on each machine."""
    master_ip_address: str
    """Address of the machine of rank 0."""
    should_cleanup_distributed_context: bool
    """Whether the process group was started only for this, and has to be ended by its user."""


def resolve_runtime(
    context: DistributedContext | None = None,
    local_process_rank: int | None = None,
    local_process_world_size: int | None = None,
) -> DistributedRuntimeInfo:
    """Find this process's place among the others.

    Args:
        context: Deprecated. Names the machines; the local figures are then required, and a gloo
            group is started on its address if none is up
            (``should_cleanup_distributed_context`` is then True).
        local_process_rank: With ``context``: this process on its machine.
        local_process_world_size: With ``context``: processes per machine.

    Raises:
        NotReadyError: No context, and ``torch.distributed`` is not up.
        ConfigError: Machines run different numbers of ranks; names the counts. Or they do not know
            their addresses.
    """
    if context is not None:
        return _from_context(context, local_process_rank, local_process_world_size)
    if not dist.is_initialized():
        raise NotReadyError(
            "the loader needs a process group: call torch.distributed.init_process_group(...) "
            "before building it (one process is enough: init_process_group('gloo', "
            "store=torch.distributed.HashStore(), rank=0, world_size=1)), "
            "or start the script with torchrun"
        )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = own_address(), os.uname().nodename
    return from_addresses(rank, reachable(gather_from_ranks(here, world_size, tuple[str, str])))


def runtime_or_alone(
    context: DistributedContext | None = None,
    local_process_rank: int | None = None,
    local_process_world_size: int | None = None,
) -> DistributedRuntimeInfo:
    """Return the result of `resolve_runtime`; a job of one process needs no process group for it.

    Without a group, ``WORLD_SIZE`` tells a job of one process from a rank that forgot to call
    ``init_process_group``: torchrun sets it.

    Raises:
        NotReadyError: No process group, and ``WORLD_SIZE`` is above 1.
        ConfigError: As `resolve_runtime`.
    """
    if context is None and not dist.is_initialized() and os.environ.get("WORLD_SIZE", "1") == "1":
        return from_addresses(0, ["127.0.0.1"])
    return resolve_runtime(context, local_process_rank, local_process_world_size)


def reachable(machines: list[tuple[str, str]]) -> list[str]:
    """Return the addresses of ``machines``, which are given with their names.

    Raises:
        ConfigError: All have the address by which each means itself, and they are several.
    """
    addresses, names = [address for address, _ in machines], {name for _, name in machines}
    if len(names) > 1 and len(set(addresses)) == 1 and is_loopback(addresses[0]):
        raise ConfigError(
            f"the ranks run on {len(names)} machines, {sorted(names)[:4]}, and all find "
            f"{addresses[0]} for their address, which no other machine can reach: set MASTER_ADDR "
            "to rank 0's address on the network, as torchrun does"
        )
    return addresses


def from_addresses(rank: int, addresses: list[str]) -> DistributedRuntimeInfo:
    """Return the runtime of ``rank``, given the address of every rank's machine.

    Raises:
        ConfigError: Machines run different numbers of ranks, or take turns in the order of ranks.
    """
    counts = Counter(addresses)
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"every machine must run the same number of processes, found {dict(counts)}: start "
            "torchrun with the same --nproc-per-node everywhere"
        )
    local_world_size = counts[addresses[0]]
    # Machine and local rank follow from the rank alone, here and wherever machines' inputs are
    # compared. With ranks assigned in turn, two processes of a machine would both be its local rank
    # 0: on one GPU, and each with all seeds of the machine.
    if addresses != [address for address in counts for _ in range(local_world_size)]:
        raise ConfigError(
            f"the ranks of a machine must follow one another, found {addresses} by rank: start "
            "them with torchrun, or machine by machine (srun --distribution=block, mpirun "
            "--map-by slot)"
        )
    return _runtime_of(rank, len(counts), local_world_size, addresses[0])


def _runtime_of(
    rank: int, machines: int, local_world_size: int, master: str, *, started: bool = False
) -> DistributedRuntimeInfo:
    """Return the runtime of ``rank``; ``started``: the process group was started for it alone."""
    return DistributedRuntimeInfo(
        node_world_size=machines,
        node_rank=rank // local_world_size,
        rank=rank,
        world_size=machines * local_world_size,
        local_rank=rank % local_world_size,
        local_world_size=local_world_size,
        master_ip_address=master,
        should_cleanup_distributed_context=started,
    )


def _from_context(
    context: DistributedContext, local_rank: int | None, local_world_size: int | None
) -> DistributedRuntimeInfo:
    if local_rank is None or local_world_size is None:
        raise ConfigError(
            "with context=, local_process_rank and local_process_world_size are required, got "
            f"{local_rank} and {local_world_size}"
        )
    if not 0 <= local_rank < local_world_size:
        raise ConfigError(
            f"local_process_rank must be in [0, {local_world_size}), got {local_rank}"
        )
    rank = context.global_rank * local_world_size + local_rank
    machines, master = context.global_world_size, context.main_worker_ip_address
    # An existing group belongs to its owner: it is used, and not ended.
    started = not dist.is_initialized()
    if started:
        # gloo would listen where the host's own name leads, which may be the loopback.
        with interface_towards(master):
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://{master}:{_CONTEXT_PORT}",
                rank=rank,
                world_size=machines * local_world_size,
                timeout=_GROUP_TIMEOUT,
            )
    return _runtime_of(rank, machines, local_world_size, master, started=started)


def initialize_colocated_sampling_worker(
    *,
    local_rank: int,
    local_world_size: int,
    node_rank: int,
    node_world_size: int,
    master_ip_address: str,
    device: torch.device,
    num_cpu_threads: int | None,
) -> int:
    """Join this process to GLT's worker group; return a port that all ranks agreed on.

    The port is free on the master. Sampling workers of different partitions find each other
    there. On a CPU device, torch operations of this process use ``num_cpu_threads`` threads
    (None: 2).
    """
    if torch.device(device).type == "cpu":
        torch.set_num_threads(num_cpu_threads or DEFAULT_NUM_CPU_THREADS)
    rank, world_size = node_rank * local_world_size + local_rank, node_world_size * local_world_size
    join_worker_group(rank, world_size)
    # Free at this moment: another program may take it before anything listens, so nothing of ours
    # listens there; it is for GLT's options.
    return broadcast_value(free_port(master_ip_address) if rank == 0 else 0, world_size, int)


def join_worker_group(rank: int, world_size: int) -> None:
    """Give this process the role in GLT's context that `check_context` requires."""
    context = get_context()
    # Joined again only after a change: GLT has one group per process, and a second loader must not
    # take it from the first one.
    if context is None or not context.is_worker() or context.world_size != world_size:
        init_worker_group(world_size, rank, "gigl_loader_workers")


def get_process_group_name(process_rank: int) -> str:
    """Return GiGL's name of the group of the processes with this rank on their machines."""
    return f"distributed-process-{process_rank}"


def init_neighbor_loader_worker(
    master_ip_address: str,
    local_process_rank: int,
    local_process_world_size: int,
    rank: int,
    world_size: int,
    master_worker_port: int,
    device: torch.device,
    should_use_cpu_workers: bool = False,
    num_cpu_threads: int | None = None,
) -> None:
    """Prepare this process for a loader on ``device``. Loaders that you build do so themselves.

    Args:
        master_ip_address: Not looked at: loaders find each other by ``torch.distributed``.
        local_process_rank: This process on its machine.
        local_process_world_size: Processes on each machine.
        rank: This machine.
        world_size: Machines.
        master_worker_port: Not looked at.
        device: Where batches go; becomes the process's current CUDA device.
        should_use_cpu_workers: Whether it trains on the CPU.
        num_cpu_threads: Then, the threads of torch's operations; None: 2.

    Raises:
        ConfigError: A rank is out of range, or ``device`` is no CUDA device of this machine.
    """
    for name, value, size in (
        ("local_process_rank", local_process_rank, local_process_world_size),
        ("rank", rank, world_size),
    ):
        if not 0 <= value < size:
            raise ConfigError(f"{name} must be in [0, {size}), got {value!r}")
    if should_use_cpu_workers:
        torch.set_num_threads(num_cpu_threads or DEFAULT_NUM_CPU_THREADS)
    else:
        target = torch.device(device)
        if target.type != "cuda" or (target.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device must be one of {torch.cuda.device_count()} CUDA devices, got {device!r}: "
                "on the CPU, give should_use_cpu_workers=True"
            )
        torch.cuda.set_device(target)
    join_worker_group(
        rank * local_process_world_size + local_process_rank, world_size * local_process_world_size
    )
