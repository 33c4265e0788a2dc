"""A storage server's way to server 0: it tells that it is here, and hears of the others."""

import threading
from collections.abc import Callable

from gigl_loader.errors import GiglLoaderError
from gigl_loader.remote.membership import Join, News, Watch
from gigl_loader.transport import Caller, End, Security


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

    def dial(self) -> Caller:
        """Return a fresh caller of server 0."""
        return Caller(
            *self._target, self._security, self._name, patience_s=self._patience_s,
            what="storage server 0",
        )  # fmt: skip

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
        fresh.connect(deadline, lambda why: None)  # it may not be up yet

    def close(self) -> None:
        """Leave in good order. Idempotent."""
        self.caller.close(End.SHUTDOWN)
