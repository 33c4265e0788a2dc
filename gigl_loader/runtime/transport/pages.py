"""A page over HTTP for readers that speak nothing else, with the limits of a `Listener`.

A reader is never admitted: it sends one request, within a handshake's time and the number of
handshakes that a listener allows.
"""

import select
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus

from gigl_loader.runtime.transport.failures import EndReason
from gigl_loader.runtime.transport.handshake import refusal
from gigl_loader.runtime.transport.security import Security
from gigl_loader.runtime.transport.stream import Steps, Stream, drive

_MAX_REQUEST_BYTES = 8192
_CHUNK = 1024
_END = b"\r\n\r\n"
Patience = Callable[[], float]


class Pages:
    """Responds to one request on a connection.

    Args:
        path: Path of the page; all others are not found.
        kind: Content type of the page.
        render: Returns the page; called by one thread at a time.
        security: Authentication of readers.
    """

    def __init__(
        self, path: str, kind: str, render: Callable[[], bytes], security: Security
    ) -> None:
        self._path, self._kind, self._render, self._security = path, kind, render, security
        self._rendering = threading.Lock()  # so that many readers at once cost no more than one

    def __call__(self, stream: Stream, patience: Patience) -> None:
        """Read a request from ``stream`` and respond; ``patience`` as for `drive`.

        Raises:
            JoinRefusedError: The reader's certificate is missing or not accepted.
            ConfigError: This side's certificates cannot be read.
            EOFError, OSError: The connection broke, or the time was up.
        """
        if self._security.mode.encrypted:
            context = self._security.context(server=True)
            try:
                drive(stream.start_tls(context, server=True), stream, patience)
            except ssl.SSLError as error:
                refused = refusal(stream, error, "the reader", self._security)
                if (
                    refused.end is not EndReason.REFUSED_CERTIFICATE
                ):  # unencrypted, as the request came
                    self._send(stream, patience, HTTPStatus.BAD_REQUEST, b"HTTPS is spoken here\n")
                raise refused from error
        status, body = self._respond(drive(_request(stream), stream, patience), patience)
        self._send(stream, patience, status, body)

    def _send(self, stream: Stream, patience: Patience, status: HTTPStatus, body: bytes) -> None:
        kind = self._kind if status is HTTPStatus.OK else "text/plain"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        views = [memoryview(head.encode() + body)]
        while not stream.push(views):
            stream.wait(select.POLLOUT, patience())

    def _respond(self, request: bytes, patience: Patience) -> tuple[HTTPStatus, bytes]:
        method, _, rest = request.partition(b" ")
        if not request.endswith(_END):
            return HTTPStatus.BAD_REQUEST, b"not a request of HTTP/1.1, or too long\n"
        if method != b"GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, b"GET alone is answered\n"
        if rest.partition(b" ")[0].partition(b"?")[0] != self._path.encode():
            return HTTPStatus.NOT_FOUND, f"there is {self._path} alone\n".encode()
        if not self._rendering.acquire(timeout=patience()):
            raise TimeoutError("another reader's page takes too long")
        try:
            return HTTPStatus.OK, self._render()
        finally:
            self._rendering.release()


def _request(stream: Stream) -> Steps:
    """Read the head of a request; the generator returns the received bytes, complete or not."""
    came = b""
    while not came.endswith(_END) and len(came) < _MAX_REQUEST_BYTES:
        came += yield from stream.receive(_CHUNK)
        # TLS, our own protocol or noise: its sender would wait until the time is up
        if not came[:1].isalpha() or b"\0" in came:
            break
    return came
