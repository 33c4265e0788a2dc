"""Contestant: graphlearn-torch's own server-client mode, as its examples use it."""

import tempfile
from pathlib import Path
from typing import Any

import _store_job
import torch
from _store_job import HOST, SERVERS, _job
from run_glt import _dataset, glt


def _serve(job: _job.Job) -> None:
    glt.distributed.init_server(
        num_servers=SERVERS,
        server_rank=job.rank,
        dataset=_dataset(_store_job.partition(job, job.rank)),
        master_addr=HOST,
        master_port=job.rpc_port,
        num_clients=job.world_size - SERVERS,
    )
    glt.distributed.wait_and_shutdown_server()


def _compute(job: _job.Job, folder: Path) -> dict[str, Any]:
    client = job.rank - SERVERS
    clients = job.world_size - SERVERS
    glt.distributed.init_client(
        num_servers=SERVERS,
        num_clients=clients,
        client_rank=client,
        master_addr=HOST,
        master_port=job.rpc_port,
    )
    paths = []
    for server, seeds in enumerate(_store_job.client_seeds(job)):
        paths.append(str(folder / f"{client}-{server}.pt"))  # GLT reads seeds from files
        torch.save(seeds, paths[-1])
    loader = glt.distributed.DistNeighborLoader(
        None,
        job.fanout,
        paths,
        batch_size=job.batch_size,
        edge_dir="in",
        collect_features=True,
        to_device=torch.device("cpu"),
        random_seed=job.seed,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=list(range(SERVERS)),
            num_workers=job.num_workers,
            worker_devices=[torch.device("cpu")] * job.num_workers,
            worker_concurrency=4,
            master_addr=HOST,
            master_port=job.port + client,
            buffer_size="1GB",
            prefetch_size=4,
            worker_key=str(client),
        ),
    )
    result = _store_job.measure(((data.x, data.edge_index) for data in loader), job)
    loader.shutdown()
    glt.distributed.shutdown_client()
    return result


def run(job: _job.Job) -> dict[str, Any]:
    """Be a server or a compute process."""
    if job.rank < SERVERS:
        _serve(job)
        return dict(_store_job.NOTHING)
    with tempfile.TemporaryDirectory() as folder:
        return _compute(job, Path(folder))


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    _job.report(run)
