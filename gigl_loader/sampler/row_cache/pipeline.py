"""How a batch gets its rows: drawn, planned, requested, filled, complete.

::

    sampler, or server --> DrawnBatch --> Pipeline.add():  the cache learns which rows come when
                                          Pipeline.ask():  kept rows are planned, others requested
    others' rows, responses -> filled --> Pipeline.complete(): stored, waited for, written

A worker process runs it batch by batch, in several threads with a pipeline each. A client of a
graph store has several batches under way in one thread. All state of a batch under way is in
`Filling`, so their number is not limited.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from gigl_loader.batch.message import Field
from gigl_loader.dataset.partition.partition_view import Matrix, Owner, PartitionView
from gigl_loader.runtime.memory.segments import Array, nbytes_of, storage_dtype
from gigl_loader.sampler.plan import RowPeers
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import DrawnBatch, RemoteIds, RowsOf
from gigl_loader.sampler.rows.row_exchange import (
    LaterRows,
    Part,
    RequestedRows,
    gather_rows,
    part_of,
)

READY_S = 5.0
"""How long a batch waits for rows that another batch fetches, before it fetches them itself: the
other batch's worker may have ended."""
_IN_VAIN_SHARE = 0.05  # of that time, after rows did not come, until some do
# How soon rows are noticed that another process stores in shared memory, which cannot wake this
# one: a small part of a batch's time. Each look costs a pass over the absent rows.
_POLL_S = 0.0005


class RowMemory(Protocol):
    """Memory for rows; `gigl_loader.sampler.rows.reader.Scratch` is one."""

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a contiguous array; the next one of that name may be the same memory."""


@dataclass
class RowCounts:
    """Counts of the requested rows of one batch."""

    by_owner: Counter[int] = field(default_factory=Counter)
    """Rows by the partition or server that they were requested from."""
    nbytes: int = 0


class Patience:
    """Waits for rows that others fetch, but not long while the last ones did not come.

    The process that was to fetch them has probably ended, and had rows for the next batches, too.

    Args:
        ready_s: How long to wait otherwise, in seconds.
    """

    def __init__(self, ready_s: float) -> None:
        self._ready_s = self._waits_s = ready_s

    def wait(self, rows: "RemoteRows", meanwhile: Callable[[], None] | None = None) -> None:
        """Wait for the rows of a batch; see `RemoteRows.await_others`."""
        came = rows.await_others(self._waits_s, meanwhile)
        # None shows neither: no row had to come.
        if came is not None:
            self._waits_s = self._ready_s if came else _IN_VAIN_SHARE * self._ready_s


class RemoteRows:
    """The rows of other machines of one owner and batch: from the cache, or fetched.

    Args:
        source: Owner of the rows.
        remote: Ids of the rows.
        plan: From `RowCache.plan`, for ``remote.ids``.
        cache: None if nothing is kept; ``plan`` agrees.
        peers: Source of the rows that are not here.
        room: Memory for requested rows, and for copies of rows that are here.
        counts: Counts of the batch.
        earlier: Batches of the same owner that are stored before this one. Their slots may be
            planned for others before their rows come; the rows are then taken from them.
        is_alone: No rows are stored before this batch is written, its own included.
    """

    def __init__(
        self,
        source: RowsOf,
        remote: RemoteIds,
        plan: Array,
        cache: RowCache | None,
        peers: RowPeers,
        room: RowMemory,
        counts: RowCounts,
        earlier: Sequence["RemoteRows"] = (),
        is_alone: bool = False,
    ) -> None:
        (self._owner, self._number), self._remote, self._plan = source, remote, plan
        self._cache, self._peers, self._room, self._counts = cache, peers, room, counts
        self._earlier = earlier
        self._positions = remote.positions
        self._fetched = np.flatnonzero(plan < 0)
        self._set_cached(np.flatnonzero(plan >= 0))
        # rows of one matrix for other ids are under way at the same time: memory for each
        self._asked = {matrix: self._ask(matrix, self._fetched, room) for matrix in remote.matrices}
        self._copies: list[tuple[Array, dict[Matrix, Array], Array]] = []
        """Rows that are no longer read from their slots: positions, rows by matrix, and the row of
        each position."""
        self._num_again = 0
        self._is_there = self._is_stored = False
        if self._fetched.size and not is_alone:
            self._copy_out()

    def _set_cached(self, at: Array) -> None:
        """Set the positions of the ids whose rows are read from slots."""
        # gathered once for each change: a batch is looked through three times or more
        self._cached, self._slots, self._ids = at, self._plan[at], self._remote.ids[at]

    def _ask(self, matrix: Matrix, at: Array, room: RowMemory | None = None) -> RequestedRows:
        """Request the rows of the ids at ``at``, which ascend; None: they come to fresh memory."""
        dtype, row_shape = self._remote.matrices[matrix]
        shape = (at.size, *row_shape)
        if room is None:
            out = np.empty(shape, storage_dtype(dtype))
        else:  # named work memory: responses land in pages that are mapped already
            out = room.matrix(f"{matrix} {self._number}", dtype, shape)
        pieces = self._remote.pieces(at)
        for owner, ids in pieces:
            self._counts.by_owner[owner] += ids.size
        self._counts.nbytes += nbytes_of(dtype, shape)
        return RequestedRows(self._peers, *matrix, pieces, out)

    @property
    def has_come(self) -> bool:
        """Whether `wait` would return at once."""
        return all(asked.has_come for asked in self._asked.values())

    @property
    def _here(self) -> RowCache:
        assert self._cache is not None, "without a cache no row is planned to be here"
        return self._cache

    def wait(self) -> dict[Matrix, Array]:
        """Wait for the responses, and return their rows by matrix."""
        rows = {matrix: asked.wait() for matrix, asked in self._asked.items()}
        self._is_there = True
        return rows

    def store(self) -> None:
        """Wait for the responses, and give the cache the rows that it keeps."""
        if self._is_stored:
            return
        rows = self.wait()
        self._is_stored = True
        kept, slots, ids = self._to_keep()
        if kept.size and self._cache is not None:
            self._cache.store(self._owner, slots, ids, rows, kept)

    def abandon(self) -> None:
        """Let nobody wait for the rows that this batch was to store."""
        kept, slots, ids = self._to_keep()
        if kept.size and self._cache is not None and not self._is_stored:
            self._cache.abandon(self._owner, slots, ids)

    def _to_keep(self) -> tuple[Array, Array, Array]:
        """Return the positions of the fetched rows that are kept, their slots, their ids."""
        kept = np.flatnonzero(self._plan[self._fetched] < RowCache.MISSING)
        at = self._fetched[kept]
        return kept, -2 - self._plan[at], self._remote.ids[at]

    def _copy_out(self) -> None:
        """Copy the rows that are here, while others come.

        Rows of this batch, or of a later one whose rows come sooner, are stored in slots of rows
        that are used for the last time in this batch. Without the copy, nearly half of the hits
        were fetched again over a slow link. A row that is missing now will not come to such a slot
        any more: `RowCache.store` checks the slot's id.
        """
        # Not there yet: another batch fetches them, and `await_others` waits for them.
        absent = self._absent()
        at = np.delete(self._cached, absent)
        if at.size == 0:
            return
        slots = self._plan[at].astype(np.int64)
        rows = {}
        for matrix in self._asked:
            values = self._here.rows(self._owner, matrix)
            shape = (at.size, *values.shape[1:])
            rows[matrix] = self._room.matrix(f"copied {matrix}", values.dtype.name, shape)
            gather_rows([(values, slots, None)], rows[matrix])
        # others may have taken some slots meanwhile
        gone = self._here.absent(self._owner, self._plan[at], self._remote.ids[at])
        held = np.delete(np.arange(at.size), gone)
        self._copies.append((at[held], rows, held))
        # Ascending, as `_ask` takes the positions of repeated requests.
        self._set_cached(np.sort(np.concatenate([self._cached[absent], at[gone]])))

    def await_others(
        self, timeout_s: float, meanwhile: Callable[[], None] | None = None
    ) -> bool | None:
        """Wait until rows that other batches fetch are there; fetch those that do not come.

        Args:
            timeout_s: How long, in seconds.
            meanwhile: Called again and again. A process that fills several batches stores the rows
                of the later ones here, since another process may wait for those.

        Returns:
            Whether they came, or were given up by the fetching process; None if all were there.
        """
        if self._take_from_earlier().size == 0:
            return None
        deadline = time.monotonic() + timeout_s
        while (absent := self._absent()).size and time.monotonic() < deadline:
            # Their slots went to other rows, or the fetching process announced that they will not
            # come.
            if self._given_up(absent):
                break
            if meanwhile is not None:
                meanwhile()
            time.sleep(_POLL_S)
        if absent.size == 0:
            return True
        # Rows that were given up are no reason to wait less for the next batch; a passed deadline
        # is.
        in_time, late = time.monotonic() < deadline, self._cached[absent]
        self._set_cached(np.delete(self._cached, absent))
        asked = {matrix: self._ask(matrix, late) for matrix in self._asked}
        rows = {matrix: asked_rows.wait() for matrix, asked_rows in asked.items()}
        ids, everything = self._remote.ids[late], np.arange(late.size)
        # Others may wait for these rows, too, and would fetch each of them once more.
        self._here.store(self._owner, self._plan[late], ids, rows, everything)
        self._copies.append((late, rows, everything))
        self._num_again += late.size * len(rows)
        return in_time

    def _take_from_earlier(self) -> Array:
        """Take rows that lost their slots before they came from the batches that fetched them.

        Returns:
            The positions in ``_cached`` whose rows are not in their slots, nor were taken.
        """
        earlier, self._earlier = self._earlier, ()  # or each would keep all before it
        # This batch, too: a row that it repeats may be among its fetched rows.
        for batch_rows in (*earlier, self):
            absent = self._absent()
            if absent.size == 0:
                return absent
            fetched, rows = batch_rows.fetched_rows(self._ids[absent])
            is_there = fetched >= 0
            if is_there.any():
                self._copies.append((self._cached[absent[is_there]], rows, fetched[is_there]))
                self._set_cached(np.delete(self._cached, absent[is_there]))
        return self._absent()

    def fetched_rows(self, ids: Array) -> tuple[Array, dict[Matrix, Array]]:
        """Return the fetched row of each id, -1 for none, and the rows by matrix."""
        # Without this, memory would be read that responses are still to be written to.
        if not self._is_there or self._fetched.size == 0:
            return np.full(ids.size, -1), {}
        known = self._remote.ids[self._fetched]
        order = np.argsort(known)
        at = order[np.minimum(np.searchsorted(known, ids, sorter=order), known.size - 1)]
        return np.where(known[at] == ids, at, -1), {m: a.rows for m, a in self._asked.items()}

    @property
    def num_cached(self) -> int:
        """The number of rows that need not be fetched."""
        planned = np.count_nonzero(self._plan >= 0) * len(self._remote.matrices)
        return int(planned) - self._num_again

    def _absent(self) -> Array:
        """Return the positions in ``_cached`` whose rows are not in their slots."""
        if self._cached.size == 0:
            return self._cached
        return self._here.absent(self._owner, self._slots, self._ids)

    def _given_up(self, absent: Array) -> bool:
        """Return whether slots of all these now belong to other rows, and will not be filled."""
        return not self._here.is_held(self._owner, self._slots[absent], self._ids[absent])

    def parts(self, matrix: Matrix) -> list[Part]:
        """Return the rows, which go to their positions in the batch."""
        parts: list[Part] = []
        if self._cached.size:
            rows = self._here.rows(self._owner, matrix)
            parts.append((rows, self._slots.astype(np.int64), self._positions[self._cached]))
        if self._fetched.size:
            rows, at = self._asked[matrix].rows, self._fetched
            parts.append((rows, np.arange(at.size), self._positions[at]))
        parts += [
            (copied[matrix], which, self._positions[at]) for at, copied, which in self._copies
        ]
        return parts

    def repair(self, matrix: Matrix, out: Array) -> None:
        """Fetch rows whose slots were given to others while they were copied."""
        absent = self._absent()
        if absent.size:
            at = self._cached[absent]
            self._num_again += absent.size
            out[self._positions[at]] = self._ask(matrix, at).wait()


NOT_PLANNED = -1
"""Number of a batch that the cache does not know: all of its rows are fetched."""
T = TypeVar("T")


@dataclass
class Filling:
    """A batch whose rows are on their way."""

    batch: DrawnBatch
    is_alone: bool
    """Whether no other process or loader used the cache when the rows were requested."""
    counts: RowCounts = field(default_factory=RowCounts)
    rows: dict[RowsOf, RemoteRows] = field(default_factory=dict)

    @property
    def num_cached(self) -> int:
        """Rows of each matrix that the cache had; known once the batch is complete."""
        return sum(rows.num_cached for rows in self.rows.values())

    def store(self) -> None:
        """Wait for the responses, and give the cache the rows that it keeps."""
        for rows in self.rows.values():
            rows.store()

    def store_if_there(self) -> None:
        """Store rows if all have come."""
        if all(rows.has_come for rows in self.rows.values()):
            self.store()

    def abandon(self) -> None:
        """Let nobody wait for rows of this batch, which will not be filled."""
        for rows in self.rows.values():
            rows.abandon()


class Pipeline:
    """Fills drawn batches. One object per thread.

    Args:
        peers: Source of the rows of other machines; it writes rows to the memory that it is given.
        room: Memory for rows on their way.
        cache: Cache of rows of other machines; None: nothing is kept.
        user: From `RowCache.join`.
        view: The partition, and the partitions on the same host; None if there is none.
        ready_s: How long to wait for rows that another batch is fetching.
        is_only: Only this object fills batches of its user.
    """

    def __init__(
        self,
        peers: RowPeers,
        room: RowMemory,
        cache: RowCache | None = None,
        user: int = 0,
        *,
        view: PartitionView[Array] | None = None,
        ready_s: float = READY_S,
        is_only: bool = False,
    ) -> None:
        self._view = view
        self._here: dict[int, PartitionView[Array]] = {}
        if view is not None:
            self._here = {view.partition_idx: view, **view.same_host}
        self._peers, self._room, self._cache, self._user = peers, room, cache, user
        self._is_only, self._patience = is_only, Patience(ready_s)

    def add(self, batch: DrawnBatch) -> int:
        """Announce the rows of a batch to the cache; return the batch's number, for `ask`."""
        return NOT_PLANNED if self._cache is None else self._cache.add(self._user, batch.wanted())

    def forget(self, number: int) -> None:
        """Announce to the cache that a batch is not going to be filled."""
        if self._cache is not None and number != NOT_PLANNED:
            self._cache.forget(number)

    def ask(
        self, batch: DrawnBatch, number: int = NOT_PLANNED, earlier: Iterable[Filling] = ()
    ) -> Filling:
        """Decide which rows of a batch are kept, and request those that are not here.

        Args:
            batch: From `copy_drawn`.
            number: From `add`.
            earlier: Batches that are on their way, and complete before this one.
        """
        wanted, plans = batch.wanted(), {}
        if self._cache is not None and number != NOT_PLANNED:
            plans = self._cache.plan(number, wanted)
        try:
            return self._asked(batch, plans, list(earlier))
        except BaseException:
            for owner, plan in plans.items():
                # others find these slots planned, and would wait for rows that do not come
                kept = np.flatnonzero(plan < RowCache.MISSING)
                if kept.size and self._cache is not None:
                    self._cache.abandon(owner, -2 - plan[kept], wanted[owner][kept])
            raise

    def _asked(
        self, batch: DrawnBatch, plans: Mapping[Owner, Array], earlier: list[Filling]
    ) -> Filling:
        filling = Filling(batch, self._is_alone())
        # All are requested before anything is waited for: the responses of several owners come at
        # the same time.
        for source, remote in batch.remote.items():
            owner, number = source
            # The cache learned only the first ids of each owner (`DrawnBatch.wanted`). A slot has
            # rows of all matrices of its owner, so a batch that reads only some of them can neither
            # fill it nor be filled from it.
            plan = plans.get(owner) if number == 0 else None
            kept = () if self._cache is None else self._cache.matrices(owner)
            if plan is None or remote.matrices.keys() != set(kept):
                plan = np.full(remote.ids.size, RowCache.MISSING, np.int32)
            filling.rows[source] = RemoteRows(
                source,
                remote,
                plan,
                self._cache,
                self._peers,
                self._room,
                filling.counts,
                # a row that is planned to be here may be on its way for one of these, and its slot
                # may then belong to another row
                [other.rows[source] for other in earlier if source in other.rows],
                filling.is_alone,
            )
        return filling

    def _is_alone(self) -> bool:
        """Return whether nobody else uses the cache; rows taken by a new user are fetched again."""
        return self._is_only and (self._cache is None or self._cache.num_users == 1)

    def complete(
        self, filling: Filling, write: Callable[[list[Field]], T], under_way: Iterable[Filling] = ()
    ) -> T:
        """Wait for a batch's rows, and return what ``write`` returns of its fields.

        Args:
            filling: From `ask`.
            write: Lets each field write its values.
            under_way: Batches whose rows are stored meanwhile, as they come: another process may
                wait for them.

        Raises:
            PeerError: Rows could not be fetched; nobody waits for those of this batch.
        """
        under_way = list(under_way)

        def meanwhile() -> None:
            for other in under_way:
                other.store_if_there()

        try:
            for rows in filling.rows.values():
                rows.wait()
            # before any wait for others' rows, so that no wait is circular. Checked again: a loader
            # that joined since would wait for these rows
            if not (filling.is_alone and self._is_alone()):
                filling.store()
            for rows in filling.rows.values():
                self._patience.wait(rows, meanwhile)
            written = write(self._fields(filling))
            filling.store()  # alone: it has read its rows in place, so its slots come last
        except BaseException:
            filling.abandon()
            raise
        return written

    def _fields(self, filling: Filling) -> list[Field]:
        fields, batch = [], filling.batch
        for batch_field, source in zip(batch.fields, batch.sources, strict=True):
            if isinstance(batch_field.write, LaterRows):
                rows = None if source is None else filling.rows[source]
                batch_field = replace(
                    batch_field, write=partial(self._write, batch_field.write, rows)
                )
            fields.append(batch_field)
        return fields

    def _write(self, later: LaterRows, remote: RemoteRows | None, out: Array) -> None:
        if out.size == 0:  # rows without columns need no reading
            return
        matrix = (later.kind, later.name)
        if later.split is None:
            gather_rows([part_of(getattr(self._view, later.kind)[later.name], later.ids)], out)
            return
        parts = [
            part_of(getattr(self._here[p], later.kind)[later.name], later.ids, later.split[p])
            for p in self._here.keys() & later.split.keys()
        ]
        if remote is not None:
            parts += remote.parts(matrix)
        gather_rows(parts, out)
        if remote is not None:
            # After the copy: only now it is known which slots had the right row during the whole
            # read.
            remote.repair(matrix, out)
