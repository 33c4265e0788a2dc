"""When a storage server follows server 0, waits for it, and ends with it."""

import re
import threading
from typing import Any

import pytest

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerLostError,
    PeerTimeoutError,
    ServerDiedError,
)
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.wire.membership import Join, News, Role, Watch
from gigl_loader.runtime.transport import EndReason, Security
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import storage


def _end(endpoints, end, words):
    wait_until(lambda: endpoints[0].status()["servers"] == [1], "server 1 is known")
    endpoints[0].close(end, words)
    return endpoints[1]


@pytest.mark.multiprocess
def test_the_end_of_server_0_is_told_by_its_kind_and_not_by_its_words():
    with storage(2) as endpoints:
        other = _end(endpoints, EndReason.SHUTDOWN, "any text")
        assert other.over.wait(60)
        assert other.error is None
    with storage(2) as endpoints:
        other = _end(endpoints, EndReason.LOST_PEER, "it was shut down")
        wait_until(lambda: other.error is not None, "server 1 has lost server 0")
        assert isinstance(other.error, ServerDiedError)
        text = str(other.error)
        assert re.match(r"storage server 0 at \S+ ended the connection \(lost peer\): it was", text)
        assert text.count("server 0") == 1


class _Leader(LeaderLink):
    """Server 0, which ``renew`` finds as the test says: None is back."""

    def __init__(self, done: list[str], *found: Exception | None) -> None:
        self.done = done
        super().__init__("127.0.0.1", 1, Security.local(), "server 1", 10.0)
        self.found = list(found)

    def __setattr__(self, name: str, value: Any) -> None:
        if (name, value) == ("why_away", LOST):
            self.done.append("away")
        super().__setattr__(name, value)

    def renew(self, deadline: float) -> None:
        found = self.found.pop(0)
        if found is not None:
            raise found


class _Server:
    """A server that follows it, and what it does."""

    def __init__(self, can_do_without_0: bool) -> None:
        self.over, self.is_over = threading.Event(), False
        self.can_do_without_0, self.done = can_do_without_0, list[str]()

    def join(self) -> Join:
        self.done.append("joins")
        return Join(role=Role.SERVER, rank=1, num_servers=2)

    def hear(self, news: News) -> None:
        assert news.number == 1

    def lose(self, why: str) -> None:
        self.done.append(why)


def _lost(end: EndReason) -> PeerLostError:
    return PeerLostError(LOST, end)


class _Caller:
    """Is told something new once, and then that server 0 has ended; so each time anew."""

    def __init__(self, leader: LeaderLink, heard: list[GiglLoaderError]) -> None:
        self._leader, self._heard = leader, heard

    def ask(self, method: str, request: Watch, answer: type[News]) -> "_Caller":
        assert (method, request.join.role) == ("watch", Role.SERVER)
        self._seen = request.seen
        return self

    def wait(self) -> News:
        if self._seen == 0:
            return News(number=1)
        assert self._leader.why_away is None, "it is here"
        raise self._heard.pop(0)


def _follow(
    heard: list[GiglLoaderError], found: list[Any], rejoin_s: float = 60.0, can_go_on: bool = False
) -> list[str]:
    """Return what a server does that hears of these ends, one after another."""
    server: Any = _Server(can_go_on)
    leader = _Leader(server.done, *found)

    caller: Any = _Caller(leader, heard)
    leader.caller = caller
    leader.keep_joined(server, rejoin_s)
    assert not heard, "it followed to the last end"
    does: list[str] = server.done
    return [*does, "over"] if server.over.is_set() else does


LOST = "storage server 0 is lost (gone): it closed the connection"
LATE = PeerTimeoutError("not yet")


@pytest.mark.parametrize(
    ("heard", "found", "rejoin_s", "does"),
    [
        ([EndReason.JOB_OVER], [], 60.0, ["joins", "over"]),
        ([EndReason.SHUTDOWN], [], 0.0, ["joins", "over"]),
        ([EndReason.GONE], [], 0.0, ["joins", LOST]),
        ([EndReason.LOST_PEER], [], 60.0, ["joins", LOST]),
        ([EndReason.GONE, EndReason.JOB_OVER], [None], 60.0, ["joins", "away", "joins", "over"]),
        (
            [EndReason.SHUTDOWN, EndReason.JOB_OVER],
            [LATE, None],
            60.0,
            ["joins", "away", "joins", "over"],
        ),
    ],
)
def test_what_the_end_of_server_0_means(
    heard: list[EndReason], found: list[Any], rejoin_s: float, does: list[str]
) -> None:
    assert _follow([_lost(end) for end in heard], found, rejoin_s) == does


def test_a_server_0_that_was_told_to_end_and_does_not_come_back_ends_the_others_in_good_order() -> (
    None
):
    assert _follow([_lost(EndReason.SHUTDOWN)], [], rejoin_s=1e-9) == ["joins", "away", "over"]
    assert _follow([_lost(EndReason.GONE)], [], rejoin_s=1e-9) == ["joins", "away", LOST]
    does = _follow(
        [_lost(EndReason.GONE), _lost(EndReason.JOB_OVER)], [LATE, LATE, None], 1e-9, True
    )
    assert does == ["joins", "away", "joins", "over"], (
        "while a job goes on without it, it is waited for"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("two servers"), "storage server 0 is gone: two servers"),
        (
            JoinRefusedError("storage server 0 has another server 1", EndReason.CLOSED),
            "storage server 0 has another server 1",
        ),
    ],
)
def test_a_refusal_is_final(error: GiglLoaderError, told: str) -> None:
    """Without an attempt to come back: it would be refused again."""
    assert _follow([error], []) == ["joins", told]
    assert _follow([_lost(EndReason.GONE)], [error]) == ["joins", "away", told]
