import os
import time
from pathlib import Path

import psutil
import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.testing import TinyGraph, run_cluster, run_ranks, wait_until

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


def _note_and_sleep(rank: int, size: int, note: Path) -> None:
    (note / str(os.getpid())).touch()
    time.sleep(600)


def test_processes_that_do_not_end_are_ended(tmp_path: Path) -> None:
    (note := tmp_path / "note").mkdir()
    (notes := tmp_path / "notes").mkdir()
    with pytest.raises(AssertionError, match=r"still running after 3 s: rank 0"):
        run_ranks(_note_and_sleep, note, world_size=1, tmp_path=notes, timeout=3.0)
    pids = [int(path.name) for path in note.iterdir()]
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), "it has ended")
