"""When a storage server follows server 0, waits for it, and ends with it."""

from collections.abc import Callable
from typing import Any

import pytest
from in_process import storage

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerLostError,
    PeerTimeoutError,
    ServerDiedError,
)
from gigl_loader.remote import leader
from gigl_loader.remote.leader import Follower
from gigl_loader.remote.membership import Join, Role
from gigl_loader.testing import wait_until
from gigl_loader.transport import End


def _end(endpoints, end, words):
    wait_until(lambda: endpoints[0].status()["servers"] == [1], "server 1 is known")
    endpoints[0].close(end, words)
    return endpoints[1]


@pytest.mark.multiprocess
def test_the_end_of_server_0_is_told_by_its_kind_and_not_by_its_words():
    with storage(2) as endpoints:
        other = _end(endpoints, End.SHUTDOWN, "any text")
        assert other.over.wait(60)
        assert other.error is None
    with storage(2) as endpoints:
        other = _end(endpoints, End.LOST_PEER, "it was shut down")
        wait_until(lambda: other.error is not None, "server 1 has lost server 0")
        assert isinstance(other.error, ServerDiedError)
        assert "storage server 0 is gone" in str(other.error)


class _Leader:
    """Server 0, which ``renew`` finds as the test says: None is back."""

    def __init__(self, *found: Exception | None) -> None:
        self.caller, self.found = object(), list(found)

    def renew(self, deadline: float) -> None:
        found = self.found.pop(0)
        if found is not None:
            raise found


def _lost(end: End) -> PeerLostError:
    return PeerLostError("server 0 is gone", end)


def _follow(
    monkeypatch: pytest.MonkeyPatch, heard: list[GiglLoaderError], found: list[Any],
    rejoin_s: float = 60.0, can_go_on: bool = False,
) -> list[str]:  # fmt: skip
    """Return what a follower does that hears of these ends, one after another."""
    done: list[str] = []

    def hear(caller: object, join: Join, on_news: Callable[..., None]) -> GiglLoaderError:
        done.append("joins")
        return heard.pop(0)

    monkeypatch.setattr(leader, "hear", hear)
    follower = Follower(
        leader=_Leader(*found),  # type: ignore[arg-type]
        join=lambda: Join(role=Role.SERVER, rank=1, num_servers=2), rejoin_s=rejoin_s,
        on_news=lambda news: None, on_away=lambda why: done.append("away"),
        on_over=lambda: done.append("over"),
        on_lost=lambda why: done.append(why), is_over=lambda: False,
        can_go_on=lambda: can_go_on,
    )  # fmt: skip
    follower._follow()
    assert not heard, "it followed to the last end"
    return done


LOST = "storage server 0 is gone: server 0 is gone"
LATE = PeerTimeoutError("not yet")


@pytest.mark.parametrize(
    ("heard", "found", "rejoin_s", "does"),
    [
        ([End.JOB_OVER], [], 60.0, ["joins", "over"]),
        ([End.SHUTDOWN], [], 0.0, ["joins", "over"]),
        ([End.GONE], [], 0.0, ["joins", LOST]),
        ([End.LOST_PEER], [], 60.0, ["joins", LOST]),
        ([End.GONE, End.JOB_OVER], [None], 60.0, ["joins", "away", "joins", "over"]),
        ([End.SHUTDOWN, End.JOB_OVER], [LATE, None], 60.0, ["joins", "away", "joins", "over"]),
    ],
)
def test_what_the_end_of_server_0_means(
    heard: list[End], found: list[Any], rejoin_s: float, does: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert _follow(monkeypatch, [_lost(end) for end in heard], found, rejoin_s) == does


def test_a_server_0_that_was_told_to_end_and_does_not_come_back_ends_the_others_in_good_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _follow(monkeypatch, [_lost(End.SHUTDOWN)], [], rejoin_s=1e-9) == [
        "joins", "away", "over",
    ]  # fmt: skip
    assert _follow(monkeypatch, [_lost(End.GONE)], [], rejoin_s=1e-9) == [
        "joins", "away", LOST,
    ]  # fmt: skip
    does = _follow(
        monkeypatch, [_lost(End.GONE), _lost(End.JOB_OVER)], [LATE, LATE, None], 1e-9, True
    )
    assert does == ["joins", "away", "joins", "over"], (
        "while a job goes on without it, it is waited for"
    )


@pytest.mark.parametrize("error", [ConfigError("two servers"), JoinRefusedError("who", End.CLOSED)])
def test_a_refusal_is_final(error: GiglLoaderError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an attempt to come back: it would be refused again."""
    does = _follow(monkeypatch, [error], [])
    assert does == ["joins", f"storage server 0 is gone: {error}"]
    does = _follow(monkeypatch, [_lost(End.GONE)], [error])
    assert does == ["joins", "away", f"storage server 0 is gone: {error}"]
