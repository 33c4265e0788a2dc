"""One process of the cluster, as a storage server sees it, and the news that it is told."""

import contextlib
from collections.abc import Hashable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any

from gigl_loader.graph_store.server.client_ids import JobId, Visitor
from gigl_loader.graph_store.wire.membership import Join, News


@dataclass(eq=False)
class Member:
    """A compute process or storage server that is a member, on any connection."""

    session: str
    join: Join
    name: str
    """Description for the log."""
    job: int | None = None
    """Number of a client's job, once known."""
    secret: bytes = field(default=b"", repr=False)
    """Secret of its job, if that began here; a client that comes back knows it."""
    peer: Any = None
    """The current connection of its watch."""
    give_up_at: float | None = None
    """When it is given up unless it comes back (`time.monotonic`); None: it is here."""
    why_gone: str = ""
    news: News = field(default_factory=News)
    _waiting: "Future[News] | None" = None

    @property
    def client(self) -> Hashable:
        """Owner of its producers: (`JobId`, rank), and before its job begins a `Visitor`."""
        if self.job is None:
            return Visitor(self.session)
        return JobId(self.join.job_name, self.job, self.join.world_size), self.join.rank

    def wait(self, seen: int) -> "Future[News]":
        """Return the news as soon as they differ from those numbered ``seen``."""
        # one per member: its watch sends the next request only after a response
        future: Future[News] = Future()
        former, self._waiting = self._waiting, future
        if former is not None:
            _answer(former, self.news)  # the request of a replaced connection
        if self.news.number != seen:
            self._flush()
        return future

    @property
    def has_heard(self) -> bool:
        """Whether it knows the latest news: it requested the next ones, or is not here."""
        return self._waiting is not None or self.give_up_at is not None

    def tell(self, **changes: Any) -> None:
        """Change the news; waiting requests get a response if that makes a difference."""
        fresh = replace(self.news, **changes)
        # number 0 means that no news was sent yet: a client waits for the first news, with any
        # content
        if fresh != self.news or fresh.number == 0:
            self.news = replace(fresh, number=fresh.number + 1)
            self._flush()

    def _flush(self) -> None:
        # removed first, as each request gets one response
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _answer(waiting, self.news)


def _answer(future: "Future[News]", news: News) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled: its connection is over
        future.set_result(news)
