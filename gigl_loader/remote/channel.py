"""Batches from storage servers: asked for ahead, put in order, watched."""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gigl_loader._glt import ChannelBase
from gigl_loader.errors import (
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    UsageError,
)
from gigl_loader.memory import segments
from gigl_loader.memory.leases import Mappings, Place, sees, tensors_over
from gigl_loader.memory.slots import Layout
from gigl_loader.message import Received, SampleMessage
from gigl_loader.options import DEFAULT_TIMEOUT_S, reads_same_memory
from gigl_loader.remote import wire
from gigl_loader.remote.client import current_cluster
from gigl_loader.remote.requests import EpochRequest, FetchRequest
from gigl_loader.remote.rpc import Cluster, ServerLink, result_of
from gigl_loader.remote.service import DistServer

_GRAIN = 1 << 16
_DESCRIBE_S = 2.0
"""How long stalled servers may take to say what their workers do."""
_MOST_SPARE = 8
"""Buffers kept for the next batch beyond those in use."""


class BufferPool:
    """Memory for batches: lent to the tensors of one, taken back when the last of them is gone.

    Fresh memory costs a page fault per page, and pinning it costs more; so it is kept.
    """

    def __init__(self, pin_memory: bool) -> None:
        self._pin = pin_memory
        self._free: list[Tensor] = []
        self._lock = threading.RLock()  # a batch may be dropped in the middle of `take`

    def take(self, nbytes: int) -> Tensor:
        """Return at least ``nbytes`` bytes."""
        with self._lock:
            fitting = [one for one in self._free if one.numel() >= nbytes]
            if fitting:
                best = min(fitting, key=Tensor.numel)
                self._free = [one for one in self._free if one is not best]
                return best
            self._free = self._free[-_MOST_SPARE:]
        size = -(-nbytes * 5 // 4 // _GRAIN) * _GRAIN
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)

    def lease(self, buffer: Tensor) -> Any:
        """Return an object with the buffer protocol; ``buffer`` comes back when it is gone."""
        lease = segments.buffer_at(buffer.data_ptr(), buffer.numel())
        weakref.finalize(lease, self._give_back, buffer).atexit = False
        return lease

    def _give_back(self, buffer: Tensor) -> None:
        with self._lock:
            if len(self._free) < _MOST_SPARE:
                self._free.append(buffer)


@dataclass
class _Server:
    """One server's part of the epoch."""

    rank: int
    producer_id: int
    places: dict[int, deque[int]] = field(default_factory=dict)
    """By batch: its places in the epoch's order, more than one where it repeats."""
    to_ask: int = 0
    """Batches that were not asked for."""
    asked: int = 0
    """Fetches under way."""
    ended: bool = True
    """Whether the server has said that the epoch is over."""
    same_memory: bool | None = None
    """Whether its batches can be read where they lie; None: not asked yet."""


class _Fetch:
    """One fetch under way: a `gigl_loader.remote.rpc.Pending`."""

    def __init__(self, channel: "RemoteReceivingChannel", server: _Server, round_: int) -> None:
        self._channel, self._server, self._round = channel, server, round_

    def allocate(self, nbytes: int) -> tuple[memoryview, Any]:
        buffer = self._channel.pool.take(nbytes)
        lease = self._channel.pool.lease(buffer)
        return memoryview(lease).cast("B")[:nbytes], lease

    def done(self, frame: wire.Frame) -> None:
        self._channel.arrived(self._server, self._round, frame)

    def fail(self, error: Exception) -> None:
        self._channel.failed(self._round, error)


class RemoteReceivingChannel(ChannelBase):
    """Receives the batches of one epoch after another from storage servers.

    ::

        next() <-- in order <-- arrived <-- server 0: up to prefetch_size asked for or unread
                                        <-- server 1: the same

    Args:
        server_ranks: Servers that sample, in the order of their stripes.
        producer_ids: On each of them.
        prefetch_size: Batches per server that are asked for and not handed out.
        consumer: This process's number among those that share the producers.
        in_order: Hand batches out in the epoch's order; else as they come.
        timeout_s: Seconds without any batch before a wait is an error.
        pin_memory: Receive into page-locked memory.
        cluster: None: the one that this process has joined.
    """

    def __init__(
        self,
        server_ranks: Sequence[int],
        producer_ids: Sequence[int],
        prefetch_size: int = 4,
        *,
        consumer: int = 0,
        in_order: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        pin_memory: bool = False,
        cluster: Cluster | None = None,
    ) -> None:
        self._cluster = cluster or current_cluster()
        self._servers = [
            _Server(rank, producer)
            for rank, producer in zip(server_ranks, producer_ids, strict=True)
        ]
        self._prefetch, self._consumer, self._in_order = prefetch_size, consumer, in_order
        self._timeout_s = timeout_s
        self._pin = pin_memory
        self.pool = BufferPool(pin_memory)
        self._mappings = Mappings()
        self._changed = threading.Condition()
        self._round = 0
        self._epoch = -1
        self._places: list[_Server] = []
        self._arrived: dict[int, Received] = {}
        self._taken = 0
        self._error: Exception | None = None
        self._last_arrival = 0.0
        self._closed = False

    # -- epochs ---------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, batches: Sequence[tuple[int, int]]) -> None:
        """Begin an epoch on all servers; returns when each has said that it did.

        Args:
            epoch: Which.
            batches: ``(place among the servers, batch)``, in the order of the epoch.

        Raises:
            PeerError: A server or worker failed, or a server did not answer in time. The others
                have been told to stop.
        """
        self._check_open()
        with self._changed:
            self._reset()
            self._epoch = epoch
            by_server: list[list[int]] = [[] for _ in self._servers]
            for place, (number, batch) in enumerate(batches):
                server = self._servers[number]
                self._places.append(server)
                server.places.setdefault(batch, deque()).append(place)
                by_server[number].append(batch)
            for server, wanted in zip(self._servers, by_server, strict=True):
                server.to_ask, server.ended = len(wanted), not wanted
            round_ = self._round
        deadline = time.monotonic() + self._timeout_s  # of all servers together
        self._look_for_same_memory(deadline)
        answers = [
            self._call(
                server, DistServer.start_new_epoch_sampling, server.producer_id, epoch,
                request=EpochRequest(
                    consumer=self._consumer, round=round_,
                    batches=torch.tensor(wanted, dtype=torch.int64),
                ),
            )
            for server, wanted in zip(self._servers, by_server, strict=True)
        ]  # fmt: skip
        try:
            for server, answer in zip(self._servers, answers, strict=True):
                what = f"the start of epoch {epoch} on storage server {server.rank}"
                result_of(answer, deadline - time.monotonic(), what, self._timeout_s)
        except BaseException:
            self.cancel()
            raise
        with self._changed:
            self._last_arrival = time.monotonic()
        for server in self._servers:
            self._ask(server)

    def _look_for_same_memory(self, deadline: float) -> None:
        """Find out, once, whose batches need not travel. Page-locked memory is this side's own."""
        wanted = not self._pin and reads_same_memory()
        asked = [
            (server, self._call(server, DistServer.memory_mark) if wanted else None)
            for server in self._servers
            if server.same_memory is None
        ]
        for server, answer in asked:
            what = f"the way to the memory of storage server {server.rank}"
            left = deadline - time.monotonic()
            server.same_memory = answer is not None and sees(
                result_of(answer, left, what, self._timeout_s)
            )

    def _reset(self) -> None:
        self._round += 1
        self._arrived.clear()
        self._places = []
        self._taken, self._error = 0, None
        for server in self._servers:
            server.places = {}
            server.to_ask = server.asked = 0
            server.ended = True

    def cancel(self) -> None:
        """Break the epoch off; the servers stop sampling for it."""
        with self._changed:
            round_, running = self._round, [s for s in self._servers if not s.ended]
            self._reset()
            self._changed.notify_all()
        for server in running:
            request = EpochRequest(consumer=self._consumer, round=round_)
            with contextlib.suppress(GiglLoaderError):  # a dead server samples nothing
                self._call(server, DistServer.cancel_epoch_sampling, server.producer_id, request)

    def _call(
        self, server: _Server, function: Callable[..., Any], *args: Any, **keywords: Any
    ) -> "Future[Any]":
        return self._cluster.link(server.rank).call(function, *args, **keywords)

    def _ask(self, server: _Server) -> None:
        """Ask for as many batches as may be on their way."""
        with self._changed:
            unread = sum(self._places[place] is server for place in self._arrived)
            count = min(server.to_ask, self._prefetch - server.asked - unread)
            server.to_ask -= max(count, 0)
            server.asked += max(count, 0)
            round_ = self._round
        request = FetchRequest(
            producer_id=server.producer_id, consumer=self._consumer, round=round_,
            same_memory=bool(server.same_memory),
        )  # fmt: skip
        link: ServerLink = self._cluster.link(server.rank)
        for _ in range(count):
            link.request(wire.FETCH, request, _Fetch(self, server, round_))

    # -- called by the links --------------------------------------------------------------------

    def arrived(self, server: _Server, round_: int, frame: wire.Frame) -> None:
        """File an answer; one of a broken-off epoch is dropped."""
        _, about, finished = frame.body
        message: SampleMessage = {}
        if about is not None:
            try:
                message = self._message(server, frame, about[1], about[3])
            except OSError as error:
                self.failed(round_, _unreadable(server, error))
                return
        with self._changed:
            if round_ != self._round:
                return
            server.asked -= 1
            self._last_arrival = time.monotonic()
            server.ended = server.ended or finished
            if about is not None:
                ticket, _, stats, _ = about
                place = server.places[ticket.batch].popleft()
                stats["worker"] = (server.rank, stats.get("worker", 0))
                self._arrived[place] = Received(ticket, message, stats)
            self._check_complete(server, about is not None)
            self._changed.notify_all()

    def _message(
        self, server: _Server, frame: wire.Frame, layout: Layout, place: Place | None
    ) -> SampleMessage:
        """Return the tensors of a batch, over what was received or where the server has it.

        Raises:
            OSError: The server's memory cannot be mapped.
        """
        if place is None:
            return tensors_over(frame.payload, layout) if frame.payload is not None else {}
        link: ServerLink = self._cluster.link(server.rank)
        try:
            buffer = self._mappings.lease(place, partial(link.give_back, frame.request))
        except OSError:
            link.give_back(frame.request)
            raise
        return tensors_over(buffer, layout)

    def _check_complete(self, server: _Server, has_batch: bool) -> None:
        left = sum(len(places) for places in server.places.values())
        if (server.ended and left) or (not has_batch and not server.ended):
            self._error = ProtocolError(
                f"storage server {server.rank} ended epoch {self._epoch} with {left} batches "
                "to come"
            )

    def failed(self, round_: int, error: Exception) -> None:
        """Let the next wait raise ``error``."""
        with self._changed:
            if round_ == self._round and self._error is None:
                self._error = error
                self._changed.notify_all()

    # -- receiving ------------------------------------------------------------------------------

    def next(self, timeout_s: float | None = None) -> Received | None:
        """Return the next batch, or None once every server has said that the epoch is over.

        Raises:
            ServerDiedError: A storage server is gone.
            PeerTimeoutError: No server sent anything for ``timeout_s`` (default: the channel's).
            PeerError: A worker on a server died, or raised; carries its traceback.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        with self._changed:
            while True:
                self._check_open()
                place = self._ready_place()
                if place is not None:
                    received: Received | None = self._arrived.pop(place)
                    self._taken += 1
                    server = self._places[place]
                    break
                if self._error is not None:
                    raise self._error
                self._cluster.raise_if_broken()
                if self._taken == len(self._places) and all(s.ended for s in self._servers):
                    return None
                quiet = time.monotonic() - max(self._last_arrival, started)
                if quiet >= limit:
                    received = None
                    break
                self._changed.wait(min(1.0, limit - quiet))
        if received is None:
            raise self._stalled(limit)  # without the lock: it asks the servers
        self._ask(server)
        return received

    def _ready_place(self) -> int | None:
        if not self._in_order:
            return next(iter(self._arrived), None)
        return self._taken if self._taken in self._arrived else None

    def _stalled(self, limit: float) -> PeerTimeoutError:
        asked = [
            (server, self._call(server, DistServer.describe_workers, server.producer_id))
            for server in self._servers
            if server.asked
        ]
        deadline = time.monotonic() + _DESCRIBE_S  # of all servers together
        texts = []
        for server, answer in asked:
            try:
                state = answer.result(max(0.0, deadline - time.monotonic()))
            except Exception as error:  # the stall is what counts
                why = type(error).__name__
                state = f"does not answer ({why}): its process is stopped or overloaded"
            texts.append(f"storage server {server.rank}: {state}")
        return PeerTimeoutError(
            f"no batch of epoch {self._epoch} came for {limit:.1f} s; waiting for "
            f"{'; '.join(texts) or 'the end of the epoch'}; if a batch really takes that long, "
            "raise `timeout`"
        )

    def ready(self) -> bool:
        """Return whether `next` would not wait."""
        with self._changed:
            ended = self._taken == len(self._places) and all(s.ended for s in self._servers)
            return self._ready_place() is not None or self._error is not None or ended

    @property
    def queue_depth(self) -> int:
        """Batches that have arrived and wait to be taken."""
        return len(self._arrived)

    def recv(self, timeout_s: float | None = None, **_: Any) -> SampleMessage:
        """Return the next message.

        Raises:
            UsageError: The epoch is over.
            PeerError: As for `next`.
        """
        received = self.next(timeout_s)
        if received is None:
            raise UsageError("recv past the end of the epoch: start the next one first")
        return received.message

    def send(self, msg: SampleMessage, **_: Any) -> None:
        """Refuse: this is the receiving end."""
        raise UsageError("a RemoteReceivingChannel only receives")

    def empty(self) -> bool:
        """Return whether nothing has arrived."""
        return not self._arrived

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the channel is closed: the loader was shut down")

    def close(self) -> None:
        """Wake whoever waits, and drop what has arrived. Idempotent."""
        with self._changed:
            self._closed = True
            self._reset()
            self._changed.notify_all()
        self._mappings.close()


def _unreadable(server: _Server, error: OSError) -> PeerError:
    return PeerError(
        f"a batch of storage server {server.rank} cannot be mapped from its memory: {error}; this "
        "machine is short of memory or of address space, or the server has just ended"
    )
