"""Jobs that can be, and the same on other machines."""

from dataclasses import replace
from typing import Any

import pytest

from gigl_loader.errors import ConfigError
from tests.commands.capacity.jobs_by_hand import JOB


def test_parts_that_are_better_than_drawn_stay_so_on_other_machines() -> None:
    job = replace(JOB, machines=2, remote_share=0.1, resident=(("rows", 60.0), ("books", 9.0)))
    other = job.with_machines(6, 0)
    assert other.remote_share == pytest.approx(0.1 * (5 / 6) / (1 / 2))
    assert other.resident == (("rows", 20.0), ("books", 9.0))
    assert job.with_machines(1, 0).share_elsewhere == 0


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"nodes": 0}, "nodes must be above 0"),
        ({"dtype": "int3"}, "dtype must be one of"),
        ({"num_servers": 2}, "num_servers must be"),
        ({"deployment": "graph-store"}, "num_servers must be"),
        ({"remote_cache": 2.0}, "remote_cache is a share"),
        ({"degree_distribution": "zipf"}, "degree_distribution must be"),
        ({"step_ms": -1.0}, "must not be negative"),
        ({"deployment": "cloud"}, "deployment must be"),
    ],
)
def test_jobs_that_cannot_be(wrong, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        replace(JOB, **wrong)


def test_shares_and_bytes_of_a_job() -> None:
    assert (JOB.parts, JOB.is_store, JOB.share_elsewhere) == (1, False, 0.0)
    assert replace(JOB, machines=4).share_elsewhere == 0.75
    assert replace(JOB, machines=4, remote_share=0.1).share_elsewhere == 0.1
    store = replace(JOB, machines=3, deployment="graph-store", num_servers=2)
    assert (store.parts, store.is_store, store.share_elsewhere) == (2, True, 0.5)
    assert [replace(JOB, dtype=name).row_bytes for name in ("float16", "int8")] == [200, 100]


def test_a_job_whose_degrees_follow_a_law() -> None:
    for law in ("uniform", "power-law"):
        degrees = replace(JOB, degree_distribution=law).degrees()
        assert degrees.nodes * (degrees.share @ degrees.degree) == pytest.approx(2e7, rel=1e-3)
    assert replace(JOB, degree_distribution="power-law").degrees().degree.max() > 1000 > 20


@pytest.mark.parametrize("name", ["nodes", "edges", "link_gbit", "disk_gb_per_s", "memory_gb"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_figures_are_finite_and_above_zero(name: str, value: float) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be above 0, got"):
        replace(JOB, **changed)
