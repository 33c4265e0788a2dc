"""Rows of other machines, kept in memory that the workers of a producer share.

::

    workers draw batches ahead --> add(batch, ids) --.   in order: each row learns its next use
    a worker fills a batch ------> plan(batch) ------+-> what is kept, what comes, what goes
                                   what was missing is fetched --> store() --> others copy it

Which rows are kept is decided batch after batch by Belady's rule on the batches that are known, so
it does not depend on which worker does what. Rows arrive when they arrive: a slot says whose row it
has, and who finds another one there waits, or fetches.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from gigl_loader.dataset.schema import NEIGHBOR_TIME, EdgeType, NodeType
from gigl_loader.dataset.view import A, Book, PartitionView
from gigl_loader.memory.mutex import MUTEX_BYTES, holding, make_mutex
from gigl_loader.memory.segments import Array, align, array_in, nbytes_of
from gigl_loader.sampler import _cache_kernels as kernels

Owner = tuple[str, NodeType | EdgeType]
"""``"node"`` or ``"edge"``, and a type: rows of its matrices are kept together."""
Matrix = tuple[str, Any]
"""Kind and name, as `GraphStore.fetch` has them."""

MISSING = kernels.MISSING
WINDOW = 5
"""How many times as many rows as fit the batches known ahead ask for: then what is kept is, as a
rule, what an offline optimum keeps. Measured; 2.5 times costs 3 to 8% more fetches."""
_MOST_BATCHES = 1 << 14
"""Batches known at once."""
_RING_SPARE = 1 << 18
"""References beyond those of the window: of the batches that are being filled."""
_LOCK_S = 60.0
_SLOTS = ("until", "held", "top", "below", "queue", "queued")
_FULL = 0.9
_SEQUENCE, _BROKEN, _BEGUN, _TOTAL, _ALLOWED, _AHEAD, _ASKED, _KEPT, _ADDED, _GIVEN_UP = range(10)
_HEADER_SIZE = 10
"""Places of the header: sequence of the batches that were added, and of those that are no longer
planned + 1; what the owner said: sequence, its batches, end of those that may be filled, batches to
know ahead; bytes of the rows that batches ask for, bytes kept of them, and how many there were; the
sequence that the owner gave up + 1."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one type."""

    num_ids: int
    capacity: int
    """Slots."""
    matrices: dict[Matrix, tuple[str, tuple[int, ...]]]
    """By matrix, dtype and shape of one row."""
    references: int
    """Rows that the batches known at once may ask for."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one id's rows."""
        return sum(nbytes_of(dtype, shape) for dtype, shape in self.matrices.values())

    def arrays(self) -> dict[Any, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of each array, by name; of the rows, by matrix."""
        slots, places, batches = (self.capacity,), (self.references,), (_MOST_BATCHES,)
        ids = "int32" if self.num_ids < 1 << 31 else "int64"  # these are read all over the place
        return {
            "state": ("int64", (kernels.STATE_SIZE,)),
            "ring": (ids, (*places, 2)), "plan": ("int32", places),
            "starts": ("int64", batches), "counts": ("int64", batches), "taken": ("uint8", batches),
            "known": ("int32", (self.num_ids, 2)),
            "holder": ("int64", slots), "stored": ("int64", slots), "until": ("int32", slots),
            "below": ("int32", slots), "queued": ("int32", slots),
            "queue": ("int32", (2 * self.capacity + 1,)),
            **dict.fromkeys(("held", "top"), ("int32", (_MOST_BATCHES + 1,))),
            **{
                matrix: (dtype, (self.capacity, *shape))
                for matrix, (dtype, shape) in self.matrices.items()
            },
        }  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(align(nbytes_of(*array)) for array in self.arrays().values())


@dataclass(frozen=True)
class CacheMemory(Generic[A]):
    """The memory of a cache, and what lies in it."""

    segment: A
    """``[nbytes]`` uint8, zeros when new, shared."""
    tables: dict[Owner, Table]


def segment_bytes(tables: Mapping[Owner, Table]) -> int:
    """Return how much memory a cache of ``tables`` takes."""
    return (
        align(MUTEX_BYTES)
        + align(8 * _HEADER_SIZE)
        + sum(table.nbytes for table in tables.values())
    )


class _Arrays:
    """One table's arrays over the segment."""

    def __init__(self, table: Table, segment: Array, offset: int) -> None:
        self.table = table
        found: dict[Any, Array] = {}
        for name, (dtype, shape) in table.arrays().items():
            found[name] = array_in(segment, dtype, shape, offset)
            offset += align(nbytes_of(dtype, shape))
        self.state, self.ring, self.decided_as = found["state"], found["ring"], found["plan"]
        self.starts, self.counts, self.taken = found["starts"], found["counts"], found["taken"]
        self.known, self.holder, self.stored = found["known"], found["holder"], found["stored"]
        self.slots = tuple(found[name] for name in _SLOTS)
        self.rows = {matrix: found[matrix] for matrix in table.matrices}

    def forget_rows(self) -> None:
        self.state[:] = 0
        self.known[:] = 0
        self.stored[:] = -1

    def forget_future(self) -> None:
        kernels.forget_future(
            self.state, self.ring, self.starts, self.counts, self.taken, self.slots
        )

    def add(self, batch: int, ids: Array) -> None:
        kernels.add(self.state, self.ring, self.starts, self.counts, batch, ids)
        kernels.link(self.state, self.ring, self.starts, self.counts, self.known, self.slots)

    def plan(self, batch: int, count: int) -> Array | None:
        while self.state[kernels.DECIDED] <= batch < self.state[kernels.LINKED]:
            kernels.decide(
                self.state, self.ring, self.decided_as, self.starts, self.counts, self.known,
                self.holder, self.slots,
            )  # fmt: skip
        out = np.empty(count, np.int32)
        known = kernels.take_plan(
            self.state, self.decided_as, self.starts, self.counts, self.taken, batch, out
        )
        return out if known else None


class RowCache:
    """The cache, as one process sees it.

    A sequence of batches is an epoch of a loader: batches count from 0 in the order in which they
    are filled. With a new sequence what was to come is forgotten, and rows stay.

    Args:
        memory: Shared by all processes that use the cache.
    """

    def __init__(self, memory: CacheMemory[Array]) -> None:
        segment = memory.segment
        self._mutex = segment[:MUTEX_BYTES]
        self._header = array_in(segment, "int64", (_HEADER_SIZE,), align(MUTEX_BYTES))
        self.tables: dict[Owner, _Arrays] = {}
        offset = align(MUTEX_BYTES) + align(self._header.nbytes)
        for owner, table in memory.tables.items():
            self.tables[owner] = _Arrays(table, segment, offset)
            offset += table.nbytes

    def initialise(self) -> None:
        """Make the memory, which is new, a cache without rows; once, by who made it."""
        make_mutex(self._mutex)
        self._header[:] = 0
        self._header[_SEQUENCE] = self._header[_BEGUN] = -1
        self._forget_all()

    def _forget_all(self) -> None:
        for arrays in self.tables.values():
            arrays.forget_rows()
            arrays.forget_future()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with holding(self._mutex, _LOCK_S) as was_abandoned:
            if was_abandoned:  # its holder was killed in the middle of a change
                self._header[_BROKEN] = self._header[_SEQUENCE] + 1
                self._forget_all()
            yield

    def _is_current(self, sequence: int) -> bool:
        header = self._header
        if sequence > header[_SEQUENCE]:
            header[_SEQUENCE] = sequence
            header[[_ASKED, _KEPT, _ADDED]] = 0
            for arrays in self.tables.values():
                arrays.forget_future()
        return bool(sequence == header[_SEQUENCE]) and not self._is_broken(sequence)

    def _is_broken(self, sequence: int) -> bool:
        return sequence + 1 in (self._header[_BROKEN], self._header[_GIVEN_UP])

    # -- the owner: how far to go --------------------------------------------------------------

    def begin(self, sequence: int, total: int) -> None:
        """Announce a sequence of ``total`` batches, none of which may be filled yet."""
        self._header[_ALLOWED] = 0
        self._header[_TOTAL] = total
        self._header[_BEGUN] = sequence

    def allow(self, stop: int, ahead: int) -> None:
        """Let batches before ``stop`` be filled, each once the next ``ahead`` are known."""
        self._header[_AHEAD] = ahead
        self._header[_ALLOWED] = stop

    def give_up(self, sequence: int) -> None:
        """Plan no more of this sequence: all its rows are fetched from here on."""
        self._header[_GIVEN_UP] = sequence + 1

    def demand(self, sequence: int) -> tuple[int, int, int]:
        """Return (bytes of rows asked for, bytes kept, batches) of what was added of a sequence."""
        if self._header[_SEQUENCE] != sequence:
            return 0, 0, 0
        asked, kept, added = self._header[[_ASKED, _KEPT, _ADDED]].tolist()
        return asked, kept, added

    def unknown_share(self) -> float:
        """Return the share of the slots whose rows were kept last without knowing their next use.

        0 where there is room left, and nothing has to go.
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

    # -- workers -------------------------------------------------------------------------------

    def may_fill(self, sequence: int, batch: int) -> bool:
        """Return whether a batch that was added may be filled now."""
        header = self._header
        if header[_BEGUN] != sequence or batch >= header[_ALLOWED]:
            return False
        if self._is_broken(sequence):
            return True
        linked = min(int(arrays.state[kernels.LINKED]) for arrays in self.tables.values())
        return linked >= min(int(header[_TOTAL]), batch + 1 + int(header[_AHEAD]))

    def add(self, sequence: int, batch: int, wanted: Mapping[Owner, Array], kept: int = 0) -> None:
        """Say which rows a batch is going to need.

        Args:
            sequence: Greater than any one before, or the one under way; what is older is ignored.
            batch: In the sequence.
            wanted: By owner, ids of rows of other machines, ``[n]`` int64; perhaps repeated.
            kept: Bytes that are kept of the batch until it is filled.
        """
        nothing = np.empty(0, np.int64)
        with self._locked():
            if not self._is_current(sequence):
                return
            for owner, arrays in self.tables.items():
                ids = wanted.get(owner, nothing)
                arrays.add(batch, ids)
                self._header[_ASKED] += arrays.table.row_bytes * ids.size
            self._header[[_KEPT, _ADDED]] += (kept, 1)

    def plan(self, sequence: int, batch: int, wanted: Mapping[Owner, Array]) -> dict[Owner, Array]:
        """Return what was decided for a batch's rows; without owners of which nothing is known.

        Call it once for each batch, when all batches of the window were added.

        Returns:
            By owner ``[n]`` int32, for each id: the slot that has its row; `MISSING`: it is to be
            fetched; below that, -2 - slot: it is to be fetched and stored there.
        """
        nothing = np.empty(0, np.int64)
        plans = {}
        with self._locked():
            if not self._is_current(sequence):
                return {}
            for owner, arrays in self.tables.items():
                found = arrays.plan(batch, wanted.get(owner, nothing).size)
                if found is not None:
                    plans[owner] = found
        return plans

    def store(
        self, owner: Owner, slots: Array, ids: Array, values: Mapping[Matrix, Array], at: Array
    ) -> None:
        """Store rows in the slots that still are for them.

        Args:
            owner: Whose rows.
            slots: ``[n]`` int32.
            ids: ``[n]`` int64.
            values: By matrix of the owner, all of them, rows.
            at: ``[n]`` int64, which row of these is of each id.
        """
        if slots.size == 0:
            return
        arrays = self.tables[owner]
        kept = np.empty(slots.size, np.int64)
        with self._locked():  # in three steps: who reads meanwhile looks at `stored` afterwards
            kept = kept[: kernels.claim(slots, ids, arrays.holder, arrays.stored, kept)]
            slots, ids, at = slots[kept], ids[kept], at[kept]
            for matrix, rows in arrays.rows.items():
                kernels.store_rows(_as_bytes(values[matrix]), at, slots, _as_bytes(rows))
            kernels.publish(slots, ids, arrays.stored)

    def overwrite(
        self, owner: Owner, slots: Array, ids: Array, values: Mapping[Matrix, Array], at: Array
    ) -> None:
        """Store rows in these slots, whose they are by now or not; as `store` otherwise.

        For one user alone, who reads and stores batch after batch in the order of their plans: a
        slot may be planned for a later row already, and is this one's until then.
        """
        arrays = self.tables[owner]
        for matrix, rows in arrays.rows.items():
            kernels.store_rows(_as_bytes(values[matrix]), at, slots, _as_bytes(rows))
        kernels.publish(slots, ids, arrays.stored)

    def is_held(self, owner: Owner, slots: Array, ids: Array) -> bool:
        """Return whether a slot of ``slots`` is still for its id: a row may come."""
        return bool((self.tables[owner].holder[slots] == ids).any())

    def absent(self, owner: Owner, slots: Array, ids: Array) -> Array:
        """Return the places of ``ids`` that their slots do not have, or not any more: ``[k]``.

        Rows that were copied out of slots before the call are right but for these.
        """
        out = np.empty(slots.size, np.int64)
        return out[: kernels.find_absent(slots, ids, self.tables[owner].stored, out)]

    def rows(self, owner: Owner, matrix: Matrix) -> Array:
        """Return a matrix of the cached rows, by slot."""
        return self.tables[owner].rows[matrix]

    def matrices(self, owner: Owner) -> Collection[Matrix]:
        """Return the matrices whose rows are kept together; none of an unknown owner."""
        return self.tables[owner].rows.keys() if owner in self.tables else ()


def _as_bytes(rows: Array) -> Array:
    """Return rows as a matrix of the widest words that they divide into."""
    flat = rows.reshape(rows.shape[0], -1).view(np.uint8)
    return flat.view(np.int64) if flat.shape[1] % 8 == 0 else flat


def make_tables(
    view: PartitionView[Any],
    remote: Mapping[Owner, int],
    size: int | float,
    kinds: Mapping[str, bool],
) -> dict[Owner, Table]:
    """Return the tables for a cache.

    Args:
        view: A partition; all of them have the same matrices.
        remote: By owner, how many rows are on other machines.
        size: Bytes of the whole cache; as a float, the share of the remote rows that are kept.
        kinds: By kind of matrix, whether the loader reads it.
    """
    matrices: dict[Owner, dict[Matrix, tuple[str, tuple[int, ...]]]] = {}
    for kind in (kind for kind, is_read in kinds.items() if is_read):
        for name, rows in getattr(view, kind).items():
            if kind.endswith("_attributes") and name[1].startswith(NEIGHBOR_TIME):
                continue  # no batch has these
            owner = owner_of(kind, name)
            shape = tuple(rows.values.shape[1:])
            if not rows.whole and remote.get(owner, 0) > 0 and 0 not in shape:
                matrices.setdefault(owner, {})[kind, name] = (rows.dtype, shape)

    books: dict[Any, Book[Any]] = {**view.node_books, **view.edge_books}
    num_ids = {owner: books[owner[1]].num_ids for owner in matrices}
    return tables_of(matrices, num_ids, remote, size)


def tables_of(
    matrices: Mapping[Owner, dict[Matrix, tuple[str, tuple[int, ...]]]],
    num_ids: Mapping[Owner, int],
    remote: Mapping[Owner, int],
    size: int | float,
) -> dict[Owner, Table]:
    """Return the tables for a cache of rows.

    Args:
        matrices: By owner and matrix, dtype and shape of one row.
        num_ids: By owner, how many ids there are.
        remote: By owner, how many rows are on other machines.
        size: As for `make_tables`.
    """

    def tables(share: float) -> dict[Owner, Table]:
        found = {}
        for owner, some in matrices.items():
            capacity = min(remote[owner], max(1, round(share * remote[owner])))
            found[owner] = Table(
                num_ids=num_ids[owner], capacity=capacity, matrices=some,
                references=2 * WINDOW * capacity + _RING_SPARE,
            )  # fmt: skip
        return found

    if isinstance(size, float):
        return tables(size)
    return tables(_share_of_bytes(tables, size))


def _share_of_bytes(tables: Any, size: int) -> float:
    """Return the share of the remote rows for which the tables take ``size`` bytes, or all."""
    low, high = 0.0, 1.0
    if segment_bytes(tables(high)) <= size:
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if segment_bytes(tables(middle)) <= size else (low, middle)
    return low


def owner_of(kind: str, name: Any) -> Owner:
    """Return whose rows a matrix has."""
    return kind.split("_")[0], name[0] if kind.endswith("_attributes") else name


def warm_up() -> None:
    """Run all kernels of a cache once."""
    table = Table(num_ids=4, capacity=1, matrices={("node_features", "a"): ("float32", (1,))},
                  references=8)  # fmt: skip
    owner: Owner = ("node", "a")
    memory = CacheMemory(np.zeros(segment_bytes({owner: table}), np.uint8), {owner: table})
    cache = RowCache(memory)
    cache.initialise()
    wanted: dict[Owner, Array] = {owner: np.array([2], np.int64)}
    cache.add(0, 0, wanted)
    slots = (-2 - cache.plan(0, 0, wanted)[owner]).astype(np.int32)
    for width in (1, 2):
        rows = np.zeros((1, width), np.float32)
        kernels.store_rows(_as_bytes(rows), np.zeros(1, np.int64), slots, _as_bytes(rows))
    values = {("node_features", "a"): np.zeros((1, 1), np.float32)}
    cache.store(owner, slots, wanted[owner], values, np.zeros(1, np.int64))
    cache.absent(owner, slots, wanted[owner])
