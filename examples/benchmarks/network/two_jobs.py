"""Bytes of two jobs that share a full link: one with ten connections, one with one.

A listener in a network namespace of its own, whose link `tc tbf` slows down; this process asks over
all connections, four requests ahead, as loaders do. Needs root, `ip` and `tc`.

    python examples/benchmarks/network/two_jobs.py --rate 200mbit --connections 10 1
"""

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter, deque

import numpy as np
from slow_link import THERE, TOKEN_VARIABLE, Rows, security_of, slow_namespace

from gigl_loader.errors import GiglLoaderError
from gigl_loader.runtime.transport import Caller, Listener, Method
from gigl_loader.runtime.transport.certs import token

AHEAD = 4
lock = threading.Lock()


def serve(by_job: bool) -> None:
    """Answer with as many bytes as are asked for, until the standard input ends."""
    table = {"batch": Method(int, Rows, lambda nbytes, peer: Rows(np.zeros(nbytes, np.uint8)))}
    listener = Listener(
        THERE,
        0,
        security_of(os.environ[TOKEN_VARIABLE]),
        table,
        "two jobs",
        party_of=(lambda peer: peer.name) if by_job else None,
    ).start()
    print(listener.address[1], flush=True)
    sys.stdin.read()
    listener.close()


class Job:
    """Connections that ask for batches, of which each is dropped."""

    def __init__(self, name: str, port: int, secret: str, nbytes: int, think_s: float) -> None:
        self.nbytes, self.think_s = nbytes, think_s
        self.caller = Caller(THERE, port, security_of(secret), name)

    def run(self, received: Counter[str], name: str, is_over: threading.Event) -> None:
        """Take batches until the end; a job thinks for some time after each."""
        replies = deque(self.caller.ask("batch", self.nbytes, Rows) for _ in range(AHEAD))
        while True:
            try:
                nbytes = replies.popleft().wait().data.nbytes
                with lock:
                    received[name] += nbytes
                replies.append(self.caller.ask("batch", self.nbytes, Rows))
            except GiglLoaderError:
                assert is_over.is_set(), "only the end of the measurement closes the connection"
                return
            time.sleep(self.think_s)


def share(
    namespace: str, secret: str, by_job: bool, given: argparse.Namespace
) -> tuple[float, float]:
    """Return the share of the second job, in (0, 1), and the bytes per second of both."""
    command = ["ip", "netns", "exec", namespace, sys.executable, __file__]
    command += ["--serve", "by job" if by_job else "by connection"]
    environment = {**os.environ, TOKEN_VARIABLE: secret}
    server = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    received: Counter[str] = Counter()
    is_over, threads = threading.Event(), []
    with contextlib.ExitStack() as stack:
        port = int(server.stdout.readline())
        for name, count, think_s in zip("ab", given.connections, given.think, strict=True):
            for _ in range(count):
                job = Job(name, port, secret, given.bytes, think_s)
                stack.enter_context(job.caller)
                run = threading.Thread(target=job.run, args=(received, name, is_over), daemon=True)
                threads.append(run)
        for thread in threads:
            thread.start()
        time.sleep(given.warm)
        before, started = received.copy(), time.monotonic()
        time.sleep(given.seconds)
        took_s = time.monotonic() - started
        sent = {name: received[name] - before[name] for name in "ab"}
        is_over.set()
    server.stdin.close()
    server.wait(10)
    return sent["b"] / sum(sent.values()), sum(sent.values()) / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", help="be the listener (used by itself)")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of a batch")
    parser.add_argument("--connections", type=int, nargs=2, default=[10, 1])
    parser.add_argument(
        "--think", type=float, nargs=2, default=[0.0, 0.0], help="seconds after each batch"
    )
    parser.add_argument("--congestion", default="", help="of the listener: reno, bbr...")
    parser.add_argument("--warm", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--modes", nargs="+", default=["plain", "TLS 1.3"])
    given = parser.parse_args()
    if given.serve:
        serve(given.serve == "by job")
        return
    print(
        "| | shared | share of the job with fewer connections | MB/s of both |\n|---|---|---|---|"
    )
    with slow_namespace(given.rate, queue="burst 1mb latency 50ms") as namespace:
        choice = f"sysctl -qw net.ipv4.tcp_congestion_control={given.congestion}"
        if given.congestion:
            subprocess.run(["ip", "netns", "exec", namespace, *choice.split()], check=True)
        for mode in given.modes:
            secret = "" if mode == "plain" else token()
            for by_job in (False, True):
                part, rate = share(namespace, secret, by_job, given)
                how = "by job" if by_job else "by connection"
                print(f"| {mode} | {how} | {part:.0%} | {rate / 1e6:.1f} |", flush=True)


if __name__ == "__main__":
    main()
