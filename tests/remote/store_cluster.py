"""Storage and compute processes on this machine; a compute process runs one function of a test."""

import os
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from torch import Tensor

from gigl_loader import GraphStoreInfo, RemoteDistDataset
from gigl_loader.graph_store import (
    init_compute_process,
    init_storage_process,
    shutdown_compute_process,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.testing import TinyGraph
from gigl_loader.testing._forked import ForkedProcess

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def info_of(servers: int, clients: int, **changes: Any) -> GraphStoreInfo:
    ports = dict.fromkeys(
        ("cluster_master_port", "storage_cluster_master_port", "rpc_wait_port"), 0
    )
    values: dict[str, Any] = {
        "num_storage_nodes": servers, "num_compute_nodes": 1, "num_processes_per_compute": clients,
        "cluster_master_ip": HOST, "storage_cluster_master_ip": HOST,
        "compute_cluster_master_ip": HOST, "compute_cluster_master_port": free_port(),
        "rpc_master_port": free_port(), **ports, **changes,
    }  # fmt: skip
    return GraphStoreInfo(**values)


def share_of_each_server(info: GraphStoreInfo, rank: int, size: int) -> dict[int, Tensor]:
    """Return the ids of each server, each cut over all ranks: everybody asks every server."""
    everything = RemoteDistDataset(info, rank).fetch_node_ids()
    return {server: ids.tensor_split(size)[rank] for server, ids in everything.items()}


def tiny_graph() -> TinyGraph:
    return TinyGraph.random(60, 400, seed=5)


class FailingSampler(NeighborSampler):
    """Raises on the second batch, or takes its time over it."""

    def __init__(self, *args: Any, nap_s: float = 0.0) -> None:
        super().__init__(*args)
        self._nap_s = nap_s

    def sample(self, request: Any) -> Any:
        if request.ticket.batch == 1:
            if self._nap_s == 0.0:
                raise ValueError("no luck with this batch")
            time.sleep(self._nap_s)
        return super().sample(request)


class Processes:
    """Processes with their notes; none outlives the block that made it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Any] = []

    def start(self, function: Callable[..., None], *args: Any) -> Any:
        note = self._folder / f"{len(self.all)}.txt"
        process = ForkedProcess(target=_entry, args=(function, args, note))
        process.start()
        self.all.append(process)
        return process

    def join(self, processes: list[Any], timeout_s: float = 200.0) -> None:
        """Wait for all; fail as soon as one does."""
        left = {process.sentinel: process for process in processes}
        while left:
            done = wait(list(left), timeout_s)
            assert done, f"still running at the time limit\n{self.notes()}"
            for sentinel in done:
                process = left.pop(sentinel)
                process.join()
                assert process.exitcode == 0, f"exit code {process.exitcode}\n{self.notes()}"

    def notes(self) -> str:
        return "".join(note.read_text() for note in sorted(self._folder.glob("*.txt")))

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.join()


@contextmanager
def processes(folder: Path) -> Any:
    started = Processes(folder)
    try:
        yield started
    finally:
        started.end()


def run_cluster(
    folder: Path, client: Callable[..., None], *args: Any, servers: int = 2, clients: int = 2
) -> None:
    """Call ``client(info, rank, *args)`` on each compute process; all must succeed."""
    info = info_of(servers, clients)
    with processes(folder) as started:
        roles = [started.start(serve, info, rank) for rank in range(servers)]
        roles += [started.start(compute, info, rank, client, *args) for rank in range(clients)]
        started.join(roles)


def serve(info: GraphStoreInfo, rank: int, num_jobs: int | None = 1) -> None:
    dataset = tiny_graph().partitions(info.num_storage_nodes)[rank]
    with init_storage_process(rank, info, dataset, num_jobs=num_jobs) as server:
        server.wait()


def compute(info: GraphStoreInfo, rank: int, function: Callable[..., None], *args: Any) -> None:
    os.environ["RANK"] = "0"  # of the only compute machine
    init_compute_process(rank, info, "gloo", timeout_s=150.0)
    try:
        function(info, rank, *args)
    finally:
        shutdown_compute_process()
        shutdown_compute_process()  # again: nothing is left to do


def _entry(function: Callable[..., None], args: tuple[Any, ...], note: Path) -> None:
    try:
        function(*args)
    except BaseException:
        note.write_text(f"--- {function.__name__} {args[1]} ---\n{traceback.format_exc()}")
        raise SystemExit(1) from None
