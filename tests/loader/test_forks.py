"""Forks in user code: nothing of the parent's is released by the end of a child, and none hangs."""

from pathlib import Path

import pytest

from gigl_loader.testing import run_cluster, run_ranks
from tests.loader import fork_jobs, world_jobs

pytestmark = pytest.mark.multiprocess


def test_of_a_training_process(tmp_path: Path) -> None:
    run_ranks(fork_jobs.colocated, world_size=2, tmp_path=tmp_path, timeout=300)


def test_of_a_compute_process(tmp_path: Path) -> None:
    run_cluster(fork_jobs.store, dataset=world_jobs.partition, tmp_path=tmp_path)
