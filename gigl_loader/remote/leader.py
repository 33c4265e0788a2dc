"""A storage server's way to server 0: it tells that it is here, and hears of the others."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from gigl_loader.errors import (
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
)
from gigl_loader.remote.membership import Join, News, hear
from gigl_loader.threads import new_thread
from gigl_loader.transport import Caller, End, Security

_log = logging.getLogger(__name__)

# short: between two attempts it is seen whether this server was told to end
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


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Keeps a storage server with server 0: joins again where that was started again.

    ::

        joined --server 0 ends with its jobs--------------------------> over
               --it is gone--> waits --no longer than ``rejoin_s``----> lost
               <--joined again-- waits

    """

    leader: Leader
    join: Callable[[], Join]
    """Returns who this server is, as far as it knows by then."""
    rejoin_s: float
    """How long server 0 may be away; 0: its end is this server's."""
    on_news: Callable[[News], None]
    """Told what server 0 says."""
    on_away: Callable[[str], None]
    """Told why server 0 is waited for; it is back with the next news."""
    on_over: Callable[[], None]
    """Called when there is nothing left to serve."""
    on_lost: Callable[[str], None]
    """Told why server 0 is given up."""
    is_over: Callable[[], bool]
    """Whether this server ends anyway."""
    can_go_on: Callable[[], bool]
    """Whether a job goes on without server 0, which is then waited for meanwhile."""

    def start(self) -> None:
        """Join, in a thread."""
        new_thread(
            target=self._follow, name="watch server 0",
            on_death=lambda error: self.on_lost(
                f"storage server 0 is no longer heard: {type(error).__name__}: {error}"
            ),
        ).start()  # fmt: skip

    def _follow(self) -> None:
        while self._is_back(after=hear(self.leader.caller, self.join(), self.on_news)):
            pass

    def _is_back(self, after: Exception) -> bool:
        """Server 0 has ended: with its jobs, told to, or by itself; tell whether it came back."""
        end = after.end if isinstance(after, PeerLostError) else None
        # told to end, perhaps to be started again: expected back, but if it does not come this
        # server ends in good order
        told = end == End.SHUTDOWN
        if end == End.JOB_OVER or (told and self.rejoin_s <= 0) or self.is_over():
            self.on_over()
            return False
        error: Exception | None = after
        # after LOST_PEER it does not come back by itself: the cluster has to be started again
        if self.rejoin_s > 0 and end != End.LOST_PEER and not _is_final(after):
            error = self._rejoin(after)
            if error is not None and told:
                self.on_over()
                return False
        if error is not None:
            self.on_lost(f"storage server 0 is gone: {error}")
        return error is None

    def _rejoin(self, error: Exception) -> Exception | None:
        """Wait for server 0 to be started again; return why that is given up."""
        _log.warning("storage server 0 is gone: %s; it is expected back", error)
        self.on_away(str(error))
        deadline = time.monotonic() + self.rejoin_s
        while not self.is_over() and (time.monotonic() < deadline or self.can_go_on()):
            try:
                self.leader.renew(time.monotonic() + _RENEW_S)
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
