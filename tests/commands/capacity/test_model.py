"""Plans of jobs, by hand and by what must hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.commands.capacity.model import Job, estimate, throughput, together
from tests.commands.capacity.jobs_by_hand import COSTS, JOB


def test_one_machine_by_hand() -> None:
    plan = estimate(JOB, COSTS)
    a_seed = (1e-3 + 1e-7 * plan.batch.edges) / 1000
    assert plan.cpu["sampling"] == pytest.approx(a_seed)
    assert plan.bottleneck == "workers"
    assert plan.seeds_per_second == pytest.approx(4 / a_seed)  # it has as many threads
    assert sum(plan.network.values()) == 0
    assert plan.memory["rows and labels"] == 1e6 * 408
    assert plan.memory["edges"] == 8e6 + 8e7
    assert plan.connections == {"training process": 0, "worker": 0}


jobs = st.builds(
    Job,
    nodes=st.floats(1e4, 1e10),
    edges=st.floats(1e5, 1e11),
    dim=st.integers(0, 1000),
    num_neighbors=st.lists(st.integers(0, 30), min_size=1, max_size=3).map(tuple),
    batch_size=st.integers(1, 10_000),
    machines=st.integers(1, 300),
    ranks_per_machine=st.integers(1, 8),
    num_workers=st.integers(1, 8),
    cores=st.integers(1, 128),
    link_gbit=st.floats(0.1, 400),
    step_ms=st.just(0.0) | st.floats(0.01, 1000),
    remote_cache=st.floats(0, 1),
    degree_distribution=st.sampled_from(["uniform", "power-law"]),
    encrypted=st.booleans(),
)
stores = jobs.map(lambda job: replace(job, deployment="graph-store", num_servers=2))


@given(st.one_of(jobs, stores))
def test_more_of_anything_never_gives_less(job: Job) -> None:
    plan = estimate(job, COSTS)
    assert 0 < plan.seeds_per_second < float("inf")
    assert all(
        value >= 0 for part in (plan.memory, plan.network, plan.cpu) for value in part.values()
    )
    for more in (
        {"num_workers": job.num_workers + 1},
        {"cores": job.cores * 2},
        {"link_gbit": 1000.0},
        {"remote_cache": 1.0},
        {"encrypted": False},
        {"step_ms": 0.0},
    ):
        found = estimate(replace(job, **more), COSTS).seeds_per_second
        assert found >= plan.seeds_per_second * (1 - 1e-9), more
    assert all(gain > 1 for gain in plan.changes.values())


def test_changes_that_do_not_fit_are_not_proposed() -> None:
    job = replace(JOB, machines=2, num_workers=8, link_gbit=1)
    cached = "a cache of 20% of the remote rows"
    memory_gb = estimate(job, COSTS).total_memory / 1e9 + 0.01
    assert cached in estimate(job, COSTS).changes
    assert cached not in estimate(replace(job, memory_gb=memory_gb), COSTS).changes
    assert "links 2.5 times as fast" in estimate(replace(job, memory_gb=memory_gb), COSTS).changes


def test_a_machine_that_does_not_hold_its_part() -> None:
    assert estimate(replace(JOB, memory_gb=0.5), COSTS).fits is False
    assert estimate(replace(JOB, memory_gb=50), COSTS).fits is True


def test_machines_that_the_nodes_do_not_fill_are_not_proposed() -> None:
    tiny = replace(JOB, nodes=3, edges=9, batch_size=1, machines=2)
    store = replace(tiny, deployment="graph-store", num_servers=2)
    for job, wrong in (
        (tiny, "twice the training machines"),
        (store, "twice the storage machines"),
    ):
        plan = estimate(job, COSTS)
        assert plan.seeds_per_second > 0
        assert wrong not in plan.changes


def test_the_link_of_two_machines_by_hand() -> None:
    plan = estimate(replace(JOB, machines=2, link_gbit=1, num_workers=8), COSTS)
    remote = plan.batch.nodes * 0.5 / 1000
    assert plan.network["rows between partitions"] == pytest.approx(remote * (400 + 4))
    assert plan.cpu["requesting rows"] == pytest.approx(3e-6 + remote * (3e-7 + 400e-9))
    assert plan.cpu["packets"] == pytest.approx(sum(plan.network.values()) / 1e9)
    asked = 2e-3 + plan.batch.edges * 0.5 * 2e-7
    assert plan.cpu["requesting neighbours"] == pytest.approx(asked / 1000)
    assert plan.bottleneck == "links"
    assert plan.bounds["links"] == pytest.approx(2 * 0.9e9 / 8 / sum(plan.network.values()))
    assert 0.95 * plan.bounds["links"] < plan.seeds_per_second <= plan.bounds["links"]
    assert "a cache of 20% of the remote rows" in plan.changes
    assert list(plan.changes.values()) == sorted(plan.changes.values(), reverse=True)


def test_with_all_edges_on_each_machine_only_rows_travel_in_one_round() -> None:
    two = replace(JOB, machines=2, link_gbit=1, num_workers=8)
    store = replace(two, deployment="graph-store", num_servers=2)
    # the second hop, the batch of a server, rows: one after another
    for job, before, after in ((two, 1 + 1, 1), (store, 1 + 1 + 1, 1 + 1)):
        own, every = estimate(job, COSTS), estimate(replace(job, all_edges=True), COSTS)
        assert (own.job.round_trips, every.job.round_trips) == (before, after)
        assert (
            every.network["requests"]
            == every.network["neighbours"]
            == 0
            < sum(own.network[name] for name in ("requests", "neighbours"))
        )
        of_rows = {name: value for name, value in own.network.items() if "rows" in name}
        assert of_rows.items() <= every.network.items()
        assert every.cpu["requesting neighbours"] == 0 < own.cpu["requesting neighbours"]
        name = "the edges of all partitions on each machine"
        gain = every.seeds_per_second / own.seeds_per_second
        assert own.changes.get(name, 1.0) == pytest.approx(gain, abs=0.01)
        assert name not in every.changes
    assert JOB.round_trips == 0
    assert replace(two, dim=0).round_trips == 1
    assert "the edges of all partitions on each machine" not in estimate(JOB, COSTS).changes


def test_limits_that_are_alike_leave_less_than_each() -> None:
    bounds = {"cores": 100.0, "links": 100.0, "the model's step": 1e3}
    assert together(JOB, bounds) == pytest.approx(100 * 4 / 5)  # four batches are under way
    assert together(replace(JOB, num_workers=3), bounds) == pytest.approx(100 * 12 / 13)
    assert together(JOB, {**bounds, "the model's step": 50.0}) == 50
    assert together(JOB, {"cores": 100.0}) == pytest.approx(100)
    # one batch at a time, then one that meets it
    first = [0.01 / 0.0125, 0.0025 / 0.0125]
    by_hand = 2 / (0.01 * (1 + first[0]) + 0.0025 * (1 + first[1]))
    found = throughput([0.01, 0.0025], 2)
    assert found == pytest.approx(by_hand)


def test_rows_leave_a_graph_store_once() -> None:
    store = replace(JOB, machines=2, deployment="graph-store", num_servers=2)
    plan, cached = estimate(store, COSTS), estimate(replace(store, remote_cache=0.2), COSTS)
    rows = plan.batch.nodes * (400 + 4) / 1000
    assert plan.network["rows of batches"] == pytest.approx(rows)
    assert cached.network["rows of batches"] == pytest.approx(rows * (1 - cached.batch.hit_rate))
    assert "rows between partitions" not in plan.network
    assert cached.cpu["keeping rows"] > 0


def test_encryption_is_counted_apart_at_both_ends() -> None:
    job = replace(JOB, machines=2)
    store = replace(job, deployment="graph-store", num_servers=2)
    for one in (job, store):
        plain, encrypted = estimate(one, COSTS), estimate(replace(one, encrypted=True), COSTS)
        apart = {name: value for name, value in encrypted.cpu.items() if "encrypt" in name}
        assert {name: encrypted.cpu[name] for name in plain.cpu} == plain.cpu
        assert set(encrypted.cpu) == set(plain.cpu) | set(apart)
        assert sum(apart.values()) == pytest.approx(2 * 1.5e-9 * sum(plain.network.values()))
