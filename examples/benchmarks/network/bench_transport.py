"""Throughput, CPU time and latency of our transport between two processes of one machine.

Batches of 35 MB, four questions ahead, received into the caller's own memory; questions of 120 KB
with answers of 720 KB, one at a time. Plain and encrypted rounds alternate; medians are printed.

    python examples/benchmarks/network/bench_transport.py --rounds 3 --seconds 2
"""

import argparse
import multiprocessing
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from gigl_loader.runtime.transport import Caller, Listener, Method, Security
from gigl_loader.runtime.transport.certs import token
from gigl_loader.runtime.transport.reply import Reply

BATCH_BYTES = 35_000_000
AHEAD = 4
QUESTION_BYTES, ANSWER_BYTES = 120_000, 720_000


@dataclass(frozen=True)
class Rows:
    data: np.ndarray


def serve(security: Security, ready: Connection) -> None:
    batch, rows = np.ones(BATCH_BYTES, np.uint8), np.ones(ANSWER_BYTES, np.uint8)
    table = {
        "batch": Method(int, Rows, lambda request, peer: Rows(batch)),
        "rows": Method(Rows, Rows, lambda request, peer: Rows(rows)),
        "cpu": Method(int, float, lambda request, peer: time.process_time()),
    }
    with_listener = Listener("127.0.0.1", 0, security, table, "bench").start()
    ready.send(with_listener.address)
    ready.recv()
    with_listener.close()


def fetch(caller: Caller, seconds: float, received: list[int]) -> None:
    mine = [np.ones(BATCH_BYTES, np.uint8) for _ in range(AHEAD)]

    def ask(array: np.ndarray) -> Reply[Rows]:
        return caller.ask("batch", 0, Rows, into=lambda specs: [array])

    replies = deque(map(ask, mine))
    end = time.monotonic() + seconds
    while replies:
        array = replies.popleft().wait(30).data
        received.append(array.nbytes)
        if time.monotonic() < end:
            replies.append(ask(array))


def throughput(callers: list[Caller], seconds: float) -> tuple[float, float, float]:
    """Return GB/s and CPU seconds per GB of the listener and of the caller."""
    received: list[int] = []
    there = callers[0].ask("cpu", 0, float).wait(10)
    here, started = time.process_time(), time.monotonic()
    threads = [threading.Thread(target=fetch, args=(c, seconds, received)) for c in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gigabytes, wall_s = sum(received) / 1e9, time.monotonic() - started
    here = time.process_time() - here
    there = callers[0].ask("cpu", 0, float).wait(10) - there
    return gigabytes / wall_s, there / gigabytes, here / gigabytes


def latency_ms(caller: Caller, seconds: float) -> float:
    """Return the median time of a question of 120 KB with an answer of 720 KB."""
    question, times, end = Rows(np.ones(QUESTION_BYTES, np.uint8)), [], time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        caller.ask("rows", question, Rows).wait(10)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def measure(security: Security, seconds: float) -> list[float]:
    """Return one round: throughput with one and with two connections, then latency."""
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=serve, args=(security.for_workers(), theirs))
    process.start()
    host, port = ours.recv()
    callers = [Caller(host, port, security, f"bench {i}") for i in range(2)]
    try:
        one = throughput(callers[:1], seconds)
        two = throughput(callers, seconds)
        return [*one, *two, latency_ms(callers[0], seconds / 2)]
    finally:
        for caller in callers:
            caller.close()
        ours.send(None)
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    args = parser.parse_args()
    modes = {"plain": Security.local(), "TLS 1.3": Security.resolve("", token(), False)}
    found: dict[str, list[list[float]]] = {name: [] for name in modes}
    for _ in range(args.rounds):
        for name, security in modes.items():
            found[name].append(measure(security, args.seconds))
    print("| | 1 connection, GB/s | CPU s/GB listener + caller | 2 connections, GB/s |", end="")
    print(" CPU s/GB listener + caller | 120/720 KB, ms |\n|---|---|---|---|---|---|")
    for name, rounds in found.items():
        m = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(
            f"| {name} | {m[0]:.2f} | {m[1]:.2f} + {m[2]:.2f} "
            f"| {m[3]:.2f} | {m[4]:.2f} + {m[5]:.2f} | {m[6]:.2f} |"
        )


if __name__ == "__main__":
    main()
