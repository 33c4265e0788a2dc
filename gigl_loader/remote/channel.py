"""Batches from storage servers: asked for ahead, put in order, watched."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from gigl_loader._glt import ChannelBase
from gigl_loader.errors import (
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.memory.leases import payload_bytes, tensors_over
from gigl_loader.memory.same_host import Mappings, sees
from gigl_loader.message import Received, SampleMessage
from gigl_loader.options import DEFAULT_TIMEOUT_S, reads_same_memory
from gigl_loader.remote.buffers import BufferPool
from gigl_loader.remote.calls import dtype_of
from gigl_loader.remote.client import current_cluster
from gigl_loader.remote.cluster import Cluster, raise_if_broken
from gigl_loader.remote.compact import Runs
from gigl_loader.remote.connection import result_of
from gigl_loader.remote.messages import (
    BatchMessage,
    EpochRequest,
    FetchAnswer,
    FetchRequest,
    GiveBack,
    Nothing,
)
from gigl_loader.remote.payload import unpack_batch, wire_bytes
from gigl_loader.remote.supplier import Supplier
from gigl_loader.threads import new_thread
from gigl_loader.transport import Caller

_DESCRIBE_S = 2.0
"""How long stalled servers may take to say what their workers do."""
_GIVE_BACK_S = 1.0
"""How long a thread that files batches waits for a server to say that it took leases back."""


class RemoteReceivingChannel(ChannelBase):
    """Receives the batches of one epoch after another from storage servers.

    ::

        next() <-- in order <-- arrived <-- thread <-- server 0: up to prefetch_size asked or unread
                                        <-- thread <-- server 1: the same

    A fetch names its position in the server's part of the epoch, so that it can be asked again
    after a lost connection.

    Args:
        server_ranks: Servers that sample, in the order of their shards.
        producer_ids: By server.
        prefetch_size: Batches per server that are asked for and not handed out.
        consumer: This process's number among those that share the producers.
        in_order: Hand batches out in the epoch's order; else as they come.
        timeout_s: Seconds without any batch before a wait is an error.
        pin_memory: Receive into page-locked memory.
        cluster: None: the one that this process has joined.
        watched: Servers whose end is an error, whether or not they sample, where this process is
            connected with them; None: all.
    """

    def __init__(
        self,
        server_ranks: Sequence[int],
        producer_ids: Mapping[int, int],
        prefetch_size: int = 4,
        *,
        consumer: int = 0,
        in_order: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        pin_memory: bool = False,
        cluster: Cluster | None = None,
        watched: Sequence[int] | None = None,
    ) -> None:
        self._cluster = cluster or current_cluster()
        self._server_ranks, self._producer_ids = server_ranks, producer_ids
        self._servers: dict[int, Supplier] = {}
        """By position among the servers; those that had batches for this process so far."""
        # as they are now: the producers were made before this, and a server that is renewed from
        # here on has lost its one
        self._renewals = dict(self._cluster.renewals)
        self._watched = watched if watched is None else Runs.of(sorted(watched))
        self._prefetch, self._consumer, self._in_order = prefetch_size, consumer, in_order
        self._timeout_s = timeout_s
        self._pin = pin_memory
        self._pool = BufferPool(pin_memory)
        self._mappings = Mappings()
        # Guards the epoch's state, here and in the suppliers. Taken after `Supplier.asking`, and
        # not held while a server is asked or awaited: filing threads need it for the answers.
        self._changed = threading.Condition()
        self._generation = 0
        self._epoch = -1
        self._order: list[Supplier] = []
        """By position in the epoch: who samples the batch."""
        self._arrived: dict[int, Received] = {}
        self._taken = 0
        self._error: Exception | None = None
        self._last_arrival = 0.0
        self._closed = False
        self.rows_apart = False
        """Whether batches of the epoch come without rows; see `gigl_loader.sampler.apart`."""

    # -- epochs ---------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, batches: Sequence[tuple[int, int]]) -> None:
        """Begin an epoch on all servers; returns when each has said that it did.

        Args:
            epoch: Which.
            batches: ``(position among the servers, batch)``, in the order of the epoch.

        Raises:
            PeerError: A server or worker failed, or a server did not answer in time. The others
                have been told to stop.
        """
        self._check_open()
        with self._changed:
            # a server that samples for the epoch before is told of this one too
            running = [number for number, one in self._servers.items() if not one.ended]
            self._reset()
            self._epoch = epoch
            by_server: dict[int, list[int]] = {number: [] for number in running}
            for position, (number, batch) in enumerate(batches):
                server = self._server(number)
                self._order.append(server)
                server.positions.setdefault(batch, deque()).append(position)
                by_server.setdefault(number, []).append(batch)
            asked = {self._servers[number]: wanted for number, wanted in by_server.items()}
            for server, wanted in asked.items():
                server.total = server.left = len(wanted)
                # nothing will be fetched from one without batches, so it cannot say that it has
                # ended
                server.ended = not wanted
            generation = self._generation
        deadline = time.monotonic() + self._timeout_s  # of all servers together
        # before the first fetch: each fetch says whether its batch has to travel
        self._look_for_same_host(asked, deadline)
        answers = [
            self._call(
                server, "start_new_epoch_sampling", producer_id=server.producer_id, epoch=epoch,
                request=EpochRequest(
                    consumer=self._consumer, generation=generation,
                    batches=np.array(wanted, dtype=np.int64),
                ),
            )
            for server, wanted in asked.items()
        ]  # fmt: skip
        try:
            apart = []
            for server, answer in zip(asked, answers, strict=True):
                what = f"the start of epoch {epoch} on storage server {server.rank}"
                apart.append(result_of(answer, deadline - time.monotonic(), what, self._timeout_s))
            self.rows_apart = any(apart)
        except BaseException:
            # the others have begun: they would sample for nobody
            self.cancel()
            raise
        with self._changed:
            # silence counts from here: how long servers may take to begin was limited above
            self._last_arrival = time.monotonic()
        for server in asked:
            self._ask(server)

    def _server(self, number: int) -> Supplier:
        """Return a server; one that had no batches for this process before is met now.

        Raises:
            ServerDiedError: It was started again: the producer is not there any more.
        """
        if number not in self._servers:
            rank = self._server_ranks[number]
            producer = self._producer_ids[rank]
            if self._cluster.renewals.get(rank, 0) != self._renewals.get(rank, 0):
                raise ServerDiedError(f"storage server {rank} was started again")
            self._servers[number] = Supplier(rank, producer, self._cluster.connection(rank))
        return self._servers[number]

    def _look_for_same_host(self, servers: Iterable[Supplier], deadline: float) -> None:
        """Find out, once, whose batches need not travel. Page-locked memory is this side's own."""
        wanted = not self._pin and reads_same_memory()
        asked = [
            (server, self._call(server, "memory_mark") if wanted else None)
            for server in servers
            if server.same_host is None
        ]
        for server, answer in asked:
            what = f"the way to the memory of storage server {server.rank}"
            left = deadline - time.monotonic()
            server.same_host = answer is not None and sees(
                result_of(answer, left, what, self._timeout_s)
            )

    def _reset(self) -> None:
        # Answers to fetches of the former epoch still come, ahead of those of the next. `_arrive`
        # knows them by their generation, so that all counts can begin at zero here. Suppliers stay:
        # their connections and threads serve the next epoch.
        self._generation += 1
        self._arrived.clear()
        self._order = []
        self._taken, self._error = 0, None
        for server in self._servers.values():
            server.positions = {}
            server.total = server.left = server.asked = server.under_way = 0
            server.ended = True

    def cancel(self) -> None:
        """Break the epoch off; the servers stop sampling for it."""
        with self._changed:
            generation, running = (
                self._generation,
                [s for s in self._servers.values() if not s.ended],
            )
            self._reset()
            self._changed.notify_all()
        for server in running:
            # Not awaited: a server that is stopped must not hold up the end of a loop. It may
            # arrive late: the generation keeps it from breaking off a later epoch.
            request = EpochRequest(consumer=self._consumer, generation=generation)
            with contextlib.suppress(GiglLoaderError):  # a dead server samples nothing
                self._call(
                    server, "cancel_epoch_sampling", producer_id=server.producer_id, request=request
                )

    def _call(self, server: Supplier, name: str, **arguments: Any) -> "Future[Any]":
        found: Future[Any] = server.connection.call(name, **arguments)
        return found

    def _ask(self, server: Supplier) -> None:
        """Ask for as many batches as may be on their way."""
        with server.asking:
            with self._changed:
                # short: no more than prefetch_size batches of each server have arrived and are
                # unread
                unread = sum(self._order[position] is server for position in self._arrived)
                ahead = self._prefetch - server.under_way - unread
                count = max(0, min(server.total - server.asked, ahead))
                first, generation = server.asked, self._generation
                # Positions are taken under the lock, and asked for outside of it: sending waits
                # while the server takes no bytes. `asking` keeps two threads from mixing their
                # fetches.
                server.asked += count
                server.under_way += count
            for position in range(first, first + count):
                request = FetchRequest(
                    producer_id=server.producer_id, consumer=self._consumer,
                    generation=generation, position=position, same_host=bool(server.same_host),
                )  # fmt: skip
                try:
                    caller = self._caller_of(server)
                    # received where it stays: the arrays of the answer are the memory of the
                    # batch's tensors
                    reply = caller.ask("fetch", request, FetchAnswer, into=self._pool.room)
                except GiglLoaderError as error:
                    self._failed(generation, server.connection.named(error))
                    return
                server.fetches.put((reply, generation))

    def _caller_of(self, server: Supplier) -> Caller:
        if server.caller is None:
            connection = server.connection
            server.caller = connection.dial()
            new_thread(
                target=self._file_all, args=(server,), name=f"batches of {connection.name}",
                on_death=lambda error: self._failed(
                    self._generation,
                    PeerError(f"{connection.name}: {type(error).__name__}: {error}"),
                ),
            ).start()  # fmt: skip
        return server.caller

    # -- filing: one thread for each server -----------------------------------------------------

    def _file_all(self, server: Supplier) -> None:
        connection = server.connection
        while (fetch := server.fetches.get()) is not None:
            reply, generation = fetch
            try:
                # no limit here: `next` has one, and the caller gives up a server that is gone or
                # silent
                self._arrive(server, generation, reply.wait())
            except GiglLoaderError as error:
                self._failed(generation, connection.named(error))
            except Exception as error:  # the loop must not wait for a thread that has ended
                self._failed(
                    generation, PeerError(f"{connection.name}: {type(error).__name__}: {error}")
                )
            del reply, fetch  # before the next wait: they keep the batch
            self._give_back(server)

    def _arrive(self, server: Supplier, generation: int, answer: FetchAnswer) -> None:
        """File an answer; one of a broken-off epoch is dropped."""
        batch = answer.batch
        # Outside of the lock: unpacking takes milliseconds. Of a broken-off epoch, too: a batch
        # that was lent goes back when its tensors are dropped.
        message = {} if batch is None else self._message(server, batch)
        with self._changed:
            if generation != self._generation:
                return
            server.under_way -= 1
            self._last_arrival = time.monotonic()
            server.ended = server.ended or answer.finished
            if batch is not None:
                waiting = server.positions.get(batch.ticket.batch)
                if not waiting:
                    raise ProtocolError(
                        f"storage server {server.rank} sent batch {batch.ticket.batch} of epoch "
                        f"{self._epoch}, which was not asked for"
                    )
                # servers count their workers from 0 each
                batch.stats["worker"] = (server.rank, batch.stats.get("worker", 0))
                received = Received(batch.ticket, message, batch.stats)
                # of a batch that stands in the epoch several times all copies are equal: the first
                # comes first
                self._arrived[waiting.popleft()] = received
                server.left -= 1
            self._check_complete(server, batch is not None)
            self._changed.notify_all()

    def _message(self, server: Supplier, batch: BatchMessage) -> SampleMessage:
        """Return the tensors of a batch, over what was received or where the server has it.

        Raises:
            PeerError: The server's memory cannot be mapped.
            ProtocolError: The tensors do not lie within what was received.
        """
        for _, dtype, shape, offset in batch.layout:
            # raises for a type that does not travel
            dtype_of(dtype)
            # what came is not trusted: a tensor over memory that lies before the buffer would read
            # anything
            if min((offset, *shape)) < 0:
                raise ProtocolError(f"a tensor of shape {shape} at byte {offset} was sent")
        nbytes = payload_bytes(batch.layout)
        if batch.region is None:
            sent = (batch.columns, batch.parts)
            batch.stats["received"] = wire_bytes(*sent, batch.layout)
            return unpack_batch(batch.layout, *sent, self._pool.take_leased)
        if batch.region.nbytes < nbytes:
            raise ProtocolError(f"a batch of {nbytes} bytes lies in {batch.region.nbytes}")
        lease, released = batch.lease, server.released
        try:
            # `append` of a deque needs no lock, which a finalizer in any thread could not take
            buffer = self._mappings.lease(batch.region, lambda: released.append(lease))
        except OSError as error:
            # it was not read, and is back all the same
            released.append(lease)
            raise server.unreadable(error) from error
        return tensors_over(buffer, batch.layout)

    def _give_back(self, server: Supplier) -> None:
        """Tell the server which of its batches nothing here reads any more."""
        if not server.released:
            return
        with contextlib.suppress(GiglLoaderError):  # a dead server writes nothing over
            # Only between two fetches, so leases that end after the last batch go back in the next
            # epoch, or with the client. The former answer is read first, since nobody else does; a
            # server that takes longer than `_GIVE_BACK_S` for it is told of all leases next time.
            if server.giver is None:
                server.giver = server.connection.dial()
            if server.given_back is not None:
                server.given_back.wait(_GIVE_BACK_S)
            leases = []
            while server.released:  # not before: what is taken off here is told
                leases.append(server.released.popleft())
            server.given_back = server.giver.ask("give_back", GiveBack(tuple(leases)), Nothing)

    def _check_complete(self, server: Supplier, has_batch: bool) -> None:
        # neither a batch nor the end is what a server says to a fetch of an epoch that is over:
        # this one it does not know any more
        if (server.ended and server.left) or (not has_batch and not server.ended):
            self._error = ProtocolError(
                f"storage server {server.rank} ended epoch {self._epoch} with {server.left} "
                "batches to come"
            )

    def _failed(self, generation: int, error: Exception) -> None:
        """Let the next wait raise ``error``."""
        with self._changed:
            if generation == self._generation and self._error is None:
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
                position = self._ready_position()
                if position is not None:
                    # ahead of an error: what has arrived is right, whatever failed later
                    received: Received | None = self._arrived.pop(position)
                    self._taken += 1
                    server = self._order[position]
                    break
                if self._error is not None:
                    raise self._error
                self._raise_if_lost()
                if self._taken == len(self._order) and all(s.ended for s in self._servers.values()):
                    return None
                # the time that the loop trained, before it came back here, is not silence
                quiet = time.monotonic() - max(self._last_arrival, started)
                if quiet >= limit:
                    received = None
                    break
                # a second at most: neither a connection that breaks nor news of a server elsewhere
                # wakes anybody here
                self._changed.wait(min(1.0, limit - quiet))
        if received is None:
            raise self._stalled(limit)  # without the lock: it asks the servers
        # one was taken, so one more of the same server may be on its way
        self._ask(server)
        return received

    def _ready_position(self) -> int | None:
        if not self._in_order:
            return next(iter(self._arrived), None)
        return self._taken if self._taken in self._arrived else None

    def _raise_if_lost(self) -> None:
        """Raise `ServerDiedError` where a server is gone that this process is connected with."""
        raise_if_broken(server.connection for server in self._servers.values())
        watched, cluster = self._watched, self._cluster
        connections = list(cluster.connections.items())
        # Further than the suppliers': their connections are those of when they were met, and other
        # servers are asked for rows by the workers of these. Copied, as other threads add links.
        raise_if_broken(
            connection for rank, connection in connections if watched is None or rank in watched
        )
        # the case of every call but the last: a comparison of two small dicts
        if cluster.renewals == self._renewals:
            return
        for rank, number in list(cluster.renewals.items()):
            if (watched is None or rank in watched) and number != self._renewals.get(rank, 0):
                raise ServerDiedError(f"storage server {rank} was started again")

    def _stalled(self, limit: float) -> PeerTimeoutError:
        asked = [
            (server, self._call(server, "describe_workers", producer_id=server.producer_id))
            for server in self._servers.values()
            if server.under_way
        ]
        deadline = time.monotonic() + _DESCRIBE_S  # of all servers together
        texts = []
        for server, answer in asked:
            try:
                state = answer.result(max(0.0, deadline - time.monotonic()))
            except Exception as error:  # the stall is what counts
                why = type(error).__name__
                state = f"does not answer ({why}): its process is stopped or overloaded"
            texts.append(f"storage server {server.rank}: {state}")
        return PeerTimeoutError(
            f"no batch of epoch {self._epoch} came for {limit:.1f} s; waiting for "
            f"{'; '.join(texts) or 'the end of the epoch'}; if a batch really takes that long, "
            "raise `timeout`"
        )

    def ready(self) -> bool:
        """Return whether `next` would not wait."""
        with self._changed:
            ended = self._taken == len(self._order) and all(s.ended for s in self._servers.values())
            return self._ready_position() is not None or self._error is not None or ended

    @property
    def queue_depth(self) -> int:
        """Batches that have arrived and wait to be taken."""
        return len(self._arrived)

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
        """Refuse: this is the receiving end."""
        raise UsageError("a RemoteReceivingChannel only receives")

    def empty(self) -> bool:
        """Return whether nothing has arrived."""
        return not self._arrived

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the channel is closed: the loader was shut down")

    def close(self) -> None:
        """Wake whoever waits, and drop what has arrived. Idempotent."""
        with self._changed:
            self._closed = True
            self._reset()
            self._changed.notify_all()
        for server in self._servers.values():
            server.hang_up()
        self._mappings.close()
