"""Limits, memory and bytes of a job, by hand and by what must hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.plan.calibrate import non_negative
from gigl_loader.plan.costs import SHIPPED, Costs
from gigl_loader.plan.model import Job, estimate

COSTS = Costs(
    machine="test", date="2026-01-01", batch_s=1e-3, edge_s=1e-7, node_s=0.0, row_byte_s=0.0,
    plain_s_per_gb=0.5, tls_s_per_gb=2.0, process_bytes=1e9,
    worker_bytes=1e7, spread=0.1,
)  # fmt: skip
JOB = Job(nodes=1e6, edges=2e7, dim=100, fanouts=(15, 10), batch_size=1000, machines=1)


def test_one_machine_by_hand() -> None:
    plan = estimate(JOB, COSTS)
    a_seed = (1e-3 + 1e-7 * plan.batch.edges) / 1000
    assert plan.cpu["sampling"] == pytest.approx(a_seed)
    assert plan.bottleneck == "workers"
    assert plan.seeds_per_second == pytest.approx(1 / a_seed)
    assert sum(plan.wire.values()) == 0
    assert plan.memory["rows and labels"] == 1e6 * 408
    assert plan.memory["edges"] == 8e6 + 8e7
    assert plan.connections == 0


def test_the_link_of_two_machines_by_hand() -> None:
    plan = estimate(replace(JOB, machines=2, link_gbit=1, workers=8), COSTS)
    rows = plan.batch.nodes * 0.5 * (400 + 4) / 1000
    assert plan.wire["rows between partitions"] == pytest.approx(rows)
    assert plan.bottleneck == "links"
    assert plan.seeds_per_second == pytest.approx(2 * 0.9e9 / 8 / sum(plan.wire.values()))
    assert "a cache of 20% of the remote rows" in plan.changes
    assert list(plan.changes.values()) == sorted(plan.changes.values(), reverse=True)


jobs = st.builds(
    Job, nodes=st.floats(1e4, 1e10), edges=st.floats(1e5, 1e11), dim=st.integers(0, 1000),
    fanouts=st.lists(st.integers(0, 30), min_size=1, max_size=3).map(tuple),
    batch_size=st.integers(1, 10_000), machines=st.integers(1, 300),
    ranks_per_machine=st.integers(1, 8), workers=st.integers(1, 8), cores=st.integers(1, 128),
    link_gbit=st.floats(0.1, 400), step_ms=st.just(0.0) | st.floats(0.01, 1000),
    cache=st.floats(0, 1),
    law=st.sampled_from(["uniform", "power-law"]), encrypted=st.booleans(),
)  # fmt: skip
stores = jobs.map(lambda job: replace(job, deployment="graph-store", servers=2))


@given(st.one_of(jobs, stores))
def test_more_of_anything_never_gives_less(job: Job) -> None:
    plan = estimate(job, COSTS)
    assert 0 < plan.seeds_per_second < float("inf")
    assert all(value >= 0 for part in (plan.memory, plan.wire, plan.cpu) for value in part.values())
    for more in ({"workers": job.workers + 1}, {"cores": job.cores * 2}, {"link_gbit": 1000.0},
                 {"cache": 1.0}, {"encrypted": False}, {"step_ms": 0.0}):  # fmt: skip
        found = estimate(replace(job, **more), COSTS).seeds_per_second
        assert found >= plan.seeds_per_second * (1 - 1e-9), more
    assert all(gain > 1 for gain in plan.changes.values())


def test_a_machine_that_does_not_hold_its_part() -> None:
    assert estimate(replace(JOB, memory_gb=0.5), COSTS).fits is False
    assert estimate(replace(JOB, memory_gb=50), COSTS).fits is True


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"nodes": 0}, "nodes must be above 0"), ({"dtype": "int3"}, "dtype must be one of"),
     ({"servers": 2}, "servers must be"), ({"deployment": "graph-store"}, "servers must be"),
     ({"cache": 2.0}, "cache is a share"), ({"law": "zipf"}, "law must be"),
     ({"step_ms": -1.0}, "must not be negative"), ({"deployment": "cloud"}, "deployment must be")],
)  # fmt: skip
def test_jobs_that_cannot_be(wrong, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        replace(JOB, **wrong)


def test_costs_are_found_again_in_times_that_they_made() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    rows = rng.random((8, 4)) * [1, 1e5, 1e5, 1e7]
    costs = np.array([1e-3, 1e-7, 0.0, 2e-10])
    assert non_negative(rows, rows @ costs) == pytest.approx(costs, rel=1e-6, abs=1e-15)


def test_the_costs_that_come_with_the_package_are_read(tmp_path) -> None:
    costs = Costs.read(SHIPPED)
    assert costs.machine
    costs.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == costs
    (tmp_path / "costs.json").write_text("{}")
    with pytest.raises(ConfigError, match="must have the keys"):
        Costs.read(tmp_path / "costs.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        Costs.read(tmp_path / "none.json")
