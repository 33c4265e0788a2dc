"""The producers of a storage server, and checks that refuse requests for them.

Producers are found by number, by the worker key that ranks share, and by request.
"""

import hashlib
import importlib
import inspect
import secrets
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gigl_loader.errors import ConfigError, GiglLoaderError, ProtocolError, UsageError, first_line
from gigl_loader.graph_store.server.client_ids import JobId, Visitor, scope_of
from gigl_loader.graph_store.server.latest import Latest
from gigl_loader.graph_store.server.shared_producer import SharedProducer
from gigl_loader.graph_store.wire.membership import MOST_RANKS
from gigl_loader.graph_store.wire.requests import NOBODY, ProducerRequest, Runs
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.runtime.transport.failures import short_copy
from gigl_loader.sampler.options import CustomSamplerOptions, FeatureStoreOptions

_MOST_REQUESTS = 4096
"""Most create requests to remember in case they are repeated."""
_MOST_OVER = 1 << 12
"""Most numbers of producers that are over to remember, for errors and late goodbyes."""
NO_TERMS: Mapping[str, str] = {}


@dataclass
class ProducerEntry:
    """A worker key: the first request creates its producer, others wait for the outcome."""

    id: int
    name: str = ""
    """Name of the request, the same on all servers; empty: only its sender knows it."""
    servers: Runs = NOBODY
    """Servers that take part; the first one decides when the producer ends."""
    # a lambda, so that `threading` is looked up when an entry is made: a test may replace it
    ready: threading.Event = field(default_factory=lambda: threading.Event())
    shared: SharedProducer | None = None
    error: GiglLoaderError | None = None
    """Why it did not start: a copy, which holds no frames and so none of the request's seeds."""
    nbytes: int = 0
    """Bytes of batches that its consumers may have on this server."""
    scope: Hashable = None
    """Who has it; see `scope_of`."""
    terms: Mapping[str, str] = field(default_factory=dict)
    """What every request for it says; see `terms_of`."""


class ProducerTable:
    """All producers of a server. Thread-safe; no method waits.

    Args:
        server_rank: Rank of the server, for errors.
        most_bytes: Most bytes of batches of all producers; None: no limit.
    """

    def __init__(self, server_rank: int, most_bytes: int | None = None) -> None:
        self._server_rank, self._most_bytes = server_rank, most_bytes
        # guards all below. Producers are started, called and ended outside it, since that may take
        # long
        self._lock = threading.Lock()
        self._entries: dict[int, ProducerEntry] = {}
        self._by_key: dict[tuple[Hashable, str], int] = {}
        self._by_request = Latest[tuple[Hashable, str], ProducerEntry](_MOST_REQUESTS)
        self._over = Latest[int, None](_MOST_OVER)
        """Numbers of producers that are over."""
        self.asked = 0
        """How often producers were requested; repeated requests do not count."""
        self.closed = False

    def take(
        self,
        scope: Hashable,
        key: str | None,
        request_id: str,
        servers: Runs,
        terms: Mapping[str, str] = NO_TERMS,
    ) -> tuple[ProducerEntry, bool]:
        """Return the slot of a request, and whether the caller has to fill it.

        Args:
            scope: Names of keys and requests hold within it; see `scope_of`.
            key: Worker key; None: the producer is not shared.
            request_id: Name of the request; empty: it has none.
            servers: Servers that take part.
            terms: What the request must have in common with the slot's first one.

        Raises:
            ConfigError: The slot's first request said something else.
            UsageError: The server is shutting down.
        """
        with self._lock:
            # read under the lock under which it is set: `close` finds a producer, or it is refused
            if self.closed:
                raise UsageError(f"storage server {self._server_rank} is shutting down")
            request = (scope, request_id)
            if request in self._by_request:  # repeated after a lost connection
                self._check_same(self._by_request[request], key, terms)
                return self._by_request[request], False
            known = self._by_key.get((scope, key)) if key is not None else None
            entry = self._entries[known] if known is not None else None
            if entry is not None:
                self._check_same(entry, key, terms)
            self.asked += 1
            entry = entry or ProducerEntry(
                self._fresh_id(request_id), request_id, servers, scope=scope, terms=terms
            )
            # a client that joins a key may repeat its request: it must get this slot, not a later
            # producer of the key
            if request_id:
                self._by_request[request] = entry
            if known is not None:
                return entry, False
            self._entries[entry.id] = entry
            if key is not None:
                self._by_key[scope, key] = entry.id
            return entry, True

    def _check_same(self, entry: ProducerEntry, key: str | None, terms: Mapping[str, str]) -> None:
        differ = [name for name, said in terms.items() if entry.terms.get(name) != said]
        if differ:
            raise ConfigError(
                f"storage server {self._server_rank}: the producer of worker key {key!r} was "
                f"requested first with another value of: {', '.join(differ)}. Processes that share "
                "a key must request the same producer; nothing was started"
            )

    def reserve(self, entry: ProducerEntry, nbytes: int, what: str) -> None:
        """Let a producer have that much memory for batches, until it is forgotten.

        Args:
            entry: Its slot.
            nbytes: Bytes of batches that its consumers may have here.
            what: How that comes about, for the error.

        Raises:
            ConfigError: All producers together would have more than this server may keep.
        """
        with self._lock:
            taken: dict[Hashable, int] = {}
            for other in self._entries.values():
                if other.nbytes:
                    taken[other.scope] = taken.get(other.scope, 0) + other.nbytes
            total, most = sum(taken.values()), self._most_bytes
            if most is not None and total + nbytes > most:
                users = ", ".join(f"{who} {size_in_words(size)}" for who, size in taken.items())
                raise ConfigError(
                    f"storage server {self._server_rank} may keep {size_in_words(most)} of batches "
                    f"(--channel-memory), of which {size_in_words(total)} are taken "
                    f"({users or 'by nobody'}); this producer needs {size_in_words(nbytes)}: "
                    f"{what}. Give its loader a lower channel_size, or shut down another loader"
                )
            entry.nbytes = nbytes

    def _fresh_id(self, request_id: str) -> int:
        """Return a number that no other producer has, here or on an earlier server process.

        It is derived from the request, so that all servers use one number, which takes clients
        less room than one for each.
        """
        name = request_id or secrets.token_hex(16)
        while (number := _number_of(name)) in self._over or number in self._entries:
            name = secrets.token_hex(16)
        return number

    def forget(self, number: int) -> ProducerEntry | None:
        """Remove a slot; return None if that was done already.

        Its requests are remembered without the producer, whose memory and seeds go with it.
        """
        with self._lock:
            # even if it never started: then the error says that it was destroyed, not
            # that it never existed
            self._over[number] = None
            # later requests with the key get a new producer, not one that is ending
            self._by_key = {k: v for k, v in self._by_key.items() if v != number}
            entry = self._entries.pop(number, None)
            if entry is not None:
                error = None if entry.error is None else short_copy(entry.error)
                ended = replace(entry, shared=None, error=error)
                for request, one in list(self._by_request.items()):
                    if one is entry:
                        self._by_request[request] = ended
            return entry

    def has(self, entry: ProducerEntry) -> bool:
        """Return whether the slot ``entry`` is present and the server is not closing."""
        return entry.id in self._entries and not self.closed

    def is_over(self, number: int) -> bool:
        """Return whether there was such a producer."""
        return number in self._over

    def producer(self, number: int) -> SharedProducer:
        """Return a producer that is up.

        Raises:
            UsageError: There is no such producer.
        """
        with self._lock:
            entry = self._entries.get(number)
        # without `shared` it is starting, and its number is not known to anybody yet
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
        """Return the numbers of producers that are not up yet."""
        with self._lock:
            return [entry.id for entry in self._entries.values() if entry.shared is None]

    def close(self) -> list[int]:
        """Accept no more producers; return the numbers of those that are up."""
        with self._lock:
            self.closed = True
            return [entry.id for entry in self._entries.values() if entry.shared is not None]


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 2


def check_leave(options: Any, allowed: Sequence[str], server: int) -> None:
    """Refuse to import a class for which the server was not started with permission.

    Args:
        options: Options of a sampler or a feature store; others name no class.
        allowed: Packages, modules or classes that clients may name.
        server: Rank of the server, for the error.

    Raises:
        ConfigError: The server has no permission.
    """
    if not isinstance(options, CustomSamplerOptions | FeatureStoreOptions):
        return
    path = options.class_path
    what = "sampler" if isinstance(options, CustomSamplerOptions) else "feature store"
    if not _has_leave(path, allowed):
        raise ConfigError(
            f"storage server {server} has no permission to import the {what} {path!r}: start it "
            f"with --allow-samplers {path.rpartition('.')[0]}, or "
            "init_storage_process(allow_samplers=[...]); nothing was started"
        )


def allowed_function(path: str, allowed: Sequence[str], server: int) -> Callable[..., Any]:
    """Import a function that clients name.

    Args:
        path: Its import path.
        allowed: Packages, modules or functions that clients may name.
        server: Rank of the server, for the error.

    Raises:
        ConfigError: The server has no permission, or there is no such function.
    """
    module, _, name = path.rpartition(".")
    if not _has_leave(path, allowed):
        raise ConfigError(
            f"storage server {server} has no permission to run {path!r}: start it with "
            f"--allow-functions {module}, or init_storage_process(allow_functions=[...])"
        )
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"storage server {server} cannot import {path!r} ({first_line(error)}): put the module "
            "where it finds it"
        ) from error
    # the same name elsewhere: leave is for functions of a module, not for what that imported
    if getattr(function, "__module__", None) != module or not inspect.isfunction(function):
        raise ConfigError(f"storage server {server}: {path!r} is no function of that module")
    return function


def _has_leave(path: str, allowed: Sequence[str]) -> bool:
    # with the dot: permission for `mine.samplers` does not include `mine.samplers_of_others`
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in allowed)


def check_request(request: ProducerRequest, num_servers: int, client: Hashable) -> None:
    """Refuse a producer for other consumers than the caller, with a cache, or on unknown servers.

    Raises:
        ProtocolError: Nothing was started.
    """
    request.servers.check(num_servers, "servers that take part")
    scope = scope_of(client)
    num_ranks = scope.world_size if isinstance(scope, JobId) else MOST_RANKS
    request.client_ranks.check(num_ranks, "compute ranks that share a producer")
    if request.source_options.producers_cache is not None:
        raise ProtocolError("rows are cached where batches are taken, not on storage servers")
    shard = 0 if request.shard is None else request.shard
    if not 0 <= shard < request.num_shards <= num_servers:
        raise ProtocolError(f"shard {shard} of {request.num_shards} on {num_servers} servers")
    if isinstance(client, Visitor) and request.client_ranks:
        raise ProtocolError("a process that has not joined a job shares no producer with ranks")
    # ranks that share a producer learn this from the first of them, which creates it for all
    rank = client[1] if isinstance(client, tuple) else None
    if rank is not None and request.client_ranks and rank not in request.client_ranks:
        raise ProtocolError(f"compute rank {rank} asked for a producer of {request.client_ranks}")
