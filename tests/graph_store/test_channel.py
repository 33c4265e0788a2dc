"""Batches of storage servers that answer as the test says: their order, their ends and errors."""

import gc
import os
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gigl_loader.batch.message import Attempt, BatchTicket
from gigl_loader.errors import (
    PeerError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.graph_store.client import batch_fetcher as batch_transfer
from gigl_loader.graph_store.client.receiving_channel import RemoteReceivingChannel
from gigl_loader.graph_store.wire.payload import pack_batch
from gigl_loader.graph_store.wire.requests import BatchMessage, FetchAnswer, Nothing
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.same_host import OwnHostProof, Region
from gigl_loader.runtime.memory.segments import Layout
from gigl_loader.runtime.transport import EndReason
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.testing import wait_until
from tests.support.conditions import SetConstants

LAYOUT: Layout = [("x", "float32", (2,), 0)]


class _Reply:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def wait(self, timeout_s: float | None = None) -> Any:
        try:
            return self.answer.result(60.0 if timeout_s is None else timeout_s)
        except FutureTimeoutError:
            raise PeerTimeoutError("busy") from None


class _Caller:
    def __init__(self, server: "_Server") -> None:
        self.server, self.replies = server, list[_Reply]()

    def ask(self, method: str, request: Any, answer_type: type, **_: Any) -> _Reply:
        reply = _Reply()
        self.replies.append(reply)
        self.server.asked[method].put((request, reply))
        return reply


class _Server:
    """A storage server and the link to it.

    Args:
        rank: Its rank.
        renewals: How often each server of the cluster was started again.
    """

    def __init__(self, rank: int, renewals: dict[int, int]) -> None:
        self.rank, self.name, self.renewals = rank, f"storage server {rank}", renewals
        self.error: Exception | None = None
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.asked: dict[str, queue.SimpleQueue[Any]] = {
            name: queue.SimpleQueue() for name in ("fetch", "give_back")
        }
        self.mark: Any = None

    def call(self, name: str, **arguments: Any) -> "Future[Any]":
        self.calls.append((name, arguments))
        found: Future[Any] = Future()
        said = {"memory_mark": self.mark, "describe_workers": "worker 0 draws"}
        found.set_result(said.get(name, False))
        return found

    def dial(self) -> _Caller:
        return _Caller(self)

    def hang_up(self, caller: _Caller) -> None:
        for reply in caller.replies:
            if not reply.answer.done():
                reply.answer.set_exception(PeerLostError("closed", EndReason.CLOSED))

    def note_failure(self, error: Exception) -> Exception:
        return error

    def next_fetch(self) -> tuple[Any, "Future[Any]"]:
        """Return the next question, and where its answer goes."""
        request, reply = self.asked["fetch"].get(timeout=60)
        return request, reply.answer

    def send(self, batch: int, finished: bool = False, **how: Any) -> None:
        """Answer the next question with a batch."""
        request, answer = self.next_fetch()
        turn = request.fetches_before
        answer.set_result(FetchAnswer(_batch(batch, **{"turn": turn, **how}), finished))


def _batch(
    number: int, position: int | None = None, serial: int = 1, turn: int = 0, **how: Any
) -> BatchMessage:
    """Return a batch as the only server of an epoch sends it."""
    position = 10 * turn if position is None else position
    ticket = BatchTicket(0, serial, 0, number, position, turn=turn)
    values = np.array([number, number], np.float32)
    columns, parts = pack_batch(LAYOUT, memoryview(values.data).cast("B"))
    given: dict[str, Any] = {"ticket": ticket, "stats": {}, "layout": LAYOUT}
    return BatchMessage(**{**given, "columns": columns, "parts": parts, **how})


Make = Callable[..., tuple[RemoteReceivingChannel, list[_Server]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    channels = []

    def make_one(num_servers: int = 2, **how: Any) -> Any:
        renewals: dict[int, int] = {}
        servers = [_Server(rank, renewals) for rank in range(num_servers)]
        cluster: Any = SimpleNamespace(
            renewals=renewals, connections=dict(enumerate(servers)), connection=servers.__getitem__
        )
        ranks = range(num_servers)
        channel = RemoteReceivingChannel(
            ranks, {rank: 10 + rank for rank in ranks}, cluster=cluster, **how
        )
        channels.append(channel)
        return channel, servers

    yield make_one
    for channel in channels:
        channel.close()


def _start(
    channel: RemoteReceivingChannel, attempt: Attempt, batches: list[tuple[int, int]]
) -> None:
    """Begin an epoch at the positions 0, 10, 20 and so on of the loader's."""
    channel.start_epoch(attempt, batches, range(0, 10 * len(batches), 10))


def _taken(channel: RemoteReceivingChannel, count: int) -> list[float]:
    return [float(channel.recv(60.0)["x"][0]) for _ in range(count)]


def _arrived(channel: RemoteReceivingChannel, count: int) -> None:
    wait_until(lambda: channel.queue_depth == count, f"{count} batches have arrived")


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_come_in_the_order_of_the_epoch_or_as_they_arrive(
    in_order: bool, make: Make
) -> None:
    channel, (zero, one) = make(in_order=in_order)
    _start(channel, Attempt(0, 1), [(0, 4), (1, 5), (0, 6), (0, 4)])
    (_, first), (_, second) = zero.calls[-1], one.calls[-1]
    for arguments, batches, positions in ((first, [4, 6, 4], [0, 20, 30]), (second, [5], [10])):
        assert arguments["request"].batches.tolist() == batches
        assert arguments["request"].positions.tolist() == positions
    one.send(5, finished=True, position=10)
    _arrived(channel, 1)
    assert channel.ready() is not in_order
    zero.send(4, position=0)
    zero.send(6, position=20)
    _arrived(channel, 3)
    zero.send(4, finished=True, position=30)  # a batch may stand in an epoch twice
    _arrived(channel, 4)
    taken = [channel.next(60.0) for _ in range(4)]
    assert [
        None if one is None else (one.ticket.position, float(one.message["x"][0])) for one in taken
    ] == ([(0, 4), (10, 5), (20, 6), (30, 4)] if in_order else [(10, 5), (0, 4), (20, 6), (30, 4)])
    assert channel.next(60.0) is None
    with pytest.raises(UsageError, match="past the end of the epoch"):
        channel.recv()


def test_no_more_is_asked_for_than_may_wait(make: Make) -> None:
    channel, (server,) = make(1, prefetch_size=2)
    _start(channel, Attempt(0, 1), [(0, batch) for batch in range(5)])
    asked = server.asked["fetch"]
    assert asked.qsize() == 2
    server.send(0)
    server.send(1)
    _arrived(channel, 2)
    assert asked.qsize() == 0, "two wait to be taken"
    assert _taken(channel, 1) == [0]
    request, answer = server.next_fetch()
    assert (request.fetches_before, request.producer_id, request.same_host) == (2, 10, False)
    assert asked.qsize() == 0
    answer.set_result(FetchAnswer(_batch(2, turn=2), False))


def test_what_arrived_before_an_error_comes_before_it(make: Make) -> None:
    channel, (server,) = make(1)
    _start(channel, Attempt(0, 1), [(0, 0), (0, 1), (0, 2)])
    server.send(0)
    _, answer = server.next_fetch()
    answer.set_exception(SamplingError("worker 0", "ValueError: no luck", ""))
    server.send(2)  # filed behind the error, by the same thread
    wait_until(lambda: channel.queue_depth == 2, "the error is known")
    assert channel.ready()
    assert _taken(channel, 1) == [0]
    for _ in range(2):
        with pytest.raises(SamplingError, match="no luck"):
            channel.next(60.0)


def test_answers_of_an_epoch_that_was_broken_off_are_dropped(make: Make) -> None:
    channel, (server,) = make(1)
    _start(channel, Attempt(0, 1), [(0, 0), (0, 1)])
    old = [server.next_fetch() for _ in range(2)]
    channel.cancel()
    name, arguments = server.calls[-1]
    assert (name, arguments["request"].attempt) == ("cancel_epoch_sampling", Attempt(0, 1))
    _start(channel, Attempt(0, 2), [(0, 0), (0, 1)])
    _, answer = old[0]
    answer.set_result(FetchAnswer(_batch(0), False))
    _, answer = old[1]
    answer.set_exception(SamplingError("worker 0", "ValueError: of the epoch before", ""))
    request, answer = server.next_fetch()
    assert (request.attempt, request.fetches_before) == (Attempt(0, 2), 0)
    answer.set_result(FetchAnswer(_batch(0, serial=2), False))
    server.send(1, finished=True, serial=2)
    _arrived(channel, 2)
    assert _taken(channel, 2) == [0, 1]
    assert channel.next(60.0) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (FetchAnswer(_batch(9), False), "batch 9 of epoch 0, which was not requested"),
        (FetchAnswer(_batch(1), False), "batch 1 of epoch 0, which was not requested"),
        (FetchAnswer(_batch(0, 7), False), "batch 0 of epoch 0, which was not requested"),
        (FetchAnswer(_batch(1, 0, turn=1), False), "batch 1 of epoch 0, which was not requested"),
        (FetchAnswer(_batch(0, 0, turn=1), False), "batch 0 of epoch 0, which was not requested"),
        (FetchAnswer(_batch(0, serial=9), False), "batch 0 of epoch 0, which was not requested"),
        (FetchAnswer(_batch(0), True), "ended epoch 0 with 1 batches to come"),
        (FetchAnswer(None, False), "ended epoch 0 with 2 batches to come"),
        (FetchAnswer(_batch(0, layout=[("x", "float32", (2,), -8)]), False), "at byte -8"),
        (FetchAnswer(_batch(0, layout=[("x", "float32", (-2,), 0)]), False), r"shape \(-2,\)"),
        (FetchAnswer(_batch(0, layout=[("x", "object", (2,), 0)]), False), "type 'object' came"),
        (FetchAnswer(_batch(0, parts=[]), False), "came as"),
    ],
)
def test_what_no_server_says_is_refused(answer: FetchAnswer, words: str, make: Make) -> None:
    channel, (server,) = make(1)
    _start(channel, Attempt(0, 1), [(0, 0), (0, 1)])
    _, question = server.next_fetch()
    question.set_result(answer)
    wait_until(channel.ready, "it is refused")
    with pytest.raises(ProtocolError, match=words):
        [channel.next(60.0) for _ in range(3)]


def test_silence_is_an_error_that_says_what_the_workers_do(make: Make) -> None:
    channel, _ = make(2)
    _start(channel, Attempt(0, 1), [(0, 0)])
    with pytest.raises(PeerTimeoutError, match=r"no batch .* 0\.0 s; .*server 0: worker 0 draws"):
        channel.next(0.01)


@pytest.mark.parametrize("watched", [None, [0], [0, 1]])
def test_the_loss_of_a_server_that_is_watched_is_an_error(watched: Any, make: Make) -> None:
    channel, (zero, one) = make(2, watched=watched)
    _start(channel, Attempt(0, 1), [(0, 0)])
    one.error = ServerDiedError("storage server 1 is gone")
    one.renewals[1] = 1
    if watched == [0]:
        zero.send(0, finished=True)
        assert _taken(channel, 1) == [0]
        one.error = None
        with pytest.raises(ServerDiedError, match="storage server 1 was started again"):
            _start(channel, Attempt(0, 2), [(1, 0)])
        return
    with pytest.raises(ServerDiedError, match="storage server 1 is gone"):
        channel.next(60.0)
    one.error = None
    with pytest.raises(ServerDiedError, match="storage server 1 was started again"):
        channel.next(60.0)


def test_a_server_that_does_not_begin_ends_the_epoch_of_all(make: Make) -> None:
    channel, (zero, one) = make(2)

    def failing(name: str, **_: Any) -> "Future[Any]":
        found: Future[Any] = Future()
        found.set_exception(PeerError("its workers are gone"))
        return found

    one.call = failing
    with pytest.raises(PeerError, match="its workers are gone"):
        _start(channel, Attempt(0, 1), [(0, 0), (1, 1)])
    assert [name for name, _ in zero.calls] == ["start_new_epoch_sampling", "cancel_epoch_sampling"]
    assert zero.asked["fetch"].qsize() == 0


def test_batches_of_this_machine_are_read_where_they_lie_and_given_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, constants: SetConstants
) -> None:
    """Also those that are dropped while the server is too slow to take others back."""
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "1")
    constants(batch_transfer, _GIVE_BACK_S=0.01)
    mark, fd = OwnHostProof(), segments.create_memfd(8)
    try:
        os.pwrite(fd, np.array([7, 7], np.float32).tobytes(), 0)
        where = {"region": Region.of(fd, 8), "columns": {}, "parts": []}
        channel, (server,) = make(1)
        server.mark = mark.mark
        _start(channel, Attempt(0, 1), [(0, batch) for batch in range(4)])
        given_back = server.asked["give_back"]
        for batch in range(4):
            server.send(batch, finished=batch == 3, lease=100 + batch, **where)
            _arrived(channel, 1)
            message = channel.recv(60.0)
            assert message["x"].tolist() == [7.0, 7.0]
            del message
            gc.collect()
        first, slow = given_back.get(timeout=60)
        assert given_back.qsize() == 0, "the answer to the first is still to come"
        slow.answer.set_result(Nothing())
        _start(channel, Attempt(0, 2), [(0, 0)])
        server.send(0, finished=True, lease=200, **where)
        second, answer = given_back.get(timeout=60)
        told = first.leases + second.leases
        assert told == (100, 101, 102, 103), "nothing was forgotten meanwhile"
        answer.answer.set_result(Nothing())
    finally:
        channel.close()
        mark.close()
        os.close(fd)


def test_a_closed_channel_says_so(make: Make) -> None:
    channel, _ = make(1)
    with pytest.raises(UsageError, match="only receives"):
        channel.send({})
    _start(channel, Attempt(0, 1), [(0, 0)])
    assert channel.empty()
    channel.close()
    channel.close()
    with pytest.raises(UsageError, match="the channel is closed"):
        channel.next(60.0)
    with pytest.raises(UsageError, match="the channel is closed"):
        _start(channel, Attempt(0, 2), [])
