"""A storage server's way to server 0: it tells that it is here, and hears of the others."""

import logging
import threading
import time
from typing import Protocol

from gigl_loader.errors import (
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
)
from gigl_loader.remote.compact import Addresses
from gigl_loader.remote.membership import Join, News, hear
from gigl_loader.threads import new_thread
from gigl_loader.transport import Caller, End, Security

_log = logging.getLogger(__name__)

# short: between two attempts it is seen whether this server was told to end
_RENEW_S = 2.0
"""Longest attempt to connect again with server 0."""


class Followed(Protocol):
    """A storage server other than 0, as `Leader` has to know it."""

    over: threading.Event
    """Set when there is nothing left to serve."""

    def join(self) -> Join:
        """Return who this server is, as far as it knows by now."""

    def hear(self, news: News) -> None:
        """Take what server 0 says."""

    def lose(self, why: str) -> None:
        """Take note that server 0 is given up."""

    @property
    def is_over(self) -> bool:
        """Whether this server ends anyway."""

    @property
    def can_do_without_0(self) -> bool:
        """Whether a job goes on without server 0, which is then waited for meanwhile."""


class Leader:
    """Storage server 0, as the other servers see it. They join it again where it is started again.

    ::

        joined --server 0 ends with its jobs--------------------------> over
               --it is gone--> waits --no longer than ``rejoin_s``----> lost
               <--joined again-- waits

    Args:
        host: Address of server 0.
        port: Port of server 0.
        security: The same as that of server 0.
        name: What this server calls itself.
        patience_s: How long an outage of the network may last.
    """

    def __init__(
        self, host: str, port: int, security: Security, name: str, patience_s: float
    ) -> None:
        self._target, self._security, self._name = (host, port), security, name
        self._patience_s = patience_s
        self.news = News()
        """Its last status."""
        self.addresses = Addresses()
        """Addresses of all servers, as it last announced them."""
        self.why_away: str | None = "it has not let this server in yet"
        """Why it is waited for; None: it is here."""
        self.caller = self.dial()
        """Its connection tells server 0 that this server is here."""

    def dial(self, address: tuple[str, int] | None = None, incarnation: int = 0) -> Caller:
        """Return a fresh caller of server 0, or of the server at ``address``; see `Caller`."""
        host, port = address or self._target
        what = "storage server 0" if address is None else f"the storage server at {host}:{port}"
        return Caller(
            host, port, self._security, self._name, patience_s=self._patience_s, what=what,
            incarnation=incarnation,
        )  # fmt: skip

    def renew(self, deadline: float) -> None:
        """Connect again with server 0, which may have been started again.

        Raises:
            PeerTimeoutError: It did not come up by the deadline (`time.monotonic`).
            JoinRefusedError: It does not let this server in.
        """
        # Fresh for the sake of its session: under the former one a server 0 that never ended would
        # refuse this server, which it has given up.
        self.caller.close(End.JOB_OVER)
        fresh = self.caller = self.dial()
        # given, though it does nothing: without it a refused connection counts as the end of server
        # 0
        fresh.connect(deadline, on_wait=lambda why: None)

    def close(self) -> None:
        """Leave in good order. Idempotent."""
        self.caller.close(End.SHUTDOWN)

    # -- following it ---------------------------------------------------------------------------

    def start(self, server: Followed, rejoin_s: float) -> None:
        """Follow server 0 in a thread; see `follow`."""
        new_thread(
            target=self.follow, args=(server, rejoin_s), name="watch server 0",
            on_death=lambda error: server.lose(
                f"storage server 0 is no longer heard: {type(error).__name__}: {error}"
            ),
        ).start()  # fmt: skip

    def follow(self, server: Followed, rejoin_s: float) -> None:
        """Join, hear what is new, and join again, until this server or its cluster is over.

        Args:
            server: This server.
            rejoin_s: How long server 0 may be away; 0: its end is this server's.
        """

        def on_news(news: News) -> None:
            self.news, self.why_away = news, None
            # a server 0 that was started again says nothing of them until it knows all
            self.addresses = news.addresses or self.addresses
            server.hear(news)

        while True:
            after = hear(self.caller, server.join(), on_news)
            if not self._is_back(server, rejoin_s, after):
                return

    def _is_back(self, server: Followed, rejoin_s: float, after: Exception) -> bool:
        """Server 0 has ended: with its jobs, told to, or by itself; tell whether it came back."""
        end = after.end if isinstance(after, PeerLostError) else None
        # told to end, perhaps to be started again: expected back, but if it does not come this
        # server ends in good order
        told = end == End.SHUTDOWN
        if end == End.JOB_OVER or (told and rejoin_s <= 0) or server.is_over:
            server.over.set()
            return False
        error: Exception | None = after
        # after LOST_PEER it does not come back by itself: the cluster has to be started again
        if rejoin_s > 0 and end != End.LOST_PEER and not _is_final(after):
            error = self._rejoin(server, rejoin_s, after)
            if error is not None and told:
                server.over.set()
                return False
        if error is not None:
            server.lose(f"storage server 0 is gone: {error}")
        return error is None

    def _rejoin(self, server: Followed, rejoin_s: float, error: Exception) -> Exception | None:
        """Wait for server 0 to be started again; return why that is given up."""
        _log.warning("storage server 0 is gone: %s; it is expected back", error)
        self.why_away = str(error)
        deadline = time.monotonic() + rejoin_s
        while not server.is_over and (time.monotonic() < deadline or server.can_do_without_0):
            try:
                self.renew(time.monotonic() + _RENEW_S)
            # ahead of the next clause, of whose class it is, too
            except PeerTimeoutError:
                continue
            except GiglLoaderError as why:
                return why
            return None
        return error


def _is_final(error: Exception) -> bool:
    """Return whether server 0 does not want this server, however often it asks."""
    return isinstance(error, JoinRefusedError) or not isinstance(error, PeerError)
