"""Batches that a storage server sends or lends to clients, and gets back."""

import itertools
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from gigl_loader.batch.leases import Packed
from gigl_loader.batch.message import Received
from gigl_loader.graph_store.server.latest import Latest
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.wire.payload import pack_batch
from gigl_loader.graph_store.wire.requests import (
    BatchMessage,
    FetchAnswer,
    FetchRequest,
    GiveBack,
    Nothing,
)
from gigl_loader.runtime.memory.same_host import Region
from gigl_loader.runtime.transport import Peer

_MOST_GONE = 10_000
"""Most sessions of departed clients to remember; see `BatchSender.lend`."""


_Lease = tuple[Packed, FetchRequest]
"""A batch that is lent, and the request for it."""


class BatchSender:
    """Serves fetches of clients; knows which client on this host reads which batch in this memory.

    Thread-safe.

    Args:
        server: The server of the batches.
    """

    def __init__(self, server: StorageService) -> None:
        self._server = server
        self._lock = threading.Lock()
        # numbers are never reused, so returning a lease late or twice ends no other lease
        self._numbers = itertools.count(1)
        self._leases: dict[str, dict[int, _Lease]] = {}
        """By session of the client, and number."""
        self._gone = Latest[str, None](_MOST_GONE)

    def fetch(self, request: FetchRequest, peer: Peer) -> "Future[FetchAnswer]":
        """Return a batch of a consumer in its sent form, as soon as there is one."""
        # a client that sends a fetch again has lost all responses from that fetch on
        self.lose_from(peer.session, request)
        producer = self._server.producer(request.producer_id, request.consumer)
        return producer.fetch(request, peer.number, partial(self._packed, request, peer))

    def _packed(
        self, request: FetchRequest, peer: Peer, received: Received | None, finished: bool
    ) -> FetchAnswer:
        if received is None:
            return FetchAnswer(None, finished)
        message = received.message
        assert isinstance(message, Packed)
        written = message.lease
        about = (received.ticket, received.stats, written.layout)
        if request.same_host:
            lease, region = self.lend(peer.session, request, message)
            return FetchAnswer(BatchMessage(*about, region=region, lease=lease), finished)
        columns, parts = pack_batch(written.layout, written.payload)  # keeps the slot until sent
        return FetchAnswer(BatchMessage(*about, columns=columns, parts=parts), finished)

    def lend(self, session: str, request: FetchRequest, message: Packed) -> tuple[int, Region]:
        """Return the number of a new lease, and the location of the batch."""
        with self._lock:
            number = next(self._numbers)
            # A worker's batch may come at the moment its client leaves. Nobody would end that
            # lease, as sessions of clients that have left do not come back.
            is_gone = session in self._gone
            if not is_gone:
                self._leases.setdefault(session, {})[number] = message, request
        if is_gone:
            message.lease.poison()  # the response may still reach the client
        # after it is filed, so that the lease of a client that leaves meanwhile is poisoned too
        return number, message.lease.lend()

    def give_back(self, request: GiveBack, peer: Peer) -> Nothing:
        """End leases, so that their memory may be written again. Unknown ones are ignored."""
        with self._lock:
            leases = self._leases.get(peer.session, {})
            ended = [leases.pop(number, None) for number in request.leases]
            shared = [leases.pop(number) for number in request.shared if number in leases]
        _poison(shared)
        del ended, shared  # outside the lock; this frees the slots
        return Nothing()

    def lose_from(self, session: str, request: FetchRequest) -> None:
        """Give up the leases of lost responses: those to this fetch and to later ones.

        Their numbers are unknown; and as the client might read them, nothing may be written there.
        """
        with self._lock:
            leases = self._leases.get(session, {})
            # as many as the client holds: some prefetched batches, and those that its loop keeps
            lost = [number for number, (_, leased) in leases.items() if _follows(leased, request)]
            ended = [leases.pop(number) for number in lost]
        _poison(ended)

    def end_producer(self, producer_id: int) -> None:
        """Give up all leases of a producer that is over; clients keep what they have mapped."""
        with self._lock:
            ended = [
                leases.pop(number)
                for leases in self._leases.values()
                for number, (_, leased) in [*leases.items()]
                if leased.producer_id == producer_id
            ]
        _poison(ended)

    def lose(self, session: str) -> None:
        """Give up all leases of a client that is gone for good, as it may still be reading."""
        with self._lock:
            self._gone[session] = None
        self.lose_all(session)

    def lose_all(self, session: str) -> None:
        """Give up the leases of a client that may come back."""
        with self._lock:
            ended = self._leases.pop(session, {}).values()
        _poison(ended)


def _poison(leases: Iterable[_Lease]) -> None:
    for message, _ in leases:
        # the caller then drops it: the slot is released, not written again, once nothing holds it
        message.lease.poison()


def _follows(request: FetchRequest, other: FetchRequest) -> bool:
    same = (request.producer_id, request.consumer, request.attempt) == (
        other.producer_id,
        other.consumer,
        other.attempt,
    )
    # fetches that are not counted are GLT's, and never repeated
    if not same or request.fetches_before is None or other.fetches_before is None:
        return False
    return request.fetches_before >= other.fetches_before
