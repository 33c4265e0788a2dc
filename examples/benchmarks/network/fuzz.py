"""10,000 mutated exchanges in either direction: no crash, no hang, no leak, only our own errors.

python examples/benchmarks/network/fuzz.py --rounds 10000
"""

import argparse
import os
import resource
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from gigl_loader.runtime.transport import Caller, Security
from tests.runtime.transport.hostile import fuzz_caller, fuzz_listener
from tests.runtime.transport.service import Answer, Service, question


def held() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "MiB": pages * resource.getpagesize() >> 20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    service = Service(Security.local())
    fuzz_listener(service, 100, args.seed)  # what is loaded once
    before, started = held(), time.monotonic()
    fuzz_listener(service, args.rounds, args.seed)
    host, port = service.listener.address
    with Caller(host, port, Security.local(), "after") as caller:
        assert caller.ask("double", question(3), Answer).wait(10).number == 3
    print(f"listener: {args.rounds} exchanges in {time.monotonic() - started:.0f} s")
    started = time.monotonic()
    raised = fuzz_caller(args.rounds, args.seed)
    print(f"caller: {args.rounds} in {time.monotonic() - started:.0f} s, raised {sorted(raised)}")
    service.listener.close()
    print(f"before {before}, after {held()}")


if __name__ == "__main__":
    main()
