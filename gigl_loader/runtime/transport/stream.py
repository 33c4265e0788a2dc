"""One connected non-blocking socket, plain or TLS, and frames on top of it.

All reading is done by generators that yield where they would have to wait. So one implementation
serves a thread that waits for its peer (`drive`), and a caller that stops in the middle of a frame
because its deadline passed, and continues later.

A frame is a fixed head (magic, version, kind, length of the header, bytes of the arrays), a header
(`gigl_loader.runtime.transport.codec`), then the bytes of the arrays. Sizes are checked against
limits before memory is taken for them.
"""

import contextlib
import enum
import errno
import fcntl
import os
import select
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.transport.codec import (
    MAX_ARRAYS,
    MAX_HEADER_BYTES,
    Array,
    IncomingArray,
    bytes_of,
    empty_arrays,
    encode,
    read_header,
)
from gigl_loader.runtime.transport.sockets import Address, close_in_children

VERSION = 3
"""Version of the protocol. The first six bytes of a frame mean the same in every version."""
MAGIC = b"GLt\x00"
SILENCE_S = 10.0
"""Default of all limits on silence, in seconds."""
TICK_S = 1.0
"""Seconds between two signs of life of a side that owes a response."""

_HEAD = struct.Struct("<4sBBxxIIQ")  # magic, version, kind, bytes of header, arrays, their bytes
_IOVECS = 512  # per system call; the kernel takes 1024
# Size of TLS reads and writes on the socket, instead of one per 16 KiB record. Beyond 128 KiB the
# CPU time per byte no longer falls, and each connection that sends holds two buffers of this size.
_CHUNK = 256 << 10
_STRANGERS_CHUNK = 16 << 10  # until TLS is up, so that thousands of strangers take little memory
_TCP_INFO = struct.Struct("<8B14I")  # the head of Linux's struct tcp_info
_TCP_NOTSENT_LOWAT = 25  # of linux/tcp.h

Room = Callable[[list[IncomingArray]], list[Array]]
Steps = Generator[None, None, Any]


class FrameKind(enum.IntEnum):
    """Kind of a frame."""

    KNOCK = 1  # a plain caller's first bytes, so that a TLS listener can send it the reason
    GREETING = 2
    HELLO = 3
    ADMITTED = 4
    BYE = 5  # during the handshake it is a refusal
    ASK = 6
    ANSWER = 7
    ERROR = 8
    ALIVE = 9


class OtherVersionError(ProtocolError):
    """The other side speaks another version of this protocol."""


@dataclass(slots=True)
class Frame:
    """One message as it arrived."""

    kind: FrameKind
    method: str
    body: msgspec.Raw
    arrays: list[Array]


def pack(kind: FrameKind, value: object, method: str = "") -> list[memoryview]:
    """Return the buffers of a frame; contiguous arrays are not copied."""
    header, arrays = encode(value, method)
    total = sum(array.nbytes for array in arrays)
    head = _HEAD.pack(MAGIC, VERSION, kind, len(header), len(arrays), total)
    return [memoryview(head + header), *(bytes_of(array) for array in arrays if array.nbytes)]


ALIVE_FRAME = bytes(pack(FrameKind.ALIVE, None)[0])
KNOCK_FRAME = bytes(pack(FrameKind.KNOCK, None)[0])


class Stream:
    """A connected non-blocking TCP socket, plain or TLS.

    One thread may read while another one sends. The sender holds `send_lock` for a whole frame.
    ``TCP_USER_TIMEOUT`` is not used: it would also break a healthy connection whose reader is busy
    for that long (a window of zero). Keepalive watches an idle connection, `vanished` a busy one.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        # a request is one small frame: Nagle's algorithm would hold it back until the one before is
        # acknowledged, up to 40 ms later
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # finds a peer that vanished while neither side owes anything, after 5 + 3 x 2 = 11 s
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self.sock = sock
        self.send_lock = threading.Lock()
        self.heard = time.monotonic()
        """Time at which bytes last came."""
        self.first_bytes = b""
        """The peer's first bytes before decryption, for messages about refusals."""
        self._left: list[memoryview] = []  # accepted for sending, not yet taken by the kernel
        self.sent_bytes = 0
        """Bytes that the kernel has taken for sending, TLS and handshake included."""
        self._acknowledged = self._most_unsent = 0
        self._tls: ssl.SSLObject | None = None
        self._tls_lock = threading.Lock()  # OpenSSL: one thread at a time in an SSL object
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        close_in_children(sock)

    def connect(self, address: Address, patience: Callable[[], float]) -> None:
        """Connect to ``address``; ``patience`` as for `drive`.

        Raises:
            OSError: The connection attempt failed.
        """
        number = self.sock.connect_ex(address)
        while number == errno.EINPROGRESS:
            # once the socket is writable, SO_ERROR tells the result; 0: connected
            if self.wait(select.POLLOUT, patience()):
                number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))

    # --- sending ------------------------------------------------------------------------------

    def push(self, views: list[memoryview]) -> bool:
        """Send from the front of ``views``, which shrinks; return True once all is taken.

        Raises:
            OSError: The connection broke.
        """
        while True:
            if not self._flush():
                return False
            if not views:
                return True
            if self._tls is None:
                self._left, views[:] = [view for view in views if view.nbytes], []
            else:
                self._encrypt(self._tls, views)

    def _flush(self) -> bool:
        while self._left:
            try:
                sent = self.sock.sendmsg(self._left[:_IOVECS], [], socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            self.sent_bytes += sent
            _advance(self._left, sent)
        return True

    def newly_acknowledged(self) -> int:
        """Return how many bytes the peer's machine has received since the last call.

        For one thread at a time.

        Raises:
            OSError: The connection is closed.
        """
        (queued,) = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))
        # on a connection that has ended, the kernel counts one more for the end itself
        acknowledged = max(self._acknowledged, self.sent_bytes - int(queued))
        before, self._acknowledged = self._acknowledged, acknowledged
        return acknowledged - before

    def keep_unsent(self, most: int) -> None:
        """Choose how many bytes the kernel should keep that it has not sent; 0: as it likes.

        It sends those whatever others wait for; keeping few takes more system calls.
        """
        if most != self._most_unsent:
            self._most_unsent = most
            with contextlib.suppress(OSError):  # a kernel that knows no such limit
                self.sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, most)

    def _encrypt(self, tls: ssl.SSLObject, views: list[memoryview]) -> None:
        """Encrypt up to one chunk of ``views`` into records that wait to be sent."""
        room = _CHUNK
        with self._tls_lock:
            while views and room:
                piece = views[0][:room]  # OpenSSL cuts it into records in one call
                room -= tls.write(piece) if piece.nbytes else 0
                _advance(views, piece.nbytes)
            self._left = [memoryview(self._outgoing.read())]

    def say(self, data: bytes, patience_s: float = 0.0) -> None:
        """Send a small frame unless a thread is sending: a frame in progress is a sign of life too.

        Raises:
            OSError: The connection broke.
        """
        if self.send_lock.acquire(timeout=max(0.0, patience_s)):
            try:
                self.push([memoryview(data)])
            finally:
                self.send_lock.release()

    # --- receiving ----------------------------------------------------------------------------

    def fill(self, views: list[memoryview]) -> Steps:
        """Fill all of ``views``, in order.

        Raises:
            EOFError: The peer closed the connection.
            OSError: The connection broke.
        """
        # reading into an empty view returns 0, which would look like the end of the connection
        views = [view for view in views if view.nbytes]
        while views:
            got = self._take(views)
            if got:
                _advance(views, got)
            else:
                yield

    def receive(self, most: int) -> Steps:
        """Receive the next bytes; the generator returns up to ``most`` of them.

        Raises:
            EOFError: The peer closed the connection.
            OSError: The connection broke.
        """
        view = memoryview(bytearray(most))
        while not (got := self._take([view])):
            yield
        return bytes(view[:got])

    def _take(self, views: list[memoryview]) -> int:
        """Receive into the front of ``views``; return the number of bytes, 0 if none are there."""
        if self._tls is None:
            try:
                got = self.sock.recvmsg_into(views[:_IOVECS])[0]
            except BlockingIOError:
                return 0
            self.first_bytes = self.first_bytes or bytes(views[0][:got])
            return self._note(got)
        while True:
            # bytes that OpenSSL holds come first: the kernel may never get more
            got, is_over = self._decrypt(self._tls, views[0])
            if got or is_over:
                return self._note(got)
            if not self._feed():
                return 0

    def _decrypt(self, tls: ssl.SSLObject, view: memoryview) -> tuple[int, bool]:
        """Return the number of bytes decrypted into ``view``, and whether the stream has ended."""
        got = 0
        with self._tls_lock, contextlib.suppress(ssl.SSLWantReadError):
            while got < view.nbytes:
                read: Any = tls.read(view.nbytes - got, view[got:])  # one record, at most 16 KiB
                if not read:  # close_notify: the peer ended it on purpose
                    return got, True
                got += read
        return got, False

    def _feed(self) -> bool:
        """Move arrived bytes to the TLS engine; return False if there are none."""
        try:
            data = self.sock.recv(_CHUNK if self._tls else _STRANGERS_CHUNK)
        except BlockingIOError:
            return False
        self._note(len(data))
        self.first_bytes = self.first_bytes or data[:64]
        self._incoming.write(data)
        return True

    def _note(self, got: int) -> int:
        if got == 0:
            raise EOFError("the connection was closed")
        self.heard = time.monotonic()
        return got

    def start_tls(self, context: ssl.SSLContext, *, server: bool) -> Steps:
        """Encrypt from here on.

        Raises:
            ssl.SSLError: One side does not trust the other; the peer was sent the reason.
            EOFError, OSError: The connection broke.
        """
        tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._push_outgoing()  # before any wait, as the peer responds to it
                while not self._feed():
                    yield
            finally:
                self._push_outgoing()  # after an error too: the alert tells the peer why
        self._tls = tls

    def _push_outgoing(self) -> None:
        data = self._outgoing.read()
        if data:
            self.push([memoryview(data)])

    def peer_certificate(self) -> bytes:
        """Return the other side's certificate (DER); empty on a plain connection."""
        return (self._tls.getpeercert(binary_form=True) or b"") if self._tls else b""

    # --- the connection -----------------------------------------------------------------------

    def wait(self, events: int, timeout_s: float) -> int:
        """Sleep until one of ``events`` of `select.poll` or an error; return 0 after ``timeout_s``.

        Raises:
            OSError: The connection is closed.
        """
        number = self.sock.fileno()
        if number < 0:
            raise OSError("the connection is closed")
        poll = select.poll()
        poll.register(number, events)
        # poll and not select: a storage server often has descriptors above 1,023
        ready = poll.poll(max(0.0, timeout_s) * 1000)
        return ready[0][1] if ready else 0

    def vanished(self, limit_s: float) -> bool:
        """Return whether sent bytes have not been acknowledged for ``limit_s``.

        A live peer that does not read acknowledges every probe, so the counters stay at zero.
        """
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        fields = _TCP_INFO.unpack(info[: _TCP_INFO.size])
        retransmits, probes, since_last_ack_ms = fields[2], fields[3], fields[8 + 12]
        # both: an idle connection has an old acknowledgement; one lost packet is repeated at once
        return bool(retransmits + probes >= 3 and since_last_ack_ms >= limit_s * 1000)

    def shutdown(self) -> None:
        """Wake all threads that wait on this connection; from any thread, any number of times."""
        with contextlib.suppress(OSError):  # the peer closed the connection first
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the descriptor; only when no other thread uses it, as its number is reused."""
        self.sock.close()

    def end(self, farewell: bytes = b"", patience_s: float = 0.0) -> None:
        """Send ``farewell`` and wake all threads that wait here.

        A thread in the middle of sending has ``patience_s`` to finish, or no farewell is sent.
        """
        with contextlib.suppress(OSError):
            if farewell:
                self.say(farewell, patience_s)
        self.shutdown()


def _advance(views: list[memoryview], done: int) -> None:
    """Drop the first ``done`` bytes of ``views``, in place."""
    whole = 0
    while whole < len(views) and done >= views[whole].nbytes:
        done -= views[whole].nbytes
        whole += 1
    del views[:whole]
    if done:
        views[0] = views[0][done:]


def cut_front(views: list[memoryview], nbytes: int) -> list[memoryview]:
    """Take up to ``nbytes`` bytes from the front of ``views``, which shrinks; return them."""
    front: list[memoryview] = []
    for view in views:
        if nbytes <= 0:
            break
        front.append(view[:nbytes])
        nbytes -= view.nbytes
    _advance(views, sum(view.nbytes for view in front))
    return front


def drive(steps: Steps, stream: Stream, patience: Callable[[], float]) -> Any:
    """Run ``steps`` to their end in this thread.

    Args:
        steps: The generator that reads from ``stream``.
        stream: The stream to wait for.
        patience: Called before each wait; returns its limit in seconds. May raise.
    """
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value
        stream.wait(select.POLLIN, patience())


def read_frame(
    stream: Stream,
    max_bytes: int,
    room: Room = empty_arrays,
    on_head: Callable[[], None] = lambda: None,
    max_header_bytes: int = MAX_HEADER_BYTES,
) -> Steps:
    """Read one frame; the generator returns a `Frame`.

    Args:
        stream: The stream to read from.
        max_bytes: Limit of the bytes of all arrays.
        room: Returns the memory for the arrays, contiguous and as large as announced.
        on_head: Called once the first bytes have come.
        max_header_bytes: Limit of the bytes of the header.

    Raises:
        ProtocolError: The bytes are not a frame, or one above the limits; nothing was allocated.
        EOFError, OSError: The connection is over.
    """
    head = bytearray(_HEAD.size)
    # magic and version first: another version's head may have another length
    yield from stream.fill([memoryview(head)[:6]])
    on_head()
    check_opening(bytes(head[:6]))
    yield from stream.fill([memoryview(head)[6:]])
    _, _, kind, header_bytes, count, total = _HEAD.unpack(head)
    if kind not in FrameKind.__members__.values() or count > MAX_ARRAYS:
        raise ProtocolError(f"a frame of kind {kind} with {count} arrays was announced")
    if header_bytes > max_header_bytes or total > max_bytes:
        raise ProtocolError(
            f"a frame with a header of {header_bytes} bytes and arrays of {total} bytes was "
            f"announced; at most {max_header_bytes} and {max_bytes} are taken"
        )
    header = bytearray(header_bytes)
    yield from stream.fill([memoryview(header)])
    method, body, specs = read_header(header)
    # the limits were checked against `total`: the header must not announce more than that
    if len(specs) != count or sum(spec.nbytes for spec in specs) != total:
        raise ProtocolError(f"the arrays of a frame do not add up to {count} of {total} bytes")
    arrays = room(specs)
    yield from stream.fill([bytes_of(array) for array in arrays if array.nbytes])
    return Frame(FrameKind(kind), method, body, arrays)


def check_opening(first: bytes) -> None:
    """Refuse bytes that do not begin like a frame of this version.

    Raises:
        OtherVersionError: They are a frame of another version.
        ProtocolError: They are no frame.
    """
    if first[:4] != MAGIC[: len(first)]:
        raise ProtocolError(f"it opened with {first!r}, which is not gigl_loader's protocol")
    if first[4:5] not in (b"", bytes([VERSION])):
        raise OtherVersionError(
            f"it speaks version {first[4]} of the protocol, this side {VERSION}: install the same "
            "gigl_loader on all machines"
        )
