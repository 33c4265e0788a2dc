"""Fills batches of a graph store that come without rows, from a cache if there is one.

::

    server: structure --> drawn --> Pipeline.add: next uses are known a window ahead
                          Pipeline.ask <-- in order --- request missing rows from their owners
                          complete     <-- responses, kept rows --> filled --> next()

One thread does this in the order of the epoch. Kept rows are shared with the other ranks of
the machine (`gigl_loader.sampler.row_cache.machine_cache`), who store rows in slots that this one
reads. So a batch copies kept rows when it requests the rest, and afterwards checks which it has
got. Only this machine knows its kept rows; servers send rows by id, and a row never changes, so a
restarted server makes nothing stale.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigl_loader.batch.leases import BufferPool
from gigl_loader.batch.message import ROWS, Attempt, Field, Received, SampleMessage
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import Matrix, Owner, Row, owner_of
from gigl_loader.errors import GiglLoaderError, PeerError, PeerTimeoutError, UsageError
from gigl_loader.graph_store.client.receiving_channel import RemoteReceivingChannel
from gigl_loader.graph_store.client.row_requests import RowRequests
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.threads import new_thread
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.look_ahead import DrawnAhead, DrawnBatch, LookAhead, copy_drawn
from gigl_loader.sampler.row_cache.machine_cache import MachineRows, memory_for
from gigl_loader.sampler.row_cache.pipeline import NOT_PLANNED, READY_S, Filling, Pipeline
from gigl_loader.sampler.row_cache.tables import RowTables, by_owner
from gigl_loader.sampler.rows.row_exchange import LaterRows, Split, read_rows_apart

_UNDER_WAY = 3
"""Batches whose rows are requested at once, so that the next requests wait at the servers."""
_LATE_S = 5.0
"""Seconds that this waits for a batch beyond the channel's limit, whose error says more."""
# the thread checks `_stopped` after each batch; beyond this time it must be waiting for rows
_JOIN_S = 2.0


@dataclass
class _Unfilled:
    """A batch that came without rows."""

    received: Received
    order: list[str]
    drawn: DrawnBatch
    """Fields of the batch that have rows."""
    number: int = NOT_PLANNED
    """Number of the batch in the cache."""
    filling: Filling | None = None
    """Its rows, once they are requested."""

    @property
    def rows(self) -> Filling:
        assert self.filling is not None, "rows of this batch were asked for"
        return self.filling


class FillingChannel:
    """Receives batches without rows, and hands them out with rows.

    Args:
        cluster: The storage servers.
        options: Options of the row cache; None: no cache.
        room: Most batches that are filled or on their way, and not taken.
        timeout_s: Seconds without any batch before a wait is an error.
        pin_memory: Fill page-locked memory.
        machine_rows: Memory for kept rows, shared with other ranks and loaders; None: this
            object has its own.
        questions: Sends the requests for rows of an epoch; None: the storage servers.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: CacheOptions | None,
        room: int,
        timeout_s: float,
        pin_memory: bool,
        machine_rows: MachineRows | None = None,
        questions: RowRequests | None = None,
    ) -> None:
        self._machine_rows = machine_rows
        self._options, self._room, self._timeout_s = options, room, timeout_s
        self._pin, self._pool = pin_memory, BufferPool(pin_memory=pin_memory)
        self._questions = questions or RowRequests(cluster, timeout_s)
        # separate connections, since responses come in the order of the requests: a batch beside
        # the epoch would wait for the rows of several of its batches
        self._at_once = RowRequests(cluster, timeout_s)
        """Row requests of batches beside the epoch, which another thread fills."""
        self._cache: RowCache | None = None
        self._pipeline = self._pipeline_of(self._questions)
        self._look_ahead: LookAhead | None = None
        self._channel: RemoteReceivingChannel | None = None
        # guards `_filled`, `_error` and the flags, which both the filling and the taking thread
        # use. The cache, draws and requests belong to the filling thread alone
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._closed = False
        self._filled: deque[Received] = deque()
        self._error: Exception | None = None
        self._last_progress = 0.0

    def _pipeline_of(
        self, questions: RowRequests, cache: RowCache | None = None, user: int = 0
    ) -> Pipeline:
        # at most half of the limit, which leaves time to fetch rows that others did not
        ready_s = min(READY_S, self._timeout_s / 2)
        return Pipeline(questions, self._pool, cache, user, ready_s=ready_s, is_only=True)

    # -- epochs ---------------------------------------------------------------------------------

    def begin(self, channel: RemoteReceivingChannel, attempt: Attempt, total: int) -> None:
        """Fill the ``total`` batches of the attempt that ``channel`` has begun."""
        self.stop()
        # here and not in the thread, so that a server's error is raised where the epoch begins
        self._questions.meet()
        self._channel, self._stopped = channel, False
        if self._look_ahead is not None:
            # before the first batch there is no cache: `_make_cache` begins that epoch
            self._look_ahead.begin(attempt.serial, total)
        self._last_progress = time.monotonic()
        self._thread = new_thread(
            target=self._fill_all,
            args=(attempt, total),
            name="rows of batches",
            on_death=lambda error: self._fail(
                PeerError(f"rows of a batch: {type(error).__name__}: {error}")
            ),
        )
        self._thread.start()

    def stop(self) -> None:
        """Cancel the epoch, here and in the channel."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if thread is not None and thread.is_alive():
            assert self._channel is not None, "there is a thread since there is a channel"
            self._channel.cancel()  # the thread may wait there
            thread.join(_JOIN_S)
            if thread.is_alive():
                self._questions.hang_up()  # or wait for rows
                thread.join(self._timeout_s + _LATE_S)
        # only now that nothing is filled: else rows of the old epoch would be handed out in the
        # next one
        with self._changed:
            self._filled.clear()
            self._error = None
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wake all waiting threads. Idempotent."""
        with self._changed:
            # before `stop`, so that a thread in `next` learns that the channel is closed, not that
            # the epoch is over
            self._closed = True
            self._changed.notify_all()
        self.stop()
        self._cache = self._look_ahead = self._machine_rows = None  # memory goes with its last user
        self._pipeline = self._pipeline_of(self._questions)
        self._questions.close()
        self._at_once.close()

    def fill_at_once(self, received: Received) -> Received:
        """Return a batch that belongs to no epoch with its rows, all of them fetched.

        Raises:
            PeerError: A server is gone, or did not respond in time.
        """
        self._at_once.meet()
        pipeline, batch = self._pipeline_of(self._at_once), _described(received, self._at_once)
        self._at_once.begin_batch()
        batch.filling = pipeline.ask(batch.drawn)
        return self._filled_up(pipeline, batch)

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
                # filled batches before errors, so that each batch before a failure is still handed
                # out
                if self._closed:
                    raise UsageError("the channel is closed: the loader was shut down")
                if self._error is not None:
                    raise self._error
                # ended without an error and all is taken: the end of the epoch
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
        """Return whether `next` would return at once."""
        return bool(self._filled or self._error) or not (self._thread and self._thread.is_alive())

    @property
    def queue_depth(self) -> int:
        """Number of batches that wait to be taken."""
        return len(self._filled)

    # -- filling: one thread --------------------------------------------------------------------

    def _fill_all(self, attempt: Attempt, total: int) -> None:
        try:
            self._fill_each(attempt, total)
        except GiglLoaderError as error:
            self._fail(error)
        except Exception as error:  # else the consumer would wait for a thread that has ended
            self._fail(PeerError(f"rows of a batch: {type(error).__name__}: {error}"))
        finally:
            with self._changed:
                # a thread that outlived `stop` may end during a later epoch
                self._thread = None if self._thread is threading.current_thread() else self._thread
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if not self._stopped:
                self._error = error

    def _fill_each(self, attempt: Attempt, total: int) -> None:
        """Go through the epoch: draw ahead, request rows and fill, each as soon as possible."""
        drawn: deque[_Unfilled] = deque()
        asked: deque[_Unfilled] = deque()
        try:
            self._fill_drawn(attempt, total, drawn, asked)
        finally:  # batches of a cancelled epoch
            for batch in drawn:  # else the cache would keep rows for them for ever
                self._pipeline.forget(batch.number)
            for batch in asked:
                batch.rows.abandon()

    def _fill_drawn(
        self, attempt: Attempt, total: int, drawn: deque[_Unfilled], asked: deque[_Unfilled]
    ) -> None:
        assert self._channel is not None, "`begin` sets it"
        num_drawn = num_asked = 0
        while (num_asked < total or asked) and not self._stopped:
            # draw first, then request, and fill last, so that the next requests
            # are at the servers before this thread waits for earlier responses
            wants = num_drawn < total and num_drawn <= num_asked + self._ahead(num_asked)
            # wait for the channel only if no batch could be filled meanwhile
            if wants and (self._channel.ready() or not asked):
                received = self._channel.next()
                if received is None:  # cancelled
                    return
                drawn.append(self._drawn(attempt, total, received))
                num_drawn += 1
            elif not wants and drawn and self._has_room(len(asked)):
                batch = drawn.popleft()
                earlier = [one.rows for one in asked]
                self._questions.begin_batch()
                batch.filling = self._pipeline.ask(batch.drawn, batch.number, earlier)
                asked.append(batch)
                num_asked += 1
            elif asked:
                under_way = [unfilled.rows for unfilled in asked]
                self._hand_over(self._filled_up(self._pipeline, asked.popleft(), under_way))
            else:
                self._wait_for_room()

    def _ahead(self, taken: int) -> int:
        """Return how many batches to know beyond the next one."""
        if self._look_ahead is None:
            return 0
        # the limit includes the next batch
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

    def _drawn(self, attempt: Attempt, total: int, received: Received) -> _Unfilled:
        """Note the rows that a batch will need."""
        message = received.message
        # the batch may be in the server's memory, which a window of batches would fill
        if self._options is not None and not self._pin:
            message = {key: tensor.clone() for key, tensor in message.items()}
        batch = _described(replace(received, message=message), self._questions)
        if self._cache is None and self._options is not None:
            self._make_cache(self._options, batch.drawn, attempt, total)
        batch.number = self._pipeline.add(batch.drawn)
        if self._cache is not None and self._look_ahead is not None:
            # ids and edges that wait for their rows: they limit the look-ahead if rows are
            # narrow
            kept = sum(tensor.nbytes for tensor in batch.received.message.values())
            row_bytes = self._cache.bytes_of(batch.drawn.wanted())
            self._look_ahead.count(attempt.serial, row_bytes, kept)
        self._last_progress = time.monotonic()
        return batch

    def _make_cache(
        self, options: CacheOptions, batch: DrawnBatch, attempt: Attempt, total: int
    ) -> None:
        """Allocate the memory for rows, whose kinds the first batch tells."""
        by_matrix: dict[Matrix, Row] = {}
        for field in batch.fields:
            later: Any = field.write
            by_matrix[later.kind, later.name] = field.dtype, field.shape[1:]
        matrices = by_owner(by_matrix)
        # all rows count as other machines', since a compute process owns none
        sizes = {owner: self._questions.num_ids(owner) for owner in matrices}
        matrices = {owner: owned for owner, owned in matrices.items() if sizes[owner]}
        if not matrices:
            return
        tables = RowTables.of(matrices, sizes, sizes, options.size)
        # other loaders may keep other matrices there: then this one keeps its rows to itself
        self._cache = memory_for(tables, self._machine_rows).rows
        self._pipeline = self._pipeline_of(self._questions, self._cache, self._cache.join())
        # this process's memory: no worker reads it, and one thread draws and fills
        drawn = DrawnAhead(np.zeros(DrawnAhead.NUM_WORDS, np.int64))
        self._look_ahead = LookAhead(self._cache, drawn, options)
        self._look_ahead.begin(attempt.serial, total)

    # -- a batch with its rows ------------------------------------------------------------------

    def _filled_up(
        self, pipeline: Pipeline, batch: _Unfilled, under_way: Iterable[Filling] = ()
    ) -> Received:
        """Return a batch with its rows; meanwhile rows of batches under way are stored."""
        if not batch.drawn.fields:
            return batch.received
        started, waited_s = time.perf_counter(), 0.0

        def write(fields: list[Field]) -> SampleMessage:
            nonlocal waited_s
            waited_s = time.perf_counter() - started
            return self._pool.write(fields)[0]

        rows = pipeline.complete(batch.rows, write, under_way)
        message = {**batch.received.message, **rows}
        # in the sampler's order, not with the rows at the end
        message = {key: message[key] for key in batch.order}
        return replace(
            batch.received,
            message=message,
            stats=self._stats(batch, waited_s, time.perf_counter() - started),
        )

    def _stats(self, batch: _Unfilled, waited_s: float, took_s: float) -> dict[str, Any]:
        """Return the worker's and this side's measurements of the batch, in seconds."""
        stats, rows = batch.received.stats, batch.rows
        received = {**stats.get("received", {}), "rows": rows.counts.nbytes}
        # below zero if rows were fetched a second time after others took their slots
        hits = {} if self._options is None else {"cached_rows": max(0, rows.num_cached)}
        return {
            **stats,
            "received": received,
            "rows_from": dict(rows.counts.by_owner),
            **hits,
            "network_s": waited_s,
            "gather_s": stats.get("gather_s", 0.0) + took_s,
        }


def _described(received: Received, questions: RowRequests) -> _Unfilled:
    """Return a batch with its description of the rows that it lacks."""
    message = dict(received.message)
    if ROWS not in message:
        return _Unfilled(received, list(message), copy_drawn([]))
    order, specs = read_rows_apart(message.pop(ROWS).numpy())
    # one split serves features and labels of the same ids
    splits: dict[tuple[Owner, str], Split] = {}
    fields = []
    for spec in specs:
        ids, place = message[spec.ids].numpy(), (owner_of(spec.kind, spec.name), spec.ids)
        # a server need not know of rows that are never requested
        if place not in splits and ids.size and 0 not in spec.shape:
            splits[place] = questions.by_owner(place[0], ids)
        later = LaterRows(spec.kind, spec.name, ids, splits.get(place, {}), _not_here)
        fields.append(Field(spec.key, spec.dtype, (ids.size, *spec.shape), later))
    return _Unfilled(replace(received, message=message), order, copy_drawn(fields))


def _not_here(out: Array) -> None:
    raise UsageError("rows of servers are fetched, and not read by a sampler")
