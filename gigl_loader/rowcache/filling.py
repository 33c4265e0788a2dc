"""Batches whose structure is drawn before their rows are read.

::

    sampler.sample() --> keep_structure() --> DrawnBatch: ids and edges as arrays, rows to be read
    Filler.fill() <-- plan of the row cache: asks other machines for what is missing, stores it,
                      and returns fields that copy rows from here, from the cache and the answers
"""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from gigl_loader.dataset.view import PartitionView, Rows
from gigl_loader.memory.segments import Array, storage_dtype
from gigl_loader.message import Field
from gigl_loader.rowcache.cache import MISSING, RowCache
from gigl_loader.rowcache.tables import Matrix, Owner, owner_of
from gigl_loader.sampler.later import LaterRows
from gigl_loader.sampler.questions import Peers, PendingAnswer, RowsAnswer
from gigl_loader.sampler.reader import Scratch, Split, gather_rows, located, rows_request

READY_S = 5.0
"""How long a batch waits for rows that another one is fetching before it fetches them itself: the
worker of the other one may have ended."""
_IN_VAIN_SHARE = 0.05  # of that, after rows did not come, until some do
# How soon rows are noticed that another process stores in shared memory, where nothing could wake
# this one: a small part of what a batch takes. Each look costs a pass over the absent rows.
_POLL_S = 0.0005

RowsOf = tuple[Owner, int]
"""Whose rows, and a number: one owner's rows for other ids are something else."""


@dataclass(frozen=True)
class Remote:
    """The ids of one owner that a batch needs from other machines."""

    split: Split
    """By partition, positions in the batch's ids; other machines' partitions alone."""
    ids: Array
    """``[n]`` int64, partition after partition."""
    matrices: list[Matrix]

    @property
    def positions(self) -> Array:
        """``[n]`` int64: where each id stands in the batch's ids."""
        return np.concatenate(list(self.split.values()))


@dataclass(frozen=True)
class DrawnBatch:
    """A batch without its rows."""

    fields: list[Field]
    sources: list[RowsOf | None]
    """For each field, the key in ``remote`` that it reads; None: no remote rows."""
    remote: dict[RowsOf, Remote]
    nbytes: int
    """Bytes that are kept for the batch."""

    def wanted(self) -> dict[Owner, Array]:
        """Return by owner the ids that the cache is told of."""
        return {owner: one.ids for (owner, number), one in self.remote.items() if number == 0}


def keep_structure(fields: Sequence[Field], here: Container[int]) -> DrawnBatch:
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
            source = _source(one.write, here, by_ids, batch.remote)
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
    later: LaterRows,
    here: Container[int],
    by_ids: dict[tuple[Owner, int], RowsOf],
    remote: dict[RowsOf, Remote],
) -> RowsOf | None:
    """Return what ``later`` reads from other machines, entered into ``remote``."""
    # Rows on this machine are not cached: they are in memory already, and read where they lie.
    split = {p: at for p, at in (later.split or {}).items() if p not in here}
    if not split:
        return None
    owner = owner_of(later.kind, later.name)
    number = sum(one == owner for one, _ in by_ids)
    # By identity, which the sampler keeps: `GraphReader` hands one split to all matrices that are
    # asked for the same ids, and the fields keep it alive while it is looked for.
    source = by_ids.setdefault((owner, id(later.split)), (owner, number))
    if source not in remote:
        ids = np.concatenate([later.ids.take(at) for at in split.values()])
        remote[source] = Remote(split, ids, [])
    remote[source].matrices.append((later.kind, later.name))
    return source


class Asked(Protocol):
    """Rows of a matrix that were asked for."""

    @property
    def rows(self) -> Array:
        """``[n, ...]``, where they come to lie."""
        ...

    def wait(self) -> Array:
        """Return them once they are there, or raise what went wrong."""
        ...


class Room(Protocol):
    """Memory for rows; `Scratch` is one."""

    def matrix(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return a contiguous array; the next one of that name may be the same memory."""
        ...


class Patience:
    """Waits for rows that others fetch; not long, while the last ones did not come.

    Who was to fetch them has ended, most likely, and had rows for the next batches, too.

    Args:
        ready_s: How long to wait otherwise, in seconds.
    """

    def __init__(self, ready_s: float) -> None:
        self._ready_s = self._waits_s = ready_s

    def wait(self, rows: "RemoteRows", meanwhile: Callable[[], None] | None = None) -> None:
        """Wait for those of a batch; see `RemoteRows.await_others`."""
        came = rows.await_others(self._waits_s, meanwhile)
        # None is no sign of either: nothing had to come.
        if came is not None:
            self._waits_s = self._ready_s if came else _IN_VAIN_SHARE * self._ready_s


class Filler:
    """Fills drawn batches. One object per sampling thread.

    Args:
        view: The partition, and what is on the same host.
        peers: Who has the rest; these put rows into the memory that they are given for them.
        cache: Rows of other machines.
        ready_s: How long to wait for rows that another batch is fetching.
    """

    def __init__(
        self,
        view: PartitionView[Array],
        peers: Peers,
        cache: RowCache,
        ready_s: float = READY_S,
    ) -> None:
        self._here = {view.partition_idx: view, **view.same_host}
        self._view, self._peers, self._cache = view, peers, cache
        self._patience = Patience(ready_s)
        self._scratch = Scratch()
        self._rows: list[RemoteRows] = []
        """Rows of the batch that was filled last."""

    @property
    def num_cached(self) -> int:
        """Rows of the batch filled last that the cache had, of each matrix, once it is written."""
        return sum(one.num_cached for one in self._rows)

    def fill(self, batch: DrawnBatch, plans: Mapping[Owner, Array]) -> list[Field]:
        """Return the fields of a batch, once the rows of other machines are here.

        They are written before the next call.

        Args:
            batch: From `keep_structure`.
            plans: From `RowCache.plan`.
        """
        rows: dict[RowsOf, RemoteRows] = {}
        for source, remote in batch.remote.items():
            owner, number = source
            # The cache was told of the first set of ids of each owner alone (`DrawnBatch.wanted`);
            # and it keeps all matrices of a row together, so a batch that reads only some of them
            # cannot fill it.
            plan = plans.get(owner) if number == 0 else None
            wide = {one for one in remote.matrices if 0 not in self._matrix(*one).values.shape[1:]}
            if plan is None or wide != set(self._cache.matrices(owner)):
                plan = np.full(remote.ids.size, MISSING, np.int32)
            # rows of one matrix for other ids are under way at the same time: memory for each
            ask = partial(self._ask, number=number)
            rows[source] = RemoteRows(owner, remote, plan, self._cache, ask, self._scratch)
        # All are asked for before anything is waited for: what several owners answer comes at the
        # same time.
        for one in rows.values():
            one.store()  # before anything of other batches is waited for, so that none goes around
        for one in rows.values():
            self._patience.wait(one)
        self._rows = list(rows.values())
        return [
            self._field(field, None if source is None else rows[source])
            for field, source in zip(batch.fields, batch.sources, strict=True)
        ]

    def _matrix(self, kind: str, name: Any, partition: int | None = None) -> Rows[Array]:
        view = self._view if partition is None else self._here[partition]
        rows: Rows[Array] = getattr(view, kind)[name]
        return rows

    def _ask(
        self, matrix: Matrix, remote: Remote, at: Array, *, number: int, again: bool = False
    ) -> Asked:
        """Ask for the rows of ``remote.ids[at]``; ``at`` ascends, ``number`` as in `RowsOf`."""
        kind, name = matrix
        like = self._matrix(kind, name).values
        shape = (at.size, *like.shape[1:])
        dtype = like.dtype.name
        # named work memory: answers land in pages that are mapped already
        out = (
            np.empty(shape, like.dtype)
            if again
            else self._scratch.matrix(f"{matrix} {number}", dtype, shape)
        )
        pending: list[PendingAnswer[RowsAnswer]] = []
        # ``remote.ids`` come partition after partition and ``at`` ascends: each asks for one slice.
        ends = np.cumsum([positions.size for positions in remote.split.values()])
        cuts = np.searchsorted(at, [0, *ends])
        for partition, start, stop in zip(remote.split, cuts[:-1], cuts[1:], strict=True):
            if start < stop:
                request = rows_request(kind, name, remote.ids[at[start:stop]])
                pending.append(self._peers.rows(partition, request, out[start:stop]))
        return _Pieces(out, pending)

    def _field(self, field: Field, remote: "RemoteRows | None") -> Field:
        later = field.write
        if not isinstance(later, LaterRows):
            return field
        return replace(field, write=partial(self._write, later, remote))

    def _write(self, later: LaterRows, remote: "RemoteRows | None", out: Array) -> None:
        if later.split is None:
            rows = self._matrix(later.kind, later.name)
            gather_rows([(rows.values, located(rows, later.ids), None)], out)
            return
        parts: list[tuple[Array, Array, Array | None]] = []
        for partition in self._here.keys() & later.split.keys():
            rows = self._matrix(later.kind, later.name, partition)
            positions = later.split[partition]
            parts.append((rows.values, located(rows, later.ids.take(positions)), positions))
        if remote is not None:
            parts += remote.parts((later.kind, later.name))
        gather_rows(parts, out)
        if remote is not None:
            # After the copy: only now it is known which slots had the right row all the time that
            # they were read.
            remote.repair((later.kind, later.name), out)


@dataclass(frozen=True)
class _Pieces:
    rows: Array
    pending: list[PendingAnswer[RowsAnswer]]

    def wait(self) -> Array:
        for answer in self.pending:
            # Nothing is put together: each answer came to lie in its part of ``rows``.
            answer.wait()
        return self.rows


class RemoteRows:
    """The rows of other machines of one owner and batch: of the cache, or fetched.

    Args:
        owner: Whose rows.
        remote: Which of them.
        plan: From `RowCache.plan`, for ``remote.ids``.
        cache: None: nothing is kept, and ``plan`` says so.
        ask: Given a matrix, ``remote`` and ascending positions in ``remote.ids``, asks for these
            rows; with ``again``, for some that were to be here.
        scratch: For copies of rows that are here.
        earlier: Batches of the same owner that are stored before this one. Their slots may be
            planned for others before their rows come; these are then taken from them.
        is_alone: Nobody stores rows before this batch is written, this batch's own included.
    """

    def __init__(
        self, owner: Owner, remote: Remote, plan: Array, cache: RowCache | None,
        ask: Callable[..., Asked], scratch: Room, earlier: Sequence["RemoteRows"] = (),
        is_alone: bool = False,
    ) -> None:  # fmt: skip
        self._earlier = earlier
        self._owner, self._remote, self._cache, self._ask = owner, remote, cache, ask
        self._plan = plan
        self._positions = remote.positions
        self._fetched = np.flatnonzero(plan < 0)
        self._cached = np.flatnonzero(plan >= 0)
        self._scratch = scratch
        self._asked = {matrix: ask(matrix, remote, self._fetched) for matrix in remote.matrices}
        self._copies: list[tuple[Array, dict[Matrix, Array], Array]] = []
        """Rows that are no longer read in their slots: positions, rows by matrix, which of
        these."""
        self._num_again = 0
        self._has_come = self._is_stored = False
        if self._fetched.size and not is_alone:
            self._copy_out()

    @property
    def _here(self) -> RowCache:
        assert self._cache is not None, "without a cache no row is planned to be here"
        return self._cache

    def wait(self) -> dict[Matrix, Array]:
        """Wait for the answers, and return their rows by matrix."""
        rows = {matrix: asked.wait() for matrix, asked in self._asked.items()}
        self._has_come = True
        return rows

    def store(self) -> None:
        """Wait for the answers, and let the cache have what it is to keep."""
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
        """Return which of the fetched rows are kept, their slots, their ids."""
        kept = np.flatnonzero(self._plan[self._fetched] < MISSING)
        at = self._fetched[kept]
        return kept, -2 - self._plan[at], self._remote.ids[at]

    def _copy_out(self) -> None:
        """Copy the rows that are here, while others come.

        Rows of this batch, or of a later one whose rows come sooner, are stored in the slots of
        rows that are used in this one for the last time: without the copy nearly half of the hits
        were fetched again over a slow link. What is not here now does not come to such a slot any
        more: `RowCache.store` asks whose it is.
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
            rows[matrix] = self._scratch.matrix(f"copied {matrix}", values.dtype.name, shape)
            gather_rows([(values, slots, None)], rows[matrix])
        # others may have taken some meanwhile
        gone = self._here.absent(self._owner, self._plan[at], self._remote.ids[at])
        there = np.delete(np.arange(at.size), gone)
        self._copies.append((at[there], rows, there))
        # Ascending, as `Filler._ask` takes places that are asked for again.
        self._cached = np.sort(np.concatenate([self._cached[absent], at[gone]]))

    def await_others(
        self, timeout_s: float, meanwhile: Callable[[], None] | None = None
    ) -> bool | None:
        """Wait until rows that other batches fetch are there; fetch what does not come.

        Args:
            timeout_s: How long, in seconds.
            meanwhile: Called again and again. Who fills several batches stores the rows of the
                later ones here, since another process may wait for those.

        Returns:
            Whether they came, or were given up by who was to fetch them; None where all were there.
        """
        self._take_from_earlier()
        if self._absent().size == 0:
            return None
        deadline = time.monotonic() + timeout_s
        while (absent := self._absent()).size and time.monotonic() < deadline:
            # Their slots went to other rows, or who was to fetch them said that it does not: none
            # comes.
            if self._given_up(absent):
                break
            if meanwhile is not None:
                meanwhile()
            time.sleep(_POLL_S)
        if absent.size == 0:
            return True
        # Given up is no reason to wait less for the next batch, as a deadline that passed is.
        in_time, late = time.monotonic() < deadline, self._cached[absent]
        self._cached = np.delete(self._cached, absent)
        asked = {m: self._ask(m, self._remote, late, again=True) for m in self._asked}
        rows = {matrix: one.wait() for matrix, one in asked.items()}
        ids, everything = self._remote.ids[late], np.arange(late.size)
        # Others may wait for these rows, too, and would fetch each of them once more.
        self._here.store(self._owner, self._plan[late], ids, rows, everything)
        self._copies.append((late, rows, everything))
        self._num_again += late.size * len(rows)
        return in_time

    def _take_from_earlier(self) -> None:
        """Take rows whose slots went to others before they came from the batches that had them."""
        earlier, self._earlier = self._earlier, ()  # or each would keep all before it
        # This batch, too: a row that it repeats may be among those that it has fetched.
        for one in (*earlier, self):
            absent = self._absent()
            if absent.size == 0:
                return
            found, rows = one.fetched_rows(self._remote.ids[self._cached[absent]])
            is_there = found >= 0
            if is_there.any():
                self._copies.append((self._cached[absent[is_there]], rows, found[is_there]))
                self._cached = np.delete(self._cached, absent[is_there])

    def fetched_rows(self, ids: Array) -> tuple[Array, dict[Matrix, Array]]:
        """Return which of the fetched rows have these ids, -1 for none, and the rows by matrix."""
        known = self._remote.ids[self._fetched]
        order = np.argsort(known)
        # Without this, memory that answers are still to be written to would be read.
        if not self._has_come or known.size == 0:
            return np.full(ids.size, -1), {}
        at = order[np.minimum(np.searchsorted(known, ids, sorter=order), known.size - 1)]
        return np.where(known[at] == ids, at, -1), {m: a.rows for m, a in self._asked.items()}

    @property
    def num_cached(self) -> int:
        """How many rows need not be fetched."""
        planned = np.count_nonzero(self._plan >= 0) * len(self._remote.matrices)
        return int(planned) - self._num_again

    def _absent(self) -> Array:
        """Return the positions in ``_cached`` whose rows are not in their slots."""
        at = self._cached
        if at.size == 0:
            return at
        return self._here.absent(self._owner, self._plan[at], self._remote.ids[at])

    def _given_up(self, absent: Array) -> bool:
        """Return whether slots of all these are for other rows by now, and will not be filled."""
        at = self._cached[absent]
        return not self._here.is_held(self._owner, self._plan[at], self._remote.ids[at])

    def parts(self, matrix: Matrix) -> list[tuple[Array, Array, Array | None]]:
        """Return (matrix, rows, positions in the batch) as `gather_rows` takes them."""
        found: list[tuple[Array, Array, Array | None]] = []
        if self._cached.size:
            rows = self._here.rows(self._owner, matrix)
            slots = self._plan[self._cached].astype(np.int64)
            found.append((rows, slots, self._positions[self._cached]))
        if self._fetched.size:
            rows, at = self._asked[matrix].rows, self._fetched
            found.append((rows, np.arange(at.size), self._positions[at]))
        found += [
            (copied[matrix], which, self._positions[at]) for at, copied, which in self._copies
        ]
        return found

    def repair(self, matrix: Matrix, out: Array) -> None:
        """Fetch rows whose slots were given to others while they were copied."""
        absent = self._absent()
        if absent.size:
            at = self._cached[absent]
            self._num_again += absent.size
            out[self._positions[at]] = self._ask(matrix, self._remote, at, again=True).wait()
