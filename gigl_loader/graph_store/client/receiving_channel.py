"""Receives batches from storage servers: prefetches, orders and watches them."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from gigl_loader.batch.leases import BufferPool
from gigl_loader.batch.message import Attempt, Received, SampleMessage
from gigl_loader.errors import (
    GiglLoaderError,
    PeerTimeoutError,
    ProtocolError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.graph_store.client.batch_fetcher import BatchFetcher
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.client.connection import raise_if_broken, result_of
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.wire.requests import EpochRequest, FetchAnswer, Runs
from gigl_loader.runtime.glt_classes import ChannelBase
from gigl_loader.runtime.memory.same_host import Mappings
from gigl_loader.sampler.options import DEFAULT_TIMEOUT_S, reads_same_memory
from gigl_loader.sources.workers.schedule import BatchStream

_DESCRIBE_S = 2.0
"""Seconds that stalled servers may take to describe their workers."""


class RemoteReceivingChannel(ChannelBase):
    """Receives the batches of one epoch after another from storage servers.

    ::

        next() <-- in order <-- arrived <-- thread <-- server 0: up to prefetch_size asked or unread
                                        <-- thread <-- server 1: the same

    A fetch has its number at the server in the attempt, so that it can be sent again after a lost
    connection.

    Args:
        server_rank: Servers that sample, in the order of their shards.
        channel_id: Ids of the producers by server, or in the order of the servers.
        prefetch_size: Most batches per server that are requested and not handed out.
        active_mask: Not looked at: a server is asked for the batches that it has.
        pin_memory: Receive into page-locked memory.
        consumer: Number of this process among those that share the producers.
        in_order: Whether to hand batches out in the epoch's order; else as they come.
        timeout: Seconds without any batch before a wait is an error.
        cluster: The cluster; None: the one that this process has joined.
        watched: Servers whose end is an error if this process is connected with them, whether or
            not they sample; None: all.
    """

    def __init__(
        self,
        server_rank: Sequence[int],
        channel_id: Mapping[int, int] | Sequence[int],
        prefetch_size: int = 4,
        active_mask: Sequence[bool] | None = None,
        pin_memory: bool = False,
        *,
        consumer: int = 0,
        in_order: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
        cluster: Cluster | None = None,
        watched: Sequence[int] | None = None,
    ) -> None:
        self._cluster = cluster or current_cluster()
        self._server_ranks = server_rank
        if not isinstance(channel_id, Mapping):
            channel_id = dict(zip(server_rank, channel_id, strict=True))
        self._producer_ids = channel_id
        self._fetchers: dict[int, BatchFetcher] = {}
        """Fetchers by position of the server; only servers that had batches for this process."""
        # the current counts: the producers were created before, and a server that restarts from
        # here on has lost its producer
        self._renewals = dict(self._cluster.renewals)
        self._watched = watched if watched is None else Runs.of(sorted(watched))
        self._prefetch, self._consumer, self._in_order = prefetch_size, consumer, in_order
        self._timeout_s = timeout
        self._pin = pin_memory
        self._pool = BufferPool(pin_memory=pin_memory)
        self._mappings = Mappings()
        # Guards the epoch's state, here and in the fetchers. Not held during requests and waits, as
        # filing threads need it for the responses.
        self._changed = threading.Condition()
        self._attempt: Attempt | None = None
        """The current attempt; responses to fetches of another one are dropped."""
        self._order: list[BatchFetcher] = []
        """Server of each batch, in the order of the epoch."""
        self._as_they_came: deque[BatchFetcher] = deque()
        """Servers whose batches wait to be taken, if batches come out of order."""
        self._taken = self._num_waiting = 0
        self._error: Exception | None = None
        self._last_arrival = 0.0
        self._closed = False
        self.rows_apart = False
        """Whether batches come without rows: see ``sampler.rows.row_exchange.rows_apart``."""

    # -- epochs ---------------------------------------------------------------------------------

    def start_epoch(
        self, attempt: Attempt, batches: Sequence[tuple[int, int]], positions: Sequence[int]
    ) -> None:
        """Begin an epoch on all servers; return when each has confirmed it.

        Args:
            attempt: The attempt at an epoch.
            batches: ``(position among the servers, batch)``, in the order of the epoch.
            positions: Position of each in the loader's epoch.

        Raises:
            PeerError: A server or worker failed, or a server did not respond in time. The others
                have been told to stop.
        """
        self._check_open()
        with self._changed:
            # a server that samples for the previous epoch must learn of this one too
            wanted: dict[BatchFetcher, tuple[list[int], list[int]]] = {
                fetcher: ([], []) for fetcher in self._fetchers.values() if not fetcher.ended
            }
            self._reset()
            self._attempt = attempt
            for (number, batch), position in zip(batches, positions, strict=True):
                fetcher = self._fetcher(number)
                self._order.append(fetcher)
                own_batches, own_positions = wanted.setdefault(fetcher, ([], []))
                own_batches.append(batch)
                own_positions.append(position)
            for fetcher, own in wanted.items():
                fetcher.start(attempt, *own)
        deadline = time.monotonic() + self._timeout_s  # of all servers together
        # before the first fetch, as each fetch tells whether its batch has to be sent
        self._look_for_same_host(wanted, deadline)
        answers = [
            self._call(
                fetcher,
                "start_new_epoch_sampling",
                epoch=attempt.epoch,
                request=EpochRequest(
                    consumer=self._consumer,
                    attempt=attempt,
                    batches=np.array(own_batches, dtype=np.int64),
                    positions=np.array(own_positions, dtype=np.int64),
                ),
            )
            for fetcher, (own_batches, own_positions) in wanted.items()
        ]
        try:
            apart = []
            for fetcher, answer in zip(wanted, answers, strict=True):
                what = f"the start of epoch {attempt.epoch} on {fetcher.name}"
                apart.append(result_of(answer, deadline - time.monotonic(), what, self._timeout_s))
            self.rows_apart = any(apart)
        except BaseException:
            # the others have begun, and would sample in vain
            self.cancel()
            raise
        with self._changed:
            # silence counts from here, as the time for servers to begin was limited above
            self._last_arrival = time.monotonic()
        for fetcher in wanted:
            fetcher.ask()

    def _fetcher(self, number: int) -> BatchFetcher:
        """Return the fetcher of a server; one without batches so far is contacted now.

        Raises:
            ServerDiedError: The server was restarted and has lost the producer.
        """
        if number not in self._fetchers:
            rank = self._server_ranks[number]
            if self._cluster.renewals.get(rank, 0) != self._renewals.get(rank, 0):
                raise ServerDiedError(f"storage server {rank} was started again")
            self._fetchers[number] = BatchFetcher(
                self._producer_ids[rank],
                self._cluster.connection(rank),
                self._consumer,
                BatchStream(number, self._prefetch, self._in_order),
                self._changed,
                self._file,
                self._failed,
                self._pool,
                self._mappings,
            )
        return self._fetchers[number]

    def _look_for_same_host(self, fetchers: Iterable[BatchFetcher], deadline: float) -> None:
        """Find the servers whose batches need not be sent. Page-locked memory is on this side."""
        wanted = not self._pin and reads_same_memory()
        asked = [
            (one, one.connection.call("memory_mark") if wanted else None)
            for one in fetchers
            if one.same_host is None
        ]
        for one, answer in asked:
            what = f"the way to the memory of {one.name}"
            left = deadline - time.monotonic()
            one.same_host = (
                answer is not None and result_of(answer, left, what, self._timeout_s).is_seen()
            )

    def _reset(self) -> None:
        # Responses to fetches of the former epoch still come, before those of the next. `_file`
        # knows them by their attempt, so all counts can begin at zero here. Fetchers stay, as
        # their connections and threads serve the next epoch.
        self._attempt, self._order = None, []
        self._as_they_came.clear()
        self._taken = self._num_waiting = 0
        self._error = None
        for fetcher in self._fetchers.values():
            fetcher.cancel()

    def cancel(self) -> None:
        """Cancel the epoch; the servers stop sampling for it."""
        with self._changed:
            request = EpochRequest(consumer=self._consumer, attempt=self._attempt)
            running = [one for one in self._fetchers.values() if not one.ended]
            self._reset()
            self._changed.notify_all()
        for fetcher in running:
            # No wait, as a stopped server must not delay the end of a loop. The request may arrive
            # late: its attempt keeps it from cancelling a later epoch.
            with contextlib.suppress(GiglLoaderError):  # a dead server samples nothing
                self._call(fetcher, "cancel_epoch_sampling", request=request)

    @staticmethod
    def _call(fetcher: BatchFetcher, name: str, **arguments: Any) -> "Future[Any]":
        found: Future[Any]
        found = fetcher.connection.call(name, producer_id=fetcher.producer_id, **arguments)
        return found

    # -- filing: one thread for each server -----------------------------------------------------

    def _file(
        self, fetcher: BatchFetcher, attempt: Attempt, answer: FetchAnswer, message: SampleMessage
    ) -> None:
        """File a response; drop one of a cancelled epoch.

        Raises:
            ProtocolError: The response is not the requested batch.
        """
        batch = answer.batch
        with self._changed:
            if attempt != self._attempt:
                return
            self._last_arrival = time.monotonic()
            fetcher.ended = fetcher.ended or answer.finished
            if batch is not None:
                ticket = batch.ticket
                is_wanted = fetcher.to_come.pop(ticket.position, None) == (
                    ticket.batch,
                    ticket.turn,
                )
                # each server counts its workers from 0
                batch.stats["worker"] = (fetcher.connection.rank, batch.stats.get("worker", 0))
                received = Received(ticket, message, batch.stats)
                if not (is_wanted and fetcher.stream.arrived(ticket, received)):
                    raise ProtocolError(
                        f"{fetcher.name} sent batch {ticket.batch} of epoch {ticket.epoch}, which "
                        "was not requested"
                    )
                self._num_waiting += 1
                if not self._in_order:
                    self._as_they_came.append(fetcher)
            left = len(fetcher.to_come)
            # neither a batch nor the end: the response to a fetch of an epoch that is over,
            # which the server no longer knows
            if (fetcher.ended and left) or (batch is None and not fetcher.ended):
                self._error = ProtocolError(
                    f"{fetcher.name} ended epoch {attempt.epoch} with {left} batches to come"
                )
            self._changed.notify_all()

    def _failed(self, attempt: Attempt | None, error: Exception) -> None:
        """Make the next wait raise ``error``."""
        with self._changed:
            if attempt == self._attempt and self._error is None:
                self._error = error
                self._changed.notify_all()

    # -- receiving ------------------------------------------------------------------------------

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None once every server has said that the epoch is over.

        Raises:
            ServerDiedError: A storage server is gone.
            PeerTimeoutError: No server sent anything for ``timeout_s`` (default: the channel's).
            PeerError: A worker on a server died, or raised; carries its traceback.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        with self._changed:
            while True:
                self._check_open()
                # before an error, as batches that have arrived are correct
                if (fetcher := self._next_fetcher()) is not None:
                    self._taken += 1
                    self._num_waiting -= 1
                    if not self._in_order:
                        self._as_they_came.popleft()
                    received = fetcher.stream.take()
                    break
                if self._error is not None:
                    raise self._error
                self._raise_if_lost()
                if self._is_over():
                    return None
                # the time in which the loop trained before this call is not silence
                quiet = time.monotonic() - max(self._last_arrival, started)
                if quiet >= limit:
                    break
                # a second at most, as neither a broken connection nor news of a server elsewhere
                # wakes this thread
                self._changed.wait(min(1.0, limit - quiet))
        if fetcher is None:
            raise self._stalled(limit)  # without the lock: it asks the servers
        # one was taken, so one more may be requested of the same server
        fetcher.ask()
        return received

    def _next_fetcher(self) -> BatchFetcher | None:
        """Return the server of the next batch, if it has arrived."""
        if not self._in_order:
            return self._as_they_came[0] if self._as_they_came else None
        if self._taken == len(self._order) or not self._order[self._taken].stream.can_take:
            return None
        return self._order[self._taken]

    def _is_over(self) -> bool:
        return self._taken == len(self._order) and all(s.ended for s in self._fetchers.values())

    def _raise_if_lost(self) -> None:
        """Raise `ServerDiedError` if a server is gone with which this process is connected."""
        raise_if_broken(fetcher.connection for fetcher in self._fetchers.values())
        watched, cluster = self._watched, self._cluster
        connections = list(cluster.connections.items())
        # More than the fetchers' servers: their connections may be old, and their workers request
        # rows of other servers. A copy, as other threads add connections.
        raise_if_broken(
            connection for rank, connection in connections if watched is None or rank in watched
        )
        # true for every call but the last, and only compares two small dicts
        if cluster.renewals == self._renewals:
            return
        for rank, number in list(cluster.renewals.items()):
            if (watched is None or rank in watched) and number != self._renewals.get(rank, 0):
                raise ServerDiedError(f"storage server {rank} was started again")

    def _stalled(self, limit: float) -> PeerTimeoutError:
        asked = [
            (fetcher, self._call(fetcher, "describe_workers"))
            for fetcher in self._fetchers.values()
            if fetcher.stream.in_flight > fetcher.stream.waiting
        ]
        epoch = "" if self._attempt is None else f" of epoch {self._attempt.epoch}"
        deadline = time.monotonic() + _DESCRIBE_S  # of all servers together
        texts = []
        for fetcher, answer in asked:
            try:
                state = answer.result(max(0.0, deadline - time.monotonic()))
            except Exception as error:  # the error to report is the stall
                why = type(error).__name__
                state = f"does not answer ({why}): its process is stopped or overloaded"
            texts.append(f"{fetcher.name}: {state}")
        return PeerTimeoutError(
            f"no batch{epoch} came for {limit:.1f} s; waiting for "
            f"{'; '.join(texts) or 'the end of the epoch'}; if a batch really takes that long, "
            "raise `timeout`"
        )

    def ready(self) -> bool:
        """Return whether `next` would return at once."""
        with self._changed:
            is_ready = self._next_fetcher() is not None
            return is_ready or self._error is not None or self._is_over()

    @property
    def queue_depth(self) -> int:
        """Number of batches that have arrived and wait to be taken."""
        return self._num_waiting

    def recv(self, timeout_s: float | None = None, **_: Any) -> SampleMessage:
        """Return the next message.

        Raises:
            UsageError: The epoch is over.
            PeerError: As for `next`.
        """
        received = self.next(timeout_s)
        if received is None:
            raise UsageError("recv past the end of the epoch: start the next one first")
        return received.message

    def send(self, msg: SampleMessage, **_: Any) -> None:
        """Refuse to send: this is the receiving end."""
        raise UsageError("a RemoteReceivingChannel only receives")

    def empty(self) -> bool:
        """Return whether nothing has arrived."""
        return self.queue_depth == 0

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the channel is closed: the loader was shut down")

    def close(self) -> None:
        """Wake waiting threads, and drop batches that have arrived. Idempotent."""
        with self._changed:
            self._closed = True
            self._reset()
            self._changed.notify_all()
        for fetcher in self._fetchers.values():
            fetcher.hang_up()
        self._mappings.close()
