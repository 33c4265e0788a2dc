"""The producers of a storage server: by number, by the worker key that ranks share, by request."""

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from gigl_loader.errors import UsageError
from gigl_loader.remote.compact import NOBODY, Runs
from gigl_loader.remote.shared import SharedProducer

_MOST_REQUESTS = 4096
"""Create requests that are remembered, in case they are asked again."""


@dataclass
class ProducerEntry:
    """A worker key: whoever asks first creates, the others wait for the same outcome."""

    id: int
    name: str = ""
    """Name of the request, on all servers; empty: nobody but the one who asked knows of it."""
    servers: Runs = NOBODY
    """Those that take part; the first one decides when the producer is over."""
    # a lambda: `threading` is looked up when a slot is made, as the simulation puts its own there
    ready: threading.Event = field(default_factory=lambda: threading.Event())
    shared: SharedProducer | None = None
    error: BaseException | None = None


class ProducerTable:
    """All producers of a server. Thread-safe; nobody waits in here.

    Args:
        server_rank: For errors.
    """

    def __init__(self, server_rank: int) -> None:
        self._server_rank = server_rank
        # guards all below. Producers are started, asked and ended without it, since that may take
        # long
        self._lock = threading.Lock()
        self._entries: dict[int, ProducerEntry] = {}
        self._by_key: dict[tuple[Hashable, str], int] = {}
        self._by_request: OrderedDict[tuple[Hashable, str], ProducerEntry] = OrderedDict()
        self._over: set[int] = set()
        self.asked = 0
        """How often a producer was asked for; the same request again does not count."""
        self.closed = False

    def take(
        self, job: Hashable, key: str | None, request_id: str, servers: Runs
    ) -> tuple[ProducerEntry, bool]:
        """Return the slot of a request, and whether it is for the caller to fill it.

        Raises:
            UsageError: The server is shutting down.
        """
        with self._lock:
            # with the lock, as it is set: a producer is either refused here or found by `close`
            if self.closed:
                raise UsageError(f"storage server {self._server_rank} is shutting down")
            request = (job, request_id)
            if request in self._by_request:  # asked again after a lost connection
                return self._by_request[request], False
            self.asked += 1
            known = self._by_key.get((job, key)) if key is not None else None
            entry = self._entries[known] if known is not None else None
            entry = entry or ProducerEntry(self._fresh_id(request_id), request_id, servers)
            # who joins a key may ask again, too: it is to get this slot, and not one of a later
            # producer of the key
            if request_id:
                self._remember(request, entry)
            if known is not None:
                return entry, False
            self._entries[entry.id] = entry
            if key is not None:
                self._by_key[job, key] = entry.id
            return entry, True

    def _fresh_id(self, request_id: str) -> int:
        """Return a number that no other producer has, here or on a server before this one.

        It is made of the request: all servers have one number then, which takes less room with
        clients than one of each.
        """
        name = request_id or secrets.token_hex(16)
        while (number := _number_of(name)) in self._over or number in self._entries:
            name = secrets.token_hex(16)
        return number

    def _remember(self, request: tuple[Hashable, str], entry: ProducerEntry) -> None:
        self._by_request[request] = entry
        while len(self._by_request) > _MOST_REQUESTS:
            self._by_request.popitem(last=False)

    def forget(self, number: int) -> ProducerEntry | None:
        """Let a slot go; None where somebody else has done so."""
        with self._lock:
            # also where it never came up: who asks for it is told that it was destroyed, and not
            # that there never was one
            self._over.add(number)
            # others that come with the key get a producer of their own, and not one that is ending
            self._by_key = {k: v for k, v in self._by_key.items() if v != number}
            return self._entries.pop(number, None)

    def has(self, entry: ProducerEntry) -> bool:
        """Return whether ``slot`` is there, and the server goes on."""
        return entry.id in self._entries and not self.closed

    def is_over(self, number: int) -> bool:
        """Return whether there was such a producer."""
        return number in self._over

    def producer(self, number: int) -> SharedProducer:
        """Return a producer that is up.

        Raises:
            UsageError: There is none.
        """
        with self._lock:
            entry = self._entries.get(number)
        # with no `shared` it is starting: nobody has been told its number
        if entry is None or entry.shared is None:
            what = "was destroyed" if number in self._over else "never existed"
            raise UsageError(
                f"producer {number} of storage server {self._server_rank} {what}: build a new "
                "loader"
            )
        return entry.shared

    def started(self) -> dict[int, SharedProducer]:
        """Return the producers that are up, by number."""
        with self._lock:
            return {s.id: s.shared for s in self._entries.values() if s.shared is not None}

    def starting(self) -> list[int]:
        """Return the numbers of those that are not up yet."""
        with self._lock:
            return [entry.id for entry in self._entries.values() if entry.shared is None]

    def close(self) -> list[int]:
        """Take no more; return the numbers of those that are up."""
        with self._lock:
            self.closed = True
            return [entry.id for entry in self._entries.values() if entry.shared is not None]


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 2
