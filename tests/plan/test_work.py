"""Bytes, CPU seconds and limits, by hand."""

from dataclasses import replace

import pytest
from jobs_by_hand import COSTS, JOB

from gigl_loader.plan.model import estimate
from gigl_loader.plan.work import throughput, together


def test_the_link_of_two_machines_by_hand() -> None:
    plan = estimate(replace(JOB, machines=2, link_gbit=1, workers=8), COSTS)
    remote = plan.batch.nodes * 0.5 / 1000
    assert plan.wire["rows between partitions"] == pytest.approx(remote * (400 + 4))
    assert plan.cpu["asking for rows"] == pytest.approx(3e-6 + remote * (3e-7 + 400e-9))
    assert plan.cpu["packets"] == pytest.approx(sum(plan.wire.values()) / 1e9)
    asked = 2e-3 + plan.batch.edges * 0.5 * 2e-7
    assert plan.cpu["asking for neighbours"] == pytest.approx(asked / 1000)
    assert plan.bottleneck == "links"
    assert plan.bounds["links"] == pytest.approx(2 * 0.9e9 / 8 / sum(plan.wire.values()))
    assert 0.95 * plan.bounds["links"] < plan.seeds_per_second <= plan.bounds["links"]
    assert "a cache of 20% of the remote rows" in plan.changes
    assert list(plan.changes.values()) == sorted(plan.changes.values(), reverse=True)


def test_limits_that_are_alike_leave_less_than_each() -> None:
    bounds = {"cores": 100.0, "links": 100.0, "the model's step": 1e3}
    assert together(JOB, bounds) == pytest.approx(100 * 4 / 5)  # four batches are under way
    assert together(replace(JOB, workers=3), bounds) == pytest.approx(100 * 12 / 13)
    assert together(JOB, {**bounds, "the model's step": 50.0}) == 50
    assert together(JOB, {"cores": 100.0}) == pytest.approx(100)
    # one batch at a time, then one that meets it
    first = [0.01 / 0.0125, 0.0025 / 0.0125]
    by_hand = 2 / (0.01 * (1 + first[0]) + 0.0025 * (1 + first[1]))
    found = throughput([0.01, 0.0025], 2)
    assert found == pytest.approx(by_hand)


def test_rows_leave_a_graph_store_once() -> None:
    store = replace(JOB, machines=2, deployment="graph-store", servers=2)
    plan, cached = estimate(store, COSTS), estimate(replace(store, cache=0.2), COSTS)
    rows = plan.batch.nodes * (400 + 4) / 1000
    assert plan.wire["rows of batches"] == pytest.approx(rows)
    assert cached.wire["rows of batches"] == pytest.approx(rows * (1 - cached.batch.hit_rate))
    assert "rows between partitions" not in plan.wire
    assert cached.cpu["keeping rows"] > 0


def test_encryption_is_counted_apart_at_both_ends() -> None:
    job = replace(JOB, machines=2)
    store = replace(job, deployment="graph-store", servers=2)
    for one in (job, store):
        plain, encrypted = estimate(one, COSTS), estimate(replace(one, encrypted=True), COSTS)
        apart = {name: value for name, value in encrypted.cpu.items() if "encrypt" in name}
        assert {name: encrypted.cpu[name] for name in plain.cpu} == plain.cpu
        assert set(encrypted.cpu) == set(plain.cpu) | set(apart)
        assert sum(apart.values()) == pytest.approx(2 * 1.5e-9 * sum(plain.wire.values()))
