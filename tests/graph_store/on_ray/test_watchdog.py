"""What the watchdog of a graph store on Ray does, step by step, with a clock of its own."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.graph_store.ray.actor import Actor, Watchdog

SERVING = {"state": "serving", "generation": 1, "pid": 10}


class _Server:
    """Answers with what the test sets; notes what is done to it."""

    def __init__(self) -> None:
        self.says: dict[str, Any] | Exception | None = SERVING
        self.asked = self.killed = 0
        self.placed = True

    def ask(self) -> None:
        self.asked += 1

    def answer(self) -> dict[str, Any] | None:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def kill(self) -> None:
        self.killed += 1

    def is_placed(self) -> bool:
        return self.placed


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watched() -> tuple[Watchdog, list[_Server], _Clock]:
    servers: Any = [_Server(), _Server()]
    clock = _Clock()
    watchdog = Watchdog(servers, interval_s=2, timeout_s=10, lost_after_s=60, clock=clock)
    _pass(watchdog, clock, 1)
    return watchdog, servers, clock


def _pass(watchdog: Watchdog, clock: _Clock, seconds: float) -> None:
    for _ in range(int(seconds * 10)):
        clock.now += 0.1
        watchdog.step()


def test_servers_that_answer_are_asked_every_interval(watched: Any) -> None:
    watchdog, servers, clock = watched
    before = [one.asked for one in servers]
    _pass(watchdog, clock, 20)
    assert [one.asked - start for one, start in zip(servers, before, strict=True)] == [
        pytest.approx(9, abs=1),
        pytest.approx(9, abs=1),
    ]
    assert watchdog.error is None
    assert [one["state"] for one in watchdog.health()] == ["serving", "serving"]


def test_a_stopped_server_is_killed_once_and_may_come_back(
    watched: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog, servers, clock = watched
    servers[1].says = None
    _pass(watchdog, clock, 9)
    assert servers[1].killed == 0
    _pass(watchdog, clock, 30)
    assert (servers[0].killed, servers[1].killed) == (0, 1)
    assert watchdog.health()[1]["silent_s"] > 30
    servers[1].says = {**SERVING, "generation": 2}
    _pass(watchdog, clock, 5)
    servers[1].says = None  # and is stopped again
    _pass(watchdog, clock, 15)
    assert servers[1].killed == 2
    assert watchdog.error is None
    assert caplog.messages == [
        "storage server 1 did not answer for 10 s: killing it",
        "storage server 1 was started again on None: its actor was lost",
        "storage server 1 did not answer for 10 s: killing it",
    ]


def test_a_server_without_a_node_is_not_killed_and_given_up_in_the_end(watched: Any) -> None:
    watchdog, servers, clock = watched
    servers[0].says, servers[0].placed = None, False
    _pass(watchdog, clock, 55)
    assert (servers[0].killed, watchdog.error) == (0, None)
    _pass(watchdog, clock, 10)
    assert "server 0 on Ray is lost" in str(watchdog.error)
    assert "no node has room" in str(watchdog.error)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (RuntimeError("its restarts are used up"), "Ray gave it up: its restarts are used up"),
        (
            {"state": "failed", "why": "it was ended by SIGKILL", "last_log": ["the last line"]},
            "it was ended by SIGKILL, and no restarts are left\nthe last line",
        ),
    ],
)
def test_what_will_not_come_back_is_an_error(
    watched: Any, says: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog, servers, clock = watched
    servers[1].says = says
    _pass(watchdog, clock, 3)
    assert "server 1 on Ray is lost" in str(watchdog.error)
    assert words in str(watchdog.error)
    _pass(watchdog, clock, 20)
    assert caplog.messages == [str(watchdog.error)], "once, however often it is asked"


def test_a_wait_ends_by_what_it_waits_for_an_error_or_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server: Any = _Server()
    watchdog = Watchdog([server], interval_s=0.01, timeout_s=10, lost_after_s=60)
    ask, failures = server.ask, [RuntimeError("Ray does not respond")]

    def fail_first() -> None:
        if failures:
            raise failures.pop()
        ask()

    server.ask = fail_first
    watchdog.start()
    try:
        assert watchdog.wait_for(lambda all_: all_[0]["state"] == "serving", 60)
        assert "cannot look after the storage servers" in caplog.text, "and looks again"
        assert "Ray does not respond" in caplog.text
        assert not watchdog.wait_for(lambda all_: False, 0.05)
        server.says = RuntimeError("gone")
        assert watchdog.wait_for(lambda all_: False, 60)
        assert watchdog.error is not None
    finally:
        watchdog.close()
        watchdog.close()
    names = [thread.name for thread in threading.enumerate()]
    assert "ray watchdog" not in names, "it was waited for"


def test_a_partition_is_lost_with_the_last_of_its_servers() -> None:
    servers: Any = [_Server() for _ in range(4)]
    clock = _Clock()
    watchdog = Watchdog(
        servers, interval_s=2, timeout_s=10, lost_after_s=60, num_partitions=2, clock=clock
    )
    _pass(watchdog, clock, 1)
    servers[1].says = RuntimeError("gone")
    _pass(watchdog, clock, 5)
    servers[0].says = {**SERVING, "state": "failed"}
    _pass(watchdog, clock, 5)
    assert watchdog.error is None, "servers 2 and 3 have their partitions"
    servers[1].says = {**SERVING, "generation": 2}
    _pass(watchdog, clock, 5)
    servers[3].says = RuntimeError("gone, too")
    _pass(watchdog, clock, 5)
    assert watchdog.error is None, "server 1 is back"
    servers[2].says = RuntimeError("the last one")
    _pass(watchdog, clock, 5)
    assert "storage server 2 on Ray is lost: Ray gave it up: the last one" in str(watchdog.error)


def test_how_ray_is_asked_about_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray: a kill that forbids the restart would lose the server for good."""
    calls: list[Any] = []
    ready: list[str] = []
    group = {"state": "RESCHEDULING"}
    util = SimpleNamespace(placement_group_table=lambda name: {"a group": group}[name])
    ray = SimpleNamespace(
        util=util,
        wait=lambda asked, timeout: ([one for one in asked if one in ready], timeout),
        get=lambda one: {"of": one},
        kill=lambda actor, *, no_restart: calls.append((actor, no_restart)),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", util)
    handle = SimpleNamespace(health=SimpleNamespace(remote=lambda: "a request"))
    actor = Actor(handle, "a group")
    actor.ask()
    assert actor.answer() is None
    ready.append("a request")
    assert actor.answer() == {"of": "a request"}
    actor.kill()
    assert calls == [(handle, False)]
    assert not actor.is_placed()
    group["state"] = "CREATED"
    assert actor.is_placed()
