"""One process is a job without a launcher: a notebook, a shell, a script."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.errors import UsageError
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import storage
from tests.support.scripts import run_python

OTHER = """
import sys
from gigl_loader import GraphStoreInfo, RemoteDistDataset
from gigl_loader.graph_store import init_compute_process, shutdown_compute_process
info = GraphStoreInfo.from_env(sys.argv[1], num_storage_nodes=2)
init_compute_process(0, info, job="other notebook")
print(sum(len(ids) for ids in RemoteDistDataset(info, 0).fetch_node_ids().values()))
shutdown_compute_process()
"""


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Endpoint]]:
    """Two storage servers; nothing in the environment is a launcher's."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with storage(2) as serving:
        yield serving
        shutdown_compute_process()


def _info(endpoints: list[Endpoint], **figures: Any) -> GraphStoreInfo:
    host, port = endpoints[0].address
    return GraphStoreInfo.from_env(f"{host}:{port}", num_storage_nodes=2, **figures)


def test_two_notebooks_of_a_machine_are_jobs(endpoints: list[Endpoint]) -> None:
    info = _info(endpoints)
    init_compute_process(0, info, job="notebook")
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    dataset = RemoteDistDataset(info, 0)
    seeds = dataset.fetch_node_ids()
    with DistNeighborLoader(dataset, [2], seeds, num_workers=1, batch_size=8) as loader:
        came = torch.cat([batch.batch for batch in loader])
        host, port = endpoints[0].address
        other = run_python("-c", OTHER, f"{host}:{port}")  # meets on no port of the first one
        assert other.returncode == 0, other.stderr
        assert [*endpoints[0].server.status()["jobs"]] == ["notebook"]
    assert came.sort().values.tolist() == torch.cat([*seeds.values()]).sort().values.tolist()
    assert len(came) == int(other.stdout) > 0
    shutdown_compute_process()
    assert not dist.is_initialized()
    wait_until(lambda: endpoints[0].jobs_served == 2, "both jobs are over")


def test_several_processes_need_a_launcher(endpoints: list[Endpoint]) -> None:
    """Without one, each of two machines would train alone, in silence."""
    for figures in ({"num_compute_nodes": 2}, {"num_processes_per_compute": 2}):
        with pytest.raises(UsageError, match="start the compute processes with torchrun"):
            init_compute_process(0, _info(endpoints, **figures), job="notebook")
