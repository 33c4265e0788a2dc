"""How a storage server follows server 0."""

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
from gigl_loader.graph_store.wire.membership import Join, News, hear
from gigl_loader.graph_store.wire.requests import Addresses
from gigl_loader.runtime.threads import new_thread
from gigl_loader.runtime.transport import Caller, EndReason, Security

_log = logging.getLogger(__name__)


# short, as between two attempts this server checks whether it was told to end
_RENEW_S = 2.0
"""Longest attempt to reconnect to server 0, in seconds."""


_NAME = "storage server 0"


class Follower(Protocol):
    """A storage server, as `LeaderLink` sees it."""

    over: threading.Event

    @property
    def is_over(self) -> bool:
        """Whether this server has nothing left to serve."""

    @property
    def can_do_without_0(self) -> bool:
        """Whether the job goes on while server 0 is away."""

    def join(self) -> Join:
        """Return this server's description for server 0."""

    def hear(self, news: News) -> None:
        """Take server 0's news."""

    def lose(self, why: str) -> None:
        """End with an error: server 0 is lost."""


class LeaderLink:
    """Storage server 0, as the other servers see it. They join it again after it restarts.

    ::

        joined --server 0 ends with its jobs--------------------------> over
               --it is gone--> waits --no longer than ``rejoin_s``----> lost
               <--joined again-- waits

    Args:
        host: Address of server 0.
        port: Port of server 0.
        security: The same as that of server 0.
        name: Name of this server.
        patience_s: How long an outage of the network may last, in seconds.
    """

    def __init__(
        self, host: str, port: int, security: Security, name: str, patience_s: float
    ) -> None:
        self._target, self._security, self._name = (host, port), security, name
        self._patience_s = patience_s
        self.news = News()
        """Server 0's last status."""
        self.addresses = Addresses()
        """Addresses of all servers, as server 0 last announced them."""
        self.why_away: str | None = "it has not let this server in yet"
        """Why this server waits for server 0; None: it is here."""
        self.caller = self.dial()
        """Caller whose connection shows server 0 that this server is here."""

    def dial(
        self,
        address: tuple[str, int] | None = None,
        incarnation: int = 0,
        session: str | None = None,
    ) -> Caller:
        """Return a new caller of server 0, or of the server at ``address``; see `Caller`."""
        host, port = address or self._target
        what = _NAME if address is None else f"the storage server at {host}:{port}"
        return Caller(
            host,
            port,
            self._security,
            self._name,
            patience_s=self._patience_s,
            what=what,
            incarnation=incarnation,
            session=session,
        )

    def renew(self, deadline: float) -> None:
        """Reconnect to server 0, which may have been restarted.

        Raises:
            PeerTimeoutError: Server 0 did not come up by the deadline (`time.monotonic`).
            JoinRefusedError: Server 0 refuses this server.
        """
        # A new session: under the former one, a server 0 that never ended would refuse this server,
        # as it has given it up.
        self.caller.close(EndReason.JOB_OVER)
        fresh = self.caller = self.dial()
        # a function that does nothing is needed: without one a refused connection counts as the end
        # of server 0
        fresh.connect(deadline, on_wait=lambda why: None)

    def close(self) -> None:
        """Leave in good order. Idempotent."""
        self.caller.close(EndReason.SHUTDOWN)

    # -- following it ---------------------------------------------------------------------------

    def start(self, server: Follower, rejoin_s: float) -> None:
        """Follow server 0 in a thread; see `follow`."""
        new_thread(
            target=self.keep_joined,
            args=(server, rejoin_s),
            name="watch server 0",
            on_death=lambda error: server.lose(
                f"storage server 0 is no longer heard: {type(error).__name__}: {error}"
            ),
        ).start()

    def keep_joined(self, server: Follower, rejoin_s: float) -> None:
        """Join, receive news, and join again, until this server or its cluster ends.

        Args:
            server: This server.
            rejoin_s: How many seconds server 0 may be away; 0: this server ends with it.
        """

        def on_news(news: News) -> None:
            self.news, self.why_away = news, None
            # a restarted server 0 sends no addresses until it knows all
            self.addresses = news.addresses or self.addresses
            server.hear(news)

        while True:
            after = hear(self.caller, server.join(), on_news)
            if not self._is_back(server, rejoin_s, after):
                return

    def _is_back(self, server: Follower, rejoin_s: float, after: Exception) -> bool:
        """Handle the end of server 0; return whether it came back."""
        end = after.end if isinstance(after, PeerLostError) else None
        # it was told to end, perhaps to be restarted: it is expected back, but if it does not come
        # this server ends in good order
        is_shutdown = end == EndReason.SHUTDOWN
        if end == EndReason.JOB_OVER or (is_shutdown and rejoin_s <= 0) or server.is_over:
            server.over.set()
            return False
        error: Exception | None = after
        # after LOST_PEER it does not come back by itself: the cluster has to be restarted
        if rejoin_s > 0 and end != EndReason.LOST_PEER and not _is_final(after):
            error = self._rejoin(server, rejoin_s, after)
            if error is not None and is_shutdown:
                server.over.set()
                return False
        if error is not None:
            server.lose(_loss(error))
        return error is None

    def _rejoin(self, server: Follower, rejoin_s: float, error: Exception) -> Exception | None:
        """Wait for server 0 to restart; return the reason to give up, or None."""
        _log.warning("%s. It is expected back", _loss(error))
        self.why_away = str(error)
        deadline = time.monotonic() + rejoin_s
        while not server.is_over and (time.monotonic() < deadline or server.can_do_without_0):
            try:
                self.renew(time.monotonic() + _RENEW_S)
            # before the next clause, whose class includes this one
            except PeerTimeoutError:
                continue
            except GiglLoaderError as why:
                return why
            return None
        return error


def _loss(error: Exception) -> str:
    """Return why server 0 is lost, as text that names it once."""
    text = str(error)  # a caller's errors begin with its peer's name, a server's own do not
    return text if text.startswith(_NAME) else f"{_NAME} is gone: {text}"


def _is_final(error: Exception) -> bool:
    """Return whether server 0 refuses this server for good."""
    return isinstance(error, JoinRefusedError) or not isinstance(error, PeerError)
