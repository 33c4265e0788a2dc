"""What a channel keeps of one storage server: its part of an epoch, and its connections."""

import queue
import threading
from collections import deque
from dataclasses import dataclass, field

from gigl_loader.errors import PeerError, ServerDiedError
from gigl_loader.remote.connection import ServerConnection
from gigl_loader.remote.requests import FetchAnswer, Nothing
from gigl_loader.transport import Caller, Reply

_Fetch = tuple["Reply[FetchAnswer]", int]
"""A fetch under way, and the generation that it is of."""


# by identity: suppliers are keys of dicts while their fields change
@dataclass(eq=False)
class Supplier:
    """One server's part of the epoch, and the connection that its batches come on.

    Replies are filed by a thread of their own, in the order in which they were asked for.
    """

    rank: int
    producer_id: int
    connection: ServerConnection
    """Not the cluster's of later: the producer is that of the server that is there now."""
    left: int = 0
    """Batches of the epoch that have not arrived."""
    positions: dict[int, deque[int]] = field(default_factory=dict)
    """By batch: its positions in the epoch's order, more than one where it repeats."""
    total: int = 0
    """Batches of the epoch that this server samples for this process."""
    asked: int = 0
    """Batches that were asked for: the position of the next fetch."""
    under_way: int = 0
    """Fetches under way."""
    ended: bool = True
    """Whether the server has said that the epoch is over."""
    same_host: bool | None = None
    """Whether its batches can be read where they lie; None: not asked yet."""
    # lambdas: names are looked up when a supplier is made, as the simulation puts classes of its
    # own there
    asking: threading.Lock = field(default_factory=lambda: threading.Lock())
    """Held while fetches are asked, so that they are filed in that order."""
    caller: Caller | None = None
    fetches: "queue.SimpleQueue[_Fetch | None]" = field(default_factory=lambda: queue.SimpleQueue())
    released: deque[int] = field(default_factory=deque)
    """Leases of batches that were dropped here; appended to by finalizers, which may not lock."""
    giver: Caller | None = None
    """Connection that leases are given back on: the other one's answers may be long in coming."""
    given_back: "Reply[Nothing] | None" = None

    def hang_up(self) -> None:
        """Close its connections, and let its thread end."""
        # after what was asked: the thread files that first, or finds that its connection is closed
        self.fetches.put(None)
        for caller in (self.caller, self.giver):
            if caller is not None:
                self.connection.hang_up(caller)

    def unreadable(self, error: OSError) -> PeerError:
        """Return what to raise where a batch in its memory cannot be mapped."""
        who = f"storage server {self.rank}"
        if isinstance(error, FileNotFoundError | ProcessLookupError):  # it ends with its process
            return ServerDiedError(f"{who} ended before a batch of it was read")
        return PeerError(
            f"a batch of {who} cannot be mapped from its memory: {error}; this machine is short of "
            "memory or of address space, or the server has just ended"
        )
