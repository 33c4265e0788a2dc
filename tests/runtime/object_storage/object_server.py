"""An S3 server in a process of its own, and a proxy before it that makes faults."""

import contextlib
import http.client
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

BUCKET = "graphs"
SECRET = "a-key-that-nobody-may-read"
_SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until the tests end
"""


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Yield the port of a server with an empty bucket."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()
        yield port


@dataclass
class Request:
    """A request that came to the proxy."""

    method: str
    key: str
    start: int | None
    """First byte of the range."""
    body: int = 0
    """Bytes of the response's body that were sent."""


Change = Callable[["Answer"], None]


@dataclass
class Answer:
    """A response of the server, before it is sent on."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut: bool = False
    """Whether the connection is reset after half of the body."""


def failing(status: int, code: str) -> Change:
    """Return what replaces a response by an error; it has a secret in it, as some servers' have."""

    def change(answer: Answer) -> None:
        answer.status, answer.headers = status, {}
        answer.body = f"<Error><Code>{code}</Code><Signed>{SECRET}</Signed></Error>".encode()

    return change


def reset(answer: Answer) -> None:
    """Let the connection break in the middle of the body."""
    answer.cut = True


def flip(answer: Answer) -> None:
    """Change a byte."""
    answer.body = bytes([answer.body[0] ^ 1]) + answer.body[1:]


@dataclass
class Fault:
    """What happens to responses."""

    change: Change
    key: str = ".*"
    """A pattern of the whole key."""
    method: str = "GET"
    times: int = 10**9


@dataclass
class Proxy:
    """Hands requests on to a server, and notes them."""

    server: int
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, pattern: str = ".*") -> int:
        """Return the bytes of objects that were sent."""
        return sum(r.body for r in self.requests if r.key and re.fullmatch(pattern, r.key))

    def fault(self, request: Request) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                fits = fault.method == request.method and re.fullmatch(fault.key, request.key)
                if fits and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        path = self.path.partition("?")[0]
        key = unquote(path.removeprefix(f"/{BUCKET}").lstrip("/"))
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        request = Request(self.command, key, int(start[1]) if start else None)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self._ask(body)
        with self.proxy.lock:
            self.proxy.requests.append(request)
        if (fault := self.proxy.fault(request)) is not None:
            fault.change(answer)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(answer.body)))
        self.end_headers()
        if answer.cut:
            request.body = len(answer.body) // 2
            self.wfile.write(answer.body[: request.body])
            # no farewell: the client sees "connection reset by peer"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        request.body = len(answer.body) if self.command == "GET" else 0
        self.wfile.write(answer.body)

    def _ask(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.server)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            headers = {
                name: value
                for name, value in answer.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "server", "date")
            }
            if self.command != "HEAD":
                headers.pop("Content-Length", None)
            return Answer(answer.status, headers, answer.read())
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error."""


@contextlib.contextmanager
def proxy_to(server: int) -> Iterator[tuple[Proxy, int]]:
    """Yield a proxy and its port."""
    proxy = Proxy(server)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    listener = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,), name="proxy")
    thread.start()
    try:
        yield proxy, listener.server_port
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def hold_back(arrived: threading.Event, release: threading.Event) -> Change:
    """Return what keeps a response until it is released."""

    def change(answer: Answer) -> None:
        arrived.set()
        release.wait(60)

    return change
