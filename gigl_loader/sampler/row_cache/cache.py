"""Rows of other machines, kept in memory shared by all workers that read them.

::

    workers draw batches ahead --> add(ids) --> number ---.   each row learns its next use
    a worker fills a batch ------> plan(number, ids) -----+-> which rows stay, come and go
                                   missing rows are fetched --> store() --> others copy them

All users of the memory, workers of one loader or of all ranks of a machine, share one clock:
batches are numbered as they become known. When a batch is filled, Belady's rule over all known
batches decides which rows are kept. A known batch may never be filled, because its worker or rank
is gone or waits. It holds rows until there is no room for the references of further batches, and is
then forgotten. If it is filled after all, nothing is kept for it. A row may arrive at any time: a
slot names its current row, and a reader that finds another row there waits or fetches.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gigl_loader.dataset.partition.partition_view import Matrix, Owner, Row
from gigl_loader.runtime.memory.mutex import Mutex
from gigl_loader.runtime.memory.segments import Array, align, array_in, nbytes_of
from gigl_loader.sampler.row_cache import kernels
from gigl_loader.sampler.row_cache.tables import RECENT, CacheMemory, RowTable, segment_bytes

# The lock is held for milliseconds: a wait of a minute means that the holder is stopped, by a
# signal or a debugger. The lock of a process that ended is released (`runtime.memory.mutex`).
_LOCK_S = 60.0
_FULL = 0.9


_CHANGED = ("state", "ring", "starts", "counts", "index", "holders", "slots", "top", "queue")
"""The arrays that the kernels change, in the order of their arguments."""


class _Arrays:
    """One table's arrays over the segment."""

    def __init__(self, table: RowTable, segment: Array, offset: int) -> None:
        self.table = table
        arrays: dict[Any, Array] = {}
        for name, (dtype, shape) in table.arrays().items():
            arrays[name] = array_in(segment, dtype, shape, offset)
            offset += align(nbytes_of(dtype, shape))
        # of nine arrays: mypy takes a tuple of any length for all arguments
        self._all: Any = [arrays[name] for name in _CHANGED]
        self.state, self.ring = arrays["state"], arrays["ring"]
        self.starts, self.counts, self.index = arrays["starts"], arrays["counts"], arrays["index"]
        self.holders, self.slots, self.stored = arrays["holders"], arrays["slots"], arrays["stored"]
        self.top, self.queue = arrays["top"], arrays["queue"]
        self.rows = {matrix: arrays[matrix] for matrix in table.matrices}

    @property
    def newest(self) -> int:
        return int(self.state[kernels.NEWEST])

    def forget_all(self, newest: int) -> None:
        self.state[:] = 0
        self.state[[kernels.OLDEST, kernels.NEWEST]] = newest
        self.index[:] = 0
        self.counts[:] = kernels.ABSENT
        # Holders need not be wiped, as no slot is in use; but the contents of `stored` would be
        # believed.
        self.stored[:] = self.top[:] = -1

    def add(self, ids: Array) -> None:
        kernels.add(*(*self._all, ids, np.empty(kernels.TURNS, np.int64)))

    def forget(self, batch: int) -> None:
        kernels.forget(*(*self._all, batch))

    def plan(self, batch: int, ids: Array) -> Array:
        out, missing = np.empty(ids.size, np.int32), np.empty((ids.size, 2), np.int32)
        kernels.decide(*(*self._all, batch, ids, out, missing))
        return out


class RowCache:
    """The cache, as one process sees it.

    Args:
        memory: Memory shared by all processes that use the cache.
    """

    MISSING = kernels.MISSING
    """In place of a slot: the row has to be fetched."""

    def __init__(self, memory: CacheMemory[Array]) -> None:
        segment = memory.segment
        self.mutex = Mutex(segment[: Mutex.NBYTES])
        """The lock of all tables."""
        offset = align(Mutex.NBYTES)
        header = array_in(segment, "int64", (1 + RECENT,), offset)
        self._joined = header[:1]
        """The number of users ever."""
        self._seen = header[1:]
        """By user, modulo their number: the last batch that it added + 1."""
        self.tables: dict[Owner, _Arrays] = {}
        offset += align(header.nbytes)
        for owner, table in memory.tables.items():
            self.tables[owner] = _Arrays(table, segment, offset)
            offset += table.nbytes

    @staticmethod
    def load_kernels() -> None:
        """Compile every kernel, or load it from Numba's cache, with one table and one batch."""
        matrices: dict[Matrix, Row] = {("node_features", "a"): ("float32", (1,))}
        table = RowTable(num_ids=4, capacity=1, matrices=matrices, references=8)
        owner: Owner = ("node", "a")
        cache = RowCache.private({owner: table})
        wanted: dict[Owner, Array] = {owner: np.array([2], np.int64)}
        number = cache.add(cache.join(), wanted)
        slots = (-2 - cache.plan(number, wanted)[owner]).astype(np.int32)
        cache.forget(cache.add(0, wanted))
        for width in (1, 2):
            rows = np.zeros((1, width), np.float32)
            kernels.store_rows(_as_bytes(rows), np.zeros(1, np.int64), slots, _as_bytes(rows))
        values = {("node_features", "a"): np.zeros((1, 1), np.float32)}
        cache.store(owner, slots, wanted[owner], values, np.zeros(1, np.int64))
        cache.absent(owner, slots, wanted[owner])

    @classmethod
    def private(cls, tables: dict[Owner, RowTable]) -> "RowCache":
        """Return a cache without rows, in memory of this process alone."""
        cache = cls(CacheMemory(np.zeros(segment_bytes(tables), np.uint8), tables))
        cache.initialise()
        return cache

    def initialise(self) -> None:
        """Turn new memory into a cache without rows; called once, by the process that made it."""
        self.mutex.make()
        self._joined[:] = self._seen[:] = 0
        for arrays in self.tables.values():
            arrays.forget_all(0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.mutex.held(_LOCK_S) as was_abandoned:
            if was_abandoned:  # its holder was killed in the middle of a change
                # numbers that were given out stay behind the clock: their batches are forgotten
                newest = 1 + max(arrays.newest for arrays in self.tables.values())
                for arrays in self.tables.values():
                    arrays.forget_all(newest)
            yield

    def join(self) -> int:
        """Return a number for a new user: a loader of a rank, with its workers."""
        with self._locked():
            number = int(self._joined[0])
            self._joined[0] = number + 1
        return number % RECENT

    @property
    def num_users(self) -> int:
        """The number of users that added one of the last batches, at least 1."""
        # Without the lock: a number that is off by one makes the look-ahead a little longer or
        # shorter, for one batch.
        newest = max(arrays.newest for arrays in self.tables.values())
        return max(1, int(np.count_nonzero(self._seen > max(0, newest - RECENT))))

    def unknown_share(self) -> float:
        """Return the share of the slots whose rows were last kept without a known next use.

        0 while there is room left, and no row has to go.
        """
        shares = [0.0]
        for arrays in self.tables.values():
            used, unknown = arrays.state[[kernels.USED, kernels.UNKNOWN]].tolist()
            if used >= _FULL * arrays.table.capacity:
                shares.append(unknown / arrays.table.capacity)
        return max(shares)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows that fit."""
        tables = [arrays.table for arrays in self.tables.values()]
        return sum(table.row_bytes * table.capacity for table in tables)

    def bytes_of(self, wanted: Mapping[Owner, Array]) -> int:
        """Return the bytes of the rows that a batch requests."""
        nothing = np.empty(0, np.int64)
        return sum(
            arrays.table.row_bytes * wanted.get(owner, nothing).size
            for owner, arrays in self.tables.items()
        )

    # -- batches -------------------------------------------------------------------------------

    def add(self, user: int, wanted: Mapping[Owner, Array]) -> int:
        """Announce the rows of a batch; it comes after all batches that were added before.

        Args:
            user: From `join`.
            wanted: By owner, ids of rows of other machines, ``[n]`` int64; perhaps repeated.

        Returns:
            The number of the batch, for `plan` or `forget`.
        """
        nothing = np.empty(0, np.int64)
        with self._locked():
            # Each table counts all batches, also those that request none of its rows: a number
            # holds for all tables. They agree; `_locked` repairs this after a holder was killed
            # between two.
            number = max(arrays.newest for arrays in self.tables.values())
            for owner, arrays in self.tables.items():
                arrays.add(wanted.get(owner, nothing))
            self._seen[user] = number + 1
        return number

    def forget(self, number: int) -> None:
        """Announce that a batch is not going to be filled."""
        with self._locked():
            for arrays in self.tables.values():
                arrays.forget(number)

    def plan(self, number: int, wanted: Mapping[Owner, Array]) -> dict[Owner, Array]:
        """Decide which rows of a batch are kept as it is filled, and find those that are cached.

        Args:
            number: From `add`. If the batch was forgotten, or planned before, nothing is kept.
            wanted: As it was added.

        Returns:
            By owner ``[n]`` int32, for each id: the slot that has its row; `MISSING` if it has to
            be fetched; below that, -2 - slot, if it has to be fetched and stored there.
        """
        nothing = np.empty(0, np.int64)
        with self._locked():
            return {
                owner: arrays.plan(number, wanted.get(owner, nothing))
                for owner, arrays in self.tables.items()
            }

    def store(
        self, owner: Owner, slots: Array, ids: Array, values: Mapping[Matrix, Array], at: Array
    ) -> None:
        """Store rows in those slots that are still reserved for them.

        Args:
            owner: Owner of the rows.
            slots: ``[n]`` int32.
            ids: ``[n]`` int64.
            values: Rows, by matrix of the owner, for all matrices.
            at: ``[n]`` int64, the row in ``values`` of each id.
        """
        if slots.size == 0:
            return
        arrays = self.tables[owner]
        kept = np.empty(slots.size, np.int64)
        # Marked empty, written, marked as full: readers copy rows without the lock meanwhile, and
        # check `stored` afterwards. The lock guards against other plans and other writers.
        with self._locked():
            kept = kept[: kernels.claim(slots, ids, arrays.holders, arrays.stored, kept)]
            slots, ids, at = slots[kept], ids[kept], at[kept]
            for matrix, rows in arrays.rows.items():
                kernels.store_rows(_as_bytes(values[matrix]), at, slots, _as_bytes(rows))
            kernels.publish(slots, ids, arrays.stored)

    def abandon(self, owner: Owner, slots: Array, ids: Array) -> None:
        """Announce that rows planned for these slots will not come: nobody waits for them."""
        arrays = self.tables[owner]
        with self._locked():
            # A row that came after all stays; a slot that now belongs to another row must not be
            # marked.
            empty = (arrays.holders[slots] == ids) & (arrays.stored[slots] != ids)
            arrays.stored[slots[empty]] = _abandoned(ids[empty])

    def is_held(self, owner: Owner, slots: Array, ids: Array) -> bool:
        """Return whether a slot of ``slots`` still belongs to its id, whose row may come."""
        arrays = self.tables[owner]
        # Without the lock, as `absent`: an outdated result costs a wait or a fetch, no row.
        awaited = arrays.stored[slots] != _abandoned(ids)
        return bool(((arrays.holders[slots] == ids) & awaited).any())

    def absent(self, owner: Owner, slots: Array, ids: Array) -> Array:
        """Return the positions of ``ids`` that are not, or no longer, in their slots: ``[k]``.

        All other rows that were copied out of slots before the call are right.
        """
        out = np.empty(slots.size, np.int64)
        return out[: kernels.find_absent(slots, ids, self.tables[owner].stored, out)]

    def rows(self, owner: Owner, matrix: Matrix) -> Array:
        """Return a matrix of the cached rows, by slot."""
        return self.tables[owner].rows[matrix]

    def matrices(self, owner: Owner) -> Collection[Matrix]:
        """Return the matrices whose rows are kept together; none for an unknown owner."""
        return self.tables[owner].rows.keys() if owner in self.tables else ()


def _abandoned(ids: Array) -> Array:
    """Return the mark in ``stored`` of a slot whose row will not be fetched."""
    # -1 is "empty". It depends on the id, so that a mark left by another row does not count.
    return -2 - ids


def _as_bytes(rows: Array) -> Array:
    """Return rows as a matrix of the widest words that divide them."""
    # Two kernels are compiled, for any type of rows: one for bytes, and one for words of eight.
    flat = rows.reshape(rows.shape[0], -1).view(np.uint8)
    return flat.view(np.int64) if flat.shape[1] % 8 == 0 else flat
