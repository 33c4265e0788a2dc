"""Batches of a storage server on this machine: read where they lie, and never written over."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gigl_loader import RemoteDistDataset
from gigl_loader.graph_store import DistServer
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.testing import batch_tensors, wait_until
from tests.graph_store.store_cluster import compute, info_of, processes, serve
from tests.support.glt import NodeSamplerInput


def _client(info, rank: int, folder: Path) -> None:
    """Rank 0 keeps batches, and leaves; rank 1 goes on with the workers that both shared."""
    remote = RemoteDistDataset(info, rank)
    nodes, schema = remote.fetch_node_ids(), remote.fetch_schema()
    options = BaseDistLoader.create_graph_store_worker_options(
        dataset=remote,
        compute_rank=rank,
        worker_key="both",
        num_workers=1,
        worker_concurrency=2,
        channel_size="64MB",
        prefetch_size=3,
    )
    loader = BaseDistLoader(
        remote,
        [NodeSamplerInput(nodes[0], "default_homogeneous_node_type")],
        schema,
        options,
        BaseDistLoader.create_sampling_config([3, 2], schema, 1, seed=7),
        torch.device("cpu"),
        BaseDistLoader.resolve_runtime(),
        DistServer.create_sampling_producer,
    )
    if rank == 0:
        kept = list(loader)
        crossed = loader.stats()["network_bytes"]
        assert not any(crossed.values()), "batches are read where they lie: this test is about that"
        copies = [{k: _copy(v) for k, v in batch_tensors(b).items()} for b in kept]
        loader.shutdown()
        globals()["_kept"] = (kept, copies, folder)
        dist.barrier()
        return
    first = list(loader)
    dist.barrier()
    wait_until(lambda: (folder / "left").exists(), "rank 0 has left")
    for _ in range(6):  # written into whatever slots are free by now
        assert len(list(loader)) == len(first)
    (folder / "written").touch()
    loader.shutdown()


def _copy(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def _keep_and_leave(info, rank: int, folder: Path) -> None:
    compute(info, rank, _client, folder)
    if rank == 0:  # the links are closed
        kept, copies, _ = globals()["_kept"]
        (folder / "left").touch()
        wait_until(lambda: (folder / "written").exists(), "rank 1 has read more epochs")
        for batch, copy in zip(kept, copies, strict=True):
            for name, value in batch_tensors(batch).items():
                assert not isinstance(value, torch.Tensor) or torch.equal(value, copy[name]), name


@pytest.mark.multiprocess
def test_what_a_client_keeps_stays_right_after_it_has_left(tmp_path: Path) -> None:
    info = info_of(1, 2)
    with processes(tmp_path) as started:
        roles = [started.start(serve, info, 0)]
        roles += [started.start(_keep_and_leave, info, rank, tmp_path) for rank in range(2)]
        started.join(roles)
