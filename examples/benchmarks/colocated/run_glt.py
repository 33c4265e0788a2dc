"""Contestant: graphlearn-torch's own ``DistNeighborLoader`` with sampling subprocesses."""

import importlib.metadata
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import _job
import torch
import torch.distributed as dist

try:
    import torch_sparse  # noqa: F401
except ImportError:  # only its COO conversion uses it, and this graph is CSC already
    sys.modules["torch_sparse"] = types.ModuleType("torch_sparse")


class _Device:
    """``torch.device`` that takes a bare index on a machine without a GPU, as GLT's defaults do."""

    def __new__(cls, *args: Any) -> Any:
        return _real_device("cuda", *args) if isinstance(args[0], int) else _real_device(*args)


_real_device = torch.device
torch.device = _Device  # type: ignore[misc, assignment]  # for the import alone
try:
    import graphlearn_torch as glt
finally:
    torch.device = _real_device  # type: ignore[misc]  # for the import alone


def _dataset(job: _job.Job) -> glt.distributed.DistDataset:
    graph = job.graph
    first, last = _job.owned_block(job)
    indptr = torch.from_numpy(graph.indptr[:])
    indptr = indptr.clamp(int(indptr[first]), int(indptr[last])) - indptr[first]
    indices = torch.from_numpy(graph.indices[graph.indptr[first] : graph.indptr[last]])
    topology = glt.data.Topology((indices, indptr), input_layout="CSC", layout="CSC")
    local = torch.full((indptr.numel() - 1,), -1)
    local[first:last] = torch.arange(last - first)
    features = glt.data.Feature(
        torch.from_numpy(graph.x[first:last]),
        id2index=local if job.world_size > 1 else None,
        with_gpu=False,
    )
    node_book = _job.owners(job)
    return glt.distributed.DistDataset(
        num_partitions=job.world_size,
        partition_idx=job.rank,
        graph_partition=glt.data.Graph(topology, "CPU"),
        node_feature_partition=features,
        node_pb=node_book,
        edge_pb=torch.zeros(graph.indices.size, dtype=torch.uint8),
        edge_dir="in",
    )


def _batches(loader: Any) -> Iterator[_job.Batch]:
    for data in loader:
        yield [data.x], [data.edge_index]


def run(job: _job.Job) -> dict[str, Any]:
    """Measure as GLT documents its use: a worker context, subprocesses, a shared-memory channel."""
    address = f"tcp://127.0.0.1:{job.port}"
    dist.init_process_group("gloo", init_method=address, rank=job.rank, world_size=job.world_size)
    glt.distributed.init_worker_group(job.world_size, job.rank, "benchmark")
    dataset = _dataset(job)
    begun = time.perf_counter()
    loader = glt.distributed.DistNeighborLoader(
        dataset,
        job.fanout,
        _job.seeds(job),
        batch_size=job.batch_size,
        edge_dir="in",
        collect_features=True,
        to_device=torch.device("cpu"),
        random_seed=job.seed,
        worker_options=glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=job.num_workers,
            worker_devices=[torch.device("cpu")] * job.num_workers,
            worker_concurrency=4,
            master_addr="127.0.0.1",
            master_port=job.rpc_port,
            channel_size="1GB",
        ),
    )
    versions = {"graphlearn_torch": importlib.metadata.version("graphlearn_torch")}
    if job.mode == "startup":
        next(iter(loader))
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "versions": versions}
    result = _job.measure(_batches(loader), job)
    dist.barrier()  # a rank that leaves early takes away what the others still ask it for
    loader.shutdown()
    return {**result, "versions": versions}


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")  # GLT's own objects assume it
    _job.report(run)
