"""A storage and a compute cluster on this machine, for one function of a test."""

import os
import socket
import traceback
from multiprocessing.connection import wait

from gigl_loader.graph_store import (
    init_compute_process,
    init_storage_process,
    shutdown_compute_process,
)
from gigl_loader.remote.dataset import GraphStoreInfo
from gigl_loader.testing._forked import ForkedProcess

HOST = "127.0.0.1"


def run_cluster(fn, make_graph, tmp_path, *, servers=2, clients=2, edge_dir="in", timeout_s=100.0):
    """Call ``fn(info, rank)`` on each compute process; server ``p`` holds partition ``p``."""
    ports = [_free_port() for _ in range(5)]
    info = GraphStoreInfo(servers, 1, clients, HOST, HOST, HOST, *ports)
    roles = [(_serve, (info, rank, make_graph, edge_dir)) for rank in range(servers)]
    roles += [(_compute, (info, rank, fn)) for rank in range(clients)]
    processes = [
        ForkedProcess(target=_entry, args=(role, args, tmp_path / f"{number}.txt"))
        for number, (role, args) in enumerate(roles)
    ]
    try:
        for process in processes:
            process.start()
        left = {process.sentinel: process for process in processes}
        while left:
            done = wait(list(left), timeout_s)
            assert done, "the cluster is still running at the time limit"
            for sentinel in done:
                process = left.pop(sentinel)
                process.join()
                if process.exitcode:
                    notes = "".join(note.read_text() for note in sorted(tmp_path.glob("*.txt")))
                    raise AssertionError(f"exit code {process.exitcode}\n{notes}")
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _serve(info, rank, make_graph, edge_dir):
    dataset = make_graph().partitions(info.num_storage_nodes, edge_dir=edge_dir)[rank]
    with init_storage_process(rank, info, dataset) as server:
        server.wait()


def _compute(info, rank, fn):
    os.environ["RANK"] = "0"  # of the only compute machine
    init_compute_process(rank, info, compute_world_backend="gloo")
    try:
        fn(info, rank)
    finally:
        shutdown_compute_process()


def _entry(role, args, note):
    try:
        role(*args)
    except BaseException:
        note.write_text(f"--- {role.__name__} {args[1]} ---\n{traceback.format_exc()}")
        raise SystemExit(1) from None


def _free_port():
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return sock.getsockname()[1]
