"""Equal bytes to parties on a full link: on a simulated one, and through real connections."""

import itertools
import math
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gigl_loader.runtime.transport import Peer, shares
from gigl_loader.runtime.transport.shares import (
    ALONE_BYTES,
    LOOK_S,
    SMALL_BYTES,
    ByteShares,
    Sending,
)
from gigl_loader.runtime.transport.stream import FrameKind, pack
from gigl_loader.testing import wait_until
from tests.runtime.transport.network import PATIENCE_S, Network, enter
from tests.runtime.transport.service import Question
from tests.support.conditions import Clock
from tests.support.draws import examples

STEP_S = 0.01
KERNEL_BYTES = 1 << 20
"""What the kernel of the simulation keeps of a connection, unless it is to keep less."""
MB = 1_000_000


@dataclass(eq=False)
class _Connection:
    """Sends responses of one size, one after another, as a listener does."""

    party: str
    nbytes: int
    fastest: float = math.inf
    """Bytes per second of its own part of the network, or of its reader."""
    pause_s: float = 0.0
    """Time between two responses."""
    is_stopped: bool = False
    queued: int = 0
    received: int = 0
    noted: int = 0
    sending: Sending | None = None
    turn: int = 0
    left: int = 0
    next_at: float = 0.0
    look_at: float = 0.0

    def send(self, to_share: ByteShares, now: float) -> None:
        while now >= self.next_at:
            if self.sending is None:
                self.left = self.nbytes
                self.sending = to_share.sending(self.party, self.nbytes, self._newly_received)
            if not self.turn:
                self.turn = to_share.ask(self.sending)
            room = (self.sending.turn_bytes or KERNEL_BYTES) - self.queued
            pushed = max(0, min(room, self.turn))
            self.queued, self.turn = self.queued + pushed, self.turn - pushed
            self.left -= pushed
            if self.left == 0:
                self.end(now)
            elif not pushed:
                break
        if self.sending is not None and now >= self.look_at:
            self.sending.look()
            self.look_at = now + LOOK_S

    def _newly_received(self) -> int:
        before, self.noted = self.noted, self.received
        return self.received - before

    def end(self, now: float) -> None:
        if self.sending is not None:
            self.sending.__exit__(None, None, None)
            self.sending, self.turn, self.next_at = None, 0, now + self.pause_s


class _Link:
    """Carries what connections have queued, as much of one as of another."""

    def __init__(self, clock: Clock, bytes_per_s: float, *connections: _Connection) -> None:
        self.clock, self.bytes_per_s, self.connections = clock, bytes_per_s, [*connections]
        self.shares = ByteShares()
        self.first = itertools.count()

    def run(self, seconds: float) -> Counter[str]:
        """Let time pass; return the bytes that each party received."""
        before = self._received()
        for _ in range(round(seconds / STEP_S)):
            self.clock.now += STEP_S
            first = next(self.first) % len(self.connections)
            for one in self.connections[first:] + self.connections[:first]:
                one.send(self.shares, self.clock.now)
            self._carry()
        return self._received() - before

    def _received(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for one in self.connections:
            counts[one.party] += one.received
        return counts

    def _carry(self) -> None:
        left = int(self.bytes_per_s * STEP_S)
        most = {
            one: int(min(one.queued, one.fastest * STEP_S))
            for one in self.connections
            if not one.is_stopped
        }
        for number, one in enumerate(sorted(most, key=lambda one: most[one])):
            carried = min(most[one], left // (len(most) - number))
            one.queued, one.received, left = (
                one.queued - carried,
                one.received + carried,
                left - carried,
            )


@pytest.fixture
def clock(clock_of: Callable[..., Clock]) -> Clock:
    return clock_of(shares)


@pytest.fixture(scope="module")
def module_clock() -> Iterator[Clock]:
    """A clock for tests whose examples share it, as time goes on from one to the next."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(shares, "time", clock)
        yield clock


def _of(
    party: str, count: int, nbytes: int = 2 * MB, fastest: float = math.inf, pause_s: float = 0.0
) -> list[_Connection]:
    return [_Connection(party, nbytes, fastest, pause_s) for _ in range(count)]


@settings(max_examples=examples(12), deadline=None)
@given(
    many=st.integers(1, 12),
    few=st.integers(1, 3),
    mb_per_s=st.integers(5, 20),
    nbytes=st.tuples(*[st.integers(100_000, 5 * MB)] * 2),
)
@example(many=1, few=2, mb_per_s=5, nbytes=(100_000, 100_000))
@example(many=12, few=1, mb_per_s=20, nbytes=(5 * MB, 100_000))
def test_two_jobs_get_half_of_a_full_link(
    module_clock: Clock, many: int, few: int, mb_per_s: int, nbytes: tuple[int, int]
) -> None:
    """Whatever their connections and the sizes of their batches, and all of it is used."""
    infer, train = _of("infer", many, nbytes[0]), _of("train", few, nbytes[1])
    link = _Link(module_clock, mb_per_s * MB, *infer)
    link.run(1.0)
    link.connections += train
    link.run(6.0)  # the kernel sends what it had before
    sent = link.run(12.0)
    assert 0.45 <= sent["train"] / sent.total() <= 0.55
    assert sent.total() >= 0.95 * 12 * mb_per_s * MB
    each = [one.received for one in infer]
    assert min(each) > 0, "none of a job's connections is always last"


def test_three_jobs_get_a_third_each(clock: Clock) -> None:
    link = _Link(clock, 20 * MB, *_of("a", 12), *_of("b", 3), *_of("c", 1))
    link.run(3.0)
    sent = link.run(12.0)
    assert all(0.3 <= count / sent.total() <= 0.37 for count in sent.values()), sent


def test_a_job_alone_never_waits(clock: Clock) -> None:
    to_share = ByteShares()
    sendings = [to_share.sending("a", 100 * MB, lambda: 0) for _ in range(5)]
    for _ in range(10):
        assert [to_share.ask(one) for one in sendings] == [ALONE_BYTES] * 5
        assert [one.turn_bytes for one in sendings] == [0] * 5, "the kernel keeps what it likes"
        clock.now += 0.1


def test_a_stopped_job_costs_a_quarter_of_a_second_and_then_nothing(clock: Clock) -> None:
    stopped = _of("stopped", 3)
    link = _Link(clock, 20 * MB, *_of("goes on", 10), *stopped)
    link.run(5.0)
    for one in stopped:
        one.is_stopped = True
    assert link.run(1.0)["goes on"] >= 0.7 * 20 * MB
    for _ in range(10):
        assert link.run(1.0)["goes on"] >= 0.99 * 20 * MB
    for one in stopped:
        one.is_stopped = False
    link.run(1.0)
    sent = link.run(8.0)
    assert 0.45 <= sent["stopped"] / sent.total() <= 0.55, "its stop is not made up for"


@pytest.mark.parametrize("fastest", [0.05, 1.0, 3.0])
def test_a_job_with_a_slow_network_of_its_own_slows_no_other(clock: Clock, fastest: float) -> None:
    """It would go no faster if the others waited. These find out, and seldom try again."""
    slow = _of("slow", 2, fastest=fastest / 2 * MB)
    link = _Link(clock, 20 * MB, *_of("fast", 8), *slow)
    first = link.run(20.0)
    assert first["fast"] >= 0.7 * 20 * (20 - fastest) * MB
    link.run(40.0)
    later = link.run(40.0)
    assert later["fast"] >= 0.95 * 40 * (20 - fastest) * MB
    assert later["slow"] >= 0.9 * 40 * fastest * MB


def test_jobs_share_again_once_the_network_of_one_is_as_fast(clock: Clock) -> None:
    slow = _of("slow", 1, fastest=1 * MB)
    link = _Link(clock, 20 * MB, *_of("fast", 8), *slow)
    link.run(20.0)
    slow[0].fastest = math.inf
    for _ in range(40):  # the longest rest
        assert link.run(1.0)["fast"] >= 0.3 * 20 * MB, "what the slow one could not use is not owed"
    sent = link.run(20.0)
    assert 0.45 <= sent["slow"] / sent.total() <= 0.55


def test_a_job_whose_network_becomes_fast_is_held_to_no_slow_one(clock: Clock) -> None:
    """What was found out about waiting is found out anew every few seconds."""
    fast = _of("fast", 4, fastest=0.2 * MB)
    link = _Link(clock, 20 * MB, *fast, *_of("slow", 1, fastest=0.8 * MB))
    link.run(30.0)
    while not link.shares.trial.is_on:
        link.run(0.5)
    for one in fast:
        one.fastest = math.inf
    link.run(30.0)
    assert link.run(20.0)["fast"] >= 0.8 * 20 * 19 * MB


def test_a_job_that_pauses_between_its_batches_has_them_at_once(clock: Clock) -> None:
    """Though it uses less than half of the link, of which the other job has what is left."""
    sometimes = _of("sometimes", 1, 1 * MB, pause_s=0.2)
    link = _Link(clock, 20 * MB, *_of("always", 20), *sometimes)
    link.run(5.0)
    sent = link.run(20.0)
    assert sent.total() >= 0.97 * 20 * 20 * MB
    alone_s = 1 / 20 + 0.2
    assert sent["sometimes"] >= 0.6 * 20 / alone_s * MB, "by connections it would have 0.2"


def _let_wait(to_share: ByteShares) -> None:
    """Let parties that are ahead wait, whatever that costs."""
    to_share.trial.is_on, to_share.trial._left = True, 1_000_000


def _allowed(to_share: ByteShares, party: str, nbytes: int) -> int:
    """Let one response of a party take turns until it has to wait; return the bytes allowed."""
    allowed = 0
    with to_share.sending(party, nbytes, lambda: 0) as sending:
        while sending.left and (turn := to_share.ask(sending)):
            allowed += turn
    return allowed


@pytest.mark.parametrize(
    ("pause_s", "owed"), [(0.1, 40 * MB), (0.9, 16 << 20), (1.1, 0), (100.0, 0)]
)
def test_what_is_owed_to_a_job_that_paused_is_limited(
    clock: Clock, pause_s: float, owed: int
) -> None:
    to_share = ByteShares()
    for party in ("pauses", "goes on"):
        assert _allowed(to_share, party, 1000) == 1000
    assert _allowed(to_share, "goes on", 40 * MB) == 40 * MB
    clock.now += pause_s
    _let_wait(to_share)
    with to_share.sending("goes on", 100 * MB, lambda: 0):  # makes progress
        if pause_s >= 1.0:
            _allowed(to_share, "pauses", 1000)  # the trial begins anew
            _let_wait(to_share)
        allowed = _allowed(to_share, "pauses", 100 * MB)
    assert allowed == pytest.approx(owed + (1 << 20), abs=300_000)


def test_a_response_that_waits_for_long_shows_its_caller_that_this_side_is_alive(
    clock: Clock,
) -> None:
    to_share = ByteShares()
    behind = to_share.sending("behind", 100 * MB, lambda: 0)
    ahead = to_share.sending("ahead", 100 * MB, lambda: 0)
    _let_wait(to_share)
    while to_share.ask(ahead):
        pass
    for _ in range(3):
        for _ in range(9):
            clock.now += 0.1
            to_share.note(behind, 1)
            assert not to_share.ask(ahead)
        clock.now += 0.11
        to_share.note(behind, 1)
        assert to_share.ask(ahead) == SMALL_BYTES, "once a second"
        assert not to_share.ask(ahead)
    clock.now += 1.005
    assert to_share.ask(behind) == behind.turn_bytes, "it is not alone, though the other one waits"


def test_a_given_up_response_leaves_the_queue(clock: Clock) -> None:
    to_share = ByteShares()
    with (
        to_share.sending("behind", 100 * MB, lambda: 0) as behind,
        to_share.sending("ahead", 100 * MB, lambda: 0) as ahead,
    ):
        _let_wait(to_share)
        while to_share.ask(ahead):
            pass
        with to_share.sending("ahead", 100 * MB, lambda: 0) as given_up:
            assert not to_share.ask(given_up)
        assert [*ahead.party.waiting] == [ahead]
        assert to_share.ask(behind)
        assert ahead.handed, "the turn that the other one made free"


# --- real connections -----------------------------------------------------------------------------


class _Reader:
    """Takes as many bytes of all connections in each round, as a link does."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        self.received: Counter[socket.socket] = Counter()

    def read(self, nbytes: int) -> Counter[socket.socket]:
        """Take ``nbytes``; return how many of each connection."""
        before, end = self.received.copy(), self.received.total() + nbytes
        while self.received.total() < end:
            self.read_once()
        return self.received - before

    def read_once(self) -> None:
        ready, _, _ = select.select(self.sockets, [], [], PATIENCE_S)
        assert ready, f"nothing came for {PATIENCE_S} s"
        for sock in ready:
            self.received[sock] += len(sock.recv((128 << 10) // len(ready)))
        self.sockets = self.sockets[1:] + self.sockets[:1]


def _share_of_one(network: Network, by_party: bool) -> float:
    """Return the share of one connection beside four of another party, while time stands still."""
    many: list[Peer] = []
    service = network.service(
        party_of=(lambda peer: "many" if peer in many else "one") if by_party else None
    )
    streams = []
    for lane in range(5):
        stream = enter(service.listener.address, network.security, f"lane {lane}")
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        network.opened.insert(0, stream)
        streams.append(stream)
        wait_until(lambda: len(service.peers) == len(streams), "it is admitted")
    many += service.peers[:4]
    for stream in streams:
        question = Question(200 * MB, np.zeros(0, np.int64))
        deadline = time.monotonic() + PATIENCE_S
        views = pack(FrameKind.ASK, question, "zeros")
        while not stream.push(views):
            assert stream.wait(select.POLLOUT, deadline - time.monotonic())
    sockets = [stream.sock for stream in streams]
    reader = _Reader(sockets)
    while len(reader.received) < len(sockets):  # until all are sent to, so both parties are known
        reader.read_once()
    _let_wait(service.listener.shares)
    reader.read(70 * MB)  # what the kernel took before that
    received = reader.read(80 * MB)
    return received[sockets[4]] / received.total()


def test_one_connection_gets_half_beside_four_of_another_party(
    network: Network, clock: Clock
) -> None:
    """By the bytes alone: in no time nobody stalls, and no window ends in which waiting is poor."""
    assert 0.45 <= _share_of_one(network, by_party=True) <= 0.55


def test_connections_of_one_party_share_as_the_system_does(plain: Network, clock: Clock) -> None:
    assert _share_of_one(plain, by_party=False) < 0.35
