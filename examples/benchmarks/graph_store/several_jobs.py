"""Several jobs at once on two storage servers: their rates together, their shares, their starts.

    python examples/benchmarks/graph_store/several_jobs.py --seconds 20

alone     one training job with as many workers as all of the next case together
three     two training jobs and one that takes all nodes in order, as inference does, at once
equal     two equal training jobs: the share of each
many      a training job with one loader beside a job with ``--loaders`` loaders: its share

Rates count from the moment when all jobs of a case have batches, until ``--seconds`` later.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, RemoteDistDataset, partition_graph
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process
from gigl_loader.testing import wait_until
from gigl_loader.testing.local_processes import (
    Processes,
    running_processes,
    serve,
    store_info,
)
from gigl_loader.transport import free_port

SERVERS = 2
DEGREE, WIDTH = 15, 100


@dataclass(frozen=True)
class Job:
    """A job of one compute process."""

    name: str
    workers: int = 1
    """On each server, of each loader."""
    loaders: int = 1
    shuffle: bool = True


def write_graph(num_nodes: int, root: Path) -> None:
    """Write a random graph in two partitions."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(num_nodes, (2, DEGREE * num_nodes), generator=generator)
    rows = torch.rand(num_nodes, WIDTH, generator=generator)
    partition_graph(Data(x=rows, edge_index=edges), SERVERS, root, progress=False)


class Partition:
    """Opens the partition of a server: called in its process."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, rank: int, servers: int) -> DistDataset:
        """Return it."""
        return DistDataset.load(self._root, rank)


def take(info: Any, job: Job, batch_size: int, folder: Path) -> None:
    """Be a job: take batches until the folder says that it is enough; write down how many when."""
    torch.set_num_threads(1)
    os.environ["RANK"] = "0"
    began = time.monotonic()
    init_compute_process(0, info, "gloo", job=job.name)
    dataset = RemoteDistDataset(info, 0)
    counts, lock = [0], threading.Lock()
    nodes = dataset.fetch_node_ids()
    first = folder / f"{job.name}.first"

    def run(number: int) -> None:
        with DistNeighborLoader(
            dataset, [10, 5], nodes, num_workers=job.workers, batch_size=batch_size, seed=number,
            shuffle=job.shuffle, channel_size="200MB",
        ) as loader:  # fmt: skip
            while True:
                for batch in loader:
                    with lock:
                        counts[0] += batch.batch_size
                        if not first.exists():
                            first.write_text(str(time.monotonic() - began))
                    if (folder / "over").exists():
                        return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(job.loaders)]
    for thread in threads:
        thread.start()
    at: dict[str, tuple[float, int]] = {}
    while any(thread.is_alive() for thread in threads):
        for moment in ("begin", "over"):
            if moment not in at and (folder / moment).exists():
                at[moment] = time.monotonic(), counts[0]
        time.sleep(0.005)
    (began, before), (ended, after) = at["begin"], at["over"]
    rate = (after - before) / (ended - began)
    (folder / f"{job.name}.rate").write_text(str(rate))
    shutdown_compute_process()


def measure(
    started: Processes, info: Any, jobs: Sequence[Job], batch_size: int, seconds: float,
    folder: Path,
) -> dict[str, Any]:  # fmt: skip
    """Let jobs run at once, the later ones once the first has batches; return rates and starts."""
    folder.mkdir()

    def begin(job: Job) -> Any:
        own = replace(info, compute_cluster_master_port=free_port())
        return started.start(take, own, job, batch_size, folder, name=job.name)

    def has_begun(job: Job) -> bool:
        return (folder / f"{job.name}.first").exists()

    processes = [begin(jobs[0])]
    wait_until(lambda: has_begun(jobs[0]), "the first job has a batch", 300.0)
    processes += [begin(job) for job in jobs[1:]]
    wait_until(lambda: all(map(has_begun, jobs)), "all jobs have batches", 300.0)
    time.sleep(2.0)  # what was ready by then is taken
    (folder / "begin").touch()
    time.sleep(seconds)
    (folder / "over").touch()
    started.join(processes, 300.0)
    rates = {job.name: float((folder / f"{job.name}.rate").read_text()) for job in jobs}
    firsts = {job.name: float((folder / f"{job.name}.first").read_text()) for job in jobs}
    return {"seeds_per_s": rates, "first_batch_s": firsts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    parser.add_argument("--loaders", type=int, default=10, help="of the job in the case `many`")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = {
        "alone": [Job("alone", workers=3)],
        "three": [Job("train 1"), Job("train 2"), Job("infer", shuffle=False)],
        "equal": [Job("train 1"), Job("train 2")],
        "many": [Job("train"), Job("infer", loaders=args.loaders, shuffle=False)],
    }
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as name:
        folder = Path(name)
        (folder / "notes").mkdir()
        write_graph(args.nodes, folder / "graph")
        info = store_info(SERVERS, 1)
        with running_processes(folder / "notes") as started:
            for rank in range(SERVERS):
                started.start(serve, info, rank, Partition(folder / "graph"), None)
            for number in range(args.rounds):
                results = {}
                for case, jobs in cases.items():
                    results[case] = measure(
                        started, info, jobs, args.batch_size, args.seconds,
                        folder / f"{case} {number}",
                    )  # fmt: skip
                    print(json.dumps({"case": case, "load": os.getloadavg()[0], **results[case]}))
                rates = {case: result["seeds_per_s"] for case, result in results.items()}
                together = sum(rates["three"].values()) / rates["alone"]["alone"]
                print(f"three jobs together / one alone: {together:.2f} (bar: 0.9)")
                for case in ("equal", "many"):
                    own = [*rates[case].values()]
                    print(f"share of the first job, {case}: {own[0] / sum(own):.0%}")
                second = results["equal"]["first_batch_s"]["train 2"]
                print(f"first batch of the second job: {second:.1f} s (bar: 3)", flush=True)


if __name__ == "__main__":
    main()
