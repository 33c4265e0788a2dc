"""Contestant: gigl_loader, colocated mode. Its modes: throughput, startup, memory."""

import importlib.metadata
import time
from typing import Any

import _job
import _memory
import _tasks
import torch.distributed as dist

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
)


def _dataset(job: _job.Job) -> DistDataset:
    data = _tasks.data(job)
    more: dict[str, Any] = {}
    if job.task == "labels":
        more["supervision"] = {DEFAULT_HOMOGENEOUS_EDGE_TYPE: (_tasks.positives(job), None)}
    if job.world_size == 1:
        return DistDataset.from_pyg(data, **more)
    return DistDataset.from_pyg(data, partition_book=_job.owners(job), partition_idx=job.rank)


def _loader(dataset: DistDataset, job: _job.Job) -> Any:
    how: dict[str, Any] = {
        "num_workers": job.num_workers,
        "batch_size": job.batch_size,
        "seed": job.seed,
        "replace": job.replace,
    }
    fanout = _tasks.fanout_of(job)
    if job.task == "links":
        links = _tasks.links(job)
        return DistLinkNeighborLoader(dataset, fanout, links, neg_sampling="binary", **how)
    if job.task == "typed":
        return DistNeighborLoader(dataset, fanout, ("type0", _tasks.typed_seeds(job)), **how)
    seeds = _job.seeds_of_all_ranks(job)  # the ranks of one machine each take their block of it
    if job.task == "labels":
        return DistABLPLoader(dataset, fanout, seeds, use_label_edge_index_output=True, **how)
    if job.task == "times":
        how |= {
            "input_time": _tasks.seed_times(job),
            "time_attr": "time",
            "temporal_strategy": job.temporal_strategy,
        }
    return DistNeighborLoader(dataset, fanout, seeds, **how, **_OPTIONS.get(job.task, {}))


_OPTIONS: dict[str, dict[str, Any]] = {
    "disjoint": {"disjoint": True},
    "weighted": {"with_weight": True},
    "labor": {"sampling_method": "labor"},
    "induced": {"subgraph_type": "induced"},
}
"""Options of a task, beside those of all."""


def _startup(dataset: DistDataset, job: _job.Job) -> dict[str, Any]:
    begun = time.perf_counter()
    with _loader(dataset, job) as loader:
        data = next(iter(loader))
        seconds = time.perf_counter() - begun
        assert data.batch_size == job.batch_size
    return {"seconds": seconds}


def _memory_over_epochs(dataset: DistDataset, job: _job.Job) -> dict[str, Any]:
    history = []
    with _loader(dataset, job) as loader:
        for epoch in range(job.epochs):
            _job.exactly(_tasks.batches(loader, job), job.warmup + job.batches)
            if epoch in (0, 4) or (epoch + 1) % 10 == 0:
                history.append({"epoch": epoch + 1, **_memory.of_children()})
    return {"history": history, "feature_bytes": int(job.graph.x.nbytes)}


def run(job: _job.Job) -> dict[str, Any]:
    """Load the graph, join a gloo group, do what ``job.mode`` says."""
    address = f"tcp://127.0.0.1:{job.port}"
    dist.init_process_group("gloo", init_method=address, rank=job.rank, world_size=job.world_size)
    dataset = _dataset(job)
    dist.barrier()
    if job.mode == "startup":
        result = _startup(dataset, job)
    elif job.mode == "memory":
        result = _memory_over_epochs(dataset, job)
    else:
        with _loader(dataset, job) as loader:
            result = _job.measure(_tasks.batches(loader, job), job)
    dist.destroy_process_group()
    names = ("gigl-loader", "torch_geometric", "numba")
    return {**result, "versions": {name: _version(name) for name in names}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "from the source tree"


if __name__ == "__main__":
    _job.report(run)
