"""Faults that a seed draws: the same each time, and such that a job can go on."""

import math
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulation import LostRank, LostServers, Size, SlowRank, SlowServers, draw_faults


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 30), st.booleans())
def test_faults_are_of_what_there_is(seed: int, ranks: int, parts: int, replicas: bool) -> None:
    size = Size(ranks=ranks, servers=2 * parts if replicas else parts, partitions=parts * replicas)
    faults = draw_faults(seed, size)
    assert faults == draw_faults(seed, size)
    assert 1 <= len(faults) <= 4
    last = size.start_spread_s + size.costs.start_s + size.batches * size.costs.step_s
    gone: set[int] = set()
    for fault in faults:
        assert size.start_spread_s <= fault.at_s <= last
        if isinstance(fault, SlowRank | LostRank):
            assert 0 <= fault.rank < ranks
        else:
            assert set(fault.servers) <= set(range(size.servers))
            assert len({*fault.servers}) == len(fault.servers) > 0
        if isinstance(fault, LostServers) and fault.down_s == math.inf:
            gone |= {*fault.servers}
    assert 0 not in gone, "where ranks meet again"
    assert not gone or replicas
    assert all(server - parts not in gone for server in gone), "one of two replicas is left"


def test_every_kind_is_drawn() -> None:
    size = Size(ranks=8, servers=8, partitions=4)
    drawn: Sequence[Any] = [one for seed in range(60) for one in draw_faults(seed, size)]
    assert {type(one) for one in drawn} == {SlowServers, SlowRank, LostServers, LostRank}
    racks = [one for one in drawn if isinstance(one, LostServers) and len(one.servers) > 1]
    assert {one.servers for one in racks} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert any(one.down_s == math.inf for one in racks)
