"""A storage server's answers to fetches: batches on their way out, or lent where they lie."""

import weakref
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any

from gigl_loader.memory.leases import Packed
from gigl_loader.remote.leases import Leases
from gigl_loader.remote.messages import BatchMessage, FetchAnswer, FetchRequest, GiveBack, Nothing
from gigl_loader.remote.payload import pack_batch
from gigl_loader.remote.service import DistServer
from gigl_loader.remote.shared import Fetched
from gigl_loader.transport import Peer


class Handout:
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
        answer: Future[FetchAnswer] = Future()
        found = self._server.fetch(request, peer.number)
        found.add_done_callback(partial(self._answer, request, peer, answer))
        # weak: futures keep their callbacks; two that hold each other would keep the batch's slot
        # until the garbage collector runs, and the worker would make a new one meanwhile
        waiting = weakref.ref(found)

        def cancel(done: "Future[FetchAnswer]") -> None:
            fetched = waiting()
            if done.cancelled() and fetched is not None:
                fetched.cancel()

        answer.add_done_callback(cancel)
        return answer

    def _answer(
        self, request: FetchRequest, peer: Peer, answer: "Future[FetchAnswer]",
        found: "Future[Fetched]",
    ) -> None:  # fmt: skip
        try:
            if found.cancelled():
                answer.cancel()
            elif (error := found.exception()) is not None:
                answer.set_exception(error)
            else:
                packed = self._packed(request, peer, *found.result())
                self._hand_out(packed, peer, answer)
        except InvalidStateError:  # cancelled: its connection is over
            pass
        except Exception as error:  # raised, it would end in the future, and nobody be answered
            answer.set_exception(error)

    def _hand_out(self, packed: FetchAnswer, peer: Peer, answer: "Future[FetchAnswer]") -> None:
        try:
            answer.set_result(packed)
        except InvalidStateError:
            # Nobody was told of the lease, so that its slot is free again. Left here, it would be
            # poisoned when the client asks for that position on its next connection, or leaves.
            if packed.batch is not None and packed.batch.region is not None:
                self._leases.give_back(peer.session, (packed.batch.lease,))
            raise

    def _packed(
        self, request: FetchRequest, peer: Peer, received: Any, finished: bool
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
