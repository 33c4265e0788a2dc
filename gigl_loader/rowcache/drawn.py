"""Batches whose structure is drawn before their rows are read.

::

    sampler.sample() --> keep_structure() --> DrawnBatch: ids and edges as arrays, rows to be read
    a batch that came without rows -----------^

What a drawn batch lacks is told to the row cache (`DrawnBatch.wanted`), and fetched by
`gigl_loader.rowcache.pipeline`.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.memory.segments import Array, storage_dtype
from gigl_loader.message import Field
from gigl_loader.rowcache.tables import Matrix, Owner, owner_of
from gigl_loader.sampler.later import LaterRows
from gigl_loader.sampler.row_exchange import Split

RowsOf = tuple[Owner, int]
"""Whose rows, and a number: one owner's rows for other ids are something else."""


@dataclass(frozen=True)
class RemoteIds:
    """The ids of one owner whose rows a batch needs from other machines."""

    split: Split
    """Positions in the batch's ids, by partition or server that has the rows."""
    ids: Array
    """``[n]`` int64, those of the first who has some, then those of the next one."""
    matrices: dict[Matrix, tuple[str, tuple[int, ...]]]
    """By matrix, dtype and shape of one row, which has columns."""

    @property
    def positions(self) -> Array:
        """``[n]`` int64: where each id stands in the batch's ids."""
        return np.concatenate(list(self.split.values()))

    def pieces(self, at: Array) -> list[tuple[int, Array]]:
        """Return (owner, ids) for the ids at the positions ``at``, which ascend."""
        # The ids are in the order of who has them, so each part of ``at`` is a slice of it.
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
    """Bytes that are kept for the batch."""

    def wanted(self) -> dict[Owner, Array]:
        """Return by owner the ids that the cache is told of: the first ones of each."""
        return {owner: one.ids for (owner, number), one in self.remote.items() if number == 0}


def keep_structure(fields: Sequence[Field], here: Container[int] = ()) -> DrawnBatch:
    """Return a batch that outlives its sampler's next one.

    Args:
        fields: From the sampler.
        here: Partitions that are read in this machine's memory.
    """
    batch = DrawnBatch([], [], {}, 0)
    by_ids: dict[tuple[Owner, int], RowsOf] = {}
    for one in fields:
        source = None
        if isinstance(one.write, LaterRows):
            source = _source(one, one.write, here, by_ids, batch.remote)
        else:
            # The sampler writes from scratch memory that its next batch takes: what is kept is a
            # copy.
            array = np.empty(one.shape, storage_dtype(one.dtype))
            one.write(array)
            one = replace(one, write=partial(_copy, array))
        batch.fields.append(one)
        batch.sources.append(source)
    return replace(batch, nbytes=sum(_kept_bytes(one) for one in batch.fields))


def _copy(array: Array, out: Array) -> None:
    np.copyto(out, array)


def _kept_bytes(field: Field) -> int:
    write: Any = field.write
    return int((write.ids if isinstance(write, LaterRows) else write.args[0]).nbytes)


def _source(
    field: Field, later: LaterRows, here: Container[int], by_ids: dict[tuple[Owner, int], RowsOf],
    remote: dict[RowsOf, RemoteIds],
) -> RowsOf | None:  # fmt: skip
    """Return what ``field`` reads from other machines, entered into ``remote``."""
    # Rows on this machine are not cached: they are in memory already, and read where they lie. A
    # row without columns is nothing to fetch.
    split = {p: at for p, at in (later.split or {}).items() if p not in here}
    if not split or 0 in field.shape[1:]:
        return None
    owner = owner_of(later.kind, later.name)
    number = sum(one == owner for one, _ in by_ids)
    # By identity, which the sampler keeps: `GraphReader` hands one split to all matrices that are
    # asked for the same ids, and the fields keep it alive while it is looked for.
    source = by_ids.setdefault((owner, id(later.split)), (owner, number))
    if source not in remote:
        ids = np.concatenate([later.ids.take(at) for at in split.values()])
        remote[source] = RemoteIds(split, ids, {})
    remote[source].matrices[later.kind, later.name] = (field.dtype, tuple(field.shape[1:]))
    return source
