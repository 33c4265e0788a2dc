"""Bytes of a simulated process's own tables."""

import sys
from typing import Any

import numpy as np
import torch

from tests.support.simulation.memory import held_by, own_bytes
from tests.support.simulation.world import Process, World


class _Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def test_all_that_a_root_leads_to_is_counted_once() -> None:
    text = "a text that nobody else has" * 10
    held = held_by(_Holder(one=[text, text], two={"key": (text,)}))
    assert held[id(text)] == sys.getsizeof(text)
    whole = sum(held.values())
    assert whole > sum(sys.getsizeof(one) for one in (text, [text, text], {"key": (text,)}))
    ring: list[Any] = []
    ring.append(ring)
    assert held_by(ring) == {id(ring): sys.getsizeof(ring)}


def test_the_simulation_and_the_graph_are_left_out() -> None:
    world = World()
    apart = [world, Process("a", "b"), torch.ones(1000), np.ones(1000), int, len, sys]
    held = held_by(list(apart))
    assert not {id(one) for one in apart} & set(held)
    assert sum(held.values()) < 1000
    world.close()


def test_what_others_have_too_is_not_ones_own() -> None:
    shared, mine = ["in the code" * 5], ["my own" * 50]
    one, other = held_by([shared, mine]), held_by([shared])
    assert own_bytes(one, [other]) == sum(one.values()) - sum(held_by(shared).values())
    assert own_bytes(one, [one]) == 0
    assert own_bytes(one, []) == sum(one.values())
