"""The way of a batch to its rows: drawn, planned, asked, filled, complete.

::

    sampler, or server --> DrawnBatch --> Pipeline.add():  the cache learns which rows come when
                                          Pipeline.ask():  what is kept is planned, the rest asked
    others' rows, answers --> filled  --> Pipeline.complete(): stored, waited for, written

A worker process goes through it batch by batch, in several threads with a pipeline each. A client
of a graph store has several batches under way in one thread. What is under way is in `Filling`
alone, so that any number of batches may be.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from gigl_loader.dataset.view import PartitionView, Rows
from gigl_loader.memory.segments import Array
from gigl_loader.message import Field
from gigl_loader.rowcache.cache import MISSING, RowCache
from gigl_loader.rowcache.drawn import DrawnBatch, RowsOf
from gigl_loader.rowcache.remote_rows import (
    READY_S,
    Patience,
    RemoteRows,
    Room,
    RowCounts,
)
from gigl_loader.rowcache.tables import Owner
from gigl_loader.sampler.later import LaterRows
from gigl_loader.sampler.row_exchange import RowPeers, gather_rows, located

NOT_PLANNED = -1
"""Number of a batch that the cache is not told of: all of its rows are fetched."""
T = TypeVar("T")


@dataclass
class Filling:
    """A batch whose rows are on their way."""

    batch: DrawnBatch
    is_alone: bool
    """Whether no other process or loader used the cache when the rows were asked for."""
    counts: RowCounts = field(default_factory=RowCounts)
    rows: dict[RowsOf, RemoteRows] = field(default_factory=dict)

    @property
    def num_cached(self) -> int:
        """Rows that the cache had, of each matrix; known once the batch is complete."""
        return sum(one.num_cached for one in self.rows.values())

    def store(self) -> None:
        """Wait for the answers, and let the cache have what it is to keep."""
        for one in self.rows.values():
            one.store()

    def store_if_there(self) -> None:
        """Do so if none has to be waited for."""
        if all(one.has_come for one in self.rows.values()):
            self.store()

    def abandon(self) -> None:
        """Let nobody wait for rows of this batch, which is not filled."""
        for one in self.rows.values():
            one.abandon()


class Pipeline:
    """Fills drawn batches. One object per thread.

    Args:
        peers: Who has the rows of other machines; these put rows into the memory that they are
            given for them.
        room: Memory for rows on their way.
        cache: Rows of other machines; None: nothing is kept.
        user: From `RowCache.join`.
        view: The partition, and what is on the same host; None: nothing is.
        ready_s: How long to wait for rows that another batch is fetching.
        is_only: Nobody but this object fills batches of its user.
    """

    def __init__(
        self, peers: RowPeers, room: Room, cache: RowCache | None = None, user: int = 0, *,
        view: PartitionView[Array] | None = None, ready_s: float = READY_S, is_only: bool = False,
    ) -> None:  # fmt: skip
        self._view = view
        self._here: dict[int, PartitionView[Array]] = {}
        if view is not None:
            self._here = {view.partition_idx: view, **view.same_host}
        self._peers, self._room, self._cache, self._user = peers, room, cache, user
        self._is_only, self._patience = is_only, Patience(ready_s)

    def add(self, batch: DrawnBatch) -> int:
        """Tell the cache what a batch is going to need; return its number, for `ask`."""
        return NOT_PLANNED if self._cache is None else self._cache.add(self._user, batch.wanted())

    def forget(self, number: int) -> None:
        """Tell the cache that a batch is not going to be filled."""
        if self._cache is not None and number != NOT_PLANNED:
            self._cache.forget(number)

    def ask(
        self, batch: DrawnBatch, number: int = NOT_PLANNED, earlier: Iterable[Filling] = ()
    ) -> Filling:
        """Decide what is kept of a batch's rows, and ask for those that are not here.

        Args:
            batch: From `keep_structure`.
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
                kept = np.flatnonzero(plan < MISSING)
                if kept.size and self._cache is not None:
                    self._cache.abandon(owner, -2 - plan[kept], wanted[owner][kept])
            raise

    def _asked(
        self, batch: DrawnBatch, plans: Mapping[Owner, Array], earlier: list[Filling]
    ) -> Filling:
        filling = Filling(batch, self._is_alone())
        # All are asked for before anything is waited for: what several owners answer comes at the
        # same time.
        for source, remote in batch.remote.items():
            owner, number = source
            # The cache was told of the first ids of each owner alone (`DrawnBatch.wanted`); and a
            # slot has rows of all matrices of its owner, so a batch that reads only some of them
            # can neither fill it nor be filled from it.
            plan = plans.get(owner) if number == 0 else None
            kept = () if self._cache is None else self._cache.matrices(owner)
            if plan is None or remote.matrices.keys() != set(kept):
                plan = np.full(remote.ids.size, MISSING, np.int32)
            filling.rows[source] = RemoteRows(
                source, remote, plan, self._cache, self._peers, self._room, filling.counts,
                # a row that is planned to be here may be on its way for one of these, and its slot
                # be another row's by then
                [one.rows[source] for one in earlier if source in one.rows], filling.is_alone,
            )  # fmt: skip
        return filling

    def _is_alone(self) -> bool:
        """Return whether nobody else uses the cache; what one who joins takes is fetched again."""
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
            for one in under_way:
                one.store_if_there()

        try:
            for one in filling.rows.values():
                one.wait()
            # before anything of others is waited for, so that none goes around. Looked at again: a
            # loader that came since would wait for these rows
            if not (filling.is_alone and self._is_alone()):
                filling.store()
            for one in filling.rows.values():
                self._patience.wait(one, meanwhile)
            written = write(self._fields(filling))
            filling.store()  # alone, what the batch has is not copied before its slots are written
        except BaseException:
            filling.abandon()
            raise
        return written

    def _fields(self, filling: Filling) -> list[Field]:
        fields, batch = [], filling.batch
        for one, source in zip(batch.fields, batch.sources, strict=True):
            if isinstance(one.write, LaterRows):
                rows = None if source is None else filling.rows[source]
                one = replace(one, write=partial(self._write, one.write, rows))
            fields.append(one)
        return fields

    def _write(self, later: LaterRows, remote: RemoteRows | None, out: Array) -> None:
        if out.size == 0:  # of rows without columns there is nothing to read
            return
        matrix = (later.kind, later.name)
        if later.split is None:
            rows = self._matrix(self._view, *matrix)
            gather_rows([(rows.values, located(rows, later.ids), None)], out)
            return
        parts: list[tuple[Array, Array, Array | None]] = []
        for partition in self._here.keys() & later.split.keys():
            rows = self._matrix(self._here[partition], *matrix)
            positions = later.split[partition]
            parts.append((rows.values, located(rows, later.ids.take(positions)), positions))
        if remote is not None:
            parts += remote.parts(matrix)
        gather_rows(parts, out)
        if remote is not None:
            # After the copy: only now it is known which slots had the right row all the time that
            # they were read.
            remote.repair(matrix, out)

    @staticmethod
    def _matrix(view: PartitionView[Array] | None, kind: str, name: Any) -> Rows[Array]:
        rows: Rows[Array] = getattr(view, kind)[name]
        return rows
