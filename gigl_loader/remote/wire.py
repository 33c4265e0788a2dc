"""Frames between a compute process and a storage server, and the connection that carries them.

A connection opens with the handshake of the sampling workers' wire: both sides prove by HMAC that
they know the cluster's token, and before that nothing larger than 300 bytes is read and nothing is
unpickled. After it, frames carry pickled objects: who knows the token may run code on the other
side, as in any RPC of this kind. Bytes of tensors travel beside the pickle, never copied into it.
"""

import contextlib
import hashlib
import io
import logging
import os
import pickle
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gigl_loader._glt import class_named
from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
)
from gigl_loader.memory.tensors import bytes_of
from gigl_loader.options import CLUSTER_TOKEN_VARIABLE
from gigl_loader.sampler import _peer_wire

_log = logging.getLogger(__name__)

HELLO, CALL, FETCH, REPLY, BATCH, ERROR, NOTE, BYE, GIVE_BACK = range(1, 10)
"""Kinds of frames. `GIVE_BACK`: the batch of that request, read where it lies, was dropped."""

_MAGIC = b"GLs1"
_HEAD = struct.Struct("<4sBQQQ")  # magic, kind, request, bytes of the body, bytes of tensors
_HANDSHAKE_S = 10.0
_FLUSH_S = 2.0
_FIRST_REPORT_S = 5.0
_REPORT_EVERY_S = 10.0
_KEEPALIVE = {socket.TCP_KEEPIDLE: 3, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 4}
"""An idle connection to a machine that is gone breaks after seven seconds."""


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: int
    request: int
    body: Any
    payload: Any = None
    """What `Receiver.allocate` returned, filled; only in a ``BATCH``."""


class Receiver(Protocol):
    """Who a connection's frames go to; called in its reading thread."""

    def allocate(self, request: int, nbytes: int) -> tuple[memoryview, Any]:
        """Return memory for the payload of a batch, and what to call it in the frame."""
        ...

    def on_frame(self, frame: Frame) -> None:
        """Take a frame."""
        ...

    def on_close(self, error: BaseException | None) -> None:
        """Hear that the connection is over; called once. None: this side closed it."""
        ...


def cluster_token(token: str | None) -> bytes:
    """Return the secret that both sides of a connection have to know.

    Args:
        token: None: the environment's ``GIGL_LOADER_CLUSTER_TOKEN``, empty where it is unset.
    """
    text = os.environ.get(CLUSTER_TOKEN_VARIABLE, "") if token is None else token
    return hashlib.sha256(b"gigl_loader graph store\0" + text.encode()).digest()


# --- objects with tensors -------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}
        self._keep: list[Any] = []  # an id is only good while its object lives

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        if id(obj) not in self._places:
            self._keep.append(obj)
            self._places[id(obj)] = len(self.tensors)
            self.tensors.append(obj.detach().cpu().contiguous())
        return self._places[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def find_class(self, module_name: str, global_name: str) -> Any:
        found = class_named(module_name, global_name)
        return super().find_class(module_name, global_name) if found is None else found

    def persistent_load(self, pid: Any) -> Tensor:
        tensor: Tensor = self._tensors[pid]
        return tensor


def encode(kind: int, request: int, body: Any, payload: memoryview | None = None) -> list[Any]:
    """Return the buffers of a frame; those of tensors and of the payload are views, not copies."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(body)
    tensors = pickler.tensors
    if payload is not None and tensors:
        raise ProtocolError("a frame carries tensors or a payload, not both")
    shapes = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    data = pickle.dumps((shapes, file.getvalue()), pickle.HIGHEST_PROTOCOL)
    views = [bytes_of(tensor) for tensor in tensors if tensor.numel()]
    if payload is not None:
        views = [payload]
    total = sum(view.nbytes for view in views)
    head = _HEAD.pack(_MAGIC, kind, request, len(data), total)
    return [memoryview(head + data), *views]


def receive(stream: _peer_wire.Stream, receiver: Receiver | None, deadline: float | None) -> Frame:
    """Return the next frame.

    Raises:
        EOFError, OSError: The other side is gone.
        ProtocolError: What came is no frame.
    """
    head = bytearray(_HEAD.size)
    stream.recv([memoryview(head)], deadline)
    magic, kind, request, body_bytes, total = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise ProtocolError(f"not a frame of the graph store: it begins with {bytes(head[:4])!r}")
    data = bytearray(body_bytes)
    stream.recv([memoryview(data)], deadline)
    shapes, body = pickle.loads(data)
    if kind == BATCH and total and receiver is not None:
        view, payload = receiver.allocate(request, total)
        stream.recv([view], deadline)
        return Frame(kind, request, _Unpickler(body, []).load(), payload)
    tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in shapes]
    stream.recv([bytes_of(tensor) for tensor in tensors if tensor.numel()], deadline)
    return Frame(kind, request, _Unpickler(body, tensors).load())


# --- connections ----------------------------------------------------------------------------------


class Connection:
    """A connected, authenticated socket: one thread reads, one writes, `send` never waits.

    Args:
        sock: The socket; this object owns it.
        name: What is at the other end, for logs.
    """

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self._sock, self._writing_end = sock, sock.dup()
        self._in = _peer_wire.Stream(sock)
        self._out = _peer_wire.Stream(self._writing_end)  # a stream is one thread's
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._outbox: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._threads: list[threading.Thread] = []

    @property
    def incoming(self) -> _peer_wire.Stream:
        """The reading side, for the handshake."""
        return self._in

    def start(self, receiver: Receiver) -> None:
        """Read and write from now on, in daemon threads."""
        for function, args in ((self._read_all, (receiver,)), (self._write_all, ())):
            thread = threading.Thread(
                target=function, args=args, name=f"{function.__name__} {self.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def send(
        self, kind: int, request: int, body: Any = None, payload: memoryview | None = None
    ) -> None:
        """Queue a frame. Does nothing on a closed connection: its reader has heard of the end."""
        if not self._closed:
            self._outbox.put(encode(kind, request, body, payload))

    def close(self) -> None:
        """Send what is queued, as far as two seconds allow, and end. Idempotent, any thread."""
        if self._closed:
            return
        self._closed = True
        self._outbox.put(None)
        own = threading.current_thread()
        for thread in self._threads[::-1]:  # the writer first: it flushes, then wakes the reader
            if thread is not own:
                thread.join(_FLUSH_S)
            self._shut()
        if not self._threads:
            self._shut()
            self._sock.close()
            self._writing_end.close()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _write_all(self) -> None:
        try:
            while True:
                views = self._outbox.get()
                if views is None:
                    return
                self._out.send(views, None)
                del views  # a payload is on lease: give it back before the next wait
        except OSError:
            pass  # the reader says why
        finally:
            self._shut()
            self._writing_end.close()

    def _read_all(self, receiver: Receiver) -> None:
        error: BaseException | None = None
        try:
            while True:
                receiver.on_frame(receive(self._in, receiver, None))
        except (EOFError, OSError) as reason:
            error = None if self._closed else reason
        except BaseException as reason:
            _log.exception("the connection with %s failed", self.name)
            error = reason
        finally:
            self._closed = True
            self._outbox.put(None)
            self._shut()
            receiver.on_close(error)
            self._sock.close()


def connect(host: str, port: int, token: bytes, name: str, deadline: float) -> Connection:
    """Return an authenticated connection; ``name`` is this side's.

    Raises:
        JoinRefusedError: The tokens differ, or something else listens there.
        OSError, EOFError: It cannot be reached, now.
    """
    left = max(0.1, min(deadline - time.monotonic(), _HANDSHAKE_S))
    sock = socket.create_connection((host, port), left)
    connection = Connection(sock, f"{host}:{port}")
    try:
        _peer_wire.join(connection.incoming, token, name, time.monotonic() + left)
    except JoinRefusedError as error:
        connection.close()
        raise JoinRefusedError(
            f"storage server at {host}:{port} and this process do not have the same cluster token "
            f"({error}): set {CLUSTER_TOKEN_VARIABLE} to one value on all of them"
        ) from error
    except _peer_wire.DeadlinePassed as error:
        connection.close()
        raise ConnectionError("it did not answer the handshake") from error
    except BaseException:
        connection.close()
        raise
    return connection


class Progress:
    """Says in the log, now and then, what this process waits for.

    As warnings: these show where no logging was set up, and a process that waits for minutes
    without a word looks like one that hangs.

    Args:
        name: Who waits.
        deadline: Until when (`time.monotonic`).
    """

    def __init__(self, name: str, deadline: float) -> None:
        self._name = name
        self._started = time.monotonic()
        self._until_s = deadline - self._started
        self._next = self._started + _FIRST_REPORT_S

    @property
    def waited_s(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._started

    @property
    def next_in_s(self) -> float:
        """Seconds until there is something to say again."""
        return max(0.0, self._next - time.monotonic())

    def say(self, what: str) -> None:
        """Say what is waited for, unless that was said a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REPORT_EVERY_S
            _log.warning(
                "%s waits for %s since %.0f s; gives up after %.0f s",
                *(self._name, what, self.waited_s, self._until_s),
            )


def connect_patiently(
    host: str, port: int, token: bytes, name: str, *, deadline: float, what: str
) -> Connection:
    """Connect, however long the other side takes to come up; says so in the log.

    Raises:
        PeerTimeoutError: It did not come up before ``deadline``.
        JoinRefusedError: The tokens differ.
        ConfigError: The host has no address.
    """
    progress, nap = Progress(name, deadline), 0.05
    while True:
        try:
            return connect(host, port, token, name, deadline)
        except socket.gaierror as error:
            raise ConfigError(f"{what}: host {host!r} has no address: {error}") from error
        except (OSError, EOFError) as error:
            now = time.monotonic()
            if now >= deadline:
                raise PeerTimeoutError(
                    f"{what} at {host}:{port} did not come up within {progress.waited_s:.0f} s "
                    f"(last: {error}): look at its log, check address and firewall, or raise the "
                    "timeout"
                ) from error
            progress.say(f"{what} at {host}:{port}")
            time.sleep(min(nap, max(0.0, deadline - now)))
            nap = min(nap * 1.5, 1.0)


# --- listening ------------------------------------------------------------------------------------


def address_towards(host: str) -> str:
    """Return the address of the interface that leads to ``host``; sends nothing.

    Raises:
        ConfigError: There is no way to it.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"no way from this machine to {host!r}: {error}") from error


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on one address of this machine; port 0: one that is free.

    Raises:
        ConfigError: The address is not of this machine, or the port is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}; give an address of this machine and a port "
            "that no other program uses (rpc_master_port)"
        ) from error
    return sock


class Listener:
    """Accepts connections and hands each on, once it proved that it knows the token."""

    def __init__(
        self, sock: socket.socket, token: bytes, on_connection: Callable[[Connection, str], None]
    ) -> None:
        self._sock, self._token, self._on_connection = sock, token, on_connection
        self._closed = False
        self.address: tuple[str, int] = sock.getsockname()[:2]
        threading.Thread(target=self._accept_all, name="accept", daemon=True).start()

    def close(self) -> None:
        """Stop. Idempotent."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _accept_all(self) -> None:
        while not self._closed:
            try:
                sock, source = self._sock.accept()
            except OSError as error:
                if not self._closed:
                    _log.error("cannot accept a connection: %s; trying again", error)
                    time.sleep(0.1)  # out of descriptors, most likely
                continue
            name = f"{source[0]}:{source[1]}"
            threading.Thread(target=self._admit, args=(sock, name), name=name, daemon=True).start()

    def _admit(self, sock: socket.socket, source: str) -> None:
        connection = Connection(sock, source)
        try:
            name = _peer_wire.admit(
                connection.incoming, self._token, time.monotonic() + _HANDSHAKE_S
            )
        except (PeerError, OSError, EOFError, _peer_wire.DeadlinePassed) as error:
            _log.warning("refused a connection from %s: %s", source, error or "no handshake")
            connection.close()
            return
        self._on_connection(connection, name)
