"""Contestant: gigl_loader's graph store; with ``mode="startup"``, how long it takes to come up."""

import os
import time
from typing import Any

import _store_job
import numpy as np
import torch
from _store_job import HOST, _job
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.graph_store import (
    init_compute_process,
    init_storage_process,
    shutdown_compute_process,
)


def _info(job: _job.Job, servers: int) -> GraphStoreInfo:
    clients = job.world_size - servers
    return GraphStoreInfo(servers, 1, clients, HOST, HOST, HOST, 0, 0, job.port, job.rpc_port, 0)


def _serve(job: _job.Job, servers: int) -> None:
    arrays = job.graph
    nodes = arrays.indptr.size - 1
    target = np.repeat(np.arange(nodes), np.diff(arrays.indptr))
    edge_index = torch.from_numpy(np.stack([arrays.indices, target]))
    data = Data(x=torch.from_numpy(arrays.x), edge_index=edge_index, num_nodes=nodes)
    book = torch.arange(nodes) * servers // nodes
    dataset = DistDataset.from_pyg(
        data, partition_book=book, partition_idx=job.rank, num_partitions=servers
    )
    del data, edge_index, target
    with init_storage_process(job.rank, _info(job, servers), dataset, num_jobs=1) as server:
        server.wait()


def _compute(job: _job.Job, servers: int) -> dict[str, Any]:
    os.environ["RANK"] = "0"
    info = _info(job, servers)
    local_rank = job.rank - servers
    init_compute_process(local_rank, info, "gloo")
    remote = RemoteDistDataset(info, local_rank)
    begun = time.perf_counter()
    if job.mode == "startup":
        seeds = remote.fetch_node_ids(local_rank, job.world_size - servers)
    else:
        seeds = dict(enumerate(_store_job.client_seeds(job)))
    with DistNeighborLoader(
        remote,
        job.fanout,
        seeds,
        num_workers=job.num_workers,
        batch_size=job.batch_size,
        worker_concurrency=4,
        seed=1,
        replace=job.replace,
    ) as loader:
        if job.mode == "startup":
            next(iter(loader))
            result = {**_store_job.NOTHING, "seconds": time.perf_counter() - begun}
        else:
            result = _store_job.measure(((data.x, data.edge_index) for data in loader), job)
    shutdown_compute_process()
    return result


def run(job: _job.Job) -> dict[str, Any]:
    """Be a server or a compute process; ``epochs`` says how many ranks are servers."""
    if job.rank < job.epochs:
        _serve(job, job.epochs)
        return dict(_store_job.NOTHING)
    return _compute(job, job.epochs)


if __name__ == "__main__":
    _job.report(run)
