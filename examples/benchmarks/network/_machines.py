"""Machines on one machine: network namespaces on a switch, whose links `tc tbf` slows down.

Or on one that carries each frame later, `_delay.py`.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

LINK = "eth0"
UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Machine:
    """One namespace."""

    namespace: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """What a command starts with that is to run there."""
        return ["ip", "netns", "exec", self.namespace]


def run(line: str) -> None:
    """Run a command of `ip` or `tc`."""
    subprocess.run(line.split(), check=True)


@contextlib.contextmanager
def machines(count: int, rate: str, delay_ms: float = 0.0) -> Iterator[list[Machine]]:
    """Give machines whose links carry ``rate`` (as ``tc`` writes it) in each direction.

    ``"unlimited"``: what the kernel carries. With ``delay_ms`` all frames come so much later.
    Needs root. They are gone afterwards, whatever happened: also after SIGTERM, which by itself
    ends a process without a word.
    """
    before = signal.signal(signal.SIGTERM, _end)
    tag = f"gl{os.getpid()}"
    switch = f"{tag}s"
    found = [Machine(f"{tag}m{i}", f"198.18.79.{i + 1}") for i in range(count)]
    delays = None
    try:
        run(f"ip netns add {switch}")
        if not delay_ms:
            run(f"ip -n {switch} link add sw type bridge")
            run(f"ip -n {switch} link set sw up")
        for number, machine in enumerate(found):
            _plug_in(machine, number, switch, rate)
            if not delay_ms:
                run(f"ip -n {switch} link set p{number} master sw")
        if delay_ms:
            script = str(Path(__file__).with_name("_delay.py"))
            ports = [f"p{number}" for number in range(count)]
            command = ["ip", "netns", "exec", switch, sys.executable, script, str(delay_ms), *ports]
            delays = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert delays.stdout is not None
            delays.stdout.readline()
        yield found
    finally:
        if delays is not None:
            delays.kill()
            delays.wait()
        for name in (switch, *(machine.namespace for machine in found)):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: Any) -> NoReturn:
    raise SystemExit(128 + number)


def _plug_in(machine: Machine, number: int, switch: str, rate: str) -> None:
    name, port = machine.namespace, f"p{number}"
    run(f"ip netns add {name}")
    run(f"ip -n {switch} link add {port} type veth peer name {LINK} netns {name}")
    run(f"ip -n {switch} link set {port} up")
    run(f"ip -n {name} link set lo up")
    run(f"ip -n {name} addr add {machine.address}/24 dev {LINK}")
    run(f"ip -n {name} link set {LINK} up")
    if rate != UNLIMITED:
        shape = f"root tbf rate {rate} burst 1mb latency 50ms"
        run(f"ip netns exec {switch} tc qdisc add dev {port} {shape}")  # what it receives
        run(f"ip netns exec {name} tc qdisc add dev {LINK} {shape}")  # what it sends


def received_bytes() -> int:
    """Return the bytes that came over this machine's link so far; called in its namespace."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == LINK:
            return int(counts.split()[0])
    raise SystemExit(f"there is no {LINK} here")
