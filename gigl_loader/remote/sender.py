"""A storage server's answers to fetches: batches on their way out, or lent where they lie."""

import itertools
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from gigl_loader.memory.leases import Packed
from gigl_loader.memory.same_host import Region
from gigl_loader.message import Received
from gigl_loader.remote.payload import pack_batch
from gigl_loader.remote.requests import BatchMessage, FetchAnswer, FetchRequest, GiveBack, Nothing
from gigl_loader.remote.service import DistServer
from gigl_loader.transport import Peer

_MOST_GONE = 10_000
"""Sessions of clients that have left which are remembered; see `Leases.lend`."""


@dataclass(frozen=True)
class _Lease:
    message: Packed
    request: FetchRequest


class Leases:
    """Which client on this host reads which batch where it lies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # never used twice: a lease that is given back late, or twice, ends no other one
        self._numbers = itertools.count(1)
        self._by_session: dict[str, dict[int, _Lease]] = {}
        self._gone: dict[str, None] = {}  # oldest first

    def lend(self, session: str, request: FetchRequest, message: Packed) -> tuple[int, Region]:
        """Return the number of a new lease, and where the batch lies."""
        with self._lock:
            number = next(self._numbers)
            # A worker's batch may come in the moment in which its client leaves. Nobody would end
            # that lease: sessions of clients that have left do not come back.
            is_gone = session in self._gone
            if not is_gone:
                self._by_session.setdefault(session, {})[number] = _Lease(message, request)
        if is_gone:
            message.lease.poison()  # the answer may still reach it
        # after it is filed: the lease of a client that goes away in between is poisoned, too
        return number, message.lease.lend()

    def give_back(self, session: str, numbers: Iterable[int]) -> None:
        """End leases: their memory is free to be written again. Unknown ones are ignored."""
        with self._lock:
            leases = self._by_session.get(session, {})
            ended = [leases.pop(number, None) for number in numbers]
        del ended  # not under the lock: slots are free from here on

    def lose_from(self, session: str, request: FetchRequest) -> None:
        """Give up the leases of answers that were lost: those at this position and after it.

        Nobody knows their numbers; and since the client might read them, nobody may write there.
        """
        with self._lock:
            leases = self._by_session.get(session, {})
            # as many as the client holds: some prefetched batches, and those that its loop keeps
            lost = [n for n, lease in leases.items() if _follows(lease.request, request)]
            ended = [leases.pop(number) for number in lost]
        self._lose(ended)

    def lose(self, session: str) -> None:
        """Give up all leases of a client that is gone: it may go on reading."""
        with self._lock:
            ended = list(self._by_session.pop(session, {}).values())
            self._gone[session] = None
            while len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]
        self._lose(ended)

    @staticmethod
    def _lose(leases: Iterable[_Lease]) -> None:
        for lease in leases:
            # and dropped by whoever called: the slot is given up, not written, once nothing holds
            # it
            lease.message.lease.poison()


def _follows(one: FetchRequest, other: FetchRequest) -> bool:
    same = (one.producer_id, one.consumer, one.attempt) == (
        other.producer_id, other.consumer, other.attempt,
    )  # fmt: skip
    # uncounted fetches are GLT's: they name no position, and are not asked again
    if not same or one.position is None or other.position is None:
        return False
    return one.position >= other.position


class BatchSender:
    """Answers fetches of clients, and takes back what it lent to those of the same machine.

    Args:
        server: Whose batches.
    """

    def __init__(self, server: DistServer) -> None:
        self._server, self._leases = server, Leases()

    def fetch(self, request: FetchRequest, peer: Peer) -> "Future[FetchAnswer]":
        """Return a batch of a consumer as it travels, as soon as there is one."""
        # who asks for a position has no answer to it, nor to later ones: those were lost on the way
        self._leases.lose_from(peer.session, request)
        return self._server.fetch(request, peer.number, partial(self._packed, request, peer))

    def _packed(
        self, request: FetchRequest, peer: Peer, received: Received | None, finished: bool
    ) -> FetchAnswer:
        if received is None:
            return FetchAnswer(None, finished)
        message = received.message
        assert isinstance(message, Packed)
        about = (received.ticket, received.stats, message.layout)
        if request.same_host:
            lease, region = self._leases.lend(peer.session, request, message)
            return FetchAnswer(BatchMessage(*about, region=region, lease=lease), finished)
        columns, parts = pack_batch(message.layout, message.payload)  # keeps the slot until sent
        return FetchAnswer(BatchMessage(*about, columns=columns, parts=parts), finished)

    def give_back(self, request: GiveBack, peer: Peer) -> Nothing:
        """Take batches back that nothing on the client's side reads any more."""
        self._leases.give_back(peer.session, request.leases)
        return Nothing()

    def lose(self, session: str) -> None:
        """Take back all that a client has: it is gone."""
        self._leases.lose(session)
