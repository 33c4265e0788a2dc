"""Colocated ranks that start together, simulated: what each asks of the store where they meet.

What runs as it is: `gigl_loader.sources.workers.rendezvous.StoreRendezvous` and
`gigl_loader.sources.workers.agreement.Agreement`, with a partition and workers on every rank.
Modelled: the store of the process group, one thread on rank 0's machine that serves one question
after another; the start of workers; the network. Ranks of a machine do not read each other's memory
here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gigl_loader.runtime.transport import Security
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sampler.row_cache.tables import RowTables
from gigl_loader.sources.workers import agreement, rendezvous
from gigl_loader.sources.workers.agreement import Agreement
from gigl_loader.sources.workers.rendezvous import StoreRendezvous
from gigl_loader.testing import TinyGraph
from tests.support.simulation.memory import held_by
from tests.support.simulation.world import Process, World

# between machines of a rack; a question to torch's TCPStore; 25 Gbit/s
_LATENCY_S, _SERVED_S, _BYTES_PER_S = 100e-6, 20e-6, 25e9 / 8
"""One way; of the store, for a question; of a machine's link."""
_WORKERS_START_S, _SPREAD_S, _TIMEOUT_S = 1.5, 2.0, 120.0


class SimulatedStore:
    """Stands in for a ``torch.distributed`` store.

    Args:
        world: Of the ranks.
    """

    def __init__(self, world: World) -> None:
        self._world, self._values, self._free_at = world, dict[str, bytes](), 0.0

    def set(self, key: str, value: bytes) -> None:
        """Keep a value."""
        self._serve(len(key) + len(value))
        self._values[key] = value

    def get(self, key: str) -> bytes:
        """Return a value that is there."""
        self._serve(len(key) + len(self._values[key]))
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all of them are there."""
        self._serve(sum(map(len, keys)))
        return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Count."""
        self._serve(len(key))
        # as texts: the real store counts so, and get() shows it
        number = int(self._values.get(key, b"0")) + amount
        self._values[key] = b"%d" % number
        return number

    def delete_key(self, key: str) -> bool:
        """Forget a value."""
        self._serve(len(key))
        return self._values.pop(key, None) is not None

    def _serve(self, nbytes: int) -> None:
        """Let the time of a question and its answer pass, behind those that came before."""
        process, now = self._world.process, self._world.clock.now
        process.messages += 2
        process.bytes += nbytes
        # one after the other: rank 0's store has one thread, which is what limits many ranks
        begun = max(now + _LATENCY_S, self._free_at)
        self._free_at = begun + _SERVED_S + nbytes / _BYTES_PER_S
        self._world.sleep(self._free_at + _LATENCY_S - now)


@dataclass(frozen=True)
class Meeting:
    """What the start of a colocated loader took."""

    seconds: float
    """Of simulated time, until all ranks know all they need."""
    messages: list[int] = field(default_factory=list)
    """By rank: questions to the store, and its answers."""
    nbytes: list[int] = field(default_factory=list)
    """By rank: of these."""
    held: list[int] = field(default_factory=list)
    """By rank: bytes of what it keeps of the others."""


class _NoRows(RowTables):
    """No machine lacks a row of another one."""

    @classmethod
    def of_view(cls, *_: Any) -> RowTables:
        return cls()


def meet_colocated(ranks: int, *, ranks_per_machine: int = 8, workers: int = 4) -> Meeting:
    """Let ranks with a partition each agree on how their workers talk."""
    world = World(seed=0)
    store, plans = SimulatedStore(world), {}
    processes = [
        Process(f"rank {rank}", f"10.2.{machine // 256}.{machine % 256}")
        for rank in range(ranks)
        for machine in [rank // ranks_per_machine]
    ]
    view = TinyGraph.homogeneous(4, [(0, 1), (1, 2), (2, 3), (3, 0)]).dataset().view()

    def start(rank: int) -> None:
        own: Any = replace(view, num_partitions=ranks, partition_idx=rank)
        meeting = StoreRendezvous(store, rank, ranks, _TIMEOUT_S)  # type: ignore[arg-type]  # a stand-in
        one = Agreement(own, None, SourceOptions(seed=0))  # type: ignore[arg-type]  # a stand-in
        one.join(meeting, Security.resolve(insecure=True), lambda: world.process.host)
        # between the two meetings, as in a loader's start
        world.sleep(_WORKERS_START_S)
        listening = [(world.process.host, 30_000 + number) for number in range(workers)]
        one.connect(list(listening))
        one.leave_rendezvous()
        # all that is its own: not the store, nor the graph
        plans[rank] = [
            held for held in vars(one).values() if held is not meeting and held is not own
        ]

    names: dict[str, Any] = {"reads_same_memory": lambda: False, "RowTables": _NoRows}
    with world.installed((agreement, rendezvous), **names):
        for rank, process in enumerate(processes):
            # drawn delays: ranks that all come at the same moment would hide who waits for whom
            begin = partial(world.spawn, partial(start, rank), process, "main")
            world.clock.call_later(world.random.random() * _SPREAD_S, begin)
        try:
            # an hour of simulated time is no limit for a start, and ends one that hangs
            world.run(lambda: len(plans) == ranks, 3600.0)
        finally:
            world.close()
    return Meeting(
        world.clock.now,
        [one.messages for one in processes],
        [one.bytes for one in processes],
        [sum(held_by(plans[rank]).values()) for rank in range(ranks)],
    )
