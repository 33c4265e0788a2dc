"""Two storage servers and two jobs on this machine train GraphSAGE on the digits.

The second job starts while the first one trains, and takes its batches from the same servers.

python examples/graph_store/demo.py [options of examples/train_nodes.py]
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from _data import load_graph
from train_nodes import parse_args

from gigl_loader import partition_graph
from gigl_loader.testing import free_port  # one that no other process here gets meanwhile

HERE = Path(__file__).parent
SERVERS = 2
JOBS = {"first": 2, "second": 1}
"""Compute processes by the name of their job."""
HOST = "127.0.0.1"


def start(command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *command], env={**os.environ, **environment})


def start_server(rank: int, root: str, port: int) -> subprocess.Popen[bytes]:
    return start(
        [
            "-m",
            "gigl_loader",
            "serve",
            f"--root={root}",
            f"--rank={rank}",
            f"--num-servers={SERVERS}",
            f"--master-addr={HOST}",
            f"--master-port={port}",
            f"--num-jobs={len(JOBS)}",  # it ends when all of them are over
        ]
    )


def start_job(name: str, rpc_port: int) -> list[subprocess.Popen[bytes]]:
    print(f"job {name!r} starts", flush=True)
    group_port = free_port()
    return [start_compute(name, rank, rpc_port, group_port) for rank in range(JOBS[name])]


def start_compute(name: str, rank: int, rpc_port: int, group_port: int) -> subprocess.Popen[bytes]:
    size = str(JOBS[name])
    return start(
        [
            str(HERE / "train.py"),
            f"--servers={SERVERS}",
            f"--storage-addr={HOST}",
            f"--rpc-port={rpc_port}",
            f"--compute-addr={HOST}",
            f"--group-port={group_port}",
            *sys.argv[1:],
        ],
        GIGL_LOADER_JOB=name,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR=HOST,
        MASTER_PORT=str(group_port),
    )


def ranks_that_train(name: str, rpc_port: int) -> int:
    """Return how many ranks of a job have a loader on server 0, as `gigl-loader status` says."""
    asked = subprocess.run(
        [sys.executable, "-m", "gigl_loader", "status", "--json", f"{HOST}:{rpc_port}"],
        capture_output=True,
        text=True,
        check=False,
    )
    job = json.loads(asked.stdout).get("jobs", {}).get(name, {"ranks": [], "producers": []})
    return len(job["ranks"]) if job["producers"] else 0


def wait_for(processes: list[subprocess.Popen[bytes]]) -> int:
    """Return 0 once all have ended well, or the first other exit code."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code not in (None, 0)]
        if failed:
            return failed[0]
        if None not in codes:
            return 0
        time.sleep(0.2)


def main() -> int:
    args = parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GIGL_LOADER_CLUSTER_TOKEN", secrets.token_hex(16))
    graph = load_graph(args.dataset, args.root)
    print(f"{args.dataset}: {graph.num_nodes} nodes, {graph.num_edges} edges", flush=True)
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as folder:
        root = f"{folder}/graph"
        partition_graph(graph, SERVERS, root, progress=False)
        rpc_port = free_port()
        try:
            for rank in range(SERVERS):
                processes.append(start_server(rank, root, rpc_port))
            first = start_job("first", rpc_port)
            processes += first
            while ranks_that_train("first", rpc_port) < JOBS["first"]:
                if any(process.poll() is not None for process in processes):
                    break  # its error is above, or it was quicker than this
                time.sleep(0.2)
            processes += start_job("second", rpc_port)
            return wait_for(processes)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)


if __name__ == "__main__":
    sys.exit(main())
