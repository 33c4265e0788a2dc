"""The process group of simulated ranks. torch's part is modelled; what travels is encoded as it is.

gloo gathers from all to all in a ring, so that a rank sends one message less than there are ranks;
to one rank directly; and tells all in a binomial tree.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from gigl_loader.errors import PeerError
from tests.support.simulation.network import SimulatedNetwork
from tests.support.simulation.world import Process, SimulatedEvent, World


class _Round:
    def __init__(self, world: World, size: int) -> None:
        self.values: list[bytes | None] = [None] * size
        self.came = 0
        self.answer: Any = None
        self.done = SimulatedEvent(world)


class SimulatedGroup:
    """Collectives of ``size`` ranks.

    Args:
        world: Of the ranks.
        network: Whose latency and bandwidth count.
        size: Number of ranks.
    """

    def __init__(self, world: World, network: SimulatedNetwork, size: int) -> None:
        self._world, self._network, self._size = world, network, size
        self.ranks: dict[Process, int] = {}
        # Ranks count their collectives; those with one number are one round. A rank may be a round
        # ahead of one that has not been woken yet.
        self._rounds: dict[int, _Round] = {}
        self._at: dict[Process, int] = {}
        self._lost: str | None = None

    def lose(self, why: str) -> None:
        """A rank has ended: whoever waits for the others, now or later, hears of it."""
        self._lost = why
        for one in self._rounds.values():
            one.done.set()

    def step(self) -> None:
        """Wait for all ranks, as the sum of gradients does after each step of training."""
        self._meet(b"", lambda _: b"")

    def gather_from_ranks(self, value: Any, world_size: int, kind: Any) -> list[Any]:
        """Stand in for `gigl_loader.runtime.ranks.collectives.gather_from_ranks`."""
        if world_size == 1:
            return [value]
        data = msgspec.msgpack.encode(value)
        found = self._meet(data, self._all_of)
        # all are as long as the longest, see ranks.gather_values
        most = max(len(one) for one in found)
        self._spend(world_size - 1, most, world_size - 1)
        return [msgspec.msgpack.decode(one, type=kind) for one in found]

    def decide_with_ranks(
        self,
        value: Any,
        world_size: int,
        kind: Any,
        decide: Callable[[list[Any]], Any],
        outcome_kind: Any,
    ) -> Any:
        """Stand in for `gigl_loader.runtime.ranks.collectives.decide_with_ranks`."""
        if world_size == 1:
            return decide([value])

        def settle(found: list[bytes]) -> bytes:
            values = [msgspec.msgpack.decode(one, type=kind) for one in found]
            return msgspec.msgpack.encode(decide(values))

        data = msgspec.msgpack.encode(value)
        told = self._meet(data, settle)
        # to rank 0, and from there in a tree: each is told once and tells one other on average
        self._spend(3, max(len(data), len(told)), 1 + math.ceil(math.log2(world_size)))
        return msgspec.msgpack.decode(told, type=outcome_kind)

    @staticmethod
    def _all_of(found: list[bytes]) -> list[bytes]:
        return found

    def _meet(self, data: bytes, settle: Callable[[list[bytes]], Any]) -> Any:
        """Return what ``settle`` makes of all ranks' data, once all are here."""
        process = self._world.process
        number = self._at.get(process, 0)
        self._at[process] = number + 1
        one = self._rounds.setdefault(number, _Round(self._world, self._size))
        one.values[self.ranks[process]] = data
        one.came += 1
        if one.came == self._size:
            one.answer = settle([value for value in one.values if value is not None])
            # who waits has it in hand: the table holds what is not complete only
            del self._rounds[number]
            one.done.set()
        elif self._lost is None:
            one.done.wait()
        # Woken by lose(), or come after it. A round that was complete before counts, as with gloo.
        if one.came < self._size:
            raise PeerError(f"the process group broke: {self._lost}")
        return one.answer

    def _spend(self, messages: int, size: int, steps: int) -> None:
        process = self._world.process
        # each rank counts what it sends itself
        process.messages += messages
        process.bytes += messages * size
        through_s = size / self._network.link(process.host).bytes_per_s
        self._world.sleep(steps * (self._network.latency_s + through_s))
