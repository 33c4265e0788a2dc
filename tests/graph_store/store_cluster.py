"""The cluster runner of `gigl_loader.testing` over one tiny graph."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from gigl_loader import (
    CustomSamplerOptions,
    DistDataset,
    GraphStoreInfo,
    RemoteDistDataset,
    testing,
)
from gigl_loader.batch.message import META
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import Field
from gigl_loader.testing import TinyGraph, free_port
from gigl_loader.testing.local_processes import (
    MakePartition,
    Processes,
    compute,
    running_processes,
    store_info,
)
from gigl_loader.testing.local_processes import serve as serve_partition

__all__ = [
    "HOST",
    "MakePartition",
    "Processes",
    "compute",
    "free_port",
    "info_of",
    "pid_of",
    "processes",
    "run_cluster",
    "serve",
    "serve_partition",
]

HOST = "127.0.0.1"
info_of = store_info
processes = running_processes


def pid_of(process: ForkedProcess) -> int:
    """Return the pid of a process that was started."""
    assert process.pid is not None
    return process.pid


def share_of_each_server(info: GraphStoreInfo, rank: int, size: int) -> dict[int, Tensor]:
    """Return the ids of each server, each cut over all ranks: everybody asks every server."""
    everything = RemoteDistDataset(info, rank).fetch_node_ids()
    return {server: ids.tensor_split(size)[rank] for server, ids in everything.items()}


def tiny_graph() -> TinyGraph:
    return TinyGraph.random(60, 400, seed=5)


def tiny_partition(rank: int, servers: int) -> DistDataset:
    return tiny_graph().partitions(servers)[rank]


class FailingSampler(NeighborSampler):
    """Raises on the second batch, forgets to return it, or takes its time over it."""

    def __init__(self, *args: Any, nap_s: float = 0.0, silent: bool = False) -> None:
        super().__init__(*args)
        self._nap_s, self._silent = nap_s, silent

    def sample(self, request: Any) -> Any:
        if request.ticket.batch == 1:
            if self._silent:
                return None
            if self._nap_s == 0.0:
                raise ValueError("no luck with this batch")
            time.sleep(self._nap_s)
        return super().sample(request)


class WideSampler(NeighborSampler):
    """Adds 4 MB per seed: more than the system takes for a process that does not read."""

    def sample(self, request: Any) -> Any:
        seeds = request.seeds.repeat(500_000)
        return [*super().sample(request), Field.of(f"{META}wide", seeds)]


WIDE = CustomSamplerOptions("tests.graph_store.store_cluster.WideSampler")
SAMPLERS = ("tests.graph_store.store_cluster",)


def serve(info: GraphStoreInfo, rank: int, num_jobs: int | None = 1, **how: Any) -> None:
    serve_partition(info, rank, tiny_partition, num_jobs, **{"allow_samplers": SAMPLERS, **how})


def run_cluster(
    folder: Path, client: Callable[..., None], *args: Any, servers: int = 2, clients: int = 2
) -> None:
    """Call ``client(info, rank, *args)`` on each compute process; all must succeed."""
    testing.run_cluster(
        client,
        *args,
        dataset=tiny_partition,
        tmp_path=folder,
        servers=servers,
        clients=clients,
        allow_samplers=SAMPLERS,
    )
