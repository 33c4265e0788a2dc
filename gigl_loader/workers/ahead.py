"""Drawing batches ahead of their rows: how far, on both sides of the row cache.

::

    trainer: LookAhead -- limit of started batches --> tasks --> worker: AheadTasks
                       -- header of the cache: filled up to here, once so many are known -->

A task is first drawn, then waits, then is filled by the same worker. Which may be filled is read in
the cache's memory, so no message goes to and fro between the two.
"""

import heapq
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory import segments
from gigl_loader.message import BatchTicket
from gigl_loader.options import CacheOptions
from gigl_loader.sampler.ahead import DrawnBatch
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.sampler.row_cache import (
    WINDOW,
    CacheMemory,
    Owner,
    RowCache,
    Table,
    make_tables,
    segment_bytes,
)

STREAM = 0
"""The stream that is drawn ahead; others, which sample single batches, are filled at once."""
_MOST_AHEAD = 1 << 13
_FIRST_AHEAD = 4
"""Batches to draw ahead before anything is known of their size."""
_MOST_KEPT = 2
"""Memory of batches that are drawn and not filled, in times of what the cache has for rows."""
_LEAST_KEPT = 64 * 2**20
_MUCH_UNKNOWN = 0.02
_GROWTH, _MOST_GROWTH = 1.1, 2.0
"""The look-ahead grows, and how far, while rows are kept of which it does not see the next use: few
rows that are asked for again and again, as those of hubs, fill it without filling the cache."""
_POLL_S = 0.001


def remote_rows(view: PartitionView[Any], remote: set[int]) -> dict[Owner, int]:
    """Return by owner how many rows the partitions ``remote`` have."""
    found = {}
    for kind, books in (("node", view.node_books), ("edge", view.edge_books)):
        for name, book in books.items():
            if book.bounds is not None:
                sizes = np.diff(np.asarray(book.bounds), prepend=0)
            else:
                sizes = np.bincount(np.asarray(book.table), minlength=view.num_partitions)
            found[kind, name] = int(sum(sizes[partition] for partition in remote))
    return found


def _tables(
    view: PartitionView[Any], plan: SamplingPlan, nearby: Mapping[int, Any], size: int | float
) -> dict[Owner, Table]:
    remote = set(range(view.num_partitions)) - {view.partition_idx} - set(nearby)
    features, edges = plan.collect_features, plan.with_edge
    kinds = {
        "node_labels": True, "node_features": features, "node_attributes": features,
        "edge_features": features and edges, "edge_attributes": features and edges,
    }  # fmt: skip
    return make_tables(view, remote_rows(view, remote), size, kinds)


def remote_bytes(view: PartitionView[Any], plan: SamplingPlan, nearby: Mapping[int, Any]) -> int:
    """Return the bytes of all rows that ``plan`` may read from other machines; see `make_cache`."""
    tables = _tables(view, plan, nearby, 1.0)
    return sum(table.capacity * table.row_bytes for table in tables.values())


def make_cache(
    view: PartitionView[Any], plan: SamplingPlan, nearby: Mapping[int, Any], options: CacheOptions
) -> CacheMemory | None:
    """Return memory for the rows of other machines; None: there are none to keep.

    Args:
        view: This rank's partition.
        plan: What is sampled: of edges, rows are read where ids are asked for.
        nearby: Partitions that are read in this machine's memory.
        options: How much to keep.

    Raises:
        SharedMemoryError: The machine does not have as much memory.
    """
    tables = _tables(view, plan, nearby, options.size)
    if not tables:
        return None
    import torch  # the trainer's part: workers do without

    from gigl_loader.memory import tensors

    nbytes = segment_bytes(tables)
    fd = segments.create_memfd(nbytes, "gigl_loader.rows")
    try:
        segment = tensors.map_shared_tensor(fd, nbytes, torch.uint8, (nbytes,))
    finally:
        os.close(fd)
    RowCache(CacheMemory(segment.numpy(), tables)).initialise()
    return CacheMemory(segment, tables)


class LookAhead:
    """The trainer's side: how many batches to start, and which of them may be filled.

    Args:
        memory: Of the cache.
        options: How far to look.
    """

    def __init__(self, memory: CacheMemory, options: CacheOptions) -> None:
        self.memory = memory
        self._cache = RowCache(CacheMemory(memory.segment.numpy(), memory.tables))
        self._fixed = options.lookahead
        self._ahead = _FIRST_AHEAD if options.lookahead is None else options.lookahead
        self._sequence = -1
        self._growth = 1.0
        self._given_up = False

    def begin(self, sequence: int, total: int) -> None:
        """Begin an epoch of ``total`` batches; ``sequence`` counts epochs."""
        self._sequence, self._given_up = sequence, False
        self._cache.begin(sequence, total)

    def give_up(self) -> None:
        """Do without the cache for the rest of the epoch: a worker that knew of it is lost.

        Batches that it had drawn are drawn again, so that none may wait for those after it.
        """
        self._given_up = True
        self._cache.give_up(self._sequence)

    def limit(self, taken: int, room: int) -> int:
        """Return how many batches may be started and not taken.

        Args:
            taken: Batches of the epoch that were taken.
            room: Batches with their rows that there is room for, those that wait included.
        """
        if self._given_up:
            self._cache.allow(taken + room, 0)
            return room + 1
        asked, kept, added = self._cache.demand(self._sequence)
        if added and self._fixed is None:
            self._ahead = self._window(asked / added, kept / added)
        self._cache.allow(taken + room if added else 0, self._ahead)
        return room + self._ahead + 1

    def _window(self, asked: float, kept: float) -> int:
        """Return how many batches to know ahead, of which one asks for, and keeps, so much."""
        if self._cache.unknown_share() > _MUCH_UNKNOWN:
            self._growth = min(_MOST_GROWTH, self._growth * _GROWTH)
        rows = self._growth * self._cache.row_bytes
        wanted = math.ceil(WINDOW * rows / asked) if asked else _MOST_AHEAD
        most = max(_MOST_KEPT * self._cache.row_bytes, _LEAST_KEPT) / max(kept, 1.0)
        return max(1, min(wanted, int(most), _MOST_AHEAD))


@dataclass(order=True)
class Waiting:
    """A batch that was drawn and not filled."""

    generation: int
    position: int
    ticket: BatchTicket = field(compare=False)
    batch: DrawnBatch = field(compare=False)
    num_seeds: int = field(compare=False)
    sample_s: float = field(compare=False)


class AheadTasks:
    """The worker's side: what its threads do next, fill a batch or draw one.

    Args:
        may_fill: Whether a batch that was drawn may be filled, or dropped, now.
    """

    def __init__(self, may_fill: Callable[[Waiting], bool]) -> None:
        self._may_fill = may_fill
        self._changed = threading.Condition()
        self._tasks: deque[tuple[BatchTicket, int]] = deque()
        self._waiting: list[Waiting] = []

    def put(self, task: tuple[BatchTicket, int]) -> None:
        """Add a batch to draw."""
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()

    def put_drawn(self, waiting: Waiting) -> None:
        """Add a batch to fill when its turn comes."""
        with self._changed:
            heapq.heappush(self._waiting, waiting)
            self._changed.notify()

    def get(self) -> Waiting | tuple[BatchTicket, int]:
        """Wait for the next thing to do: fill before draw, the earliest batch first."""
        with self._changed:
            while True:
                if self._waiting and self._may_fill(self._waiting[0]):
                    return heapq.heappop(self._waiting)
                if self._tasks:
                    return self._tasks.popleft()
                # the cache's memory cannot wake anybody up
                self._changed.wait(_POLL_S if self._waiting else None)
