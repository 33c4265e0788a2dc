"""The producers of a storage server: requests that are refused, and those that are up.

These are found by number, by the worker key that ranks share, and by request.
"""

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gigl_loader._glt import SamplingConfig
from gigl_loader.dataset.schema import is_label_edge_type
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError, ProtocolError, UsageError
from gigl_loader.options import CustomSamplerOptions, FeatureStoreOptions
from gigl_loader.remote.membership import MOST_RANKS
from gigl_loader.remote.requests import NOBODY, ProducerRequest, Runs
from gigl_loader.remote.shared import SharedProducer

_MOST_REQUESTS = 4096
"""Create requests that are remembered, in case they are asked again."""


@dataclass
class ProducerEntry:
    """A worker key: the first request creates, the others wait for the same outcome."""

    id: int
    name: str = ""
    """Name of the request, on all servers; empty: only its sender knows it."""
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
            # a client that joins a key may repeat its request: it must get this slot, not a later
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
            # also where it never started: its error then says that it was destroyed, and not
            # that it never existed
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


_MOST = 1 << 10, 1 << 10, 1 << 16
"""Workers of a producer, threads of each, and batches that one client asks for ahead."""


def check_leave(options: Any, allowed: Sequence[str], server: int) -> None:
    """Refuse to import a class that the server was not started with leave for.

    Args:
        options: Of a sampler or a feature store; others name no class.
        allowed: Packages, modules or classes that clients may name.
        server: Its rank, for the error.

    Raises:
        ConfigError: It has no leave.
    """
    if not isinstance(options, CustomSamplerOptions | FeatureStoreOptions):
        return
    path = options.class_path
    what = "sampler" if isinstance(options, CustomSamplerOptions) else "feature store"
    # with the dot: leave for `mine.samplers` is none for `mine.samplers_of_others`
    if not any(path == one or path.startswith(f"{one}.") for one in allowed):
        raise ConfigError(
            f"storage server {server} has no permission to import the {what} {path!r}: start it "
            f"with --allow-samplers {path.rpartition('.')[0]}, or "
            "init_storage_process(allow_samplers=[...]); nothing was started"
        )


def check_request(request: ProducerRequest, num_servers: int, client: Hashable) -> None:
    """Refuse a producer for other consumers than the caller, or on servers that do not exist.

    Raises:
        ProtocolError: Nothing was started.
    """
    request.servers.check(num_servers, "servers that take part")
    request.client_ranks.check(MOST_RANKS, "compute ranks that share a producer")
    shard = 0 if request.shard is None else request.shard
    if not 0 <= shard < request.num_shards <= num_servers:
        raise ProtocolError(f"shard {shard} of {request.num_shards} on {num_servers} servers")
    # ranks that share one hear this from the first of them, who creates it for all
    own = client[1] if isinstance(client, tuple) else None
    if own is not None and request.client_ranks and own not in request.client_ranks:
        raise ProtocolError(f"compute rank {own} asked for a producer of {request.client_ranks}")


def check_workers(options: Any) -> None:
    """Refuse more workers or threads than any machine has.

    Raises:
        ConfigError: Nothing was started.
    """
    counts = options.num_workers, options.worker_concurrency, options.prefetch_size
    if not all(0 < count <= most for count, most in zip(counts, _MOST, strict=True)):
        raise ConfigError(
            f"num_workers, worker_concurrency and prefetch_size must be in [1, {_MOST}], got "
            f"{counts}"
        )


def check_columns(config: SamplingConfig, view: PartitionView) -> None:
    """Refuse to sample by weights, or with edge ids, that the graph does not have.

    Raises:
        ConfigError: Names the missing part.
    """
    # label edges are looked up for the anchors and never drawn, so they need neither
    walked = {
        name: adjacency
        for name, adjacency in view.adjacency.items()
        if not is_label_edge_type(name)
    }
    # one type with weights suffices, others are drawn uniformly; edge ids are a column of the batch
    # for each type
    if config.with_weight and all(one.weights is None for one in walked.values()):
        raise ConfigError(f"edge types {list(walked)} have no weights, which were requested")
    missing = [name for name, one in walked.items() if not one.has_edge_ids]
    if config.with_edge and missing:
        raise ConfigError(f"edge types {missing} have no edge_ids, which were requested")
