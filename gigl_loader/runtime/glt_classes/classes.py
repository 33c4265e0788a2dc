"""The parts of graphlearn-torch (GLT) that gigl_loader uses, for machines without GLT.

The classes here have the names, fields and defaults of GLT 0.2.4, so that `isinstance`, pickles and
code for GLT work the same; `gigl_loader.runtime.glt_classes` provides them if ``graphlearn_torch``
cannot be imported. Datasets are in `gigl_loader.runtime.glt_classes.datasets`, their parts in
`gigl_loader.runtime.glt_classes.topology`. GLT's own loaders and partitioners are not here. One
contract test runs against both sets.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.glt_classes.datasets import Dataset as Dataset
from gigl_loader.runtime.glt_classes.datasets import DistDataset as DistDataset
from gigl_loader.runtime.glt_classes.topology import Feature as Feature
from gigl_loader.runtime.glt_classes.topology import Graph as Graph
from gigl_loader.runtime.glt_classes.topology import RangePartitionBook as RangePartitionBook
from gigl_loader.runtime.glt_classes.topology import Topology as Topology

# both as in GLT 0.2.4
_MAX_CONCURRENCY = 32
_MIB_PER_WORKER = 64


# --- the role of this process ---------------------------------------------------------------------


class DistRole(Enum):
    """Role of a process in its job."""

    WORKER = 1
    SERVER = 2
    CLIENT = 3


@dataclass
class DistContext:
    """The position of this process in its job.

    Args:
        role: Trains beside its graph (worker), holds the graph (server), or requests batches
            (client).
        group_name: Name of the processes with this role.
        world_size: Number of processes with this role.
        rank: This process among them.
        global_world_size: Number of processes over all roles.
        global_rank: This process among them; servers come first.

    Raises:
        ConfigError: A rank is not below its world size.
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size <= self.global_world_size:
            raise ConfigError(
                f"rank {self.rank} of {self.world_size}, in a job of {self.global_world_size}: a "
                "rank must be below its world size"
            )
        if not 0 <= self.global_rank < self.global_world_size:
            raise ConfigError(f"global rank {self.global_rank} of {self.global_world_size}")

    def is_worker(self) -> bool:
        """Return whether this process trains beside its graph."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Return whether this process holds the graph for others."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Return whether this process requests batches from servers."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Return the number of servers; 0 for a worker."""
        return self._count(DistRole.SERVER)

    def num_clients(self) -> int:
        """Return the number of clients; 0 for a worker."""
        return self._count(DistRole.CLIENT)

    def _count(self, role: DistRole) -> int:
        if self.role is DistRole.WORKER:
            return 0
        # two roles only: all processes of the other role
        return self.world_size if self.role is role else self.global_world_size - self.world_size

    @property
    def worker_name(self) -> str:
        """Name of this process, unique in the job."""
        return f"{self.group_name}_{self.rank}"


# of the process, as in GLT: a job's position does not change while it runs
_context: DistContext | None = None


def get_context() -> DistContext | None:
    """Return the position of this process in its job; None before one was set."""
    return _context


def init_worker_group(world_size: int, rank: int, group_name: str | None = None) -> None:
    """Make this process worker ``rank`` of ``world_size``."""
    _set_context(DistRole.WORKER, group_name, (world_size, rank), (world_size, rank))


def _set_server_context(
    num_servers: int, server_rank: int, server_group_name: str | None = None, num_clients: int = 0
) -> None:
    total = num_servers + num_clients
    _set_context(
        DistRole.SERVER, server_group_name, (num_servers, server_rank), (total, server_rank)
    )


def _set_client_context(
    num_servers: int, num_clients: int, client_rank: int, client_group_name: str | None = None
) -> None:
    total = num_servers + num_clients
    whole = (total, num_servers + client_rank)
    _set_context(DistRole.CLIENT, client_group_name, (num_clients, client_rank), whole)


def _set_context(
    role: DistRole, name: str | None, own: tuple[int, int], whole: tuple[int, int]
) -> None:
    global _context
    _context = DistContext(role, name or f"_default_{role.name.lower()}", *own, *whole)


def _servers_of_client(context: DistContext | None) -> list[int]:
    """Return the servers that a client uses if it names none.

    With enough servers, contiguous blocks in rank order, the first ones one longer; else one each,
    in turn.
    """
    if context is None or not context.is_client():
        raise UsageError("server_rank=None is for a client: name the server ranks")
    servers, clients = context.num_servers(), context.num_clients()
    if servers < clients:
        return [context.rank % servers]
    # as tensor_split cuts, which GLT's own rule amounts to
    return torch.arange(servers, device="cpu").tensor_split(clients)[context.rank].tolist()


# --- how sampling workers are started -------------------------------------------------------------


class _WorkerOptions:
    """Number, devices and addresses of sampling workers.

    Concurrency is limited to 1 to 32, and missing values are read from ``MASTER_ADDR`` and
    ``MASTER_PORT`` (one above that port): not our rules, but those of GLT's class.

    Raises:
        ConfigError: There is no address, or not a device per worker.
    """

    def __init__(
        self,
        num_workers: int,
        worker_devices: torch.device | Sequence[torch.device] | None,
        worker_concurrency: int,
        master_addr: str | None,
        master_port: str | int | None,
        num_rpc_threads: int | None,
        rpc_timeout: float,
    ) -> None:
        self.num_workers = num_workers
        # this and the ranks stay None until the loader knows its context
        self.worker_world_size: int | None = None
        self.worker_ranks: list[int] | None = None
        self.worker_devices = _per_worker(worker_devices, num_workers)
        self.worker_concurrency = min(max(worker_concurrency, 1), _MAX_CONCURRENCY)
        self.master_addr = str(self._given(master_addr, "master_addr"))
        port = int(self._given(master_port, "master_port"))
        # MASTER_PORT itself is taken by the rendezvous of torch's process group
        self.master_port = port if master_port is not None else port + 1
        if num_rpc_threads is not None and num_rpc_threads <= 0:
            raise ConfigError(f"num_rpc_threads must be > 0 or None, got {num_rpc_threads}")
        self.num_rpc_threads = num_rpc_threads
        self.rpc_timeout = rpc_timeout

    def _given(self, value: Any, name: str) -> Any:
        setting = os.environ.get(name.upper()) if value is None else value
        if setting is None:
            raise ConfigError(
                f"{type(self).__name__} needs {name}: pass it, or set {name.upper()} in the "
                "environment"
            )
        return setting

    def _set_worker_ranks(self, context: DistContext) -> None:
        self.worker_world_size = context.world_size * self.num_workers
        first = context.rank * self.num_workers
        self.worker_ranks = list(range(first, first + self.num_workers))


def _per_worker(devices: Any, num_workers: int) -> list[torch.device] | None:
    if devices is None:
        return None
    if not isinstance(devices, (list, tuple)):
        return [devices] * num_workers
    if len(devices) != num_workers:
        raise ConfigError(f"worker_devices must name {num_workers} devices, got {len(devices)}")
    return list(devices)


class CollocatedDistSamplingWorkerOptions(_WorkerOptions):
    """Sampling in the training process; see GLT's class of that name."""

    def __init__(
        self,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        use_all2all: bool = False,
    ) -> None:
        super().__init__(1, None, 1, master_addr, master_port, num_rpc_threads, rpc_timeout)
        self.use_all2all = use_all2all


class MpDistSamplingWorkerOptions(_WorkerOptions):
    """Sampling workers in subprocesses of the training process; see GLT's class of that name."""

    def __init__(
        self,
        num_workers: int = 1,
        worker_devices: torch.device | Sequence[torch.device] | None = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        channel_size: int | str | None = None,
        pin_memory: bool = False,
        use_all2all: bool = False,
    ) -> None:
        workers = num_workers, worker_devices, worker_concurrency
        super().__init__(*workers, master_addr, master_port, num_rpc_threads, rpc_timeout)
        # messages, not bytes: one for each batch under way
        self.channel_capacity = self.num_workers * self.worker_concurrency
        self.channel_size = _default_size(num_workers) if channel_size is None else channel_size
        self.pin_memory = pin_memory
        self.use_all2all = use_all2all


class RemoteDistSamplingWorkerOptions(_WorkerOptions):
    """Sampling workers on storage servers; see GLT's class of that name.

    Raises:
        ConfigError: More is to be prefetched than the servers may keep ready.
    """

    def __init__(
        self,
        server_rank: int | list[int] | None = None,
        num_workers: int = 1,
        worker_devices: torch.device | Sequence[torch.device] | None = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        buffer_size: int | str | None = None,
        prefetch_size: int = 4,
        worker_key: str | None = None,
        *,
        use_all2all: bool = False,
    ) -> None:
        workers = num_workers, worker_devices, worker_concurrency
        super().__init__(*workers, master_addr, master_port, num_rpc_threads, rpc_timeout)
        named = server_rank is not None
        self.server_rank = server_rank if named else _servers_of_client(get_context())
        self.buffer_capacity = self.num_workers * self.worker_concurrency
        self.buffer_size = _default_size(num_workers) if buffer_size is None else buffer_size
        if prefetch_size > self.buffer_capacity:
            raise ConfigError(
                f"prefetch_size={prefetch_size} is above num_workers * worker_concurrency = "
                f"{self.buffer_capacity}: lower it, or raise one of those"
            )
        self.prefetch_size = prefetch_size
        self.worker_key = worker_key
        self.use_all2all = use_all2all


def _default_size(num_workers: int) -> str:
    return f"{num_workers * _MIB_PER_WORKER}MB"


# --- inputs of sampling ---------------------------------------------------------------------------


class SamplingType(Enum):
    """Kind of seeds of a batch."""

    NODE = 0
    LINK = 1
    SUBGRAPH = 2
    RANDOM_WALK = 3


@dataclass
class SamplingConfig:
    """Sampling options; `BaseDistLoader.create_sampling_config` makes one."""

    sampling_type: SamplingType
    num_neighbors: list[int] | dict[tuple[str, str, str], list[int]] | None
    batch_size: int
    shuffle: bool
    drop_last: bool
    with_edge: bool
    collect_features: bool
    with_neg: bool
    with_weight: bool
    edge_dir: str
    seed: int | None


@dataclass
class NodeSamplerInput:
    """Nodes to sample around.

    Args:
        node: ``[num_seeds]`` int64, global ids.
        input_type: Their type; None: the graph is homogeneous.
    """

    node: Tensor
    input_type: str | None = None

    @classmethod
    def cast(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an instance from a tuple, a dict or the arguments; an instance as it is."""
        if kwargs or len(args) != 1:
            return cls(*args, **kwargs)
        value = args[0]
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, dict):
            return cls(**value)
        return cls(*value) if isinstance(value, (list, tuple)) else cls(value)

    def __getitem__(self, index: Any) -> "NodeSamplerInput":
        # lists and numpy arrays index as tensors do
        index = torch.as_tensor(index, device=self.node.device)
        return NodeSamplerInput(self.node[index], self.input_type)

    def __len__(self) -> int:
        return self.node.numel()

    def share_memory(self) -> "NodeSamplerInput":
        """Move the ids into shared memory, in place."""
        self.node.share_memory_()
        return self

    def to(self, device: torch.device | str) -> "NodeSamplerInput":
        """Move the ids to ``device``, in place."""
        self.node = self.node.to(device)
        return self


# --- base classes ---------------------------------------------------------------------------------


class ChannelBase(ABC):
    """A queue of sampled messages: dicts of tensors."""

    @abstractmethod
    def send(self, msg: dict[str, Tensor], **kwargs: Any) -> None:
        """Add a message."""

    @abstractmethod
    def recv(self, **kwargs: Any) -> dict[str, Tensor]:
        """Remove and return the next message."""


class DistLoader:
    """Base class of `BaseDistLoader`, which sets all attributes itself and never calls this one.

    Raises:
        UsageError: It is used directly: its samplers are graphlearn-torch's.
    """

    # misspelt, as in GLT: its subclasses read this name. True on the class: __del__ of an object
    # whose __init__ raised has nothing to release.
    _shutdowned = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError(
            "graphlearn-torch's own loaders are not available, because it is not installed here: "
            "use gigl_loader.DistNeighborLoader, or subclass gigl_loader.BaseDistLoader"
        )

    def shutdown(self) -> None:
        """Release the loader's resources."""
        self._shutdowned = True

    def __del__(self) -> None:
        # at the end of the interpreter, modules that shutdown() needs may be gone
        if not sys.is_finalizing():
            self.shutdown()
