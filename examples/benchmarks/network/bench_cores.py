"""How many cores a listener uses that sends to several callers at once, plain and encrypted.

The callers drop the bytes that come, in the kernel, and decrypt nothing: what is measured is the
sending side alone, which otherwise shares this machine's cores with them.

    python examples/benchmarks/network/bench_cores.py --clients 4 --seconds 3
"""

import argparse
import multiprocessing
import secrets
import select
import socket
import threading
import time
from multiprocessing.connection import Connection

import bench_transport

from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.runtime.transport.certs import token
from gigl_loader.runtime.transport.handshake import join
from gigl_loader.runtime.transport.stream import FrameKind, Stream, drive, pack

AT_ONCE = 1 << 20
"""Bytes that one call drops."""


def drop_batches(address: tuple[str, int], security: Security, seconds: float) -> int:
    """Ask for batches without end and drop them for ``seconds``; return how many bytes came."""
    stream = Stream(socket.create_connection(address))
    who = secrets.token_hex(8)
    drive(join(stream, security, "bench", who, who), stream, lambda: 10.0)
    question = pack(FrameKind.ASK, 0, "batch")
    for _ in range(int(seconds * 400)):  # 14 GB a second, more than a connection carries
        stream.push(list(question))
    dropped, end, nowhere = 0, time.monotonic() + seconds, bytearray(AT_ONCE)
    while time.monotonic() < end:
        if stream.wait(select.POLLIN, end - time.monotonic()):
            dropped += stream.sock.recv_into(nowhere, AT_ONCE, socket.MSG_TRUNC)
    stream.shutdown()
    stream.close()
    return dropped


def measure(security: Security, clients: int, seconds: float) -> tuple[float, float, float]:
    """Return GB/s, and the listener's CPU seconds per GB and per second."""
    ours: Connection
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    args = (security.for_workers(), theirs)
    process = spawn.Process(target=bench_transport.serve, args=args)
    process.start()
    address, dropped = ours.recv(), []

    def work() -> None:
        dropped.append(drop_batches(address, security, seconds))

    host, port = address
    with Caller(host, port, security, "clock") as clock:
        used, started = clock.ask("cpu", 0, float).wait(10), time.monotonic()
        threads = [threading.Thread(target=work) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall_s = time.monotonic() - started
        used = clock.ask("cpu", 0, float).wait(30) - used
    ours.send(None)
    process.join()
    gigabytes = sum(dropped) / 1e9
    return gigabytes / wall_s, used / gigabytes, used / wall_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    print("| | clients | GB/s | listener's CPU s/GB | listener's cores |")
    print("|---|---|---|---|---|")
    modes = {"plain": Security.local(), "TLS 1.3": Security.resolve("", token(), False)}
    for name, security in modes.items():
        for clients in (1, args.clients):
            rate, per_gb, cores = measure(security, clients, args.seconds)
            print(f"| {name} | {clients} | {rate:.2f} | {per_gb:.2f} | {cores:.2f} |", flush=True)


if __name__ == "__main__":
    main()
