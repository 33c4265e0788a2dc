"""Limits, memory and bytes of a job, by hand and by what must hold."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.plan.calibrate import non_negative
from gigl_loader.plan.costs import SHIPPED, Costs
from gigl_loader.plan.memory import cache_bytes
from gigl_loader.plan.model import Job, estimate
from gigl_loader.plan.work import throughput, together
from gigl_loader.sampler.cache_tables import segment_bytes, tables_of

COSTS = Costs(
    machine="test", date="2026-01-01", batch_s=1e-3, edge_s=1e-7, node_s=0.0, row_byte_s=0.0,
    asked_batch_s=2e-3, asked_edge_s=2e-7, asked_rows_s=3e-3, asked_row_s=3e-7, asked_byte_s=1e-9,
    cached_batch_s=0.0, cached_row_s=1e-7, cached_byte_s=1e-10,
    kept_batch_s=0.0, kept_row_s=5e-8, kept_byte_s=1e-10,
    sent_batch_s=1e-3, sent_edge_s=1e-8, sent_rows_s=2e-3, sent_row_s=1e-7, sent_byte_s=1e-9,
    received_batch_s=1e-3, received_edge_s=1e-8, received_rows_s=2e-3, received_row_s=1e-7,
    received_byte_s=1e-9,
    plain_s_per_gb=0.5, tls_s_per_gb=2.0, plain_gb_per_s=2.0, tls_gb_per_s=0.5, link_s_per_gb=1.0,
    link_gbit=0.0, process_bytes=3e8, supervisor_bytes=5e7, worker_bytes=1e7, library_bytes=2e8,
    process_start_s=4.0, supervisor_start_s=1.0, worker_start_s=0.1, load_s_per_gb=0.5, spread=0.1,
)  # fmt: skip
JOB = Job(nodes=1e6, edges=2e7, dim=100, fanouts=(15, 10), batch_size=1000, machines=1)


def test_one_machine_by_hand() -> None:
    plan = estimate(JOB, COSTS)
    a_seed = (1e-3 + 1e-7 * plan.batch.edges) / 1000
    assert plan.cpu["sampling"] == pytest.approx(a_seed)
    assert plan.bottleneck == "workers"
    assert plan.seeds_per_second == pytest.approx(4 / a_seed)  # it has as many threads
    assert sum(plan.wire.values()) == 0
    assert plan.memory["rows and labels"] == 1e6 * 408
    assert plan.memory["edges"] == 8e6 + 8e7
    assert plan.connections == {"training process": 0, "worker": 0}


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


def test_memory_by_hand() -> None:
    job = replace(JOB, machines=2, workers=2)
    plan = estimate(job, COSTS)
    batch = plan.batch
    rows = batch.nodes * 400
    assert plan.memory["batches under way"] == pytest.approx(
        (2 * 4 + 2) * (8 * batch.nodes + 16 * batch.edges + rows)
    )
    assert plan.memory["rows asked for"] == pytest.approx(2 * 4 * rows / 2)
    assert plan.memory["rows answered"] == pytest.approx(2 * 4 * rows / 2)
    assert plan.memory["workers"] == 2 * 1e7 + 5e7
    known = estimate(replace(job, resident=(("rows", 1.0), ("edges", 2.0))), COSTS)
    assert (known.memory["rows"], known.memory["edges"]) == (1.0, 2.0)
    assert "rows and labels" not in known.memory
    cached = estimate(replace(job, cache=0.2), COSTS)
    assert cached.memory["cache"] > 0.2 * 0.5e6 * 400
    assert cached.memory["rows copied from the cache"] == pytest.approx(
        2 * 4 * rows / 2 * cached.batch.hit_rate
    )


def test_the_cache_of_a_machine_is_the_one_that_its_ranks_make() -> None:
    """Whatever the graph, of which nothing is in it; there is one for all ranks."""
    owner = ("node", "n")
    matrices = {owner: {("node_features", "n"): ("float32", (100,))}}
    for nodes in (10**6, 10**10):
        job = replace(JOB, nodes=nodes, edges=10 * nodes, machines=2, cache=1e5 / nodes)
        tables = tables_of(matrices, {owner: nodes}, {owner: nodes // 2}, job.cache)
        assert cache_bytes(job, nodes / 2) == segment_bytes(tables)
    assert cache_bytes(job, nodes / 2) < 5e4 * 800 + 2e7
    assert cache_bytes(replace(job, dim=0), nodes / 2) == 0, "there are no rows to keep"
    store = replace(JOB, deployment="graph-store", servers=2, cache=0.4, resident=(("rows", 1.0),))
    for ranks in (1, 4):
        plan = estimate(replace(store, ranks_per_machine=ranks), COSTS)
        assert plan.memory_machine == "training"
        assert plan.memory["cache"] == cache_bytes(store, store.nodes)


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


def test_encryption_is_counted_apart_at_both_ends() -> None:
    job = replace(JOB, machines=2)
    store = replace(job, deployment="graph-store", servers=2)
    for one in (job, store):
        plain, encrypted = estimate(one, COSTS), estimate(replace(one, encrypted=True), COSTS)
        apart = {name: value for name, value in encrypted.cpu.items() if "encrypt" in name}
        assert {name: encrypted.cpu[name] for name in plain.cpu} == plain.cpu
        assert set(encrypted.cpu) == set(plain.cpu) | set(apart)
        assert sum(apart.values()) == pytest.approx(2 * 1.5e-9 * sum(plain.wire.values()))


def test_what_processes_have_open_by_hand() -> None:
    plan = estimate(replace(JOB, machines=3), COSTS)
    assert plan.connections == {"training process": 4, "worker": 16}  # 16 were counted
    assert plan.descriptors["worker"] == 22  # as were these
    store = estimate(replace(JOB, machines=3, deployment="graph-store", servers=3), COSTS)
    assert store.connections == {"training process": 16, "storage server": 16, "worker": 16}
    assert store.descriptors["storage server"] >= 55


def test_the_start_by_hand() -> None:
    plan = estimate(replace(JOB, ranks_per_machine=32, workers=2, disk_gb_per_s=0.1), COSTS)
    part_gb = (plan.memory["rows and labels"] + plan.memory["edges"]) / 1e9
    assert plan.start == {
        "processes": 4.0 * 2,
        "loading a part": pytest.approx(part_gb / 0.1),
        "workers": 32 * 1.2,
    }
    store = replace(JOB, machines=40, deployment="graph-store", servers=2, disk_gb_per_s=100.0)
    start = estimate(store, COSTS).start
    assert start["loading a part"] == pytest.approx(part_gb / 2 * 0.5), "memory is slower"
    assert start["workers"] == pytest.approx(40 * 1.1 / 16)


def test_changes_that_do_not_fit_are_not_proposed() -> None:
    job = replace(JOB, machines=2, workers=8, link_gbit=1)
    cached = "a cache of 20% of the remote rows"
    memory_gb = estimate(job, COSTS).total_memory / 1e9 + 0.01
    assert cached in estimate(job, COSTS).changes
    assert cached not in estimate(replace(job, memory_gb=memory_gb), COSTS).changes
    assert "links 2.5 times as fast" in estimate(replace(job, memory_gb=memory_gb), COSTS).changes


def test_parts_that_are_better_than_drawn_stay_so_on_other_machines() -> None:
    job = replace(JOB, machines=2, remote=0.1, resident=(("rows", 60.0), ("books", 9.0)))
    other = job.with_machines(6, 0)
    assert other.remote == pytest.approx(0.1 * (5 / 6) / (1 / 2))
    assert other.resident == (("rows", 20.0), ("books", 9.0))
    assert job.with_machines(1, 0).remote_share == 0


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


def test_costs_of_a_cluster_are_found_again() -> None:
    from gigl_loader.plan.calibrate import asking_costs, delivering_costs
    from gigl_loader.plan.cluster import Took

    sampling = [1e-3, 1e-7, 2e-8, 3e-10]
    sizes = ((130_000.0, 150_000.0), (18_000.0, 19_000.0))

    def alone(nodes: float, edges: float) -> float:
        return 1e-3 + 1e-7 * edges + 2e-8 * nodes

    def rank(nodes: float, edges: float, width: int, hits: float) -> Took:
        rows, wide = nodes / 2, 4.0 * width
        seconds = alone(nodes, edges) + 3e-10 * nodes * wide + 5e-4 + 2e-7 * edges / 2
        if width:
            seconds += 2e-3 + rows * (1 - hits) * (3e-7 + 1e-9 * wide)
        if hits:
            seconds += 4e-3 + rows * (1e-7 + hits * 2e-10 * wide)
        return Took(nodes, edges, hits, seconds, 0.0)

    widths = [(0, 0.0), (16, 0.0), (128, 0.0), (16, 0.4), (128, 0.5)]
    found = asking_costs(sampling, [rank(*size, *one) for one in widths for size in sizes])
    assert found == pytest.approx({
        "asked_batch_s": 5e-4, "asked_edge_s": 2e-7,
        "asked_rows_s": 2e-3, "asked_row_s": 3e-7, "asked_byte_s": 1e-9,
        "cached_batch_s": 4e-3, "cached_row_s": 1e-7, "cached_byte_s": 2e-10,
    })  # fmt: skip

    def store(nodes: float, edges: float, width: int, hits: float) -> Took:
        structure_s = alone(nodes, edges) + 5e-4 + 2e-7 * edges / 2
        sent = 6e-4 + 3e-8 * edges + bool(width) * (7e-4 + nodes * (1e-7 + 8e-9 * width))
        received = 8e-4 + 4e-8 * edges + bool(width) * (9e-4 + nodes * (5e-7 + 4e-9 * width))
        if hits:
            received -= hits * nodes * (5e-7 + 4e-9 * width)
            received += 3e-4 + nodes * (2e-7 + hits * 6e-9 * width)
        return Took(nodes, edges, hits, received, structure_s + sent)

    batches = [store(*size, *one) for one in widths for size in sizes]
    assert delivering_costs(sampling, found, batches) == pytest.approx({
        "sent_batch_s": 6e-4, "sent_edge_s": 3e-8,
        "sent_rows_s": 7e-4, "sent_row_s": 1e-7, "sent_byte_s": 2e-9,
        "received_batch_s": 8e-4, "received_edge_s": 4e-8,
        "received_rows_s": 9e-4, "received_row_s": 5e-7, "received_byte_s": 1e-9,
        "kept_batch_s": 3e-4, "kept_row_s": 2e-7, "kept_byte_s": 1.5e-9,
    })  # fmt: skip


def test_the_costs_that_come_with_the_package_are_read(tmp_path) -> None:
    costs = Costs.read(SHIPPED)
    assert costs.machine
    costs.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == costs
    (tmp_path / "costs.json").write_text("{}")
    with pytest.raises(ConfigError, match="must have the keys"):
        Costs.read(tmp_path / "costs.json")
    text = SHIPPED.read_text()
    (tmp_path / "costs.json").write_text(re.sub(r'("edge_s": )\S+', r'\1"much",', text, count=1))
    with pytest.raises(ConfigError, match="edge_s must be a number >= 0, got 'much'"):
        Costs.read(tmp_path / "costs.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        Costs.read(tmp_path / "none.json")
