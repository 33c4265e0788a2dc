"""Batches of 35 MB over a link of 10 Mbit/s: nobody may be given up, though each takes 28 s.

A listener in a network namespace of its own, whose link `tc tbf` slows down; this process asks,
plain and encrypted. Silence is taken for an error after 10 s, and no whole frame comes in that
time, so bytes have to count. Needs root, `ip` and `tc`.

    python examples/benchmarks/network/slow_link.py
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gigl_loader.runtime.transport import Caller, Listener, Method, Security
from gigl_loader.runtime.transport.certs import token

TOKEN_VARIABLE = "SLOW_LINK_TOKEN"
HERE, THERE = "198.18.78.1", "198.18.78.2"


@dataclass(frozen=True)
class Rows:
    data: np.ndarray


def security_of(secret: str) -> Security:
    """Return TLS with a token, or plain sockets where ``secret`` is empty."""
    return Security.resolve("", secret, insecure=not secret)


def batch_of(nbytes: int) -> np.ndarray:
    """Return bytes that show where one is missing or out of place."""
    return (np.arange(nbytes) % 251).astype(np.uint8)


def serve() -> None:
    """Answer with as many bytes as are asked for, until the standard input ends."""
    table = {"batch": Method(int, Rows, lambda nbytes, peer: Rows(batch_of(nbytes)))}
    listener = Listener(THERE, 0, security_of(os.environ[TOKEN_VARIABLE]), table, "slow").start()
    print(listener.address[1], flush=True)
    sys.stdin.read()
    listener.close()


@contextlib.contextmanager
def slow_namespace(rate: str, queue: str = "burst 32kb latency 400ms") -> Iterator[str]:
    """Give the name of a network namespace that a link of ``rate`` leads to."""
    name = f"slow{os.getpid()}"
    near, far = f"{name}n", f"{name}f"
    try:
        shape = f"root tbf rate {rate} {queue}"
        for line in (
            f"ip netns add {name}",
            f"ip link add {near} type veth peer name {far} netns {name}",
            f"ip addr add {HERE}/30 dev {near}",
            f"ip link set {near} up",
            f"ip -n {name} addr add {THERE}/30 dev {far}",
            f"ip -n {name} link set {far} up",
            f"ip netns exec {name} tc qdisc add dev {far} {shape}",
        ):
            subprocess.run(line.split(), check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def fetch(namespace: str, secret: str, nbytes: int, count: int) -> tuple[float, float]:
    """Return the seconds of ``count`` batches and those of a small question after them.

    Raises:
        GiglLoaderError: The listener was given up: a false alarm.
        AssertionError: A batch is not what was sent.
    """
    command = ["ip", "netns", "exec", namespace, sys.executable, __file__, "--serve"]
    environment = {**os.environ, TOKEN_VARIABLE: secret}
    server = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        with Caller(THERE, port, security_of(secret), "slow link") as caller:
            started = time.monotonic()
            replies = [caller.ask("batch", nbytes, Rows) for _ in range(count)]
            for reply in replies:
                assert np.array_equal(reply.wait().data, batch_of(nbytes)), "a batch came wrong"
            batches_s, started = time.monotonic() - started, time.monotonic()
            caller.ask("batch", 1, Rows).wait()
            return batches_s, time.monotonic() - started
    finally:
        server.stdin.close()
        server.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help="be the listener (used by itself)")
    parser.add_argument("--rate", default="10mbit")
    parser.add_argument("--bytes", type=int, default=35_000_000)
    parser.add_argument("--batches", type=int, default=2)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    print("| | link | batches | all of them, s | a small question after them, s | given up |")
    print("|---|---|---|---|---|---|")
    with slow_namespace(args.rate) as namespace:
        for name, secret in (("plain", ""), ("TLS 1.3", token())):
            whole_s, small_s = fetch(namespace, secret, args.bytes, args.batches)
            what = f"{args.batches} of {args.bytes / 1e6:.0f} MB"
            print(
                f"| {name} | {args.rate} | {what} | {whole_s:.1f} | {small_s:.2f} | no |",
                flush=True,
            )


if __name__ == "__main__":
    main()
