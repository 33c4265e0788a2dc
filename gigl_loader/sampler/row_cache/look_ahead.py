"""Drawing batches ahead of their rows, and how far, on both sides of the row cache.

::

    trainer: LookAhead -- limit of started batches --> tasks --> worker: AheadTasks
                       -- DrawnAhead: filled up to here, once so many are drawn -->
                       <-- and the batches that are drawn --

    sampler.sample() --> copy_drawn() --> DrawnBatch: ids and edges as arrays, rows to be read
    a batch that came without rows -----------^

A task is first drawn, then waits, then is filled by the same worker. The limit for filling is read
in memory that both share, so no message is exchanged for it. The row cache learns which rows a
drawn batch lacks (`DrawnBatch.wanted`), and `sampler.row_cache.pipeline` fetches them.
"""

import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import numpy as np

from gigl_loader.batch.message import BatchTicket, Field
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import A, Matrix, Owner, Row, owner_of
from gigl_loader.runtime.memory.segments import Array, storage_dtype
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.tables import WINDOW, CacheMemory
from gigl_loader.sampler.rows.row_exchange import LaterRows, Split

RowsOf = tuple[Owner, int]
"""Owner of the rows, and a number: rows of one owner for other ids are another source."""


@dataclass(frozen=True)
class RemoteIds:
    """The ids of one owner whose rows a batch needs from other machines."""

    split: Split
    """Positions in the batch's ids, by the partition or server that has the rows."""
    ids: Array
    """``[n]`` int64, the ids of the first partition or server, then those of the next one."""
    matrices: dict[Matrix, Row]
    """Rows without columns are left out."""

    @property
    def positions(self) -> Array:
        """``[n]`` int64: the position of each id in the batch's ids."""
        return np.concatenate(list(self.split.values()))

    def pieces(self, at: Array) -> list[tuple[int, Array]]:
        """Return (partition or server, ids) for the ids at the positions ``at``, which ascend."""
        # The ids are in the order of ``split``, so each part of ``at`` is a slice of it.
        ends = np.cumsum([0, *(positions.size for positions in self.split.values())])
        cuts = np.searchsorted(at, ends)
        return [
            (who, self.ids[at[start:stop]])
            for who, start, stop in zip(self.split, cuts[:-1], cuts[1:], strict=True)
            if start < stop
        ]


@dataclass(frozen=True)
class DrawnBatch:
    """A batch without its rows."""

    fields: list[Field]
    sources: list[RowsOf | None]
    """For each field, the key in ``remote`` that it reads; None: no remote rows."""
    remote: dict[RowsOf, RemoteIds]
    nbytes: int
    """Bytes of memory that the batch keeps."""

    def wanted(self) -> dict[Owner, Array]:
        """Return by owner the ids that the cache learns: the first ones of each."""
        return {owner: rows.ids for (owner, number), rows in self.remote.items() if number == 0}


def copy_drawn(fields: Sequence[Field], local: Container[int] = ()) -> DrawnBatch:
    """Return a batch that outlives its sampler's next one.

    Args:
        fields: From the sampler.
        local: Partitions that are read in this machine's memory.
    """
    batch = DrawnBatch([], [], {}, 0)
    by_ids: dict[tuple[Owner, int], RowsOf] = {}
    for batch_field in fields:
        source = None
        if isinstance(batch_field.write, LaterRows):
            source = _source(batch_field, batch_field.write, local, by_ids, batch.remote)
        else:
            # The sampler writes from scratch memory that its next batch takes, so a copy is kept.
            array = np.empty(batch_field.shape, storage_dtype(batch_field.dtype))
            batch_field.write(array)
            batch_field = replace(batch_field, write=partial(_copy, array))
        batch.fields.append(batch_field)
        batch.sources.append(source)
    return replace(batch, nbytes=sum(_kept_bytes(batch_field) for batch_field in batch.fields))


def _copy(array: Array, out: Array) -> None:
    np.copyto(out, array)


def _kept_bytes(field: Field) -> int:
    write: Any = field.write
    return int((write.ids if isinstance(write, LaterRows) else write.args[0]).nbytes)


def _source(
    field: Field,
    later: LaterRows,
    local: Container[int],
    by_ids: dict[tuple[Owner, int], RowsOf],
    remote: dict[RowsOf, RemoteIds],
) -> RowsOf | None:
    """Return the rows that ``field`` reads from other machines, entered into ``remote``."""
    # Rows on this machine are not cached: they are in memory already, and read in place. A row
    # without columns needs no fetch.
    split = {p: at for p, at in (later.split or {}).items() if p not in local}
    if not split or 0 in field.shape[1:]:
        return None
    owner = owner_of(later.kind, later.name)
    number = sum(other == owner for other, _ in by_ids)
    # By identity, which the sampler keeps: `GraphReader` hands one split to all matrices that are
    # read for the same ids, and the fields keep it alive during the look-up.
    source = by_ids.setdefault((owner, id(later.split)), (owner, number))
    if source not in remote:
        ids = np.concatenate([later.ids.take(at) for at in split.values()])
        remote[source] = RemoteIds(split, ids, {})
    remote[source].matrices[later.kind, later.name] = (field.dtype, tuple(field.shape[1:]))
    return source


_MOST_AHEAD = 1 << 13
_FIRST_AHEAD = 4
"""Batches to draw ahead before anything is known about their size."""
_MOST_KEPT = 2
"""Memory of batches that are drawn and not filled, as a multiple of the cache's memory for rows."""
_LEAST_KEPT = 64 * 2**20
_MUCH_UNKNOWN = 0.02
_GROWTH, _MOST_GROWTH = 1.1, 2.0
"""The look-ahead grows, up to a factor, while rows without a visible next use are kept: few rows
that are requested again and again, such as those of hubs, fill it without filling the cache."""
_POLL_S = 0.001


_HEADER_SIZE = 5
_BEGUN, _TOTAL, _ALLOWED, _AHEAD, _GIVEN_UP = range(_HEADER_SIZE)
_MOST_KNOWN = 1 << 14
"""Batches of one epoch that may be drawn and not filled."""


class DrawnAhead:
    """Memory in which workers mark batches as drawn, and the trainer allows batches to be filled.

    A sequence of batches is an epoch of the loader: batches count from 0 in the order in which they
    are filled.

    Args:
        memory: ``[NUM_WORDS]`` int64, zeros when new, shared by both.
    """

    NUM_WORDS = _HEADER_SIZE + _MOST_KNOWN

    def __init__(self, memory: Array) -> None:
        self._header, self._marks = memory[:_HEADER_SIZE], memory[_HEADER_SIZE:]
        self._counted = (-1, 0)
        """A sequence, and the number of its first batches that are known to be drawn."""

    def begin(self, sequence: int, total: int) -> None:
        """Announce a sequence of ``total`` batches, none of which may be filled yet."""
        # There is no lock: the trainer alone writes the header, a word at a time. In this order, so
        # that a reader of the new sequence does not find the limit of the one before.
        self._header[_ALLOWED] = 0
        self._header[_TOTAL] = total
        self._header[_BEGUN] = sequence + 1  # 0, the value of new memory, is no sequence

    def allow(self, stop: int, ahead: int) -> None:
        """Let batches before ``stop`` be filled, each once the next ``ahead`` are drawn."""
        # in this order: a batch below the new limit waits for the new window
        self._header[_AHEAD] = ahead
        self._header[_ALLOWED] = stop

    def give_up(self, sequence: int) -> None:
        """Let no batch wait for later ones: a drawn batch may be drawn again."""
        self._header[_GIVEN_UP] = sequence + 1

    def note(self, sequence: int, batch: int) -> None:
        """Note that a batch is drawn."""
        self._marks[batch % _MOST_KNOWN] = _mark(sequence, batch)

    def may_fill(self, sequence: int, batch: int) -> bool:
        """Return whether a batch that was drawn may be filled now."""
        header = self._header
        if header[_BEGUN] != sequence + 1 or batch >= header[_ALLOWED]:
            return False
        if header[_GIVEN_UP] == sequence + 1:
            return True
        wanted = min(int(header[_TOTAL]), batch + 1 + int(header[_AHEAD]))
        return self._num_drawn_of_epoch(sequence, wanted) >= wanted

    def _num_drawn_of_epoch(self, sequence: int, most: int) -> int:
        """Return how many of the first batches of an epoch are drawn, up to ``most``, no gap."""
        # Continues from the last call, so that an epoch costs one look at each batch. A position
        # that was taken by a batch one round later has a larger mark, and its own batch was drawn.
        known, number = self._counted
        number = number if known == sequence else 0
        while number < most and self._marks[number % _MOST_KNOWN] >= _mark(sequence, number):
            number += 1
        self._counted = (sequence, number)
        return number


def _mark(sequence: int, batch: int) -> int:
    # larger than any mark of an earlier sequence, so that marks need not be cleared; fits into
    # int64 for 2 ** 31 sequences of 2 ** 32 batches
    return (sequence + 1 << 32) + batch + 1


@dataclass(frozen=True)
class AheadMemory(Generic[A]):
    """Memory that a worker maps to draw ahead."""

    cache: CacheMemory[A]
    drawn: A
    """See `DrawnAhead`."""
    user: int
    """Number of this worker's loader among the users of the cache."""


class LookAhead:
    """The trainer's side: how many batches to start, and which of them may be filled.

    Args:
        cache: Its size decides how far to look.
        drawn: Workers read there which batches may be filled.
        options: How far to look.
    """

    def __init__(self, cache: RowCache, drawn: DrawnAhead, options: CacheOptions) -> None:
        self._cache, self._drawn = cache, drawn
        self._fixed = options.lookahead
        self._ahead = _FIRST_AHEAD if options.lookahead is None else options.lookahead
        self._sequence = -1
        self._growth = 1.0
        self._given_up = False
        self._asked = self._kept = self._num_drawn = 0

    def begin(self, sequence: int, total: int) -> None:
        """Begin an epoch of ``total`` batches; ``sequence`` counts epochs."""
        self._sequence, self._given_up = sequence, False
        self._asked = self._kept = self._num_drawn = 0
        self._drawn.begin(sequence, total)

    def count(self, sequence: int, asked: int, kept: int) -> None:
        """Count a batch that was drawn.

        Args:
            sequence: Its epoch; older epochs are ignored.
            asked: Bytes of the rows that it requests.
            kept: Bytes that are kept for it until it is filled.
        """
        if sequence == self._sequence:
            self._asked += asked
            self._kept += kept
            self._num_drawn += 1

    def give_up(self) -> None:
        """Draw no batch ahead for the rest of the epoch: a worker with drawn batches is lost.

        They are drawn again, so no batch may wait for the ones after it.
        """
        self._given_up = True
        self._drawn.give_up(self._sequence)

    def limit(self, taken: int, room: int) -> int:
        """Return how many batches may be started and not taken.

        Args:
            taken: Batches of the epoch that were taken.
            room: Batches with their rows that fit, waiting ones included.
        """
        # one more than fit: it is drawn while the last of those is filled
        if self._given_up:
            self._drawn.allow(taken + room, 0)
            return room + 1
        drawn = self._num_drawn
        if drawn and self._fixed is None:
            self._ahead = self._window(self._asked / drawn, self._kept / drawn)
        # until the first batch is counted the window is a guess, so no batch is filled by it
        self._drawn.allow(taken + room if drawn else 0, self._ahead)
        return room + self._ahead + 1

    def _window(self, asked: float, kept: float) -> int:
        """Return how many batches to know ahead, given the bytes that one requests, and keeps.

        If others share the cache, the batches that all of them know ahead count.
        """
        if self._cache.unknown_share() > _MUCH_UNKNOWN:
            self._growth = min(_MOST_GROWTH, self._growth * _GROWTH)
        share = self._cache.row_bytes / self._cache.num_users
        wanted = math.ceil(WINDOW * self._growth * share / asked) if asked else _MOST_AHEAD
        most = max(_MOST_KEPT * share, _LEAST_KEPT) / max(kept, 1.0)
        return max(1, min(wanted, int(most), _MOST_AHEAD))


@dataclass(order=True)
class Waiting:
    """A batch that was drawn and not filled."""

    serial: int
    turn: int
    ticket: BatchTicket = field(compare=False)
    batch: DrawnBatch = field(compare=False)
    number: int = field(compare=False)
    """Number in the cache; -1: none."""
    num_seeds: int = field(compare=False)
    sample_s: float = field(compare=False)


class AheadTasks:
    """The worker's side: the next step of its threads, to fill a batch or to draw one.

    Args:
        may_fill: Whether a drawn batch may be filled, or dropped, now.
    """

    def __init__(self, may_fill: Callable[[Waiting], bool]) -> None:
        self._may_fill = may_fill
        self._changed = threading.Condition()
        self._tasks: deque[BatchTicket] = deque()
        self._waiting: list[Waiting] = []

    def put(self, task: BatchTicket) -> None:
        """Add a batch to draw."""
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()

    def put_drawn(self, waiting: Waiting) -> None:
        """Add a batch to fill when its turn comes."""
        with self._changed:
            heapq.heappush(self._waiting, waiting)
            self._changed.notify()

    def drop(self) -> list[Waiting]:
        """Return the drawn batches, none of which will be filled."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
            return waiting

    def get(self) -> Waiting | BatchTicket:
        """Wait for the next step: fill before draw, the earliest batch first."""
        with self._changed:
            while True:
                # the first stands for all: the batches below the limit are a prefix of the epoch,
                # and batches of an abandoned epoch, which may go at any time, come before it
                if self._waiting and self._may_fill(self._waiting[0]):
                    return heapq.heappop(self._waiting)
                if self._tasks:
                    return self._tasks.popleft()
                # shared memory cannot wake a waiter
                self._changed.wait(_POLL_S if self._waiting else None)
