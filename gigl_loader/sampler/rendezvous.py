"""Where sampling workers agree on addresses before they talk: a board on one of the ranks.

One rank hosts the board, a `PeerServer`; all publish values under a key and gather those of the
others. Values are bytes of the caller's own format. Who reads or writes has proved to know the
token. A wait asks the board again and again, each time for a moment, so that a failure of any rank
ends it, and a host that is stopped or gone does too.

(torch's ``TCPStore`` would do much of this, but that it listens on all interfaces, lets everybody
write, and up to torch 2.6 ends the process now and then when two threads use one: pytorch#143593.)
"""

import contextlib
import ipaddress
import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterable
from types import TracebackType

import numpy as np

from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    UsageError,
)
from gigl_loader.memory.segments import Array
from gigl_loader.sampler._peer_wire import bytes_of
from gigl_loader.sampler.peers import PeerAddress, PeerPool, PeerServer

_log = logging.getLogger(__name__)

_SHORTEST_NAP_S, _LONGEST_NAP_S = 0.005, 0.25
_REPORT_EVERY_S = 5.0
_MOMENT_S = 0.25  # how long the board lets one question wait
_BOARD_ANSWERS_S = 10.0  # how long it may take for one question
_LINGER_S = 5.0  # how long the host keeps the board for ranks that still read

_SET, _GET, _FAIL = 1, 2, 3
_THERE, _MISSING, _FAILED = 0, 1, 2


class _Board:
    """The values, on the hosting rank."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._failure: bytes | None = None  # of the first rank to fail

    def answer(self, op: int, args: tuple[int, ...], arrays: list[Array]) -> list[Array]:
        """Do what a rank asks for; see `Rendezvous._ask`."""
        texts = [bytes(bytes_of(array)) for array in arrays]
        with self._changed:
            if op == _GET:
                return self._get(texts[0].decode().split("\n"), args[0] / 1e3)
            if op == _SET:
                self._values[texts[0].decode()] = texts[1]
            elif op == _FAIL:
                self._failure = self._failure or texts[0]
            else:
                raise ProtocolError(f"unknown operation {op} at a rendezvous")
            self._changed.notify_all()
            return []

    def _get(self, keys: list[str], wait_s: float) -> list[Array]:
        self._changed.wait_for(lambda: self._failure is not None or self._has(keys), wait_s)
        if self._has(keys):
            values = [self._values[key] for key in keys]
            sizes = np.array([len(value) for value in values], np.int64)
            return [_word(_THERE), sizes, _as_array(b"".join(values))]
        if self._failure is not None:
            return [_word(_FAILED), _as_array(self._failure)]
        return [_word(_MISSING), np.array(self._missing(keys))]

    def missing(self, keys: list[str], wait_s: float) -> list[int]:
        """Return the numbers of the keys that are not there after ``wait_s``, failures or not."""
        with self._changed:
            self._changed.wait_for(lambda: self._has(keys), wait_s)
            return self._missing(keys)

    def _missing(self, keys: list[str]) -> list[int]:
        return [number for number, key in enumerate(keys) if key not in self._values]

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)


class Rendezvous:
    """Values of all ranks by key, with deadlines, and failures that reach every rank.

    Args:
        host: Machine of the hosting rank, as all ranks reach it.
        port: Its port; 0 on the hosting rank: one that the system picks, see ``port``.
        rank: This rank, in ``[0, world_size)``.
        world_size: Number of ranks.
        timeout_s: Longest wait for the board to come up, and of each ``gather`` or ``wait_for``.
        is_master: Whether this rank hosts the board.
        token: A secret of the ranks.

    Raises:
        ConfigError: A value is out of range, or the port is taken; nothing was started.
        PeerTimeoutError: The board did not come up in time.
        JoinRefusedError: Its host has another token.
        PeerError: What answers on that port is no board.
    """

    def __init__(
        self,
        host: str,
        port: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        is_master: bool,
        token: bytes = b"",
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in [0, {world_size}), got {rank}")
        if timeout_s <= 0 or not (0 <= port < 1 << 16) or (port == 0 and not is_master):
            raise ConfigError(f"no rendezvous on port {port} with timeout_s={timeout_s!r}")
        self._host, self._rank, self._world_size = host, rank, world_size
        self._timeout_s, self._is_master = timeout_s, is_master
        self._closed = False
        self._where = f"the rendezvous at {host}:{port}"
        self._token = token
        self._board: _Board | None = None
        self._server: PeerServer | None = None
        self._pool: PeerPool | None = None
        self.port = port
        if is_master:
            self._host_board()
        else:
            self._find_board(time.monotonic() + timeout_s)

    def publish(self, key: str, value: bytes) -> None:
        """Make ``value`` this rank's value of ``key``. A key belongs to one gathering: use it once.

        Raises:
            PeerError: The board is gone.
            UsageError: This rendezvous is closed.
        """
        self._ask(key, _SET, [_key(key, self._rank).encode(), value])

    def gather(self, key: str, ranks: Iterable[int]) -> list[bytes]:
        """Return the values that ``ranks`` published under ``key``, in their order.

        Raises:
            PeerTimeoutError: Some of ``ranks`` did not publish in time; it names them.
            PeerError: A rank called ``fail``, with its text; or the board is gone.
            UsageError: This rendezvous is closed.
        """
        wanted = list(ranks)
        start = time.monotonic()
        report = start + _REPORT_EVERY_S
        while wanted:
            left = max(0.0, start + self._timeout_s - time.monotonic())
            found = self._look(key, wanted, min(_MOMENT_S, left))
            if isinstance(found[0], bytes):
                return [value for value in found if isinstance(value, bytes)]
            now = time.monotonic()
            if now - start >= self._timeout_s:
                raise PeerTimeoutError(
                    f"rank {self._rank} waited {self._timeout_s:g} s at {self._where} for {key!r} "
                    f"of ranks {found}: they died before they got there, or are slow to start; "
                    "see their logs, or raise the timeout"
                )
            if now >= report:
                report = now + _REPORT_EVERY_S
                _log.info(
                    "rank %d waits since %.0f s at %s for %r of ranks %s",
                    self._rank, now - start, self._where, key, found,
                )  # fmt: skip
        return []

    def _look(self, key: str, ranks: list[int], wait_s: float) -> list[bytes] | list[int]:
        """Return the values of ``ranks``, or those of them that have not published theirs.

        Raises:
            PeerError: As for `gather`.
        """
        keys = "\n".join(_key(key, rank) for rank in ranks)
        state, *found = self._ask(key, _GET, [keys.encode()], round(1e3 * wait_s))
        if int(state[0]) == _MISSING:
            return [ranks[number] for number in found[0].tolist()]
        if int(state[0]) == _FAILED:
            rank, _, reason = bytes(bytes_of(found[0])).decode(errors="replace").partition("\n")
            raise PeerError(
                f"rank {rank} failed while rank {self._rank} waited for {key!r} at {self._where}: "
                f"{reason}"
            )
        sizes, values = found[0].tolist(), bytes(bytes_of(found[1]))
        ends = np.cumsum([0, *sizes]).tolist()
        return [values[start:end] for start, end in itertools.pairwise(ends)]

    def wait_for(self, key: str, rank: int = 0) -> bytes:
        """Return the value that ``rank`` published under ``key``.

        Raises:
            PeerTimeoutError, PeerError, UsageError: As for `gather`.
        """
        return self.gather(key, [rank])[0]

    def fail(self, reason: str) -> None:
        """Tell all ranks that this one cannot go on: their waits raise at once, with ``reason``.

        The first failure stands. Does nothing where the board is gone already.
        """
        text = f"{self._rank}\n{reason}".encode(errors="replace")
        with contextlib.suppress(PeerError, UsageError):
            self._ask("fail", _FAIL, [text])

    def close(self) -> None:
        """Leave. The hosting rank first waits, at most 5 s, for the ranks that have not left."""
        if self._closed:
            return
        try:
            self.publish("left", b"")
            if self._board is not None:
                self._linger()
        except PeerError as error:
            _log.debug("rank %d left %s: %s", self._rank, self._where, error)
        finally:
            self._release()

    def _release(self) -> None:
        self._closed = True
        for part in (self._pool, self._server):
            if part is not None:
                part.close()

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

    def _host_board(self) -> None:
        self._board = _Board()
        name = f"the rendezvous of rank {self._rank}"
        where = _interface_of(self._host, self._where)
        try:
            self._server = PeerServer(where, self._token, self._board.answer, name, self.port)
        except ConfigError as error:
            raise ConfigError(f"{self._where} cannot start: {error}") from error
        self.port = self._server.address[1]
        self._where = f"the rendezvous at {self._host}:{self.port}"
        self._server.start()

    def _find_board(self, deadline: float) -> None:
        self._await_listener(self.port, deadline)
        address = PeerAddress(self._host, self.port, "the rendezvous of rank 0")
        limit_s = min(_BOARD_ANSWERS_S, max(1.0, deadline - time.monotonic()))
        self._pool = PeerPool({0: (address,)}, self._token, limit_s, f"rank {self._rank}", 0)
        try:
            self._look("here", [self._rank], 0.0)  # it answers, and as a board
        except BaseException:
            self._release()
            raise

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

    def _linger(self) -> None:
        assert self._board is not None
        keys = [_key("left", rank) for rank in range(self._world_size)]
        if missing := self._board.missing(keys, _LINGER_S):
            _log.info("%s ends although ranks %s have not left", self._where, missing)

    def _ask(self, doing: str, op: int, texts: list[bytes], *args: int) -> list[Array]:
        """Put one question to the board.

        Raises:
            PeerTimeoutError, PeerError: It did not answer, or is gone.
            UsageError: This rendezvous is closed.
        """
        if self._closed:
            raise UsageError(f"{self._where} is closed on rank {self._rank}: no {doing!r} any more")
        arrays = [_as_array(text) for text in texts]
        if self._board is not None:
            return self._board.answer(op, args, arrays)
        assert self._pool is not None
        try:
            return self._pool.call(0, op, args, arrays).wait()
        except JoinRefusedError:
            raise
        except PeerTimeoutError as error:
            raise PeerTimeoutError(
                f"{self._where} did not answer rank {self._rank} ({doing!r}): the process of rank "
                f"0 is stopped or cut off, or something else has that port; look at it ({error})"
            ) from error
        except PeerError as error:
            raise PeerError(
                f"{self._where} is gone for rank {self._rank} ({doing!r}): the process of rank 0 "
                f"has ended: see its log ({error})"
            ) from error


def _key(key: str, rank: int) -> str:
    return f"{key}/{rank}"


def _as_array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _word(value: int) -> Array:
    return np.array([value])


def _interface_of(host: str, where: str) -> str:
    """Return the address to listen on: ``host``, where that is an address of this machine.

    Else all of them: a name may stand for loopback on its own machine (``/etc/hosts``), and for
    something between the machines (a service of Kubernetes) everywhere.
    """
    try:
        found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror as error:
        raise ConfigError(f"{where}: the host has no address ({error})") from error
    is_a_name = found != host and host != "localhost"
    if is_a_name and ipaddress.ip_address(found).is_loopback:
        return "::" if ":" in found else "0.0.0.0"
    with socket.socket(socket.AF_INET6 if ":" in found else socket.AF_INET) as probe:
        try:
            probe.bind((found, 0))
        except OSError:
            return "::" if ":" in found else "0.0.0.0"
    return found
