"""Several jobs at once on two storage servers: their rates together, their shares, their starts.

    python examples/benchmarks/graph_store/several_jobs.py --seconds 20

alone     one training job, and one `gigl-loader infer` of all nodes, each by itself
three     two training jobs, and one `gigl-loader infer` beside them
equal     two equal training jobs: the share of each
many      a training job with one loader beside a job with ``--loaders`` loaders: its share
starts    two jobs that start at the same time beside one that trains: their first batches

Rates of training jobs count from the moment when all of them have batches, until ``--seconds``
later; beside `infer`, while that runs. Its rate counts from its first line to its last.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, RemoteDistDataset, partition_graph
from gigl_loader.commands import infer
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process
from gigl_loader.runtime.transport import free_port
from gigl_loader.testing import wait_until
from gigl_loader.testing.local_processes import Processes, running_processes, serve, store_info

SERVERS = 2
DEGREE, WIDTH = 15, 100


@dataclass(frozen=True)
class Job:
    """A job of one compute process."""

    name: str
    workers: int = 1
    """On each server, of each loader."""
    loaders: int = 1


MODEL = {"in_channels": WIDTH, "hidden_channels": 64, "num_layers": 2, "out_channels": 64}
"""Of `infer`, a GraphSAGE."""


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
            dataset,
            [10, 5],
            nodes,
            num_workers=job.workers,
            batch_size=batch_size,
            seed=number,
            shuffle=True,
            channel_size="200MB",
        ) as loader:
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


def infer_all(info: Any, job_name: str, num_nodes: int, folder: Path) -> None:
    """Compute the embeddings of all nodes, as the command does; write down the nodes per second.

    Training jobs count meanwhile.
    """
    torch.set_num_threads(1)
    (folder / "begin").touch()
    began = time.monotonic()
    code = infer.main(
        [
            "--server",
            f"{info.storage_cluster_master_ip}:{info.rpc_master_port}",
            "--job",
            job_name,
            "--model",
            "torch_geometric.nn:GraphSAGE",
            "--model-options",
            json.dumps(MODEL),
            "--out",
            str(folder / "embeddings"),
            "--quiet",
        ]
    )
    assert code == 0
    (folder / f"{job_name}.rate").write_text(str(num_nodes / (time.monotonic() - began)))
    (folder / "over").touch()


@dataclass(frozen=True)
class Bench:
    """What all cases share.

    Args:
        started: Starts processes.
        info: The storage servers.
        num_nodes: Nodes of their graph.
        batch_size: Of training jobs.
        seconds: Of each case without `infer`.
        folder: For what jobs tell.
    """

    started: Processes
    info: Any
    num_nodes: int
    batch_size: int
    seconds: float
    folder: Path

    def measure(
        self, case: str, jobs: Sequence[Job], *, with_infer: bool = False
    ) -> dict[str, Any]:
        """Let jobs run at once, the later ones once the first has batches; return the figures."""
        folder = self.folder / case
        folder.mkdir()

        def begin(job: Job) -> Any:
            own = replace(self.info, compute_cluster_master_port=free_port())
            return self.started.start(take, own, job, self.batch_size, folder, name=job.name)

        def have_begun(some: Sequence[Job]) -> bool:
            return all((folder / f"{job.name}.first").exists() for job in some)

        processes = []
        for some in (jobs[:1], jobs[1:]):
            processes += [begin(job) for job in some]
            wait_until(partial(have_begun, some), "all have batches", 300.0)
        time.sleep(2.0 if jobs else 0.0)  # what was ready by then is taken
        names = [job.name for job in jobs]
        if with_infer:
            names.append("infer")
            all_nodes = self.started.start(
                infer_all, self.info, "infer", self.num_nodes, folder, name="infer"
            )
            self.started.join([all_nodes], 600.0)
        else:
            (folder / "begin").touch()
            time.sleep(self.seconds)
            (folder / "over").touch()
        self.started.join(processes, 300.0)
        rates = {name: float((folder / f"{name}.rate").read_text()) for name in names}
        firsts = {job.name: float((folder / f"{job.name}.first").read_text()) for job in jobs}
        print(
            json.dumps(
                {"case": case, "load": os.getloadavg()[0], "per_s": rates, "first_batch_s": firsts}
            ),
            flush=True,
        )
        return {"per_s": rates, "first_batch_s": firsts}


def run(bench: Bench, loaders: int) -> None:
    """Measure all cases, and compare them with the bars."""
    train, second, third = (Job(f"train {number}") for number in (1, 2, 3))
    alone = {
        **bench.measure("training alone", [train])["per_s"],
        **bench.measure("infer alone", [], with_infer=True)["per_s"],
    }
    three = bench.measure("three", [train, second], with_infer=True)["per_s"]
    shares = {
        name: rate / alone["infer" if name == "infer" else train.name]
        for name, rate in three.items()
    }
    for name, share in shares.items():
        print(f"{name}, beside the two others: {share:.0%} of its rate alone")
    print(f"sum of these: {sum(shares.values()):.2f} (bar: 0.9)")
    for case, other in (("equal", second), ("many", Job("ten", loaders=loaders))):
        result = bench.measure(case, [train, other])
        rates = result["per_s"]
        print(f"share of the first job, {case}: {rates[train.name] / sum(rates.values()):.0%}")
        if case == "equal":
            first_s = result["first_batch_s"][second.name]
            print(f"first batch of the second job: {first_s:.1f} s (bar: 3)")
    firsts = bench.measure("starts", [train, second, third])["first_batch_s"]
    latest = max(firsts[job.name] for job in (second, third))
    print(f"first batches of two jobs that start at once: {latest:.1f} s (bar: 3)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    parser.add_argument("--loaders", type=int, default=10, help="of the job in the case `many`")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as name:
        folder = Path(name)
        (folder / "notes").mkdir()
        write_graph(args.nodes, folder / "graph")
        info = store_info(SERVERS, 1)
        with running_processes(folder / "notes") as started:
            for rank in range(SERVERS):
                started.start(serve, info, rank, Partition(folder / "graph"), None)
            for number in range(args.rounds):
                told = folder / f"round {number}"
                told.mkdir()
                bench = Bench(started, info, args.nodes, args.batch_size, args.seconds, told)
                run(bench, args.loaders)


if __name__ == "__main__":
    main()
