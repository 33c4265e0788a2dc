"""Rows of simulated batches, and what it takes until they come.

::

    server: a batch's seeds, and the ids of its rows --> rank: FillingChannel, RowCache,
                                                         LookAhead as they are: what is kept by
                                                         next use
    links of both machines, latency    <-- what misses --'

A rank fills its batches with the package's own code, from rows that it keeps. What is modelled are
the answers of those who have a row: they take their time on the links. A row is its id, so that
whoever takes a batch sees whether its rows are right.
"""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.batch.message import BATCH, NODE, ROWS
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.errors import PeerLostError
from gigl_loader.graph_store.client.row_requests import PendingRows, RowRequests
from gigl_loader.graph_store.wire.requests import RowBook
from gigl_loader.runtime.memory.segments import Array, Layout, align
from gigl_loader.runtime.transport import EndReason
from gigl_loader.sampler.plan import RowsRequest
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import DrawnAhead
from tests.support.simulation.world import SimFuture

if TYPE_CHECKING:
    from tests.support.simulation.cluster import SimulatedJob

KEY = "x"
"""Of the tensor of rows in a batch."""
_TYPE = DEFAULT_HOMOGENEOUS_NODE_TYPE
_TOLD = np.frombuffer(
    json.dumps(
        {"order": [BATCH, NODE, KEY], "rows": [[KEY, "node_features", _TYPE, NODE, "float32", [1]]]}
    ).encode(),
    np.uint8,
)


class _WithoutMarks(DrawnAhead):
    """A rank draws ahead by itself: nobody marks batches as drawn, each in a word of its own."""

    NUM_WORDS = 8


def _own_memory(tables: dict[Any, Any], _: Any = None) -> Any:
    """Return memory of this process with a new cache, without descriptors.

    Stands in for `gigl_loader.sampler.row_cache.machine_cache.memory_for`: each rank keeps its own
    rows.
    """
    return SimpleNamespace(rows=RowCache.private(tables))


class _OwnRows:
    """Stands in for `row_cache.machine.RowsClaim`: nothing is offered to others."""

    offer = None

    @classmethod
    def of_store(cls, *_: Any) -> "_OwnRows":
        return cls()

    def agreed(self, offers: Any) -> None:
        """Return no memory of others."""


TABLES: dict[str, Any] = {
    "_MOST_BATCHES": 1 << 8,
    "_RING_SPARE": 1 << 10,
    "DrawnAhead": _WithoutMarks,
    "memory_for": _own_memory,
    "RowsClaim": _OwnRows,
}
"""Of a cache: batches known at once, and references beyond those of a window. Batches here have a
thousandth of the rows of real ones, and a process has a cache of each rank."""


@dataclass(frozen=True)
class RowLaw:
    """Which rows there are, and which of them a batch needs."""

    rows: int = 2048
    per_batch: int = 96
    """Draws; some of them are the same row."""
    row_bytes: int = 512
    """On the wire."""
    exponent: float = 4.0
    """A row's number is that of one drawn evenly, to this power: the first are in most batches."""

    def ids(self, seeds: Array) -> Array:
        """Return ``[n]`` int64, ascending, the rows of a batch of ``seeds``: always the same."""
        # by the seed alone: whoever draws the batch again gets the same rows
        drawn = np.random.default_rng(int(seeds[0])).random(self.per_batch)
        return np.unique((self.rows * drawn**self.exponent).astype(np.int64))


def packed(seeds: Array, law: RowLaw) -> tuple[Layout, memoryview]:
    """Return where the tensors of a batch without rows lie, and their bytes."""
    layout: Layout = []
    parts: list[bytes] = []
    at = 0
    for key, values in ((BATCH, seeds), (NODE, law.ids(seeds)), (ROWS, _TOLD)):
        layout.append((key, values.dtype.name, values.shape, at))
        # tensors of a message start at aligned positions, as in a slot
        parts.append(values.tobytes().ljust(align(values.nbytes), b"\0"))
        at += align(values.nbytes)
    return layout, memoryview(b"".join(parts))


class SimulatedRows(RowRequests):
    """Stands in for `RowRequests` of a client: who has which row is its own code."""

    job: "SimulatedJob"

    def meet(self) -> None:
        """Know who has which rows: ranges of them."""
        size = self.job.size
        law, num = size.rows, size.partitions or size.servers
        # ranges of as equal lengths as can be, in integers
        ends = np.arange(1, num + 1) * law.rows // num
        self._server_of = list(range(num))
        self._books = {("node", _TYPE): RowBook("node", _TYPE, law.rows, bounds=ends)}

    def rows(self, server: int, request: RowsRequest, out: Array) -> PendingRows:
        """Return rows that come once they are through the links of both machines."""
        out[:, 0] = request.ids  # filled at once; the future says when they would be there
        world, answer = self.job.world, SimFuture(self.job.world)
        arrival = self._arrival(server, request.ids.size)
        world.clock.call_later(arrival - world.clock.now, lambda: answer.set_result(None))
        return PendingRows(out, answer, self._timeout_s)

    def _arrival(self, server: int, count: int) -> float:
        """Return when a server's rows are there.

        Raises:
            ServerDiedError: It is gone.
        """
        job, number = self.job, self._cluster.stand_in(server, self._cluster.lost)
        process, _ = job.servers[number]
        if not process.alive:
            raise self._cluster.connection(number).note_failure(
                PeerLostError(f"{process.name} is gone", EndReason.GONE)
            )
        now, size = job.world.clock.now, count * job.size.rows.row_bytes
        hosts = (process.host, job.world.process.host)
        through = max(job.network.link(host).take(now, size) for host in hosts)
        job.world.process.bytes += size
        # the question's way and the answer's; the question itself is small beside the rows
        return through + 2 * job.size.latency_s


def are_right(message: Any) -> bool:
    """Return whether a batch has the rows that it should have."""
    return bool((message[KEY][:, 0] == message[NODE]).all())
