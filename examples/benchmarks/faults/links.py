"""Train over links that lose packets, are late or slow, by IPv6 and by names; compare all bits.

The machines are network namespaces. The sha256 over all batches of three shuffled epochs has to be
that of a run over a good cable. Needs root and `ip`.

    python examples/benchmarks/faults/links.py
"""

import sys
import tempfile
import time
from pathlib import Path

from _cluster import write_graph
from _machines import ADDRESSES_6, NAMES, Link, Machines
from outages import LAYOUTS, parser_of, prepare, run

CABLE = Link("a good cable")
LINKS = {
    "loss": Link("1% of packets lost", lost=0.01),
    "late": Link("50 ms late in each direction", late_s=0.05),
    "slow": Link("10 Mbit/s", bytes_per_s=1.25e6),
    "bad": Link("1% lost, 50 ms late, 10 Mbit/s", lost=0.01, late_s=0.05, bytes_per_s=1.25e6),
    "ipv6": Link("addresses of IPv6", addresses=ADDRESSES_6),
    "names": Link("names in place of addresses", addresses=NAMES),
}


def main() -> int:
    """Run; return 0 if every run had the same bits."""
    parser = parser_of(__doc__.splitlines()[0], nodes=640, pace=0.0)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    args = parser.parse_args()
    prepare()
    failed = 0
    print("| job | link | outcome | s | longest pause, s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "graph")
        write_graph(root, args.nodes, 2)
        for layout in [LAYOUTS[one] for one in args.layouts]:
            expected = ""
            for link in [CABLE, *(LINKS[one] for one in args.links)]:
                started = time.monotonic()
                with Machines(link) as machines:
                    digest, pause_s, error = run(layout, machines, root, 0.0, args)
                took_s = time.monotonic() - started
                expected = expected or digest
                outcome = error or ("same bits" if digest == expected else "OTHER BITS")
                failed += outcome != "same bits"
                line = (layout.name, link.name, outcome, f"{took_s:.1f}", f"{pause_s:.2f}")
                print(f"| {' | '.join(line)} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
