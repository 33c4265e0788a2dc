"""A rank that cannot build its loader says so to the others, which would wait for it."""

from pathlib import Path

import pytest

from gigl_loader.testing import run_cluster, run_ranks
from tests.loader import told_jobs, world_jobs

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize(
    ("job", "world"),
    [
        ("told_once", 3),
        ("colocated", 2),
        ("of_the_base", 2),
        ("uneven", 2),
        pytest.param("others_never_come", 2, marks=pytest.mark.longest),
    ],
)
def test_ranks(job: str, world: int, tmp_path: Path) -> None:
    # The deadline of the group is that of the test: nobody may wait for it.
    run_ranks(getattr(told_jobs, job), world_size=world, tmp_path=tmp_path, timeout=300)


def test_a_graph_store(tmp_path: Path) -> None:
    run_cluster(told_jobs.store, dataset=world_jobs.partition, tmp_path=tmp_path)
