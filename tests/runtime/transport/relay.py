"""A link between two loopback sockets that can be cut, reset or made slow."""

import contextlib
import selectors
import socket
import threading
import time


class Relay:
    """Forwards connections to ``target``.

    While `cut` is set nothing passes, as on a link that drops packets: bytes wait, new connections
    get no answer. ``bytes_per_s`` bounds each direction.
    """

    def __init__(self, target: tuple[str, int], bytes_per_s: float = float("inf")) -> None:
        self.target, self.rate = target, bytes_per_s
        self.cut = threading.Event()
        self.passed = 0
        self.taken = 0
        """Connections so far."""
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._door.getsockname()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def reset(self) -> None:
        """Break all connections, as a restarted router does."""
        for pair in self._pairs:
            for sock in pair:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self.reset()
        for thread in self._threads:
            thread.join(5)
        self._door.close()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            self.taken += 1
            far = socket.socket()
            try:
                far.connect(self.target)
            except OSError:
                near.close()
                far.close()
                continue
            self._pairs.append((near, far))
            self._threads.append(threading.Thread(target=self._pump, args=(near, far), daemon=True))
            self._threads[-1].start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        due = {near: 0.0, far: 0.0}
        with near, far, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            other = {near: far, far: near}
            for sock in other:
                selector.register(sock, selectors.EVENT_READ)
            while not self._closed:
                if self.cut.is_set():
                    time.sleep(0.01)
                    continue
                for key, _ in selector.select(0.05):
                    assert isinstance(key.fileobj, socket.socket)
                    sock = key.fileobj
                    if self.cut.is_set() or time.monotonic() < due[sock]:
                        time.sleep(0.0005)
                        continue
                    data = sock.recv(1 << 16)
                    if not data:
                        return
                    due[sock] = max(due[sock], time.monotonic() - 0.02) + len(data) / self.rate
                    other[sock].sendall(data)
                    self.passed += len(data)
