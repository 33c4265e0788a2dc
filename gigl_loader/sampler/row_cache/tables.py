"""The size of a row cache: its tables, by their sizes alone.

::

    rows of other machines, size --> RowTables.of --> RowTable: slots, references, index
                                                      --> arrays, one after the other in one memory

Nothing in it has to grow with the graph. The index is by id if that takes less memory than a hash
table of the useful ids, whose number follows from the number of slots.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from gigl_loader.dataset.partition.partition_view import (
    ROW_KINDS,
    A,
    Book,
    Matrix,
    Owner,
    PartitionView,
    Row,
    owner_of,
)
from gigl_loader.dataset.schema import is_in_batches
from gigl_loader.runtime.memory.mutex import Mutex
from gigl_loader.runtime.memory.segments import align, nbytes_of
from gigl_loader.sampler.plan import SamplingPlan

_log = logging.getLogger(__name__)

WINDOW = 5
"""Rows that the batches known ahead request, as a multiple of the rows that fit. With this value
the kept rows are, as a rule, those of an offline optimum. Measured; 2.5 costs 3 to 8% more
fetches."""
STATE_SIZE = 11
"""Counters of a table."""
RECENT = 64
"""A user that added none of the last so many batches is not counted."""
_MOST_BATCHES = 1 << 14
"""Batches known at once; a reference has 15 bits for its batch."""
_RING_SPARE = 1 << 18
"""References beyond those of the window, for batches that are being filled. These have as many rows
with any cache size; and if rows of one type are few, so are those of the window."""
_MOST_SLOTS = ((1 << 31) - 1 - _RING_SPARE) // (2 * WINDOW)
"""Most slots of a table: positions of references are int32."""
_FULL = 0.8
"""Share of a hashed index that is filled if all batches request different rows; with more, each
search would read several cache lines."""


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """The rows of one type."""

    num_ids: int
    capacity: int
    """Slots."""
    matrices: dict[Matrix, Row]
    references: int
    """Rows that the batches known at once may request."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one id's rows."""
        return sum(nbytes_of(dtype, shape) for dtype, shape in self.matrices.values())

    @property
    def index_shape(self) -> tuple[int, int]:
        """Entries and columns: a position for each id, or two words for each useful id."""
        # An id is in the index if it has a reference or a slot: at most the sum of both.
        hashed = (int((self.references + self.capacity) / _FULL) + 1, 2)
        return (self.num_ids, 1) if self.num_ids <= 2 * hashed[0] else hashed

    def arrays(self) -> dict[Any, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of each array, by name; of the rows, by matrix."""
        slots, batches = (self.capacity,), (_MOST_BATCHES,)
        return {
            "state": ("int64", (STATE_SIZE,)),
            "ring": ("int32", (self.references, 4)),
            "starts": ("int64", batches),
            "counts": ("int64", batches),
            "index": ("int32", self.index_shape),
            "holders": ("int64", slots),
            "slots": ("int32", (self.capacity, 2)),
            "stored": ("int64", slots),
            "queue": ("int32", (2 * self.capacity + 1,)),
            "top": ("int32", batches),
            **{
                matrix: (dtype, (self.capacity, *shape))
                for matrix, (dtype, shape) in self.matrices.items()
            },
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(align(nbytes_of(*array)) for array in self.arrays().values())


@dataclass(frozen=True)
class CacheMemory(Generic[A]):
    """The memory of a cache, and its tables."""

    segment: A
    """``[nbytes]`` uint8, zeros when new, shared."""
    tables: dict[Owner, RowTable]


class RowTables(dict[Owner, RowTable]):
    """The tables of a cache, by owner of the rows."""

    @property
    def nbytes(self) -> int:
        """Bytes of a cache of these tables."""
        return segment_bytes(self)

    @property
    def row_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(table.capacity * table.row_bytes for table in self.values())

    @classmethod
    def of_view(
        cls,
        view: PartitionView[Any],
        plan: SamplingPlan,
        same_host: Mapping[int, Any],
        size: int | float,
    ) -> "RowTables":
        """Return the tables of a cache for remote rows that ``plan`` reads; see `make_tables`.

        Args:
            view: This rank's partition.
            plan: The sampling plan; edge rows are read if it returns edge ids.
            same_host: Partitions that are read in this machine's memory.
            size: Bytes, or a share of the rows.
        """
        remote = set(range(view.num_partitions)) - {view.partition_idx} - set(same_host)
        kinds = {kind: plan.has_rows(kind) for kind in ROW_KINDS}
        return make_tables(view, remote_rows(view, remote), size, kinds)

    @classmethod
    def of(
        cls,
        matrices: Mapping[Owner, dict[Matrix, Row]],
        num_ids: Mapping[Owner, int],
        remote: Mapping[Owner, int],
        size: int | float,
    ) -> "RowTables":
        """Return the tables for a cache of rows.

        Args:
            matrices: By owner and matrix, dtype and shape of one row.
            num_ids: By owner, the number of ids.
            remote: By owner, the number of rows on other machines.
            size: As for `make_tables`.
        """

        def tables(share: float) -> dict[Owner, RowTable]:
            row_tables = {}
            for owner, owned in matrices.items():
                # A small share of few rows would round to a table without slots.
                wanted = max(1, round(share * remote[owner]))
                capacity = min(remote[owner], wanted, _MOST_SLOTS)
                row_tables[owner] = RowTable(
                    # Room for two windows: batches of a user that is gone stay known until the ring
                    # is full, and meanwhile the other users must know theirs.
                    num_ids=num_ids[owner],
                    capacity=capacity,
                    matrices=owned,
                    references=2 * WINDOW * capacity + _RING_SPARE,
                )
            return row_tables

        if isinstance(size, float):
            return cls(tables(size))
        row_tables = tables(_share_of_bytes(tables, size))
        # Half of it for rows: the fixed memory of a table would leave none, or next to none.
        least = min(2 * segment_bytes(tables(0.0)), segment_bytes(tables(1.0)))
        if row_tables and size < least:
            _log.warning(
                "remote_cache of %d bytes keeps %d of %d rows of other machines, since their index "
                'takes most of it: the smallest useful size here is "%dMB"',
                size,
                sum(table.capacity for table in row_tables.values()),
                sum(remote[owner] for owner in row_tables),
                -(-least // 10**6),
            )
        return cls(row_tables)

    def in_order(self) -> "RowTables":
        """Return the same tables in an order that follows from their names.

        For memory that processes share: the place of a table follows from those before it, and each
        process has the types in the order of its own dicts, or of its user's sampler.
        """

        def name(item: tuple[Any, Any]) -> str:
            return repr(item[0])

        return RowTables(
            {
                owner: replace(table, matrices=dict(sorted(table.matrices.items(), key=name)))
                for owner, table in sorted(self.items(), key=name)
            }
        )


def segment_bytes(tables: Mapping[Owner, RowTable]) -> int:
    """Return the bytes of a cache of ``tables``."""
    return (
        align(Mutex.NBYTES)
        + align(8 * (1 + RECENT))
        + sum(table.nbytes for table in tables.values())
    )


def make_tables(
    view: PartitionView[Any],
    remote: Mapping[Owner, int],
    size: int | float,
    kinds: Mapping[str, bool],
) -> RowTables:
    """Return the tables for a cache.

    Args:
        view: A partition; all of them have the same matrices.
        remote: By owner, how many rows are on other machines.
        size: Bytes of the whole cache; as a float, the share of the remote rows that are kept.
        kinds: By kind of matrix, whether the loader reads it.
    """
    by_matrix: dict[Matrix, Row] = {}
    for kind in (kind for kind, is_read in kinds.items() if is_read):
        for name, rows in getattr(view, kind).items():
            if kind.endswith("_attributes") and not is_in_batches(name[1]):
                continue  # no batch has these
            if not rows.whole and remote.get(owner_of(kind, name), 0) > 0:
                by_matrix[kind, name] = rows.dtype, tuple(rows.values.shape[1:])
    matrices = by_owner(by_matrix)
    books: dict[Any, Book[Any]] = {**view.node_books, **view.edge_books}
    num_ids = {owner: books[owner[1]].num_ids for owner in matrices}
    return RowTables.of(matrices, num_ids, remote, size)


def by_owner(rows: Mapping[Matrix, Row]) -> dict[Owner, dict[Matrix, Row]]:
    """Return matrices by owner, without those that have no columns.

    Such rows need no fetch, and no batch counts them among those that it lacks.
    """
    grouped: dict[Owner, dict[Matrix, Row]] = {}
    for matrix, (dtype, shape) in rows.items():
        if 0 not in shape:
            grouped.setdefault(owner_of(*matrix), {})[matrix] = dtype, shape
    return grouped


def remote_rows(view: PartitionView[Any], remote: set[int]) -> dict[Owner, int]:
    """Return by owner how many rows the partitions ``remote`` have."""
    num_rows = {}
    for kind, books in (("node", view.node_books), ("edge", view.edge_books)):
        for name, book in books.items():
            # partition p has the ids up to the p-th bound; else a table names each id's partition
            if book.bounds is not None:
                sizes = np.diff(np.asarray(book.bounds), prepend=0)
            else:
                sizes = np.bincount(np.asarray(book.table), minlength=view.num_partitions)
            num_rows[kind, name] = int(sum(sizes[partition] for partition in remote))
    return num_rows


def _share_of_bytes(tables: Any, size: int) -> float:
    """Return the share of the remote rows for which the tables take ``size`` bytes, or all."""
    # Searched, as the bytes of a table are no simple function of its slots: the index has one form
    # for few ids and another for many, and each array is aligned.
    low, high = 0.0, 1.0
    if segment_bytes(tables(high)) <= size:
        return high
    # 2 ** -30: less than a row of a billion.
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if segment_bytes(tables(middle)) <= size else (low, middle)
    return low
