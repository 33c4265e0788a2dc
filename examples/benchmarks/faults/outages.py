"""Cut the link between two machines under a training job; at the end compare all bits.

Two network namespaces stand for the machines, a veth pair for the link; it is taken down in the
middle of the first of three shuffled epochs, for some seconds. The sha256 over all batches has to
be that of an undisturbed run. Needs root and `ip`.

    python examples/benchmarks/faults/outages.py
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from _cluster import Job, Store, write_graph
from _machines import Link, Machines

from gigl_loader.runtime.transport.certs import token


@dataclass(frozen=True)
class Layout:
    """Who is on which machine."""

    name: str
    servers: tuple[int, ...]
    """Machine of each storage server; none: colocated ranks, one on each machine."""


LAYOUTS = {
    "store": Layout("graph store: the trainer here, both servers there", (1, 1)),
    "split": Layout("graph store: trainer and server 0 here, server 1 there", (0, 1)),
    "ranks": Layout("colocated: a rank and its partition on each", ()),
}


@contextlib.contextmanager
def job_of(
    layout: Layout, machines: Machines, folder: Path, root: Path, args: argparse.Namespace
) -> Iterator[Job]:
    """Give a running job; nothing of it is left after the ``with`` block."""
    addresses = machines.link.addresses
    options = {"nodes": args.nodes, "host": addresses[0], "pace": args.pace}
    with contextlib.ExitStack() as stack:
        if layout.servers:
            hosts = [addresses[machine] for machine in layout.servers]

            def on(server: int, command: list[str]) -> list[str]:
                return machines.on(layout.servers[server], command)

            store = Store(root, hosts, on)
            stack.callback(store.close)
            job = Job(folder, 1, machines.on, store=store.address, **options)
        else:
            job = Job(folder, 2, machines.on, root=root, **options)
        stack.callback(job.kill)
        yield job


def run(
    layout: Layout, machines: Machines, root: Path, seconds: float, args: argparse.Namespace
) -> tuple[str, float, str]:
    """Return the sha256, the longest pause and the error, of one run with a cut."""
    with (
        tempfile.TemporaryDirectory() as name,
        job_of(layout, machines, Path(name, "job"), root, args) as job,
    ):
        if seconds:
            job.wait_for(20)
            machines.cut(seconds)
        good = job.join()
        return (job.digest() if good else "", job.longest_pause(), "" if good else job.error())


def parser_of(description: str, nodes: int, pace: float) -> argparse.ArgumentParser:
    """Return the options of all jobs between machines, with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--nodes", type=int, default=nodes)
    parser.add_argument("--pace", type=float, default=pace, help="seconds of a training step")
    return parser


def prepare() -> None:
    """Let a signal remove the namespaces, and give all processes a token."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ["GIGL_LOADER_CLUSTER_TOKEN"] = token()


def main() -> int:
    """Run; return 0 if all that should be survived was, with the same bits."""
    parser = parser_of(__doc__.splitlines()[0], nodes=2_000, pace=0.02)
    parser.add_argument("--cuts", nargs="+", type=float, default=[5.0, 20.0], help="seconds")
    args = parser.parse_args()
    prepare()
    failed = 0
    print("| job | cut, s | outcome | longest pause, s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, Machines(Link("a cable")) as machines:
        root = Path(name, "graph")
        write_graph(root, args.nodes, 2)
        for layout in [LAYOUTS[one] for one in args.layouts]:
            expected, _, error = run(layout, machines, root, 0.0, args)
            assert expected, error
            for seconds in args.cuts:
                digest, pause_s, error = run(layout, machines, root, seconds, args)
                outcome = error or ("same bits" if digest == expected else "OTHER BITS")
                failed += not error and digest != expected
                failed += bool(error) and bool(layout.servers)
                print(f"| {layout.name} | {seconds:g} | {outcome} | {pause_s:.1f} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
