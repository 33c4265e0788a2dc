"""Who may come in with which figures, and what they hear until it ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gigl_loader.errors import ConfigError, GiglLoaderError, PeerLostError
from gigl_loader.graph_store.wire.membership import Join, News, Role, Watch, check_join, hear
from gigl_loader.graph_store.wire.requests import Addresses


def _join(role: Role = Role.CLIENT, **more: Any) -> Join:
    return Join(role=role, rank=3, **{"num_servers": 4, "world_size": 4, "job_name": "a", **more})


def test_who_counts_other_servers_is_told_both_counts() -> None:
    for role in Role:
        check_join(_join(role), 0, 4)
        with pytest.raises(ConfigError, match=f"{role.value} 3 counts 4 .* server 2 counts 5"):
            check_join(_join(role, job=1), 2, 5)


def test_clients_come_to_server_0_first() -> None:
    check_join(_join(job=0), 2, 4)  # server 0 gave it the job's number
    check_join(_join(Role.SERVER), 2, 4)
    with pytest.raises(ConfigError, match="this is storage server 2; clients join at server 0"):
        check_join(_join(), 2, 4)


@pytest.mark.parametrize(
    ("role", "figures"),
    [
        (Role.CLIENT, {"world_size": 3}),
        (Role.CLIENT, {"rank": -1}),
        (Role.CLIENT, {"world_size": 2**40}),
        (Role.SERVER, {"rank": 4}),
        (Role.SERVER, {"rank": 0}),
    ],
)
def test_ranks_are_what_a_cluster_can_have(role: Role, figures: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        check_join(replace(_join(role, job=1), **figures), 0, 4)


def test_news_of_servers_that_stayed_are_kept_once() -> None:
    def news(port: int, incarnation: int) -> News:
        where = Addresses.of([("a", port), ("b", 2)])
        return News(number=port, addresses=where, incarnations=(incarnation, 7))

    former, same = news(1, 5), replace(news(1, 5), number=2, status="waits")
    shared = same.sharing(former)
    assert shared == same
    assert shared.addresses is former.addresses
    assert shared.incarnations is former.incarnations
    moved = news(9, 5)
    assert moved.sharing(former).addresses is moved.addresses
    assert moved.sharing(former).incarnations is former.incarnations


class _Reply:
    def __init__(self, result: Callable[[], News]) -> None:
        self._result = result

    def wait(self) -> News:
        return self._result()


class _Caller:
    """Answers a watch with the next of ``news``, then with the end."""

    def __init__(self, news: list[News], end: GiglLoaderError) -> None:
        self._news, self._end = list(news), end
        self.asked: list[tuple[str, Watch]] = []

    def ask(self, method: str, request: Watch, answer: Any) -> _Reply:
        assert answer is News
        self.asked.append((method, request))
        return _Reply(self._next)

    def _next(self) -> News:
        if not self._news:
            raise self._end
        return self._news.pop(0)


def test_each_question_says_what_was_heard_last() -> None:
    end, join = PeerLostError("gone"), _join()
    heard: list[Any] = []
    news = [News(number=2, status="one"), News(number=5, status="two")]
    caller: Any = _Caller(news, end)
    assert hear(caller, join, heard.append) is end
    assert heard == news
    assert caller.asked == [("watch", Watch(join, seen)) for seen in (0, 2, 5)]
    assert News().number == 0, "a server always has something new for who saw nothing"


def test_what_ends_it_may_come_of_who_hears() -> None:
    """An error of gigl_loader; any other one is a bug, and is raised."""
    wrong = ConfigError("no")

    def refuse(news: News) -> None:
        raise wrong

    caller: Any = _Caller([News(number=1)], PeerLostError("gone"))
    assert hear(caller, _join(), refuse) is wrong

    def fail(news: News) -> None:
        raise KeyError(news.number)

    caller = _Caller([News(number=1)], PeerLostError("gone"))
    with pytest.raises(KeyError):
        hear(caller, _join(), fail)
