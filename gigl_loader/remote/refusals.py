"""Who is not taken in, and what a storage server refuses before it starts a producer."""

import logging
import math
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gigl_loader._glt import SamplingConfig
from gigl_loader.dataset.schema import is_label_edge_type
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError, GiglLoaderError, JoinRefusedError, ProtocolError
from gigl_loader.options import CustomSamplerOptions, FeatureStoreOptions
from gigl_loader.remote.membership import MOST_RANKS
from gigl_loader.remote.requests import ProducerRequest
from gigl_loader.transport import End

_log = logging.getLogger(__name__)

_MAY_CHANGE = (
    End.REFUSED_CERTIFICATE, End.REFUSED_SERVICE, End.REFUSED_BUSY, End.REFUSED_SLOW,
)  # fmt: skip
"""Refusals after which a server may be what it was: certificates are renewed on one machine after
the other, and a proxy or another program may answer while it is started again."""
_SAY_EVERY_S = 60.0
_MOST_SAID = 1000
"""Processes and reasons that are remembered; beyond that they are counted and not said."""
_MOST = 1 << 10, 1 << 10, 1 << 16
"""Workers of a producer, threads of each, and batches that one client asks for ahead."""


class RefusedJoins:
    """Processes that were not taken in; safe in threads.

    One that asks again and again is in the log once a minute for each reason, since a job that
    waits for its servers asks for as long as its ``reconnect_timeout``.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        """When it was said last, and how often it was not since; said longest ago first."""

    def add(self, who: str, why: Exception) -> None:
        """Count one; say so unless that was done a moment ago."""
        key, now = (who, str(why)), time.monotonic()
        with self._lock:
            self.count += 1
            said_at, unsaid = self._said.get(key, (-math.inf, 0))
            if now - said_at < _SAY_EVERY_S:
                self._said[key] = (said_at, unsaid + 1)
                return
            self._said.pop(key, None)
            # whoever makes up reasons fills neither memory nor the log
            oldest = next(iter(self._said.values()), (-math.inf, 0))[0]
            if len(self._said) >= _MOST_SAID:
                if now - oldest < _SAY_EVERY_S:
                    return
                del self._said[next(iter(self._said))]
            self._said[key] = (now, 0)
        more = f" ({unsaid} more times since it was said last)" if unsaid else ""
        _log.warning("%s cannot join: %s%s", who, why, more)


@dataclass(frozen=True)
class Refusal:
    """Why a lost server was not taken for what it is now, at the last attempt."""

    error: GiglLoaderError
    since: float
    """When it was said first; since then nothing else was (`time.monotonic`)."""
    said: float
    """When it was said last."""

    @property
    def is_one(self) -> bool:
        """Whether the server has said so itself."""
        return isinstance(self.error, ConfigError | JoinRefusedError)

    @property
    def cannot_change(self) -> bool:
        """Whether it would say the same again: of another cluster, graph or job, or secret."""
        of_now = isinstance(self.error, JoinRefusedError) and self.error.end in _MAY_CHANGE
        return self.is_one and not of_now

    def copy(self) -> GiglLoaderError:
        """Return the error with a traceback of its own."""
        return type(self.error)(*self.error.args)


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
            f"storage server {server} has no leave to import the {what} {path!r}: start it with "
            f"--allow-samplers {path.rpartition('.')[0]}, or "
            "init_storage_process(allow_samplers=[...]); nothing was started"
        )


def check_request(request: ProducerRequest, num_servers: int, client: Hashable) -> None:
    """Refuse a producer for others than who asks, or on servers that there are not.

    Raises:
        ProtocolError: Nothing was started.
    """
    request.servers.check(num_servers, "servers that take part")
    request.client_ranks.check(MOST_RANKS, "compute ranks that share a producer")
    shard = 0 if request.shard is None else request.shard
    if not 0 <= shard < request.num_shards <= num_servers:
        raise ProtocolError(f"shard {shard} of {request.num_shards} on {num_servers} servers")
    # ranks that share one are told by the first of them, who asks for all
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
        ConfigError: Says what it lacks.
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
        raise ConfigError(f"edge types {list(walked)} have no weights, which were asked for")
    missing = [name for name, one in walked.items() if not one.has_edge_ids]
    if config.with_edge and missing:
        raise ConfigError(f"edge types {missing} have no edge_ids, which were asked for")
