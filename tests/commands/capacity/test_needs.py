"""Memory by part, connections, open files and the start, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from gigl_loader.commands.capacity.model import estimate
from gigl_loader.commands.capacity.needs import cache_bytes, graph_bytes, share_kept
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.row_cache.tables import WINDOW, RowTables, segment_bytes
from tests.commands.capacity.jobs_by_hand import COSTS, JOB


def test_memory_by_hand() -> None:
    job = replace(JOB, machines=2, num_workers=2)
    plan = estimate(job, COSTS)
    batch = plan.batch
    rows = batch.nodes * 400
    assert plan.memory["batches under way"] == pytest.approx(
        (2 * 4 + 2) * (8 * batch.nodes + 16 * batch.edges + rows)
    )
    assert plan.memory["requested rows"] == pytest.approx(2 * 4 * rows / 2)
    assert plan.memory["rows to send"] == pytest.approx(2 * 4 * rows / 2)
    assert plan.memory["workers"] == 2 * 1e7 + 5e7
    known = estimate(replace(job, resident=(("rows", 1.0), ("edges", 2.0))), COSTS)
    assert (known.memory["rows"], known.memory["edges"]) == (1.0, 2.0)
    assert "rows and labels" not in known.memory
    cached = estimate(replace(job, remote_cache=0.2), COSTS)
    assert cached.memory["cache"] > 0.2 * 0.5e6 * 400
    assert cached.memory["rows copied from the cache"] == pytest.approx(
        2 * 4 * rows / 2 * cached.batch.hit_rate
    )


def test_the_cache_of_a_machine_is_the_one_that_its_ranks_make() -> None:
    """Whatever the graph, of which nothing is in it; there is one for all ranks."""
    owner: Any = ("node", "n")
    matrices: dict[Any, Any] = {owner: {("node_features", "n"): ("float32", (100,))}}
    for nodes in (10**6, 10**10):
        job = replace(JOB, nodes=nodes, edges=10 * nodes, machines=2, remote_cache=1e5 / nodes)
        tables = RowTables.of(matrices, {owner: nodes}, {owner: nodes // 2}, job.remote_cache)
        assert cache_bytes(job, nodes / 2) == segment_bytes(tables)
    assert cache_bytes(job, nodes / 2) < 5e4 * 800 + 2e7
    assert cache_bytes(replace(job, dim=0), nodes / 2) == 0, "there are no rows to keep"
    store = replace(
        JOB, deployment="graph-store", num_servers=2, remote_cache=0.4, resident=(("rows", 1.0),)
    )
    for ranks in (1, 4):
        plan = estimate(replace(store, ranks_per_machine=ranks), COSTS)
        assert plan.memory_machine == "training"
        assert plan.memory["cache"] == cache_bytes(store, store.nodes)
        ready = 4 * 2 if store.step_ms else 1  # of each server, or the one that the model waits for
        rows = (ready + 2) * plan.batch.nodes * 400
        assert plan.memory["rows of batches"] == pytest.approx(ranks * rows)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_cache_of_so_many_bytes_keeps_the_share_that_takes_them(share: float) -> None:
    for job in (
        replace(JOB, machines=4),
        replace(JOB, machines=1, deployment="graph-store", num_servers=3),
    ):
        rows = job.nodes * (1.0 if job.is_store else 0.75)
        nbytes = cache_bytes(replace(job, remote_cache=share), rows)
        assert share_kept(job, int(nbytes)) == pytest.approx(share, rel=0.02)
    assert share_kept(JOB, 10**12) == 0.0, "nothing is elsewhere"
    assert share_kept(replace(JOB, machines=2, dim=0), 10**12) == 0.0
    assert share_kept(replace(JOB, machines=2), 10**12) == 1.0


def test_a_part_of_the_graph() -> None:
    job = replace(JOB, nodes=4e9, edges=8e9, machines=2)
    found = graph_bytes(job)
    assert found == {"rows and labels": 2e9 * 408, "edges": 2e9 * 8 + 4e9 * 8}, "ids of 8 bytes"
    assert graph_bytes(replace(job, resident=(("rows", 5.0),))) == {"rows": 5.0}


def test_the_edges_of_all_parts() -> None:
    job = replace(JOB, nodes=1e6, edges=8e6, machines=4)
    own, every = graph_bytes(job), graph_bytes(replace(job, all_edges=True))
    others = every.pop("edges of other partitions")
    assert every == own
    assert own["edges"] + others == 8e6 + 4 * 8e6, "eight bytes a node, four an edge"
    # a part that owns no range of ids has a row for each node
    drawn = replace(job, all_edges=True, resident=(("edges", 5.0), ("books", 1.0)))
    assert graph_bytes(drawn)["edges of other partitions"] == 3 * 8e6 + 3 * 8e6
    alone = replace(JOB, all_edges=True)
    assert graph_bytes(alone) == graph_bytes(JOB)


def test_equal_jobs_share_what_the_servers_have() -> None:
    job = replace(JOB, nodes=1e8, edges=1e9, deployment="graph-store", num_servers=2, link_gbit=0.1)
    one, three = (estimate(replace(job, jobs=jobs), COSTS) for jobs in (1, 3))
    for name in ("cores of servers", "links of servers"):
        assert three.bounds[name] == pytest.approx(one.bounds[name] / 3)
    assert three.seeds_per_second < one.seeds_per_second
    assert three.bounds["links of training machines"] == one.bounds["links of training machines"]
    assert one.memory_machine == three.memory_machine == "storage"
    for name in ("batches under way", "workers"):
        assert three.memory[name] == pytest.approx(3 * one.memory[name])
    assert three.memory["edges"] == one.memory["edges"]
    with pytest.raises(ConfigError, match="3 jobs at once are of a graph store"):
        replace(job, deployment="colocated", num_servers=0, jobs=3)


def test_the_machine_that_has_most_is_told() -> None:
    store = replace(JOB, deployment="graph-store", num_servers=1)
    assert estimate(store, COSTS).memory_machine == "storage"
    many = replace(store, num_servers=50, ranks_per_machine=32, batch_size=100_000)
    assert estimate(many, COSTS).memory_machine == "training"


def test_ranks_of_a_machine_draw_ahead_for_their_share_of_its_cache() -> None:
    """The cache is one for the four ranks, so each draws a fourth as far ahead as one rank would.

    As in `sampler/row_cache/look_ahead.py`: a window of the batches in which the cache turns over,
    up to twice as long where the next use is further, or what twice the memory of the rows takes of
    drawn batches.
    """
    for dim, cache, bound in ((1000, 0.2, "window"), (100, 0.9, "memory")):
        job = replace(JOB, machines=2, ranks_per_machine=4, dim=dim, remote_cache=cache)
        plan = estimate(job, COSTS)
        batch, kept = plan.batch, cache * 0.5e6
        drawn = 16 * batch.edges + 8 * 3.5 * batch.nodes
        window = 2 * WINDOW * kept / 4 / (batch.nodes / 2)
        memory = 2 * kept * 4 * dim / 4 / drawn
        ahead = window if bound == "window" else memory
        assert ahead == min(window, memory)
        assert plan.memory["batches drawn ahead"] == pytest.approx(4 * (ahead + 4) * drawn)


def test_what_processes_have_open_by_hand() -> None:
    plan = estimate(replace(JOB, machines=3), COSTS)
    assert plan.connections == {"training process": 4, "worker": 16}  # 16 were counted
    assert plan.descriptors["worker"] == 22  # as were these
    store = estimate(replace(JOB, machines=3, deployment="graph-store", num_servers=3), COSTS)
    assert store.connections == {"training process": 16, "storage server": 16, "worker": 16}
    assert store.descriptors["storage server"] >= 55


def test_the_start_by_hand() -> None:
    plan = estimate(replace(JOB, ranks_per_machine=32, num_workers=2, disk_gb_per_s=0.1), COSTS)
    part_gb = (plan.memory["rows and labels"] + plan.memory["edges"]) / 1e9
    assert plan.start == {
        "processes": 4.0 * 2,
        "loading a part": pytest.approx(part_gb / 0.1),
        "workers": 32 * 1.2,
    }
    store = replace(JOB, machines=40, deployment="graph-store", num_servers=2, disk_gb_per_s=100.0)
    start = estimate(store, COSTS).start
    assert start["loading a part"] == pytest.approx(part_gb / 2 * 0.5), "memory is slower"
    assert start["workers"] == pytest.approx(40 * 1.1 / 16)
