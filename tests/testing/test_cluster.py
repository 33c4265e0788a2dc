import time
from pathlib import Path

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.testing import TinyGraph, run_cluster
from gigl_loader.testing._processes import running_processes

pytestmark = pytest.mark.multiprocess


def _partition(rank: int, servers: int) -> DistDataset:
    return TinyGraph.random(20, 60, seed=2).partitions(servers)[rank]


def _count_nodes(info: GraphStoreInfo, rank: int, expected: int) -> None:
    remote = RemoteDistDataset(info, rank)
    with DistNeighborLoader(remote, [2], remote.fetch_node_ids(), batch_size=4) as loader:
        assert sorted(torch.cat([batch.batch for batch in loader]).tolist()) == [*range(expected)]


def test_each_compute_process_runs_the_function(tmp_path: Path) -> None:
    run_cluster(_count_nodes, 20, dataset=_partition, tmp_path=tmp_path, servers=1, clients=1)


def test_what_a_compute_process_raises_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"exit code 1\n--- compute .*(?s:.*)== \[\*range"):
        run_cluster(_count_nodes, 21, dataset=_partition, tmp_path=tmp_path, servers=1, clients=1)


def test_processes_that_do_not_end_are_ended(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"still running after 0\.1 s"),
        running_processes(tmp_path) as started,
    ):
        started.join([started.start(time.sleep, 600)], 0.1)
    assert not started.all[0].is_alive()
