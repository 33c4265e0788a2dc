"""Where sampling workers agree on addresses before they talk: a key-value store on one of them.

One rank hosts a ``torch.distributed.TCPStore``; all publish values under a key and gather those of
the others. Values are bytes of the caller's own format. Waits poll, since a blocking ``get`` would
hear of another rank's failure only when its own time is up.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gigl_loader.errors import ConfigError, PeerError, PeerTimeoutError, UsageError

_log = logging.getLogger(__name__)

_FAILURE = "failure"  # first rank to fail, and why
_SHORTEST_NAP_S, _LONGEST_NAP_S = 0.005, 0.25
_REPORT_EVERY_S = 5.0
_STORE_ANSWERS_S = 10.0  # how long the store may take for one small question
_LINGER_S = 5.0  # how long the host keeps the store for ranks that still read

_T = TypeVar("_T")


class Rendezvous:
    """Values of all ranks by key, with deadlines, and failures that reach every rank.

    Args:
        host: Machine of the hosting rank, as all ranks reach it.
        port: Its port; 0 on the hosting rank: one that the system picks, see ``port``.
        rank: This rank, in ``[0, world_size)``.
        world_size: Number of ranks.
        timeout_s: Longest wait for the store to come up, and of each ``gather`` or ``wait_for``.
        is_master: Whether this rank hosts the store.

    Raises:
        ConfigError: A value is out of range, or the port is taken; nothing was started.
        PeerTimeoutError: The store did not come up in time.
        PeerError: What answers on that port is no store.
    """

    def __init__(
        self, host: str, port: int, rank: int, world_size: int, timeout_s: float, is_master: bool
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in [0, {world_size}), got {rank}")
        if timeout_s <= 0 or not (0 <= port < 1 << 16) or (port == 0 and not is_master):
            raise ConfigError(f"no rendezvous on port {port} with timeout_s={timeout_s!r}")
        self._host, self._rank, self._world_size = host, rank, world_size
        self._timeout_s, self._is_master = timeout_s, is_master
        self._closed = False
        self._where = f"the rendezvous at {host}:{port}"
        self._store: TCPStore | None = self._open(port)
        self.port: int = self._store.port
        self._where = f"the rendezvous at {host}:{self.port}"

    def publish(self, key: str, value: bytes) -> None:
        """Make ``value`` this rank's value of ``key``. A key belongs to one gathering: use it once.

        Raises:
            PeerError: The store is gone.
            UsageError: This rendezvous is closed.
        """
        self._put(_key(key, self._rank), value)

    def gather(self, key: str, ranks: Iterable[int]) -> list[bytes]:
        """Return the values that ``ranks`` published under ``key``, in their order.

        Raises:
            PeerTimeoutError: Some of ``ranks`` did not publish in time; it names them.
            PeerError: A rank called ``fail``, with its text; or the store is gone.
            UsageError: This rendezvous is closed.
        """
        wanted = list(ranks)
        keys = [_key(key, rank) for rank in wanted]
        if not keys:
            return []
        self._await(key, keys, wanted)
        return [bytes(value) for value in self._ask(key, lambda store: store.multi_get(keys))]

    def wait_for(self, key: str, rank: int = 0) -> bytes:
        """Return the value that ``rank`` published under ``key``.

        Raises:
            PeerTimeoutError, PeerError, UsageError: As for `gather`.
        """
        return self.gather(key, [rank])[0]

    def fail(self, reason: str) -> None:
        """Tell all ranks that this one cannot go on: their waits raise at once, with ``reason``.

        The first failure stands. Does nothing where the store is gone already.
        """
        text = f"{self._rank}\n{reason}"
        with contextlib.suppress(PeerError, UsageError):
            self._ask("fail", lambda store: store.compare_set(_FAILURE, "", text))

    def close(self) -> None:
        """Leave. The hosting rank first waits, at most 5 s, for the ranks that have not left."""
        if self._closed:
            return
        try:
            self._put(_key("left", self._rank), b"1", limit_s=1.0)
            if self._is_master:
                self._linger()
        except PeerError as error:
            _log.debug("rank %d left %s: %s", self._rank, self._where, error)
        finally:
            self._closed = True
            self._store = None  # the last reference: the port is free from here on

    def __enter__(self) -> "Rendezvous":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(f"{type(error).__name__}: {error}")
        self.close()

    def _open(self, port: int) -> TCPStore:
        deadline = time.monotonic() + self._timeout_s
        if not self._is_master:
            self._await_listener(port, deadline)
        left = max(1.0, deadline - time.monotonic())

        def build() -> TCPStore:
            store = TCPStore(
                self._host,
                port,
                self._world_size,
                self._is_master,
                timedelta(seconds=left),
                wait_for_workers=False,
            )
            store.check([_FAILURE])  # torch 2.4 takes any listener for a store until it is asked
            return store

        try:
            return _bounded(build, left + 1.0)
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"{self._where} did not answer rank {self._rank} within {self._timeout_s:g} s: its "
                "process is stopped, or another program has that port; look at rank 0's log"
            ) from error
        except RuntimeError as error:  # torch's DistNetworkError is one
            if "EADDRINUSE" in str(error) or "ddress already in use" in str(error):
                raise ConfigError(
                    f"{self._where} cannot start: port {port} is taken on this machine by another "
                    "program or another run; give another port (master_port of the worker "
                    "options), or end that run"
                ) from error
            raise PeerError(
                f"{self._where} cannot be opened by rank {self._rank}: {_first_line(error)}; "
                "check the host, and that no other program has that port"
            ) from error

    def _await_listener(self, port: int, deadline: float) -> None:
        """Wait until something listens; quieter than the store's own attempts, and on time."""
        nap, report = _SHORTEST_NAP_S, time.monotonic() + _REPORT_EVERY_S
        while True:
            left = deadline - time.monotonic()
            try:
                socket.create_connection((self._host, port), max(0.001, min(left, 2.0))).close()
                return
            except socket.gaierror as error:
                raise ConfigError(
                    f"{self._where}: the host has no address ({error}); give rank 0's address"
                ) from error
            except OSError as error:
                if left <= 0:
                    raise PeerTimeoutError(
                        f"{self._where} did not come up within {self._timeout_s:g} s (rank "
                        f"{self._rank} tried; last: {error}): rank 0 did not start, or a firewall "
                        "is between; see its log, and check the address"
                    ) from error
            if time.monotonic() >= report:
                report += _REPORT_EVERY_S
                _log.info("rank %d waits for %s to come up", self._rank, self._where)
            time.sleep(max(0.0, min(nap, left)))
            nap = min(2 * nap, _LONGEST_NAP_S)

    def _await(self, key: str, keys: list[str], ranks: list[int]) -> None:
        """Return once all of ``keys`` are there; ``ranks`` are their owners."""
        start = time.monotonic()
        nap, report = _SHORTEST_NAP_S, start + _REPORT_EVERY_S
        while not self._ask(key, lambda store: store.check(keys)):
            self._raise_failure(key)
            now = time.monotonic()
            if now - start >= self._timeout_s:
                raise PeerTimeoutError(
                    f"rank {self._rank} waited {self._timeout_s:g} s at {self._where} for {key!r} "
                    f"of ranks {self._missing(key, keys, ranks)}: they died before they got "
                    "there, or are slow to start; see their logs, or raise the timeout"
                )
            if now >= report:
                report = now + _REPORT_EVERY_S
                _log.info(
                    "rank %d waits since %.0f s at %s for %r of ranks %s",
                    *(self._rank, now - start, self._where, key),
                    self._missing(key, keys, ranks),
                )
            time.sleep(min(nap, max(0.0, start + self._timeout_s - now)))
            nap = min(2 * nap, _LONGEST_NAP_S)

    def _missing(self, key: str, keys: list[str], ranks: list[int]) -> list[int]:
        return [
            rank
            for name, rank in zip(keys, ranks, strict=True)
            if not self._ask(key, lambda store, name=name: store.check([name]))  # type: ignore[misc]
        ]

    def _raise_failure(self, doing: str) -> None:
        if not self._ask(doing, lambda store: store.check([_FAILURE])):
            return
        text = bytes(self._ask(doing, lambda store: store.get(_FAILURE))).decode(errors="replace")
        rank, _, reason = text.partition("\n")
        raise PeerError(
            f"rank {rank} failed while rank {self._rank} waited for {doing!r} at {self._where}: "
            f"{reason}"
        )

    def _linger(self) -> None:
        keys = [_key("left", rank) for rank in range(self._world_size)]
        deadline, nap = time.monotonic() + _LINGER_S, _SHORTEST_NAP_S
        while not self._ask("leave", lambda store: store.check(keys)):
            if time.monotonic() >= deadline:
                ranks = self._missing("leave", keys, list(range(self._world_size)))
                _log.info("%s ends although ranks %s have not left", self._where, ranks)
                return
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)

    def _put(self, key: str, value: bytes, limit_s: float | None = None) -> None:
        self._ask(key, lambda store: store.set(key, value), limit_s)  # type: ignore[arg-type]

    def _ask(
        self, doing: str, question: Callable[[TCPStore], _T], limit_s: float | None = None
    ) -> _T:
        """Put one small question to the store, which would wait for a stopped host for ever."""
        store, limit_s = self._store, limit_s or _STORE_ANSWERS_S
        if store is None:
            raise UsageError(f"{self._where} is closed on rank {self._rank}: no {doing!r} any more")
        try:
            return _bounded(lambda: question(store), limit_s)
        except TimeoutError as error:
            self._closed, self._store = True, None  # a thread is stuck in it
            raise PeerTimeoutError(
                f"{self._where} did not answer rank {self._rank} ({doing!r}) for "
                f"{limit_s:g} s: the process of rank 0 is stopped or cut off; look at it"
            ) from error
        except RuntimeError as error:  # torch's DistError is one
            raise PeerError(
                f"{self._where} is gone for rank {self._rank} ({doing!r}): {_first_line(error)}; "
                "the process of rank 0 has ended: see its log"
            ) from error


def _key(key: str, rank: int) -> str:
    return f"{key}/{rank}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _bounded(question: Callable[[], _T], limit_s: float) -> _T:
    """Return ``question()``, run in a daemon thread that is left behind after ``limit_s``.

    Raises:
        TimeoutError: It took longer.
        Exception: What ``question`` raised.
    """
    answers: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="rendezvous", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer in {limit_s:g} s")
    return answers[0]
