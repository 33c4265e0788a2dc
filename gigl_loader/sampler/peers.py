"""Questions between sampling workers of different partitions, over TCP.

A worker serves its partition with a `PeerServer` and asks the other partitions through a
`PeerPool`. A question is an operation number, a few integers and some arrays; the answer is some
arrays. Their bytes go from the sender's array into the receiver's, with no copy between::

    thread of worker A --(own connection)--> thread of worker B's server --> handler(op, args, ...)
          call() ------------------------------------------------------------------>
          call() ------------------------------------------------------------------>
          Call.wait() <------------------------------------------------- reply or error

Both ends prove that they know the job's token first, and nothing from the network is unpickled.
"""

import contextlib
import logging
import socket
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
    UsageError,
)
from gigl_loader.memory.segments import Array
from gigl_loader.sampler import _peer_wire as wire

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0  # how long a stranger may take to prove that it belongs here
_BYE_S = 5.0  # for all goodbyes together; one peer gets a fifth of it
_JOIN_S = 1.0  # how long close() waits for the threads

Handler = Callable[[int, tuple[int, ...], list[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a worker's `PeerServer` listens, and what to call that worker in errors."""

    host: str
    port: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} at {self.host}:{self.port}"


class PeerServer:
    """Answers the questions of other workers, each connection in its own daemon thread.

    A client that is slow to read is waited for as long as its machine lives; ``close`` ends it.

    Args:
        host: Address to listen on.
        token: The job's secret; clients that do not know it are dropped and logged.
        handler: Called with the operation, its integers and its arrays, from many threads at
            once; what it raises travels to the client.
        name: This worker, for logs.
        port: Where to listen; 0: on a port that the system picks.

    Raises:
        ConfigError: ``host`` is no address of this machine, or the port is taken.
        PeerError: The system has no port or no socket left.
    """

    def __init__(self, host: str, token: bytes, handler: Handler, name: str, port: int = 0) -> None:
        self._token, self._handler, self._name = token, handler, name
        self._changed = threading.Condition()  # guards all that follows
        self._closed = False
        self._streams: dict[wire.Stream, threading.Thread] = {}
        self._open: Counter[str] = Counter()  # connections by client; 0: it was here and left
        self._byes: set[str] = set()
        self._listener = wire.listen(host, name, port)
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self._acceptor = threading.Thread(
            target=self._accept, name=f"{name} accepts peers", daemon=True
        )

    def start(self) -> None:
        """Accept and answer from now on, in daemon threads.

        Raises:
            UsageError: Started twice, or closed.
        """
        with self._changed:
            if self._closed or self._acceptor.ident is not None:
                raise UsageError(f"the peer server of {self._name} was already started or closed")
            self._acceptor.start()

    def wait_for_byes(self, names: set[str], timeout_s: float) -> set[str]:
        """Wait until each of ``names`` said goodbye, or came and has no connection left.

        Returns:
            Those that are still missing after ``timeout_s`` seconds, or when this closes.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                gone = {name for name, count in self._open.items() if not count}
                missing = names - self._byes - gone
                left = deadline - time.monotonic()
                if not missing or left <= 0 or self._closed:
                    return missing
                self._changed.wait(left)

    def close(self) -> None:
        """Stop listening, end all connections, wake all waits. Idempotent, from any thread."""
        with self._changed:
            self._closed = True
            streams = dict(self._streams)
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for stream in streams:
            stream.shutdown()
        deadline = time.monotonic() + _JOIN_S
        for thread in (self._acceptor, *streams.values()):
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, source = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    _log.error("%s cannot accept a peer: %s; trying again", self._name, error)
                    time.sleep(0.1)  # out of descriptors, most likely: others may free some
                continue
            try:
                self._admit(sock, f"{source[0]}:{source[1]}")
            except (OSError, RuntimeError) as error:  # it left already; no thread to be had
                sock.close()
                _log.error("%s dropped %s: %s", self._name, source, error)

    def _admit(self, sock: socket.socket, where: str) -> None:
        stream = wire.Stream(sock)
        thread = threading.Thread(
            target=self._serve,
            args=(stream, where),
            name=f"{self._name} serves {where}",
            daemon=True,
        )
        with self._changed:
            if self._closed:
                stream.close()
                return
            thread.start()  # waits for the lock before it removes what follows
            self._streams[stream] = thread

    def _serve(self, stream: wire.Stream, where: str) -> None:
        """Life of one connection: admit, answer, account for its end."""
        client = None
        try:
            client = wire.admit(stream, self._token, time.monotonic() + _HANDSHAKE_S)
            with self._changed:
                self._open[client] += 1
            while True:
                self._answer(stream, client)
        except (EOFError, OSError) as error:
            _log.debug("%s: %s (%s) left: %s", self._name, client, where, error)
        except wire.DeadlinePassed:
            _log.warning("%s dropped %s: it did not introduce itself", self._name, where)
        except JoinRefusedError as error:
            _log.warning("%s refused a connection from %s: %s", self._name, where, error)
        except Exception:
            if not self._closed:
                _log.exception("%s dropped %s (%s)", self._name, client, where)
        finally:
            with self._changed:
                if client is not None:
                    self._open[client] -= 1
                self._streams.pop(stream, None)
                self._changed.notify_all()
            stream.close()

    def _answer(self, stream: wire.Stream, client: str) -> None:
        frame = wire.recv_frame(stream, None)
        if frame.kind == wire.BYE:
            with self._changed:
                self._byes.add(client)
                self._changed.notify_all()
            reply = wire.encode(wire.REPLY, request=frame.request)
        elif frame.kind == wire.CALL:
            reply = self._handle(frame)
        else:
            raise ProtocolError(f"{client} sent a frame of kind {frame.kind} to a server")
        stream.send(reply, None)

    def _handle(self, frame: wire.Frame) -> list[memoryview]:
        try:
            answer = self._handler(frame.op, frame.args, frame.arrays)
            return wire.encode(wire.REPLY, frame.op, frame.request, (), answer)
        except Exception as error:
            texts = (type(error).__name__, str(error), traceback.format_exc())
            parts = [wire.text_array(text) for text in texts]
            return wire.encode(wire.ERROR, frame.op, frame.request, (), parts)


class Call:
    """A question that was sent. Any thread may wait, in any order, more than once."""

    def __init__(
        self, connection: "_Connection", op: int, out: Sequence[Array | None] | None
    ) -> None:
        self._connection, self.op, self.out = connection, op, out
        self.arrays: list[Array] | None = None
        self.failure: _Failure | None = None

    @property
    def done(self) -> bool:
        """Whether the answer, or an error, has been read."""
        return self.arrays is not None or self.failure is not None

    def wait(self) -> list[Array]:
        """Return the arrays of the answer, waiting at most the pool's ``timeout_s``.

        Raises:
            SamplingError: The other worker's handler raised; it carries the remote traceback.
            PeerTimeoutError: No answer in time. The connection is given up: so are other calls.
            PeerError: The connection broke, now or before.
            UsageError: The pool was closed.
        """
        if not self.done:
            self._connection.read_until(self)
        if self.failure is not None:
            raise self.failure.error()
        assert self.arrays is not None
        return self.arrays


@dataclass(frozen=True, slots=True)
class _Failure:
    """How calls end that got no answer; makes a new exception for each of them."""

    kind: type[GiglLoaderError]
    args: tuple[str, ...]

    def error(self) -> GiglLoaderError:
        return self.kind(*self.args)


class _Connection:
    """One thread's connection to one peer. Answers come in the order of the questions."""

    def __init__(self, peer: PeerAddress, partition: int, token: bytes, who: str, timeout_s: float):
        self._peer, self._partition, self._timeout_s = peer, partition, timeout_s
        self._lock = threading.RLock()  # `Call.wait` may come from another thread
        self._pending: deque[Call] = deque()
        self._requests = 0
        self.failure: _Failure | None = None
        deadline = time.monotonic() + timeout_s
        sock = self._connect(deadline)
        try:
            self._stream = wire.Stream(sock)
            wire.join(self._stream, token, who, deadline)
        except JoinRefusedError as error:
            sock.close()
            raise JoinRefusedError(
                f"{self._who()} was not joined: {error}; give all processes of a job the same "
                "token and ports of their own"
            ) from error
        except (wire.DeadlinePassed, EOFError, OSError) as error:
            sock.close()
            raise self._explain(error, "in the handshake").error() from error

    def call(
        self,
        kind: int,
        op: int,
        args: Sequence[int],
        arrays: Sequence[Array],
        out: Sequence[Array | None] | None = None,
    ) -> Call:
        """Send a question; reads earlier answers where the peer waits for that."""
        with self._lock:
            views = wire.encode(kind, op, self._requests, args, arrays)
            deadline = time.monotonic() + self._timeout_s
            call = Call(self, op, out)
            with self._breaking(f"while sending operation {op}"):
                if self.failure is None:
                    self._stream.send(views, deadline, lambda: self._read(deadline))
            if self.failure is not None:
                raise self.failure.error()
            self._requests += 1
            self._pending.append(call)
            return call

    def read_until(self, call: Call) -> None:
        """Read answers until ``call`` has its own or the connection is broken."""
        deadline = time.monotonic() + self._timeout_s
        with self._lock, self._breaking(f"before it answered operation {call.op}"):
            while not call.done:
                self._read(deadline)

    def close(self, why: _Failure) -> None:
        """End the connection and all calls on it, also while another thread waits here."""
        self.failure = self.failure or why
        self._stream.shutdown()
        if self._lock.acquire(timeout=_JOIN_S):
            try:
                self._break(why)
            finally:
                self._lock.release()

    def _connect(self, deadline: float) -> socket.socket:
        try:
            left = max(0.001, deadline - time.monotonic())
            return socket.create_connection((self._peer.host, self._peer.port), left)
        except TimeoutError as error:
            raise self._explain(wire.DeadlinePassed(), "to connect").error() from error
        except OSError as error:
            raise PeerError(
                f"cannot connect to {self._who()}: {error}; that worker has ended, or a firewall "
                "is between: see its log, and open all ports between the machines of the job"
            ) from error

    def _read(self, deadline: float) -> None:
        """Read one answer and hand it to the oldest question."""
        first = self._pending[0] if self._pending else None
        frame = wire.recv_frame(self._stream, deadline, first.out if first else None)
        if first is None or frame.request != self._requests - len(self._pending):
            raise ProtocolError(f"an answer to question {frame.request}, which is not the next")
        if frame.kind == wire.REPLY:
            first.arrays = frame.arrays
        elif frame.kind == wire.ERROR and len(frame.arrays) == 3:
            kind, text, trace = (wire.text_of(array) for array in frame.arrays)
            cause = f"{kind}: {text}" if text else kind
            first.failure = _Failure(SamplingError, (self._who(), cause, trace))
        else:
            raise ProtocolError(f"a frame of kind {frame.kind} where an answer was due")
        self._pending.popleft()

    def _break(self, failure: _Failure) -> None:
        """Fail every question without an answer; this connection is of no use any more."""
        self.failure = self.failure or failure
        while self._pending:
            self._pending.popleft().failure = self.failure
        self._stream.close()

    def _who(self) -> str:
        return f"{self._peer} (partition {self._partition})"

    @contextlib.contextmanager
    def _breaking(self, when: str) -> Iterator[None]:
        """Turn trouble inside the block into the failure of all that is outstanding."""
        try:
            yield
        except (wire.DeadlinePassed, ProtocolError, EOFError, OSError) as error:
            self._break(self._explain(error, when))
        except BaseException:  # Ctrl-C, say: the stream stands somewhere inside a frame
            text = f"the exchange with {self._who()} was interrupted on this side: ask again"
            self._break(_Failure(PeerError, (text,)))
            raise

    def _explain(self, error: BaseException, when: str) -> _Failure:
        if isinstance(error, wire.DeadlinePassed):
            text = (
                f"{self._who()} made no progress for {self._timeout_s:g} s {when}: it is stopped, "
                "overloaded or cut off; look at that process, or raise the timeout"
            )
            return _Failure(PeerTimeoutError, (text,))
        if isinstance(error, ProtocolError):
            return _Failure(ProtocolError, (f"{self._who()} broke the protocol {when}: {error}",))
        text = (
            f"the connection to {self._who()} broke {when}: {error}; that worker was killed, ran "
            "out of memory, or its machine is gone: see its log, and start the job again"
        )
        return _Failure(PeerError, (text,))


class PeerPool:
    """Asks the workers of other partitions; one connection per thread and partition.

    Args:
        addresses: The workers of each partition.
        token: The job's secret.
        timeout_s: Longest wait, in seconds, of each ``call`` and of each ``Call.wait``.
        name: This worker, as it introduces itself to its peers.
        spread: Of each partition, this worker asks worker ``spread % len(addresses[partition])``.

    Raises:
        ConfigError: A partition without workers, or a timeout that is not positive.
    """

    def __init__(
        self,
        addresses: Mapping[int, tuple[PeerAddress, ...]],
        token: bytes,
        timeout_s: float,
        name: str,
        spread: int,
    ) -> None:
        empty = sorted(partition for partition, peers in addresses.items() if not peers)
        if empty:
            raise ConfigError(f"partitions {empty} have no sampling workers to ask")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s of a peer pool must be > 0, got {timeout_s!r}")
        self._addresses = dict(addresses)
        self._token, self._timeout_s, self._name, self._spread = token, timeout_s, name, spread
        self._lock = threading.Lock()
        self._connections: dict[tuple[int, int], _Connection] = {}  # by thread and partition
        self._leaving = threading.Lock()
        self._told: set[PeerAddress] = set()  # that this one leaves
        self._closed = False

    def call(
        self,
        partition: int,
        op: int,
        args: Sequence[int] = (),
        arrays: Sequence[Array] = (),
        out: Sequence[Array | None] | None = None,
    ) -> Call:
        """Send a question and return without waiting for the answer.

        A broken connection is replaced once; the calls that were outstanding on it stay failed.

        Args:
            partition: Whom to ask.
            op: Operation, as the peer's handler knows it; 32 bits.
            args: Up to eight integers, each of int64 or uint64.
            arrays: Arrays; read until this returns.
            out: Buffers for the answer: its array ``i`` lands at the front of ``out[i]`` where
                that is contiguous, of the same type and large enough, else in fresh memory.

        Raises:
            ConfigError: No such partition.
            PeerTimeoutError: The peer did not take the question in time.
            PeerError: The peer is gone.
            JoinRefusedError: The peer belongs to another job.
            ProtocolError: The question does not fit a frame.
            UsageError: The pool is closed.
        """
        key = (threading.get_ident(), partition)
        connection = self._connections.get(key)
        if connection is None or connection.failure is not None:
            connection = self._connect(key)
        return connection.call(wire.CALL, op, args, arrays, out)

    def say_bye(self) -> None:
        """Tell every worker of every partition that this one asks no more; best effort, 5 s.

        Said again, it goes to those that it did not reach before.
        """
        with self._leaving:
            deadline = time.monotonic() + _BYE_S
            for partition, peers in self._addresses.items():
                for peer in (peer for peer in peers if peer not in self._told):
                    try:
                        self._bye(peer, partition, min(_BYE_S / 5, deadline - time.monotonic()))
                        self._told.add(peer)
                    except GiglLoaderError as error:
                        _log.debug("%s could not say goodbye: %s", self._name, error)

    def _bye(self, peer: PeerAddress, partition: int, limit_s: float) -> None:
        if limit_s <= 0:
            raise PeerTimeoutError(f"no time was left for {peer}")
        connection = _Connection(peer, partition, self._token, self._name, limit_s)
        try:
            connection.call(wire.BYE, 0, (), ()).wait()
        finally:
            connection.close(self._over())

    def close(self) -> None:
        """End all connections and wake all waits. Idempotent, from any thread."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close(self._over())

    def _connect(self, key: tuple[int, int]) -> _Connection:
        if self._closed:
            raise self._over().error()
        partition = key[1]
        if partition not in self._addresses:
            raise ConfigError(
                f"no workers are known for partition {partition}, only for "
                f"{sorted(self._addresses)}"
            )
        peers = self._addresses[partition]
        peer = peers[self._spread % len(peers)]
        connection = _Connection(peer, partition, self._token, self._name, self._timeout_s)
        with self._lock:
            if not self._closed:
                self._connections[key] = connection
                return connection
        connection.close(self._over())
        raise self._over().error()

    def _over(self) -> _Failure:
        return _Failure(UsageError, (f"the peer pool of {self._name} is closed",))
