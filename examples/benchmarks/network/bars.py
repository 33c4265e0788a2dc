"""How long faults of the network take to be known or got over, and what a flood of strangers costs.

Each line has its bar: an outage costs its length and three seconds, a stopped peer is known a
second after the limit on silence, a killed one at once; two callers get in within a second each
beside 2,400 half-open connections. Times mean little while other work has the cores.

    python examples/benchmarks/network/bars.py
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from gigl_loader.errors import PeerLostError
from gigl_loader.runtime.transport import SILENCE_S, Caller
from tests.runtime.transport.flood import Flooded, flood
from tests.runtime.transport.outage import BYTES, BYTES_PER_S, outage
from tests.runtime.transport.service import SECURITIES, Answer, question

Line = tuple[str, float, float, str]
"""What was done, what it took, its bar, the unit."""


def outages(lengths: list[float]) -> Iterator[Line]:
    """Cut links in the middle of a batch and while idle, all at once: nearly all is waiting."""
    cases = [(m, s, idle) for m in SECURITIES for s in lengths for idle in (False, True)]
    with ThreadPoolExecutor(len(cases)) as pool:
        extra = pool.map(lambda one: outage(SECURITIES[one[0]](), one[1], one[2], SILENCE_S), cases)
        for (mode, length_s, idle), extra_s in zip(cases, extra, strict=True):
            where, transfer_s = ("while idle", 0.0) if idle else ("in a batch", BYTES / BYTES_PER_S)
            name = f"{mode}: outage of {length_s:g} s {where}, beyond its length"
            yield name, extra_s - transfer_s, 3.0, "s"


def lost(mode: str, how: signal.Signals) -> float:
    """Return how long it takes to know of a peer that is stopped or killed, in seconds."""
    there = Flooded(mode, files=1024, threads=64)
    try:
        host, port = there.address
        with Caller(host, port, SECURITIES[mode](), "asks") as caller:
            caller.ask("double", question(1), Answer).wait(60)
            reply = caller.ask("never", question(1), Answer)
            there.process.send_signal(how)
            started = time.monotonic()
            try:
                reply.wait(60)
            except PeerLostError:
                return time.monotonic() - started
            raise AssertionError("an answer came")
    finally:
        there.process.send_signal(signal.SIGCONT)
        there.end()


def lines(lengths: list[float]) -> Iterator[Line]:
    """Measure all of it."""
    yield from outages(lengths)
    for mode in SECURITIES:
        yield f"{mode}: a stopped peer is known", lost(mode, signal.SIGSTOP), SILENCE_S + 1, "s"
        yield f"{mode}: a killed peer is known", lost(mode, signal.SIGKILL), 0.5, "s"
        seen = flood(mode, SILENCE_S)
        yield (
            f"{mode}: two callers get in beside 2,400 strangers, the later",
            seen.entered_s,
            1,
            "s",
        )
        yield f"{mode}: memory that the strangers take", seen.grown_bytes / 1e6, 20, "MB"
        yield f"{mode}: all strangers are gone", seen.gone_s, 10, "s"


def main() -> int:
    """Measure; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outages", nargs="+", type=float, default=[2.0, 5.0, 9.0], help="seconds")
    args = parser.parse_args()
    missed = False
    print("| what | figure | bar |\n|---|---|---|")
    for name, figure, bar, unit in lines(args.outages):
        missed |= figure > bar
        print(f"| {name} | {figure:.2f} {unit} | {bar:g} {unit} |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
