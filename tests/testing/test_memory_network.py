import math
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import (
    JoinRefusedError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    RemoteError,
)
from gigl_loader.runtime.transport import EndReason, Method, Peer, Security
from gigl_loader.testing import Clock, MemoryNetwork

HERE = ("store", 1000)


@dataclass(frozen=True)
class Question:
    number: int
    rows: np.ndarray


@dataclass(frozen=True)
class Answer:
    number: int
    rows: np.ndarray


def question(number: int, rows: int = 3) -> Question:
    return Question(number, np.arange(rows) + number)


class Simulated:
    """A service whose answers take ``work_s`` each."""

    def __init__(self, work_s: float = 0.0, **network: Any) -> None:
        self.network = MemoryNetwork(**network)
        self.clock, self.work_s = self.network.clock, work_s
        self.asked: list[int] = []
        self.ends: list[tuple[str, EndReason]] = []
        self.listener = self.network.listener(
            *HERE,
            Security.local(),
            {"double": Method(Question, Answer, self._double)},
            "service",
            on_end=lambda peer, end: self.ends.append((peer.name, end)),
        ).start()
        self.caller = self.network.caller(*HERE, Security.local(), "tester")

    def _double(self, question: Question, peer: Peer) -> "Future[Answer]":
        self.asked.append(question.number)
        future: Future[Answer] = Future()
        if question.number < 0:
            raise ZeroDivisionError("negative")
        answer = Answer(question.number, question.rows * 2)
        self.clock.call_later(self.work_s, lambda: future.set_result(answer))
        return future


def test_answers_take_the_time_of_path_and_work() -> None:
    there = Simulated(work_s=0.25, latency_s=0.1)
    replies = [there.caller.ask("double", question(i), Answer) for i in range(3)]
    assert [reply.wait().rows[0] for reply in replies] == [0, 2, 4]
    assert there.clock.now == pytest.approx(3 * (0.1 + 0.25 + 0.1))


def test_large_answers_take_the_time_of_the_bandwidth() -> None:
    there = Simulated(bytes_per_s=1e6)
    there.caller.ask("double", question(1, 125_000), Answer).wait()
    assert there.clock.now == pytest.approx(2.0, rel=0.01)  # a megabyte each way


def test_a_short_cut_costs_its_length_and_the_question_is_asked_again() -> None:
    there = Simulated(work_s=1.0)
    there.network.cut(HERE, 0.5, 9.0)
    assert there.caller.ask("double", question(1), Answer).wait().number == 1
    assert 9.5 <= there.clock.now <= 0.5 + 9.0 + 2.0
    assert there.asked == [1, 1]


def test_a_long_cut_is_an_error_after_the_patience() -> None:
    there = Simulated(work_s=1.0)
    there.network.cut(HERE, 0.5, math.inf)
    replies = [there.caller.ask("double", question(i), Answer) for i in range(2)]
    for reply in replies:
        with pytest.raises(PeerLostError) as caught:
            reply.wait()
        assert caught.value.end is EndReason.SILENT
    assert there.clock.now == pytest.approx(11.0)  # it began when the answer was due at 1.0


def test_a_port_may_be_given_to_another_process() -> None:
    """Which is asked nothing that was for the one before; see `Caller`."""
    there = Simulated(work_s=1.0, latency_s=0.1)
    first, asked = there.listener, there.asked
    waiting = there.caller.ask("double", question(1), Answer)
    there.clock.run(0.5)
    first.kill()
    there.network.listener(*HERE, Security.local(), first.table, "another").start()
    with pytest.raises(PeerLostError, match="another process") as lost:
        waiting.wait()
    assert lost.value.end == EndReason.GONE
    with pytest.raises(PeerLostError):
        there.caller.ask("double", question(2), Answer).wait()
    assert asked == [1]
    assert there.ends == [("tester", EndReason.GONE)]
    fresh = there.network.caller(*HERE, Security.local(), "fresh")
    assert fresh.ask("double", question(3), Answer).wait().number == 3
    first.close()
    assert fresh.ask("double", question(4), Answer).wait().number == 4


def test_a_cut_while_idle_costs_nothing() -> None:
    there = Simulated()
    there.network.cut(HERE, 1.0, 100.0)
    there.clock.run(200.0)
    assert there.caller.ask("double", question(1), Answer).wait().number == 1
    assert there.clock.now == 200.0


def test_errors_types_and_goodbyes_are_those_of_the_real_network() -> None:
    there = Simulated(work_s=1.0)
    with pytest.raises(RemoteError, match="ZeroDivisionError"):
        there.caller.ask("double", question(-1), Answer).wait()
    with pytest.raises(ProtocolError, match="no method"):
        there.caller.ask("nothing", question(1), Answer).wait()
    with pytest.raises(ProtocolError, match="is not a Question"):
        there.caller.ask("double", 3, Answer).wait()
    with pytest.raises(PeerTimeoutError):
        there.caller.ask("double", question(1), Answer).wait(0.5)
    waiting = there.caller.ask("double", question(1), Answer)
    there.listener.close(EndReason.JOB_OVER)
    with pytest.raises(PeerLostError) as caught:
        waiting.wait()
    assert caught.value.end is EndReason.JOB_OVER
    assert there.ends == [("tester", EndReason.CLOSED)]
    with pytest.raises(PeerLostError, match="nothing listens"):
        there.caller.ask("double", question(1), Answer).wait()


def test_a_caller_that_closes_ends_its_questions_and_says_goodbye() -> None:
    there = Simulated(work_s=1.0)
    replies = [there.caller.ask("double", question(i), Answer) for i in range(2)]
    there.clock.run(0.5)  # the first one is there, the second one waits for it
    with there.caller:
        pass
    for reply in replies:
        with pytest.raises(PeerLostError, match="store:1000: closed on this side") as caught:
            reply.wait()
        assert caught.value.end is EndReason.CLOSED
    assert there.ends == [("tester", EndReason.SHUTDOWN)]
    there.clock.run(10.0)
    assert there.asked == [0], "what waited is asked no more"


def test_a_token_that_differs_is_refused() -> None:
    there = Simulated()
    one, other = (Security.resolve("", token, False) for token in "xy")
    guarded = there.network.listener("guarded", 1, one, {}, "guarded").start()
    stranger = there.network.caller("guarded", 1, other, "stranger")
    with pytest.raises(JoinRefusedError) as caught:
        stranger.ask("double", question(1), Answer).wait()
    assert caught.value.end is EndReason.REFUSED_TOKEN
    assert guarded.stats()["refused"] == {"refused: token": 1}


def test_a_caller_waits_for_a_listener_that_comes_later() -> None:
    network = MemoryNetwork(Clock())
    caller = network.caller(*HERE, Security.local(), "early")
    with pytest.raises(PeerTimeoutError):
        caller.connect(1.0, lambda why: None)
    late = network.listener(*HERE, Security.local(), {}, "late")
    network.clock.call_later(5.0, lambda: (late.start(), None)[1])
    caller.connect(100.0, lambda why: None)
    assert 6.0 <= network.clock.now <= 7.0
    caller.close(EndReason.JOB_OVER)
    with pytest.raises(PeerLostError, match="closed on this side"):
        caller.ask("double", question(1), Answer)


def test_answers_land_in_memory_of_the_asker() -> None:
    there, mine = Simulated(), np.zeros(3, np.int64)
    answer = there.caller.ask("double", question(1), Answer, into=lambda specs: [mine]).wait()
    assert answer.rows is mine
    assert mine.tolist() == [2, 4, 6]
