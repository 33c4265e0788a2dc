"""Answers to fetches: batches that travel, or are lent; answers that nobody waits for any more."""

import errno
import weakref
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from gigl_loader.memory.leases import Packed
from gigl_loader.memory.same_host import Region
from gigl_loader.message import BatchTicket, Received
from gigl_loader.remote.handout import Handout
from gigl_loader.remote.payload import unpack_batch
from gigl_loader.remote.requests import FetchAnswer, FetchRequest, GiveBack
from gigl_loader.transport import Peer

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
    """Answers a fetch when the test does."""

    def __init__(self) -> None:
        self.found: Future[Any] = Future()
        self.asked: list[tuple[FetchRequest, int]] = []

    def fetch(self, request: FetchRequest, attempt: int) -> "Future[Any]":
        self.asked.append((request, attempt))
        return self.found


@pytest.fixture
def server() -> _Server:
    return _Server()


def _batch(slot: _Slot) -> Received:
    message = Packed(slot)  # type: ignore[arg-type]
    return Received(BatchTicket(0, 1, 2, 3), message, {"sample_s": 0.5})


def _fetch(handout: Handout, same_host: bool = False) -> "Future[FetchAnswer]":
    return handout.fetch(FetchRequest(producer_id=7, position=0, same_host=same_host), PEER)


def test_a_batch_that_cannot_be_packed_is_an_error_to_who_waits(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that raises is only logged by its future: the fetch would never be answered."""

    def fail() -> Region:
        raise OSError(errno.EMFILE, "Too many open files")

    slot = _Slot()
    monkeypatch.setattr(slot, "lend", fail)
    answer = _fetch(Handout(server), same_host=True)  # type: ignore[arg-type]
    server.found.set_result((_batch(slot), False))
    with pytest.raises(OSError, match="Too many open files"):
        answer.result(60)


def test_a_batch_travels_or_is_lent(server: _Server) -> None:
    answer = _fetch(Handout(server))  # type: ignore[arg-type]
    assert server.asked[0][1] == PEER.number, "which connection it came on"
    assert not answer.done()
    server.found.set_result((_batch(_Slot()), True))
    found = answer.result(0)
    assert found.finished
    assert found.batch is not None
    assert (found.batch.ticket.batch, found.batch.stats) == (3, {"sample_s": 0.5})
    tensors = unpack_batch(found.batch.layout, found.batch.columns, found.batch.parts, bytearray)
    assert torch.equal(tensors["x"], torch.from_numpy(VALUES))

    near, slot = _Server(), _Slot()
    handout = Handout(near)  # type: ignore[arg-type]
    answer = _fetch(handout, same_host=True)
    near.found.set_result((_batch(slot), False))
    batch = answer.result(0).batch
    assert batch is not None
    assert (batch.region, batch.parts, batch.columns) == (REGION, [], {})
    held = weakref.ref(slot)
    del near.found, answer, slot
    assert held() is not None, "lent until it is given back"
    handout.give_back(GiveBack((batch.lease,)), PEER)
    assert held() is None


def test_the_end_of_an_epoch_and_errors_are_handed_on(server: _Server) -> None:
    answer = _fetch(Handout(server))  # type: ignore[arg-type]
    server.found.set_result((None, True))
    assert answer.result(0) == FetchAnswer(None, True)
    failing = _Server()
    answer = _fetch(Handout(failing))  # type: ignore[arg-type]
    failing.found.set_exception(RuntimeError("no luck"))
    with pytest.raises(RuntimeError, match="no luck"):
        answer.result(0)


def test_who_hangs_up_cancels_the_fetch_and_a_fetch_that_is_dropped_the_answer(
    server: _Server,
) -> None:
    answer = _fetch(Handout(server))  # type: ignore[arg-type]
    answer.cancel()
    assert server.found.cancelled()
    dropped = _Server()
    answer = _fetch(Handout(dropped))  # type: ignore[arg-type]
    dropped.found.cancel()
    assert answer.cancelled()


def test_a_lease_that_nobody_was_told_of_is_free_again(server: _Server) -> None:
    """The client hangs up just when its batch comes, too late to cancel the fetch."""
    handout, slot = Handout(server), _Slot()  # type: ignore[arg-type]
    held = weakref.ref(slot)
    answer = _fetch(handout, same_host=True)
    assert server.found.set_running_or_notify_cancel()
    answer.cancel()
    server.found.set_result((_batch(slot), False))
    assert not slot.poisoned
    del server.found, slot, answer
    assert held() is None, "nothing keeps the slot"
    handout.lose(PEER.session)
