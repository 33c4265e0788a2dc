"""Collectives of simulated ranks: what all learn, and what it costs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from gigl_loader.errors import PeerError
from tests.support.simulation.group import SimulatedGroup
from tests.support.simulation.network import SimulatedNetwork
from tests.support.simulation.world import Process, World

LATENCY_S, BYTES_PER_S = 0.001, 1e6


def _run(size: int, job: Callable[[SimulatedGroup, int, World], Any]) -> tuple[World, Any, Any]:
    """Return the world, the processes, and what ``job`` returned by rank."""
    world = World()
    network = SimulatedNetwork(world, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S, batch_bytes=1)
    group = SimulatedGroup(world, network, size)
    processes = [Process(f"rank {rank}", f"10.0.0.{rank}") for rank in range(size)]
    group.ranks.update({process: rank for rank, process in enumerate(processes)})
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = job(group, rank, world)
        except PeerError as error:
            found[rank] = error

    for rank, process in enumerate(processes):
        world.spawn(partial(run, rank), process)
    try:
        world.run(lambda: len(found) == size, 1000.0)
    finally:
        world.close()
    return world, processes, [found[rank] for rank in range(size)]


def test_each_gathers_from_each() -> None:
    def job(group: SimulatedGroup, rank: int, world: World) -> Any:
        world.sleep(float(rank))
        first = group.gather_from_ranks("x" * rank, 4, str)
        return first, group.gather_from_ranks(rank, 4, int), world.clock.now

    _, processes, found = _run(4, job)
    for first, second, now in found:
        assert first == ["", "x", "xx", "xxx"]
        assert second == [0, 1, 2, 3]
        assert now >= 3.0, "not before the last has come"
    assert [one.messages for one in processes] == [6] * 4, "a ring: to each but oneself, twice"


def test_rank_0_decides_for_all() -> None:
    decided: list[Any] = []

    def decide(values: list[int]) -> int:
        decided.append(values)
        return sum(values)

    def job(group: SimulatedGroup, rank: int, world: World) -> Any:
        return group.decide_with_ranks(rank, 8, int, decide, int), world.clock.now

    _, processes, found = _run(8, job)
    assert [one for one, _ in found] == [28] * 8
    assert decided == [list(range(8))], "once"
    assert all(now == pytest.approx(4 * LATENCY_S, rel=0.01) for _, now in found), "1 + log2(8)"
    assert {one.messages for one in processes} == {3}, "whatever the number of ranks"


def test_who_waits_hears_that_a_rank_is_lost_and_so_does_who_comes_later() -> None:
    def job(group: SimulatedGroup, rank: int, world: World) -> Any:
        group.step()
        if rank == 0:
            world.sleep(5.0)
            group.lose("rank 0 was killed")
            return "gone"
        if rank == 2:
            world.sleep(9.0)
        group.step()
        return "not reached"

    world, _, found = _run(3, job)
    assert found[0] == "gone"
    for error in found[1:]:
        assert isinstance(error, PeerError)
        assert "rank 0 was killed" in str(error)
    assert world.clock.now == 9.0
