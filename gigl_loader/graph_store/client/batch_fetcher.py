"""Batches of one storage server, as a client fetches them and gives them back."""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

from gigl_loader.batch.leases import BufferPool, payload_bytes
from gigl_loader.batch.message import Attempt, Received, SampleMessage
from gigl_loader.errors import GiglLoaderError, PeerError, ProtocolError, ServerDiedError
from gigl_loader.graph_store.client.connection import ServerConnection
from gigl_loader.graph_store.wire.calls import dtype_of
from gigl_loader.graph_store.wire.payload import unpack_batch, wire_bytes
from gigl_loader.graph_store.wire.requests import (
    BatchMessage,
    FetchAnswer,
    FetchRequest,
    GiveBack,
    Nothing,
)
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.same_host import Mappings
from gigl_loader.runtime.memory.tensors import tensors_in
from gigl_loader.runtime.threads import new_thread
from gigl_loader.runtime.transport import Caller, Reply
from gigl_loader.sources.workers.schedule import BatchStream

_GIVE_BACK_S = 1.0
"""Seconds that a filing thread waits for a server to confirm that it took leases back."""


class BatchFetcher:
    """Fetches the batches that one server samples for this process.

    Responses are filed by a thread of their own, in the order of the requests.

    Args:
        producer_id: The producer on that server.
        connection: The current connection, not a later one of the cluster: the producer belongs to
            the current server process.
        consumer: Number of this process among those that share the producer.
        stream: Batches to request, and those that have arrived.
        changed: Guards ``stream``; not held during requests and waits.
        file: Takes a response: the attempt of its request, and its tensors by key. Called
            without ``changed``.
        fail: Called with the error, and the attempt that it ends.
        pool, mappings: Memory for batches that are sent, and for those that are read in place.
    """

    def __init__(
        self,
        producer_id: int,
        connection: ServerConnection,
        consumer: int,
        stream: BatchStream[Received],
        changed: threading.Condition,
        file: "Callable[[BatchFetcher, Attempt, FetchAnswer, SampleMessage], None]",
        fail: Callable[[Attempt | None, Exception], None],
        pool: BufferPool,
        mappings: Mappings,
    ) -> None:
        self.producer_id, self.connection, self.stream = producer_id, connection, stream
        self.to_come: dict[int, tuple[int, int]] = {}
        """By position in the loader's epoch: the batch, and its turn at this server."""
        self.ended = True
        """Whether the server has said that the epoch is over."""
        self.same_host: bool | None = None
        """Whether batches can be read in the server's memory; None: not known yet."""
        self._consumer, self._changed, self._file, self._fail = consumer, changed, file, fail
        self._pool, self._mappings = pool, mappings
        # held while fetches are sent, so that they are filed in that order. Taken before `changed`
        self._asking = threading.Lock()
        self._caller: Caller | None = None
        self._fetches: queue.SimpleQueue[tuple[Reply[FetchAnswer], Attempt] | None]
        self._fetches = queue.SimpleQueue()
        self._released: deque[tuple[int, int]] = deque()
        """Leases of batches that were dropped, and the forks of this process before each; appended
        to by finalizers, which may not lock."""
        self._giver: Caller | None = None
        """Connection for returning leases: responses on the other may take long."""
        self._given_back: Reply[Nothing] | None = None

    @property
    def name(self) -> str:
        """Name of the server in errors."""
        return f"storage server {self.connection.rank}"

    def start(self, attempt: Attempt, batches: Sequence[int], positions: Sequence[int]) -> None:
        """Take these batches, at these positions of the loader's epoch, for the next epoch."""
        turns = enumerate(batches)
        self.to_come = {p: (batch, turn) for p, (turn, batch) in zip(positions, turns, strict=True)}
        # nothing will be fetched from one without batches, so it cannot say that it has ended
        self.ended = not batches
        self.stream.start(attempt, batches, positions)

    def cancel(self) -> None:
        """Request no more batches of the epoch, and drop those that have arrived."""
        self.to_come, self.ended = {}, True
        self.stream.cancel()

    def ask(self) -> None:
        """Request as many batches as may be under way."""
        with self._asking:
            # taken under the lock but requested outside it, as sending waits while the server
            # takes no bytes
            with self._changed:
                tickets = list(iter(self.stream.next_ticket, None))
            for ticket in tickets:
                request = FetchRequest(
                    producer_id=self.producer_id,
                    consumer=self._consumer,
                    attempt=ticket.attempt,
                    fetches_before=ticket.turn,
                    same_host=bool(self.same_host),
                )
                try:
                    # received in place: the arrays of the response are the memory of the
                    # batch's tensors
                    reply = self._dialled().ask("fetch", request, FetchAnswer, into=self._pool.room)
                except GiglLoaderError as error:
                    self._fail(ticket.attempt, self.connection.note_failure(error))
                    return
                self._fetches.put((reply, ticket.attempt))

    def _dialled(self) -> Caller:
        if self._caller is None:
            self._caller = self.connection.dial()
            new_thread(
                target=self._file_all,
                name=f"batches of {self.connection.name}",
                on_death=lambda error: self._fail(self.stream.attempt, self._unexpected(error)),
            ).start()
        return self._caller

    def _unexpected(self, error: BaseException) -> PeerError:
        return PeerError(f"{self.connection.name}: {type(error).__name__}: {error}")

    # -- filing: in the thread ------------------------------------------------------------------

    def _file_all(self) -> None:
        while (fetch := self._fetches.get()) is not None:
            reply, attempt = fetch
            try:
                # no limit here: the reader has one, and the caller gives up a server that is
                # gone or silent
                self._file_answer(attempt, reply.wait())
            except GiglLoaderError as error:
                self._fail(attempt, self.connection.note_failure(error))
            except Exception as error:  # the loop must not wait for a thread that has ended
                self._fail(attempt, self._unexpected(error))
            del reply, fetch  # before the next wait, as they keep the batch alive
            self._give_back()

    def _file_answer(self, attempt: Attempt, answer: FetchAnswer) -> None:
        # also for a cancelled epoch: a batch that was lent is returned when its tensors are dropped
        message = {} if answer.batch is None else self._message(answer.batch)
        self._file(self, attempt, answer, message)

    def _message(self, batch: BatchMessage) -> SampleMessage:
        """Return the tensors of a batch, over the received bytes or the server's memory.

        Raises:
            PeerError: The server's memory cannot be mapped.
            ProtocolError: The tensors do not lie within the received bytes.
        """
        for _, dtype, shape, offset in batch.layout:
            # raises for a type that does not travel
            dtype_of(dtype)
            # received values are not trusted: a tensor that begins before the buffer would read
            # other memory
            if min((offset, *shape)) < 0:
                raise ProtocolError(f"a tensor of shape {shape} at byte {offset} was sent")
        nbytes = payload_bytes(batch.layout)
        if batch.region is None:
            sent = (batch.columns, batch.parts)
            batch.stats["received"] = wire_bytes(*sent, batch.layout)
            return unpack_batch(batch.layout, *sent, self._pool.take_leased)
        if batch.region.nbytes < nbytes:
            raise ProtocolError(f"a batch of {nbytes} bytes lies in {batch.region.nbytes}")
        lease, released = (batch.lease, segments.num_forks()), self._released
        try:
            # `append` of a deque needs no lock, which a finalizer in any thread could not take
            buffer = self._mappings.lease(batch.region, lambda: released.append(lease))
        except OSError as error:
            # it was not read, and is returned anyway
            released.append(lease)
            raise self._unreadable(error) from error
        return tensors_in(buffer, batch.layout)

    def _unreadable(self, error: OSError) -> PeerError:
        """Return the error for a batch in the server's memory that cannot be mapped."""
        if isinstance(error, FileNotFoundError | ProcessLookupError):  # its process has ended
            return ServerDiedError(f"{self.name} ended before a batch of it was read")
        return PeerError(
            f"a batch of {self.name} cannot be mapped from its memory: {error}; this machine is "
            "short of memory or of address space, or the server has just ended"
        )

    def _give_back(self) -> None:
        """Tell the server which of its batches are no longer read here."""
        if not self._released:
            return
        with contextlib.suppress(GiglLoaderError):  # a dead server overwrites nothing
            # Only between two fetches, so leases that end after the last batch are returned in the
            # next epoch, or with the client. The former response is read first, as nothing else
            # reads it; if that takes longer than `_GIVE_BACK_S`, the next call returns all leases.
            if self._giver is None:
                self._giver = self.connection.dial()
            if self._given_back is not None:
                self._given_back.wait(_GIVE_BACK_S)
            leases, shared = list[int](), list[int]()
            while self._released:  # only now, as items removed here have to be sent
                lease, num_forks = self._released.popleft()
                (leases if num_forks == segments.num_forks() else shared).append(lease)
            given_back = GiveBack(tuple(leases), tuple(shared))
            self._given_back = self._giver.ask("give_back", given_back, Nothing)

    def hang_up(self) -> None:
        """Close the connections, and let the thread end."""
        # after the requests: the thread files their responses first, or finds its connection closed
        self._fetches.put(None)
        for caller in (self._caller, self._giver):
            if caller is not None:
                self.connection.hang_up(caller)
