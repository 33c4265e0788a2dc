"""Batches of a graph store that come without rows: filled here, from a cache where there is one.

::

    server: structure --> drawn --> RowCache.add: next uses are known a window ahead
                          plan()  <-- in order --- ask the owners for what is not here
                          fill    <-- answers, kept rows --> filled --> next()

One thread does all of it in the order of the epoch, so what is kept needs no lock: a row that a
plan says is here was stored by an earlier batch, and is read before a later one takes its place.
Only this process knows what it holds; servers are asked for rows by id, and a row never changes, so
a server that was started again makes nothing stale.
"""

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from gigl_loader.errors import GiglLoaderError, PeerError, PeerTimeoutError, UsageError
from gigl_loader.memory.segments import Array, align, array_in, nbytes_of
from gigl_loader.memory.tensors import tensor_in
from gigl_loader.message import ROWS, Received, SampleMessage
from gigl_loader.options import CacheOptions
from gigl_loader.remote.buffers import BufferPool
from gigl_loader.remote.channel import RemoteReceivingChannel
from gigl_loader.remote.cluster import Cluster
from gigl_loader.remote.rows import Fetched, RowQuestions, owner_of_rows
from gigl_loader.sampler.apart import RowsApart, read_rows_apart
from gigl_loader.sampler.row_cache import (
    MISSING,
    CacheMemory,
    Matrix,
    Owner,
    RowCache,
    segment_bytes,
    tables_of,
)
from gigl_loader.sampler.store import gather_rows
from gigl_loader.workers.ahead import DrawnAhead, LookAhead

_UNDER_WAY = 3
"""Batches whose rows are asked for at once: the next questions wait at the servers already."""
_LATE_S = 5.0
"""How much longer than the channel, which knows more of its silence, this waits for a batch."""
_JOIN_S = 2.0


@dataclass
class _Source:
    """Rows of one type that a batch lacks, by their ids."""

    owner: Owner
    ids: Array
    specs: list[RowsApart]
    plan: Array
    """``[n]`` int32; see `RowCache.plan`."""
    missed: Array
    """Places whose rows are fetched, as they come: server after server."""
    fetched: dict[Matrix, Fetched]
    num_from: dict[int, int]
    """By server, how many rows were asked for, of each matrix."""


@dataclass
class _Batch:
    """A batch that came without rows."""

    received: Received
    order: list[str]
    specs: list[RowsApart]
    ids: dict[tuple[Owner, str], Array]
    """By owner and key of the tensor, the ids of the rows; of an owner, the first are planned."""
    number: int = -1
    """In the cache; -1: none."""

    def specs_of(self, owner: Owner, key: str) -> list[RowsApart]:
        """Return the tensors of rows with these ids."""
        return [one for one in self.specs if (owner_of_rows(one), one.ids) == (owner, key)]

    def wanted(self) -> dict[Owner, Array]:
        """Return by owner the ids that the cache is told of."""
        found: dict[Owner, Array] = {}
        for (owner, _), ids in self.ids.items():
            found.setdefault(owner, ids)
        return found


def _described(received: Received) -> _Batch:
    """Return a batch with what it says of the rows that it lacks."""
    message = dict(received.message)
    if ROWS not in message:
        return _Batch(received, list(message), [], {})
    order, specs = read_rows_apart(message.pop(ROWS).numpy())
    ids = {(owner_of_rows(one), one.ids): message[one.ids].numpy() for one in specs}
    return _Batch(replace(received, message=message), order, specs, ids)


def _nothing_kept(ids: Array) -> tuple[Array, Array]:
    """Return the plan that all rows are fetched and none kept, and the places of these."""
    return np.full(ids.size, MISSING, np.int32), np.arange(ids.size)


class RowKeeper:
    """Receives batches without rows, and hands them out with theirs.

    Args:
        cluster: The storage servers.
        options: What to keep; None: nothing.
        room: Batches that may be filled, or on their way, and not taken.
        timeout_s: Seconds without any batch before a wait is an error.
        pin_memory: Fill page-locked memory.
    """

    def __init__(
        self, cluster: Cluster, options: CacheOptions | None, room: int, timeout_s: float,
        pin_memory: bool,
    ) -> None:  # fmt: skip
        self._options, self._room, self._timeout_s = options, room, timeout_s
        self._pin, self._pool = pin_memory, BufferPool(pin_memory)
        self._questions = RowQuestions(cluster, self._pool.take_leased, timeout_s)
        self._at_once = RowQuestions(cluster, self._pool.take_leased, timeout_s)
        """Of batches beside the epoch, which another thread fills."""
        self._cache: RowCache | None = None
        self._look_ahead: LookAhead | None = None
        self._sequence = self._user = -1
        self._channel: RemoteReceivingChannel | None = None
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
        self._questions.meet()
        self._channel, self._stopped, self._sequence = channel, False, self._sequence + 1
        if self._look_ahead is not None:
            self._look_ahead.begin(self._sequence, total)
        self._last_progress = time.monotonic()
        self._thread = threading.Thread(
            target=self._fill_all, args=(total,), name="rows of batches", daemon=True
        )
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
        self._filled.clear()
        self._error = None

    def close(self) -> None:
        """Stop, and wake whoever waits. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.stop()
        self._questions.close()
        self._at_once.close()

    def fill_at_once(self, received: Received) -> Received:
        """Return a batch that is of no epoch with its rows, all of which are fetched.

        Raises:
            PeerError: A server is gone, or did not answer in time.
        """
        self._at_once.meet()
        batch = _described(received)
        sources = []
        for (owner, key), ids in batch.ids.items():
            source = _Source(owner, ids, batch.specs_of(owner, key), *_nothing_kept(ids), {}, {})
            self._fetch(source, self._at_once)
            sources.append(source)
        return self._filled_up(batch, sources)

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
                if self._closed:
                    raise UsageError("the channel is closed: the loader was shut down")
                if self._error is not None:
                    raise self._error
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
                self._thread = None if self._thread is threading.current_thread() else self._thread
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if not self._stopped:
                self._error = error

    def _fill_each(self, total: int) -> None:
        """Go through the epoch: draw ahead, ask for rows, fill, each as soon as it can be."""
        drawn: deque[_Batch] = deque()
        try:
            self._fill_drawn(total, drawn)
        finally:
            if self._cache is not None:
                for batch in drawn:  # of an epoch that was broken off
                    self._cache.forget(batch.number)

    def _fill_drawn(self, total: int, drawn: deque[_Batch]) -> None:
        assert self._channel is not None, "`begin` sets it"
        asked: deque[tuple[_Batch, list[_Source]]] = deque()
        num_drawn = num_asked = 0
        while (num_asked < total or asked) and not self._stopped:
            wants = num_drawn < total and num_drawn <= num_asked + self._ahead(num_asked)
            if wants and (self._channel.ready() or not asked):
                received = self._channel.next()
                if received is None:  # broken off
                    return
                drawn.append(self._drawn(total, received))
                num_drawn += 1
            elif not wants and drawn and self._has_room(len(asked)):
                batch = drawn.popleft()
                asked.append((batch, self._ask(batch)))
                num_asked += 1
            elif asked:
                self._hand_over(self._filled_up(*asked.popleft()))
            else:
                self._wait_for_room()

    def _ahead(self, taken: int) -> int:
        """Return how many batches to know beyond the next one."""
        if self._look_ahead is None:
            return 0
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
        batch = _described(replace(received, message=message))
        if self._cache is None and self._options is not None:
            self._make_cache(self._options, batch, total)
        if self._cache is not None and self._look_ahead is not None:
            wanted = batch.wanted()
            batch.number = self._cache.add(self._user, wanted)
            kept = sum(tensor.nbytes for tensor in batch.received.message.values())
            self._look_ahead.count(self._sequence, self._cache.bytes_of(wanted), kept)
        self._last_progress = time.monotonic()
        return batch

    def _make_cache(self, options: CacheOptions, batch: _Batch, total: int) -> None:
        """Make the memory for rows: the first batch says which there are."""
        matrices: dict[Owner, dict[Matrix, tuple[str, tuple[int, ...]]]] = {}
        for one in batch.specs:
            if 0 not in one.shape:
                rows = matrices.setdefault(owner_of_rows(one), {})
                rows[one.kind, one.name] = (one.dtype, one.shape)
        sizes = {owner: self._questions.num_ids(owner) for owner in matrices}
        matrices = {owner: some for owner, some in matrices.items() if sizes[owner]}
        if not matrices:
            return
        tables = tables_of(matrices, sizes, sizes, options.size)
        memory = torch.zeros(segment_bytes(tables), dtype=torch.uint8)
        self._cache = RowCache(CacheMemory(memory.numpy(), tables))
        self._cache.initialise()
        self._user = self._cache.join()
        drawn = DrawnAhead(np.zeros(DrawnAhead.NUM_WORDS, np.int64))
        self._look_ahead = LookAhead(self._cache, drawn, options)
        self._look_ahead.begin(self._sequence, total)

    def _ask(self, batch: _Batch) -> list[_Source]:
        """Decide what is kept of a batch's rows, and ask for those that are not here."""
        plans: dict[Owner, Array] = {}
        if self._cache is not None:
            plans = self._cache.plan(batch.number, batch.wanted())
        return [
            self._source(owner, key, ids, batch, plans) for (owner, key), ids in batch.ids.items()
        ]

    def _source(
        self, owner: Owner, key: str, ids: Array, batch: _Batch, plans: dict[Owner, Array]
    ) -> _Source:
        specs = batch.specs_of(owner, key)
        plan = plans.pop(owner, None)
        kept = self._cache.matrices(owner) if self._cache is not None else ()
        wide = {(one.kind, one.name) for one in specs if 0 not in one.shape}
        if plan is None or wide != set(kept):
            plan, _ = _nothing_kept(ids)
        source = _Source(owner, ids, specs, plan, np.flatnonzero(plan < 0), {}, {})
        self._fetch(source, self._questions)
        return source

    @staticmethod
    def _fetch(source: _Source, questions: RowQuestions) -> None:
        """Ask for the rows at ``source.missed``, which are put in the order of the answers."""
        ids = source.ids[source.missed]
        split = questions.by_owner(source.owner, ids)
        for one in source.specs:
            source.fetched[one.kind, one.name] = questions.ask(one, ids, split)
        source.num_from = {server: int(places.size) for server, places in split}
        if split:
            source.missed = source.missed[np.concatenate([places for _, places in split])]

    # -- a batch with its rows ------------------------------------------------------------------

    def _filled_up(self, batch: _Batch, sources: list[_Source]) -> Received:
        if not batch.specs:
            return batch.received
        started = time.perf_counter()
        sizes = {
            one.key: align(nbytes_of(one.dtype, (source.ids.size, *one.shape)))
            for source in sources
            for one in source.specs
        }
        buffer, at = self._pool.take_leased(sum(sizes.values())), 0
        message: SampleMessage = dict(batch.received.message)
        counts = _Counts()
        for source in sources:
            began = time.perf_counter()
            deadline = time.monotonic() + self._timeout_s
            rows = {matrix: fetched.wait(deadline) for matrix, fetched in source.fetched.items()}
            counts.waited_s += time.perf_counter() - began
            counts.add(source)
            counts.needed += int(source.ids.size) * len(source.specs)
            rows, taken, places = self._with_lost_ones(source, rows, counts)
            self._write(source, rows, taken, places, message, buffer, at)
            self._keep(source, rows)
            at += sum(sizes[one.key] for one in source.specs)
        message = {key: message[key] for key in batch.order}
        counts.took_s = time.perf_counter() - started
        stats = counts.added_to(batch.received.stats, self._options is not None)
        return replace(batch.received, message=message, stats=stats)

    def _with_lost_ones(
        self, source: _Source, rows: dict[Matrix, Array], counts: "_Counts"
    ) -> tuple[dict[Matrix, Array], Array, Array]:
        """Return fetched rows, which of them are written, and to which places of the batch.

        A row that was planned to be here may be one that comes with this batch, in which its id
        stands twice. Or it never came: an epoch was broken off between a plan and its rows; then
        it is asked for now.
        """
        taken, places = np.arange(source.missed.size), source.missed
        kept = np.flatnonzero(source.plan >= 0)
        if kept.size == 0 or self._cache is None:
            return rows, taken, places
        lost = kept[self._cache.absent(source.owner, source.plan[kept], source.ids[kept])]
        if lost.size == 0:
            return rows, taken, places
        order = np.argsort(source.ids[source.missed], kind="stable")
        known = source.ids[source.missed][order]
        at = np.minimum(np.searchsorted(known, source.ids[lost]), max(known.size - 1, 0))
        is_twin = known[at] == source.ids[lost] if known.size else np.zeros(lost.size, bool)
        source.plan = source.plan.copy()
        source.plan[lost[is_twin]] = MISSING
        taken = np.concatenate([taken, order[at[is_twin]]])
        places = np.concatenate([places, lost[is_twin]])
        again = lost[~is_twin]
        if again.size == 0:
            return rows, taken, places
        source.plan[again] = -2 - source.plan[again]
        late = replace(source, missed=again, fetched={}, num_from={})
        self._fetch(late, self._questions)
        counts.add(late)
        deadline = time.monotonic() + self._timeout_s
        first = source.missed.size
        rows = {
            matrix: np.concatenate([rows[matrix], fetched.wait(deadline)])
            for matrix, fetched in late.fetched.items()
        }
        source.missed = np.concatenate([source.missed, late.missed])
        taken = np.concatenate([taken, np.arange(first, source.missed.size)])
        return rows, taken, np.concatenate([places, late.missed])

    def _write(
        self, source: _Source, rows: dict[Matrix, Array], taken: Array, places: Array,
        message: SampleMessage, buffer: object, at: int,
    ) -> None:  # fmt: skip
        """Write a batch's rows to ``buffer``, from byte ``at``, one tensor after the other."""
        kept = np.flatnonzero(source.plan >= 0)
        slots = source.plan[kept].astype(np.int64)
        for one in source.specs:
            shape = (source.ids.size, *one.shape)
            parts = [(rows[one.kind, one.name], taken, places)]
            if kept.size and self._cache is not None:
                cached = self._cache.rows(source.owner, (one.kind, one.name))
                parts.append((cached, slots, kept))
            gather_rows(parts, array_in(buffer, one.dtype, shape, at))
            message[one.key] = tensor_in(buffer, one.dtype, shape, at)
            at += align(nbytes_of(one.dtype, shape))

    def _keep(self, source: _Source, rows: dict[Matrix, Array]) -> None:
        """Store what is to be kept of a batch's rows; the batch has what it needs by now."""
        decided = source.plan[source.missed]
        places = np.flatnonzero(decided < MISSING)
        if places.size == 0 or self._cache is None:
            return
        # in the order of the references: the last one that was planned for a slot has it
        places = places[np.argsort(source.missed[places], kind="stable")]
        ids = source.ids[source.missed[places]]
        self._cache.overwrite(source.owner, -2 - decided[places], ids, rows, places)


@dataclass
class _Counts:
    """What a batch's rows took."""

    rows_from: Counter[int] = field(default_factory=Counter)
    row_bytes: int = 0
    needed: int = 0
    """Rows that the batch has."""
    waited_s: float = 0.0
    took_s: float = 0.0

    def add(self, source: _Source) -> None:
        """Count what was asked for."""
        for server, count in source.num_from.items():
            self.rows_from[server] += count * len(source.specs)
        each = sum(nbytes_of(one.dtype, one.shape) for one in source.specs)
        self.row_bytes += each * sum(source.num_from.values())

    def added_to(self, stats: dict[str, Any], has_cache: bool) -> dict[str, Any]:
        """Return what the batch's worker measured, with this."""
        received = {**stats.get("received", {}), "rows": self.row_bytes}
        hits = {"cached_rows": max(0, self.needed - self.rows_from.total())} if has_cache else {}
        return {
            **stats, "received": received, "rows_from": dict(self.rows_from), **hits,
            "network_s": self.waited_s, "gather_s": stats.get("gather_s", 0.0) + self.took_s,
        }  # fmt: skip
