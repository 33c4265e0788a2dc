"""Mutated exchanges for the fuzz tests; `examples/benchmarks/network/fuzz.py` does many of them."""

import contextlib
import random
import socket
import threading

import numpy as np

from gigl_loader.errors import GiglLoaderError
from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.runtime.transport.handshake import Admitted, Greeting, Hello
from gigl_loader.runtime.transport.stream import ALIVE_FRAME, KNOCK_FRAME, FrameKind, pack
from tests.runtime.transport.service import Answer, Service, question


def exchange(frames: list[bytes], dice: random.Random) -> bytes:
    """Return the frames with one thing wrong."""
    frames = list(frames)
    match dice.randrange(6):
        case 0:
            return dice.randbytes(dice.randrange(400))
        case 1:
            dice.shuffle(frames)
        case 2:
            frames.insert(dice.randrange(len(frames) + 1), dice.choice(frames))
        case 3:
            return b"".join(frames)[: dice.randrange(1, sum(map(len, frames)))]
        case _:
            data = bytearray(b"".join(frames))
            for _ in range(dice.choice((1, 1, 3, 20))):
                data[dice.randrange(len(data))] = dice.randrange(256)
            return bytes(data)
    return b"".join(frames)


def conversation() -> tuple[list[bytes], list[bytes]]:
    """Return the frames of both sides of a good exchange, as they passed in the clear."""
    hello = pack(FrameKind.HELLO, Hello("fuzz", "s", "l", bytes(32), b""))
    ask = b"".join(bytes(v) for v in pack(FrameKind.ASK, question(1), "double"))
    bye = ALIVE_FRAME
    answer = b"".join(bytes(v) for v in pack(FrameKind.ANSWER, Answer(1, np.arange(3))))
    greeting = bytes(pack(FrameKind.GREETING, Greeting(bytes(32)))[0])
    admitted = bytes(pack(FrameKind.ADMITTED, Admitted(b"", 1 << 30, 1))[0])
    return [KNOCK_FRAME, bytes(hello[0]), ask, ask, bye], [greeting, admitted, bye, answer, answer]


def fuzz_listener(service: Service, rounds: int, seed: int) -> None:
    """Send mutated questions; the service must answer real ones afterwards."""
    frames, _ = conversation()
    dice = random.Random(seed)
    for _ in range(rounds):
        sock = socket.create_connection(service.listener.address, 5)
        with sock, contextlib.suppress(OSError):
            sock.sendall(exchange(frames, dice))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass


def fuzz_caller(rounds: int, seed: int) -> set[str]:
    """Answer with mutated frames; return the classes of errors that callers raised."""
    _, frames = conversation()
    dice = random.Random(seed)
    raised: set[str] = set()
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.sendall(exchange(frames, dice))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for _ in range(rounds):
            host, port = server.getsockname()
            with Caller(host, port, Security.local(), "fuzz", patience_s=0.01) as caller:
                try:
                    for reply in [caller.ask("double", question(1), Answer) for _ in range(2)]:
                        reply.wait(0.3)
                except GiglLoaderError as error:
                    raised.add(type(error).__name__)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    return raised
