"""The coordination code at a small size, with a clock of its own: the same each time, and right."""

import functools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gigl_loader.batch.message import NODE
from gigl_loader.graph_store.wire.batch_shares import OwnBatches, share_of_batches
from gigl_loader.graph_store.wire.requests import ProducerRequest, Runs
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.sampled_input import epoch_order
from tests.support.simulation import (
    Deadlock,
    LostRank,
    LostServers,
    Outcome,
    RowLaw,
    SimulatedJob,
    Size,
    SlowRank,
    SlowServers,
    draw_faults,
    meet_colocated,
    run_job,
)
from tests.support.simulation.rows import KEY, are_right

SMALL = Size(ranks=6, servers=4, batches=12, epochs=2, in_step=True, save_every=4, seed=5)
REPLICAS = replace(SMALL, partitions=2)


@functools.cache
def _undisturbed(size: Size) -> Outcome:
    """Return what a job without faults has made."""
    return run_job(size, [])


def test_batches_are_those_of_the_epochs_order() -> None:
    job = SimulatedJob(SMALL).run()
    found = {
        position: seeds
        for rank in job.ranks
        for position, seeds in zip(rank.positions, rank.seeds, strict=True)
    }
    for epoch in range(2):
        order = epoch_order(72, 5, epoch).tolist()
        assert [found[epoch, position] for position in range(72)] == [(seed,) for seed in order]
    assert [rank.positions[0] for rank in job.ranks] == [(0, position) for position in range(6)]


def test_one_seed_is_one_trace() -> None:
    faults: list[Any] = [LostServers(3.7, (0, 2), 1.5), SlowServers(3.6, (1,)), LostRank(3.9, 4)]
    first, again = run_job(SMALL, faults), run_job(SMALL, faults)
    assert first == again
    assert first.trace != _undisturbed(SMALL).trace


def test_a_server_that_stays_away_is_an_error_and_no_deadlock() -> None:
    job = SimulatedJob(SMALL).run([LostServers(3.7, (2,), 1e5)])
    assert job.restarts > 0
    assert any("storage server" in str(rank.error) for rank in job.ranks)


def test_who_waits_for_ever_is_seen() -> None:
    job = SimulatedJob(SMALL)

    def wait() -> None:
        job.world.wait(job.world.waiter())

    job.world.spawn(wait, name="waits")
    with pytest.raises(Deadlock, match="nothing can happen any more"):
        job.world.run(lambda: False, 10.0)
    job.world.close()


@pytest.mark.parametrize("size", [SMALL, REPLICAS])
@pytest.mark.parametrize(
    "seeds", [range(5), pytest.param(range(5, 25), marks=pytest.mark.wide)], ids=["few", "more"]
)
def test_drawn_faults_lose_no_batch(size: Size, seeds: range) -> None:
    undisturbed = _undisturbed(size)
    assert undisturbed.wrong == ""
    for seed in seeds:
        found = run_job(size, draw_faults(seed, size))
        assert (found.wrong, found.digest) == ("", undisturbed.digest), f"schedule {seed}"


def test_a_rack_that_is_lost_for_good_is_served_by_its_replicas() -> None:
    for rack in ((0, 1), (2, 3)):
        found = run_job(REPLICAS, [LostServers(3.7, rack, math.inf)])
        assert (found.wrong, found.restarts) == ("", 0)
        assert found.digest == _undisturbed(REPLICAS).digest


def test_another_number_of_ranks_goes_on_with_the_job() -> None:
    job = SimulatedJob(SMALL).run([LostRank(3.9, 4, resumed_by=9)])
    assert job.restarts == 1
    assert len(job.ranks) == 6 + 9
    positions = sorted(position for rank in job.ranks for position in rank.positions)
    assert positions == [(epoch, position) for epoch in range(2) for position in range(72)]


def test_a_slow_rank_costs_time_alone() -> None:
    undisturbed, slow = _undisturbed(SMALL), run_job(SMALL, [SlowRank(3.6, 2)])
    assert slow.digest == undisturbed.digest
    assert slow.seconds > undisturbed.seconds + 1.0


def test_ranks_keep_the_rows_that_are_used_next() -> None:
    size = replace(SMALL, batches=40, epochs=1, cache=0.1)
    job = SimulatedJob(size).run()
    assert [len(rank.seeds) for rank in job.ranks] == [40] * 6
    for rank in job.ranks:
        assert rank.wrong_rows == 0
        ids = [size.rows.ids(np.array(seeds)).tolist() for seeds in rank.seeds]
        best = _kept_at_best(ids, round(0.1 * size.rows.rows)) / sum(map(len, ids))
        assert 0.95 * best <= rank.hit_rate <= best


def _kept_at_best(batches: list[list[int]], room: int) -> int:
    """Return how many rows of batches an offline optimum has kept: Belady's, with all known."""
    uses: dict[int, list[int]] = {}
    for number, ids in enumerate(batches):
        for one in ids:
            uses.setdefault(one, []).append(number)
    kept: dict[int, float] = {}  # row: its next use
    hits = 0
    for number, ids in enumerate(batches):
        hits += sum(one in kept for one in ids)
        for one in ids:
            kept[one] = next((use for use in uses[one] if use > number), math.inf)
        kept = dict(sorted(kept.items(), key=lambda item: item[1])[:room])
    return hits


@pytest.mark.parametrize(("value", "right"), [(0, True), (1, False)])
def test_rows_of_others_are_seen(value: int, right: bool) -> None:
    ids = np.array([3, 5, 8])
    rows = ids.astype(np.float32).reshape(-1, 1)
    rows[1] += value
    assert are_right({KEY: rows, NODE: ids}) is right


def test_the_first_rows_are_in_most_batches() -> None:
    law = RowLaw()
    counts = np.zeros(law.rows, int)
    for seed in range(200):
        counts[law.ids(np.array([seed]))] += 1
    assert counts[0] == 200
    assert counts[:20].mean() > 5 * counts[-200:].mean()


def test_what_is_kept_stays_right_where_servers_are_lost() -> None:
    size = replace(SMALL, cache=0.1)
    undisturbed = run_job(size, [])
    assert (undisturbed.wrong, undisturbed.digest) == ("", _undisturbed(SMALL).digest)
    faults: list[Any] = [LostServers(3.7, (0, 2), 1.5), SlowServers(3.6, (1,)), LostRank(3.9, 4)]
    found = run_job(size, faults)
    assert (found.wrong, found.digest) == ("", undisturbed.digest)
    assert found == run_job(size, faults)


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (48, 192),
        # a minute of one core
        pytest.param(256, 4096, marks=[pytest.mark.wide, pytest.mark.timeout(1800)]),
    ],
)
def test_start_up_does_not_grow_with_ranks_and_servers(few: int, many: int) -> None:
    """Many times the ranks and servers; the leader, which asks each server, apart."""
    means, held = [], []
    for ranks in (few, many):
        size = Size(ranks=ranks, servers=ranks // 16, batches=1, start_spread_s=0.5)
        job = SimulatedJob(size).run()
        held.append(job.held)
        followers = job.ranks[1:]
        means.append(sum(rank.messages_at_start for rank in followers) / len(followers))
        assert max(rank.connections for rank in followers) <= 2
    assert means[1] <= 1.5 * means[0]
    # of each server an address takes 16 bytes and an incarnation 40: see `wire.requests`; a server
    # has of each other one the proof, 65 bytes and its place in a table, that it is no other
    more = (many - few) // 16
    assert 0 < held[0].rank < held[1].rank < held[0].rank + more * 100
    assert 0 < held[0].server < held[1].server < held[0].server + more * 250


def test_colocated_ranks_ask_the_store_no_more_often_where_they_are_more() -> None:
    few, many = meet_colocated(24), meet_colocated(96)
    means = [sum(one.messages[1:]) / (len(one.messages) - 1) for one in (few, many)]
    assert means[1] <= 1.5 * means[0]
    assert many.seconds < few.seconds + 1.0
    # a host and ports of each rank, packed: all others are asked for what they have
    assert 0 < many.held[1] - few.held[1] < 72 * 60


def test_batches_of_a_consumer_by_formula() -> None:
    drawn = random.Random(3)
    for _ in range(200):
        total, shards = drawn.randrange(60), drawn.randrange(1, 6)
        consumers = drawn.randrange(1, 5)
        consumer = drawn.randrange(consumers)
        wanted = sorted(
            (batch, shard)
            for shard in range(shards)
            for batch in share_of_batches(
                total,
                ProducerRequest(
                    source_options=SourceOptions(seed=1),
                    shard=shard,
                    num_shards=shards,
                    client_ranks=Runs.of(range(consumers)),
                ),
                consumer,
            )
        )
        own = OwnBatches(total, shards, consumers, consumer)
        assert [(batch, shard) for shard, batch in own] == wanted
        assert len(own) == len(wanted)
