"""The wire of `gigl_loader.sampler.peers`: a socket with deadlines, frames of arrays, a handshake.

A frame is a fixed head (magic, version, kind, operation, request id, up to eight integers), one
fixed descriptor per array (type code, shape, bytes), then the bytes of the arrays. Nothing that
arrives is ever unpickled, and before the handshake is over nothing larger than 300 bytes is read.
They travel in the machine's own order: all machines of a cluster are little-endian.
"""

import contextlib
import errno
import hashlib
import hmac
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.errors import ConfigError, JoinRefusedError, PeerError, ProtocolError
from gigl_loader.memory.segments import Array

MAX_ARGS = 8
MAX_DIMS = 8
MAX_ARRAYS = 4096
MAX_FRAME_BYTES = 16 << 30
"""Sizes above these are a bug or a broken stream; they are refused before memory is reserved."""

CALL, REPLY, ERROR, BYE = 1, 2, 3, 4
"""Kinds of frames."""

_MAGIC = b"GLp1"
_VERSION = 1
_HEAD = struct.Struct("<4sBBBBIIQQ8Q")  # .., args, their signs, op, tensors, request, bytes, args
_ARRAY = struct.Struct("<BB6xQ8Q")  # dtype code, dimensions, bytes, shape
_HELLO = struct.Struct("<4sBB32s")  # magic, version, length of the name, nonce
_CHALLENGE = struct.Struct("<4sB32s32s")  # magic, version, nonce, proof
_HELLO_MAGIC, _CHALLENGE_MAGIC = b"GLpc", b"GLps"
_ACCEPTED, _REFUSED = b"\x01", b"\x00"
_IOVECS = 512  # per system call; the kernel takes 1024
_SLICE_S = 2.0  # how long to sleep between two looks at the state of the connection
_VANISHED_S = 10.0  # silence, with data unacknowledged, after which a machine counts as gone
_TCP_INFO = struct.Struct("<8B14I")  # the head of Linux's struct tcp_info

_DTYPES = tuple(  # the place in this list is the code on the wire: append only
    np.dtype(name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "bool", "float16", "float32", "float64"),
        *("complex64", "complex128", "uint16", "uint32", "uint64"),
    )
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


class DeadlinePassed(Exception):
    """The peer made no progress in time. Callers turn it into an error that names the peer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: a request, a reply, an error or a goodbye."""

    kind: int
    op: int
    request: int
    args: tuple[int, ...]
    arrays: list[Array]


class Stream:
    """A connected TCP socket whose every wait has a deadline and notices a vanished machine.

    ``TCP_USER_TIMEOUT`` would do the latter in the kernel, but it also breaks a healthy connection
    whose reader is busy for that long (a window of zero). So keepalive watches the idle line, and
    the waits here look at the retransmission counters while data is unacknowledged. Buffer sizes
    are the kernel's: fixed ones were no faster on loopback, and are capped on most machines.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)  # waits are ours: MSG_DONTWAIT and poll
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, 0)

    def recv(self, views: list[memoryview], deadline: float | None) -> None:
        """Fill all of ``views``, in order, by ``deadline`` (`time.monotonic`; None: no deadline).

        Raises:
            DeadlinePassed: The bytes did not come in time.
            EOFError: The peer closed the connection.
            OSError: The connection broke.
        """
        views = [view for view in views if view.nbytes]
        while views:
            try:
                got = self._sock.recvmsg_into(views[:_IOVECS], 0, socket.MSG_DONTWAIT)[0]
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            if got == 0:
                raise EOFError("the connection was closed")
            _advance(views, got)

    def send(
        self,
        views: list[memoryview],
        deadline: float | None,
        drain: Callable[[], None] | None = None,
    ) -> None:
        """Send all of ``views`` by ``deadline``.

        Args:
            views: What to send, in order; not copied.
            deadline: As for `recv`.
            drain: Reads what the peer has to say; called while the peer takes nothing but has
                sent something, since it may be waiting for just that.

        Raises:
            DeadlinePassed: The peer did not take the bytes in time.
            OSError: The connection broke.
        """
        views = [view for view in views if view.nbytes]
        events = select.POLLOUT | (select.POLLIN if drain else 0)
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        while views:
            try:
                _advance(views, self._sock.sendmsg(views[:_IOVECS], [], flags))
            except BlockingIOError:
                ready = self._wait(events, deadline)
                if drain and ready & select.POLLIN and not ready & select.POLLOUT:
                    drain()

    def shutdown(self) -> None:
        """Wake whoever waits on this connection; safe from any thread, any number of times."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket. Only for the thread that uses it, or when nobody does."""
        self._sock.close()

    def _wait(self, events: int, deadline: float | None) -> int:
        """Sleep until one of ``events``; return those that came (errors included)."""
        self._poll.modify(self._sock, events)
        while True:
            left = math.inf if deadline is None else deadline - time.monotonic()
            ready = self._poll.poll(max(0.0, min(left, _SLICE_S)) * 1000)
            if ready:
                return ready[0][1]
            if left <= _SLICE_S:
                raise DeadlinePassed
            if _vanished(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)):
                raise ConnectionAbortedError(f"its machine has been silent for {_VANISHED_S:.0f} s")


def _vanished(info: bytes) -> bool:
    """Tell from a ``tcp_info`` whether the other machine stopped acknowledging.

    A peer that lives but does not read acknowledges every probe, so its counters stay at zero.
    """
    fields = _TCP_INFO.unpack(info)
    retransmits, probes, since_last_ack_ms = fields[2], fields[3], fields[8 + 12]
    return bool(retransmits + probes >= 3 and since_last_ack_ms >= _VANISHED_S * 1000)


def _advance(views: list[memoryview], done: int) -> None:
    """Drop the first ``done`` bytes of ``views``, in place."""
    whole = 0
    while whole < len(views) and done >= views[whole].nbytes:
        done -= views[whole].nbytes
        whole += 1
    del views[:whole]
    if done:
        views[0] = views[0][done:]


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array as a view, not a copy."""
    return array.reshape(-1).view(np.uint8).data


def text_array(text: str) -> Array:
    """Return at most 64 KiB of ``text`` as a uint8 array."""
    return np.frombuffer(text.encode(errors="replace")[: 1 << 16], np.uint8)


def text_of(array: Array) -> str:
    """Return the text that `text_array` packed."""
    return bytes(bytes_of(array)).decode(errors="replace")


def encode(
    kind: int,
    op: int = 0,
    request: int = 0,
    args: Sequence[int] = (),
    arrays: Sequence[Array] = (),
) -> list[memoryview]:
    """Return the buffers of a frame; those of contiguous arrays are views of them.

    Raises:
        ProtocolError: Too many or too large arguments or arrays, or one that cannot travel.
    """
    if len(args) > MAX_ARGS or len(arrays) > MAX_ARRAYS:
        raise ProtocolError(
            f"operation {op} has {len(args)} arguments and {len(arrays)} arrays; a frame takes "
            f"{MAX_ARGS} and {MAX_ARRAYS}"
        )
    signs, words = 0, [0] * MAX_ARGS
    for i, value in enumerate(args):
        if not -(1 << 63) <= value < 1 << 64:
            raise ProtocolError(f"argument {i} of operation {op} does not fit 64 bits: {value}")
        signs |= (value < 0) << i
        words[i] = value & ((1 << 64) - 1)
    ready = [_contiguous(i, op, array) for i, array in enumerate(arrays)]
    total = sum(array.nbytes for array in ready)
    if total > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"operation {op} carries {total} bytes; a frame takes {MAX_FRAME_BYTES}"
        )
    head = _HEAD.pack(
        _MAGIC, _VERSION, kind, len(args), signs, op, len(ready), request, total, *words
    )
    descriptors = b"".join(
        _ARRAY.pack(
            _CODES[array.dtype],
            array.ndim,
            array.nbytes,
            *array.shape,
            *[0] * (MAX_DIMS - array.ndim),
        )
        for array in ready
    )
    return [memoryview(head + descriptors), *(bytes_of(a) for a in ready if a.nbytes)]


def _contiguous(i: int, op: int, array: Array) -> Array:
    if not isinstance(array, np.ndarray):
        what = f"{type(array).__name__}, not an array"
    elif array.dtype not in _CODES:
        what = f"of type {array.dtype}, which has no code on the wire"
    elif array.ndim > MAX_DIMS:
        what = f"of {array.ndim} dimensions; at most {MAX_DIMS} travel"
    else:
        return array if array.flags.c_contiguous else array.copy("C")
    raise ProtocolError(f"array {i} of operation {op} is {what}")


def recv_frame(
    stream: Stream, deadline: float | None, out: Sequence[Array | None] | None = None
) -> Frame:
    """Receive one frame.

    Args:
        stream: Where from.
        deadline: As for `Stream.recv`.
        out: Buffers to receive into, by position: array ``i`` lands at the front of ``out[i]``
            if that is contiguous, of the same type and large enough; else in fresh memory.

    Raises:
        ProtocolError: What came is no frame.
        DeadlinePassed, EOFError, OSError: As for `Stream.recv`.
    """
    head = bytearray(_HEAD.size)
    stream.recv([memoryview(head)], deadline)
    magic, version, kind, num_args, signs, op, count, request, total, *words = _HEAD.unpack(head)
    if magic != _MAGIC or version != _VERSION:
        raise ProtocolError(f"not a frame of this version of gigl_loader: {bytes(head[:8])!r}")
    if num_args > MAX_ARGS or count > MAX_ARRAYS or total > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a frame of operation {op} claims {num_args} arguments, {count} arrays and {total} "
            f"bytes; the limits are {MAX_ARGS}, {MAX_ARRAYS} and {MAX_FRAME_BYTES}"
        )
    descriptors = bytearray(_ARRAY.size * count)
    stream.recv([memoryview(descriptors)], deadline)
    plans = [_plan(fields, op) for fields in _ARRAY.iter_unpack(descriptors)]
    if sum(nbytes for _, _, nbytes in plans) != total:
        raise ProtocolError(f"the arrays of operation {op} do not add up to {total} bytes")
    buffers = [*(out or ()), *[None] * count]
    arrays = [
        _room(dtype, shape, buffer)
        for (dtype, shape, _), buffer in zip(plans, buffers[:count], strict=True)
    ]
    stream.recv([bytes_of(array) for array in arrays if array.nbytes], deadline)
    args = tuple(word - ((signs >> i & 1) << 64) for i, word in enumerate(words[:num_args]))
    return Frame(kind, op, request, args, arrays)


def _plan(fields: tuple[int, ...], op: int) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    code, dims, nbytes, *sizes = fields
    if code >= len(_DTYPES) or dims > MAX_DIMS:
        raise ProtocolError(f"an array of operation {op} has type code {code}, {dims} dimensions")
    dtype, shape = _DTYPES[code], tuple(sizes[:dims])
    if math.prod(shape) * dtype.itemsize != nbytes or max(shape, default=0) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"an array of operation {op} claims {nbytes} bytes for shape {shape} of {dtype}"
        )
    return dtype, shape, nbytes


def _room(dtype: "np.dtype[Any]", shape: tuple[int, ...], buffer: Array | None) -> Array:
    size = math.prod(shape)
    if (
        buffer is not None
        and buffer.dtype == dtype
        and buffer.size >= size
        and buffer.flags.c_contiguous
    ):
        return buffer.reshape(-1)[:size].reshape(shape)
    return np.empty(shape, dtype)


def _proof(token: bytes, side: bytes, nonces: bytes, name: bytes) -> bytes:
    return hmac.digest(token, side + nonces + name, hashlib.sha256)


def _take(stream: Stream, size: int, deadline: float) -> bytes:
    data = bytearray(size)
    stream.recv([memoryview(data)], deadline)
    return bytes(data)


def join(stream: Stream, token: bytes, name: str, deadline: float) -> None:
    """Client side of the handshake: both sides prove by HMAC-SHA256 that they know ``token``.

    Raises:
        JoinRefusedError: The other side does not know the token, or is something else.
        DeadlinePassed, EOFError, OSError: As for `Stream.recv`.
    """
    me, mine = name.encode()[:255], os.urandom(32)
    stream.send([memoryview(_HELLO.pack(_HELLO_MAGIC, _VERSION, len(me), mine) + me)], deadline)
    magic, version, theirs, proof = _CHALLENGE.unpack(_take(stream, _CHALLENGE.size, deadline))
    if magic != _CHALLENGE_MAGIC:
        raise JoinRefusedError("it is not a sampling worker of gigl_loader")
    if version != _VERSION:
        raise JoinRefusedError(
            f"it speaks version {version} of the protocol, this side {_VERSION}: install the same "
            "gigl_loader on all machines"
        )
    if not hmac.compare_digest(proof, _proof(token, b"server", mine + theirs, me)):
        raise JoinRefusedError("it does not know this job's token: it belongs to another job")
    stream.send([memoryview(_proof(token, b"client", mine + theirs, me))], deadline)
    if _take(stream, 1, deadline) != _ACCEPTED:
        raise JoinRefusedError("it did not accept this side's token: it belongs to another job")


def admit(stream: Stream, token: bytes, deadline: float) -> str:
    """Server side of the handshake: return the name of the client.

    Raises:
        JoinRefusedError: The client did not prove that it knows ``token``; it has been told.
        DeadlinePassed, EOFError, OSError: As for `Stream.recv`.
    """
    hello = _take(stream, _HELLO.size, deadline)
    magic, version, length, theirs = _HELLO.unpack(hello)
    if magic != _HELLO_MAGIC:
        raise JoinRefusedError(f"it opened with {hello[:8]!r}, which is not gigl_loader's protocol")
    name, mine = _take(stream, length, deadline), os.urandom(32)
    proof = _proof(token, b"server", theirs + mine, name)
    stream.send([memoryview(_CHALLENGE.pack(_CHALLENGE_MAGIC, _VERSION, mine, proof))], deadline)
    if version != _VERSION:
        raise JoinRefusedError(f"it speaks version {version} of the protocol, not {_VERSION}")
    answer = _take(stream, 32, deadline)
    if not hmac.compare_digest(answer, _proof(token, b"client", theirs + mine, name)):
        stream.send([memoryview(_REFUSED)], deadline)
        raise JoinRefusedError("it does not know this job's token")
    stream.send([memoryview(_ACCEPTED)], deadline)
    return name.decode(errors="replace")


def listen(host: str, name: str, port: int = 0) -> socket.socket:
    """Return a socket that listens on ``host``; with port 0, on one that the system picks.

    Raises:
        ConfigError: ``host`` is no address of this machine, or the port is taken.
        PeerError: The system has no port or no socket left.
    """
    try:
        return _bound(host, port)
    except OSError as error:
        if port and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} is taken on this machine by another program or another run; give "
                "another port (master_port of the worker options), or end that run"
            ) from error
        text = f"{name} cannot listen on {host!r}: {error}"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            hint = "give an address of this machine (`hostname -I` lists them)"
            raise ConfigError(f"{text}; {hint}") from error
        hint = "look for a lack of file descriptors or ports (`ulimit -n`, `ss -s`)"
        raise PeerError(f"{text}; {hint}") from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    for last_attempt in (False, False, True):
        listener = socket.socket(family, kind, proto)
        try:
            # connections that still wind down after close() must not keep the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
            return listener
        except OSError as error:
            listener.close()
            if port or last_attempt or error.errno != errno.EADDRINUSE:
                raise  # else two sockets were handed one port, and the other listened first
    raise AssertionError("unreachable")
