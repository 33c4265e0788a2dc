"""How processes that sample together agree, before their workers talk to each other.

Each process publishes values under keys and gathers those of the others; a failure of one ends the
waits of all, with its reason. Ranks of a training job meet in the store of their process group
(`StoreRendezvous`). Storage servers meet at the first of them, over connections that may be
encrypted (`gigl_loader.graph_store.server.rendezvous_host`). A process that is alone has nothing
to agree on and no rendezvous.

Values are bytes in a format that the caller chooses. Nothing is unpickled.
"""

import contextlib
import logging
import queue
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import msgspec
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from gigl_loader.errors import PeerError, PeerTimeoutError, UsageError
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.ranks.collectives import broadcast_value
from gigl_loader.runtime.threads import fulfil, start_aside

_log = logging.getLogger(__name__)
T = TypeVar("T")

_SHORTEST_NAP_S, _LONGEST_NAP_S = 0.002, 0.1
"""Seconds between two looks. Ranks mostly come within milliseconds of each other; at 100 ms,
hundreds of ranks that wait for one do not load the store."""
_NAP_PER_RANK_S = 1e-4
"""Thousands of ranks look less often: a store serves some ten thousand requests a second."""
_REPORT_EVERY_S = 10.0
_STORE_ANSWERS_S = 10.0
"""Longest wait for one response of the store if no outage is allowed: the process that hosts it
may be stopped, or the link to it cut."""
_LEAVE_S = 1.0
"""Longest wait for the store when leaving: its host may have ended already, in good order."""
_GRACE_S = 1.0
"""How much longer ranks wait for rank 0's result: its failure names the missing ranks."""
_FAILED, _LEFT = "failed", "left"


class Rendezvous(ABC):
    """Values of all ranks by key, with deadlines, and failures that reach every rank.

    Each rank that has a value for a key publishes it once.

    Args:
        rank: This process, in ``[0, world_size)``: a rank of the training job, or the position of a
            storage server among those that meet.
        world_size: Number of processes that meet.
        timeout_s: Longest wait of each `gather`, `wait_for` and `agree`, in seconds.
    """

    def __init__(self, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank, self.world_size, self._timeout_s = rank, world_size, timeout_s

    @abstractmethod
    def publish(self, key: str, value: bytes) -> None:
        """Make ``value`` this rank's value of ``key``.

        Raises:
            PeerError: The process that keeps the values is gone.
            UsageError: The rendezvous is closed.
        """

    @abstractmethod
    def gather(self, key: str, ranks: Iterable[int], more_s: float = 0.0) -> list[bytes]:
        """Return the values that ``ranks`` published under ``key``, in their order.

        Args:
            key: The key.
            ranks: Ranks of the values.
            more_s: How much longer than ``timeout_s`` to wait.

        Raises:
            PeerTimeoutError: Some ranks, which it names, did not publish in time.
            PeerError: A rank called `fail`, or the process that keeps the values is gone.
            UsageError: The rendezvous is closed.
        """

    def wait_for(self, key: str, rank: int = 0) -> bytes:
        """Return the value that ``rank`` published under ``key``.

        Raises:
            PeerTimeoutError, PeerError, UsageError: As for `gather`.
        """
        return self.gather(key, [rank])[0]

    def agree(self, key: str, value: T, kind: Any) -> list[T]:
        """Return the ``value`` of each rank for ``key``, by rank; all ranks have to call it.

        Rank 0 gathers, and the others take its result as one value, so each of them sends only a
        few requests. With a request for each value of each rank, thousands of ranks would keep the
        process that holds the values busy for minutes.

        Args:
            key: The key.
            value: This rank's value, which msgspec can encode.
            kind: Type of the value, such as ``tuple[str, bytes]``; the same on all ranks.

        Raises:
            PeerTimeoutError, PeerError, UsageError: As for `gather`.
        """
        self.publish(key, msgspec.msgpack.encode(value))
        together = f"{key} of all"
        if self.rank == 0:
            values = self.gather(key, range(self.world_size))
            self.publish(together, msgspec.msgpack.encode(values))
        else:
            # longer, because the failure of rank 0 names the missing ranks
            (data,) = self.gather(together, [0], _GRACE_S)
            values = msgspec.msgpack.decode(data, type=analysed(list[bytes]))
        return [msgspec.msgpack.decode(encoded, type=analysed(kind)) for encoded in values]

    @abstractmethod
    def fail(self, words: str) -> None:
        """Tell all ranks that this one cannot continue: their waits raise, with ``words``.

        Returns without an error if the process that keeps the values is gone already.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave. Idempotent; never raises."""


def meet_ranks(timeout_s: float, outage_s: float = 0.0) -> "StoreRendezvous | None":
    """Return a rendezvous of the process group's ranks; None if this process is alone.

    All ranks have to call it. The rendezvous of each call shares no key with any other.

    Args:
        timeout_s: Longest wait, in seconds, of each `Rendezvous.gather` and `Rendezvous.wait_for`.
        outage_s: How long the link to the store may be cut meanwhile.

    Raises:
        PeerError: The process group broke.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    name = broadcast_value(secrets.token_hex(8), dist.get_world_size(), str)
    # the store that the process group was created with, for which torch has no public name
    store = PrefixStore(f"gigl_loader/{name}", _get_default_store())
    return StoreRendezvous(store, dist.get_rank(), dist.get_world_size(), timeout_s, outage_s)


class StoreRendezvous(Rendezvous):
    """A `Rendezvous` in a ``torch.distributed`` store.

    The store is polled, so that a failure is seen while a value is waited for. A separate thread
    does so, since no call to a store returns whose host is stopped.

    Args:
        store: Store shared by all ranks, with a prefix that no other rendezvous has.
        rank: This rank, in ``[0, world_size)``.
        world_size: Number of ranks.
        timeout_s: Longest wait of each `gather` and `wait_for`, in seconds.
        outage_s: How many seconds the store may be out of reach; at least 10 are allowed.
        answers_s: Longest wait for the store; None: these 10 s.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        timeout_s: float,
        outage_s: float = 0.0,
        *,
        answers_s: float | None = None,
    ) -> None:
        super().__init__(rank, world_size, timeout_s)
        # its connection continues once packets pass again: no request has to be repeated
        self._answers_s = max(_STORE_ANSWERS_S if answers_s is None else answers_s, outage_s)
        self._store = store
        self._keys: set[str] = set()
        self._closed = False
        self._calls = _Calls(f"rank {rank} meets others")

    def publish(self, key: str, value: bytes) -> None:
        """Make ``value`` this rank's value of ``key``; see `Rendezvous.publish`."""
        self._keys.add(key)  # the last rank to leave removes them; all ranks know the same keys
        self._ask(lambda: _set(self._store, _of(key, self.rank), value), f"publish {key!r}")

    def gather(self, key: str, ranks: Iterable[int], more_s: float = 0.0) -> list[bytes]:
        """Return the values that ``ranks`` published under ``key``; see `Rendezvous.gather`."""
        wanted, limit_s = list(ranks), self._timeout_s + more_s
        self._keys.add(key)
        start = time.monotonic()
        report, nap, doing = start + _REPORT_EVERY_S, _SHORTEST_NAP_S, f"gather {key!r}"
        while True:
            values = self._ask(lambda: self._look(key, wanted), doing)
            if values is not None:
                return values
            now = time.monotonic()
            if now - start >= limit_s:
                missing = self._ask(lambda: self._missing(key, wanted), doing)
                raise PeerTimeoutError(
                    f"rank {self.rank} waited {limit_s:g} s for {key!r} of ranks "
                    f"{missing}: they died before they got there, or are slow to start; see "
                    "their logs, or raise the timeout"
                )
            if now >= report:
                report = now + _REPORT_EVERY_S
                missing = self._ask(lambda: self._missing(key, wanted), doing)
                _log.info(
                    "rank %d has waited %.0f s for %r of ranks %s",
                    self.rank,
                    now - start,
                    key,
                    missing,
                )
            time.sleep(min(nap, max(0.0, start + limit_s - now)))
            nap = min(2 * nap, max(_LONGEST_NAP_S, _NAP_PER_RANK_S * self.world_size))

    def missing(self, key: str, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that have not published a value of ``key``.

        Raises:
            PeerTimeoutError, PeerError, UsageError: As for `gather`.
        """
        self._keys.add(key)
        wanted = list(ranks)
        return self._ask(lambda: self._missing(key, wanted), f"look for {key!r}")

    def fail(self, words: str) -> None:
        """Make the waits of all ranks raise, with ``words``; the first failure seen stands."""
        text = f"{self.rank}\n{words}".encode(errors="replace")

        # another rank may fail between the check and the write: then one of the two stands
        def tell() -> None:
            if not self._store.check([_FAILED]):
                _set(self._store, _FAILED, text)

        with contextlib.suppress(PeerError, UsageError):
            self._ask(tell, "tell of a failure", _STORE_ANSWERS_S)

    def close(self) -> None:
        """Leave; the last rank to leave removes the published values. Idempotent, never raises."""
        if self._closed:
            return
        with contextlib.suppress(PeerError):
            self._ask(self._leave, "leave", _LEAVE_S)
        self._closed = True
        self._calls.close()

    def _leave(self) -> None:
        # the store adds in one step, so exactly one rank finds that it is the last
        if self._store.add(_LEFT, 1) < self.world_size:
            return
        for name in (_of(key, rank) for key in self._keys for rank in range(self.world_size)):
            self._store.delete_key(name)
        self._store.delete_key(_FAILED)
        self._store.delete_key(_LEFT)

    def _look(self, key: str, ranks: list[int]) -> list[bytes] | None:
        """Return the values; None if some are not there yet.

        Raises:
            PeerError: A rank failed. Values that are there are taken anyway: that rank may have
                failed at a later step, which this one learns when it gets there.
        """
        names = [_of(key, rank) for rank in ranks]
        # `get` alone would wait for minutes, in which a failure of another rank is not seen
        if not names or self._store.check(names):
            return [self._store.get(name) for name in names]
        # checked again: that rank may have published, continued and failed since the check above
        if self._store.check([_FAILED]) and not self._store.check(names):
            rank, _, words = self._store.get(_FAILED).decode(errors="replace").partition("\n")
            raise PeerError(
                f"rank {rank} failed while rank {self.rank} waited for {key!r} of other ranks: "
                f"{words}"
            )
        return None

    def _missing(self, key: str, ranks: list[int]) -> list[int]:
        """Return the ranks that have not published their values."""
        return [rank for rank in ranks if not self._store.check([_of(key, rank)])]

    def _ask(self, call: Callable[[], T], doing: str, limit_s: float | None = None) -> T:
        """Let the thread do ``call``; wait ``limit_s`` seconds, or as long as an outage may last.

        Raises:
            PeerTimeoutError, PeerError: The store did not respond, or is gone.
            UsageError: This rendezvous is closed.
        """
        if self._closed:
            raise UsageError(f"the rendezvous is closed on rank {self.rank}: cannot {doing}")
        limit_s = self._answers_s if limit_s is None else limit_s
        try:
            return self._calls.do(call, limit_s)
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"the process group's store did not answer rank {self.rank} within {limit_s:g} s "
                f"({doing}): the process that hosts it, rank 0 or torchrun's, is stopped or cut off"
            ) from error
        except RuntimeError as error:  # the base of all errors of torch.distributed
            if isinstance(error, PeerError):  # of `_look`; it is a RuntimeError, too
                raise
            raise PeerError(
                f"the process group's store is gone for rank {self.rank} ({doing}): {error}; the "
                "process that hosts it, rank 0 or torchrun's, has ended: see its log"
            ) from error


class _Calls:
    """Does calls one after another in a daemon thread, so that a wait has a deadline.

    With an executor of `concurrent.futures` the process would wait at its end for a call to which
    the store never responds.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        # each call's error goes to its caller
        start_aside(name, self._run)

    def do(self, call: Callable[[], T], limit_s: float) -> T:
        """Return the result of ``call``, or raise its error; TimeoutError: it takes longer."""
        # A call that takes too long still holds the thread: later ones wait behind it, each no
        # longer than its own limit.
        future: Future[T] = Future()
        self._queue.put((future, call))
        return future.result(limit_s)

    def close(self) -> None:
        """Let the thread end, unless a call holds it."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            fulfil(*item)  # any error goes to the caller; the thread continues


def _set(store: Store, key: str, value: bytes) -> None:
    store.set(key, cast("str", value))  # it takes bytes unchanged; only its stub says str


def _of(key: str, rank: int) -> str:
    return f"{key}/{rank}"
