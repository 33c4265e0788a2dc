"""Answers to fetches: batches that travel, or are lent where they lie."""

import weakref
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np
import torch

from gigl_loader.batch.leases import Packed
from gigl_loader.batch.message import BatchTicket, Received
from gigl_loader.graph_store.server.batch_sender import BatchSender
from gigl_loader.graph_store.wire.payload import unpack_batch
from gigl_loader.graph_store.wire.requests import FetchAnswer, FetchRequest, GiveBack
from gigl_loader.runtime.memory.same_host import Region
from gigl_loader.runtime.transport import Peer

REGION = Region(pid=1, fd=2, nbytes=16, inode=3)
VALUES = np.array([1.0, 2.5], np.float32)
PEER = Peer("a client", "here", "a session")


class _Slot:
    """A batch of one tensor in a worker's slot."""

    layout: ClassVar = [("x", "float32", (2,), 0)]
    payload = memoryview(VALUES.data).cast("B")
    poisoned = False

    def lend(self) -> Region:
        return REGION

    def poison(self) -> None:
        self.poisoned = True


class _Server:
    """Answers a fetch when the test does, as a producer does: with what makes the answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[FetchRequest, int]] = []

    def producer(self, number: int, consumer: int) -> "_Server":
        assert (number, consumer) == (7, 0)
        return self

    def fetch(self, request: FetchRequest, connection: int, pack: Any) -> "Future[Any]":
        self.asked.append((request, connection))
        self.pack = pack
        return Future()


def _batch(slot: _Slot) -> Received:
    message = Packed(slot)  # type: ignore[arg-type]  # a stand-in
    return Received(BatchTicket(0, 1, 2, 3), message, {"sample_s": 0.5})


def _make(same_host: bool = False) -> tuple[BatchSender, _Server]:
    server: Any = _Server()
    sender = BatchSender(server)
    sender.fetch(FetchRequest(producer_id=7, fetches_before=0, same_host=same_host), PEER)
    return sender, server


def test_a_batch_travels() -> None:
    _, server = _make()
    assert server.asked[0][1] == PEER.number, "which connection it came on"
    found = server.pack(_batch(_Slot()), True)
    assert found.finished
    assert (found.batch.ticket.batch, found.batch.stats) == (3, {"sample_s": 0.5})
    tensors = unpack_batch(found.batch.layout, found.batch.columns, found.batch.parts, bytearray)
    assert torch.equal(tensors["x"], torch.from_numpy(VALUES))
    assert server.pack(None, True) == FetchAnswer(None, True)


def test_a_batch_is_lent_on_the_same_machine_until_it_is_given_back() -> None:
    sender, server = _make(same_host=True)
    slot = _Slot()
    batch = server.pack(_batch(slot), False).batch
    assert (batch.region, batch.parts, batch.columns) == (REGION, [], {})
    held = weakref.ref(slot)
    del slot
    assert held() is not None
    sender.give_back(GiveBack((batch.lease,)), PEER)
    assert held() is None


def test_a_fetch_that_is_asked_again_has_lost_its_answer() -> None:
    sender, server = _make(same_host=True)
    slots = [_Slot(), _Slot()]
    server.pack(_batch(slots[0]), False)
    sender.fetch(FetchRequest(producer_id=7, fetches_before=0, same_host=True), PEER)
    server.pack(_batch(slots[1]), False)
    assert [one.poisoned for one in slots] == [True, False], "the client may read it for ever"
    sender.lose(PEER.session)
    assert slots[1].poisoned
