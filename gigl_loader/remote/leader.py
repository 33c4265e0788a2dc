"""A storage server's way to server 0: it tells that it is here, and hears of the others."""

import logging
import threading
import time
from collections.abc import Callable

from gigl_loader.errors import (
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
)
from gigl_loader.remote.membership import Join, News, Watch
from gigl_loader.transport import Caller, End, Security

_log = logging.getLogger(__name__)

_RENEW_S = 2.0
"""Longest attempt to connect again with server 0."""


class Leader:
    """Storage server 0, as the other servers see it.

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
        self.caller = self.dial()
        """Its connection tells server 0 that this server is here."""

    def dial(self, address: tuple[str, int] | None = None) -> Caller:
        """Return a fresh caller of server 0, or of the server at ``address``."""
        host, port = address or self._target
        what = "storage server 0" if address is None else f"the storage server at {host}:{port}"
        return Caller(
            host, port, self._security, self._name, patience_s=self._patience_s, what=what
        )

    def watch(
        self, join: Join, on_news: Callable[[News], None], on_end: Callable[[Exception], None]
    ) -> None:
        """Join, and hand on what is new, in a thread, until server 0 is gone or `close`."""
        threading.Thread(
            target=self._watch, args=(join, on_news, on_end), name="watch server 0", daemon=True
        ).start()

    def _watch(
        self, join: Join, on_news: Callable[[News], None], on_end: Callable[[Exception], None]
    ) -> None:
        seen = 0
        try:
            while True:
                news = self.caller.ask("watch", Watch(join, seen), News).wait()
                seen = news.number
                on_news(news)
        except GiglLoaderError as error:
            on_end(error)

    def renew(self, deadline: float) -> None:
        """Connect again with server 0, which may have been started again.

        Raises:
            PeerTimeoutError: It did not come up by the deadline (`time.monotonic`).
            JoinRefusedError: It does not let this server in.
        """
        self.caller.close(End.JOB_OVER)
        fresh = self.caller = self.dial()
        fresh.connect(deadline, on_wait=lambda why: None)

    def close(self) -> None:
        """Leave in good order. Idempotent."""
        self.caller.close(End.SHUTDOWN)


class Follower:
    """Keeps a storage server with server 0: joins again where that was started again.

    ::

        joined --server 0 ends with its jobs--------------------------> over
               --it is gone--> waits --no longer than ``rejoin_s``----> lost
               <--joined again-- waits

    Args:
        leader: Server 0.
        join: Who this server is.
        rejoin_s: How long server 0 may be away; 0: its end is this server's.
        on_news: Told what server 0 says.
        on_over: Called when there is nothing left to serve.
        on_lost: Told why server 0 is given up.
        is_over: Whether this server ends anyway.
        can_go_on: Whether a job goes on without server 0, which is then waited for meanwhile.
    """

    def __init__(
        self, leader: Leader, join: Join, rejoin_s: float, *, on_news: Callable[[News], None],
        on_over: Callable[[], None], on_lost: Callable[[str], None], is_over: Callable[[], bool],
        can_go_on: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._leader, self._join, self._rejoin_s = leader, join, rejoin_s
        self._on_news, self._on_over, self._on_lost = on_news, on_over, on_lost
        self._is_over, self._can_go_on = is_over, can_go_on

    def start(self) -> None:
        """Join, in a thread."""
        self._leader.watch(self._join, self._on_news, self._left)

    def _left(self, error: Exception) -> None:
        """Server 0 has ended: with its jobs, told to, or by itself."""
        end = error.end if isinstance(error, PeerLostError) else None
        told = end == End.SHUTDOWN and self._rejoin_s <= 0
        if end == End.JOB_OVER or told or self._is_over():
            self._on_over()
        elif self._rejoin_s <= 0 or end == End.LOST_PEER or _is_final(error):
            self._on_lost(f"storage server 0 is gone: {error}")
        else:
            self._rejoin(error, told_to_end=end == End.SHUTDOWN)

    def _rejoin(self, error: Exception, told_to_end: bool) -> None:
        """Wait for server 0 to be started again. In the thread that heard of its end."""
        _log.warning("storage server 0 is gone: %s; it is expected back", error)
        deadline = time.monotonic() + self._rejoin_s
        while not self._is_over() and (time.monotonic() < deadline or self._can_go_on()):
            try:
                self._leader.renew(time.monotonic() + _RENEW_S)
            except PeerTimeoutError:
                continue
            except GiglLoaderError as why:
                error = why
                break
            self.start()
            return
        if told_to_end:
            self._on_over()
        else:
            self._on_lost(f"storage server 0 is gone: {error}")


def _is_final(error: Exception) -> bool:
    """Return whether server 0 does not want this server, however often it asks."""
    return isinstance(error, JoinRefusedError) or not isinstance(error, PeerError)
