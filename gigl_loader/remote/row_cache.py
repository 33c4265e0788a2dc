"""Batches of a graph store that come without rows: filled here, from a cache where there is one.

::

    server: structure --> drawn --> RowCache.add: next uses are known a window ahead
                          plan()  <-- in order --- ask the owners for what is not here
                          fill    <-- answers, kept rows --> filled --> next()

One thread does all of it in the order of the epoch. What is kept is shared with the other ranks of
the machine (`gigl_loader.rowcache.machine`), who store rows in slots that this one reads: so a
batch copies what is here when it asks for the rest, and looks afterwards what it has got. Only this
machine knows what it holds; servers are asked for rows by id, and a row never changes, so a server
that was started again makes nothing stale.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.errors import GiglLoaderError, PeerError, PeerTimeoutError, UsageError
from gigl_loader.memory.segments import Array, align, array_in, nbytes_of
from gigl_loader.memory.tensors import tensor_in
from gigl_loader.message import ROWS, Received, SampleMessage
from gigl_loader.options import CacheOptions
from gigl_loader.remote.buffers import BufferPool, PoolRoom
from gigl_loader.remote.channel import RemoteReceivingChannel
from gigl_loader.remote.cluster import Cluster
from gigl_loader.remote.rows import Fetched, RowQuestions, owner_of_rows
from gigl_loader.rowcache.cache import MISSING, RowCache
from gigl_loader.rowcache.filling import READY_S, Patience, Remote, RemoteRows
from gigl_loader.rowcache.look_ahead import DrawnAhead, LookAhead
from gigl_loader.rowcache.machine import MachineRows, memory_for
from gigl_loader.rowcache.tables import Matrix, Owner, tables_of
from gigl_loader.sampler.apart import RowsApart, read_rows_apart
from gigl_loader.sampler.reader import gather_rows
from gigl_loader.threads import new_thread

_UNDER_WAY = 3
"""Batches whose rows are asked for at once: the next questions wait at the servers already."""
_LATE_S = 5.0
"""How much longer than the channel, which knows more of its silence, this waits for a batch."""
# the thread looks at `_stopped` after each batch; one that waits longer than that waits for rows
_JOIN_S = 2.0


@dataclass
class _Batch:
    """A batch that came without rows."""

    received: Received
    order: list[str]
    specs: list[RowsApart]
    remote: dict[tuple[Owner, str], Remote] = field(default_factory=dict)
    """By owner and key of the tensor with the ids; of an owner, the first are planned."""
    number: int = -1
    """In the cache; -1: none."""

    def specs_of(self, owner: Owner, key: str) -> list[RowsApart]:
        """Return the tensors of rows with these ids that have columns."""
        return [one for one in self.specs if _place_of(one) == (owner, key) and 0 not in one.shape]

    def wanted(self) -> dict[Owner, Array]:
        """Return by owner the ids that the cache is told of."""
        found: dict[Owner, Array] = {}
        for (owner, _), remote in self.remote.items():
            found.setdefault(owner, remote.ids)
        return found


@dataclass
class _Filling:
    """A batch whose rows are on their way."""

    batch: _Batch
    counts: "_Counts"
    is_alone: bool
    """Whether no other process or loader used the cache when the rows were asked for."""
    rows: dict[tuple[Owner, str], RemoteRows] = field(default_factory=dict)
    fetched: list[Fetched] = field(default_factory=list)
    """All that were asked for."""

    def store(self) -> None:
        """Wait for the answers, and let the cache have what it is to keep."""
        for one in self.rows.values():
            one.store()

    def store_if_there(self) -> None:
        """Do so if none has to be waited for."""
        if all(one.has_come for one in self.fetched):
            self.store()

    def abandon(self) -> None:
        """Let nobody wait for rows of this batch, which is not filled."""
        for one in self.rows.values():
            one.abandon()


def _place_of(spec: RowsApart) -> tuple[Owner, str]:
    return owner_of_rows(spec), spec.ids


class RowKeeper:
    """Receives batches without rows, and hands them out with theirs.

    Args:
        cluster: The storage servers.
        options: What to keep; None: nothing.
        room: Batches that may be filled, or on their way, and not taken.
        timeout_s: Seconds without any batch before a wait is an error.
        pin_memory: Fill page-locked memory.
        machine_rows: Memory for what is kept, shared with other ranks and loaders; None: this
            object has its own.
    """

    def __init__(
        self, cluster: Cluster, options: CacheOptions | None, room: int, timeout_s: float,
        pin_memory: bool, machine_rows: MachineRows | None = None,
    ) -> None:  # fmt: skip
        self._machine_rows = machine_rows
        self._options, self._room, self._timeout_s = options, room, timeout_s
        self._pin, self._pool = pin_memory, BufferPool(pin_memory)
        # half of the limit at most, so that there is time left to fetch what others did not
        self._patience = Patience(min(READY_S, timeout_s / 2))
        self._questions = RowQuestions(cluster, self._pool.take_leased, timeout_s)
        # connections of its own, since answers come in the order of the questions: a batch beside
        # the epoch would wait for the rows of several batches of it
        self._at_once = RowQuestions(cluster, self._pool.take_leased, timeout_s)
        """Row requests of batches beside the epoch, which another thread fills."""
        self._cache: RowCache | None = None
        self._look_ahead: LookAhead | None = None
        self._sequence = self._user = -1
        self._channel: RemoteReceivingChannel | None = None
        # guards `_filled`, `_error` and the flags, which two threads use: the one that fills, and
        # the one that takes. The cache and what is drawn or asked belong to the first alone
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._closed = False
        self._filled: deque[Received] = deque()
        self._error: Exception | None = None
        self._last_progress = 0.0

    # -- epochs ---------------------------------------------------------------------------------

    def begin(self, channel: RemoteReceivingChannel, total: int) -> None:
        """Fill the ``total`` batches of the epoch that ``channel`` has begun."""
        self.stop()
        # here and not in the thread: what a server says to it is raised to who begins the epoch
        self._questions.meet()
        self._channel, self._stopped, self._sequence = channel, False, self._sequence + 1
        if self._look_ahead is not None:
            # before the first batch there is none: `_make_cache` begins that epoch
            self._look_ahead.begin(self._sequence, total)
        self._last_progress = time.monotonic()
        self._thread = new_thread(
            target=self._fill_all, args=(total,), name="rows of batches",
            on_death=lambda error: self._fail(
                PeerError(f"rows of a batch: {type(error).__name__}: {error}")
            ),
        )  # fmt: skip
        self._thread.start()

    def stop(self) -> None:
        """Break the epoch off; the channel's is broken off, too."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if thread is not None and thread.is_alive():
            assert self._channel is not None, "there is a thread since there is a channel"
            self._channel.cancel()  # it may wait there
            thread.join(_JOIN_S)
            if thread.is_alive():
                self._questions.hang_up()  # or for rows
                thread.join(self._timeout_s + _LATE_S)
        # only now that nobody fills: rows of the epoch before would be handed out as those of the
        # next one
        self._filled.clear()
        self._error = None

    def close(self) -> None:
        """Stop, and wake whoever waits. Idempotent."""
        with self._changed:
            # before `stop`, so that who waits in `next` is told that it is closed, and not that the
            # epoch is over
            self._closed = True
            self._changed.notify_all()
        self.stop()
        self._cache = self._look_ahead = self._machine_rows = None  # gone with its last user
        self._questions.close()
        self._at_once.close()

    def fill_at_once(self, received: Received) -> Received:
        """Return a batch that is of no epoch with its rows, all of which are fetched.

        Raises:
            PeerError: A server is gone, or did not answer in time.
        """
        self._at_once.meet()
        filling = self._asked_for(_described(received, self._at_once), self._at_once, {})
        return self._filled_up(filling)

    # -- taking ---------------------------------------------------------------------------------

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch with its rows, or None at the end of the epoch.

        Raises:
            PeerError: As for `RemoteReceivingChannel.next`, or rows could not be fetched.
        """
        limit = self._timeout_s + _LATE_S if timeout_s is None else timeout_s
        started = time.monotonic()
        with self._changed:
            while not self._filled:
                # what is filled goes first, errors only then: each batch before a failure is still
                # handed out
                if self._closed:
                    raise UsageError("the channel is closed: the loader was shut down")
                if self._error is not None:
                    raise self._error
                # it has ended without an error and all is taken: the end of the epoch
                if self._thread is None or not self._thread.is_alive():
                    return None
                quiet = time.monotonic() - max(self._last_progress, started)
                if quiet >= limit:
                    raise PeerTimeoutError(
                        f"no batch and no row came from the storage servers for {limit:.1f} s; if "
                        "a batch really takes that long, raise `timeout`"
                    )
                self._changed.wait(min(1.0, limit - quiet))
            received = self._filled.popleft()
            self._changed.notify_all()
            return received

    def ready(self) -> bool:
        """Return whether `next` would not wait."""
        return bool(self._filled or self._error) or not (self._thread and self._thread.is_alive())

    @property
    def queue_depth(self) -> int:
        """Batches that wait to be taken."""
        return len(self._filled)

    # -- filling: one thread --------------------------------------------------------------------

    def _fill_all(self, total: int) -> None:
        try:
            self._fill_each(total)
        except GiglLoaderError as error:
            self._fail(error)
        except Exception as error:  # nobody may wait for a thread that has ended
            self._fail(PeerError(f"rows of a batch: {type(error).__name__}: {error}"))
        finally:
            with self._changed:
                # a thread that `stop` did not wait for to its end may end in a later epoch
                self._thread = None if self._thread is threading.current_thread() else self._thread
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if not self._stopped:
                self._error = error

    def _fill_each(self, total: int) -> None:
        """Go through the epoch: draw ahead, ask for rows, fill, each as soon as it can be."""
        drawn: deque[_Batch] = deque()
        asked: deque[_Filling] = deque()
        try:
            self._fill_drawn(total, drawn, asked)
        finally:  # of an epoch that was broken off
            if self._cache is not None:
                for batch in drawn:  # the cache would keep rows for them that nobody comes for
                    self._cache.forget(batch.number)
            for filling in asked:
                filling.abandon()

    def _fill_drawn(self, total: int, drawn: deque[_Batch], asked: deque[_Filling]) -> None:
        assert self._channel is not None, "`begin` sets it"
        num_drawn = num_asked = 0
        while (num_asked < total or asked) and not self._stopped:
            # first what is drawn, then what is asked, last what is filled: so the next questions
            # are at the servers before this thread waits for the answers to earlier ones
            wants = num_drawn < total and num_drawn <= num_asked + self._ahead(num_asked)
            # the channel is waited for only where no batch could be filled meanwhile
            if wants and (self._channel.ready() or not asked):
                received = self._channel.next()
                if received is None:  # broken off
                    return
                drawn.append(self._drawn(total, received))
                num_drawn += 1
            elif not wants and drawn and self._has_room(len(asked)):
                asked.append(self._ask(drawn.popleft(), asked))
                num_asked += 1
            elif asked:
                # taken out only then: if this fails, `_fill_each` abandons its rows with the
                # others'
                self._hand_over(self._filled_up(asked[0], asked))
                asked.popleft()
            else:
                self._wait_for_room()

    def _ahead(self, taken: int) -> int:
        """Return how many batches to know beyond the next one."""
        if self._look_ahead is None:
            return 0
        # the limit counts the batch that is next as well
        return self._look_ahead.limit(taken, 0) - 1

    def _has_room(self, under_way: int) -> bool:
        return under_way < _UNDER_WAY and under_way + len(self._filled) < self._room

    def _wait_for_room(self) -> None:
        with self._changed:
            while len(self._filled) >= self._room and not self._stopped:
                self._changed.wait(1.0)

    def _hand_over(self, received: Received) -> None:
        with self._changed:
            if not self._stopped:
                self._filled.append(received)
            self._last_progress = time.monotonic()
            self._changed.notify_all()

    def _drawn(self, total: int, received: Received) -> _Batch:
        """Note what a batch is going to need."""
        message = received.message
        # it may lie in the server's memory, which a window of batches would fill
        if self._options is not None and not self._pin:
            message = {key: tensor.clone() for key, tensor in message.items()}
        batch = _described(replace(received, message=message), self._questions)
        if self._cache is None and self._options is not None:
            self._make_cache(self._options, batch, total)
        if self._cache is not None and self._look_ahead is not None:
            wanted = batch.wanted()
            batch.number = self._cache.add(self._user, wanted)
            # ids and edges that wait for their rows: they bound the look-ahead where rows are
            # narrow
            kept = sum(tensor.nbytes for tensor in batch.received.message.values())
            self._look_ahead.count(self._sequence, self._cache.bytes_of(wanted), kept)
        self._last_progress = time.monotonic()
        return batch

    def _make_cache(self, options: CacheOptions, batch: _Batch, total: int) -> None:
        """Make the memory for rows: the first batch says which there are."""
        matrices: dict[Owner, dict[Matrix, tuple[str, tuple[int, ...]]]] = {}
        for one in batch.specs:
            # of a matrix without columns nothing can be kept, and its rows are made on the spot
            if 0 not in one.shape:
                rows = matrices.setdefault(owner_of_rows(one), {})
                rows[one.kind, one.name] = (one.dtype, one.shape)
        # all rows count as those of other machines: a compute process owns none
        sizes = {owner: self._questions.num_ids(owner) for owner in matrices}
        matrices = {owner: some for owner, some in matrices.items() if sizes[owner]}
        if not matrices:
            return
        tables = tables_of(matrices, sizes, sizes, options.size)
        # other loaders may keep other matrices there: then this one keeps its rows for itself
        self._cache = memory_for(tables, self._machine_rows).rows
        self._user = self._cache.join()
        # memory of this process: no worker reads it, one thread draws and fills
        drawn = DrawnAhead(np.zeros(DrawnAhead.NUM_WORDS, np.int64))
        self._look_ahead = LookAhead(self._cache, drawn, options)
        self._look_ahead.begin(self._sequence, total)

    def _ask(self, batch: _Batch, earlier: Iterable[_Filling]) -> _Filling:
        """Decide what is kept of a batch's rows, and ask for those that are not here."""
        if self._cache is None:
            return self._asked_for(batch, self._questions, {})
        wanted = batch.wanted()
        plans = self._cache.plan(batch.number, wanted)
        try:
            return self._asked_for(batch, self._questions, dict(plans), earlier)
        except GiglLoaderError:
            for owner, plan in plans.items():
                # other processes find these slots planned, and would wait for rows that do not come
                kept = np.flatnonzero(plan < MISSING)
                if kept.size:
                    self._cache.abandon(owner, -2 - plan[kept], wanted[owner][kept])
            raise

    def _asked_for(
        self, batch: _Batch, questions: RowQuestions, plans: dict[Owner, Array],
        earlier: Iterable[_Filling] = (),
    ) -> _Filling:  # fmt: skip
        is_alone = self._is_alone()
        filling = _Filling(batch, _Counts(), is_alone)
        for (owner, key), remote in batch.remote.items():
            specs = {(one.kind, one.name): one for one in batch.specs_of(owner, key)}
            # the cache plans once for an owner; further tensors of it with other ids fetch all of
            # their rows
            plan = plans.pop(owner, None)
            kept = () if self._cache is None else self._cache.matrices(owner)
            # a slot has rows of all matrices of its owner. Of some of them only, none may be stored
            if plan is None or set(remote.matrices) != set(kept):
                plan = np.full(remote.ids.size, MISSING, np.int32)
            ask = partial(_ask_rows, questions, specs, filling)
            filling.rows[owner, key] = RemoteRows(
                owner, remote, plan, self._cache, ask, PoolRoom(self._pool),
                # a row that is planned to be here may be on its way for one of these, and its slot
                # be another row's by then
                [one.rows[owner, key] for one in earlier if (owner, key) in one.rows], is_alone,
            )  # fmt: skip
        return filling

    def _is_alone(self) -> bool:
        """Return whether nobody else uses the cache; what one who joins takes is fetched again."""
        return self._cache is None or self._cache.num_users == 1

    # -- a batch with its rows ------------------------------------------------------------------

    def _filled_up(self, filling: _Filling, under_way: Iterable[_Filling] = ()) -> Received:
        """Return a batch with its rows; meanwhile rows of those under way are stored."""
        batch, counts = filling.batch, filling.counts
        if not batch.specs:
            return batch.received
        started = time.perf_counter()

        def meanwhile() -> None:
            for one in under_way:
                one.store_if_there()

        for one in filling.rows.values():
            one.wait()
        # looked at again: a loader that came since would wait for these rows
        if not (filling.is_alone and self._is_alone()):
            filling.store()  # before anything of others is waited for, so that none goes around
        for one in filling.rows.values():
            self._patience.wait(one, meanwhile)
        counts.waited_s = time.perf_counter() - started
        message = {**batch.received.message, **self._written(batch, filling.rows)}
        filling.store()  # alone, what the batch has is not copied before its slots are written
        # as the sampler had them, and not with the rows at the end
        message = {key: message[key] for key in batch.order}
        counts.took_s = time.perf_counter() - started
        counts.needed = sum(
            remote.ids.size * len(remote.matrices) for remote in batch.remote.values()
        )
        stats = counts.added_to(batch.received.stats, self._options is not None)
        return replace(batch.received, message=message, stats=stats)

    def _written(self, batch: _Batch, rows: dict[tuple[Owner, str], RemoteRows]) -> SampleMessage:
        """Return the tensors of rows, one after the other in memory of their own."""
        message = batch.received.message
        shapes = {one.key: (message[one.ids].numel(), *one.shape) for one in batch.specs}
        sizes = [align(nbytes_of(one.dtype, shapes[one.key])) for one in batch.specs]
        buffer, at = self._pool.take_leased(sum(sizes)), 0
        found: SampleMessage = {}
        for one, size in zip(batch.specs, sizes, strict=True):
            out = array_in(buffer, one.dtype, shapes[one.key], at)
            if out.size:
                source, matrix = rows[_place_of(one)], (one.kind, one.name)
                gather_rows(source.parts(matrix), out)
                # after the copy: a slot that another process took meanwhile is seen now, its rows
                # are fetched again
                source.repair(matrix, out)
            found[one.key] = tensor_in(buffer, one.dtype, shapes[one.key], at)
            at += size
        return found


def _described(received: Received, questions: RowQuestions) -> _Batch:
    """Return a batch with what it says of the rows that it lacks."""
    message = dict(received.message)
    if ROWS not in message:
        return _Batch(received, list(message), [])
    order, specs = read_rows_apart(message.pop(ROWS).numpy())
    batch = _Batch(replace(received, message=message), order, specs)
    # each pair once, in the order of the batch: features and labels of the same ids share a plan
    for position in dict.fromkeys(map(_place_of, specs)):
        matrices = list(dict.fromkeys((one.kind, one.name) for one in batch.specs_of(*position)))
        ids = message[position[1]].numpy()
        if matrices and ids.size:
            split = questions.by_owner(position[0], ids)
            # server after server, so that what is asked of one is a slice and its answer lands in
            # one piece
            ordered = np.concatenate([ids[positions] for positions in split.values()])
            batch.remote[position] = Remote(split, ordered, matrices)
    return batch


def _ask_rows(
    questions: RowQuestions, specs: dict[Matrix, RowsApart], filling: _Filling, matrix: Matrix,
    remote: Remote, at: Array, *, again: bool = False,
) -> Fetched:  # fmt: skip
    """Ask for the rows of ``remote.ids[at]``; ``at`` ascends."""
    # `at` counts in ids that are in order of the servers, so each server's part of it is a range
    ends = np.cumsum([0, *(positions.size for positions in remote.split.values())])
    cuts = np.searchsorted(at, ends)
    pieces = [
        (server, remote.ids[at[start:stop]])
        for server, start, stop in zip(remote.split, cuts[:-1], cuts[1:], strict=True)
        if start < stop
    ]
    fetched = questions.ask(specs[matrix], pieces)
    filling.fetched.append(fetched)
    filling.counts.add(specs[matrix], pieces)
    return fetched


@dataclass
class _Counts:
    """Counts of a batch's rows: bytes, seconds, hits."""

    rows_from: Counter[int] = field(default_factory=Counter)
    row_bytes: int = 0
    needed: int = 0
    """Rows that the batch has."""
    waited_s: float = 0.0
    took_s: float = 0.0

    def add(self, spec: RowsApart, pieces: Iterable[tuple[int, Array]]) -> None:
        """Count what was asked for: ids by server."""
        for server, ids in pieces:
            self.rows_from[server] += ids.size
            self.row_bytes += ids.size * nbytes_of(spec.dtype, spec.shape)

    def added_to(self, stats: dict[str, Any], has_cache: bool) -> dict[str, Any]:
        """Return what the batch's worker measured, with this."""
        received = {**stats.get("received", {}), "rows": self.row_bytes}
        # below zero where rows were fetched a second time after others took their slots
        hits = {"cached_rows": max(0, self.needed - self.rows_from.total())} if has_cache else {}
        return {
            **stats, "received": received, "rows_from": dict(self.rows_from), **hits,
            "network_s": self.waited_s, "gather_s": stats.get("gather_s", 0.0) + self.took_s,
        }  # fmt: skip
