"""A graph store and a training job on Ray, on this machine; a storage server is killed in between.

    python examples/ray/demo.py [--epochs 3] [--workers 2 1]

The script starts a Ray cluster of its own, two storage servers as actors on it, and a TorchTrainer.
In the last epoch but one it kills storage server 0, and says so; the store starts it again. In the
middle of the last epoch the job ends, and a job with fewer workers goes on from its checkpoint. At
the end it compares: every batch was there, and those that were sampled twice are the same twice.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SERVERS = 2
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # as other processes of a busy machine; Ray's own value is 15
    "RAY_DEDUP_LOGS": "0",  # each server's lines, also where they are alike
    "RAY_AUTH_MODE": "token",  # nobody else on this machine may use the cluster
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how often reports are collected
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",  # this machine may be busy
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "2",  # workers of a failed run are not waited for
    "OMP_NUM_THREADS": "1",
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train from a graph store on Ray.")
    parser.add_argument("--epochs", type=int, default=3, help="at least 2")
    parser.add_argument(
        "--workers",
        type=int,
        nargs=2,
        default=[2, 1],
        metavar=("FIRST", "THEN"),
        help="training processes of the first job, and of the one that goes on",
    )
    parser.add_argument("--verbose", action="store_true", help="show what all processes log")
    parser.add_argument("--notes", type=Path, help="folder for what was trained on, for tests")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as folder:
        # Ray looks for a cluster in its folder, and would find that of somebody else
        os.environ.update(ENVIRONMENT, RAY_TMPDIR=folder)
        import ray

        ray.init(
            "local",
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=args.verbose,
        )
        try:
            return run(args, Path(folder))
        finally:
            ray.shutdown()


def run(args: argparse.Namespace, folder: Path) -> int:
    from _data import load_graph

    from gigl_loader import partition_graph
    from gigl_loader.graph_store.ray import start_graph_store

    notes = args.notes or folder
    partition_graph(load_graph("digits", None), SERVERS, folder / "graph", progress=False)
    with start_graph_store(folder / "graph", num_servers=SERVERS, cpus_per_server=1) as store:
        for rank, server in enumerate(store.status()):
            print(f"storage server {rank}: {server['state']}, pid {server['pid']}", flush=True)
        killer = threading.Thread(
            target=kill_once, args=(store, notes / "batches", args.epochs - 2), daemon=True
        )
        killer.start()
        first, then = args.workers
        how = {"cluster": store.cluster_info, "epochs": args.epochs, "notes": str(notes)}
        train({**how, "stop_at": (args.epochs - 1, 10)}, first, store, folder)
        print(
            f"the job of {first} workers ended in the middle of an epoch; {then} go on", flush=True
        )
        result = train({**how, "stop_at": None}, then, store, folder)
    print(f"validation accuracy: {result.metrics['accuracy']:.4f}")
    return compare(notes / "batches", args.epochs)


def train(config: dict[str, Any], workers: int, store: Any, folder: Path) -> Any:
    """Train; a job of the same name and storage goes on from the last checkpoint."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from train import train_loop

    trainer = TorchTrainer(
        train_loop,
        train_loop_config={
            "num_neighbors": [10, 10],
            "batch_size": 32,
            "checkpoint_every": 5,
            **config,
        },
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name="digits",
            storage_path=str(folder / "results"),
            failure_config=FailureConfig(max_failures=5),
            worker_runtime_env={"env_vars": store.environment},
        ),
    )
    return trainer.fit()


def kill_once(store: Any, batches: Path, epoch: int) -> None:
    """Kill storage server 0 in the middle of an epoch."""
    while not batches.exists() or f"\n{epoch} 4 " not in batches.read_text():
        time.sleep(0.1)
    pid = store.status()[0]["pid"]
    print(f"killing storage server 0 (pid {pid}) in the middle of epoch {epoch}", flush=True)
    os.kill(pid, signal.SIGKILL)


def compare(batches: Path, epochs: int) -> int:
    """Say whether all batches were there, and those that were sampled twice the same twice."""
    found = defaultdict(list)
    for line in batches.read_text().splitlines():
        epoch, number, digest = line.split()
        found[int(epoch), int(number)].append(digest)
    per_epoch = 1 + max(number for _, number in found)
    again = [digests for digests in found.values() if len(digests) > 1]
    whole = len(found) == epochs * per_epoch
    same = all(len(set(digests)) == 1 for digests in again)
    print(
        f"{len(found)} of {epochs * per_epoch} batches; {len(again)} were sampled again after the "
        f"fault: {'the same, bit for bit' if same else 'NOT the same'}"
    )
    return 0 if whole and same else 1


if __name__ == "__main__":
    sys.exit(main())
